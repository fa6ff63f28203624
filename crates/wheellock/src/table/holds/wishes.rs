//! Guards that have the server asked for their holds now, and wait for what it says: that the lease is extended, or only that it
//! still runs. What is waited for is a renewal as the watchdog makes it; here is a caller's wish for one, which begins, looks and
//! leaves.
//!
//! A wish is not fulfilled by a renewal that was under way before it.

use std::collections::HashMap;
use std::task::Waker;

use super::HoldIndex;
use super::awaited::Failed;
use crate::base::clock::BootInstant;
use crate::base::durability::Shortfall;

/// The wishes of one table, by hold. A hold lives as long as its guards, and these wait.
#[derive(Default)]
pub(super) struct Wishes {
    of: HashMap<HoldIndex, Vec<Wish>>,
    last: u64,
}

/// What is wished of the server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Want {
    /// To say whether the lease still runs.
    Word,
    /// To extend it.
    Extension,
}

/// What a caller is told: by how much too few other servers know of the extension, if they do. Whether the lock is held, the hold
/// says.
pub(crate) type Fulfilled = Result<Option<Shortfall>, Failed>;

struct Wish {
    number: u64,
    want: Want,
    until: BootInstant,
    /// A renewal has begun that fulfils it.
    asked: bool,
    /// A renewal before may have been executed without an answer.
    ambiguous: bool,
    /// Why a renewal before failed.
    reason: Option<wheellock_client::Error>,
    stage: Stage,
}

enum Stage {
    Waiting(Waker),
    Ended(Fulfilled),
}

impl Wish {
    fn waits(&self) -> bool {
        matches!(self.stage, Stage::Waiting(_))
    }
}

impl Wishes {
    pub(super) fn begin(&mut self, hold: HoldIndex, want: Want, until: BootInstant, waker: &Waker) -> u64 {
        self.last += 1;
        let stage = Stage::Waiting(waker.clone());
        let (asked, ambiguous, reason) = (false, false, None);
        let wish = Wish { number: self.last, want, until, asked, ambiguous, reason, stage };
        self.of.entry(hold).or_default().push(wish);
        self.last
    }

    /// The most that is wished of this hold.
    pub(super) fn most(&self, hold: HoldIndex) -> Option<Want> {
        self.of.get(&hold)?.iter().filter(|wish| wish.waits()).map(|wish| wish.want).max()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// A renewal begins.
    pub(super) fn asked(&mut self, hold: HoldIndex, what: Want) {
        self.each(hold, |wish| wish.asked |= wish.want <= what);
    }

    /// The renewal under way has not fulfilled what is still wished.
    pub(super) fn in_vain(&mut self, hold: HoldIndex) {
        self.each(hold, |wish| wish.asked = false);
    }

    /// Why the renewal under way failed, if another one follows; `executed` if it may have been.
    pub(super) fn failed_once(
        &mut self,
        hold: HoldIndex,
        why: &wheellock_client::Error,
        executed: bool,
        now: BootInstant,
    ) {
        self.each(hold, |wish| {
            wish.ambiguous |= executed && wish.asked;
            // What ends with the wait is not what has ended it.
            if wish.asked && now < wish.until {
                wish.reason = Some(why.clone());
            }
        });
    }

    /// The server has done what was asked for, up to this much.
    pub(super) fn fulfilled(&mut self, hold: HoldIndex, what: Want, woken: impl FnMut(Waker)) {
        self.end(hold, |wish| wish.asked && wish.want <= what, |_| Ok(None), woken);
    }

    /// The lease was extended, and too few other servers know of it.
    pub(super) fn fell_short(&mut self, hold: HoldIndex, shortfall: Shortfall, woken: impl FnMut(Waker)) {
        self.end(hold, |wish| wish.asked, |_| Ok(Some(shortfall)), woken);
    }

    /// The hold is lost, which it says by itself.
    pub(super) fn lost(&mut self, hold: HoldIndex, woken: impl FnMut(Waker)) {
        self.end(hold, |_| true, |_| Ok(None), woken);
    }

    /// Nothing that is asked for now has a chance.
    pub(super) fn failed(&mut self, hold: HoldIndex, why: &Failed, woken: impl FnMut(Waker)) {
        self.end(hold, |_| true, |wish| Err(why.for_caller(wish.ambiguous)), woken);
    }

    /// Wishes whose deadlines have passed end; `sent` tells of a hold whether a renewal is under way that may be executed.
    pub(super) fn overdue(
        &mut self,
        now: BootInstant,
        sent: impl Fn(HoldIndex) -> bool,
        mut woken: impl FnMut(Waker),
    ) {
        let holds: Vec<_> = self.of.keys().copied().collect();
        for hold in holds {
            let sent = sent(hold);
            let told = |wish: &Wish| {
                let ambiguous = wish.ambiguous || (sent && wish.asked);
                Err(Failed::TimedOut { ambiguous, reason: wish.reason.clone() })
            };
            self.end(hold, |wish| now >= wish.until, told, &mut woken);
        }
    }

    /// The earliest deadline of those that wait.
    pub(super) fn earliest(&self) -> Option<BootInstant> {
        self.of.values().flatten().filter(|wish| wish.waits()).map(|wish| wish.until).min()
    }

    /// What a caller is told; leaves its waker if there is nothing yet.
    pub(super) fn take(&mut self, hold: HoldIndex, number: u64, waker: &Waker) -> Option<Fulfilled> {
        let wish = self.of.get_mut(&hold)?.iter_mut().find(|wish| wish.number == number)?;
        if let Stage::Waiting(known) = &mut wish.stage {
            known.clone_from(waker);
            return None;
        }
        match self.leave(hold, number)?.stage {
            Stage::Ended(end) => Some(end),
            Stage::Waiting(_) => None,
        }
    }

    /// A caller has left. What is returned is to be dropped outside the table's lock.
    pub(super) fn forget(&mut self, hold: HoldIndex, number: u64) -> Option<Waker> {
        match self.leave(hold, number)?.stage {
            Stage::Waiting(waker) => Some(waker),
            Stage::Ended(_) => None,
        }
    }

    fn leave(&mut self, hold: HoldIndex, number: u64) -> Option<Wish> {
        let wishes = self.of.get_mut(&hold)?;
        let place = wishes.iter().position(|wish| wish.number == number)?;
        let wish = wishes.swap_remove(place);
        if wishes.is_empty() {
            self.of.remove(&hold);
        }
        Some(wish)
    }

    fn each(&mut self, hold: HoldIndex, with: impl FnMut(&mut Wish)) {
        if let Some(wishes) = self.of.get_mut(&hold) {
            wishes.iter_mut().for_each(with);
        }
    }

    fn end(
        &mut self,
        hold: HoldIndex,
        which: impl Fn(&Wish) -> bool,
        told: impl Fn(&Wish) -> Fulfilled,
        mut woken: impl FnMut(Waker),
    ) {
        self.each(hold, |wish| {
            if wish.waits() && which(wish) {
                let end = Stage::Ended(told(wish));
                if let Stage::Waiting(waker) = std::mem::replace(&mut wish.stage, end) {
                    woken(waker);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests;
