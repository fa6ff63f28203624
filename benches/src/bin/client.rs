//! Client benchmarks on one connection over loopback TCP.
//!
//! The client is compared with others on a private server. There is one call at a time, or many tasks at once, or small calls beside a
//! large reply.
//!
//! `client --solo <contender> <get|pair> <tasks> <operations>` runs one contender alone on a current-thread runtime, for instruction
//! counts. The count per operation is the difference of two runs, divided by their difference in operations.
//!
//! ```text
//! for n in 100000 200000; do
//!     valgrind --tool=callgrind --callgrind-out-file=target/callgrind.$n \
//!         target/bench/client --solo wheellock get 256 $n
//! done
//! ```
//!
//! `client --table [page]` writes the figures of `target/bench/client.json` into a page, and `client --plot [folder]` draws some of them.

#[path = "client/contenders.rs"]
mod contenders;
#[path = "client/peers.rs"]
mod peers;
#[expect(dead_code, reason = "CPUs are kept awake for locks only")]
#[path = "client/placement.rs"]
mod placement;
#[path = "client/rig.rs"]
mod rig;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use contenders::{Caller, Gets, NoOp, Pairs, Raw, Target, Wheellock};
use peers::{Fred, Redis, Rustis};
use placement::Placement;
use rig::{Rig, Round, percentile};
use tokio::runtime::{Builder, Runtime};
use wheellock_benches::plot::{self, Plot};
use wheellock_benches::{Report, table};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--solo", contender, work, tasks, operations] => {
            solo(contender, work, tasks.parse()?, operations.parse()?)
        }
        ["--table", ref page @ ..] => {
            // The file has the other percentiles.
            let left_out = ["p90", "p99.9"];
            let page = page.first().unwrap_or(&"docs/lab/tables/client.md");
            table::put("client", page, |_, metric| left_out.contains(&metric))
        }
        ["--plot", ref folder @ ..] => plot::draw("client", &PLOTS, folder.first().unwrap_or(&"docs/img")),
        _ => compare(),
    }
}

/// Runs one contender alone for `operations` operations.
fn solo(contender: &str, work: &str, tasks: usize, operations: u64) -> Result<()> {
    let work = match work {
        "get" => Work::Get,
        "pair" => Work::Pair,
        other => bail!("{other:?} is neither get nor pair"),
    };
    let target = Target::start()?;
    let rig = rig(&target, contender, work, Flavor::CurrentThread, tasks)?.context("no such contender")?;
    println!("{} {operations} {work:?}, {tasks} tasks: {:?}", rig.name(), rig.run(operations)?);
    Ok(())
}

fn compare() -> Result<()> {
    let mut report = Report::new("client");
    let target = Target::start()?;
    let placement = Placement::find()?;
    for work in [Work::Get, Work::Pair] {
        // A round trip between two CPUs consists mostly of waking the other CPU.
        placement.together(&target.server)?;
        bench(&mut report, &target, work, Flavor::CurrentThread, 1, "1 task, one vCPU")?;
        placement.apart(&target.server)?;
        for tasks in [16, 256, 4096] {
            bench(&mut report, &target, work, Flavor::CurrentThread, tasks, &format!("{tasks} tasks"))?;
        }
        placement.free(&target.server)?;
        bench(&mut report, &target, work, Flavor::MultiThread, 256, "256 tasks, 2 workers")?;
    }
    placement.apart(&target.server)?;
    large_reply(&mut report, &target)?;
    report.finish()
}

/// Measures small calls of sixteen tasks while a different task of the same connection receives a megabyte.
fn large_reply(report: &mut Report, target: &Target) -> Result<()> {
    let name = "16 tasks beside 1 MiB";
    if !report.wants(name) {
        return Ok(());
    }
    let runtimes = [(); 4].map(|()| Flavor::CurrentThread.runtime());
    let [wheellock, redis, fred, rustis] = runtimes;
    let mut lanes = [
        lane("wheellock", wheellock?, Wheellock::connect(target, CALLERS))?,
        lane("redis tuned", redis?, Redis::tuned(target, CALLERS))?,
        lane("fred tuned", fred?, Fred::connect(target, CALLERS))?,
        lane("rustis", rustis?, Rustis::connect(target, CALLERS))?,
    ];
    let mut rows = [const { [const { Vec::new() }; 3] }; 4];
    for _ in 0..report.rounds() {
        for ((_, lane), rows) in lanes.iter_mut().zip(&mut rows) {
            for (row, figure) in rows.iter_mut().zip(lane()?) {
                row.push(figure);
            }
        }
    }
    for ((contender, _), [alone, beside, ratio]) in lanes.iter().zip(&rows) {
        report.row(name, contender, "transfer alone", "us", alone);
        report.row(name, contender, "small p99", "us", beside);
        report.row(name, contender, "p99 / transfer", "x", ratio);
    }
    Ok(())
}

