//! Lock benchmarks beside others, on one server.
//!
//! They measure the cost of an uncontended lock, the cost of waiting, and the speed and fairness of hand-overs.
//!
//! MONITOR of the server counts the commands: all commands that clients sent, and none that scripts ran. Counting costs the server time. A
//! timed period is therefore not counted, and a counted period is not timed.
//!
//! `lock [--rounds N] [--quick] [word]` runs the benches whose names contain the word. `lock --plot [folder]` draws the last run, and `lock
//! --table [page]` writes it into a page. `lock --solo <contender> <tasks> <pairs>` runs uncontended pairs of one contender alone, for
//! instruction counts.

#[path = "lock/by_hand.rs"]
mod by_hand;
#[expect(dead_code, reason = "only the bare socket is needed here")]
#[path = "client/contenders.rs"]
mod calls;
#[path = "lock/contenders.rs"]
mod contenders;
#[path = "lock/crash.rs"]
mod crash;
#[expect(dead_code, reason = "one way of placement is for multi-thread runtimes only")]
#[path = "client/placement.rs"]
mod placement;
#[path = "lock/price.rs"]
mod price;
#[path = "lock/redisson.rs"]
mod redisson;
#[path = "client/rig.rs"]
mod rig;
#[path = "lock/wedged.rs"]
mod wedged;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use by_hand::ByHand;
use calls::Target;
use contenders::{
    AsyncRedisLock, Distkit, KINDS, KindRow, Lock, MUTEX, Manager, OfKind, Polling, READ, RLock, RsLock,
    Surviving, WRITE,
};
use placement::Placement;
use redisson::Redisson;
use rig::{Rig, Session, percentile};
use tokio::runtime::{Builder, Runtime};
use wheellock::LockManager;
use wheellock_benches::plot::{self, Distribution, Plot};
use wheellock_benches::sent::Counting;
use wheellock_benches::{Report, stretch, table};
use wheellock_tests::RedisServer;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let place = |place| args.get(1).map_or(place, String::as_str);
    match args.first().map(String::as_str) {
        Some("--plot") => {
            plot::draw_distributions("lock", &DISTRIBUTIONS, place("docs/img"))?;
            return plot::draw("lock", &PLOTS, place("docs/img"));
        }
        Some("--table") => return table::put("lock", place("docs/lab/tables/lock.md"), |_, _| false),
        _ => {}
    }
    let target = Target::start()?;
    let server = &target.server;
    if let ["--solo", contender, tasks, operations] = args.iter().map(String::as_str).collect::<Vec<_>>()[..]
    {
        let rig = uncontended_rig(contender, &target, tasks.parse()?)?;
        println!("{contender} {operations} pairs, {tasks} tasks: {:?}", rig.run(operations.parse()?)?);
        return Ok(());
    }
    let mut report = Report::new("lock");
    let placement = Placement::find()?;
    placement.together(server)?;
    uncontended(&mut report, &target, 1, "uncontended, 1 task, one vCPU")?;
    price::bench(&mut report, &placement, server)?;
    placement.apart(server)?;
    uncontended(&mut report, &target, 64, "uncontended, 64 tasks")?;
    readers(&mut report, server)?;
    thousand_waiters(&mut report, server)?;
    wedged::bench(&mut report, server)?;
    for scene in [
        Scene::IdleWaiters,
        Scene::Handoff,
        Scene::HandoffAwake,
        Scene::Crash,
        Scene::OneKey,
        Scene::ManyManagers,
        Scene::EightManagers,
    ] {
        contended(&mut report, &placement, server, scene)?;
    }
    report.finish()
}

