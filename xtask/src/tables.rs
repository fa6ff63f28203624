//! Parts of pages that are generated from the sources.
//!
//! Generated parts cannot contradict the sources. There are three: promises, from the tests' documentation; planted bugs; and the map of
//! files, from their first sentences. This module defines the marks in the pages and the form of a line.
//!
//! The documentation of a test that shows a promise begins with the promise's id, as in `/// A1: the promise.`

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::circles;
use crate::files::{Complaint, File, SHIPPED};
use crate::planted::{self, Planted};

const BEGIN: &str = "<!-- Made by `cargo xtask tidy --write` from ";
const END: &str = "<!-- End of what was made. -->\n";

/// A page, the mark behind [`BEGIN`], and the generator.
const MADE: [(&str, &str, Table); 3] = [
    ("docs/reliability/promises.md", "the documentation of the tests. -->\n", table_of_promises),
    ("docs/reliability/bugs.md", "`tests/planted`. -->\n", table_of_bugs),
    ("docs/tables/files.md", "the first sentences of the files. -->\n", map_of_files),
];
type Table = fn(&[File]) -> String;

/// The letters of promises. Other letters are rows of catalogues, which the page describes by itself.
const LETTERS: std::ops::RangeInclusive<char> = 'A'..='E';

/// The ids of promises in numerical order, each with its tests.
type Promises<'a> = BTreeMap<(char, u32), Vec<Promise<'a>>>;

struct Promise<'a> {
    text: String,
    test: &'a str,
    file: &'a str,
}

/// Returns a complaint for every page whose generated parts differ from the sources.
pub(crate) fn told(files: &[File]) -> Vec<Complaint> {
    let what = "what is made from the sources is old: `cargo xtask tidy --write`";
    let old = |page: &File| rewritten(page, files).as_ref() != Some(&page.text);
    pages(files).filter(|page| old(page)).map(|page| Complaint::of(&*page.path, what)).collect()
}

/// Returns the pages with generated parts.
pub(crate) fn pages(files: &[File]) -> impl Iterator<Item = &File> {
    files.iter().filter(|file| MADE.iter().any(|(page, ..)| file.path == *page))
}

/// Returns the page with its parts generated from the sources. Returns `None` if the page has no place for a part.
pub(crate) fn rewritten(page: &File, files: &[File]) -> Option<String> {
    let parts = MADE.iter().filter(|(path, ..)| page.path == *path);
    parts.into_iter().try_fold(page.text.clone(), |text, (_, from, table)| {
        let begin = format!("{BEGIN}{from}");
        let (before, rest) = text.split_once(&begin)?;
        let (_, after) = rest.split_once(END)?;
        Some(format!("{before}{begin}\n{}\n{END}{after}", table(files)))
    })
}

/// Returns the list of files of the shipped crates and of the tests' support. Each crate is listed from top to bottom: no file imports a
/// file above it.
fn map_of_files(files: &[File]) -> String {
    let shipped = SHIPPED.iter().rev().map(|(name, _)| (format!("`{name}`"), format!("crates/{name}/src/")));
    let support = ("What the tests stand on: `tests/src`".to_owned(), "tests/src/".to_owned());
    let mut map = String::new();
    for (title, source) in shipped.chain([support]) {
        let _infallible = write!(map, "### {title}\n\n");
        for path in circles::from_top_to_bottom(files, &source) {
            let file = files.iter().find(|file| file.path.strip_prefix(&*source) == Some(&path));
            let sentence = file.and_then(|file| first_sentence(&file.text)).unwrap_or_default();
            let _infallible = writeln!(map, "- **{path}**: {sentence}");
        }
        map.push('\n');
    }
    map.truncate(map.trim_end().len() + 1);
    map
}

/// Returns the first sentence of the documentation at a file's head.
fn first_sentence(text: &str) -> Option<String> {
    let head = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
    let head = head.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    let ends = |at: &usize| head.get(at + 2..).is_some_and(|rest| rest.starts_with(char::is_uppercase));
    let end = head.match_indices(". ").map(|(at, _)| at).find(ends);
    let end = end.unwrap_or(head.trim_end_matches('.').len());
    head.get(..end).map(str::to_owned)
}

fn table_of_bugs(files: &[File]) -> String {
    let mut table = "| Bug | Caught by |\n|---|---|\n".to_owned();
    for file in files.iter().filter(|file| file.path.starts_with(planted::FOLDER)) {
        if let Ok(Planted { bug, target, test, .. }) = Planted::parse(&file.text) {
            let target = if target == "--lib" { String::new() } else { format!(" ({target})") };
            let _infallible = writeln!(table, "| {bug} | `{test}`{target} |");
        }
    }
    table
}

