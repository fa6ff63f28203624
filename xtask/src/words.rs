//! Share of plain sentences in comments and pages.
//!
//! This module has the words that hide an actor, and the ceiling of each place. A ceiling is the number of sentences that are not plain
//! yet. It may only fall: `tidy --write` lowers it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::files::{Complaint, File};

/// Ceilings by place: `place starts hidden`.
pub(crate) const CEILINGS: &str = "tests/words.txt";

/// First words of a sentence without a subject.
const STARTS: [&str; 9] =
    ["Who", "Whom", "Whoever", "Whose", "What", "Whatever", "Whichever", "Of those", "Of whom"];

/// Words that hide the actor. Each is between spaces.
const HIDDEN: [&str; 33] = [
    "whoever",
    "nobody",
    "somebody",
    "whom",
    "those who",
    "one who",
    "that one",
    "another one",
    "so many",
    "so often",
    "so long as",
    "who asks",
    "who waits",
    "who comes",
    "who leaves",
    "who listens",
    "who holds",
    "who has",
    "who reads",
    "who wants",
    "who is",
    "nothing is",
    "has none",
    "what is",
    "what was",
    "what has",
    "what it",
    "what they",
    "what came",
    "what follows",
    "what waits",
    "what belongs",
    "what goes",
];

/// Numbers of sentences of a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    starts: usize,
    hidden: usize,
}

/// Returns a complaint for every place with more sentences than its ceiling.
pub(crate) fn above_ceilings(files: &[File]) -> Vec<Complaint> {
    let ceilings = ceilings(files);
    let mut complaints = Vec::new();
    for (place, count) in counts(files) {
        let ceiling = ceilings.get(&place).copied().unwrap_or_default();
        for (what, count, ceiling) in [
            ("begin with Who or What", count.starts, ceiling.starts),
            ("hide who acts", count.hidden, ceiling.hidden),
        ] {
            if count > ceiling {
                let what = format!("{count} sentences {what}; the ceiling is {ceiling} ({CEILINGS})");
                complaints.push(Complaint::of(&*place, what));
            }
        }
    }
    complaints
}

/// Returns the ceilings, lowered to the current counts.
pub(crate) fn lowered(files: &[File]) -> String {
    let ceilings = ceilings(files);
    let mut text = "# Sentences that begin with Who or What, and sentences that hide who acts, by place.\n\
                    # `cargo xtask tidy --write` lowers these ceilings. They must not rise.\n"
        .to_owned();
    for (place, Count { starts, hidden }) in counts(files) {
        let ceiling = ceilings.get(&place).copied().unwrap_or_default();
        let (starts, hidden) = (starts.min(ceiling.starts), hidden.min(ceiling.hidden));
        if (starts, hidden) != (0, 0) {
            writeln!(text, "{place} {starts} {hidden}").expect("a string takes all text");
        }
    }
    text
}

fn ceilings(files: &[File]) -> BTreeMap<String, Count> {
    let file = files.iter().find(|file| file.path == CEILINGS);
    let lines = file.into_iter().flat_map(|file| file.text.lines());
    let read = |line: &str| {
        let mut words = line.split(' ');
        let place = words.next().filter(|place| *place != "#")?.to_owned();
        let mut number = || words.next().and_then(|word| word.parse().ok());
        Some((place, Count { starts: number()?, hidden: number()? }))
    };
    lines.filter_map(read).collect()
}

fn counts(files: &[File]) -> BTreeMap<String, Count> {
    let mut counts: BTreeMap<String, Count> = BTreeMap::new();
    for file in files {
        let Some(place) = place(&file.path) else { continue };
        let count = counts.entry(place).or_default();
        for sentence in paragraphs(file).iter().flat_map(|paragraph| sentences(paragraph)) {
            count.starts += usize::from(has_no_subject(sentence));
            count.hidden += usize::from(hides_its_actor(sentence));
        }
    }
    counts
}

/// Returns the crate, folder or page to which a file's sentences count.
fn place(path: &str) -> Option<String> {
    if !path.ends_with(".rs") && !path.ends_with(".lua") && !path.ends_with(".md") {
        return None;
    }
    let mut parts = path.split('/');
    let first = parts.next()?;
    match (first, parts.next()) {
        ("crates", Some(name)) => Some(format!("crates/{name}")),
        ("docs", Some(_)) => Some(path.to_owned()),
        _ => Some(first.to_owned()),
    }
}

