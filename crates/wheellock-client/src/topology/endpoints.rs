//! The preferred endpoints of a cluster's nodes, from `CLUSTER SLOTS`.
//!
//! This module does not read the owners of slots. `CLUSTER NODES` states a node's address and name, but not which of
//! them the operator prefers (`cluster-preferred-endpoint-type`). Source: `addNodeToNodeReply` in cluster.c of Redis
//! 7.0.

use std::collections::HashMap;
use std::net::IpAddr;

use wheellock_resp::Value;

use super::nodes::Node;
use crate::base::endpoint::parse_host;

/// The preferred host of each node that serves slots, by the node's id.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Endpoints(HashMap<String, Endpoint>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Endpoint {
    /// The host of the queried node, with the node's own port.
    Asked,
    /// The node has no host name, although the cluster prefers names.
    Unnamed,
    Host(String),
}

impl Endpoints {
    /// Parses the reply to `CLUSTER SLOTS`. Skips entries that are not endpoints. Their nodes keep the address from
    /// `CLUSTER NODES`.
    pub(crate) fn parse(reply: &Value) -> Self {
        let ranges = reply.as_array().unwrap_or_default().iter().filter_map(Value::as_array);
        // Each range begins with its first and its last slot.
        let nodes = ranges.flat_map(|range| range.get(2..).unwrap_or_default()).filter_map(Value::as_array);
        Self(nodes.filter_map(parse_node).collect())
    }

    /// Gives the nodes of a view the addresses that the cluster prefers. The former address becomes the alias. With
    /// `by_name`, the nodes already have their names, which TLS needs more than the preference.
    pub(crate) fn apply(&self, view: &mut [Node], by_name: bool) {
        let is_name = |host: &str| host.parse::<IpAddr>().is_err();
        // A primary without slots is not in the reply. Use its name if the other nodes have names.
        let others_are_named =
            |endpoint: &Endpoint| matches!(endpoint, Endpoint::Host(host) if is_name(host));
        let are_named = !by_name && self.0.values().any(others_are_named);
        for node in view {
            match self.0.get(&node.id) {
                Some(Endpoint::Host(host)) if is_name(host) || !by_name => node.prefer(host),
                Some(Endpoint::Asked) => node.prefer(""),
                None if are_named => node.prefer_alias(),
                Some(Endpoint::Host(_) | Endpoint::Unnamed) | None => {}
            }
        }
    }
}

/// Parses `[host, port, id, ..]`.
fn parse_node(node: &[Value]) -> Option<(String, Endpoint)> {
    let [host, _port, id, ..] = node else { return None };
    let endpoint = match host {
        Value::Null => Endpoint::Asked,
        host => match host.as_str()? {
            "" => Endpoint::Asked,
            "?" => Endpoint::Unnamed,
            host => Endpoint::Host(parse_host(host).ok()?),
        },
    };
    Some((id.as_str()?.to_owned(), endpoint))
}

#[cfg(test)]
mod tests;
