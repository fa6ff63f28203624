//! The state of a fleet: servers, managers, requests under way.
//!
//! This module has the values and the questions about one state. `steps` changes a state.

use std::hash::{Hash, Hasher};

use crate::rules::WINDOW;
use crate::worlds::FaultBudget;

/// Maximum number of managers in a world.
pub(crate) const MANAGERS: usize = 3;

/// Age from which the model does not distinguish ages, in worlds without pruning.
pub(crate) const OLD: u8 = WINDOW + 1;

/// Maximum number of requests of one manager that are under way.
const REQUESTS: usize = 2;

/// A manager's entry in the roster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RosterEntry {
    pub(crate) is_present: bool,
    /// Ticks since its last refresh.
    pub(crate) age: u8,
    /// The manager's longest lease.
    pub(crate) lease: u8,
}

/// The record of a grace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GraceRecord {
    /// Incarnation of the grace. The value 0 means that there is no grace.
    pub(crate) incarnation: u8,
    pub(crate) ticks_left: u8,
    /// The clock runs.
    pub(crate) has_clock: bool,
    /// A bit for each manager that has checked in.
    pub(crate) checked_in: u8,
    pub(crate) has_witness: bool,
}

impl GraceRecord {
    /// Returns true if the clock of this incarnation's grace runs.
    pub(crate) fn runs_in(&self, incarnation: u8) -> bool {
        self.incarnation == incarnation && self.has_clock
    }
}

/// Data that a primary replicates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Dataset {
    /// The rest of each manager's lease. The value 0 means that the manager has no hold.
    pub(crate) leases: [u8; MANAGERS],
    /// Incarnation that wrote each hold. Only `FullReclaim::EvictsOld` uses it.
    pub(crate) written_in: [u8; MANAGERS],
    pub(crate) era: u8,
    pub(crate) roster: [RosterEntry; MANAGERS],
    pub(crate) grace: GraceRecord,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Liveness {
    #[default]
    Running,
    Stopped,
    Dead,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ServerState {
    pub(crate) liveness: Liveness,
    /// The server that it replicates. A primary replicates itself.
    pub(crate) follows: u8,
    pub(crate) incarnation: u8,
    /// Ticks since it had enough replicas for `min-replicas-to-write`.
    pub(crate) ticks_alone: u8,
    /// Position on the far side of a split.
    pub(crate) is_far: bool,
    pub(crate) data: Dataset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RequestKind {
    Acquire,
    Renew,
    Reclaim,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RequestReply {
    Pending,
    Granted,
    Refused,
    /// The server read a reclaim after its deadline.
    TooLate,
}

/// A request under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LockRequest {
    pub(crate) kind: RequestKind,
    pub(crate) server: u8,
    pub(crate) lease: u8,
    /// Validity that a grant would give now.
    pub(crate) validity: u8,
    /// Ticks to the deadline of a reclaim.
    pub(crate) deadline: u8,
    pub(crate) reply: RequestReply,
}

/// The requests of one connection, in the order of their writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct RequestQueue([Option<LockRequest>; REQUESTS]);

impl RequestQueue {
    pub(crate) fn len(&self) -> usize {
        self.iter().count()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0[0].is_none()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &LockRequest> {
        self.0.iter().flatten()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut LockRequest> {
        self.0.iter_mut().flatten()
    }

    pub(crate) fn first(&self) -> Option<&LockRequest> {
        self.0[0].as_ref()
    }

    pub(crate) fn pop(&mut self) -> Option<LockRequest> {
        let first = self.0[0].take();
        self.0.rotate_left(1);
        first
    }

    /// Appends a request. The model sends no request above the limit.
    pub(crate) fn push(&mut self, request: LockRequest) {
        if let Some(free) = self.0.iter_mut().find(|request| request.is_none()) {
            *free = Some(request);
        }
    }

    /// Returns the first request without a reply, because a server executes requests in order.
    pub(crate) fn next_pending(&mut self) -> Option<&mut LockRequest> {
        self.iter_mut().find(|request| request.reply == RequestReply::Pending)
    }

    pub(crate) fn has_pending(&self) -> bool {
        self.iter().any(|request| request.reply == RequestReply::Pending)
    }

    /// Returns true if the first request has its reply.
    pub(crate) fn has_reply(&self) -> bool {
        self.first().is_some_and(|request| request.reply != RequestReply::Pending)
    }

    /// Returns the requests that pass `keeps`, in the same order.
    pub(crate) fn filtered(&self, keeps: impl Fn(&LockRequest) -> bool) -> Self {
        let mut kept = Self::default();
        self.iter().filter(|request| keeps(request)).for_each(|request| kept.push(*request));
        kept
    }
}

/// Phase of the server that a manager is connected to, as the manager knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum ConnectionPhase {
    #[default]
    Disconnected,
    Grace,
    Ready,
}

/// Acknowledgement of a manager's entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Registration {
    #[default]
    Missing,
    /// A majority of the servers has had it for this number of ticks.
    Partial(u8),
    Complete,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ManagerState {
    pub(crate) is_alive: bool,
    pub(crate) is_far: bool,
    /// Number of the server + 1. The value 0 means that there is no connection.
    pub(crate) connection: u8,
    pub(crate) incarnation: u8,
    pub(crate) phase: ConnectionPhase,
    pub(crate) registration: Registration,
    /// A refresh has counted on this connection.
    pub(crate) has_refreshed: bool,
    /// Ticks since the last counted refresh was sent.
    pub(crate) refresh_age: u8,
    /// Ticks since that refresh was acknowledged.
    pub(crate) acknowledged_age: u8,
    /// Ticks since the counted refresh of an earlier incarnation that this server has.
    pub(crate) witness_age: u8,
    pub(crate) has_checked_in: bool,
    /// The manager was ready in its last incarnation.
    pub(crate) was_ready: bool,
    /// This incarnation has the hold.
    pub(crate) is_written: bool,
    /// An earlier incarnation cannot grant the lock any more.
    pub(crate) is_secure: bool,
    /// Ticks for which the manager treats its hold as valid.
    pub(crate) validity: u8,
    pub(crate) requests: RequestQueue,
    /// Requests of a closed connection.
    pub(crate) late: RequestQueue,
    /// A bit for each incarnation that the manager has left.
    pub(crate) left: u8,
    /// The manager would repeat a release on a new server.
    pub(crate) repeats_release: bool,
    pub(crate) lease: u8,
}

/// The whole state: `N` servers, the managers and the faults that may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FleetState<const N: usize> {
    pub(crate) servers: [ServerState; N],
    pub(crate) managers: [ManagerState; MANAGERS],
    /// The server that was promoted last.
    pub(crate) newest: u8,
    pub(crate) incarnations: u8,
    /// Ticks since the last demotion, in worlds with a minimum.
    pub(crate) ticks_demoted: u8,
    pub(crate) is_split: bool,
    /// The first acquire was sent. M0 sends it, because managers are alike.
    pub(crate) has_begun: bool,
    pub(crate) faults: FaultBudget,
    /// A server refused the reclaim of a valid hold.
    pub(crate) was_refused: bool,
    /// Ticks since the grace of the newest incarnation began.
    pub(crate) grace_age: u8,
    /// Ticks since each hold of the newest primary has had no owner.
    pub(crate) orphan_ages: [u8; MANAGERS],
}

impl<const N: usize> Hash for FleetState<N> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.servers.hash(hasher);
        for manager in &self.managers {
            // Worlds with two managers do not pay for the third.
            let is_present = *manager != ManagerState::default();
            is_present.hash(hasher);
            if is_present {
                manager.hash(hasher);
            }
        }
        let flags = [self.is_split, self.has_begun, self.was_refused];
        (self.newest, self.incarnations, self.ticks_demoted, flags, self.faults).hash(hasher);
        (self.grace_age, self.orphan_ages).hash(hasher);
    }
}

