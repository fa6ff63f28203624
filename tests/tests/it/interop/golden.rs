//! The requests of both sides, step by step, compared with a golden file.

use std::fs;
use std::path::Path;
use std::time::Duration;

use wheellock::LockManager;
use wheellock_tests::beside::{
    attempts, both_sides, channel, extended, java_waits, quiet, shared_client, waiter, we_wait,
};
use wheellock_tests::interop::{self, Client};
use wheellock_tests::locks::{PATIENCE, at_rest};
use wheellock_tests::wire::{Scribe, difference};
use wheellock_tests::{RedisServer, eventually};

use super::{LEASE, NAME, SHORT_LEASE, keys};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_match_golden_file() {
    if interop::chosen_version().is_some() {
        // The golden file describes a single version.
        return;
    }
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let mut scribe = Scribe::default();
    for (name, text) in SCRIPTS {
        scribe.name_script(&server.cli(&["SCRIPT", "LOAD", text]), name);
    }
    let poll = wheellock::testing::server::Which::Acquire.poll().unwrap().text();
    scribe.name_script(&server.cli(&["SCRIPT", "LOAD", poll]), "poll.lua");
    let brisk = LockManager::builder(&server.url()).watchdog_lease(SHORT_LEASE).connect().await.unwrap();
    let brisk_java = shared_client("brisk", &server, SHORT_LEASE).await;

    let recorder = Recorder { server: &server, scribe: &scribe };
    let ours = recorder.ours(&locks, &brisk).await;
    // Redisson loads its scripts in its first run.
    recorder.theirs(&java, &brisk_java).await;
    let theirs = recorder.theirs(&java, &brisk_java).await;

    let mut found = String::from(GOLDEN_HEAD);
    for ((step, ours), (same_step, theirs)) in ours.into_iter().zip(theirs) {
        assert_eq!(step, same_step);
        found += &format!("\n=== {step}\n--- Wheellock\n{ours}--- Redisson\n{theirs}");
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/wire.txt");
    if std::env::var_os(BLESS).is_some() {
        fs::write(&golden, &found).unwrap();
    }
    if let Some(difference) = difference(&fs::read_to_string(&golden).unwrap_or_default(), &found) {
        panic!(
            "the wire contract has changed (- {}, + what was sent now):\n{difference}\
             If that is meant, write it down with {BLESS}=1, and have it reviewed.",
            golden.display()
        );
    }
}

/// Recorder of one side's requests, step by step. Only that side uses the server's TCP port meanwhile. The test itself is the
/// other party of a step.
struct Recorder<'a> {
    server: &'a RedisServer,
    scribe: &'a Scribe,
}

