//! Rules that the compiler cannot check.
//!
//! They cover the dependencies between crates, the purity of the leaves, and the documents' references to this repository. Each check is a
//! function from text to complaints, so that its test can show that the check works.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::Value;

use crate::files::{Complaint, File, SHIPPED, text_files};
use crate::{api, circles, compare, examples, plots, promises, run, shape, tables, words, workflows};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Rewrite the generated parts of pages
    #[arg(long)]
    write: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    if options.write {
        let files = text_files(run::root())?;
        for page in tables::pages(&files) {
            let new = tables::rewritten(page, &files);
            let new = new.with_context(|| format!("{} has no place for what is made", page.path))?;
            fs::write(run::root().join(&page.path), new)?;
        }
        for listing in api::listings(&text_files(run::root())?)? {
            let path = run::root().join(&listing.path);
            fs::create_dir_all(path.parent().context("a listing has a folder")?)?;
            fs::write(path, listing.text)?;
        }
        fs::write(run::root().join(words::CEILINGS), words::lowered(&text_files(run::root())?))?;
    }
    let complaints = check(run::root())?;
    complaints.iter().for_each(|complaint| println!("{complaint}"));
    if complaints.is_empty() {
        println!("tidy: all well");
        Ok(ExitCode::SUCCESS)
    } else {
        println!("tidy: {} complaints", complaints.len());
        Ok(ExitCode::FAILURE)
    }
}

/// Runs every check on the repository at `root`.
pub(crate) fn check(root: &Path) -> Result<Vec<Complaint>> {
    let files = text_files(root)?;
    let rust: Vec<&File> = files.iter().filter(|file| file.path.ends_with(".rs")).collect();
    let metadata = run::metadata()?;
    let mut complaints = arrows(&packages(&metadata));
    complaints.extend(workflows::unsafe_parts(&files, &metadata));
    for file in &files {
        complaints.extend(leftovers(file));
        if file.path.ends_with("Cargo.toml") {
            complaints.extend(lints_inherited(file));
        }
    }
    for file in &rust {
        complaints.extend(starts_with_its_purpose(file));
        complaints.extend(pure_leaf(file));
    }
    complaints.extend(scripts_included(&files));
    complaints.extend(tables::told(&files));
    complaints.extend(promises::unheld(&files));
    complaints.extend(plots::of_other_commits(&files, |path| fs::read_to_string(root.join(path)).ok()));
    complaints.extend(compare::unlike_sources(&files, |path| fs::read_to_string(root.join(path)).ok()));
    complaints.extend(circles::circles(&files));
    complaints.extend(circles::upward_arrows(&files));
    complaints.extend(examples::missing(&files));
    complaints.extend(api::changed(&files));
    complaints.extend(shape::long_functions(&files));
    complaints.extend(shape::crowded_folders(&files));
    complaints.extend(words::above_ceilings(&files));
    if let [Some(guide), Some(module)] = GUIDE.map(|path| files.iter().find(|file| file.path == path)) {
        complaints.extend(guide_links(guide, module));
    }
    let exists = |path: &str| root.join(path).exists();
    match files.iter().find(|file| file.path == ARCHITECTURE) {
        Some(architecture) => {
            complaints.extend(short_enough(architecture));
            complaints.extend(named_paths_exist(architecture, exists));
        }
        None => complaints.push(Complaint::of(ARCHITECTURE, "is missing")),
    }
    Ok(complaints)
}

/// Checks that dependencies between crates point only downwards, and that no shipped crate depends on tests or tools.
fn arrows(packages: &[Package]) -> Vec<Complaint> {
    let ours: BTreeSet<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    let mut complaints = Vec::new();
    for (name, allowed) in SHIPPED {
        let Some(package) = packages.iter().find(|package| package.name == *name) else {
            complaints.push(Complaint::of(*name, "is not a member of the workspace"));
            continue;
        };
        for dependency in &package.dependencies {
            // A crate's tests may need one of its own features.
            let is_itself = dependency == name;
            if ours.contains(dependency.as_str()) && !is_itself && !allowed.contains(&dependency.as_str()) {
                complaints.push(Complaint::of(*name, format!("must not depend on {dependency}")));
            }
        }
    }
    complaints
}

