//! Checks that must pass before a push.
//!
//! They run together, with one tally. Slow checks run in a short form here. The full form for sets of features is `cargo xtask gates
//! features`. `fuzz`, `campaign` and `simulate` run for any duration, and every night.

use std::any::Any;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, ensure};
use clap::Args;
use serde_json::Value;
use wheellock_tests::RedisServer;

use crate::{features, fuzz, install, packages, planted, programs, run, tidy};
use programs::{Ended, Group, LONGEST, Program};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Only the fast checks: formatting, tidy, lints, unit tests and the integration tests that take seconds
    ///
    /// Prints the checks that it leaves out. Takes less than two minutes if the dependencies are built.
    #[arg(long)]
    quick: bool,
    /// Leave out the fuzz targets
    #[arg(long)]
    no_fuzz: bool,
    /// Leave out the loom models
    #[arg(long)]
    no_loom: bool,
    /// Leave out the planted bugs
    #[arg(long)]
    no_planted: bool,
    /// Seconds for each fuzz target
    #[arg(long, default_value_t = 3)]
    fuzz_seconds: u64,
}

/// Arguments for all tests. The benchmarks have no tests, and building all the peers takes minutes.
pub(crate) const TESTED: [&str; 4] = ["test", "--workspace", "--exclude", "wheellock-benches"];

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    install::ensure_server()?;
    let shipped = packages::shipped()?;
    let targets = if options.no_fuzz { Vec::new() } else { fuzz::targets()? };
    let built = OnceLock::new();
    let built_earlier = || built.get().context("the tests were not built");
    let mut steps = Steps::default();

    steps.commands("formatting", [run::cargo(["fmt", "--all", "--check"])]);
    steps.add("tidy", || {
        let complaints = tidy::check(run::root())?;
        complaints.iter().for_each(|complaint| println!("{complaint}"));
        Ok(if complaints.is_empty() { Tally::ONE_PASSED } else { Tally::ONE_FAILED })
    });
    steps.commands("lints", [lints(options.quick)]);
    steps.add("building", || {
        let all = programs::build(&mut run::cargo(TESTED))?;
        ensure!(built.set(all).is_ok(), "built twice");
        Ok(Tally::ONE_PASSED)
    });
    if options.quick {
        steps.add("tests", || run_quick_ones(&built_earlier()?.tests));
        return Ok(steps.run());
    }
    // Tests wait for a fifth of their time. Compilers with target directories of their own use that time, at low priority.
    let (mut tests, mut patient) = (Lane::default(), Lane::default());
    tests.add("tests", || run_groups(&programs::groups(&built_earlier()?.tests)?));
    patient.add("packages", || {
        let complaints = packages::complaints(&shipped)?;
        complaints.iter().for_each(|complaint| println!("{complaint}"));
        let complete = if complaints.is_empty() { Tally::ONE_PASSED } else { Tally::ONE_FAILED };
        Ok(complete + run_each_quietly([run::patient(&packages::build(&shipped)?)]))
    });
    if !options.no_loom {
        patient.add("loom models", || run_tests_quietly(loom_models(&shipped).iter().map(run::patient)));
    }
    if !targets.is_empty() {
        patient.add("building fuzz", || {
            fuzz::ensure_cargo_fuzz()?;
            Ok(run_each_quietly([run::patient(&fuzz::building())]))
        });
    }
    steps.beside([tests, patient]);
    steps.add("examples", || run_examples(&built_earlier()?.examples, &shipped));
    let mut doc_tests = run::cargo(TESTED);
    doc_tests.args(["--doc", "--no-fail-fast"]);
    steps.tests("doc tests", [doc_tests]);
    // One lane has tests that mostly wait; the other has compilers and fuzzers, which never wait.
    let (mut waiting, mut working) = (Lane::default(), Lane::default());
    if !options.no_planted {
        waiting.add("planted bugs", || {
            let bugs = planted::all(run::root())?;
            let failed = u64::try_from(planted::uncaught(&bugs)?.len())?;
            Ok(Tally { passed: u64::try_from(bugs.len())? - failed, failed })
        });
    }
    if !targets.is_empty() {
        working.add("fuzz", || {
            Ok(several(run::processors(), &targets, |target| {
                run_quietly(target, &mut fuzz::command(target, options.fuzz_seconds)?)
            }))
        });
    }
    working.add("features", || Ok(run_each_quietly(features(&shipped))));
    working
        .add("documentation", || Ok(run_each_quietly(features::documentation(&shipped, features::fewest))));
    steps.beside([waiting, working]);
    Ok(steps.run())
}

