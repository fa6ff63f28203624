//! Mutants of the lock layer: small changes, each of which has to make a test fail. Owns which files are changed, who judges, and the
//! table of those that survive. What a mutant of Rust is, `cargo-mutants` says; what one of a script is, [`lua`].
//!
//! A survivor without a line in the table fails the command. A line without a survivor is told.

pub(crate) mod lua;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::sync::Mutex;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::planted::{self, Script};
use crate::run;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Only mutants of files whose paths contain one of these
    #[arg(long)]
    file: Vec<String>,
    /// Only the part `k/n` of them, from `0/n` on
    #[arg(long, value_parser = Shard::parse)]
    shard: Option<Shard>,
    /// Lists them, and runs nothing
    #[arg(long)]
    list: bool,
}

/// Every `of`th, from `number` on.
#[derive(Clone, Copy, Debug)]
struct Shard {
    number: usize,
    of: usize,
}

impl Shard {
    fn parse(text: &str) -> Result<Self> {
        let (number, of) = text.split_once('/').context("a shard is k/n")?;
        let (number, of): (usize, usize) = (number.parse()?, of.parse()?);
        ensure!(number < of, "the last shard of {of} is {}/{of}", of.saturating_sub(1));
        Ok(Self { number, of })
    }
}

/// What the judges judge best, and what is most intricate.
const RUST: [&str; 10] = [
    "crates/wheellock/src/hand_over.rs",
    "crates/wheellock/src/holds.rs",
    "crates/wheellock/src/holds/*.rs",
    "crates/wheellock/src/wait_queue.rs",
    "crates/wheellock/src/wait_queue/*.rs",
    "crates/wheellock/src/turns.rs",
    "crates/wheellock/src/acquire.rs",
    "crates/wheellock/src/acquire/*.rs",
    "crates/wheellock/src/watchdog.rs",
    "crates/wheellock/src/wire.rs",
];

const SCRIPTS: &str = "crates/wheellock/src/scripts";

/// Survivors, each with the reason why no test can or should tell it from the right code: `name => reason`.
const TABLE: &str = "tests/mutants.txt";

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let table = Table::read(&fs::read_to_string(run::root().join(TABLE)).unwrap_or_default())?;
    let mut outcome = Outcome::default();
    scripts(options, &mut outcome)?;
    rust(options, &mut outcome)?;
    if options.list {
        return Ok(ExitCode::SUCCESS);
    }
    println!("{} mutants, {} of them survived", outcome.tried, outcome.survivors.len());
    let unexplained: Vec<_> = outcome.survivors.iter().filter(|name| !table.0.contains_key(*name)).collect();
    unexplained.iter().for_each(|name| println!("SURVIVED, and {TABLE} has no line for it: {name}"));
    let is_all = options.file.is_empty();
    let was_tried =
        |name: &String| is_all || outcome.files.iter().any(|file| name.starts_with(&format!("{file}: ")));
    if options.shard.is_none() {
        let old = table.0.keys().filter(|name| was_tried(name) && !outcome.survivors.contains(*name));
        old.for_each(|name| println!("{TABLE} has a line that is not needed any more: {name}"));
    }
    Ok(if unexplained.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What became of the mutants.
#[derive(Debug, Default)]
struct Outcome {
    tried: usize,
    /// The files of which all mutants were tried, if there are no shards.
    files: BTreeSet<String>,
    survivors: BTreeSet<String>,
}

/// The reasons by mutant.
#[derive(Debug)]
struct Table(BTreeMap<String, String>);

impl Table {
    fn read(text: &str) -> Result<Self> {
        let mut reasons = BTreeMap::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (name, reason) =
                line.split_once(" => ").with_context(|| format!("{TABLE}: {line:?} has no reason"))?;
            ensure!(reason.len() > 10, "{TABLE}: {name} has no reason");
            ensure!(
                reasons.insert(name.to_owned(), reason.to_owned()).is_none(),
                "{TABLE}: {name} is there twice"
            );
        }
        Ok(Self(reasons))
    }
}

/// Runs the mutants of the scripts: one build, and each mutant is chosen when the tests run.
fn scripts(options: &Options, outcome: &mut Outcome) -> Result<()> {
    let mut all = Vec::new();
    let mut files = BTreeMap::new();
    planted::collect(run::root(), Path::new(SCRIPTS), &mut files)?;
    for (path, text) in files {
        let path = path.to_string_lossy().into_owned();
        if !options.file.is_empty() && !options.file.iter().any(|part| path.contains(part.as_str())) {
            continue;
        }
        let name = path.strip_prefix(SCRIPTS).unwrap_or(&path).trim_start_matches('/').to_owned();
        for lua::Mutant { what, text } in lua::mutants(&String::from_utf8(text)?) {
            all.push((format!("{path}: {what}"), Script { name: name.clone(), text }));
        }
        outcome.files.insert(path);
    }
    if let Some(Shard { number, of }) = options.shard {
        all = all.into_iter().skip(number).step_by(of).collect();
    }
    if options.list {
        all.iter().for_each(|(name, _)| println!("{name}"));
        return Ok(());
    }
    if all.is_empty() {
        return Ok(());
    }
    let judge = planted::Judge::of_scripts(all.iter().map(|(_, script)| script))?;
    let survivors = Mutex::new(BTreeSet::new());
    run::several_at_once(SCRIPTS_AT_ONCE, &all, |(name, script)| {
        let killer = judge.killer(script).unwrap_or_else(|error| Some(format!("{error:#}")));
        println!("{} {name}", killer.as_deref().unwrap_or("SURVIVED"));
        if killer.is_none()
            && let Ok(mut survivors) = survivors.lock()
        {
            survivors.insert(name.clone());
        }
    });
    outcome.tried += all.len();
    outcome.survivors.extend(survivors.into_inner().unwrap_or_default());
    Ok(())
}

