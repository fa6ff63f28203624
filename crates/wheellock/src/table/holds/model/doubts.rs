//! Model tests of doubts about a hold.
//!
//! Doubts come from clock jumps, from failovers, and from grants to other owners.

use super::*;

#[test]
fn clock_jump_never_lengthens_lease() {
    let mut world = World::new();
    let start = world.now;
    let unrenewed = world.take(1, true);
    let before = world.valid_until(unrenewed);
    // The old hold's renewals failed. The renewals of a younger hold succeed and report the jump shortly before the old hold
    // expires.
    assert_eq!(world.hear(0, Duration::ZERO), None);
    let late = start + LEASE * 9 / 10;
    world.now = late;
    let _younger = world.take(2, true);
    let jump = world.hear(0, LEASE * 2);
    assert!(matches!(jump, Some(Jump::Forward(_))), "{jump:?}");
    assert_eq!(world.valid_until(unrenewed), before, "nobody has extended it");
}

/// The server may have executed the request before the jump. The lease then ends earlier than the reply says.
#[test]
fn request_spanning_jump_is_repeated() {
    let mut world = World::new();
    let (fixed, renewed) = (world.ask_for(&Arc::clone(&world.name), 1), world.take(2, true));
    let terms = Terms { share: FIXED, ..world.terms() };
    assert_eq!(world.hear(0, Duration::ZERO), None);
    world.now = world.now + LEASE / 10;
    // An extension that other servers must acknowledge.
    let (_, renewal) =
        world.holds.wish(renewed, Want::Renew, (world.now, world.now + WAIT), Waker::noop()).unwrap();
    let script = world.holds.begin_renewal(vec![renewal.unwrap()], Some(0), world.now);
    let reply = RenewalReply { server: world.server_time(), locks: vec![Renewed::Extended] };
    let acks = world.holds.await_acks(script, &reply, world.now, |_| 0, &mut Effects::default());
    assert_eq!(acks, (true, None));
    world.now = world.now + TICK;
    assert!(matches!(world.hear(0, LEASE / 2), Some(Jump::Forward(_))));
    world.grant(fixed, terms);
    world.holds.end_wait(script, true, world.now, &mut Effects::default());
    world.now = world.now + TICK;
    let asked = world.due();
    let seen: Vec<_> = asked.iter().map(|asked| (asked.hold, asked.extend)).collect();
    assert_eq!(seen, [(fixed, false), (renewed, true)]);
    let script = world.holds.begin_renewal(asked, Some(0), world.now);
    let left = Duration::from_millis(200);
    let locks = vec![Renewed::StillHeld { left }, Renewed::Extended];
    let reply = RenewalReply { server: LEASE / 2 + TICK, locks };
    let jump = world.holds.end_renewal(script, Some(&reply), world.now, |_| 0, &mut Effects::default());
    assert_eq!(jump, None);
    assert!(world.valid_until(fixed) < world.now + left);
    // A request after the jump needs no check.
    world.take(3, false);
    world.now = world.now + TICK;
    assert!(world.due().is_empty());
}

/// Both scripts were sent at the same instant, and the clock jumped before the second script was executed.
#[test]
fn jump_between_scripts_shortens_first_extension() {
    let mut world = World::new();
    let (before, after) = (world.take(1, true), world.take(2, true));
    assert_eq!(world.hear(0, Duration::ZERO), None);
    world.now = world.now + LEASE / 3;
    let scripts: Vec<_> = world
        .due()
        .into_iter()
        .map(|renewal| world.holds.begin_renewal(vec![renewal], Some(0), world.now))
        .collect();
    let (sent, by) = (world.now, LEASE / 2);
    let times = [LEASE / 3, LEASE / 3 + by];
    let jumps = scripts.into_iter().zip(times).map(|(script, server)| {
        let reply = RenewalReply { server, locks: vec![Renewed::Extended] };
        world.holds.end_renewal(script, Some(&reply), world.now, |_| 0, &mut Effects::default())
    });
    assert_eq!(jumps.collect::<Vec<_>>(), [None, Some(Jump::Forward(by))]);
    let extended = Lease::new(LEASE).unwrap().valid_until(sent);
    assert_eq!(world.valid_until(before), extended.saturating_sub(by));
    assert_eq!(world.valid_until(after), extended);
    world.now = world.now + TICK;
    assert_eq!(world.due().iter().map(|asked| asked.hold).collect::<Vec<_>>(), [before]);
}