/// Name of each step, and the requests of that step.
type Steps = Vec<(&'static str, String)>;

impl Recorder<'_> {
    async fn ours(&self, locks: &LockManager, brisk: &LockManager) -> Steps {
        let mut steps = Steps::new();
        let lock = locks.lock(NAME);
        let rest = async || at_rest(locks).await;

        let outer = self.step(&mut steps, ACQUIRE, async || lock.acquire().await.unwrap(), rest).await;
        let owned = lock.with_owner(outer.owner());
        // In the millisecond of the grant, the next acquire has no lease to extend.
        let pttl = || self.server.cli(&["PTTL", NAME]);
        assert!(eventually(PATIENCE, async || pttl() != "30000").await);
        let inner = self.step(&mut steps, ACQUIRE_AGAIN, async || owned.acquire().await.unwrap(), rest).await;
        self.step(&mut steps, RELEASE_INNER, async || inner.release().await.unwrap(), rest).await;
        self.step(&mut steps, RELEASE, async || outer.release().await.unwrap(), rest).await;

        let leased = lock.with_lease(Duration::from_secs(10));
        let leased = self.step(&mut steps, LEASED, async || leased.acquire().await.unwrap(), rest).await;
        leased.release().await.unwrap();

        self.hold_as_stranger();
        self.step(
            &mut steps,
            REFUSED,
            async || assert!(!lock.try_acquire().await.unwrap().is_acquired()),
            rest,
        )
        .await;
        let waiting = async || we_wait(self.server, locks, NAME).await;
        let waiter = self.step(&mut steps, WAIT, async || waiter(locks, NAME), waiting).await;
        let woken = async || {
            self.release_as_stranger();
            waiter.await.unwrap().1
        };
        let guard = self.step(&mut steps, WOKEN_UP, woken, async || quiet(self.server, NAME).await).await;
        guard.release().await.unwrap();

        steps.push((RENEW_ONE, self.renewal_of_ours(brisk, &[NAME]).await));
        steps.push((RENEW_TWO, self.renewal_of_ours(brisk, &[NAME, OTHER_NAME]).await));
        self.hold_as_stranger();
        self.step(&mut steps, FORCE, async || assert!(lock.force_release().await.unwrap()), rest).await;

        let owner = locks.owner();
        let questions = async || {
            lock.is_locked().await.unwrap();
            lock.remaining_lease().await.unwrap();
            lock.hold_count(&owner).await.unwrap();
            lock.is_held_by(&owner).await.unwrap();
        };
        self.step(&mut steps, QUESTIONS, questions, rest).await;
        steps
    }

    async fn theirs(&self, java: &Client, brisk: &Client) -> Steps {
        let mut steps = Steps::new();
        let thread = java.thread("t");
        let number = thread.number().await;
        let rest = async || self.no_latch().await;

        self.step(&mut steps, ACQUIRE, async || thread.lock(NAME).done().await, rest).await;
        self.step(&mut steps, ACQUIRE_AGAIN, async || thread.lock(NAME).done().await, rest).await;
        self.step(&mut steps, RELEASE_INNER, async || thread.unlock(NAME).done().await, rest).await;
        self.step(&mut steps, RELEASE, async || thread.unlock(NAME).done().await, rest).await;

        let leased = async || thread.lock_with_lease(NAME, Duration::from_secs(10)).done().await;
        self.step(&mut steps, LEASED, leased, rest).await;
        thread.unlock(NAME).done().await;
        assert!(rest().await);

        self.hold_as_stranger();
        let refused = async || assert_eq!(thread.try_lock(NAME).done().await, "false");
        self.step(&mut steps, REFUSED, refused, rest).await;
        let asked = attempts(self.server);
        let waiting = async || java_waits(self.server, NAME, asked).await;
        let waiter = self.step(&mut steps, WAIT, async || thread.lock(NAME), waiting).await;
        let woken = async || {
            self.release_as_stranger();
            waiter.done().await
        };
        self.step(&mut steps, WOKEN_UP, woken, async || quiet(self.server, NAME).await).await;
        thread.unlock(NAME).done().await;

        steps.push((RENEW_ONE, self.renewal_of_theirs(brisk, &[NAME]).await));
        steps.push((RENEW_TWO, self.renewal_of_theirs(brisk, &[NAME, OTHER_NAME]).await));
        self.hold_as_stranger();
        let force = async || assert_eq!(thread.force_unlock(NAME).done().await, "true");
        self.step(&mut steps, FORCE, force, rest).await;

        let questions = async || {
            thread.is_locked(NAME).done().await;
            thread.remaining(NAME).done().await;
            thread.hold_count(NAME).done().await;
            thread.is_held_by(NAME, number).done().await;
        };
        self.step(&mut steps, QUESTIONS, questions, rest).await;
        steps
    }

    /// Records the requests from `action` on until the step is `settled`.
    async fn step<T>(
        &self,
        steps: &mut Steps,
        name: &'static str,
        action: impl AsyncFnOnce() -> T,
        settled: impl AsyncFn() -> bool,
    ) -> T {
        let monitor = self.server.monitor();
        let result = action().await;
        assert!(settled().await, "{name}");
        steps.push((name, self.scribe.write(&monitor.stop().unwrap())));
        result
    }

    async fn renewal_of_ours(&self, brisk: &LockManager, names: &[&str]) -> String {
        // Two locks that were acquired right after each other may still fall into two beats of the watchdog.
        for _ in 0..RENEWALS {
            let mut guards = Vec::new();
            for name in names {
                guards.push(brisk.lock(name).acquire().await.unwrap());
            }
            let renewal = self.renewal(names).await;
            for guard in guards {
                guard.release().await.unwrap();
            }
            if let Some(renewal) = renewal {
                return renewal;
            }
        }
        panic!("{names:?} were never renewed in one call");
    }

    async fn renewal_of_theirs(&self, brisk: &Client, names: &[&str]) -> String {
        let thread = brisk.thread("t");
        for name in names {
            thread.lock(name).done().await;
        }
        // The first renewal may come between the two acquires.
        for _ in 0..RENEWALS {
            if let Some(renewal) = self.renewal(names).await {
                for name in names {
                    thread.unlock(name).done().await;
                }
                assert!(self.no_latch().await);
                return renewal;
            }
        }
        panic!("{names:?} were never renewed in one call");
    }

    /// Returns the next renewal of the locks `names` if it is one call.
    async fn renewal(&self, names: &[&str]) -> Option<String> {
        let monitor = self.server.monitor();
        for name in names {
            assert!(extended(self.server, name).await, "{name} was never renewed");
        }
        let observed = monitor.stop().unwrap();
        let all = |keys: &[String]| {
            keys.len() == names.len() && names.iter().all(|name| keys.iter().any(|key| key == name))
        };
        let start = observed.iter().position(|command| all(keys(command)))?;
        let called = observed[start + 1..].iter().take_while(|command| command.from_script()).count();
        Some(self.scribe.write(&observed[start..=start + called]))
    }

    fn hold_as_stranger(&self) {
        assert_eq!(self.server.cli(&["HSET", NAME, "00000000-0000-4000-8000-000000000000:1", "1"]), "1");
        assert_eq!(self.server.cli(&["PEXPIRE", NAME, "30000"]), "1");
    }

    fn release_as_stranger(&self) {
        assert_eq!(self.server.cli(&["DEL", NAME]), "1");
        assert_eq!(self.server.cli(&["PUBLISH", &channel(NAME).unwrap(), "0"]), "1");
    }

    /// Returns true once Redisson has deleted its latches. Redisson's calls do not wait for that.
    async fn no_latch(&self) -> bool {
        eventually(PATIENCE, async || self.server.cli(&["KEYS", "redisson_unlock_latch*"]).is_empty()).await
    }
}

