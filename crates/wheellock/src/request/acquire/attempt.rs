//! One request to the server for one hold.
//!
//! An attempt whose caller is dropped before the reply takes the grant back, if there was one.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::task::{Poll, Waker, ready};
use std::time::{Duration, Instant};

use wheellock_client::layer::{ConnectionId, Retry, Start};
use wheellock_client::{Arg, Script, Value};

use super::many::Many;
use super::wait::{Limit, Wait};
use crate::base::backoff::Backoff;
use crate::base::clock::BootInstant;
use crate::base::durability::Shortfall;
use crate::base::error::{Error, Outcome};
use crate::base::hold_limits::HoldLimits;
use crate::base::lease::Lease;
use crate::base::owner::{Owner, OwnerText};
use crate::kind::{Holders, Kind, Wake};
use crate::request::context::Context;
use crate::request::guard::Guard;
use crate::request::retry::{RefusedWrite, Retried, retry_acknowledged, retry_since, wait_for_owner};
use crate::table::holds::{GatePlace, GrantReply, Granted, HoldIndex, Holds, Share, Terms};
use crate::wait::name::Name;
use crate::wait::sides::{Fairness, Sides};
use crate::wait::wait_queue::Manner;
use crate::wire::{self, Grant, Precedence, Refusal};

/// The common part of all attempts of one acquire.
pub(crate) struct Request<'a> {
    pub(crate) context: &'a Arc<Context>,
    pub(crate) name: &'a Arc<Name>,
    pub(crate) owner: u64,
    /// Other callers can present this owner, too.
    pub(crate) presented: bool,
    pub(crate) lease: Lease,
    pub(crate) share: Share,
    /// The other side of a read-write lock, if this lock is one side.
    pub(crate) sides: Option<&'a Sides>,
    /// The pauses of a caller that polls after pauses and does not subscribe.
    pub(crate) backoff: Option<&'a Backoff>,
    /// The limits of the time for which the hold is held.
    pub(crate) limits: Option<&'a HoldLimits>,
    /// The permits of a caller that wants several of them together.
    pub(crate) many: Option<&'a Many>,
    /// The owner that a ticket names. The caller takes its place.
    pub(crate) giver: Option<&'a Owner>,
}

/// The form of one attempt.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// The kind's own script.
    Alone,
    /// The script of waiters.
    Poll,
    /// As `Poll`. The server also tells of the next change of the lock's key after a refusal.
    TrackedPoll,
}

/// The server's reply to one attempt.
pub(crate) enum Answer {
    /// The hold's guard, and the number of further permits that are free.
    Granted(Guard, u32),
    Held(Refusal),
}

impl<'a> Request<'a> {
    /// Returns true if this owner already holds the lock, in this way or as a writer that wants to read. Such an owner
    /// must not queue behind other waiters, because they may be waiting for its release.
    pub(super) fn is_reentrant(&self) -> bool {
        let holds = |name| self.context.holds().is_held_by(name, self.owner);
        let writes = || self.sides.is_some_and(|sides| self.name.kind().is_shared() && holds(&sides.other));
        self.presented && (holds(self.name) || writes())
    }

    /// Gives an owner without holds a new number. A late repetition of a release would take the next grant of the old number.
    pub(super) fn begin_anew(&mut self) {
        if !self.presented {
            self.owner = self.context.new_owners(self.many.map_or(1, Many::count));
        }
    }

    /// Returns the number of permits that this request takes.
    pub(super) fn count(&self) -> u32 {
        self.many.map_or(self.share.count, |many| many.count().into())
    }

    /// Returns how this request polls.
    pub(super) fn manner(&self) -> Manner {
        let heeds = |sides: &Sides| sides.fairness == Fairness::WritersFirst && self.name.kind().is_shared();
        Manner {
            pauses: self.backoff.is_some(),
            yields_to_writers: self.sides.is_some_and(heeds),
            owner: self.presented.then_some(self.owner),
            takes_over: self.takes_over(),
        }
    }

    /// Returns true if this request can accept a hold of another owner of this process as it is. That hold is renewed,
    /// and its owner was not presented.
    fn takes_over(&self) -> bool {
        let Self { name, presented, share, context, .. } = self;
        let accepts = !presented && share.renew && share.count == 1 && self.backoff.is_none();
        accepts && name.kind().may_be_handed_over() && !context.hand_over.is_zero()
    }

