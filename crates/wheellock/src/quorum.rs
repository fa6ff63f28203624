//! The tally of several members of which so many are needed: all of them, a majority, or the only one. Pure; knows neither
//! locks nor clocks.

use crate::clock::BootInstant;

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
mod tests {
    use std::time::Duration;

    use super::*;

    /// Every tally of so many members.
    fn tallies(quorum: Quorum) -> Vec<Quorum> {
        let counts = 0..=quorum.members;
        let triples = counts.clone().flat_map(|granted| {
            let counts = counts.clone();
            counts
                .clone()
                .flat_map(move |refused| counts.clone().map(move |failed| (granted, refused, failed)))
        });
        let fits = triples.filter(|(granted, refused, failed)| granted + refused + failed <= quorum.members);
        fits.map(|(granted, refused, failed)| Quorum { granted, refused, failed, ..quorum }).collect()
    }

    /// Every way in which a tally can be completed.
    fn endings(tally: Quorum) -> impl Iterator<Item = Quorum> {
        tallies(tally).into_iter().filter(move |end| {
            let more =
                end.granted >= tally.granted && end.refused >= tally.refused && end.failed >= tally.failed;
            more && end.pending() == 0
        })
    }

    fn all_quorums() -> impl Iterator<Item = Quorum> {
        (1..=7).flat_map(|members| [Quorum::all(members), Quorum::majority(members)])
    }

    #[test]
    fn a_verdict_is_what_every_ending_has_in_common() {
        for quorum in all_quorums() {
            for tally in tallies(quorum) {
                let reached = |end: Quorum| end.granted >= quorum.wanted;
                assert_eq!(tally.is_out_of_reach(), !endings(tally).any(reached), "{tally:?}");
                let last = |end: Quorum| {
                    if reached(end) {
                        Verdict::Reached
                    } else if end.failed > quorum.members - quorum.wanted {
                        Verdict::Dead
                    } else {
                        Verdict::Busy
                    }
                };
                let mut verdicts: Vec<_> = endings(tally).map(last).collect();
                verdicts.dedup();
                let certain = if let [only] = verdicts[..] { Some(only) } else { None };
                assert_eq!(tally.verdict(), certain, "{tally:?}");
            }
        }
    }

    #[test]
    fn when_all_have_answered_there_is_a_verdict_and_a_dead_majority_is_never_busy() {
        for quorum in all_quorums() {
            for tally in tallies(quorum).into_iter().filter(|tally| tally.pending() == 0) {
                let verdict = tally.verdict().expect("nothing is open");
                let dead = quorum.members - tally.failed < quorum.wanted;
                assert_eq!(verdict == Verdict::Dead, dead, "{tally:?}");
            }
        }
    }

    #[test]
    fn two_majorities_have_a_member_in_common() {
        for members in 1..=9 {
            let wanted = Quorum::majority(members).wanted();
            assert!(2 * wanted > members && 2 * (wanted - 1) <= members, "{wanted} of {members}");
        }
    }

    #[test]
    fn validity_ends_with_the_member_that_is_needed_last() {
        let at = |seconds: u64| BootInstant::now() + Duration::from_secs(3600 * seconds);
        let ends = [at(5), at(1), at(4), at(2), at(3)];
        assert_eq!(Quorum::all(5).valid_until(ends), Some(ends[1]), "the earliest");
        assert_eq!(Quorum::majority(5).valid_until(ends), Some(ends[4]), "the third latest of five");
        assert_eq!(Quorum::majority(5).valid_until([ends[0], ends[1], ends[2]]), Some(ends[1]));
        assert_eq!(Quorum::majority(5).valid_until([ends[0], ends[1]]), None);
        assert_eq!(Quorum::majority(1).valid_until([ends[2]]), Some(ends[2]), "the plain case");
        assert_eq!(Quorum::all(0).valid_until([]), None);
    }
}
