//! What follows from a change of the table of holds: requests, tasks to wake, lines for the log. Collected under the table's lock,
//! carried out after it by `Context::transact`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use wheellock_client::layer::Retry;
use wheellock_client::{Outcome, Value};

use super::HoldIndex;
use crate::base::error::LostReason;
use crate::base::server_clock::Jump;
use crate::wait::name::Name;

/// A request that brings the server's count to what is wanted.
pub(crate) struct Reconcile {
    pub(crate) hold: HoldIndex,
    pub(crate) name: Arc<Name>,
    pub(crate) owner: u64,
    pub(crate) count: u32,
    /// What earlier attempts have taught.
    pub(crate) retry: Retry,
}

/// What is to be done when the table's lock is released. Small, because every grant and every release makes one, and mostly
/// there is nothing in it, or one request.
#[derive(Default)]
pub(crate) struct Effects {
    /// The first request to make.
    first: Option<Reconcile>,
    /// The first task to wake.
    first_woken: Option<Waker>,
    wake: Vec<Waker>,
    /// There may be room for requests that were postponed.
    backlog: bool,
    rest: Option<Box<Rest>>,
}

/// What is not on the way of a lock that is neither contended for nor lost.
#[derive(Default)]
pub(crate) struct Rest {
    /// Requests to make after the first one, in this order.
    more: VecDeque<Reconcile>,
    /// To be logged: locks that were found lost,
    pub(crate) lost: Vec<(Arc<Name>, LostReason)>,
    /// an answer to renewals that have failed, and how they stand,
    pub(crate) failed_renewals: Option<(Result<Value, Outcome>, Failing)>,
    /// for how long renewals had failed, if none does any more,
    pub(crate) renewed_again: Option<Duration>,
    /// and what servers' clocks have done.
    pub(crate) jumps: Vec<Jump>,
}

/// How renewals stand, for a line about them.
#[cfg_attr(not(feature = "tracing"), allow(dead_code, reason = "nobody listens"))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Failing {
    /// Locks whose last renewal failed: those held now, and those lost with a renewal under way since the last line.
    pub(crate) locks: u64,
    /// Renewals that have failed since the last line.
    pub(crate) failures: u64,
    /// For how long there have been any.
    pub(crate) failing: Duration,
}

impl Effects {
    pub(crate) fn request(&mut self, request: Reconcile) {
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

    /// Whether there are requests but the first one.
    pub(crate) fn has_more_requests(&self) -> bool {
        self.rest.as_ref().is_some_and(|rest| !rest.more.is_empty())
    }

    /// Where many may have to be woken: uses the room that was made for those before.
    pub(crate) fn reuse(&mut self, room: Vec<Waker>) {
        self.wake = room;
    }

    /// Wakes tasks; returns what is to be logged, and the room for the next ones.
    pub(crate) fn finish(mut self) -> (Option<Box<Rest>>, Vec<Waker>) {
        if let Some(waker) = self.first_woken {
            waker.wake();
        }
        if !self.wake.is_empty() {
            self.wake.drain(..).for_each(Waker::wake);
        }
        (self.rest, self.wake)
    }

    fn rest(&mut self) -> &mut Rest {
        self.rest.get_or_insert_default()
    }
}
