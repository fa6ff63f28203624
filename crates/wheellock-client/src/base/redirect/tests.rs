//! Tests of `redirect`.

use proptest::prelude::*;

use super::*;
use crate::base::slots::SLOTS;

#[test]
fn what_servers_say() {
    let read = |text: &str| {
        let Redirection { slot, host, port } = parse(text.as_bytes()).unwrap().unwrap();
        (slot, host, port)
    };
    let moved = |slot, host: &str, port| (slot, host.to_owned(), port);
    assert_eq!(read("MOVED 3999 127.0.0.1:6381"), moved(3999, "127.0.0.1", 6381));
    assert_eq!(read("ASK 0 127.0.0.1:6381"), moved(0, "127.0.0.1", 6381));
    assert_eq!(
        read("MOVED 12182 node21003.example.org:21003"),
        moved(12_182, "node21003.example.org", 21003)
    );
    // redis-server 7.0.15 with `cluster-preferred-endpoint-type`: hostname without a name, and unknown-endpoint.
    assert_eq!(read("MOVED 12182 ?:21002"), moved(12_182, "", 21002));
    assert_eq!(read("MOVED 12182 :21002"), moved(12_182, "", 21002));
    assert_eq!(read("MOVED 1 ::1:7000"), moved(1, "::1", 7000));
    assert_eq!(read("MOVED 1 [::1]:7000"), moved(1, "::1", 7000));
    assert_eq!(read("MOVED 16383 h:65535"), moved(16_383, "h", 65_535));
}

#[test]
fn other_errors_are_none_of_ours() {
    for text in
        ["", "ERR no", "MOVEDX 1 h:1", "moved 1 h:1", "TRYAGAIN Multiple keys", "CLUSTERDOWN", " MOVED 1 h:1"]
    {
        assert_eq!(parse(text.as_bytes()), None, "{text}");
    }
}

#[test]
fn what_cannot_be_followed_is_refused() {
    let why = |text: &[u8]| parse(text).unwrap().map_err(|Malformed(why)| why);
    let shape = Err("a redirection is not a slot and an address");
    for text in ["MOVED", "ASK ", "MOVED 1", "MOVED 1 h:1 more"] {
        assert_eq!(why(text.as_bytes()), shape, "{text}");
    }
    for slot in ["16384", "-1", "+1", "x", "99999999999999999999"] {
        let text = format!("MOVED {slot} h:1");
        assert_eq!(why(text.as_bytes()), Err("a slot is not within 0..=16383"), "{slot}");
    }
    for port in ["0", "65536", "", "-1", "+1", "x"] {
        let text = format!("ASK 1 h:{port}");
        assert_eq!(why(text.as_bytes()), Err("a port is not within 1..=65535"), "{port}");
    }
    assert_eq!(why(b"MOVED 1 h"), Err("an address lacks its port"));
    assert_eq!(why(b"MOVED 1 h\x1b[1m:1"), Err("a host has a character that no host name has"));
    assert_eq!(why(b"MOVED 1 ?h:1"), Err("a host has a character that no host name has"));
    assert_eq!(why(b"MOVED 1 ?::1:1"), Err("a host has a character that no host name has"));
    assert_eq!(why(b"MOVED 1 \xff:1"), Err("a redirection is not UTF-8"));
    let long = format!("MOVED 1 {}:1", "h".repeat(256));
    assert_eq!(why(long.as_bytes()), Err("a host name is longer than a name can be"));
}

proptest! {
    #[test]
    fn what_is_written_is_read(ask: bool, slot in 0..SLOTS, host in "|::1|[a-z0-9.-]{1,30}", port in 1..=u16::MAX) {
        let code = if ask { "ASK" } else { "MOVED" };
        let text = format!("{code} {slot} {host}:{port}");
        prop_assert_eq!(parse(text.as_bytes()), Some(Ok(Redirection { slot, host, port })));
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
        let text = [b"MOVED ", bytes.as_slice()].concat();
        if let Ok(read) = parse(&text).unwrap() {
            prop_assert!(read.slot < SLOTS && read.port != 0);
        }
        prop_assert_eq!(parse(&bytes), None);
    }
}
