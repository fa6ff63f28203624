//! Model tests of the table of holds.
//!
//! They try every order of events, and check that no order breaks an invariant.

mod attempts;
mod backlog;
mod doubts;
mod effects;
mod hand_over;
mod leases;
mod losses;
mod oldest;
mod orders;
mod releases;
mod renewals;
mod shutdown;
mod waits;
mod watchdog;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Wake};

use wheellock_client::Change;
use wheellock_client::layer::ConnectionId;

use super::changes::MOST_TOLD;
use super::recent_releases::KEPT;
use super::schedule::TICK;
use super::*;
use crate::base::fleet::Fleet;
use crate::base::fleet_key::FleetKey;
use crate::base::fleet_terms::Terms as FleetTerms;
use crate::base::server_clock::{Jump, Sample};
use crate::kind;
use crate::wait::turns::Opening;
use crate::wait::wait_queue::{Handed, TurnLimit};

/// A guard's share, with the watchdog and without it.
const GUARD: Share = Share { count: 1, renew: true };
const FIXED: Share = Share { renew: false, ..GUARD };
const LEASE: Duration = Duration::from_millis(600);
/// Time after a grant during which a hold may be handed over.
const BUDGET: Duration = Duration::from_millis(150);
/// Time for which a caller waits for its release.
const WAIT: Duration = Duration::from_millis(300);

impl Holds {
    /// Returns the counters of the locks without a family.
    fn counted(&self) -> crate::Metrics {
        self.tallies.snapshots(0, &crate::table::metrics::Waiting::new(false)).swap_remove(0)
    }
}

/// A task that counts its wake-ups.
#[derive(Default)]
struct Task(AtomicUsize);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Task {
    /// Returns the number of wake-ups since the last call.
    fn woken(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }

    fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(Arc::clone(self))
    }
}

/// A table, a clock, and a server that may or may not reply.
struct World {
    holds: Holds,
    start: BootInstant,
    now: BootInstant,
    name: Arc<Name>,
    /// The hold of each guard. A lost hold's guards live on.
    guards: Vec<HoldIndex>,
    renewals: Vec<u32>,
    settles: Vec<Reconcile>,
    /// Callers that wait for releases, with their deadlines.
    views: Vec<(CallerIndex, BootInstant)>,
    /// Guards that wait for a renewal, as hold, caller and deadline.
    wishes: Vec<(HoldIndex, CallerIndex, BootInstant)>,
    /// Number of `settles` that are older than the shutdown.
    older: usize,
    /// True if a hold existed at the shutdown and has not been released.
    owed: bool,
    renewals_after_release: usize,
    /// True if one owner, which other code knows, makes all attempts.
    presented: bool,
    /// The last hand-over.
    handed: Option<Handed>,
    hand_overs: usize,
    /// Instant of the server's grant of each hold, by the hold's serial.
    granted_at: HashMap<u64, BootInstant>,
}

/// The fleet of a world.
impl World {
    /// Joins a fleet of three servers.
    fn join_fleet(&mut self) {
        let terms = FleetTerms::new(&Fleet::of_servers(3), Lease::DEFAULT).unwrap();
        self.holds.join_fleet(terms, FleetKey::all(false), Box::new(|_| 0), self.now);
    }

    /// Lets a refresh find this server behind the connection with this number.
    fn find_server(&mut self, incarnation: &str, connection: u32, is_grace_over: bool) {
        let run_id = incarnation.split(':').next().unwrap().to_owned();
        let reply = Refreshed {
            run_id: run_id.clone(),
            incarnation: incarnation.to_owned(),
            time: 1000,
            is_grace_over,
            was_known: true,
            members: 1,
            checked_in: 1,
            ends_in: None,
            connected: 2,
        };
        let behind = Some((ConnectionId::new(0, connection), run_id));
        self.holds.refreshed(0, &reply, behind, self.now, &mut Effects::default());
    }
}

