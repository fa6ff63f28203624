//! The members of one hold of a quorum.
//!
//! This module owns which members are held, which late replies still count, and when a missing member is requested
//! again.
//!
//! # Why a member may join later
//!
//! A quorum is valid while a majority of the servers really has the hold. In that time no other holder can have a
//! majority, so a further grant takes nothing from another holder. A quorum that was lost for a moment proves nothing
//! about the time after it. Another holder may have had a majority since. So a member joins only a quorum that is still
//! valid.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use wheellock_client::Timer;
use wheellock_wheel::Sleep;

use super::locks::MemberLocks;
use super::member::Member;
use crate::base::clock::BootInstant;
use crate::base::error::{Error, LostReason};
use crate::base::join_all::JoinAll;
use crate::base::quorum::Quorum;
use crate::lock::Lock;
use crate::request::acquire::Answer;
use crate::request::guard::Guard;

/// Requests to members that have not answered yet.
pub(super) type Pending = JoinAll<'static, Result<Answer, Error>>;

/// The members of one guard.
pub(super) struct Roster {
    pub(super) members: Vec<Member>,
    /// Taken out while the keeper polls it.
    pending: Option<Pending>,
    pub(super) quorum: Quorum,
    /// The quorum was lost once. A member that joins later must not mend it.
    pub(super) broken: bool,
    /// The guard has ended. No member joins any more.
    closed: bool,
    /// The keeper must request missing members now, and not at its next turn.
    requests_now: bool,
    /// Per server, the end of the time in which a member that the server forgot is not requested.
    barred_until: Vec<Option<Instant>>,
    /// Length of that time.
    bar: Duration,
    keeper: Option<Waker>,
}

impl Roster {
    /// Returns the members that were granted, each with its place. Some of them may be lost.
    pub(super) fn held(&self) -> impl Iterator<Item = (usize, &Arc<Guard>)> {
        (0..).zip(&self.members).filter_map(|(place, member)| Some((place, member.guard()?)))
    }

    pub(super) fn guards(&self) -> impl Iterator<Item = &Arc<Guard>> {
        self.members.iter().filter_map(Member::guard)
    }

    pub(super) fn is_valid(&self) -> bool {
        let wanted = self.quorum.wanted();
        !self.broken && self.guards().filter(|guard| guard.is_valid()).count() >= wanted
    }

    pub(super) fn valid_until(&self) -> Option<BootInstant> {
        let held = self.guards().filter(|guard| guard.reason().is_none());
        self.quorum.valid_until(held.map(|guard| guard.valid_until())).filter(|_| !self.broken)
    }

    /// Returns when the quorum is endangered, unless renewals move that instant; `None` if the quorum is lost.
    pub(super) fn endangered_at(&self) -> Option<BootInstant> {
        let ends = self.guards().filter_map(|guard| guard.endangered_at());
        self.quorum.valid_until(ends).filter(|_| !self.broken)
    }

    /// Returns the servers whose members must be requested again at `now`.
    fn missing(&mut self, now: Instant, pending: &Pending) -> Vec<usize> {
        self.broken |= !self.is_valid();
        if self.broken {
            return Vec::new();
        }
        let places = 0..self.members.len();
        places.filter(|place| !pending.is_under_way(*place) && self.is_missing(*place, now)).collect()
    }

    fn is_missing(&mut self, place: usize, now: Instant) -> bool {
        match self.members.get(place) {
            Some(Member::Refused(_) | Member::Failed(_) | Member::Released) => true,
            Some(Member::Held(guard)) => match guard.reason() {
                Some(LostReason::Expired) => true,
                // An operator may be freeing the lock server by server, or the server restarted without its data. A
                // request at once would undo the first, and would not keep the delay that a server without its data
                // needs.
                Some(LostReason::NotOwner) => self.is_no_longer_barred(place, now),
                Some(LostReason::ShutDown | LostReason::HeldTooLong) | None => false,
            },
            Some(Member::Pending) | None => false,
        }
    }

    fn is_no_longer_barred(&mut self, place: usize, now: Instant) -> bool {
        let bar = self.bar;
        self.barred_until.get_mut(place).is_some_and(|until| now >= *until.get_or_insert(now + bar))
    }

    /// Records the replies of members. Returns the guards to drop once this is unlocked.
    fn join(&mut self, answers: Vec<(usize, Result<Answer, Error>)>) -> Vec<Member> {
        let mut replaced = Vec::new();
        for (place, answer) in answers {
            let mut member = Member::of(answer);
            if member.guard().is_some() {
                self.broken |= !self.is_valid();
                if self.broken {
                    replaced.push(std::mem::replace(&mut member, Member::Released));
                } else {
                    self.barred_until.iter_mut().skip(place).take(1).for_each(|until| *until = None);
                }
            }
            if let Some(place) = self.members.get_mut(place) {
                // A caller gets the reason of the loss that broke the quorum, so keep that member.
                if !self.broken || place.guard().is_none() {
                    replaced.push(std::mem::replace(place, member));
                }
            }
        }
        replaced
    }
}

