//! Java's Redisson in a process of its own.
//!
//! The tests build the peer once with Maven, start it, drive it line by line, and never leave it running.
//!
//! Implements the parent's end of the protocol; the other end is in `tests/interop`. Does not know our locks. A peer ends when its stdin
//! closes, and the kernel closes stdin however the parent dies.

use std::collections::HashMap;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use rustix::fs::{FlockOperation, flock};
use tokio::sync::oneshot;

use crate::percent::{decode, encode};
use crate::server::target_directory;

/// Returns the peer that all tests of a process share. Prints a message and returns `None` if there is no Java.
///
/// # Panics
///
/// As [`start`].
#[must_use]
pub fn shared() -> Option<&'static Arc<Peer>> {
    static SHARED: OnceLock<Option<Arc<Peer>>> = OnceLock::new();
    SHARED.get_or_init(start).as_ref()
}

/// Starts a separate peer, for a test that kills it. Prints a message and returns `None` if there is no Java.
///
/// # Panics
///
/// If the peer cannot be built or started. Also if there is no Java while `CI` is set: CI must not pass because it skipped the test.
#[must_use]
pub fn start() -> Option<Arc<Peer>> {
    let missing = missing_tools();
    if !missing.is_empty() {
        let what = format!("skipped: Java's side needs {}, not found on PATH", missing.join(", "));
        assert!(std::env::var_os("CI").is_none(), "{what}");
        // Written directly, because the test harness would swallow the output of a macro.
        let _ = writeln!(std::io::stderr(), "{what}");
        return None;
    }
    let jars = built().unwrap_or_else(|error| panic!("cannot build the peer: {error:#}"));
    Some(Arc::new(Peer::spawn(jars).unwrap_or_else(|error| panic!("no peer in Java: {error:#}"))))
}

/// Returns the command that starts a campaign's Redisson worker.
///
/// # Errors
///
/// The worker cannot be built, for example because there is no Java.
pub fn campaigner() -> Result<Command> {
    Ok(java(built()?, "Campaigner"))
}

/// Returns the folder of the jars. Builds them once per process: a failure would repeat for every test, and Maven takes long to fail.
fn built() -> Result<&'static Path> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    built.as_deref().map_err(|error| anyhow!("{error}"))
}

fn java(jars: &Path, main: &str) -> Command {
    let mut java = Command::new("java");
    // The process lives shortly, so a second compiler or a large heap would not pay off.
    java.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-cp"])
        .arg(jars.join("*"))
        .arg(main);
    java
}

/// Returns the tools that a peer needs and that this machine does not have.
#[must_use]
pub fn missing_tools() -> Vec<&'static str> {
    let folders: Vec<PathBuf> = std::env::var_os("PATH")
        .map(|path| std::env::split_paths(&path).collect::<Vec<_>>())
        .unwrap_or_default();
    let is_missing = |tool: &&str| !folders.iter().any(|folder| folder.join(tool).is_file());
    // `mvn` needs the compiler that comes with `javac`. A mere runtime has only `java`.
    ["java", "javac", "mvn"].into_iter().filter(is_missing).collect()
}

/// Returns the version of Redisson to test instead of the version in `tests/interop/pom.xml`.
#[must_use]
pub fn chosen_version() -> Option<String> {
    std::env::var("WHEELLOCK_REDISSON").ok()
}

/// A JVM with Redisson. Dropping it kills the process.
#[derive(Debug)]
pub struct Peer {
    child: Mutex<Child>,
    stdin: Mutex<ChildStdin>,
    waiting: Arc<Mutex<Waiting>>,
}

/// The calls that wait for their answers, by number.
#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    /// `None` once the process is gone.
    answers: Option<HashMap<u64, oneshot::Sender<Answer>>>,
}

impl Peer {
    fn spawn(jars: &Path) -> Result<Self> {
        let mut child = java(jars, "Peer")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start java")?;
        let stdin = child.stdin.take().context("the peer has no stdin")?;
        let stdout = child.stdout.take().context("the peer has no stdout")?;
        let waiting = Arc::new(Mutex::new(Waiting { next: 0, answers: Some(HashMap::new()) }));
        std::thread::spawn({
            let waiting = Arc::clone(&waiting);
            move || deliver(stdout, &waiting)
        });
        Ok(Self { child: Mutex::new(child), stdin: Mutex::new(stdin), waiting })
    }

    /// Opens a client named `name` of the server or [topology](crate::topology) at `url`. The topology has Sentinels, or is a cluster. The
    /// client has Redisson's settings except for the watchdog's lease. In a topology, the client refreshes its view four times a second,
    /// and sends no request to replicas.
    ///
    /// # Panics
    ///
    /// If it cannot connect.
    pub async fn open(self: &Arc<Self>, name: &str, url: &str, watchdog_lease: Duration) -> Client {
        self.open_with(name, &[&url, &watchdog_lease.as_millis()]).await
    }