impl<const N: usize> FleetState<N> {
    pub(crate) fn is_primary(&self, server: usize) -> bool {
        usize::from(self.servers[server].follows) == server
    }

    /// Returns true if two servers reach each other.
    pub(crate) fn are_linked(&self, a: usize, b: usize) -> bool {
        let (a, b) = (&self.servers[a], &self.servers[b]);
        a.liveness == Liveness::Running && b.liveness == Liveness::Running && a.is_far == b.is_far
    }

    /// Returns a bit for each replica that can acknowledge a write now.
    pub(crate) fn replicas(&self, primary: usize) -> u8 {
        let is_replica = |server: &usize| {
            *server != primary
                && usize::from(self.servers[*server].follows) == primary
                && self.are_linked(*server, primary)
        };
        (0..N).filter(is_replica).fold(0, |mask, server| mask | 1 << server)
    }

    /// Returns the primary that a manager can reach on its connection.
    pub(crate) fn server_of(&self, manager: usize) -> Option<usize> {
        let manager = &self.managers[manager];
        let server = usize::from(manager.connection.checked_sub(1)?);
        let state = &self.servers[server];
        let is_reached = state.liveness == Liveness::Running && state.is_far == manager.is_far;
        (manager.is_alive && is_reached && self.is_primary(server)).then_some(server)
    }

    pub(crate) fn newest_server(&self) -> &ServerState {
        &self.servers[usize::from(self.newest)]
    }

    /// Closes a manager's connection. Its requests become late, unless other requests are late already.
    pub(crate) fn disconnect(&mut self, manager: usize, keeps_replies: bool) {
        let has_late = self.managers.iter().any(|manager| !manager.late.is_empty());
        let manager = &mut self.managers[manager];
        if !has_late {
            let is_kept = |request: &LockRequest| keeps_replies || request.reply == RequestReply::Pending;
            manager.late = manager.requests.filtered(is_kept);
        }
        manager.requests = RequestQueue::default();
        manager.connection = 0;
        manager.phase = ConnectionPhase::Disconnected;
        manager.has_refreshed = false;
        manager.has_checked_in = false;
    }

    /// Sorts the replicas S2 and above. States that differ only in the names of these replicas become one state.
    pub(crate) fn sort_replicas(&mut self) {
        let mut order: [usize; N] = std::array::from_fn(|server| server);
        let connected = |server: usize| {
            let is_here = |manager: &ManagerState| usize::from(manager.connection) == server + 1;
            self.managers.iter().map(is_here).collect::<Vec<_>>()
        };
        order[2..].sort_by_cached_key(|&server| (self.servers[server], connected(server)));
        if order.is_sorted() {
            return;
        }
        let mut renamed = [0_u8; N];
        for (to, from) in (0_u8..).zip(order) {
            renamed[from] = to;
        }
        let rename = |server: u8| renamed[usize::from(server)];
        self.servers = order.map(|from| self.servers[from]);
        for server in &mut self.servers {
            server.follows = rename(server.follows);
        }
        self.newest = rename(self.newest);
        for manager in &mut self.managers {
            manager.connection = manager.connection.checked_sub(1).map_or(0, |server| rename(server) + 1);
            for request in manager.requests.iter_mut().chain(manager.late.iter_mut()) {
                request.server = rename(request.server);
            }
        }
    }
}