/// The server told how long the lease lasts by the clock that has jumped.
#[test]
fn jump_told_with_rest_shortens_once() {
    let mut world = World::new();
    let [fixed, other] = [1, 2].map(|owner| world.take(owner, false));
    assert_eq!(world.hear(0, Duration::ZERO), None);
    world.now = world.now + LEASE / 10;
    let by = LEASE / 4;
    let left = LEASE - LEASE / 10 - by;
    let name = Arc::clone(&world.holds.get(fixed).unwrap().name);
    world.holds.verify(&name, world.now);
    let (asked, sent, believed) = (world.due(), world.now, world.valid_until(other));
    let script = world.holds.begin_renewal(asked, Some(0), sent);
    let reply = RenewalReply { server: LEASE / 10 + by, locks: vec![Renewed::StillHeld { left }] };
    let jump = world.holds.end_renewal(script, Some(&reply), world.now, |_| 0, &mut Effects::default());
    assert_eq!(jump, Some(Jump::Forward(by)));
    assert_eq!(world.valid_until(fixed), Lease::new(left).unwrap().valid_until(sent));
    assert_eq!(world.valid_until(other), believed.saturating_sub(by), "the reply does not tell its end");
}

/// The reply tells the end of the longest lease. A release may leave a shorter lease.
#[test]
fn jump_shortens_shares_with_own_ends() {
    let mut world = World { name: Arc::new(Name::new("n", &kind::READ, false)), ..World::new() };
    for reply in [GrantReply::Fresh, GrantReply::Again] {
        let hold = world.begin().unwrap();
        let terms = Terms { share: FIXED, ..world.terms() };
        let granted = world.holds.granted(hold, terms, reply, world.now, &mut Effects::default());
        assert!(matches!(granted, Some(Granted::Held(_, None))));
        world.guards.push(hold);
        world.now = world.now + TICK;
    }
    let (hold, by, left) = (world.guards[0], LEASE / 4, LEASE / 2);
    assert_eq!(world.hear(0, Duration::ZERO), None);
    world.now = world.now + LEASE / 10;
    world.holds.verify(&Arc::clone(&world.name), world.now);
    let (asked, sent) = (world.due(), world.now);
    let script = world.holds.begin_renewal(asked, Some(0), sent);
    let reply = RenewalReply { server: LEASE / 10 + by, locks: vec![Renewed::StillHeld { left }] };
    let jump = world.holds.end_renewal(script, Some(&reply), world.now, |_| 0, &mut Effects::default());
    assert_eq!(jump, Some(Jump::Forward(by)));
    assert_eq!(world.valid_until(hold), Lease::new(left).unwrap().valid_until(sent).saturating_sub(by));
}

#[test]
fn jump_affects_only_own_server() {
    let mut world = World::new();
    assert!(world.step(Event::Acquire).is_continue());
    let believed = world.holds.get(world.guards[0]).unwrap().valid_until;
    assert_eq!(world.hear(1, Duration::ZERO), None);
    world.now = world.now + LEASE / 10;
    assert!(matches!(world.hear(1, LEASE), Some(Jump::Forward(_))));
    assert_eq!(world.holds.get(world.guards[0]).unwrap().valid_until, believed);
    assert_eq!(
        world.hear(0, Duration::from_secs(1_000_000)),
        None,
        "the first word of another clock is no jump"
    );
}

#[test]
fn failover_checks_fixed_and_renews_watched() {
    let mut world = World::new();
    let (kept, fixed, released) = (world.take(1, true), world.take(2, false), world.take(3, true));
    let _releasing = world.holds.release(released, GUARD, world.now);
    world.now = world.now + LEASE / 10;
    assert!(world.due().is_empty());
    world.holds.changed(&Change::everywhere(), world.now);
    assert!(world.holds.alarms.watchdog_to_wake().is_none() && world.holds.next_due().unwrap() <= world.now);
    let asked = world.due();
    let seen: Vec<_> = asked.iter().map(|asked| (asked.hold, asked.lease_to_set())).collect();
    assert_eq!(seen, [(kept, i64::try_from(LEASE.as_millis()).unwrap()), (fixed, 0)]);
    assert!(world.due().is_empty(), "once");

    // The new server's clock is ahead, so leases end there earlier than promised.
    let (sent, believed) = (world.now, world.valid_until(fixed));
    let script = world.holds.begin_renewal(asked, Some(0), sent);
    world.answer(script, &[1, 200]);
    assert_eq!(world.valid_until(kept), Lease::new(LEASE).unwrap().valid_until(sent));
    assert_eq!(world.valid_until(fixed), sent + Duration::from_millis(200 - 2 - 2));
    assert!(world.valid_until(fixed) < believed);
    world.now = world.now + Duration::from_millis(190);
    let _beat = world.due();
    assert_eq!(world.holds.lost(fixed), Some(LostReason::Expired));
}

