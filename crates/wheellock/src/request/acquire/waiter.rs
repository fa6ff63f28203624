//! A waiter in a name's wait queue.
//!
//! Decides when the waiter polls, the deadline of each reply, and the result when the wait ends.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, Waker, ready};
use std::time::{Duration, Instant};

use wheellock_client::{Client, ErrorKind};

use super::attempt::Request;
use super::wait::{Limit, Wait};
use crate::base::backoff::Backoff;
use crate::base::clock::BootInstant;
use crate::base::error::{Error, Outcome};
use crate::kind::Wake;
use crate::request::context::Context;
use crate::request::guard::Guard;
use crate::request::hand_over::{self, HANDED};
use crate::wait::name::Name;
use crate::wait::poll_schedule::{Known, POLL_UNTOLD, PollSchedule, REPOLL, Turn};
use crate::wait::wait_queue::{Ending, WaitQueue};
use crate::wire::{self, Refusal};

/// A ticket in the wait queue. Dropping the waiter leaves the queue.
pub(crate) struct Waiter<'a> {
    request: &'a Request<'a>,
    ticket: u64,
    /// Poll schedule of a waiter that polls for itself. In the name's queue such a waiter only learns of events that
    /// stop all waiters.
    own: Option<Box<PollSchedule>>,
    since: BootInstant,
    /// The caller has begun anew, and has had its time for a first reply.
    pub(super) is_anew: bool,
    /// The last request was sent because a release was announced.
    heard: bool,
    /// The next request asks the server to tell of the next change of the lock's key.
    remembers: bool,
    /// A request without a reply may still be executed.
    may_arrive_late: bool,
    /// The waiter has polled because its wait ended while the process was paused.
    asked_after_pause: bool,
    /// How the wait ends if the waiter is dropped now.
    ending: Ending,
    /// Number of refusals.
    refusals: u32,
}

impl<'a> Waiter<'a> {
    pub(crate) fn join(request: &'a Request<'a>, join: fn(&mut WaitQueue, u32) -> u64) -> Self {
        let Request { context, name, .. } = *request;
        let manner = request.manner();
        let ticket = name.waiters(|waiters| {
            let ticket = join(waiters, request.count());
            waiters.set_manner(ticket, manner);
            ticket
        });
        let own = (name.kind().wake == Wake::OwnChannel).then(Box::default);
        context.waiting.join(name);
        let mut waiter = Self {
            request,
            ticket,
            own,
            since: context.clock.now(),
            is_anew: false,
            heard: false,
            remembers: false,
            may_arrive_late: false,
            asked_after_pause: false,
            ending: Ending::InVain,
            refusals: 0,
        };
        if let Some(own) = &mut waiter.own
            && request.backoff.is_none()
        {
            // The subscription is sent together with the next request.
            own.listen(|| {
                context.client.subscribe(&wire::own_channel(name, &context.holder_text(name, request.owner)))
            });
        }
        waiter
    }

    /// Calls `with` on the wait queue and this waiter's ticket, under the queue's lock.
    fn waiters<T>(&self, with: impl FnOnce(&mut WaitQueue, u64) -> T) -> T {
        self.request.name.waiters(|waiters| with(waiters, self.ticket))
    }

    /// Ends the wait with a grant that has `room` for more holders.
    pub(crate) fn granted(&mut self, room: u32) {
        let Request { lease, name, .. } = self.request;
        let room = (room > 0 || name.kind().is_shared()).then_some(room);
        self.ending = Ending::Granted { lease: lease.duration(), room };
        self.has_waited();
    }

    /// Accepts a hold that another guard of this process handed over. Returns `None` if the hold was lost meanwhile.
    fn take_over(&mut self, hold: u32) -> Option<Guard> {
        let Request { context, name, limits, .. } = *self.request;
        let guard = Guard::new(Arc::clone(context), Arc::clone(name), hold, HANDED);
        if !context
            .change(|holds, clock| holds.take_over(hold, limits, clock.now(), || context.new_spent_owner()))
        {
            drop(guard);
            context.let_waiters_ask(name);
            return None;
        }
        // No message ended this wait.
        (self.ending, self.heard) = (Ending::HandedOver, false);
        self.has_waited();
        Some(guard)
    }

    fn has_waited(&self) {
        let Request { context, name, .. } = self.request;
        let waited = self.waited();
        context.change(|holds, _| holds.tallies.of(name.family()).waited(waited, self.heard));
    }

