//! The waiters of this process for one lock.
//!
//! The queue decides when the head polls the server. It does not keep the waiters' order (`queue`) or the head's poll schedule
//! (`poll_schedule`).
//!
//! Only the head of the queue polls, and only for a reason. Reasons are a message, the end of the holder's lease, and the bounded re-poll.
//! The other waiters sleep, so a thousand waiters cost the server as much as one. A head that leaves passes on the reason to poll that it
//! may not have used.

mod handed;
mod owners;
mod waiter;

use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use wheellock_client::Subscription;

use crate::base::error::Error;
use crate::wait::herd::Herd;
use crate::wait::key_changes::KeyChanges;
use crate::wait::latch_state::LatchState;
use crate::wait::poll_schedule::{Known, POLL_UNTOLD, PollSchedule, REPOLL, Turn};
use crate::wait::queue::{Entry, Queue};
use crate::wait::turns::{Contenders, Message, Then, Turns};
pub(crate) use handed::{Handed, TurnLimit};
pub(crate) use waiter::Manner;
use waiter::{State, Waiter};

/// The waiters of this process for one lock, with their poll schedule.
#[derive(Default)]
pub(crate) struct WaitQueue {
    queue: Queue<Waiter>,
    /// Poll schedule of the head, passed on from head to head. Its subscription is kept while there are waiters, and a little longer.
    questions: PollSchedule,
    /// When the holder's lease ends, by the last refusal. It only informs callers whose waits end.
    lease_ends: Option<Instant>,
    /// Next poll after our own release. A reply to a request from before the release must not postpone it.
    look_at: Option<Instant>,
    /// The watchdog drops the subscription if no waiter joins soon.
    lingering: bool,
    /// First ticket that was not given out when shared access was last possible or last polled for. Waiters from this ticket on have not
    /// been refused yet.
    open_since: Option<u64>,
    /// Number of broadcasts. A waiter that missed one may poll once. A counter keeps the cost low if each of many readers lets in all
    /// others.
    let_in: u32,
    /// All waiters before this ticket are awake (bounds the next broadcast).
    asleep_from: u64,
    /// Last hand-over within this process.
    handed: Option<Handed>,
    /// The current head was not woken when it became head, because the lock was being handed over.
    head_is_unnotified: bool,
    /// A check for unclaimed hand-overs is planned. False again when the check ends.
    check_is_planned: bool,
    /// Smallest permit count known to be unavailable. Waiters that want fewer permits may succeed.
    refused: u32,
    turns: Turns,
    /// The lock was left free without a message, and no waiter of this process wants the lock any more.
    is_unannounced: bool,
    herd: Herd,
    changes: KeyChanges,
    /// Findings of the waiters' polls, if this is the queue of a latch.
    pub(crate) latch: LatchState,
}

