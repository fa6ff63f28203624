//! One waiter's place in the wait queue of a name, and the moments at which it asks. Owns by when a question needs its answer,
//! and what is told to a waiter whose wait has ended.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, Waker, ready};
use std::time::{Duration, Instant};

use wheellock_client::{Client, ErrorKind};

use super::attempt::{Opened, Request};
use super::wait::{Limit, Wait};
use crate::base::backoff::Backoff;
use crate::base::clock::BootInstant;
use crate::base::error::{Error, Outcome};
use crate::kind::Wake;
use crate::request::context::Context;
use crate::request::guard::Guard;
use crate::request::hand_over::{self, HANDED};
use crate::wait::name::Name;
use crate::wait::questions::{Known, POLL_UNTOLD, Questions, REPOLL, Turn};
use crate::wait::wait_queue::WaitQueue;
use crate::wire::{self, Refusal};

/// A place in the wait queue; left when dropped.
pub(super) struct Waiter<'a> {
    request: &'a Request<'a>,
    ticket: u64,
    /// Of a lock whose waiters each ask for themselves. In the name's queue such a waiter only hears what stops all.
    own: Option<Box<Questions>>,
    since: BootInstant,
    /// The last question was asked because a release was heard.
    heard: bool,
    /// The server has told this waiter that the lock is held.
    told_held: bool,
    /// A question got no answer, and may still come.
    may_come_late: bool,
    /// The waiter has polled because its wait ended while the process stood still.
    asked_after_pause: bool,
    /// The wait ended with a grant, which leaves room for so many more.
    granted: Option<u32>,
    /// The wait ended with what another guard of this process had.
    took_over: bool,
    /// What is waited for has ended, and is not held.
    open: bool,
    /// How many had joined when this one asked last.
    asked: u64,
    /// How often it has asked in vain.
    refusals: u32,
}

impl<'a> Waiter<'a> {
    pub(super) fn join(request: &'a Request<'a>, join: fn(&mut WaitQueue, u32) -> u64) -> Self {
        let Request { context, name, .. } = *request;
        let (takes_over, manner) = (request.takes_over(), request.manner());
        let ticket = name.waiters(|waiters| {
            name.set_waited_for(true);
            let ticket = join(waiters, request.count());
            waiters.asks_in(ticket, manner);
            if takes_over {
                waiters.takes_over(ticket);
            }
            ticket
        });
        let own = (name.kind().wake == Wake::OwnChannel).then(Box::default);
        context.waiting.join(name);
        let mut waiter = Self {
            request,
            ticket,
            own,
            since: context.clock.now(),
            heard: false,
            told_held: false,
            may_come_late: false,
            asked_after_pause: false,
            granted: None,
            took_over: false,
            open: false,
            asked: 0,
            refusals: 0,
        };
        if let Some(own) = &mut waiter.own
            && request.backoff.is_none()
        {
            // Goes out with the question that comes next.
            own.listen(|| {
                context.client.subscribe(&wire::own_channel(name, &context.holder_text(name, request.owner)))
            });
        }
        waiter
    }

    /// Does something with the queue in which this waiter stands, and with its ticket there, under the queue's lock.
    fn waiters<T>(&self, with: impl FnOnce(&mut WaitQueue, u64) -> T) -> T {
        self.request.name.waiters(|waiters| with(waiters, self.ticket))
    }

    pub(super) fn granted(&mut self, room: u32) {
        self.granted = Some(room);
        self.has_waited();
    }

    /// What another guard of this process had is this waiter's. `None` if it was lost on the way.
    fn take_over(&mut self, hold: u32) -> Option<Guard> {
        let Request { context, name, .. } = *self.request;
        let guard = Guard::new(Arc::clone(context), Arc::clone(name), hold, HANDED);
        if !context.transact(|holds, now, _| holds.take_over(hold, now)) {
            drop(guard);
            context.let_waiters_ask(name);
            return None;
        }
        // No message has ended this wait.
        (self.took_over, self.heard) = (true, false);
        self.has_waited();
        Some(guard)
    }

