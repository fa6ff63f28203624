//! Tests of `membership`. Each test fails without one rule of the protocol.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::task::Waker;

use super::super::memberships::Memberships;
use super::super::{Effects, GrantReply, Holds, State};
use super::*;
use crate::base::fleet_key::FleetKey;
use crate::base::lease::Lease;
use crate::kind;
use crate::wait::name::Name;

const LEASE: Duration = Duration::from_secs(30);
const WINDOW: Duration = Duration::from_secs(10);
const REPLY: Duration = Duration::from_secs(3);
const SECOND: Duration = Duration::from_secs(1);

/// A process among three servers, each with a connection.
struct World {
    now: BootInstant,
    memberships: Memberships,
    name: Name,
    /// Number of replicas that are connected to the present server.
    connected: u32,
}

impl World {
    fn new() -> Self {
        let now = BootInstant::now();
        let longest_lease = Lease::new(LEASE).unwrap();
        let terms = Terms {
            longest_lease,
            window: WINDOW,
            reply_within: REPLY,
            replicas: 2,
            may_be_new: false,
            entry_lasts: 2 * WINDOW,
        };
        let memberships = Memberships::new(terms, FleetKey::all(false), Box::new(|_| 0), now);
        Self { now, memberships, name: Name::new("orders", &kind::REENTRANT, false), connected: 2 }
    }

    /// Returns a process that is ready on server 0.
    fn ready() -> Self {
        let mut world = Self::new();
        world.refresh(0, true, false);
        world.acknowledge(2);
        assert!(world.may_acquire());
        world
    }

    /// Refreshes the entry on a server. `was_known` is true if the entry was there. A second refresh follows if the first one does not add
    /// an entry.
    fn refresh(&mut self, server: u32, is_grace_over: bool, was_known: bool) -> bool {
        let is_other = self.refresh_once(server, is_grace_over, was_known);
        if self.lacks_entry() {
            assert!(!self.refresh_once(server, is_grace_over, false));
        }
        is_other
    }

    /// Returns true if the next refresh adds an entry.
    fn lacks_entry(&self) -> bool {
        self.memberships.next_refresh(0, true).unwrap().lacks_entry
    }

    fn refresh_once(&mut self, server: u32, is_grace_over: bool, was_known: bool) -> bool {
        self.found(server, is_grace_over, was_known) == Found::OtherServer
    }

    fn found(&mut self, server: u32, is_grace_over: bool, was_known: bool) -> Found {
        let run_id = format!("run{server}");
        let reply = Refreshed {
            run_id: run_id.clone(),
            incarnation: format!("{run_id}:one:0"),
            time: 1000,
            is_grace_over,
            was_known,
            members: 2,
            checked_in: 1,
            ends_in: None,
            connected: self.connected,
        };
        let found = self.memberships.refreshed(0, &reply, Some((connection(server), run_id)), self.now);
        self.memberships.open_gate(self.now);
        found
    }

    /// Lets replicas acknowledge the last refresh.
    fn acknowledge(&mut self, replicas: u32) -> bool {
        let can_extend = self.memberships.acknowledged(0, (self.now, self.now), replicas);
        self.memberships.open_gate(self.now);
        can_extend
    }

    /// Replaces the server, and acknowledges a refresh in the grace of the next one.
    fn fail_over(&mut self, server: u32, was_known: bool) {
        self.replaced();
        assert!(self.refresh(server, false, was_known));
        self.acknowledge(1);
    }

    fn replaced(&mut self) {
        self.memberships.are_replaced(|_| true, self.now);
    }

    fn may_acquire(&self) -> bool {
        self.memberships.may_acquire(&self.name, self.now)
    }

    fn check_in(&self) -> CheckIn {
        self.memberships.next_refresh(0, true).unwrap().check_in
    }
}

