//! The count of replies from several members.
//!
//! A quorum needs all members, a majority, or the only member. Pure: it knows neither locks nor clocks.

use crate::base::clock::BootInstant;

/// The members' replies so far, and the wanted number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Quorum {
    members: usize,
    wanted: usize,
    pub(crate) granted: usize,
    pub(crate) refused: usize,
    pub(crate) failed: usize,
}

/// The certain result, whatever the pending replies will be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Enough members have granted.
    Reached,
    /// Too few members are left that could grant. Enough members have replied to prove that other owners hold the lock.
    Busy,
    /// Too many members cannot be reached: no owner could acquire the lock now.
    Dead,
}

impl Quorum {
    /// Creates a quorum that needs every member. A single member is the plain case.
    pub(crate) fn all(members: usize) -> Self {
        Self::of(members, members)
    }

    /// Creates a quorum that needs more than half of the members. Any two majorities have a member in common.
    pub(crate) fn majority(members: usize) -> Self {
        Self::of(members, members / 2 + 1)
    }

    fn of(members: usize, wanted: usize) -> Self {
        Self { members, wanted, granted: 0, refused: 0, failed: 0 }
    }

    /// Returns the number of members that are needed.
    pub(crate) fn wanted(self) -> usize {
        self.wanted
    }

    fn pending(self) -> usize {
        self.members.saturating_sub(self.granted + self.refused + self.failed)
    }

    pub(crate) fn is_reached(self) -> bool {
        self.granted >= self.wanted
    }

    /// Returns true if the wanted number cannot be reached any more. The grants so far are then of no use.
    pub(crate) fn is_out_of_reach(self) -> bool {
        self.granted + self.pending() < self.wanted
    }

    /// Returns true if other owners contend for the lock, according to the wanted number of replies.
    pub(crate) fn is_contended(self) -> bool {
        self.refused > 0 && self.granted + self.refused >= self.wanted
    }

    /// Returns `None` while undecided. A quorum that is out of reach may still be undecided. A verdict of `Busy` needs the wanted number of
    /// replies, so that unreachable servers never pass for a held lock.
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

    /// Returns until when the wanted number of members is valid, given the end of each; `None` if there are too few members.
    pub(crate) fn valid_until(self, ends: impl IntoIterator<Item = BootInstant>) -> Option<BootInstant> {
        let mut ends: Vec<_> = ends.into_iter().collect();
        ends.sort_unstable_by(|a, b| b.cmp(a));
        ends.get(self.wanted.checked_sub(1)?).copied()
    }
}

#[cfg(test)]
mod tests;
