//! The lock of one name on each server of a quorum.
//!
//! This module sends the request to one server, and describes missing replies.

use std::sync::Arc;
use std::time::Instant;

use wheellock_client::Timer;

use super::servers::Servers;
use crate::base::error::{Error, MemberFailure};
use crate::base::quorum::Quorum;
use crate::lock::Lock;
use crate::request::acquire::{Answer, ask};

/// The locks of one name, one on each server.
#[derive(Clone)]
pub(super) struct MemberLocks {
    pub(super) servers: Arc<Servers>,
    pub(super) locks: Arc<[Lock]>,
}

impl MemberLocks {
    pub(super) fn name(&self) -> &str {
        self.locks.first().map_or("", Lock::name)
    }

    pub(super) fn timer(&self) -> &Timer {
        self.servers.timer()
    }

    pub(super) fn quorum(&self) -> Quorum {
        self.servers.quorum()
    }

    /// Returns the locks with `change` applied to each.
    pub(super) fn map(&self, change: impl Fn(&Lock) -> Lock) -> Self {
        Self { locks: self.locks.iter().map(change).collect(), servers: Arc::clone(&self.servers) }
    }

    /// Requests the lock of the server at `place`, which must reply by `deadline`.
    pub(super) fn request(
        &self,
        place: usize,
        deadline: Option<Instant>,
    ) -> impl Future<Output = Result<Answer, Error>> + Send + use<> {
        let (servers, lock) = (Arc::clone(&self.servers), self.locks.get(place).cloned());
        async move {
            let lock = lock.ok_or(Error::NoMembers)?;
            servers.identify(place, deadline).await?;
            ask(lock.request(), deadline).await
        }
    }

    /// Returns the failures of a round in which no server has replied.
    pub(super) fn timeouts(&self) -> Vec<MemberFailure> {
        let late = |(place, lock): (usize, &Lock)| {
            let source = lock.context.client.timed_out(lock.name.key().as_bytes(), "EVALSHA");
            let operation = format!("acquire lock {:?}", lock.name);
            self.servers.failure(place, Error::Server { operation, source })
        };
        self.locks.iter().enumerate().map(late).collect()
    }

    pub(super) fn no_quorum(&self, granted: usize, failures: Vec<MemberFailure>) -> Error {
        let wanted = self.quorum().wanted();
        Error::NoQuorum { lock: self.name().to_owned(), granted, wanted, failures }
    }
}
