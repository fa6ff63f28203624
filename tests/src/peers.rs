//! Other projects' libraries that lock a single instance.
//!
//! Each library runs in a process of its own, driven line by line.
//!
//! Implements the parent's end of a protocol; the programs in `tests/peers` are the other ends. Knows the requirements of the programs, but
//! not our locks. Does not download anything: `cargo xtask peers` does.
//!
//! A peer gets the servers' URLs as arguments. node-redlock gets its major version before them. A peer says `ready` when it accepts
//! requests. The peer answers each request, in order, with a line that begins with `> `. The parent ignores other lines.
//!
//! | request | answers |
//! |---|---|
//! | `acquire NAME LEASE WAIT` (milliseconds; a lease of 0 has no end, where there is such a thing) | `acquired`, `refused` |
//! | `extend LEASE`: what was acquired last, to its lease | `extended`, `lost` |
//! | `release`: what was acquired last | `released`, `lost`, `unknown` (the library does not say) |
//! | `using NAME LEASE`: holds the lock, which the library itself extends (node-redlock 5) | `acquired` |
//! | `aborted`: the lock of `using` | `held`, `lost` |
//! | `increment NAME LEASE TIMES FILE`: acquire, read the number in the file, add one, write it back, release, pause for 1 ms | `done` |
//!
//! After the first word, an answer may contain a reason. A peer ends when its stdin closes, and the kernel closes stdin however the parent
//! dies.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::mpsc;

use crate::server::target_directory;

/// A library and its abilities.
#[derive(Debug)]
pub struct Library {
    /// The library's name.
    pub name: &'static str,
    /// Its folder, in `tests/peers` and in [`folder`](Self::folder).
    directory: &'static str,
    /// The way to start the library.
    pub program: Program,
    /// True if the library can extend a lease.
    pub extends: bool,
    /// True if a release reports that the lock was already lost.
    pub tells: bool,
    /// The library's use of several servers.
    pub quorum: Quorum,
    /// True if a lock without an end is the library's default.
    pub endless: bool,
}

/// A library's use of several servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quorum {
    /// The library knows only one server.
    None,
    /// A majority, while all servers reply.
    OfAllAlive,
    /// A majority, even if the other servers do not reply.
    Some,
}

/// The way to start a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// A program in Go, which has to be built.
    Go,
    /// A program for Node, and its first argument.
    Node(&'static str),
    /// A program in Python, with an environment of its own.
    Python,
    /// A test of the running program itself: the test serves if [`URLS`] names its servers.
    Itself(&'static str),
}

/// All libraries.
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

/// The variable for [`Program::Itself`] with the URLs of its servers, separated by spaces.
pub const URLS: &str = "WHEELLOCK_PEER_URLS";

/// Returns the libraries that can be started here. Prints the other libraries and the reasons.
#[must_use]
pub fn present() -> Vec<&'static Library> {
    let is_present = |library: &&Library| match library.missing() {
        None => true,
        Some(missing) => {
            // Written directly, because the test harness would swallow the output of a macro.
            let _ = writeln!(std::io::stderr(), "skipped: {} needs {missing}", library.name);
            false
        }
    };
    LIBRARIES.iter().filter(is_present).collect()
}

impl Library {
    /// Returns the first requirement that this machine does not have.
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

    /// Returns the tools on PATH that are needed to fetch and to start the library.
    #[must_use]
    pub fn tools(&self) -> &'static [&'static str] {
        match self.program {
            Program::Go => &["go"],
            Program::Node(_) => &["node", "npm"],
            Program::Python => &["python3"],
            Program::Itself(_) => &[],
        }
    }

    /// Returns the folder of the peer's program and of the manifest that names its version.
    #[must_use]
    pub fn sources(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(self.directory)
    }

    /// Returns the folder of the fetched files.
    ///
    /// # Errors
    ///
    /// The folder cannot be determined.
    pub fn folder(&self) -> Result<PathBuf> {
        Ok(target_directory()?.join("peers").join(self.directory))
    }

    /// Returns true if the library was fetched in the version that the manifest names.
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

    /// Notes that the library was fetched, in the manifest's current version.
    ///
    /// # Errors
    ///
    /// The note cannot be written.
    pub fn note_fetched(&self) -> Result<()> {
        fs::write(self.folder()?.join(STAMP), self.text()?).context("cannot write the note")
    }

    /// Returns the sources that determine which files are fetched.
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