const OTHER_NAME: &str = "orders:43";

/// Number of renewals to examine for the requested renewal.
const RENEWALS: usize = 20;

const SCRIPTS: [(&str, &str); 4] = [
    (
        "acquire.lua",
        concat!(
            include_str!("../../../../crates/wheellock/src/scripts/holders_of.lua"),
            include_str!("../../../../crates/wheellock/src/scripts/acquire.lua")
        ),
    ),
    ("release.lua", include_str!("../../../../crates/wheellock/src/scripts/release.lua")),
    ("renew.lua", include_str!("../../../../crates/wheellock/src/scripts/renew.lua")),
    (
        "force_release.lua",
        concat!(
            include_str!("../../../../crates/wheellock/src/scripts/holders_of.lua"),
            include_str!("../../../../crates/wheellock/src/scripts/force_release.lua")
        ),
    ),
];

const ACQUIRE: &str = "acquire";
const ACQUIRE_AGAIN: &str = "acquire again, as the same owner";
const RELEASE_INNER: &str = "release of the inner hold";
const RELEASE: &str = "release";
const LEASED: &str = "acquire with a lease of 10 s";
const REFUSED: &str = "attempt on a held lock";
const WAIT: &str = "begin to wait for a held lock";
const WOKEN_UP: &str = "be woken by the release";
const RENEW_ONE: &str = "renewal of one lock, lease 3 s";
const RENEW_TWO: &str = "renewal of two locks, lease 3 s";
const FORCE: &str = "forced release of a held lock";
const QUESTIONS: &str = "is it locked, for how long, how often by me, by me at all";

/// Variable that rewrites the golden file.
const BLESS: &str = "WHEELLOCK_BLESS";

const GOLDEN_HEAD: &str = "\
What either side sends, as MONITOR shows it: commands, and indented what their scripts call.
<owner> is uuid:number, <request> 32 random hexadecimal digits, <x.lua> the SHA-1 of a file in crates/wheellock/src/scripts;
other scripts are Redisson's, by their SHA-1. Written by the test target `interop` of wheellock-tests; see docs/interop.md.
";