    /// Opens a client as [`open`](Self::open) does, with a codec that is not the default. Its `NameMapper` puts `prefix` before every name.
    ///
    /// # Panics
    ///
    /// If it cannot connect.
    pub async fn open_prefixed(
        self: &Arc<Self>,
        name: &str,
        url: &str,
        watchdog_lease: Duration,
        prefix: &str,
    ) -> Client {
        self.open_with(name, &[&url, &watchdog_lease.as_millis(), &"prefix", &prefix]).await
    }

    /// Opens a client as [`open`](Self::open) does, with a password for the Sentinels themselves.
    ///
    /// # Panics
    ///
    /// If it cannot connect.
    pub async fn open_with_sentinel_password(
        self: &Arc<Self>,
        name: &str,
        url: &str,
        watchdog_lease: Duration,
        password: &str,
    ) -> Client {
        self.open_with(name, &[&url, &watchdog_lease.as_millis(), &"sentinelPassword", &password]).await
    }

    /// Opens a client as [`open`](Self::open) does, with subscriptions at the replicas.
    ///
    /// # Panics
    ///
    /// If it cannot connect.
    pub async fn open_at_replicas(
        self: &Arc<Self>,
        name: &str,
        url: &str,
        watchdog_lease: Duration,
    ) -> Client {
        self.open_with(name, &[&url, &watchdog_lease.as_millis(), &"subscriptions", &"replicas"]).await
    }

    async fn open_with(self: &Arc<Self>, name: &str, arguments: &[&(dyn Display + Sync)]) -> Client {
        let client = Client { peer: Arc::clone(self), name: name.to_owned(), id: String::new() };
        let opening = client.thread("main").ask("open", arguments);
        Client { id: opening.done().await, ..client }
    }