impl WaitQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Adds a waiter at the end of the queue. Returns its ticket.
    pub(crate) fn join(&mut self, wants: u32) -> u64 {
        if self.queue.is_empty() && self.look_at.is_none() {
            // A reply to earlier waiters says nothing about the lock now. The server may have stopped replying since.
            self.questions.poll_at = None;
        }
        self.queue.join(Waiter::new(wants, self.let_in))
    }

    /// Adds a waiter before all others. None of them has polled yet. Returns its ticket.
    pub(crate) fn join_first(&mut self, wants: u32) -> u64 {
        self.queue.join_first(Waiter::new(wants, self.let_in))
    }

    /// Discards old messages before a caller outside the queue sends a request. They are older than the reply, so they carry no news.
    pub(crate) fn discard_old_messages(&mut self) {
        if let Some(subscription) = self.questions.subscription.as_mut().filter(|_| self.queue.is_empty()) {
            subscription.take_changed();
        }
    }

    /// Makes the head poll again if the waiter with this ticket is the head. The waiter was refused, but a message that arrived meanwhile
    /// may have been discarded as an old one.
    pub(crate) fn may_have_missed_a_message(&mut self, ticket: u64) {
        self.questions.poll_now |= self.is_head(ticket) && self.questions.subscription.is_some();
    }

    /// See [`PollSchedule::listen`].
    pub(crate) fn listen(&mut self, subscribe: impl FnOnce() -> Subscription) {
        self.questions.listen(subscribe);
    }

    /// Records the server's refusal. The lock is held for at least `lease_left`, or without a bound if `None`.
    pub(crate) fn on_held(&mut self, now: Instant, lease_left: Option<Duration>) {
        self.is_held(now, lease_left);
        if let Some(again) = self.turns.refused(now) {
            self.questions.poll_by(again);
        }
    }

    fn is_held(&mut self, now: Instant, lease_left: Option<Duration>) {
        self.open_since = None;
        self.refused = self.queue.first().map_or(0, |head| head.waiter.wants);
        self.questions.on_held(now, lease_left);
        if let Some(look_at) = self.look_at {
            self.questions.poll_by(look_at);
        }
    }

    /// Records whether the holder sends a message when it releases the lock, by the last refusal of the head.
    pub(crate) fn set_silent(&mut self, is_silent: bool) {
        self.changes.set_silent(is_silent);
    }

    /// Records when the holder's lease ends, by the last refusal of any waiter.
    pub(crate) fn set_lease_ends(&mut self, lease_ends: Option<Instant>) {
        self.lease_ends = lease_ends;
    }

    /// Returns when the holder's lease ends, by the last refusal of any waiter.
    pub(crate) fn lease_ends(&self) -> Option<Instant> {
        self.lease_ends
    }

    /// Records that the server refused the head after this round trip and counted this many listeners. `random` is uniform over all of
    /// `u64`.
    pub(crate) fn refused_among(&mut self, listeners: u32, trip: Duration, random: u64) {
        self.herd.refused(listeners, trip, random);
    }

    /// Returns true if a release was announced after which the head does not poll at once.
    pub(crate) fn take_news(&mut self) -> bool {
        self.herd.take_news()
    }

    /// Records that the head's request failed, but not because the head's own wait ended.
    pub(crate) fn on_unanswered(&mut self, error: &Error) {
        self.questions.on_unanswered(error);
    }

    /// Returns the next step of the waiter with this ticket. Keeps the waker of a waiter that has to wait. The head also waits while a
    /// caller polls from outside the queue (`asked_for`).
    pub(crate) fn turn(&mut self, ticket: u64, asked_for: bool, now: Instant, cx: &mut Context<'_>) -> Turn {
        let (is_head, polling) = (self.is_head(ticket), State::Polling(self.queue.next_ticket()));
        let Some(Entry { waker, failed, waiter }) = self.queue.get_mut(ticket) else {
            return Turn::Ask { heard: false, since: now, remembers: false };
        };
        if let Some(hold) = waiter.take_hold() {
            return Turn::Take(hold);
        }
        // The waiter's last request has ended, with or without a reply.
        waiter.state = State::Waiting;
        if let Some(error) = failed {
            return Turn::Failed(Error::clone(error));
        }
        if waiter.take_may_poll(self.let_in) {
            waiter.state = polling;
            return Turn::Ask { heard: false, since: now, remembers: false };
        }
        *waker = Some(cx.waker().clone());
        self.asleep_from = self.asleep_from.min(ticket);
        if !is_head || asked_for {
            return Turn::Wait(None);
        }
        self.head_is_unnotified = false;
        if self.turns.is_unanswered() && !self.questions.is_due(now) {
            // Messages that arrive now announce our own release, so they carry no news.
            return Turn::Wait(self.questions.poll_at);
        }
        // The reply to our release is overdue, so the head stops waiting for it.
        self.turns.give_up();
        self.look_at = self.look_at.filter(|at| now < *at);
        let heard = self.hears(now, cx);
        let is_refused = self.questions.poll_at.is_some();
        let is_changed = self.changes.is_due(now);
        self.questions.poll_now |= is_changed;
        match (self.questions.ask_or_wait(heard, now), self.queue.waiter(ticket)) {
            (Turn::Ask { heard, since, .. }, Some(waiter)) => {
                waiter.state = polling;
                self.changes.settle();
                let heard = heard | self.herd.take_notified();
                // Where messages tell of the releases, the next one probably follows soon, so the server need not tell of it as well. A
                // change would also make a crowd poll at once.
                let is_quiet = !heard && !self.herd.is_crowded();
                let remembers = is_refused && (is_quiet || self.changes.is_silent());
                Turn::Ask { heard: heard | is_changed, since, remembers }
            }
            (Turn::Wait(until), _) => Turn::Wait(until.into_iter().chain(self.changes.poll_at()).min()),
            (turn, _) => turn,
        }
    }

    /// Makes the head poll after another client has changed the lock's key. Returns the head's waker.
    pub(crate) fn key_changed(&mut self, now: Instant) -> Option<Waker> {
        // A process that leaves the lock to others polls at a known time. An earlier poll would take the lock from them.
        if self.queue.is_empty() || self.stands_back(|| now) {
            return None;
        }
        self.changes.on_change(now);
        self.head_to_wake()
    }

    /// Makes the head poll after all keys were deleted. Returns the head's waker.
    pub(crate) fn keys_flushed(&mut self, now: Instant) -> Option<Waker> {
        // After a reconnect the head polls when the server has confirmed the subscription.
        let is_connecting = self.questions.subscription.as_ref().is_some_and(|news| !news.is_confirmed());
        if is_connecting { None } else { self.key_changed(now) }
    }

    /// Returns true if the head must poll at once because of a message. While other processes are to have their turns, the message is for
    /// them. The head then polls later, to see whether they have taken their turns.
    fn hears(&mut self, now: Instant, cx: &mut Context<'_>) -> bool {
        loop {
            match self.questions.messages(cx) {
                0 => return false,
                messages if self.follows(messages, now) => return true,
                _ => {}
            }
        }
    }

    /// Returns true if one of these messages makes the head poll at once. Each message counts as a turn. A thread that was waiting for a
    /// processor finds several messages at once. If they counted as one, the head would wait for too many turns.
    fn follows(&mut self, messages: u64, now: Instant) -> bool {
        if messages > 0 {
            self.changes.settle();
        }
        for _ in 0..messages {
            match self.turns.hear(now) {
                Message::Free => match self.herd.on_release(now) {
                    None => return true,
                    Some(at) => {
                        // The lease that the last refusal reported has ended with this release.
                        let at = self.look_at.map_or(at, |look_at| look_at.min(at));
                        self.questions.poll_at = self.questions.poll_at.map(|_| at);
                        continue;
                    }
                },
                Message::NextTurn(until) => self.questions.poll_at = Some(until),
                Message::Own => self.questions.poll_by(now + POLL_UNTOLD),
            }
            // A late reply to an earlier request must not postpone this poll.
            self.look_at = self.questions.poll_at;
        }
        false
    }

    /// Sets how the waiter with this ticket polls.
    pub(crate) fn set_manner(&mut self, ticket: u64, manner: Manner) {
        if let Some(waiter) = self.queue.waiter(ticket) {
            waiter.manner = manner;
        }
    }

    /// Returns true if the head accepts a hold of this process as it is.
    pub(crate) fn head_takes_over(&mut self) -> bool {
        let takes = |Entry { failed, waiter, .. }: &mut Entry<Waiter>| {
            failed.is_none() && waiter.manner.takes_over && waiter.state == State::Waiting
        };
        self.queue.first().is_some_and(takes)
    }

    /// Returns true if a message announces another process' release. Such a message casts doubt on a hold of this process. The message of
    /// this process' own release does not.
    fn has_heard(&mut self, now: Instant) -> bool {
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
    pub(crate) fn turn_limit(&mut self, budget: Duration, now: Instant) -> TurnLimit {
        let budget = if self.has_heard(now) { Duration::ZERO } else { self.turns.share_of(budget) };
        let is_tight = self.turns.is_limit(budget);
        TurnLimit { last: self.handed, budget, is_tight, opening: self.turns.opening(now) }
    }

    /// Marks the request of the waiter with this ticket as answered.
    pub(crate) fn was_answered(&mut self, ticket: u64) {
        // A hold may have been handed over to a waiter that has polled before it joined.
        if let Some(waiter) = self.queue.waiter(ticket).filter(|waiter| waiter.is_polling()) {
            waiter.state = State::Waiting;
        }
    }

    /// Makes the waiter with this ticket poll at its next turn, head or not.
    pub(crate) fn allow_poll(&mut self, ticket: u64) {
        if let Some(waiter) = self.queue.waiter(ticket) {
            waiter.allow_poll(self.let_in);
        }
    }

    /// Hands this hold over to the head. Returns the head's waker.
    pub(crate) fn hand_over(&mut self, hold: u32, handed: Handed, now: Instant) -> Option<Waker> {
        let to = self.queue.first_ticket()?;
        self.handed = Some(Handed { to: Some((to, now)), ..handed });
        let head = self.queue.first()?;
        head.waiter.state = State::HandedOver(hold);
        head.waker.take()
    }

    /// Returns true if a hold was handed over to the waiter with this ticket.
    pub(crate) fn is_handed(&mut self, ticket: u64) -> bool {
        self.queue.waiter(ticket).is_some_and(|waiter| matches!(waiter.state, State::HandedOver(_)))
    }

    /// Takes back the hold that was handed over to a waiter, if that waiter leaves without accepting the hold.
    pub(crate) fn unclaimed(&mut self, ticket: u64) -> Option<u32> {
        self.queue.waiter(ticket)?.take_hold()
    }

    /// Returns true if no check for unclaimed hand-overs is planned yet. From now on it is, until `look_after` returns that none follows.
    pub(crate) fn must_plan_check(&mut self) -> bool {
        !std::mem::replace(&mut self.check_is_planned, true)
    }

    /// Takes back a hold that was handed over and not accepted within [`UNCLAIMED`]. Its waiter may not be polled soon, so the waiter is not
    /// offered a hold again.
    ///
    /// Returns that hold, the head's waker, and true if the watchdog must check again. If it must not, the next hand-over plans a check. The
    /// head may have to poll by itself from now on.
    pub(crate) fn look_after(&mut self, now: Instant) -> (Option<u32>, Option<Waker>, bool) {
        let last = self.handed.and_then(|handed| handed.to);
        let is_old = last.is_none_or(|(_, at)| now.saturating_duration_since(at) >= UNCLAIMED);
        let waiter = last.filter(|_| is_old).and_then(|(ticket, _)| self.queue.waiter(ticket));
        let unclaimed = waiter.and_then(|waiter| {
            waiter.manner.takes_over = false;
            waiter.take_hold()
        });
        self.check_is_planned = !is_old;
        // No waiter polls while the lock is handed over, so there may be no subscription. Without one only a poll finds the lock free.
        self.questions.poll_now |= is_old && unclaimed.is_none() && self.questions.subscription.is_none();
        (unclaimed, self.head_to_wake(), !is_old)
    }

    /// Records that this process releases the lock although there are waiters. `out_of_time` is true if the release only lets other
    /// processes have the lock. The head then waits until [`released`](Self::released) reports the contenders. Returns the head's waker if
    /// the head has to take its next step.
    pub(crate) fn give_back(&mut self, out_of_time: bool, now: Instant) -> Option<Waker> {
        if !out_of_time && !self.head_is_unnotified && self.questions.subscription.is_some() {
            return None;
        }
        if let Some(news) = self.questions.subscription.as_mut().filter(|_| out_of_time) {
            // Messages from before the release carry no news about it.
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

    /// Returns true if the next release must let other processes have the lock, although this process does not hand the lock over.
    pub(crate) fn may_let_others(&mut self, now: Instant) -> bool {
        if self.turns.heeds_messages() && self.has_heard(now) {
            self.turns.was_taken();
        }
        self.turns.may_stand_back(now)
    }

    /// Returns true if the next release must leave the lock free for polling callers of this process.
    pub(crate) fn opens_for_pollers(&mut self, now: Instant) -> bool {
        !self.queue.is_empty() && self.turns.opens_for_pollers(now)
    }

    /// Records such a release. This process does not poll until [`released`](Self::released) reports the contenders. Returns the head's
    /// waker, because the head has to take its next step.
    pub(crate) fn let_others(&mut self, now: Instant) -> Option<Waker> {
        if let Some(news) = &mut self.questions.subscription {
            news.take_changed();
        }
        self.turns.release(now);
        self.stand_back(now + POLL_UNTOLD);
        self.head_to_wake()
    }

    /// As [`released`](Self::released), for a release that did not let others have the lock. The first such release finds them.
    pub(crate) fn released_unaware(&mut self, contenders: Contenders, now: Instant) -> Option<Waker> {
        let finds_others = self.turns.finds(contenders, self.listens());
        let asks = self.queue.first().is_some_and(|head| head.waiter.is_polling());
        if !finds_others || asks || !self.turns.may_stand_back(now) {
            return None;
        }
        self.turns.release(now);
        self.released(contenders, now)
    }

    fn listens(&self) -> bool {
        self.questions.subscription.as_ref().is_some_and(Subscription::is_confirmed)
    }

    /// Plans the head's next poll. A caller that joins until then does not know that the lock is held.
    fn stand_back(&mut self, until: Instant) {
        (self.questions.poll_at, self.questions.poll_now) = (Some(until), false);
        self.look_at = Some(until);
        self.open_since.get_or_insert(self.queue.next_ticket());
    }

    /// Returns true if the next caller must leave the lock to other processes for a while.
    pub(crate) fn stands_back(&self, now: impl FnOnce() -> Instant) -> bool {
        self.look_at.is_some_and(|at| now() < at)
    }

    /// Records the contenders that our release found, when the release let other processes have the lock. This process is among the
    /// receivers if it is subscribed. The head then waits for the others' messages, or for as long as polling contenders need. Returns the
    /// head's waker.
    pub(crate) fn released(&mut self, contenders: Contenders, now: Instant) -> Option<Waker> {
        if !self.turns.is_unanswered() {
            // This process has the lock again, or does not want it.
            self.turns.finds(contenders, self.listens());
            return None;
        }
        let listens = self.listens();
        let news = self.questions.subscription.as_mut().filter(|news| news.is_confirmed());
        let messages = news.map(Subscription::take_changes);
        let asks = match self.turns.found(contenders, listens, messages.map(|messages| messages > 0), now) {
            Then::Ask => {
                self.look_at = self.look_at.filter(|_| !self.queue.is_empty());
                true
            }
            Then::StandBack(until) => {
                self.stand_back(until);
                // The first message is that of our own release. The others come from processes that have had their turns meanwhile.
                self.follows(messages.unwrap_or_default().saturating_sub(1), now)
            }
        };
        // A pending request of the head already serves as the poll after the release. A caller that polls outside the queue may have been
        // refused before the release. Its message was counted above, so the caller would wait for the next one when it joins.
        self.questions.poll_now = asks && self.queue.first().is_none_or(|head| !head.waiter.is_polling());
        self.head_to_wake()
    }

    /// Removes a waiter from the queue. Returns the head's waker if its next step may have changed, and the wakers of the waiters that now
    /// poll, each for itself.
    ///
    /// After a wait in vain, the head polls at once in each of these cases:
    /// - The waiter left with a pending request or an unused permission to poll, so it may have consumed a wake-up. This also holds for a
    ///   waiter that is not the head any more. Waiters may have joined in front of it, but their replies are older.
    /// - The next head may succeed where the leaving head was refused.
    /// - The next head is subscribed, and the leaving head was not.
    ///
    /// A head that was granted the lock passes nothing on, because its release notifies the next head. The lease's end does not, so the
    /// next head polls then.
    pub(crate) fn leave(&mut self, ticket: u64, ending: Ending, now: Instant) -> (Option<Waker>, Vec<Waker>) {
        let was_head = self.is_head(ticket);
        let Some(mut left) = self.queue.leave(ticket) else { return (None, Vec::new()) };
        let (lease, is_full) = match ending {
            Ending::InVain => (None, false),
            Ending::HandedOver => {
                // The next waiter is not woken. Soon the hold is handed over to it or released, or the watchdog checks the hand-over.
                self.questions.answered();
                self.questions.poll_at = Some(now + REPOLL);
                self.head_is_unnotified = true;
                return (None, Vec::new());
            }
            Ending::Granted { room: Some(room @ 1..), .. } => return self.let_in(&left, room),
            Ending::Granted { lease, room } => (Some(lease), room.is_some()),
        };
        let (poll_at, poll_now) = (self.questions.poll_at, self.questions.poll_now);
        let owes_a_question = left.take_may_poll(self.let_in) || (left.is_polling() && lease.is_none());
        self.questions.poll_now |= owes_a_question;
        if self.queue.is_empty() || lease.is_some() {
            // The wait after our release ends: the head was granted the lock, or no waiter is left.
            if lease.is_some() {
                self.turns.granted(now);
            } else {
                self.is_unannounced |= self.turns.give_up_lock();
            }
            self.look_at = None;
        }
        if self.queue.is_empty() {
            // An old error concerns only the waiters that were in the queue. A later waiter sends a new request.
            self.questions.last_error = None;
            // A request without a reply may have consumed a wake-up, so the next waiter polls at once.
            self.questions.poll_now |= self.questions.unanswered_since.take().is_some();
        }
        match lease {
            _ if !was_head => return (owes_a_question.then(|| self.head_to_wake()).flatten(), Vec::new()),
            Some(_) => {
                self.herd.granted();
                self.is_held(now, lease);
                self.refused = 0;
                // Without a subscription no waiter is notified of the release.
                self.questions.poll_now = self.questions.subscription.is_none();
            }
            None => {
                self.questions.poll_now |=
                    self.next_may_fare_better_than(left.manner) || self.questions.unanswered_since.is_some();
            }
        }
        if is_full {
            // The other holders' leases stay as known, and so does a reason to poll that arose since the request was sent.
            poll_at.into_iter().for_each(|at| self.questions.poll_by(at));
            self.questions.poll_now |= poll_now || poll_at.is_none();
        }
        (self.head_to_wake(), Vec::new())
    }

    /// Returns true if the next head may succeed where a waiter of this manner was refused. Also returns true if the next head is
    /// subscribed and that waiter was not.
    fn next_may_fare_better_than(&mut self, manner: Manner) -> bool {
        let refused = self.refused;
        let fares_better =
            |waiter: &Waiter| waiter.wants < refused || waiter.manner.could_succeed_after(manner);
        self.queue.first().is_some_and(|head| fares_better(&head.waiter))
    }

    /// Lets waiters poll after a grant with `room` for more holders. Returns their wakers, or the head's waker if no waiter was let in.
    ///
    /// Waiters are let in while their permits fit into `room`, up to the first waiter that does not fit. No later waiter overtakes that
    /// waiter.
    fn let_in(&mut self, left: &Waiter, mut room: u32) -> (Option<Waker>, Vec<Waker>) {
        self.questions.answered();
        let mut let_in = Vec::new();
        if room == u32::MAX {
            self.open_since.get_or_insert(match left.state {
                State::Polling(before) => before,
                _ => self.queue.next_ticket(),
            });
            let_in.extend(self.asleep().filter_map(|entry| entry.waker.take()));
            self.asleep_from = u64::MAX;
            self.let_in = self.let_in.wrapping_add(1);
        } else {
            for Entry { waker, waiter, .. } in self.queue.values_mut() {
                let Some(left) = room.checked_sub(waiter.wants) else { break };
                room = left;
                waiter.allow_poll(self.let_in);
                let_in.extend(waker.take());
            }
        }
        self.refused = if room < u32::MAX { room + 1 } else { 0 };
        if !let_in.is_empty() {
            return (None, let_in);
        }
        // Without a subscription the head is not notified of the next release.
        self.questions.poll_now |= self.questions.subscription.is_none();
        (self.head_to_wake(), let_in)
    }

    /// Returns the waiters that may be asleep, in order.
    fn asleep(&mut self) -> impl Iterator<Item = &mut Entry<Waiter>> {
        self.queue.values_from(self.asleep_from)
    }

    /// Marks that the head polls whether shared access is possible. Waiters that join from now on have not been refused yet.
    pub(crate) fn head_polls(&mut self) {
        self.open_since.get_or_insert(self.queue.next_ticket());
    }

    /// Makes the head poll, because the lock may be free without a message. Returns the head's waker.
    pub(crate) fn poll_now(&mut self) -> Option<Waker> {
        self.questions.poll_now = true;
        self.head_to_wake()
    }

    /// Returns true, once, if other listeners are to be notified that the lock is free.
    pub(crate) fn take_unannounced(&mut self) -> bool {
        std::mem::take(&mut self.is_unannounced)
    }

    /// Returns true if the server refuses the subscription.
    pub(crate) fn is_deaf(&self) -> bool {
        self.questions.subscription.as_ref().is_some_and(|news| news.refusal().is_some())
    }

    /// Records that callers from outside the queue found the lock free.
    pub(crate) fn was_free(&mut self, now: Instant) {
        self.look_at = None;
        self.turns.was_free(now);
    }

    /// Returns the head's waker.
    pub(crate) fn head_to_wake(&mut self) -> Option<Waker> {
        self.queue.head_to_wake()
    }

    /// Returns the last known state of the lock for a waiter whose wait has ended. A waiter that `waits_for_its_first_answer` does not get
    /// a state from before it joined if that state has ended since.
    pub(crate) fn known(&mut self, ticket: u64, waits_for_its_first_answer: bool) -> Known {
        let came_later = self.open_since.is_some_and(|open| ticket >= open);
        match self.questions.known() {
            Known::Held { .. } if came_later && waits_for_its_first_answer => Known::Nothing,
            known => known,
        }
    }

    /// Fails every waiter in the queue with the head's error: the server did not reply in time, or refused. A waiter that joins later has a
    /// new deadline for replies, even if the queue was never empty in between. Returns the wakers.
    pub(crate) fn fail_all(&mut self, error: &Error) -> Vec<Waker> {
        self.questions.poll_now |= self.questions.unanswered_since.take().is_some();
        self.queue.fail_all(error)
    }

    /// Returns true if the last waiter has just left, and the end of its subscription is to be planned.
    pub(crate) fn begin_lingering(&mut self) -> bool {
        let quiet =
            self.queue.is_empty() && (self.questions.subscription.is_some() || self.look_at.is_some());
        quiet && !std::mem::replace(&mut self.lingering, true)
    }

    /// Gives up the subscription if there are no waiters and many processes are subscribed. The remaining processes pause for less if only
    /// waiting processes are counted. The caller drops the subscription after unlocking.
    pub(crate) fn leave_the_crowd(&mut self) -> Option<Subscription> {
        if self.queue.is_empty() && self.herd.is_crowded() {
            self.questions.subscription.take()
        } else {
            None
        }
    }

    /// Gives up the subscription if there are no waiters. The caller drops the subscription after unlocking.
    pub(crate) fn stop_listening(&mut self) -> Option<Subscription> {
        self.lingering = false;
        if self.queue.is_empty() { self.questions.subscription.take() } else { None }
    }

    /// Returns true if there are no waiters, there is no subscription, and this process does not stand back.
    pub(crate) fn is_over(&self) -> bool {
        self.queue.is_empty() && self.questions.subscription.is_none() && !self.lingering
    }

    /// Returns true if the waiter with `ticket` is the head.
    pub(crate) fn is_head(&self, ticket: u64) -> bool {
        self.queue.is_first(ticket)
    }
}

/// How a waiter's wait ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    InVain,
    /// With a hold of this process, which was handed over to the waiter.
    HandedOver,
    /// With a grant by the server. `room` is the number of further permits or holders for which there is room. It is `None` where a lock
    /// has one holder.
    Granted {
        lease: Duration,
        room: Option<u32>,
    },
}

/// Time within which a waiter has to accept a hand-over. It is much longer than any delay of a task that its runtime polls.
pub(crate) const UNCLAIMED: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