/// The two acknowledgements may be of others than the two replicas that the fleet has.
#[test]
fn uncounted_replica_delays_new_process() {
    let mut world = World::new();
    world.connected = 3;
    world.refresh(0, true, false);
    world.acknowledge(2);
    assert!(!world.may_acquire());
    world.connected = 2;
    world.refresh(0, true, true);
    assert!(!world.may_acquire(), "the earlier acknowledgements do not count");
    world.acknowledge(2);
    assert!(world.may_acquire());
}

fn connection(server: u32) -> ConnectionId {
    ConnectionId::new(0, server)
}

/// Returns a hold that is valid until this instant.
fn hold(valid_until: BootInstant) -> Hold {
    let mut holds = Holds::new(valid_until, Lease::DEFAULT, true);
    let name = Arc::new(Name::new("orders", &kind::REENTRANT, false));
    let index = holds.insert(&name, 1, false, Lease::DEFAULT, valid_until);
    let mut hold = holds.holds.remove(index as usize);
    hold.renewing.want(1);
    (hold.state, hold.guards) = (State::Held, 1);
    hold
}

/// The server has no entry that a replica could acknowledge.
#[test]
fn first_refresh_of_new_process_never_counts() {
    let mut world = World::new();
    assert!(world.refresh_once(0, true, false));
    assert_eq!(world.memberships.wanted_replicas(0, world.now).0, 0);
    assert!(!world.acknowledge(2) && !world.may_acquire());
    assert_eq!(world.memberships.pause(0, world.now), Duration::ZERO, "the second refresh adds the entry");
    assert!(!world.refresh_once(0, true, false));
    assert!(world.acknowledge(2) && world.may_acquire());
}

/// The connection for refreshes leads to a server whose replicas know nothing about the other server.
#[test]
fn acknowledgement_of_unused_refresh_never_counts() {
    let mut world = World::ready();
    world.now = world.now + 2 * WINDOW;
    let reply = Refreshed {
        run_id: "run1".to_owned(),
        incarnation: "run1:one:0".to_owned(),
        time: 1000,
        is_grace_over: true,
        was_known: true,
        members: 2,
        checked_in: 1,
        ends_in: None,
        connected: 2,
    };
    let found = world.memberships.refreshed(0, &reply, Some((connection(0), "run0".to_owned())), world.now);
    assert_eq!(found, Found::NothingNew);
    world.acknowledge(2);
    world.refresh_once(0, true, true);
    assert!(!world.may_acquire(), "only the other server's replicas have acknowledged a refresh");
}

/// The process is connected anew. It does not know yet whether the server is the same one.
#[test]
fn grant_of_unknown_connection_closes_gate() {
    let mut world = World::ready();
    let now = world.now;
    assert!(!world.memberships.believes_grant(Some(connection(1)), now, now));
    world.memberships.disbelieve(Some(connection(1)), now);
    assert!(!world.may_acquire(), "the same request would be repeated at once");
    world.refresh(1, true, true);
    world.acknowledge(1);
    assert!(world.may_acquire());
}

#[test]
fn failed_refresh_repeats_soon() {
    let mut world = World::ready();
    assert_eq!(world.memberships.pause(0, world.now), WINDOW / 3);
    world.memberships.refresh_failed(0);
    assert!(world.memberships.pause(0, world.now) <= LONGEST_PAUSE);
}

#[test]
fn shutdown_passes_waiting_acquires() {
    let now = BootInstant::now();
    let mut holds = Holds::new(now, Lease::new(LEASE).unwrap(), true);
    let world = World::new();
    let keys = FleetKey::all(false);
    holds.join_fleet(*world.memberships.terms(), keys, Box::new(|_| 0), now);
    assert!(!holds.may_acquire(&world.name, now, &mut None, Waker::noop()));
    let mut effects = Effects::default();
    let _no_requests = holds.shut_down(now, &mut effects);
    assert!(
        holds.may_acquire(&world.name, now, &mut None, Waker::noop()),
        "the acquire finds out that the manager is shut down"
    );
}

