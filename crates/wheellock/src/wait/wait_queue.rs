//! When the waiters for one lock in this process ask its server. Their order is `queue`'s; when the head asks, as long as nothing comes
//! from the other waiters, is `questions`'.
//!
//! Only the head of the queue asks the server, and only when there is a reason: a message, the end of the holder's lease,
//! or the bounded re-poll. The other waiters only wait, so a thousand of them cost the server as much as one. A head that
//! leaves passes on what it may have learnt and not used: the baton.

mod handed;
mod owners;
mod waiter;

use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use wheellock_client::Subscription;

use crate::base::error::Error;
use crate::wait::herd::Herd;
use crate::wait::questions::{Known, POLL_UNTOLD, Questions, REPOLL, Turn};
use crate::wait::queue::{Entry, Queue};
use crate::wait::turns::{Contenders, Message, Then, Turns};
pub(crate) use handed::{Handed, Time};
pub(crate) use waiter::Manner;
use waiter::{Ended, Waiter};

#[derive(Default)]
pub(crate) struct WaitQueue {
    queue: Queue<Waiter>,
    /// How many have joined so far.
    joined: u64,
    /// The head's, passed on from head to head. Its subscription is kept while there are waiters, and a little longer.
    questions: Questions,
    /// After a release of this process, when the head asks again whatever the server says meanwhile: that may be its answer to a
    /// question from before the release.
    look_at: Option<Instant>,
    /// The end of the subscription is planned.
    lingering: bool,
    /// Those who share the lock could have it when so many had joined, or the head asked whether they can: who came later has not been
    /// told that it is held.
    open_since: Option<u64>,
    /// How often all of them were let in at once: each finds out by itself. So many readers that each let all others in cost the queue
    /// no more than one look at each.
    let_in: u32,
    /// Nobody sleeps who stands before this ticket.
    asleep_from: u64,
    /// What was handed over within this process last.
    handed: Option<Handed>,
    /// The head has not been told that it is one: as long as the lock was handed over, no waiter had to look after it.
    head_is_untold: bool,
    /// What was handed over is looked after from time to time.
    looked_after: bool,
    /// Who wants fewer may have been able to have them when the server was last heard of.
    refused: u32,
    turns: Turns,
    /// The lock was left free without a message, and no waiter of this process wants it any more.
    is_untold: bool,
    herd: Herd,
}

