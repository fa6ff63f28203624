//! Planted bugs, each with a test that must fail.
//!
//! They prove that the tests detect errors. The bugs are patches in `tests/planted`; the shipped sources do not contain them. All patches
//! are applied to one copy of the workspace. Each change is behind a check for the selected bug, so the copy is built once. A patch that no
//! longer fits the sources fails the step.

pub(crate) mod scripts;
pub(crate) mod simulated;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::programs::{self, Group};
use crate::run;

/// The folder of the patches.
pub(crate) const FOLDER: &str = "tests/planted";

/// A bug, and the test that catches it.
#[derive(Debug)]
pub(crate) struct Planted {
    pub(crate) bug: String,
    package: String,
    /// A module of the package's integration tests, or `--lib` for its unit tests.
    pub(crate) target: String,
    pub(crate) test: String,
    changes: Vec<Change>,
}

/// A sequence of lines in a file, and its replacement. Lines are compared without their indentation.
#[derive(Debug)]
struct Change {
    path: String,
    from: Vec<String>,
    to: Vec<String>,
}

impl Planted {
    /// Reads a patch: its bug, its test, and the changes in the form of `diff`, without line numbers.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines();
        let bug = lines.next().and_then(|line| line.strip_prefix("bug: ")).context("no bug")?.to_owned();
        let test = lines.next().and_then(|line| line.strip_prefix("caught by: ")).context("no test")?;
        let [package, target, test] = test.split(' ').collect::<Vec<_>>()[..] else { bail!("no such test") };
        let (package, target, test) = (package.to_owned(), target.to_owned(), test.to_owned());
        let mut changes: Vec<Change> = Vec::new();
        let mut begins = false;
        for line in lines {
            if line.is_empty() {
                begins = true;
            } else if std::mem::take(&mut begins) {
                changes.push(Change { path: line.to_owned(), from: Vec::new(), to: Vec::new() });
            } else {
                let change = changes.last_mut().context("lines without a file")?;
                let (sign, rest) = line.split_at(1);
                ensure!([" ", "-", "+"].contains(&sign), "neither context nor change: {line}");
                if sign != "+" {
                    change.from.push(rest.trim().to_owned());
                }
                if sign != "-" {
                    change.to.push(rest.trim().to_owned());
                }
            }
        }
        ensure!(!changes.is_empty(), "changes nothing");
        Ok(Self { bug, package, target, test, changes })
    }
}

impl Change {
    /// Returns the lines of a file with this change applied.
    fn applied(&self, text: &str) -> Result<String> {
        let lines: Vec<&str> = text.lines().collect();
        let fits = |window: &[&str]| window.iter().map(|line| line.trim()).eq(&self.from);
        let mut places = lines.windows(self.from.len()).enumerate().filter(|(_, window)| fits(window));
        let place = match (places.next(), places.next()) {
            (Some((place, _)), None) => place,
            (Some(_), Some(_)) => bail!("{} has the lines to change more than once", self.path),
            (None, _) => bail!("{} does not have the lines to change", self.path),
        };
        let (before, rest) = lines.split_at(place);
        let after = rest.get(self.from.len()..).unwrap_or_default();
        let changed = self.to.iter().map(String::as_str);
        let mut text = String::with_capacity(text.len());
        for line in before.iter().copied().chain(changed).chain(after.iter().copied()) {
            text.push_str(line);
            text.push('\n');
        }
        Ok(text)
    }

    fn is_lua(&self) -> bool {
        self.path.ends_with(".lua")
    }
}

/// Returns all planted bugs, by name.
pub(crate) fn all(root: &Path) -> Result<Vec<Planted>> {
    let folder = root.join(FOLDER);
    let mut bugs = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?;
        bugs.push(Planted::parse(&text).with_context(|| format!("cannot read {}", path.display()))?);
    }
    bugs.sort_by(|one, other| one.bug.cmp(&other.bug));
    Ok(bugs)
}