    /// Makes the next waiter of this owner poll at once, because the owner has the lock now. If the owner writes, its
    /// next waiting reader polls, too. The attempts of one owner follow one after the other, so one waiter is enough. A
    /// lock that is granted only once wakes no waiter.
    pub(super) fn allow_owner_poll(&self) {
        if self.name.kind().holders == Holders::Single {
            return;
        }
        let readers = self.sides.filter(|_| !self.name.kind().is_shared()).map(|sides| &sides.other);
        for name in std::iter::once(self.name).chain(readers).filter(|_| self.presented) {
            let woken =
                name.waiting().queue.as_mut().and_then(|waiters| waiters.allow_owner_poll(self.owner));
            woken.into_iter().for_each(Waker::wake);
        }
    }

    /// Returns an error if this owner reads and now wants to write.
    pub(super) fn check_upgrade(&self) -> Result<(), Error> {
        let Some(sides) = self.sides.filter(|_| self.presented && !self.name.kind().is_shared()) else {
            return Ok(());
        };
        let holds = self.context.holds();
        // A writer that reads as well may take the write lock again.
        if holds.is_held_by(&sides.other, self.owner) && !holds.is_held_by(self.name, self.owner) {
            return Err(Error::Upgrade { lock: self.name.text().to_owned() });
        }
        Ok(())
    }

    /// Returns an error if this owner holds the lock through another kind. The owner would wait for itself.
    pub(super) fn check_kind(&self) -> Result<(), Error> {
        // No waker is needed, because `begin` waits for a pending request of this owner.
        let pass =
            |holds: &mut Holds, others: &[_], _| holds.is_held_otherwise(self.owner, others, Waker::noop());
        match self.with_other_kinds(pass) {
            Poll::Ready(true) => Err(self.not_reentrant()),
            Poll::Ready(false) | Poll::Pending => Ok(()),
        }
    }

    /// Calls `with` on the table of holds and on the other kinds' locks of this name that this owner may hold. On the
    /// server all of them are the same lock.
    #[inline]
    fn with_other_kinds<T>(&self, with: impl FnOnce(&mut Holds, &[Arc<Name>], BootInstant) -> T) -> T {
        // An owner that only this caller knows holds no other lock.
        if self.presented && self.name.kind().others_of_its_hash().next().is_some() {
            self.context.with_others_of_its_hash(self.name, |others| {
                self.context.change(|holds, clock| with(holds, others, clock.now()))
            })
        } else {
            self.context.change(|holds, clock| with(holds, &[], clock.now()))
        }
    }

    fn not_reentrant(&self) -> Error {
        Error::NotReentrant { lock: self.name.text().to_owned() }
    }

    /// Takes back a request that may still be executed, so that it has no effect.
    pub(super) fn withdraw(&self) {
        let Self { context, name, owner, presented, .. } = *self;
        // Without such a record, a late grant ends with its lease.
        if name.kind().has_release_record {
            context.transact(|holds, now, effects| {
                effects.request_all(holds.withdraw(name, owner, presented, now));
            });
        }
    }

    pub(super) fn precedence(&self, wait: Wait) -> Precedence {
        match self.sides {
            Some(Sides { fairness: Fairness::WritersFirst, .. }) if self.name.kind().is_shared() => {
                Precedence::YIELDS_TO_WRITERS
            }
            Some(Sides { fairness: Fairness::WritersFirst, .. }) => {
                let now = self.context.client.config().timer.now();
                Precedence::before_readers(match wait {
                    // A writer that does not wait must keep no reader out.
                    Wait::Limited(Limit::OneTry) => Duration::ZERO,
                    Wait::Limited(Limit::Until(deadline)) => deadline.saturating_duration_since(now),
                    Wait::Forever => Duration::MAX,
                })
            }
            // A single try must leave no entry in the server's queue.
            None if self.name.kind().wake == Wake::OwnChannel && wait.one_try().is_none() => {
                Precedence::STANDS_IN_THE_QUEUE
            }
            Some(Sides { fairness: Fairness::ReadersFirst, .. }) | None => Precedence::NONE,
        }
    }

