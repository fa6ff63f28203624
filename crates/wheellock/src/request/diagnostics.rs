//! Properties of a server that put locks at risk.
//!
//! This module checks and judges them once, when the manager connects.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use wheellock_client::{CallOptions, Client, Command, ErrorKind, Value};

use crate::base::durability::Durability;
use crate::base::error::Error;
use crate::base::fleet::Fleet;
use crate::kind::{self, lua};

pub(crate) mod of_fleet;

/// A property of the server that puts locks at risk, or keeps them from working well.
///
/// ```no_run
/// use wheellock::Finding;
///
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// for finding in locks.diagnostics() {
///     match finding {
///         Finding::MayEvict { .. } => panic!("{finding}"),
///         other => eprintln!("{other}"),
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Finding {
    /// The server evicts keys when its memory is full. Most policies evict locks first, because every lock has a TTL.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    MayEvict {
        /// The server's `maxmemory-policy`.
        policy: String,
        /// The server's `maxmemory` in bytes.
        maxmemory: u64,
    },
    /// The server does not keep an append-only file. After a restart the server has lost the locks, or knows only those of its last
    /// snapshot.
    ForgetsOnRestart,
    /// The user may not run a command that locks need.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    MissingPermission {
        /// The command.
        command: String,
    },
    /// The server does not know a command that locks need, or does not run it in a script.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    MissingCommand {
        /// The command.
        command: String,
    },
    /// On a connection with a subscription the server runs no other command, as in RESP2, although RESP3 was agreed on. Some servers that
    /// stand in for Redis in tests are like that. No caller can wait for a lock.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    SubscriptionBlocksCommands {
        /// The outcome of the command.
        reason: String,
    },
    /// The URL has a password and no user, and the server did not check the password. The user was therefore `default`, which does not
    /// need a password here. Perhaps the part before the `@` was meant as a user.
    UncheckedPassword,
    /// The server refuses `CLIENT TRACKING`, with which it would tell of changed keys: a missing permission, or a proxy. The holder of a
    /// deleted lock learns of the loss with the next renewal.
    ChangesNotTold,
    /// The server is older than the oldest version this library was tested with (6.0.16).
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    UntestedVersion {
        /// The server's version.
        version: String,
    },
    /// A server of a [`RedLockManager`](crate::RedLockManager) has replicas. A replica that is promoted in the server's place may grant a
    /// lock that the server has already granted.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    HasReplicas {
        /// The server.
        server: Arc<str>,
        /// Number of connected replicas.
        replicas: u32,
    },
    /// A server of a [`RedLockManager`](crate::RedLockManager) cannot grant until a setting changes. The server refuses the password, is
    /// a replica, is the same server as another member, or its user may not run a command that every lock needs.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    UnusableMember {
        /// The server.
        server: Arc<str>,
        /// Why the server cannot grant.
        reason: String,
    },
    /// Fewer replicas are connected than [`Durability`](crate::Durability) requires. Until enough replicas are connected, the server's
    /// locks cannot be granted.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    TooFewReplicas {
        /// Number of connected replicas. In a cluster this is the smallest number of any primary.
        connected: u32,
        /// Number of replicas that have to acknowledge.
        wanted: u32,
    },
    /// No replica is connected, although the [`Fleet`](crate::Fleet) has several servers. No process acquires a lock.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    NoReplica {
        /// Number of servers of the fleet.
        servers: u32,
    },
    /// The primary and its connected replicas are not as many servers as the [`Fleet`](crate::Fleet) says.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    OtherServerCount {
        /// Number of servers of the fleet.
        servers: u32,
        /// Number of servers that are connected, the primary included.
        connected: u32,
    },
    /// The server's setting `min-replicas-to-write` is 0. A primary that was replaced and has lost its replicas then goes on granting
    /// semaphores, latches, and locks of processes outside of the [`Fleet`](crate::Fleet).
    WritesWithoutReplicas,
    /// The user lacks a permission that every process of a [`Fleet`](crate::Fleet) needs.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    MissingFleetPermission {
        /// The rule that is missing, as for `ACL SETUSER`.
        rule: String,
    },
    /// The system did not allow this process a thread for the timer. Until it does, tasks keep deadlines and renewals by reading the
    /// clock on every turn, which costs processor time.
    NoTimerThread,
    /// A property could not be determined.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    Unknown {
        /// The property that was checked.
        question: &'static str,
        /// The reason why there is no result.
        reason: String,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MayEvict { policy, maxmemory } => write!(
                f,
                "with maxmemory {maxmemory} and maxmemory-policy {} the server may evict held locks; \
                 use noeviction, or a server of their own",
                policy.escape_debug()
            ),
            Self::ForgetsOnRestart => {
                f.write_str("without an append-only file a restart of the server forgets held locks")
            }
            Self::MissingPermission { command } => {
                let shown = command.escape_debug();
                write!(
                    f,
                    "the user may not run {shown} on locks and their channels: {}",
                    consequence(command)
                )
            }
            Self::MissingCommand { command } => {
                let shown = command.escape_debug();
                write!(f, "the server does not run {shown}: {}", consequence(command))
            }
            Self::SubscriptionBlocksCommands { reason } => write!(
                f,
                "the server runs no other command on a connection that has a subscription, as in RESP2, \
                 so no caller can wait for a lock: {reason}"
            ),
            Self::ChangesNotTold => f.write_str(
                "the server refuses CLIENT TRACKING, so the holder of a deleted lock learns of the loss with the next renewal; \
                 allow +client|tracking and +client|caching",
            ),
            Self::UncheckedPassword => f.write_str(
                "the server did not check the password, because its user `default` needs none; \
                 if a user was meant, write it with a colon: user:password@ or user:@",
            ),
            Self::UntestedVersion { version } => {
                write!(f, "server version {} is older than what was tested (6.0.16)", version.escape_debug())
            }
            Self::HasReplicas { server, replicas } => write!(
                f,
                "{server} has {replicas} replicas, and the promotion of one may lose locks that it has granted"
            ),
            Self::UnusableMember { server, reason } => {
                write!(f, "{server} cannot be a member of the quorum: {reason}")
            }
            Self::TooFewReplicas { connected, wanted } => {
                write!(f, "{connected} replicas are connected, and {wanted} have to acknowledge every grant")
            }
            Self::NoReplica { .. }
            | Self::OtherServerCount { .. }
            | Self::WritesWithoutReplicas
            | Self::MissingFleetPermission { .. } => self.fmt_of_fleet(f),
            Self::NoTimerThread => f.write_str(
                "the system refused a thread for the timer, so every wait costs processor time; \
                 allow this process more threads",
            ),
            Self::Unknown { question, reason } => write!(f, "cannot find out {question}: {reason}"),
        }
    }
}

