//! A lock's name with everything that hangs on it in this process: its channel, its kind and its wait queue.

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

/// A process may hold a million locks, so this is kept small: one text, and a wait queue only where there were waiters.
pub(crate) struct Name {
    /// The channel, which has the name in it; then the key, if that is not the name itself.
    texts: Box<str>,
    name: Range<u32>,
    /// Whether its key, its channel and whatever else belongs to it have one hash slot.
    is_in_one_slot: bool,
    /// Whose counters it counts in.
    family: Family,
    kind: &'static Kind,
    waiters: Mutex<Option<Box<WaitQueue>>>,
    /// [`WAITED_FOR`], and how many ask from outside the queue: in one word, so that of a caller that comes or has its answer and a
    /// waiter that comes one sees the other. And [`REFUSED`] and [`HAS_QUEUE`], which stand alone.
    interest: AtomicU16,
    /// The hold that had the lock last, or of readers the one that was let in last, by its index plus one. Read and written under the lock of the table of holds, and
    /// only a hint: that hold may be gone, and another may have its index.
    last_holder: AtomicU32,
    /// When a caller that no message reaches was refused first, or has marked that last, in milliseconds of the manager's clock.
    marked: AtomicU32,
}

impl Name {
    /// The name of a lock of this kind; `in_cluster` says whether its server is one of a cluster's.
    pub(crate) fn new(text: &str, kind: &'static Kind, in_cluster: bool) -> Self {
        let (mut texts, name) = kind.channel(text, in_cluster);
        let key = kind.own_key(text);
        let slot = |text: &str| slot_of(text.as_bytes());
        // A name without braces is the hash tag of its keys and its channel. A lone closing brace ends that tag too early, and a
        // node refuses to announce a release on a channel of another slot.
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

    /// Whose counters it counts in.
    pub(crate) fn family(&self) -> Family {
        self.family
    }

    /// What it is, for a span.
    pub(crate) fn as_subject(&self) -> Subject<'_> {
        Subject { lock: self.text(), kind: self.kind.label }
    }

    /// What it is and what the user calls it, for messages.
    pub(crate) fn titled(&self) -> String {
        format!("{} {self:?}", self.kind.noun)
    }

    /// What the user calls it.
    pub(crate) fn text(&self) -> &str {
        self.texts.get(self.name.start as usize..self.name.end as usize).unwrap_or_default()
    }

    /// Where its holders are on the server.
    pub(crate) fn key(&self) -> &str {
        if self.kind.has_own_key() {
            self.texts.get(self.end_of_channel()..).unwrap_or_default()
        } else {
            self.text()
        }
    }

    /// Where its releases are told.
    pub(crate) fn channel(&self) -> &str {
        if self.kind.has_own_key() {
            self.texts.get(..self.end_of_channel()).unwrap_or_default()
        } else {
            &self.texts
        }
    }

    /// What the keys that belong to it have in common: its name, in braces if it has none.
    pub(crate) fn tag(&self) -> &str {
        self.texts.get(self.kind.tag_in_channel()..self.end_of_channel()).unwrap_or_default()
    }

    /// The name is the channel's end, but for the brace that was added.
    fn end_of_channel(&self) -> usize {
        self.name.end as usize + usize::from(self.kind.is_braced(self.name.start))
    }

    /// Whether its key, its channel and whatever else belongs to it have one hash slot.
    pub(crate) fn is_in_one_slot(&self) -> bool {
        self.is_in_one_slot
    }