    /// Enters an attempt into the table.
    pub(super) async fn begin<'r>(&'r self, deadline: Option<Instant>) -> Result<Begun<'r, 'a>, Error> {
        self.check_lease()?;
        let begin = |waker: &Waker, place: &mut Option<GatePlace>| {
            let Self { name, owner, presented, lease, share, .. } = *self;
            self.with_other_kinds(|holds, others, now| {
                if !holds.may_acquire(name, now, place, waker) {
                    return Poll::Pending;
                }
                // Both steps share one transaction. Otherwise an attempt through another kind could begin between
                // them.
                if ready!(holds.is_held_otherwise(owner, others, waker)) {
                    return Poll::Ready(None);
                }
                let began = holds.begin_attempt((name, owner), presented, (lease, share.count), now, waker);
                // `now` precedes the send, so the lease may count from it.
                began.map(|began| Some((began, now)))
            })
        };
        let began = wait_for_owner(self.context, self.name, deadline, begin).await;
        let (began, deadline) = began.map_err(|source| self.not_begun(source))?;
        let Some((began, at)) = began else { return Err(self.not_reentrant()) };
        let Some((hold, count)) = began else {
            return Err(self.name.shut_down(Outcome::NotSent));
        };
        let attempt = PendingHold { request: self, hold: Some(hold) };
        // From here on, an early return drops the attempt, which takes its holds back.
        let count = self.begin_others(at)?.unwrap_or(count);
        Ok(Begun { attempt, count, at, answer_by: deadline })
    }

    /// Returns an error if the lease is too long for the fleet.
    fn check_lease(&self) -> Result<(), Error> {
        match &self.context.fleet {
            // Holds of other kinds do not survive a failover, so their leases do not count.
            Some(fleet) if self.name.kind().reclaim.is_some() && self.lease > fleet.longest_lease => {
                let (lease, longest) = (self.lease.duration(), fleet.longest_lease.duration());
                Err(Error::LeaseTooLong { lease, longest })
            }
            _ => Ok(()),
        }
    }

    /// Returns the error of an attempt that could not begin in time.
    fn not_begun(&self, source: wheellock_client::Error) -> Error {
        let obstacle = self.context.holds().obstacle(self.name, self.context.clock.now());
        match obstacle {
            Some(reason) => {
                Error::NotReady { lock: self.name.text().to_owned(), reason, outcome: Outcome::NotSent }
            }
            None => Error::Server { operation: self.operation(), source },
        }
    }

    /// Begins attempts for all permits after the first. Returns the number of permits in total, or `None` for a caller
    /// of one permit.
    fn begin_others(&self, at: BootInstant) -> Result<Option<u32>, Error> {
        let Self { context, name, owner, lease, share, .. } = *self;
        let Some(many) = self.many else { return Ok(None) };
        context.change(|holds, _| {
            for number in (owner..).take(many.count().into()).skip(1) {
                // Only this caller knows these owners, so none of their requests is pending.
                let began =
                    holds.begin_attempt((name, number), false, (lease, share.count), at, Waker::noop());
                match began {
                    Poll::Ready(Some((hold, _))) => many.asks_for(hold),
                    Poll::Ready(None) | Poll::Pending => return Err(name.shut_down(Outcome::NotSent)),
                }
            }
            Ok(Some(many.count().into()))
        })
    }

    /// Sends one request from outside the wait queue.
    pub(super) async fn ask(&self, deadline: Option<Instant>) -> Result<Answer, Error> {
        self.check_upgrade()?;
        self.name.discard_old_messages();
        let precedence = self.precedence(Wait::NO);
        let answer = self.attempt(precedence, deadline, RefusedWrite::Ends, Form::Alone).await?;
        match answer {
            Answer::Granted(..) => self.allow_owner_poll(),
            Answer::Held(_) => self.context.refused_unlistening(self.name),
        }
        Ok(answer)
    }

    /// Sends one request to the server. If the reply is lost, sends the same request again.
    pub(super) async fn attempt(
        &self,
        precedence: Precedence,
        deadline: Option<Instant>,
        refused_write: RefusedWrite,
        form: Form,
    ) -> Result<Answer, Error> {
        let Begun { mut attempt, count, at, answer_by } = self.begin(deadline).await?;
        // The server would refuse this owner its own lock, and the owner would wait for itself. No request was sent
        // yet.
        if count > 1 && self.name.kind().holders == Holders::Single {
            attempt.refused();
            return Err(self.not_reentrant());
        }
        // Each attempt builds its parameters anew, because every waiter's future would have to keep them.
        let ask = move |retry: &Retry, start: Start, waker: &Waker| {
            let Self { context, name, owner, lease, .. } = *self;
            let holder = context.holder_text(name, owner);
            let publish = context.client.publish_verb();
            let params = wire::acquire(name, lease, holder.as_bytes(), count, precedence, publish);
            let start = Start { remembers: form == Form::TrackedPoll, ..start };
            let eval = |script: &Script, params: &[Arg<'_>]| {
                context.client.start_eval(script, wire::KEYS, params, retry, start, waker)
            };
            let Kind { acquire, poll, adopt, .. } = name.kind();
            if let (Some(adopt), Some(giver)) = (adopt, self.giver) {
                let giver = OwnerText::new(&giver.manager, giver.number, name.kind().holder_suffix);
                return eval(adopt, &wire::adopt(name, lease, holder.as_bytes(), giver.as_bytes()));
            }
            match poll {
                Some(poll) if form != Form::Alone => eval(poll, &wire::poll(name, params, publish)),
                _ => eval(acquire, &params),
            }
        };
        let (retried, fresh, shortfall) = match self.context.wanted {
            None => (retry_since(at, self.context, ask, answer_by, refused_write).await, false, None),
            // Boxed, because every waiter's future has room for it, and few managers want acknowledgements.
            Some(wanted) => {
                Box::pin(async move {
                    let mut fresh = false;
                    let granted = |reply: &Value| {
                        let granted = wire::read_acquire(self.name, reply).and_then(Result::ok);
                        // A repetition finds the lock held by this owner. Only the first reply says that the lock was
                        // free.
                        fresh |= granted.is_some_and(|granted| granted.reply == GrantReply::Fresh);
                        granted.is_some()
                    };
                    let (retried, shortfall) =
                        retry_acknowledged(self.context, wanted, ask, (answer_by, refused_write), granted)
                            .await;
                    (retried, fresh, shortfall)
                })
                .await
            }
        };
        self.answered(&mut attempt, retried, fresh, shortfall)
    }

    /// Returns the outcome of an attempt. `fresh` is true if the lock was free when the request was first executed.
    fn answered(
        &self,
        attempt: &mut PendingHold<'_, '_>,
        retried: Retried,
        fresh: bool,
        shortfall: Option<Shortfall>,
    ) -> Result<Answer, Error> {
        let Self { context, name, lease, share, .. } = *self;
        let Retried { result, sent, connection, ambiguous } = retried;
        let reply = match result {
            Ok(reply) => reply,
            Err(source) => {
                // After an ambiguous failure the caller drops the attempt, which takes a possible grant back.
                if !ambiguous {
                    attempt.refused();
                }
                if context.holds().is_shut() {
                    return Err(name.shut_down(source.outcome()));
                }
                return Err(Error::of_lock(name.text(), self.operation(), source));
            }
        };
        match wire::read_acquire(name, &reply) {
            Some(Ok(Grant { reply, token, room })) => {
                let reply = if fresh { GrantReply::Fresh } else { reply };
                let terms = Terms { lease, share, sent, connection };
                if let Some(shortfall) = shortfall {
                    attempt.not_acknowledged(terms, reply);
                    return Err(Error::not_replicated(
                        name.text(),
                        context.client.server_address(),
                        shortfall,
                    ));
                }
                let guard = attempt.granted(terms, reply, token)?;
                // An earlier request may still be executed, even after this guard's release.
                if ambiguous {
                    guard.may_arrive_late();
                }
                Ok(Answer::Granted(guard, room))
            }
            Some(Err(refusal)) => {
                attempt.refused_by_other(connection);
                let trip = context.clock.now().saturating_duration_since(sent);
                Ok(Answer::Held(Refusal { may_arrive_late: ambiguous, trip, ..refusal }))
            }
            None => Err(context.unexpected(name, self.operation(), &reply)),
        }
    }

    pub(super) fn operation(&self) -> String {
        format!("{} {}", self.name.kind().verb, self.name.display_name())
    }

    /// Returns the operation for error messages about several locks, of which this is the first.
    pub(super) fn operation_for(&self, locks: usize) -> String {
        format!("acquire {locks} locks at once, {:?} among them", self.name)
    }
}

