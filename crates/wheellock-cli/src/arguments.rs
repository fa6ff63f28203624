//! The command line's arguments and help texts.
#![expect(clippy::doc_markdown, reason = "it is read on terminals")]

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use wheellock::{Fleet, LockManager, LockManagerBuilder};

use crate::kinds::Kind;
use crate::time;

/// Distributed locks on Redis and Valkey, for cron jobs and shells
///
/// The locks are those of the Rust library `wheellock` and of Java's Redisson: programs that use either and commands that this tool
/// runs exclude each other.
#[derive(Debug, Parser)]
#[command(name = "wheellock", version, max_term_width = WIDTH)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Run(Run),
    Acquire(Acquire),
    Release(Release),
    Ask(Ask),
    Holder(Holder),
    Ls(Ls),
    Top(Top),
    Queue(Queue),
    Doctor(Doctor),
    Bench(Bench),
    /// Print a script that completes this tool's arguments
    Completions {
        /// The shell that completes the arguments
        shell: Shell,
    },
    /// Print this tool's manual, in Markdown
    Manual,
}

/// Run a command while holding a lock
///
/// While the command runs, the lock is renewed. When the command has ended, the lock is released. The command's
/// environment contains WHEELLOCK_NAME, the lock's name. With `--kind fenced` it also contains WHEELLOCK_TOKEN, the
/// number of the grant.
///
/// SIGHUP, SIGINT, SIGQUIT and SIGTERM are passed on to the command and its process group. The lock is released when
/// the command has ended, not before. On a terminal, the command stays in the terminal's foreground group, which gets
/// the terminal's signals by itself. Background processes of the command are not waited for.
///
/// If the server cannot be reached, the command gets SIGTERM while there is time. It gets SIGKILL after the grace, or
/// shortly before the lease ends on the server, whichever comes first. When another owner may get the lock, the
/// command is gone, unless this tool itself is stopped. If the lock is removed by force or evicted, another owner may
/// get it at once. The command then gets the same signals as soon as this tool notices, within a third of the lease.
///
/// On Linux, if this tool itself is killed, the kernel kills the command with SIGKILL, unless the command is a
/// set-user-ID program. Processes that the command has started, and commands on other systems, keep running.
///
/// Exit codes: the command's own code; 128 and the signal's number if a signal ended the command, or this tool while
/// it waited; 1, or the value of `--conflict-exit-code`, if other owners held the lock for the whole wait; 64 for
/// wrong arguments; 65 if the name holds other data; 69 if the server cannot be reached, at the start or during the
/// wait, or is not ready; 75 if the lock was lost, held for its maximum time or requested before the command ended,
/// whatever its own code; 126 or 127 if the command cannot be run. If the server does not reply at the end, the tool takes some
/// seconds more to report that.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The lock's name, which is its key on the server
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) server: Server,
    /// NAME is a ticket of `acquire` or of a program. The command runs under its lock, from this process on
    #[arg(long, conflicts_with_all = ["wait", "kind", "at_most", "at_least"])]
    pub(crate) adopt: bool,
    /// How long to wait for the lock, such as 500ms, 1.5s, 2m or 1h. A number alone is seconds, and 0 tries once.
    /// Without it, the wait has no limit. The tool does not wait for an unreachable server
    #[arg(long, value_name = "TIME", value_parser = time::parse)]
    pub(crate) wait: Option<Duration>,
    /// How long the lock remains if this tool dies; at least 1s. It is renewed after every third of this time
    #[arg(long, value_name = "TIME", value_parser = lease, default_value = "30s")]
    pub(crate) lease: Duration,
    /// How long the lock is held at most; at least 1s. Shortly before that, the command is stopped as if the lock were lost
    #[arg(long, value_name = "TIME", value_parser = lease)]
    pub(crate) at_most: Option<Duration>,
    /// How long the lock is kept at least, also if the command ends earlier; at least 1s. No host can run the job again in
    /// that time. Not longer than --at-most, and not for the kinds read and write
    #[arg(long, value_name = "TIME", value_parser = lease)]
    pub(crate) at_least: Option<Duration>,
    /// The kind of lock. All users of a name must use the same kind, but plain, fenced and spin exclude each other
    #[arg(long, value_enum, default_value = "plain")]
    pub(crate) kind: Kind,
    /// The text that `holder` prints for this run; never a secret. The default is host/process/command. Empty means
    /// no label
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// The exit code if others hold the lock
    #[arg(short = 'E', long, value_name = "N", default_value_t = 1)]
    pub(crate) conflict_exit_code: u8,
    #[command(flatten)]
    pub(crate) failovers: Failovers,
    /// How long the command has between SIGTERM and SIGKILL when the lock is lost
    #[arg(long, value_name = "TIME", value_parser = time::parse, default_value = "5s")]
    pub(crate) grace: Duration,
    /// Stop the command, as if the lock were lost, when `ask` asks for the lock
    #[arg(long)]
    pub(crate) stop_on_request: bool,
    /// Do not print the lock's holder if another owner holds it
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