/// Plants every bug. Succeeds only if each bug is caught.
pub(crate) fn check(names: &[String]) -> Result<ExitCode> {
    let mut bugs = all(run::root())?;
    let wanted = |bug: &Planted| names.is_empty() || names.iter().any(|name| bug.bug.contains(name));
    bugs.retain(wanted);
    ensure!(!bugs.is_empty(), "there is no such bug");
    let uncaught = uncaught(&bugs)?;
    println!("{} of {} planted bugs caught", bugs.len() - uncaught.len(), bugs.len());
    Ok(if uncaught.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Plants each bug in turn, `AT_ONCE` at a time. Returns the bugs that were not caught.
pub(crate) fn uncaught(bugs: &[Planted]) -> Result<Vec<String>> {
    let built = programs::build(&mut testing(bugs)?)?;
    let (groups, uncaught) = (programs::groups(&built.tests)?, Mutex::new(Vec::new()));
    run::several_at_once(AT_ONCE, bugs, |planted| {
        let start = Instant::now();
        let verdict = run(planted, &groups);
        let (took, shown) = (
            start.elapsed(),
            verdict.as_ref().map_or_else(|error| format!("{error:#}"), ToString::to_string),
        );
        println!("{:<45} {shown} ({}, {:.1} s)", planted.bug, planted.test, took.as_secs_f64());
        if !matches!(verdict, Ok("caught" | "caught, it hangs"))
            && let Ok(mut uncaught) = uncaught.lock()
        {
            uncaught.push(format!("{}: {shown}", planted.bug));
        }
    });
    uncaught.into_inner().context("a runner panicked")
}

/// The parts of the workspace that its tests need.
pub(crate) const PARTS: [&str; 9] =
    ["Cargo.toml", "Cargo.lock", "crates", "examples", "tests", "benches", "xtask", "docs", "README.md"];

/// Returns the folder of the copy.
fn copy() -> PathBuf {
    run::target_directory().join("planted/workspace")
}

/// Copies the workspace at `root` to `copy` with all bugs in it. Unchanged files stay untouched, so that only changed files are rebuilt.
fn lay_out(root: &Path, copy: &Path, bugs: &[Planted]) -> Result<()> {
    let mut files = BTreeMap::new();
    for part in PARTS {
        collect(root, Path::new(part), &mut files)?;
    }
    let mut scripts = Vec::new();
    for Planted { bug, changes, .. } in bugs {
        for change in changes {
            let path = PathBuf::from(&change.path);
            let text = files.get(&path).with_context(|| format!("{bug}: there is no {}", change.path))?;
            let changed = String::from_utf8(text.clone())?;
            let changed = change.applied(&changed).with_context(|| bug.clone())?;
            if change.is_lua() {
                // A script cannot check the selected bug. Both versions are included, and the reading code selects one.
                scripts.push((bug, change.path.as_str(), changed));
            } else {
                let asks = change.to.iter().any(|line| line.contains("bug()"));
                ensure!(asks, "{bug}: does not ask whether it was chosen, and so is in every build");
                let question = format!("::wheellock_planted::bug({bug:?})");
                files.insert(path, changed.replace("bug()", &question).into_bytes());
            }
        }
    }
    for (path, text) in &mut files {
        let Some(name) = path.to_str().filter(|name| name.starts_with("crates/")) else { continue };
        if name.ends_with("Cargo.toml") {
            let manifest = String::from_utf8(std::mem::take(text))?;
            let dependency = "[dependencies]\nwheellock-planted = { path = \"../../planted\" }";
            *text = manifest.replacen("[dependencies]", dependency, 1).into_bytes();
        } else if name.ends_with(".rs") {
            let code = String::from_utf8(std::mem::take(text))?;
            *text = choosing_scripts(&code).into_bytes();
        }
    }
    let manifest = files.get_mut(Path::new("Cargo.toml")).context("no manifest")?;
    let members = String::from_utf8(std::mem::take(manifest))?;
    *manifest = members.replacen("members = [", "members = [\"planted\", ", 1).into_bytes();
    files.insert("planted/Cargo.toml".into(), MANIFEST.into());
    files.insert("planted/src/lib.rs".into(), library(&scripts)?.into());
    write_where_different(copy, &files)
}

/// Replaces `lua!("x.lua", "y.lua")` by an expression that selects the scripts or their versions with the bug.
fn choosing_scripts(code: &str) -> String {
    let mut parts = code.split("lua!(");
    let mut chosen = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (names, rest) = part.split_once(')').unwrap_or((part, ""));
        let choose = |name: &str| format!("::wheellock_planted::script({0}, lua!({0}))", name.trim());
        let scripts: Vec<String> = names.split(',').map(choose).collect();
        let _infallible = write!(chosen, "::wheellock_planted::joined!({}){rest}", scripts.join(", "));
    }
    chosen
}

/// Returns the name that identifies a script: its path below the folder of all scripts.
fn script_name(path: &str) -> &str {
    path.rsplit_once("scripts/").map_or(path, |(_, name)| name)
}

/// Returns the source of the crate that reports the selected bug.
fn library(scripts: &[(&String, &str, String)]) -> Result<String> {
    let mut library = LIBRARY.to_owned();
    library.push_str("\nconst SCRIPTS: &[(&str, &str, &str)] = &[\n");
    for (bug, path, text) in scripts {
        let name = script_name(path);
        writeln!(library, "    ({bug:?}, {name:?}, {text:?}),")?;
    }
    library.push_str("];\n");
    Ok(library)
}

const MANIFEST: &str = "[package]\nname = \"wheellock-planted\"\nversion = \"0.0.0\"\nedition = \"2024\"\n";

const LIBRARY: &str = r#"
use std::sync::{LazyLock, Once};

static CHOSEN: LazyLock<String> = LazyLock::new(|| std::env::var("WHEELLOCK_PLANTED").unwrap_or_default());
static REACHED: Once = Once::new();

/// Returns true if the bug `name` is selected. The first call for the selected bug creates an empty file, which reports that the bug was
/// reached.
pub fn bug(name: &str) -> bool {
    let is_chosen = *CHOSEN == name;
    if is_chosen && !REACHED.is_completed() {
        REACHED.call_once(|| {
            if let Ok(file) = std::env::var("WHEELLOCK_PLANTED_REACHED") {
                std::fs::write(file, "").expect("the file of a bug that was reached");
            }
        });
    }
    is_chosen
}

/// Scripts that are put together of parts.
#[macro_export]
macro_rules! joined {
    ($($part:expr),* $(,)?) => { &*Box::leak([$($part),*].concat().into_boxed_str()) };
}

/// A script whose text is in a file: `name=path`.
static OTHER: LazyLock<Option<(String, &'static str)>> = LazyLock::new(|| {
    let chosen = std::env::var("WHEELLOCK_SCRIPT").ok()?;
    let (name, path) = chosen.split_once('=').expect("name=path");
    let text = std::fs::read_to_string(path).expect("the file of a changed script");
    Some((name.to_owned(), &*Box::leak(text.into_boxed_str())))
});

