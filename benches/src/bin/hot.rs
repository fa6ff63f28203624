//! Benchmarks of one contended lock.
//!
//! From one to a thousand tasks of one process contend for it, beside other crates and beside a mutex within this process. Several
//! processes contend for it too, each with its own turns.
//!
//! `hot [--rounds N] [--quick] [word]` runs the benches whose names contain the word; `hot --plot [folder]` draws the last run. `hot
//! --worker <url> <key> <tasks> <hold in us> <seconds>` is one of several processes: it waits for a line, works, and prints its counts.

#[allow(dead_code, reason = "what all contenders of locks have in common")]
#[path = "lock/contenders.rs"]
mod contenders;

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use contenders::{AsyncRedisLock, Distkit, Lock, MUTEX, Manager, Polling, RLock, RsLock};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use wheellock::LockManager;
use wheellock_benches::plot::{Curves, draw_curves};
use wheellock_benches::sent::{Counting, Sent};
use wheellock_benches::{Report, process_cpu, stretch};
use wheellock_tests::RedisServer;
use wheellock_tests::hot::{self, Contender, Kind};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    if let ["--worker", url, key, tasks, hold, seconds] = words[..] {
        let work = Work {
            tasks: tasks.parse()?,
            hold: Duration::from_micros(hold.parse()?),
            seconds: seconds.parse()?,
            counts: false,
        };
        return worker(url, key, work);
    }
    if let ["--plot", ref folder @ ..] = words[..] {
        return draw_curves("hot", &PLOTS, folder.first().unwrap_or(&"docs/img"));
    }
    let server = RedisServer::builder().tcp().start();
    let mut report = Report::new("hot");
    for tasks in [1, 2, 4, 16, 64, 256, 1024] {
        let name = format!("{tasks} tasks, no hold");
        one_process(
            &mut report,
            &server,
            &name,
            Work { tasks, hold: Duration::ZERO, seconds: seconds(1), counts: false },
        )?;
    }
    let hold = Duration::from_millis(2);
    one_process(
        &mut report,
        &server,
        "64 tasks, 2 ms",
        Work { tasks: 64, hold, seconds: seconds(2), counts: false },
    )?;
    for processes in [2, 4] {
        for (what, hold) in [("no hold", Duration::ZERO), ("2 ms", hold)] {
            let name = format!("{processes} processes of 64 tasks, {what}");
            several(
                &mut report,
                &server,
                &name,
                processes,
                Work { tasks: 64, hold, seconds: seconds(3), counts: false },
            )?;
        }
    }
    contenders(&mut report, &server)?;
    report.finish()
}

/// Measures the turns of each contender beside a process of 32 tasks that hold the lock for a millisecond each.
fn contenders(report: &mut Report, server: &RedisServer) -> Result<()> {
    for kind in Kind::ALL {
        let bench = format!("beside 32 tasks, 1 ms, {kind:?}").to_lowercase();
        if !report.wants(&bench) {
            continue;
        }
        for contender in kind.contenders() {
            contends(report, server, &bench, kind, contender)?;
        }
    }
    Ok(())
}

fn contends(
    report: &mut Report,
    server: &RedisServer,
    bench: &str,
    kind: Kind,
    contender: Contender,
) -> Result<()> {
    let hold = Duration::from_millis(1);
    let (mut turns, mut others) = (Vec::new(), Vec::new());
    let rounds = report.rounds().min(MOST_ROUNDS);
    for round in 0..rounds {
        report.progress(bench, round, rounds, &contender.to_string());
        let name = format!("{kind:?}:{contender}:{round}");
        let (had, busy) = runtime()?.block_on(async {
            let here = LockManager::connect(&server.tcp_url()).await?;
            let process = hot::hot(&kind.lock(&here, &name), 32, hold);
            let contends = hot::beside(contender, kind, server, &here, &name, hold).await?;
            tokio::time::sleep(CONTENDS).await;
            anyhow::Ok((contends.end().await?, process.end().await?))
        })?;
        #[expect(clippy::cast_precision_loss, reason = "figures with three digits")]
        let rate = |turns: u64| turns as f64 / CONTENDS.as_secs_f64();
        turns.push(rate(had));
        others.push(rate(busy));
    }
    report.row(bench, &contender.to_string(), "turns", "1/s", &turns);
    report.row(bench, &contender.to_string(), "turns of the process", "1/s", &others);
    Ok(())
}

