//! Tasks that wait until their process can acquire locks in its fleet.

use std::task::Waker;

use slab::Slab;

/// The waiting tasks. A task that gives up leaves. Otherwise each call in a long failover would keep memory.
#[derive(Default)]
pub(super) struct Gate {
    tasks: Slab<Waker>,
    /// Number of openings. After an opening, the place of a task may be another task's.
    openings: u64,
}

/// The place of a task at the gate.
pub(crate) struct GatePlace {
    key: usize,
    openings: u64,
}

impl Gate {
    /// Stores the waker in the task's place, or in a new place.
    pub(super) fn wait(&mut self, place: &mut Option<GatePlace>, waker: &Waker) {
        if let Some(known) = place.as_ref().and_then(|place| self.task(place)) {
            known.clone_from(waker);
        } else {
            *place = Some(GatePlace { key: self.tasks.insert(waker.clone()), openings: self.openings });
        }
    }

    fn task(&mut self, place: &GatePlace) -> Option<&mut Waker> {
        self.tasks.get_mut(place.key).filter(|_| place.openings == self.openings)
    }

    /// Removes and returns the waker of a task that does not wait any more.
    pub(super) fn leave(&mut self, place: &GatePlace) -> Option<Waker> {
        self.task(place)?;
        self.tasks.try_remove(place.key)
    }

    /// Returns all wakers, and keeps none.
    pub(super) fn open(&mut self) -> Vec<Waker> {
        self.openings += 1;
        std::mem::take(&mut self.tasks).into_iter().map(|(_, waker)| waker).collect()
    }
}
