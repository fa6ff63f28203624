//! The identity of a lock's holder, and its text. It does not refer to any lock.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The identity of a lock's holder, as in the lock's hash on the server: `uuid:number`. The uuid is the manager's, and the number is unique
/// within the manager (source: Redisson's `uuid:threadId`).
///
/// A caller that presents the same owner may acquire the same lock again. Every acquire without an explicit owner uses a fresh owner. Tasks
/// that share a [`Lock`](crate::Lock) therefore exclude each other.
///
/// ```no_run
/// # async fn example(lock: wheellock::Lock) -> Result<(), wheellock::Error> {
/// let outer = lock.acquire().await?;
/// let inner = lock.with_owner(outer.owner()).acquire().await?; // at once: the same owner
/// assert_eq!(lock.hold_count(&outer.owner()).await?, 2);
/// drop((inner, outer));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Owner {
    pub(crate) manager: Arc<str>,
    pub(crate) number: u64,
}

/// The number of the process's first thread. Managers number their owners from 1, and reach neither this number nor [`SPENT`].
pub(crate) const FIRST_THREAD: u64 = 1 << 61;
/// The number from which on an owner is spent. No owner of a living process may have it, because such an owner would enter a lock that is
/// kept for a minimum time. Redisson accepts it as the number of a thread (a Java `long`).
pub(crate) const SPENT: u64 = 1 << 62;

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.manager, self.number)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({self})")
    }
}

/// The server's identity of a permit of a [`PermitSemaphore`](crate::PermitSemaphore), valid in any process. Its text is the same as in
/// Redisson: 32 hexadecimal digits.
///
/// ```no_run
/// use wheellock::PermitId;
///
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// // A job that another process finishes: it gets the id, and the watchdog of this one keeps the permit until then.
/// let licences = locks.permit_semaphore("licences");
/// let permit = licences.acquire().await?;
/// let told = permit.id().to_string();
///
/// if let Ok(id) = told.parse::<PermitId>() {
///     licences.release(id).await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PermitId(pub(crate) u128);

/// The text is not the id of a permit.
///
/// ```
/// use wheellock::PermitId;
///
/// let error = "orders:42".parse::<PermitId>().unwrap_err();
/// assert_eq!(error.to_string(), "the id of a permit has 32 hexadecimal digits");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ParsePermitIdError;

impl fmt::Display for ParsePermitIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the id of a permit has 32 hexadecimal digits")
    }
}

impl std::error::Error for ParsePermitIdError {}

impl FromStr for PermitId {
    type Err = ParsePermitIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_id = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        if is_id { Ok(Self(as_number(text))) } else { Err(ParsePermitIdError) }
    }
}

impl PermitId {
    /// Returns the bytes of the id, as on the server.
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

impl fmt::Display for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PermitId({self})")
    }
}

/// A holder's identity on the server: its owner with the suffix of the lock's kind, or the id of a permit. The text is on the stack,
/// because every call writes it and must not allocate.
pub(crate) struct OwnerText {
    bytes: [u8; Self::LEN],
    /// Start of the text within `bytes`.
    start: usize,
    end: usize,
}

impl OwnerText {
    /// Length of a uuid, a colon, the longest `u64`, and the longest suffix of a kind.
    const LEN: usize = UUID + 1 + DIGITS + SUFFIX;

    /// Creates the text of an owner. Writes backwards from the last digit, so that the number of digits need not be known.
    pub(crate) fn new(manager: &str, number: u64, suffix: &'static str) -> Self {
        let mut bytes = [0; Self::LEN];
        let number_ends = Self::LEN - SUFFIX;
        let end = number_ends + suffix.len();
        if !suffix.is_empty()
            && let Some(place) = bytes.get_mut(number_ends..end)
        {
            place.copy_from_slice(suffix.as_bytes());
        }
        let (mut rest, mut left) = (bytes.get_mut(..number_ends).unwrap_or_default(), number);
        while let [before @ .., place] = rest {
            // A remainder of ten fits into a byte.
            *place = b'0' + (left % 10) as u8;
            (rest, left) = (before, left / 10);
            if left == 0 {
                break;
            }
        }
        let mut start = rest.len();
        // A manager's identity is always a uuid; see `new_uuid`.
        if let ([before @ .., colon], Some(manager)) = (rest, manager.as_bytes().first_chunk())
            && let Some((before, uuid)) = before.split_last_chunk_mut::<UUID>()
        {
            (*colon, *uuid) = (b':', *manager);
            start = before.len();
        }
        Self { bytes, start, end }
    }

    /// Creates the id of a permit: 16 bytes (source: Redisson). No two managers have the same id.
    pub(crate) fn permit(first: u128, number: u64) -> Self {
        let mut bytes = [0; Self::LEN];
        let id = PermitId(first.wrapping_add(u128::from(number))).to_bytes();
        for (place, byte) in bytes.iter_mut().zip(id) {
            *place = byte;
        }
        Self { bytes, start: 0, end: id.len() }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }
}

/// Length of a uuid's text.
const UUID: usize = 36;
/// Length of the longest `u64`.
const DIGITS: usize = 20;
/// Length of `:write`.
const SUFFIX: usize = 6;

/// Returns the number that the hexadecimal digits of a uuid form.
pub(crate) fn as_number(uuid: &str) -> u128 {
    uuid.chars()
        .filter_map(|digit| digit.to_digit(16))
        .fold(0, |number, digit| number << 4 | u128::from(digit))
}

/// Creates a random (version 4) UUID.
pub(crate) fn new_uuid() -> Result<String, getrandom::Error> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes)?;
    let [.., six, _, eight, _, _, _, _, _, _, _] = &mut bytes;
    *six = (*six & 0x0F) | 0x40;
    *eight = (*eight & 0x3F) | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [(0, 8), (8, 12), (12, 16), (16, 20), (20, 32)];
    Ok(parts.map(|(from, to)| hex.get(from..to).unwrap_or_default()).join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stack_text_matches_displayed_owner() {
        let manager: Arc<str> = new_uuid().unwrap().into();
        for number in [0, 1, 9, 10, 12_345, u64::MAX] {
            let owner = Owner { manager: Arc::clone(&manager), number };
            assert_eq!(OwnerText::new(&manager, number, "").as_bytes(), owner.to_string().as_bytes());
            let writer = format!("{owner}:write");
            assert_eq!(OwnerText::new(&manager, number, ":write").as_bytes(), writer.as_bytes());
        }
    }

    #[test]
    fn uuids_are_version_4_and_differ() {
        let (a, b) = (new_uuid().unwrap(), new_uuid().unwrap());
        assert_ne!(a, b);
        let dashes: Vec<_> = a.match_indices('-').map(|(at, _)| at).collect();
        assert_eq!((a.len(), dashes), (36, vec![8, 13, 18, 23]));
        assert_eq!(a.as_bytes()[14], b'4');
        assert!(b"89ab".contains(&a.as_bytes()[19]));
    }
}