/// Long enough for two turns of a contender that does not queue on the server.
const CONTENDS: Duration = Duration::from_secs(10);

const PLOTS: [Curves; 1] = [Curves {
    benches: " tasks, no hold",
    count: "tasks that want it",
    metric: "acquires",
    file: "hot-acquires.svg",
    title: "One lock that all tasks of a process want, nothing done under it: acquires",
}];

/// A work order: `tasks` tasks repeatedly take one lock, each for `hold`, over `seconds` seconds.
#[derive(Clone, Copy)]
struct Work {
    tasks: usize,
    hold: Duration,
    seconds: f64,
    /// True if commands are counted; the work is then not timed.
    counts: bool,
}

/// The results of a work order.
struct Had {
    /// Grants, by task.
    counts: Vec<u64>,
    seconds: f64,
    cpu: Duration,
    allocations: u64,
    /// Times until this process had the lock again, in ns.
    gaps: Vec<u64>,
    /// Commands of the contender, without the commands of connecting.
    sent: Option<Sent>,
}

impl Had {
    #[expect(clippy::cast_precision_loss, reason = "figures with three digits")]
    fn total(&self) -> f64 {
        self.counts.iter().sum::<u64>() as f64
    }
}

/// Runs a work order with any lock. Tasks that still wait at the end are dropped.
async fn work<L: Lock>(locks: Vec<L>, work: Work) -> Result<Had> {
    let (start, cpu) = (Instant::now(), process_cpu());
    let counts: Arc<Vec<AtomicU64>> = Arc::new(locks.iter().map(|_| AtomicU64::new(0)).collect());
    let last = Arc::new(AtomicU64::new(0));
    let gaps = Arc::new(Mutex::new(Vec::with_capacity(1 << 16)));
    let mut tasks = JoinSet::new();
    for (number, lock) in locks.into_iter().enumerate() {
        let (counts, last, gaps) = (Arc::clone(&counts), Arc::clone(&last), Arc::clone(&gaps));
        tasks.spawn(async move {
            loop {
                let guard = lock.acquire().await?;
                if let Some(count) = counts.get(number) {
                    count.fetch_add(1, Ordering::Relaxed);
                }
                let now = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
                let gap = now.saturating_sub(last.swap(now, Ordering::Relaxed));
                if gap > GAP {
                    gaps.lock().unwrap_or_else(PoisonError::into_inner).push(gap);
                }
                // Hold exactly to the microsecond; no timer is that exact.
                let got = Instant::now();
                while got.elapsed() < work.hold {
                    tokio::task::yield_now().await;
                }
                L::release(guard).await?;
            }
            #[expect(unreachable_code, reason = "says the type of what may fail")]
            anyhow::Ok(())
        });
    }
    let end = tokio::time::timeout(Duration::from_secs_f64(work.seconds), tasks.join_next()).await;
    if let Ok(Some(failed)) = end {
        failed??;
    }
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), process_cpu().saturating_sub(cpu));
    let counts = counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    let gaps = gaps.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(Had { counts, seconds, cpu, allocations: 0, gaps, sent: None })
}

async fn managed<M: Manager>(server: &RedisServer, key: &str, plan: Work) -> Result<Had> {
    let manager = M::connect(&server.tcp_url(), Polling::Default).await?;
    let counting = plan.counts.then(|| Counting::of(server));
    let had = work((0..plan.tasks).map(|_| manager.lock(key)).collect(), plan).await?;
    Ok(Had { sent: counting.map(Counting::stop).transpose()?, ..had })
}

/// A manager that requests every grant from the server.
struct NoHandOver(LockManager);

impl Manager for NoHandOver {
    type Lock = wheellock::Lock;

    async fn connect(url: &str, _: Polling) -> Result<Self> {
        Ok(Self(LockManager::builder(url).hand_over(Duration::ZERO).connect().await?))
    }

    fn lock(&self, name: &str) -> wheellock::Lock {
        self.0.lock(name)
    }
}

/// A lock within this process: the cost of a lock that no other process shares.
#[derive(Clone)]
struct LocalMutex(Arc<tokio::sync::Mutex<()>>);

