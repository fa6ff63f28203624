//! Shape of the shipped sources.
//!
//! The lengths of functions and the numbers of entries in folders are limited.

use std::collections::BTreeSet;

use crate::files::{Complaint, File, SHIPPED};

/// Maximum number of lines of a function: one screen.
const MOST_LINES: usize = 70;

/// Maximum number of entries of a crate's `src`: one for each layer.
const ENTRIES: [(&str, usize); 2] = [("crates/wheellock/src/", 16), ("crates/wheellock-client/src/", 12)];

/// Returns a complaint for each function of shipped code that does not fit on a screen.
pub(crate) fn long_functions(files: &[File]) -> Vec<Complaint> {
    let is_shipped = |path: &str| {
        let parts: Vec<_> = path.split(['/', '.']).collect();
        let is_test =
            ["tests", "model", "models", "oracle", "testing"].iter().any(|name| parts.contains(name));
        path.ends_with(".rs")
            && !is_test
            && SHIPPED.iter().any(|(name, _)| path.starts_with(&format!("crates/{name}/src/")))
    };
    let mut complaints = Vec::new();
    for file in files.iter().filter(|file| is_shipped(&file.path)) {
        for Function { name, line, lines } in functions(&file.text) {
            if lines > MOST_LINES {
                let what = format!("`{name}` has {lines} lines; {MOST_LINES} fit on a screen");
                complaints.push(Complaint::at(file, line, what));
            }
        }
    }
    complaints
}

/// A function: its name, its first line counted from 0, its number of lines.
#[derive(Debug, PartialEq, Eq)]
struct Function<'a> {
    name: &'a str,
    line: usize,
    lines: usize,
}

/// Returns the functions before the first inline test module. A nested function is part of the outer one.
fn functions(text: &str) -> Vec<Function<'_>> {
    let mut found = Vec::new();
    let mut open: Option<(usize, &str, usize)> = None;
    for (number, line) in text.lines().enumerate() {
        let is_tests = line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test");
        let is_inline = || {
            let mut after = text.lines().skip(number + 1).filter(|line| !line.starts_with('#'));
            after.next().is_some_and(|line| line.starts_with("mod ") && line.ends_with('{'))
        };
        if is_tests && is_inline() {
            break;
        }
        let indent = line.len() - line.trim_start().len();
        match open {
            None => open = name_of(line).map(|name| (indent, name, number)),
            Some((outer, name, start)) if indent == outer && line.trim() == "}" => {
                found.push(Function { name, line: start, lines: number - start + 1 });
                open = None;
            }
            // A declaration without a body.
            Some((outer, _, start)) if indent == outer && number == start + 1 && line.is_empty() => {
                open = None;
            }
            Some(_) => {}
        }
    }
    found
}

fn name_of(line: &str) -> Option<&str> {
    let mut words = line.trim_start().split([' ', '(', '<']);
    let is_before = |word: &&str| {
        ["pub", "const", "async", "crate)", "super)", "in"].contains(word) || word.starts_with("crate::")
    };
    let word = words.find(|word| !is_before(word) && !word.is_empty())?;
    if word != "fn" || line.trim_end().ends_with([';', '}']) {
        return None;
    }
    words.next()
}

/// Returns a complaint for each crate with more layers than a reader finds at a glance.
pub(crate) fn crowded_folders(files: &[File]) -> Vec<Complaint> {
    let entries = |folder: &str| {
        let below = files.iter().filter_map(|file| file.path.strip_prefix(folder));
        below.filter_map(|path| path.split('/').next()).collect::<BTreeSet<_>>().len()
    };
    ENTRIES
        .iter()
        .filter_map(|(folder, most)| {
            let entries = entries(folder);
            let what = format!("has {entries} entries; {most} is the limit");
            (entries > *most).then(|| Complaint::of(*folder, what))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: String) -> File {
        File { path: path.into(), text }
    }

    #[test]
    fn function_beyond_screen_is_refused() {
        let function = |lines: usize| {
            format!("pub(crate) async fn long<T>(\n) {{\n{}}}\n", "    x();\n".repeat(lines - 3))
        };
        let of = |lines| long_functions(&[file("crates/wheellock/src/a.rs", function(lines))]);
        assert_eq!(of(MOST_LINES), []);
        assert_eq!(of(MOST_LINES + 1).len(), 1);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", function(200));
        assert_eq!(long_functions(&[file("crates/wheellock/src/a.rs", tests)]), []);
    }

    #[test]
    fn methods_have_names_and_lengths() {
        let text =
            "impl A {\n    fn one(&self) {\n        {\n        }\n    }\n    const fn two() -> u8 { 2 }\n}\n";
        assert_eq!(functions(text), [Function { name: "one", line: 1, lines: 4 }]);
    }

    #[test]
    fn crowded_folder_is_refused() {
        let files: Vec<_> =
            (0..17).map(|number| file(&format!("crates/wheellock/src/{number}.rs"), String::new())).collect();
        assert_eq!(crowded_folders(&files).len(), 1);
        assert_eq!(crowded_folders(&files[..16]), []);
    }
}
