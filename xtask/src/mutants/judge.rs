//! Judges of Rust mutants: the tests that reach each mutant.
//!
//! A single build contains all mutants. This module owns the copy of the workspace, the selection of mutants that compile, the order of the
//! judges, and their time limits.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::rust::{self, Mutant, Mutated};
use crate::planted;
use crate::programs::{self, Program};
use crate::run;

/// A file of the library with its mutants and their numbers.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) path: String,
    text: String,
    pub(crate) mutants: Vec<(usize, Mutant)>,
}

/// Reads the files in order, without test modules. The numbers count through all files.
pub(crate) fn sources(parts: &[&str]) -> Result<Vec<Source>> {
    let (mut sources, mut number) = (Vec::new(), 0);
    for part in parts {
        let mut files = BTreeMap::new();
        planted::collect(run::root(), Path::new(part), &mut files)?;
        for (path, text) in files {
            if sources.iter().any(|source: &Source| Path::new(&source.path) == path) {
                continue;
            }
            let (path, text) = (path.to_string_lossy().into_owned(), String::from_utf8(text)?);
            let mutants = rust::mutants(&text).with_context(|| path.clone())?;
            let mutants: Vec<_> = (number..).zip(mutants).collect();
            number += mutants.len();
            sources.push(Source { path, text, mutants });
        }
    }
    let mut tests = Vec::new();
    for source in &sources {
        let folder = source.path.trim_end_matches(".rs");
        tests.extend(rust::test_modules(&source.text)?.iter().map(|module| format!("{folder}/{module}")));
    }
    let is_test = |path: &str| {
        tests
            .iter()
            .any(|test| path.strip_prefix(test.as_str()).is_some_and(|rest| rest.starts_with(['.', '/'])))
    };
    sources.retain(|source| !is_test(&source.path));
    Ok(sources)
}

/// A test of the library, a run of simulated fleets, or a module of tests with real servers.
#[derive(Debug)]
struct Judge {
    name: String,
    program: Arc<Program>,
    options: [&'static str; 2],
    /// The names of the tests, or the number of seeds.
    chosen: Vec<String>,
    took: Duration,
    /// The mutants whose code the judge runs.
    reached: BTreeSet<usize>,
}

/// All judges, in the order in which they judge.
#[derive(Debug)]
pub(crate) struct Judges(Vec<Judge>);

impl Judges {
    /// Builds the judges with all mutants that compile, and runs each judge without a mutant. Mutants that do not compile are removed from
    /// `sources`. A judge that takes more than `longest` does not judge. `is_quick` leaves out virtual time and real servers.
    pub(crate) fn build(sources: &mut [Source], is_quick: bool, longest: Duration) -> Result<Self> {
        lay_out_compiling(sources)?;
        // One command, so that no crate is built twice.
        let command = ["test", "-p", "wheellock", "-p", "wheellock-tests", "--lib", "--test", "it"];
        let mut command = cargo(command);
        let built =
            programs::build(command.args(["--features", "wheellock/testing,wheellock-tests/simulation"]))?;
        let programs: Vec<Arc<Program>> = built.tests.into_iter().map(Arc::new).collect();
        let program = |package: &str, target: &str| {
            let program =
                programs.iter().find(|program| (&*program.package, &*program.target) == (package, target));
            program.cloned().with_context(|| format!("cargo built no {package} {target}"))
        };
        let servers = program("wheellock-tests", "it")?;
        let simulate = Arc::new(servers.binary("simulate").context("cargo built no simulate")?);
        let fleets = |seeds: &&str| {
            let options = ["--until-found", "--seeds"];
            Judge::new(format!("{seeds} fleets"), &simulate, options, vec![(*seeds).to_owned()])
        };
        let [few, more @ ..] = FLEETS;
        // A few fleets find most mutants within a second.
        let mut all = learnt(vec![fleets(&few)], longest)?;
        // Then unit tests, tests in virtual time, more fleets, and real servers.
        for target in if is_quick { &["--lib"][..] } else { &["--lib", "it"] } {
            let program = program("wheellock", target)?;
            let options = ["--test-threads=1", "--exact"];
            let judge = |test: String| Judge::new(format!("{target} {test}"), &program, options, vec![test]);
            all.append(&mut learnt(program.tests()?.into_iter().map(judge).collect(), longest)?);
        }
        all.append(&mut learnt(more.iter().map(fleets).collect(), longest)?);
        if !is_quick {
            let modules = programs::grouped(&servers, servers.tests()?);
            let modules =
                modules.iter().filter(|module| !FOREIGN.iter().any(|name| module.name().starts_with(name)));
            let judge = |module: &programs::Group<'_>| {
                Judge::new(module.shown(), &servers, ["--test-threads=8", "--exact"], module.tests.clone())
            };
            all.append(&mut learnt(modules.map(judge).collect(), longest)?);
        }
        Ok(Self(all))
    }

