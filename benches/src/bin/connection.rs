//! The cost of a manager's own connection: file descriptors and memory of the process, and memory of the server.
//!
//! `connection` connects [`MANAGERS`] managers to one server, and reports a manager's share, before and after it held a lock.

use std::fs;

use anyhow::{Context as _, Result};
use wheellock::LockManager;
use wheellock_benches::Report;
use wheellock_tests::RedisServer;

const MANAGERS: usize = 50;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut report = Report::new("connection");
    let (mut descriptors, mut process, mut server_memory, mut used) = (vec![], vec![], vec![], vec![]);
    // The managers of all rounds stay, so that no round uses the freed memory of an earlier round.
    let mut kept = Vec::new();
    for _ in 0..report.rounds() {
        let server = RedisServer::builder().tcp().start();
        // The first manager starts the timer and the lookups, which all managers of a process share.
        let first = LockManager::connect(&server.url()).await?;
        first.lock("first").acquire().await?.release().await?;
        let before = Costs::now(&server)?;
        let mut managers = Vec::new();
        for _ in 0..MANAGERS {
            managers.push(LockManager::connect(&server.url()).await?);
        }
        let connected = Costs::now(&server)?;
        for (number, locks) in managers.iter().enumerate() {
            locks.lock(format!("n{number}")).acquire().await?.release().await?;
        }
        let each = |now: f64, before: f64| (now - before) / MANAGERS as f64;
        descriptors.push(each(connected.descriptors, before.descriptors));
        process.push(each(connected.process, before.process));
        server_memory.push(each(connected.server, before.server));
        used.push(each(Costs::now(&server)?.process, before.process));
        kept.push((server, first, managers));
    }
    report.row("a manager", "wheellock", "file descriptors", "each", &descriptors);
    report.row("a manager", "wheellock", "memory of the process", "bytes", &process);
    report.row("a manager", "wheellock", "the same after a lock", "bytes", &used);
    report.row("a manager", "wheellock", "memory of the server", "bytes", &server_memory);
    report.finish()
}

struct Costs {
    descriptors: f64,
    process: f64,
    server: f64,
}

impl Costs {
    fn now(server: &RedisServer) -> Result<Self> {
        let statm = fs::read_to_string("/proc/self/statm")?;
        let pages: u32 = statm.split_whitespace().nth(1).context("statm has no resident size")?.parse()?;
        let info = server.cli(&["INFO", "memory"]);
        let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).context("no memory")?;
        let descriptors = u32::try_from(fs::read_dir("/proc/self/fd")?.count())?;
        Ok(Self {
            descriptors: descriptors.into(),
            process: f64::from(pages) * 4096.0,
            server: used.trim().parse()?,
        })
    }
}
