//! Rules for repeating failed calls.
//!
//! This module sends nothing.

use std::time::Duration;

use wheellock_resp::Value;

use crate::base::address::Address;
use crate::base::error::{Error, ErrorKind, Outcome, error_code};
use crate::base::redirect;

/// The form of a call's next attempt, after the failures of earlier attempts. The default is a first attempt.
///
/// A cluster replies with redirections. A server without the script needs the script's text. A server that is loading
/// its data needs time. None of these attempts had an effect, so any call may be repeated.
#[derive(Clone, Debug, Default)]
pub struct Retry {
    in_full: bool,
    asking: Option<Box<Address>>,
    redirected: u8,
    /// The number of [growing pauses](Self::growing_pause) so far.
    postponed: u8,
}

impl Retry {
    /// Returns the state after an attempt that failed because the server lacked the script.
    pub fn in_full() -> Self {
        Self { in_full: true, ..Self::default() }
    }

    /// Records a failed attempt. Returns the pause before the next attempt if the call had no effect and can still
    /// succeed.
    pub fn after(&mut self, error: &Error) -> Option<Duration> {
        self.asking = None;
        if error.outcome() == Outcome::MaybeExecuted {
            return None;
        }
        match (error.kind(), error.code()) {
            (_, Some(code)) => self.after_code(code, error.redirected_to()),
            // The call was not written before its connection broke, or before another server became responsible.
            (ErrorKind::ConnectionLost, None) => Some(Duration::ZERO),
            (ErrorKind::NotReady, None) => Some(UNSERVED_PAUSE),
            _ => None,
        }
    }

    /// Does the same as [`after`](Self::after) for an idempotent call, whose script may have failed halfway.
    pub fn after_answer(&mut self, error: &Error) -> Option<Duration> {
        self.asking = None;
        self.after_code(error.code()?, error.redirected_to())
    }

    /// Does the same as [`after`](Self::after) for the error reply to a [detached](crate::Detached) call. `asked`
    /// returns the [host](crate::Client::host_of) that sent the reply. A redirection without a host means that host.
    pub fn after_reply(&mut self, reply: &Value, asked: impl FnOnce() -> Option<String>) -> Option<Duration> {
        self.asking = None;
        let text = reply.as_error()?;
        self.after_code(error_code(text), redirect::target(text, asked).as_ref())
    }

    fn after_code(&mut self, code: &str, to: Option<&Address>) -> Option<Duration> {
        match code {
            "NOSCRIPT" if !self.in_full => {
                self.in_full = true;
                Some(Duration::ZERO)
            }
            "MOVED" | "ASK" => {
                if code == "ASK" {
                    self.asking = to.cloned().map(Box::new);
                }
                self.redirected = self.redirected.saturating_add(1);
                // Two nodes that redirect to each other must not cause a loop without pauses.
                Some(if self.redirected <= QUICK_REDIRECTIONS { Duration::ZERO } else { UNSERVED_PAUSE })
            }
            "LOADING" | "BUSY" | "MASTERDOWN" | "READONLY" => Some(BUSY_PAUSE),
            // The slot is migrating. Many calls may wait for it, and their retries must not slow the migration down.
            "TRYAGAIN" => Some(self.growing_pause()),
            "CLUSTERDOWN" => Some(UNSERVED_PAUSE),
            _ => None,
        }
    }

    /// Returns the pause before a refused write can succeed, if `code` reports a lack of replicas or memory. Returns
    /// `None` for any other code.
    ///
    /// The server itself works, so [`after`](Self::after) leaves this decision to the caller.
    pub fn after_refused_write(&mut self, code: &str) -> Option<Duration> {
        matches!(code, "NOREPLICAS" | "OOM").then(|| self.growing_pause())
    }

    fn growing_pause(&mut self) -> Duration {
        let pause = BUSY_PAUSE * (1 << self.postponed);
        self.postponed = (self.postponed + 1).min(MOST_DOUBLINGS);
        pause
    }

    /// Returns true if the next attempt sends the script's text instead of its hash.
    pub fn is_in_full(&self) -> bool {
        self.in_full
    }

    /// Returns the node for a single attempt with ASKING, while a slot is migrating to that node.
    pub(crate) fn asking(&self) -> Option<&Address> {
        self.asking.as_deref()
    }
}

/// The number of redirections that are followed without a pause.
const QUICK_REDIRECTIONS: u8 = 5;
/// The first pause for a server that is busy, loading or moving keys. Such a server is ready within milliseconds, or
/// much later.
const BUSY_PAUSE: Duration = Duration::from_millis(10);
/// The number of times that the pause is doubled, up to 160 ms.
const MOST_DOUBLINGS: u8 = 4;
/// The pause while no server serves the key: a failover takes seconds.
const UNSERVED_PAUSE: Duration = Duration::from_millis(25);
