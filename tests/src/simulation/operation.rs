//! An operation of a simulated task: an acquire, its hold and its release.
//!
//! Records for the checkers what the task observes.

use std::cell::Cell;
use std::pin::pin;
use std::time::Duration;

use tokio::time::sleep;
use wheellock::{Error, Guard, LostReason};

use super::give_up::{GiveUp, outcome_unless};
use super::held::{Held, Wanted, nanos};
use super::limits::Limits;
use super::plan::{GiveBack, Kind, LEASE, Step};
use super::process::Process;
use crate::fault::cancel_at;
use crate::history::{Kind as Asked, Outcome, What};
use crate::told;

/// A pending operation.
pub(super) struct Op<'a> {
    pub(super) process: &'a Process,
    pub(super) task: u32,
    pub(super) number: u64,
    pub(super) lock: &'a str,
    pub(super) wanted: Wanted,
    pub(super) shared: bool,
    pub(super) limits: Limits,
    /// A pending operation of the same owner inside this one, and the event to record if it is dropped.
    pub(super) inner: Cell<Option<(u64, What)>>,
}

/// An attempt, as its task plans it.
pub(super) struct Attempt {
    pub(super) asked: Asked,
    pub(super) lease: u64,
    pub(super) renewed: bool,
    pub(super) wait: Option<u64>,
    pub(super) give_up: Option<GiveUp>,
    pub(super) owner: String,
}