/// An attempt in the table of holds.
pub(super) struct Begun<'r, 'a> {
    pub(super) attempt: PendingHold<'r, 'a>,
    /// The count to request from the server.
    pub(super) count: u32,
    /// When the attempt began.
    at: BootInstant,
    /// Deadline for the server's reply.
    pub(super) answer_by: Option<Instant>,
}

/// The hold of a pending attempt. If it is dropped before the attempt has ended, it takes back a possible grant. The release is
/// queued right behind the request, so the server executes it after the request.
pub(super) struct PendingHold<'r, 'a> {
    request: &'r Request<'a>,
    hold: Option<HoldIndex>,
}

impl PendingHold<'_, '_> {
    pub(super) fn name(&self) -> &Name {
        self.request.name
    }

    /// Takes all holds of the attempt. From here on, dropping the attempt does not take anything back.
    fn take(&mut self) -> impl Iterator<Item = HoldIndex> + use<> {
        self.hold.take().into_iter().chain(self.take_others())
    }

    fn take_others(&self) -> Vec<HoldIndex> {
        self.request.many.map(Many::take_asked).unwrap_or_default()
    }

    /// Returns the guard of the first hold, with its fencing token if there is one. The request keeps the other guards.
    pub(super) fn granted(
        &mut self,
        terms: Terms,
        reply: GrantReply,
        token: Option<NonZeroU64>,
    ) -> Result<Guard, Error> {
        let first = self.hold.take();
        let first = self.one_granted(first, terms, reply, token);
        if let Some(many) = self.request.many {
            let others = self.take_others();
            // Each hold is granted before an error returns. A lazy chain would stop at the first error.
            let others: Vec<_> =
                others.into_iter().map(|hold| self.one_granted(Some(hold), terms, reply, None)).collect();
            // If one hold was granted too late, dropping the other guards releases their holds.
            let (first, others) = (first?, others.into_iter().collect::<Result<_, _>>()?);
            many.granted(others);
            return Ok(first);
        }
        first
    }

