//! The command line's arguments and help texts.
#![expect(clippy::doc_markdown, reason = "it is read on terminals")]

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

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
    Holder(Holder),
    Doctor(Doctor),
    Bench(Bench),
    /// Print a script that completes this tool's arguments
    Completions {
        /// For which shell
        shell: Shell,
    },
    /// Print this tool's manual, in Markdown
    Manual,
}

/// Run a command while holding a lock
///
/// The lock is renewed for as long as the command runs, and released when it has ended. The command's environment has WHEELLOCK_NAME,
/// the lock's name, and with `--kind fenced` WHEELLOCK_TOKEN, the number of the grant.
///
/// SIGHUP, SIGINT, SIGQUIT and SIGTERM are passed on to the command and its process group; the lock is released when the command has
/// ended, not before. On a terminal the command stays in the terminal's foreground group, which gets the terminal's signals by itself.
/// What the command leaves behind in the background is not waited for.
///
/// If the server cannot be reached, the command gets SIGTERM while there is time, and SIGKILL after the grace or shortly before the
/// lease ends on the server, whichever comes first: when others may have the lock, the command is gone, as long as this tool is not
/// stopped itself. If the lock is taken away by force, or evicted, others may have it at once, and the command gets the same signals as
/// soon as that is heard of: within a third of the lease.
///
/// On Linux the kernel kills the command with SIGKILL if this tool itself is killed, unless the command is a set-user-ID program;
/// what the command has started, and commands on other systems, run on.
///
/// Exit codes: that of the command; 128 and the signal's number if a signal ended it, or this tool while it waited; 1, or what
/// `--conflict-exit-code` says, if others held the lock for the whole wait; 64 for wrong arguments; 65 if there is other data under
/// the name; 69 if the server cannot be reached when the tool starts, or does not serve; 75 if the lock was lost before the command had
/// ended, whether the command was stopped for it or had ended by itself, and whatever its own code was; 126 or 127 if the command cannot
/// be run. If the server does not answer at the end, the tool takes some seconds more to say so.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The lock's name, which is its key on the server
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) server: Server,
    /// How long to wait for the lock, as in 500ms, 1.5s, 2m or 1h; a number alone is seconds, and 0 asks once. Without it, as long as it
    /// takes. A server that cannot be reached is not waited for
    #[arg(long, value_name = "TIME", value_parser = time::parse)]
    pub(crate) wait: Option<Duration>,
    /// How long the lock outlives this tool, should it die; at least 1s. It is renewed after every third of it
    #[arg(long, value_name = "TIME", value_parser = lease, default_value = "30s")]
    pub(crate) lease: Duration,
    /// The kind of lock. All who use a name have to use the same, but plain, fenced and spin exclude each other
    #[arg(long, value_enum, default_value = "plain")]
    pub(crate) kind: Kind,
    /// What `holder` says of this run; never a secret. Without it, host/process/command; empty for none
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// The exit code if others hold the lock
    #[arg(short = 'E', long, value_name = "N", default_value_t = 1)]
    pub(crate) conflict_exit_code: u8,
    /// How long the command has between SIGTERM and SIGKILL when the lock is lost
    #[arg(long, value_name = "TIME", value_parser = time::parse, default_value = "5s")]
    pub(crate) grace: Duration,
    /// Do not say who holds the lock if others do
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

/// Say who holds a lock
///
/// Prints a line for each holder: its label, its owner as it is on the server, in which way it holds, how often, and what is left of
/// its lease. The answer is one moment's.
///
/// Exit codes: 0 if the lock is held; 1 if it is free; 64 for wrong arguments; 65 if what is under the name is no lock; 69 if the
/// server cannot be reached, or does not serve.
#[derive(Debug, Args)]
pub(crate) struct Holder {
    /// The lock's name
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) server: Server,
    /// The kind of lock. Without it, whatever is there
    #[arg(long, value_enum)]
    pub(crate) kind: Option<Kind>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Check a server for whatever puts locks at risk
///
/// Looks at its version and role, at eviction and persistence, at what the user may do with plain locks, at round trips and at its clock,
/// and takes and releases a plain lock of its own for trial. Other kinds of locks need more permissions.
///
/// Exit codes: 0 if all is well; 1 if something is not; 64 for wrong arguments; 69 if the server cannot be reached, or does not serve.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) target: Target,
    /// The name of the lock that is taken for trial. Without it, one that nobody else has
    #[arg(long)]
    pub(crate) name: Option<String>,
}

/// Measure what locks cost on a server
///
/// Round trips; acquiring and releasing a lock that nobody else wants, one after the other on one connection; and one lock that
/// many tasks want at once, on one thread and one connection, handed over within the process and not. The lock is one that nobody
/// else has, and nothing is left of it. The numbers are those of this machine, this network and this server as it is now: they
/// say nothing about others.
///
/// Exit codes: 0; 64 for wrong arguments; 69 if the server cannot be reached, or does not serve.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[command(flatten)]
    pub(crate) target: Target,
    /// How long each of the four measurements takes, unless it comes to 4000000 samples before
    #[arg(long, value_name = "TIME", value_parser = bench_time, default_value = "2s")]
    pub(crate) time: Duration,
    /// How many tasks want the hot lock
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) tasks: u16,
}

/// The server of a lock.
#[derive(Debug, Args)]
pub(crate) struct Server {
    /// Where the server is: redis://, rediss:// (TLS), unix://, redis+sentinel:// or redis+cluster://. Others see the arguments of a
    /// process, so put a URL with a password into the environment
    #[arg(long, value_name = "URL", env = "WHEELLOCK_URL", hide_env_values = true, default_value = LOCAL)]
    pub(crate) url: String,
}

/// The server to check or measure.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// Where the server is, as for `run --url`
    #[arg(value_name = "URL", env = "WHEELLOCK_URL", hide_env_values = true, default_value = LOCAL)]
    pub(crate) url: String,
}

/// Maximum width of the help. Longer lines are hard to read.
pub(crate) const WIDTH: usize = 100;

const LOCAL: &str = "redis://127.0.0.1:6379";

/// Parses a lease. A process needs some time to be stopped before another owner gets the lock.
fn lease(text: &str) -> Result<Duration, String> {
    let lease = time::parse(text)?;
    if lease < SHORTEST_LEASE { Err("a lease has at least 1s".to_owned()) } else { Ok(lease) }
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
    fn what_is_suggested_is_in_the_help() {
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
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
