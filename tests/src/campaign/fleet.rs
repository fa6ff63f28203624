//! The worker processes, from their parent's side.
//!
//! Starts them, sends them requests, stops them, and kills them by pid.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use crate::history::now;
use crate::interop;
use crate::network::Site;
use crate::worker::monotonic;

/// A worker process. Dropping it kills the process.
#[derive(Debug)]
pub(super) struct Worker {
    /// The worker's number in the history.
    pub(super) number: u32,
    /// The worker's behaviour.
    pub(super) style: Style,
    /// The worker's site in the campaign's network.
    pub(super) site: Option<Site>,
    child: Child,
    requests: Option<ChildStdin>,
    answers: mpsc::Receiver<String>,
}

/// The behaviour of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// Every operation. Holds last some milliseconds, and sometimes a few leases.
    Mixed,
    /// Only long holds.
    Holding,
    /// Mostly waiting.
    Waiting,
    /// Short holds of about equal length.
    Even,
    /// All tasks always want the same lock for a moment, under owners that other tasks do not know.
    Hot,
    /// All tasks want the hot lock now and then for a moment, by polling.
    Polling,
    /// All tasks want the hot lock now and then for a moment, by subscribing.
    Visiting,
    /// Redisson, in a JVM.
    Redisson,
}

impl Style {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Mixed => "mixed",
            Self::Holding => "holding",
            Self::Waiting => "waiting",
            Self::Even => "even",
            Self::Hot => "hot",
            Self::Polling => "polling",
            Self::Visiting => "visiting",
            Self::Redisson => "redisson",
        }
    }

    pub(super) fn parse(name: &str) -> Option<Self> {
        let ours = [Self::Mixed, Self::Holding, Self::Waiting, Self::Even, Self::Hot];
        let all = ours.into_iter().chain([Self::Polling, Self::Visiting, Self::Redisson]);
        all.into_iter().find(|style| style.name() == name)
    }

    /// Returns true if all tasks want the same lock.
    pub(super) fn wants_one(self) -> bool {
        matches!(self, Self::Hot | Self::Polling | Self::Visiting)
    }
}

/// The kind of locks that a campaign uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Locks {
    Plain,
    Spin,
    Simple,
    Fenced,
    Fair,
    /// A pool of permits with leases.
    Permits,
    /// A pool of counted permits, without leases.
    Semaphore,
    /// Locks of a majority of independent servers.
    Quorum,
    /// Read-write locks. The number is the percentage of shared holds.
    ReadWrite(u64),
}

impl Locks {
    fn name(self) -> String {
        match self {
            Self::Plain => "plain".to_owned(),
            Self::Spin => "spin".to_owned(),
            Self::Simple => "simple".to_owned(),
            Self::Fenced => "fenced".to_owned(),
            Self::Fair => "fair".to_owned(),
            Self::Permits => "permits".to_owned(),
            Self::Semaphore => "semaphore".to_owned(),
            Self::Quorum => "quorum".to_owned(),
            Self::ReadWrite(reads) => format!("read-write:{reads}"),
        }
    }

    fn parse(name: &str) -> Option<Self> {
        if let Some(reads) = name.strip_prefix("read-write:") {
            return reads.parse().ok().map(Self::ReadWrite);
        }
        let single = [Self::Plain, Self::Spin, Self::Simple, Self::Fenced, Self::Fair];
        let mut all = single.into_iter().chain([Self::Permits, Self::Semaphore, Self::Quorum]);
        all.find(|locks| locks.name() == name)
    }

    /// Returns true if an owner may acquire its lock again.
    pub(super) fn is_reentrant(self) -> bool {
        !matches!(self, Self::Simple | Self::Quorum)
    }

    pub(super) fn is_pool(self) -> bool {
        matches!(self, Self::Permits | Self::Semaphore)
    }
}

/// The arguments of a worker.
#[derive(Clone, Debug)]
pub(super) struct Orders {
    /// The server's URL. For a quorum, the servers' URLs with a [`SEPARATOR`] between them.
    pub(super) url: String,
    pub(super) directory: String,
    pub(super) process: u32,
    pub(super) seed: u64,
    pub(super) tasks: u32,
    pub(super) locks: u64,
    pub(super) lease: Duration,
    pub(super) patience: Duration,
    pub(super) style: Style,
    pub(super) kind: Locks,
    /// True if the locks survive a failover.
    pub(super) survives: bool,
}

impl Orders {
    /// Returns the arguments of all workers.
    fn to_arguments(&self) -> [String; 10] {
        [
            self.url.clone(),
            self.directory.clone(),
            self.process.to_string(),
            self.seed.to_string(),
            self.tasks.to_string(),
            self.locks.to_string(),
            self.lease.as_millis().to_string(),
            self.patience.as_millis().to_string(),
            self.style.name().to_owned(),
            self.kind.name(),
        ]
    }

    pub(super) fn parse(arguments: &[String]) -> Result<Self> {
        let [url, directory, process, seed, tasks, locks, lease, patience, style, kind, survives] = arguments
        else {
            anyhow::bail!("a campaign's worker is started by its campaign only");
        };
        Ok(Self {
            url: url.clone(),
            directory: directory.clone(),
            process: process.parse()?,
            seed: seed.parse()?,
            tasks: tasks.parse()?,
            locks: locks.parse()?,
            lease: Duration::from_millis(lease.parse()?),
            patience: Duration::from_millis(patience.parse()?),
            style: Style::parse(style).context("no such style")?,
            kind: Locks::parse(kind).context("no such kind of lock")?,
            survives: survives.parse()?,
        })
    }

    pub(super) fn directory(&self) -> &Path {
        Path::new(&self.directory)
    }
}

impl Worker {
    /// Starts `program`, or a JVM if the style demands it.
    pub(super) fn start(program: fn() -> Command, orders: &Orders, site: Option<Site>) -> Result<Self> {
        let mut program = if orders.style == Style::Redisson { interop::campaigner()? } else { program() };
        program.args(orders.to_arguments());
        if orders.style == Style::Redisson {
            // Java cannot read the clock of histories.
            let ahead = u128::from(now()).saturating_sub(monotonic().as_nanos());
            program.arg(ahead.to_string());
        } else {
            program.arg(orders.survives.to_string());
        }
        if let Some(site) = &site {
            program = site.command(&program);
        }
        let mut child = program
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {program:?}"))?;
        let requests = child.stdin.take();
        let output = child.stdout.take().context("the worker has no stdout")?;
        let (sender, answers) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { number: orders.process, style: orders.style, site, child, requests, answers })
    }

    pub(super) fn tell(&mut self, request: &str) {
        if let Some(requests) = &mut self.requests {
            // A dead worker sends no answer, and the caller notices that.
            let _dead = writeln!(requests, "{request}");
        }
    }

    /// Waits for an answer. Returns false if the answer does not arrive by `deadline`.
    pub(super) fn answers(&self, expected: &str, deadline: Instant) -> bool {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.answers.recv_timeout(left) {
                Ok(line) if line == expected => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }

    pub(super) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // The pid stays ours until we wait for the process. If the worker is gone, the caller notices that no answer arrives.
        let _gone = pid.map(|pid| kill_process(pid, signal));
    }

    /// Kills the process and waits until it is gone.
    pub(super) fn kill(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Occurs in no URL.
pub(super) const SEPARATOR: char = ' ';