    /// Waits until the waiter has to poll, or until there is nothing to poll for.
    pub(crate) async fn turn<L: Copy + Into<Limit>>(&mut self, wait: Wait<L>) -> Result<Next<L>, Error> {
        let timer = &self.request.context.client.config().timer;
        let mut sleep = timer.sleep_until(timer.now());
        // The connection broke after this waiter's request, so the server may grant it late. The head's polls are
        // another owner's and do not find that grant. So this waiter polls after a while. A waiter that polls for
        // itself polls from time to time anyway.
        let asks_at = (self.may_arrive_late && self.own.is_none()).then(|| timer.now() + REPOLL);
        std::future::poll_fn(|cx| {
            loop {
                let (now, deadline) = (timer.now(), wait.deadline());
                let limit = wait.limit().filter(|_| deadline.is_some_and(|deadline| now >= deadline));
                if let Some(limit) = limit.filter(|_| !self.waiters(WaitQueue::is_handed)) {
                    if let Some(by) = self.ask_after_pause(now, deadline) {
                        return Poll::Ready(Ok(Next::Ask(by)));
                    }
                    let by = self.wait_is_over(now, deadline);
                    return Poll::Ready(by.map(|by| by.map_or(Next::Over(limit), Next::Ask)));
                }
                let (mut turn, is_freed) = self.turn_in_queue(now, cx);
                if is_freed {
                    // The head pauses before it polls. A hold of this process that was released by force is lost now.
                    self.request.context.verify(self.request.name);
                }
                if let (Some(own), Turn::Wait(_)) = (&mut self.own, &turn) {
                    turn = own.turn(now, cx);
                }
                let until = match turn {
                    Turn::Ask { heard, since, remembers } => {
                        (self.heard, self.remembers) = (heard, remembers);
                        if self.request.name.kind().is_shared() {
                            self.waiters(|waiters, _| waiters.head_polls());
                        }
                        if heard {
                            // Only a holder that releases sends messages: a lock that this process holds was freed by force.
                            self.request.context.verify(self.request.name);
                        }
                        return Poll::Ready(Ok(Next::Ask(self.answer_by(since, deadline))));
                    }
                    Turn::Take(hold) => match self.take_over(hold) {
                        Some(guard) => return Poll::Ready(Ok(Next::Take(guard))),
                        None => continue,
                    },
                    Turn::Failed(error) => return Poll::Ready(Err(error)),
                    // Checked after the waker was stored, so that a shutdown wakes this waiter.
                    Turn::Wait(_) if self.request.context.holds().is_shut() => {
                        return Poll::Ready(Err(self.request.name.shut_down(Outcome::NotSent)));
                    }
                    Turn::Wait(_) if asks_at.is_some_and(|at| now >= at) => {
                        self.waiters(|waiters, ticket| waiters.allow_poll(ticket));
                        continue;
                    }
                    Turn::Wait(until) => until.into_iter().chain(deadline).chain(asks_at).min(),
                };
                let Some(until) = until else { return Poll::Pending };
                if sleep.deadline() != until {
                    sleep.reset(until);
                }
                ready!(Pin::new(&mut sleep).poll(cx));
            }
        })
        .await
    }

    /// Returns the next step by the queue, and true if the lock was freed.
    fn turn_in_queue(&self, now: Instant, cx: &mut std::task::Context<'_>) -> (Turn, bool) {
        let name = self.request.name;
        let mut waiting = name.waiting();
        let is_polled = self.own.is_some() || name.is_polled(&waiting);
        let waiters = waiting.queue();
        (waiters.turn(self.ticket, is_polled, now, cx), waiters.take_news())
    }

    /// Polls once more if the process was paused when the wait ended. No task has read the server's replies in that
    /// time, so an unanswered request proves nothing. Returns the deadline of the reply.
    fn ask_after_pause(&mut self, now: Instant, deadline: Option<Instant>) -> Option<AnswerBy> {
        let late = now.saturating_duration_since(deadline?);
        let may_poll = late >= PAUSE && !self.request.context.client.config().timer.is_manual();
        if !may_poll || std::mem::replace(&mut self.asked_after_pause, true) {
            return None;
        }
        Some(AnswerBy::EndOfWait(now + self.least_patience()))
    }

    /// Returns the least time that every request has for its reply.
    fn least_patience(&self) -> Duration {
        FIRST_ANSWER.min(self.request.context.client.config().response_timeout)
    }

