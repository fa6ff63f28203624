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
fn others_share_channel_or_hash() {
    let of_channel = |kind: &Kind| kind.others_of_its_channel().map(|other| other.label).collect::<Vec<_>>();
    let of_hash = |kind: &Kind| kind.others_of_its_hash().map(|other| other.label).collect::<Vec<_>>();
    assert_eq!(
        (of_channel(&REENTRANT), of_hash(&REENTRANT)),
        (vec!["fenced_lock"], vec!["fair_lock", "fenced_lock"])
    );
    assert_eq!((of_channel(&WRITE), of_hash(&WRITE)), (vec!["read"], vec![]));
    assert_eq!((of_channel(&SIMPLE), of_hash(&SIMPLE)), (vec![], vec![]));
    let unknown = Kind::counted("trial:", "trial_channel:");
    assert_eq!((of_channel(&unknown), of_hash(&unknown)), (vec![], vec![]));
}

#[test]
fn scripts_never_build_keys() {
    for kind in rows() {
        for text in kind.scripts().map(|script| script.text()) {
            let is_hot = kind.hot_release.as_ref().is_some_and(|hot| hot.text() == text);
            let builds_keys = text.contains("..") && matches!(kind.companions, Companions::None) && !is_hot;
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
