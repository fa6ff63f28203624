//! Benchmark harness: contenders side by side, round by round.
//!
//! The harness knows clocks and tables, but not the measured work.
//!
//! - Contenders take turns within a round, so a slow second of the machine affects all of them. Figures are medians over rounds with
//!   minimum and maximum. Ratios are computed inside a round, before the median.
//! - A round of one contender lasts at least [`SAMPLE`]; the harness finds the necessary number of iterations beforehand.
//! - Every contender returns the amount of its work. All amounts must be equal.
//! - CPU time is the process's. Allocations are the calling thread's, counted by the global allocator. Counting costs a few nanoseconds per
//!   allocation; the no-op row `one allocation` shows the cost.
//!
//! ```no_run
//! use wheellock_benches::{Bench, Report};
//!
//! let mut report = Report::new("area");
//! Bench::new("copy 1 KiB", "copy")
//!     .no_op()
//!     .subject("wheellock", |times| (0..times).map(|_| std::hint::black_box([1_u8; 1024])[0] as u64).sum())
//!     .subject("peer", |times| (0..times).map(|_| std::hint::black_box([1_u8; 1024])[0] as u64).sum())
//!     .run(&mut report)?;
//! report.finish()?;
//! # Ok::<(), anyhow::Error>(())
//! ```

pub mod plot;
pub mod sent;
pub mod table;

use std::fmt;
use std::fs;
use std::hint::black_box;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use allocation_counter::measure;
use anyhow::{Context as _, Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

/// The rows of one area. Each row is printed at once; the file is written at the end.
#[derive(Debug)]
pub struct Report {
    area: String,
    rows: Vec<Row>,
    rounds: usize,
    filter: Option<String>,
    since: Instant,
}

impl Report {
    /// Creates an empty report. Reads `--rounds N`, `--quick` and a word from the command line; only benches whose names contain the word
    /// run.
    #[must_use]
    pub fn new(area: &str) -> Self {
        let rounds = if is_quick() { 1 } else { ROUNDS };
        let mut report =
            Self { area: area.to_owned(), rows: Vec::new(), rounds, filter: None, since: Instant::now() };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            if arg == "--rounds" {
                report.rounds = args.next().and_then(|n| n.parse().ok()).unwrap_or(ROUNDS).max(1);
            } else if arg != QUICK {
                report.filter = Some(arg);
            }
        }
        println!("{}", Row::HEADER);
        report
    }

    /// Prints the current bench to standard error, so that a long bench is not silent.
    pub fn progress(&self, bench: &str, round: usize, rounds: usize, subject: &str) {
        let seconds = self.since.elapsed().as_secs();
        eprintln!("[{seconds:>4} s] {bench}: round {} of {rounds}, {subject}", round + 1);
    }

    /// Returns the number of rounds; at least five unless the command line sets it.
    #[must_use]
    pub fn rounds(&self) -> usize {
        self.rounds
    }

    /// Returns true if the command line selects this bench.
    #[must_use]
    pub fn wants(&self, bench: &str) -> bool {
        self.filter.as_ref().is_none_or(|word| bench.contains(word.as_str()))
    }

    /// Adds a figure, with one sample per round, and prints it.
    pub fn row(&mut self, bench: &str, subject: &str, metric: &str, unit: &str, samples: &[f64]) {
        let row = self.add(bench, subject, metric, unit, samples);
        println!("{row}");
    }

    fn add(&mut self, bench: &str, subject: &str, metric: &str, unit: &str, samples: &[f64]) -> &mut Row {
        let (median, min, max) = summary(samples);
        let row = Row {
            bench: bench.to_owned(),
            subject: subject.to_owned(),
            metric: metric.to_owned(),
            unit: unit.to_owned(),
            median,
            min,
            max,
            n: samples.len(),
            is_floor: false,
        };
        self.rows.push(row);
        let last = self.rows.len() - 1;
        &mut self.rows[last]
    }

    /// Writes the rows to `target/bench/last.json`. A full run that is not quick also writes `target/bench/<area>.json`.
    ///
    /// # Errors
    ///
    /// If a file cannot be written.
    pub fn finish(self) -> Result<()> {
        if self.filter.is_none() && !is_quick() {
            println!("wrote {}", self.write(&self.area)?.display());
        }
        self.write("last")?;
        Ok(())
    }

    fn write(&self, name: &str) -> Result<PathBuf> {
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target")), PathBuf::from);
        let folder = target.join("bench");
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let path = folder.join(format!("{name}.json"));
        let commit = commit();
        let rows: Vec<_> = self.rows.iter().map(|row| row.json(&commit)).collect();
        let mut file =
            fs::File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        serde_json::to_writer_pretty(&mut file, &rows)?;
        writeln!(file)?;
        Ok(path)
    }
}

