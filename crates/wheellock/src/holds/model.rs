//! The table of holds in a model world: every order of events, against what must never happen.

use std::ops::ControlFlow;

use wheellock_client::Value;

use super::*;
use crate::keeper::RenewalReply;
use crate::kind;
use crate::server_clock::{Jump, Sample};

const LEASE: Duration = Duration::from_millis(600);

/// A table, a clock, and a server that may or may not answer.
struct World {
    holds: Holds,
    start: BootInstant,
    now: BootInstant,
    name: Arc<Name>,
    /// The hold of each guard; a lost hold's guards live on.
    guards: Vec<HoldIndex>,
    renewals: Vec<u32>,
    settles: Vec<Settle>,
    renewals_after_release: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    Acquire,
    AcquireLate,
    Refused,
    Cancel,
    Release,
    /// Time passes, and the keeper does what is due.
    Tick,
    Renewed(Renewed),
    Settled(bool),
    SettleFailed,
    RenewalRefused(Refused),
    /// After this pause, in milliseconds.
    SettleRefused(u64),
    /// There was no room for it.
    Postponed,
}

const EVENTS: [Event; 17] = [
    Event::Acquire,
    Event::AcquireLate,
    Event::Refused,
    Event::Cancel,
    Event::Release,
    Event::Tick,
    Event::Renewed(Renewed::Extended),
    Event::Renewed(Renewed::NotOwner),
    Event::Renewed(Renewed::Failed),
    Event::Settled(true),
    Event::Settled(false),
    Event::SettleFailed,
    Event::RenewalRefused(Refused::Elsewhere),
    Event::RenewalRefused(Refused::Arrived),
    Event::SettleRefused(0),
    Event::SettleRefused(10),
    Event::Postponed,
];

impl World {
    fn new() -> Self {
        let now = BootInstant::now();
        Self {
            holds: Holds::new(now, Lease::new(LEASE).unwrap()),
            start: now,
            now,
            name: Arc::new(Name::new("n", &kind::REENTRANT)),
            guards: Vec::new(),
            renewals: Vec::new(),
            settles: Vec::new(),
            renewals_after_release: 0,
        }
    }

    fn terms(&self) -> Terms {
        Terms { lease: Lease::new(LEASE).unwrap(), renew: true, sent: self.now }
    }

    fn begin(&mut self) -> Option<HoldIndex> {
        let lease = Lease::new(LEASE).unwrap();
        let began = self.holds.begin_attempt((&self.name, 1), true, lease, self.now, Waker::noop());
        match began {
            Poll::Ready((hold, count)) => {
                assert_eq!(count, self.guards_of(hold) + 1, "asks for what it will have");
                Some(hold)
            }
            Poll::Pending => None,
        }
    }

    fn server_time(&self) -> Duration {
        self.now.saturating_duration_since(self.start)
    }

    fn guards_of(&self, hold: HoldIndex) -> u32 {
        self.holds.get(hold).map_or(0, |hold| hold.guards)
    }

