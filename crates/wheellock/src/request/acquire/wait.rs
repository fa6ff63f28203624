//! How long a caller waits, and what ends its wait. Values; the clock is the caller's.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use wheellock_client::Timer;

use crate::base::error::Error;
use crate::request::retry::RefusedWrite;

/// How long a caller waits for a lock that another holder has: for ever, or up to a limit, which is what it is told when the wait has
/// ended in vain.
///
/// Only a wait that has a limit can end in vain: a [`Wait<Infallible>`](Self::FOREVER) has none.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait<L = Limit> {
    Forever,
    Limited(L),
}

/// What ends a wait in vain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Limit {
    /// The first answer, if it is a refusal.
    OneTry,
    Until(Instant),
}

impl From<Infallible> for Limit {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl Wait<Infallible> {
    /// Ends with what is waited for, or with an error.
    pub(crate) const FOREVER: Self = Self::Forever;
}

impl Wait {
    /// Does not wait at all.
    pub(crate) const NO: Self = Self::Limited(Limit::OneTry);

    pub(crate) fn until(deadline: Instant) -> Self {
        Self::Limited(Limit::Until(deadline))
    }

    /// Counted from now. A wait of zero is none.
    pub(crate) fn up_to(wait: Duration, timer: &Timer) -> Self {
        if wait.is_zero() {
            return Self::NO;
        }
        timer.now().checked_add(wait).map_or(Self::Forever, Self::until)
    }
}

impl<L: Copy + Into<Limit>> Wait<L> {
    /// What may end it in vain.
    pub(crate) fn limit(self) -> Option<L> {
        match self {
            Self::Forever => None,
            Self::Limited(limit) => Some(limit),
        }
    }

    /// The same, whatever its limit's type.
    pub(crate) fn of_any(self) -> Wait {
        self.limit().map_or(Wait::Forever, |limit| Wait::Limited(limit.into()))
    }

    /// The limit, if one refusal ends the wait.
    pub(crate) fn one_try(self) -> Option<L> {
        self.limit().filter(|limit| (*limit).into() == Limit::OneTry)
    }

    pub(crate) fn deadline(self) -> Option<Instant> {
        match self.limit()?.into() {
            Limit::Until(deadline) => Some(deadline),
            Limit::OneTry => None,
        }
    }

    /// Returns true if the wait goes on after this failure, because [waiting may cure it](Error::may_pass).
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

    /// The limit, if it is a time that has come.
    pub(crate) fn over(self, timer: &Timer) -> Option<L> {
        let deadline = self.deadline()?;
        self.limit().filter(|_| timer.now() >= deadline)
    }
}
