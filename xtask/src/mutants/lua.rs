//! Mutants of Lua scripts: removed lines, changed comparisons and numbers.
//!
//! A number changes by one. This module is pure: it turns a text into other texts.

/// A script with one change.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mutant {
    /// The changed line and its change. It is unique among the mutants of the script.
    pub(crate) what: String,
    pub(crate) text: String,
}

/// Returns all mutants of a script, in the order of its lines.
pub(crate) fn mutants(script: &str) -> Vec<Mutant> {
    let lines: Vec<&str> = script.lines().collect();
    let mut mutants: Vec<Mutant> = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let code = code_of(line);
        let shown = line.get(..code).unwrap_or(line).trim();
        for (change, new) in changes(line, code) {
            let mut what = format!("`{shown}`: {change}");
            let same = mutants.iter().filter(|mutant| mutant.what.starts_with(&what)).count();
            if same > 0 {
                what = format!("{what} (no. {})", same + 1);
            }
            let before = lines.get(..number).unwrap_or_default();
            let after = lines.get(number + 1..).unwrap_or_default();
            let text: Vec<&str> =
                before.iter().copied().chain([new.as_str()]).chain(after.iter().copied()).collect();
            mutants.push(Mutant { what, text: text.join("\n") + "\n" });
        }
    }
    mutants
}

/// Returns the possible changes in the first `code` bytes of a line, and the line with each change.
fn changes(line: &str, code: usize) -> Vec<(String, String)> {
    let mut changes = Vec::new();
    let with = |from: usize, to: usize, new: &str| {
        format!("{}{new}{}", line.get(..from).unwrap_or_default(), line.get(to..).unwrap_or_default())
    };
    let words = line.get(..code).unwrap_or_default().trim();
    if is_statement(words) {
        changes.push(("gone".to_owned(), String::new()));
    }
    let (mut at, mut quoted) = (0, None);
    while let Some(rest) = line.get(at..code).filter(|rest| !rest.is_empty()) {
        let first = rest.chars().next().unwrap_or_default();
        let mut width = first.len_utf8();
        let is_quote = first == '\'' || first == '"';
        if let Some(open) = quoted {
            quoted = (first != open).then_some(open);
        } else if is_quote {
            quoted = Some(first);
        } else if let Some((old, new)) = COMPARISONS.iter().find(|(old, _)| rest.starts_with(old)) {
            width = old.len();
            changes.push((format!("{old} becomes {new}"), with(at, at + width, new)));
        } else if first.is_ascii_digit() {
            width = rest.bytes().take_while(u8::is_ascii_digit).count();
            let before = line.get(..at).unwrap_or_default();
            // Skip digits in names, fractions, and indices of arguments: a changed index only selects a different argument.
            let is_alone = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '.');
            let is_argument = before.ends_with("ARGV[") || before.ends_with("KEYS[");
            let number = rest.get(..width).and_then(|digits| digits.parse::<u64>().ok());
            if let Some(number) = number.filter(|_| is_alone && !is_argument) {
                let others = [number.checked_add(1), number.checked_sub(1)];
                for other in others.into_iter().flatten() {
                    changes.push((
                        format!("{number} becomes {other}"),
                        with(at, at + width, &other.to_string()),
                    ));
                }
            }
        }
        at += width;
    }
    changes
}

/// The comparisons and their replacements, longer operators first.
const COMPARISONS: [(&str, &str); 6] =
    [("==", "~="), ("~=", "=="), ("<=", "<"), (">=", ">"), ("<", "<="), (">", ">=")];

/// Returns true if the script stays valid without this line: no block begins or ends with it.
fn is_statement(code: &str) -> bool {
    let opens = code.matches(['(', '{', '[']).count() != code.matches([')', '}', ']']).count();
    let first = code.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    let is_part = ["if", "elseif", "else", "end", "for", "while", "local", "function", "repeat", "until"]
        .contains(&first);
    let is_block = code.ends_with("then") || code.ends_with("do") || code.contains("function(");
    !code.is_empty()
        && !opens
        && !is_part
        && !is_block
        && !code.ends_with(',')
        && !code.starts_with(['}', ')'])
}

/// Returns the position of a line's comment, or the length of the line.
fn code_of(line: &str) -> usize {
    let mut quoted = None;
    for (at, c) in line.char_indices() {
        match quoted {
            Some(open) => quoted = (c != open).then_some(open),
            None if c == '\'' || c == '"' => quoted = Some(c),
            None if line.get(at..).is_some_and(|rest| rest.starts_with("--")) => return at,
            None => {}
        }
    }
    line.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_has_its_mutants() {
        let script = "-- 1 < 2\nif redis.call('get', KEYS[1]) == 'a < 3' then\n    redis.call('del', KEYS[1]) -- 4\nend\nreturn left + 2\n";
        let found: Vec<String> = mutants(script).into_iter().map(|mutant| mutant.what).collect();
        assert_eq!(
            found,
            [
                "`if redis.call('get', KEYS[1]) == 'a < 3' then`: == becomes ~=",
                "`redis.call('del', KEYS[1])`: gone",
                "`return left + 2`: gone",
                "`return left + 2`: 2 becomes 3",
                "`return left + 2`: 2 becomes 1",
            ]
        );
    }

    #[test]
    fn mutant_differs_in_one_line() {
        let script = "local a1 = 0.5\nwhile a1 <= 7 do\n    a1 = a1 + 1\n    a1 = a1 + 1\nend\n";
        let mutants = mutants(script);
        let names: Vec<&str> = mutants.iter().map(|mutant| mutant.what.as_str()).collect();
        assert!(names.contains(&"`a1 = a1 + 1`: gone (no. 2)"), "{names:?}");
        for mutant in &mutants {
            let differ = script.lines().zip(mutant.text.lines()).filter(|(one, other)| one != other).count();
            assert_eq!(differ, 1, "{}", mutant.what);
        }
        assert!(mutants.iter().any(|mutant| mutant.text.contains("while a1 < 7 do")));
    }
}
