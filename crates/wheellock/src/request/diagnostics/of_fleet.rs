//! Conditions of a fleet, checked once, when its manager connects.

use std::fmt;

use wheellock_client::{CallOptions, Client, Command, Value};

use super::{Finding, PERMISSIONS, REPLICAS, connected_replicas, unknown};
use crate::base::fleet_key::FleetKey;
use crate::kind::lua;

/// Checks the server, or each primary of a cluster, for a fleet of `servers` servers.
pub(super) async fn check(client: &Client, servers: u32, options: CallOptions) -> Vec<Finding> {
    let mut findings = Vec::new();
    for node in client.nodes() {
        for finding in check_node(&node, servers, options).await {
            if !findings.contains(&finding) {
                findings.push(finding);
            }
        }
    }
    findings
}

async fn check_node(client: &Client, servers: u32, options: CallOptions) -> Vec<Finding> {
    let mut findings = Vec::new();
    let info = client.call_with(&Command::new("INFO").arg("replication"), options).await;
    match info.as_ref().map(Value::as_str) {
        Ok(Some(info)) => judge_replication(info, servers, &mut findings),
        Ok(None) => findings.push(unknown(REPLICAS, &"INFO was answered with another type")),
        Err(error) => findings.push(unknown(REPLICAS, error)),
    }
    let ask = Command::new("EVAL").arg(script()).arg("0").arg(FleetKey::START);
    let missing = client.call_with(&ask, options).await;
    match missing.as_ref().map(Value::as_array) {
        Ok(Some(rules)) => findings.extend(
            rules
                .iter()
                .filter_map(Value::as_str)
                .map(|rule| Finding::MissingFleetPermission { rule: rule.to_owned() }),
        ),
        Ok(None) => findings.push(unknown(PERMISSIONS, &"the script was answered with another type")),
        Err(error) => findings.push(unknown(PERMISSIONS, error)),
    }
    findings
}

pub(super) fn judge_replication(info: &str, servers: u32, findings: &mut Vec<Finding>) {
    match connected_replicas(info) {
        None => findings.push(unknown(REPLICAS, &"INFO does not tell")),
        Some(0) if servers > 1 => findings.push(Finding::NoReplica { servers }),
        Some(replicas) if replicas.saturating_add(1) != servers => {
            findings.push(Finding::OtherServerCount { servers, connected: replicas.saturating_add(1) });
        }
        Some(_) => {}
    }
    // A server tells this number only if `min-replicas-to-write` is set. The user may not be allowed to read the setting.
    let is_set = info.lines().any(|line| {
        line.starts_with("min_slaves_good_slaves:") || line.starts_with("min_replicas_good_replicas:")
    });
    if servers > 1 && !is_set {
        findings.push(Finding::WritesWithoutReplicas);
    }
}

impl Finding {
    /// Returns the rule for `ACL SETUSER` that a process of a fleet lacks.
    pub(crate) fn missing_fleet_rule(&self) -> Option<&str> {
        match self {
            Self::MissingFleetPermission { rule } => Some(rule),
            _ => None,
        }
    }

    /// Formats the findings about a fleet.
    pub(super) fn fmt_of_fleet(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoReplica { servers } => write!(
                f,
                "no replica is connected, so no process acquires a lock that survives a failover of {servers} servers"
            ),
            Self::OtherServerCount { servers, connected } if connected < servers => write!(
                f,
                "only {connected} of the {servers} servers are connected, so no new process acquires a lock until the \
                 others are back"
            ),
            Self::OtherServerCount { servers, connected } => write!(
                f,
                "{connected} servers are connected, and the setting for failovers says {servers}: a replica beyond them \
                 may take over without the newest processes, so a lock could be granted twice"
            ),
            Self::WritesWithoutReplicas => f.write_str(
                "without min-replicas-to-write a replaced primary that has lost its replicas goes on granting semaphores, \
                 latches and the locks of processes without this setting for failovers",
            ),
            Self::MissingFleetPermission { rule } => {
                write!(f, "the user lacks {}: {}", rule.escape_debug(), consequence(rule))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the consequence of a missing rule.
fn consequence(rule: &str) -> &'static str {
    match rule {
        "+wait" => "no replica can acknowledge this process, so it acquires no lock",
        "+zrem" | "+srem" => {
            "the entry of this process outlives its shutdown, and delays the end of a failover"
        }
        _ => "this process cannot refresh its entry, so it acquires no lock",
    }
}

/// Returns the script that finds missing permissions. The script does not have keys.
pub(crate) fn script() -> &'static str {
    lua!("fleet/diagnose.lua")
}