/// Sends the checks to the server. Takes four round trips, or six with a fleet, and no longer than [`PATIENCE`].
pub(crate) async fn diagnose(
    client: &Client,
    prefix: &str,
    durability: Durability,
    fleet: Option<&Fleet>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let deadline = client.config().timer.now() + PATIENCE;
    let options = CallOptions::by(deadline);
    let info = client.server_info();
    if info.as_ref().is_some_and(|info| info.password_unchecked) {
        findings.push(Finding::UncheckedPassword);
    }
    if info.is_some_and(|info| !info.tracks_keys) {
        findings.push(Finding::ChangesNotTold);
    }
    if !client.config().timer.is_driven() {
        findings.push(Finding::NoTimerThread);
    }
    let info = client.call_with(&Command::new("INFO"), options).await;
    match info.as_ref().map(|info| info.as_str()) {
        Ok(Some(info)) => judge_info(info, &mut findings),
        Ok(None) => findings.push(unknown(INFO, &"INFO was answered with another type")),
        Err(error) => findings.push(unknown(INFO, error)),
    }
    let subscribe = subscribe_verb(client);
    findings.extend(probe_commands(client, prefix, options).await);
    let is_forbidden = |finding: &Finding| lacks(finding, |command| ["EVAL", subscribe].contains(&command));
    // In a cluster the two commands may go to two nodes.
    if client.nodes().len() == 1 && !findings.iter().any(is_forbidden) {
        let channel = kind::REENTRANT.channel(&probe_name(prefix), false).0;
        findings.extend(probe_subscription(client, channel.as_bytes(), options).await);
        // The probe's subscription has ended before the caller has its manager.
        await_unsubscription(client, options).await;
    }
    if durability.replicas() > 0 {
        findings.extend(count_replicas(client, durability.replicas(), options).await);
    }
    if let Some(fleet) = fleet {
        findings.extend(of_fleet::check(client, fleet.servers, options).await);
    }
    findings
}

/// Returns why the user cannot take any lock, as far as is known. Sends one request.
pub(crate) async fn why_no_lock_works(client: &Client, prefix: &str, options: CallOptions) -> Option<String> {
    let findings = probe_commands(client, prefix, options).await;
    findings.iter().find(|finding| lacks(finding, stops_locks)).map(Finding::to_string)
}

