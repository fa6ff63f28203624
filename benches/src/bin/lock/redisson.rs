//! Redisson itself, in a JVM, driven line by line.
//!
//! Its source is `benches/redisson`. It is left out if there is no `mvn` or `java`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, ensure};
use wheellock_benches::sent::Counting;
use wheellock_benches::{Report, stretch};
use wheellock_tests::RedisServer;

use crate::crash::{self, deaths, left, nanos};
use crate::{
    Figure, HANDOFF_TIME, HANDOFFS, IDLE, MANY_TIME, ONE_KEY, ROUND, SETTLE, Scene, Stage, counted_pairs,
};

pub(crate) struct Redisson {
    jvm: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// The figures that a JVM printed, by name.
pub(crate) struct Figures(Vec<(String, f64)>);

impl Redisson {
    /// Starts a JVM on the CPUs that the caller may use.
    pub(crate) fn start(server: &RedisServer) -> Result<Option<Self>> {
        static CLASSPATH: OnceLock<Option<String>> = OnceLock::new();
        let Some(classpath) = CLASSPATH.get_or_init(build) else { return Ok(None) };
        let mut java = Command::new("java");
        java.args(["-Xmx1g", "-cp", classpath, "LockBench", &server.tcp_url()]);
        let mut jvm = java.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn()?;
        let orders = jvm.stdin.take().context("no stdin")?;
        let answers = BufReader::new(jvm.stdout.take().context("no stdout")?);
        Ok(Some(Self { jvm, orders, answers }))
    }

    /// Sends an order to the JVM and returns its figures.
    pub(crate) fn ask(&mut self, order: &str) -> Result<Figures> {
        writeln!(self.orders, "{order}")?;
        self.orders.flush()?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let figure =
            |word: &str| Some((word.split_once('=')?.0.to_owned(), word.split_once('=')?.1.parse().ok()?));
        let figures: Vec<_> = line.trim().split('|').filter_map(figure).collect();
        ensure!(!figures.is_empty(), "{NAME} did not do {order:?}");
        Ok(Figures(figures))
    }
}

impl Figures {
    pub(crate) fn get(&self, name: &str) -> Result<f64> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, figure)| *figure).with_context(|| format!("{NAME} says no {name}"))
    }
}

/// Uncontended locks, round by round.
pub(crate) struct Pairs {
    redisson: Redisson,
    tasks: usize,
    units: u64,
    rounds: Vec<(Figures, f64)>,
}

impl Pairs {
    pub(crate) fn warmed_up(server: &RedisServer, tasks: usize) -> Result<Option<Self>> {
        let Some(mut redisson) = Redisson::start(server)? else { return Ok(None) };
        let units = units_within(ROUND, &redisson.ask(&format!("pairs {tasks} {WARM_UP}"))?)?;
        Ok(Some(Self { redisson, tasks, units, rounds: Vec::new() }))
    }

    pub(crate) fn round(&mut self, server: &RedisServer) -> Result<()> {
        let figures = self.redisson.ask(&format!("pairs {} {}", self.tasks, self.units))?;
        let (counting, counted) = (Counting::of(server), counted_pairs(self.tasks));
        self.redisson.ask(&format!("pairs {} {counted}", self.tasks))?;
        #[expect(clippy::cast_precision_loss, reason = "figures with three digits")]
        self.rounds.push((figures, counting.stop()?.per(counted as f64)));
        Ok(())
    }

    /// Reports the rounds. `base` has the p50 of the first contender in each round.
    pub(crate) fn report(&self, report: &mut Report, bench: &str, base: &[f64]) -> Result<()> {
        let times = ["p50", "p90", "p99", "p99.9"].map(|metric| (metric, "us"));
        let metrics = times.into_iter().chain([("throughput", "k/s"), ("cpu", "us/pair")]);
        for (metric, unit) in metrics {
            let samples: Result<Vec<f64>> =
                self.rounds.iter().map(|(figures, _)| figures.get(metric)).collect();
            report.row(bench, NAME, metric, unit, &samples?);
        }
        let commands: Vec<f64> = self.rounds.iter().map(|(_, commands)| *commands).collect();
        report.row(bench, NAME, "commands", "1/pair", &commands);
        let ratios: Result<Vec<f64>> =
            self.rounds.iter().zip(base).map(|((figures, _), base)| Ok(figures.get("p50")? / base)).collect();
        report.row(bench, NAME, "p50 to first", "x", &ratios?);
        Ok(())
    }
}