fn table_of_promises(files: &[File]) -> String {
    let mut promises = Promises::new();
    for file in files.iter().filter(|file| file.path.ends_with(".rs") && !file.path.starts_with("xtask/")) {
        collect(file, &mut promises);
    }
    let mut table = "| | Promise | Test |\n|---|---|---|\n".to_owned();
    for ((letter, number), promises) in promises {
        for Promise { text, test, file } in promises {
            let _infallible = writeln!(table, "| {letter}{number} | {text} | `{test}` ({file}) |");
        }
    }
    table
}

fn collect<'a>(file: &'a File, promises: &mut Promises<'a>) {
    let stem = file.path.rsplit('/').next().unwrap_or_default().trim_end_matches(".rs");
    let mut lines = file.text.lines().map(str::trim_start);
    while let Some(line) = lines.next() {
        let Some((id, first)) = line.strip_prefix("/// ").and_then(promise) else { continue };
        let mut text = first.to_owned();
        for line in lines.by_ref() {
            if let Some(more) = line.strip_prefix("///") {
                text.push_str(more);
            } else if let Some((_, rest)) = line.split_once("fn ") {
                let test = rest.split(['(', '<']).next().unwrap_or_default();
                promises.entry(id).or_default().push(Promise { text: in_a_cell(&text), test, file: stem });
                break;
            }
        }
    }
}

/// Returns the id and the text behind it, if a line begins with an id.
fn promise(line: &str) -> Option<((char, u32), &str)> {
    let (id, text) = line.split_once(": ")?;
    let mut chars = id.chars();
    let letter = chars.next().filter(|letter| LETTERS.contains(letter))?;
    Some(((letter, chars.as_str().parse().ok()?), text))
}

/// Escapes the text for a table cell.
fn in_a_cell(text: &str) -> String {
    text.trim_end_matches('.').replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn the_page_follows_the_tests() {
        let tests = "    /// A10: two lines,\n    /// one promise.\n    #[test]\n    fn late() {}\n\n\
                     /// A2: `Ok(a | b)`.\n#[tokio::test]\nasync fn early() {}\n/// K1: another catalogue's.\nfn helper() {}\n";
        let begin = |number: usize| format!("{BEGIN}{}", MADE[number].1);
        let page = |number: usize| format!("# Page\n{}old\n{END}tail\n", begin(number));
        let patch = "bug: b\ncaught by: p locks t\n\nf\n-x\n";
        let mut files = vec![
            file("tests/planted/b.patch", patch),
            file("tests/tests/waits.rs", tests),
            file(MADE[0].0, &page(0)),
            file(MADE[1].0, &page(1)),
        ];
        assert_eq!(told(&files).len(), 2, "both pages are old");
        let promises = rewritten(&files[2], &files).unwrap();
        let rows: Vec<_> = promises.lines().filter(|line| line.starts_with("| A")).collect();
        assert_eq!(
            rows,
            ["| A2 | `Ok(a \\| b)` | `early` (waits) |", "| A10 | two lines, one promise | `late` (waits) |"]
        );
        assert!(promises.starts_with("# Page\n") && promises.ends_with("tail\n"));
        let bugs = rewritten(&files[3], &files).unwrap();
        assert!(bugs.contains("| b | `t` (locks) |"));
        (files[2].text, files[3].text) = (promises, bugs);
        assert_eq!(told(&files), []);
        assert_eq!(told(&[file(MADE[0].0, "no place for it")]).len(), 1);
    }

    #[test]
    fn map_lists_dependents_first() {
        let files = [
            file("crates/wheellock/src/lib.rs", "//! The crate.\nmod a;"),
            file("crates/wheellock/src/a.rs", "//! Values, e.g. numbers. Owns them."),
            file("crates/wheellock/src/b.rs", "//! A face\n//! of two lines. More.\nuse crate::a;"),
            file("crates/wheellock/src/b/part.rs", "//! Its part\n\nuse crate::a;"),
        ];
        let map = map_of_files(&files);
        let lines: Vec<_> = map.lines().filter(|line| line.starts_with("- ")).collect();
        assert_eq!(
            lines,
            [
                "- **b.rs**: A face of two lines",
                "- **b/part.rs**: Its part",
                "- **a.rs**: Values, e.g. numbers"
            ]
        );
    }
}
