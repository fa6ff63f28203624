//! Tests of `nodes`.

use proptest::prelude::*;

use super::*;

// Reply of redis-server 7.0.15, where every second node has `cluster-announce-hostname`.
const HEALTHY: &str = "\
568100cf1bd97e9d2b0a3055ab9dfaf4c0d75a3c 127.0.0.1:21003@31003,node21003.example.org slave dcb77bf799f92bd4d80b68a78f837f9a8ba5091f 0 1795271357971 3 connected
9908c19e290291a850d56d19209e8938f619a2ce 127.0.0.1:21001@31001,node21001.example.org master - 0 1795271357871 2 connected 5461-10922
b9c0c27c636d716e701d5e7d513627bd89f3edad 127.0.0.1:21000@31000 myself,master - 0 1795271357000 1 connected 0-5460
0d4a475a46f09595adb4bb2e319162f5b230b11a 127.0.0.1:21005@31005,node21005.example.org slave 9908c19e290291a850d56d19209e8938f619a2ce 0 1795271357871 2 connected
a6b5d5d4c4b769a5af6486f2a2a021e0c29500ad 127.0.0.1:21004@31004 slave b9c0c27c636d716e701d5e7d513627bd89f3edad 0 1795271357971 1 connected
dcb77bf799f92bd4d80b68a78f837f9a8ba5091f 127.0.0.1:21002@31002 master - 0 1795271357971 3 connected 10923-16383
";

fn only(line: &str) -> Node {
    let mut nodes = parse(line.as_bytes(), false).unwrap_or_else(|why| panic!("{line}: {why:?}"));
    assert_eq!(nodes.len(), 1, "{line}");
    nodes.remove(0)
}

#[test]
fn a_healthy_cluster() {
    let nodes = parse(HEALTHY.as_bytes(), false).unwrap();
    assert_eq!(nodes.len(), 6);
    assert_eq!(nodes.iter().filter(|node| node.is_primary).count(), 3);
    let replica = Node {
        id: "568100cf1bd97e9d2b0a3055ab9dfaf4c0d75a3c".to_owned(),
        address: address("127.0.0.1", 21003),
        alias: Some(address("node21003.example.org", 21003)),
        epoch: 3,
        is_primary: false,
        is_myself: false,
        is_failed: false,
        is_suspected: false,
        primary_id: Some("dcb77bf799f92bd4d80b68a78f837f9a8ba5091f".to_owned()),
        slots: Vec::new(),
    };
    assert_eq!(nodes[0], replica);
    assert_eq!((nodes[2].is_myself, nodes[2].primary_id.as_deref()), (true, None));
    assert_eq!(nodes[2].slots, [0..=5460]);
    assert_eq!(nodes[5].slots, [10_923..=16_383]);

    let by_name = parse(HEALTHY.as_bytes(), true).unwrap();
    let Node { address, alias, .. } = replica.clone();
    assert_eq!(by_name[0], Node { address: alias.unwrap(), alias: Some(address), ..replica });
    assert_eq!(by_name[2], nodes[2], "it has no name");
}

#[test]
fn lone_node_has_no_host() {
    let node = only("096038778d9a83ca09331ca55b1bcca3b3c37256 :21000@31000 myself,master - 0 0 0 connected");
    assert_eq!((node.address, node.alias, node.slots.len()), (address("", 21000), None, 0));
}

#[test]
fn migrating_slots_stay_with_owner() {
    let from = only(
        "096038778d9a83ca09331ca55b1bcca3b3c37256 127.0.0.1:21000@31000 myself,master - 0 1795271303000 1 connected 0-5460 [93->-8ddd2294d3df3d66501464a7f5a6d56d8a936ac7]",
    );
    assert_eq!(from.slots, [0..=5460]);
    let to = only(
        "8ddd2294d3df3d66501464a7f5a6d56d8a936ac7 127.0.0.1:21001@31001,node21001.example.org myself,master - 0 1795271303000 2 connected 5461-10922 [93-<-096038778d9a83ca09331ca55b1bcca3b3c37256]",
    );
    assert_eq!(to.slots, [5461..=10_922]);
    let moved = only(
        "8ddd2294d3df3d66501464a7f5a6d56d8a936ac7 127.0.0.1:21001@31001,node21001.example.org myself,master - 0 1795271303000 7 connected 93 5461-10922",
    );
    assert_eq!((moved.epoch, moved.slots), (7, vec![93..=93, 5461..=10_922]));
}

