//! Tests of `memberships` in a cluster of three shards, in which the locks `0`, `1` and `2` are on the shards of these numbers.

use std::sync::atomic::{AtomicU32, Ordering};

use super::super::membership::{CheckIn, Found};
use super::super::{Holds, State};
use super::*;
use crate::base::lease::Lease;
use crate::kind;

const LEASE: Duration = Duration::from_secs(30);
const WINDOW: Duration = Duration::from_secs(10);
const REPLY: Duration = Duration::from_secs(3);
const REPLICAS: u32 = 2;

/// A process of a cluster.
struct World {
    now: BootInstant,
    memberships: Memberships,
    servers: Arc<Servers>,
}

/// Numbers of the servers of shards. A failover adds ten.
#[derive(Default)]
struct Servers {
    failovers: [AtomicU32; 3],
    /// The shard that serves the lock `moves`.
    moving: AtomicU32,
}

impl Servers {
    fn of_shard(&self, shard: usize) -> u32 {
        let failovers = self.failovers.get(shard).map_or(0, |count| count.load(Ordering::Relaxed));
        u32::try_from(shard).unwrap() + 10 * failovers
    }

    /// Returns the server of a lock or of a key of the fleet.
    fn of(&self, key: &str) -> u32 {
        let number = FleetKey::all(true).iter().position(|it| it.fleet == key);
        let moving = || self.moving.load(Ordering::Relaxed) as usize;
        self.of_shard(number.map_or_else(|| key.parse().unwrap_or_else(|_| moving()), shard_of))
    }
}

impl World {
    fn new() -> Self {
        let now = BootInstant::now();
        let longest_lease = Lease::new(LEASE).unwrap();
        let terms = Terms {
            longest_lease,
            window: WINDOW,
            reply_within: REPLY,
            replicas: REPLICAS,
            may_be_new: false,
            entry_lasts: 2 * WINDOW,
        };
        let servers = Arc::new(Servers::default());
        let at = Arc::clone(&servers);
        let node_of: NodeOf = Box::new(move |key| at.of(key));
        Self { now, memberships: Memberships::new(terms, FleetKey::all(true), node_of, now), servers }
    }

    /// Returns a process that is ready in all shards.
    fn ready() -> Self {
        let mut world = Self::new();
        for number in 0..16 {
            world.refresh(number, true);
            world.acknowledge(number, REPLICAS);
        }
        assert!(["0", "1", "2"].iter().all(|lock| world.may_acquire(lock)));
        world
    }

    /// Refreshes the entry of this key. Returns true if all holds have to be written.
    fn refresh(&mut self, number: usize, is_grace_over: bool) -> bool {
        let node = self.servers.of_shard(shard_of(number));
        let run_id = format!("run{node}");
        let reply = Refreshed {
            run_id: run_id.clone(),
            incarnation: format!("{run_id}:one:0"),
            time: 1000,
            is_grace_over,
            was_known: node >= 10,
            members: 2,
            checked_in: 1,
            ends_in: None,
            connected: REPLICAS,
        };
        let behind = Some((ConnectionId::new(node, 0), run_id));
        let found = self.memberships.refreshed(number, &reply, behind.clone(), self.now);
        if !reply.was_known {
            // The first refresh adds no entry.
            assert_ne!(Found::OtherServer, self.memberships.refreshed(number, &reply, behind, self.now));
        }
        self.memberships.open_gate(self.now);
        found == Found::OtherServer
    }

    /// Replaces the server of shard 1. No refresh has found the new server yet.
    fn replace(&mut self) {
        self.servers.failovers[1].fetch_add(1, Ordering::Relaxed);
        let of_shard: Vec<_> =
            Self::keys(1).map(|number| FleetKey::all(true)[number].fleet.clone()).collect();
        self.memberships.are_replaced(|key| of_shard.iter().any(|it| it.as_bytes() == key), self.now);
    }

    /// Refreshes all entries of shard 1 on its new server, in the grace.
    fn fail_over(&mut self) {
        self.replace();
        for number in Self::keys(1) {
            self.refresh(number, false);
            self.acknowledge(number, 1);
        }
    }

    fn acknowledge(&mut self, number: usize, replicas: u32) -> bool {
        let can_extend = self.memberships.acknowledged(number, (self.now, self.now), replicas);
        self.memberships.open_gate(self.now);
        can_extend
    }

    fn may_acquire(&self, lock: &str) -> bool {
        self.memberships.may_acquire(&name(lock), self.now)
    }

    /// Returns the keys of a shard.
    fn keys(shard: usize) -> impl Iterator<Item = usize> {
        (0..16).filter(move |number| shard_of(*number) == shard)
    }
}

/// Shards 0, 1 and 2 have equal numbers of slots.
fn shard_of(number: usize) -> usize {
    number * 3 / 16
}

fn name(lock: &str) -> Name {
    Name::new(lock, &kind::REENTRANT, true)
}

