//! The permissions that `docs/guide.md` tells operators to grant.
//!
//! Reads them from the page itself, so that tests check the text of the page.

/// Returns the rules for a user of locks on a server of this [version](crate::RedisServer::redis_version).
///
/// # Panics
///
/// If the guide's text does not have the expected form.
#[must_use]
pub fn permissions(version: (u32, u32, u32)) -> Vec<&'static str> {
    let omitted = omitted(version);
    rules_of("locks").into_iter().filter(|rule| !omitted.contains(rule)).collect()
}

/// Returns the further rules for a user of another kind of locks, besides [`permissions`]. `kind` is the guide's name of the kind.
///
/// # Panics
///
/// As [`permissions`].
#[must_use]
pub fn kind_permissions(kind: &str, version: (u32, u32, u32)) -> Vec<&'static str> {
    let (_, kinds) = GUIDE.split_once("For other kinds of locks").expect("the guide has other kinds");
    let (kinds, _) = kinds.split_once("```\n\n").expect("in a block");
    let mut words = kinds.split_whitespace().skip_while(|word| *word != kind).skip(1);
    let is_rule = |word: &&str| word.starts_with(['~', '&', '+']);
    let (omitted, rules) = (omitted(version), std::iter::from_fn(|| words.next().filter(is_rule)));
    let known = |rule: &&str| version >= (6, 2, 0) || !rule.starts_with('&');
    rules.filter(|rule| known(rule) && !omitted.contains(rule)).collect()
}

/// Returns the further rule for a user of simple locks, on a server that deletes by [this command](crate::RedisServer::deletes_by).
///
/// # Panics
///
/// As [`permissions`].
#[must_use]
pub fn deleting(verb: &str) -> &'static str {
    let mut quoted = sentence("Newer servers can release simple locks").split('`').skip(1).step_by(2);
    quoted.find(|rule| rule.strip_prefix('+') == Some(verb)).expect("the guide has the command")
}

/// Returns the further rules for a user whose locks survive failovers, and those for such a user's read-write locks.
///
/// # Panics
///
/// As [`permissions`].
#[must_use]
pub fn fleet_permissions() -> (Vec<&'static str>, Vec<&'static str>) {
    let mut quoted = sentence("For a `Fleet` add").split('`').skip(1).step_by(2).map(str::split_whitespace);
    let [all, read_write] = [(); 2].map(|()| quoted.next().expect("two lists of rules").collect());
    (all, read_write)
}

/// Returns [`permissions`] for a cluster of Redis 7 or later.
///
/// # Panics
///
/// As [`permissions`].
#[must_use]
pub fn cluster_permissions(version: (u32, u32, u32)) -> Vec<&'static str> {
    let mut quoted = sentence("In a cluster add").split('`').skip(1).step_by(2).map(str::split_whitespace);
    let [added, taken, replaced] =
        [(); 3].map(|()| quoted.next().expect("three lists of commands").collect::<Vec<_>>());
    let rules = permissions(version).into_iter().filter(|rule| !replaced.contains(rule));
    rules.chain(added).chain(taken).collect()
}

/// Returns the rules for a user of Sentinels.
///
/// # Panics
///
/// As [`permissions`].
#[must_use]
pub fn sentinel_permissions(version: (u32, u32, u32)) -> Vec<&'static str> {
    let known = |rule: &&str| version >= (7, 2, 0) || *rule != "+client|setinfo";
    rules_of("watcher").into_iter().filter(known).collect()
}

/// Returns the guide's rules for a user, without the rules that name and authenticate the user.
fn rules_of(user: &str) -> Vec<&'static str> {
    let (_, rules) =
        GUIDE.split_once(&format!("ACL SETUSER {user} on >secret")).expect("the guide has the user");
    let (rules, _) = rules.split_once("```").expect("in a block");
    rules.split_whitespace().collect()
}

/// Returns the rules that a server of this version does not know.
fn omitted((major, minor, _): (u32, u32, u32)) -> Vec<&'static str> {
    if (major, minor) >= (7, 2) {
        return Vec::new();
    }
    let version = format!("{major}.{minor}");
    let for_it = |line: &&str| line.contains(&version) && line.contains("leave out");
    let line = GUIDE.lines().find(for_it).expect("the guide says what older servers do not know");
    line.split('`').skip(1).step_by(2).flat_map(str::split_whitespace).collect()
}

/// Returns the rest of the paragraph that begins with these words.
fn sentence(words: &str) -> &'static str {
    let (_, rest) = GUIDE.split_once(words).expect("the guide has the sentence");
    rest.split("\n- ").next().unwrap_or_default()
}

const GUIDE: &str = include_str!("../../docs/guide.md");