/// Returns the measured commit, and marks it if the working tree differs from it.
fn commit() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").current_dir(env!("CARGO_MANIFEST_DIR")).args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short", "HEAD"]) else { return "an unknown commit".to_owned() };
    let changed =
        git(&["status", "--porcelain", "--", "../crates", "."]).is_some_and(|files| !files.is_empty());
    if changed { format!("{commit} and changes") } else { commit }
}

/// One figure of one contender.
#[derive(Debug)]
struct Row {
    bench: String,
    subject: String,
    metric: String,
    unit: String,
    median: f64,
    min: f64,
    max: f64,
    n: usize,
    /// True if the subject does different and less work than the contenders.
    is_floor: bool,
}

impl Row {
    const HEADER: &str = "bench                              subject                        metric              \
                          median       min       max   n  unit";

    fn json(&self, commit: &str) -> serde_json::Value {
        json!({
            "bench": self.bench, "subject": self.subject, "metric": self.metric, "unit": self.unit,
            "median": self.median, "min": self.min, "max": self.max, "n": self.n, "floor": self.is_floor,
            "commit": commit,
        })
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bench, subject, metric, unit, median, min, max, n, is_floor: _ } = self;
        write!(
            f,
            "{bench:<34} {subject:<30} {metric:<16} {:>9} {:>9} {:>9} {n:>3}  {unit}",
            Figure(*median),
            Figure(*min),
            Figure(*max)
        )
    }
}

/// A figure, shown with about three significant digits.
struct Figure(f64);

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = match self.0.abs() {
            magnitude if magnitude >= 100.0 => 0,
            magnitude if magnitude >= 10.0 => 1,
            magnitude if magnitude >= 1.0 => 2,
            _ => 3,
        };
        f.pad(&format!("{:.decimals$}", self.0))
    }
}

/// The same work, done by several contenders.
pub struct Bench<'a> {
    name: String,
    unit: String,
    subjects: Vec<Subject<'a>>,
}

struct Subject<'a> {
    name: String,
    run: Box<dyn FnMut(u64) -> Measured + 'a>,
    /// True if the subject does the work, false if it is only shown for comparison.
    compared: bool,
    ns: Vec<f64>,
    cpu: Vec<f64>,
    allocations: Vec<f64>,
    bytes: Vec<f64>,
}

impl<'a> Bench<'a> {
    /// Creates a bench whose figures are per `unit`.
    #[must_use]
    pub fn new(name: &str, unit: &str) -> Self {
        Self { name: name.to_owned(), unit: unit.to_owned(), subjects: Vec::new() }
    }

    /// Adds a contender. `run` does the work the given number of times and returns the total number of units.
    #[must_use]
    pub fn subject(self, name: &str, run: impl FnMut(u64) -> u64 + 'a) -> Self {
        self.add(name, measured(run), true)
    }