/// Wakes the tasks, and returns the losses to log.
fn logged(mut effects: Effects) -> Vec<LostReason> {
    effects.wake_all();
    let rest = effects.rest;
    rest.map(|rest| rest.lost).into_iter().flatten().map(|(_, reason)| reason).collect()
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    Acquire,
    AcquireLate,
    Refused,
    Cancel,
    Release,
    /// A release with a caller that waits for the result.
    ReleaseAwaited,
    /// The caller of the latest awaited release leaves.
    Leave,
    /// The last guard hands its hold over to a waiter.
    HandOver,
    /// The last guard waits for an extension.
    Ask,
    /// Time passes, and the watchdog does its due work.
    Tick,
    Renewed(Renewed),
    Reconciled(bool),
    ReconcileFailed,
    /// The connection breaks.
    ReconcileUnanswered,
    RenewalRefused(Refused),
    /// The pause in milliseconds.
    ReconcileRefused(u64),
    /// Another server takes over.
    Changed,
    /// The request finds no room in the outgoing queue.
    Postponed,
    ShutDown,
    /// A shutdown while an attempt is under way. The grant arrives after the shutdown.
    ShutDownAsked,
}

const EVENTS: [Event; 25] = [
    Event::Acquire,
    Event::AcquireLate,
    Event::Refused,
    Event::Cancel,
    Event::Release,
    Event::ReleaseAwaited,
    Event::Leave,
    Event::HandOver,
    Event::Ask,
    Event::Tick,
    Event::Renewed(Renewed::Extended),
    Event::Renewed(Renewed::NotOwner),
    Event::Renewed(Renewed::Failed),
    Event::Reconciled(true),
    Event::Reconciled(false),
    Event::ReconcileFailed,
    Event::ReconcileUnanswered,
    Event::RenewalRefused(Refused::Elsewhere),
    Event::RenewalRefused(Refused::Arrived),
    Event::ReconcileRefused(0),
    Event::ReconcileRefused(10),
    Event::Changed,
    Event::Postponed,
    Event::ShutDown,
    Event::ShutDownAsked,
];

impl World {
    fn new() -> Self {
        let now = BootInstant::now();
        let holds = Holds::new(now, Lease::new(LEASE).unwrap(), true);
        Self {
            holds,
            start: now,
            now,
            name: Arc::new(Name::new("n", &kind::REENTRANT, false)),
            guards: Vec::new(),
            renewals: Vec::new(),
            settles: Vec::new(),
            views: Vec::new(),
            wishes: Vec::new(),
            older: 0,
            owed: false,
            renewals_after_release: 0,
            presented: true,
            handed: None,
            hand_overs: 0,
            granted_at: HashMap::new(),
        }
    }

    /// Creates a world in which every attempt has an owner of its own, which no other code knows.
    fn of_strangers() -> Self {
        Self { presented: false, ..Self::new() }
    }

    /// Creates a world in which one owner has a lock with several guards.
    fn with_guards(guards: usize) -> (Self, HoldIndex) {
        let mut world = Self::new();
        (0..guards).for_each(|_| assert!(world.step(Event::Acquire).is_continue()));
        let hold = world.guards[0];
        (world, hold)
    }

    fn terms(&self) -> Terms {
        Terms { lease: Lease::new(LEASE).unwrap(), share: GUARD, sent: self.now, connection: None }
    }

    fn begin(&mut self) -> Option<HoldIndex> {
        let lease = Lease::new(LEASE).unwrap();
        let owner = (&self.name, 1);
        let began = self.holds.begin_attempt(owner, self.presented, (lease, 1), self.now, Waker::noop());
        match began {
            Poll::Ready(Some((hold, count))) => {
                assert_eq!(count, self.guards_of(hold) + 1, "asks for what it will have");
                Some(hold)
            }
            Poll::Ready(None) => {
                assert!(self.holds.is_shut(), "refused while nothing was shut down");
                None
            }
            Poll::Pending => None,
        }
    }