#[test]
fn the_failed_and_the_suspected() {
    let suspected = only(
        "54b954f8fc91ea38c2bad07f086f6faef1239723 127.0.0.1:21002@31002 master,fail? - 1795271303762 1795271303260 3 disconnected 10923-16383",
    );
    assert_eq!((suspected.is_suspected, suspected.is_failed), (true, false));
    let failed = only(
        "54b954f8fc91ea38c2bad07f086f6faef1239723 127.0.0.1:21002@31002 master,fail - 1795271303762 1795271303260 3 disconnected 10923-16383",
    );
    assert_eq!((failed.is_suspected, failed.is_failed), (false, true));
}

#[test]
fn nodes_without_address_are_skipped() {
    // The second node was reset, and still owns slots in the first node's view. The first node has just met the
    // third.
    let text = "\
8ddd2294d3df3d66501464a7f5a6d56d8a936ac7 127.0.0.1:21001@31001,node21001.example.org myself,master - 0 1795271311000 7 connected 93 5461-10922
096038778d9a83ca09331ca55b1bcca3b3c37256 :0@0 master,noaddr - 1795271309809 1795271309607 1 disconnected 0-92 94-5460
370d5daefc1f0b63ed77cfed580e795e90c9720d 127.0.0.1:29999@39999 handshake - 0 0 0 disconnected
";
    let ids: Vec<_> = parse(text.as_bytes(), false).unwrap().into_iter().map(|node| node.id).collect();
    assert_eq!(ids, ["8ddd2294d3df3d66501464a7f5a6d56d8a936ac7"]);
}

/// Redis 7.2 lists a member with TLS only for a plain text client like this. Its slots then have no owner.
#[test]
fn nodes_without_usable_port_are_skipped() {
    let text = "\
8ddd2294d3df3d66501464a7f5a6d56d8a936ac7 10.0.0.1:7001@17001,,tls-port=0,shard-id=69bc myself,master - 0 0 2 connected 0-8191
096038778d9a83ca09331ca55b1bcca3b3c37256 10.0.0.2:0@17002,,tls-port=7002,shard-id=69bd master - 0 0 1 connected 8192-16383
";
    let nodes = parse(text.as_bytes(), false).unwrap();
    assert_eq!(nodes.len(), 1);
    assert_eq!(
        (nodes[0].address.clone(), nodes[0].slots.clone()),
        (address("10.0.0.1", 7001), vec![0..=8191])
    );
}

#[test]
fn addresses_of_every_version() {
    let endpoint = |text: &str| {
        let node = only(&format!("a1 {text} master,nofailover,new-in-redis-99 - 0 0 1 connected"));
        (node.address, node.alias)
    };
    let is =
        |host: &str, port, name: Option<&str>| (address(host, port), name.map(|name| address(name, port)));
    assert_eq!(endpoint("10.0.0.1:7000"), is("10.0.0.1", 7000, None), "before Redis 4");
    assert_eq!(endpoint("10.0.0.1:7000@17000"), is("10.0.0.1", 7000, None));
    assert_eq!(endpoint("10.0.0.1:7000@17000,a.example"), is("10.0.0.1", 7000, Some("a.example")));
    assert_eq!(
        endpoint("10.0.0.1:7000@17000,a.example,shard-id=69bc"),
        is("10.0.0.1", 7000, Some("a.example"))
    );
    assert_eq!(endpoint("10.0.0.1:7000@17000,,tls-port=0,shard-id=69bc"), is("10.0.0.1", 7000, None));
    assert_eq!(endpoint("10.0.0.1:7000@17000,shard-id=69bc"), is("10.0.0.1", 7000, None));
    assert_eq!(endpoint("::1:7000@17000"), is("::1", 7000, None));
    assert_eq!(endpoint("[fe80::1%eth0]:7000@17000"), is("fe80::1%eth0", 7000, None));
}

#[test]
fn what_cannot_be_is_refused() {
    let whole = |line: &str| parse(line.as_bytes(), false).map_err(|Malformed(why)| why);
    let endpoint = |text: &str| whole(&format!("a1 {text} master - 0 0 1 connected"));
    let slots = |text: &str| whole(&format!("a1 h:1@2 master - 0 0 1 connected {text}"));
    let no_port = Err("a port is not within 1..=65535");
    for bad in ["h:00@1", "h:65536@1", "h:+1@1", "h:@1", "h:1x@1"] {
        assert_eq!(endpoint(bad), no_port, "{bad}");
    }
    assert_eq!(endpoint("h"), Err("a node's address lacks its port"));
    assert_eq!(endpoint("h\x1b[31m:1@2"), Err("a host has a character that no host name has"));
    assert_eq!(endpoint("h:1@2,b\0d"), Err("a host has a character that no host name has"));
    assert_eq!(
        endpoint(&format!("{}:1@2", "h".repeat(256))),
        Err("a host name is longer than a name can be")
    );
    for bad in ["16384", "0-16384", "-1", "1-", "0-1-2", "x", "65536", "+1"] {
        assert_eq!(slots(bad), Err("a slot is not within 0..=16383"), "{bad}");
    }
    assert_eq!(slots("2-1"), Err("a range of slots ends before it starts"));
    assert_eq!(slots("0-16383").map(|nodes| nodes[0].slots.clone()), Ok(vec![0..=16_383]));
    assert_eq!(slots("0-16383 0"), Err("more slots are owned than there are"));
    assert_eq!(whole("a1 h:1@2 master - 0 0"), Err("a node's line is too short"));
    assert_eq!(whole("a1 h:1@2 master - 0 0 -1 connected"), Err("a config epoch is not a number"));
    assert_eq!(whole("a! h:1@2 master - 0 0 1 connected"), Err("a node's id is not one"));
    assert_eq!(whole("a1 h:1@2 slave ? 0 0 1 connected"), Err("a node's id is not one"));
    assert_eq!(parse(b"\xff", false), Err(Malformed("the list of nodes is not UTF-8")));
    assert_eq!(whole(""), Ok(Vec::new()));
}

