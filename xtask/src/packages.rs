//! What is uploaded to the registry: that each package has all that its users look for, and builds by itself. Owns the list of what
//! that is. Uploads nothing.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{run, tidy};

/// The packages that users get, leaves first as `cargo metadata` lists them.
pub(crate) fn shipped() -> Result<Vec<Value>> {
    let metadata = run::metadata()?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    Ok(packages.iter().filter(|package| tidy::is_shipped(name(package))).cloned().collect())
}

/// Complaints about all of these packages, as `cargo metadata` describes them.
pub(crate) fn complaints(packages: &[Value]) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for package in packages {
        let files = files(name(package))?;
        complaints.extend(lacking(package, &files));
    }
    Ok(complaints)
}

/// Packs all of them and builds each from what was packed, against the others as they were packed.
pub(crate) fn build(packages: &[Value]) -> Command {
    let mut command = run::cargo(["package", "--quiet", "--allow-dirty"]);
    for package in packages {
        command.args(["--package", name(package)]);
    }
    command
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

/// What users would miss in a package with these files.
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
    fn the_packages_of_this_repository_lack_nothing() {
        let shipped = shipped().unwrap();
        assert_eq!(shipped.len(), tidy::SHIPPED.len());
        assert_eq!(complaints(&shipped).unwrap(), [""; 0]);
    }
}