    /// Kills the process with SIGKILL and waits until it is gone.
    pub fn kill(&self) {
        let mut child = lock(&self.child);
        // An error says that the process is already gone.
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Makes the process end itself at once, without cleanup, and waits until it is gone.
    pub fn crash(&self) {
        let _ = writeln!(lock(&self.stdin), "0 - - crash");
        let _ = lock(&self.child).wait();
    }

    fn send(&self, client: &str, thread: &str, verb: &str, arguments: &[&(dyn Display + Sync)]) -> Call {
        let mut request = format!("{client} {thread} {verb}");
        for argument in arguments {
            request.push(' ');
            request.push_str(&encode(&argument.to_string()));
        }
        let (sender, answer) = oneshot::channel();
        let mut waiting = lock(&self.waiting);
        waiting.next += 1;
        let id = waiting.next;
        if let Some(answers) = &mut waiting.answers {
            answers.insert(id, sender);
        }
        drop(waiting);
        // If the process is gone, the caller's wait for the answer fails.
        let _ = writeln!(lock(&self.stdin), "{id} {request}");
        Call { request, answer }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Delivers answers until the process is gone. Then every waiting call fails.
fn deliver(stdout: ChildStdout, waiting: &Mutex<Waiting>) {
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        let Some((id, answer)) = Answer::parse(&line) else {
            let _ = writeln!(std::io::stderr(), "the peer said: {line}");
            continue;
        };
        let receiver = lock(waiting).answers.as_mut().and_then(|answers| answers.remove(&id));
        if let Some(receiver) = receiver {
            // The caller may have dropped the call.
            let _ = receiver.send(answer);
        }
    }
    lock(waiting).answers = None;
}

/// A `RedissonClient`.
#[derive(Clone, Debug)]
pub struct Client {
    peer: Arc<Peer>,
    name: String,
    id: String,
}

impl Client {
    /// Returns the client's identity, which is the part of its owners before the colon.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns a thread of this client. The first call starts the thread, and the thread runs its calls one after the other.
    #[must_use]
    pub fn thread(&self, name: &str) -> Thread {
        Thread { client: self.clone(), name: name.to_owned() }
    }

    /// Closes the client's connections and ends its background work.
    ///
    /// # Panics
    ///
    /// If the peer is gone.
    pub async fn close(&self) {
        self.thread("main").ask("close", &[]).done().await;
    }

    /// Returns the owner's name on the wire for the thread `number` of this client.
    #[must_use]
    pub fn owner(&self, number: u64) -> String {
        format!("{}:{number}", self.id)
    }
}

/// A Java thread, which is the owner of a lock. The methods are those of `RLock`. Each method sends its request at once; the caller may
/// wait for the answer later.
///
/// A lock's name may begin with its kind: `read@`, `write@`, `fenced@`, `fair@` or `spin@`.
#[derive(Clone, Debug)]
pub struct Thread {
    client: Client,
    name: String,
}

impl Thread {
    /// `lock()`
    pub fn lock(&self, lock: &str) -> Call {
        self.ask("lock", &[&lock])
    }

    /// `lock(lease, MILLISECONDS)`
    pub fn lock_with_lease(&self, lock: &str, lease: Duration) -> Call {
        self.ask("lock", &[&lock, &lease.as_millis()])
    }

    /// `tryLock()`
    pub fn try_lock(&self, lock: &str) -> Call {
        self.ask("tryLock", &[&lock])
    }

    /// `tryLock(wait, MILLISECONDS)`
    pub fn try_lock_for(&self, lock: &str, wait: Duration) -> Call {
        self.ask("tryLock", &[&lock, &wait.as_millis()])
    }

    /// `tryLock(wait, lease, MILLISECONDS)`
    pub fn try_lock_for_with_lease(&self, lock: &str, wait: Duration, lease: Duration) -> Call {
        self.ask("tryLock", &[&lock, &wait.as_millis(), &lease.as_millis()])
    }

    /// `unlock()`
    pub fn unlock(&self, lock: &str) -> Call {
        self.ask("unlock", &[&lock])
    }

    /// `forceUnlock()`
    pub fn force_unlock(&self, lock: &str) -> Call {
        self.ask("forceUnlock", &[&lock])
    }

    /// `delete()`
    pub fn delete(&self, lock: &str) -> Call {
        self.ask("delete", &[&lock])
    }

    /// Interrupts another thread of this client.
    pub fn interrupt(&self, thread: &Self) -> Call {
        self.ask("interrupt", &[&thread.name])
    }

    /// `isLocked()`
    pub fn is_locked(&self, lock: &str) -> Call {
        self.ask("isLocked", &[&lock])
    }

    /// `getHoldCount()`, for this thread
    pub fn hold_count(&self, lock: &str) -> Call {
        self.ask("getHoldCount", &[&lock])
    }

    /// `isHeldByThread(number)`
    pub fn is_held_by(&self, lock: &str, number: u64) -> Call {
        self.ask("isHeldByThread", &[&lock, &number])
    }

    /// `remainTimeToLive()`
    pub fn remaining(&self, lock: &str) -> Call {
        self.ask("remainTimeToLive", &[&lock])
    }

    /// Returns all holders of a lock with their hold counts, each as a line `owner count`.
    pub fn holders(&self, lock: &str) -> Call {
        self.ask("holders", &[&lock])
    }

    /// Repeats `times` times: lock, read the number in the file, add one, write it back, unlock.
    pub fn increment(&self, lock: &str, times: u32, file: &Path) -> Call {
        self.ask("increment", &[&lock, &times, &file.display()])
    }

    /// Does the same as [`increment`](Self::increment). Returns a line for each time, with the instants of the request and of the grant.
    /// They are nanoseconds of the clock of [`monotonic`](crate::worker::monotonic).
    pub fn waits(&self, lock: &str, times: usize, file: &Path) -> Call {
        self.ask("waits", &[&lock, &times, &file.display()])
    }

    /// `lockAndGetToken()`, for a fenced lock
    pub fn lock_and_get_token(&self, lock: &str) -> Call {
        self.ask("lockAndGetToken", &[&lock])
    }

    /// `getToken()`, for a fenced lock
    pub fn token(&self, lock: &str) -> Call {
        self.ask("getToken", &[&lock])
    }

    /// Takes both sides of a read-write lock in turn, for `time`: `reads` times for reading, then once for writing. Each write adds one to
    /// the number in the file. Returns a line `r began ended` or `w began ended` for each visit, in nanoseconds of
    /// [`monotonic`](crate::worker::monotonic).
    pub fn visit(&self, lock: &str, reads: u64, time: Duration, file: &Path) -> Call {
        self.ask("visit", &[&lock, &reads, &time.as_millis(), &file.display()])
    }

    /// Calls a method of the semaphore `semaphore@name`, of the permit semaphore `permits@name` or of the latch `latch@name`, by its name
    /// in Java. Durations are milliseconds. Both semaphores also have the method `visit`: it acquires and releases for a while. It returns
    /// a line `permits began ended` for each time, in nanoseconds of [`monotonic`](crate::worker::monotonic).
    pub fn call(&self, object: &str, method: &str, arguments: &[&(dyn Display + Sync)]) -> Call {
        let mut all: Vec<&(dyn Display + Sync)> = vec![&object];
        all.extend_from_slice(arguments);
        self.ask(method, &all)
    }

    /// `Thread.getId()`
    ///
    /// # Panics
    ///
    /// If the peer is gone.
    pub async fn number(&self) -> u64 {
        self.ask("thread", &[]).done().await.parse().expect("a thread's id is a number")
    }

    /// Returns true if the thread sleeps until a message arrives or a time has passed.
    ///
    /// # Panics
    ///
    /// If the peer is gone.
    pub async fn sleeps(&self) -> bool {
        self.client.thread("observer").ask("sleeps", &[&self.name]).done().await == "true"
    }

    fn ask(&self, verb: &str, arguments: &[&(dyn Display + Sync)]) -> Call {
        self.client.peer.send(&self.client.name, &self.name, verb, arguments)
    }
}

/// A pending call in Java.
#[derive(Debug)]
#[must_use = "nobody else learns how the call ended"]
pub struct Call {
    request: String,
    answer: oneshot::Receiver<Answer>,
}

impl Call {
    /// Waits for the call's end, a result or an exception.
    ///
    /// # Panics
    ///
    /// If the peer is gone, or does not answer within a minute.
    pub async fn answer(self) -> Answer {
        let Self { request, answer } = self;
        match tokio::time::timeout(ANSWER_TIMEOUT, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => panic!("{request}: the peer is gone"),
            Err(_) => panic!("{request}: no answer in {ANSWER_TIMEOUT:?}"),
        }
    }

    /// Returns the result of the call.
    ///
    /// # Panics
    ///
    /// As [`answer`](Self::answer), and if it threw an exception.
    pub async fn done(self) -> String {
        let request = self.request.clone();
        let Answer { result, .. } = self.answer().await;
        result.unwrap_or_else(|thrown| panic!("{request}: {thrown:?}"))
    }
}

/// The end of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The begin of the call, on the clock of [`monotonic`](crate::worker::monotonic).
    pub began: Duration,
    /// The return of the call, on the same clock.
    pub ended: Duration,
    /// The result, or the exception.
    pub result: Result<String, Exception>,
}

/// An exception of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exception {
    /// The full name of the exception's class.
    pub class: String,
    /// Its message.
    pub message: String,
}

