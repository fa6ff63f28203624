//! The client's URLs: no panic, what is shown parses to the same again, and a password is never shown.
#![no_main]

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use wheellock_client::{Address, Config};

fuzz_target!(|data: &[u8]| {
    if let Ok(url) = std::str::from_utf8(data) {
        shown_is_the_same(url);
    }
    let _ = built(&mut Unstructured::new(data));
});

fn shown_is_the_same(url: &str) {
    let Ok(config) = url.parse::<Config>() else { return };
    let shown = config.to_string();
    let again: Config =
        shown.parse().unwrap_or_else(|error| panic!("{url:?} is shown as {shown:?}: {error}"));
    assert_eq!(again.address, config.address, "{url:?} is shown as {shown:?}");
    assert_eq!(again.username, config.username, "{url:?} is shown as {shown:?}");
    assert_eq!(again.database, config.database, "{url:?} is shown as {shown:?}");
    assert!(again.password.is_none(), "{url:?} is shown as {shown:?}");
    assert_eq!(again.to_string(), shown);
}

/// A URL from its parts, which must come out again, but for the password, which must not.
fn built(input: &mut Unstructured<'_>) -> Result<()> {
    let scheme = *input.choose(&["redis", "valkey", "REDIS"])?;
    let user: String = input.arbitrary()?;
    let password: String = input.arbitrary()?;
    let port: u16 = input.int_in_range(1..=u16::MAX)?;
    let database: u32 = input.arbitrary()?;
    let url = format!("{scheme}://{}:{}@localhost:{port}/{database}", encoded(&user), encoded(&password));
    let config: Config = url.parse().unwrap_or_else(|error| panic!("{url:?}: {error}"));
    assert_eq!(config.address, Address::Tcp { host: "localhost".to_owned(), port });
    assert_eq!(config.username.as_deref().unwrap_or_default(), user);
    assert_eq!(config.database, database);
    assert_eq!(config.password.is_some(), !password.is_empty());

    // What is shown does not depend on what the password is, and neither does an error about something else.
    if !password.is_empty() {
        let other = url.replace(&format!(":{}@", encoded(&password)), ":other@");
        let other: Config = other.parse().expect("as good as the first");
        assert_eq!(format!("{config} {config:?}"), format!("{other} {other:?}"));
    }
    let error = |password: &str| {
        let url = format!("{scheme}://{}:{}@localhost:0/{database}", encoded(&user), encoded(password));
        url.parse::<Config>().map_err(|error| format!("{error} {error:?}")).expect_err("there is no port 0")
    };
    assert_eq!(error(&password), error("other"));
    Ok(())
}

/// Everything percent-encoded: the one form nobody can misread.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}