/// Checks that the codec and the wheel's core do not use a clock, a socket or a runtime.
///
/// `Duration` is a value, not a clock.
fn pure_leaf(file: &File) -> Vec<Complaint> {
    let is_leaf = LEAVES.iter().any(|leaf| file.path.starts_with(leaf));
    if !is_leaf || EDGES.iter().any(|edge| file.path.starts_with(edge)) {
        return Vec::new();
    }
    let mut complaints = Vec::new();
    for (number, line) in file.text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        // The leaf's own tests may measure and spawn; they are at the end of a file.
        if code.trim() == "#[cfg(test)]" {
            break;
        }
        let without_duration = code.replace("std::time::Duration", "").replace("core::time::Duration", "");
        for word in ["std::time", "core::time", "Instant", "SystemTime", "std::net", "std::os", "tokio"] {
            if without_duration.contains(word) {
                complaints.push(Complaint::at(file, number, format!("a leaf must not name `{word}`")));
            }
        }
    }
    complaints
}

const LEAVES: &[&str] = &["crates/wheellock-resp/src/", "crates/wheellock-wheel/src/"];

/// The thin edges of the leaves: the clock of the wheel's core, and the codec's adapter for `Framed`.
const EDGES: &[&str] = &[
    "crates/wheellock-resp/src/codec.rs",
    "crates/wheellock-wheel/src/timer/",
    "crates/wheellock-wheel/src/timer.rs",
    "crates/wheellock-wheel/src/hashed_wheel_timer",
];

/// Checks that a file's first line tells the reader its purpose.
fn starts_with_its_purpose(file: &File) -> Option<Complaint> {
    // Fuzz targets must start with `#![no_main]`; they are a separate workspace.
    let applies = !file.path.starts_with("fuzz/") && !file.text.starts_with("//!");
    applies.then(|| Complaint::of(&file.path, "must start with `//!`: what it owns, what it refuses to know"))
}

/// Checks that every Lua file is the text of a script. A file without an include is dead.
fn scripts_included(files: &[File]) -> Vec<Complaint> {
    let sources = files
        .iter()
        .filter(|file| file.path.starts_with("crates/wheellock/src/") && file.path.ends_with(".rs"));
    let code: String = sources.map(|file| file.text.as_str()).collect();
    let scripts = files.iter().filter(|file| file.path.starts_with(SCRIPTS) && file.path.ends_with(".lua"));
    let is_included = |script: &&File| {
        let name = &script.path[SCRIPTS.len()..];
        let named = format!("\"{name}\"");
        code.split("lua!")
            .skip(1)
            .any(|call| call.split(')').next().is_some_and(|files| files.contains(&named)))
    };
    scripts
        .filter(|script| !is_included(script))
        .map(|script| Complaint::of(&script.path, "is not an argument of any `lua!`"))
        .collect()
}

const SCRIPTS: &str = "crates/wheellock/src/scripts/";

/// Checks for notes about unfinished work, which belong in the issue tracker.
fn leftovers(file: &File) -> Vec<Complaint> {
    // The words are split, so that this file passes its own check.
    let words = [concat!("TO", "DO"), concat!("FIX", "ME")];
    let mut complaints = Vec::new();
    for (number, line) in file.text.lines().enumerate() {
        let mut found = line.split(|c: char| !c.is_alphanumeric()).filter(|word| words.contains(word));
        if let Some(word) = found.next() {
            complaints.push(Complaint::at(file, number, format!("{word} left behind")));
        }
    }
    complaints
}

/// Checks that every package inherits the workspace's lints, including `unsafe_code = "forbid"`.
fn lints_inherited(manifest: &File) -> Option<Complaint> {
    let is_package = manifest.text.lines().any(|line| line.trim() == "[package]");
    let mut after_lints = manifest.text.lines().skip_while(|line| line.trim() != "[lints]").skip(1);
    let inherits = after_lints.next().is_some_and(|line| line.trim() == "workspace = true");
    let applies = is_package && !inherits && !manifest.path.starts_with("fuzz/");
    applies.then(|| Complaint::of(&manifest.path, "must have `[lints] workspace = true`"))
}

const ARCHITECTURE: &str = "ARCHITECTURE.md";

/// Checks the length of the page, because every contributor has to read it. The map of the files does not count: readers look files up in
/// it, and it grows with the files.
fn short_enough(architecture: &File) -> Option<Complaint> {
    let lines = architecture.text.lines().filter(|line| !line.starts_with("- **")).count();
    (lines > MAX_ARCHITECTURE_LINES).then(|| {
        Complaint::of(ARCHITECTURE, format!("has {lines} lines; {MAX_ARCHITECTURE_LINES} is the limit"))
    })
}

const MAX_ARCHITECTURE_LINES: usize = 320;