    /// Runs the judges that reach a mutant, one portion after the other. Returns the first portion in which a judge fails.
    pub(crate) fn killer(&self, number: usize) -> Result<Option<String>> {
        let reaching: Vec<&Judge> = self.0.iter().filter(|judge| judge.reached.contains(&number)).collect();
        for portion in portions(&reaching) {
            let names: Vec<&str> = portion.iter().map(|judge| judge.name.as_str()).collect();
            let took: Duration = portion.iter().map(|judge| judge.took).sum();
            match passes(portion, "WHEELLOCK_MUTANT", &number.to_string(), took * 10 + PATIENCE)? {
                Some(true) => {}
                Some(false) => return Ok(Some(names.join(", "))),
                None => return Ok(Some(format!("{} hangs", names.join(", ")))),
            }
        }
        Ok(None)
    }

    /// Returns true if a judge runs the code of a mutant.
    pub(crate) fn reach(&self, number: usize) -> bool {
        self.0.iter().any(|judge| judge.reached.contains(&number))
    }
}

/// Divides judges into portions that run in one process each. A process per test would cost more than most tests.
fn portions<'a>(judges: &'a [&'a Judge]) -> Vec<&'a [&'a Judge]> {
    let (mut portions, mut rest) = (Vec::new(), judges);
    while let Some(first) = rest.first() {
        let mut took = Duration::ZERO;
        let fits = |judge: &&&Judge| {
            took += judge.took;
            Arc::ptr_eq(&judge.program, &first.program) && took <= PORTION
        };
        let (portion, other) = rest.split_at(rest.iter().take_while(fits).count().max(1));
        portions.push(portion);
        rest = other;
    }
    portions
}

/// Runs each judge without a mutant, for at most `limit`. Returns the judges sorted by speed, the fastest first.
fn learnt(judges: Vec<Judge>, limit: Duration) -> Result<Vec<Judge>> {
    let judges: Vec<Mutex<Result<Judge>>> = judges.into_iter().map(|judge| Mutex::new(Ok(judge))).collect();
    run::several_at_once(AT_ONCE, &judges, |judge| {
        if let Ok(mut judge) = judge.lock()
            && let Ok(learning) = &mut *judge
            && let Err(error) = learning.learn(limit)
        {
            *judge = Err(error);
        }
    });
    let judges =
        judges.into_iter().map(|judge| judge.into_inner().unwrap_or_else(|_| bail!("a judge panicked")));
    let mut judges = judges.collect::<Result<Vec<_>>>()?;
    judges.sort_by_key(|judge| judge.took);
    Ok(judges)
}

impl Judge {
    fn new(name: String, program: &Arc<Program>, options: [&'static str; 2], chosen: Vec<String>) -> Self {
        Self {
            name,
            program: Arc::clone(program),
            options,
            chosen,
            took: Duration::ZERO,
            reached: BTreeSet::new(),
        }
    }

    /// Runs the judge without a mutant, and records the mutants that it reaches. A test that exceeds `limit` does not judge.
    fn learn(&mut self, limit: Duration) -> Result<()> {
        let file = target().join(format!("reached-{}", self.name.replace(['/', ':', ' '], "-")));
        fs::write(&file, "")?;
        let start = Instant::now();
        match passes(&[self], "WHEELLOCK_REACHED", &file.to_string_lossy(), limit)? {
            Some(true) => {
                self.reached =
                    fs::read_to_string(&file)?.lines().map(str::parse).collect::<Result<_, _>>()?;
            }
            Some(false) => println!("{} fails without a mutant and does not judge", self.name),
            None => println!("{} takes more than {limit:?} and does not judge", self.name),
        }
        self.took = start.elapsed();
        fs::remove_file(&file)?;
        Ok(())
    }
}

/// Returns true if these judges, which are one program, pass with this variable. Returns `None` if they do not end in time.
fn passes(judges: &[&Judge], variable: &str, value: &str, limit: Duration) -> Result<Option<bool>> {
    let first = judges.first().context("a portion has a judge")?;
    // Limit the memory, because a mutant may allocate without end.
    let mut limited = first.program.command_in_shell("ulimit -v 16000000");
    limited.args(first.options).args(judges.iter().flat_map(|judge| &judge.chosen));
    limited.env(variable, value).env("RUST_BACKTRACE", "0").env("CARGO_TARGET_DIR", target());
    // Only the failure itself counts, so proptest must neither shrink nor store it.
    limited.env("PROPTEST_MAX_SHRINK_ITERS", "0").env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true");
    let mut child = limited.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status.success()));
        }
        if start.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Writes the workspace with all mutants, and removes from `sources` the mutants that do not compile.
