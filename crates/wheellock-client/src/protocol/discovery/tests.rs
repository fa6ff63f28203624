//! Tests of `discovery`.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn at(port: u16) -> Address {
    address("127.0.0.1", port)
}

fn text(text: &str) -> Value {
    Value::BulkString(text.into())
}

fn map(pairs: &[(&str, &str)]) -> Value {
    Value::Map(pairs.iter().map(|(key, value)| (text(key), text(value))).collect())
}

fn flat(pairs: &[(&str, &str)]) -> Value {
    Value::Array(pairs.iter().flat_map(|(key, value)| [text(key), text(value)]).collect())
}

/// The reply of redis-server 7.0.15 to `SENTINEL MASTER` while it led a failover.
const LEADING: [(&str, &str); 21] = [
    ("name", "mymaster"),
    ("ip", "127.0.0.1"),
    ("port", "22000"),
    ("runid", "edd4e348d189c3ce88f8db52b5ddd76b16ed12cf"),
    ("flags", "s_down,o_down,master,disconnected,failover_in_progress"),
    ("link-pending-commands", "0"),
    ("link-refcount", "1"),
    ("last-ping-sent", "1716"),
    ("last-ok-ping-reply", "1816"),
    ("last-ping-reply", "1816"),
    ("down-after-milliseconds", "500"),
    ("info-refresh", "3580"),
    ("role-reported", "master"),
    ("role-reported-time", "3584"),
    ("config-epoch", "1"),
    ("num-slaves", "2"),
    ("num-other-sentinels", "2"),
    ("quorum", "2"),
    ("failover-timeout", "5000"),
    ("parallel-syncs", "1"),
    ("failover-state", "reconf_slaves"),
];

fn with<'a>(changed: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let change =
        |(key, value)| (key, changed.iter().find(|(name, _)| *name == key).map_or(value, |new| new.1));
    LEADING.into_iter().map(change).collect()
}

fn without(removed: &str) -> Vec<(&'static str, &'static str)> {
    LEADING.into_iter().filter(|(key, _)| *key != removed).collect()
}

#[test]
fn the_primary_in_both_protocols() {
    let leading = Answer { address: at(22000), epoch: 1, suspect: true, promoted: None };
    assert_eq!(parse_master(&map(&LEADING)), Ok(leading.clone()));
    assert_eq!(parse_master(&flat(&LEADING)), Ok(leading));
    for (flags, suspect) in [
        ("master", false),
        ("master,force_failover", false),
        ("master,disconnected", true),
        ("s_down,master", true),
        ("o_down", true),
        ("master,failover_in_progress,force_failover", true),
    ] {
        assert_eq!(
            parse_master(&map(&with(&[("flags", flags)]))).map(|answer| answer.suspect),
            Ok(suspect),
            "{flags}"
        );
    }
    let named = parse_master(&flat(&with(&[("name", "config-epoch")])));
    assert_eq!(named.map(|answer| answer.epoch), Ok(1), "a value is no key");
    let named = parse_master(&map(&with(&[("ip", "redis-0.example.org"), ("port", "6379")]))).unwrap();
    assert_eq!(named.address, address("redis-0.example.org", 6379));
}

#[test]
fn the_replica_that_is_being_promoted() {
    let replica = |port: &'static str, flags: &'static str| {
        [("name", "some"), ("ip", "127.0.0.1"), ("port", port), ("flags", flags), ("master-port", "22000")]
    };
    let replies = |first: &'static str, second: &'static str| {
        let replicas = [replica("22001", first), replica("22002", second)];
        [
            Value::Array(replicas.iter().map(|it| map(it)).collect()),
            Value::Array(replicas.iter().map(|it| flat(it)).collect()),
        ]
    };
    for reply in replies("slave,promoted_some_other_way", "slave,reconf_sent") {
        assert_eq!(parse_promoted(&reply), Ok(None));
    }
    for reply in replies("slave,disconnected,promoted", "slave") {
        assert_eq!(parse_promoted(&reply), Ok(Some(at(22001))));
    }
    for reply in replies("s_down,slave", "slave,promoted") {
        assert_eq!(parse_promoted(&reply), Ok(Some(at(22002))));
    }
    assert_eq!(parse_promoted(&Value::Array(Vec::new())), Ok(None));
}

