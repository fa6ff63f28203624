//! Entry points of the parsers for the fuzz targets. Each asserts properties of the accepted input.

use wheellock_resp::{Decoder, Frame, Limits, bytes::BytesMut};

use super::nodes;
use super::slot_map::SlotMap;
use crate::base::address::Address;
use crate::base::endpoint::address;
use crate::base::redirect;
use crate::base::slots::SLOTS;
use crate::protocol::discovery::{Discovery, parse_master, parse_promoted};

/// Parses the text of `CLUSTER NODES`.
pub fn view(data: &[u8]) {
    let Ok(view) = nodes::parse(data, data.len() % 2 == 0) else { return };
    let addresses = |node: &nodes::Node| [Some(node.address.clone()), node.alias.clone()];
    let parts = |address| match address {
        Address::Tcp { host, port } => (host.len(), port),
        Address::Unix(_) => panic!("no node says that"),
    };
    let named = || view.iter().flat_map(addresses).flatten().map(parts);
    assert!(view.iter().all(|node| !node.id.is_empty()) && named().all(|(_, port)| port != 0));
    let owned = view.iter().flat_map(|node| &node.slots).map(|range| range.clone().count());
    assert!(owned.sum::<usize>() <= usize::from(SLOTS));
    let text: usize = view.iter().map(|node| node.id.len() + node.slots.len()).sum();
    assert!(text + named().map(|(host, _)| host).sum::<usize>() <= data.len());
}

/// Merges texts of `CLUSTER NODES`, separated by NUL, one after the other and each twice.
pub fn views(data: &[u8]) {
    let asked = address("10.0.0.1", 7000);
    let mut map = SlotMap::default();
    for text in data.split(|&byte| byte == 0).take(6) {
        let Ok(view) = nodes::parse(text, text.len() % 2 == 0) else { continue };
        let primaries = map.merge_view(&view, &asked);
        assert!(primaries.iter().chain(map.replicas_too()).all(|address| map.known_as(address).is_some()));
        let before = map.clone();
        map.merge_view(&view, &asked);
        assert!((0..SLOTS).all(|slot| map.owner(slot) == before.owner(slot)));
    }
    assert_eq!(map.owner(SLOTS), None);
}

/// Parses an error reply.
pub fn redirection(data: &[u8]) {
    let Some(Ok(read)) = redirect::parse(data) else { return };
    assert!(data.starts_with(b"MOVED ") || data.starts_with(b"ASK "));
    assert!(read.slot < SLOTS && read.port != 0 && read.host.len() < data.len());
    let again = format!("ASK {} {}:{}", read.slot, read.host, read.port);
    let asked = redirect::parse(again.as_bytes());
    assert_eq!(asked, Some(Ok(read)));
}

/// Reads replies of Sentinels from the wire, alternately to `SENTINEL REPLICAS` and `SENTINEL MASTER`.
pub fn sentinels(data: &[u8]) {
    let mut decoder = Decoder::new(Limits::default());
    let mut buffer = BytesMut::from(data);
    let mut discovery = Discovery::default();
    let mut promoted = None;
    for turn in 0..16 {
        let Ok(Some(Frame::Reply(reply))) = decoder.decode(&mut buffer) else { return };
        let read = parse_promoted(&reply);
        if let Ok(read) = &read {
            promoted.clone_from(read);
        }
        match parse_master(&reply) {
            Ok(mut answer) => {
                answer.promoted = promoted.take();
                discovery.received(turn % 3, answer);
                assert!(discovery.address().is_some());
            }
            Err(_) if read.is_err() => discovery.silent(turn % 3),
            Err(_) => {}
        }
        assert!(discovery.alternative().is_none() || discovery.alternative() != discovery.address());
    }
}
