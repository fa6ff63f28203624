//! The page that compares libraries: its calls and versions are those of the repository's programs.
//!
//! A row's first cell links to the library's program. Each call of the row occurs in that program, or in the file that the call links to.

use std::collections::BTreeSet;

use crate::files::{Complaint, File};

const PAGE: &str = "docs/compare.md";

/// The libraries, each with the manifest that has its version. `{}` stands for the version.
const LIBRARIES: [(&str, &str, &str); 11] = [
    ("Wheellock", "Cargo.toml", "[workspace.package]\nversion = \"{}\""),
    ("rslock", "Cargo.lock", "name = \"rslock\"\nversion = \"{}\""),
    ("rlock", "Cargo.lock", "name = \"rlock\"\nversion = \"{}\""),
    ("distkit", "Cargo.lock", "name = \"distkit\"\nversion = \"{}\""),
    ("async-redis-lock", "Cargo.lock", "name = \"async-redis-lock\"\nversion = \"{}\""),
    ("redsync", "tests/peers/redsync/go.mod", "go-redsync/redsync/v4 v{}\n"),
    ("redislock", "tests/peers/redislock/go.mod", "bsm/redislock v{}\n"),
    ("node-redlock", "tests/peers/node-redlock/package.json", "\"redlock\": \"{}\""),
    ("redis-py", "tests/peers/redis-py/requirements.txt", "redis=={}\n"),
    ("redlock-py", "tests/peers/redlock-py/requirements.txt", "redlock-py=={}\n"),
    ("Redisson", "tests/interop/pom.xml", "<redisson.version>{}</redisson.version>"),
];

/// Returns a complaint for each call and version that the repository does not have. `read` returns the text of a file.
pub(crate) fn unlike_sources(files: &[File], read: impl Fn(&str) -> Option<String>) -> Vec<Complaint> {
    let Some(page) = files.iter().find(|file| file.path == PAGE) else {
        return vec![Complaint::of(PAGE, "is missing")];
    };
    let mut complaints = Vec::new();
    let (mut shown, mut tried) = (BTreeSet::new(), BTreeSet::new());
    for (number, line) in page.text.lines().enumerate() {
        let Some(row) = line.strip_prefix("| ").filter(|_| !line.starts_with("| program")) else { continue };
        let Some((program, calls)) = row.split_once(" | ") else { continue };
        let Some((name, rest)) = program.strip_prefix('[').and_then(|rest| rest.split_once("](../")) else {
            tried.insert(program);
            continue;
        };
        let (path, version) = rest.split_once(") ").unwrap_or((rest, ""));
        let Some((_, manifest, pattern)) = LIBRARIES.iter().find(|(library, ..)| *library == name) else {
            complaints.push(Complaint::at(page, number, format!("{name} has no manifest in `xtask`")));
            continue;
        };
        shown.insert(name);
        if !read(manifest).is_some_and(|text| text.contains(&pattern.replace("{}", version))) {
            complaints.push(Complaint::at(page, number, format!("{manifest} has another version of {name}")));
        }
        for (call, path) in calls_of(calls, path) {
            if !read(path).is_some_and(|text| text.contains(call)) {
                complaints.push(Complaint::at(page, number, format!("`{call}` is not in {path}")));
            }
        }
    }
    for (name, ..) in LIBRARIES.iter().filter(|(name, ..)| !shown.contains(name) || !tried.contains(name)) {
        complaints.push(Complaint::of(PAGE, format!("{name} needs a row of calls and a row of trials")));
    }
    complaints
}

/// Returns the calls of a row's cells, each with its file. A call that is not a link is in the row's program.
fn calls_of<'a>(cells: &'a str, program: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let mut parts = cells.split('`').peekable();
    std::iter::from_fn(move || {
        parts.next()?;
        let call = parts.next()?;
        let linked = parts.peek().and_then(|rest| rest.strip_prefix("](../")?.split_once(')'));
        Some((call, linked.map_or(program, |(path, _)| path)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invented_calls_and_old_versions_are_found() {
        let rows = |library: &str, calls: &str| {
            let mut page = "| program, version | acquire |\n|---|---|\n".to_owned();
            for (name, ..) in LIBRARIES.iter().filter(|(name, ..)| *name != library) {
                page.push_str(&format!("| [{name}](../p) 1 | - |\n| {name} | no |\n"));
            }
            page.push_str(calls);
            File { path: PAGE.into(), text: page }
        };
        let read = |path: &str| {
            let pattern = |(_, manifest, pattern): &&(&str, &str, &str)| {
                (*manifest == path).then(|| pattern.replace("{}", "1"))
            };
            let manifests: Vec<_> = LIBRARIES.iter().filter_map(|library| pattern(&library)).collect();
            Some(format!("{}\nlock.lock()\n", manifests.join("\n")))
        };
        let found = |calls: &str| {
            let complaints = unlike_sources(&[rows("rslock", calls)], read);
            complaints.into_iter().map(|complaint| complaint.what).collect::<Vec<_>>()
        };
        let trial = "| rslock | no |\n";
        assert_eq!(
            found(&format!("| [rslock](../p) 1 | `lock.lock()` | [`lock`](../q) |\n{trial}")),
            [""; 0]
        );
        assert_eq!(
            found(&format!("| [rslock](../p) 1 | `lock.take()` |\n{trial}")),
            ["`lock.take()` is not in p"]
        );
        assert_eq!(found(&format!("| [rslock](../p) 1 | [`a`](../q) |\n{trial}")), ["`a` is not in q"]);
        assert_eq!(
            found(&format!("| [rslock](../p) 2 | - |\n{trial}")),
            ["Cargo.lock has another version of rslock"]
        );
        assert_eq!(found("| [rslock](../p) 1 | - |\n"), ["rslock needs a row of calls and a row of trials"]);
        assert_eq!(found(&format!("| [other](../p) 1 | - |\n{trial}")).len(), 2);
    }
}