#[test]
fn what_cannot_be_is_refused() {
    let why = |fields: &[(&str, &str)]| parse_master(&map(fields)).map_err(|Malformed(why)| why);
    let lacks = Err("an entry lacks ip, port, flags or config-epoch");
    for field in ["ip", "port", "flags", "config-epoch"] {
        assert_eq!(why(&without(field)), lacks, "{field}");
    }
    assert_eq!(why(&with(&[("ip", "")])), Err("an address lacks its host"));
    assert_eq!(why(&with(&[("ip", "a b")])), Err("a host has a character that no host name has"));
    assert_eq!(why(&with(&[("port", "0")])), Err("a port is not within 1..=65535"));
    assert_eq!(why(&with(&[("config-epoch", "-1")])), Err("a config epoch is not a number"));
    let shape = Err(Malformed("an entry is neither a map nor a list of pairs"));
    assert_eq!(parse_master(&Value::Null), shape);
    assert_eq!(parse_master(&Value::Error("ERR No such master with that name".into())), shape);
    assert_eq!(parse_master(&Value::Array(vec![text("ip")])).map_err(|Malformed(why)| why), lacks);
    assert_eq!(
        parse_promoted(&Value::Array(vec![Value::Integer(1)])),
        Err(Malformed("an entry is neither a map nor a list of pairs"))
    );
    assert_eq!(parse_promoted(&Value::Null), Err(Malformed("the replicas are not a list")));
    let number = Value::Map(vec![(text("flags"), Value::Integer(1))]);
    assert_eq!(
        parse_promoted(&Value::Array(vec![number])).map_err(|Malformed(why)| why),
        Err("an entry lacks ip, port, flags or config-epoch")
    );
}

const OLD: u16 = 22000;
const NEW: u16 = 22002;

fn says(port: u16, epoch: u64) -> Answer {
    Answer { address: at(port), epoch, suspect: false, promoted: None }
}

fn lost(port: u16, epoch: u64) -> Answer {
    Answer { suspect: true, ..says(port, epoch) }
}

fn promoting(port: u16, epoch: u64, promoted: u16) -> Answer {
    Answer { promoted: Some(at(promoted)), ..lost(port, epoch) }
}

/// Returns (address, alternative, suspect).
fn seen(discovery: &Discovery) -> (Option<&Address>, Option<&Address>, bool) {
    (discovery.address(), discovery.alternative(), discovery.is_suspect())
}

fn settled_on(port: u16, epoch: u64) -> Discovery {
    let mut discovery = Discovery::default();
    (0..3).for_each(|sentinel| discovery.received(sentinel, says(port, epoch)));
    discovery
}

#[test]
fn a_failover_as_it_was_seen() {
    let (old, new) = (at(OLD), at(NEW));
    let mut it = Discovery::default();
    assert_eq!(seen(&it), (None, None, false));
    it.silent(1);
    assert_eq!(seen(&it), (None, None, false));
    let steps = [
        (0, says(OLD, 0), (Some(&old), None, false)),
        (1, says(OLD, 0), (Some(&old), None, false)),
        (2, says(OLD, 0), (Some(&old), None, false)),
        // SIGKILL of the primary; Sentinel 1 leads the failover.
        (0, lost(OLD, 0), (Some(&old), None, true)),
        (1, lost(OLD, 0), (Some(&old), None, true)),
        (1, promoting(OLD, 0, NEW), (Some(&new), Some(&old), true)),
        (2, lost(OLD, 0), (Some(&new), Some(&old), true)),
        // The replica is promoted, and only the leader knows.
        (1, promoting(OLD, 1, NEW), (Some(&new), None, false)),
        (1, promoting(OLD, 1, NEW), (Some(&new), None, false)),
        (2, lost(NEW, 1), (Some(&new), None, true)),
        (0, says(NEW, 1), (Some(&new), None, true)),
        (2, says(NEW, 1), (Some(&new), None, false)),
        (1, lost(NEW, 1), (Some(&new), None, true)),
        (1, says(NEW, 1), (Some(&new), None, false)),
    ];
    for (step, (sentinel, answer, expected)) in steps.into_iter().enumerate() {
        it.received(sentinel, answer);
        assert_eq!(seen(&it), expected, "step {step}");
    }
}

