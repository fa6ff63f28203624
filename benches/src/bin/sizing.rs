//! Sizing benchmarks: the load that locks put on one server.
//!
//! All figures are the server's own: its CPU time and its memory by INFO. So they hold for any number of processes that share the load.
//!
//! `sizing [--rounds N] [--quick] [word]` runs the scenes whose names contain the word.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use wheellock::{Fleet, Guard, Health, Lock, LockManager, LockManagerBuilder};
use wheellock_benches::sent::Counting;
use wheellock_benches::{Report, is_quick, stretch};
use wheellock_tests::RedisServer;

fn main() -> Result<()> {
    let mut report = Report::new("sizing");
    let runtime = Builder::new_current_thread().enable_all().build()?;
    for (kind, lock) in KINDS {
        if report.wants(&format!("pairs {kind}")) {
            pairs(&mut report, kind, lock, &runtime)?;
        }
        if report.wants(&format!("held {kind}")) {
            held(&mut report, kind, lock, &runtime)?;
        }
    }
    for process in [Process::Idle, Process::Waiting, Process::InFleet] {
        if report.wants(&format!("processes {process:?}").to_lowercase()) {
            processes(&mut report, process, &runtime)?;
        }
    }
    report.finish()
}

/// Returns a lock of one kind.
type MakeLock = fn(&LockManager, &str) -> Lock;

const KINDS: [(&str, MakeLock); 6] = [
    ("plain", |locks, name| locks.lock(name)),
    ("simple", |locks, name| locks.simple_lock(name)),
    ("fenced", |locks, name| locks.fenced_lock(name).as_lock().clone()),
    ("read", |locks, name| locks.read_write_lock(name).read()),
    ("write", |locks, name| locks.read_write_lock(name).write()),
    ("fair", |locks, name| locks.fair_lock(name)),
];

/// Measures the server's CPU time of a pair of acquire and release, each of a free lock. A service sends few requests at the same time, and
/// each request is then a command of its own.
fn pairs(report: &mut Report, kind: &str, lock: MakeLock, runtime: &tokio::runtime::Runtime) -> Result<()> {
    let (mut cpu, mut commands) = (Vec::new(), Vec::new());
    for _ in 0..report.rounds() {
        let server = RedisServer::start();
        runtime.block_on(async {
            let locks = LockManager::connect(&server.url()).await?;
            let pairs = async |count: u64| {
                for number in 0..count {
                    lock(&locks, &format!("{kind}:{}", number % 100)).acquire().await?.release().await?;
                }
                anyhow::Ok(())
            };
            pairs(WARM_UP).await?;
            let counting = Counting::of(&server);
            pairs(WARM_UP).await?;
            commands.push(counting.stop()?.per(ratio(WARM_UP, 1)));
            let before = cpu_of(&server)?;
            pairs(count_of(PAIRS)).await?;
            cpu.push((cpu_of(&server)? - before) * 1e6 / ratio(count_of(PAIRS), 1));
            anyhow::Ok(())
        })?;
    }
    report.row("pairs", kind, "server CPU per pair", "us", &cpu);
    report.row("pairs", kind, "commands per pair", "", &commands);
    Ok(())
}

/// Measures the server's memory and CPU time of locks that are held and renewed.
fn held(report: &mut Report, kind: &str, lock: MakeLock, runtime: &tokio::runtime::Runtime) -> Result<()> {
    let (mut bytes, mut cpu) = (Vec::new(), Vec::new());
    let count = count_of(HELD);
    for _ in 0..report.rounds() {
        let server = RedisServer::start();
        runtime.block_on(async {
            let locks = LockManager::builder(server.url()).watchdog_lease(LEASE).connect().await?;
            let before = info(&server, "used_memory")?;
            let mut guards: Vec<Guard> = Vec::new();
            for number in 0..count {
                guards.push(lock(&locks, &format!("held:lock:{number:08}")).acquire().await?);
            }
            bytes.push((info(&server, "used_memory")? - before) / ratio(count, 1));
            let (renewals, used) = (locks.metrics().renewals, cpu_of(&server)?);
            tokio::time::sleep(stretch(RENEWED)).await;
            let renewed = locks.metrics().renewals - renewals;
            ensure!(renewed >= count, "{renewed} renewals of {count} locks");
            cpu.push((cpu_of(&server)? - used) * 1e6 / ratio(renewed, 1));
            ensure!(guards.iter().all(Guard::is_valid), "a lock was lost");
            anyhow::Ok(())
        })?;
    }
    report.row("held", kind, "server memory each", "bytes", &bytes);
    report.row("held", kind, "server CPU per renewal", "us", &cpu);
    Ok(())
}

