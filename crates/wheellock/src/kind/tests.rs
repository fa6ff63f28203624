//! Tests of `kind`.

#[cfg(feature = "testing")]
mod trial;

use super::*;

#[test]
fn channel_names_match_redisson() {
    let channel = |name: &str| {
        let (channel, place) = REENTRANT.channel(name, false);
        assert_eq!(channel[place.start as usize..place.end as usize], *name);
        channel
    };
    assert_eq!(channel("orders"), "redisson_lock__channel:{orders}");
    assert_eq!(channel("a:{b}:c"), "redisson_lock__channel:a:{b}:c");
    assert_eq!(channel("odd{"), "redisson_lock__channel:odd{");
    assert_eq!(channel("odd}"), "redisson_lock__channel:{odd}}");
    assert_eq!(channel("blå lås"), "redisson_lock__channel:{blå lås}");
}

#[test]
fn latch_channel_matches_redisson_or_slot() {
    let channel = |name: &str, in_cluster| LATCH.channel(name, in_cluster).0;
    assert_eq!(channel("start", false), "redisson_countdownlatch__channel__{start}");
    assert_eq!(channel("start", true), "redisson_countdownlatch__channel__{start}");
    assert_eq!(channel("x{t}y", false), "redisson_countdownlatch__channel__{x{t}y}");
    assert_eq!(channel("x{t}y", true), "redisson_countdownlatch__channel__x{t}y");
}

#[test]
fn same_holders_need_same_scripts() {
    for (one, other) in pairs() {
        let (row, shape) = (format!("{} and {}", one.label, other.label), |kind: &'static Kind| {
            let shas = [&kind.show_holders, &kind.reclaim].map(|it| it.as_ref().map(|script| script.sha()));
            (kind.own_key("n"), kind.holder_suffix, kind.mode, kind.is_shared, shas)
        });
        let others = one.others_of_its_hash().any(|kind| kind.address() == other.address());
        assert_eq!(others, one.has_same_holders(other), "{row}");
        assert_eq!(others, other.has_same_holders(one), "{row}");
        let is_hash = [one, other].iter().all(|kind| kind.holders == Holders::Counted);
        assert_eq!(others, is_hash && shape(one) == shape(other), "{row}");
    }
}

#[test]
fn waiters_of_same_channel_are_counted_together() {
    for (one, other) in pairs() {
        let others = one.others_of_its_channel().any(|kind| kind.address() == other.address());
        let is_same =
            [false, true].iter().all(|slots| one.channel("n", *slots) == other.channel("n", *slots));
        assert_eq!(others, is_same && one.wake == other.wake, "{} and {}", one.label, other.label);
    }
}

#[test]
fn same_holders_use_same_key() {
    for (one, other) in pairs().filter(|(one, other)| one.has_same_holders(other)) {
        let queues = |kind: &Kind| kind.channel("n", false).0;
        assert_eq!(queues(one), queues(other), "{} wakes waiters for {}", one.label, other.label);
        assert_eq!(one.may_meet_hand_over(), other.may_meet_hand_over(), "{} and {}", one.label, other.label);
    }
}

#[test]
fn unknown_row_has_no_others() {
    let unknown = Kind::counted("trial:", "trial_channel:");
    assert_eq!(unknown.others_of_its_channel().chain(unknown.others_of_its_hash()).count(), 0);
    assert!(!unknown.may_meet_hand_over());
}

/// Returns all pairs of different rows.
fn pairs() -> impl Iterator<Item = (&'static Kind, &'static Kind)> {
    let all = rows().flat_map(|one| rows().map(move |other| (one, other)));
    all.filter(|(one, other)| one.address() != other.address())
}

#[test]
fn scripts_never_build_keys() {
    for kind in rows() {
        for text in kind.scripts().map(|script| script.text()) {
            // These scripts only look for the first waiter of a fair lock, in calls that may fail.
            let mut looking = kind.hot_release.iter().chain(&kind.retire);
            let is_looking = looking.any(|script| script.text() == text);
            let builds_keys =
                text.contains("..") && matches!(kind.companions, Companions::None) && !is_looking;
            assert!(!builds_keys, "no key is built inside a script: {text}");
            assert!(text.starts_with("-- "), "every script says what it does");
        }
    }
}

#[test]
fn every_script_is_loaded_once() {
    let loaded = scripts(true);
    for script in rows().flat_map(Kind::scripts) {
        assert_eq!(loaded.iter().filter(|known| known.sha() == script.sha()).count(), 1);
    }
}