    fn one_granted(
        &self,
        hold: Option<HoldIndex>,
        terms: Terms,
        reply: GrantReply,
        token: Option<NonZeroU64>,
    ) -> Result<Guard, Error> {
        let Request { context, name, sides, limits, .. } = *self.request;
        let granted = context.transact(|holds, now, effects| {
            let (held, request) = match holds.granted(hold?, terms, reply, now, effects)? {
                Granted::Held(hold, request) => (Some(hold), request),
                Granted::ShutDown(request) | Granted::TooLate(request) => (None, Some(request)),
            };
            if let (Some(held), Some(sides)) = (held, sides) {
                holds.verify_other_side(held, &sides.other, now);
            }
            if let (Some(held), Some(limits)) = (held, limits) {
                // `sent` precedes the server's grant, so the maximum ends early rather than late.
                holds.limit(held, limits, (terms.sent, now), || context.new_spent_owner());
            }
            let token = held.and_then(|held| holds.keep_token(held, token, reply));
            effects.request_all(request);
            Some((held?, token))
        });
        match granted {
            Some((hold, token)) => {
                let guard = Guard::new(Arc::clone(context), Arc::clone(name), hold, terms.share);
                Ok(guard.with_token(token))
            }
            None if context.holds().is_shut() => Err(name.shut_down(Outcome::MaybeExecuted)),
            None => Err(self.too_late(terms)),
        }
    }

    fn too_late(&self, terms: Terms) -> Error {
        let Request { context, name, .. } = *self.request;
        // The grant came from a server in whose grace no process is granted a lock.
        if let Some(reason) = context.holds().obstacle(name, context.clock.now()) {
            let (lock, outcome) = (name.text().to_owned(), Outcome::MaybeExecuted);
            return Error::NotReady { lock, reason, outcome };
        }
        Error::GrantedTooLate { lock: name.text().to_owned(), lease: terms.lease.duration() }
    }

    /// Takes a grant back, because too few servers have acknowledged it.
    pub(super) fn not_acknowledged(&mut self, terms: Terms, reply: GrantReply) {
        for hold in self.take() {
            self.request.context.transact(|holds, now, effects| {
                let request = holds.take_back(hold, terms, reply, now, effects);
                effects.request_all(request);
            });
        }
    }

    pub(super) fn refused(&mut self) {
        for hold in self.take() {
            self.request.context.transact(|holds, _, effects| {
                let request = holds.refused(hold, self.request.share.count, effects);
                effects.request_all(request);
            });
        }
    }

    /// Ends an attempt that the server refused because of another holder, in a reply of this connection.
    pub(super) fn refused_by_other(&mut self, connection: Option<ConnectionId>) {
        for hold in self.take() {
            self.request.context.transact(|holds, now, effects| {
                if holds.may_end_holds(connection) {
                    holds.refused_by_other(hold, now, effects);
                }
                let request = holds.refused(hold, self.request.share.count, effects);
                effects.request_all(request);
            });
        }
    }
}

impl Drop for PendingHold<'_, '_> {
    fn drop(&mut self) {
        if self.hold.is_none() && self.request.many.is_none() {
            // The attempt has ended, as most have.
            return;
        }
        for hold in self.take() {
            self.request.context.transact(|holds, now, effects| {
                effects.request_all(holds.cancel_attempt(
                    hold,
                    self.request.share.count,
                    self.request.lease,
                    now,
                ));
            });
        }
    }
}