fn lay_out_compiling(sources: &mut [Source]) -> Result<()> {
    let (mut files, checked) = (BTreeMap::new(), target().join("checked"));
    for part in planted::PARTS {
        planted::collect(run::root(), Path::new(part), &mut files)?;
    }
    let library = files.get_mut(Path::new(LIBRARY)).context("there is no library")?;
    // Mutants violate many lints.
    *library = [b"#![allow(warnings)]\n", library.as_slice(), QUESTION.as_bytes()].concat();
    let manifest = files.get_mut(Path::new("Cargo.toml")).context("there is no manifest")?;
    let slow = "[profile.test.package.wheellock-tests]\nopt-level = 0";
    *manifest = String::from_utf8(std::mem::take(manifest))?.replace(slow, "").into_bytes();
    loop {
        let mut mutated = BTreeMap::new();
        for source in &*sources {
            let numbered: Vec<_> = source.mutants.iter().map(|(number, mutant)| (*number, mutant)).collect();
            let new = rust::with_mutants(&source.text, &numbered, "crate::mutant::is({})");
            files.insert(source.path.clone().into(), new.text.clone().into_bytes());
            mutated.insert(source.path.clone(), new);
        }
        // Check in a folder of its own. The build folder then changes only if the set of compiling mutants changes.
        planted::write_where_different(&checked, &files)?;
        let features = "testing,tls,tracing,metrics";
        let mut check = cargo(["check", "-p", "wheellock", "--features", features, "--message-format=json"]);
        let output = check.current_dir(&checked).stderr(Stdio::null()).output()?;
        if output.status.success() {
            return planted::write_where_different(&copy(), &files);
        }
        let messages = String::from_utf8(output.stdout)?;
        let bad = messages.lines().map(|line| uncompiled(line, &mutated)).collect::<Result<Vec<_>>>()?;
        let bad: BTreeSet<usize> = bad.into_iter().flatten().collect();
        ensure!(!bad.is_empty(), "the mutated copy does not compile, and no mutant is to blame");
        for source in &mut *sources {
            source.mutants.retain(|(number, _)| !bad.contains(number));
        }
    }
}

/// Returns the mutant that caused a compiler message, if the message is an error.
fn uncompiled(line: &str, mutated: &BTreeMap<String, Mutated>) -> Result<Option<usize>> {
    let message: Value = serde_json::from_str(line)?;
    let message = &message["message"];
    if message["level"] != "error" {
        return Ok(None);
    }
    let spans = message["spans"].as_array().map(Vec::as_slice).unwrap_or_default();
    let (first, rest): (Vec<_>, Vec<_>) = spans.iter().partition(|span| span["is_primary"] == true);
    let mutant = first.iter().chain(&rest).find_map(|span| {
        let start = usize::try_from(span["byte_start"].as_u64()?).ok()?;
        mutated.get(span["file_name"].as_str()?)?.mutant_at(start)
    });
    // An error without a place is the final count of errors.
    ensure!(mutant.is_some() || spans.is_empty(), "not a mutant's: {}", message["rendered"]);
    Ok(mutant)
}

