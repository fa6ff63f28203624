//! Who holds a lock, as the server tells it: values to be shown. Owns the text of a holder and the bound of a label.

use std::fmt;
use std::time::Duration;

use crate::base::error::{Error, MAX_LABEL};

/// Somebody who holds a lock, as the server knows it at one moment: any process that uses this library, Redisson, or a library
/// of simple locks.
///
/// It is for showing to people. Who decides by it decides by what has passed: the lock may be somebody else's by now.
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
    /// As it is written on the server. Of this library and of Redisson it is `uuid:number`, an [`Owner`](crate::Owner)'s text;
    /// other libraries of simple locks write what they like, and what of that is no UTF-8 is replaced.
    pub owner: String,
    /// In which way it holds.
    pub mode: Mode,
    /// How often it holds; 1 where the lock is not reentrant.
    pub hold_count: u64,
    /// How long its lease still runs by the server's clock, to the millisecond, unless it is renewed; [`Duration::MAX`] if it has
    /// no end.
    pub lease_left: Duration,
    /// What its manager calls itself: see [`LockManagerBuilder::label`](crate::LockManagerBuilder::label). `None` if it does not,
    /// if it is of another library, or if the user may not read it. It is what was found under its key, 256 bytes at most: whoever may
    /// write keys can put anything there. `Display` escapes it.
    pub label: Option<String>,
}

impl Holder {
    /// The identity of its process, as far as it has one: the uuid of a manager ([`LockManager::id`](crate::LockManager::id)) or
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
}

/// One line, for people: the label if there is one, the owner, how often and for how long.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(label) = &self.label {
            write!(f, "{} ", label.escape_debug())?;
        }
        write!(f, "[{}] holds it {}", self.owner.escape_debug(), self.mode)?;
        if self.hold_count != 1 {
            write!(f, ", {} times", self.hold_count)?;
        }
        if self.lease_left == Duration::MAX {
            f.write_str(", without an end")
        } else {
            write!(f, ", for {:.1} s more unless it renews", self.lease_left.as_secs_f64())
        }
    }
}

/// In which way a [`Holder`] holds.
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
    /// It is the only one: a lock that is no read-write lock.
    Exclusive,
    /// It reads, and others may.
    Read,
    /// It writes, and nobody else does or reads.
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

/// All who hold a lock, or of very many readers some.
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
    /// In no particular order; at most a hundred.
    pub holders: Vec<Holder>,
    /// How many there are beyond these. Readers whose leases have ended may be among them.
    pub beyond: u64,
}

impl Holders {
    /// A script says no more.
    pub(crate) const MOST: u32 = 100;

    /// Whether nobody holds the lock.
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.beyond == 0
    }
}

/// The uuid that an owner's text begins with.
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

/// What a manager calls itself, for people.
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

    /// What was found where a label should be: anything, of any length.
    pub(crate) fn as_found(bytes: &[u8]) -> String {
        String::from_utf8_lossy(bytes.get(..MAX_LABEL).unwrap_or(bytes)).into_owned()
    }
}

#[cfg(test)]
mod tests;