/// Measures tasks that each acquire and release a lock of their own.
fn uncontended(report: &mut Report, target: &Target, tasks: usize, bench: &str) -> Result<()> {
    if !report.wants(bench) {
        return Ok(());
    }
    let mut rigs = Vec::new();
    let server = &target.server;
    let others =
        ["raw tokio", "by hand", "wheellock", SURVIVING, "rslock", "rlock", "async-redis-lock", "distkit"];
    let both = ["rlock read", "rlock write", "distkit read", "distkit write"];
    for name in others.into_iter().chain(KINDS.iter().map(|(name, _)| *name)).chain(both) {
        if name == "raw tokio" && tasks > 1 {
            continue;
        }
        let rig = uncontended_rig(name, target, tasks)?;
        let units = rig.units_within(ROUND)?;
        rigs.push((rig, units, Vec::new()));
    }
    let mut redisson = redisson::Pairs::warmed_up(server, tasks)?;
    let counted = counted_pairs(tasks);
    for number in 0..report.rounds() {
        if let Some(redisson) = &mut redisson {
            report.progress(bench, number, report.rounds(), redisson::NAME);
            redisson.round(server)?;
        }
        for (rig, units, rounds) in &mut rigs {
            report.progress(bench, number, report.rounds(), rig.name());
            let round = rig.run(*units)?;
            let counting = Counting::of(server);
            let wrong = rig.run(counted)?.wrong;
            ensure!(round.wrong + wrong == 0.0, "{}: a pair failed", rig.name());
            #[expect(clippy::cast_precision_loss, reason = "figures with three digits")]
            rounds.push((round, counting.stop()?.per(counted as f64)));
        }
    }
    let base: Vec<f64> =
        rigs.first().iter().flat_map(|(_, _, rounds)| rounds).map(|(round, _)| round.p50_us).collect();
    for (rig, _, rounds) in &rigs {
        let mut row = |metric: &str, unit: &str, of: &dyn Fn(&(rig::Round, f64)) -> f64| {
            report.row(bench, rig.name(), metric, unit, &rounds.iter().map(of).collect::<Vec<_>>());
        };
        row("p50", "us", &|(round, _)| round.p50_us);
        row("p90", "us", &|(round, _)| round.p90_us);
        row("p99", "us", &|(round, _)| round.p99_us);
        row("p99.9", "us", &|(round, _)| round.p999_us);
        row("throughput", "k/s", &|(round, _)| round.per_second / 1e3);
        row("cpu", "us/pair", &|(round, _)| round.cpu_us);
        row("allocations", "1/pair", &|(round, _)| round.allocations);
        row("commands", "1/pair", &|(_, commands)| *commands);
        let ratios: Vec<f64> =
            rounds.iter().zip(&base).map(|((round, _), base)| round.p50_us / base).collect();
        report.row(bench, rig.name(), "p50 to first", "x", &ratios);
    }
    if let Some(redisson) = &redisson {
        redisson.report(report, bench, &base)?;
    }
    Ok(())
}

/// Returns the number of pairs whose commands are counted, the same for each task.
fn counted_pairs(tasks: usize) -> u64 {
    tasks.max(16) as u64 * 64
}

fn uncontended_rig(name: &str, target: &Target, tasks: usize) -> Result<Rig> {
    fn assemble<M: Manager>(name: &str, url: &str, tasks: usize) -> Result<Rig> {
        let runtime = runtime()?;
        let manager = runtime.block_on(M::connect(url, Polling::Default))?;
        let sessions = (0..tasks).map(|index| Pairs(manager.lock(&format!("{name}:{index}")))).collect();
        // The manager lives until the process ends.
        std::mem::forget(manager);
        Ok(Rig::new(name, runtime, sessions))
    }
    let url = &target.server.tcp_url();
    match name {
        // Only the bytes of the two scripts.
        "raw tokio" => {
            let runtime = runtime()?;
            let raw = runtime.block_on(calls::Raw::connect(target, 1))?;
            Ok(Rig::new(name, runtime, vec![calls::Pairs(raw)]))
        }
        "by hand" => assemble::<ByHand>(name, url, tasks),
        "wheellock" => assemble::<LockManager>(name, url, tasks),
        SURVIVING => assemble::<Surviving>(name, url, tasks),
        "wheellock simple" => assemble::<OfKind<0>>(name, url, tasks),
        "wheellock fenced" => assemble::<OfKind<1>>(name, url, tasks),
        "wheellock read" => assemble::<OfKind<2>>(name, url, tasks),
        "wheellock write" => assemble::<OfKind<3>>(name, url, tasks),
        "wheellock fair" => assemble::<OfKind<4>>(name, url, tasks),
        "rslock" => assemble::<RsLock>(name, url, tasks),
        "rlock" => assemble::<RLock<MUTEX>>(name, url, tasks),
        "rlock read" => assemble::<RLock<READ>>(name, url, tasks),
        "rlock write" => assemble::<RLock<WRITE>>(name, url, tasks),
        "distkit" => assemble::<Distkit<MUTEX>>(name, url, tasks),
        "distkit read" => assemble::<Distkit<READ>>(name, url, tasks),
        "distkit write" => assemble::<Distkit<WRITE>>(name, url, tasks),
        "async-redis-lock" => assemble::<AsyncRedisLock>(name, url, tasks),
        _ => bail!("no contender {name:?}"),
    }
}