    /// Returns the deadline of the reply to a poll. Consecutive polls without a reply share one deadline.
    fn answer_by(&self, since: Instant, deadline: Option<Instant>) -> AnswerBy {
        let config = self.request.context.client.config();
        // The first of these polls may be from before a pause of the process, but this poll is not.
        let patience = (since + config.response_timeout).max(config.timer.now() + self.least_patience());
        let own = match deadline {
            Some(deadline) if self.knows_held() => AnswerBy::EndOfWait(deadline),
            deadline => self.first_answer_by(deadline),
        };
        match own {
            AnswerBy::EndOfWait(until) if until < patience => own,
            _ => AnswerBy::Patience(Some(patience)),
        }
    }

    /// Returns the deadline of the first reply that this waiter learns of. The time counts from when the caller came.
    fn first_answer_by(&self, deadline: Option<Instant>) -> AnswerBy {
        let Request { context, name, .. } = *self.request;
        AnswerBy::first(context, name, self.waited_for_reply(), deadline.map_or(Wait::Forever, Wait::until))
    }

    fn waited_for_reply(&self) -> Duration {
        if self.is_anew { Duration::MAX } else { self.waited() }
    }

    fn waited(&self) -> Duration {
        self.request.context.clock.now().saturating_duration_since(self.since)
    }

    fn known(&self) -> Known {
        if let Some(own) = &self.own {
            return own.known();
        }
        let waits_for_its_first_answer = self.waited_for_reply() < FIRST_ANSWER;
        self.waiters(|waiters, ticket| waiters.known(ticket, waits_for_its_first_answer))
    }

    fn knows_held(&self) -> bool {
        self.seen_held() || !matches!(self.known(), Known::Nothing)
    }

    /// Returns true if the server has replied to this waiter that the lock is held.
    pub(super) fn seen_held(&self) -> bool {
        self.refusals > 0
    }

    /// Returns the remaining lease by the last refusal of any waiter in this queue. `None` if that lease has ended since:
    /// the holder has renewed it, or another holder has the lock.
    pub(super) fn lease_left(&self) -> Option<Duration> {
        let ends = self.waiters(|waiters, _| waiters.lease_ends());
        let now = self.request.context.client.config().timer.now();
        ends?.checked_duration_since(now).filter(|left| !left.is_zero())
    }

    pub(super) fn is_head(&self) -> bool {
        self.own.is_some() || self.waiters(|waiters, ticket| waiters.is_head(ticket))
    }

    /// Decides the result of a wait that ended while another caller polled for this waiter. If the state of the lock is
    /// unknown, the waiter polls nevertheless. Otherwise the lock is held as far as this process knows. If the server
    /// has stopped replying, the result is an error, because a dead server is not a busy lock.
    fn wait_is_over(&self, now: Instant, deadline: Option<Instant>) -> Result<Option<AnswerBy>, Error> {
        let config = self.request.context.client.config();
        let unanswered_since = match self.known() {
            Known::Trouble(error) => return Err(error),
            Known::Held { unanswered_since } => unanswered_since,
            Known::Nothing if self.seen_held() => None,
            Known::Nothing => {
                let by = self.first_answer_by(deadline);
                return if by.is_over(self.request.context) { Err(self.timed_out()) } else { Ok(Some(by)) };
            }
        };
        let silent = |since| now.saturating_duration_since(since) >= config.response_timeout / SILENT_PART;
        let is_ready = || self.request.context.client.is_ready_for(self.request.name.key().as_bytes());
        let answers = !unanswered_since.is_some_and(silent) && is_ready();
        if answers { Ok(None) } else { Err(self.timed_out()) }
    }

    fn timed_out(&self) -> Error {
        let Request { context, name, .. } = *self.request;
        let source = context.client.timed_out(name.key().as_bytes(), "EVALSHA");
        Error::Server { operation: self.request.operation(), source }
    }

    /// Returns `Ok` if the wait ended during a request and the lock is known to be held. A reply that could not arrive
    /// in time says nothing about the server. Any other failure does.
    pub(super) fn cut_short(&mut self, error: &Error) -> Result<(), Error> {
        if !is_only_late(error) {
            match &mut self.own {
                Some(own) => own.on_unanswered(error),
                None => self.waiters(|waiters, _| waiters.on_unanswered(error)),
            }
        }
        match self.wait_is_over(self.request.context.client.config().timer.now(), None) {
            Ok(None) => Ok(()),
            // The known state of the server says nothing about this request. The server may have executed it.
            Err(other) if error.outcome() != Outcome::MaybeExecuted => Err(other),
            Ok(Some(_)) | Err(_) => Err(error.clone()),
        }
    }

