//! Whether a failed call has a chance when it is made again, and how to make it then. Pure; sends nothing.

use std::time::Duration;

use wheellock_resp::Value;

use crate::base::address::Address;
use crate::base::error::{Error, ErrorKind, Outcome, error_code};
use crate::base::redirect;

/// How a call is to be made, after what became of its earlier attempts; the default is a first attempt.
///
/// A cluster answers with redirections, a server that lacks a script asks for its text, one that loads its data wants to
/// be asked later. None of these attempts had any effect, so whoever is told to go on may do so, whatever the call was.
#[derive(Clone, Debug, Default)]
pub struct Retry {
    in_full: bool,
    asking: Option<Box<Address>>,
    redirected: u8,
    /// Number of [growing pauses](Self::growing_pause) so far.
    postponed: u8,
}

impl Retry {
    /// As after an attempt that failed because the server lacked the script.
    pub fn in_full() -> Self {
        Self { in_full: true, ..Self::default() }
    }

    /// Learns from a failed attempt. Returns how long to wait before the next one, if the failure proves that this one
    /// had no effect and another one has a chance.
    pub fn after(&mut self, error: &Error) -> Option<Duration> {
        self.asking = None;
        if error.outcome() == Outcome::MaybeExecuted {
            return None;
        }
        match (error.kind(), error.code()) {
            (_, Some(code)) => self.after_code(code, error.redirected_to()),
            // Was not written before its connection broke, or before another server became responsible.
            (ErrorKind::ConnectionLost, None) => Some(Duration::ZERO),
            (ErrorKind::NotReady, None) => Some(UNSERVED_PAUSE),
            _ => None,
        }
    }

    /// [`after`](Self::after) for a call that does no more if it is made twice, and whose script may have failed half-way.
    pub fn after_answer(&mut self, error: &Error) -> Option<Duration> {
        self.asking = None;
        self.after_code(error.code()?, error.redirected_to())
    }

    /// [`after`](Self::after) for the error reply to a [detached](crate::Detached) call.
    /// `asked` is the [host](crate::Client::host_of) that said so: a redirection may name none, and means that one.
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
                // Two nodes that name each other must not be asked in a circle without a pause.
                Some(if self.redirected <= QUICK_REDIRECTIONS { Duration::ZERO } else { UNSERVED_PAUSE })
            }
            "LOADING" | "BUSY" | "MASTERDOWN" | "READONLY" => Some(BUSY_PAUSE),
            // Until a slot has moved, which many may wait for and none is to slow down.
            "TRYAGAIN" => Some(self.growing_pause()),
            "CLUSTERDOWN" => Some(UNSERVED_PAUSE),
            _ => None,
        }
    }

    /// Returns how long to wait before a write has a chance that the server refused with this code for want of replicas or memory. Returns
    /// `None` for any other code.
    ///
    /// The server serves, so [`after`](Self::after) leaves it to the caller whether to wait for that.
    pub fn after_refused_write(&mut self, code: &str) -> Option<Duration> {
        matches!(code, "NOREPLICAS" | "OOM").then(|| self.growing_pause())
    }

    fn growing_pause(&mut self) -> Duration {
        let pause = BUSY_PAUSE * (1 << self.postponed);
        self.postponed = (self.postponed + 1).min(MOST_DOUBLINGS);
        pause
    }

    /// Whether a script's text is to be sent instead of its hash.
    pub fn is_in_full(&self) -> bool {
        self.in_full
    }

    /// The node that is to be asked once, for a slot that is on its way there.
    pub(crate) fn asking(&self) -> Option<&Address> {
        self.asking.as_deref()
    }
}

/// Redirections that are followed at once.
const QUICK_REDIRECTIONS: u8 = 5;
/// A server that is busy, loads, or moves keys is done within milliseconds, or takes long.
const BUSY_PAUSE: Duration = Duration::from_millis(10);
/// As often it is doubled: to 160 ms.
const MOST_DOUBLINGS: u8 = 4;
/// Nobody serves the key now: a failover takes seconds.
const UNSERVED_PAUSE: Duration = Duration::from_millis(25);
