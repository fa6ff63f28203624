//! A lock's name with its channel, kind and wait queue.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

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
    waiters: Mutex<Option<Box<WaitQueue>>>,
    /// [`WAITED_FOR`] and the number of callers that poll from outside the queue. Both are in one word, so that they are never read apart.
    /// If a waiter joins just as a caller begins or ends its poll, at least one of the two sees the other. The independent bits [`REFUSED`]
    /// and [`HAS_QUEUE`] are here, too.
    interest: AtomicU16,
    /// Index plus one of the hold that had the lock last, or of the reader that was let in last. The field is read and written under the
    /// lock of the table of holds. It is only a hint: that hold may be gone, and another hold may have its index.
    last_holder: AtomicU32,
    /// When a caller that receives no messages was first refused, or last marked that on the server. In milliseconds of the manager's
    /// clock.
    marked: AtomicU32,
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
            waiters: Mutex::default(),
            interest: AtomicU16::new(0),
            last_holder: AtomicU32::new(0),
            marked: AtomicU32::new(0),
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

    /// Locks the wait queue. The queue is `None` if there are no waiters and were none a little while ago.
    pub(crate) fn wait_queue(&self) -> MutexGuard<'_, Option<Box<WaitQueue>>> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `with` on the wait queue, under its lock.
    pub(crate) fn waiters<T>(&self, with: impl FnOnce(&mut WaitQueue) -> T) -> T {
        let mut queue = self.wait_queue();
        if queue.is_none() {
            self.interest.fetch_or(HAS_QUEUE, Ordering::AcqRel);
        }
        with(queue.get_or_insert_default())
    }

    /// Drops the queue if it is not needed any more. Called under the wait queue's lock.
    pub(crate) fn drop_unused(&self, queue: &mut Option<Box<WaitQueue>>) {
        if queue.as_ref().is_some_and(|waiters| waiters.is_over()) {
            *queue = None;
            self.interest.fetch_and(!HAS_QUEUE, Ordering::AcqRel);
        }
    }

    /// Discards old messages before a caller sends a request: see [`WaitQueue::discard_old_messages`]. `is_counted` is true if this caller is
    /// counted by [`begin_fast_poll`](Self::begin_fast_poll).
    ///
    /// Messages are kept while another caller polls, because they may be news for that caller's reply. They are kept for a latch, which
    /// sends only one.
    ///
    /// Takes the wait queue's lock only if there is a queue. A queue that is created meanwhile is not empty. The other callers are counted
    /// under that lock, because each of them also calls this method when its poll has begun.
    pub(crate) fn discard_old_messages(&self, is_counted: bool) {
        let interest = || self.interest.load(Ordering::Acquire);
        if interest() & HAS_QUEUE != 0
            && !self.kind.is_only_waited_for()
            && let Some(waiters) = &mut *self.wait_queue()
            && interest() / ASKED_FOR <= u16::from(is_counted)
        {
            waiters.discard_old_messages();
        }
    }

    /// Returns true if this caller may poll from outside the queue, and counts the caller if so. The caller may poll if there are no
    /// waiters and the number of polling callers is below its limit.
    ///
    /// An exclusive lock allows one polling caller. A shared lock allows [`MOST_ASKING`], so that a crowd does not fill the connection
    /// before the first caller has its reply.
    pub(crate) fn begin_fast_poll(&self) -> bool {
        let most = if self.kind.is_shared() { MOST_ASKING } else { 1 };
        let may_poll = |interest: u16| interest & WAITED_FOR == 0 && interest / ASKED_FOR < most;
        let one_more = |interest: u16| may_poll(interest).then(|| interest + ASKED_FOR);
        self.interest.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).is_ok()
    }

    /// Ends the poll of a counted caller, with or without a reply. Returns the head's waker if the head polls next. Takes the wait queue's
    /// lock only if a waiter may be waiting for this caller. A waiter that marks itself later finds no polling caller.
    pub(crate) fn end_fast_poll(&self) -> Option<Waker> {
        if self.no_longer_asked_for() && !self.kind.is_shared() {
            self.wait_queue().as_mut().and_then(|waiters| waiters.head_to_wake())
        } else {
            None
        }
    }

    /// Uncounts a caller. Returns true if a waiter may have seen that the caller polls from outside the queue.
    fn no_longer_asked_for(&self) -> bool {
        self.interest.fetch_sub(ASKED_FOR, Ordering::AcqRel) & WAITED_FOR != 0
    }

    /// Returns true if a waiter has to wait for the reply to a caller outside the queue.
    pub(crate) fn is_polled(&self) -> bool {
        !self.kind.is_shared() && self.interest.load(Ordering::Acquire) >= ASKED_FOR
    }

    /// Records whether there are waiters. Called under the wait queue's lock. Each waiter records itself before it checks whether it may
    /// poll.
    pub(crate) fn set_waited_for(&self, waited_for: bool) {
        if waited_for {
            self.interest.fetch_or(WAITED_FOR, Ordering::AcqRel);
        } else {
            self.interest.fetch_and(!WAITED_FOR, Ordering::AcqRel);
        }
    }

    /// Returns true if there may be waiters.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.interest.load(Ordering::Acquire) & WAITED_FOR != 0
    }

    /// Returns true if the last caller that polled without prior knowledge was refused. The next caller will be refused, too.
    pub(crate) fn was_refused(&self) -> bool {
        self.interest.load(Ordering::Relaxed) & REFUSED != 0
    }

    pub(crate) fn set_refused(&self, refused: bool) {
        if refused == self.was_refused() {
            return;
        }
        if refused {
            self.interest.fetch_or(REFUSED, Ordering::Relaxed);
        } else {
            self.interest.fetch_and(!REFUSED, Ordering::Relaxed);
        }
    }

    pub(crate) fn last_holder(&self) -> Option<u32> {
        self.last_holder.load(Ordering::Relaxed).checked_sub(1)
    }

    pub(crate) fn set_last_holder(&self, hold: u32) {
        self.last_holder.store(hold.saturating_add(1), Ordering::Relaxed);
    }

    /// Records that a caller that receives no messages was refused. Returns true if the caller must mark that on the server. A single
    /// refusal is not marked. A mark is renewed only after a third of its lifetime.
    pub(crate) fn is_mark_due(&self, now: BootInstant) -> bool {
        let (now, marked) = (now.millis(), self.marked.load(Ordering::Relaxed));
        let since = now.wrapping_sub(marked);
        let is_new = marked == 0 || since > MARK_FORGOTTEN;
        let is_due = !is_new && since >= MARK_EVERY;
        if is_new || is_due {
            self.marked.store(now.max(1), Ordering::Relaxed);
        }
        is_due
    }

    /// Records that a caller outside the queue was granted the lock. Other contenders could have had the lock, too.
    pub(crate) fn was_free(&self) {
        if self.interest.load(Ordering::Acquire) & HAS_QUEUE != 0
            && let Some(waiters) = &mut *self.wait_queue()
        {
            waiters.was_free();
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

/// There are waiters.
const WAITED_FOR: u16 = 1;
/// The last caller was refused. Used to guess the outcome of the next request.
const REFUSED: u16 = 2;
/// There is a wait queue, with waiters or without.
const HAS_QUEUE: u16 = 4;
/// Unit of the count of callers that poll from outside the queue. Such a caller joins the queue if the lock is held.
const ASKED_FOR: u16 = 8;
/// Milliseconds between two marks of callers that receive no messages.
const MARK_EVERY: u32 = 300;
/// Milliseconds after which a refusal counts as the first one again.
const MARK_FORGOTTEN: u32 = 1000;
/// Number of callers that may poll at once for a lock that many may hold.
const MOST_ASKING: u16 = 256;

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text())
    }
}

#[cfg(test)]
mod tests;
