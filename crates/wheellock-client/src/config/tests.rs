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

#[test]
fn joined_changes_concern_both() {
    let of = |key: &[u8]| {
        let mut slots = SlotSet::default();
        slots.insert(slot_of(key));
        Change::of(slots)
    };
    let concerns = |change: &Change| [b"a", b"b", b"c"].map(|key| change.concerns(key));
    assert_eq!(concerns(&of(b"a").joined(None)), [true, false, false]);
    assert_eq!(concerns(&of(b"a").joined(Some(of(b"b")))), [true, true, false]);
    assert_eq!(concerns(&of(b"a").joined(Some(Change::everywhere()))), [true; 3]);
    assert_eq!(concerns(&Change::everywhere().joined(Some(of(b"a")))), [true; 3]);
}
