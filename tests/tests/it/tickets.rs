//! Locks that travel between processes as tickets, on real servers.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use wheellock::{Lock, LockManager, Ticket};
use wheellock_tests::RedisServer;
use wheellock_tests::fault::Random;
use wheellock_tests::history::now;
use wheellock_tests::locks::manager;

const TOOL: &str = env!("CARGO_BIN_EXE_wheellock_cli");
const RUNNER: &str = env!("CARGO_BIN_EXE_ticket_runner");
const NAME: &str = "travels";
/// After the death of a process that had the lock, the lock is free within this time.
const LEASE: Duration = Duration::from_millis(600);

fn kinds(locks: &LockManager) -> [Lock; 5] {
    [
        locks.lock("plain"),
        locks.fair_lock("fair"),
        locks.fenced_lock("fenced").as_lock().clone(),
        locks.read_write_lock("write").write(),
        locks.simple_lock("simple"),
    ]
}

/// Redisson and other libraries see one ordinary holder all the time.
#[tokio::test]
async fn ticket_matches_wire_contract() {
    let server = RedisServer::start();
    let (giver, taker) = (manager(&server.url()).await, manager(&server.url()).await);
    let holder = |name: &str, suffix: &str| match name {
        "simple" => server.cli(&["GET", name]),
        _ => {
            let fields = server.cli(&["HKEYS", name]);
            let mut owners = fields.split_whitespace().filter(|field| *field != "mode");
            let owner = owners.next().unwrap().to_owned();
            assert_eq!((owners.next(), &*server.cli(&["HGET", name, &owner])), (None, "1"));
            owner.strip_suffix(suffix).unwrap().to_owned()
        }
    };
    for lock in kinds(&giver) {
        let name = lock.name();
        let suffix = if name == "write" { ":write" } else { "" };
        let guard = lock.acquire().await.unwrap();
        let before = guard.owner().to_string();
        let ticket = guard.into_ticket().await.unwrap();
        assert_ne!(holder(name, suffix), before, "a caller may know this owner");
        let adopted = taker.adopt(&ticket).await.unwrap();
        assert_eq!(holder(name, suffix), adopted.owner().to_string());
        let left: u64 = server.cli(&["PTTL", name]).parse().unwrap();
        assert!(left > 25_000 && left <= 30_000, "{name}: {left}");
        adopted.release().await.unwrap();
        assert_eq!(server.cli(&["EXISTS", name]), "0");
    }
}

#[tokio::test]
async fn prefixed_lock_travels_by_full_name() {
    let server = RedisServer::start();
    let with_prefix = async || LockManager::builder(server.url()).prefix("app:").connect().await.unwrap();
    let (giver, taker, others) = (with_prefix().await, with_prefix().await, manager(&server.url()).await);
    for taker in [taker, others] {
        let ticket = giver.lock("n").acquire().await.unwrap().into_ticket().await.unwrap();
        let adopted = taker.adopt(&ticket).await.unwrap();
        assert_eq!((adopted.name(), &*server.cli(&["EXISTS", "app:n"])), ("app:n", "1"));
        adopted.release().await.unwrap();
    }
}

fn tool(server: &RedisServer, arguments: &[&str]) -> Output {
    Command::new(TOOL).args(arguments).env("WHEELLOCK_URL", server.url()).output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

#[test]
fn tool_acquires_runs_and_releases() {
    let (server, other) = (RedisServer::start(), RedisServer::start());
    for kind in ["plain", "fair", "fenced", "write", "simple"] {
        let acquired = tool(&server, &["acquire", kind, "--kind", kind, "--lease", "1m"]);
        assert_eq!(code(&acquired), 0, "{acquired:?}");
        let text = String::from_utf8(acquired.stdout).unwrap();
        let (text, ticket) = (text.trim(), text.trim().parse::<Ticket>().unwrap());
        assert_eq!((ticket.lock(), ticket.lease()), (kind, Duration::from_secs(60)));
        assert_eq!(code(&tool(&server, &["acquire", kind, "--kind", kind, "--wait", "0"])), 1);
        // Nothing happens to a ticket that is wrong or of another server.
        assert_eq!(code(&tool(&other, &["release", text])), 1);
        assert_eq!(code(&tool(&server, &["release", &text[..text.len() - 1]])), 64);
        assert_eq!(code(&tool(&server, &["holder", kind])), 0);
        let script = "test \"$WHEELLOCK_NAME\" = \"$1\" && exit 3";
        let ran = tool(&server, &["run", "--adopt", text, "--", "sh", "-c", script, "sh", kind]);
        assert_eq!(code(&ran), 3, "{ran:?}");
        assert_eq!(code(&tool(&server, &["holder", kind])), 1, "the command has ended");
        assert_eq!(code(&tool(&server, &["run", "--adopt", text, "--", "true"])), 1);
        assert_eq!(code(&tool(&server, &["release", text])), 1);
        let again = tool(&server, &["acquire", kind, "--kind", kind]);
        let text = String::from_utf8(again.stdout).unwrap();
        assert_eq!(code(&tool(&server, &["release", text.trim()])), 0);
    }
    assert_eq!(code(&tool(&server, &["acquire", "n", "--kind", "read"])), 64);
    assert_eq!(server.cli(&["EXISTS", "n"]), "0", "a lock without a ticket is released");
}

/// A process through which the lock travels. Dropping it kills the process.
struct Runner {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Runner {
    fn start(server: &RedisServer) -> Self {
        let lease = LEASE.as_millis().to_string();
        let mut command = Command::new(RUNNER);
        command.args([&server.url(), NAME, &lease]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, input, output: BufReader::new(output) }
    }

    /// Sends `acquire` or a ticket.
    fn send(&mut self, words: &str) {
        self.input.write_all(format!("{words}\n").as_bytes()).unwrap();
    }

    /// Reads the next line. Returns `None` after the end of the process.
    fn line(&mut self) -> Option<Vec<String>> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line).unwrap();
        let is_whole = read > 0 && line.ends_with('\n');
        is_whole.then(|| line.split_whitespace().map(str::to_owned).collect())
    }
}

