//! The tables in docs/reliability.md that are made from the sources, so that they cannot be wrong about them: promises, from
//! what the tests say of themselves, and planted bugs. Owns the marks in the page and the form of a line.
//!
//! A test that shows one says so in its documentation, which begins with the promise's id: `/// A1: what is promised.`

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::planted::{self, Planted};
use crate::tidy::{Complaint, File};

pub(crate) const PAGE: &str = "docs/reliability.md";
/// Where a table begins, and what it is made from.
const TABLES: [(&str, Table); 2] = [
    ("<!-- Made by `cargo xtask tidy --write` from the documentation of the tests. -->\n", table_of_promises),
    ("<!-- Made by `cargo xtask tidy --write` from `tests/planted`. -->\n", table_of_bugs),
];
type Table = fn(&[File]) -> String;
const END: &str = "<!-- End of what was made. -->\n";

/// Other letters are rows of catalogues that the page tells of by itself.
const LETTERS: std::ops::RangeInclusive<char> = 'A'..='E';

/// A promise's id in the order in which people count, then its tests.
type Promises<'a> = BTreeMap<(char, u32), Vec<Promise<'a>>>;

struct Promise<'a> {
    text: String,
    test: &'a str,
    file: &'a str,
}

/// A complaint if the page does not say what the tests say.
pub(crate) fn told(files: &[File]) -> Option<Complaint> {
    let page = files.iter().find(|file| file.path == PAGE)?;
    let wanted = rewritten(&page.text, files);
    (wanted.as_deref() != Some(&*page.text))
        .then(|| Complaint::of(PAGE, "its tables are not what the sources say: `cargo xtask tidy --write`"))
}

/// The page with the tables as the sources have them; `None` if the page has no place for one.
pub(crate) fn rewritten(page: &str, files: &[File]) -> Option<String> {
    TABLES.iter().try_fold(page.to_owned(), |page, (begin, table)| {
        let (before, rest) = page.split_once(begin)?;
        let (_, after) = rest.split_once(END)?;
        Some(format!("{before}{begin}\n{}\n{END}{after}", table(files)))
    })
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

/// The id and the text behind it, if a line begins with an id.
fn promise(line: &str) -> Option<((char, u32), &str)> {
    let (id, text) = line.split_once(": ")?;
    let mut chars = id.chars();
    let letter = chars.next().filter(|letter| LETTERS.contains(letter))?;
    Some(((letter, chars.as_str().parse().ok()?), text))
}

/// Nothing in a cell may end it.
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
        let begin = TABLES.map(|(begin, _)| begin);
        let page = format!("# Page\n{}old\n{END}between\n{}{END}tail\n", begin[0], begin[1]);
        let patch = "bug: b\ncaught by: p locks t\n\nf\n-x\n";
        let mut files = vec![
            file("tests/planted/b.patch", patch),
            file("tests/tests/waits.rs", tests),
            file(PAGE, &page),
        ];
        assert!(told(&files).is_some(), "the page is old");
        let new = rewritten(&page, &files).unwrap();
        let rows: Vec<_> = new.lines().filter(|line| line.starts_with("| A")).collect();
        assert_eq!(
            rows,
            ["| A2 | `Ok(a \\| b)` | `early` (waits) |", "| A10 | two lines, one promise | `late` (waits) |"]
        );
        assert!(new.contains("| b | `t` (locks) |"));
        assert!(new.starts_with("# Page\n") && new.contains("\nbetween\n") && new.ends_with("tail\n"));
        files[2].text = new;
        assert_eq!(told(&files), None);
        assert!(told(&[file(PAGE, "no place for it")]).is_some());
    }
}
