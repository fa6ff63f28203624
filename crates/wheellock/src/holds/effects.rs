//! What follows from a change of the table of holds: requests, tasks to wake, lines for the log. Collected under the table's lock,
//! carried out after it by `Context::transact`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use wheellock_client::{Outcome, Value};

use super::HoldIndex;
use crate::error::LostReason;
use crate::name::Name;
use crate::server_clock::Jump;

/// A request that brings the server's count to what is wanted.
pub(crate) struct Reconcile {
    pub(crate) hold: HoldIndex,
    pub(crate) name: Arc<Name>,
    pub(crate) owner: u64,
    pub(crate) count: u32,
    /// Brings the script's text along.
    pub(crate) with_source: bool,
}

/// What is to be done when the table's lock is released.
#[derive(Default)]
pub(crate) struct Effects {
    /// Requests to make, in this order. Mostly there is one, which takes no allocation.
    first: Option<Reconcile>,
    more: VecDeque<Reconcile>,
    pub(crate) wake: Vec<Waker>,
    /// There may be room for requests that were postponed.
    pub(crate) look_at_the_backlog: bool,
    /// To be logged: locks that were found lost,
    pub(crate) lost: Vec<(Arc<Name>, LostReason)>,
    /// answers to renewals that have failed,
    pub(crate) failed_renewals: Vec<Result<Value, Outcome>>,
    /// and what the server's clock has done.
    pub(crate) jump: Option<Jump>,
}

impl Effects {
    pub(crate) fn request(&mut self, request: Reconcile) {
        if self.first.is_none() && self.more.is_empty() {
            self.first = Some(request);
        } else {
            self.more.push_back(request);
        }
    }

    pub(crate) fn request_all(&mut self, requests: impl IntoIterator<Item = Reconcile>) {
        requests.into_iter().for_each(|request| self.request(request));
    }

    pub(crate) fn next_request(&mut self) -> Option<Reconcile> {
        self.first.take().or_else(|| self.more.pop_front())
    }
}