#[derive(Clone, Copy, Debug)]
enum Process {
    Idle,
    /// One task waits for a lock that is held elsewhere.
    Waiting,
    /// The locks survive a failover.
    InFleet,
}

impl Process {
    fn adjust(self, builder: LockManagerBuilder) -> LockManagerBuilder {
        let Self::InFleet = self else { return builder };
        let mut fleet = Fleet::of_servers(1);
        fleet.may_be_new = true;
        builder.keep_locks_across_failovers(fleet)
    }
}

/// Measures processes that hold no lock. A process here is a manager with connections of its own.
fn processes(report: &mut Report, process: Process, runtime: &tokio::runtime::Runtime) -> Result<()> {
    let bench = format!("processes {process:?}").to_lowercase();
    let count = count_of(PROCESSES);
    let server = RedisServer::start();
    runtime.block_on(async {
        let first = process.adjust(LockManager::builder(server.url())).connect().await?;
        let _held = first.lock("wanted").acquire().await?;
        let (memory, clients) = (info(&server, "used_memory")?, info(&server, "connected_clients")?);
        let begun = Instant::now();
        let mut managers = Vec::new();
        let mut waits = JoinSet::new();
        for _ in 0..count {
            let locks = process.adjust(LockManager::builder(server.url())).connect().await?;
            if matches!(process, Process::Waiting) {
                let lock = locks.lock("wanted");
                waits.spawn(async move { lock.acquire().await.map(drop) });
            }
            managers.push(locks);
        }
        let mut row =
            |metric: &str, unit: &str, value: f64| report.row(&bench, "wheellock", metric, unit, &[value]);
        row("connecting each", "us", begun.elapsed().as_secs_f64() * 1e6 / ratio(count, 1));
        tokio::time::sleep(stretch(SETTLED)).await;
        row("connections each", "", (info(&server, "connected_clients")? - clients) / ratio(count, 1));
        row("server memory each", "bytes", (info(&server, "used_memory")? - memory) / ratio(count, 1));
        let (used, counting, since) = (cpu_of(&server)?, Counting::of(&server), Instant::now());
        tokio::time::sleep(stretch(IDLE)).await;
        let seconds = since.elapsed().as_secs_f64();
        row("commands each", "1/s", counting.stop()?.per(seconds * ratio(count, 1)));
        let share = (cpu_of(&server)? - used) / seconds;
        row("server CPU of a thousand", "% of a core", share * 100.0 * 1000.0 / ratio(count, 1));
        let (used, broken) = (cpu_of(&server)?, Instant::now());
        for kind in ["normal", "pubsub"] {
            let closed = server.cli(&["CLIENT", "KILL", "TYPE", kind]);
            ensure!(!closed.starts_with("ERR"), "{closed}");
        }
        while !managers
            .iter()
            .all(|locks| locks.client().stats().connections >= 2 && matches!(locks.health(), Health::Healthy))
        {
            ensure!(broken.elapsed() < NO_HANG, "not all processes are connected again");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        row("all connected again", "ms", broken.elapsed().as_secs_f64() * 1e3);
        row("server CPU per connecting", "us", (cpu_of(&server)? - used) * 1e6 / ratio(count, 1));
        anyhow::Ok(())
    })
}

/// Returns the CPU seconds that a server has used.
fn cpu_of(server: &RedisServer) -> Result<f64> {
    Ok(info(server, "used_cpu_user")? + info(server, "used_cpu_sys")?)
}

/// Returns a number of a server's INFO.
fn info(server: &RedisServer, field: &str) -> Result<f64> {
    let info = server.cli(&["INFO", "everything"]);
    let line = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    Ok(line.with_context(|| format!("INFO has no {field}"))?.trim().parse()?)
}

fn count_of(usual: u64) -> u64 {
    if is_quick() { usual / 20 } else { usual }
}

#[expect(clippy::cast_precision_loss, reason = "figures with three digits")]
fn ratio(of: u64, to: u64) -> f64 {
    of as f64 / to as f64
}

const WARM_UP: u64 = 500;
const PAIRS: u64 = 20_000;
const HELD: u64 = 20_000;
const PROCESSES: u64 = 1000;
/// A third of this passes between two renewals.
const LEASE: Duration = Duration::from_secs(6);
/// Each lock is renewed at least twice in this time.
const RENEWED: Duration = Duration::from_secs(6);
/// The first health checks and refreshes follow the connecting in this time.
const SETTLED: Duration = Duration::from_secs(4);
const NO_HANG: Duration = Duration::from_secs(60);
const IDLE: Duration = Duration::from_secs(15);