#[test]
fn verification_never_lengthens_lease() {
    for left in [500, 100_000, -1] {
        let mut world = World::new();
        let hold = world.take(1, false);
        let believed = world.valid_until(hold);
        world.now = world.now + LEASE / 5;
        world.holds.changed(&Change::everywhere(), world.now);
        let asked = world.due();
        let script = world.holds.begin_renewal(asked, Some(0), world.now);
        world.answer(script, &[left]);
        assert_eq!(world.valid_until(hold), believed, "{left}");
        assert!(world.due().is_empty() && world.holds.lost(hold).is_none());
    }
}

#[test]
fn hold_unknown_after_failover_is_lost() {
    let mut world = World::new();
    let (kept, fixed) = (world.take(1, true), world.take(2, false));
    world.holds.changed(&Change::everywhere(), world.now);
    let asked = world.due();
    let script = world.holds.begin_renewal(asked, Some(0), world.now);
    world.answer(script, &[0, 0]);
    assert_eq!([kept, fixed].map(|hold| world.holds.lost(hold)), [Some(LostReason::NotOwner); 2]);
}

/// The renewal may have reached the old server.
#[test]
fn failed_renewal_repeats_after_failover() {
    let mut world = World::new();
    let kept = world.take(1, true);
    world.holds.changed(&Change::everywhere(), world.now);
    let asked = world.due();
    let script = world.holds.begin_renewal(asked, Some(0), world.now);
    world.holds.changed(&Change::everywhere(), world.now);
    assert!(world.due().is_empty(), "one after the other");
    let _unknown = world.holds.end_renewal(script, None, world.now, |_| 0, &mut Effects::default());
    world.now = world.now + TICK;
    assert_eq!(world.due().len(), 1, "at once");
    assert_eq!(world.holds.lost(kept), None);
}

#[test]
fn unanswered_failover_check_is_repeated() {
    let mut world = World::new();
    let fixed = world.take(1, false);
    world.now = world.now + TICK;
    world.holds.changed(&Change::everywhere(), world.now);
    let asked = world.due();
    let script = world.holds.begin_renewal(asked, Some(0), world.now);
    let _unknown = world.holds.end_renewal(script, None, world.now, |_| 0, &mut Effects::default());
    world.now = world.now + LEASE / 20 + TICK;
    let asked = world.due();
    assert_eq!(asked.len(), 1, "it failed");
    let script = world.holds.begin_renewal(asked, Some(0), world.now);
    let pause = Duration::from_millis(10);
    let none = world.holds.renewal_refused(script, Refused::Unserved, pause, world.now);
    assert!(none.is_empty());
    world.now = world.now + pause + TICK;
    let asked = world.due();
    assert_eq!((asked.len(), asked[0].extend), (1, false), "it was refused");
    // Another failover while the reply is under way. The reply may come from the old server.
    let script = world.holds.begin_renewal(asked, Some(0), world.now);
    world.holds.changed(&Change::everywhere(), world.now);
    assert!(world.due().is_empty(), "one after the other");
    world.answer(script, &[300]);
    world.now = world.now + TICK;
    assert_eq!(world.due().len(), 1, "the answer was the old server's");
    assert_eq!(world.holds.counted().failed_renewals, 0, "nothing was to be renewed");
    assert!(world.holds.lost(fixed).is_none());
}

