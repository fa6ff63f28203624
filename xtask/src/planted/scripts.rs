//! Judges of changed scripts.
//!
//! The judges are tests that run with a script from a file. They run in the copy of the workspace with the planted bugs, so a single build
//! serves all changes.

use std::collections::BTreeSet;
use std::fs;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{all, command, copy, lay_out, target};
use crate::programs::{self, Built, Group};
use crate::run;

/// A script by its path below the folder of all scripts, and its changed text.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) name: String,
    pub(crate) text: String,
}

/// The built tests.
#[derive(Debug)]
pub(crate) struct Judge {
    built: Built,
    /// Only the model of the server judges.
    is_quick: bool,
    number: AtomicU64,
}

/// The modules that judge the scripts of a folder, the fastest first. Before them, the model of the server judges all scripts.
const MODULES: [(&str, &[&str]); 10] = [
    ("election/", &["election"]),
    ("fair/", &["fair"]),
    ("fenced/", &["fenced"]),
    ("latch/", &["semaphores"]),
    ("permit/", &["semaphores", "together"]),
    ("read/", &["read_write", "together", "moving_slots"]),
    ("read_write/", &["read_write", "moving_slots"]),
    ("semaphore/", &["semaphores"]),
    ("simple/", &["simple", "together"]),
    ("write/", &["read_write", "moving_slots"]),
];

/// The modules for scripts outside of folders.
const OTHERS: [&str; 7] =
    ["locks", "demo_properties", "other_data", "multi_lock", "together", "holders", "faults_locks"];

impl Judge {
    /// Builds the tests, and checks that the judges of these scripts pass with the unchanged scripts.
    pub(crate) fn of_scripts<'a>(
        scripts: impl IntoIterator<Item = &'a Script>,
        is_quick: bool,
    ) -> Result<Self> {
        lay_out(run::root(), &copy(), &all(run::root())?)?;
        let mut build = command(["test", "--quiet"]);
        // With the service, foreign packages get the same features as in `cargo xtask planted`.
        build.args(["--package", "wheellock-tests", "--package", "wheellock-service", "--test", "it"]);
        let judge = Self { built: programs::build(&mut build)?, is_quick, number: AtomicU64::new(0) };
        let folder = |script: &'a Script| script.name.find('/').and_then(|at| script.name.get(..=at));
        let folders: BTreeSet<&str> =
            scripts.into_iter().map(|script| folder(script).unwrap_or_default()).collect();
        for folder in folders {
            let killer = judge.run(folder, None)?;
            ensure!(killer.is_none(), "the tests fail without a change: {killer:?}");
        }
        Ok(judge)
    }

    /// Returns the module of tests that fails with this script, or `None` if all pass.
    pub(crate) fn killer(&self, script: &Script) -> Result<Option<String>> {
        let file = target().join(format!("script-{}.lua", self.number.fetch_add(1, Ordering::Relaxed)));
        fs::write(&file, &script.text).with_context(|| format!("cannot write {}", file.display()))?;
        let killer = self.run(&script.name, Some(&format!("{}={}", script.name, file.display())));
        fs::remove_file(&file)?;
        killer
    }

    fn run(&self, script: &str, chosen: Option<&str>) -> Result<Option<String>> {
        let groups = programs::groups(&self.built.tests)?;
        let modules =
            MODULES.iter().find(|(folder, _)| script.starts_with(folder)).map_or(&OTHERS[..], |(_, of)| *of);
        let modules = if self.is_quick { &[] } else { modules };
        for module in ["model_server"].iter().chain(modules) {
            let group =
                groups.iter().find(|group| group.package() == "wheellock-tests" && group.name() == *module);
            if !passes(group.with_context(|| format!("there is no module {module}"))?, chosen)? {
                return Ok(Some((*module).to_owned()));
            }
        }
        Ok(None)
    }
}

/// Returns true if all tests of the group pass in time.
fn passes(group: &Group<'_>, chosen: Option<&str>) -> Result<bool> {
    let mut tests = group.command();
    tests.env("RUST_BACKTRACE", "0").env("CARGO_TARGET_DIR", target());
    tests.envs(chosen.map(|chosen| ("WHEELLOCK_SCRIPT", chosen)));
    let mut child = tests.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        if start.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The time limit of a module, far above any real duration, also with four modules at once.
const PATIENCE: Duration = Duration::from_secs(180);
