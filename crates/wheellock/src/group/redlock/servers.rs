//! The servers of a quorum, checked for their independence.
//!
//! This module owns the servers' identities and the queues of this process' waiters.

use std::collections::HashMap;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::watch;
use wheellock_client::{CallOptions, Client, Command, ConnectionState, ErrorKind, Servers as Address, Timer};

use super::queue::Queue;
use crate::base::error::{Error, MemberFailure, Outcome};
use crate::base::join_all::JoinAll;
use crate::base::quorum::{Quorum, Verdict};
use crate::manager::LockManager;
use crate::request::diagnostics::{Finding, why_no_lock_works};
use crate::wait::name::Name;

pub(super) struct Servers {
    members: Vec<LockManager>,
    /// The manager whose timer measures waits.
    lead: LockManager,
    /// Identity per member, `None` until the member was identified.
    identities: Mutex<Vec<Option<Identity>>>,
    queues: Mutex<Queues>,
    /// True once all managers were shut down.
    shut: watch::Sender<bool>,
    /// The runtime of the tasks that wait for late grants.
    runtime: Handle,
}

#[derive(Default)]
struct Queues {
    known: HashMap<(usize, String), Weak<Queue>>,
    purge_at: usize,
}

/// Identity that a server reports. Empty if the user may not run `INFO`; then only the address identifies the server.
#[derive(Clone, Default)]
struct Identity {
    run_id: Option<String>,
    /// Id of the replication history, which a primary shares with its replicas.
    replication_id: Option<String>,
    is_replica: bool,
    replicas: u32,
    /// Why the user cannot take any lock there.
    no_lock_works: Option<String>,
}

// As of `Context`: the state is behind mutexes that ignore poison.
impl UnwindSafe for Servers {}
impl RefUnwindSafe for Servers {}

impl Servers {
    pub(super) fn new(members: Vec<LockManager>) -> Result<Self, Error> {
        let lead = members.first().cloned().ok_or(Error::NoMembers)?;
        for (place, manager) in members.iter().enumerate() {
            let servers = &manager.client().config().servers;
            if !matches!(servers, Address::One(_)) {
                let reason = "a failover may lose what it has granted";
                return Err(not_independent(manager, reason.to_owned()));
            }
            let mut before = members.iter().take(place);
            if before.any(|other| other.client().config().servers.to_string() == servers.to_string()) {
                return Err(not_independent(manager, "it is named twice".to_owned()));
            }
        }
        let identities = Mutex::new(members.iter().map(|_| None).collect());
        let (queues, shut, runtime) = (Mutex::default(), watch::Sender::new(false), Handle::current());
        Ok(Self { members, lead, identities, queues, shut, runtime })
    }

    pub(super) fn managers(&self) -> impl ExactSizeIterator<Item = &LockManager> {
        self.members.iter()
    }

    /// Returns the tally with which every round begins.
    pub(super) fn quorum(&self) -> Quorum {
        Quorum::majority(self.members.len())
    }

    /// Stops all grants from here on, and wakes every waiter with [`Error::ShutDown`].
    pub(super) fn shut_down(&self) {
        self.shut.send_replace(true);
    }

