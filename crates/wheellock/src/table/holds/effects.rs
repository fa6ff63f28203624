//! Effects of a change of the table of holds.
//!
//! The effects are requests, tasks to wake and log lines. They are collected under the table's lock. `Context::transact` carries
//! them out after it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use wheellock_client::layer::Retry;
use wheellock_client::{Outcome, Value};

use super::HoldIndex;
use crate::base::error::LostReason;
use crate::base::hold_limits::MinHold;
use crate::base::server_clock::Jump;
use crate::wait::name::Name;

/// A request that sets the server's count to the wanted count.
pub(crate) struct Reconcile {
    pub(crate) hold: HoldIndex,
    pub(crate) name: Arc<Name>,
    pub(crate) owner: u64,
    pub(crate) count: u32,
    /// The minimum time that the release keeps, if the hold has one. Boxed, because few holds have one.
    pub(crate) min: Option<Box<MinHold>>,
    /// Lessons of earlier attempts for the retry.
    pub(crate) retry: Retry,
}

/// The reason why a reconciling request has no useful reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unreconciled {
    /// The request was rejected before it had any effect. It may succeed after this pause.
    Refused(Duration),
    /// The request was lost with its connection.
    Unanswered,
    /// The request failed in another way. It is repeated after a pause.
    Failed,
}

/// Effects to carry out after the table's lock is released. Small, because each grant and each release creates one, mostly empty
/// or with one request.
#[derive(Default)]
pub(crate) struct Effects {
    /// The first request to send.
    first: Option<Reconcile>,
    /// The first task to wake.
    first_woken: Option<Waker>,
    pub(crate) wake: Vec<Waker>,
    /// True if postponed requests may find room.
    backlog: bool,
    /// Log lines, and requests after the first one.
    pub(crate) rest: Option<Box<Rest>>,
}

/// Effects that an uncontended lock that is not lost never has.
#[derive(Default)]
pub(crate) struct Rest {
    /// Requests to send after the first one, in this order.
    more: VecDeque<Reconcile>,
    /// Locks that were found lost, for the log.
    pub(crate) lost: Vec<(Arc<Name>, LostReason)>,
    /// Reply to renewals that failed, and the state of the renewals, for the log.
    pub(crate) failed_renewals: Option<(Result<Value, Outcome>, Failing)>,
    /// Time for which renewals had failed, if none fails now, for the log.
    pub(crate) renewed_again: Option<Duration>,
    /// Jumps of the servers' clocks, for the log.
    pub(crate) jumps: Vec<Jump>,
}

/// State of the failing renewals, for a log line.
#[cfg_attr(not(feature = "tracing"), allow(dead_code, reason = "nobody listens"))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Failing {
    /// Number of locks whose last renewal failed. Counts the locks held now, and the locks lost with a renewal under way since
    /// the last line.
    pub(crate) locks: u64,
    /// Number of renewals that failed since the last line.
    pub(crate) failures: u64,
    /// Time for which renewals have been failing.
    pub(crate) failing: Duration,
}

impl Effects {
    /// Adds a request behind the earlier ones.
    pub(crate) fn request(&mut self, request: Reconcile) {
        // Keep the order of the requests. A free first place is not used while earlier requests are in `more`.
        if self.first.is_none() && self.rest.as_ref().is_none_or(|rest| rest.more.is_empty()) {
            self.first = Some(request);
        } else {
            self.rest().more.push_back(request);
        }
    }

    pub(crate) fn request_all(&mut self, requests: impl IntoIterator<Item = Reconcile>) {
        requests.into_iter().for_each(|request| self.request(request));
    }

    pub(crate) fn next_request(&mut self) -> Option<Reconcile> {
        self.first.take().or_else(|| self.rest.as_mut()?.more.pop_front())
    }

    pub(super) fn wake(&mut self, wakers: impl IntoIterator<Item = Waker>) {
        self.wake.extend(wakers);
    }

    pub(super) fn wake_one(&mut self, waker: Waker) {
        match &self.first_woken {
            None => self.first_woken = Some(waker),
            Some(_) => self.wake.push(waker),
        }
    }

    pub(crate) fn look_at_the_backlog(&mut self) {
        self.backlog = true;
    }

    pub(crate) fn is_backlog_to_be_looked_at(&self) -> bool {
        self.backlog
    }

    pub(super) fn lost(&mut self, name: &Arc<Name>, reason: LostReason) {
        self.rest().lost.push((Arc::clone(name), reason));
    }

    pub(crate) fn renewal_failed(&mut self, result: &Result<Value, Outcome>, failing: Option<Failing>) {
        if let Some(failing) = failing {
            self.rest().failed_renewals = Some((result.clone(), failing));
        }
    }

    pub(super) fn renewed_again(&mut self, failing: Option<Duration>) {
        if failing.is_some() {
            self.rest().renewed_again = failing;
        }
    }

    pub(crate) fn jumped(&mut self, jump: Option<Jump>) {
        if let Some(jump) = jump {
            self.rest().jumps.push(jump);
        }
    }

    /// Returns true if there may be requests besides the first one, such as postponed ones.
    pub(crate) fn has_more_requests(&self) -> bool {
        self.backlog || self.rest.as_ref().is_some_and(|rest| !rest.more.is_empty())
    }

    /// Reuses the room of earlier wakers, for a change that may wake many tasks.
    pub(crate) fn reuse(&mut self, room: Vec<Waker>) {
        self.wake = room;
    }

    /// Wakes the tasks.
    pub(crate) fn wake_all(&mut self) {
        if let Some(waker) = self.first_woken.take() {
            waker.wake();
        }
        if !self.wake.is_empty() {
            // Drain, so that the next change can reuse the room.
            self.wake.drain(..).for_each(Waker::wake);
        }
    }

    fn rest(&mut self) -> &mut Rest {
        self.rest.get_or_insert_default()
    }
}
