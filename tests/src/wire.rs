//! Clients' commands as text for golden files.
//!
//! The text is the same in every run. The module also shows how two texts differ.
//!
//! Recognizes random values. Does not know the meaning of a command.

use std::collections::HashMap;
use std::fmt::Write;

use crate::monitor::Observed;

/// A writer of observed commands. The commands of a script follow the script's line, indented.
#[derive(Debug, Default)]
pub struct Scribe {
    scripts: HashMap<String, String>,
}

impl Scribe {
    /// Shows the script with this SHA-1 as `<name>`.
    pub fn name_script(&mut self, sha: &str, name: &str) {
        self.scripts.insert(sha.to_owned(), format!("<{name}>"));
    }

    /// Writes a line for each command that arrived over TCP. Leaves out commands that maintain a connection, because their timing is
    /// random.
    #[must_use]
    pub fn write(&self, observed: &[Observed]) -> String {
        let mut text = String::new();
        let mut shown = false;
        for command in observed {
            if !command.from_script() {
                shown = !command.client.starts_with("unix:") && !CHATTER.contains(&command.name().as_str());
            }
            if shown {
                let indent = if command.from_script() { "    " } else { "" };
                let _ = writeln!(text, "{indent}{}", self.line(command));
            }
        }
        text
    }

    fn line(&self, command: &Observed) -> String {
        let mut words: Vec<_> = command.args.iter().map(|arg| self.word(arg)).collect();
        if !command.from_script()
            && let Some(name) = words.first_mut()
        {
            *name = name.to_uppercase();
        }
        words.join(" ")
    }

    fn word(&self, arg: &str) -> String {
        if let Some(name) = self.scripts.get(arg) {
            return name.clone();
        }
        if LATCH_MILLIS.contains(&arg.parse().unwrap_or_default()) {
            return "<16000..20000>".to_owned();
        }
        let arg = without_request(&without_owner(arg));
        if arg.is_empty() || arg.contains(' ') { format!("{arg:?}") } else { arg }
    }
}

/// Commands that maintain a connection, independent of its use.
const CHATTER: &[&str] = &["PING", "HELLO", "CLIENT", "SELECT", "AUTH", "ECHO"];

/// The lifetime of the latch that makes Redisson's unlock idempotent. It is four times 4 to 5 s, drawn anew for each latch.
const LATCH_MILLIS: std::ops::RangeInclusive<u64> = 16_000..=20_000;

/// Replaces `uuid:number` by `<owner>`.
fn without_owner(arg: &str) -> String {
    let is_number = |number: &str| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    match arg.split_once(':') {
        Some((uuid, number)) if is_uuid(uuid) && is_number(number) => "<owner>".to_owned(),
        _ => arg.to_owned(),
    }
}

fn is_uuid(text: &str) -> bool {
    let lengths: Vec<_> = text.split('-').map(str::len).collect();
    lengths == [8, 4, 4, 4, 12] && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

/// Replaces the random end of a latch's name, 32 hexadecimal digits, by `<request>`.
fn without_request(arg: &str) -> String {
    match arg.rsplit_once(':') {
        Some((name, request)) if request.len() == 32 && request.bytes().all(|b| b.is_ascii_hexdigit()) => {
            format!("{name}:<request>")
        }
        _ => arg.to_owned(),
    }
}

/// Returns the difference of two texts. Lines only in the first have `-`, lines only in the second have `+`. Returns `None` for equal
/// texts.
#[must_use]
pub fn difference(expected: &str, found: &str) -> Option<String> {
    if expected == found {
        return None;
    }
    let (old, new): (Vec<_>, Vec<_>) = (expected.lines().collect(), found.lines().collect());
    // Length of the longest common subsequence of the rests after each pair of lines.
    let mut common = vec![vec![0_usize; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i][j] = if old[i] == new[j] {
                common[i + 1][j + 1] + 1
            } else {
                common[i + 1][j].max(common[i][j + 1])
            };
        }
    }
    let mut text = String::new();
    let (mut i, mut j) = (0, 0);
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            (i, j) = (i + 1, j + 1);
        } else if j == new.len() || (i < old.len() && common[i + 1][j] >= common[i][j + 1]) {
            let _ = writeln!(text, "{:>4} - {}", i + 1, old[i]);
            i += 1;
        } else {
            let _ = writeln!(text, "{:>4} + {}", j + 1, new[j]);
            j += 1;
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(client: &str, words: &str) -> Observed {
        Observed { client: client.into(), args: words.split(' ').map(str::to_owned).collect() }
    }

    #[test]
    fn only_random_values_are_replaced() {
        let mut scribe = Scribe::default();
        scribe.name_script("0f0f", "release.lua");
        let uuid = "f5bb1126-26ce-4ee5-aab8-8c20959cd7fd";
        let latch = format!("redisson_unlock_latch:{{a}}:{}", "0123456789abcdef".repeat(2));
        let commands = [
            observed("127.0.0.1:5", &format!("evalsha 0f0f 2 a {latch} {uuid}:12 30000 17123")),
            observed("lua", &format!("hexists a {uuid}:12")),
            observed("127.0.0.1:5", "PING"),
            observed("unix:/x", "EVALSHA 0f0f 0"),
            observed("lua", "get a"),
            observed("127.0.0.1:5", &format!("GET {uuid} {uuid}:x {uuid}:")),
        ];
        assert_eq!(
            scribe.write(&commands),
            format!(
                "EVALSHA <release.lua> 2 a redisson_unlock_latch:{{a}}:<request> <owner> 30000 <16000..20000>\n    \
                 hexists a <owner>\nGET {uuid} {uuid}:x {uuid}:\n"
            )
        );
        let odd =
            Observed { client: "127.0.0.1:5".into(), args: vec!["get".into(), String::new(), "a b".into()] };
        assert_eq!(scribe.write(&[odd]), "GET \"\" \"a b\"\n");
    }

    #[test]
    fn a_difference_names_the_lines() {
        assert_eq!(difference("a\nb\nc\n", "a\nb\nc\n"), None);
        assert_eq!(difference("a\nb\nc\n", "a\nx\nc\nd\n").unwrap(), "   2 - b\n   2 + x\n   4 + d\n");
        assert_eq!(difference("", "a\n").unwrap(), "   1 + a\n");
        assert_eq!(difference("a\n", "").unwrap(), "   1 - a\n");
    }
}