    fn server_time(&self) -> Duration {
        self.now.saturating_duration_since(self.start)
    }

    /// Takes a lock of its own for `owner`, at this instant.
    fn take(&mut self, owner: u64, renew: bool) -> HoldIndex {
        let name = Arc::new(Name::new(&format!("n{owner}"), &kind::REENTRANT, false));
        let hold = self.ask_for(&name, owner);
        self.grant(hold, Terms { share: Share { renew, ..GUARD }, ..self.terms() });
        hold
    }

    /// Begins an attempt of a new owner.
    fn ask_for(&mut self, name: &Arc<Name>, owner: u64) -> HoldIndex {
        let lease = Lease::new(LEASE).unwrap();
        let began = self.holds.begin_attempt((name, owner), false, (lease, 1), self.now, Waker::noop());
        let Poll::Ready(Some((hold, _))) = began else { panic!("nobody else asks") };
        hold
    }

    fn grant(&mut self, hold: HoldIndex, terms: Terms) {
        let granted = self.holds.granted(hold, terms, GrantReply::Fresh, self.now, &mut Effects::default());
        assert!(matches!(granted, Some(Granted::Held(_, None))));
    }

    /// Shows that another owner has the lock of a hold. Returns the losses to log.
    fn lose(&mut self, hold: HoldIndex) -> Vec<LostReason> {
        let mut effects = Effects::default();
        self.holds.refused_by_other(hold, self.now, &mut effects);
        logged(effects)
    }

    /// Returns the renewals that the watchdog would send now.
    fn due(&mut self) -> Vec<Renewal> {
        let (renew, _) = self.due_and_requests();
        renew
    }

    /// Returns the releases that the watchdog would repeat now.
    fn repeated(&mut self) -> Vec<Reconcile> {
        let (_, requests) = self.due_and_requests();
        requests
    }

    fn due_and_requests(&mut self) -> (Vec<Renewal>, Vec<Reconcile>) {
        let mut effects = Effects::default();
        let mut due = Due::new(&mut effects, &Vec::new);
        self.holds.due(self.now, &mut due);
        let renew = due.renew;
        (renew, std::iter::from_fn(|| effects.next_request()).collect())
    }

    /// Takes locks of new owners and releases them. The server with the number `node` confirms the releases.
    fn release(&mut self, owners: impl IntoIterator<Item = u64>, node: u32) {
        for owner in owners {
            let hold = self.take(owner, true);
            let settle = self.holds.release(hold, GUARD, self.now).unwrap();
            assert_eq!(settle.count, 0);
            self.reconciled(&settle, true, node);
        }
    }

    fn reconciled(&mut self, settle: &Reconcile, known: bool, node: u32) {
        let next = self.holds.reconciled(settle.hold, known, node, self.now, &mut Effects::default());
        assert!(next.is_none(), "once is enough");
    }

    /// Replies to a script. `locks` has one number for each of its locks.
    fn answer(&mut self, script: u32, locks: &[i64]) {
        let read = |(number, renewal): (&i64, &Renewal)| match (*number, renewal.extend) {
            (0, _) => Renewed::NotOwner,
            (1, true) => Renewed::Extended,
            (-1, false) => Renewed::StillHeld { left: Duration::MAX },
            (left, _) => Renewed::StillHeld { left: Duration::from_millis(left.unsigned_abs()) },
        };
        let locks = locks.iter().zip(self.holds.batch(script)).map(read).collect();
        let reply = RenewalReply { server: self.server_time(), locks };
        let _jump = self.holds.end_renewal(script, Some(&reply), self.now, |_| 0, &mut Effects::default());
    }

    fn valid_until(&self, hold: HoldIndex) -> BootInstant {
        self.holds.get(hold).unwrap().valid_until
    }

    fn guards_of(&self, hold: HoldIndex) -> u32 {
        self.holds.get(hold).map_or(0, |hold| hold.guards)
    }

