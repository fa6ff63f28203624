//! Requests to a lock's holders to release it. This module owns their text.

use std::fmt;

use crate::base::error::{Error, MAX_LABEL, MAX_REASON};
use crate::wire::holder::{Holder, process_in};

/// A request to release a lock, as its holder receives it: see [`Guard::release_requested`](crate::Guard::release_requested).
///
/// Use the texts for display only, because every client that may publish messages can send them. `Display` escapes them.
///
/// ```no_run
/// # async fn example(guard: wheellock::Guard) {
/// let request = guard.release_requested().await;
/// println!("{request}"); // web-3/1/billing [0a1b..]: deploy 4711
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ReleaseRequest {
    /// The identity of the manager that sent the request ([`LockManager::id`](crate::LockManager::id)).
    pub from: String,
    /// The [label](crate::LockManagerBuilder::label) of that manager, if it has one.
    pub label: Option<String>,
    /// The reason, at most 256 bytes.
    pub reason: String,
}

impl ReleaseRequest {
    /// Creates a request. The reason must be short and without control characters, as a label.
    pub(crate) fn new(from: &str, label: Option<&str>, reason: &str) -> Result<Self, Error> {
        if !may_be_reason(reason) {
            return Err(Error::InvalidReason { length: reason.len() });
        }
        Ok(Self { from: from.to_owned(), label: label.map(str::to_owned), reason: reason.to_owned() })
    }

    /// Returns the text of the message. Neither a label nor a reason contains a line break.
    pub(crate) fn message(&self) -> String {
        format!("{}\n{}\n{}", self.from, self.label.as_deref().unwrap_or_default(), self.reason)
    }

    /// Reads a message. Any client may have sent it, so it may be any bytes.
    pub(crate) fn read(message: &[u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(message).ok()?.split('\n');
        let (from, label, reason) = (parts.next()?, parts.next()?, parts.next()?);
        // The number stands for any owner of that process.
        let is_process = process_in(&format!("{from}:0")).is_some();
        let is_whole = parts.next().is_none() && is_process && label.len() <= MAX_LABEL;
        let label = (!label.is_empty()).then_some(label);
        Self::new(from, label, reason).ok().filter(|_| is_whole)
    }
}

/// Writes one line for display: the label if there is one, the process, and the reason.
impl fmt::Display for ReleaseRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(label) = &self.label {
            write!(f, "{} ", label.escape_debug())?;
        }
        write!(f, "[{}]: {}", self.from.escape_debug(), self.reason.escape_debug())
    }
}

/// The holders of a lock that [`Lock::ask_to_release`](crate::Lock::ask_to_release) found.
///
/// ```no_run
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// let asked = locks.lock("import").ask_to_release("deploy 4711").await?;
/// asked.told.iter().for_each(|holder| println!("told: {holder}"));
/// asked.untold.iter().for_each(|holder| println!("does not listen: {holder}"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct AskedHolders {
    /// The holders whose guards listen to requests. Each received this one.
    pub told: Vec<Holder>,
    /// The holders that do not listen: their programs do not, they are not connected at the moment, or they use another library.
    pub untold: Vec<Holder>,
    /// The number of further holders, which were not asked. At most a hundred readers are.
    pub beyond: u64,
}

impl AskedHolders {
    /// Returns true if the lock has no holder.
    pub fn is_free(&self) -> bool {
        self.told.is_empty() && self.untold.is_empty() && self.beyond == 0
    }
}

fn may_be_reason(text: &str) -> bool {
    text.len() <= MAX_REASON && !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use crate::base::error::{Error, MAX_REASON};
    use crate::wire::release_request::ReleaseRequest;

    const FROM: &str = "0a1b2c3d-0000-4000-8000-0123456789ab";

    #[test]
    fn message_reads_back() {
        for label in [None, Some("web-3/1/bill\u{e9}")] {
            for reason in ["", "deploy 4711: please", &"x".repeat(MAX_REASON)] {
                let request = ReleaseRequest::new(FROM, label, reason).unwrap();
                assert_eq!(ReleaseRequest::read(request.message().as_bytes()), Some(request));
            }
        }
    }

    #[test]
    fn odd_messages_are_ignored() {
        let long = format!("{FROM}\n\n{}", "x".repeat(MAX_REASON + 1));
        let label = format!("{FROM}\n{}\nwhy", "x".repeat(MAX_REASON + 1));
        let more = format!("{FROM}\n\nwhy\nmore");
        let control = format!("{FROM}\n\nwhy\u{1b}[2J");
        let few = format!("{FROM}\nwhy");
        for text in ["", "0", "\n\n", "me\n\nwhy", &few, &long, &label, &more, &control] {
            assert_eq!(ReleaseRequest::read(text.as_bytes()), None, "{text}");
        }
        assert_eq!(ReleaseRequest::read(&format!("{FROM}\n\n").as_bytes()[1..]), None);
        assert_eq!(ReleaseRequest::read(&[FROM.as_bytes(), b"\n\n\xff"].concat()), None);
    }

    #[test]
    fn wrong_reason_is_rejected() {
        for reason in ["two\nlines", &"x".repeat(MAX_REASON + 1)] {
            let error = ReleaseRequest::new(FROM, None, reason).unwrap_err();
            assert!(matches!(error, Error::InvalidReason { length } if length == reason.len()), "{error}");
        }
    }

    #[test]
    fn display_is_one_escaped_line() {
        let request =
            ReleaseRequest { from: "a\n".to_owned(), label: Some("b".to_owned()), reason: "c\t".to_owned() };
        assert_eq!(request.to_string(), "b [a\\n]: c\\t");
    }
}
