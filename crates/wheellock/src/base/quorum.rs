//! The tally of several members of which so many are needed: all of them, a majority, or the only one. Pure; knows neither
//! locks nor clocks.

use crate::base::clock::BootInstant;

/// What became of the members so far, against what is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Quorum {
    members: usize,
    wanted: usize,
    pub(crate) granted: usize,
    pub(crate) refused: usize,
    pub(crate) failed: usize,
}

/// What is certain, whatever those may say that have not answered yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Enough have granted.
    Reached,
    /// Too few are left that could grant, and enough have answered to know that it is others who hold the lock.
    Busy,
    /// Too many cannot be asked: nobody could hold the lock now.
    Dead,
}

impl Quorum {
    /// Every member is needed; a single one is the plain case.
    pub(crate) fn all(members: usize) -> Self {
        Self::of(members, members)
    }

    /// More than half are needed, so that any two that have enough have a member in common.
    pub(crate) fn majority(members: usize) -> Self {
        Self::of(members, members / 2 + 1)
    }

    fn of(members: usize, wanted: usize) -> Self {
        Self { members, wanted, granted: 0, refused: 0, failed: 0 }
    }

    /// How many are needed.
    pub(crate) fn wanted(self) -> usize {
        self.wanted
    }

    fn pending(self) -> usize {
        self.members.saturating_sub(self.granted + self.refused + self.failed)
    }

    pub(crate) fn is_reached(self) -> bool {
        self.granted >= self.wanted
    }

    /// Whether enough can no longer come together: what was granted is of no use.
    pub(crate) fn is_out_of_reach(self) -> bool {
        self.granted + self.pending() < self.wanted
    }

    /// Whether others are at it, according to as many answers as are needed.
    pub(crate) fn is_contended(self) -> bool {
        self.refused > 0 && self.granted + self.refused >= self.wanted
    }

    /// `None` while undecided. What is out of reach may be undecided still: it takes as many answers as a lock needs
    /// members to call it busy, so that servers that cannot be asked are never taken for a held lock.
    pub(crate) fn verdict(self) -> Option<Verdict> {
        if self.is_reached() {
            return Some(Verdict::Reached);
        }
        if self.failed > self.members.saturating_sub(self.wanted) {
            return Some(Verdict::Dead);
        }
        let answered = self.granted + self.refused;
        (self.is_out_of_reach() && answered >= self.wanted).then_some(Verdict::Busy)
    }

    /// Until when enough members are valid, given when each ends: the latest instant that still has so many behind it.
    /// `None` if there are too few.
    pub(crate) fn valid_until(self, ends: impl IntoIterator<Item = BootInstant>) -> Option<BootInstant> {
        let mut ends: Vec<_> = ends.into_iter().collect();
        ends.sort_unstable_by(|a, b| b.cmp(a));
        ends.get(self.wanted.checked_sub(1)?).copied()
    }
}

#[cfg(test)]
mod tests;