    /// Applies an event. Breaks if the event cannot happen now.
    fn step(&mut self, event: Event) -> ControlFlow<()> {
        let mut effects = Effects::default();
        match event {
            Event::Acquire | Event::AcquireLate => {
                let Some(hold) = self.begin() else { return ControlFlow::Break(()) };
                let terms = self.terms();
                if event == Event::AcquireLate {
                    self.now = self.now + LEASE;
                }
                let again = self.guards_of(hold) > 0;
                let reply = if again { GrantReply::Again } else { GrantReply::Fresh };
                match self.holds.granted(hold, terms, reply, self.now, &mut effects) {
                    Some(Granted::Held(hold, settle)) => {
                        assert_eq!(event, Event::Acquire);
                        self.granted_at.entry(self.holds.get(hold).unwrap().serial).or_insert(self.now);
                        self.guards.push(hold);
                        self.settles.extend(settle);
                    }
                    Some(Granted::TooLate(settle)) => {
                        assert_eq!(event, Event::AcquireLate, "a grant in time is believed");
                        self.settles.push(settle);
                    }
                    Some(Granted::ShutDown(_)) => panic!("nothing was shut down meanwhile"),
                    None => panic!("the hold vanished"),
                }
            }
            Event::Refused => {
                let Some(hold) = self.begin() else { return ControlFlow::Break(()) };
                self.settles.extend(self.holds.refused(hold, 1, &mut effects));
            }
            Event::Cancel => {
                let Some(hold) = self.begin() else { return ControlFlow::Break(()) };
                self.settles.extend(self.holds.cancel_attempt(hold, 1, self.terms().lease, self.now));
            }
            Event::Release => {
                let Some(hold) = self.pop_guard() else { return ControlFlow::Break(()) };
                let settle = self.holds.release(hold, GUARD, self.now);
                assert!(settle.is_none() || !self.holds.is_shut(), "that was given back already");
                self.settles.extend(settle);
            }
            Event::ReleaseAwaited => {
                let Some(hold) = self.pop_guard() else { return ControlFlow::Break(()) };
                let until = self.now + WAIT;
                // The caller of a lost hold's release has its result already, as in `guard.rs`.
                let (view, settle) = if self.holds.lost(hold).is_some() {
                    (None, self.holds.release(hold, GUARD, self.now))
                } else {
                    let (view, settle) =
                        self.holds.release_awaited(hold, GUARD, (self.now, until), Waker::noop());
                    assert!(view.is_some() || settle.is_none(), "no caller waits for this release");
                    (view, settle)
                };
                self.views.extend(view.map(|view| (view, until)));
                self.settles.extend(settle);
            }
            Event::Leave => {
                let Some((view, _)) = self.views.pop() else { return ControlFlow::Break(()) };
                let _waker = self.holds.leave(view);
            }
            Event::HandOver => self.hand_over()?,
            Event::Ask => {
                let Some(hold) = self.guards.last().copied() else { return ControlFlow::Break(()) };
                let until = self.now + WAIT;
                let wished = self.holds.wish(hold, Want::Renew, (self.now, until), Waker::noop());
                let Some((wish, renewal)) = wished else { return ControlFlow::Break(()) };
                assert!(renewal.as_ref().is_none_or(|renewal| renewal.extend));
                self.wishes.push((hold, wish, until));
                self.begin_renewals(renewal.into_iter().collect());
            }
            Event::Tick => {
                self.now = self.now + LEASE / 5;
                self.keep();
            }
            Event::Renewed(how) => {
                if self.renewals.is_empty() {
                    return ControlFlow::Break(());
                }
                let renewal = self.renewals.remove(0);
                let wishing = self.holds.wishing(renewal);
                let reply = RenewalReply { server: self.server_time(), locks: vec![how] };
                let reply = (how != Renewed::Failed).then_some(&reply);
                assert_eq!(
                    self.holds.end_renewal(renewal, reply, self.now, |_| 0, &mut effects),
                    None,
                    "time goes on evenly"
                );
                wishing.iter().for_each(|hold| self.holds.renew_for_wishes(*hold, self.now));
            }
            Event::Reconciled(known) => {
                let Some(settle) = self.pop_settle() else { return ControlFlow::Break(()) };
                self.settles.extend(self.holds.reconciled(settle.hold, known, 0, self.now, &mut effects));
            }
            Event::ReconcileFailed => {
                let Some(settle) = self.pop_settle() else { return ControlFlow::Break(()) };
                self.holds.tell_failure(
                    settle.hold,
                    Want::Release,
                    &Failed::Unexpected("nothing"),
                    &mut effects,
                );
                self.holds.reconcile_again(settle.hold, Unreconciled::Failed, self.now, &mut effects);
            }
            Event::ReconcileUnanswered => {
                let Some(settle) = self.pop_settle() else { return ControlFlow::Break(()) };
                let why = Unreconciled::Unanswered;
                self.settles.extend(self.holds.reconcile_again(settle.hold, why, self.now, &mut effects));
            }
            Event::RenewalRefused(refused) => {
                if self.renewals.is_empty() {
                    return ControlFlow::Break(());
                }
                let renewal = self.renewals.remove(0);
                let at_once = self.holds.renewal_refused(renewal, refused, Duration::ZERO, self.now);
                self.begin_renewals(at_once);
            }
            Event::ReconcileRefused(pause) => {
                let Some(settle) = self.pop_settle() else { return ControlFlow::Break(()) };
                let why = Unreconciled::Refused(Duration::from_millis(pause));
                self.settles.extend(self.holds.reconcile_again(settle.hold, why, self.now, &mut effects));
            }
            Event::Changed => {
                self.holds.changed(&Change::everywhere(), self.now);
                self.keep();
            }
            Event::Postponed => {
                let Some(settle) = self.pop_settle() else { return ControlFlow::Break(()) };
                self.holds.postpone(settle.hold, self.now, &mut effects);
            }
            Event::ShutDown => self.shut_down(&mut effects)?,
            Event::ShutDownAsked => {
                let Some(hold) = self.begin() else { return ControlFlow::Break(()) };
                let (terms, again) = (self.terms(), self.guards_of(hold) > 0);
                self.shut_down(&mut effects)?;
                assert!(self.settles.iter().any(|settle| settle.hold == hold), "whoever asked may be gone");
                let reply = if again { GrantReply::Again } else { GrantReply::Fresh };
                match self.holds.granted(hold, terms, reply, self.now, &mut effects) {
                    Some(Granted::ShutDown(settle)) => self.settles.push(settle),
                    _ => panic!("granted after the shutdown"),
                }
            }
        }
        self.check();
        ControlFlow::Continue(())
    }