/// Returns the paragraphs of comments, or of a page, without code, tables and headings.
fn paragraphs(file: &File) -> Vec<String> {
    let is_page = file.path.ends_with(".md");
    let mut paragraphs = vec![String::new()];
    let mut is_code = false;
    for line in file.text.lines() {
        let line = line.trim();
        let text = if is_page { Some(line) } else { comment(line) };
        let is_fence = text.is_some_and(|text| text.starts_with("```"));
        is_code ^= is_fence;
        let item = text.and_then(|text| text.strip_prefix("- ").or_else(|| text.strip_prefix("* ")));
        let text = text.filter(|text| !text.is_empty() && !is_code && !is_fence);
        match (text, item) {
            (Some(_), Some(item)) => {
                paragraphs.push(item.to_owned());
                paragraphs.push(String::new());
            }
            (Some(text), None) if !text.starts_with(['|', '#', '<', '[']) => {
                if let Some(last) = paragraphs.last_mut() {
                    last.push_str(if last.is_empty() { "" } else { " " });
                    last.push_str(text);
                }
            }
            _ => paragraphs.push(String::new()),
        }
    }
    paragraphs
}

fn comment(line: &str) -> Option<&str> {
    ["///", "//!", "//", "--"].iter().find_map(|mark| line.strip_prefix(mark)).map(str::trim)
}

/// Splits at an end of a sentence before a capital, a backtick or a bracket. Leaves out sentences of fewer than three words.
fn sentences(paragraph: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut start = 0;
    for (at, _) in paragraph.match_indices(' ') {
        let before = paragraph.get(..at).unwrap_or_default();
        let after = paragraph.get(at + 1..).unwrap_or_default();
        if before.ends_with(['.', '!', '?', ':', ';'])
            && after.starts_with(|c: char| c.is_ascii_uppercase() || c == '`' || c == '[')
        {
            found.push(paragraph.get(start..at).unwrap_or_default());
            start = at + 1;
        }
    }
    found.push(paragraph.get(start..).unwrap_or_default());
    found.retain(|sentence| sentence.split_whitespace().count() >= 3);
    found
}

fn has_no_subject(sentence: &str) -> bool {
    STARTS.iter().any(|start| {
        let rest = sentence.strip_prefix(start);
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    })
}

fn hides_its_actor(sentence: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let spaced: String = sentence.chars().map(|c| if is_word(c) || c == '\'' { c } else { ' ' }).collect();
    let words: Vec<_> = spaced.split(' ').filter(|word| !word.is_empty()).map(str::to_lowercase).collect();
    let text = format!(" {} ", words.join(" "));
    let is_no = || {
        words
            .windows(3)
            .any(|three| matches!(three, [there, is, no] if is == "is" && no == "no" && there != "there"))
            && !text.contains(" is no longer ")
    };
    HIDDEN.iter().any(|hidden| text.contains(&format!(" {hidden} "))) || is_no()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.into(), text: text.into() }
    }

    #[test]
    fn sentence_without_subject_counts() {
        let text = "//! What a lock is. Whatsoever it holds.\n/// Returns who asks for it, so\n/// that nobody waits.\nlet who = 1;\n";
        let count = counts(&[file("crates/a/src/lib.rs", text)])["crates/a"];
        assert_eq!(count, Count { starts: 1, hidden: 1 });
    }

    #[test]
    fn code_and_tables_do_not_count() {
        let text =
            "# What it is for\n\n| What it is | x |\n\n```text\nWhat it is for.\n```\n- What is in a list\n";
        assert_eq!(counts(&[file("docs/a.md", text)])["docs/a.md"], Count { starts: 1, hidden: 1 });
    }

    #[test]
    fn place_above_ceiling_is_refused() {
        let page = file("docs/a.md", "What it is for.\n");
        let ceiling = |text: &str| file(CEILINGS, text);
        assert_eq!(above_ceilings(&[page, ceiling("# x\ndocs/a.md 1 1\n")]), []);
        let page = file("docs/a.md", "What it is for.\n");
        assert_eq!(above_ceilings(&[page, ceiling("docs/a.md 1 0\n")]).len(), 1);
    }

    #[test]
    fn ceilings_fall_and_never_rise() {
        let files = [file("docs/a.md", "What it is for.\n"), file(CEILINGS, "docs/a.md 3 0\n")];
        assert!(lowered(&files).ends_with("\ndocs/a.md 1 0\n"), "{}", lowered(&files));
    }

    #[test]
    fn absence_is_plain_after_there() {
        assert!(!hides_its_actor("There is no lock, and it is no longer held."));
        assert!(hides_its_actor("The hash is no lock."));
    }
}