/// The row of locks that survive a failover.
const SURVIVING: &str = "wheellock reclaim";

struct Pairs<L>(L);

impl<L: Lock> Session for Pairs<L> {
    async fn once(&mut self) -> bool {
        match self.0.acquire().await {
            Ok(guard) => L::release(guard).await.is_ok(),
            Err(_) => false,
        }
    }
}

/// A scene with several contenders for the same lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scene {
    IdleWaiters,
    Handoff,
    HandoffAwake,
    Crash,
    OneKey,
    ManyManagers,
    EightManagers,
}

impl Scene {
    fn name(self) -> &'static str {
        match self {
            Self::IdleWaiters => "64 idle waiters",
            Self::Handoff => "handoff between two managers",
            Self::HandoffAwake => "handoff, CPUs kept awake",
            Self::Crash => "a dead holder's lease ends",
            Self::OneKey => "64 tasks, one key, hold 2 ms",
            Self::ManyManagers => "1000 waiters, 10 managers",
            Self::EightManagers => "8 managers, 4 tasks each, one key, hold 2 ms",
        }
    }

    /// Returns true if the commands are counted in a period of their own.
    fn is_counted(self) -> bool {
        matches!(self, Self::OneKey | Self::ManyManagers | Self::EightManagers)
    }

    /// Returns the number of rounds, at most the requested number.
    fn rounds(self, wanted: usize) -> usize {
        wanted.min(match self {
            // This scene only counts commands, so one round suffices.
            Self::IdleWaiters => 1,
            // Each round has several deaths.
            Self::Crash => 2,
            _ => MOST_ROUNDS,
        })
    }

    async fn play<M: Manager>(self, stage: Stage<'_>) -> Result<Vec<Figure>> {
        match self {
            Self::IdleWaiters => idle_waiters::<M>(stage).await,
            Self::Handoff | Self::HandoffAwake => handoff::<M>(stage).await,
            Self::Crash => crash::play::<M>(stage).await,
            Self::OneKey => one_key::<M>(stage).await,
            Self::ManyManagers => many_managers::<M>(stage).await,
            Self::EightManagers => eight_managers::<M>(stage).await,
        }
    }
}

/// A metric, its unit, and its value in this round.
type Figure = (&'static str, &'static str, f64);

/// A contender, one of its figures, and that figure's values of all rounds.
type Row = (&'static str, Figure, Vec<f64>);

/// Adds a round's figures to the figures of the rounds before.
fn add(rows: &mut Vec<Row>, contender: &'static str, figures: Vec<Figure>) {
    for figure in figures {
        match rows.iter_mut().find(|(name, (metric, ..), _)| *name == contender && *metric == figure.0) {
            Some((.., samples)) => samples.push(figure.2),
            None => rows.push((contender, figure, vec![figure.2])),
        }
    }
}

#[derive(Clone, Copy)]
struct Stage<'a> {
    server: &'a RedisServer,
    key: &'a str,
    polling: Polling,
    /// True if commands are counted; the scene is then not timed.
    counts: bool,
}

impl Stage<'_> {
    fn counting(&self) -> Option<Counting> {
        self.counts.then(|| Counting::of(self.server))
    }
}