#[test]
fn failed_promotion_keeps_former_primary() {
    let mut it = settled_on(OLD, 4);
    it.received(2, promoting(OLD, 4, NEW));
    assert_eq!(seen(&it), (Some(&at(NEW)), Some(&at(OLD)), true));
    it.received(2, says(OLD, 4));
    assert_eq!(seen(&it), (Some(&at(OLD)), None, false));
}

#[test]
fn resumed_leader_does_not_undo_failover() {
    // Observed on real servers: Sentinel 0 stops after it has selected a replica. Sentinel 2 starts a new failover
    // four seconds later.
    let mut it = settled_on(OLD, 0);
    it.received(0, promoting(OLD, 0, NEW));
    it.silent(0);
    assert_eq!(seen(&it), (Some(&at(OLD)), None, false), "the others know of no failover");
    it.received(2, promoting(OLD, 0, 22001));
    it.received(2, promoting(OLD, 2, 22001));
    assert_eq!(seen(&it), (Some(&at(22001)), None, false));
    it.received(0, promoting(OLD, 0, NEW));
    assert_eq!(it.address(), Some(&at(22001)), "it goes on where it was stopped");
    it.received(1, says(22001, 2));
    it.received(0, says(22001, 2));
    assert_eq!(seen(&it), (Some(&at(22001)), None, false));
}

#[test]
fn two_leaders_of_one_epoch() {
    let mut it = settled_on(OLD, 0);
    it.received(1, promoting(OLD, 0, 22001));
    it.received(2, promoting(OLD, 0, 22002));
    assert_eq!(it.address(), Some(&at(22001)), "of equals the first");
    it.received(0, promoting(OLD, 0, 22002));
    assert_eq!(it.address(), Some(&at(22002)), "what most say");
}

#[test]
fn isolated_sentinel_cannot_revert_primary() {
    let mut it = Discovery::default();
    it.received(2, says(OLD, 0));
    it.received(0, says(NEW, 1));
    it.received(1, says(NEW, 1));
    assert_eq!(it.address(), Some(&at(NEW)));
    it.silent(0);
    it.silent(1);
    it.received(2, says(OLD, 0));
    assert_eq!(it.address(), Some(&at(NEW)), "one of three, and behind");
}

#[test]
fn failover_stands_until_majority_disagrees() {
    let mut it = settled_on(OLD, 0);
    it.received(0, promoting(OLD, 1, NEW));
    it.silent(0);
    assert_eq!(it.address(), Some(&at(NEW)), "the leader was heard last");
    it.received(1, says(OLD, 0));
    assert_eq!(it.address(), Some(&at(NEW)), "one of three");
    it.received(2, says(OLD, 0));
    assert_eq!(it.address(), Some(&at(OLD)), "it took its failover to the grave");
}

#[test]
fn half_of_sentinels_is_no_majority() {
    let mut it = settled_on(OLD, 0);
    it.received(3, promoting(OLD, 1, NEW));
    it.silent(3);
    it.received(1, says(OLD, 0));
    it.received(2, says(OLD, 0));
    assert_eq!(it.address(), Some(&at(NEW)), "two of four");
    it.silent(1);
    it.received(0, says(OLD, 0));
    assert_eq!(it.address(), Some(&at(NEW)), "two of four that can be reached");
    it.received(1, says(OLD, 0));
    assert_eq!(it.address(), Some(&at(OLD)), "three of four");
}