/// One contender's part of [`large_reply`]. It returns three figures: the median transfer time without other calls, the 99th percentile of
/// small calls during transfers, and its increase.
type Lane = Box<dyn FnMut() -> Result<[f64; 3]>>;

fn lane<C: Caller>(
    name: &'static str,
    runtime: Runtime,
    callers: impl Future<Output = Result<Vec<C>>>,
) -> Result<(&'static str, Lane)> {
    let mut callers = runtime.block_on(callers)?;
    let mut big = callers.pop().context("no callers")?;
    let round = move || {
        let (mut alone, mut small) = (Vec::new(), Vec::new());
        for _ in 0..TRANSFERS {
            let before = Instant::now();
            ensure!(runtime.block_on(big.big()), "{name}: wrong answer");
            alone.push(nanos(before));
        }
        for _ in 0..TRANSFERS {
            let over = Arc::new(AtomicBool::new(false));
            let tasks: Vec<_> = callers
                .drain(..)
                .map(|mut caller| {
                    let over = Arc::clone(&over);
                    runtime.spawn(async move {
                        let mut took = Vec::new();
                        while !over.load(Ordering::Relaxed) {
                            let before = Instant::now();
                            if !caller.get().await {
                                return (caller, Vec::new());
                            }
                            took.push(nanos(before));
                        }
                        (caller, took)
                    })
                })
                .collect();
            runtime.block_on(async {
                let right = big.big().await;
                over.store(true, Ordering::Relaxed);
                ensure!(right, "{name}: wrong answer");
                for task in tasks {
                    let (caller, took) = task.await?;
                    small.extend(took);
                    callers.push(caller);
                }
                Ok(())
            })?;
        }
        alone.sort_unstable();
        small.sort_unstable();
        #[expect(clippy::cast_precision_loss, reason = "figures with three digits")]
        let (alone, p99) = (percentile(&alone, 500) as f64 / 1e3, percentile(&small, 990) as f64 / 1e3);
        Ok([alone, p99, p99 / alone])
    };
    Ok((name, Box::new(round)))
}

fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    /// One GET of 16 bytes.
    Get,
    /// Acquire and release of an uncontended lock: two scripts by hash, one after the other.
    Pair,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flavor {
    CurrentThread,
    MultiThread,
}

impl Flavor {
    fn runtime(self) -> Result<Runtime> {
        let mut builder = match self {
            Self::CurrentThread => Builder::new_current_thread(),
            Self::MultiThread => Builder::new_multi_thread(),
        };
        Ok(builder.worker_threads(2).enable_all().build()?)
    }
}

const CONTENDERS: [&str; 8] =
    ["no-op", "raw tokio", "raw batch", "wheellock", "redis tuned", "redis default", "fred tuned", "rustis"];

/// Returns a rig of `tasks` tasks, or `None` if this contender cannot serve that many tasks.
fn rig(target: &Target, name: &str, work: Work, flavor: Flavor, tasks: usize) -> Result<Option<Rig>> {
    let runtime = flavor.runtime()?;
    fn assemble<C: Caller>(
        name: &str,
        work: Work,
        runtime: Runtime,
        callers: impl Future<Output = Result<Vec<C>>>,
    ) -> Result<Rig> {
        let callers =
            runtime.block_on(callers).with_context(|| format!("{name} cannot connect"))?.into_iter();
        Ok(match work {
            Work::Get => Rig::new(name, runtime, callers.map(Gets).collect()),
            Work::Pair => Rig::new(name, runtime, callers.map(Pairs).collect()),
        })
    }
    Ok(Some(match name {
        "no-op" => assemble(name, work, runtime, async { Ok((0..tasks).map(|_| NoOp).collect()) })?,
        "raw tokio" if tasks == 1 => {
            assemble(name, work, runtime, async { Ok(vec![Raw::connect(target, 1).await?]) })?
        }
        "raw batch" if tasks > 1 => {
            assemble(name, work, runtime, async { Ok(vec![Raw::connect(target, tasks).await?]) })?
        }
        "wheellock" => assemble(name, work, runtime, Wheellock::connect(target, tasks))?,
        "redis tuned" => assemble(name, work, runtime, Redis::tuned(target, tasks))?,
        "redis default" => assemble(name, work, runtime, Redis::default(target, tasks))?,
        "fred tuned" => assemble(name, work, runtime, Fred::connect(target, tasks))?,
        "rustis" => assemble(name, work, runtime, Rustis::connect(target, tasks))?,
        _ => return Ok(None),
    }))
}

