//! The holders of a lock, for display. This module owns a holder's text and the limit of a label.

use std::fmt;
use std::time::Duration;

use crate::base::error::{Error, MAX_LABEL};
use crate::base::owner::SPENT;

/// A holder of a lock, as the server knew it at one moment. The holder may be a process that uses this library, Redisson, or a library of
/// simple locks.
///
/// Use this type for display only. Another owner may hold the lock by the time the reply arrives.
///
/// ```no_run
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// match locks.lock("orders:42").holder().await? {
///     Some(holder) => println!("{holder}"),
///     None => println!("it is free"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Holder {
    /// The owner's text on the server. For this library and for Redisson it is `uuid:number`, the text of an [`Owner`](crate::Owner). Other
    /// libraries of simple locks write any text. Bytes that are not UTF-8 are replaced.
    pub owner: String,
    /// The mode of the hold.
    pub mode: Mode,
    /// The number of holds; 1 if the lock is not reentrant.
    pub hold_count: u64,
    /// The remaining lease by the server's clock, to the millisecond, unless the lease is renewed. [`Duration::MAX`] if the lease has no
    /// end.
    pub lease_left: Duration,
    /// The label of the holder's manager: see [`LockManagerBuilder::label`](crate::LockManagerBuilder::label).
    ///
    /// `None` if the manager has no label, if the holder uses another library, or if the user may not read labels. Do not trust the text,
    /// because every client that may write keys can change it. The text has at most 256 bytes. `Display` escapes it.
    pub label: Option<String>,
    /// The time since the grant of the hold.
    ///
    /// Known only for a manager with a label. It writes the starts of its hundred oldest holds every 10 s, if they have lasted for 5 s.
    /// Of an owner that releases the lock and acquires it again, or hands it over within its process, it may be the earlier hold's for as
    /// long. As of the label, do not trust it.
    pub held_for: Option<Duration>,
}

impl Holder {
    /// Returns the identity of the holder's process, if it has one: the uuid of a manager ([`LockManager::id`](crate::LockManager::id)) or
    /// of a `RedissonClient`.
    ///
    /// ```
    /// # fn show(holder: &wheellock::Holder) {
    /// if let Some(process) = holder.process() {
    ///     println!("held by {process}");
    /// }
    /// # }
    /// ```
    pub fn process(&self) -> Option<&str> {
        process_in(&self.owner)
    }

    /// Returns true if the holder's work has ended, and the lock only stays held until its [minimum
    /// time](crate::Lock::with_min_hold) is over. No process renews such a hold.
    pub fn is_spent(&self) -> bool {
        let number = self.owner.rsplit_once(':').and_then(|(_, number)| number.parse::<u64>().ok());
        self.process().is_some() && number.is_some_and(|number| number >= SPENT)
    }
}

/// Writes one line for display: the label if there is one, the owner, the number of holds, the age of the hold if it is known, and the
/// remaining lease.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(label) = &self.label {
            write!(f, "{} ", label.escape_debug())?;
        }
        write!(f, "[{}] ", self.owner.escape_debug())?;
        if self.is_spent() {
            return write!(
                f,
                "has ended its work and keeps it for {:.1} s more",
                self.lease_left.as_secs_f64()
            );
        }
        write!(f, "holds it {}", self.mode)?;
        if self.hold_count != 1 {
            write!(f, ", {} times", self.hold_count)?;
        }
        if let Some(age) = self.held_for {
            write!(f, ", granted {} ago", Age(age))?;
        }
        if self.lease_left == Duration::MAX {
            f.write_str(", without an end")
        } else {
            write!(f, ", for {:.1} s more unless it renews", self.lease_left.as_secs_f64())
        }
    }
}

/// A time for display, in its largest unit.
struct Age(Duration);

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs() {
            seconds @ ..120 => write!(f, "{seconds} s"),
            seconds @ ..7_200 => write!(f, "{} min", seconds / 60),
            seconds @ ..172_800 => write!(f, "{} h", seconds / 3_600),
            seconds => write!(f, "{} d", seconds / 86_400),
        }
    }
}