    fn hand_over(&mut self) -> ControlFlow<()> {
        let Some(index) = self.pop_guard() else { return ControlFlow::Break(()) };
        self.guards.push(index);
        let limit = TurnLimit { last: self.handed, budget: BUDGET, is_tight: false, opening: Opening::Not };
        let Ok(handed) = self.holds.hand_over(index, GUARD, limit, self.now) else {
            return ControlFlow::Break(());
        };
        self.handed = Some(handed);
        self.hand_overs += 1;
        let hold = self.holds.get(index).unwrap();
        assert!(
            hold.state == State::Held && self.now + LEASE / 2 <= hold.valid_until,
            "it may not be held any more"
        );
        assert!(self.now < self.granted_at[&hold.serial] + BUDGET, "its time was over");
        assert!(!self.presented, "somebody else may release it");
        let under_way = self.settles.iter().map(|settle| settle.hold);
        let asked_for =
            self.renewals.iter().flat_map(|script| self.holds.batch(*script)).map(|renewal| renewal.hold);
        assert!(under_way.chain(asked_for).all(|other| other != index), "the server is being told of it");
        assert!(self.holds.take_over(index, None, self.now, || 0), "nothing has happened in between");
        ControlFlow::Continue(())
    }

    fn shut_down(&mut self, effects: &mut Effects) -> ControlFlow<()> {
        if self.holds.is_shut() {
            return ControlFlow::Break(());
        }
        let held = |hold: &HoldIndex| self.holds.get(*hold).is_some_and(|hold| hold.state == State::Held);
        (self.owed, self.older) = (self.presented && self.guards.iter().any(held), self.settles.len());
        self.settles.extend(self.holds.shut_down(self.now, effects));
        self.settles.extend(self.holds.next_postponed(self.now, effects));
        ControlFlow::Continue(())
    }