/// Acquire a lock, and print a ticket for it
///
/// The lock stays held when this tool has ended, until the lease ends. No process renews it. `release TICKET` releases
/// the lock, and `run --adopt TICKET` runs a command under it, on any host.
///
/// Exit codes: as of `run`.
#[derive(Debug, Args)]
pub(crate) struct Acquire {
    /// The lock's name, which is its key on the server
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) server: Server,
    /// How long to wait for the lock, as for `run`
    #[arg(long, value_name = "TIME", value_parser = time::parse)]
    pub(crate) wait: Option<Duration>,
    /// How long the lock stays held; at least 1s
    #[arg(long, value_name = "TIME", value_parser = lease, default_value = "30s")]
    pub(crate) lease: Duration,
    /// The kind of lock; not read
    #[arg(long, value_enum, default_value = "plain")]
    pub(crate) kind: Kind,
}

/// Release the lock of a ticket, or any lock by force
///
/// With `--force`, the lock is taken from its holder, which may still work: stop that process first. On a terminal the
/// tool prints the holder and asks. The holder's process learns of it at once, or with its next renewal. The next owner
/// gets the lock 20 ms later.
///
/// Exit codes: 0 if the lock was released; 1 if the ticket has ended, if the lock was free, or after another answer than
/// `yes`; 64 for wrong arguments; 65 if the name holds other data; 69 if the server cannot be reached, or is not ready.
#[derive(Debug, Args)]
pub(crate) struct Release {
    /// The ticket that `acquire` has printed; with --force, the lock's name
    #[arg(value_name = "TICKET")]
    pub(crate) ticket: String,
    #[command(flatten)]
    pub(crate) server: Server,
    /// Free the lock of this name, whatever its holder
    #[arg(long)]
    pub(crate) force: bool,
    /// Do not ask. Needed if the input is not a terminal
    #[arg(long, requires = "force")]
    pub(crate) yes: bool,
    /// The kind of lock. Without it, any kind
    #[arg(long, value_enum, requires = "force")]
    pub(crate) kind: Option<Kind>,
}

/// Ask a lock's holders to release it
///
/// Each holder that listens sees the reason, and decides. Programs listen with `Guard::release_requested`, and `run` with
/// `--stop-on-request`. The tool prints one line per holder. The lock itself is not changed.
///
/// Exit codes: 0 if every holder was told; 1 if a holder does not listen, or the lock is free; 64 for wrong arguments; 65 if
/// the name holds other data; 69 if the server cannot be reached, or is not ready.
#[derive(Debug, Args)]
pub(crate) struct Ask {
    /// The lock's name
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) server: Server,
    /// The reason that the holders see, such as 'deploy 4711'; at most 256 bytes
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) reason: String,
    /// The kind of lock. Without it, any kind
    #[arg(long, value_enum)]
    pub(crate) kind: Option<Kind>,
}