/// Checks that every path between backticks exists. A wrong path misleads the reader.
fn named_paths_exist(architecture: &File, exists: impl Fn(&str) -> bool) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (number, line) in architecture.text.lines().enumerate() {
        for quoted in line.split('`').skip(1).step_by(2).filter(|quoted| is_path(quoted)) {
            if !exists(quoted) {
                complaints.push(Complaint::at(architecture, number, format!("there is no `{quoted}`")));
            }
        }
    }
    complaints
}

/// The guide, and the module that shows it on docs.rs.
const GUIDE: [&str; 2] = ["docs/guide.md", "crates/wheellock/src/guide.rs"];

/// Checks the guide's links to other pages of its folder, which would be broken on docs.rs. Each link needs a name, and the module defines
/// the name's target.
fn guide_links(guide: &File, module: &File) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (number, line) in guide.text.lines().enumerate() {
        let inline = line.split("](").skip(1);
        for target in inline.filter(|target| !target.starts_with('#') && !target.starts_with("https://")) {
            let target = target.split(')').next().unwrap_or_default();
            complaints.push(Complaint::at(guide, number, format!("link to {target} by a name")));
        }
        let definition = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
        if let Some((name, target)) = definition {
            let there =
                format!("//! [{name}]: https://github.com/wheellock/wheellock/blob/main/docs/{target}");
            // Or the page is packed too, as a module of the guide.
            let packed = format!("//! [{name}]: crate::guide::{}", target.replacen(".md", "", 1));
            if !module.text.lines().any(|line| line == there || line == packed) {
                complaints.push(Complaint::of(&*module.path, format!("lacks `{there}`")));
            }
        }
    }
    complaints
}

/// Returns true for paths: `crates/wheellock`, `deny.toml` and `docs/` are paths; `a::b`, `redis://` and `uuid:n` are not.
fn is_path(quoted: &str) -> bool {
    let plain = quoted.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/'));
    let extension = Path::new(quoted).extension().and_then(|extension| extension.to_str());
    let known = matches!(extension, Some("rs" | "toml" | "md" | "lua" | "yml"));
    plain && (quoted.contains('/') || known)
}

/// A package and the names of its dependencies, of every kind.
#[derive(Debug)]
struct Package {
    name: String,
    dependencies: Vec<String>,
}

