//! Marks that link the promises of user pages to tests.
//!
//! This module defines the form of a mark, and the pages that need a mark for each block. A mark is a comment in the page's source, so
//! readers do not see it:
//!
//! ```text
//! <!-- test: wheellock-tests locks::a_test, waits::another_test; wheellock lease::a_unit_test -->
//! <!-- no test: why this block promises nothing -->
//! ```
//!
//! A mark belongs to the block that contains it or precedes it: a paragraph, a list item, or a row of a table. A mark behind a table
//! belongs to all of its rows.

use std::collections::BTreeSet;

use crate::files::{Complaint, File};

/// Pages whose blocks need marks, and the sections that need them. An empty list means all sections.
const PAGES: [(&str, &[&str]); 5] = [
    ("README.md", &["What sets it apart", "What is promised, and what is not"]),
    ("docs/guide.md", &[]),
    ("docs/guarantees.md", &[]),
    ("docs/connection.md", &[]),
    ("docs/tables/connection.md", &[]),
];

/// The packages with tests, and their folders.
const PACKAGES: [(&str, &str); 10] = [
    ("wheellock-tests", "tests/"),
    ("wheellock", "crates/wheellock/"),
    ("wheellock-client", "crates/wheellock-client/"),
    ("wheellock-cli", "crates/wheellock-cli/"),
    ("wheellock-resp", "crates/wheellock-resp/"),
    ("wheellock-wheel", "crates/wheellock-wheel/"),
    ("wheellock-fencing", "examples/fencing/"),
    ("wheellock-service", "examples/service/"),
    ("wheellock-benches", "benches/"),
    ("xtask", "xtask/"),
];

/// Returns a complaint for each block without a mark, and for each mark whose test does not exist.
pub(crate) fn unheld(files: &[File]) -> Vec<Complaint> {
    let tests = tests(files);
    let mut complaints = Vec::new();
    for page in files {
        let Some((_, sections)) = PAGES.iter().find(|(path, _)| page.path == *path) else { continue };
        for block in blocks(&page.text) {
            let is_needed = sections.is_empty() || sections.contains(&block.section.as_str());
            if block.marks.is_empty() && is_needed {
                let what =
                    "names no test: add `<!-- test: package module::name -->`, or `<!-- no test: why -->`";
                complaints.push(Complaint::at(page, block.line, what));
            }
            for mark in &block.marks {
                complaints.extend(unknown(mark, &tests).map(|what| Complaint::at(page, block.line, what)));
            }
        }
    }
    complaints
}

/// A paragraph, a list item, or a row of a table.
#[derive(Debug, Default)]
struct Block {
    section: String,
    line: usize,
    marks: Vec<Mark>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Mark {
    /// The tests by package.
    Tests(Vec<(String, Vec<String>)>),
    /// The reason why there is no test.
    None(String),
}

/// Reads a page. Headings, code, heads of tables and definitions of links are not blocks.
fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut section, mut is_code, mut is_open, mut is_comment) = (String::new(), false, false, false);
    let mut rows = None;
    let mut lines = text.lines().enumerate().peekable();
    while let Some((number, line)) = lines.next() {
        let trimmed = line.trim();
        if trimmed.starts_with("```") {
            (is_code, is_open) = (!is_code, false);
        } else if is_comment {
            is_comment = !trimmed.ends_with("-->");
        } else if is_code {
        } else if let Some(mark) = trimmed.strip_prefix("<!--") {
            let mark = mark.strip_suffix("-->").map(str::trim);
            is_comment = mark.is_none();
            let first = rows.unwrap_or(blocks.len().saturating_sub(1));
            let mark = mark.and_then(Mark::parse);
            blocks.iter_mut().skip(first).for_each(|block| block.marks.extend(mark.clone()));
            is_open = false;
        } else if let Some(title) = trimmed.strip_prefix('#') {
            section = title.trim_start_matches('#').trim().to_owned();
            (is_open, rows) = (false, None);
        } else if trimmed.is_empty() {
            is_open = false;
        } else if trimmed.starts_with('|') {
            let is_separator = |line: &str| line.trim().starts_with("|---");
            let is_head = lines.peek().is_some_and(|(_, next)| is_separator(next));
            if is_head {
                rows = Some(blocks.len());
            } else if !is_separator(line) {
                let marks = marks_within(trimmed);
                blocks.push(Block { section: section.clone(), line: number, marks });
            }
            is_open = false;
        } else if is_definition(trimmed) {
            is_open = false;
        } else {
            if !is_open || trimmed.starts_with("- ") {
                blocks.push(Block { section: section.clone(), line: number, ..Block::default() });
            }
            (is_open, rows) = (true, None);
            let marks = marks_within(trimmed);
            blocks.last_mut().into_iter().for_each(|block| block.marks.extend(marks.clone()));
        }
    }
    blocks
}

/// Returns true for `[name]: target`, and for a line with only an image.
fn is_definition(line: &str) -> bool {
    line.starts_with("![") || (line.starts_with('[') && line.contains("]: "))
}

