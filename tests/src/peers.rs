//! Libraries of other people that speak the lock of a single instance, each in a process of its own, driven line by line.
//!
//! Owns the parent's end of a protocol whose other ends are the programs in `tests/peers`, and knows what they need; knows no
//! lock of ours. Fetches nothing: `cargo xtask peers` does.
//!
//! A peer gets the servers' URLs as arguments (before them, node-redlock its major version), and says `ready` when it may be
//! asked. It answers one request after the other, each with a line; what begins with `> ` is an answer, everything else is talk.
//!
//! | request | answers |
//! |---|---|
//! | `acquire NAME LEASE WAIT` (milliseconds; a lease of 0 has no end, where there is such a thing) | `acquired`, `refused` |
//! | `extend LEASE`: what was acquired last, to its lease | `extended`, `lost` |
//! | `release`: what was acquired last | `released`, `lost`, `unknown` (the library does not say) |
//! | `increment NAME LEASE TIMES FILE`: acquire, read the number in the file, add one, write it back, release, pause for 1 ms | `done` |
//!
//! After the first word of an answer a reason may stand. A peer ends when its stdin closes, and the kernel closes that however
//! the parent dies.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::mpsc;

use crate::server::target_directory;

/// A library, and what it can do.
#[derive(Debug)]
pub struct Library {
    /// What it is called.
    pub name: &'static str,
    /// Its folder, in `tests/peers` and in [`folder`](Self::folder).
    directory: &'static str,
    /// How it is started.
    pub program: Program,
    /// Whether it can extend a lease.
    pub extends: bool,
    /// Whether a release says that there was nothing to release.
    pub tells: bool,
    /// Whether it takes locks on a majority of servers.
    pub quorum: Quorum,
    /// Whether a lock without an end is its default.
    pub endless: bool,
}

/// What a library makes of several servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quorum {
    /// It knows one.
    None,
    /// A majority, as long as all answer.
    OfAllAlive,
    /// A majority, whether the others answer or not.
    Some,
}

/// How a library is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// A program in Go, which has to be built.
    Go,
    /// A program for Node, and its first argument.
    Node(&'static str),
    /// A program in Python, which has an environment of its own.
    Python,
    /// A test of the very program that runs: it serves if [`URLS`] says for which servers.
    Itself(&'static str),
}

/// All of them.
pub static LIBRARIES: [Library; 7] = [
    Library {
        name: "redsync",
        directory: "redsync",
        program: Program::Go,
        extends: true,
        tells: true,
        quorum: Quorum::Some,
        endless: false,
    },
    Library {
        name: "redislock",
        directory: "redislock",
        program: Program::Go,
        extends: true,
        tells: true,
        quorum: Quorum::None,
        endless: false,
    },
    Library {
        name: "node-redlock 5",
        directory: "node-redlock",
        program: Program::Node("5"),
        extends: true,
        tells: true,
        quorum: Quorum::Some,
        endless: false,
    },
    Library {
        name: "node-redlock 4",
        directory: "node-redlock",
        program: Program::Node("4"),
        extends: true,
        tells: true,
        quorum: Quorum::Some,
        endless: false,
    },
    Library {
        name: "redis-py",
        directory: "redis-py",
        program: Program::Python,
        extends: true,
        tells: true,
        quorum: Quorum::None,
        endless: true,
    },
    Library {
        name: "redlock-py",
        directory: "redlock-py",
        program: Program::Python,
        extends: false,
        tells: false,
        quorum: Quorum::OfAllAlive,
        endless: false,
    },
    Library {
        name: "rslock",
        directory: "rslock",
        program: Program::Itself("peers::rslock_as_a_peer"),
        extends: true,
        tells: false,
        quorum: Quorum::Some,
        endless: false,
    },
];

/// For [`Program::Itself`]: the URLs of its servers, with spaces between them.
pub const URLS: &str = "WHEELLOCK_PEER_URLS";

/// Those that can be started here. Says which cannot, and why.
#[must_use]
pub fn present() -> Vec<&'static Library> {
    let is_present = |library: &&Library| match library.missing() {
        None => true,
        Some(missing) => {
            // Not by a macro, whose output the test harness would swallow.
            let _ = writeln!(std::io::stderr(), "skipped: {} needs {missing}", library.name);
            false
        }
    };
    LIBRARIES.iter().filter(is_present).collect()
}

