//! Every check that must pass before a push, in one run with one tally.

use std::io::{BufRead, BufReader, Write as _};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::Value;
use wheellock_tests::RedisServer;

use crate::{fuzz, install, packages, planted, programs, run, tidy};
use programs::{Ended, Program};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Leave out the fuzz targets
    #[arg(long)]
    no_fuzz: bool,
    /// Leave out the loom models
    #[arg(long)]
    no_loom: bool,
    /// Leave out the planted bugs
    #[arg(long)]
    no_planted: bool,
    /// How long each fuzz target runs
    #[arg(long, default_value_t = 6)]
    fuzz_seconds: u64,
}

/// The benchmarks have no tests, and building all the peers takes minutes.
const TESTED: [&str; 4] = ["test", "--workspace", "--exclude", "wheellock-benches"];

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    install::ensure_server()?;
    let shipped = shipped_packages()?;
    let mut report = Report::default();

    report.commands("formatting", [run::cargo(["fmt", "--all", "--check"])]);
    report.step("tidy", || {
        let complaints = tidy::check(run::root())?;
        complaints.iter().for_each(|complaint| println!("{complaint}"));
        Ok(if complaints.is_empty() { Tally::ONE_PASSED } else { Tally::ONE_FAILED })
    });
    report
        .commands("lints", [run::cargo(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])]);
    report.commands("features", shipped.iter().flat_map(feature_combinations));
    report.commands("documentation", documentation(&shipped));
    report.step("packages", || {
        let complaints = packages::complaints(&shipped)?;
        complaints.iter().for_each(|complaint| println!("{complaint}"));
        let complete = if complaints.is_empty() { Tally::ONE_PASSED } else { Tally::ONE_FAILED };
        Ok(complete + run_each([packages::build(&shipped)]))
    });
    report.step("tests", || run_programs(&programs::build(&mut run::cargo(TESTED))?));
    let mut doc_tests = run::cargo(TESTED);
    doc_tests.args(["--doc", "--no-fail-fast"]);
    report.tests("doc tests", [doc_tests]);
    if !options.no_loom {
        report
            .tests("loom models", shipped.iter().filter(|package| has_loom_models(package)).map(loom_models));
    }
    if !options.no_planted {
        report.step("planted bugs", || {
            let bugs = planted::all(run::root())?;
            let failed = u64::try_from(planted::uncaught(&bugs)?.len())?;
            Ok(Tally { passed: u64::try_from(bugs.len())? - failed, failed })
        });
    }
    report.step("examples", || run_examples(&shipped));
    if !options.no_fuzz {
        report.step("fuzz", || {
            let targets = fuzz::targets()?;
            if targets.is_empty() {
                return Ok(Tally::default());
            }
            fuzz::ensure_cargo_fuzz()?;
            fuzz::build()?;
            Ok(several(run::processors(), &targets, |target| {
                run_quietly(target, &mut fuzz::command(target, options.fuzz_seconds)?)
            }))
        });
    }
    Ok(report.finish())
}

/// What has been run so far.
#[derive(Debug, Default)]
struct Report {
    steps: Vec<Step>,
}

#[derive(Debug)]
struct Step {
    name: &'static str,
    took: Duration,
    tally: Tally,
}

impl Report {
    /// Runs commands that pass or fail as a whole.
    fn commands(&mut self, name: &'static str, commands: impl IntoIterator<Item = Command>) {
        self.step(name, || Ok(run_each(commands)));
    }

    /// Runs commands whose output says how many tests passed and failed.
    fn tests(&mut self, name: &'static str, commands: impl IntoIterator<Item = Command>) {
        self.step(name, || {
            let mut sum = Tally::default();
            for mut command in commands {
                sum += run_tests(&mut command)?;
            }
            Ok(sum)
        });
    }