impl Op<'_> {
    /// Records an event. An event of a set is recorded for each of its locks, because the checkers treat each lock as a separate operation.
    pub(super) fn record(&self, what: What) {
        let Process { log, number: process, .. } = self.process;
        let Wanted::Set(set) = &self.wanted else {
            return log.record(*process, self.task, self.number, self.lock, what);
        };
        for (number, lock) in (self.number..).zip(set.members()) {
            let what = match &what {
                // The attempt may have failed for another lock of the set.
                What::NotGranted => What::Cancelled,
                what => what.clone(),
            };
            log.record(*process, self.task, number, lock.name(), what);
        }
    }

    fn is_set(&self) -> bool {
        matches!(self.wanted, Wanted::Set(_))
    }

    fn invoked(&self, attempt: &Attempt) {
        self.record(What::Invoked {
            // A set may hold some locks while it waits for another lock, and the history does not show it. So a waiter for one of its locks
            // cannot claim that the lock is free.
            kind: if self.process.kind == Kind::Set { Asked::Try } else { attempt.asked },
            renewed: attempt.renewed,
            lease: attempt.lease * MILLISECOND,
            // An announcement follows a campaign, and its time limit is that of any request.
            deadline: attempt
                .wait
                .filter(|_| !self.is_set() && self.process.kind != Kind::Election)
                .map(|wait| self.process.log.now() + wait * MILLISECOND),
            owner: attempt.owner.clone(),
            shared: self.shared,
        });
        match self.wanted {
            Wanted::Permits(_, permits) => self.record(What::Takes { permits: permits.into() }),
            Wanted::Leased(_, permits @ 2..) => self.record(What::Takes { permits: permits.into() }),
            _ => {}
        }
        if let Some(limits) = self.limits.recorded() {
            self.record(limits);
        }
    }

    pub(super) fn granted(&self, owner: String, valid_until: u64, token: Option<u64>) {
        self.record(What::Granted { owner, valid_until, token });
        // No time has passed since the library returned the guard. So an expired guard is a false claim.
        if valid_until < self.process.log.now() {
            self.record(What::Claimed { until: valid_until });
        }
    }

    /// Returns the owner to record. Asking a guard for its owner prevents the hand-over of its hold.
    pub(super) fn owner_of(&self, held: &Held) -> String {
        match held {
            _ if matches!(self.process.kind, Kind::Hot | Kind::Quorum | Kind::Visited) => {
                format!("{}:{}", self.process.number, self.number)
            }
            Held::Leased(permits) => {
                permits.first().map(|permit| permit.id().to_string()).unwrap_or_default()
            }
            Held::Permits(_) | Held::Quorum(_) => String::new(),
            Held::Set(guard) => {
                guard.members().first().map(|guard| guard.owner().to_string()).unwrap_or_default()
            }
            Held::Plain(_) | Held::Fenced(_) | Held::Leader(_) => {
                held.guard().map(|guard| guard.owner().to_string()).unwrap_or_default()
            }
        }
    }

    pub(super) async fn attempt(&self, attempt: &Attempt) -> Option<Held> {
        self.invoked(attempt);
        let acquire = self.wanted.ask(attempt.asked, attempt.wait.map(Duration::from_millis));
        match outcome_unless(attempt.give_up, acquire).await {
            Some(Ok(Some(held))) => {
                self.granted(self.owner_of(&held), self.process.time(held.valid_until()), held.token());
                return Some(held);
            }
            Some(Ok(None)) => self.record(What::NotGranted),
            Some(Err(error)) => self.failed(&error),
            None => self.record(What::Cancelled),
        }
        None
    }

    pub(super) fn failed(&self, error: &Error) {
        // A set may have held one of its locks meanwhile, and an election may have held the lead before its announcement. The library has
        // released it.
        let is_unsure = self.is_set() || self.process.kind == Kind::Election;
        let outcome = if is_unsure { Outcome::MaybeExecuted } else { told::outcome(error) };
        self.record(What::Failed { outcome, text: error.to_string() });
    }

    pub(super) async fn run(&self, attempt: &Attempt, step: &Step) {
        self.invoked(attempt);
        let is_granted = Cell::new(false);
        let work = async |guard: &Guard, token: Option<u64>| {
            is_granted.set(true);
            self.granted(guard.owner().to_string(), self.process.time(nanos(guard.valid_until())), token);
            self.look(step.hold, self.process.time(nanos(guard.valid_until())), || {
                (guard.is_valid(), self.process.time(nanos(guard.valid_until())))
            })
            .await;
            self.record(What::Dropped);
            Ok::<_, Error>(())
        };
        let done = match &self.wanted {
            Wanted::Plain(lock) => lock.run(async |guard| work(guard, None).await).await,
            Wanted::Fenced(lock) => lock.run(async |guard| work(guard, Some(guard.token())).await).await,
            Wanted::Set(set) => {
                set.run(async |guard| {
                    is_granted.set(true);
                    let owner = guard.members().first().map(|guard| guard.owner().to_string());
                    self.granted(
                        owner.unwrap_or_default(),
                        self.process.time(nanos(guard.valid_until())),
                        None,
                    );
                    self.look(step.hold, self.process.time(nanos(guard.valid_until())), || {
                        (guard.is_valid(), self.process.time(nanos(guard.valid_until())))
                    })
                    .await;
                    self.record(What::Dropped);
                    Ok(())
                })
                .await
            }
            Wanted::Quorum(lock) => {
                lock.run(async |guard| {
                    is_granted.set(true);
                    let owner = format!("{}:{}", self.process.number, self.number);
                    self.granted(owner, self.process.time(nanos(guard.valid_until())), None);
                    self.look(step.hold, self.process.time(nanos(guard.valid_until())), || {
                        (guard.is_valid(), self.process.time(nanos(guard.valid_until())))
                    })
                    .await;
                    self.record(What::Dropped);
                    Ok(())
                })
                .await
            }
            Wanted::Leased(..) | Wanted::Permits(..) | Wanted::Election(_) => Ok(()),
        };
        match done {
            Ok(()) => {}
            Err(Error::Lost { reason: LostReason::ShutDown, .. }) if is_granted.get() => {
                self.record(What::Dropped);
            }
            Err(Error::Lost { reason, .. }) if is_granted.get() => {
                let valid_until = self.process.log.now();
                self.record(What::Lost { reason: told::reason(reason), valid_until });
                self.record(What::Dropped);
            }
            Err(error) => self.failed(&error),
        }
    }

    pub(super) async fn hold_watched(&self, held: &Held, step: &Step) {
        let end = self.process.log.now() + step.hold * MILLISECOND;
        let mut work = pin!(async {
            let granted_until = self.process.time(held.valid_until());
            if let Some(guard) = held.guard() {
                if step.again {
                    self.hold_again(guard).await;
                }
                if step.renews {
                    let _told_by_the_guard = guard.renew().await;
                }
            }
            self.look(step.hold, granted_until, || (held.is_valid(), self.process.time(held.valid_until())))
                .await;
        });
        tokio::select! {
            biased;
            reason = held.lost() => {
                self.record(match reason {
                    LostReason::ShutDown => What::Disclaimed,
                    reason => What::Lost { reason: told::reason(reason), valid_until: self.process.time(held.valid_until()) },
                });
                if held.is_valid() {
                    self.record(What::Claimed { until: self.process.time(held.valid_until()) });
                }
                // The next step drops the pending operation of the same owner.
                if let Some((number, what)) = self.inner.take() {
                    let Process { log, number: process, .. } = self.process;
                    log.record(*process, self.task, number, self.lock, what);
                }
                if step.limits.is_wedged && reason == LostReason::HeldTooLong {
                    sleep(Duration::from_nanos(end.saturating_sub(self.process.log.now()))).await;
                }
            }
            () = &mut work => {}
        }
    }

    /// Checks the guard continuously for `hold` milliseconds. Its last known expiry was `until`.
    async fn look(&self, hold: u64, mut until: u64, look: impl Fn() -> (bool, u64)) {
        let end = self.process.log.now() + hold * MILLISECOND;
        loop {
            let (valid, now_until) = look();
            if now_until != until {
                until = now_until;
                self.record(What::Moved { valid_until: until });
            }
            if !valid {
                return self.record(What::Disclaimed);
            }
            let now = self.process.log.now();
            if now > until {
                self.record(What::Claimed { until });
            }
            if now >= end {
                return;
            }
            sleep(Duration::from_nanos((end - now).min(SLICE))).await;
        }
    }

    /// Acquires the lock again with the same owner, and releases that second hold.
    async fn hold_again(&self, guard: &Guard) {
        let wanted = self.wanted.clone().with_owner(guard.owner());
        let mut op = self.process.begin(self.task, self.lock, wanted, self.shared);
        op.limits = self.limits.clone();
        let owner = guard.owner().to_string();
        let attempt =
            Attempt { asked: Asked::Again, lease: LEASE, renewed: true, wait: None, give_up: None, owner };
        self.inner.set(Some((op.number, What::Cancelled)));
        let inner = op.attempt(&attempt).await;
        self.inner.set(inner.is_some().then_some((op.number, What::Dropped)));
        if let Some(inner) = inner {
            op.give_back(inner, GiveBack::Release).await;
        }
        self.inner.set(None);
    }

    pub(super) async fn give_back(&self, held: Held, how: GiveBack) {
        match how {
            GiveBack::Release => {
                self.record(What::Releasing);
                self.released(held.release().await);
            }
            GiveBack::Drop => {
                self.record(What::Dropped);
                drop(held);
            }
            GiveBack::ReleaseAndDrop(polls) => {
                self.record(What::Releasing);
                match cancel_at(polls, held.release()).await {
                    Some(released) => self.released(released),
                    None => self.record(What::Dropped),
                }
            }
        }
    }

    pub(super) fn released(&self, released: Result<(), Error>) {
        self.record(match released {
            Ok(()) => What::Released,
            // The shutdown has released the hold.
            Err(Error::Lost { .. }) if self.process.is_shut.get() => What::Dropped,
            Err(Error::Lost { .. }) => What::AlreadyLost,
            Err(error) => What::Unconfirmed { text: error.to_string() },
        });
    }
}

const MILLISECOND: u64 = 1_000_000;
/// The time between two checks of a guard, in nanoseconds.
const SLICE: u64 = 10 * MILLISECOND;