/// The task that keeps the members of one guard. The task ends with the guard.
///
/// The guard, not this task, owns the requests while they are not polled. If the runtime ends first, dropping the guard
/// still takes back what a server may have granted.
struct Keeper {
    roster: Arc<Mutex<Roster>>,
    locks: MemberLocks,
    timer: Timer,
    /// The pause until missing members are requested again, and its length. `None` with a fixed lease, because only
    /// `renew` extends it.
    turn: Option<(Sleep, Duration)>,
    /// End of the lock's maximum time, if it has one. A member that is requested again ends then, too.
    ends: Option<BootInstant>,
}

impl Keeper {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let is_turn = self.poll_turn(cx);
        let mut roster = lock(&self.roster);
        if roster.closed {
            return Poll::Ready(());
        }
        // Stored before the requests are polled, so that `close` and `request_missing` reach this task at any time.
        roster.keeper = Some(cx.waker().clone());
        let mut pending = roster.pending.take().unwrap_or_default();
        if std::mem::take(&mut roster.requests_now) | is_turn {
            let missing = roster.missing(self.timer.now(), &pending);
            let ends = self.ends.filter(|_| !missing.is_empty());
            if let Some((ends, lock)) = ends.zip(self.locks.locks.first()) {
                let left = ends.saturating_duration_since(lock.context.clock.now());
                self.locks = self.locks.map(|lock| lock.with_max_hold(left));
            }
            for place in missing {
                pending.add(place, self.locks.request(place, None));
            }
        }
        // Requests are polled, and guards dropped, with the members unlocked: either may write to a socket.
        drop(roster);
        let answers = pending.poll(cx);
        let mut roster = lock(&self.roster);
        if roster.closed {
            drop(roster);
            return Poll::Ready(());
        }
        let replaced = roster.join(answers);
        let is_over = roster.broken && pending.is_over();
        roster.pending = Some(pending);
        drop(roster);
        drop(replaced);
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Returns true if the pause has ended. Then the next pause has begun.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> bool {
        let Some((sleep, period)) = &mut self.turn else { return false };
        let mut is_turn = false;
        while Pin::new(&mut *sleep).poll(cx).is_ready() {
            is_turn = true;
            sleep.reset(self.timer.now() + *period);
        }
        is_turn
    }
}

/// Creates the roster of a new guard, and starts its keeper task. The requests in `pending` have no reply yet.
pub(super) fn keep(locks: MemberLocks, members: Vec<Member>, pending: Pending) -> Arc<Mutex<Roster>> {
    let (timer, runtime) = (locks.timer().clone(), locks.servers.runtime().clone());
    let lock = locks.locks.first();
    let lease = lock.and_then(|lock| lock.lease().ok());
    // Other holders may have a longer lease than this one. The managers' own lease is the best guess.
    let bar = lease.into_iter().chain(lock.map(|lock| lock.context.watchdog_lease)).max();
    let bar = bar.map_or(Duration::ZERO, |lease| lease.duration());
    let turn = lease.filter(|_| lock.is_some_and(Lock::renews)).map(|lease| {
        let period = lease.renew_after();
        (timer.sleep_until(timer.now() + period), period)
    });
    let ends = lock.and_then(|lock| Some(lock.context.clock.now() + lock.max_hold()?));
    let roster = Arc::new(Mutex::new(Roster {
        barred_until: vec![None; members.len()],
        quorum: locks.quorum(),
        members,
        pending: Some(pending),
        broken: false,
        closed: false,
        requests_now: false,
        bar,
        keeper: None,
    }));
    let mut keeper = Keeper { roster: Arc::clone(&roster), locks, timer, turn, ends };
    let _detached = runtime.spawn(std::future::poll_fn(move |cx| keeper.poll(cx)));
    roster
}

/// Makes the keeper request missing members now, without waiting for its next turn.
pub(super) fn request_missing(roster: &Mutex<Roster>) {
    let mut locked = lock(roster);
    locked.requests_now = true;
    let keeper = locked.keeper.take();
    drop(locked);
    keeper.into_iter().for_each(Waker::wake);
}

/// Ends the roster, and returns the members. No member joins any more, and unanswered requests are taken back.
pub(super) fn close(roster: &Mutex<Roster>) -> Vec<Member> {
    let mut locked = lock(roster);
    locked.closed = true;
    let pending = locked.pending.take();
    let members = std::mem::take(&mut locked.members);
    let keeper = locked.keeper.take();
    drop(locked);
    drop(pending);
    keeper.into_iter().for_each(Waker::wake);
    members
}

pub(super) fn lock(roster: &Mutex<Roster>) -> MutexGuard<'_, Roster> {
    roster.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, feature = "testing"))]
mod tests;