    pub(crate) fn kind(&self) -> &'static Kind {
        self.kind
    }

    /// The wait queue; `None` if there are no waiters, nor have been a little while ago.
    pub(crate) fn wait_queue(&self) -> MutexGuard<'_, Option<Box<WaitQueue>>> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the wait queue, under its lock.
    pub(crate) fn waiters<T>(&self, with: impl FnOnce(&mut WaitQueue) -> T) -> T {
        let mut queue = self.wait_queue();
        if queue.is_none() {
            self.interest.fetch_or(HAS_QUEUE, Ordering::AcqRel);
        }
        with(queue.get_or_insert_default())
    }

    /// Under the wait queue's lock: drops the queue if nobody needs it any more.
    pub(crate) fn drop_unused(&self, queue: &mut Option<Box<WaitQueue>>) {
        if queue.as_ref().is_some_and(|waiters| waiters.is_over()) {
            *queue = None;
            self.interest.fetch_and(!HAS_QUEUE, Ordering::AcqRel);
        }
    }

    /// See [`WaitQueue::about_to_ask`]; `is_counted` says whether this caller is one of those who [ask](Self::begin_asking). While another
    /// one of them does, what was heard may be news to its answer, and of a latch there is only one message. Takes the wait queue's lock
    /// only if there is a queue: one that is made meanwhile is not empty. Under that lock it looks for the others, who come here, too,
    /// when they have begun.
    pub(crate) fn about_to_ask(&self, is_counted: bool) {
        let interest = || self.interest.load(Ordering::Acquire);
        if interest() & HAS_QUEUE != 0
            && !self.kind.is_only_waited_for()
            && let Some(waiters) = &mut *self.wait_queue()
            && interest() / ASKED_FOR <= u16::from(is_counted)
        {
            waiters.about_to_ask();
        }
    }

    /// Whether nobody waits for this lock and fewer callers ask for it than may at once; if so, this one does from now on. Where only
    /// one may hold it, only one asks; where many may, no more than a burst, so that no crowd fills the connection before the first
    /// has its answer.
    pub(crate) fn begin_asking(&self) -> bool {
        let most = if self.kind.is_shared() { MOST_ASKING } else { 1 };
        let may_ask = |interest: u16| interest & WAITED_FOR == 0 && interest / ASKED_FOR < most;
        let one_more = |interest: u16| may_ask(interest).then(|| interest + ASKED_FOR);
        self.interest.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).is_ok()
    }

    /// One who asked has an answer, or none. Returns who is to ask next. Takes the wait queue's lock only if there may be a
    /// waiter that does not ask because of it: one that says so later finds that nobody asks.
    pub(crate) fn end_asking(&self) -> Option<Waker> {
        if self.no_longer_asked_for() && !self.kind.is_shared() {
            self.wait_queue().as_mut().and_then(|waiters| waiters.head_to_wake())
        } else {
            None
        }
    }

    /// Returns whether there may be a waiter who has seen that a caller outside the queue asks.
    fn no_longer_asked_for(&self) -> bool {
        self.interest.fetch_sub(ASKED_FOR, Ordering::AcqRel) & WAITED_FOR != 0
    }

    /// Whether a waiter has to wait for the answer of one who asks from outside.
    pub(crate) fn is_asked_for(&self) -> bool {
        !self.kind.is_shared() && self.interest.load(Ordering::Acquire) >= ASKED_FOR
    }

    /// Whether there are waiters. Said under the wait queue's lock, and by each of them before it looks whether it may ask.
    pub(crate) fn set_waited_for(&self, waited_for: bool) {
        if waited_for {
            self.interest.fetch_or(WAITED_FOR, Ordering::AcqRel);
        } else {
            self.interest.fetch_and(!WAITED_FOR, Ordering::AcqRel);
        }
    }

    /// Whether there may be waiters.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.interest.load(Ordering::Acquire) & WAITED_FOR != 0
    }

    /// Whether the last caller who asked without knowing anything was refused: the next one will be, too.
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

    /// A caller that no message reaches was refused. Returns true if that is to be marked on the server: not for a single refusal, and
    /// not again within a third of the time that a mark lasts.
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

    /// A caller from outside the queue was granted the lock: other contenders could have had it, too.
    pub(crate) fn was_free(&self) {
        if self.interest.load(Ordering::Acquire) & HAS_QUEUE != 0
            && let Some(waiters) = &mut *self.wait_queue()
        {
            waiters.was_free();
        }
    }

    /// Whether a lock may have this name, as far as its length goes.
    pub(crate) fn may_be(text: &str) -> bool {
        (1..=MAX_NAME).contains(&text.len())
    }

    /// The error of all who want this lock after a shutdown.
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
/// The last caller was refused; a guess at what becomes of the next one.
const REFUSED: u16 = 2;
/// There is a wait queue, with waiters or without.
const HAS_QUEUE: u16 = 4;
/// A caller asks the server from outside the queue, and will join it if the lock is held. Counted.
const ASKED_FOR: u16 = 8;
/// Milliseconds between two marks of callers that no message reaches.
const MARK_EVERY: u32 = 300;
/// Milliseconds after which a refusal is the first one again.
const MARK_FORGOTTEN: u32 = 1000;
/// How many may ask at once for what many may hold.
const MOST_ASKING: u16 = 256;

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text())
    }
}

#[cfg(test)]
mod tests;
