//! A hold on its way to another process, as text. It does not refer to any lock.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::base::owner::Owner;

/// First part of every ticket, with the version of the format.
const FORMAT: &str = "wl1";

/// A held lock on its way to another process. [`Guard::into_ticket`](crate::Guard::into_ticket) makes it, and
/// [`LockManager::adopt`](crate::LockManager::adopt) turns it into a guard again.
///
/// The lock stays held in between, for the lease of the guard at most. No process renews it. The text is printable ASCII without spaces, so
/// it fits into a message, a header or an argument. Every process that has the text and may use the server can adopt the lock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), wheellock::Error> {
/// # let double = wheellock::testing::Double::new();
/// # let (web, worker) = (double.manager().await?, double.manager().await?);
/// let guard = web.lock("orders:42").acquire().await?;
/// let text = guard.into_ticket().await?.to_string(); // into a queue of jobs
///
/// let guard = worker.adopt(&text.parse()?).await?; // in the process that has taken the job
/// assert!(guard.is_valid());
/// assert!(worker.adopt(&text.parse()?).await.is_err(), "a ticket is adopted once");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "the lock stays held until its lease ends"]
pub struct Ticket {
    /// The label of the lock's kind.
    pub(crate) kind: String,
    pub(crate) lock: String,
    /// The owner that held the lock when the ticket was made. Only the ticket can still use it.
    pub(crate) owner: Owner,
    pub(crate) lease: Duration,
}

impl Ticket {
    /// Returns the lock's name.
    pub fn lock(&self) -> &str {
        &self.lock
    }

    /// Returns the label of the lock's kind, such as `lock` or `fair_lock`.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Returns for how long the lock stays held after the ticket was made, unless the maximum time of its hold ends before.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Returns the text without its check sum.
    fn content(&self) -> String {
        let Self { kind, lock, owner, lease } = self;
        let name = lock.bytes().map(|byte| match byte {
            // A percent sign begins an escaped byte.
            b'!'..=b'~' if byte != b'%' => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        });
        format!("{kind}:{}:{owner}:{}", lease.as_millis(), name.collect::<String>())
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let content = self.content();
        write!(f, "{FORMAT}:{:08x}:{content}", check_sum(&content))
    }
}

/// The text is not a ticket, or not a whole one.
///
/// ```
/// use wheellock::Ticket;
///
/// let error = "orders:42".parse::<Ticket>().unwrap_err();
/// assert_eq!(error.to_string(), "a ticket begins with wl1:");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ParseTicketError {
    /// The text does not begin as a ticket does. Or a later version of this library has made it.
    NotATicket,
    /// The text was cut or changed.
    Damaged,
}

impl fmt::Display for ParseTicketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotATicket => write!(f, "a ticket begins with {FORMAT}:"),
            Self::Damaged => f.write_str("the ticket was cut or changed"),
        }
    }
}

impl std::error::Error for ParseTicketError {}

impl FromStr for Ticket {
    type Err = ParseTicketError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (FORMAT, text) = text.trim().split_once(':').ok_or(ParseTicketError::NotATicket)? else {
            return Err(ParseTicketError::NotATicket);
        };
        read(text).ok_or(ParseTicketError::Damaged)
    }
}

/// Reads the text behind the format.
fn read(text: &str) -> Option<Ticket> {
    let (sum, content) = text.split_once(':')?;
    if sum != format!("{:08x}", check_sum(content)) {
        return None;
    }
    let mut parts = content.splitn(5, ':');
    let mut part = || parts.next();
    let (kind, lease, manager, number, name) = (part()?, part()?, part()?, part()?, part()?);
    // An owner's text has room for a UUID.
    let manager = Some(manager).filter(|manager| manager.len() == 36)?;
    Some(Ticket {
        kind: kind.to_owned(),
        lock: unescaped(name)?,
        owner: Owner { manager: manager.into(), number: number.parse().ok()? },
        lease: Duration::from_millis(lease.parse().ok()?),
    })
}

fn unescaped(name: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let [byte, behind @ ..] = rest {
        rest = behind;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let digits = rest.get(..2)?;
        bytes.push(u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?);
        rest = rest.get(2..)?;
    }
    String::from_utf8(bytes).ok()
}

/// Returns the FNV-1a hash. It finds a text that was cut or mistyped. It does not protect against forgery.
fn check_sum(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(lock: &str) -> Ticket {
        let manager = "0e8aa3a7-6d64-4f0e-9f3a-1c7a3b1b0a55".into();
        let lease = Duration::from_secs(30);
        Ticket {
            kind: "fair_lock".to_owned(),
            lock: lock.to_owned(),
            owner: Owner { manager, number: 17 },
            lease,
        }
    }

    #[test]
    fn ticket_survives_its_text() {
        for lock in ["orders:42", "", "a b", "100%", "ärger\n", "{tag}:x", "%41"] {
            let text = ticket(lock).to_string();
            assert!(text.bytes().all(|byte| byte.is_ascii_graphic()), "{text}");
            assert_eq!(text.parse(), Ok(ticket(lock)));
        }
        assert!(ticket("orders:42").to_string().len() < 120);
    }

    #[test]
    fn damaged_ticket_is_refused() {
        let text = ticket("orders:42").to_string();
        for end in 0..text.len() {
            assert!(text[..end].parse::<Ticket>().is_err(), "{end}");
        }
        for place in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[place] ^= 1;
            assert!(String::from_utf8(bytes).unwrap().parse::<Ticket>().is_err(), "{place}");
        }
        for text in ["", ":", "wl1", "wl1:", "wl1::", "wl2:00000000:lock", "wl1:811c9dc5:", "%"] {
            assert!(text.parse::<Ticket>().is_err(), "{text}");
        }
    }
}
