//! Packages as uploaded to the registry.
//!
//! Each package must be complete and build on its own. This module has the list of required files. It does not upload.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{files, run};

/// Returns the shipped packages, leaves first as `cargo metadata` lists them.
pub(crate) fn shipped() -> Result<Vec<Value>> {
    let metadata = run::metadata()?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    Ok(packages.iter().filter(|package| files::is_shipped(name(package))).cloned().collect())
}

/// Returns complaints about these packages, as `cargo metadata` describes them.
pub(crate) fn complaints(packages: &[Value]) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for package in packages {
        let files = files(name(package))?;
        complaints.extend(lacking(package, &files));
    }
    Ok(complaints)
}

/// Packs all packages and builds each from its packed files, against the other packed packages. Cargo identifies unpacked and built
/// packages by name and version. This function therefore removes the files of earlier runs first, or cargo would reuse them.
pub(crate) fn build(packages: &[Value]) -> Result<Command> {
    let target = run::target_directory().join("packages");
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    for left in unpacked(&home.unwrap_or_default().join("registry/src"), packages).chain([target.clone()]) {
        if left.exists() {
            fs::remove_dir_all(&left).with_context(|| format!("cannot remove {}", left.display()))?;
        }
    }
    let mut command = run::cargo(["package", "--quiet", "--allow-dirty", "--target-dir"]);
    // The packages are only built, not run, so debug information is useless.
    command.arg(target).env("CARGO_PROFILE_DEV_DEBUG", "0");
    for package in packages {
        command.args(["--package", name(package)]);
    }
    Ok(command)
}

/// Returns the folders into which cargo unpacks these packages. Only registries that are local folders count; their names begin with a
/// hyphen because they have no host.
fn unpacked<'a>(sources: &Path, packages: &'a [Value]) -> impl Iterator<Item = PathBuf> + use<'a> {
    let registries = fs::read_dir(sources).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_folder =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"-"));
    let folder =
        |package: &Value| format!("{}-{}", name(package), package["version"].as_str().unwrap_or_default());
    registries
        .filter(is_folder)
        .flat_map(move |registry| packages.iter().map(move |package| registry.join(folder(package))))
}

fn name(package: &Value) -> &str {
    package["name"].as_str().unwrap_or_default()
}

fn files(package: &str) -> Result<BTreeSet<String>> {
    let output =
        run::cargo(["package", "--quiet", "--list", "--allow-dirty", "--package", package]).output()?;
    ensure!(output.status.success(), "cargo package: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.lines().map(|path| path.replace('\\', "/")).collect())
}

/// Returns the files that users would miss in a package with these files.
fn lacking(package: &Value, files: &BTreeSet<String>) -> Vec<String> {
    let name = name(package);
    let mut wanted = vec!["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"];
    if name == "wheellock" {
        wanted.extend(["docs/guide.md", "src/scripts/acquire.lua"]);
    }
    let absent = wanted.into_iter().filter(|path| !files.contains(*path));
    let mut complaints: Vec<_> = absent.map(|path| format!("{name}: {path} is not packed")).collect();
    let documentation = format!("https://docs.rs/{name}");
    let told = [
        ("documentation", package["documentation"] == *documentation),
        ("readme", package["readme"] == "README.md"),
        ("repository", package["repository"].is_string()),
        ("description", package["description"].is_string()),
        ("license", package["license"] == "MIT OR Apache-2.0"),
        ("keywords", package["keywords"].as_array().is_some_and(|words| words.len() == 5)),
        ("categories", package["categories"].as_array().is_some_and(|names| !names.is_empty())),
        ("package.metadata.docs.rs", package["metadata"]["docs"]["rs"]["all-features"] == true),
    ];
    let untold = told.into_iter().filter(|(_, is_told)| !is_told);
    complaints.extend(untold.map(|(field, _)| format!("{name}: `{field}` is not what it should be")));
    complaints
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_missing_is_found() {
        let complete = json!({
            "name": "wheellock-resp", "documentation": "https://docs.rs/wheellock-resp", "readme": "README.md",
            "repository": "https://example.org", "description": "A codec", "license": "MIT OR Apache-2.0",
            "keywords": ["1", "2", "3", "4", "5"], "categories": ["encoding"],
            "metadata": { "docs": { "rs": { "all-features": true } } },
        });
        let mut files: BTreeSet<_> =
            ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE", "src/lib.rs"]
                .map(str::to_owned)
                .into();
        assert_eq!(lacking(&complete, &files), [""; 0]);
        files.remove("LICENSE-MIT");
        assert_eq!(lacking(&complete, &files), ["wheellock-resp: LICENSE-MIT is not packed"]);
        files.insert("LICENSE-MIT".to_owned());
        let mut without = complete;
        without["documentation"] = Value::Null;
        assert_eq!(lacking(&without, &files), ["wheellock-resp: `documentation` is not what it should be"]);
    }

    #[test]
    fn only_unpacked_local_packages_are_found() {
        let sources = run::target_directory().join("packages-test");
        for folder in ["-0123/p-0.1.0", "index.crates.io-4567/p-0.1.0"] {
            fs::create_dir_all(sources.join(folder)).unwrap();
        }
        let package = json!({ "name": "p", "version": "0.1.0" });
        let found: Vec<_> = unpacked(&sources, &[package]).collect();
        assert_eq!(found, [sources.join("-0123/p-0.1.0")]);
        fs::remove_dir_all(&sources).unwrap();
    }

    #[test]
    fn repository_packages_are_complete() {
        let shipped = shipped().unwrap();
        assert_eq!(shipped.len(), files::SHIPPED.len());
        assert_eq!(complaints(&shipped).unwrap(), [""; 0]);
    }
}