    /// Breaks if the event cannot happen now.
    fn step(&mut self, event: Event) -> ControlFlow<()> {
        let mut wake = Vec::new();
        match event {
            Event::Acquire | Event::AcquireLate => {
                let Some(hold) = self.begin() else { return ControlFlow::Break(()) };
                let terms = self.terms();
                if event == Event::AcquireLate {
                    self.now = self.now + LEASE;
                }
                let again = self.guards_of(hold) > 0;
                let reply = if again { GrantReply::Again } else { GrantReply::Fresh };
                match self.holds.granted(hold, terms, reply, self.now, &mut wake) {
                    Some(Granted::Held(hold, settle)) => {
                        assert_eq!(event, Event::Acquire);
                        self.guards.push(hold);
                        self.settles.extend(settle);
                    }
                    Some(Granted::TooLate(settle)) => {
                        assert_eq!(event, Event::AcquireLate, "a grant in time is believed");
                        self.settles.push(settle);
                    }
                    None => panic!("the hold vanished"),
                }
            }
            Event::Refused => {
                let Some(hold) = self.begin() else { return ControlFlow::Break(()) };
                self.settles.extend(self.holds.refused(hold, &mut wake));
            }
            Event::Cancel => {
                let Some(hold) = self.begin() else { return ControlFlow::Break(()) };
                self.settles.extend(self.holds.cancel_attempt(hold, self.now));
            }
            Event::Release => {
                let Some(hold) = self.guards.pop() else { return ControlFlow::Break(()) };
                self.settles.extend(self.holds.release(hold, true, self.now));
            }
            Event::Tick => {
                self.now = self.now + LEASE / 5;
                let mut due = Due::default();
                self.holds.due(self.now, &mut due);
                self.settles.extend(due.settle);
                self.settles.extend(self.holds.next_postponed(self.now));
                self.begin_renewals(due.renew);
            }
            Event::Renewed(how) => {
                if self.renewals.is_empty() {
                    return ControlFlow::Break(());
                }
                let renewal = self.renewals.remove(0);
                let value = Value::Integer(i64::from(how == Renewed::Extended));
                let reply = RenewalReply { server: self.server_time(), locks: &[value] };
                let reply = (how != Renewed::Failed).then_some(&reply);
                assert_eq!(
                    self.holds.end_renewal(renewal, reply, self.now, |_| 0, &mut wake),
                    None,
                    "time goes on evenly"
                );
            }
            Event::Settled(known) => {
                let Some(settle) = self.settles.pop() else { return ControlFlow::Break(()) };
                self.settles.extend(self.holds.settled(settle.hold, known, self.now, &mut wake));
            }
            Event::SettleFailed => {
                let Some(settle) = self.settles.pop() else { return ControlFlow::Break(()) };
                self.holds.unsettled(settle.hold, self.now, &mut wake);
            }
            Event::RenewalRefused(refused) => {
                if self.renewals.is_empty() {
                    return ControlFlow::Break(());
                }
                let renewal = self.renewals.remove(0);
                let at_once = self.holds.renewal_refused(renewal, refused, Duration::ZERO, self.now);
                self.begin_renewals(at_once);
            }
            Event::SettleRefused(pause) => {
                let Some(settle) = self.settles.pop() else { return ControlFlow::Break(()) };
                let pause = Duration::from_millis(pause);
                self.settles.extend(self.holds.settle_refused(settle.hold, pause, self.now, &mut wake));
            }
            Event::Postponed => {
                let Some(settle) = self.settles.pop() else { return ControlFlow::Break(()) };
                self.holds.postpone(settle.hold, self.now, &mut wake);
            }
        }
        self.check();
        ControlFlow::Continue(())
    }

    fn begin_renewals(&mut self, renewals: Vec<Renewal>) {
        if !renewals.is_empty() {
            let unguarded = |renewal: &&Renewal| !self.guards.contains(&renewal.hold);
            self.renewals_after_release += renewals.iter().filter(unguarded).count();
            self.renewals.push(self.holds.begin_renewal(renewals, Some(0), self.now));
        }
    }

    /// A server tells its time at this moment. Every lock is on server 0.
    fn hear(&mut self, node: u32, server: Duration) -> Option<Jump> {
        self.holds.heard_server_time(node, Sample { server, sent: self.now, received: self.now }, |_| 0)
    }

    fn check(&self) {
        assert_eq!(self.renewals_after_release, 0, "renewed what was released");
        assert!(self.settles.len() <= 2, "requests pile up");
        for hold in self.guards.iter().filter_map(|hold| self.holds.get(*hold)) {
            assert!(hold.valid_until <= self.now + LEASE, "believed for longer than the lease");
            let believed = hold.state == State::Held && self.now < hold.valid_until;
            let looked_after = hold.alarm.is_some() || hold.member.is_some();
            assert!(!believed || looked_after, "nobody looks after it");
        }
    }

    /// Everything is released and answered: nothing may be left, after a lease at the latest.
    fn settle_down(mut self, path: &[Event]) {
        while !self.guards.is_empty() {
            let _step = self.step(Event::Release);
        }
        while !self.settles.is_empty() {
            let _step = self.step(Event::Settled(true));
        }
        while !self.renewals.is_empty() {
            let _step = self.step(Event::Renewed(Renewed::Extended));
        }
        for _ in 0..20 {
            let _step = self.step(Event::Tick);
            while !self.settles.is_empty() {
                let _step = self.step(Event::Settled(false));
            }
        }
        assert!(
            self.holds.holds.is_empty() && self.holds.presented.is_empty() && self.holds.backlog.is_empty(),
            "a hold was left behind by {path:?}"
        );
        assert_eq!(self.holds.tally.snapshot(0).held, 0, "{path:?}");
        assert!(
            self.holds.wheel.is_empty() && self.holds.beats.is_empty() && self.holds.renewals.is_empty(),
            "an alarm was left behind by {path:?}"
        );
    }
}

/// Every order of up to six events, and then the end. 17^6 worlds, most of them cut short.
#[test]
fn no_order_of_events_renews_after_release_or_leaves_anything() {
    fn explore(path: &mut Vec<Event>, depth: usize) {
        for event in EVENTS {
            let mut world = World::new();
            path.push(event);
            let possible = path.iter().all(|event| world.step(*event).is_continue());
            if possible {
                world.settle_down(path);
                if depth > 1 {
                    explore(path, depth - 1);
                }
            }
            path.pop();
        }
    }
    explore(&mut Vec::new(), 6);
}