    /// Adds a contender that needs a preparation for each unit. Only `run` is measured, not `prepare` and not the drop of `run`'s result.
    /// Reading the clock then costs some 50 ns per unit; compare with [`no_op_each`](Self::no_op_each).
    #[must_use]
    pub fn subject_each<I: 'a, O: 'a>(
        self,
        name: &str,
        prepare: impl FnMut() -> I + 'a,
        run: impl FnMut(I) -> O + 'a,
    ) -> Self {
        self.add(name, measured_each(prepare, run), true)
    }

    /// Adds a subject that does different work than the contenders, such as a floor.
    #[must_use]
    pub fn beside(self, name: &str, run: impl FnMut(u64) -> u64 + 'a) -> Self {
        self.add(name, measured(run), false)
    }

    /// Adds the harness's own cost: a unit without work.
    #[must_use]
    pub fn no_op(self) -> Self {
        self.beside("no-op", |times| (0..times).fold(0, |sum, _| black_box(sum) + 1))
    }

    /// Adds the harness's own cost for [`subject_each`](Self::subject_each).
    #[must_use]
    pub fn no_op_each(self) -> Self {
        self.add("no-op", measured_each(|| (), |()| ()), false)
    }

    /// Runs the rounds and reports them. Ratios compare the other contenders with the first contender.
    ///
    /// # Errors
    ///
    /// If the contenders did different amounts of work.
    pub fn run(mut self, report: &mut Report) -> Result<()> {
        if !report.wants(&self.name) {
            return Ok(());
        }
        let mut times = Vec::new();
        let mut work = None;
        for subject in &mut self.subjects {
            let units = (subject.run)(1).units;
            if subject.compared {
                let expected = *work.get_or_insert(units);
                ensure!(units == expected, "{}: {} did {units}, not {expected}", self.name, subject.name);
            }
            times.push(calibrate(&mut subject.run));
        }
        for _ in 0..report.rounds() {
            for (subject, &times) in self.subjects.iter_mut().zip(&times) {
                subject.sample(times);
            }
        }
        let first = self.subjects.iter().position(|subject| subject.compared).unwrap_or_default();
        let Some(base) = self.subjects.get(first) else { return Ok(()) };
        let per = |unit: &str| format!("{unit}/{}", self.unit);
        for (index, subject) in self.subjects.iter().enumerate() {
            let mut row = |metric: &str, unit: &str, samples: &[f64]| {
                let row = report.add(&self.name, &subject.name, metric, unit, samples);
                row.is_floor = !subject.compared;
                println!("{row}");
            };
            row("time", &per("ns"), &subject.ns);
            row("cpu", &per("ns"), &subject.cpu);
            if index != first && subject.compared {
                row("time ratio", "x", &ratios(&subject.ns, &base.ns));
                row("cpu ratio", "x", &ratios(&subject.cpu, &base.cpu));
            }
            if subject.compared {
                row("allocations", &per("1"), &subject.allocations);
                row("allocated", &per("B"), &subject.bytes);
            }
        }
        Ok(())
    }

    fn add(mut self, name: &str, run: impl FnMut(u64) -> Measured + 'a, compared: bool) -> Self {
        self.subjects.push(Subject {
            name: name.to_owned(),
            run: Box::new(run),
            compared,
            ns: Vec::new(),
            cpu: Vec::new(),
            allocations: Vec::new(),
            bytes: Vec::new(),
        });
        self
    }
}

impl fmt::Debug for Bench<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bench({}, {} subjects)", self.name, self.subjects.len())
    }
}

impl Subject<'_> {
    fn sample(&mut self, times: u64) {
        let Measured { units, elapsed, cpu, allocations, bytes } = (self.run)(times);
        #[expect(clippy::cast_precision_loss, reason = "figures with three digits")]
        let per_unit = |total: u64| total as f64 / units.max(1) as f64;
        #[expect(clippy::cast_precision_loss, reason = "figures with three digits")]
        let ns_per_unit = |total: Duration| total.as_secs_f64() * 1e9 / units.max(1) as f64;
        self.ns.push(ns_per_unit(elapsed));
        self.cpu.push(ns_per_unit(cpu));
        self.allocations.push(per_unit(allocations));
        self.bytes.push(per_unit(bytes));
    }
}

