//! Runs of cargo and other programs from the project's root.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};

/// Returns the folder of the workspace's Cargo.toml.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// Returns the folder for build output.
pub(crate) fn target_directory() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(chosen) => root().join(chosen),
        None => root().join("target"),
    }
}

/// Returns `cargo <args>` at the root, with the cargo that runs this program.
pub(crate) fn cargo<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    // Remove the variables about this package. Build scripts, such as ring's, read them. With them, a different caller of cargo would run
    // these scripts again, and rebuild every crate that depends on them.
    let told = std::env::vars_os().map(|(name, _)| name);
    for name in told.filter(|name| is_of_one_package(name)) {
        command.env_remove(name);
    }
    command
}

/// Returns true if cargo sets this variable for programs of one package.
fn is_of_one_package(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(b"CARGO_MANIFEST_") || name.starts_with(b"CARGO_PKG_")
}

/// Returns the same command at the lowest priority, so that other programs get the processors first.
pub(crate) fn patient(command: &Command) -> Command {
    let mut patient = Command::new("nice");
    patient.args(["-n", "19"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => patient.env(name, value),
            None => patient.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        patient.current_dir(folder);
    }
    patient
}

/// Runs a command to its end. Any result but success is an error that shows the command.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", shown(command)))?;
    ensure!(status.success(), "{} failed ({status})", shown(command));
    Ok(())
}

/// Does `work` for every item in order, for `at_once` items at a time.
pub(crate) fn several_at_once<T: Sync>(at_once: usize, items: &[T], work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let take = || items.get(next.fetch_add(1, Ordering::Relaxed));
    std::thread::scope(|threads| {
        for _ in 0..at_once {
            threads.spawn(|| {
                while let Some(item) = take() {
                    work(item);
                }
            });
        }
    });
}

/// Returns the number of processors.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

/// Returns the command as a user would type it.
pub(crate) fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    std::iter::once(program)
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Finds a program on PATH.
pub(crate) fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|candidate| candidate.is_file())
}

/// Returns `cargo metadata --no-deps`: the workspace's own packages.
pub(crate) fn metadata() -> Result<serde_json::Value> {
    let output = cargo(["metadata", "--no-deps", "--format-version", "1"]).output()?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("cargo metadata printed something else than JSON")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::{Barrier, Mutex};

    use super::*;

    /// `cargo test` sets these variables for a test, as `cargo run` does for a program.
    #[test]
    fn nested_cargo_inherits_no_package_variables() {
        let inherited = cargo(["version"]);
        let withheld: Vec<_> = inherited.get_envs().filter(|(_, value)| value.is_none()).collect();
        for name in ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_PKG_VERSION_MAJOR"] {
            assert!(withheld.contains(&(OsStr::new(name), None)), "{name} is inherited: {withheld:?}");
        }
    }

    #[test]
    fn patient_command_keeps_settings() {
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $(nice) $TOLD ${HOME-nowhere} $(pwd)"])
            .env("TOLD", "told")
            .env_remove("HOME");
        let output = patient(command.current_dir("/")).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "19 told nowhere /\n");
    }

    #[test]
    fn items_run_once_in_parallel() {
        let (both, seen) = (Barrier::new(2), Mutex::new(Vec::new()));
        let items: Vec<_> = (0..10).collect();
        several_at_once(2, &items, |item| {
            both.wait();
            seen.lock().unwrap().push(*item);
        });
        let seen = seen.into_inner().unwrap();
        assert_eq!((seen.len(), seen.into_iter().collect::<BTreeSet<_>>()), (10, (0..10).collect()));
        several_at_once(2, &[(); 0], |()| panic!("there is nothing to do"));
    }
}
