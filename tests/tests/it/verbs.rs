//! The guide's table of verbs, compared with the sources.

use std::collections::BTreeSet;
use std::path::Path;

/// The types of each column, as the table names them.
const COLUMNS: [(&str, &[&str]); 6] = [
    ("lock", &["Lock", "FencedLock"]),
    ("guard", &["Guard", "FencedGuard"]),
    ("set", &["MultiLock", "MultiGuard"]),
    ("quorum", &["RedLock", "RedLockGuard"]),
    ("permits", &["Semaphore", "PermitSemaphore", "Permits", "Permit"]),
    ("election", &["Election", "Leadership"]),
];
const SOURCES: [&str; 9] = [
    "lock.rs",
    "request/guard.rs",
    "kinds/fenced.rs",
    "kinds/semaphore.rs",
    "kinds/permit.rs",
    "kinds/election.rs",
    "group/multi_lock.rs",
    "group/redlock.rs",
    "group/redlock/members.rs",
];
const BLOCKING: [&str; 5] = [
    "blocking/lock.rs",
    "blocking/kinds.rs",
    "blocking/semaphores.rs",
    "blocking/elections.rs",
    "blocking/sets.rs",
];

/// A verb, the column and the type that has it.
type Cell = (String, String, String);

/// Each verb of the guide's table exists, and each verb of these types is in the table.
#[test]
fn table_matches_sources() {
    let mut expected = BTreeSet::new();
    for (verb, of) in SOURCES.iter().flat_map(|path| verbs(path)) {
        let column = COLUMNS.iter().find(|(_, types)| types.contains(&of.as_str()));
        let (column, _) = column.unwrap_or_else(|| panic!("{of} has the verb {verb}, and no column"));
        expected.insert((verb, (*column).to_owned(), of));
    }
    let of_threads = BLOCKING.iter().flat_map(|path| verbs(path));
    expected.extend(of_threads.map(|(verb, of)| (verb, "blocking".to_owned(), of)));
    let found = table();
    let (missing, unknown): (Vec<_>, Vec<_>) =
        (expected.difference(&found).collect(), found.difference(&expected).collect());
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "not in the table: {missing:?}; not there: {unknown:?}"
    );
}

/// P4: the name of a verb says whether it waits.
#[test]
fn verb_names_tell_waits() {
    for row in rows() {
        let [verb, waits, ..] = &row[..] else { panic!("a short row: {row:?}") };
        let verb = verb.trim_matches('`');
        if verb.ends_with("_for") {
            assert_eq!(waits, "up to its limit", "{verb}");
        } else if verb.starts_with("try_") {
            assert_eq!(waits, "no", "{verb}");
        } else if verb.starts_with("acquire") || ["campaign", "lead", "run"].contains(&verb) {
            assert!(waits.starts_with("without a limit"), "{verb}");
        } else {
            assert!(!waits.contains("limit"), "{verb}");
        }
    }
}

/// Returns true if a method of this name takes, keeps, watches or returns a hold.
fn is_verb(method: &str) -> bool {
    let method = method.strip_suffix("_for").unwrap_or(method);
    let method = method.strip_suffix("_many").unwrap_or(method);
    let method = method.strip_prefix("try_").unwrap_or(method);
    ["acquire", "campaign", "lead", "run", "renew", "lost", "release", "resign", "force_release"]
        .contains(&method)
}

/// Returns the verbs that a source file defines, each with its type.
fn verbs(path: &str) -> Vec<(String, String)> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/wheellock/src");
    let text = std::fs::read_to_string(sources.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let (mut of, mut verbs) = (None, Vec::new());
    for line in text.lines() {
        if line.starts_with("impl") && line.ends_with(" {") {
            of = (!line.contains(" for ")).then(|| type_of(line));
        } else if line.starts_with('}') {
            of = None;
        }
        let signature = line.strip_prefix("    pub async fn ").or_else(|| line.strip_prefix("    pub fn "));
        let method = signature.and_then(|rest| rest.split(['(', '<']).next());
        if let (Some(of), Some(method)) = (&of, method.filter(|method| is_verb(method))) {
            verbs.push((method.to_owned(), of.clone()));
        }
    }
    verbs
}

/// Returns the type of an `impl` line, without its parameters.
fn type_of(line: &str) -> String {
    let name = line.trim_end_matches(" {").rsplit(' ').next().unwrap_or_default();
    name.split('<').next().unwrap_or_default().to_owned()
}

/// Returns the rows of the guide's table, without its two heading rows.
fn rows() -> Vec<Vec<String>> {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let (_, table) = guide.split_once("### Verbs\n").expect("the guide has the verbs");
    let lines = table.lines().skip_while(|line| !line.starts_with('|'));
    let rows = lines.take_while(|line| line.starts_with('|')).skip(2);
    // The last cell also names a test.
    let cell = |cell: &str| cell.split("<!--").next().unwrap_or_default().trim().to_owned();
    rows.map(|line| line.trim_matches('|').split('|').map(cell).collect()).collect()
}

/// Returns the cells of the guide's table.
fn table() -> BTreeSet<Cell> {
    let columns: Vec<_> = COLUMNS.iter().map(|(column, _)| *column).chain(["blocking"]).collect();
    let mut cells = BTreeSet::new();
    for row in rows() {
        let verb = row[0].trim_matches('`').to_owned();
        assert_eq!(row.len(), 3 + columns.len(), "{verb}");
        for (column, types) in columns.iter().zip(&row[3..]) {
            let types = types.split_whitespace().map(|of| of.trim_matches('`').to_owned());
            cells.extend(types.map(|of| (verb.clone(), (*column).to_owned(), of)));
        }
    }
    cells
}