#[test]
fn sentinels_that_were_set_up_anew() {
    let mut it = settled_on(OLD, 7);
    for (sentinel, known) in [(0, OLD), (1, OLD), (2, OLD), (0, NEW), (1, NEW)] {
        it.received(sentinel, says(NEW, 0));
        assert_eq!(it.address(), Some(&at(known)), "{sentinel}");
    }
}

#[test]
fn silent_sentinels_keep_last_primary() {
    let mut it = settled_on(OLD, 1);
    it.received(1, says(NEW, 2));
    (0..3).for_each(|sentinel| it.silent(sentinel));
    assert_eq!(it.address(), Some(&at(NEW)), "nobody is left to say otherwise");
    it.silent(9);
    assert_eq!(it.address(), Some(&at(NEW)));
}

#[test]
fn start_during_failover_keeps_alternative() {
    let mut it = Discovery::default();
    it.received(0, promoting(OLD, 1, NEW));
    assert_eq!(seen(&it), (Some(&at(NEW)), Some(&at(OLD)), true), "nothing tells whether the epoch is new");
    it.received(1, says(NEW, 1));
    assert_eq!(seen(&it), (Some(&at(NEW)), None, false), "this does");
}

#[test]
fn majority_wins_then_first_sentinel() {
    let mut it = Discovery::default();
    it.received(0, says(1, 3));
    it.received(1, says(2, 3));
    assert_eq!(it.address(), Some(&at(1)));
    it.received(2, says(2, 3));
    assert_eq!(it.address(), Some(&at(2)));
}

#[derive(Clone, Debug)]
enum Step {
    Heard(usize, Answer),
    Silent(usize),
}

fn any_step() -> impl Strategy<Value = Step> {
    let answer = (0..4_u16, 0..3_u64, any::<bool>(), proptest::option::of(0..4_u16)).prop_map(
        |(port, epoch, suspect, promoted)| Answer {
            suspect,
            promoted: promoted.map(at),
            ..says(port, epoch)
        },
    );
    prop_oneof![
        4 => (0..5_usize, answer).prop_map(|(sentinel, answer)| Step::Heard(sentinel, answer)),
        1 => (0..5_usize).prop_map(Step::Silent),
    ]
}

proptest! {
    #[test]
    fn chosen_address_was_always_reported(steps in vec(any_step(), 0..40)) {
        let mut it = Discovery::default();
        let mut said: Vec<Address> = Vec::new();
        for step in steps {
            let before = it.address().cloned();
            match step {
                Step::Heard(sentinel, answer) => {
                    said.push(answer.address.clone());
                    said.extend(answer.promoted.clone());
                    it.received(sentinel, answer.clone());
                    let once = it.choice.clone();
                    it.received(sentinel, answer);
                    prop_assert_eq!(&it.choice, &once, "twice is once");
                }
                Step::Silent(sentinel) => {
                    it.silent(sentinel);
                    if it.sentinels.values().all(|heard| heard.answer.is_none()) {
                        prop_assert!(before.is_none() || it.address().is_some());
                    }
                }
            }
            prop_assert_eq!(it.address().is_some(), !said.is_empty());
            prop_assert!(it.address().into_iter().chain(it.alternative()).all(|address| said.contains(address)));
            prop_assert!(it.alternative().is_none() || it.alternative() != it.address());
        }
    }

    /// Configurations follow each other under growing epochs. Sentinels learn of them late, but never go back.
    #[test]
    fn newest_epoch_wins_over_late_replies(
        addresses in vec(1..5_u16, 1..8), hearings in vec((0..5_usize, any::<proptest::sample::Index>()), 1..30)
    ) {
        let mut it = Discovery::default();
        let mut knows = [0; 5];
        let mut newest = 0;
        for (sentinel, index) in hearings {
            knows[sentinel] = index.index(addresses.len()).max(knows[sentinel]);
            newest = newest.max(knows[sentinel]);
            it.received(sentinel, says(addresses[knows[sentinel]], knows[sentinel] as u64));
            prop_assert_eq!(it.address(), Some(&at(addresses[newest])));
        }
    }
}