/// A grant that its process did not count has raised the counter.
#[test]
fn inner_guard_gets_token_of_outer() {
    let now = BootInstant::now();
    let mut holds = Holds::new(now, Lease::new(LEASE).unwrap(), true);
    holds.join_fleet(*World::new().memberships.terms(), FleetKey::all(false), Box::new(|_| 0), now);
    let name = Arc::new(Name::new("orders", &kind::REENTRANT, false));
    let index = holds.insert(&name, 1, true, Lease::DEFAULT, now);
    let token = |holds: &mut Holds, guards, token, reply| {
        holds.get_mut(index).unwrap().guards = guards;
        holds.keep_token(index, NonZeroU64::new(token), reply).unwrap().get()
    };
    assert_eq!(token(&mut holds, 1, 5, GrantReply::Fresh), 5);
    assert_eq!(token(&mut holds, 2, 7, GrantReply::Again), 5);
    assert_eq!(token(&mut holds, 1, 9, GrantReply::Fresh), 9);
}

#[test]
fn new_process_awaits_all_replicas() {
    let mut world = World::new();
    assert!(world.refresh(0, true, false) && !world.may_acquire());
    assert!(!world.acknowledge(1) && !world.may_acquire(), "the next primary may not know this process");
    assert_eq!(world.memberships.wanted_replicas(0, world.now).0, 2);
    assert!(world.acknowledge(2) && world.may_acquire());
    assert_eq!(world.memberships.wanted_replicas(0, world.now).0, 1, "a majority, from now on");
}

/// The server restarts with its data, and a replica without this process is promoted at the same time.
#[test]
fn restart_makes_no_process_known() {
    let mut world = World::new();
    world.refresh(0, true, false);
    assert!(!world.acknowledge(1) && !world.may_acquire());
    world.replaced();
    world.refresh(1, true, true);
    assert!(!world.acknowledge(1) && !world.may_acquire(), "the entry that it finds is its own");
    assert!(world.acknowledge(2) && world.may_acquire());
}

#[test]
fn window_closes_without_acknowledged_refresh() {
    let mut world = World::ready();
    world.now = world.now + WINDOW;
    assert!(world.may_acquire());
    world.now = world.now + SECOND;
    world.refresh(0, true, true);
    assert!(!world.acknowledge(0) && !world.may_acquire());
    assert!(!world.acknowledge(1) && world.may_acquire(), "holds were extended before");
}

#[test]
fn grace_keeps_new_locks_out() {
    let mut world = World::ready();
    world.fail_over(1, true);
    assert!(!world.may_acquire());
    world.refresh(1, true, true);
    assert!(world.may_acquire());
}

#[test]
fn grant_of_unknown_connection_is_refused() {
    let mut world = World::ready();
    let believes = |world: &World, server, sent| {
        world.memberships.believes_grant(Some(connection(server)), sent, world.now)
    };
    assert!(believes(&world, 0, world.now) && !believes(&world, 1, world.now));
    let sent = world.now;
    world.now = world.now + REPLY;
    assert!(believes(&world, 0, sent));
    world.now = world.now + Duration::from_millis(1);
    assert!(!believes(&world, 0, sent), "the reply is late");
    world.replaced();
    assert!(!believes(&world, 0, world.now), "another server may be there");
}

/// A request waited for the next connection, and ran before the grace was over. Its reply came afterwards.
#[test]
fn grant_of_grace_is_refused() {
    let mut world = World::ready();
    world.fail_over(1, true);
    let sent = world.now;
    world.now = world.now + SECOND;
    world.refresh(1, true, true);
    let believes =
        |world: &World, sent| world.memberships.believes_grant(Some(connection(1)), sent, world.now);
    assert!(world.may_acquire() && !believes(&world, sent));
    assert!(believes(&world, world.now));
}

#[test]
fn left_incarnation_is_never_used_again() {
    let mut world = World::ready();
    world.fail_over(1, true);
    world.replaced();
    assert!(!world.refresh(0, true, true) && !world.may_acquire());
    assert_eq!(world.check_in(), CheckIn::NotYet, "this server is not the one that it has met");
}