/// The measurements of one run of a contender.
#[derive(Debug, Default)]
struct Measured {
    units: u64,
    elapsed: Duration,
    cpu: Duration,
    allocations: u64,
    bytes: u64,
}

/// Measures a whole run.
fn measured(mut run: impl FnMut(u64) -> u64) -> impl FnMut(u64) -> Measured {
    move |times| {
        let mut measured = Measured::default();
        let allocated = measure(|| {
            let cpu_before = process_cpu();
            let before = Instant::now();
            measured.units = black_box(run(times));
            measured.elapsed = before.elapsed();
            measured.cpu = process_cpu() - cpu_before;
        });
        measured.allocations = allocated.count_total;
        measured.bytes = allocated.bytes_total;
        measured
    }
}

/// Measures each call of `run` and nothing in between. The elapsed time stands for the CPU time: reading the CPU time for each call would
/// cost more than the call.
fn measured_each<I, O>(
    mut prepare: impl FnMut() -> I,
    mut run: impl FnMut(I) -> O,
) -> impl FnMut(u64) -> Measured {
    move |times| {
        let mut measured = Measured { units: times, ..Measured::default() };
        for _ in 0..times {
            let input = black_box(prepare());
            let mut output = None;
            let allocated = measure(|| {
                let before = Instant::now();
                output = Some(black_box(run(input)));
                measured.elapsed += before.elapsed();
            });
            measured.allocations += allocated.count_total;
            measured.bytes += allocated.bytes_total;
        }
        measured.cpu = measured.elapsed;
        measured
    }
}

/// Returns true if the command line requests a quick run of less than three minutes. Its figures are rough, and no page uses them.
#[must_use]
pub fn is_quick() -> bool {
    std::env::args().any(|arg| arg == QUICK)
}

/// Returns the length of a measured period: a quarter of `usual` in a quick run.
#[must_use]
pub fn stretch(usual: Duration) -> Duration {
    if is_quick() { usual / 4 } else { usual }
}

/// Returns the CPU time of this process, on all its threads, in user and kernel mode.
#[must_use]
pub fn process_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

/// Returns the ratio of each sample to the base's sample of the same round.
fn ratios(samples: &[f64], base: &[f64]) -> Vec<f64> {
    samples.iter().zip(base).map(|(sample, base)| sample / base).collect()
}

/// Returns median, minimum and maximum; all are zero without samples.
#[must_use]
pub fn summary(samples: &[f64]) -> (f64, f64, f64) {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |index: usize| sorted.get(index).copied().unwrap_or_default();
    let last = sorted.len().saturating_sub(1);
    ((at(last / 2) + at(last.div_ceil(2))) / 2.0, at(0), at(last))
}

/// Returns the number of iterations that take `SAMPLE`.
fn calibrate(run: &mut impl FnMut(u64) -> Measured) -> u64 {
    let mut times = 1;
    loop {
        let before = Instant::now();
        black_box(run(times));
        let elapsed = before.elapsed();
        if elapsed >= SAMPLE / 4 {
            let scale = SAMPLE.as_secs_f64() / elapsed.as_secs_f64();
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "a number of iterations, positive and far from the bounds"
            )]
            return ((times as f64 * scale) as u64).max(1);
        }
        times *= 2;
    }
}

/// The time of one contender within a round. It is long compared with a scheduler tick, and short compared with load changes of the
/// machine.
pub const SAMPLE: Duration = Duration::from_millis(40);

/// The argument for a quick run.
const QUICK: &str = "--quick";

/// The default number of rounds. It is odd, so that the median is one of the rounds.
const ROUNDS: usize = 9;