/// Runs all contenders, round by round.
fn bench(
    report: &mut Report,
    target: &Target,
    work: Work,
    flavor: Flavor,
    tasks: usize,
    what: &str,
) -> Result<()> {
    let name = match work {
        Work::Get => format!("GET, {what}"),
        Work::Pair => format!("pair, {what}"),
    };
    if !report.wants(&name) {
        return Ok(());
    }
    let mut rigs = Vec::new();
    for contender in CONTENDERS {
        rigs.extend(rig(target, contender, work, flavor, tasks)?);
    }
    let mut plans = Vec::new();
    for rig in &rigs {
        plans.push(rig.units_within(ROUND)?);
    }
    let mut rounds: Vec<Vec<Round>> = vec![Vec::new(); rigs.len()];
    for _ in 0..report.rounds() {
        for ((rig, units), rounds) in rigs.iter().zip(&plans).zip(&mut rounds) {
            let round = rig.run(*units)?;
            // With its default timeout of 500 ms this contender abandons calls if thousands wait; that is a result too.
            ensure!(round.wrong == 0.0 || rig.name() == "redis default", "{}: wrong answers", rig.name());
            rounds.push(round);
        }
    }
    let base = rigs.iter().position(|rig| rig.name() == "raw tokio");
    for (rig, own) in rigs.iter().zip(&rounds) {
        let mut row = |metric: &str, unit: &str, of: &dyn Fn(&Round) -> f64| {
            let samples: Vec<f64> = own.iter().map(of).collect();
            report.row(&name, rig.name(), metric, unit, &samples);
        };
        row("throughput", "k/s", &|round| round.per_second / 1e3);
        row("cpu", "us/op", &|round| round.cpu_us);
        if rig.name() != "raw batch" {
            row("p50", "us", &|round| round.p50_us);
            row("p90", "us", &|round| round.p90_us);
            row("p99", "us", &|round| round.p99_us);
            row("p99.9", "us", &|round| round.p999_us);
        }
        if own.iter().any(|round| round.wrong > 0.0) {
            row("failed", "1/op", &|round| round.wrong);
        }
        if flavor == Flavor::CurrentThread {
            row("allocations", "1/op", &|round| round.allocations);
        }
        if let Some(base) = base.and_then(|base| rounds.get(base)) {
            let ratios: Vec<f64> = own.iter().zip(base).map(|(own, base)| own.p50_us / base.p50_us).collect();
            report.row(&name, rig.name(), "p50 to raw tokio", "x", &ratios);
        }
    }
    Ok(())
}

const PLOTS: [Plot; 3] = [
    plot(
        "GET, 1 task, one vCPU",
        "p50",
        "client-latency.svg",
        "GETs one at a time, client and server on one vCPU: p50",
    ),
    plot("GET, 256 tasks", "cpu", "client-cpu.svg", "GETs of 256 tasks on one connection: CPU of the client"),
    plot(
        "pair, 256 tasks",
        "cpu",
        "client-cpu-pairs.svg",
        "Two scripts one after the other, 256 tasks: CPU of the client",
    ),
];

const fn plot(bench: &'static str, metric: &'static str, file: &'static str, title: &'static str) -> Plot {
    Plot {
        bench,
        metric,
        file,
        title,
        note: "Raw batch: all tasks in lock-step, which serves nobody separately",
    }
}

/// Seconds of work of one contender within a round.
const ROUND: f64 = 0.15;

/// Callers beside a large reply: sixteen for small calls and one for the large reply.
const CALLERS: usize = 17;

/// Large replies in one round of one contender.
const TRANSFERS: usize = 20;