/// Returns the marks within a line.
fn marks_within(line: &str) -> Vec<Mark> {
    let comments = line.split("<!--").skip(1).filter_map(|rest| rest.split_once("-->"));
    comments.filter_map(|(mark, _)| Mark::parse(mark.trim())).collect()
}

impl Mark {
    fn parse(text: &str) -> Option<Self> {
        if let Some(why) = text.strip_prefix("no test: ") {
            return Some(Self::None(why.to_owned()));
        }
        let packages = text.strip_prefix("test: ")?.split("; ");
        let tests = packages.map(|part| {
            let (package, tests) = part.split_once(' ').unwrap_or((part, ""));
            (package.to_owned(), tests.split(", ").map(str::to_owned).collect())
        });
        Some(Self::Tests(tests.collect()))
    }
}

/// Returns a complaint for each unknown test of a mark.
fn unknown<'a>(mark: &'a Mark, tests: &'a BTreeSet<(&str, String)>) -> impl Iterator<Item = String> + 'a {
    let packages = match mark {
        Mark::Tests(packages) => packages.as_slice(),
        Mark::None(_) => &[],
    };
    packages.iter().flat_map(move |(package, names)| {
        names.iter().filter(move |name| !exists(package, name, tests)).map(move |name| {
            let package = if package.is_empty() { "no package" } else { package };
            format!("there is no test `{name}` in {package}")
        })
    })
}

/// Returns true if the package has a test of this name, preceded by at least one of its modules.
fn exists(package: &str, name: &str, tests: &BTreeSet<(&str, String)>) -> bool {
    let ends =
        |test: &str| test.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with("::"));
    name.contains("::") && tests.iter().any(|(of, test)| *of == package && ends(test))
}

/// Returns all tests: the package, and the path of modules from the file's path.
fn tests(files: &[File]) -> BTreeSet<(&'static str, String)> {
    let mut tests = BTreeSet::new();
    for file in files {
        // The table lists the longest folder first: `tests/` contains no other package.
        let package = PACKAGES.iter().find(|(_, folder)| file.path.starts_with(folder));
        let (Some((package, folder)), Some(path)) = (package, file.path.strip_suffix(".rs")) else {
            continue;
        };
        // A test module in its own file belongs to the module beside it.
        let parts = path.strip_prefix(folder).unwrap_or(path).split('/');
        let module = parts.filter(|part| !["tests", "mod"].contains(part)).collect::<Vec<_>>().join("::");
        let mut is_test = false;
        for line in file.text.lines().map(str::trim) {
            if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                is_test = true;
            } else if is_test && let Some((_, rest)) = line.split_once("fn ") {
                is_test = false;
                let name = rest.split(['(', '<']).next().unwrap_or_default();
                tests.insert((*package, format!("{module}::{name}")));
            }
        }
    }
    tests
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "docs/guarantees.md";

    fn complaints(page: &str) -> Vec<String> {
        let file = |path: &str, text: &str| File { path: path.into(), text: text.into() };
        let test = "#[tokio::test]\nasync fn it_holds() {}\nfn no_test() {}\n";
        let files = [
            file("tests/tests/it/locks.rs", test),
            file("crates/wheellock/src/table/holds/model.rs", "    #[test]\n    fn a_unit() {}\n"),
            file(PAGE, page),
        ];
        unheld(&files).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn marked_blocks_are_fine() {
        let page = "# Page\n\nA promise\nof two lines.\n<!-- test: wheellock-tests locks::it_holds; wheellock model::a_unit -->\n\n\
                    - One. <!-- test: wheellock holds::model::a_unit -->\n- Two.\n  <!-- no test: it says why -->\n\n\
                    ```rust\nlet not_a_block = 1;\n```\n\n\
                    | a | b |\n|---|---|\n| c | d |\n| e | f |\n\n<!-- test: wheellock-tests locks::it_holds -->\n\n[a]: b.md\n";
        assert_eq!(complaints(page), [""; 0]);
    }

    #[test]
    fn unmarked_blocks_are_named() {
        let page = "# Page\n\nA promise.\n\n- One. <!-- no test: why -->\n- Two.\n\n| a |\n|---|\n| c <!-- no test: why --> |\n| d |\n";
        let lines: Vec<_> =
            complaints(page).iter().map(|line| line.split(": ").next().unwrap().to_owned()).collect();
        assert_eq!(lines, ["docs/guarantees.md:3", "docs/guarantees.md:6", "docs/guarantees.md:11"]);
    }

    #[test]
    fn missing_tests_are_named() {
        for (mark, missing) in [
            ("wheellock-tests locks::gone", "`locks::gone` in wheellock-tests"),
            ("wheellock-tests locks::no_test", "`locks::no_test` in wheellock-tests"),
            ("wheellock locks::it_holds", "`locks::it_holds` in wheellock"),
            ("wheellock-tests it_holds", "`it_holds` in wheellock-tests"),
            ("wheellock-tests cks::it_holds", "`cks::it_holds` in wheellock-tests"),
        ] {
            let told = complaints(&format!("A promise.\n<!-- test: {mark} -->\n"));
            assert_eq!(told, [format!("{PAGE}:1: there is no test {missing}")]);
        }
    }
}
