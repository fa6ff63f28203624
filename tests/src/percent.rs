//! Percent-encoding, for words of line protocols and for URLs.

/// Percent-encodes all bytes other than letters and digits.
pub(crate) fn encode(text: &str) -> String {
    let byte = |byte: u8| {
        if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    text.bytes().map(byte).collect()
}

/// Decodes the output of Java's `URLEncoder`.
pub(crate) fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            plain => plain,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_encoding_round_trips() {
        for text in ["orders:42", "a b", "{odd", "blå lås", "100%+1", "", "line\nline"] {
            let encoded = encode(text);
            assert!(encoded.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'%'), "{encoded}");
            assert_eq!(decode(&encoded).as_deref(), Some(text));
        }
        assert_eq!(decode("a+b%3Ac").as_deref(), Some("a b:c"));
        for bad in ["%", "%4", "%zz", "%FF"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }
}