/// Runs all contenders, round by round, each with its own runtime and connections.
fn contended(report: &mut Report, placement: &Placement, server: &RedisServer, scene: Scene) -> Result<()> {
    if !report.wants(scene.name()) {
        return Ok(());
    }
    let _awake = (scene == Scene::HandoffAwake).then(|| placement.keep_awake()).transpose()?;
    let rounds = scene.rounds(report.rounds());
    let mut rows: Vec<Row> = Vec::new();
    let mut redisson = Redisson::start(server)?;
    for round in 0..rounds {
        // Rotate the contenders: the first finds processors that Redisson's JVM keeps awake, and is woken faster.
        let mut contenders = CONTENDERS;
        contenders.rotate_left(round % CONTENDERS.len());
        // Counts vary less than times, so the first round suffices.
        let passes: &[bool] = if scene.is_counted() && round == 0 { &[false, true] } else { &[false] };
        for &counts in passes {
            for (contender, polling) in contenders {
                report.progress(scene.name(), round, rounds, contender);
                let key = format!("{scene:?}:{contender}:{round}:{counts}");
                let stage = Stage { server, key: &key, polling, counts };
                let figures = play(scene, contender, stage);
                add(&mut rows, contender, figures.with_context(|| format!("{contender}: {}", scene.name()))?);
            }
            if let Some(redisson) = &mut redisson {
                report.progress(scene.name(), round, rounds, redisson::NAME);
                let key = format!("{scene:?}:redisson:{round}:{counts}");
                let stage = Stage { server, key: &key, polling: Polling::Default, counts };
                add(&mut rows, redisson::NAME, redisson::play(scene, redisson, stage)?);
                ensure!(server.cli(&["FLUSHALL"]) == "OK", "FLUSHALL failed");
            }
        }
    }
    for (contender, (metric, unit, _), samples) in &rows {
        report.row(scene.name(), contender, metric, unit, samples);
    }
    Ok(())
}

/// Runs one contender alone, on a runtime of its own.
fn play(scene: Scene, contender: &str, stage: Stage<'_>) -> Result<Vec<Figure>> {
    let runtime = runtime()?;
    let play: Pin<Box<dyn Future<Output = Result<Vec<Figure>>>>> = match contender {
        "by hand" => Box::pin(scene.play::<ByHand>(stage)),
        "wheellock" => Box::pin(scene.play::<LockManager>(stage)),
        "wheellock fair" => Box::pin(scene.play::<OfKind<4>>(stage)),
        "rslock" | "rslock 5 ms" => Box::pin(scene.play::<RsLock>(stage)),
        "rlock" | "rlock 5 ms" => Box::pin(scene.play::<RLock<MUTEX>>(stage)),
        "distkit" | "distkit 5 ms" => Box::pin(scene.play::<Distkit<MUTEX>>(stage)),
        _ => Box::pin(scene.play::<AsyncRedisLock>(stage)),
    };
    let figures = runtime.block_on(play)?;
    // This drops the remaining waiters.
    drop(runtime);
    ensure!(stage.server.cli(&["FLUSHALL"]) == "OK", "FLUSHALL failed");
    Ok(figures)
}

/// One manager holds a lock for seconds, and 64 tasks of a second manager wait for it.
async fn idle_waiters<M: Manager>(stage: Stage<'_>) -> Result<Vec<Figure>> {
    let [holder, waiter] = two_managers::<M>(stage).await?;
    let guard = holder.lock(stage.key).acquire().await?;
    let lock = waiter.lock(stage.key);
    let waiters: Vec<_> = (0..64)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move { lock.acquire().await.map(drop) })
        })
        .collect();
    tokio::time::sleep(SETTLE).await;
    let (counting, since) = (Counting::of(stage.server), Instant::now());
    tokio::time::sleep(stretch(IDLE)).await;
    let seconds = since.elapsed().as_secs_f64();
    let sent = counting.stop()?;
    ensure!(waiters.iter().all(|waiter| !waiter.is_finished()), "a waiter got a lock that was held");
    waiters.iter().for_each(|waiter| waiter.abort());
    M::Lock::release(guard).await?;
    #[expect(clippy::cast_precision_loss, reason = "figures with three digits")]
    let pings = sent.pings as f64 / seconds;
    Ok(vec![("commands", "1/s", sent.per(seconds)), ("health checks among them", "1/s", pings)])
}

