//! Tests of `config`.

use super::*;

#[test]
fn untranslatable_address_is_refused_with_reason() {
    let at = |port| Address::Tcp { host: "h".to_owned(), port };
    let mut config = Config::new(at(1));
    assert_eq!(config.translated(at(2)), Ok(at(2)));
    config.translate = Some(Arc::new(move |address| match address {
        Address::Tcp { port: 2, .. } => Some(at(3)),
        Address::Tcp { port: 3, .. } => None,
        _ => std::panic::resume_unwind(Box::new(())),
    }));
    assert_eq!(config.translated(at(2)), Ok(at(3)));
    assert_eq!(config.translated(at(3)), Err("h:3, which `Config::translate` forbids".to_owned()));
    assert_eq!(config.translated(at(4)), Err("h:4, for which `Config::translate` panicked".to_owned()));
}
