//! Stubs of a new kind of lock, and a test that fails until they are filled in.
//!
//! The templates beside this file have the lines, and each line's place. A new line goes above a comment such as `// new-kind: row`, or
//! among lines with the same beginning, in their order. The stub is the plain lock under another key, with today's Lua of that lock. Or it
//! copies the row, the Lua and the constructors of another kind.

mod like;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{error, fmt, fs};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::run;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Lower-case words, such as `ladder` or `long_ladder`
    name: String,
    /// The kind has a type of its own: `kinds/NAME.rs`
    #[arg(long)]
    face: bool,
    /// Copies the row of this kind, such as `write` or `fenced`, and keeps its key
    #[arg(long, value_name = "KIND", conflicts_with = "face")]
    like: Option<String>,
    /// Lua files to copy from the kind of `--like`, such as `acquire`; without it, all of `acquire`, `release` and
    /// `renew` that the kind has of its own
    #[arg(long, value_name = "SCRIPT", requires = "like")]
    own: Vec<String>,
}

impl Options {
    #[cfg(test)]
    fn new(name: &str, face: bool, like: Option<&str>) -> Self {
        Self { name: name.to_owned(), face, like: like.map(str::to_owned), own: Vec::new() }
    }
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let read = |path: &str| fs::read_to_string(run::root().join(path)).ok();
    let plan = plan(&read, options)?;
    ensure_committed(run::root(), &plan)?;
    for (path, file) in &plan {
        let target = run::root().join(path);
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&target, &file.text).with_context(|| format!("cannot write {}", target.display()))?;
        println!("{} {path}", if file.is_new { "wrote  " } else { "changed" });
    }
    println!(
        "{} files. Run `cargo fmt` and `cargo xtask tidy --write`. This test says what to fill in:",
        plan.len()
    );
    println!("cargo test -p wheellock-tests --test it {}::", options.name);
    Ok(ExitCode::SUCCESS)
}

/// Reason why the command writes nothing.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    /// The name is not lower-case words with single underscores between them, or is a keyword.
    NoIdentifier(String),
    /// No row of a lock with its own Lua has this name.
    NotLike(String),
    /// A file or a declaration has this name.
    Exists(String),
    /// The file does not have this insertion point exactly once.
    NoPlace { path: String, place: String },
    /// The file has changes that are not committed.
    Uncommitted(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoIdentifier(name) => {
                write!(f, "`{name}` is not a name of lower-case words, such as `ladder` or `long_ladder`")
            }
            Self::NotLike(name) => write!(f, "no kind of lock with its own Lua files is called `{name}`"),
            Self::Exists(place) => write!(f, "the name exists: {place}"),
            Self::NoPlace { path, place } => {
                write!(f, "{path} must have one insertion point `{place}`; see xtask/src/new_kind")
            }
            Self::Uncommitted(path) => write!(f, "{path} has uncommitted changes"),
        }
    }
}

impl error::Error for Refusal {}

/// A file's new text.
#[derive(Debug)]
struct File {
    text: String,
    is_new: bool,
}

type Plan = BTreeMap<String, File>;

/// Returns the text of a file of the repository, if it exists.
type Read<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Returns the files to write, by path. Writes nothing.
fn plan(read: Read<'_>, options: &Options) -> Result<Plan> {
    let name = options.name.as_str();
    let words: Vec<&str> = name.split('_').collect();
    let is_plain = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    let is_word = |word: &&str| word.starts_with(|c: char| c.is_ascii_lowercase());
    // The parser refuses keywords.
    if !is_plain || !words.iter().all(is_word) || syn::parse_str::<syn::Ident>(name).is_err() {
        bail!(Refusal::NoIdentifier(name.to_owned()));
    }
    refuse_known(read, name)?;
    let (special, as_lock) = match &options.like {
        Some(like) => like::templates(read, like, &options.own)?,
        None if options.face => ([PLAIN, FACE].concat(), ".as_lock().clone()"),
        None => ([PLAIN, LOCK].concat(), ""),
    };
    let templates = [COMMON, &special].concat();
    let mut plan = Plan::new();
    for part in format!("\n{}", templates.trim_end_matches('\n')).split("\n== ").skip(1) {
        let part = filled(part, &words, as_lock);
        let (head, text) = part.split_once('\n').context("a part without a head")?;
        let (path, place) = head.split_once(' ').context("a part without a place")?;
        let text = format!("{text}\n");
        let old = plan.remove(path).map(|file: File| file.text).or_else(|| read(path));
        let file = if place == "new" {
            ensure!(old.is_none(), Refusal::Exists(path.to_owned()));
            let text = text.replace("%acquire\n", &body(&known(read, ACQUIRE)?));
            File { text: text.replace("%release\n", &body(&known(read, RELEASE)?)), is_new: true }
        } else {
            let no_place = || Refusal::NoPlace { path: path.to_owned(), place: place.to_owned() };
            let old = old.with_context(|| format!("cannot read {path}"))?;
            File { text: inserted(&old, place, &text).with_context(no_place)?, is_new: false }
        };
        plan.insert(path.to_owned(), file);
    }
    let stubs = stubs(&plan, name);
    for file in plan.values_mut() {
        file.text = file.text.replace("%stubs", &stubs);
    }
    Ok(plan)
}