/// The steps in order. An entry with several lanes runs these lanes in parallel.
#[derive(Default)]
struct Steps<'a>(Vec<Vec<Lane<'a>>>);

/// Steps that run one after the other, each with its name.
#[derive(Default)]
struct Lane<'a>(Vec<(&'static str, Body<'a>)>);

type Body<'a> = Box<dyn FnOnce() -> Result<Tally> + Send + 'a>;

/// A step that has ended.
#[derive(Debug)]
struct Step {
    name: &'static str,
    took: Duration,
    tally: Tally,
}

impl<'a> Lane<'a> {
    fn add(&mut self, name: &'static str, body: impl FnOnce() -> Result<Tally> + Send + 'a) {
        self.0.push((name, Box::new(body)));
    }

    /// Runs every step, also after a failure.
    fn run(self, progress: &Progress) -> Vec<Step> {
        self.0.into_iter().map(|(name, body)| progress.step(name, body)).collect()
    }
}

impl<'a> Steps<'a> {
    fn add(&mut self, name: &'static str, body: impl FnOnce() -> Result<Tally> + Send + 'a) {
        let mut lane = Lane::default();
        lane.add(name, body);
        self.0.push(vec![lane]);
    }

    /// Adds steps that run in parallel. Each step must print its output as a whole.
    fn beside(&mut self, lanes: impl Into<Vec<Lane<'a>>>) {
        self.0.push(lanes.into());
    }

    /// Adds commands that pass or fail as a whole.
    fn commands(&mut self, name: &'static str, commands: impl IntoIterator<Item = Command> + Send + 'a) {
        self.add(name, || Ok(run_each(commands)));
    }

    /// Adds commands whose output contains the numbers of passed and failed tests.
    fn tests(&mut self, name: &'static str, commands: impl IntoIterator<Item = Command> + Send + 'a) {
        self.add(name, || {
            let mut sum = Tally::default();
            for mut command in commands {
                sum += run_tests(&mut command)?;
            }
            Ok(sum)
        });
    }

    /// Runs every step, also after a failure, and prints the summary. Its last line is the sum.
    fn run(self) -> ExitCode {
        let all = self.0.iter().flatten().map(|lane| lane.0.len()).sum();
        let progress = Progress { began: Instant::now(), all, begun: AtomicUsize::new(0) };
        let mut ended = Vec::new();
        for lanes in self.0 {
            std::thread::scope(|threads| {
                let run = |lane: Lane<'a>| threads.spawn(|| lane.run(&progress));
                let running: Vec<_> = lanes.into_iter().map(run).collect();
                let steps = running.into_iter().flat_map(|lane| lane.join().unwrap_or_else(panicked));
                ended.extend(steps);
            });
        }
        summed_up(&ended, progress.began.elapsed())
    }
}

/// Returns the result of a lane whose thread panicked in a step.
fn panicked(_: Box<dyn Any + Send>) -> Vec<Step> {
    vec![Step { name: "panicked", took: Duration::ZERO, tally: Tally::ONE_FAILED }]
}

/// The progress of all steps.
struct Progress {
    began: Instant,
    all: usize,
    begun: AtomicUsize,
}

impl Progress {
    fn step(&self, name: &'static str, body: Body<'_>) -> Step {
        let (number, all) = (self.begun.fetch_add(1, Ordering::Relaxed) + 1, self.all);
        println!("\n=== step {number} of {all}, after {:.0} s: {name}", self.began.elapsed().as_secs_f64());
        let start = Instant::now();
        let tally = body().unwrap_or_else(|error| failed(&error));
        let took = start.elapsed();
        println!("=== {name}: {tally}, {:.1} s", took.as_secs_f64());
        Step { name, took, tally }
    }
}