#[test]
fn the_list_is_bounded() {
    let list = |nodes: usize| "a1 h:1@2 master - 0 0 1 connected\n".repeat(nodes);
    assert_eq!(parse(list(MAX_NODES).as_bytes(), false).map(|nodes| nodes.len()), Ok(MAX_NODES));
    assert_eq!(
        parse(list(MAX_NODES + 1).as_bytes(), false),
        Err(Malformed("the list has more nodes than a cluster can have"))
    );
}

fn shown(node: &Node, by_name: bool) -> String {
    let mut flags = vec![if node.is_primary { "master" } else { "slave" }];
    flags.extend(
        [(node.is_myself, "myself"), (node.is_failed, "fail"), (node.is_suspected, "fail?")]
            .iter()
            .filter(|(set, _)| *set)
            .map(|(_, flag)| *flag),
    );
    let (by_ip, named) = match &node.alias {
        Some(by_ip) if by_name => (by_ip, Some(&node.address)),
        named => (&node.address, named.as_ref()),
    };
    let (host, port) = parts(by_ip);
    let hostname = named.map(|named| format!(",{}", parts(named).0)).unwrap_or_default();
    let slots: String =
        node.slots.iter().map(|range| format!(" {}-{}", range.start(), range.end())).collect();
    format!(
        "{} {}:{}@1{hostname} {} {} 0 0 {} connected{slots}\n",
        node.id,
        host,
        port,
        flags.join(","),
        node.primary_id.as_deref().unwrap_or("-"),
        node.epoch,
    )
}

fn parts(address: &Address) -> (&str, u16) {
    match address {
        Address::Tcp { host, port } => (host, *port),
        Address::Unix(_) => panic!("no node says that"),
    }
}

prop_compose! {
    fn a_node()(
        id in "[0-9a-f]{40}",
        host in "|127\\.0\\.0\\.1|::1|[a-z.-]{1,20}",
        hostname in proptest::option::of("[a-z][a-z0-9.-]{0,20}"),
        port in 1..=u16::MAX,
        epoch: u64,
        flags: [bool; 4],
        primary_id in proptest::option::of("[0-9a-f]{40}"),
        ranges in proptest::collection::vec((0..SLOTS - 300, 0..300_u16), 0..5),
    ) -> Node {
        let [is_primary, is_myself, is_failed, is_suspected] = flags;
        let slots = ranges.into_iter().map(|(start, len)| start..=start + len).collect();
        let (address, alias) = (address(&host, port), hostname.map(|name| address(&name, port)));
        Node { id, address, alias, epoch, is_primary, is_myself, is_failed, is_suspected, primary_id, slots }
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(mut nodes in proptest::collection::vec(a_node(), 0..8), by_name: bool) {
        for node in nodes.iter_mut().filter(|_| by_name) {
            if let Some(alias) = &mut node.alias {
                std::mem::swap(alias, &mut node.address);
            }
        }
        let text: String = nodes.iter().map(|node| shown(node, by_name)).collect();
        prop_assert_eq!(parse(text.as_bytes(), by_name), Ok(nodes));
    }

    #[test]
    fn any_bytes_are_read_or_refused(
        start in 0..HEALTHY.len(), len in 0..40_usize, bytes in proptest::collection::vec(any::<u8>(), 0..40)
    ) {
        let mut text = HEALTHY.as_bytes().to_vec();
        text.splice(start..(start + len).min(HEALTHY.len()), bytes);
        if let Ok(nodes) = parse(&text, len % 2 == 0) {
            prop_assert!(nodes.iter().flat_map(|node| [Some(&node.address), node.alias.as_ref()]).flatten().all(|at| parts(at).1 != 0));
            prop_assert!(nodes.iter().flat_map(|node| &node.slots).all(|range| *range.end() < SLOTS));
        }
    }
}