/// Measures the time from a release until the acquire of a waiting task of a second manager returns.
async fn handoff<M: Manager>(stage: Stage<'_>) -> Result<Vec<Figure>> {
    let [holder, waiter] = two_managers::<M>(stage).await?;
    let (lock, wanted) = (holder.lock(stage.key), waiter.lock(stage.key));
    let (mut from_return, mut from_call) = (Vec::new(), Vec::new());
    let start = Instant::now();
    while from_return.len() < HANDOFFS && start.elapsed() < stretch(HANDOFF_TIME) {
        let guard = lock.acquire().await?;
        let wanted = wanted.clone();
        let waiting = tokio::spawn(async move {
            let guard = wanted.acquire().await?;
            let got = Instant::now();
            M::Lock::release(guard).await?;
            anyhow::Ok(got)
        });
        // Long enough for the waiter to be settled, and never in step with a poll interval.
        tokio::time::sleep(Duration::from_micros(10_000 + from_call.len() as u64 * 377 % 9_000)).await;
        let called = Instant::now();
        M::Lock::release(guard).await?;
        let returned = Instant::now();
        let got = waiting.await??;
        let micros = |from: Instant| u64::try_from(got.saturating_duration_since(from).as_nanos());
        from_return.push(micros(returned)?);
        from_call.push(micros(called)?);
    }
    from_return.sort_unstable();
    from_call.sort_unstable();
    #[expect(clippy::cast_precision_loss, reason = "figures with three digits")]
    let at = |samples: &[u64], per_mille| percentile(samples, per_mille) as f64 / 1e6;
    Ok(vec![
        ("p50", "ms", at(&from_return, 500)),
        ("p99", "ms", at(&from_return, 990)),
        ("p50 from call", "ms", at(&from_call, 500)),
    ])
}

/// 64 tasks of one manager take turns on one lock.
async fn one_key<M: Manager>(stage: Stage<'_>) -> Result<Vec<Figure>> {
    let manager = M::connect(&stage.server.tcp_url(), stage.polling).await?;
    let over = Arc::new(AtomicBool::new(false));
    let served: Arc<Vec<AtomicU64>> = Arc::new((0..64).map(|_| AtomicU64::new(0)).collect());
    let (counting, since) = (stage.counting(), Instant::now());
    for task in 0..64 {
        let (lock, over, served) = (manager.lock(stage.key), Arc::clone(&over), Arc::clone(&served));
        tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let guard = lock.acquire().await?;
                if let Some(count) = served.get(task) {
                    count.fetch_add(1, Ordering::Relaxed);
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
                M::Lock::release(guard).await?;
            }
            anyhow::Ok(())
        });
    }
    tokio::time::sleep(stretch(ONE_KEY)).await;
    let seconds = since.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "figures with three digits")]
    let counts: Vec<f64> = served.iter().map(|count| count.load(Ordering::Relaxed) as f64).collect();
    let sent = counting.map(Counting::stop).transpose()?;
    over.store(true, Ordering::Relaxed);
    let sum: f64 = counts.iter().sum();
    ensure!(sum > 0.0, "nobody got the lock");
    if let Some(sent) = sent {
        return Ok(vec![("commands", "1/acquire", sent.per(sum))]);
    }
    #[expect(clippy::cast_precision_loss, reason = "figures with three digits")]
    let never = counts.iter().filter(|count| **count < 1.0).count() as f64;
    Ok(vec![
        ("acquires", "1/s", sum / seconds),
        ("Jain fairness", "", jain(&counts)),
        ("never served", "tasks", never),
    ])
}

/// Returns Jain's fairness index: 1 if all counts are equal, and 1/n if one of n has everything (source: Jain, Chiu, Hawe 1984).
fn jain(counts: &[f64]) -> f64 {
    let (sum, squares): (f64, f64) = (counts.iter().sum(), counts.iter().map(|count| count * count).sum());
    #[expect(clippy::cast_precision_loss, reason = "figures with three digits")]
    let parties = counts.len() as f64;
    sum * sum / (parties * squares)
}