/// List the locks that are held
///
/// Scans the keys of the server in small batches, at a pace that leaves the server to others, and tells locks by the
/// shape of their data. Simple locks of other libraries, counted semaphores and latches are not listed. Progress is
/// shown on a terminal. Prints one line per holder: name, kind, holder, remaining lease, waiters.
///
/// Exit codes: 0 if a lock was listed; 1 if none was; 64 for wrong arguments; 69 if the server cannot be reached, is not
/// ready, or is a cluster.
#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// The names, as a glob pattern of Redis, such as 'orders:*'
    #[arg(default_value = "*")]
    pub(crate) pattern: String,
    #[command(flatten)]
    pub(crate) server: Server,
    /// Stop after this number of locks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
    /// Print one JSON object per lock
    #[arg(long)]
    pub(crate) json: bool,
}

/// Watch the locks of a server
///
/// Lists the locks as `ls` does, again and again, in a table that fills the terminal. The locks with the most waiters
/// come first, then those with the least remaining lease. Control-C ends it.
///
/// Exit codes: 0; 64 for wrong arguments, or without a terminal; 69 if the server cannot be reached at the start, is not
/// ready, or is a cluster.
#[derive(Debug, Args)]
pub(crate) struct Top {
    /// The names, as a glob pattern of Redis, such as 'orders:*'
    #[arg(default_value = "*")]
    pub(crate) pattern: String,
    #[command(flatten)]
    pub(crate) server: Server,
    /// How often the table is drawn. On a large server a scan takes longer
    #[arg(long, value_name = "TIME", value_parser = time::parse, default_value = "2s")]
    pub(crate) every: Duration,
}

/// Print the waiters for a fair lock
///
/// Prints one line per waiter: place, label, owner as on the server. The waiter at place 1 gets the lock next. The
/// server knows no waiters of other kinds.
///
/// Exit codes: 0 if the lock has waiters; 1 if not; 64 for wrong arguments; 69 if the server cannot be reached,
/// or is not ready.
#[derive(Debug, Args)]
pub(crate) struct Queue {
    /// The lock's name
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) server: Server,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print a lock's holders
///
/// Prints one line per holder: label, owner as on the server, mode, hold count, age and remaining lease. The age is
/// known of holders with a label, after some seconds. The output describes one moment.
///
/// Exit codes: 0 if the lock is held; 1 if it is free; 64 for wrong arguments; 65 if the name holds data that is not
/// a lock; 69 if the server cannot be reached, or is not ready.
#[derive(Debug, Args)]
pub(crate) struct Holder {
    /// The lock's name
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) server: Server,
    /// The kind of lock. Without it, any kind
    #[arg(long, value_enum)]
    pub(crate) kind: Option<Kind>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Check a server for risks to locks
///
/// Checks the version and role, eviction and persistence, the user's permissions for plain locks, round trips and the
/// clock. Acquires and releases a plain lock of its own as a trial. Other kinds of locks need more permissions. With
/// `--keep-across-failovers` the replicas and the permissions for that are checked, too.
///
/// Several URLs name the servers of a majority (`RedLockManager`). Then the tool also checks that they are independent
/// and can all grant.
///
/// Exit codes: 0 if all checks pass; 1 if a check fails, or one of several servers cannot be reached; 64 for wrong
/// arguments; 69 if the only server cannot be reached, or is not ready.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// The servers' URLs, as for `run --url`
    #[arg(value_name = "URL", env = "WHEELLOCK_URL", hide_env_values = true, default_value = LOCAL)]
    pub(crate) urls: Vec<String>,
    /// The name of the trial lock. Without it, a unique name
    #[arg(long)]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) failovers: Failovers,
}

/// Measure the cost of locks on a server
///
/// Measures round trips; an uncontended lock that a single task acquires and releases in sequence on one connection;
/// and a hot lock that many tasks share on one thread and one connection, with and without hand-over within the
/// process. The lock has a unique name, and no data remains on the server. The numbers hold for this machine, this
/// network and this server at present, and not for others.
///
/// Exit codes: 0; 64 for wrong arguments; 69 if the server cannot be reached, or is not ready.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[command(flatten)]
    pub(crate) target: Target,
    /// How long each of the four measurements takes, or until 4000000 samples
    #[arg(long, value_name = "TIME", value_parser = bench_time, default_value = "2s")]
    pub(crate) time: Duration,
    /// Number of tasks that share the hot lock
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) tasks: u16,
}