fn packages(metadata: &Value) -> Vec<Package> {
    let names = |list: &Value| -> Vec<String> {
        let entries = list.as_array().into_iter().flatten();
        entries.filter_map(|entry| entry["name"].as_str().map(str::to_owned)).collect()
    };
    let packages = metadata["packages"].as_array().into_iter().flatten();
    packages
        .map(|package| Package {
            name: package["name"].as_str().unwrap_or_default().to_owned(),
            dependencies: names(&package["dependencies"]),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.into(), text: text.into() }
    }

    fn workspace(edges: &[(&str, &str)]) -> Vec<Package> {
        let names = SHIPPED.iter().map(|(name, _)| *name).chain(["wheellock-tests", "xtask"]);
        names
            .map(|name| Package {
                name: name.into(),
                dependencies: edges
                    .iter()
                    .filter(|(from, _)| *from == name)
                    .map(|(_, to)| (*to).into())
                    .collect(),
            })
            .collect()
    }

    #[test]
    fn arrows_point_downwards() {
        let good = [
            ("wheellock-resp", "bytes"),
            ("wheellock-client", "wheellock-resp"),
            ("wheellock", "wheellock-client"),
            ("xtask", "wheellock"),
        ];
        assert_eq!(arrows(&workspace(&good)), []);
        for bad in [
            ("wheellock-resp", "wheellock-wheel"),
            ("wheellock-client", "wheellock"),
            ("wheellock", "wheellock-tests"),
            ("wheellock-wheel", "xtask"),
        ] {
            let complaints = arrows(&workspace(&[bad]));
            assert_eq!(complaints, [Complaint::of(bad.0, format!("must not depend on {}", bad.1))]);
        }
        assert_eq!(arrows(&[]).len(), SHIPPED.len());
    }

    #[test]
    fn impure_leaf_is_found() {
        for bad in [
            "use std::time::Instant;",
            "let a = std::net::Ipv4Addr::LOCALHOST;",
            "use tokio::io;",
            "Instant::now()",
        ] {
            assert!(!pure_leaf(&file("crates/wheellock-resp/src/value.rs", bad)).is_empty(), "{bad}");
            assert!(!pure_leaf(&file("crates/wheellock-wheel/src/wheel.rs", bad)).is_empty(), "{bad}");
            assert!(pure_leaf(&file("crates/wheellock-wheel/src/timer/driver.rs", bad)).is_empty(), "{bad}");
            assert!(pure_leaf(&file("crates/wheellock-client/src/lib.rs", bad)).is_empty(), "{bad}");
        }
        for good in
            ["//! Knows no tokio.", "use std::time::Duration;", "#[cfg(test)]\nuse std::time::Instant;"]
        {
            assert_eq!(pure_leaf(&file("crates/wheellock-resp/src/value.rs", good)), [], "{good}");
        }
    }

    #[test]
    fn files_start_with_their_purpose() {
        assert!(starts_with_its_purpose(&file("crates/a/src/lib.rs", "use std::fmt;\n")).is_some());
        assert!(starts_with_its_purpose(&file("crates/a/src/lib.rs", "//! Owns a.\n")).is_none());
    }

    #[test]
    fn scripts_nobody_includes_are_found() {
        let used = file("crates/wheellock/src/scripts/acquire.lua", "return 1");
        let dead = file("crates/wheellock/src/scripts/quire.lua", "return 1");
        let code = file(
            "crates/wheellock/src/kind/mod.rs",
            "const A: &str = lua!(\"number.lua\", \"acquire.lua\");",
        );
        let complaints = scripts_included(&[used, dead, code]);
        assert_eq!(complaints.len(), 1);
        assert_eq!(complaints[0].place, "crates/wheellock/src/scripts/quire.lua");
    }

    #[test]
    fn leftovers_are_found() {
        let text = format!("fine\n// {}: later\n", concat!("TO", "DO"));
        assert_eq!(leftovers(&file("a.rs", &text))[0].place, "a.rs:2");
        assert_eq!(leftovers(&file("a.rs", "todo_list MASTODONT")), []);
    }

    #[test]
    fn packages_inherit_the_lints() {
        let bad = file("crates/a/Cargo.toml", "[package]\nname = \"a\"\n");
        let good = file("crates/a/Cargo.toml", "[package]\nname = \"a\"\n[lints]\nworkspace = true\n");
        let virtual_root = file("Cargo.toml", "[workspace]\n");
        assert!(lints_inherited(&bad).is_some());
        assert!(lints_inherited(&good).is_none());
        assert!(lints_inherited(&virtual_root).is_none());
    }

    #[test]
    fn a_long_architecture_is_refused() {
        assert!(short_enough(&file(ARCHITECTURE, &"line\n".repeat(MAX_ARCHITECTURE_LINES))).is_none());
        assert!(short_enough(&file(ARCHITECTURE, &"line\n".repeat(MAX_ARCHITECTURE_LINES + 1))).is_some());
    }

    #[test]
    fn nonexistent_paths_are_found() {
        let text = "See `crates/a` and `deny.toml`, not `a::b`, `redis://host/0`, `uuid:n` or crates/none.\n`crates/gone/src/x.rs`\n";
        let complaints = named_paths_exist(&file(ARCHITECTURE, text), |path| path == "crates/a");
        let places: Vec<_> =
            complaints.iter().map(|complaint| (complaint.place.as_str(), complaint.what.as_str())).collect();
        assert_eq!(
            places,
            [
                ("ARCHITECTURE.md:1", "there is no `deny.toml`"),
                ("ARCHITECTURE.md:2", "there is no `crates/gone/src/x.rs`")
            ]
        );
    }

    #[test]
    fn guide_links_use_names_of_module() {
        let guide = |text: &str| file(GUIDE[0], text);
        let module = file(
            GUIDE[1],
            "//! [a]: https://github.com/wheellock/wheellock/blob/main/docs/a.md#b\n//! [e]: crate::guide::e#f\n",
        );
        assert_eq!(
            guide_links(
                &guide("See [a], [c](#c) and [d](https://d).\n\n[a]: a.md#b\n[e]: e.md#f\n"),
                &module
            ),
            []
        );
        assert_eq!(guide_links(&guide("See [a](a.md#b).\n"), &module)[0].what, "link to a.md#b by a name");
        assert_eq!(guide_links(&guide("[a]: a.md#c\n"), &module)[0].place, GUIDE[1]);
    }

    #[test]
    fn this_repository_is_read() {
        let files = text_files(run::root()).unwrap();
        assert!(files.iter().any(|file| file.path == "xtask/src/tidy.rs"));
        assert!(files.iter().all(|file| !file.path.starts_with("target/")));
    }
}
