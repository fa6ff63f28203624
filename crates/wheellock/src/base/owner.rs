//! Who holds a lock. Owns the identity's text; knows no lock.

use std::fmt;
use std::sync::Arc;

/// The identity of a holder, as it stands in the lock's hash: `uuid:number`, where the uuid is the manager's and the
/// number is unique within it (source: Redisson's `uuid:threadId`).
///
/// Who presents the same owner may take the same lock again. Every acquire without an explicit owner is a fresh
/// one, so sharing a [`Lock`](crate::Lock) between tasks never lets two of them in.
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

/// What the server knows a permit of a [`PermitSemaphore`](crate::PermitSemaphore) by, in any process. Its text is that of
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
/// if let Some(id) = PermitId::parse(&told) {
///     licences.release(id).await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PermitId(pub(crate) u128);

impl PermitId {
    /// The id whose text this is; `None` if it is none.
    pub fn parse(text: &str) -> Option<Self> {
        let is_id = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_id.then(|| Self(as_number(text)))
    }

    /// As it stands on the server.
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

/// What a holder is called on the server, on the stack, because it is written with every call and must not cost an allocation: its
/// owner and what its kind of lock puts behind it, or the id of a permit.
pub(crate) struct OwnerText {
    bytes: [u8; Self::LEN],
    /// Where in them it begins and ends.
    start: usize,
    end: usize,
}

impl OwnerText {
    /// A uuid, a colon, the longest `u64`, and the longest of what a kind of lock puts behind it.
    const LEN: usize = UUID + 1 + DIGITS + SUFFIX;

    /// Written from its number's last digit to its beginning, so that nobody has to know how many there are.
    pub(crate) fn new(manager: &str, number: u64, suffix: &'static str) -> Self {
        let mut bytes = [0; Self::LEN];
        let number_ends = Self::LEN - SUFFIX;
        let end = number_ends + suffix.len();
        if !suffix.is_empty()
            && let Some(place) = bytes.get_mut(number_ends..end)
        {
            place.copy_from_slice(suffix.as_bytes());
        }
        let (mut start, mut left) = (number_ends, number);
        loop {
            start -= 1;
            if let Some(place) = bytes.get_mut(start) {
                // A remainder of ten fits a byte.
                *place = b'0' + (left % 10) as u8;
            }
            left /= 10;
            if left == 0 {
                break;
            }
        }
        start -= 1;
        if let Some(place) = bytes.get_mut(start) {
            *place = b':';
        }
        start -= UUID;
        // A manager's identity is always a uuid; see `new_uuid`.
        if let (Some(uuid), Some(manager)) = (
            bytes.get_mut(start..).and_then(<[u8]>::first_chunk_mut::<UUID>),
            manager.as_bytes().first_chunk(),
        ) {
            *uuid = *manager;
        }
        Self { bytes, start, end }
    }

    /// The id of a permit: 16 bytes (source: Redisson), of which no two managers have the same.
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

/// The number whose hexadecimal digits a uuid is.
pub(crate) fn as_number(uuid: &str) -> u128 {
    uuid.chars()
        .filter_map(|digit| digit.to_digit(16))
        .fold(0, |number, digit| number << 4 | u128::from(digit))
}

/// A random (version 4) UUID.
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
    fn text_on_the_stack_is_the_text_displayed() {
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