/// An operator made an earlier primary the primary again, and never a replica.
#[test]
fn left_server_is_new_after_lease() {
    let mut world = World::ready();
    world.fail_over(1, true);
    world.refresh(1, true, true);
    assert!(world.may_acquire());
    world.now = world.now + 10 * LEASE;
    assert!(!world.refresh(0, true, true), "this process has used another server until now");
    world.now = world.now + LEASE + WINDOW;
    assert!(!world.refresh(0, true, true));
    world.now = world.now + SECOND;
    assert!(world.refresh(0, true, true) && !world.acknowledge(1) && !world.may_acquire());
    assert_eq!(world.check_in(), CheckIn::Done, "no witness");
    assert!(world.acknowledge(2) && world.may_acquire());
}

#[test]
fn acknowledgement_of_other_server_is_ignored() {
    let mut world = World::ready();
    world.now = world.now + WINDOW + SECOND;
    // The refresh went to server 1, and locks still go to server 0.
    world.replaced();
    assert!(!world.acknowledge(2));
    world.refresh(0, true, true);
    assert!(!world.may_acquire(), "the last refresh of server 0 is old");
}

#[test]
fn only_ready_process_becomes_witness() {
    let mut world = World::ready();
    world.fail_over(1, true);
    assert_eq!(world.check_in(), CheckIn::DoneAsWitness);
    // The grace of server 1 never ended, and the process stays a witness.
    world.fail_over(2, true);
    assert_eq!(world.check_in(), CheckIn::DoneAsWitness);

    let mut unknown = World::ready();
    unknown.fail_over(1, false);
    assert_eq!(unknown.check_in(), CheckIn::Done, "server 1 may not know others, either");
    unknown.fail_over(2, true);
    assert_eq!(unknown.check_in(), CheckIn::Done);
}

#[test]
fn removed_entry_makes_process_new() {
    let mut world = World::ready();
    assert!(!world.lacks_entry());
    world.refresh_once(0, true, false);
    world.acknowledge(2);
    assert!(!world.may_acquire(), "the refresh added no entry");
    assert!(world.lacks_entry());
    world.refresh_once(0, true, false);
    world.acknowledge(1);
    assert!(!world.may_acquire());
    world.acknowledge(2);
    assert!(world.may_acquire() && !world.lacks_entry());
}

#[test]
fn only_secure_hold_is_extended() {
    let mut world = World::ready();
    world.fail_over(1, true);
    let secure = hold(world.now + WINDOW + REPLY);
    let insecure = hold(world.now + WINDOW + REPLY.saturating_sub(SECOND));
    let trust = |world: &World, hold| world.memberships.trust(connection(1), hold, world.now);
    assert_eq!([&secure, &insecure].map(|hold| trust(&world, hold)), [Trust::Full, Trust::NoExtension]);
    let lease = |hold| world.memberships.reclaim(hold).unwrap().lease;
    assert_eq!(lease(&secure), Lease::DEFAULT.millis());
    assert_eq!(lease(&insecure), 12_000, "the rest of it");
    assert_eq!(world.memberships.reclaim(&insecure).unwrap().ends, 13_000, "by the server's clock");
    world.refresh(1, true, true);
    assert_eq!(trust(&world, &insecure), Trust::Full, "the grace is over");
    assert_eq!(world.memberships.trust(connection(0), &secure, world.now), Trust::None);
    world.now = world.now + WINDOW + SECOND;
    assert_eq!(trust(&world, &secure), Trust::NoExtension, "the window is closed");
}

/// A replica may have acknowledged another process's refresh on the old server after this one was sent.
#[test]
fn secure_hold_outlasts_late_acknowledgement() {
    let mut world = World::ready();
    world.fail_over(1, true);
    let sent = world.now;
    world.now = world.now + 2 * SECOND;
    world.memberships.acknowledged(0, (sent, world.now), 1);
    let trust = |until| world.memberships.trust(connection(1), &hold(until), world.now);
    assert_eq!(trust(sent + WINDOW + REPLY), Trust::NoExtension);
    assert_eq!(trust(world.now + WINDOW + REPLY), Trust::Full);
    world.now = sent + WINDOW + SECOND;
    assert_eq!(world.memberships.trust(connection(1), &hold(sent + LEASE), world.now), Trust::NoExtension);
}

