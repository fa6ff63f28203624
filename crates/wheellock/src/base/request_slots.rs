//! The request slots on the server.
//!
//! A slot remembers a request that takes effect once. A value: the number of slots in use is at most the number of pending requests.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The slots that are in use.
#[derive(Default)]
pub(crate) struct RequestSlots {
    free: Vec<u64>,
    count: u64,
    last_serial: u64,
}

/// The slot of one request, or of several consecutive requests. When dropped, frees the slot for later requests, which have higher serial
/// numbers. If a request arrives late, it finds there that no task waits for it.
pub(crate) struct RequestSlot {
    slots: Arc<Mutex<RequestSlots>>,
    pub(crate) number: u64,
}

impl RequestSlot {
    pub(crate) fn take(slots: &Arc<Mutex<RequestSlots>>) -> Self {
        let mut all = lock(slots);
        let number = all.free.pop().unwrap_or_else(|| {
            all.count += 1;
            all.count
        });
        drop(all);
        Self { slots: Arc::clone(slots), number }
    }

    /// Returns the serial number of the next request in this slot.
    pub(crate) fn next_serial(&self) -> u64 {
        let mut all = lock(&self.slots);
        all.last_serial += 1;
        all.last_serial
    }
}

fn lock(slots: &Mutex<RequestSlots>) -> MutexGuard<'_, RequestSlots> {
    slots.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        lock(&self.slots).free.push(self.number);
    }
}

impl fmt::Debug for RequestSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestSlot").field("number", &self.number).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reused_slot_gets_higher_serial() {
        let slots = Arc::default();
        let (one, other) = (RequestSlot::take(&slots), RequestSlot::take(&slots));
        assert_eq!((one.number, other.number), (1, 2));
        let before = one.next_serial().max(other.next_serial());
        drop(one);
        let next = RequestSlot::take(&slots);
        assert!(next.number == 1 && next.next_serial() > before);
    }

    #[test]
    fn kept_slot_is_not_reused() {
        let slots = Arc::default();
        let kept = RequestSlot::take(&slots);
        let first = kept.next_serial();
        let other = RequestSlot::take(&slots);
        let serial = other.next_serial();
        assert!(other.number != kept.number && first < serial && serial < kept.next_serial());
        let number = kept.number;
        drop(kept);
        let next = RequestSlot::take(&slots);
        assert!(next.number == number && next.next_serial() > first);
    }
}