#[test]
fn renewals_come_at_a_third_and_fail_over_quickly() {
    let mut world = World::new();
    let start = world.now;
    assert!(world.step(Event::Acquire).is_continue());
    let hold = world.guards[0];
    assert_eq!(world.holds.next_due(), Some(start + LEASE / 3), "the beat");
    assert!(world.step(Event::Tick).is_continue() && world.renewals.is_empty());
    assert!(world.step(Event::Tick).is_continue() && world.renewals.len() == 1);
    assert!(world.step(Event::Renewed(Renewed::Failed)).is_continue());
    assert_eq!(world.holds.next_due(), Some(world.now + LEASE / 20), "a failure is repeated soon");
    assert!(world.step(Event::Tick).is_continue() && world.renewals.len() == 1);
    assert!(world.step(Event::Renewed(Renewed::Extended)).is_continue());
    let valid = world.holds.get(hold).unwrap().valid_until.saturating_duration_since(start);
    assert_eq!(valid, 3 * LEASE / 5 + LEASE - LEASE / 100 - Duration::from_millis(2), "from before the send");
}

#[test]
fn a_refused_renewal_is_made_again_soon_and_is_no_failure_where_it_was_only_sent_elsewhere() {
    let refuse = |refused, pause| {
        let mut world = World::new();
        assert!(world.step(Event::Acquire).is_continue());
        while world.renewals.is_empty() {
            assert!(world.step(Event::Tick).is_continue());
        }
        let now = world.now;
        let at_once = world.holds.renewal_refused(world.renewals[0], refused, pause, now);
        let soon = !at_once.is_empty() || world.holds.next_due().unwrap() <= now + pause + TICK;
        let mut due = Due::default();
        world.holds.due(now + pause + TICK, &mut due);
        let again: Vec<_> = at_once.iter().chain(&due.renew).collect();
        assert!(soon && again.len() == 1, "{refused:?}: {} {}", at_once.len(), due.renew.len());
        let failed = world.holds.tally.snapshot(0).failed_renewals;
        (at_once.len(), again[0].alone, again[0].in_full, failed)
    };
    let pause = Duration::from_millis(10);
    assert_eq!(refuse(Refused::Elsewhere, Duration::ZERO), (0, false, false, 0));
    assert_eq!(refuse(Refused::OnItsWay, pause), (0, true, false, 0));
    assert_eq!(refuse(Refused::Arrived, Duration::ZERO), (1, true, false, 0));
    assert_eq!(refuse(Refused::NoScript, Duration::ZERO), (0, false, true, 0));
    assert_eq!(refuse(Refused::Unserved, pause), (0, false, false, 1));
}

#[test]
fn what_is_refused_again_and_again_is_asked_for_less_and_less_often() {
    let mut world = World::new();
    assert!(world.step(Event::Acquire).is_continue());
    let hold = world.guards[0];
    let mut pauses = |lease: u64, count: usize, pause: u64| -> Vec<_> {
        let hold = world.holds.get_mut(hold).unwrap();
        (hold.lease, hold.refusals) = (Lease::new(Duration::from_millis(lease)).unwrap(), 0);
        let pause = Duration::from_millis(pause);
        (0..count).map(|_| hold.pause_after_refusal(pause).as_millis()).collect()
    };
    assert_eq!(pauses(30_000, 12, 0), [0, 0, 10, 0, 0, 20, 0, 0, 40, 0, 0, 80]);
    assert_eq!(pauses(30_000, 7, 25), [25, 25, 25, 50, 50, 50, 100]);
    assert_eq!(pauses(300, 7, 0), [0, 0, 10, 0, 0, 15, 0], "no longer than after a failure");
    assert!(pauses(30_000, 1000, 0).chunks(4).all(|four| four.iter().any(|pause| *pause >= 10)));
}

#[test]
fn a_grant_that_took_long_is_renewed_before_its_beat() {
    let mut world = World::new();
    let terms = world.terms();
    let hold = world.begin().unwrap();
    let late = world.now + LEASE * 4 / 5;
    let granted = world.holds.granted(hold, terms, GrantReply::Fresh, late, &mut Vec::new());
    assert!(matches!(granted, Some(Granted::Held(..))));
    assert!(
        world.holds.next_due().unwrap() <= late,
        "its third has passed, and its next beat would be too late"
    );
}

