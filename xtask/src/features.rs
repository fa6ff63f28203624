//! Packages with sets of their features.
//!
//! Each selected set is linted and documented. This module knows all sets, and the sets that are tried before every push. `cargo xtask
//! gates features` tries all sets.

use std::process::Command;

use serde_json::Value;

use crate::run;

/// Features that are enabled together; all others are disabled.
type Set<'a> = Vec<&'a str>;

/// Returns every set of a package's features, the empty set first.
pub(crate) fn all(package: &Value) -> Vec<Set<'_>> {
    let mut sets = vec![Vec::new()];
    for feature in names(package) {
        for place in 0..sets.len() {
            let with_it = [&sets[place][..], &[feature]].concat();
            sets.push(with_it);
        }
    }
    sets
}

/// Returns the empty and the full set. A missing item mostly shows in the empty set, and a duplicate item in the full set. For each push,
/// `cargo xtask gates features` also tries every other set, in parallel with the tests.
pub(crate) fn few(package: &Value) -> Vec<Set<'_>> {
    let mut sets = all(package);
    let most = names(package).count();
    sets.retain(|set| set.is_empty() || set.len() == most);
    sets
}

/// Returns only the empty set: there a link to an item behind a feature breaks first. docs.rs uses the full set.
pub(crate) fn fewest(_package: &Value) -> Vec<Set<'_>> {
    vec![Vec::new()]
}

/// Returns the commands that lint a package with each of these sets.
pub(crate) fn lints(package: &Value, sets: &[Set<'_>]) -> Vec<Command> {
    let lint = |set: &Set<'_>| {
        let mut command = run::cargo(["clippy", "--package", name(package), "--lib"]);
        command.args(arguments(set)).args(["--", "-D", "warnings"]);
        command
    };
    sets.iter().map(lint).collect()
}

/// Returns the commands that document every package with each of its chosen sets. The last command documents all packages as docs.rs does,
/// with marks on items that need a feature. Warnings fail.
pub(crate) fn documentation<'a>(
    packages: &'a [Value],
    chosen: fn(&'a Value) -> Vec<Set<'a>>,
) -> Vec<Command> {
    let each = packages.iter().flat_map(|package| {
        chosen(package).into_iter().map(|set| {
            let mut command = run::cargo(["doc", "--quiet", "--no-deps", "--package", name(package)]);
            command.args(arguments(&set)).env("RUSTDOCFLAGS", "-D warnings");
            command
        })
    });
    let mut published = run::cargo(["doc", "--quiet", "--no-deps", "--all-features"]);
    published.args(packages.iter().flat_map(|package| ["--package", name(package)]));
    // The marks are a feature of nightly, which docs.rs uses. This lets a stable compiler create them, for these crates only.
    let crates: Vec<_> = packages.iter().map(|package| name(package).replace('-', "_")).collect();
    published.env("RUSTC_BOOTSTRAP", crates.join(",")).env("RUSTDOCFLAGS", "-D warnings --cfg docsrs");
    each.chain([published]).collect()
}

/// Returns the commands that build each example with only the features that its manifest requires.
pub(crate) fn examples(package: &Value) -> Vec<Command> {
    let targets = package["targets"].as_array().into_iter().flatten();
    let build = |example: &Value| {
        let mut command =
            run::cargo(["check", "--quiet", "--no-default-features", "--package", name(package)]);
        command.args(["--example", name(example)]);
        let needed = example["required-features"].as_array().into_iter().flatten();
        let needed: Vec<_> = needed.filter_map(Value::as_str).collect();
        command.args((!needed.is_empty()).then(|| format!("--features={}", needed.join(","))));
        command
    };
    targets.filter(|target| target["kind"][0] == "example").map(build).collect()
}

/// Returns cargo's arguments for a set.
fn arguments(set: &Set<'_>) -> Vec<String> {
    let chosen = (!set.is_empty()).then(|| format!("--features={}", set.join(",")));
    ["--no-default-features".to_owned()].into_iter().chain(chosen).collect()
}

fn names(package: &Value) -> impl Iterator<Item = &str> {
    let features = package["features"].as_object().into_iter().flat_map(|features| features.keys());
    features.map(String::as_str).filter(|feature| *feature != "default")
}

fn name(named: &Value) -> &str {
    named["name"].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_and_few_list_feature_sets() {
        let package =
            serde_json::json!({ "name": "p", "features": { "default": [], "a": [], "b": [], "c": [] } });
        let shown = |sets: Vec<Set<'_>>| sets.iter().map(|set| set.join(",")).collect::<Vec<_>>();
        assert_eq!(shown(all(&package)), ["", "a", "b", "a,b", "c", "a,c", "b,c", "a,b,c"]);
        assert_eq!(shown(few(&package)), ["", "a,b,c"]);
        let commands: Vec<_> = lints(&package, &all(&package)).iter().map(run::shown).collect();
        assert!(commands[0].ends_with("--package p --lib --no-default-features -- -D warnings"));
        assert!(
            commands[3].ends_with("--package p --lib --no-default-features --features=a,b -- -D warnings")
        );
        let packages = [package];
        assert_eq!(documentation(&packages, all).len(), 8 + 1);
        assert_eq!(documentation(&packages, fewest).len(), 1 + 1);
    }

    #[test]
    fn package_without_features_has_one_set() {
        let package = serde_json::json!({ "name": "p", "features": {} });
        assert_eq!((all(&package).len(), few(&package).len()), (1, 1));
        let package = serde_json::json!({ "name": "p", "features": { "a": [] } });
        assert_eq!((all(&package).len(), few(&package).len()), (2, 2));
    }

    #[test]
    fn examples_build_with_required_features() {
        let target = |kind: &str, name: &str, features: &[&str]| serde_json::json!({ "kind": [kind], "name": name, "required-features": features });
        let package = serde_json::json!({
            "name": "p",
            "targets": [target("lib", "p", &[]), target("example", "plain", &[]), target("example", "framed", &["codec"])],
        });
        let shown: Vec<_> = examples(&package).iter().map(run::shown).collect();
        assert_eq!(shown.len(), 2);
        assert!(shown[0].ends_with("--package p --example plain"));
        assert!(shown[1].ends_with("--package p --example framed --features=codec"));
    }
}