    /// Does `work` for the lock `name` until a shutdown. A shutdown drops `work`, which takes back its requests.
    pub(super) async fn unless_shut_down<T>(
        &self,
        name: &str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let mut shutdown = self.shut.subscribe();
        let (mut shut, mut work) = (pin!(shutdown.wait_for(|shut| *shut)), pin!(work));
        let mut outcome = Outcome::NotSent;
        std::future::poll_fn(|cx| {
            if shut.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(Error::ShutDown { lock: name.to_owned(), outcome }));
            }
            outcome = Outcome::MaybeExecuted;
            work.as_mut().poll(cx)
        })
        .await
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub(super) fn timer(&self) -> &Timer {
        &self.lead.client().config().timer
    }

    pub(super) fn random(&self) -> fn() -> u64 {
        self.lead.client().config().random
    }

    pub(super) fn failure(&self, place: usize, error: Error) -> MemberFailure {
        let server = self.members.get(place).unwrap_or(&self.lead).client().server_address();
        MemberFailure { server, error }
    }

    /// Returns the queue of all waiters for `name`, of the kind with this [address](crate::kind::Kind::address).
    pub(super) fn queue(&self, name: &str, kind: usize) -> Arc<Queue> {
        if !Name::may_be(name) {
            return Arc::default();
        }
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queues.known.get(&(kind, name.to_owned())).and_then(Weak::upgrade) {
            return queue;
        }
        if queues.known.len() >= queues.purge_at {
            // Forgetting in bulk keeps the cost per name constant.
            queues.known.retain(|_, queue| queue.strong_count() > 0);
            queues.purge_at = 2 * queues.known.len() + 64;
        }
        let queue = Arc::default();
        queues.known.insert((kind, name.to_owned()), Arc::downgrade(&queue));
        queue
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        let of_managers = self.members.iter().flat_map(LockManager::diagnostics).cloned();
        let unusable = self.unusable().into_iter();
        let unusable = unusable.map(|(server, reason)| Finding::UnusableMember { server, reason });
        let identities = self.identities();
        let replicas = self.members.iter().zip(identities.iter()).filter_map(|(manager, identity)| {
            let replicas = identity.as_ref()?.replicas;
            let server = manager.client().server_address();
            (replicas > 0).then_some(Finding::HasReplicas { server, replicas })
        });
        of_managers.chain(replicas).chain(unusable).collect()
    }

    /// Returns the members that cannot grant until a setting changes, each with the reason. No I/O.
    pub(super) fn unusable(&self) -> Vec<(Arc<str>, String)> {
        let run_ids: Vec<_> =
            self.members.iter().map(|manager| manager.client().server_info()?.run_id).collect();
        let identities = self.identities();
        let unusable = self.members.iter().enumerate().filter_map(|(place, manager)| {
            let client = manager.client();
            let same = || {
                let run_id = run_ids.get(place)?.as_ref()?;
                let mut before = self.members.iter().zip(&run_ids).take(place);
                let (other, _) = before.find(|(_, other)| other.as_ref() == Some(run_id))?;
                Some(format!("{SAME_SERVER} {}", other.client().server_address()))
            };
            let no_lock_works = || identities.get(place)?.as_ref()?.no_lock_works.clone();
            let reason = lasting_refusal(&client.state()).or_else(same).or_else(no_lock_works)?;
            Some((client.server_address(), reason))
        });
        unusable.collect()
    }

    /// Identifies all servers, at least a majority.
    pub(super) async fn identify_majority(&self) -> Result<(), Error> {
        let mut replies = JoinAll::new((0..self.members.len()).map(|place| self.identify(place, None)));
        let mut tally = self.quorum();
        let mut failures = Vec::new();
        let mut enough = None;
        while !replies.is_over() {
            let ready = match enough {
                None => replies.ready().await,
                Some(until) => match self.timer().timeout_at(until, replies.ready()).await {
                    Ok(ready) => ready,
                    Err(_) => return Ok(()),
                },
            };
            for (place, answer) in ready {
                match answer {
                    Ok(()) => tally.granted += 1,
                    Err(error @ Error::NotIndependent { .. }) => return Err(error),
                    Err(error) => {
                        tally.failed += 1;
                        failures.push(self.failure(place, error));
                    }
                }
            }
            match tally.verdict() {
                Some(Verdict::Reached) => {
                    enough.get_or_insert_with(|| self.timer().now() + IDENTIFY_PATIENCE);
                }
                Some(Verdict::Dead | Verdict::Busy) => {
                    let (granted, wanted) = (tally.granted, tally.wanted());
                    return Err(Error::NoQuorum { lock: String::new(), granted, wanted, failures });
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Identifies a member once, and rejects the member if it is the same server as another or related to one.
    pub(super) async fn identify(&self, place: usize, deadline: Option<Instant>) -> Result<(), Error> {
        let known = self.identities().get(place).is_none_or(Option::is_some);
        let Some(manager) = self.members.get(place).filter(|_| !known) else { return Ok(()) };
        let client = manager.client();
        let patience = client.config().timer.now() + client.config().response_timeout;
        let options = CallOptions::by(deadline.map_or(patience, |deadline| deadline.min(patience)));
        let info = Command::new("INFO");
        let mut identity = match unless_replica(client, client.call_with(&info, options)).await {
            Some(Ok(info)) => Identity::parse(info.as_str().unwrap_or_default()),
            Some(Err(error)) if error.kind() == ErrorKind::Permission => Identity::default(),
            Some(Err(source)) => {
                return Err(Error::Server { operation: "ask a server who it is".to_owned(), source });
            }
            None => Identity { is_replica: true, ..Identity::default() },
        };
        if !identity.is_replica {
            identity.no_lock_works = why_no_lock_works(client, &manager.context.prefix, options).await;
        }
        let mut identities = self.identities();
        if identity.is_replica {
            return Err(not_independent(manager, "it is a replica".to_owned()));
        }
        let others = self.members.iter().zip(identities.iter()).enumerate();
        let mut others = others.filter(|(other, _)| *other != place).map(|(_, other)| other);
        let related = others.find_map(|(other, known)| Some((other, identity.relation_to(known.as_ref()?)?)));
        if let Some((other, reason)) = related {
            let reason = format!("{reason} {}", other.client().server_address());
            return Err(not_independent(manager, reason));
        }
        if let Some(known) = identities.get_mut(place) {
            *known = Some(identity);
        }
        Ok(())
    }

    fn identities(&self) -> MutexGuard<'_, Vec<Option<Identity>>> {
        self.identities.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Identity {
    /// Parses the reply to `INFO` (source: the INFO command's documentation).
    fn parse(info: &str) -> Self {
        let field = |name: &str| {
            let mut fields = info.lines().filter_map(|line| line.trim_end().split_once(':'));
            fields.find(|(key, _)| *key == name).map(|(_, value)| value)
        };
        Self {
            run_id: field("run_id").map(str::to_owned),
            replication_id: field("master_replid").map(str::to_owned),
            is_replica: field("role") == Some("slave"),
            replicas: field("connected_slaves").and_then(|count| count.parse().ok()).unwrap_or(0),
            no_lock_works: None,
        }
    }

    fn relation_to(&self, other: &Self) -> Option<&'static str> {
        if self.run_id.is_some() && self.run_id == other.run_id {
            return Some(SAME_SERVER);
        }
        let related = self.replication_id.is_some() && self.replication_id == other.replication_id;
        related.then_some("it has the replication history of")
    }
}

/// Waits for the reply to `call`. Returns `None` if the server is a replica, whose connection never becomes ready.
async fn unless_replica<T>(client: &Client, call: impl Future<Output = T>) -> Option<T> {
    let mut watch = client.watch();
    let recognised = async {
        while !is_replica(&client.state()) {
            watch.changed().await;
        }
    };
    let (mut call, mut recognised) = (pin!(call), pin!(recognised));
    std::future::poll_fn(|cx| match call.as_mut().poll(cx) {
        Poll::Ready(reply) => Poll::Ready(Some(reply)),
        Poll::Pending => recognised.as_mut().poll(cx).map(|()| None),
    })
    .await
}

/// Returns true if the last attempt to connect found a replica.
fn is_replica(state: &ConnectionState) -> bool {
    let ConnectionState::Connecting { last_error: Some(error), .. } = state else { return false };
    error.kind() == ErrorKind::NotReady && error.code() == Some("READONLY")
}

/// Returns why the server refuses this client until a setting changes, if it does.
fn lasting_refusal(state: &ConnectionState) -> Option<String> {
    match state {
        ConnectionState::Refused(error) => Some(error.detail().to_owned()),
        ConnectionState::Connecting { last_error: Some(error), .. } if is_replica(state) => {
            Some(error.detail().to_owned())
        }
        _ => None,
    }
}

fn not_independent(manager: &LockManager, reason: String) -> Error {
    Error::NotIndependent { server: manager.client().server_address(), reason }
}

const SAME_SERVER: &str = "it is the same server as";

/// Time for slow servers to identify themselves once a majority has, to report mistakes early.
const IDENTIFY_PATIENCE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_detects_shared_server_or_history() {
        let parse = |run_id: &str, replication_id: &str| {
            Identity::parse(&format!(
                "# Server\r\nrun_id:{run_id}\r\nrole:master\r\nmaster_replid:{replication_id}\r\n"
            ))
        };
        let (a, b) = (parse("a", "x"), parse("b", "y"));
        assert_eq!(a.relation_to(&b), None);
        assert_eq!(a.relation_to(&parse("a", "z")), Some("it is the same server as"));
        assert_eq!(a.relation_to(&parse("c", "x")), Some("it has the replication history of"));
        let silent = Identity::parse("");
        assert_eq!(silent.relation_to(&silent.clone()), None, "nothing is known");
        let replica = Identity::parse("role:slave\r\nconnected_slaves:0\r\n");
        assert!(replica.is_replica && !a.is_replica);
        assert_eq!(Identity::parse("connected_slaves:2\r\n").replicas, 2);
    }
}
