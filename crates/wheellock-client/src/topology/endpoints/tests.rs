//! Tests of `endpoints`.

use wheellock_resp::{Decoder, Frame, Limits, bytes::BytesMut};

use super::*;
use crate::base::address::Address;
use crate::base::endpoint::address;

/// Node `a` has slots and a name. Node `b` has slots and no name. Node `c` has a name and no slots.
const VIEW: &str = "\
aaaa 192.0.2.1:7000@1,a.example myself,master - 0 0 1 connected 0-8191
bbbb 192.0.2.2:7001@1 master - 0 0 2 connected 8192-16383
cccc 192.0.2.3:7002@1,c.example master - 0 0 3 connected
";

fn reply(text: &str) -> Value {
    let decoded = Decoder::new(Limits::default()).decode(&mut BytesMut::from(text));
    let Ok(Some(Frame::Reply(reply))) = decoded else { panic!("not a reply: {text:?}") };
    reply
}

/// Returns the addresses after a reply in which the nodes `a` and `b` have these hosts.
fn applied(a: &str, b: &str, by_name: bool) -> Vec<(Address, Option<Address>)> {
    let range = |first, last, host: &str, port, id: &str| {
        format!("*3\r\n:{first}\r\n:{last}\r\n*4\r\n{host}:{port}\r\n+{id}\r\n*0\r\n")
    };
    let [first, second] = [range(0, 8191, a, 7000, "aaaa"), range(8192, 16_383, b, 7001, "bbbb")];
    let mut view = crate::topology::nodes::parse(VIEW.as_bytes(), by_name).unwrap();
    Endpoints::parse(&reply(&format!("*2\r\n{first}{second}"))).apply(&mut view, by_name);
    view.into_iter().map(|node| (node.address, node.alias)).collect()
}

fn is(host: &str, port: u16, alias: Option<&str>) -> (Address, Option<Address>) {
    (address(host, port), alias.map(|alias| address(alias, port)))
}

#[test]
fn preferred_name_keeps_ip_as_alias() {
    let nodes = applied("+a.example\r\n", "+?\r\n", false);
    assert_eq!(nodes[0], is("a.example", 7000, Some("192.0.2.1")));
    assert_eq!(nodes[1], is("192.0.2.2", 7001, None), "a node without a name keeps its address");
    assert_eq!(nodes[2], is("c.example", 7002, Some("192.0.2.3")), "a primary without slots, too");
}

#[test]
fn preferred_ip_is_address_without_tls() {
    let nodes = applied("+192.0.2.1\r\n", "+192.0.2.2\r\n", false);
    assert_eq!(nodes[0], is("192.0.2.1", 7000, Some("a.example")));
    assert_eq!(nodes[2], is("192.0.2.3", 7002, Some("c.example")));
    let nodes = applied("+192.0.2.1\r\n", "+192.0.2.2\r\n", true);
    assert_eq!(nodes[0], is("a.example", 7000, Some("192.0.2.1")));
    assert_eq!(nodes[2], is("c.example", 7002, Some("192.0.2.3")));
}

#[test]
fn unknown_endpoint_has_no_host() {
    let nodes = applied("_\r\n", "$-1\r\n", false);
    assert_eq!(nodes[0], is("", 7000, Some("192.0.2.1")));
    assert_eq!(nodes[1], is("", 7001, Some("192.0.2.2")));
    assert_eq!(applied("+\r\n", "_\r\n", true)[0], is("", 7000, Some("a.example")));
}

/// A managed service states the names of its nodes only in `CLUSTER SLOTS`.
#[test]
fn name_from_slots_is_preferred() {
    for by_name in [false, true] {
        let nodes = applied("+first.example\r\n", "+second.example\r\n", by_name);
        assert_eq!(nodes[0].0, address("first.example", 7000));
        assert_eq!(nodes[1], is("second.example", 7001, Some("192.0.2.2")));
    }
}

#[test]
fn unreadable_replies_change_nothing() {
    let nodes = applied("+a\u{1b}[1m\r\n", ":7\r\n", false);
    assert_eq!(nodes[0], is("192.0.2.1", 7000, Some("a.example")));
    assert_eq!(nodes[1], is("192.0.2.2", 7001, None));
    for text in ["+OK\r\n", "_\r\n", "*1\r\n*0\r\n", "*1\r\n*3\r\n:1\r\n:2\r\n*1\r\n+h\r\n"] {
        assert_eq!(Endpoints::parse(&reply(text)), Endpoints::default(), "{text:?}");
    }
}