/// A running library. Dropping it kills the process.
#[derive(Debug)]
pub struct Peer {
    library: &'static Library,
    child: Child,
    stdin: ChildStdin,
    answers: mpsc::UnboundedReceiver<String>,
}

impl Peer {
    /// Starts the peer, and waits until it accepts requests.
    ///
    /// # Panics
    ///
    /// If the peer cannot be started.
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
                    // The caller may have dropped the receiver.
                    let _ = sender.send(answer.to_owned());
                }
            }
        });
        Ok(Self { library, child, stdin, answers })
    }

    /// Sends a request without waiting for its answer.
    pub fn ask(&mut self, request: &str) {
        // If the peer is gone, the caller's wait for the answer fails.
        let _ = writeln!(self.stdin, "{request}");
    }

    /// Returns the first word of the next answer.
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

    /// Requests a lock. A wait of zero is a single attempt.
    pub fn asks_for(&mut self, lock: &str, lease: Duration, wait: Duration) {
        self.ask(&format!("acquire {lock} {} {}", lease.as_millis(), wait.as_millis()));
    }

    /// Takes a lock, if that is possible within `wait`. Returns true if the peer took it.
    ///
    /// # Panics
    ///
    /// As [`answer`](Self::answer), and if the answer is a different word.
    pub async fn acquires(&mut self, lock: &str, lease: Duration, wait: Duration) -> bool {
        self.asks_for(lock, lease, wait);
        self.is_one_of("acquired", "refused").await
    }

    /// Extends the peer's hold to `lease`. Returns true if the peer still had a hold.
    ///
    /// # Panics
    ///
    /// As [`acquires`](Self::acquires).
    pub async fn extends(&mut self, lease: Duration) -> bool {
        self.ask(&format!("extend {}", lease.as_millis()));
        self.is_one_of("extended", "lost").await
    }

    /// Releases the peer's hold. Returns true if the peer still had a hold, and `None` if the library does not say.
    ///
    /// # Panics
    ///
    /// As [`acquires`](Self::acquires), and if the answer contradicts [`Library::tells`].
    pub async fn releases(&mut self) -> Option<bool> {
        self.ask("release");
        if self.library.tells {
            return Some(self.is_one_of("released", "lost").await);
        }
        assert_eq!(self.answer().await, "unknown", "{}", self.library.name);
        None
    }

    /// Holds a lock that the library itself extends, until the process ends. Only node-redlock 5 can do so.
    ///
    /// # Panics
    ///
    /// As [`acquires`](Self::acquires).
    pub async fn uses(&mut self, lock: &str, lease: Duration) {
        self.ask(&format!("using {lock} {}", lease.as_millis()));
        assert_eq!(self.answer().await, "acquired", "{}", self.library.name);
    }

    /// Returns true if the library has told the holder of [`uses`](Self::uses) that it lost the lock.
    ///
    /// # Panics
    ///
    /// As [`acquires`](Self::acquires).
    pub async fn is_aborted(&mut self) -> bool {
        self.ask("aborted");
        self.is_one_of("lost", "held").await
    }

    async fn is_one_of(&mut self, yes: &str, no: &str) -> bool {
        let answer = self.answer().await;
        assert!([yes, no].contains(&answer.as_str()), "{}: {answer}", self.library.name);
        answer == yes
    }

    /// Kills the process with SIGKILL and waits until it is gone.
    pub fn kill(&mut self) {
        // An error says that the process is already gone.
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

/// The file in the folder of fetched files that names the manifest they were fetched for.
const STAMP: &str = "fetched-for";

/// Longer than any single request takes, so that a hang becomes an error.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
