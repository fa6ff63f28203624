//! Scale benchmarks: many held locks, waiters and names.
//!
//! All are in one process on one connection. Bytes are the growth of the resident memory, so they include tasks, guards and the allocator's
//! own share.
//!
//! `scale [--locks N] [--waiters N] [--seconds N] [--quick] [word]` runs the scenes whose names contain the word.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tokio::runtime::Builder;
use wheellock::{Guard, Lock, LockManager, Metrics, Permit};
use wheellock_benches::sent::Counting;
use wheellock_benches::{Report, is_quick, process_cpu, stretch};
use wheellock_tests::RedisServer;

fn main() -> Result<()> {
    let options = Options::read()?;
    let mut report = Report::new("scale");
    for (name, play) in [
        ("held locks", (|report, options| held(report, options, Of::Locks)) as Scene),
        ("held permits", |report, options| held(report, options, Of::Permits)),
        ("waiters on one lock", |report, options| waiters(report, options, Of::Locks)),
        ("waiters on one semaphore", |report, options| waiters(report, options, Of::Permits)),
        ("names", names),
        ("herd", herds),
    ] {
        if options.word.as_ref().is_none_or(|word| name.contains(word.as_str())) {
            play(&mut report, &options)?;
        }
    }
    report.finish()
}

type Scene = fn(&mut Report, &Options) -> Result<()>;

/// The kind of held or awaited object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Of {
    /// Locks, each with its own name.
    Locks,
    /// Permits of one semaphore.
    Permits,
}

impl Of {
    async fn acquire(self, locks: &LockManager, number: u64) -> Result<Held, wheellock::Error> {
        Ok(match self {
            Self::Locks => Held::Lock(locks.lock(&format!("held:{number}")).acquire().await?),
            Self::Permits => Held::Permit(locks.permit_semaphore(POOL).acquire().await?),
        })
    }

    /// Returns true if no lock or permit is held any more.
    fn is_free(self, server: &RedisServer) -> bool {
        match self {
            Self::Locks => server.cli(&["DBSIZE"]) == "0",
            Self::Permits => server.cli(&["EXISTS", "{pool}:timeout"]) == "0",
        }
    }
}

enum Held {
    Lock(Guard),
    Permit(Permit),
}

impl Held {
    fn is_valid(&self) -> bool {
        match self {
            Self::Lock(guard) => guard.is_valid(),
            Self::Permit(permit) => permit.is_valid(),
        }
    }
}

struct Options {
    locks: u64,
    waiters: u64,
    seconds: u64,
    word: Option<String>,
}

impl Options {
    fn read() -> Result<Self> {
        let mut options = if is_quick() {
            Self { locks: 100_000, waiters: 10_000, seconds: 12, word: None }
        } else {
            Self { locks: 1_000_000, waiters: 100_000, seconds: 60, word: None }
        };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            let number = |args: &mut dyn Iterator<Item = String>| -> Result<u64> {
                Ok(args.next().context("a number is missing")?.parse()?)
            };
            match arg.as_str() {
                "--locks" => options.locks = number(&mut args)?,
                "--waiters" => options.waiters = number(&mut args)?,
                "--seconds" => options.seconds = number(&mut args)?,
                "--quick" => {}
                word => options.word = Some(word.to_owned()),
            }
        }
        Ok(options)
    }
}