/// Returns a hold of this lock.
fn hold(lock: &str, valid_until: BootInstant) -> Hold {
    let mut holds = Holds::new(valid_until, Lease::DEFAULT, true);
    let index = holds.insert(&Arc::new(name(lock)), 1, false, Lease::DEFAULT, valid_until);
    let mut hold = holds.holds.remove(index as usize);
    hold.renewing.want(1);
    (hold.state, hold.guards) = (State::Held, 1);
    hold
}

#[test]
fn first_grant_awaits_all_shards() {
    let mut world = World::new();
    for number in 0..16 {
        assert!(!world.may_acquire("0"), "key {number} is not refreshed");
        world.refresh(number, true);
        world.acknowledge(number, if number == 15 { 1 } else { REPLICAS });
    }
    assert!(!world.may_acquire("0"), "a replica of the last shard does not know this process");
    assert!(world.memberships.obstacle(&name("0"), world.now).unwrap().contains("is new to the primary"));
    let first = world.memberships.on(ConnectionId::new(0, 0)).next().unwrap();
    assert!(first.may_acquire(world.now), "the first shard is ready");
    let grant = (Some(ConnectionId::new(0, 0)), world.now);
    assert!(!world.memberships.believes_grant(grant.0, grant.1, world.now));
    world.acknowledge(15, REPLICAS);
    assert!(world.may_acquire("0"));
    assert!(world.memberships.believes_grant(grant.0, grant.1, world.now));
}

#[test]
fn grace_closes_its_shard_only() {
    let mut world = World::ready();
    world.fail_over();
    assert_eq!(["0", "1", "2"].map(|lock| world.may_acquire(lock)), [true, false, true]);
    assert!(world.memberships.obstacle(&name("1"), world.now).unwrap().contains("failover"));
    assert!(world.memberships.health(world.now).is_in_grace);
    for number in World::keys(1) {
        assert!(!world.may_acquire("1"), "the grace is not over for key {number}");
        world.refresh(number, true);
    }
    assert!(world.may_acquire("1"));
    assert_eq!(world.memberships.health(world.now).obstacle, None);
}

#[test]
fn moved_lock_needs_its_new_shard() {
    let mut world = World::ready();
    world.fail_over();
    world.servers.moving.store(1, Ordering::Relaxed);
    assert!(!world.may_acquire("moves"));
    world.servers.moving.store(2, Ordering::Relaxed);
    assert!(world.may_acquire("moves"));
    world.servers.moving.store(3, Ordering::Relaxed);
    assert!(!world.may_acquire("moves"), "no key of the fleet is there");
    assert_eq!(world.memberships.obstacle(&name("moves"), world.now).as_deref(), Some(UNKNOWN));
}

#[test]
fn failover_writes_holds_once() {
    let mut world = World::ready();
    world.replace();
    let writes: Vec<_> = World::keys(1).map(|number| world.refresh(number, false)).collect();
    assert_eq!(writes, [true, false, false, false, false]);
    let extend: Vec<_> = World::keys(1).map(|number| world.acknowledge(number, 1)).collect();
    assert_eq!(extend, [false, false, false, false, true]);
    assert_eq!(world.memberships.next_refresh(6, true).unwrap().check_in, CheckIn::DoneAsWitness);
    assert_eq!(world.memberships.next_refresh(6, false).unwrap().check_in, CheckIn::NotYet);
}

#[test]
fn reclaim_names_key_of_shard() {
    let mut world = World::ready();
    let held = ["0", "1", "2"].map(|lock| hold(lock, world.now + LEASE));
    let keys =
        |world: &World| held.each_ref().map(|hold| shard_of(world.memberships.reclaim(hold).unwrap().number));
    assert_eq!(keys(&world), [0, 1, 2]);
    let at = |node| ConnectionId::new(node, 0);
    let trust = |world: &World, node| world.memberships.trust(at(node), &held[1], world.now);
    assert_eq!(trust(&world, 1), Trust::Full);
    world.replace();
    assert_eq!(world.memberships.reclaim(&held[1]), None);
    assert_eq!([1, 11].map(|node| trust(&world, node)), [Trust::None, Trust::None]);
    assert!(world.refresh(6, false));
    assert_eq!(trust(&world, 11), Trust::NoExtension, "no refresh counts there");
    assert!(!world.memberships.may_end_holds(at(11)) && world.memberships.may_end_holds(at(2)));
    let reclaim = world.memberships.reclaim(&held[1]).unwrap();
    let target = world.memberships.target(reclaim.number);
    assert_eq!(target, (&*FleetKey::all(true)[6].fleet, "run11:one:0"));
}

#[test]
fn first_key_opens_no_shard() {
    let mut world = World::ready();
    world.replace();
    for number in World::keys(1) {
        assert!(!world.may_acquire("1"), "key {number} is not refreshed");
        let grant = Some(ConnectionId::new(11, 0));
        assert!(!world.memberships.believes_grant(grant, world.now, world.now));
        world.refresh(number, true);
        world.acknowledge(number, 1);
    }
    assert!(world.may_acquire("1"));
}