impl Library {
    /// What it needs and this machine does not have.
    #[must_use]
    pub fn missing(&self) -> Option<String> {
        if let Some(tool) = self.tools().iter().find(|tool| !is_on_path(tool)) {
            return Some(format!("{tool}, not found on PATH"));
        }
        let fetched = match self.is_fetched() {
            Ok(fetched) => fetched,
            Err(error) => return Some(format!("its folder: {error:#}")),
        };
        (!fetched).then(|| "what `cargo xtask peers` fetches".to_owned())
    }

    /// What has to be on PATH to fetch and to start it.
    #[must_use]
    pub fn tools(&self) -> &'static [&'static str] {
        match self.program {
            Program::Go => &["go"],
            Program::Node(_) => &["node", "npm"],
            Program::Python => &["python3"],
            Program::Itself(_) => &[],
        }
    }

    /// Where its program stands, and the manifest that names its version.
    #[must_use]
    pub fn sources(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(self.directory)
    }

    /// Where what was fetched stands.
    ///
    /// # Errors
    ///
    /// There is no such place.
    pub fn folder(&self) -> Result<PathBuf> {
        Ok(target_directory()?.join("peers").join(self.directory))
    }

    /// Whether it was fetched, and in the version that the manifest names.
    ///
    /// # Errors
    ///
    /// The manifest cannot be read.
    pub fn is_fetched(&self) -> Result<bool> {
        if self.made_from().is_empty() {
            return Ok(true);
        }
        Ok(fs::read_to_string(self.folder()?.join(STAMP))
            .is_ok_and(|text| self.text().is_ok_and(|now| now == text)))
    }

    /// Notes that it was fetched, as the manifest says now.
    ///
    /// # Errors
    ///
    /// The note cannot be written.
    pub fn note_fetched(&self) -> Result<()> {
        fs::write(self.folder()?.join(STAMP), self.text()?).context("cannot write the note")
    }

    /// The sources on which it depends what is fetched.
    #[must_use]
    pub fn made_from(&self) -> &'static [&'static str] {
        match self.program {
            Program::Go => &["go.mod", "go.sum", "peer.go"],
            Program::Node(_) => &["package.json", "package-lock.json"],
            Program::Python => &["requirements.txt"],
            Program::Itself(_) => &[],
        }
    }

    fn text(&self) -> Result<String> {
        let read = |name: &&str| {
            let path = self.sources().join(name);
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        self.made_from().iter().map(read).collect()
    }

    fn command(&self, urls: &[String]) -> Result<Command> {
        let (folder, sources) = (self.folder()?, self.sources());
        let mut command = match self.program {
            Program::Go => Command::new(folder.join("peer")),
            Program::Node(version) => {
                let mut command = Command::new("node");
                command.env("NODE_PATH", folder.join("node_modules"));
                command.arg(sources.join("peer.js")).arg(version);
                command
            }
            Program::Python => {
                let mut command = Command::new(folder.join("bin/python"));
                command.arg(sources.join("peer.py"));
                command
            }
            Program::Itself(test) => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args([test, "--exact", "--ignored", "--nocapture"]).env(URLS, urls.join(" "));
                return Ok(command);
            }
        };
        command.args(urls);
        Ok(command)
    }
}

/// A library at work. Dropping it kills the process.
#[derive(Debug)]
pub struct Peer {
    library: &'static Library,
    child: Child,
    stdin: ChildStdin,
    answers: mpsc::UnboundedReceiver<String>,
}

