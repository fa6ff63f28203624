//! Tests of `quorum`.

use std::time::Duration;

use super::*;

/// Returns every possible count of this quorum's members.
fn tallies(quorum: Quorum) -> Vec<Quorum> {
    let counts = 0..=quorum.members;
    let triples = counts.clone().flat_map(|granted| {
        let counts = counts.clone();
        counts.clone().flat_map(move |refused| counts.clone().map(move |failed| (granted, refused, failed)))
    });
    let fits = triples.filter(|(granted, refused, failed)| granted + refused + failed <= quorum.members);
    fits.map(|(granted, refused, failed)| Quorum { granted, refused, failed, ..quorum }).collect()
}

/// Returns every way to complete a count.
fn endings(tally: Quorum) -> impl Iterator<Item = Quorum> {
    tallies(tally).into_iter().filter(move |end| {
        let more = end.granted >= tally.granted && end.refused >= tally.refused && end.failed >= tally.failed;
        more && end.pending() == 0
    })
}

fn all_quorums() -> impl Iterator<Item = Quorum> {
    (1..=7).flat_map(|members| [Quorum::all(members), Quorum::majority(members)])
}

#[test]
fn verdict_holds_for_every_ending() {
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
fn complete_tally_distinguishes_dead_from_busy() {
    for quorum in all_quorums() {
        for tally in tallies(quorum).into_iter().filter(|tally| tally.pending() == 0) {
            let verdict = tally.verdict().expect("nothing is open");
            let dead = quorum.members - tally.failed < quorum.wanted;
            assert_eq!(verdict == Verdict::Dead, dead, "{tally:?}");
        }
    }
}

#[test]
fn two_majorities_share_member() {
    for members in 1..=9 {
        let wanted = Quorum::majority(members).wanted();
        assert!(2 * wanted > members && 2 * (wanted - 1) <= members, "{wanted} of {members}");
    }
}

#[test]
fn validity_ends_with_last_needed_member() {
    let at = |seconds: u64| BootInstant::now() + Duration::from_secs(3600 * seconds);
    let ends = [at(5), at(1), at(4), at(2), at(3)];
    assert_eq!(Quorum::all(5).valid_until(ends), Some(ends[1]), "the earliest");
    assert_eq!(Quorum::majority(5).valid_until(ends), Some(ends[4]), "the third latest of five");
    assert_eq!(Quorum::majority(5).valid_until([ends[0], ends[1], ends[2]]), Some(ends[1]));
    assert_eq!(Quorum::majority(5).valid_until([ends[0], ends[1]]), None);
    assert_eq!(Quorum::majority(1).valid_until([ends[2]]), Some(ends[2]), "the plain case");
    assert_eq!(Quorum::all(0).valid_until([]), None);
}