/// Returns true if no lock works without this command.
fn stops_locks(command: &str) -> bool {
    let needed = || kind::needed_by_plain_locks().any(|needed| needed.eq_ignore_ascii_case(command));
    matches!(command, "EVAL" | "EVALSHA") || needed()
}

/// Returns the name of the lock that the checks are about.
fn probe_name(prefix: &str) -> String {
    format!("{prefix}wheellock")
}

fn subscribe_verb(client: &Client) -> &'static str {
    if client.publish_verb() == "SPUBLISH" { "SSUBSCRIBE" } else { "SUBSCRIBE" }
}

/// Returns the commands of locks that the user may not run, or that the server does not know.
async fn probe_commands(client: &Client, prefix: &str, options: CallOptions) -> Vec<Finding> {
    let mut findings = Vec::new();
    let name = probe_name(prefix);
    let channel = kind::REENTRANT.channel(&name, false).0;
    let (publish, subscribe) = (client.publish_verb(), subscribe_verb(client));
    let mut ask =
        Command::new("EVAL").arg(script()).arg("0").arg(&name).arg(&channel).arg(publish).arg(subscribe);
    // The scripts of read-write locks do without HRANDFIELD, which Redis 6.0 does not know.
    let needed = kind::COMMANDS.keys().copied().filter(|command| *command != "hrandfield");
    for command in needed.chain(["evalsha"]) {
        ask = ask.arg(command);
    }
    let refused = client.call_with(&ask, options).await;
    match refused.as_ref().map(Value::as_array) {
        Ok(Some(refused)) => judge_permissions(refused, &mut findings),
        Ok(None) => findings.push(unknown(PERMISSIONS, &"the script was answered with another type")),
        Err(error) if is_unknown_command(error) => {
            findings.push(Finding::MissingCommand { command: "EVAL".to_owned() });
        }
        Err(error) if error.kind() == ErrorKind::Permission => {
            findings.push(Finding::MissingPermission { command: "EVAL".to_owned() });
        }
        Err(error) => findings.push(unknown(PERMISSIONS, error)),
    }
    findings
}

/// Checks that a connection with a subscription runs other commands.
async fn probe_subscription(client: &Client, channel: &[u8], options: CallOptions) -> Option<Finding> {
    let subscription = client.subscribe(channel);
    let probe = Command::new("EVAL").arg(PROBE).arg("0");
    let reason = match client.call_with(&probe, options).await {
        Ok(Value::Integer(1)) => return None,
        // fakeredis confirms a subscription by a reply, which the connection takes for that of the next command.
        Ok(_) => "another command's reply came".to_owned(),
        // A slow server is not a server that blocks commands.
        Err(error) if error.kind() == ErrorKind::Timeout => return None,
        Err(error) => error.to_string(),
    };
    subscription.refusal().is_none().then_some(Finding::SubscriptionBlocksCommands { reason })
}

/// Waits until the server has ended all subscriptions that were dropped before.
async fn await_unsubscription(client: &Client, options: CallOptions) {
    let _answer = client.call_with(&Command::new("EVAL").arg(PROBE).arg("0"), options).await;
}

/// Returns true if no script of this user can send a message. Waiters of this process must then poll.
pub(crate) fn releases_are_silent(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| lacks(finding, |command| ["PUBLISH", "SPUBLISH"].contains(&command)))
}

/// Returns true if the finding is about a command that cannot run and that is `meant`.
fn lacks(finding: &Finding, meant: impl Fn(&str) -> bool) -> bool {
    match finding {
        Finding::MissingPermission { command } | Finding::MissingCommand { command } => meant(command),
        _ => false,
    }
}

fn is_unknown_command(error: &wheellock_client::Error) -> bool {
    error.kind() == ErrorKind::Server && error.to_string().to_lowercase().contains("unknown command")
}

/// Returns the consequence of a missing command.
fn consequence(command: &str) -> String {
    match command {
        "PUBLISH" | "SPUBLISH" => {
            "waiters of this process poll ten times a second, and others notice its releases up to 5 s late"
                .to_owned()
        }
        "SUBSCRIBE" | "SSUBSCRIBE" => "waiters poll ten times a second".to_owned(),
        "PUBSUB|NUMSUB" | "PUBSUB|SHARDNUMSUB" | "PUBSUB" => {
            "waiters cannot be counted, so all processes that wait poll after every release".to_owned()
        }
        "EVAL" | "EVALSHA" => "locks are Lua scripts, so no lock works".to_owned(),
        "TIME" => "no lease can be renewed, and no fair or fenced lock works".to_owned(),
        command => match kind::COMMANDS.get(command.to_lowercase().as_str()) {
            Some(kinds) => format!("these kinds do not work: {}", kinds.join(", ")),
            None => "holders cannot be shown".to_owned(),
        },
    }
}