/// Eight managers, as of eight processes, with four tasks each take turns on one lock.
async fn eight_managers<M: Manager>(stage: Stage<'_>) -> Result<Vec<Figure>> {
    let over = Arc::new(AtomicBool::new(false));
    let mut managers = Vec::new();
    for _ in 0..8 {
        let manager = M::connect(&stage.server.tcp_url(), stage.polling).await?;
        managers.push((manager, Arc::new(AtomicU64::new(0))));
    }
    let (counting, since) = (stage.counting(), Instant::now());
    for (manager, served) in &managers {
        for _ in 0..4 {
            let (lock, over, served) = (manager.lock(stage.key), Arc::clone(&over), Arc::clone(served));
            tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    let guard = lock.acquire().await?;
                    served.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    M::Lock::release(guard).await?;
                }
                anyhow::Ok(())
            });
        }
    }
    tokio::time::sleep(stretch(ONE_KEY)).await;
    let seconds = since.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "figures with three digits")]
    let counts: Vec<f64> = managers.iter().map(|(_, served)| served.load(Ordering::Relaxed) as f64).collect();
    let sent = counting.map(Counting::stop).transpose()?;
    over.store(true, Ordering::Relaxed);
    let sum: f64 = counts.iter().sum();
    ensure!(sum > 0.0, "nobody got the lock");
    if let Some(sent) = sent {
        #[expect(clippy::cast_precision_loss, reason = "figures with three digits")]
        let scripts = sent.scripts as f64 / sum;
        return Ok(vec![("commands", "1/acquire", sent.per(sum)), ("scripts", "1/acquire", scripts)]);
    }
    Ok(vec![("acquires", "1/s", sum / seconds), ("Jain fairness of managers", "", jain(&counts))])
}

/// Measures the memory of a thousand waiting tasks of one manager, per waiter, on the heap and on the server.
fn thousand_waiters(report: &mut Report, server: &RedisServer) -> Result<()> {
    const BENCH: &str = "1000 waiters, 1 manager";
    const WAITERS: f64 = 1000.0;
    if !report.wants(BENCH) {
        return Ok(());
    }
    let wanted: [KindRow; 2] = [
        ("wheellock", |locks, name| locks.lock(name)),
        ("wheellock fair", |locks, name| locks.fair_lock(name)),
    ];
    let mut rows = wanted.map(|row| (row, Vec::new(), Vec::new(), Vec::new()));
    let rounds = report.rounds().min(MOST_ROUNDS);
    for round in 0..rounds {
        for ((name, make), here, there, commands) in &mut rows {
            report.progress(BENCH, round, rounds, name);
            let runtime = runtime()?;
            let (lock, guard, manager) = runtime.block_on(async {
                let holder = LockManager::connect(&server.tcp_url()).await?;
                let manager = LockManager::connect(&server.tcp_url()).await?;
                let guard = make(&holder, name).acquire().await?;
                anyhow::Ok((make(&manager, name), guard, manager))
            })?;
            let used = used_memory(server)?;
            let mut waiters = Vec::with_capacity(1000);
            let allocated = allocation_counter::measure(|| {
                runtime.block_on(async {
                    for _ in 0..1000 {
                        let lock = lock.clone();
                        waiters.push(tokio::spawn(async move { lock.acquire().await.map(drop) }));
                    }
                    tokio::time::sleep(SETTLE).await;
                });
            });
            ensure!(manager.metrics().waiting == 1000, "not all wait");
            #[expect(clippy::cast_precision_loss, reason = "figures with three digits")]
            let bytes = |bytes: i64| bytes as f64 / WAITERS;
            here.push(bytes(allocated.bytes_current));
            there.push(bytes(used_memory(server)? - used));
            let (counting, since) = (Counting::of(server), Instant::now());
            runtime.block_on(async { tokio::time::sleep(stretch(IDLE)).await });
            commands.push(counting.stop()?.per(since.elapsed().as_secs_f64() * WAITERS));
            waiters.iter().for_each(|waiter| waiter.abort());
            runtime.block_on(async { anyhow::Ok(guard.release().await?) })?;
            drop(runtime);
            ensure!(server.cli(&["FLUSHALL"]) == "OK", "FLUSHALL failed");
        }
    }
    for ((name, _), here, there, commands) in &rows {
        report.row(BENCH, name, "heap", "B/waiter", here);
        report.row(BENCH, name, "server", "B/waiter", there);
        report.row(BENCH, name, "commands", "1/s/waiter", commands);
    }
    Ok(())
}

/// Returns the number of bytes that the server has allocated.
fn used_memory(server: &RedisServer) -> Result<i64> {
    let info = server.cli(&["INFO", "memory"]);
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    Ok(used.context("no used_memory")?.trim().parse()?)
}