/// The tests of scripts mostly wait for their servers.
const SCRIPTS_AT_ONCE: usize = 4;

/// Runs the mutants of the sources: `cargo-mutants` builds the tests for each.
fn rust(options: &Options, outcome: &mut Outcome) -> Result<()> {
    let is_wanted =
        |file: &&str| options.file.is_empty() || options.file.iter().any(|part| file.contains(part.as_str()));
    let files: Vec<&str> = RUST.into_iter().filter(is_wanted).collect();
    if files.is_empty() {
        return Ok(());
    }
    ensure_cargo_mutants()?;
    let output = run::target_directory().join("mutants");
    let mut command =
        run::cargo(["mutants", "--package", "wheellock", "--no-shuffle", "--colors", "never", "--output"]);
    command.arg(&output);
    command.args(files.iter().flat_map(|file| ["--file", file]));
    if let Some(Shard { number, of }) = options.shard {
        command.args(["--shard", &format!("{number}/{of}")]);
    }
    if options.list {
        return run::run(command.arg("--list"));
    }
    // Unit tests and virtual time first; then ten thousand simulated fleets.
    command.args([
        "--test-package",
        "wheellock,wheellock-tests",
        "--features",
        "testing",
        "--timeout",
        "300",
    ]);
    command.args(["--", "--lib", "--test", "it", "--", "--skip", "campaigns::"]);
    command.args(JUDGES);
    let status = command.status().with_context(|| format!("cannot start {}", run::shown(&command)))?;
    // 2 is a mutant that was missed, 3 one that hung.
    if !matches!(status.code(), Some(0 | 2 | 3)) {
        bail!("{} failed ({status})", run::shown(&command));
    }
    let listed = |name: &str| fs::read_to_string(output.join("mutants.out").join(name)).unwrap_or_default();
    outcome.survivors.extend(listed("missed.txt").lines().map(without_place));
    outcome.tried += ["missed.txt", "caught.txt", "timeout.txt"]
        .iter()
        .map(|name| listed(name).lines().count())
        .sum::<usize>();
    outcome.files.extend(files.iter().filter(|file| !file.contains('*')).map(|file| (*file).to_owned()));
    Ok(())
}

/// Parts of the paths of the tests that judge: all of the library's own, and the fleets.
const JUDGES: [&str; 14] = [
    "holds::",
    "hand_over::",
    "turns::",
    "wait_queue::",
    "watchdog::",
    "lease::",
    "wire::",
    "virtual_time::",
    "waiting::",
    "losses::",
    "lost_answers::",
    "refusals::",
    "double::",
    "simulation::fleets_of_every_kind",
];

/// `file.rs:12:5: what` without the line and the column, which other changes move.
fn without_place(line: &str) -> String {
    let mut parts = line.splitn(4, ':');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(file), Some(_), Some(_), Some(what)) => format!("{file}:{what}"),
        _ => line.to_owned(),
    }
}

/// Installs cargo-mutants unless it is there.
fn ensure_cargo_mutants() -> Result<()> {
    let mut asked = run::cargo(["mutants", "--version"]);
    if asked.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        return Ok(());
    }
    // It starts other programs: making it fast takes longer than it ever saves.
    let mut install = run::cargo(["install", "cargo-mutants", "--locked", "--debug"]);
    println!("Found no cargo-mutants: installing it.\n$ {}", run::shown(&install));
    run::run(&mut install)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_one_reason_each() {
        let table = Table::read("# Survivors\n\na.lua: `x`: gone => the next line does the same\n").unwrap();
        assert_eq!(table.0["a.lua: `x`: gone"], "the next line does the same");
        for bad in ["a.lua: gone", "a.lua: gone => why", "a => a long reason\na => a long reason"] {
            assert!(Table::read(bad).is_err(), "{bad:?}");
        }
        Table::read(&fs::read_to_string(run::root().join(TABLE)).unwrap()).unwrap();
    }

    #[test]
    fn name_has_no_line_number() {
        let line = "crates/wheellock/src/turns.rs:120:9: replace < with <= in Turns::share_of";
        assert_eq!(
            without_place(line),
            "crates/wheellock/src/turns.rs: replace < with <= in Turns::share_of"
        );
    }

    #[test]
    fn shard_is_within_its_number() {
        assert!(Shard::parse("0/4").is_ok_and(|shard| (shard.number, shard.of) == (0, 4)));
        for bad in ["4/4", "1", "a/b", "0/0"] {
            assert!(Shard::parse(bad).is_err(), "{bad:?}");
        }
    }
}