    /// There is nothing left to wait for.
    fn opened(&mut self) {
        self.open = true;
        self.has_waited();
    }

    /// The server has said so to this one, which tells the others whom it concerns.
    pub(super) fn found_open(&mut self, Opened { is_open, ended }: Opened) {
        let asked = self.asked;
        let woken = self.waiters(|waiters, _| waiters.open(is_open, ended, asked));
        woken.into_iter().for_each(Waker::wake);
        self.opened();
    }

    /// When this one looked for the first time, the last latch had ended then.
    pub(super) fn saw(&self, ended: u64) {
        self.waiters(|waiters, ticket| waiters.saw(ticket, ended));
    }

    fn is_handed(&self) -> bool {
        self.request.name.waiters(|waiters| waiters.is_handed(self.ticket))
    }

    fn has_waited(&self) {
        let Request { context, name, .. } = self.request;
        let waited = self.waited();
        context.transact(|holds, _, _| holds.tallies.of(name.family()).waited(waited, self.heard));
    }

    /// Waits until it is time to ask, or there is nothing to ask for.
    pub(super) async fn turn<L: Copy + Into<Limit>>(&mut self, wait: Wait<L>) -> Result<Next<L>, Error> {
        let timer = &self.request.context.client.config().timer;
        let mut sleep = timer.sleep_until(timer.now());
        // What it asked for on a connection that broke may be granted late, and the head's question, which is another owner's, does not
        // find that. One who asks for itself does so from time to time in any case.
        let asks_at = (self.may_come_late && self.own.is_none()).then(|| timer.now() + REPOLL);
        std::future::poll_fn(|cx| {
            loop {
                let (now, deadline) = (timer.now(), wait.deadline());
                let limit = wait.limit().filter(|_| deadline.is_some_and(|deadline| now >= deadline));
                if let Some(limit) = limit.filter(|_| !self.is_handed()) {
                    if let Some(by) = self.ask_after_pause(now, deadline) {
                        return Poll::Ready(Ok(Next::Ask(by)));
                    }
                    let by = self.wait_is_over(now, deadline);
                    return Poll::Ready(by.map(|by| by.map_or(Next::Over(limit), Next::Ask)));
                }
                let (mut turn, joined, is_freed) = self.waiters(|waiters, ticket| {
                    // Looked at under the queue's lock, under which a caller outside the queue says that it has its answer.
                    let asked_for = self.own.is_some() || self.request.name.is_asked_for();
                    (waiters.turn(ticket, asked_for, now, cx), waiters.joined(), waiters.take_news())
                });
                if is_freed {
                    // The head pauses before it polls. A hold of this process that was freed by force is lost now.
                    self.request.context.verify(self.request.name);
                }
                if let (Some(own), Turn::Wait(_)) = (&mut self.own, &turn) {
                    turn = own.turn(now, cx);
                }
                let until = match turn {
                    Turn::Ask { heard, since } => {
                        (self.heard, self.asked) = (heard, joined);
                        if self.request.name.kind().is_shared() {
                            self.waiters(|waiters, _| waiters.head_asks());
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
                    Turn::Open => {
                        self.opened();
                        return Poll::Ready(Ok(Next::Open));
                    }
                    // Looked at after the waker was left, which a shutdown wakes.
                    Turn::Wait(_) if self.request.context.holds().is_shut() => {
                        return Poll::Ready(Err(self.request.name.shut_down(Outcome::NotSent)));
                    }
                    Turn::Wait(_) if asks_at.is_some_and(|at| now >= at) => {
                        self.waiters(|waiters, ticket| waiters.let_ask(ticket));
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

    /// Polls once more if the process stood still when the wait ended: no task has read what the server said meanwhile, so an unanswered
    /// request proves nothing. Returns by when the server has to answer.
    fn ask_after_pause(&mut self, now: Instant, deadline: Option<Instant>) -> Option<AnswerBy> {
        let late = now.saturating_duration_since(deadline?);
        let may_ask = late >= PAUSE && !self.request.context.client.config().timer.is_manual();
        if !may_ask || std::mem::replace(&mut self.asked_after_pause, true) {
            return None;
        }
        Some(AnswerBy::EndOfWait(now + self.least_patience()))
    }

    /// The time that every request gets for its answer.
    fn least_patience(&self) -> Duration {
        FIRST_ANSWER.min(self.request.context.client.config().response_timeout)
    }

    /// By when a question needs its answer. All questions that find none share one patience.
    fn answer_by(&self, since: Instant, deadline: Option<Instant>) -> AnswerBy {
        let config = self.request.context.client.config();
        // The first of these questions may be from before a pause of the process, and this one is not.
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

    /// By when the first answer has to come that it hears of, from when it came on.
    fn first_answer_by(&self, deadline: Option<Instant>) -> AnswerBy {
        let Request { context, name, .. } = *self.request;
        AnswerBy::first(context, name, self.waited(), deadline.map_or(Wait::Forever, Wait::until))
    }

    fn waited(&self) -> Duration {
        self.request.context.clock.now().saturating_duration_since(self.since)
    }

    fn known(&self) -> Known {
        if let Some(own) = &self.own {
            return own.known();
        }
        let waits_for_its_first_answer = self.waited() < FIRST_ANSWER;
        self.waiters(|waiters, ticket| waiters.known(ticket, waits_for_its_first_answer))
    }

    fn knows_held(&self) -> bool {
        self.told_held || !matches!(self.known(), Known::Nothing)
    }

    pub(super) fn told_held(&self) -> bool {
        self.told_held
    }

    pub(super) fn is_head(&self) -> bool {
        self.own.is_some() || self.waiters(|waiters, ticket| waiters.is_head(ticket))
    }

    /// The wait is over while others asked: a lock of which nothing is known is asked for all the same. Otherwise it is held
    /// as far as this process can know, unless the server has stopped answering: a dead server is not a busy lock.
    fn wait_is_over(&self, now: Instant, deadline: Option<Instant>) -> Result<Option<AnswerBy>, Error> {
        let config = self.request.context.client.config();
        let unanswered_since = match self.known() {
            Known::Trouble(error) => return Err(error),
            Known::Held { unanswered_since } => unanswered_since,
            Known::Nothing if self.told_held => None,
            Known::Nothing => {
                let by = self.first_answer_by(deadline);
                return if by.is_over(self.request.context) { Err(self.timed_out()) } else { Ok(Some(by)) };
            }
        };
        let silent = |since| now.saturating_duration_since(since) >= config.response_timeout / SILENT_PART;
        let key = self.request.name.key().as_bytes();
        if unanswered_since.is_some_and(silent) || !self.request.context.client.is_ready_for(key) {
            return Err(self.timed_out());
        }
        Ok(None)
    }

    fn timed_out(&self) -> Error {
        let Request { context, name, .. } = *self.request;
        let source = context.client.timed_out(name.key().as_bytes(), "EVALSHA");
        Error::Server { operation: self.request.operation(), source }
    }

    /// The wait has ended in the middle of a question. That its answer could not come in time says nothing about the server;
    /// any other failure does.
    pub(super) fn cut_short(&mut self, error: &Error) -> Result<(), Error> {
        if !is_only_late(error) {
            match &mut self.own {
                Some(own) => own.on_unanswered(error),
                None => self.waiters(|waiters, _| waiters.on_unanswered(error)),
            }
        }
        match self.wait_is_over(self.request.context.client.config().timer.now(), None) {
            Ok(None) => Ok(()),
            // What is known of the server says nothing about this question, which it may have answered.
            Err(other) if error.outcome() != Outcome::MaybeExecuted => Err(other),
            Ok(Some(_)) | Err(_) => Err(error.clone()),
        }
    }

    /// It asks at its next turn, head or not: its owner has the lock.
    pub(super) fn may_ask(&self) {
        self.waiters(WaitQueue::let_ask);
    }

    /// It was refused while those who came after it did not know that it asked.
    pub(super) fn was_not_counted(&self) {
        if self.own.is_none() {
            self.waiters(WaitQueue::may_have_missed_a_message);
        }
    }

    /// Whether a question got no answer, and may still come.
    pub(super) fn may_come_late(&self) -> bool {
        self.may_come_late
    }

    pub(super) fn on_held(&mut self, refusal: Refusal) {
        self.told_held = true;
        self.may_come_late |= refusal.may_come_late;
        let now = self.request.context.client.config().timer.now();
        let unheard = refusal.is_silent.then(Backoff::default);
        let random = self.request.context.client.config().random;
        let pause =
            self.request.backoff.copied().or(unheard).map(|backoff| backoff.pause(self.refusals, random));
        self.refusals = self.refusals.saturating_add(1);
        // If there is a pause, it asks when that is over or the lease ends.
        let unannounced = self.request.context.releases_are_silent.then_some(POLL_UNTOLD);
        let lease_left = refusal.lease_left.into_iter().chain(pause).chain(unannounced).min();
        if let Some(own) = &mut self.own {
            own.on_held(now, lease_left);
            return;
        }
        let Request { context, name, backoff, .. } = *self.request;
        let is_deaf = self.waiters(|waiters, ticket| {
            waiters.was_answered(ticket);
            if !waiters.is_head(ticket) {
                return false;
            }
            if let Some(listeners) = refusal.listeners {
                waiters.refused_among(listeners, refusal.trip, random());
            }
            waiters.on_held(now, lease_left);
            if backoff.is_none() {
                waiters.listen(|| context.client.subscribe(name.channel().as_bytes()));
            }
            backoff.is_some() || waiters.is_deaf()
        });
        if is_deaf {
            context.refused_unlistening(name);
        }
    }
}

/// Whether a question failed only because its time was over: its answer had not come, or not yet the acknowledgements of a grant, which
/// is taken back.
pub(crate) fn is_only_late(error: &Error) -> bool {
    match error {
        Error::Server { source, .. } => source.kind() == ErrorKind::Timeout,
        Error::NotReplicated { .. } => true,
        _ => false,
    }
}

/// What a waiter has to do next.
pub(super) enum Next<L> {
    /// Ask, and be answered by then.
    Ask(AnswerBy),
    /// Give up: this has ended the wait before that, and the lock is known to be held.
    Over(L),
    /// Go on: there is nothing left to wait for.
    Open,
    /// Take this, which another one of this process had.
    Take(Guard),
}

/// What ends the wait for an answer.
#[derive(Clone, Copy)]
pub(super) enum AnswerBy {
    /// The caller's own wait. That it ended says nothing to the other waiters.
    EndOfWait(Instant),
    /// The time that any question has for its answer: the response timeout from now on, or until this instant.
    Patience(Option<Instant>),
}

impl AnswerBy {
    /// For the first question about a lock, by a caller who has waited for so long.
    pub(super) fn first(context: &Context, name: &Name, waited: Duration, wait: Wait) -> Self {
        let by = first_answer_by(&context.client, name.key(), waited, wait);
        by.map_or(Self::Patience(None), Self::EndOfWait)
    }

    pub(super) fn instant(self) -> Option<Instant> {
        match self {
            Self::EndOfWait(until) => Some(until),
            Self::Patience(until) => until,
        }
    }

    /// Whether the wait of the one who asks has ended.
    pub(super) fn is_over(self, context: &Context) -> bool {
        matches!(self, Self::EndOfWait(until) if context.client.config().timer.now() >= until)
    }
}

/// Returns by when the first question about `key` has to be answered, for a caller who has waited for `waited`. Returns `None` if the
/// response timeout decides.
pub(crate) fn first_answer_by(client: &Client, key: &str, waited: Duration, wait: Wait) -> Option<Instant> {
    let config = client.config();
    let at_least = || config.timer.now() + FIRST_ANSWER.min(config.response_timeout).saturating_sub(waited);
    let is_ready = client.is_ready_for(key.as_bytes());
    match wait {
        Wait::Forever => None,
        // Without a connection no answer is under way that a little more time would bring.
        Wait::Limited(Limit::Until(deadline)) if !is_ready => Some(deadline),
        Wait::Limited(Limit::Until(deadline)) => Some(deadline.max(at_least())),
        // The first connection takes as long as it takes: nothing speaks against this server yet.
        Wait::Limited(Limit::OneTry) if !is_ready && client.server_info().is_none() => None,
        // A connection that has just broken may be back by then.
        Wait::Limited(Limit::OneTry) => Some(at_least()),
    }
}

/// How long the first question may take, however short the wait: more than any round trip on Earth, and still short for those
/// who wanted to wait for less.
const FIRST_ANSWER: Duration = Duration::from_millis(300);

/// A wait that ends later than this has ended while the process stood still. A busy machine wakes its tasks within less.
const PAUSE: Duration = Duration::from_millis(250);

/// A server is taken for silent when it has owed an answer for this part of the response timeout: long beside any round trip,
/// short beside the time after which its connection is given up.
pub(crate) const SILENT_PART: u32 = 3;

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let Request { context, name, owner, presented, lease, .. } = *self.request;
        let now = context.client.config().timer.now();
        let in_vain = self.granted.is_none() && !self.open;
        let asked_in_vain = self.told_held && name.kind().leaves_mark;
        let asked_for_all = self.own.take().is_none();
        // It may have been its turn among those who wait in its owner's name.
        let passes_on = in_vain && presented && self.request.is_reentrant();
        let mut wait_queue = name.wait_queue();
        let (mut next, mut more, mut quiet, mut untaken) = (None, Vec::new(), false, None);
        let mut is_untold = false;
        let (mut has_left_its_place, mut no_longer_heard) = (true, None);
        if let Some(waiters) = &mut *wait_queue {
            untaken = waiters.untaken(self.ticket);
            match self.granted {
                _ if self.took_over => waiters.leave_with_handed(self.ticket, now),
                _ if self.open => next = waiters.leave_opened(self.ticket),
                Some(0) if name.kind().is_shared() => {
                    next = waiters.leave_full(self.ticket, lease.duration(), now);
                }
                Some(room) if room > 0 => more = waiters.leave_open(self.ticket, room, self.asked),
                granted => next = waiters.leave(self.ticket, granted.map(|_| lease.duration()), now),
            }
            // Readers stood behind this one's question, and stand behind the next one's once that has asked. It hears that they may pass
            // only if what this one had asked had not ended by itself.
            let asked_for_those_behind = asked_in_vain && asked_for_all && !waiters.is_empty();
            if in_vain && !self.took_over && asked_for_those_behind {
                next = waiters.poll_now().or(next);
            }
            if passes_on {
                more.extend(waiters.let_owner_ask(owner));
            }
            // The server knows of an owner, and not of how many wait in its name.
            has_left_its_place = asked_for_all || !presented || !waiters.is_wanted_by(owner);
            name.set_waited_for(!waiters.is_empty());
            no_longer_heard = waiters.leave_the_crowd();
            quiet = waiters.begin_lingering();
            is_untold = waiters.take_untold();
        }
        name.drop_unused(&mut wait_queue);
        drop(wait_queue);
        drop(no_longer_heard);
        next.into_iter().chain(more).for_each(Waker::wake);
        context.waiting.leave(name);
        if is_untold {
            context.tell(name);
        }
        if let Some(hold) = untaken {
            hand_over::end(context, name, hold, HANDED);
        }
        let asked_in_vain = asked_in_vain && has_left_its_place;
        if in_vain {
            let may_come_late = self.may_come_late && name.kind().remembers_releases();
            if !self.took_over || asked_in_vain || may_come_late {
                context.transact(|holds, now, effects| {
                    holds.tallies.of(name.family()).waits_given_up += u64::from(!self.took_over);
                    if asked_in_vain || may_come_late {
                        effects.request_all(holds.withdraw(name, owner, presented, now));
                    }
                });
            }
        }
        if quiet {
            context.transact(|holds, now, _| holds.quiet(Arc::clone(name), now));
        }
    }
}
