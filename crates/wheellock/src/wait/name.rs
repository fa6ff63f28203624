//! A lock's name with its channel, kind and wait queue.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

use wheellock_client::slot_of;

use crate::base::clock::BootInstant;
use crate::base::error::{Error, MAX_NAME, Outcome};
use crate::kind::Kind;
use crate::wait::families::{Family, UNCLASSIFIED};
use crate::wait::spans::Subject;
use crate::wait::wait_queue::WaitQueue;

/// A lock's name, and this process' state for the lock. A process may hold a million locks, so this type is small. A name has one text, and
/// a wait queue only if there were waiters.
pub(crate) struct Name {
    /// The channel, which contains the name. Behind the channel is the key, if the key is not the name itself.
    texts: Box<str>,
    name: Range<u32>,
    /// The lock's key, channel and other keys have one hash slot.
    is_in_one_slot: bool,
    /// Family whose counters count this lock.
    family: Family,
    kind: &'static Kind,
    waiting: Mutex<Waiting>,
    /// Index plus one of the hold that had the lock last, or of the reader that was let in last. The field is read and written under the
    /// lock of the table of holds. It is only a hint: that hold may be gone, and another hold may have its index.
    last_holder: AtomicU32,
}

/// This process' callers that wait for a lock or poll for it.
#[derive(Default)]
pub(crate) struct Waiting {
    /// The waiters. `None` if there are none and were none a little while ago.
    pub(crate) queue: Option<Box<WaitQueue>>,
    /// Number of callers that poll from outside the queue. Such a caller joins the queue if the lock is held.
    polling: u16,
    /// The last caller that polled without prior knowledge was refused. The next caller will be refused, too.
    was_refused: bool,
    /// When a caller that receives no messages was first refused, or last marked that on the server. In milliseconds of the manager's
    /// clock.
    marked: u32,
    /// The last refusal was marked: such callers poll again and again.
    polls: bool,
}

impl Waiting {
    /// Returns the wait queue, which is created for the first waiter.
    pub(crate) fn queue(&mut self) -> &mut WaitQueue {
        self.queue.get_or_insert_default()
    }

    /// Drops the queue if it is not needed any more.
    pub(crate) fn drop_unused(&mut self) {
        self.queue = self.queue.take().filter(|waiters| !waiters.is_over());
    }

    /// Returns true if callers of this process have polled again and again within the last second, and receive no messages.
    pub(crate) fn is_polled_often(&self, now: impl FnOnce() -> BootInstant) -> bool {
        self.polls && now().millis().wrapping_sub(self.marked) <= MARK_FORGOTTEN
    }

    fn has_waiters(&self) -> bool {
        self.queue.as_ref().is_some_and(|waiters| !waiters.is_empty())
    }
}

impl Name {
    /// Creates the name of a lock of this kind. `in_cluster` is true if the lock's server belongs to a cluster.
    pub(crate) fn new(text: &str, kind: &'static Kind, in_cluster: bool) -> Self {
        let (mut texts, name) = kind.channel(text, in_cluster);
        let key = kind.own_key(text);
        let slot = |text: &str| slot_of(text.as_bytes());
        // A name without braces is the hash tag of its keys and its channel. A lone closing brace ends that tag too early. A node refuses
        // to announce a release on a channel of another slot.
        let may_be_apart = text.contains(['{', '}']);
        let is_in_one_slot = !may_be_apart || slot(key.as_deref().unwrap_or(text)) == slot(&texts);
        texts.extend(key);
        Self {
            texts: texts.into(),
            is_in_one_slot,
            name,
            family: UNCLASSIFIED,
            kind,
            waiting: Mutex::default(),
            last_holder: AtomicU32::new(0),
        }
    }

    pub(crate) fn in_family(self, family: Family) -> Self {
        Self { family, ..self }
    }

    /// Returns the family whose counters count this lock.
    pub(crate) fn family(&self) -> Family {
        self.family
    }

