//! The parser of `CLUSTER NODES`: one node's view of its cluster.
//!
//! This module does not judge whether a view is correct; `slot_map` does. Each node has one line:
//! `<id> <ip:port@cport[,hostname[,aux=value]*]> <flags> <primary> <ping> <pong> <epoch> <link> <slot>*`.
//!
//! Sources: the documentation of the command, `clusterGenNodeDescription` in cluster.c of Redis 7.0, and replies of
//! real servers.

use std::ops::RangeInclusive;

use crate::base::address::Address;
use crate::base::endpoint::{Malformed, address, parse_host, parse_port, parse_slot};
use crate::base::slots::SLOTS;

/// One node, as another node or the node itself sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// The id in the node's `nodes.conf`. It survives a restart and a change of address, but not
    /// `CLUSTER RESET HARD`.
    pub(crate) id: String,
    /// The preferred address. Its host is empty if the node does not know its own host yet. A node learns it from
    /// other nodes.
    pub(crate) address: Address,
    /// The second address of a node with a host name. It holds the IP address if `address` holds the host name, and
    /// the reverse.
    pub(crate) alias: Option<Address>,
    /// The config epoch of the primary, or for a replica that of its primary.
    pub(crate) epoch: u64,
    pub(crate) is_primary: bool,
    /// True for the node that replied.
    pub(crate) is_myself: bool,
    /// The cluster agrees that the node is down (`fail`).
    pub(crate) is_failed: bool,
    /// The node that replied cannot reach this node (`fail?`).
    pub(crate) is_suspected: bool,
    pub(crate) primary_id: Option<String>,
    /// The node's slots. A migrating slot is still listed at the node that it leaves.
    pub(crate) slots: Vec<RangeInclusive<u16>>,
}

impl Node {
    /// Makes `host` the host of the address. The former address becomes the alias. An empty host means the host of
    /// the node that replied.
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

/// Parses the nodes in a reply. Skips nodes that have no address yet or have lost it. Skips nodes that do not serve
/// this kind of connection, encrypted or plain text. With `by_name`, a node's address contains its host name if it
/// has one. Otherwise the address contains the IP address.
pub(crate) fn parse(text: &[u8], by_name: bool) -> Result<Vec<Node>, Malformed> {
    let text = std::str::from_utf8(text).map_err(|_| Malformed("the list of nodes is not UTF-8"))?;
    let mut nodes = Vec::new();
    // In one node's view, a slot has at most one owner.
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
        // Skip a migrating slot, `[93->-id]` at its owner and `[93-<-id]` at its target. The ranges already state its
        // owner.
        if !field.starts_with('[') {
            let range = parse_range(field)?;
            let rest = unclaimed.checked_sub(range.end() - range.start() + 1);
            *unclaimed = rest.ok_or(Malformed("more slots are owned than there are"))?;
            node.slots.push(range);
        }
    }
    Ok(Some(node))
}

/// Parses `ip:port`, optionally followed by `@cport`, `,hostname` and `,aux=value`. Returns the address by IP and the
/// address by name. Returns `None` if the port is zero. Redis shows port zero for a node without a port of the
/// requested kind, TLS or not. Source: `clusterGenNodeDescription` in cluster.c of Redis 7.2.
fn parse_endpoint(text: &str) -> Result<Option<(Address, Option<Address>)>, Malformed> {
    let mut parts = text.split(',');
    let by_ip = parts.next().unwrap_or_default();
    let by_ip = by_ip.split_once('@').map_or(by_ip, |(by_ip, _bus_port)| by_ip);
    let (host, port) = by_ip.rsplit_once(':').ok_or(Malformed("a node's address lacks its port"))?;
    if port == "0" {
        return Ok(None);
    }
    // Only the first field can be the hostname. It is empty if only other fields follow.
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

/// Parses `93` or `0-5460`.
fn parse_range(text: &str) -> Result<RangeInclusive<u16>, Malformed> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = parse_slot(first)?..=parse_slot(last)?;
    if range.is_empty() { Err(Malformed("a range of slots ends before it starts")) } else { Ok(range) }
}

/// Maximum number of nodes. It is ten times the size up to which Redis Cluster is meant to scale (specification,
/// "main goals").
const MAX_NODES: usize = 10_000;

/// Maximum length of an id. Redis uses 40 hexadecimal digits.
const MAX_ID: usize = 64;

#[cfg(test)]
mod tests;