/// Replaces the placeholders for the name, in its four forms.
fn filled(template: &str, words: &[&str], as_lock: &str) -> String {
    let name = words.join("_");
    let capital = |word: &&str| word[..1].to_uppercase() + &word[1..];
    template
        .replace("%as_lock", as_lock)
        .replace("%words", &words.join(" "))
        .replace("%NAME", &name.to_uppercase())
        .replace("%Name", &words.iter().map(capital).collect::<String>())
        .replace("%name", &name)
}

/// Returns the rows of the test's list of stubs.
fn stubs(plan: &Plan, name: &str) -> String {
    let mark = format!("Stub of `{name}`");
    let shipped = plan.iter().filter(|(path, _)| path.starts_with(SOURCE));
    let stubs = shipped.filter(|(_, file)| file.text.contains(&mark));
    stubs.map(|(path, _)| format!("    \"{path}\",\n")).collect()
}

fn refuse_known(read: Read<'_>, name: &str) -> Result<()> {
    let face = format!("{SOURCE}kinds/{name}.rs");
    ensure!(read(&face).is_none(), Refusal::Exists(face));
    let upper = name.to_uppercase();
    for (path, declaration) in [
        ("kind/mod.rs", format!("static {upper}:")),
        ("kind/mod.rs", format!("const {upper}:")),
        ("manager/mod.rs", format!("fn {name}_lock(")),
    ] {
        let path = format!("{SOURCE}{path}");
        let is_known = known(read, &path)?.contains(&declaration);
        ensure!(!is_known, Refusal::Exists(format!("`{declaration}` in {path}")));
    }
    Ok(())
}

fn known(read: Read<'_>, path: &str) -> Result<String> {
    read(path).with_context(|| format!("cannot read {path}"))
}

/// Returns the text with these lines inserted at their place. Returns `None` if the text has no such place, or several.
fn inserted(text: &str, place: &str, new: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().collect();
    let positions = |is_it: &dyn Fn(&str) -> bool| -> Vec<usize> {
        (0..lines.len()).filter(|at| is_it(lines[*at])).collect()
    };
    let at = match place.split_once(' ')? {
        ("above", mark) => {
            let marks = positions(&|line| line.trim() == mark);
            *marks.first().filter(|_| marks.len() == 1)?
        }
        ("among", begin) => {
            let group = positions(&|line| line.starts_with(begin));
            let next = group.iter().copied().find(|at| lines[*at] > new.trim_end());
            next.or(group.last().map(|at| at + 1))?
        }
        _ => return None,
    };
    let indent: String = lines.get(at)?.chars().take_while(|c| *c == ' ').collect();
    let indented = |line: &str| if line.is_empty() { "\n".to_owned() } else { format!("{indent}{line}\n") };
    let (before, after) = lines.split_at(at);
    let unchanged = |lines: &[&str]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    Some(unchanged(before) + &new.lines().map(indented).collect::<String>() + &unchanged(after))
}

/// Returns a script without the comment at its head.
fn body(script: &str) -> String {
    script.lines().skip_while(|line| line.starts_with("--")).map(|line| format!("{line}\n")).collect()
}