impl WaitQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// A waiter joins at the end of the queue.
    pub(crate) fn join(&mut self, wants: u32) -> u64 {
        let waiter = self.next_waiter(wants);
        self.queue.join(waiter)
    }

    /// A waiter joins before all others, none of whom has asked yet.
    pub(crate) fn join_first(&mut self, wants: u32) -> u64 {
        let waiter = self.next_waiter(wants);
        self.queue.join_first(waiter)
    }

    fn next_waiter(&mut self, wants: u32) -> Waiter {
        let joined = self.joined;
        self.joined += 1;
        Waiter { wants, joined, let_in: self.let_in, ..Waiter::default() }
    }

    /// How many have joined so far, those included who have left.
    pub(crate) fn joined(&self) -> u64 {
        self.joined
    }

    /// A caller outside the queue is about to ask the server: what was heard so far is not news to the answer.
    pub(crate) fn about_to_ask(&mut self) {
        if let Some(subscription) = self.questions.subscription.as_mut().filter(|_| self.queue.is_empty()) {
            subscription.take_changed();
        }
    }

    /// The waiter with this ticket was refused, and a message that came meanwhile may have been taken for an old one. The head asks again.
    pub(crate) fn may_have_missed_a_message(&mut self, ticket: u64) {
        self.questions.poll_now |= self.is_head(ticket) && self.questions.subscription.is_some();
    }

    /// See [`Questions::listen`].
    pub(crate) fn listen(&mut self, subscribe: impl FnOnce() -> Subscription) {
        self.questions.listen(subscribe);
    }

    /// The server said that the lock is held for at least `lease_left` (not at all bounded if `None`).
    pub(crate) fn on_held(&mut self, now: Instant, lease_left: Option<Duration>) {
        self.is_held(now, lease_left);
        if let Some(again) = self.turns.refused(now) {
            self.questions.poll_by(again);
        }
    }

    fn is_held(&mut self, now: Instant, lease_left: Option<Duration>) {
        self.open_since = None;
        self.refused = self.queue.head().map_or(0, |head| head.waiter.wants);
        self.questions.on_held(now, lease_left);
        if let Some(look_at) = self.look_at {
            self.questions.poll_by(look_at);
        }
    }

    /// The server refused the head after this round trip and counted this many listeners. `random` is uniform over all of `u64`.
    pub(crate) fn refused_among(&mut self, listeners: u32, trip: Duration, random: u64) {
        self.herd.refused(listeners, trip, random);
    }

    /// Returns true if a release was announced that the head does not follow at once.
    pub(crate) fn take_news(&mut self) -> bool {
        self.herd.take_news()
    }

    /// The head's question failed, and not because its own wait has ended.
    pub(crate) fn on_unanswered(&mut self, error: &Error) {
        self.questions.on_unanswered(error);
    }

    /// What the holder of `ticket` has to do; leaves its waker if it has to wait. The head waits, too, while a caller
    /// asks from outside the queue.
    pub(crate) fn turn(&mut self, ticket: u64, asked_for: bool, now: Instant, cx: &mut Context<'_>) -> Turn {
        let is_head = self.is_head(ticket);
        let Some(Entry { waker, failed, waiter }) = self.queue.entry(ticket) else {
            return Turn::Ask { heard: false, since: now };
        };
        if let Some(hold) = waiter.handed.take() {
            return Turn::Take(hold);
        }
        waiter.asks = false;
        if waiter.open {
            return Turn::Open;
        }
        if let Some(error) = failed {
            return Turn::Failed(Error::clone(error));
        }
        if waiter.take_may_ask(self.let_in) {
            waiter.asks = true;
            return Turn::Ask { heard: false, since: now };
        }
        *waker = Some(cx.waker().clone());
        self.asleep_from = self.asleep_from.min(ticket);
        if !is_head || asked_for {
            return Turn::Wait(None);
        }
        self.head_is_untold = false;
        if self.turns.is_unanswered() && !self.questions.is_due(now) {
            // What is heard now is this process' own release.
            return Turn::Wait(self.questions.poll_at);
        }
        self.turns.give_up();
        self.look_at = self.look_at.filter(|at| now < *at);
        let heard = self.hears(now, cx);
        let mut turn = self.questions.ask_or_wait(heard, now);
        if let (Turn::Ask { heard, .. }, Some(waiter)) = (&mut turn, self.queue.get_mut(ticket)) {
            waiter.asks = true;
            *heard |= self.herd.take_notified();
        }
        turn
    }

    /// Whether a message was heard that the head has to follow at once. While others are to have their turns it is theirs, and the
    /// head looks after a while whether they have come.
    fn hears(&mut self, now: Instant, cx: &mut Context<'_>) -> bool {
        loop {
            match self.questions.messages(cx) {
                0 => return false,
                messages if self.follows(messages, now) => return true,
                _ => {}
            }
        }
    }

    /// The same, of so many messages. Each is a turn: a thread that had to wait for a processor finds several at once, and would stand
    /// back for one turn too many.
    fn follows(&mut self, messages: u64, now: Instant) -> bool {
        for _ in 0..messages {
            match self.turns.hear(now) {
                Message::Free => match self.herd.on_release(now) {
                    None => return true,
                    Some(at) => {
                        // The lease that the last refusal told of has ended with this release.
                        let at = self.look_at.map_or(at, |look_at| look_at.min(at));
                        self.questions.poll_at = self.questions.poll_at.map(|_| at);
                        continue;
                    }
                },
                Message::NextTurn(until) => self.questions.poll_at = Some(until),
                Message::Own => self.questions.poll_by(now + POLL_UNTOLD),
            }
            self.look_at = self.questions.poll_at;
        }
        false
    }

    /// The waiter with this ticket asks in another way than others may.
    pub(crate) fn asks_in(&mut self, ticket: u64, manner: Manner) {
        if let Some(waiter) = self.queue.get_mut(ticket) {
            waiter.manner = manner;
        }
    }

    /// The waiter with this ticket takes a hold of this process as it is.
    pub(crate) fn takes_over(&mut self, ticket: u64) {
        if let Some(waiter) = self.queue.get_mut(ticket) {
            waiter.takes_over = true;
        }
    }

    /// Whether the head takes a hold of this process as it is.
    pub(crate) fn head_takes_over(&mut self) -> bool {
        let takes = |Entry { failed, waiter, .. }: &mut Entry<Waiter>| {
            waiter.takes_over && !waiter.asks && waiter.handed.is_none() && failed.is_none()
        };
        self.queue.head().is_some_and(takes)
    }

    /// Whether something was heard that speaks against a hold of this process: not its own release.
    pub(crate) fn has_heard(&mut self, now: Instant) -> bool {
        let Some(news) = &mut self.questions.subscription else { return false };
        if !news.has_changed() {
            return false;
        }
        let is_own = self.turns.is_own(now);
        if is_own {
            news.take_changed();
        }
        !is_own
    }

    /// Returns for how long this process may hand the lock over: see [`Turns::share_of`].
    pub(crate) fn time(&mut self, budget: Duration, now: Instant) -> Time {
        let share = if self.has_heard(now) { Duration::ZERO } else { self.turns.share_of(budget) };
        Time { last: self.handed, share, opening: self.turns.opening(now) }
    }

    /// The question of the waiter with this ticket was answered.
    pub(crate) fn was_answered(&mut self, ticket: u64) {
        if let Some(waiter) = self.queue.get_mut(ticket) {
            waiter.asks = false;
        }
    }

    /// The waiter with this ticket asks at its next turn, head or not.
    pub(crate) fn let_ask(&mut self, ticket: u64) {
        if let Some(waiter) = self.queue.get_mut(ticket) {
            waiter.may_ask = true;
        }
    }

    /// The head has this hold from now on. Returns its waker.
    pub(crate) fn hand_over(&mut self, hold: u32, handed: Handed, now: Instant) -> Option<Waker> {
        let to = self.queue.head_ticket()?;
        self.handed = Some(Handed { to: Some((to, now)), ..handed });
        let head = self.queue.head()?;
        head.waiter.handed = Some(hold);
        head.waker.take()
    }

    /// A waiter leaves who took what was handed over to it. The next one is not woken: before long it is handed over to that one,
    /// or it is given back, or the watchdog [looks after](Self::look_after) it.
    pub(crate) fn leave_with_handed(&mut self, ticket: u64, now: Instant) {
        self.queue.leave(ticket);
        self.questions.answered();
        self.questions.poll_at = Some(now + REPOLL);
        self.head_is_untold = true;
    }

    /// Whether something was handed over to the waiter with this ticket.
    pub(crate) fn is_handed(&mut self, ticket: u64) -> bool {
        self.queue.get_mut(ticket).is_some_and(|waiter| waiter.handed.is_some())
    }

    /// What was handed over to a waiter that leaves without it.
    pub(crate) fn untaken(&mut self, ticket: u64) -> Option<u32> {
        self.queue.get_mut(ticket)?.handed.take()
    }

    /// Whether the watchdog is to be told to look after what is handed over; from now on it does.
    pub(crate) fn begin_looking_after(&mut self) -> bool {
        !std::mem::replace(&mut self.looked_after, true)
    }

    /// Looks after what is handed over: a waiter that has not taken it for so long may not do so soon, and is not offered any again.
    /// Returns that hold, the head's waker, which may have to look by itself from now on, and whether to come again.
    pub(crate) fn look_after(&mut self, now: Instant) -> (Option<u32>, Option<Waker>, bool) {
        let last = self.handed.and_then(|handed| handed.to);
        let is_old = last.is_none_or(|(_, at)| now.saturating_duration_since(at) >= UNTAKEN);
        let waiter = last.filter(|_| is_old).and_then(|(ticket, _)| self.queue.get_mut(ticket));
        let untaken = waiter.and_then(|waiter| {
            waiter.takes_over = false;
            waiter.handed.take()
        });
        self.looked_after = !is_old;
        // Nobody has asked for as long as the lock was handed over, so nobody listens.
        self.questions.poll_now |= is_old && untaken.is_none() && self.questions.subscription.is_none();
        (untaken, self.head_to_wake(), !is_old)
    }

    /// The lock is given back by this process though there are waiters; `out_of_time` if only to let others have it. Then the head
    /// waits until it is known which contenders that [found](Self::released). Returns the head's waker if it has to look.
    pub(crate) fn give_back(&mut self, out_of_time: bool, now: Instant) -> Option<Waker> {
        if !out_of_time && !self.head_is_untold && self.questions.subscription.is_some() {
            return None;
        }
        if let Some(news) = self.questions.subscription.as_mut().filter(|_| out_of_time) {
            // What was heard so far is no news of the release that follows.
            news.take_changed();
        }
        match self.turns.give_back(out_of_time, now) {
            Some(until) => (self.questions.poll_at, self.questions.poll_now) = (Some(until), false),
            None => {
                self.questions.poll_by(now + POLL_UNTOLD);
                self.questions.poll_now |= self.questions.subscription.is_none();
            }
        }
        self.look_at = self.questions.poll_at;
        self.head_to_wake()
    }

    /// Enters the contenders that a release for the others' sake found, this process among the receivers if it listens. If there are
    /// others, the head stands back until their messages come, or for as long as they need to poll. Returns the head's waker.
    pub(crate) fn released(&mut self, contenders: Contenders, now: Instant) -> Option<Waker> {
        if !self.turns.is_unanswered() {
            return None;
        }
        let listens = self.questions.subscription.is_some();
        let news = self.questions.subscription.as_mut().filter(|news| news.is_confirmed());
        let messages = news.map(Subscription::take_changes);
        let asks = match self.turns.found(contenders, listens, messages.map(|messages| messages > 0), now) {
            Then::Ask => true,
            Then::StandBack(until) => {
                (self.questions.poll_at, self.look_at) = (Some(until), Some(until));
                // The first is this process' own. Behind it are those of others who have had their turns meanwhile.
                self.follows(messages.unwrap_or_default().saturating_sub(1), now)
            }
        };
        self.questions.poll_now = asks && self.queue.head().is_some_and(|head| !head.waiter.asks);
        self.head_to_wake()
    }

    /// A waiter leaves the queue. Returns the next head's waker, if the head left.
    ///
    /// A head that leaves without an answer to its question may have consumed a wake-up, and one that was let in may not have asked
    /// yet, so the next head asks at once; and so it does where one leaves in the middle of a question that is the head no more, for
    /// others have joined in front of it whose answers are older. It also asks if what was refused to the one that left says nothing of
    /// what it wants itself, or that one did not listen. A head that got the lock, for the time of `lease`, has nothing to pass on: the next one
    /// hears of its release. Not of its lease's end, though, so it asks then.
    pub(crate) fn leave(&mut self, ticket: u64, lease: Option<Duration>, now: Instant) -> Option<Waker> {
        let was_head = self.is_head(ticket);
        let manner = self.queue.get_mut(ticket).map(|waiter| waiter.manner).unwrap_or_default();
        let left = self.queue.leave(ticket);
        let owes = |mut waiter: Waiter| waiter.take_may_ask(self.let_in) || (waiter.asks && lease.is_none());
        let owes_a_question = left.is_some_and(owes);
        self.questions.poll_now |= owes_a_question;
        if self.queue.is_empty() || lease.is_some() {
            if lease.is_some() {
                self.turns.end();
            } else {
                self.is_untold |= self.turns.give_up_lock();
            }
            self.look_at = None;
        }
        if self.queue.is_empty() {
            // No waiter is left to whom an old error would matter; one that comes later asks anew.
            self.questions.last_error = None;
            self.questions.poll_now |= self.questions.unanswered_since.take().is_some();
        }
        if !was_head {
            return if owes_a_question { self.head_to_wake() } else { None };
        }
        if lease.is_none() {
            self.questions.poll_now |= self.next_may_fare_better_than(manner);
        }
        match lease {
            Some(_) => {
                self.herd.granted();
                self.is_held(now, lease);
                self.refused = 0;
                // Without a subscription no waiter would hear of the release.
                self.questions.poll_now = self.questions.subscription.is_none();
            }
            None => self.questions.poll_now |= self.questions.unanswered_since.is_some(),
        }
        self.head_to_wake()
    }

    /// Whether the next head may have what was refused to one who asked in this manner, or hear of what that one did not.
    fn next_may_fare_better_than(&mut self, manner: Manner) -> bool {
        let refused = self.refused;
        let fares_better =
            |waiter: &Waiter| waiter.wants < refused || waiter.manner.fares_better_than(manner);
        self.queue.head().is_some_and(|head| fares_better(&head.waiter))
    }

    /// A waiter leaves who was let in, where many may hold the lock and there is no room for more. It is not the only holder: when the
    /// leases of the others end is known as before, and what gave a reason to ask since its question was sent still does. Returns the next
    /// head's waker, if the head left.
    pub(crate) fn leave_full(&mut self, ticket: u64, lease: Duration, now: Instant) -> Option<Waker> {
        let (poll_at, poll_now) = (self.questions.poll_at, self.questions.poll_now);
        let next = self.leave(ticket, Some(lease), now);
        poll_at.into_iter().for_each(|at| self.questions.poll_by(at));
        self.questions.poll_now |= poll_now || poll_at.is_none();
        next
    }

    /// A waiter leaves who was let in, where many may hold the lock and there is `room` for more: those for whom it will do ask at
    /// once, each for itself, but nobody before one who came earlier. So many had `joined` when it asked. Returns their wakers.
    pub(crate) fn leave_open(&mut self, ticket: u64, mut room: u32, joined: u64) -> Vec<Waker> {
        self.queue.leave(ticket);
        self.questions.answered();
        let mut let_in = Vec::new();
        if room == u32::MAX {
            self.open_since.get_or_insert(joined);
            let_in.extend(self.asleep().filter_map(|entry| entry.waker.take()));
            self.asleep_from = u64::MAX;
            self.let_in = self.let_in.wrapping_add(1);
        } else {
            for Entry { waker, waiter, .. } in self.queue.entries() {
                let Some(left) = room.checked_sub(waiter.wants) else { break };
                room = left;
                waiter.may_ask = true;
                let_in.extend(waker.take());
            }
        }
        self.refused = if room < u32::MAX { room + 1 } else { 0 };
        if let_in.is_empty() {
            // Without a subscription the head would not hear of the next release.
            self.questions.poll_now |= self.questions.subscription.is_none();
            let_in.extend(self.head_to_wake());
        }
        let_in
    }

    /// The waiters of whom some may sleep, in order.
    fn asleep(&mut self) -> impl Iterator<Item = &mut Entry<Waiter>> {
        self.queue.entries_from(self.asleep_from)
    }

    /// When a waiter looked for the first time, the last latch had ended then.
    pub(crate) fn saw(&mut self, ticket: u64, ended: u64) {
        if let Some(waiter) = self.queue.get_mut(ticket) {
            waiter.ended.get_or_insert(Ended::at(ended));
        }
    }

    /// A waiter was told that a latch has ended; so many had joined when it `asked`. If the latch `is_open`, it has ended for all who had
    /// joined by then; in any case it has for those who looked for the first time before it `ended`. The others look again. Returns the
    /// wakers of those who have something to do now.
    pub(crate) fn open(&mut self, is_open: bool, ended: u64, asked: u64) -> Vec<Waker> {
        let mut woken = Vec::new();
        for Entry { waker, waiter, .. } in self.queue.entries() {
            let looked_before = waiter.ended.is_some_and(|before| before < Ended::at(ended));
            if looked_before || (is_open && waiter.joined < asked) {
                waiter.open = true;
                woken.extend(waker.take());
            } else {
                self.questions.poll_now = true;
            }
        }
        if self.questions.poll_now {
            woken.extend(self.head_to_wake());
        }
        woken
    }

    /// The head asks whether those who share the lock can have it: who comes from now on has not been told that it is held.
    pub(crate) fn head_asks(&mut self) {
        self.open_since.get_or_insert(self.joined);
    }

    /// A waiter leaves for whom the latch is open. Returns the next head's waker, if the head left.
    pub(crate) fn leave_opened(&mut self, ticket: u64) -> Option<Waker> {
        let was_head = self.is_head(ticket);
        self.queue.leave(ticket);
        self.questions.answered();
        if was_head { self.head_to_wake() } else { None }
    }

    /// The lock may be free, though no message says so: the head is to ask. Returns its waker.
    pub(crate) fn poll_now(&mut self) -> Option<Waker> {
        self.questions.poll_now = true;
        self.head_to_wake()
    }

    /// Returns true, once, if other listeners are to be notified that the lock is free.
    pub(crate) fn take_untold(&mut self) -> bool {
        std::mem::take(&mut self.is_untold)
    }

    /// Returns true if the server refuses the messages.
    pub(crate) fn is_deaf(&self) -> bool {
        self.questions.subscription.as_ref().is_some_and(|news| news.refusal().is_some())
    }

    /// Callers from outside the queue found the lock free.
    pub(crate) fn was_free(&mut self) {
        self.turns.was_free();
    }

    /// The head's waker.
    pub(crate) fn head_to_wake(&mut self) -> Option<Waker> {
        self.queue.head_to_wake()
    }

    /// What the waiter with this ticket can be told when its wait has ended. One who still `waits_for_its_first_answer` is not told what
    /// was known when it came, if that is over.
    pub(crate) fn known(&mut self, ticket: u64, waits_for_its_first_answer: bool) -> Known {
        let joined = self.queue.get_mut(ticket).map(|waiter| waiter.joined);
        let came_later = joined.zip(self.open_since).is_some_and(|(joined, open)| joined >= open);
        match self.questions.known() {
            Known::Held { .. } if came_later && waits_for_its_first_answer => Known::Nothing,
            known => known,
        }
    }

    /// The server could not be asked for as long as any question waits for its answer, or refused: what stopped the head stops
    /// every waiter who is in the queue now. Who comes later has a patience of its own, whether or not the queue was empty in between.
    pub(crate) fn fail_all(&mut self, error: &Error) -> Vec<Waker> {
        self.questions.poll_now |= self.questions.unanswered_since.take().is_some();
        self.queue.fail_all(error)
    }

    /// Whether the last waiter has just left, and the end of its subscription is to be planned.
    pub(crate) fn begin_lingering(&mut self) -> bool {
        let quiet = self.queue.is_empty() && self.questions.subscription.is_some();
        quiet && !std::mem::replace(&mut self.lingering, true)
    }

    /// Gives the subscription up if there are no waiters and many processes listen: those that still wait pause for less if only they
    /// are counted. The caller drops it after unlocking.
    pub(crate) fn leave_the_crowd(&mut self) -> Option<Subscription> {
        if self.queue.is_empty() && self.herd.is_crowded() {
            self.questions.subscription.take()
        } else {
            None
        }
    }

    /// Gives the subscription up if there are no waiters. The caller drops it after unlocking.
    pub(crate) fn stop_listening(&mut self) -> Option<Subscription> {
        self.lingering = false;
        if self.queue.is_empty() { self.questions.subscription.take() } else { None }
    }

    /// Whether there are no waiters and nothing is listened to.
    pub(crate) fn is_over(&self) -> bool {
        self.queue.is_empty() && self.questions.subscription.is_none()
    }

    /// Whether the waiter with `ticket` is the head.
    pub(crate) fn is_head(&self, ticket: u64) -> bool {
        self.queue.is_head(ticket)
    }
}

/// How long a waiter may take to take what was handed over to it: long beside any delay of a task that its runtime polls.
pub(crate) const UNTAKEN: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