fn summed_up(steps: &[Step], took: Duration) -> ExitCode {
    println!("\n{:<16} {:>7} {:>7} {:>9}", "step", "passed", "failed", "seconds");
    let mut sum = Tally::default();
    for step in steps {
        let Tally { passed, failed } = step.tally;
        println!("{:<16} {passed:>7} {failed:>7} {:>9.1}", step.name, step.took.as_secs_f64());
        sum += step.tally;
    }
    println!("{:<16} {:>7} {:>7} {:>9.1}\n", "all", sum.passed, sum.failed, took.as_secs_f64());
    println!("{sum}");
    if sum.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl Tally {
    const ONE_PASSED: Self = Self { passed: 1, failed: 0 };
    pub(crate) const ONE_FAILED: Self = Self { passed: 0, failed: 1 };
}

impl std::ops::Add for Tally {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

/// Runs every command, also after a failure. Each command counts once.
fn run_each(commands: impl IntoIterator<Item = Command>) -> Tally {
    let mut tally = Tally::default();
    for mut command in commands {
        println!("$ {}", run::shown(&command));
        tally += run::run(&mut command).map_or_else(|error| failed(&error), |()| Tally::ONE_PASSED);
    }
    tally
}

/// Runs commands beside which others run. The output of each command is printed as a whole when it has ended.
fn run_each_quietly(commands: impl IntoIterator<Item = Command>) -> Tally {
    let mut tally = Tally::default();
    for mut command in commands {
        tally += printed_by(&mut command).map_or_else(
            |error| failed(&error),
            |(succeeded, _)| {
                if succeeded { Tally::ONE_PASSED } else { Tally::ONE_FAILED }
            },
        );
    }
    tally
}

fn run_tests_quietly(commands: impl IntoIterator<Item = Command>) -> Result<Tally> {
    let mut sum = Tally::default();
    for mut command in commands {
        let (succeeded, printed) = printed_by(&mut command)?;
        let mut tally = Tally::default();
        printed.lines().filter_map(result_line).for_each(|result| tally += result);
        sum += completed(tally, succeeded);
    }
    Ok(sum)
}

/// Runs a command to its end, then prints it with its whole output. Returns true if it succeeded, and the output.
fn printed_by(command: &mut Command) -> Result<(bool, String)> {
    let output = command.stdin(Stdio::null()).output()?;
    let mut printed = format!("$ {}\n{}", run::shown(command), String::from_utf8_lossy(&output.stderr));
    printed.push_str(&String::from_utf8_lossy(&output.stdout));
    if !output.status.success() {
        let _infallible = writeln!(printed, "it failed ({})", output.status);
    }
    print!("{printed}");
    Ok((output.status.success(), printed))
}

fn failed(error: &Error) -> Tally {
    println!("{error:#}");
    Tally::ONE_FAILED
}

/// Runs a fuzz target. Prints its output, which has many pages, only if it fails.
fn run_quietly(target: &str, command: &mut Command) -> Result<Tally> {
    let output = command.output()?;
    let printed = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        let runs = printed.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
        println!("{target}: {} inputs", runs.map_or("?", str::trim));
        Ok(Tally::ONE_PASSED)
    } else {
        println!("$ {}\n{printed}", run::shown(command));
        Ok(Tally::ONE_FAILED)
    }
}

/// Runs the tests that take seconds, and prints the names of the others.
fn run_quick_ones(programs: &[Program]) -> Result<Tally> {
    let mut groups = programs::groups(programs)?;
    groups.retain(|group| !LONGEST.contains(&group.name()));
    let tally = run_groups(&groups)?;
    println!(
        "left out by --quick: the tests {}; examples, doc tests, features, documentation, packages, loom models, planted bugs, \
         fuzzing, and the lints of the benchmarks. `cargo xtask test` has them.",
        LONGEST.join(", ")
    );
    Ok(tally)
}

/// Runs all groups, several at a time. The output of each group is printed as a whole when it has ended.
fn run_groups(groups: &[Group<'_>]) -> Result<Tally> {
    ensure!(!groups.is_empty(), "cargo has built no test");
    let folder = run::target_directory().join("test-output");
    let (all, done) = (groups.iter().map(|group| group.tests.len()).sum::<usize>(), Mutex::new(0));
    let began = Instant::now();
    // Each group runs as many tests at a time as there are processors, and most tests mostly wait.
    Ok(several(run::processors() + 2, groups, |group| {
        let start = Instant::now();
        let Ended { succeeded, printed } = group.run(group.command(), &folder)?;
        let (took, shown, count) = (start.elapsed().as_secs_f64(), group.shown(), group.tests.len());
        let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
        *done += count;
        let so_far = format!("{done} of {all} tests after {:.0} s", began.elapsed().as_secs_f64());
        std::io::stdout().write_all(format!("\n--- {shown}, {took:.1} s; {so_far}{printed}").as_bytes())?;
        Ok(tally_of(&printed, succeeded, count))
    }))
}

/// Returns the tally of a program that should have run `tests` tests. A program that ended without a result, or ran a different number of
/// tests, has failed.
pub(crate) fn tally_of(printed: &str, succeeded: bool, tests: usize) -> Tally {
    let mut tally = Tally::default();
    printed.lines().filter_map(result_line).for_each(|result| tally += result);
    let ran = printed.lines().filter_map(result_counts).flatten().sum::<u64>();
    let is_complete = usize::try_from(ran).is_ok_and(|ran| ran == tests);
    if tally.failed == 0 && !(succeeded && is_complete) {
        println!("{ran} tests had a result, of {tests}");
        tally += Tally::ONE_FAILED;
    }
    tally
}

/// Returns the lints of every package with no feature, and with all features.
fn features(packages: &[Value]) -> Vec<Command> {
    packages.iter().flat_map(|package| features::lints(package, &features::few(package))).collect()
}

/// Returns the sum of the tallies of all items, `at_once` at a time. An item whose `work` returns an error counts as failed.
fn several<T: Sync>(at_once: usize, items: &[T], work: impl Fn(&T) -> Result<Tally> + Sync) -> Tally {
    let sum = Mutex::new(Tally::default());
    run::several_at_once(at_once, items, |item| {
        let tally = work(item).unwrap_or_else(|error| failed(&error));
        *sum.lock().unwrap_or_else(PoisonError::into_inner) += tally;
    });
    sum.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `cargo test`, prints its output as it arrives, and adds up its result lines.
fn run_tests(command: &mut Command) -> Result<Tally> {
    println!("$ {}", run::shown(command));
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut tally = Tally::default();
    for line in BufReader::new(child.stdout.take().context("no stdout")?).lines() {
        let line = line?;
        println!("{line}");
        tally += result_line(&line).unwrap_or_default();
    }
    Ok(completed(tally, child.wait()?.success()))
}

/// Adds a failure if the tests did not compile, a test process ended without a result line, or the filter selected no test.
fn completed(tally: Tally, succeeded: bool) -> Tally {
    let is_told = tally.failed > 0 || succeeded && tally.passed > 0;
    if is_told { tally } else { tally + Tally::ONE_FAILED }
}

/// Parses `test result: ok. 12 passed; 0 failed; ...`.
fn result_line(line: &str) -> Option<Tally> {
    result_counts(line).map(|[passed, failed, _]| Tally { passed, failed })
}

/// Returns the numbers of passed, failed and ignored tests in a result line.
fn result_counts(line: &str) -> Option<[u64; 3]> {
    let counts = line.trim_start().strip_prefix("test result: ")?;
    let count = |what: &str| -> Option<u64> {
        let (before, _) = counts.split_once(what)?;
        before.rsplit(' ').next()?.parse().ok()
    };
    Some([count(" passed;")?, count(" failed;")?, count(" ignored")?])
}

fn has_loom_models(package: &Value) -> bool {
    package["dependencies"].as_array().into_iter().flatten().any(|dependency| dependency["name"] == "loom")
}

/// Returns the lints of all targets of the workspace. A quick run excludes the benchmarks.
fn lints(is_quick: bool) -> Command {
    let mut command = run::cargo(["clippy", "--workspace", "--all-targets"]);
    if is_quick {
        command.args(["--exclude", "wheellock-benches"]);
    }
    command.args(["--", "-D", "warnings"]);
    command
}

/// Returns the commands that run the tests in modules named `models`, with the model checker's primitives.
fn loom_models(packages: &[Value]) -> Vec<Command> {
    let models = |package: &Value| {
        // Optimised: a model explores up to millions of interleavings. Default features only: tokio does not build under this flag. Library
        // only: loom is a dependency of its unit tests alone.
        let mut command = run::cargo(["test", "--release", "--package", name(package), "--lib", "models"]);
        command.args(LOOMS_LOG.iter().flat_map(|package| unoptimised(package)));
        command.env("RUSTFLAGS", "--cfg loom");
        command.env("CARGO_TARGET_DIR", run::target_directory().join("loom"));
        command
    };
    packages.iter().filter(|package| has_loom_models(package)).map(models).collect()
}

/// Packages that loom's unused log needs, and that take longest to build. They are built without optimisation.
const LOOMS_LOG: [&str; 3] = ["regex-automata", "regex-syntax", "tracing-subscriber"];

fn unoptimised(package: &str) -> [String; 2] {
    ["--config".to_owned(), format!("profile.release.package.{package}.opt-level=0")]
}

/// Runs every example of these packages to its end, each against its own server. An example whose required feature the tests do not enable
/// is built separately.
fn run_examples(built: &[Program], packages: &[Value]) -> Result<Tally> {
    let mut tally = Tally::default();
    for (package, example, features) in packages.iter().flat_map(examples) {
        let server = RedisServer::builder().tcp().try_start()?;
        let target = format!("--example {example}");
        let is_it = |program: &&Program| program.package == package && program.target == target;
        let mut command = match built.iter().find(is_it) {
            Some(program) => program.command(),
            None => run::cargo(["run", "--package", package, "--example", example, "--features", &features]),
        };
        command.env("REDIS_URL", server.url()).env("REDIS_ADDR", server.addr().to_string());
        tally += run_each([command]);
    }
    Ok(tally)
}

/// Returns the names of a package and of its examples, and the features that each example needs.
fn examples(package: &Value) -> Vec<(&str, &str, String)> {
    let targets = package["targets"].as_array().into_iter().flatten();
    let examples = targets.filter(|target| target["kind"][0] == "example");
    let needs = |example: &Value| {
        let features = example["required-features"].as_array().into_iter().flatten();
        features.filter_map(Value::as_str).collect::<Vec<_>>().join(",")
    };
    examples.map(|example| (name(package), name(example), needs(example))).collect()
}

fn name(named: &Value) -> &str {
    named["name"].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn only_result_lines_are_counted() {
        let line = "test result: FAILED. 10 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        assert_eq!(result_line(line), Some(Tally { passed: 10, failed: 2 }));
        assert_eq!(result_line("test a::b ... ok"), None);
        assert_eq!(result_line("test result: odd"), None);
    }

    #[test]
    fn run_without_result_counts_failed() {
        for nothing in ["exit 101", "echo 'test result: ok. 0 passed; 0 failed; 0 ignored'"] {
            assert_eq!(run_tests(Command::new("sh").args(["-c", nothing])).unwrap(), Tally::ONE_FAILED);
        }
        let printed = "echo 'test result: FAILED. 3 passed; 1 failed; 0 ignored'; exit 101";
        assert_eq!(
            run_tests(Command::new("sh").args(["-c", printed])).unwrap(),
            Tally { passed: 3, failed: 1 }
        );
    }

    #[test]
    fn parallel_commands_count_like_single_ones() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        assert_eq!(
            run_each_quietly([shell("true"), shell("exit 3"), shell("true")]),
            Tally { passed: 2, failed: 1 }
        );
        assert_eq!(run_each_quietly([Command::new("/there/is/no/such/program")]), Tally::ONE_FAILED);
        let passed = "echo 'test result: ok. 3 passed; 0 failed; 0 ignored'";
        let both =
            [shell(passed), shell("echo 'test result: FAILED. 3 passed; 1 failed; 0 ignored'; exit 101")];
        assert_eq!(run_tests_quietly(both).unwrap(), Tally { passed: 6, failed: 1 });
        assert_eq!(run_tests_quietly([shell("exit 101")]).unwrap(), Tally::ONE_FAILED);
        assert_eq!(run_tests_quietly([shell("echo nothing")]).unwrap(), Tally::ONE_FAILED);
        let (succeeded, printed) = printed_by(&mut shell("echo told; echo complained >&2; exit 1")).unwrap();
        assert!(!succeeded && printed.contains("\ncomplained\ntold\n"), "{printed}");
    }

    #[test]
    fn next_step_waits_for_parallel_lanes() {
        let (both, ran) = (Barrier::new(2), Mutex::new(Vec::new()));
        let step = |name: &'static str| {
            let (both, ran) = (&both, &ran);
            move || {
                // Without two lanes at a time, this would wait for ever.
                both.wait();
                ran.lock().unwrap().push(name);
                ensure!(name != "one", "it fails");
                Ok(Tally::ONE_PASSED)
            }
        };
        let (mut first, mut second, mut steps) = (Lane::default(), Lane::default(), Steps::default());
        first.add("one", step("one"));
        first.add("two", step("two"));
        second.add("three", step("three"));
        second.add("four", step("four"));
        steps.beside([first, second]);
        steps.add("last", || {
            ran.lock().unwrap().push("last");
            Ok(Tally::ONE_PASSED)
        });
        assert_eq!(steps.run(), ExitCode::FAILURE);
        let ran = ran.lock().unwrap();
        assert_eq!((ran.len(), ran[4]), (5, "last"));
    }

    #[test]
    fn panicking_step_is_failure() {
        let mut steps = Steps::default();
        steps.add("panics", || panic!("on purpose"));
        assert_eq!(steps.run(), ExitCode::FAILURE);
    }

    #[test]
    fn crash_or_wrong_test_count_fails() {
        let line = |passed: u64, failed: u64| {
            format!(
                "running tests\ntest result: ok. {passed} passed; {failed} failed; 0 ignored; 0 measured\n"
            )
        };
        assert_eq!(tally_of(&line(3, 0), true, 3), Tally { passed: 3, failed: 0 });
        assert_eq!(tally_of(&line(3, 2), false, 5), Tally { passed: 3, failed: 2 });
        assert_eq!(tally_of(&line(3, 0), false, 3), Tally { passed: 3, failed: 1 }, "it died at its end");
        assert_eq!(tally_of(&line(3, 0), true, 4), Tally { passed: 3, failed: 1 }, "one was run by nobody");
        assert_eq!(tally_of(&line(4, 0), true, 3), Tally { passed: 4, failed: 1 }, "one was run twice");
        assert_eq!(tally_of(&line(0, 0), true, 3), Tally::ONE_FAILED);
        assert_eq!(tally_of("Segmentation fault", false, 3), Tally::ONE_FAILED);
        assert_eq!(tally_of("", true, 3), Tally::ONE_FAILED);
        let ignored = "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured";
        assert_eq!(tally_of(ignored, true, 3), Tally { passed: 2, failed: 0 });
    }

    #[test]
    fn of_several_at_once_everything_counts() {
        let work = |item: &u64| {
            ensure!(*item != 3, "not three");
            Ok(Tally { passed: *item, failed: 0 })
        };
        assert_eq!(several(2, &[1, 2, 3, 4], work), Tally { passed: 7, failed: 1 });
    }

    #[test]
    fn steps_run_in_order_despite_failure() {
        let ran = Mutex::new(Vec::new());
        let mut steps = Steps::default();
        for name in ["one", "two", "three"] {
            let ran = &ran;
            steps.add(name, move || {
                ran.lock().unwrap().push(name);
                ensure!(name != "two", "it fails");
                Ok(Tally::ONE_PASSED)
            });
        }
        assert_eq!(steps.run(), ExitCode::FAILURE);
        assert_eq!(*ran.lock().unwrap(), ["one", "two", "three"]);
    }

    #[test]
    fn examples_list_required_features() {
        let package = serde_json::json!({
            "name": "p",
            "targets": [
                { "kind": ["lib"], "name": "p" },
                { "kind": ["example"], "name": "shown" },
                { "kind": ["example"], "name": "more", "required-features": ["a", "b"] },
            ],
        });
        assert_eq!(examples(&package), [("p", "shown", String::new()), ("p", "more", "a,b".to_owned())]);
    }
}
