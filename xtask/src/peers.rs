//! Libraries that use the same single-instance lock, from their registries.
//!
//! This module fetches them and runs the tests beside them. `cargo xtask test` only uses libraries that are already fetched.

use std::fs;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use wheellock_tests::peers::{LIBRARIES, Library, Program};

use crate::{install, run};

pub(crate) fn run() -> Result<ExitCode> {
    install::ensure_server()?;
    let mut complete = true;
    for library in &LIBRARIES {
        if let Err(error) = fetch(library) {
            println!("{} cannot be had here: {error:#}", library.name);
            complete = false;
        }
    }
    let mut command = run::cargo(["test", "--package", "wheellock-tests", "--test", "it", "--"]);
    run::run(command.args(["peers::", "--show-output"]))?;
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Fetches a missing library, in the version of its manifest.
fn fetch(library: &Library) -> Result<()> {
    if library.is_fetched()? {
        return Ok(());
    }
    if let Some(tool) = library.tools().iter().find(|tool| run::which(tool).is_none()) {
        bail!("{tool} is not on PATH");
    }
    println!("fetching {}", library.name);
    let (sources, folder) = (library.sources(), library.folder()?);
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(&folder)?;
    match library.program {
        Program::Go => {
            let mut go = Command::new("go");
            go.args(["build", "-mod=readonly", "-modcacherw", "-buildvcs=false", "-o"])
                .arg(folder.join("peer"));
            // The caches are disposable too, but they should survive a change of the program.
            let caches = folder.with_file_name("go");
            go.env("GOMODCACHE", caches.join("modules")).env("GOCACHE", caches.join("cache"));
            run::run(go.env("GOTOOLCHAIN", "local").arg(".").current_dir(&sources))?;
        }
        Program::Node(_) => {
            for manifest in library.made_from() {
                fs::copy(sources.join(manifest), folder.join(manifest))?;
            }
            let mut npm = Command::new("npm");
            run::run(npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(&folder))?;
        }
        Program::Python => {
            run::run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
            let mut pip = Command::new(folder.join("bin/python"));
            pip.args(["-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--requirement"]);
            run::run(pip.arg(sources.join("requirements.txt")))?;
        }
        Program::Itself(_) => {}
    }
    library.note_fetched()
}