#[test]
fn grant_before_failover_is_verified() {
    let mut world = World::new();
    let terms = Terms { share: FIXED, ..world.terms() };
    let hold = world.begin().unwrap();
    world.holds.changed(&Change::everywhere(), world.now);
    world.now = world.now + TICK;
    assert!(world.due().is_empty(), "not granted yet");
    let _granted = world.holds.granted(hold, terms, GrantReply::Fresh, world.now, &mut Effects::default());
    world.now = world.now + TICK;
    assert_eq!(world.due().iter().map(|asked| asked.hold).collect::<Vec<_>>(), [hold]);
}

#[test]
fn many_holds_verify_in_slices() {
    const SLICE: usize = 1000;
    let mut world = World::new();
    let holds: Vec<_> = (1..=2500).map(|owner| world.take(owner, owner % 2 == 0)).collect();
    world.holds.changed(&Change::everywhere(), world.now);
    let first = world.due();
    assert_eq!(first.len(), SLICE);
    // One script for each renewal, as in a cluster. The next slice waits until most scripts have their replies.
    let scripts: Vec<_> = first
        .into_iter()
        .map(|renewal| {
            let locks = if renewal.extend { [1] } else { [500] };
            (world.holds.begin_renewal(vec![renewal], Some(0), world.now), locks)
        })
        .collect();
    assert!(world.due().is_empty(), "the line is full");
    world.holds.changed(&Change::everywhere(), world.now);
    for (script, locks) in scripts {
        world.answer(script, &locks);
    }
    let mut asked = vec![0; holds.len()];
    while world.holds.next_due().is_some_and(|due| due <= world.now) {
        let slice = world.due();
        assert!(slice.len() <= SLICE);
        for renewal in slice {
            asked[renewal.hold as usize] += 1;
            let locks = if renewal.extend { [1] } else { [500] };
            let script = world.holds.begin_renewal(vec![renewal], Some(0), world.now);
            world.answer(script, &locks);
        }
    }
    assert!(asked[..SLICE].iter().all(|times| *times == 1), "once more for the second change");
    assert!(asked[SLICE..].iter().all(|times| *times == 2), "once for either change");
}

/// A6: a doubt makes the watchdog check a hold at once, if the hold is believed.
#[test]
fn doubted_hold_is_checked_at_once() {
    let mut world = World::new();
    let name = Arc::clone(&world.name);
    world.holds.verify(&name, world.now);
    assert!(world.due().is_empty(), "nobody holds it");
    let hold = world.ask_for(&name, 1);
    world.grant(hold, Terms { share: FIXED, ..world.terms() });
    world.holds.verify(&name, world.now);
    let asked: Vec<_> = world.due().into_iter().map(|renewal| (renewal.hold, renewal.extend)).collect();
    assert_eq!(asked, [(hold, false)], "a fixed lease is not extended");
    let _settle = world.holds.release(hold, FIXED, world.now);
    world.holds.verify(&name, world.now);
    assert!(world.due().is_empty(), "it was given back");
}

/// The jump happened after the request of the younger hold, or concerns no guard.
#[test]
fn jump_spares_unconcerned_holds() {
    let mut world = World::new();
    let [kept, lost, released] = [1, 2, 3].map(|owner| world.take(owner, true));
    let fixed = world.take(4, false);
    assert_eq!(world.hear(0, Duration::ZERO), None);
    world.lose(lost);
    assert!(world.holds.release(released, GUARD, world.now).is_some());
    let sent = world.now;
    world.now = world.now + TICK;
    let young = world.take(5, true);
    let holds = [kept, fixed, lost, released, young];
    let before = holds.map(|hold| world.valid_until(hold));
    world.now = world.now + TICK;
    let sample = Sample { server: LEASE, sent, received: world.now };
    let jump = world.holds.heard_server_time(0, sample, None, |_| 0);
    assert!(matches!(jump, Some(Jump::Forward(_))), "{jump:?}");
    let is_shorter = [0, 1, 2, 3, 4].map(|place| world.valid_until(holds[place]) < before[place]);
    assert_eq!(is_shorter, [true, true, false, false, false]);
    // A renewal needs some time, while the lease of an unrenewed hold has ended.
    assert_eq!(world.valid_until(kept), world.now + LEASE / 5);
    assert!(world.valid_until(fixed) < world.now);
    let planned = holds.map(|hold| world.holds.get(hold).unwrap().renewing.planned());
    assert_eq!(planned, [Some(world.now), None, None, None, None]);
}
