//! Java's Redisson in a process of its own, driven line by line: built once with Maven, started, and never left behind.
//!
//! Owns the parent's end of the protocol whose other end is `tests/interop`; knows no lock of ours. A peer ends when its
//! stdin closes, and the kernel closes that however the parent dies.

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

/// The peer that all tests of a process share; `None`, after saying so, where there is no Java.
///
/// # Panics
///
/// As [`start`].
#[must_use]
pub fn shared() -> Option<&'static Arc<Peer>> {
    static SHARED: OnceLock<Option<Arc<Peer>>> = OnceLock::new();
    SHARED.get_or_init(start).as_ref()
}

/// A peer of its own, for a test that kills it; `None`, after saying so, where there is no Java.
///
/// # Panics
///
/// If the peer cannot be built or started; and, where `CI` is set, if there is no Java: there a skipped test would be
/// a green lie.
#[must_use]
pub fn start() -> Option<Arc<Peer>> {
    let missing = missing_tools();
    if !missing.is_empty() {
        let what = format!("skipped: Java's side needs {}, not found on PATH", missing.join(", "));
        assert!(std::env::var_os("CI").is_none(), "{what}");
        // Not by a macro, whose output the test harness would swallow.
        let _ = writeln!(std::io::stderr(), "{what}");
        return None;
    }
    let jars = built().unwrap_or_else(|error| panic!("cannot build the peer: {error:#}"));
    Some(Arc::new(Peer::spawn(jars).unwrap_or_else(|error| panic!("no peer in Java: {error:#}"))))
}

/// How to start the worker of a campaign that is Redisson.
///
/// # Errors
///
/// It cannot be built, for example because there is no Java.
pub fn campaigner() -> Result<Command> {
    Ok(java(built()?, "Campaigner"))
}

/// The jars. Once a process: what fails for one test fails for all, and Maven takes its time to say so.
fn built() -> Result<&'static Path> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    built.as_deref().map_err(|error| anyhow!("{error}"))
}

fn java(jars: &Path, main: &str) -> Command {
    let mut java = Command::new("java");
    // A short life: no time for a second compiler, no use for a large heap.
    java.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-cp"])
        .arg(jars.join("*"))
        .arg(main);
    java
}

/// What of that which a peer needs this machine does not have.
#[must_use]
pub fn missing_tools() -> Vec<&'static str> {
    let folders: Vec<PathBuf> = std::env::var_os("PATH")
        .map(|path| std::env::split_paths(&path).collect::<Vec<_>>())
        .unwrap_or_default();
    let is_missing = |tool: &&str| !folders.iter().any(|folder| folder.join(tool).is_file());
    // `mvn` compiles with what comes with `javac`; a mere runtime has `java` alone.
    ["java", "javac", "mvn"].into_iter().filter(is_missing).collect()
}

/// The version of Redisson that is to be tried instead of the one in `tests/interop/pom.xml`.
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

/// Who waits for which answer; requests are numbered.
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

    /// Opens a client named `name` of the server, or of the [topology](crate::topology) with Sentinels or with a cluster, at
    /// `url`, with Redisson's settings but for the watchdog's lease. In a topology it looks around four times a second, and
    /// asks no replica.
    ///
    /// # Panics
    ///
    /// If it cannot connect.
    pub async fn open(self: &Arc<Self>, name: &str, url: &str, watchdog_lease: Duration) -> Client {
        self.open_with(name, &[&url, &watchdog_lease.as_millis()]).await
    }

    /// The same with a `NameMapper` that puts `prefix` before every name, and with a codec that is not the default.
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

    /// The same with a password for the Sentinels themselves.
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

    /// The same with subscriptions at the replicas.
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
        // Gone already is as good.
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Has the process end itself at once, without cleaning up, and waits until it is gone.
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
        // If it is gone, whoever waits for the answer will hear of it.
        let _ = writeln!(lock(&self.stdin), "{id} {request}");
        Call { request, answer }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Hands out answers until the process is gone; then all who wait hear of that.
fn deliver(stdout: ChildStdout, waiting: &Mutex<Waiting>) {
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        let Some((id, answer)) = Answer::parse(&line) else {
            let _ = writeln!(std::io::stderr(), "the peer said: {line}");
            continue;
        };
        let receiver = lock(waiting).answers.as_mut().and_then(|answers| answers.remove(&id));
        if let Some(receiver) = receiver {
            // Not everybody waits for the answer.
            let _ = receiver.send(answer);
        }
    }
    lock(waiting).answers = None;
}