/// The mode in which a [`Holder`] holds a lock.
///
/// ```no_run
/// use wheellock::Mode;
///
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// let found = locks.read_write_lock("prices").read().holders().await?;
/// println!("{} read", found.holders.iter().filter(|holder| holder.mode == Mode::Read).count());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// The only holder of a lock that is not a read-write lock.
    Exclusive,
    /// A reader. Other owners may read as well.
    Read,
    /// A writer. No other owner may read or write.
    Write,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusive => "alone",
            Self::Read => "for reading",
            Self::Write => "for writing",
        })
    }
}

/// The holders of a lock. For a very large number of readers, only some of them.
///
/// ```no_run
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// let found = locks.read_write_lock("prices").read().holders().await?;
/// found.holders.iter().for_each(|holder| println!("{holder}"));
/// println!("and {} more", found.beyond);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Holders {
    /// The holders in no particular order, at most a hundred.
    pub holders: Vec<Holder>,
    /// The number of further holders. Readers whose leases have ended may be among them.
    pub beyond: u64,
}

impl Holders {
    /// Largest number of holders that a script returns.
    pub(crate) const MOST: u32 = 100;

    /// Returns true if the lock has no holder.
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.beyond == 0
    }
}

/// A waiter for a fair lock, as the server knew it at one moment: see [`Lock::waiters`](crate::Lock::waiters).
///
/// ```no_run
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// for waiter in locks.fair_lock("tickets").waiters().await?.unwrap_or_default() {
///     println!("{} waits: {:?}", waiter.owner, waiter.label);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Waiter {
    /// The owner's text on the server, as in [`Holder::owner`].
    pub owner: String,
    /// The label of the waiter's manager, as in [`Holder::label`].
    pub label: Option<String>,
}

/// A lock that a [`Listing`](crate::Listing) has found.
///
/// ```
/// # fn show(lock: &wheellock::Listed) {
/// println!("{} is a {}, held by {} at least", lock.name, lock.kind, lock.holders.holders.len());
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Listed {
    /// The lock's name on the server, with any prefix.
    pub name: String,
    /// The label of the kind, as the shape of the data shows it: `lock`, `fair_lock`, `fenced_lock`, `read`, `write`, `simple_lock` or
    /// `permit_semaphore`. A fair lock without waiters looks like a `lock`. A lock that was fenced once looks like a `fenced_lock`.
    pub kind: &'static str,
    /// The number of waiters, if the server knows them, as of a fair lock.
    pub waiters: Option<u64>,
    /// The holders. Only the number of a permit semaphore's holders is known.
    pub holders: Holders,
}

/// Returns the uuid at the beginning of an owner's text.
pub(crate) fn process_in(owner: &str) -> Option<&str> {
    let (process, number) = owner.split_once(':')?;
    let is_uuid = process.len() == UUID
        && process.bytes().enumerate().all(|(place, byte)| match place {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        });
    (is_uuid && number.parse::<i64>().is_ok()).then_some(process)
}

/// Length of a uuid's text.
const UUID: usize = 36;

/// A manager's label, for display.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Label(String);

impl Label {
    pub(crate) fn new(text: String) -> Result<Self, Error> {
        let may_be = (1..=MAX_LABEL).contains(&text.len()) && !text.chars().any(char::is_control);
        if may_be { Ok(Self(text)) } else { Err(Error::InvalidLabel { length: text.len() }) }
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// Converts the bytes found under a label's key. They may be any bytes, of any length.
    pub(crate) fn as_found(bytes: &[u8]) -> String {
        String::from_utf8_lossy(bytes.get(..MAX_LABEL).unwrap_or(bytes)).into_owned()
    }
}

#[cfg(test)]
mod tests;