/// Compares 64 readers under one key with 64 tasks that each have their own lock: the cost of sharing.
fn readers(report: &mut Report, server: &RedisServer) -> Result<()> {
    const BENCH: &str = "64 readers of one key, hold 2 ms";
    if !report.wants(BENCH) {
        return Ok(());
    }
    let mut rows = [
        "wheellock read, one key",
        "wheellock, 64 keys",
        "rlock read, one key",
        "rlock, 64 keys",
        "distkit read, one key",
        "distkit, 64 keys",
    ]
    .map(|name| (name, Vec::new()));
    let rounds = report.rounds().min(MOST_ROUNDS);
    for round in 0..rounds {
        for (name, samples) in &mut rows {
            report.progress(BENCH, round, rounds, name);
            let (url, runtime) = (&server.tcp_url(), runtime()?);
            let acquires = runtime.block_on(async {
                match *name {
                    "wheellock read, one key" => readers_of::<OfKind<2>>(url, true).await,
                    "wheellock, 64 keys" => readers_of::<LockManager>(url, false).await,
                    "rlock read, one key" => readers_of::<RLock<READ>>(url, true).await,
                    "rlock, 64 keys" => readers_of::<RLock<MUTEX>>(url, false).await,
                    "distkit read, one key" => readers_of::<Distkit<READ>>(url, true).await,
                    _ => readers_of::<Distkit<MUTEX>>(url, false).await,
                }
            });
            samples.push(acquires.with_context(|| (*name).to_owned())?);
            drop(runtime);
            ensure!(server.cli(&["FLUSHALL"]) == "OK", "FLUSHALL failed");
        }
    }
    for (name, samples) in &rows {
        report.row(BENCH, name, "acquires", "1/s", samples);
    }
    Ok(())
}

/// Returns the acquires per second of 64 tasks, all under one key or each under its own key.
async fn readers_of<M: Manager>(url: &str, one_key: bool) -> Result<f64> {
    let manager = M::connect(url, Polling::Default).await?;
    let shared = manager.lock("readers");
    let over = Arc::new(AtomicBool::new(false));
    let since = Instant::now();
    let tasks: Vec<_> = (0..64)
        .map(|task| {
            let lock = if one_key { shared.clone() } else { manager.lock(&format!("readers:{task}")) };
            let over = Arc::clone(&over);
            tokio::spawn(async move {
                let mut acquires = 0;
                while !over.load(Ordering::Relaxed) {
                    let guard = lock.acquire().await?;
                    acquires += 1;
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    M::Lock::release(guard).await?;
                }
                anyhow::Ok(acquires)
            })
        })
        .collect();
    tokio::time::sleep(stretch(ONE_KEY)).await;
    over.store(true, Ordering::Relaxed);
    let mut acquires: u32 = 0;
    for task in tasks {
        acquires += task.await??;
    }
    Ok(f64::from(acquires) / since.elapsed().as_secs_f64())
}

/// A hundred tasks wait in each of ten managers; each releases the lock at once.
async fn many_managers<M: Manager>(stage: Stage<'_>) -> Result<Vec<Figure>> {
    let holder = M::connect(&stage.server.tcp_url(), stage.polling).await?;
    let guard = holder.lock(stage.key).acquire().await?;
    let served = Arc::new(AtomicU64::new(0));
    let mut managers = Vec::new();
    let mut waiters = Vec::new();
    for _ in 0..10 {
        let manager = M::connect(&stage.server.tcp_url(), stage.polling).await?;
        for _ in 0..100 {
            let (lock, served) = (manager.lock(stage.key), Arc::clone(&served));
            waiters.push(tokio::spawn(async move {
                let guard = lock.acquire().await?;
                served.fetch_add(1, Ordering::Relaxed);
                M::Lock::release(guard).await
            }));
        }
        managers.push(manager);
    }
    tokio::time::sleep(SETTLE).await;
    let (counting, since) = (stage.counting(), Instant::now());
    M::Lock::release(guard).await?;
    // Stop once a good part is served, or once the polling contenders have shown their speed.
    while served.load(Ordering::Relaxed) < 500 && since.elapsed() < stretch(MANY_TIME) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let releases = served.load(Ordering::Relaxed) + 1;
    let seconds = since.elapsed().as_secs_f64();
    let sent = counting.map(Counting::stop).transpose()?;
    waiters.iter().for_each(|waiter| waiter.abort());
    #[expect(clippy::cast_precision_loss, reason = "figures with three digits")]
    let releases = releases as f64;
    Ok(match sent {
        Some(sent) => vec![("commands", "1/release", sent.per(releases))],
        None => vec![("releases", "1/s", releases / seconds)],
    })
}