/// One `RedissonClient`.
#[derive(Clone, Debug)]
pub struct Client {
    peer: Arc<Peer>,
    name: String,
    id: String,
}

impl Client {
    /// The client's identity: the part of its owners before the colon.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// A thread of this client; it comes into being with its first call, and does one call after the other.
    #[must_use]
    pub fn thread(&self, name: &str) -> Thread {
        Thread { client: self.clone(), name: name.to_owned() }
    }

    /// Ends the client's connections, and whatever it does of its own accord.
    ///
    /// # Panics
    ///
    /// If the peer is gone.
    pub async fn close(&self) {
        self.thread("main").ask("close", &[]).done().await;
    }

    /// What the owner of this client that is the thread `number` is called on the wire.
    #[must_use]
    pub fn owner(&self, number: u64) -> String {
        format!("{}:{number}", self.id)
    }
}

/// One thread, which is what owns a lock. The methods are those of `RLock`; each sends its request at once, and the
/// answer may be waited for later.
///
/// Before a lock's name may stand its kind: `read@`, `write@`, `fenced@`, `fair@` or `spin@`.
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

    /// `getHoldCount()`, of this thread
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

    /// All holders of a lock with their hold counts, as a line `owner count` each.
    pub fn holders(&self, lock: &str) -> Call {
        self.ask("holders", &[&lock])
    }

    /// So many times: lock, read the number in the file, add one, write it back, unlock.
    pub fn increment(&self, lock: &str, times: u32, file: &Path) -> Call {
        self.ask("increment", &[&lock, &times, &file.display()])
    }

    /// The same, and when the lock was asked for and had in each, on the clock of [`monotonic`](crate::worker::monotonic) in nanoseconds,
    /// as a line each.
    pub fn waits(&self, lock: &str, times: usize, file: &Path) -> Call {
        self.ask("waits", &[&lock, &times, &file.display()])
    }

    /// `lockAndGetToken()`, of a fenced lock
    pub fn lock_and_get_token(&self, lock: &str) -> Call {
        self.ask("lockAndGetToken", &[&lock])
    }

    /// `getToken()`, of a fenced lock
    pub fn token(&self, lock: &str) -> Call {
        self.ask("getToken", &[&lock])
    }

    /// Goes in and out of a read-write lock for a while: so many times reading, then once writing, which adds one to the
    /// number in the file. Returns a line `r began ended` or `w began ended` for each visit, in nanoseconds of
    /// [`monotonic`](crate::worker::monotonic).
    pub fn visit(&self, lock: &str, reads: u64, time: Duration, file: &Path) -> Call {
        self.ask("visit", &[&lock, &reads, &time.as_millis(), &file.display()])
    }

    /// Any method of the semaphore `semaphore@name`, of the permit semaphore `permits@name` or of the latch `latch@name`, by
    /// its name in Java; durations are milliseconds. Of both semaphores also `visit`: goes in and out for so long, and returns a
    /// line `permits began ended` for each time, in nanoseconds of [`monotonic`](crate::worker::monotonic).
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

    /// Whether the thread sleeps until a message comes or a time is over.
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

/// A call under way in Java.
#[derive(Debug)]
#[must_use = "nobody else learns how the call ended"]
pub struct Call {
    request: String,
    answer: oneshot::Receiver<Answer>,
}

impl Call {
    /// The call's end, whatever it is.
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

    /// What the call returned.
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

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// When the call began, on the clock of [`monotonic`](crate::worker::monotonic).
    pub began: Duration,
    /// When it returned.
    pub ended: Duration,
    /// What it returned, or threw.
    pub result: Result<String, Exception>,
}

/// What a call threw.
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

/// The folder of the peer's jars, built first unless it was built from these very sources before.
fn build() -> Result<PathBuf> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop");
    let directory = target_directory()?.join("interop");
    fs::create_dir_all(&directory)?;
    // Whoever comes second waits, and finds it built. The lock ends with the file.
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

/// Longer than any single call takes, so that a hang is an error and not a hang.
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