/// Checks that `git checkout` can undo every change.
fn ensure_committed(root: &Path, plan: &Plan) -> Result<()> {
    let changed: Vec<PathBuf> =
        plan.iter().filter(|(_, file)| !file.is_new).map(|(path, _)| path.into()).collect();
    let mut git = std::process::Command::new("git");
    let status = git.current_dir(root).args(["status", "--porcelain", "--"]).args(changed);
    let output = status.output().context("cannot start git")?;
    ensure!(output.status.success(), "git status: {}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8_lossy(&output.stdout);
    match lines.lines().next() {
        Some(line) => bail!(Refusal::Uncommitted(line.get(3..).unwrap_or(line).to_owned())),
        None => Ok(()),
    }
}

const SOURCE: &str = "crates/wheellock/src/";
const ACQUIRE: &str = "crates/wheellock/src/scripts/acquire.lua";
const RELEASE: &str = "crates/wheellock/src/scripts/release.lua";

const COMMON: &str = include_str!("new_kind/common.txt");
const PLAIN: &str = include_str!("new_kind/plain.txt");
const LOCK: &str = include_str!("new_kind/lock.txt");
const FACE: &str = include_str!("new_kind/face.txt");

#[cfg(test)]
mod tests {
    use super::*;

    const LIKE: [&str; 4] = ["fenced", "fair", "simple", "write"];

    fn today(path: &str) -> Option<String> {
        fs::read_to_string(run::root().join(path)).ok()
    }

    fn refusal(read: Read<'_>, name: &str) -> Refusal {
        plan(read, &Options::new(name, true, None)).unwrap_err().downcast().unwrap()
    }

    #[test]
    fn insertions_find_places_in_todays_sources() {
        let plain = [(false, None), (true, None)];
        for (has_face, like) in plain.into_iter().chain(LIKE.map(|like| (false, Some(like)))) {
            let plan = plan(&today, &Options::new("long_ladder", has_face, like)).unwrap();
            for (path, File { text, is_new }) in &plan {
                let old = today(path);
                assert_eq!(old.is_none(), *is_new, "{path}");
                let old = old.unwrap_or_default();
                let placeholders = ["%name", "%Name", "%NAME", "%words", "%as_lock", "%stubs", "%like"];
                let added: Vec<_> = text.lines().filter(|line| !old.contains(line)).collect();
                assert!(!added.is_empty(), "{path}");
                assert!(
                    added.iter().all(|line| !placeholders.iter().any(|word| line.contains(word))),
                    "{path}"
                );
                let mut rest = text.lines();
                assert!(old.lines().all(|line| rest.any(|new| new == line)), "{path} keeps its lines");
                if path.ends_with(".rs") {
                    let parsed = syn::parse_file(text);
                    assert!(parsed.is_ok(), "{path}: {:?}", parsed.err());
                }
            }
        }
    }

    #[test]
    fn stub_adds_head_to_plain_script() {
        let plan = plan(&today, &Options::new("ladder", false, None)).unwrap();
        for (stub, plain) in [("acquire", ACQUIRE), ("release", RELEASE)] {
            let (stub, plain) =
                (&plan[&format!("{SOURCE}scripts/ladder/{stub}.lua")].text, today(plain).unwrap());
            assert_eq!(body(stub), body(&plain));
            for word in ["-- KEYS[1]", "-- ARGV[3]", "-- Returns"] {
                assert!(stub.contains(word), "{stub}");
            }
            assert_ne!(*stub, plain, "servers and the model know a script by its text");
        }
    }

    #[test]
    fn test_lists_files_with_stubs() {
        let listed = |has_face| {
            let plan = plan(&today, &Options::new("ladder", has_face, None)).unwrap();
            let test = plan["tests/tests/it/ladder.rs"].text.clone();
            plan.keys().filter(|path| test.contains(&format!("    \"{path}\",\n"))).count()
        };
        assert_eq!((listed(false), listed(true)), (5, 7));
    }

    #[test]
    fn copy_has_row_and_scripts() {
        let options =
            Options { own: vec!["acquire".to_owned()], ..Options::new("ladder", false, Some("write")) };
        let plan = plan(&today, &options).unwrap();
        let rows = &plan[&format!("{SOURCE}kind/mod.rs")].text;
        assert!(rows.contains(r#"label: "ladder_lock""#));
        assert!(rows.contains(r#"lua!("write/grant.lua", "ladder/acquire.lua")"#));
        let scripts: Vec<_> = plan.keys().filter(|path| path.contains("/scripts/")).collect();
        assert_eq!(scripts, [&format!("{SOURCE}scripts/ladder/acquire.lua")]);
        let constructors = &plan[&format!("{SOURCE}manager/mod.rs")].text;
        assert!(constructors.contains("[&kind::READ, &kind::LADDER]"));
    }

    #[test]
    fn unknown_model_is_refused() {
        for like in ["ladder", "reentrant", "semaphore", "latch", ""] {
            let error = plan(&today, &Options::new("ladder", false, Some(like))).unwrap_err();
            assert_eq!(error.downcast::<Refusal>().unwrap(), Refusal::NotLike(like.to_owned()));
        }
    }

    #[test]
    fn known_or_invalid_name_is_refused() {
        for name in ["", "Ladder", "ladder__x", "_ladder", "2nd", "a-b", "match", "../x", "leiter_ä"] {
            assert_eq!(refusal(&today, name), Refusal::NoIdentifier(name.to_owned()));
        }
        for name in ["fenced", "read_write", "simple", "spin", "write", "election", "mark", "main", "permits"]
        {
            let refusal = refusal(&today, name);
            assert!(matches!(refusal, Refusal::Exists(_)), "{name}: {refusal}");
        }
    }

    #[test]
    fn missing_or_repeated_point_is_refused() {
        let path = format!("{SOURCE}kind/mod.rs");
        for new in ["", "// new-kind: rows\n    // new-kind: rows"] {
            let read =
                |wanted: &str| {
                    today(wanted).map(|text| {
                        if wanted == path { text.replace("// new-kind: rows", new) } else { text }
                    })
                };
            let place = "above // new-kind: rows".to_owned();
            assert_eq!(refusal(&read, "ladder"), Refusal::NoPlace { path: path.clone(), place });
        }
    }

    #[test]
    fn line_keeps_sorted_order() {
        let text = "mod a;\nmod c;\n\nfn f() {}\n";
        let added = |line: &str| inserted(text, "among mod", line).unwrap();
        assert_eq!(added("mod b;\n"), "mod a;\nmod b;\nmod c;\n\nfn f() {}\n");
        assert_eq!(added("mod d;\n"), "mod a;\nmod c;\nmod d;\n\nfn f() {}\n");
        assert_eq!(inserted(text, "among use", "use x;\n"), None);
    }
}