    /// Removes the last request, which gets its reply.
    fn pop_settle(&mut self) -> Option<Reconcile> {
        let settle = self.settles.pop();
        self.older = self.older.min(self.settles.len());
        settle
    }

    /// Runs the watchdog.
    fn keep(&mut self) {
        let (renew, requests) = self.due_and_requests();
        self.settles.extend(requests);
        self.settles.extend(self.holds.next_postponed(self.now, &mut Effects::default()));
        self.begin_renewals(renew);
        self.look();
        assert!(self.wishes.iter().all(|(.., until)| self.now < *until + TICK), "waits beyond its deadline");
        assert!(self.views.iter().all(|(_, until)| self.now < *until + TICK), "waits beyond its deadline");
    }

    fn begin_renewals(&mut self, renewals: Vec<Renewal>) {
        if !renewals.is_empty() {
            let unguarded = |renewal: &&Renewal| !self.guards.contains(&renewal.hold);
            self.renewals_after_release += renewals.iter().filter(unguarded).count();
            self.renewals.push(self.holds.begin_renewal(renewals, Some(0), self.now));
        }
    }

    /// Delivers a server's time at this instant. Every lock is on server 0.
    fn hear(&mut self, node: u32, server: Duration) -> Option<Jump> {
        let sample = Sample { server, sent: self.now, received: self.now };
        self.holds.heard_server_time(node, sample, None, |_| 0)
    }

    fn check(&mut self) {
        if self.holds.is_shut() {
            let since = &self.settles[self.older..];
            assert!(since.iter().all(|settle| settle.count == 0), "keeps something after the shutdown");
            self.owed &= since.is_empty();
        }
        assert_eq!(self.renewals_after_release, 0, "renewed what was released");
        self.look();
        // A shutdown takes back an attempt at once, and again when its grant arrives.
        let most = if self.holds.is_shut() { 4 } else { 2 };
        let of_hold = |hold: HoldIndex| self.settles.iter().filter(|settle| settle.hold == hold).count();
        assert!(self.settles.iter().all(|settle| of_hold(settle.hold) <= most), "requests pile up");
        for (_, hold) in &self.holds.holds {
            let is_repeated = hold.state == State::GivenBack;
            assert!(!is_repeated || hold.wanted() == 0, "a release is sent again of an owner that came back");
            assert!(hold.guards > 0 || !hold.releasing.is_settled(), "kept without a guard or a request");
        }
        for (index, hold) in self.guards.iter().filter_map(|index| Some((index, self.holds.get(*index)?))) {
            assert!(hold.valid_until <= self.now + LEASE, "believed for longer than the lease");
            let believed = hold.state == State::Held && self.now < hold.valid_until;
            let is_new = self.holds.newcomers.holds.contains(index);
            let looked_after = hold.alarm.is_some() || hold.renewing.is_member() || is_new;
            assert!(!believed || looked_after, "nobody looks after it");
            assert!(!believed || !self.holds.is_shut(), "believed after the shutdown");
        }
    }