impl Lock for LocalMutex {
    type Guard = tokio::sync::OwnedMutexGuard<()>;

    async fn acquire(&self) -> Result<Self::Guard> {
        Ok(Arc::clone(&self.0).lock_owned().await)
    }

    async fn release(guard: Self::Guard) -> Result<()> {
        drop(guard);
        Ok(())
    }
}

fn one_process(report: &mut Report, server: &RedisServer, bench: &str, plan: Work) -> Result<()> {
    if !report.wants(bench) {
        return Ok(());
    }
    let mut rows: Vec<(&str, Vec<[f64; 5]>)> = CONTENDERS.iter().map(|name| (*name, Vec::new())).collect();
    let rounds = report.rounds().min(MOST_ROUNDS);
    for round in 0..rounds {
        for (contender, samples) in &mut rows {
            report.progress(bench, round, rounds, contender);
            let key = format!("{contender}:{}:{round}", plan.tasks);
            let had = alone(server, contender, &format!("hot:{key}"), plan)?;
            // A peer's first grant may take a while under MONITOR.
            let brief = Work { seconds: (plan.seconds / 4.0).max(1.0), counts: true, ..plan };
            let counted = alone(server, contender, &format!("counted:{key}"), brief)?;
            let total = had.total();
            let sent = counted.sent.map_or(0.0, |sent| sent.per(counted.total()));
            #[expect(clippy::cast_precision_loss, reason = "figures with three digits")]
            let allocations = had.allocations as f64;
            samples.push([
                total / had.seconds,
                sent,
                allocations / total,
                had.cpu.as_secs_f64() * 1e9 / total,
                jain(&had.counts),
            ]);
        }
    }
    for (contender, samples) in &rows {
        for (place, (metric, unit)) in METRICS.iter().enumerate() {
            let column = samples.iter().filter_map(|row| row.get(place).copied());
            // A peer may get no grant within a round. Its costs per grant are then not numbers.
            let column: Vec<f64> = column.filter(|figure| figure.is_finite()).collect();
            if !column.is_empty() {
                report.row(bench, contender, metric, unit, &column);
            }
        }
    }
    Ok(())
}

/// Runs one contender with a runtime of its own.
fn alone(server: &RedisServer, contender: &str, key: &str, plan: Work) -> Result<Had> {
    let runtime = runtime()?;
    let mut had = None;
    let counted = allocation_counter::measure(|| {
        had = Some(runtime.block_on(async {
            match contender {
                "wheellock" => managed::<LockManager>(server, key, plan).await,
                "wheellock, no hand-over" => managed::<NoHandOver>(server, key, plan).await,
                "rslock" => managed::<RsLock>(server, key, plan).await,
                "rlock" => managed::<RLock<MUTEX>>(server, key, plan).await,
                "async-redis-lock" => managed::<AsyncRedisLock>(server, key, plan).await,
                "distkit" => managed::<Distkit<MUTEX>>(server, key, plan).await,
                _ => work(vec![LocalMutex(Arc::default()); plan.tasks], plan).await,
            }
        }));
    });
    let had = had.context("nothing was run")?.with_context(|| contender.to_owned())?;
    Ok(Had { allocations: counted.count_total, ..had })
}

/// Runs several processes, each with tasks of its own.
fn several(
    report: &mut Report,
    server: &RedisServer,
    bench: &str,
    processes: usize,
    plan: Work,
) -> Result<()> {
    if !report.wants(bench) {
        return Ok(());
    }
    let mut columns: [Vec<f64>; 4] = Default::default();
    let rounds = report.rounds().min(MOST_ROUNDS);
    for round in 0..rounds {
        report.progress(bench, round, rounds, "wheellock");
        let key = format!("{bench}:{round}");
        let workers: Vec<_> =
            (0..processes).map(|_| Worker::start(&server.tcp_url(), &key, plan)).collect::<Result<_>>()?;
        let had: Vec<Value> = Worker::all(workers)?;
        #[expect(clippy::cast_precision_loss, reason = "figures with three digits")]
        let numbers = |name: &str| -> Vec<f64> {
            had.iter().filter_map(|had| had[name].as_u64()).map(|number| number as f64).collect()
        };
        let (totals, gaps) = (numbers("total"), numbers("gap_p99"));
        ensure!(totals.len() == processes, "a process is missing: {had:?}");
        let tasks = had.iter().filter_map(|had| had["jain"].as_f64()).fold(1.0, f64::min);
        let row = [
            totals.iter().sum::<f64>() / plan.seconds,
            jain_of(&totals),
            tasks,
            gaps.into_iter().fold(0.0, f64::max) / 1e6,
        ];
        columns.iter_mut().zip(row).for_each(|(column, figure)| column.push(figure));
    }
    let metrics = [
        ("acquires", "1/s"),
        ("Jain fairness of processes", ""),
        ("Jain fairness of tasks, worst process", ""),
        ("wait for the next turn, p99, worst process", "ms"),
    ];
    for ((metric, unit), column) in metrics.iter().zip(&columns) {
        report.row(bench, "wheellock", metric, unit, column);
    }
    Ok(())
}