async fn two_managers<M: Manager>(stage: Stage<'_>) -> Result<[M; 2]> {
    let url = stage.server.tcp_url();
    Ok([M::connect(&url, stage.polling).await?, M::connect(&url, stage.polling).await?])
}

fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

const CONTENDERS: [(&str, Polling); 11] = [
    ("by hand", Polling::Default),
    ("wheellock", Polling::Default),
    ("wheellock fair", Polling::Default),
    ("rslock", Polling::Default),
    ("rslock 5 ms", Polling::Fast),
    ("rlock", Polling::Default),
    ("rlock 5 ms", Polling::Fast),
    ("async-redis-lock", Polling::Default),
    ("async-redis-lock 5 ms", Polling::Fast),
    ("distkit", Polling::Default),
    ("distkit 5 ms", Polling::Fast),
];

/// The contenders with their defaults, and one kind of ours.
const DISTRIBUTIONS: [Distribution; 2] = [
    Distribution {
        bench: "uncontended, 1 task, one vCPU",
        subjects: &["raw tokio", "wheellock", "rslock", "rlock", "async-redis-lock", "Redisson on the JVM"],
        file: "lock-latency.svg",
        title: "A free lock taken and given back, one at a time: how long it takes",
    },
    Distribution {
        bench: "uncontended, 64 tasks",
        subjects: &["wheellock", "wheellock simple", "rslock", "rlock", "async-redis-lock", "distkit"],
        file: "lock-latency-64.svg",
        title: "64 tasks, each its own lock: how long taking it and giving it back takes",
    },
];

const PLOTS: [Plot; 8] = [
    plot(
        "uncontended, 1 task, one vCPU",
        "p50",
        "lock-uncontended.svg",
        "A free lock taken and given back, one at a time: p50",
    ),
    plot("uncontended, 64 tasks", "cpu", "lock-cpu.svg", "64 tasks, each its own lock: CPU of the client"),
    plot(
        "64 idle waiters",
        "commands",
        "lock-idle-waiters.svg",
        "64 tasks wait for a lock that is held: commands to the server",
    ),
    plot(
        "handoff between two managers",
        "p50",
        "lock-handoff.svg",
        "From a release to the next holder's guard, two managers: p50",
    ),
    plot(
        "64 tasks, one key, hold 2 ms",
        "commands",
        "lock-commands.svg",
        "64 tasks, one lock, held for 2 ms: commands to the server",
    ),
    plot(
        "64 tasks, one key, hold 2 ms",
        "never served",
        "lock-never-served.svg",
        "64 tasks, one lock, held for 2 ms: tasks that never got it in 2 s",
    ),
    plot(
        "a dead holder's lease ends",
        "p50",
        "lock-takeover.svg",
        "A holder has died: from the end of its lease to the guard of one who waits, p50",
    ),
    Plot {
        bench: "the price of TLS and replicas, 1 task",
        metric: "p50",
        file: "lock-price.svg",
        title: "A free lock taken and given back, by the way to the server and who has to know: p50",
        note: "All servers and the client on one vCPU",
    },
];

const fn plot(bench: &'static str, metric: &'static str, file: &'static str, title: &'static str) -> Plot {
    Plot { bench, metric, file, title, note: "By hand: Redisson's scheme over bare sockets, no watchdog" }
}

/// Seconds of work of one contender within a round of uncontended pairs.
const ROUND: f64 = 0.15;

/// Maximum number of rounds of a contended scene. One round takes most of a minute.
const MOST_ROUNDS: usize = 3;

/// Time until waiters know that they have to wait.
const SETTLE: Duration = Duration::from_millis(500);

const IDLE: Duration = Duration::from_secs(3);

const ONE_KEY: Duration = Duration::from_secs(2);

/// Maximum number of handoffs of one contender within a round; `HANDOFF_TIME` may end the round earlier.
const HANDOFFS: usize = 100;

const HANDOFF_TIME: Duration = Duration::from_secs(1);

const MANY_TIME: Duration = Duration::from_secs(2);