    /// Reads the callers' results. Each waiting caller must have an event to come.
    fn look(&mut self) {
        let holds = &mut self.holds;
        self.views.retain(|(view, _)| {
            let Some(hold) = holds.callers.hold_of(*view) else {
                assert!(holds.result(*view, Waker::noop()).is_some());
                return false;
            };
            assert!(holds.is_awaited(hold), "waits for nothing");
            let hold = holds.get(hold).expect("what is waited for is kept");
            assert!(!hold.releasing.is_settled(), "waits for nothing");
            true
        });
        self.wishes.retain(|(index, wish, _)| {
            let told = holds.result(*wish, Waker::noop());
            let hold = holds.get(*index).expect("what has guards is kept");
            let to_come = !hold.renewing.is_in_turn();
            assert!(told.is_some() || (hold.state == State::Held && to_come), "waits for nothing");
            told.is_none()
        });
    }

    /// Takes a guard that is about to be released. No task that borrowed the guard waits for it any more.
    fn pop_guard(&mut self) -> Option<HoldIndex> {
        let hold = self.guards.pop()?;
        for (_, wish, _) in self.wishes.extract_if(.., |(index, ..)| *index == hold) {
            let _waker = self.holds.leave(wish);
        }
        Some(hold)
    }

    /// Releases every guard and answers every request. After one lease at the latest the table must be empty.
    fn settle_down(mut self, path: &[Event]) {
        while !self.guards.is_empty() {
            let _step = self.step(Event::ReleaseAwaited);
        }
        while !self.settles.is_empty() {
            let _step = self.step(Event::Reconciled(true));
        }
        while !self.renewals.is_empty() {
            let _step = self.step(Event::Renewed(Renewed::Extended));
        }
        for _ in 0..20 {
            let _step = self.step(Event::Tick);
            while !self.settles.is_empty() {
                let _step = self.step(Event::Reconciled(false));
            }
        }
        assert!(!self.owed, "a hold was not given back by {path:?}");
        assert!(self.holds.poll_given_back(&mut 0, Waker::noop()).is_ready(), "{path:?}");
        assert!(
            self.holds.holds.is_empty() && self.holds.presented.is_empty() && self.holds.backlog.is_empty(),
            "a hold was left behind by {path:?}"
        );
        assert!(
            self.views.is_empty() && self.wishes.is_empty() && self.holds.callers.is_empty(),
            "a caller was left behind by {path:?}"
        );
        // Released holds are forgotten in time.
        self.now = self.now + 2 * KEPT;
        self.keep();
        assert!(self.settles.is_empty(), "released once more without a reason by {path:?}");
        assert_eq!(self.holds.counted().held, 0, "{path:?}");
        assert!(
            self.holds.alarms.is_empty() && self.holds.renewals.is_empty(),
            "an alarm was left behind by {path:?}"
        );
        assert_eq!((self.holds.failures.failing(), self.holds.counted().failing), (0, 0), "{path:?}");
    }
}

/// Every order of up to six events, and then the end. 18^6 worlds, most of them cut short.
#[test]
fn no_event_order_renews_after_release() {
    explore(World::new, &mut Vec::new(), 6);
}

/// The same events, with a hold that passes from guard to guard. A hold that is in doubt, or has a request under way, must not
/// pass.
#[test]
fn doubtful_hold_is_never_handed_over() {
    let handed_over = explore(World::of_strangers, &mut Vec::new(), 5);
    assert!(handed_over > 5_000, "{handed_over}");
}

/// A late watchdog has not renewed such a hold, so its next guard would soon lose it.
#[test]
fn half_spent_lease_prevents_hand_over() {
    for (late, passes) in [(LEASE * 2 / 5, true), (LEASE * 3 / 5, false), (LEASE * 6 / 5, false)] {
        let mut world = World::of_strangers();
        assert!(world.step(Event::Acquire).is_continue());
        world.now = world.now + late;
        let limit = TurnLimit { last: None, budget: 10 * LEASE, is_tight: false, opening: Opening::Not };
        let handed = world.holds.hand_over(world.guards[0], GUARD, limit, world.now);
        assert_eq!(handed.is_ok(), passes, "{late:?}");
    }
}

