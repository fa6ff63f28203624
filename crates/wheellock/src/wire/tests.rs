//! Tests of `wire`.

use std::sync::Arc;

use super::*;
use crate::kind::{FAIR, FENCED, Kind, LATCH, PERMIT, READ, REENTRANT, SEMAPHORE, SIMPLE, WRITE};

const UUID: &str = "00000000-0000-4000-8000-000000000000";
const MS: Duration = Duration::from_millis(1);

fn name(kind: &'static Kind) -> Name {
    Name::new("n", kind, false)
}

fn owner(kind: &'static Kind) -> OwnerText {
    OwnerText::new(UUID, 7, kind.holder_suffix)
}

fn list<const N: usize>(values: [Value; N]) -> Value {
    Value::Array(values.into())
}

fn numbers(values: &[i64]) -> Value {
    Value::Array(values.iter().copied().map(Value::from).collect())
}

fn odd() -> Value {
    Value::from("odd")
}

/// Returns the parameters as they are written.
fn texts(params: &[Arg<'_>]) -> Vec<String> {
    let text = |param: &Arg<'_>| match param {
        Arg::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Arg::Int(number) => number.to_string(),
        Arg::Uint(number) => number.to_string(),
    };
    params.iter().map(text).collect()
}

fn refusal(reply: &Value, kind: &'static Kind) -> Option<(Option<u128>, bool, Option<u32>)> {
    let refusal = read_acquire(&name(kind), reply)?.err()?;
    Some((refusal.lease_left.map(|left| left.as_millis()), refusal.is_silent, refusal.listeners))
}

fn grant(reply: &Value, kind: &'static Kind) -> Option<(GrantReply, Option<u64>, u32)> {
    let Grant { reply, token, room } = read_acquire(&name(kind), reply)?.ok()?;
    Some((reply, token.map(NonZeroU64::get), room))
}

#[test]
fn verb_is_that_of_script() {
    assert_eq!((verb(&Retry::default()), verb(&Retry::in_full())), ("EVALSHA", "EVAL"));
}

