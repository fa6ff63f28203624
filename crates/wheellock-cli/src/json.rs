//! JSON output for scripts. It supports only the values that this program prints.

/// Returns a quoted string.
pub(crate) fn string(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// Returns a quoted string, or null.
pub(crate) fn optional(text: Option<&str>) -> String {
    text.map_or_else(|| "null".to_owned(), string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_quoted() {
        assert_eq!(string("a\"b\\c\n\u{7f}é"), r#""a\"b\\c\u000a\u007fé""#);
        assert_eq!(optional(None), "null");
    }
}
