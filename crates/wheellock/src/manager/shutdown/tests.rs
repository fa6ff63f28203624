//! Tests of `shutdown`.

use super::*;

#[test]
fn leftover_fits_in_one_line() {
    let named = |count: usize| Leftover {
        locks: (0..count).map(|n| Unreleased { lock: format!("a\n{n}"), server: "s:1".into() }).collect(),
    };
    assert_eq!(named(0).to_string(), "every lock was released");
    assert_eq!(named(1).to_string(), r#"1 lock was not confirmed to be released: "a\n0" on s:1"#);
    let many = named(SHOWN + 1).to_string();
    assert!(many.starts_with("11 locks were not confirmed to be released: ") && many.ends_with(", .."));
    assert_eq!(many.matches(" on s:1").count(), SHOWN);
}