/// Measures a process that holds a large number of locks while the watchdog renews them.
fn held(report: &mut Report, options: &Options, of: Of) -> Result<()> {
    let server = RedisServer::start();
    let count = options.locks;
    let bench = format!("{count} held {of:?}").to_lowercase();
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let locks = LockManager::connect(&server.url()).await?;
        if of == Of::Permits {
            let _free = locks.permit_semaphore(POOL).set_permits(u32::try_from(count)?).await?;
        }
        let before = resident()?;
        let since = Instant::now();
        let share = usize::try_from(count.div_ceil(TASKS))?;
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let locks = locks.clone();
                tokio::spawn(async move {
                    // Reserve room for all guards at once, so that the growth of the vector is not measured.
                    let mut guards = Vec::with_capacity(share);
                    for number in (task..count).step_by(usize::try_from(TASKS)?) {
                        guards.push(of.acquire(&locks, number).await?);
                    }
                    anyhow::Ok(guards)
                })
            })
            .collect();
        let mut guards = Vec::with_capacity(tasks.len());
        for task in tasks {
            guards.push(task.await??);
        }
        let took = since.elapsed().as_secs_f64();
        figure(report, &bench, "acquired", "1/s", ratio(count, 1) / took);
        figure(report, &bench, "memory each", "bytes", ratio(resident()?.saturating_sub(before), count));
        let used = Used::so_far(&server);
        let start = locks.metrics();
        tokio::time::sleep(Duration::from_secs(options.seconds)).await;
        let end = locks.metrics();
        used.report_since(report, &bench, &server);
        let (counting, since) = (Counting::of(&server), Instant::now());
        tokio::time::sleep(stretch(RENEWED)).await;
        commands(report, &bench, "commands", counting, since)?;
        figure(report, &bench, "renewals", "1/s", ratio(end.renewals - start.renewals, options.seconds));
        for (quantile, metric) in [(0.5, "lateness p50"), (0.999, "lateness p99.9"), (1.0, "lateness max")] {
            figure(report, &bench, metric, "ms", end.renewal_lateness.quantile(quantile).as_secs_f64() * 1e3);
        }
        figure(report, &bench, "lost", "", ratio(lost(&end), 1));
        figure(report, &bench, "failed renewals", "", ratio(end.failed_renewals, 1));
        let believed = guards.iter().flatten().filter(|guard| guard.is_valid()).count();
        ensure!(u64::try_from(believed)? == count, "{believed} of {count} are still believed");
        let since = Instant::now();
        drop(guards);
        figure(report, &bench, "dropping one", "ns", since.elapsed().as_secs_f64() * 1e9 / ratio(count, 1));
        while !of.is_free(&server) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        figure(report, &bench, "all released after", "s", since.elapsed().as_secs_f64());
        Ok(())
    })
}

/// Measures a large number of tasks of one process that wait for a lock or permit held by a different process.
fn waiters(report: &mut Report, options: &Options, of: Of) -> Result<()> {
    let server = RedisServer::start();
    let count = options.waiters;
    let bench = format!("{count} waiters on one of {of:?}").to_lowercase();
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let holder = LockManager::connect(&server.url()).await?;
        let locks = LockManager::connect(&server.url()).await?;
        let _free = holder.permit_semaphore(POOL).set_permits(1).await?;
        let held = of.acquire(&holder, 0).await?;
        let served = Arc::new(AtomicU64::new(0));
        let before = resident()?;
        let tasks: Vec<_> = match of {
            Of::Locks => {
                let lock = locks.lock("held:0");
                let wait = || {
                    let (lock, served) = (lock.clone(), Arc::clone(&served));
                    tokio::spawn(async move {
                        let since = Instant::now();
                        let is_served = lock.try_acquire_for(WAIT).await?.is_acquired();
                        in_time(since, is_served, &served)
                    })
                };
                (0..count).map(|_| wait()).collect()
            }
            Of::Permits => {
                let pool = locks.permit_semaphore(POOL);
                let wait = || {
                    let (pool, served) = (pool.clone(), Arc::clone(&served));
                    tokio::spawn(async move {
                        let since = Instant::now();
                        let is_served = pool.try_acquire_for(WAIT).await?.is_acquired();
                        in_time(since, is_served, &served)
                    })
                };
                (0..count).map(|_| wait()).collect()
            }
        };
        while locks.metrics().waiting < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        figure(report, &bench, "memory each", "bytes", ratio(resident()?.saturating_sub(before), count));
        let (counting, since) = (Counting::of(&server), Instant::now());
        tokio::time::sleep(IDLE).await;
        commands(report, &bench, "commands while idle", counting, since)?;
        // Counting takes a few percent of the server's time in the timed period. A second fleet of this size would cost more.
        let (counting, since) = (Counting::of(&server), Instant::now());
        drop(held);
        for task in tasks {
            task.await??;
        }
        figure(report, &bench, "served", "1/s", ratio(count, 1) / since.elapsed().as_secs_f64());
        figure(report, &bench, "commands per acquire", "", counting.stop()?.per(ratio(count, 1)));
        figure(report, &bench, "not served", "tasks", ratio(count - served.load(Ordering::Relaxed), 1));
        let wait = locks.metrics().wait;
        figure(report, &bench, "wait p50", "s", wait.quantile(0.5).as_secs_f64());
        figure(report, &bench, "wait max", "s", wait.quantile(1.0).as_secs_f64());
        Ok(())
    })
}

