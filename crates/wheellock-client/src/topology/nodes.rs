//! What one node says about its cluster: the text of `CLUSTER NODES`. Reads it; believing it is `slot_map`'s.
//!
//! One line per node: `<id> <ip:port@cport[,hostname[,aux=value]*]> <flags> <primary> <ping> <pong> <epoch> <link> <slot>*`.
//! Sources: the documentation of the command, `clusterGenNodeDescription` in cluster.c of Redis 7.0, and what servers said.

use std::ops::RangeInclusive;

use super::endpoint::{Malformed, address, parse_host, parse_port, parse_slot};
use super::slots::SLOTS;
use crate::address::Address;

/// One node as another sees it, or as it sees itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// Lives as long as the node's `nodes.conf`: it survives a restart and a change of address, not `CLUSTER RESET HARD`.
    pub(crate) id: String,
    /// Without a host if the node does not know its own, which no other node has told it yet.
    pub(crate) address: Address,
    /// Where else it is, if it has two names: by its IP address if `address` has its host name, and the other way round.
    pub(crate) alias: Option<Address>,
    /// The config epoch of a primary; of a replica, that of its primary.
    pub(crate) epoch: u64,
    pub(crate) is_primary: bool,
    /// The one that was asked.
    pub(crate) is_myself: bool,
    /// The cluster agrees that it is down (`fail`).
    pub(crate) is_failed: bool,
    /// The one that was asked cannot reach it (`fail?`).
    pub(crate) is_suspected: bool,
    pub(crate) primary_id: Option<String>,
    /// What it owns. A slot on its way is still in the list of the node it leaves.
    pub(crate) slots: Vec<RangeInclusive<u16>>,
}

impl Node {
    /// Puts `host` in the place of the address, which becomes the alias. An empty host is the one that was asked.
    pub(crate) fn prefer(&mut self, host: &str) {
        if let Address::Tcp { host: present, port } = &self.address
            && present != host
        {
            let preferred = address(host, *port);
            self.alias = Some(std::mem::replace(&mut self.address, preferred));
        }
    }

    /// Swaps the address and the alias.
    pub(crate) fn prefer_alias(&mut self) {
        if let Some(alias) = &mut self.alias {
            std::mem::swap(&mut self.address, alias);
        }
    }
}

/// The nodes that the answer names, without those that have no address yet or have lost it, and without those that do not serve who
/// asks as he asks: encrypted, or in plain text. A node's address is that by its host name, if it has one, `by_name`, and otherwise that by
/// its IP address.
pub(crate) fn parse(text: &[u8], by_name: bool) -> Result<Vec<Node>, Malformed> {
    let text = std::str::from_utf8(text).map_err(|_| Malformed("the list of nodes is not UTF-8"))?;
    let mut nodes = Vec::new();
    // No slot has two owners in one node's eyes.
    let mut unclaimed = SLOTS;
    for line in text.lines().filter(|line| !line.is_empty()) {
        if nodes.len() == MAX_NODES {
            return Err(Malformed("the list has more nodes than a cluster can have"));
        }
        if let Some(node) = parse_line(line, by_name, &mut unclaimed)? {
            nodes.push(node);
        }
    }
    Ok(nodes)
}

fn parse_line(line: &str, by_name: bool, unclaimed: &mut u16) -> Result<Option<Node>, Malformed> {
    let mut fields = line.split(' ').filter(|field| !field.is_empty());
    let mut field = || fields.next().ok_or(Malformed("a node's line is too short"));
    let (id, endpoint, flags, primary) = (field()?, field()?, field()?, field()?);
    let (_ping_sent, _pong_received, epoch, _link) = (field()?, field()?, field()?, field()?);

    let has = |wanted: &str| flags.split(',').any(|flag| flag == wanted);
    if has("handshake") || has("noaddr") {
        return Ok(None);
    }
    let Some((by_ip, named)) = parse_endpoint(endpoint)? else { return Ok(None) };
    let (address, alias) = match named {
        Some(named) if by_name => (named, Some(by_ip)),
        named => (by_ip, named),
    };
    let mut node = Node {
        id: parse_id(id)?,
        address,
        alias,
        epoch: epoch.parse().map_err(|_| Malformed("a config epoch is not a number"))?,
        is_primary: has("master"),
        is_myself: has("myself"),
        is_failed: has("fail"),
        is_suspected: has("fail?"),
        primary_id: (primary != "-").then(|| parse_id(primary)).transpose()?,
        slots: Vec::new(),
    };
    for field in fields {
        // A slot on its way, `[93->-id]` at its owner and `[93-<-id]` where it goes: whose it is the ranges say.
        if !field.starts_with('[') {
            let range = parse_range(field)?;
            let rest = unclaimed.checked_sub(range.end() - range.start() + 1);
            *unclaimed = rest.ok_or(Malformed("more slots are owned than there are"))?;
            node.slots.push(range);
        }
    }
    Ok(Some(node))
}

