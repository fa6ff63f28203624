//! Mutants of the lock layer: small changes that tests must detect.
//!
//! This module has the list of changed files and the table of survivors. [`mod@rust`] and [`lua`] create the mutants; [`judge`] runs the tests
//! for Rust mutants. A survivor without a line in the table fails the command. A line without a survivor is reported.

mod judge;
mod lua;
mod rust;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::planted::scripts::{Judge, Script};
use crate::{planted, run};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Only mutants of files whose paths contain one of these texts
    #[arg(long)]
    file: Vec<String>,
    /// Only the part `k/n` of the mutants, counted from `0/n`
    #[arg(long, value_parser = Shard::parse)]
    shard: Option<Shard>,
    /// Only unit tests, fleets, and the model of the server; a survivor may die in a whole run
    #[arg(long)]
    quick: bool,
    /// Judges of Rust mutants that take longer do not judge
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    longest: u64,
    /// Lists the mutants without judging them
    #[arg(long)]
    list: bool,
}

impl Options {
    fn is_wanted(&self, file: &str) -> bool {
        self.file.is_empty() || self.file.iter().any(|part| file.contains(part.as_str()))
    }

    /// Returns the requested part.
    fn part<T>(&self, all: Vec<T>) -> Vec<T> {
        match self.shard {
            Some(Shard { number, of }) => all.into_iter().skip(number).step_by(of).collect(),
            None => all,
        }
    }
}

/// Every `of`th item, beginning at `number`.
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

/// Files that the judges cover best and that are most intricate. A folder stands for all its files; a file counts once.
const RUST: [&str; 11] = [
    "crates/wheellock/src/table/holds/hand_over.rs",
    "crates/wheellock/src/wait/turns.rs",
    "crates/wheellock/src/wait/wait_queue.rs",
    "crates/wheellock/src/wait/wait_queue",
    "crates/wheellock/src/request/acquire.rs",
    "crates/wheellock/src/request/acquire",
    "crates/wheellock/src/request/hand_over.rs",
    "crates/wheellock/src/table/holds.rs",
    "crates/wheellock/src/table/holds",
    "crates/wheellock/src/request/watchdog.rs",
    "crates/wheellock/src/wire/mod.rs",
];

const SCRIPTS: &str = "crates/wheellock/src/scripts";

/// The survivors, as `name => reason`. The reason says why no test can or should distinguish the mutant from the correct code.
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

/// The results of the mutants.
#[derive(Debug, Default)]
struct Outcome {
    tried: usize,
    /// The files whose mutants were all tried, unless the run is a shard.
    files: BTreeSet<String>,
    survivors: BTreeSet<String>,
}

impl Outcome {
    /// Judges the mutants, `at_once` at a time. `killer` returns the test that fails with a mutant.
    fn judge<T: Sync>(
        &mut self,
        at_once: usize,
        mutants: &[(String, T)],
        killer: impl Fn(&T) -> Result<Option<String>> + Sync,
    ) {
        let survivors = Mutex::new(BTreeSet::new());
        run::several_at_once(at_once, mutants, |(name, mutant)| {
            match killer(mutant) {
                Ok(Some(killer)) => return println!("{killer} <- {name}"),
                Ok(None) => println!("SURVIVED <- {name}"),
                // An unjudged mutant counts as a survivor, because it may be one.
                Err(error) => println!("NOT JUDGED, {error:#} <- {name}"),
            }
            if let Ok(mut survivors) = survivors.lock() {
                survivors.insert(name.clone());
            }
        });
        self.tried += mutants.len();
        self.survivors.extend(survivors.into_inner().unwrap_or_default());
    }
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

/// Judges the mutants of the scripts. All use one build; the test run selects the mutant.
fn scripts(options: &Options, outcome: &mut Outcome) -> Result<()> {
    let mut all = Vec::new();
    let mut files = BTreeMap::new();
    planted::collect(run::root(), Path::new(SCRIPTS), &mut files)?;
    for (path, text) in files {
        let path = path.to_string_lossy().into_owned();
        if !options.is_wanted(&path) {
            continue;
        }
        let name = path.strip_prefix(SCRIPTS).unwrap_or(&path).trim_start_matches('/').to_owned();
        for lua::Mutant { what, text } in lua::mutants(&String::from_utf8(text)?) {
            all.push((format!("{path}: {what}"), Script { name: name.clone(), text }));
        }
        outcome.files.insert(path);
    }
    let all = options.part(all);
    if options.list {
        all.iter().for_each(|(name, _)| println!("{name}"));
        return Ok(());
    }
    if all.is_empty() {
        return Ok(());
    }
    let judge = Judge::of_scripts(all.iter().map(|(_, script)| script), options.quick)?;
    outcome.judge(SCRIPTS_AT_ONCE, &all, |script| judge.killer(script));
    Ok(())
}

/// Number of script mutants judged at once. Their tests mostly wait for their servers.
const SCRIPTS_AT_ONCE: usize = 4;

/// Judges the mutants of the sources. All use one build; the test run selects the mutant.
fn rust(options: &Options, outcome: &mut Outcome) -> Result<()> {
    let mut sources = judge::sources(&RUST)?;
    let is_wanted = |source: &judge::Source| options.is_wanted(&source.path);
    if !sources.iter().any(is_wanted) {
        return Ok(());
    }
    let judges = if options.list {
        None
    } else {
        Some(judge::Judges::build(&mut sources, options.quick, Duration::from_secs(options.longest))?)
    };
    let mutants = sources.iter().filter(|source| is_wanted(source)).flat_map(|source| {
        source.mutants.iter().map(|(number, mutant)| (format!("{}: {}", source.path, mutant.name), *number))
    });
    let mutants = options.part(mutants.collect());
    let Some(judges) = judges else {
        mutants.iter().for_each(|(name, _)| println!("{name}"));
        return Ok(());
    };
    outcome.files.extend(sources.iter().filter(|source| is_wanted(source)).map(|source| source.path.clone()));
    let unreached = mutants.iter().filter(|(_, number)| !judges.reach(*number));
    unreached.for_each(|(name, _)| println!("no judge runs: {name}"));
    outcome.judge(judge::AT_ONCE, &mutants, |number| judges.killer(*number));
    Ok(())
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
    fn shard_is_within_its_number() {
        assert!(Shard::parse("0/4").is_ok_and(|shard| (shard.number, shard.of) == (0, 4)));
        for bad in ["4/4", "1", "a/b", "0/0"] {
            assert!(Shard::parse(bad).is_err(), "{bad:?}");
        }
    }
}
