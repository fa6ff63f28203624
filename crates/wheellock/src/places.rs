//! The places on the server where requests are remembered that take effect once. A value: no more of them are in use than requests
//! are under way at the same time.

use std::sync::{Mutex, PoisonError};

/// The places that are in use.
#[derive(Default)]
pub(crate) struct Places {
    free: Vec<u64>,
    count: u64,
    next_serial: u64,
}

/// Where a request is remembered. Another one may have the place when this is dropped; it has a higher number, so that one
/// that is late finds that nobody waits for it.
pub(crate) struct Place<'a> {
    places: &'a Mutex<Places>,
    pub(crate) number: u64,
    pub(crate) serial: u64,
}

impl<'a> Place<'a> {
    pub(crate) fn take(places: &'a Mutex<Places>) -> Self {
        let mut all = places.lock().unwrap_or_else(PoisonError::into_inner);
        all.next_serial += 1;
        let number = all.free.pop().unwrap_or_else(|| {
            all.count += 1;
            all.count
        });
        let serial = all.next_serial;
        drop(all);
        Self { places, number, serial }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).free.push(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_used_again_with_a_higher_number() {
        let places = Mutex::default();
        let (one, other) = (Place::take(&places), Place::take(&places));
        assert_eq!((one.number, other.number), (1, 2));
        let before = one.serial.max(other.serial);
        drop(one);
        let next = Place::take(&places);
        assert!(next.number == 1 && next.serial > before);
    }
}