impl Answer {
    fn parse(line: &str) -> Option<(u64, Self)> {
        let words: Vec<_> = line.split(' ').collect();
        let (number, result) = words.split_first_chunk::<3>()?;
        let [id, began, ended] = number.map(|number| number.parse::<u64>().ok());
        let result = match *result {
            ["ok", result] => Ok(decode(result)?),
            ["error", class, message] => {
                Err(Exception { class: class.to_owned(), message: decode(message)? })
            }
            _ => return None,
        };
        let answer =
            Self { began: Duration::from_nanos(began?), ended: Duration::from_nanos(ended?), result };
        Some((id?, answer))
    }
}

/// Returns the folder of the peer's jars. Builds them unless an earlier build used exactly these sources.
fn build() -> Result<PathBuf> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop");
    let directory = target_directory()?.join("interop");
    fs::create_dir_all(&directory)?;
    // A second process waits here, and then finds the jars built. Dropping the file releases the file lock.
    let guard = File::create(directory.join("building"))?;
    flock(&guard, FlockOperation::LockExclusive)?;

    let jars = directory.join("jars");
    let stamp = directory.join("built-from");
    let pom = sources.join("pom.xml");
    let version = chosen_version().map(|version| format!("-Dredisson.version={version}"));
    let mut text = fs::read_to_string(&pom)? + version.as_deref().unwrap_or_default();
    for program in ["Peer", "Campaigner"] {
        text += &fs::read_to_string(sources.join(format!("src/main/java/{program}.java")))?;
    }
    if jars.is_dir() && fs::read_to_string(&stamp).is_ok_and(|built_from| built_from == text) {
        return Ok(jars);
    }
    if jars.exists() {
        // Another version's jars must not stay on the class path.
        fs::remove_dir_all(&jars)?;
    }
    let output = Command::new("mvn")
        .args(["-q", "-B", "-f"])
        .arg(&pom)
        .arg(format!("-Dpeer.directory={}", directory.display()))
        .args(version)
        .arg("package")
        .stdin(Stdio::null())
        .output()
        .context("cannot start mvn")?;
    let said = [output.stdout, output.stderr].concat();
    ensure!(output.status.success(), "mvn package failed:\n{}", String::from_utf8_lossy(&said));
    fs::write(&stamp, text)?;
    Ok(jars)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Longer than any single call takes, so that a hang becomes an error.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_from_other_lines() {
        let answer =
            |result| Answer { began: Duration::from_nanos(5), ended: Duration::from_nanos(6), result };
        assert_eq!(Answer::parse("7 5 6 ok locked"), Some((7, answer(Ok("locked".into())))));
        let thrown = Exception { class: "java.E".into(), message: "not held".into() };
        assert_eq!(Answer::parse("7 5 6 error java.E not+held"), Some((7, answer(Err(thrown)))));
        for other in ["", "WARNING: a JVM speaks", "7 5 6", "7 5 x ok a", "7 5 6 ok a b"] {
            assert_eq!(Answer::parse(other), None, "{other}");
        }
    }
}