    /// Makes this waiter poll at its next turn, head or not, because its owner has the lock.
    pub(super) fn may_poll(&self) {
        self.waiters(WaitQueue::allow_poll);
    }

    /// Returns true if the next request asks the server to tell of the next change of the lock's key.
    pub(super) fn remembers(&self) -> bool {
        // A caller that chose its pauses has only those.
        self.remembers && self.request.backoff.is_none() && self.request.name.kind().has_holders_in_its_key()
    }

    /// Returns true if a request without a reply may still be executed.
    pub(super) fn may_arrive_late(&self) -> bool {
        self.may_arrive_late
    }

    /// Records the server's refusal. `was_counted` is false if other waiters did not see that this waiter polled.
    pub(crate) fn on_held(&mut self, refusal: Refusal, was_counted: bool) {
        self.may_arrive_late |= refusal.may_arrive_late;
        let now = self.request.context.client.config().timer.now();
        let lease_ends = refusal.lease_left.and_then(|left| now.checked_add(left));
        let unheard = refusal.is_silent.then(Backoff::default);
        let random = self.request.context.client.config().random;
        let pause =
            self.request.backoff.copied().or(unheard).map(|backoff| backoff.pause(self.refusals, random));
        self.refusals = self.refusals.saturating_add(1);
        // If there is a pause, the waiter polls when the pause is over or the lease ends.
        let unannounced = self.request.context.releases_are_silent.then_some(POLL_UNTOLD);
        let lease_left = refusal.lease_left.into_iter().chain(pause).chain(unannounced).min();
        if let Some(own) = &mut self.own {
            own.on_held(now, lease_left);
            self.waiters(|waiters, _| waiters.set_lease_ends(lease_ends));
            return;
        }
        let Request { context, name, backoff, .. } = *self.request;
        let is_deaf = self.waiters(|waiters, ticket| {
            waiters.was_answered(ticket);
            waiters.set_lease_ends(lease_ends);
            if !waiters.is_head(ticket) {
                return false;
            }
            if let Some(listeners) = refusal.listeners {
                waiters.refused_among(listeners, refusal.trip, random());
            }
            waiters.set_silent(refusal.is_silent);
            waiters.on_held(now, lease_left);
            if backoff.is_none() {
                waiters.listen(|| context.client.subscribe(name.channel().as_bytes()));
            }
            if !was_counted {
                waiters.may_have_missed_a_message(ticket);
            }
            backoff.is_some() || waiters.is_deaf()
        });
        if is_deaf {
            context.refused_unlistening(name);
        }
    }
}

/// Returns true if a request failed only because its time was over. Either its reply had not arrived, or a grant was
/// not acknowledged in time and was taken back.
pub(crate) fn is_only_late(error: &Error) -> bool {
    match error {
        Error::Server { source, .. } => source.kind() == ErrorKind::Timeout,
        Error::NotReplicated { .. } => true,
        _ => false,
    }
}

/// A waiter's next step.
pub(crate) enum Next<L> {
    /// Poll, with this deadline for the reply.
    Ask(AnswerBy),
    /// Give up: the wait has reached this limit, and the lock is known to be held.
    Over(L),
    /// Accept this hold, which another guard of this process handed over.
    Take(Guard),
}

/// The deadline of a reply, and its cause.
#[derive(Clone, Copy)]
pub(crate) enum AnswerBy {
    /// The end of the caller's own wait. It says nothing to the other waiters.
    EndOfWait(Instant),
    /// The time that any request has for its reply. It ends at this instant, or after the response timeout from now on.
    Patience(Option<Instant>),
}

impl AnswerBy {
    /// Returns the deadline of the first request about a lock, for a caller that has already `waited`.
    pub(crate) fn first(context: &Context, name: &Name, waited: Duration, wait: Wait) -> Self {
        let by = first_answer_by(&context.client, name.key(), waited, wait);
        by.map_or(Self::Patience(None), Self::EndOfWait)
    }

    pub(crate) fn instant(self) -> Option<Instant> {
        match self {
            Self::EndOfWait(until) => Some(until),
            Self::Patience(until) => until,
        }
    }

    /// Returns true if the caller's wait has ended.
    pub(super) fn is_over(self, context: &Context) -> bool {
        matches!(self, Self::EndOfWait(until) if context.client.config().timer.now() >= until)
    }
}

