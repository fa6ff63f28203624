//! A lock's name with everything that hangs on it in this process: its channel, its kind and its queue of waiters.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use crate::error::{Error, MAX_NAME, Outcome};
use crate::kind::Kind;
use crate::waiters::Waiters;

/// A process may hold a million locks, so this is kept small: one text, and a line of waiters only where somebody waited.
pub(crate) struct Name {
    /// The channel, which has the key in it.
    channel: Box<str>,
    key: Range<u32>,
    kind: &'static Kind,
    waiters: Mutex<Option<Box<Waiters>>>,
    /// Somebody asks the server without standing in line, and will wait if the lock is held.
    asked_for: AtomicBool,
}

impl Name {
    pub(crate) fn new(key: &str, kind: &'static Kind) -> Self {
        let channel = kind.channel(key).into();
        Self {
            channel,
            key: kind.name_in_channel(key),
            kind,
            waiters: Mutex::default(),
            asked_for: AtomicBool::new(false),
        }
    }

    /// The lock's key is its raw name.
    pub(crate) fn key(&self) -> &str {
        self.channel.get(self.key.start as usize..self.key.end as usize).unwrap_or_default()
    }

    pub(crate) fn channel(&self) -> &str {
        &self.channel
    }

    pub(crate) fn kind(&self) -> &'static Kind {
        self.kind
    }

    /// The line of waiters; `None` if nobody waits here, and nobody has a little while ago.
    pub(crate) fn crowd(&self) -> MutexGuard<'_, Option<Box<Waiters>>> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the line of waiters, under its lock.
    pub(crate) fn waiters<T>(&self, with: impl FnOnce(&mut Waiters) -> T) -> T {
        with(self.crowd().get_or_insert_default())
    }

    /// Whether nobody else asks for this lock; if so, the caller does from now on.
    pub(crate) fn begin_asking(&self) -> bool {
        !self.asked_for.swap(true, Ordering::AcqRel)
    }

    /// The one who asked has an answer, or none. Returns who is to ask next.
    pub(crate) fn end_asking(&self) -> Option<Waker> {
        self.asked_for.store(false, Ordering::Release);
        self.crowd().as_mut().and_then(|waiters| waiters.head_to_wake())
    }

    pub(crate) fn is_asked_for(&self) -> bool {
        self.asked_for.load(Ordering::Acquire)
    }

    /// The error of everybody who wants this lock after a shutdown.
    pub(crate) fn shut_down(&self, outcome: Outcome) -> Error {
        Error::ShutDown { lock: self.key().to_owned(), outcome }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let length = self.key().len();
        if (1..=MAX_NAME).contains(&length) { Ok(()) } else { Err(Error::InvalidName { length }) }
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.key())
    }
}