/// `ip:port`, then in any number `@cport`, `,hostname` and `,aux=value`: the address by IP, and that by name. `None` if the port is zero: so Redis shows a node that
/// has none of the kind by which it was asked, TLS or not (`clusterGenNodeDescription` in cluster.c of Redis 7.2).
fn parse_endpoint(text: &str) -> Result<Option<(Address, Option<Address>)>, Malformed> {
    let mut parts = text.split(',');
    let by_ip = parts.next().unwrap_or_default();
    let by_ip = by_ip.split_once('@').map_or(by_ip, |(by_ip, _bus_port)| by_ip);
    let (host, port) = by_ip.rsplit_once(':').ok_or(Malformed("a node's address lacks its port"))?;
    if port == "0" {
        return Ok(None);
    }
    // Only the first place is the hostname's, and it is empty if there are only others.
    let hostname = parts.next().filter(|name| !name.is_empty() && !name.contains('='));
    let (host, port) = (parse_host(host)?, parse_port(port)?);
    let hostname = hostname.map(parse_host).transpose()?;
    Ok(Some((address(&host, port), hostname.map(|name| address(&name, port)))))
}

fn parse_id(text: &str) -> Result<String, Malformed> {
    if text.len() <= MAX_ID && text.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        Ok(text.to_owned())
    } else {
        Err(Malformed("a node's id is not one"))
    }
}

/// `93` or `0-5460`.
fn parse_range(text: &str) -> Result<RangeInclusive<u16>, Malformed> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = parse_slot(first)?..=parse_slot(last)?;
    if range.is_empty() { Err(Malformed("a range of slots ends before it starts")) } else { Ok(range) }
}

/// Ten times the size up to which Redis Cluster is meant to scale (its specification, "main goals").
const MAX_NODES: usize = 10_000;

/// Redis makes them of 40 hexadecimal digits.
const MAX_ID: usize = 64;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // Said by redis-server 7.0.15, every second node with `cluster-announce-hostname`.
    const HEALTHY: &str = "\
568100cf1bd97e9d2b0a3055ab9dfaf4c0d75a3c 127.0.0.1:21003@31003,node21003.example.org slave dcb77bf799f92bd4d80b68a78f837f9a8ba5091f 0 1795271357971 3 connected
9908c19e290291a850d56d19209e8938f619a2ce 127.0.0.1:21001@31001,node21001.example.org master - 0 1795271357871 2 connected 5461-10922
b9c0c27c636d716e701d5e7d513627bd89f3edad 127.0.0.1:21000@31000 myself,master - 0 1795271357000 1 connected 0-5460
0d4a475a46f09595adb4bb2e319162f5b230b11a 127.0.0.1:21005@31005,node21005.example.org slave 9908c19e290291a850d56d19209e8938f619a2ce 0 1795271357871 2 connected
a6b5d5d4c4b769a5af6486f2a2a021e0c29500ad 127.0.0.1:21004@31004 slave b9c0c27c636d716e701d5e7d513627bd89f3edad 0 1795271357971 1 connected
dcb77bf799f92bd4d80b68a78f837f9a8ba5091f 127.0.0.1:21002@31002 master - 0 1795271357971 3 connected 10923-16383
";

    fn only(line: &str) -> Node {
        let mut nodes = parse(line.as_bytes(), false).unwrap_or_else(|why| panic!("{line}: {why}"));
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
    fn a_node_alone_does_not_know_its_host() {
        let node =
            only("096038778d9a83ca09331ca55b1bcca3b3c37256 :21000@31000 myself,master - 0 0 0 connected");
        assert_eq!((node.address, node.alias, node.slots.len()), (address("", 21000), None, 0));
    }

    #[test]
    fn slots_on_their_way_stay_where_they_are() {
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
    fn nodes_without_an_address_are_left_out() {
        // The second was reset, and still owns slots in this one's eyes; the third was just met.
        let text = "\
8ddd2294d3df3d66501464a7f5a6d56d8a936ac7 127.0.0.1:21001@31001,node21001.example.org myself,master - 0 1795271311000 7 connected 93 5461-10922
096038778d9a83ca09331ca55b1bcca3b3c37256 :0@0 master,noaddr - 1795271309809 1795271309607 1 disconnected 0-92 94-5460
370d5daefc1f0b63ed77cfed580e795e90c9720d 127.0.0.1:29999@39999 handshake - 0 0 0 disconnected
";
        let ids: Vec<_> = parse(text.as_bytes(), false).unwrap().into_iter().map(|node| node.id).collect();
        assert_eq!(ids, ["8ddd2294d3df3d66501464a7f5a6d56d8a936ac7"]);
    }

    /// A member with TLS only, as Redis 7.2 tells of it to who asks in plain text; its slots are nobody's then.
    #[test]
    fn nodes_without_a_port_for_who_asks_are_left_out() {
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
        let is = |host: &str, port, name: Option<&str>| {
            (address(host, port), name.map(|name| address(name, port)))
        };
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
}