/// Returns the deadline of the first request about `key`, for a caller that has already `waited`. Returns `None` if the
/// response timeout decides.
pub(crate) fn first_answer_by(client: &Client, key: &str, waited: Duration, wait: Wait) -> Option<Instant> {
    let config = client.config();
    // This process may have left the lock free for others until now, for longer than a short response timeout. A poll then has a whole one.
    let at_least = || {
        let left = FIRST_ANSWER.saturating_sub(waited);
        config.timer.now() + left.min(config.response_timeout)
    };
    let is_ready = || client.is_ready_for(key.as_bytes());
    match wait {
        Wait::Forever => None,
        // Without a connection no reply is under way, so more time would not help.
        Wait::Limited(Limit::Until(deadline)) if !is_ready() => Some(deadline),
        Wait::Limited(Limit::Until(deadline)) => Some(deadline.max(at_least())),
        // The first connection may take as long as it needs. There is no sign yet that this server is down.
        Wait::Limited(Limit::OneTry) if client.server_info().is_none() && !is_ready() => None,
        // A connection that has just broken may be restored by then.
        Wait::Limited(Limit::OneTry) => Some(at_least()),
    }
}

/// Minimum time for the first reply, however short the wait is. It is longer than any round trip on Earth, but still
/// short for a caller that wanted to wait for less.
const FIRST_ANSWER: Duration = Duration::from_millis(300);

/// A wait that ends later than this after its deadline ended while the process was paused. A busy machine wakes its
/// tasks within less.
const PAUSE: Duration = Duration::from_millis(250);

/// A server counts as silent after this fraction of the response timeout without a reply. That is much longer than a
/// round trip, and much shorter than the time after which the connection is closed.
pub(crate) const SILENT_PART: u32 = 3;

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let Request { context, name, owner, presented, .. } = *self.request;
        let now = context.client.config().timer.now();
        let gave_up = self.ending == Ending::InVain;
        let is_granted = matches!(self.ending, Ending::Granted { .. });
        let asked_in_vain = self.seen_held() && name.kind().queues_on_server;
        let asked_for_all = self.own.take().is_none();
        // This waiter may have been the next of its owner's waiters.
        let passes_on = gave_up && presented && self.request.is_reentrant();
        let mut waiting = name.waiting();
        let (mut next, mut more, mut quiet, mut unclaimed) = (None, Vec::new(), false, None);
        let mut is_unannounced = false;
        let (mut has_left_its_place, mut no_longer_heard) = (true, None);
        if let Some(waiters) = &mut waiting.queue {
            unclaimed = waiters.unclaimed(self.ticket);
            if is_granted {
                // That lease was another holder's.
                waiters.set_lease_ends(None);
            }
            (next, more) = waiters.leave(self.ticket, self.ending, now);
            // Readers queued behind this writer's mark. They queue behind the next writer only after that writer has
            // polled, so the next head polls now. The message that readers may pass is sent only if this writer's mark
            // had not expired.
            if gave_up && asked_in_vain && asked_for_all && !waiters.is_empty() {
                next = waiters.poll_now().or(next);
            }
            if passes_on {
                more.extend(waiters.allow_owner_poll(owner));
            }
            // The server knows of an owner, but not how many waiters the owner has.
            has_left_its_place = asked_for_all || !presented || !waiters.is_wanted_by(owner);
            no_longer_heard = waiters.leave_the_crowd();
            quiet = waiters.begin_lingering();
            is_unannounced = waiters.take_unannounced();
        }
        waiting.drop_unused();
        drop(waiting);
        drop(no_longer_heard);
        next.into_iter().chain(more).for_each(Waker::wake);
        context.waiting.leave(name);
        if is_unannounced {
            context.tell(name);
        }
        if let Some(hold) = unclaimed {
            hand_over::end(context, name, hold, HANDED);
        }
        let leaves_entry = asked_in_vain && has_left_its_place;
        let may_arrive_late = self.may_arrive_late && name.kind().has_release_record;
        let withdraws = !is_granted && (leaves_entry || may_arrive_late);
        if gave_up || withdraws {
            context.transact(|holds, now, effects| {
                holds.tallies.of(name.family()).waits_given_up += u64::from(gave_up);
                if withdraws {
                    effects.request_all(holds.withdraw(name, owner, presented, now));
                }
            });
        }
        if quiet {
            context.change(|holds, clock| holds.alarms.quiet(Arc::clone(name), clock.now()));
        }
    }
}