    fn step(&mut self, name: &'static str, body: impl FnOnce() -> Result<Tally>) {
        println!("\n=== {name}");
        let start = Instant::now();
        let tally = body().unwrap_or_else(|error| {
            println!("{error:#}");
            Tally::ONE_FAILED
        });
        let took = start.elapsed();
        println!("=== {name}: {tally}, {:.1} s", took.as_secs_f64());
        self.steps.push(Step { name, took, tally });
    }

    /// Prints the summary; its last line is the sum.
    fn finish(self) -> ExitCode {
        println!("\n{:<16} {:>7} {:>7} {:>9}", "step", "passed", "failed", "seconds");
        let mut sum = Tally::default();
        let mut took = Duration::ZERO;
        for step in &self.steps {
            let Tally { passed, failed } = step.tally;
            println!("{:<16} {passed:>7} {failed:>7} {:>9.1}", step.name, step.took.as_secs_f64());
            sum += step.tally;
            took += step.took;
        }
        println!("{:<16} {:>7} {:>7} {:>9.1}\n", "all", sum.passed, sum.failed, took.as_secs_f64());
        println!("{sum}");
        if sum.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
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

/// Runs every command, also after a failure; each counts once.
fn run_each(commands: impl IntoIterator<Item = Command>) -> Tally {
    let mut tally = Tally::default();
    for mut command in commands {
        println!("$ {}", run::shown(&command));
        tally += match run::run(&mut command) {
            Ok(()) => Tally::ONE_PASSED,
            Err(error) => {
                println!("{error:#}");
                Tally::ONE_FAILED
            }
        };
    }
    tally
}

/// Runs a fuzz target, and shows what it printed (pages of it) only if it failed.
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

/// Runs all test programs, several at a time; what each has printed is shown when it has ended, whole.
fn run_programs(all: &[Program]) -> Result<Tally> {
    ensure!(!all.is_empty(), "cargo has built no test program");
    let folder = run::target_directory().join("test-output");
    // More would compete: each runs as many tests at a time as there are processors.
    Ok(several(run::processors() + 1, all, |program| {
        let start = Instant::now();
        let Ended { succeeded, printed } = program.run(&folder)?;
        let (took, shown) = (start.elapsed().as_secs_f64(), program.shown());
        std::io::stdout().write_all(format!("\n--- {shown}, {took:.1} s{printed}").as_bytes())?;
        Ok(tally_of(&printed, succeeded))
    }))
}

/// What a test program's last words count for. One that died without a result has failed.
fn tally_of(printed: &str, succeeded: bool) -> Tally {
    let mut results = printed.lines().filter_map(result_line).peekable();
    let has_result = results.peek().is_some();
    let mut tally = Tally::default();
    results.for_each(|result| tally += result);
    if tally.failed == 0 && !(succeeded && has_result) {
        tally += Tally::ONE_FAILED;
    }
    tally
}

/// The sum of what becomes of every item, so many at a time. What could not be done counts as failed.
fn several<T: Sync>(at_once: usize, items: &[T], work: impl Fn(&T) -> Result<Tally> + Sync) -> Tally {
    let sum = Mutex::new(Tally::default());
    run::several_at_once(at_once, items, |item| {
        let tally = work(item).unwrap_or_else(|error| {
            println!("{error:#}");
            Tally::ONE_FAILED
        });
        *sum.lock().unwrap_or_else(PoisonError::into_inner) += tally;
    });
    sum.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `cargo test`, shows its output as it comes, and sums its result lines.
fn run_tests(command: &mut Command) -> Result<Tally> {
    println!("$ {}", run::shown(command));
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut tally = Tally::default();
    for line in BufReader::new(child.stdout.take().context("no stdout")?).lines() {
        let line = line?;
        println!("{line}");
        tally += result_line(&line).unwrap_or_default();
    }
    let succeeded = child.wait()?.success();
    // It did not compile, a test process died without a result line, or the filter let no test through.
    if tally.failed == 0 && (!succeeded || tally.passed == 0) {
        tally += Tally::ONE_FAILED;
    }
    Ok(tally)
}

/// Parses `test result: ok. 12 passed; 0 failed; ...`.
pub(crate) fn result_line(line: &str) -> Option<Tally> {
    let counts = line.trim_start().strip_prefix("test result: ")?;
    let count = |what: &str| -> Option<u64> {
        let (before, _) = counts.split_once(what)?;
        before.rsplit(' ').next()?.parse().ok()
    };
    Some(Tally { passed: count(" passed;")?, failed: count(" failed;")? })
}

/// The packages that users get, leaves first as `cargo metadata` lists them.
fn shipped_packages() -> Result<Vec<Value>> {
    let metadata = run::metadata()?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let shipped =
        packages.iter().filter(|package| tidy::is_shipped(package["name"].as_str().unwrap_or_default()));
    Ok(shipped.cloned().collect())
}

/// Lints a package with every set of its features.
fn feature_combinations(package: &Value) -> Vec<Command> {
    let lint = |variant: Vec<String>| {
        let mut command = run::cargo(["clippy", "--package", name(package), "--lib"]);
        command.args(variant).args(["--", "-D", "warnings"]);
        command
    };
    variants(package).into_iter().map(lint).collect()
}

/// Documents every package in the same ways, and all of them as docs.rs does, with marks on what needs a feature. Warnings fail.
fn documentation(packages: &[Value]) -> Vec<Command> {
    let each = packages.iter().flat_map(|package| {
        variants(package).into_iter().map(|variant| {
            let mut command = run::cargo(["doc", "--quiet", "--no-deps", "--package", name(package)]);
            command.args(variant).env("RUSTDOCFLAGS", "-D warnings");
            command
        })
    });
    let mut published = run::cargo(["doc", "--quiet", "--workspace", "--no-deps", "--all-features"]);
    // The marks are a feature of nightly, which docs.rs uses; this lets a stable compiler make them, for our crates alone.
    let crates: Vec<_> = packages.iter().map(|package| name(package).replace('-', "_")).collect();
    published.env("RUSTC_BOOTSTRAP", crates.join(",")).env("RUSTDOCFLAGS", "-D warnings --cfg docsrs");
    each.chain([published]).collect()
}

/// Arguments that choose features: every set of them, the empty one first.
fn variants(package: &Value) -> Vec<Vec<String>> {
    let features = package["features"].as_object().into_iter().flat_map(|features| features.keys());
    let mut sets = vec![Vec::new()];
    for feature in features.filter(|feature| *feature != "default") {
        for place in 0..sets.len() {
            let with_it = [&sets[place][..], &[feature.as_str()]].concat();
            sets.push(with_it);
        }
    }
    let arguments = |set: Vec<&str>| {
        let chosen = (!set.is_empty()).then(|| format!("--features={}", set.join(",")));
        ["--no-default-features".to_owned()].into_iter().chain(chosen).collect()
    };
    sets.into_iter().map(arguments).collect()
}

fn name(package: &Value) -> &str {
    package["name"].as_str().unwrap_or_default()
}

fn has_loom_models(package: &Value) -> bool {
    package["dependencies"].as_array().into_iter().flatten().any(|dependency| dependency["name"] == "loom")
}

/// Runs the tests in modules named `models`, with the primitives swapped for the model checker's.
fn loom_models(package: &Value) -> Command {
    let name = package["name"].as_str().unwrap_or_default();
    // Optimised: a model explores up to millions of interleavings. Default features only: tokio does not build
    // under this flag. Library only: loom is a dependency of its unit tests and of nothing else.
    let mut command = run::cargo(["test", "--release", "--package", name, "--lib"]);
    command.arg("models");
    command.env("RUSTFLAGS", "--cfg loom");
    command.env("CARGO_TARGET_DIR", run::target_directory().join("loom"));
    command
}

/// Runs every example to its end, each against a server of its own.
fn run_examples(packages: &[Value]) -> Result<Tally> {
    let mut tally = Tally::default();
    for package in packages {
        for command in examples(package) {
            let server = RedisServer::builder().tcp().try_start()?;
            tally += run_each([with_server(command, &server)]);
        }
    }
    Ok(tally)
}

fn with_server(mut command: Command, server: &RedisServer) -> Command {
    command.env("REDIS_URL", server.url()).env("REDIS_ADDR", server.addr().to_string());
    command
}

/// One command per example of a package, with the features it needs.
fn examples(package: &Value) -> Vec<Command> {
    let targets = package["targets"].as_array().into_iter().flatten();
    let examples = targets.filter(|target| target["kind"][0] == "example");
    let names = |list: &Value| -> Vec<String> {
        list.as_array().into_iter().flatten().filter_map(|name| name.as_str().map(str::to_owned)).collect()
    };
    let command = |example: &Value| {
        let [package, example_name] =
            [package, example].map(|named| named["name"].as_str().unwrap_or_default());
        let mut command = run::cargo(["run", "--quiet", "--package", package, "--example", example_name]);
        let features = names(&example["required-features"]);
        if !features.is_empty() {
            command.arg("--features").arg(features.join(","));
        }
        command
    };
    examples.map(command).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_counted_and_others_are_not() {
        let line = "test result: FAILED. 10 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        assert_eq!(result_line(line), Some(Tally { passed: 10, failed: 2 }));
        assert_eq!(result_line("test a::b ... ok"), None);
        assert_eq!(result_line("test result: odd"), None);
    }

    #[test]
    fn a_test_run_without_a_result_counts_as_failed() {
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
    fn a_program_that_dies_without_a_result_counts_as_failed_and_one_without_tests_does_not() {
        let line = |passed: u64, failed: u64| {
            format!("running tests\ntest result: ok. {passed} passed; {failed} failed; 0 ignored\n")
        };
        assert_eq!(tally_of(&line(3, 0), true), Tally { passed: 3, failed: 0 });
        assert_eq!(tally_of(&line(0, 0), true), Tally::default());
        assert_eq!(tally_of(&line(3, 2), false), Tally { passed: 3, failed: 2 });
        assert_eq!(tally_of(&line(3, 0), false), Tally { passed: 3, failed: 1 }, "it died at its end");
        assert_eq!(tally_of("Segmentation fault", false), Tally::ONE_FAILED);
        assert_eq!(tally_of("", true), Tally::ONE_FAILED);
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
    fn examples_run_with_the_features_they_need() {
        let target = |kind: &str, name: &str, features: &[&str]| serde_json::json!({ "kind": [kind], "name": name, "required-features": features });
        let package = serde_json::json!({
            "name": "p",
            "targets": [target("lib", "p", &[]), target("example", "plain", &[]), target("example", "framed", &["codec"])],
        });
        let shown: Vec<_> = examples(&package).iter().map(run::shown).collect();
        assert_eq!(shown.len(), 2);
        assert!(shown[0].ends_with("--package p --example plain"));
        assert!(shown[1].ends_with("--package p --example framed --features codec"));
    }

    #[test]
    fn every_set_of_features_is_built() {
        let package = serde_json::json!({ "name": "p", "features": { "default": [], "a": [], "b": [] } });
        let sets: Vec<_> = variants(&package).iter().map(|set| set.join(" ")).collect();
        let with = |set: &str| format!("--no-default-features --features={set}");
        assert_eq!(sets, ["--no-default-features".to_owned(), with("a"), with("b"), with("a,b")]);
        let shown: Vec<_> = feature_combinations(&package).iter().map(run::shown).collect();
        assert!(shown[3].contains("--package p --lib --no-default-features --features=a,b -- "));
        assert_eq!(documentation(&[package]).len(), 4 + 1);
    }
}