#[test]
fn grace_ends_no_hold() {
    let mut world = World::ready();
    assert!(world.memberships.may_end_holds(connection(0)));
    world.fail_over(1, true);
    assert!(!world.memberships.may_end_holds(connection(1)));
    world.refresh(1, true, true);
    assert!(world.memberships.may_end_holds(connection(1)));
}

#[test]
fn reclaim_waits_for_met_server() {
    let mut world = World::ready();
    let held = hold(world.now + LEASE);
    world.replaced();
    assert_eq!(world.memberships.reclaim(&held), None);
    world.refresh(1, false, true);
    let lease = |world: &World| world.memberships.reclaim(&held).unwrap().lease;
    assert!(lease(&world) <= Lease::new(LEASE).unwrap().millis(), "the rest of the hold");
    assert_eq!(world.memberships.trust(connection(1), &held, world.now), Trust::NoExtension);
    world.acknowledge(1);
    assert_eq!(world.memberships.trust(connection(1), &held, world.now), Trust::Full);
}

/// A connection that breaks in a grace leaves some holds unwritten, and no later refresh finds another server.
#[test]
fn reconnection_to_same_server_is_reported() {
    let mut world = World::ready();
    world.fail_over(1, true);
    assert_eq!(world.found(1, false, true), Found::NothingNew);
    world.replaced();
    assert_eq!(world.found(1, false, true), Found::SameServer);
    assert_eq!(world.found(1, false, true), Found::NothingNew);
}

#[test]
fn grace_ends_before_replica_acknowledges() {
    let mut world = World::ready();
    world.replaced();
    world.refresh(1, false, true);
    assert_eq!(world.check_in(), CheckIn::DoneAsWitness);
    let (wanted, within) = world.memberships.wanted_replicas(0, world.now);
    assert_eq!((wanted, within), (1, Duration::from_millis(10)), "the check-in follows soon");
    assert!(!world.may_acquire(), "another process may not have checked in");
    world.refresh(1, true, true);
    assert!(world.may_acquire(), "the last refresh counted on server 0, less than a window ago");
    assert!(world.memberships.pause(0, world.now) < SECOND, "a replica may follow soon");
    world.now = world.now + WINDOW + SECOND;
    assert!(!world.may_acquire(), "the grace of another server may have ended by time");
    world.acknowledge(1);
    assert!(world.may_acquire());
}

#[test]
fn gate_wakes_waiting_tasks() {
    let mut world = World::new();
    let (mut first, mut second) = (None, None);
    let mut is_let_in = |place: &mut _| world.memberships.pass(&world.name, world.now, place, Waker::noop());
    assert!(!is_let_in(&mut first) && !is_let_in(&mut second) && !is_let_in(&mut first));
    // The second task gives up.
    assert!(world.memberships.leave_gate(&second.unwrap()).is_some());
    assert!(world.memberships.obstacle(&world.name, world.now).unwrap().contains("does not know"));
    world.refresh(0, true, false);
    assert!(world.memberships.obstacle(&world.name, world.now).unwrap().contains("fewer than 1 of 2"));
    world.connected = 0;
    world.refresh(0, true, true);
    assert!(world.memberships.obstacle(&world.name, world.now).unwrap().contains("the primary has 0 of 2"));
    world.connected = 2;
    world.refresh(0, true, true);
    world.memberships.acknowledged(0, (world.now, world.now), 2);
    assert_eq!(world.memberships.open_gate(world.now).len(), 1);
    assert!(world.memberships.leave_gate(&first.unwrap()).is_none(), "the gate keeps no task");
    assert_eq!(world.memberships.obstacle(&world.name, world.now), None);
}
