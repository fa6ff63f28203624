//! A lock's name with everything that hangs on it in this process: its channel, its kind and its queue of waiters.

use std::fmt;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, MAX_NAME};
use crate::kind::Kind;
use crate::waiters::Waiters;

/// A process may hold a million locks, so this is kept small: one text, and a line of waiters only where somebody waited.
pub(crate) struct Name {
    /// The channel, which has the key in it.
    channel: Box<str>,
    key: Range<usize>,
    kind: &'static Kind,
    waiters: Mutex<Option<Box<Waiters>>>,
}

impl Name {
    pub(crate) fn new(key: &str, kind: &'static Kind) -> Self {
        let channel = kind.channel(key).into();
        Self { channel, key: kind.name_in_channel(key), kind, waiters: Mutex::default() }
    }

    /// The lock's key is its raw name.
    pub(crate) fn key(&self) -> &str {
        self.channel.get(self.key.clone()).unwrap_or_default()
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
