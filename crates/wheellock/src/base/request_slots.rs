//! The request slots on the server.
//!
//! A slot remembers a request that takes effect once. A value: the number of slots in use is at most the number of pending requests.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The slots that are in use.
#[derive(Default)]
pub(crate) struct RequestSlots {
    free: Vec<u64>,
    count: u64,
    next_serial: u64,
}

/// The slot of one request. When dropped, frees the slot for a later request, which has a higher serial number. If this request arrives
/// late, it finds that no task waits for it.
pub(crate) struct RequestSlot<'a> {
    places: &'a Mutex<RequestSlots>,
    pub(crate) number: u64,
    pub(crate) serial: u64,
}

impl<'a> RequestSlot<'a> {
    pub(crate) fn take(places: &'a Mutex<RequestSlots>) -> Self {
        let mut all = lock(places);
        let (number, serial) = (all.number(), all.serial());
        drop(all);
        Self { places, number, serial }
    }
}

impl RequestSlots {
    /// Takes a slot for several consecutive requests. A late request finds there that a later request was made.
    pub(crate) fn keep(places: &Mutex<Self>) -> u64 {
        lock(places).number()
    }

    /// Returns the serial number of the next request in a kept slot.
    pub(crate) fn next(places: &Mutex<Self>) -> u64 {
        lock(places).serial()
    }

    /// Frees the slot for other requests.
    pub(crate) fn give_back(places: &Mutex<Self>, number: u64) {
        lock(places).free.push(number);
    }

    fn number(&mut self) -> u64 {
        self.free.pop().unwrap_or_else(|| {
            self.count += 1;
            self.count
        })
    }

    fn serial(&mut self) -> u64 {
        self.next_serial += 1;
        self.next_serial
    }
}

fn lock(places: &Mutex<RequestSlots>) -> MutexGuard<'_, RequestSlots> {
    places.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for RequestSlot<'_> {
    fn drop(&mut self) {
        RequestSlots::give_back(self.places, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reused_slot_gets_higher_serial() {
        let places = Mutex::default();
        let (one, other) = (RequestSlot::take(&places), RequestSlot::take(&places));
        assert_eq!((one.number, other.number), (1, 2));
        let before = one.serial.max(other.serial);
        drop(one);
        let next = RequestSlot::take(&places);
        assert!(next.number == 1 && next.serial > before);
    }

    #[test]
    fn kept_slot_is_not_reused() {
        let places = Mutex::default();
        let kept = RequestSlots::keep(&places);
        let first = RequestSlots::next(&places);
        let other = RequestSlot::take(&places);
        assert!(other.number != kept && first < other.serial && other.serial < RequestSlots::next(&places));
        RequestSlots::give_back(&places, kept);
        let next = RequestSlot::take(&places);
        assert!(next.number == kept && next.serial > first);
    }
}