#[test]
fn companions_add_parameters() {
    let kinds: [(&'static Kind, &[&str]); 7] = [
        (&REENTRANT, &[]),
        (&FENCED, &["{n}"]),
        (&READ, &["{n}", "1"]),
        (&WRITE, &["{n}", "1"]),
        (&FAIR, &["1", "redisson_lock__channel:{n}", "PUBLISH", "{n}"]),
        (&SEMAPHORE, &["{n}"]),
        (&PERMIT, &["{n}", "redisson_sc:{n}", "PUBLISH"]),
    ];
    for (kind, more) in kinds {
        let name = name(kind);
        let params = acquire(&name, Lease::DEFAULT, b"holder", 2, Precedence(1), "PUBLISH");
        assert_eq!(texts(&params), [&["n", "30000", "holder", "2"], more].concat(), "{}", kind.label);
        assert_eq!(has_companions(&name), !more.is_empty(), "{}", kind.label);
    }
}

/// `poll.lua` and `hot_release.lua` find their own parameters at the end.
#[test]
fn further_parameters_follow_those_of_kind() {
    for (publish, count) in [("PUBLISH", "NUMSUB"), ("SPUBLISH", "SHARDNUMSUB")] {
        for kind in [&*REENTRANT, &WRITE] {
            let name = name(kind);
            let own = acquire(&name, Lease::DEFAULT, b"holder", 1, Precedence::NONE, publish);
            let expected = [texts(&own), vec![name.channel().to_owned(), count.to_owned()]].concat();
            assert_eq!(texts(&poll(&name, own, publish)), expected, "{}", kind.label);
        }
    }
    for (opening, digit) in [(Opening::Not, "0"), (Opening::Published, "1"), (Opening::Silent, "2")] {
        for (kind, tag) in [(&*REENTRANT, &[][..]), (&WRITE, &["{n}"])] {
            let name = name(kind);
            let own = [&["n", name.channel(), "holder", "0", "PUBLISH"], tag].concat();
            assert_eq!(texts(&release(&name, b"holder", 0, "PUBLISH")), own, "{}", kind.label);
            let expected = [own, vec!["{n}", digit]].concat();
            assert_eq!(texts(&hot_release(&name, b"holder", "PUBLISH", opening)), expected, "{}", kind.label);
        }
    }
}

#[test]
fn single_execution_has_place_and_serial() {
    let name = name(&SEMAPHORE);
    let place = owner(&SEMAPHORE);
    let expected = [name.key(), name.channel(), name.tag(), &format!("{UUID}:7"), "3", "1", "PUBLISH", "9"];
    for (more, len) in [(None, 7), (Some(Arg::from(9_u32)), 8)] {
        assert_eq!(texts(&once(&name, &place, 3, MS, "PUBLISH", more)), expected[..len]);
    }
}

#[test]
fn queries_name_side_of_lock() {
    let sides: [(&'static Kind, &str, &[&str]); 4] = [
        (&REENTRANT, "100", &[]),
        (&SIMPLE, "1", &[]),
        (&READ, "100", &["read"]),
        (&WRITE, "100", &["write"]),
    ];
    for (kind, most, mode) in sides {
        let name = name(kind);
        assert_eq!(texts(&is_held_by_script(&name)), [&["n"], mode].concat());
        let tag = if mode.is_empty() { &[][..] } else { &["{n}"] };
        assert_eq!(texts(&show_holders(&name)), [&["n", most], mode, tag].concat());
        let expected = [&["n", name.channel(), "PUBLISH", "spent", "20"], tag, mode].concat();
        let head_start = Lease::new(20 * MS).unwrap();
        assert_eq!(texts(&force_release(&name, "PUBLISH", b"spent", head_start)), expected);
    }
    let channel = own_channel(&name(&FAIR), &owner(&FAIR));
    assert_eq!(channel, format!("redisson_lock__channel:{{n}}:{UUID}:7").as_bytes());
}

#[test]
fn waiting_writer_mark_ends_within_seconds() {
    for (wait, millis) in [(Duration::ZERO, 0), (5 * MS, 5), (MARK, 6000), (Duration::MAX, 6000)] {
        assert_eq!(Precedence::before_readers(wait).0, millis);
    }
}

#[test]
fn refusals_tell_what_is_known() {
    assert_eq!(refusal(&Value::from(5), &REENTRANT), Some((Some(5), false, None)));
    assert_eq!(refusal(&Value::from(-1), &FENCED), Some((None, false, None)), "without an end");
    assert_eq!(refusal(&numbers(&[5]), &SIMPLE), Some((Some(5), true, None)), "without a message");
    for (listeners, counted) in [(2, 2), (-1, 0)] {
        assert_eq!(refusal(&numbers(&[5, listeners]), &FENCED), Some((Some(5), false, Some(counted))));
    }
    assert_eq!(refusal(&list([odd()]), &SIMPLE), None);
}

#[test]
fn grants_tell_token_and_room() {
    let token = |how: i64| list([how.into(), "12".into()]);
    for (how, reply) in [(1, GrantReply::Fresh), (2, GrantReply::Again)] {
        assert_eq!(grant(&token(how), &FENCED), Some((reply, Some(12), 0)));
        assert_eq!(grant(&numbers(&[how, 3]), &SEMAPHORE), Some((reply, None, 3)));
        assert_eq!(grant(&numbers(&[how, -3]), &PERMIT), Some((reply, None, 0)), "too many were taken away");
    }
    for (reply, how) in [(Value::Null, GrantReply::Fresh), ("AGAIN".into(), GrantReply::Again)] {
        assert_eq!(grant(&reply, &REENTRANT), Some((how, None, 0)));
        assert_eq!(grant(&reply, &READ), Some((how, None, u32::MAX)), "more readers may enter");
        for kind in [&*FENCED, &SEMAPHORE, &PERMIT] {
            assert!(read_acquire(&name(kind), &reply).is_none(), "{} replies with a list", kind.label);
        }
    }
    for bad in [odd(), token(3), list([1.into(), odd()]), list([1.into(), "0".into()]), list([])] {
        assert!(read_acquire(&name(&FENCED), &bad).is_none(), "{bad:?}");
        assert!(read_acquire(&name(&REENTRANT), &bad).is_none(), "{bad:?}");
    }
}

#[test]
fn set_reply_fits_its_request() {
    let part = |name| Part { name, lease: Lease::DEFAULT, owner: owner(&REENTRANT), count: 2 };
    let [a, b] = ["a", "b"].map(|text| Name::new(text, &REENTRANT, false));
    let holder = format!("{UUID}:7");
    let expected = ["a", "b", "30000", &*holder, "2", "30000", &*holder, "2"];
    assert_eq!(texts(&acquire_all(&[part(&a), part(&b)])), expected);
    let granted = |reply: &[i64]| match read_acquire_all(&numbers(reply), 2) {
        Some(AllReply::Granted(statuses)) => Some(statuses),
        _ => None,
    };
    assert_eq!(granted(&[1, 1, 2]), Some(vec![GrantReply::Fresh, GrantReply::Again]));
    for bad in
        [&[1, 1][..], &[1, 1, 2, 1], &[1, 1, 3], &[2, 1, 1], &[0, 0, 5], &[0, 3, 5], &[-1, 0], &[-1, 3]]
    {
        assert!(read_acquire_all(&numbers(bad), 2).is_none(), "{bad:?}");
    }
    for place in [0, 1] {
        let at = i64::try_from(place).unwrap() + 1;
        let refused = read_acquire_all(&numbers(&[0, at, 5]), 2);
        assert!(matches!(refused, Some(AllReply::Refused(found, refusal))
                if found == place && refusal.lease_left == Some(5 * MS)));
        let other = read_acquire_all(&numbers(&[-1, at]), 2);
        assert!(matches!(other, Some(AllReply::OtherData(found)) if found == place));
    }
    assert!(read_acquire_all(&list([1.into(), odd()]), 1).is_none() && read_acquire_all(&odd(), 1).is_none());
}

#[test]
fn release_reply_counts_contenders() {
    let found = |receivers, poll| Contenders { receivers, poll };
    for (reply, known, contenders) in [
        (3.into(), Some(true), found(Some(2), false)),
        (0.into(), Some(true), found(None, false)),
        (Value::from(-1), Some(true), found(None, true)),
        (numbers(&[1, 0]), Some(true), found(Some(0), false)),
        (numbers(&[2, 1]), Some(true), found(Some(1), true)),
        (numbers(&[-1, 0]), Some(true), found(None, true)),
        (Value::Null, Some(false), found(None, false)),
        (odd(), None, found(None, false)),
        (list([]), None, found(None, false)),
    ] {
        assert_eq!((read_release(&reply), read_contenders(&reply)), (known, contenders), "{reply:?}");
    }
}

fn renewal(name: &Arc<Name>, extend: bool) -> Renewal {
    Renewal {
        hold: 0,
        serial: 0,
        name: Arc::clone(name),
        owner: 7,
        lease: Lease::DEFAULT,
        extend,
        with_source: false,
        alone: false,
        remembers: false,
        reclaim: None,
        slot: 0,
    }
}

#[test]
fn renewal_names_lease_and_holder() {
    for (kind, key, last) in [
        (&*REENTRANT, "n", &[][..]),
        (&FAIR, "n", &[]),
        (&READ, "n", &["{n}"]),
        (&PERMIT, "{n}:timeout", &["n"]),
    ] {
        let name = Arc::new(name(kind));
        let group = [renewal(&name, true), renewal(&name, false)];
        let holders = [owner(kind), owner(kind)];
        let holder = String::from_utf8(holders[0].as_bytes().to_vec()).unwrap();
        let expected = [&[key, key, "30000", &*holder], last, &["0", &*holder], last].concat();
        let keys = [holders_key(&name), holders_key(&name)];
        assert_eq!(texts(&renew(&group, &keys, &holders)), expected, "{}", kind.label);
    }
}

#[test]
fn holders_key_leads_to_name() {
    for text in ["n", "{n}", "a{b}c"] {
        for kind in [&*REENTRANT, &SIMPLE, &READ, &PERMIT] {
            let name = Name::new(text, kind, false);
            let key = holders_key(&name);
            assert!(names_of(&key, kind).any(|name| name == text), "{key}");
        }
    }
    for foreign in ["n", ":timeout:", "timeout"] {
        assert_eq!(names_of(foreign, &PERMIT).count(), 0, "{foreign}");
    }
}

#[test]
fn odd_renewal_status_fails_one_lock() {
    let name = Arc::new(name(&REENTRANT));
    let group = [true, true, true, false, false, false, false, true].map(|extend| renewal(&name, extend));
    let reply =
        list([2.into(), 3.into(), 1.into(), 0.into(), 2.into(), 5.into(), Value::from(-1), 0.into(), odd()]);
    let read = read_renewal(&reply, &group).unwrap();
    assert_eq!(read.server, Duration::from_secs(2) + Duration::from_micros(3));
    let expected = [
        Renewed::Extended,
        Renewed::NotOwner,
        Renewed::Failed,
        Renewed::StillHeld { left: 5 * MS },
        Renewed::StillHeld { left: Duration::MAX },
        Renewed::NotOwner,
        Renewed::Failed,
        Renewed::Failed,
    ];
    assert_eq!(read.locks, expected);
    for bad in [odd(), list([2.into()]), numbers(&[-2, 3, 1])] {
        assert!(read_renewal(&bad, &group).is_none(), "{bad:?}");
    }
}

#[test]
fn hold_count_depends_on_holder() {
    for kind in [&*REENTRANT, &SIMPLE] {
        assert_eq!(read_hold_count(&name(kind), &owner(kind), &Value::Null), Some(0));
        assert_eq!(read_hold_count(&name(kind), &owner(kind), &Value::from(1)), None);
    }
    assert_eq!(read_hold_count(&name(&REENTRANT), &owner(&REENTRANT), &"3".into()), Some(3));
    for (holder, count) in [(&*format!("{UUID}:7"), 1), ("another", 0)] {
        assert_eq!(read_hold_count(&name(&SIMPLE), &owner(&SIMPLE), &holder.into()), Some(count));
    }
}

#[test]
fn holders_are_listed_with_leases() {
    let reply = list([3.into(), "a".into(), 2.into(), 5.into(), "b".into(), 1.into(), Value::from(-1)]);
    for (kind, mode) in [(&*REENTRANT, Mode::Exclusive), (&READ, Mode::Read), (&WRITE, Mode::Write)] {
        let read = read_holders(&name(kind), &reply).unwrap();
        let seen: Vec<_> =
            read.holders.iter().map(|one| (&*one.owner, one.mode, one.hold_count, one.lease_left)).collect();
        assert_eq!(seen, [("a", mode, 2, 5 * MS), ("b", mode, 1, Duration::MAX)]);
        assert_eq!(read.beyond, 1);
    }
    for bad in [odd(), list([]), list([1.into(), "a".into()])] {
        assert!(read_holders(&name(&REENTRANT), &bad).is_none(), "{bad:?}");
    }
}

/// The outer `None` marks an impossible reply.
#[test]
fn query_replies_are_read() {
    assert_eq!([1, 0].map(|number| read_yes(&number.into())), [Some(true), Some(false)]);
    assert_eq!(read_yes(&odd()), None);
    let leases = [(-2, None), (-1, Some(Duration::MAX)), (5, Some(5 * MS))];
    leases.iter().for_each(|(pttl, left)| assert_eq!(read_remaining_lease(&(*pttl).into()), Some(*left)));
    assert_eq!(read_remaining_lease(&odd()), None);
    assert_eq!((read_label(&"me".into()), read_label(&Value::Null)), (Some("me".to_owned()), None));
    assert_eq!(read_look(&list([2.into(), "9".into()])), Some((2, 9)));
    assert_eq!((read_look(&list([2.into(), odd()])), read_look(&odd())), (None, None));
    for (reply, permits, count) in [
        (Value::Null, Some(0), Some(0)),
        ("-3".into(), Some(-3), Some(0)),
        ("3".into(), Some(3), Some(3)),
        (odd(), None, None),
    ] {
        assert_eq!((read_free_permits(&reply), read_count_of_latch(&reply)), (permits, count), "{reply:?}");
    }
    assert_eq!((read_count(&numbers(&[2, 3])), read_count(&numbers(&[2]))), (Some((2, 3)), None));
    assert_eq!(
        [Value::Null, "9".into(), odd()].map(|reply| read_token(&reply)),
        [Some(None), Some(Some(9)), None]
    );
    assert_eq!((read_queue_length(&4.into()), read_queue_length(&Value::from(-1))), (Some(4), None));
    assert_eq!(
        [Value::Null, 4.into(), odd()].map(|reply| read_position(&reply)),
        [Some(None), Some(Some(4)), None]
    );
}

#[test]
fn permit_lease_may_have_no_end() {
    let reply = |left: u64| numbers(&[2, 5000, i64::try_from(left).unwrap()]);
    let never = REDISSONS_NEVER - 2005;
    for (left, expected) in [
        (0, None),
        (1, Some(MS)),
        (never - 1, Some(Duration::from_millis(never - 1))),
        (never, Some(Duration::MAX)),
        (never + 1, Some(Duration::MAX)),
    ] {
        assert_eq!(read_permit_lease(&reply(left)), Some(expected), "{left}");
    }
    assert_eq!([1, 0].map(|said| read_extended(&numbers(&[2, 3, said]))), [Some(true), Some(false)]);
    for bad in [odd(), numbers(&[2, 3]), list([2.into(), 3.into(), odd()])] {
        assert_eq!((read_extended(&bad), read_permit_lease(&bad)), (None, None), "{bad:?}");
    }
    let permit = [7; 16];
    let name = name(&PERMIT);
    for (lease, millis) in [(None, "0"), (Some(Lease::DEFAULT), "30000")] {
        let leases = permit_leases(&name);
        let expected = ["{n}:timeout", millis, &"\u{7}".repeat(16), "n"];
        assert_eq!(texts(&permit_lease(&name, &leases, &permit, lease)), expected);
    }
}

#[test]
fn leader_has_token_and_lease() {
    let reply = |pttl: i64| list(["a:1".into(), "4".into(), "here".into(), pttl.into()]);
    for (pttl, left) in [(5, Some(5 * MS)), (-1, None)] {
        let leader = read_leader(&reply(pttl)).unwrap().unwrap();
        let SeenLeader { owner, token, announcement, lease_left } = leader;
        assert_eq!((&*owner, token, &*announcement, lease_left), ("a:1", 4, "here", left));
    }
    assert!(matches!(read_leader(&Value::Null), Some(None)), "no process leads");
    assert!(read_leader(&odd()).is_none() && read_leader(&list(["a:1".into()])).is_none());
    assert_eq!(texts(&look(&name(&LATCH))), ["n", "{n}"]);
}
