//! The client beside others, on one connection over loopback TCP to a private server: one call at a time, many tasks at
//! once, and small calls beside a large reply.
//!
//! `client --solo <contender> <get|pair> <tasks> <operations>` runs one contender alone on a current-thread runtime, for
//! instruction counts: those of two runs subtracted, over the difference in operations.
//!
//! ```text
//! for n in 100000 200000; do
//!     valgrind --tool=callgrind --callgrind-out-file=target/callgrind.$n \
//!         target/bench/client --solo wheellock get 256 $n
//! done
//! ```

#[path = "client/contenders.rs"]
mod contenders;
#[path = "client/peers.rs"]
mod peers;
#[path = "client/placement.rs"]
mod placement;
#[path = "client/rig.rs"]
mod rig;

use std::future::Future;

use anyhow::{Context as _, Result, bail};
use contenders::{NoOp, Raw, Session, Target, Wheellock};
use peers::{Fred, Redis, Rustis};
use placement::Placement;
use rig::{Rig, Round, Work};
use tokio::runtime::{Builder, Runtime};
use wheellock_benches::Report;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--solo", contender, work, tasks, operations] => {
            solo(contender, work, tasks.parse()?, operations.parse()?)
        }
        _ => compare(),
    }
}

/// One contender alone, so many operations.
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
        // A round trip across two CPUs is mostly the price of waking the other one.
        placement.together(&target.server)?;
        bench(&mut report, &target, work, Flavor::CurrentThread, 1, "1 task, one vCPU")?;
        placement.apart(&target.server)?;
        for tasks in [16, 256, 4096] {
            bench(&mut report, &target, work, Flavor::CurrentThread, tasks, &format!("{tasks} tasks"))?;
        }
        placement.free(&target.server)?;
        bench(&mut report, &target, work, Flavor::MultiThread, 256, "256 tasks, 2 workers")?;
    }
    report.finish()
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

/// A rig of `tasks` tasks, or none if this contender cannot serve that many.
fn rig(target: &Target, name: &str, work: Work, flavor: Flavor, tasks: usize) -> Result<Option<Rig>> {
    let runtime = flavor.runtime()?;
    fn assemble<S: Session>(
        name: &str,
        work: Work,
        runtime: Runtime,
        sessions: impl Future<Output = Result<Vec<S>>>,
    ) -> Result<Rig> {
        let sessions = runtime.block_on(sessions).with_context(|| format!("{name} cannot connect"))?;
        Ok(Rig::new(name, runtime, sessions, work))
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

/// All contenders, round by round.
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
        plans.push(units_for_a_round(rig, tasks)?);
    }
    let mut rounds: Vec<Vec<Round>> = vec![Vec::new(); rigs.len()];
    for _ in 0..report.rounds() {
        for ((rig, units), rounds) in rigs.iter().zip(&plans).zip(&mut rounds) {
            rounds.push(rig.run(*units)?);
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
            row("p99", "us", &|round| round.p99_us);
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

/// How many units take about [`ROUND`]; warms up on the way.
fn units_for_a_round(rig: &Rig, tasks: usize) -> Result<u64> {
    let mut units = tasks as u64 * 16;
    loop {
        let round = rig.run(units)?;
        #[expect(clippy::cast_precision_loss, reason = "a rough estimate")]
        let seconds = units as f64 / round.per_second;
        if seconds >= ROUND / 4.0 {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and small")]
            return Ok((round.per_second * ROUND) as u64);
        }
        units *= 2;
    }
}

/// The value that so many percent of the sorted samples do not exceed.
fn percentile(sorted: &[u64], percent: usize) -> u64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((sorted.len() * percent / 100).min(last)).copied().unwrap_or_default()
}

/// Seconds that one contender works within a round.
const ROUND: f64 = 0.15;