/// Checks that the servers support the required durability. Runs once, when the manager connects.
pub(crate) async fn check_durability(client: &Client, durability: Durability) -> Result<(), Error> {
    let unsupported = |reason: String| Error::UnsupportedDurability { durability, reason };
    let probe = match durability {
        Durability::Primary => return Ok(()),
        Durability::Replicas(0) => {
            return Err(unsupported("at least one replica is needed to wait for one".to_owned()));
        }
        // Waits for no replica, for a millisecond. The probe only shows that the server knows the command.
        Durability::Replicas(_) => Command::new("WAIT").arg(0_u64).arg(1_u64),
        Durability::Aof { .. } => Command::new("WAITAOF").arg(1_u64).arg(0_u64).arg(1_u64),
    };
    for node in client.nodes().into_iter().filter(Client::is_ready) {
        if let Err(source) = node.call(&probe).await {
            return Err(match source.kind() {
                ErrorKind::Server | ErrorKind::Permission => unsupported(source.to_string()),
                _ => Error::Server { operation: "connect".to_owned(), source },
            });
        }
    }
    Ok(())
}

/// Checks that every primary has as many replicas as have to acknowledge.
async fn count_replicas(client: &Client, wanted: u32, options: CallOptions) -> Option<Finding> {
    let mut fewest = None;
    for node in client.nodes() {
        let info = match node.call_with(&Command::new("INFO").arg("replication"), options).await {
            Ok(info) => info,
            Err(error) => return Some(unknown(REPLICAS, &error)),
        };
        let Some(connected) = info.as_str().and_then(connected_replicas) else {
            return Some(unknown(REPLICAS, &"INFO does not tell"));
        };
        fewest = fewest.map(|fewest: u32| fewest.min(connected)).or(Some(connected));
    }
    let connected = fewest.unwrap_or(0);
    (connected < wanted).then_some(Finding::TooFewReplicas { connected, wanted })
}

fn connected_replicas(info: &str) -> Option<u32> {
    info.lines().find_map(|line| line.strip_prefix("connected_slaves:")?.trim().parse().ok())
}

fn judge_info(info: &str, findings: &mut Vec<Finding>) {
    let field = |name: &str| {
        info.lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value)
    };
    let maxmemory = field("maxmemory").and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
    match field("maxmemory_policy") {
        Some(policy) if maxmemory > 0 && policy != "noeviction" => {
            findings.push(Finding::MayEvict { policy: policy.to_owned(), maxmemory });
        }
        _ => {}
    }
    if field("aof_enabled") == Some("0") {
        findings.push(Finding::ForgetsOnRestart);
    }
    // Valkey keeps reporting 7.2 here, and its own version in another field (source: the INFO command's documentation).
    let version = field("redis_version").unwrap_or_default();
    let numbers: Vec<u32> = version.split('.').map_while(|number| number.parse().ok()).collect();
    if !numbers.is_empty() && numbers.as_slice() < OLDEST_TESTED {
        findings.push(Finding::UntestedVersion { version: version.to_owned() });
    }
}

fn judge_permissions(refused: &[Value], findings: &mut Vec<Finding>) {
    let refused = refused.iter().filter_map(Value::as_str);
    findings.extend(refused.map(|command| match command {
        "unknown" => unknown(PERMISSIONS, &"servers before 7.0 cannot tell"),
        command => match command.strip_prefix('-') {
            Some(command) => Finding::MissingCommand { command: command.to_uppercase() },
            None => Finding::MissingPermission { command: command.to_uppercase() },
        },
    }));
}

fn unknown(question: &'static str, reason: &dyn fmt::Display) -> Finding {
    Finding::Unknown { question, reason: reason.to_string() }
}

const INFO: &str = "whether the server keeps its locks";
const PERMISSIONS: &str = "what the user may do";
const REPLICAS: &str = "how many replicas are connected";
const OLDEST_TESTED: &[u32] = &[6, 0, 16];
/// Longest time for all checks. A diagnosis must not make a service's start fail or hang.
const PATIENCE: Duration = Duration::from_secs(1);

/// The smallest script.
pub(crate) const PROBE: &str = "return 1";

/// Returns the script that tries the commands that locks need. The script does not have keys.
pub(crate) fn script() -> &'static str {
    lua!("diagnose.lua")
}

/// Returns all scripts that find missing permissions, for the server in memory.
#[cfg(feature = "testing")]
pub(crate) fn scripts() -> [&'static str; 2] {
    [script(), of_fleet::script()]
}

#[cfg(test)]
mod tests;