/// Fails unless the waiter was served before its deadline.
fn in_time(since: Instant, is_served: bool, served: &AtomicU64) -> Result<()> {
    ensure!(since.elapsed() <= WAIT, "past its deadline");
    served.fetch_add(u64::from(is_served), Ordering::Relaxed);
    Ok(())
}

/// Uses ten thousand names per second, each once.
fn names(report: &mut Report, options: &Options) -> Result<()> {
    let server = RedisServer::start();
    let bench = format!("{NAMES} names per second");
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let locks = LockManager::connect(&server.url()).await?;
        let second = async |second: u64| {
            let mut ticks = tokio::time::interval(Duration::from_millis(10));
            for tick in 0..100 {
                ticks.tick().await;
                let tasks: Vec<_> = (0..NAMES / 100)
                    .map(|number| {
                        let lock = locks.lock(&format!("name:{second}:{tick}:{number}"));
                        tokio::spawn(async move { lock.acquire().await?.release().await })
                    })
                    .collect();
                for task in tasks {
                    task.await??;
                }
            }
            anyhow::Ok(())
        };
        for number in 0..WARM_UP {
            second(number).await?;
        }
        let before = resident()?;
        let used = Used::so_far(&server);
        for number in 0..options.seconds {
            second(WARM_UP + number).await?;
        }
        used.report_since(report, &bench, &server);
        let (counting, since) = (Counting::of(&server), Instant::now());
        second(WARM_UP + options.seconds).await?;
        commands(report, &bench, "commands", counting, since)?;
        figure(report, &bench, "memory before", "bytes", ratio(before, 1));
        figure(report, &bench, "memory after", "bytes", ratio(resident()?, 1));
        ensure!(server.cli(&["DBSIZE"]) == "0", "keys were left behind");
        Ok(())
    })
}

/// Creates a lock of one kind.
type MakeLock = fn(&LockManager) -> Lock;

/// Measures processes that wait for one lock and have one turn each. A process here is a manager with a connection of its own.
fn herds(report: &mut Report, _: &Options) -> Result<()> {
    let kinds: [(&str, MakeLock); 4] = [
        ("plain", |locks| locks.lock(HERD)),
        ("simple", |locks| locks.simple_lock(HERD)),
        ("fenced", |locks| locks.fenced_lock(HERD).as_lock().clone()),
        ("fair", |locks| locks.fair_lock(HERD)),
    ];
    for (kind, lock) in kinds {
        for processes in [2, 10, 100, 1000] {
            herd(report, kind, lock, processes)?;
        }
    }
    Ok(())
}

