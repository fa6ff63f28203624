//! A lock's name with everything that hangs on it in this process: its channel, its kind and its queue of waiters.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, MAX_NAME};
use crate::kind::Kind;
use crate::waiters::Waiters;

pub(crate) struct Name {
    key: String,
    channel: String,
    kind: &'static Kind,
    waiters: Mutex<Waiters>,
}

impl Name {
    pub(crate) fn new(key: &str, kind: &'static Kind) -> Self {
        Self { key: key.to_owned(), channel: kind.channel(key), kind, waiters: Mutex::default() }
    }

    /// The lock's key is its raw name.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn channel(&self) -> &str {
        &self.channel
    }

    pub(crate) fn kind(&self) -> &'static Kind {
        self.kind
    }

    pub(crate) fn waiters(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let length = self.key.len();
        if (1..=MAX_NAME).contains(&length) { Ok(()) } else { Err(Error::InvalidName { length }) }
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.key)
    }
}