/// The server of a lock.
#[derive(Debug, Args)]
pub(crate) struct Server {
    /// The server's URL: redis://, rediss:// (TLS), unix://, redis+sentinel:// or redis+cluster://. Other users see
    /// the arguments of a process, so put a URL with a password into the environment
    #[arg(long, value_name = "URL", env = "WHEELLOCK_URL", hide_env_values = true, default_value = LOCAL)]
    pub(crate) url: String,
    /// A prefix of the name on the server, as of `LockManagerBuilder::prefix`
    #[arg(
        long,
        value_name = "TEXT",
        env = "WHEELLOCK_PREFIX",
        hide_env_values = true,
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) prefix: String,
}

impl Server {
    /// Returns the settings of a manager for this server.
    pub(crate) fn builder(&self) -> LockManagerBuilder {
        LockManager::builder(&self.url).prefix(&self.prefix)
    }

    /// Returns the full name of a lock, as on the server.
    pub(crate) fn full_name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

/// The treatment of locks at a failover.
#[derive(Debug, Args)]
pub(crate) struct Failovers {
    /// Keep locks across failovers of N servers, the primary and its replicas, dead ones included. All users of the
    /// locks need this setting. After a failover it may take 40s until a lock is granted
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST_SERVERS))]
    pub(crate) keep_across_failovers: Option<u32>,
}

impl Failovers {
    /// Adds the setting to those of a manager.
    pub(crate) fn of(&self, builder: LockManagerBuilder) -> LockManagerBuilder {
        match self.keep_across_failovers {
            Some(servers) => builder.keep_locks_across_failovers(Fleet::of_servers(servers)),
            None => builder,
        }
    }
}

/// The server to measure.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// The server's URL, as for `run --url`
    #[arg(value_name = "URL", env = "WHEELLOCK_URL", hide_env_values = true, default_value = LOCAL)]
    pub(crate) url: String,
}

/// Maximum width of the help. Longer lines are hard to read.
pub(crate) const WIDTH: usize = 100;

/// Most servers of one primary. A larger number is a mistake, and no lock would be granted.
const MOST_SERVERS: i64 = 99;

const LOCAL: &str = "redis://127.0.0.1:6379";

/// Parses a lease. A process needs some time to be stopped before another owner gets the lock.
fn lease(text: &str) -> Result<Duration, String> {
    let lease = time::parse(text)?;
    if lease < SHORTEST_LEASE { Err("at least 1s".to_owned()) } else { Ok(lease) }
}

fn bench_time(text: &str) -> Result<Duration, String> {
    let time = time::parse(text)?;
    let bounds = Duration::from_millis(10)..=Duration::from_secs(3600);
    if bounds.contains(&time) { Ok(time) } else { Err("between 10ms and 1h".to_owned()) }
}

const SHORTEST_LEASE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    /// Internal arguments are not suggested to users.
    #[test]
    fn internal_arguments_are_never_suggested() {
        for typo in ["bogus", "bonud"] {
            let error = Arguments::try_parse_from(["w", typo]).unwrap_err().to_string();
            assert!(error.contains(typo) && !error.contains("bound"), "{error}");
        }
        let error = Arguments::try_parse_from(["w", "docter"]).unwrap_err().to_string();
        assert!(error.contains("'doctor'"), "{error}");
        assert!(Arguments::command().get_subcommands().all(|verb| !verb.is_hide_set()));
    }

    #[test]
    fn a_command_stands_behind_two_dashes() {
        let parse = |words: &[&str]| Arguments::try_parse_from(words.iter().copied());
        let Verb::Run(run) = parse(&["w", "run", "n", "--wait", "0", "--", "sh", "--help"]).unwrap().verb
        else {
            panic!("it is a run");
        };
        assert_eq!((run.wait, run.command), (Some(Duration::ZERO), vec!["sh".into(), "--help".into()]));
        for wrong in [
            &["w", "run", "n"][..],
            &["w", "run", "n", "--"],
            &["w", "run", "n", "--lease", "10ms", "--", "x"],
            &["w", "run", "n", "--at-most", "10ms", "--", "x"],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