fn herd(report: &mut Report, kind: &str, lock: MakeLock, processes: usize) -> Result<()> {
    let server = RedisServer::start();
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let first = LockManager::connect(&server.url()).await?;
        let mut managers = Vec::new();
        for _ in 0..processes {
            managers.push(LockManager::connect(&server.url()).await?);
        }
        let held = lock(&first).acquire().await?;
        let counting = Counting::of(&server);
        let wait_for_turn = |locks: &LockManager| {
            let lock = lock(locks);
            tokio::spawn(async move {
                let guard = lock.acquire().await?;
                let granted = Instant::now();
                tokio::time::sleep(TURN).await;
                let released = Instant::now();
                guard.release().await?;
                anyhow::Ok((granted, released))
            })
        };
        let tasks: Vec<_> = managers.iter().map(wait_for_turn).collect();
        while managers.iter().map(|locks| locks.metrics().waiting).sum::<u64>() < u64::try_from(processes)? {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(TURN * 50).await;
        let mut turns = vec![(Instant::now(), Instant::now())];
        held.release().await?;
        for task in tasks {
            turns.push(task.await??);
        }
        turns.sort_unstable();
        let since = |pair: &[(Instant, Instant)]| match pair {
            [(_, released), (granted, _)] => granted.saturating_duration_since(*released).as_secs_f64(),
            _ => 0.0,
        };
        let mut between: Vec<f64> = turns.windows(2).map(since).collect();
        between.sort_by(f64::total_cmp);
        let sent = counting.stop()?;
        let bench = format!("herd of {processes}, {kind}");
        let commands = ratio(sent.commands - sent.pings, u64::try_from(processes)?);
        figure(report, &bench, "commands per turn", "", commands);
        let half = between.get(between.len() / 2).copied().unwrap_or_default();
        figure(report, &bench, "hand-over p50", "us", half * 1e6);
        figure(report, &bench, "hand-over max", "us", between.last().copied().unwrap_or_default() * 1e6);
        Ok(())
    })
}

/// The time and CPU time of this process and the server.
struct Used {
    since: Instant,
    cpu: Duration,
    server_cpu: f64,
}

impl Used {
    fn so_far(server: &RedisServer) -> Self {
        let info = server.cli(&["INFO", "everything"]);
        let field = |name: &str| -> f64 {
            let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|value| value.trim().parse().ok()).unwrap_or_default()
        };
        let server_cpu = field("used_cpu_sys") + field("used_cpu_user");
        Self { since: Instant::now(), cpu: process_cpu(), server_cpu }
    }

    fn report_since(&self, report: &mut Report, bench: &str, server: &RedisServer) {
        let now = Self::so_far(server);
        let seconds = self.since.elapsed().as_secs_f64();
        figure(
            report,
            bench,
            "client CPU",
            "% of a core",
            (now.cpu - self.cpu).as_secs_f64() / seconds * 100.0,
        );
        figure(
            report,
            bench,
            "server CPU",
            "% of a core",
            (now.server_cpu - self.server_cpu) / seconds * 100.0,
        );
    }
}

/// Ends a count and reports commands per second.
fn commands(
    report: &mut Report,
    bench: &str,
    metric: &str,
    counting: Counting,
    since: Instant,
) -> Result<()> {
    let seconds = since.elapsed().as_secs_f64();
    figure(report, bench, metric, "1/s", counting.stop()?.per(seconds));
    Ok(())
}

fn figure(report: &mut Report, bench: &str, metric: &str, unit: &str, value: f64) {
    report.row(bench, "wheellock", metric, unit, &[value]);
}

fn lost(metrics: &Metrics) -> u64 {
    metrics.lost_expired + metrics.lost_not_owner
}

/// Returns the resident memory of this process in bytes (source: proc(5), statm, in pages of 4 KiB).
fn resident() -> Result<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = statm.split_whitespace().nth(1).context("statm has no resident size")?.parse()?;
    Ok(pages * 4096)
}

#[expect(clippy::cast_precision_loss, reason = "figures with three digits")]
fn ratio(of: u64, to: u64) -> f64 {
    of as f64 / to as f64
}

const HERD: &str = "herd";
/// Duration of each process's turn.
const TURN: Duration = Duration::from_millis(1);
const POOL: &str = "pool";
const TASKS: u64 = 256;
const NAMES: u64 = 10_000;
const WAIT: Duration = Duration::from_secs(600);
const IDLE: Duration = Duration::from_secs(5);
/// A third of a lease, after which each lock has been renewed once.
const RENEWED: Duration = Duration::from_secs(10);
/// Seconds until the tables have reached their size.
const WARM_UP: u64 = 3;
