//! The state of the lock on one server of a quorum.

use std::sync::Arc;

use crate::base::error::Error;
use crate::request::acquire::Answer;
use crate::request::guard::Guard;
use crate::wire::Refusal;

/// One member of an attempt, and of its guard.
#[derive(Clone)]
pub(super) enum Member {
    /// The server has not replied yet.
    Pending,
    Held(Arc<Guard>),
    Refused(Refusal),
    Failed(Error),
    /// The server granted it, and the attempt did not need it.
    Released,
}

impl Member {
    pub(super) fn of(answer: Result<Answer, Error>) -> Self {
        match answer {
            Ok(Answer::Granted(guard, _)) => Self::Held(Arc::new(guard)),
            Ok(Answer::Held(refusal)) => Self::Refused(refusal),
            Err(error) => Self::Failed(error),
        }
    }

    pub(super) fn guard(&self) -> Option<&Arc<Guard>> {
        match self {
            Self::Held(guard) => Some(guard),
            _ => None,
        }
    }

    pub(super) fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }
}