/// Returns a cargo command in the copy.
fn cargo<const N: usize>(arguments: [&str; N]) -> Command {
    let mut command = run::cargo(arguments);
    command.current_dir(copy()).env("CARGO_TARGET_DIR", target());
    command
}

fn target() -> PathBuf {
    run::target_directory().join("mutants")
}

fn copy() -> PathBuf {
    target().join("tree")
}

pub(crate) const AT_ONCE: usize = 2;

/// Numbers of seeds. A run with more seeds judges only the mutants that pass fewer seeds.
const FLEETS: [&str; 3] = ["50", "500", "5000"];

/// Extra time, added to ten times the duration without a mutant.
const PATIENCE: Duration = Duration::from_secs(5);

/// Modules of tests with real servers that judge no mutant: they need foreign programs, or test the support library.
const FOREIGN: [&str; 4] = ["interop", "peers", "server_support", "codec_real_server"];

/// The total duration of the judges in one process, without a mutant.
const PORTION: Duration = Duration::from_secs(1);

const LIBRARY: &str = "crates/wheellock/src/lib.rs";

/// The function that each mutant calls. If it has no list of reached mutants to write, it is a single comparison.
const QUESTION: &str = r#"
mod mutant {
    use std::fs::File;
    use std::io::Write as _;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

    const UNKNOWN: usize = usize::MAX;
    const NONE: usize = usize::MAX - 1;
    static CHOSEN: AtomicUsize = AtomicUsize::new(UNKNOWN);
    static IS_REACHED: [AtomicBool; 16384] = [const { AtomicBool::new(false) }; 16384];
    static REACHED: LazyLock<Option<File>> =
        LazyLock::new(|| File::options().append(true).open(std::env::var_os("WHEELLOCK_REACHED")?).ok());

    #[inline(always)]
    pub(crate) fn is(number: usize) -> bool {
        let chosen = CHOSEN.load(Relaxed);
        chosen == number || (chosen == UNKNOWN && learn(number))
    }

    #[cold]
    #[inline(never)]
    fn learn(number: usize) -> bool {
        if let Some(mut file) = REACHED.as_ref() {
            if !IS_REACHED[number].swap(true, Relaxed) {
                let _ = file.write_all(format!("{number}\n").as_bytes());
            }
            return false;
        }
        let chosen = std::env::var("WHEELLOCK_MUTANT").ok().and_then(|chosen| chosen.parse().ok());
        CHOSEN.store(chosen.unwrap_or(NONE), Relaxed);
        chosen == Some(number)
    }
}
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_of_tests_have_no_mutants() {
        let sources =
            sources(&["crates/wheellock/src/table/holds.rs", "crates/wheellock/src/table/holds"]).unwrap();
        let has = |part: &str| sources.iter().any(|source| source.path.contains(part));
        assert!(has("table/holds.rs") && has("holds/hand_over.rs") && !has("/model"));
        let numbers: BTreeSet<usize> =
            sources.iter().flat_map(|source| &source.mutants).map(|(number, _)| *number).collect();
        assert_eq!(numbers.len(), sources.iter().map(|source| source.mutants.len()).sum::<usize>());
    }

    #[test]
    fn error_removes_its_mutant() {
        let text = "fn f() -> bool { a }";
        let mutants = rust::mutants(text).unwrap();
        let numbered: Vec<_> = (5..).zip(&mutants).collect();
        let mutated = rust::with_mutants(text, &numbered, "m({})");
        let start = mutated.text.find("return false").unwrap();
        let mutated = BTreeMap::from([("a.rs".to_owned(), mutated)]);
        let message = |level: &str, start: usize| {
            let span = serde_json::json!({ "is_primary": true, "file_name": "a.rs", "byte_start": start });
            serde_json::json!({ "message": { "level": level, "spans": [span] } }).to_string()
        };
        assert_eq!(uncompiled(&message("error", start), &mutated).unwrap(), Some(6));
        assert_eq!(uncompiled(&message("warning", start), &mutated).unwrap(), None);
        assert!(uncompiled(&message("error", 0), &mutated).is_err(), "no mutant is there");
    }
}