/// Returns the number of pairs that take about `seconds` seconds, a multiple of the maximum of 64 threads.
fn units_within(seconds: f64, figures: &Figures) -> Result<u64> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some thousands")]
    let units = (figures.get("throughput")? * 1e3 * seconds) as u64;
    Ok(units.max(64) / 64 * 64)
}

/// Runs a scene with several contenders for the same lock.
pub(crate) fn play(scene: Scene, redisson: &mut Redisson, stage: Stage<'_>) -> Result<Vec<Figure>> {
    let Stage { server, key, .. } = stage;
    match scene {
        Scene::IdleWaiters => {
            redisson.ask(&format!("wait {key} 64"))?;
            std::thread::sleep(SETTLE);
            let counting = Counting::of(server);
            std::thread::sleep(stretch(IDLE));
            let sent = counting.stop()?;
            redisson.ask(&format!("leave {key}"))?;
            Ok(vec![("commands", "1/s", sent.per(stretch(IDLE).as_secs_f64()))])
        }
        Scene::Handoff | Scene::HandoffAwake => {
            let figures =
                redisson.ask(&format!("handoffs {key} {HANDOFFS} {}", stretch(HANDOFF_TIME).as_millis()))?;
            let names = ["p50", "p99", "p50 from call"];
            names.into_iter().map(|name| Ok((name, "ms", figures.get(name)?))).collect()
        }
        Scene::Crash => {
            let mut late = Vec::new();
            for death in 0..deaths() {
                // Simulate a dead holder of Redisson's.
                ensure!(server.cli(&["HSET", key, "somebody:1", "1"]) == "1", "{key} is held");
                let over = left(server, death)?;
                redisson.ask(&format!("take {key}"))?;
                late.push(nanos(over.elapsed()));
                redisson.ask(&format!("give {key}"))?;
            }
            Ok(crash::figures(late))
        }
        Scene::OneKey => {
            let order = format!("turns {key} 1 64 2 {}", stretch(ONE_KEY).as_millis());
            let figures = [("acquires", "1/s"), ("Jain fairness", ""), ("never served", "tasks")];
            counted_or_timed(redisson, stage, &order, ("sum", "1/acquire"), &figures)
        }
        Scene::EightManagers => {
            let order = format!("turns {key} 8 4 2 {}", stretch(ONE_KEY).as_millis());
            let figures = [("acquires", "1/s"), ("Jain fairness of managers", "")];
            counted_or_timed(redisson, stage, &order, ("sum", "1/acquire"), &figures)
        }
        Scene::ManyManagers => {
            let order = format!("served {key} 10 100 500 {}", stretch(MANY_TIME).as_millis());
            counted_or_timed(redisson, stage, &order, ("sum", "1/release"), &[("releases", "1/s")])
        }
    }
}

/// Sends an order to the JVM, and returns either its number of commands or its times.
fn counted_or_timed(
    redisson: &mut Redisson,
    stage: Stage<'_>,
    order: &str,
    (sum, unit): (&str, &'static str),
    times: &[(&'static str, &'static str)],
) -> Result<Vec<Figure>> {
    let counting = stage.counting();
    let figures = redisson.ask(order)?;
    match counting {
        Some(counting) => Ok(vec![("commands", unit, counting.stop()?.per(figures.get(sum)?))]),
        None => times.iter().map(|(name, unit)| Ok((*name, *unit, figures.get(name)?))).collect(),
    }
}

impl Drop for Redisson {
    fn drop(&mut self) {
        let _gone = self.jvm.kill();
        let _reaped = self.jvm.wait();
    }
}

/// Returns the classpath, once every file on it exists.
fn build() -> Option<String> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let built = root.join("target/redisson");
    let jars = built.join("classpath");
    let mut maven = Command::new("mvn");
    maven.args(["-q", "-f"]).arg(root.join("benches/redisson/pom.xml"));
    maven
        .args(["compile", "dependency:build-classpath"])
        .arg(format!("-Dmdep.outputFile={}", jars.display()));
    maven.status().ok().filter(std::process::ExitStatus::success)?;
    let jars = std::fs::read_to_string(jars).ok()?;
    Some(format!("{}:{}", built.join("classes").display(), jars.trim()))
}

pub(crate) const NAME: &str = "Redisson on the JVM";

/// Pairs during which the JVM compiles. They do not count.
const WARM_UP: usize = 64_000;