impl Peer {
    /// Starts it, and waits until it may be asked.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    pub async fn start(library: &'static Library, urls: &[String]) -> Self {
        let started = Self::spawn(library, urls);
        let mut peer = started.unwrap_or_else(|error| panic!("cannot start {}: {error:#}", library.name));
        assert_eq!(peer.answer().await, "ready", "{}", library.name);
        peer
    }

    fn spawn(library: &'static Library, urls: &[String]) -> Result<Self> {
        let mut command = library.command(urls)?;
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdin = child.stdin.take().context("the peer has no stdin")?;
        let stdout = child.stdout.take().context("the peer has no stdout")?;
        let (sender, answers) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(answer) = line.strip_prefix("> ") {
                    // Not everybody waits for the answer.
                    let _ = sender.send(answer.to_owned());
                }
            }
        });
        Ok(Self { library, child, stdin, answers })
    }

    /// Sends a request without waiting for its answer.
    pub fn ask(&mut self, request: &str) {
        // If it is gone, whoever waits for the answer will hear of it.
        let _ = writeln!(self.stdin, "{request}");
    }

    /// The next answer: its first word.
    ///
    /// # Panics
    ///
    /// If the peer is gone, does not answer within two minutes, or reports an error.
    pub async fn answer(&mut self) -> String {
        let name = self.library.name;
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, self.answers.recv()).await;
        let answer = answer.unwrap_or_else(|_| panic!("{name}: no answer in {ANSWER_TIMEOUT:?}"));
        let answer = answer.unwrap_or_else(|| panic!("{name} is gone"));
        let word = answer.split(' ').next().unwrap_or_default();
        assert_ne!(word, "error", "{name}: {answer}");
        word.to_owned()
    }

    /// Asks for a lock; a wait of zero is one attempt.
    pub fn asks_for(&mut self, lock: &str, lease: Duration, wait: Duration) {
        self.ask(&format!("acquire {lock} {} {}", lease.as_millis(), wait.as_millis()));
    }

    /// Takes a lock if it can within `wait`; returns whether it did.
    ///
    /// # Panics
    ///
    /// As [`answer`](Self::answer), and if the answer is no such answer.
    pub async fn acquires(&mut self, lock: &str, lease: Duration, wait: Duration) -> bool {
        self.asks_for(lock, lease, wait);
        self.is_one_of("acquired", "refused").await
    }

    /// Extends what it holds to its lease; returns whether there was anything to extend.
    ///
    /// # Panics
    ///
    /// As [`acquires`](Self::acquires).
    pub async fn extends(&mut self, lease: Duration) -> bool {
        self.ask(&format!("extend {}", lease.as_millis()));
        self.is_one_of("extended", "lost").await
    }

    /// Releases what it holds; returns whether there was anything to release, `None` if it does not say.
    ///
    /// # Panics
    ///
    /// As [`acquires`](Self::acquires), and if it says what it should not be able to, or does not say what it should.
    pub async fn releases(&mut self) -> Option<bool> {
        self.ask("release");
        if self.library.tells {
            return Some(self.is_one_of("released", "lost").await);
        }
        assert_eq!(self.answer().await, "unknown", "{}", self.library.name);
        None
    }

    async fn is_one_of(&mut self, yes: &str, no: &str) -> bool {
        let answer = self.answer().await;
        assert!([yes, no].contains(&answer.as_str()), "{}: {answer}", self.library.name);
        answer == yes
    }

    /// Kills the process with SIGKILL and waits until it is gone.
    pub fn kill(&mut self) {
        // Gone already is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn is_on_path(tool: &str) -> bool {
    let path = std::env::var_os("PATH");
    path.is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(tool).is_file()))
}

/// In the folder of what was fetched: what it was fetched for.
const STAMP: &str = "fetched-for";

/// Longer than any single request takes, so that a hang is an error and not a hang.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