struct Worker {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn start(url: &str, key: &str, plan: Work) -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["--worker", url, key, &plan.tasks.to_string()])
            .args([plan.hold.as_micros().to_string(), plan.seconds.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = process.stdin.take().context("no input")?;
        let mut output = BufReader::new(process.stdout.take().context("no output")?);
        let mut ready = String::new();
        output.read_line(&mut ready)?;
        ensure!(ready.trim() == "ready", "a worker said {ready:?}");
        Ok(Self { process, input, output })
    }

    /// Starts all workers, and reads their results.
    fn all(mut workers: Vec<Self>) -> Result<Vec<Value>> {
        for worker in &mut workers {
            writeln!(worker.input, "go")?;
        }
        let mut had = Vec::new();
        for mut worker in workers {
            let mut line = String::new();
            worker.output.read_line(&mut line)?;
            had.push(serde_json::from_str(&line).with_context(|| format!("a worker said {line:?}"))?);
            ensure!(worker.process.wait()?.success(), "a worker failed");
        }
        Ok(had)
    }
}

fn worker(url: &str, key: &str, plan: Work) -> Result<()> {
    let had = runtime()?.block_on(async {
        let manager = LockManager::connect(url).await?;
        println!("ready");
        std::io::stdin().read_line(&mut String::new())?;
        work((0..plan.tasks).map(|_| manager.lock(key)).collect(), plan).await
    })?;
    let mut gaps = had.gaps.clone();
    gaps.sort_unstable();
    let p99 = gaps.get((gaps.len() * 99 / 100).min(gaps.len().saturating_sub(1))).copied().unwrap_or(0);
    let total: u64 = had.counts.iter().sum();
    println!(
        "{}",
        json!({ "total": total, "jain": jain(&had.counts), "gap_p99": p99, "gap_p50": gaps.get(gaps.len() / 2), "turns": gaps.len() })
    );
    Ok(())
}

/// Returns Jain's fairness index: 1 if all counts are equal, and 1/n if one of n has everything (source: Jain, Chiu, Hawe 1984).
#[expect(clippy::cast_precision_loss, reason = "figures with three digits")]
fn jain(counts: &[u64]) -> f64 {
    jain_of(&counts.iter().map(|count| *count as f64).collect::<Vec<_>>())
}

fn jain_of(counts: &[f64]) -> f64 {
    let (sum, squares): (f64, f64) = (counts.iter().sum(), counts.iter().map(|count| count * count).sum());
    #[expect(clippy::cast_precision_loss, reason = "figures with three digits")]
    let parties = counts.len() as f64;
    sum * sum / (parties * squares)
}

fn seconds(usual: u64) -> f64 {
    stretch(Duration::from_secs(usual)).as_secs_f64()
}

fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

const CONTENDERS: [&str; 7] = [
    "wheellock",
    "wheellock, no hand-over",
    "rslock",
    "rlock",
    "async-redis-lock",
    "distkit",
    "tokio's mutex (one process)",
];

const METRICS: [(&str, &str); 5] = [
    ("acquires", "1/s"),
    ("commands", "1/acquire"),
    ("allocations", "1/acquire"),
    ("cpu", "ns/acquire"),
    ("Jain fairness", ""),
];

/// A longer gap between two grants of one process means that another process may have had the lock.
const GAP: u64 = 300_000;

const MOST_ROUNDS: usize = 3;