#[test]
fn a_jump_of_the_servers_clock_shortens_what_was_not_extended_since() {
    let mut world = World::new();
    let start = world.now;
    let lease = Lease::new(LEASE).unwrap();
    let take = |world: &mut World, owner: u64, renew: bool| {
        let began = world.holds.begin_attempt((&world.name, owner), false, lease, start, Waker::noop());
        let Poll::Ready((hold, _)) = began else { panic!("nobody else asks") };
        let terms = Terms { lease, renew, sent: start };
        let _granted = world.holds.granted(hold, terms, GrantReply::Fresh, start, &mut Vec::new());
        hold
    };
    let (kept, fixed, extended) =
        (take(&mut world, 1, true), take(&mut world, 2, false), take(&mut world, 3, true));
    let hear = |world: &mut World, at: Duration, server: Duration| {
        world.now = start + at;
        let renewal = world.holds.renewal_by_hand(extended).unwrap();
        world.holds.renewed(&renewal, Renewed::Extended, world.now, world.now, &mut Vec::new());
        world.hear(0, server)
    };
    assert_eq!(hear(&mut world, LEASE / 10, LEASE / 10), None);
    let by = LEASE / 4;
    assert_eq!(hear(&mut world, LEASE / 5, LEASE / 5 + by), Some(Jump::Forward(by)));
    let valid = |world: &World, hold| world.holds.get(hold).unwrap().valid_until;
    assert_eq!(valid(&world, fixed), lease.valid_until(start).saturating_sub(by));
    assert_eq!(valid(&world, kept), lease.valid_until(start).saturating_sub(by));
    assert_eq!(valid(&world, extended), lease.valid_until(start + LEASE / 5), "extended after the jump");
    assert!(world.holds.next_due().unwrap() <= world.now, "the server is asked at once");
    let mut due = Due::default();
    world.holds.due(world.now + TICK, &mut due);
    assert_eq!(due.renew.iter().map(|renewal| renewal.hold).collect::<Vec<_>>(), [kept]);
    assert_eq!(world.holds.tally.snapshot(0).server_clock_jumps, 1);
}

#[test]
fn a_jump_of_the_servers_clock_lengthens_no_lease() {
    let mut world = World::new();
    let (start, lease) = (world.now, Lease::new(LEASE).unwrap());
    let take = |world: &mut World, owner: u64, sent: BootInstant| {
        let began = world.holds.begin_attempt((&world.name, owner), false, lease, sent, Waker::noop());
        let Poll::Ready((hold, _)) = began else { panic!("nobody else asks") };
        let terms = Terms { lease, renew: true, sent };
        let _granted = world.holds.granted(hold, terms, GrantReply::Fresh, sent, &mut Vec::new());
        hold
    };
    let unrenewed = take(&mut world, 1, start);
    let before = world.holds.get(unrenewed).unwrap().valid_until;
    // Its renewals failed; those of a younger one do not, and tell of the jump in its last moments.
    assert_eq!(world.hear(0, Duration::ZERO), None);
    let late = start + LEASE * 9 / 10;
    let _younger = take(&mut world, 2, late);
    world.now = late;
    let jump = world.hear(0, LEASE * 2);
    assert!(matches!(jump, Some(Jump::Forward(_))), "{jump:?}");
    assert_eq!(world.holds.get(unrenewed).unwrap().valid_until, before, "nobody has extended it");
}

#[test]
fn a_jump_of_one_servers_clock_casts_no_doubt_on_the_locks_of_another() {
    let mut world = World::new();
    assert!(world.step(Event::Acquire).is_continue());
    let believed = world.holds.get(world.guards[0]).unwrap().valid_until;
    assert_eq!(world.hear(1, Duration::ZERO), None);
    world.now = world.now + LEASE / 10;
    assert!(matches!(world.hear(1, LEASE), Some(Jump::Forward(_))));
    assert_eq!(world.holds.get(world.guards[0]).unwrap().valid_until, believed);
    assert_eq!(
        world.hear(0, Duration::from_secs(1_000_000)),
        None,
        "the first word of another clock is no jump"
    );
}

#[test]
fn a_late_renewal_does_not_bring_a_lost_lock_back() {
    let mut world = World::new();
    assert!(world.step(Event::Acquire).is_continue());
    let hold = world.guards[0];
    for _ in 0..5 {
        assert!(world.step(Event::Tick).is_continue());
    }
    assert_eq!(world.holds.get(hold).unwrap().state, State::Lost(LostReason::Expired));
    assert!(world.step(Event::Renewed(Renewed::Extended)).is_continue());
    assert_eq!(world.holds.get(hold).unwrap().state, State::Lost(LostReason::Expired));
    world.settle_down(&[]);
}

/// A process may hold a million locks; docs/benchmarks.md says what that costs.
#[test]
fn a_hold_is_small() {
    assert!(size_of::<Hold>() <= 128 && size_of::<Name>() <= 56);
}