    /// Returns the span fields of this lock.
    pub(crate) fn span_fields(&self) -> Subject<'_> {
        Subject { lock: self.text(), kind: self.kind.label }
    }

    /// Returns the kind and the user's name of this lock, for messages.
    pub(crate) fn display_name(&self) -> String {
        format!("{} {self:?}", self.kind.noun)
    }

    /// Returns the user's name of this lock.
    pub(crate) fn text(&self) -> &str {
        self.texts.get(self.name.start as usize..self.name.end as usize).unwrap_or_default()
    }

    /// Returns the key of the holders on the server.
    pub(crate) fn key(&self) -> &str {
        if self.kind.has_own_key() {
            self.texts.get(self.end_of_channel()..).unwrap_or_default()
        } else {
            self.text()
        }
    }

    /// Returns the channel on which releases are announced.
    pub(crate) fn channel(&self) -> &str {
        if self.kind.has_own_key() {
            self.texts.get(..self.end_of_channel()).unwrap_or_default()
        } else {
            &self.texts
        }
    }

    /// Returns the common part of this lock's keys: the name, in braces if the name contains none.
    pub(crate) fn tag(&self) -> &str {
        self.texts.get(self.kind.tag_in_channel()..self.end_of_channel()).unwrap_or_default()
    }

    /// Returns the end of the channel. The channel ends with the name, or with the brace that was added to the name.
    fn end_of_channel(&self) -> usize {
        self.name.end as usize + usize::from(self.kind.is_braced(self.name.start))
    }

    /// Returns true if the lock's key, channel and other keys have one hash slot.
    pub(crate) fn is_in_one_slot(&self) -> bool {
        self.is_in_one_slot
    }

    pub(crate) fn kind(&self) -> &'static Kind {
        self.kind
    }

    /// Locks the callers that wait or poll.
    pub(crate) fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `with` on the wait queue, under its lock.
    pub(crate) fn waiters<T>(&self, with: impl FnOnce(&mut WaitQueue) -> T) -> T {
        with(self.waiting().queue())
    }

    /// Discards old messages before a caller from outside the queue sends a request: see [`WaitQueue::discard_old_messages`].
    ///
    /// Messages are kept while another caller polls, because they may be news for that caller's reply.
    pub(crate) fn discard_old_messages(&self) {
        self.discard_of(&mut self.waiting());
    }

    fn discard_of(&self, waiting: &mut Waiting) {
        if waiting.polling == 0
            && let Some(waiters) = &mut waiting.queue
        {
            waiters.discard_old_messages();
        }
    }

    /// Counts this caller as one that polls from outside the queue, if it may. The caller may poll if there are no waiters, the number of
    /// polling callers is below its limit, and other processes do not have their turns. Old messages are discarded then. Returns whether
    /// the last caller was refused, or `None` if this caller may not poll.
    ///
    /// An exclusive lock allows one polling caller. A shared lock allows [`MOST_POLLING`], so that a crowd does not fill the connection
    /// before the first caller has its reply.
    pub(crate) fn begin_fast_poll(&self, now: impl FnOnce() -> Instant) -> Option<bool> {
        let most = if self.kind.is_shared() { MOST_POLLING } else { 1 };
        let mut waiting = self.waiting();
        // Most locks have no queue, and then no clock is read.
        let stands_back = waiting.queue.as_ref().is_some_and(|waiters| waiters.stands_back(now));
        let may_poll = !waiting.has_waiters() && waiting.polling < most && !stands_back;
        if !may_poll {
            return None;
        }
        self.discard_of(&mut waiting);
        // This poll is counted under the lock of its check. A waiter that joins now sees it and sleeps until it ends.
        waiting.polling += 1;
        Some(waiting.was_refused)
    }

    /// Ends the poll of a counted caller, with or without a reply. Returns the head's waker if the head polls next.
    pub(crate) fn end_fast_poll(&self) -> Option<Waker> {
        let mut waiting = self.waiting();
        debug_assert!(waiting.polling > 0, "a poll ends once");
        waiting.polling = waiting.polling.saturating_sub(1);
        // Waiters of a shared lock do not sleep behind such a poll.
        if self.kind.is_shared() {
            return None;
        }
        // The head has slept behind this poll, whatever its reply was.
        waiting.queue.as_mut().and_then(|waiters| waiters.head_to_wake())
    }

    /// Returns true if a waiter has to wait for the reply to a caller outside the queue.
    pub(crate) fn is_polled(&self, waiting: &Waiting) -> bool {
        !self.kind.is_shared() && waiting.polling > 0
    }

    pub(crate) fn is_waited_for(&self) -> bool {
        self.waiting().has_waiters()
    }

    /// Returns true if there are no waiters, and the last caller was not refused.
    pub(crate) fn is_uncontended(&self) -> bool {
        let waiting = self.waiting();
        !waiting.has_waiters() && !waiting.was_refused
    }

    /// Returns true if the last caller that polled without prior knowledge was refused.
    pub(crate) fn was_refused(&self) -> bool {
        self.waiting().was_refused
    }

    pub(crate) fn set_refused(&self, refused: bool) {
        self.waiting().was_refused = refused;
    }

    pub(crate) fn last_holder(&self) -> Option<u32> {
        // The lock of the table of holds orders all accesses, so the atomic needs no order of its own.
        self.last_holder.load(Ordering::Relaxed).checked_sub(1)
    }

    pub(crate) fn set_last_holder(&self, hold: u32) {
        self.last_holder.store(hold.saturating_add(1), Ordering::Relaxed);
    }

    /// Records that a caller that receives no messages was refused. Returns true if the caller must mark that on the server. A single
    /// refusal is not marked. A mark is renewed only after a third of its lifetime.
    pub(crate) fn is_mark_due(&self, now: BootInstant) -> bool {
        let (now, mut waiting) = (now.millis(), self.waiting());
        let marked = waiting.marked;
        let since = now.wrapping_sub(marked);
        let is_new = marked == 0 || since > MARK_FORGOTTEN;
        let is_due = !is_new && since >= MARK_EVERY;
        // A refusal in between does not move the instant. Otherwise frequent refusals would never make a mark due. Zero means that no
        // refusal was recorded.
        if is_new || is_due {
            waiting.polls = is_due;
            waiting.marked = now.max(1);
        }
        is_due
    }

    /// Records that a caller outside the queue was granted the lock. Other contenders could have had the lock, too.
    pub(crate) fn was_free(&self, now: impl FnOnce() -> Instant) {
        let mut waiting = self.waiting();
        waiting.was_refused = false;
        if let Some(waiters) = &mut waiting.queue {
            waiters.was_free(now());
        }
    }

    /// Returns true if the text has a valid length for a lock's name.
    pub(crate) fn may_be(text: &str) -> bool {
        (1..=MAX_NAME).contains(&text.len())
    }

    /// Returns the error for every caller that wants this lock after a shutdown.
    pub(crate) fn shut_down(&self, outcome: Outcome) -> Error {
        Error::ShutDown { lock: self.text().to_owned(), outcome }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let text = self.text();
        if Self::may_be(text) { Ok(()) } else { Err(Error::InvalidName { length: text.len() }) }
    }
}

/// Milliseconds between two marks of callers that receive no messages.
const MARK_EVERY: u32 = 300;
/// Milliseconds after which a refusal counts as the first one again.
const MARK_FORGOTTEN: u32 = 1000;
/// Number of callers that may poll at once for a lock that many may hold.
const MOST_POLLING: u16 = 256;

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text())
    }
}

#[cfg(test)]
mod tests;
