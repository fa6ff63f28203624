//! Who waits for one thing, each once, and for no longer than it does. Knows nothing of what is waited for.

use std::task::Waker;

/// Who is to be woken, by its number. Nearly always it is one.
#[derive(Default)]
pub(crate) enum Waiting {
    #[default]
    Nobody,
    One(u64, Waker),
    Many(Vec<(u64, Waker)>),
}

impl Waiting {
    /// Replaces the waker that `waiter` left before, if it did.
    pub(crate) fn add(&mut self, waiter: u64, waker: &Waker) {
        match self {
            Self::Nobody => *self = Self::One(waiter, waker.clone()),
            Self::One(known, old) if *known == waiter => old.clone_from(waker),
            Self::One(..) => {
                if let Self::One(first, old) = std::mem::take(self) {
                    *self = Self::Many(vec![(first, old), (waiter, waker.clone())]);
                }
            }
            Self::Many(all) => match all.iter_mut().find(|(known, _)| *known == waiter) {
                Some((_, old)) => old.clone_from(waker),
                None => all.push((waiter, waker.clone())),
            },
        }
    }

    /// Takes out the waker that `waiter` left, if it is still there.
    pub(crate) fn forget(&mut self, waiter: u64) -> Option<Waker> {
        match self {
            Self::One(known, _) if *known == waiter => {
                let Self::One(_, waker) = std::mem::take(self) else { return None };
                Some(waker)
            }
            Self::Many(all) => {
                let place = all.iter().position(|(known, _)| *known == waiter)?;
                Some(all.remove(place).1)
            }
            Self::Nobody | Self::One(..) => None,
        }
    }

    /// Nobody waits any more; who did goes to `wakers`.
    pub(crate) fn wake(&mut self, wakers: &mut Vec<Waker>) {
        match std::mem::take(self) {
            Self::Nobody => {}
            Self::One(_, waker) => wakers.push(waker),
            Self::Many(all) => wakers.extend(all.into_iter().map(|(_, waker)| waker)),
        }
    }
}

/// Forgets who waited when the future is dropped that has waited, whatever has become of it. Gives back the waker, which is dropped here and
/// under no lock.
pub(crate) struct OnLeave<F: FnMut() -> Option<Waker>>(pub(crate) F);

impl<F: FnMut() -> Option<Waker>> Drop for OnLeave<F> {
    fn drop(&mut self) {
        let waker = (self.0)();
        drop(waker);
    }
}
