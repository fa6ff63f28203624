//! The ends of programs.
//!
//! Where destructors run, a program's locks are released automatically. `shutdown` releases them everywhere.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use wheellock::{Error, LockManager};
use wheellock_client::ErrorKind;
use wheellock_tests::certificates::{Authority, leaf};
use wheellock_tests::ending::{End, Ending, HELD, names};
use wheellock_tests::{RedisServer, poll_until};

/// B1: the locks of a program are released at its end, over TCP.
#[test]
fn process_exit_releases_over_tcp() {
    all_ends(&RedisServer::builder().tcp().start(), None);
}

/// B1: the locks of a program are released at its end, over a unix socket.
#[test]
fn process_exit_releases_over_unix_socket() {
    all_ends(&RedisServer::start(), None);
}

/// B1: the locks of a program are released at its end, through TLS.
#[test]
fn process_exit_releases_over_tls() {
    let authority = Authority::new("ours");
    let server = RedisServer::builder().tls(&authority.issue(&leaf(&["127.0.0.1"])), authority.pem());
    let server = server.arg("tls-auth-clients", "no").start();
    all_ends(&server, Some(&server.trusted_file()));
}

/// B1: guards that outlive their runtime are released, however they end, while the process continues.
#[test]
fn guards_outliving_runtime_are_released() {
    let server = RedisServer::start();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (first, second) = (runtime(), runtime());
    let locks = first.block_on(LockManager::connect(&server.url())).unwrap();
    let mut guards: Vec<_> =
        names("held", 4).map(|name| first.block_on(locks.lock(&name).acquire()).unwrap()).collect();
    drop(first);
    let free = |name: &str| poll_until(SOON, || server.cli(&["EXISTS", name]) == "0");
    drop(guards.pop());
    assert!(free("held:3"), "dropped");
    let released = second.block_on(guards.pop().unwrap().release());
    let Err(Error::Server { source, .. }) = released else { panic!("nobody could hear the answer") };
    assert_eq!(source.kind(), ErrorKind::Closed);
    assert!(free("held:2"), "released");
    let left = second.block_on(locks.shutdown(Duration::from_millis(10)));
    assert_eq!(left.locks().len(), 4, "nobody could hear the answers: {left}");
    assert!(free("held:0") && free("held:1"), "shut down");
    assert!(guards.iter().all(|guard| !guard.is_valid()));
}

/// Runs every kind of program several times. No program may leave a key.
fn all_ends(server: &RedisServer, trusted: Option<&Path>) {
    let rounds = std::env::var(ROUNDS).map_or(2, |rounds| rounds.parse().expect("a number of rounds"));
    let kinds: Vec<_> = LOCKS.into_iter().flat_map(Ending::all).collect();
    let (next, left) = (AtomicUsize::new(0), Mutex::new(vec![Tally::default(); kinds.len()]));
    std::thread::scope(|threads| {
        for _ in 0..AT_ONCE {
            threads.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(kind) = kinds.get(number / rounds) else { return };
                    let keys = run(server, kind, trusted, &format!("end:{number}"));
                    let tally = &mut left.lock().unwrap()[number / rounds];
                    tally.programs += usize::from(keys > 0);
                    tally.keys += keys;
                }
            });
        }
    });
    let (mut report, mut failed) = (String::new(), 0);
    for (kind, Tally { programs, keys }) in kinds.iter().zip(left.into_inner().unwrap()) {
        writeln!(report, "{kind:?}: {programs} of {rounds} left {keys} keys").unwrap();
        failed += programs;
    }
    println!("{report}");
    assert_eq!(failed, 0, "{report}");
}

#[derive(Clone, Default)]
struct Tally {
    programs: usize,
    keys: usize,
}

/// Runs a program. Returns the number of its locks that remain a little while after its end.
fn run(server: &RedisServer, kind: &Ending, trusted: Option<&Path>, prefix: &str) -> usize {
    let mut program = kind.command(env!("CARGO_BIN_EXE_ending_program"), &server.url(), trusted, prefix);
    let ended = program.stderr(Stdio::piped()).output().expect("the program can be started");
    let said = String::from_utf8_lossy(&ended.stdout);
    assert_eq!(said.trim(), HELD, "{kind:?}: {}", String::from_utf8_lossy(&ended.stderr));
    let code = if kind.end == End::Panic { 101 } else { 0 };
    assert_eq!(ended.status.code(), Some(code), "{kind:?}: {}", ended.status);
    let keys: Vec<_> = std::iter::once("EXISTS".to_owned()).chain(names(prefix, kind.locks)).collect();
    let keys: Vec<_> = keys.iter().map(String::as_str).collect();
    let mut left = String::new();
    let _gone = poll_until(SOON, || {
        left = server.cli(&keys);
        left == "0"
    });
    left.parse().unwrap()
}

/// The variable with the number of runs for each kind of program.
const ROUNDS: &str = "WHEELLOCK_EXIT_ROUNDS";
const LOCKS: [usize; 3] = [1, 3, 20];
const AT_ONCE: usize = 4;
/// Far below the lease of 30 s.
const SOON: Duration = Duration::from_secs(2);