/// The waiter may be polled long after the hand-over, for example in a process that stood still.
#[test]
fn expired_hand_over_is_not_taken() {
    for (late, is_taken) in [(LEASE / 2, true), (LEASE, false)] {
        let mut world = World::of_strangers();
        assert!(world.step(Event::Acquire).is_continue());
        assert!(world.step(Event::HandOver).is_continue());
        let hold = world.guards[0];
        assert_eq!(world.holds.take_over(hold, None, world.now + late, || 0), is_taken, "{late:?}");
    }
}

/// Returns the number of hand-overs.
fn explore(begin: fn() -> World, path: &mut Vec<Event>, depth: usize) -> usize {
    let mut handed_over = 0;
    for event in EVENTS {
        let mut world = begin();
        path.push(event);
        let possible = path.iter().all(|event| world.step(*event).is_continue());
        if possible {
            handed_over += world.hand_overs;
            world.settle_down(path);
            if depth > 1 {
                handed_over += explore(begin, path, depth - 1);
            }
        }
        path.pop();
    }
    handed_over
}

#[test]
fn clock_jump_shortens_unextended_leases() {
    let mut world = World::new();
    let start = world.now;
    let lease = Lease::new(LEASE).unwrap();
    let (kept, fixed, extended) = (world.take(1, true), world.take(2, false), world.take(3, true));
    let hear = |world: &mut World, at: Duration, server: Duration| {
        world.now = start + at;
        let (_, renewal) =
            world.holds.wish(extended, Want::Renew, (world.now, world.now + WAIT), Waker::noop()).unwrap();
        let script = world.holds.begin_renewal(vec![renewal.unwrap()], Some(0), world.now);
        let reply = RenewalReply { server, locks: vec![Renewed::Extended] };
        world.holds.end_renewal(script, Some(&reply), world.now, |_| 0, &mut Effects::default())
    };
    assert_eq!(hear(&mut world, LEASE / 10, LEASE / 10), None);
    let by = LEASE / 4;
    assert_eq!(hear(&mut world, LEASE / 5, LEASE / 5 + by), Some(Jump::Forward(by)));
    assert_eq!(world.valid_until(fixed), lease.valid_until(start).saturating_sub(by));
    assert_eq!(world.valid_until(kept), lease.valid_until(start).saturating_sub(by));
    assert_eq!(world.valid_until(extended), lease.valid_until(start + LEASE / 5), "extended after the jump");
    assert!(world.holds.next_due().unwrap() <= world.now, "the server is asked at once");
    world.now = world.now + TICK;
    let due = world.due();
    assert_eq!(due.iter().map(|renewal| renewal.hold).collect::<Vec<_>>(), [kept]);
    assert_eq!(world.holds.counted().server_clock_jumps, 1);
}

/// A process may hold a million locks. docs/benchmarks.md states the memory that this costs.
#[test]
fn a_hold_is_small() {
    assert!(size_of::<Hold>() <= 128 && size_of::<Name>() <= 64);
}

/// A6: a grant to one owner of this process shows that another owner's hold of the lock is lost.
#[test]
fn later_grant_supersedes_earlier_owner() {
    for answers_in_order in [true, false] {
        let mut world = World::new();
        let name = Arc::clone(&world.name);
        let first = world.ask_for(&name, 1);
        let first_terms = world.terms();
        world.now = world.now + LEASE / 10;
        let second = world.ask_for(&name, 2);
        let second_terms = world.terms();
        if answers_in_order {
            world.grant(first, first_terms);
            world.grant(second, second_terms);
        } else {
            world.grant(second, second_terms);
            world.grant(first, first_terms);
        }
        assert_eq!(world.holds.lost(first), Some(LostReason::NotOwner));
        assert_eq!(world.holds.lost(second), None);
        let asked: Vec<_> = world.due().into_iter().map(|renewal| renewal.hold).collect();
        assert_eq!(asked, [second], "and it is asked for");
    }
}
