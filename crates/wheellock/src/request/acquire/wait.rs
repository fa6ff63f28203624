//! The length of a wait, and its end.
//!
//! Only values: the caller reads the clock.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use wheellock_client::Timer;

use crate::base::attempt::Attempt;
use crate::base::error::Error;
use crate::request::retry::RefusedWrite;

/// How long a caller waits for a lock that another holder has: without end, or up to a limit. The limit is the caller's
/// result when the wait has ended without a grant.
///
/// Only a wait with a limit can end without a grant. A [`Wait<Infallible>`](Self::FOREVER) does not have a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait<L = Limit> {
    Forever,
    Limited(L),
}

/// The limit that ends a wait without a grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Limit {
    /// The first reply, if it is a refusal.
    OneTry,
    Until(Instant),
}

/// The end of a wait without a grant. Without a limit this value cannot exist, so the caller certainly has a grant.
#[derive(Debug)]
pub(crate) struct Over<L> {
    #[expect(dead_code, reason = "it only shows that there was a limit")]
    pub(crate) limit: L,
    /// Name of the lock that another holder has.
    lock: String,
    /// Remaining lease by the last refusal.
    lease_left: Option<Duration>,
}

impl<L> Over<L> {
    pub(crate) fn new(limit: L, lock: &str, lease_left: Option<Duration>) -> Self {
        Self { limit, lock: lock.to_owned(), lease_left }
    }

    /// Converts the result of a wait into the caller's result.
    pub(crate) fn attempt<G>(result: Result<G, Self>) -> Attempt<G> {
        match result {
            Ok(guard) => Attempt::Acquired(guard),
            Err(Self { lock, lease_left, .. }) => Attempt::Held { lock, lease_left },
        }
    }
}

impl From<Infallible> for Limit {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl Wait<Infallible> {
    /// Ends with a grant, an open latch or an error.
    pub(crate) const FOREVER: Self = Self::Forever;
}

impl Wait {
    /// Does not wait at all.
    pub(crate) const NO: Self = Self::Limited(Limit::OneTry);

    pub(crate) fn until(deadline: Instant) -> Self {
        Self::Limited(Limit::Until(deadline))
    }

    /// Returns a wait of this length from now on. A length of zero means not to wait at all.
    pub(crate) fn up_to(wait: Duration, timer: &Timer) -> Self {
        if wait.is_zero() {
            return Self::NO;
        }
        timer.now().checked_add(wait).map_or(Self::Forever, Self::until)
    }
}

impl<L: Copy + Into<Limit>> Wait<L> {
    /// Returns the limit that may end the wait without a grant.
    pub(crate) fn limit(self) -> Option<L> {
        match self {
            Self::Forever => None,
            Self::Limited(limit) => Some(limit),
        }
    }

    /// Returns the same wait with a [`Limit`], for any type of limit.
    pub(crate) fn of_any(self) -> Wait {
        self.limit().map_or(Wait::Forever, |limit| Wait::Limited(limit.into()))
    }

    /// Returns the limit, if one refusal ends the wait.
    pub(crate) fn one_try(self) -> Option<L> {
        self.limit().filter(|limit| (*limit).into() == Limit::OneTry)
    }

    pub(crate) fn deadline(self) -> Option<Instant> {
        match self.limit()?.into() {
            Limit::Until(deadline) => Some(deadline),
            Limit::OneTry => None,
        }
    }

    /// Returns true if the wait continues after this failure, because [waiting may cure it](Error::may_pass).
    pub(crate) fn outlasts(self, error: &Error, timer: &Timer) -> bool {
        error.may_pass() && self.one_try().is_none() && self.over(timer).is_none()
    }

    /// Returns for how long this caller's requests are repeated while the server takes no writes.
    pub(crate) fn refused_write(self) -> RefusedWrite {
        match self.one_try() {
            Some(_) => RefusedWrite::Ends,
            None => RefusedWrite::IsWaitedOut(self.deadline()),
        }
    }

    /// Returns the limit, if it is a deadline that has passed.
    pub(crate) fn over(self, timer: &Timer) -> Option<L> {
        let deadline = self.deadline()?;
        self.limit().filter(|_| timer.now() >= deadline)
    }
}