/// The script, or the one that has the chosen bug.
pub fn script(name: &str, text: &'static str) -> &'static str {
    if let Some((other, changed)) = &*OTHER
        && other == name
    {
        return changed;
    }
    let planted = SCRIPTS.iter().find(|(bug, script, _)| *CHOSEN == *bug && *script == name);
    planted.map_or(text, |(_, _, planted)| planted)
}
"#;

/// Reads a file, or all files in a folder, by path below `root`.
pub(crate) fn collect(root: &Path, path: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) -> Result<()> {
    let full = root.join(path);
    if full.is_dir() {
        for entry in fs::read_dir(&full)? {
            let name = entry?.file_name();
            if name != "target" {
                collect(root, &path.join(name), files)?;
            }
        }
    } else {
        let text = fs::read(&full).with_context(|| format!("cannot read {}", full.display()))?;
        files.insert(path.to_owned(), text);
    }
    Ok(())
}

/// Gives the folder `copy` exactly these files.
pub(crate) fn write_where_different(copy: &Path, files: &BTreeMap<PathBuf, Vec<u8>>) -> Result<()> {
    fs::create_dir_all(copy)?;
    let mut there = BTreeMap::new();
    collect(copy, Path::new(""), &mut there)?;
    let wanted: BTreeSet<_> = files.keys().collect();
    for path in there.keys().filter(|path| !wanted.contains(path)) {
        fs::remove_file(copy.join(path))?;
    }
    for (path, text) in files.iter().filter(|(path, text)| there.get(*path) != Some(text)) {
        let path = copy.join(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Writes the copy. A single cargo command builds all of it, so that no crate is built twice with other features.
fn testing(bugs: &[Planted]) -> Result<Command> {
    lay_out(run::root(), &copy(), bugs)?;
    let mut packages: BTreeSet<&str> = bugs.iter().map(|planted| planted.package.as_str()).collect();
    // This package has no planted bug. With it, foreign packages get the same features as in `cargo xtask test`, which has already built
    // them.
    packages.insert("wheellock-service");
    let mut command = command(["test", "--quiet"]);
    command.args(packages.into_iter().flat_map(|package| ["--package", package]));
    if bugs.iter().any(|planted| planted.target == "--lib") {
        command.arg("--lib");
    }
    if bugs.iter().any(|planted| planted.target != "--lib") {
        command.args(["--test", "it"]);
    }
    Ok(command)
}

fn run(planted: &Planted, groups: &[Group<'_>]) -> Result<&'static str> {
    let is_its = |group: &&Group<'_>| group.package() == planted.package && group.name() == planted.target;
    let group = groups.iter().find(is_its).context("no such tests")?;
    let group = group.only(|test| test.contains(&planted.test));
    ensure!(!group.tests.is_empty(), "no such test");
    let mut tests = group.command();
    tests.env("WHEELLOCK_PLANTED", &planted.bug).env("RUST_BACKTRACE", "0");
    tests.env("CARGO_TARGET_DIR", target());
    // A test that hangs is killed, and its servers end with it.
    let mut child = tests.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let start = Instant::now();
    while child.try_wait()?.is_none() {
        if start.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            return Ok("caught, it hangs");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output()?;
    let printed = String::from_utf8_lossy(&output.stdout);
    if printed.contains("test result: FAILED") {
        return Ok("caught");
    }
    let all_passed = format!(" {} passed; 0 failed;", group.tests.len());
    ensure!(printed.contains(&all_passed), "it did not run");
    Ok("NOT CAUGHT")
}

/// Returns a cargo command in the copy. Foreign packages that the workspace has built are reused if cargo supports it.
fn command<const N: usize>(arguments: [&str; N]) -> Command {
    let mut command = run::cargo(arguments);
    command
        .current_dir(copy())
        .env("CARGO_TARGET_DIR", target())
        .env("CARGO_BUILD_BUILD_DIR", run::target_directory());
    // These tests wait for servers, so optimisation would cost more than it saves. They show no backtraces.
    command.env("CARGO_PROFILE_TEST_OPT_LEVEL", "0").env("CARGO_PROFILE_TEST_DEBUG", "false");
    command
}

fn target() -> PathBuf {
    run::target_directory().join("planted")
}

/// Number of bugs tested at once. The tests mostly wait.
const AT_ONCE: usize = 8;

/// The time limit of a test, far above any real duration.
const PATIENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    const PATCH: &str = "bug: it leaks\ncaught by: wheellock-tests locks it_is_tight\n\ncrates/a.rs\n fn f() {\n-close();\n+if !bug() {\n+close();\n+}\n";

    #[test]
    fn patch_ignores_indentation_needs_unique_match() {
        let planted = Planted::parse(PATCH).unwrap();
        assert_eq!((planted.bug.as_str(), planted.target.as_str()), ("it leaks", "locks"));
        let change = &planted.changes[0];
        let changed = change.applied("use x;\n  fn f() {\n      close();\n  }\n").unwrap();
        assert_eq!(changed, "use x;\nfn f() {\nif !bug() {\nclose();\n}\n  }\n");
        assert!(change.applied("fn f() {\nopen();\n}\n").is_err(), "the lines are gone");
        assert!(change.applied("fn f() {\nclose();\nfn f() {\nclose();\n").is_err(), "which of the two?");
    }

    #[test]
    fn what_is_no_patch_is_refused() {
        for bad in [
            "",
            "bug: x",
            "bug: x\ncaught by: y",
            "bug: x\ncaught by: a b c",
            "bug: x\ncaught by: a b c\n\nf\n?x",
        ] {
            assert!(Planted::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn included_script_becomes_planted_choice() {
        let code = "a(lua!(\"x.lua\", \"a/y.lua\"), 1)";
        let chosen = "a(::wheellock_planted::joined!(::wheellock_planted::script(\"x.lua\", lua!(\"x.lua\")), \
                      ::wheellock_planted::script(\"a/y.lua\", lua!(\"a/y.lua\"))), 1)";
        assert_eq!(choosing_scripts(code), chosen);
    }

    /// Checks that every patch fits the current sources. The step itself checks that its test fails.
    #[test]
    fn every_patch_still_fits() {
        let copy = run::target_directory().join("planted/fits");
        lay_out(run::root(), &copy, &all(run::root()).unwrap()).unwrap();
        let text = fs::read_to_string(copy.join("crates/wheellock/src/base/lease.rs")).unwrap();
        assert!(text.contains("::wheellock_planted::bug(\"a lease is believed beyond its end\")"));
        let text = fs::read_to_string(copy.join("crates/wheellock/src/kind/mod.rs")).unwrap();
        assert!(text.contains("::wheellock_planted::script(\"release.lua\", "));
    }
}