impl Runner {
    fn kill(&mut self) {
        let _killed = self.child.kill();
        let _ended = self.child.wait();
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A journey from one acquire to the death of the process that had the lock then.
struct Journey {
    began: u64,
    ended: u64,
}

/// The journeys of a lock, and the nanoseconds of each adoption and of each ticket.
#[derive(Default)]
struct Relay {
    journeys: Vec<Journey>,
    transfers: usize,
    took: [Vec<u64>; 2],
}

impl Relay {
    /// Lets a lock travel through processes, and kills one of them now and then.
    fn run(server: &RedisServer, transfers: usize, random: &mut Random) -> Self {
        let mut relay = Self::default();
        let mut runners: Vec<Runner> = (0..3).map(|_| Runner::start(server)).collect();
        let (mut words, mut free_since) = ("acquire".to_owned(), Instant::now());
        while relay.transfers < transfers {
            let place = usize::try_from(random.below(3)).unwrap();
            let runner = &mut runners[place];
            let (dies, keeps) = match random.below(60) {
                0 => (true, true),
                1 => (true, false),
                _ => (false, false),
            };
            runner.send(&if keeps { format!("keep {words}") } else { words.clone() });
            if dies && !keeps {
                std::thread::sleep(Duration::from_micros(random.below(2000)));
                runner.kill();
            }
            let begins = words == "acquire";
            let answer = runner.line();
            if keeps {
                runner.kill();
            }
            match answer.as_deref() {
                Some([word, at, took]) if word == "in" => {
                    if begins {
                        let waited = free_since.elapsed();
                        assert!(waited < LEASE + Duration::from_secs(2), "waited for {waited:?}");
                        relay.journeys.push(Journey { began: at.parse().unwrap(), ended: 0 });
                    } else {
                        relay.took[0].push(took.parse().unwrap());
                    }
                    relay.transfers += 1;
                    words = match runner.line().as_deref() {
                        Some([_, _, took, ticket]) => {
                            relay.took[1].push(took.parse().unwrap());
                            ticket.clone()
                        }
                        _ => String::new(),
                    };
                }
                Some([word]) => {
                    assert!(word == "ended" && !begins, "{word}");
                    words = String::new();
                }
                // The process died before it held the lock, or before it could say so.
                None => assert!(dies),
                Some(other) => panic!("{other:?}"),
            }
            if dies {
                runners[place] = Runner::start(server);
            }
            if words.is_empty() {
                relay.journeys.last_mut().unwrap().ended = now();
                (words, free_since) = ("acquire".to_owned(), Instant::now());
            }
        }
        relay.journeys.last_mut().unwrap().ended = now();
        relay
    }
}

fn median(mut nanos: Vec<u64>) -> Duration {
    nanos.sort_unstable();
    Duration::from_nanos(nanos[nanos.len() / 2])
}

/// No other owner gets a lock that travels, and the death of a process costs one lease. `WHEELLOCK_TRANSFERS` sets the number of transfers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn travelling_lock_has_no_gap() {
    let server = RedisServer::start();
    let transfers = std::env::var("WHEELLOCK_TRANSFERS").ok().and_then(|number| number.parse().ok());
    let locks = manager(&server.url()).await;
    let over = Arc::new(AtomicBool::new(false));
    let (lock, is_over) = (locks.lock(NAME), Arc::clone(&over));
    let contender = tokio::spawn(async move {
        let mut held = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            let Some(guard) = lock.try_acquire_for(LEASE).await.unwrap().acquired() else { continue };
            let since = now();
            tokio::time::sleep(Duration::from_millis(2)).await;
            held.push((since, now()));
            guard.release().await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        held
    });
    let url = server.url();
    let relay = tokio::task::spawn_blocking(move || {
        let relay = Relay::run(&server, transfers.unwrap_or(150), &mut Random::new(7));
        (relay, server)
    });
    let (relay, _server) = relay.await.unwrap();
    over.store(true, Ordering::Relaxed);
    let held = contender.await.unwrap();
    for (since, until) in &held {
        let meets = |journey: &&Journey| *since < journey.ended && journey.began < *until;
        assert!(!relay.journeys.iter().any(|journey| meets(&journey)), "two holders");
    }
    assert!(!held.is_empty() && relay.journeys.len() > 1, "no process died with the lock");
    if transfers.is_some() {
        let locks = manager(&url).await;
        let mut trips = Vec::new();
        for _ in 0..1000 {
            let asked = now();
            locks.lock(NAME).is_locked().await.unwrap();
            trips.push(now() - asked);
        }
        let [adoptions, tickets] = relay.took;
        println!(
            "{} transfers, {} journeys, {} other holds; adoption {:?}, ticket {:?}, round trip {:?} (p50)",
            relay.transfers,
            relay.journeys.len(),
            held.len(),
            median(adoptions),
            median(tickets),
            median(trips)
        );
    }
}
