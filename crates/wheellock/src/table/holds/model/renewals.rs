//! Model tests of renewals and their schedule.

use super::super::hold::UNEXTENDED_PAUSE;
use super::*;

#[test]
fn renewals_start_at_third_and_retry() {
    let mut world = World::new();
    let start = world.now;
    assert!(world.step(Event::Acquire).is_continue());
    let hold = world.guards[0];
    assert_eq!(world.holds.next_due(), Some(start + LEASE / 3), "the beat");
    assert!(world.step(Event::Tick).is_continue() && world.renewals.is_empty());
    assert!(world.step(Event::Tick).is_continue() && world.renewals.len() == 1);
    assert!(world.step(Event::Renewed(Renewed::Failed)).is_continue());
    assert_eq!(world.holds.next_due(), Some(world.now + LEASE / 20), "a failure is repeated soon");
    assert!(world.step(Event::Tick).is_continue() && world.renewals.len() == 1);
    assert!(world.step(Event::Renewed(Renewed::Extended)).is_continue());
    let valid = world.holds.get(hold).unwrap().valid_until.saturating_duration_since(start);
    assert_eq!(valid, 3 * LEASE / 5 + LEASE - LEASE / 100 - Duration::from_millis(2), "from before the send");
}

#[test]
fn redirected_renewal_retries_without_failure() {
    let refuse = |refused, pause| {
        let mut world = World::new();
        assert!(world.step(Event::Acquire).is_continue());
        while world.renewals.is_empty() {
            assert!(world.step(Event::Tick).is_continue());
        }
        let now = world.now;
        let at_once = world.holds.renewal_refused(world.renewals[0], refused, pause, now);
        let soon = !at_once.is_empty() || world.holds.next_due().unwrap() <= now + pause + TICK;
        world.now = now + pause + TICK;
        let due = world.due();
        let again: Vec<_> = at_once.iter().chain(&due).collect();
        assert!(soon && again.len() == 1, "{refused:?}: {} {}", at_once.len(), due.len());
        let failed = world.holds.counted().failed_renewals;
        (at_once.len(), again[0].alone, again[0].with_source, failed)
    };
    let pause = Duration::from_millis(10);
    assert_eq!(refuse(Refused::Elsewhere, Duration::ZERO), (0, false, false, 0));
    assert_eq!(refuse(Refused::OnItsWay, pause), (0, true, false, 0));
    assert_eq!(refuse(Refused::Arrived, Duration::ZERO), (1, true, false, 0));
    assert_eq!(refuse(Refused::NoScript, Duration::ZERO), (0, false, true, 0));
    assert_eq!(refuse(Refused::Unserved, pause), (0, false, false, 1));
}

/// In a grace, the server confirms a hold and does not extend it. The next failover may come before the next beat. The watchdog would send
/// the same renewal after each reply.
#[test]
fn renewal_without_extension_repeats_after_pause() {
    let mut world = World::new();
    let hold = world.take(1, true);
    let beat = world.holds.next_due().unwrap();
    world.now = beat + TICK;
    let (end, mut renewals) = (world.holds.get(hold).unwrap().lost_at(), 0);
    while world.now < end {
        let asked = world.due();
        if asked.is_empty() {
            world.now = world.holds.next_due().unwrap().max(world.now + TICK);
            continue;
        }
        assert!(asked.len() == 1 && asked[0].extend);
        renewals += 1;
        let script = world.holds.begin_renewal(asked, Some(0), world.now);
        let locks = vec![Renewed::StillHeld { left: Duration::MAX }];
        let reply = RenewalReply { server: world.server_time(), locks };
        world.holds.end_renewal(script, Some(&reply), world.now, |_| 0, &mut Effects::default());
        let next = world.holds.next_due().unwrap();
        let pause = next.saturating_duration_since(world.now);
        let left = end.saturating_duration_since(world.now);
        assert!(pause >= left / 8 || next == beat + LEASE / 3, "{pause:?} of {left:?}");
        assert!(pause <= (left / 8).max(UNEXTENDED_PAUSE) + TICK, "{pause:?} of {left:?}");
    }
    assert!(renewals > 10, "{renewals} renewals in {:?}", LEASE * 2 / 3);
}

/// The grace is over before the first acknowledgement. Until that acknowledgement, replies extend nothing.
#[test]
fn first_acknowledgement_extends_holds_at_once() {
    let mut world = World::new();
    let hold = world.take(1, true);
    world.join_fleet();
    world.find_server("run:one:1", 0, true);
    let written = world.due();
    assert!(written.len() == 1 && written[0].reclaim.is_some());
    let reply = RenewalReply { server: world.server_time(), locks: vec![Renewed::Extended] };
    let script = world.holds.begin_renewal(written, Some(0), world.now);
    let reply = world.holds.believed(script, reply, ConnectionId::new(0, 0));
    world.holds.end_renewal(script, Some(&reply), world.now, |_| 0, &mut Effects::default());
    world.holds.refresh_acknowledged(0, world.now, 2, world.now, &mut Effects::default());
    let again = world.due();
    assert!(again.len() == 1 && again[0].hold == hold && again[0].extend, "{} renewals", again.len());
}

/// News of the key comes while the watchdog waits for a server that can extend the hold.
#[test]
fn look_replaces_no_scheduled_extension() {
    let mut world = World::new();
    let hold = world.take(1, true);
    world.now = world.holds.next_due().unwrap() + TICK;
    let asked = world.due();
    let script = world.holds.begin_renewal(asked, Some(0), world.now);
    let locks = vec![Renewed::StillHeld { left: Duration::MAX }];
    let reply = RenewalReply { server: world.server_time(), locks };
    world.holds.end_renewal(script, Some(&reply), world.now, |_| 0, &mut Effects::default());
    world.holds.get_mut(hold).unwrap().look(world.now);
    world.holds.schedule(hold);
    assert!(world.due().is_empty(), "the scheduled extension checks the hold as well");
    world.now = world.holds.next_due().unwrap() + TICK;
    let asked = world.due();
    assert!(asked.len() == 1 && asked[0].extend);
}

/// A look is due, and a failover permits an extension at the same time.
#[test]
fn pass_extends_hold_despite_look() {
    let mut world = World::new();
    let hold = world.take(1, true);
    world.now = world.now + LEASE / 10;
    world.holds.get_mut(hold).unwrap().look(world.now);
    world.holds.changed(&Change::everywhere(), world.now);
    let asked = world.due();
    assert!(asked.len() == 1 && asked[0].extend);
}

/// The new server's clock is ahead. A failover does not count as a jump of the clock.
#[test]
fn server_clock_ahead_shortens_no_hold() {
    let mut world = World::new();
    let (hold, other) = (world.take(1, false), world.take(2, true));
    world.join_fleet();
    let renew = |world: &mut World, connection, ahead| {
        world.now = world.now + LEASE / 10;
        world.holds.any_key_changed(&Change::everywhere(), world.now);
        let asked = world.due();
        let locks = vec![Renewed::Extended; asked.len()];
        let script = world.holds.begin_renewal(asked, Some(0), world.now);
        let reply = RenewalReply { server: world.server_time() + ahead, locks };
        let reply = world.holds.believed(script, reply, ConnectionId::new(0, connection));
        world.holds.end_renewal(script, Some(&reply), world.now, |_| 0, &mut Effects::default())
    };
    world.find_server("first:one:1", 0, false);
    renew(&mut world, 0, Duration::ZERO);
    let ends = [hold, other].map(|hold| world.valid_until(hold));
    let ahead = Duration::from_secs(5);
    world.holds.changed(&Change::everywhere(), world.now);
    assert_eq!(renew(&mut world, 1, ahead), None, "no refresh has found this server");
    world.find_server("second:one:1", 1, false);
    assert_eq!(renew(&mut world, 1, ahead), None);
    assert_eq!([hold, other].map(|hold| world.valid_until(hold)), ends);
    assert!(matches!(renew(&mut world, 1, 3 * ahead), Some(Jump::Forward(_))));
}

/// A check does not extend the lease, and the next beat may come too late in a grace.
#[test]
fn beat_during_check_extends_afterwards() {
    let mut world = World::new();
    assert!(world.step(Event::Acquire).is_continue());
    let (hold, beat) = (world.guards[0], world.holds.next_due().unwrap());
    world.now = beat.saturating_sub(TICK);
    world.holds.get_mut(hold).unwrap().look(world.now);
    world.holds.schedule(hold);
    let asked = world.due();
    assert!(asked.len() == 1 && !asked[0].extend);
    let script = world.holds.begin_renewal(asked, Some(0), world.now);
    world.now = beat + TICK;
    assert!(world.due().is_empty(), "one request at a time");
    let reply =
        RenewalReply { server: world.server_time(), locks: vec![Renewed::StillHeld { left: LEASE / 2 }] };
    world.holds.end_renewal(script, Some(&reply), world.now, |_| 0, &mut Effects::default());
    let again = world.due();
    assert!(again.len() == 1 && again[0].extend);
}

#[test]
fn repeated_rejections_lengthen_pauses() {
    let mut world = World::new();
    assert!(world.step(Event::Acquire).is_continue());
    let hold = world.guards[0];
    let mut pauses = |lease: u64, count: usize, pause: u64| -> Vec<_> {
        let hold = world.holds.get_mut(hold).unwrap();
        (hold.lease, hold.refusals) = (Lease::new(Duration::from_millis(lease)).unwrap(), 0);
        let pause = Duration::from_millis(pause);
        (0..count).map(|_| hold.pause_after_refusal(pause).as_millis()).collect()
    };
    assert_eq!(pauses(30_000, 12, 0), [0, 0, 10, 0, 0, 20, 0, 0, 40, 0, 0, 80]);
    assert_eq!(pauses(30_000, 7, 25), [25, 25, 25, 50, 50, 50, 100]);
    assert_eq!(pauses(300, 7, 0), [0, 0, 10, 0, 0, 15, 0], "no longer than after a failure");
    assert!(pauses(30_000, 1000, 0).chunks(4).all(|four| four.iter().any(|pause| *pause >= 10)));
}

#[test]
fn late_grant_is_renewed_at_once() {
    let mut world = World::new();
    let terms = world.terms();
    let hold = world.begin().unwrap();
    let late = world.now + LEASE * 4 / 5;
    let granted = world.holds.granted(hold, terms, GrantReply::Fresh, late, &mut Effects::default());
    assert!(matches!(granted, Some(Granted::Held(..))));
    assert!(
        world.holds.next_due().unwrap() <= late,
        "its third has passed, and its next beat would be too late"
    );
}

#[test]
fn manual_renewal_follows_pending_verification() {
    let mut world = World::new();
    let hold = world.take(1, false);
    world.holds.changed(&Change::everywhere(), world.now);
    let asked = world.due();
    let script = world.holds.begin_renewal(asked, Some(0), world.now);
    world.now = world.now + LEASE / 10;
    // The wish waits for the reply to a request of its own.
    let until = world.now + WAIT;
    let (wish, at_once) = world.holds.wish(hold, Want::Renew, (world.now, until), Waker::noop()).unwrap();
    assert!(at_once.is_none());
    world.answer(script, &[100]);
    assert!(world.holds.result(wish, Waker::noop()).is_none());
    world.holds.renew_for_wishes(hold, world.now);
    world.now = world.now + TICK;
    let asked = world.due();
    assert!(asked.len() == 1 && asked[0].extend);
    let (sent, script) = (world.now, world.holds.begin_renewal(asked, Some(0), world.now));
    world.answer(script, &[1]);
    assert!(matches!(world.holds.result(wish, Waker::noop()), Some(Ok(Confirmation::Held))));
    assert_eq!(world.valid_until(hold), Lease::new(LEASE).unwrap().valid_until(sent));
}

#[test]
fn late_renewal_never_revives_lost_lock() {
    let mut world = World::new();
    assert!(world.step(Event::Acquire).is_continue());
    let hold = world.guards[0];
    for _ in 0..5 {
        assert!(world.step(Event::Tick).is_continue());
    }
    assert_eq!(world.holds.get(hold).unwrap().state, State::Lost(LostReason::Expired));
    assert!(world.step(Event::Renewed(Renewed::Extended)).is_continue());
    assert_eq!(world.holds.get(hold).unwrap().state, State::Lost(LostReason::Expired));
    world.settle_down(&[]);
}

/// The server may have granted the longer lease already.
#[test]
fn renewal_keeps_lease_of_concurrent_attempt() {
    let long = Lease::new(10 * LEASE).unwrap();
    for renewal_is_first in [false, true] {
        let mut world = World::new();
        assert!(world.step(Event::Acquire).is_continue());
        let hold = world.guards[0];
        let ask = |world: &mut World| {
            let owner = (&world.name, 1);
            let began = world.holds.begin_attempt(owner, true, (long, 1), world.now, Waker::noop());
            assert!(matches!(began, Poll::Ready(Some((asked, 2))) if asked == hold));
            Terms { lease: long, ..world.terms() }
        };
        let early = (!renewal_is_first).then(|| ask(&mut world));
        world.now = world.now + LEASE / 3;
        let (sent, renewals) = (world.now, world.due());
        let short = Lease::new(LEASE).unwrap();
        assert_eq!(renewals[0].lease, if renewal_is_first { short } else { long });
        let script = world.holds.begin_renewal(renewals, None, world.now);
        let terms = early.unwrap_or_else(|| ask(&mut world));
        world.answer(script, &[1]);
        assert_eq!(world.valid_until(hold), short.valid_until(sent), "nothing is known of the grant yet");
        let mut effects = Effects::default();
        let granted = world.holds.granted(hold, terms, GrantReply::Again, world.now, &mut effects);
        assert!(matches!(granted, Some(Granted::Held(..))));
        assert_eq!(world.valid_until(hold), long.valid_until(terms.sent));
        // The server decides which of the two requests came first.
        assert_eq!(world.due().len(), usize::from(renewal_is_first));
    }
}

/// A longer lease would keep the lock for longer if its owner died meanwhile.
#[test]
fn renewal_ignores_lease_of_refused_attempt() {
    let (short, long) = (Lease::new(LEASE).unwrap(), Lease::new(10 * LEASE).unwrap());
    let mut world = World::new();
    assert!(world.step(Event::Acquire).is_continue());
    for lease in [long, short] {
        let owner = (&world.name, 1);
        let began = world.holds.begin_attempt(owner, true, (lease, 1), world.now, Waker::noop());
        assert!(matches!(began, Poll::Ready(Some(_))));
        if lease == long {
            assert!(world.holds.refused(world.guards[0], 1, &mut Effects::default()).is_none());
        }
    }
    world.now = world.now + LEASE / 3;
    assert_eq!(world.due()[0].lease, short);
}

/// The guards may have reported the loss before the watchdog, which has not run since.
#[test]
fn reply_after_expiry_cannot_restore_hold() {
    for answer in [1, 0] {
        let mut world = World::new();
        let (start, hold) = (world.now, world.take(1, true));
        world.now = start + LEASE / 3;
        let renewal = world.due();
        let script = world.holds.begin_renewal(renewal, None, world.now);
        world.now = world.valid_until(hold);
        let until_then = world.holds.watch(hold, &mut None, Waker::noop(), world.now.saturating_sub(TICK));
        assert_eq!((until_then, world.holds.lost(hold)), (None, None));
        let watched = world.holds.watch(hold, &mut None, Waker::noop(), world.now);
        assert_eq!(watched, Some(LostReason::Expired));
        world.answer(script, &[answer]);
        let reason = if answer == 1 { LostReason::Expired } else { LostReason::NotOwner };
        assert_eq!(world.holds.lost(hold), Some(reason));
    }
    let mut world = World::new();
    assert!(world.step(Event::Acquire).is_continue());
    let hold = world.guards[0];
    world.now = world.now + LEASE / 2;
    let (terms, again) = (world.terms(), world.begin().unwrap());
    world.now = world.valid_until(hold);
    let granted = world.holds.granted(again, terms, GrantReply::Again, world.now, &mut Effects::default());
    assert!(matches!(granted, Some(Granted::TooLate(_))));
    assert_eq!(world.holds.lost(hold), Some(LostReason::Expired));
}

/// A short lease can end before the deadline for the reply, so the failure would go unreported before the loss.
#[test]
fn unanswered_renewal_at_expiry_fails_once() {
    for answer in [Some(1), Some(0), None] {
        let mut world = World::new();
        let (start, hold, fixed) = (world.now, world.take(1, true), world.take(2, false));
        world.now = start + LEASE / 3;
        let renewals = world.due();
        assert_eq!(renewals.len(), 1, "the fixed lease is not renewed");
        let script = world.holds.begin_renewal(renewals, None, world.now);
        world.now = world.valid_until(hold);
        assert!(world.due().is_empty());
        assert_eq!([hold, fixed].map(|hold| world.holds.lost(hold)), [Some(LostReason::Expired); 2]);
        assert_eq!((world.holds.counted().failed_renewals, world.holds.failures.failing()), (1, 0));
        let told = world.holds.failures.tell(world.now).map(|told| (told.locks, told.failures));
        assert_eq!(told, Some((1, 1)));
        let mut effects = Effects::default();
        match answer {
            Some(answer) => world.answer(script, &[answer]),
            None => _ = world.holds.end_renewal(script, None, world.now, |_| 0, &mut effects),
        }
        assert_eq!(world.holds.counted().failed_renewals, 1, "{answer:?}: it was counted");
    }
    // The same if the reply arrives after the end of the lease, but before the watchdog runs.
    for answer in [Some(1), None] {
        let mut world = World::new();
        let (start, hold) = (world.now, world.take(1, true));
        world.now = start + LEASE / 3;
        let renewals = world.due();
        let script = world.holds.begin_renewal(renewals, None, world.now);
        world.now = world.valid_until(hold);
        let mut effects = Effects::default();
        match answer {
            Some(answer) => world.answer(script, &[answer]),
            None => _ = world.holds.end_renewal(script, None, world.now, |_| 0, &mut effects),
        }
        assert_eq!(world.holds.lost(hold), Some(LostReason::Expired));
        assert_eq!(world.holds.counted().failed_renewals, 1, "{answer:?}");
    }
    // A check under way when its lease ends is not a failed renewal.
    let mut world = World::new();
    let fixed = world.take(1, false);
    world.holds.changed(&Change::everywhere(), world.now);
    let asked = world.due();
    assert!(asked.len() == 1 && !asked[0].extend);
    let _script = world.holds.begin_renewal(asked, Some(0), world.now);
    world.now = world.valid_until(fixed);
    assert!(world.due().is_empty());
    assert_eq!(world.holds.lost(fixed), Some(LostReason::Expired));
    assert_eq!(world.holds.counted().failed_renewals, 0, "nothing was to be renewed");
}

/// The lease would end between two beats of the watchdog, without a renewal or a report.
#[test]
fn late_renewal_reply_triggers_next_renewal() {
    let mut world = World::new();
    let start = world.now;
    let hold = world.take(1, true);
    world.now = start + LEASE / 20;
    let (_, renewal) = world
        .holds
        .wish(hold, Want::Renew, (world.now, world.now + WAIT), Waker::noop())
        .expect("it is held");
    let script = world.holds.begin_renewal(vec![renewal.expect("nothing is under way")], None, world.now);
    for turn in 1..=2 {
        world.now = start + turn * LEASE / 3;
        assert!(world.due().is_empty(), "one is under way");
    }
    world.now = start + LEASE * 9 / 10;
    world.answer(script, &[1]);
    assert_eq!(world.due().len(), 1, "its next turn comes after {:?}", world.valid_until(hold));
    assert_eq!(world.holds.lost(hold), None);
}

/// A request that waited for a connection all the time was not sent. Any other request may have been executed, even if its
/// connection broke and the table does not know that yet.
#[test]
fn timeout_reports_whether_request_was_sent() {
    for sent in [true, false] {
        let mut world = World::new();
        let (renewed, released) = (world.take(1, true), world.take(2, true));
        let until = world.now + WAIT;
        let wished = world.holds.wish(renewed, Want::Renew, (world.now, until), Waker::noop());
        let (wish, renewal) = wished.expect("it is held");
        let batch = world.holds.begin_renewal(vec![renewal.unwrap()], None, world.now);
        let times = (world.now, until);
        let (view, request) = world.holds.release_awaited(released, GUARD, times, Waker::noop());
        assert!(request.is_some());
        world.now = until + TICK;
        let unsent = [About::Reconcile { hold: released }, About::Renewal { batch }];
        let unsent = || if sent { Vec::new() } else { unsent.to_vec() };
        world.holds.due(world.now, &mut Due::new(&mut Effects::default(), &unsent));
        let renewed = world.holds.result(wish, Waker::noop());
        let released = world.holds.result(view.unwrap(), Waker::noop());
        for end in [renewed, released] {
            let Some(Err(Failed::TimedOut { ambiguous, reason: None })) = end else { panic!("{end:?}") };
            assert_eq!(ambiguous, sent);
        }
    }
}

/// Begins the renewal that a guard wishes for. Returns the guard's caller and the script.
fn wish(world: &mut World, hold: HoldIndex, want: Want) -> (CallerIndex, u32) {
    let (caller, renewal) =
        world.holds.wish(hold, want, (world.now, world.now + WAIT), Waker::noop()).unwrap();
    (caller, world.holds.begin_renewal(vec![renewal.unwrap()], Some(0), world.now))
}

fn planned(world: &World, hold: HoldIndex) -> Option<BootInstant> {
    world.holds.get(hold).unwrap().renewing.planned()
}

fn has_ended(world: &mut World, caller: CallerIndex) -> bool {
    world.holds.result(caller, Waker::noop()).is_some()
}

/// No guard wants the extension any more.
#[test]
fn abandoned_wish_is_not_repeated() {
    for way in 0..3 {
        let mut world = World::new();
        let hold = world.take(1, false);
        let (caller, script) = wish(&mut world, hold, Want::Renew);
        assert_eq!(world.holds.wishing(script), [hold]);
        let pause = Duration::from_millis(10);
        if way == 0 {
            // The caller leaves before the reply.
            assert!(world.holds.leave(caller).is_some());
            assert!(world.holds.wishing(script).is_empty());
            assert!(world.holds.renewal_refused(script, Refused::Elsewhere, pause, world.now).is_empty());
            assert_eq!(planned(&world, hold), None);
        } else if way == 1 {
            let _none = world.holds.end_renewal(script, None, world.now, |_| 0, &mut Effects::default());
            assert!(world.holds.leave(caller).is_some());
        } else {
            world.answer(script, &[1]);
            assert!(has_ended(&mut world, caller));
            world.holds.renew_for_wishes(hold, world.now);
            assert_eq!(planned(&world, hold), None);
        }
        world.now = world.now + LEASE / 10;
        assert!(world.due().is_empty());
        assert_eq!(planned(&world, hold), None, "{way}");
    }
}

/// The hold of a script may be gone, and a new hold may have its index.
#[test]
fn reply_concerns_no_later_hold() {
    let mut world = World::new();
    let first = world.take(1, true);
    let (caller, script) = wish(&mut world, first, Want::Renew);
    world.holds.leave(caller);
    let request = world.holds.release(first, GUARD, world.now).unwrap();
    world.reconciled(&request, true, 0);
    let second = world.take(2, true);
    assert_eq!(second, first);
    let (caller, _) = wish(&mut world, second, Want::Renew);
    assert!(world.holds.wishing(script).is_empty());
    world.answer(script, &[0]);
    assert!(!has_ended(&mut world, caller) && world.holds.lost(second).is_none());
    assert!(world.holds.get(second).unwrap().renewing.is_under_way());
}

/// Each follows the redirection in the same way as before.
#[test]
fn redirected_request_keeps_its_purpose() {
    for extend in [false, true] {
        let mut world = World::new();
        let hold = world.take(1, false);
        let script = if extend {
            wish(&mut world, hold, Want::Renew).1
        } else {
            world.holds.verify_hold(hold, world.now);
            let renewals = world.due();
            world.holds.begin_renewal(renewals, Some(0), world.now)
        };
        let again = world.holds.renewal_refused(script, Refused::Arrived, Duration::ZERO, world.now);
        assert_eq!(again.iter().map(|renewal| renewal.extend).collect::<Vec<_>>(), [extend]);
    }
}

/// A check does not answer a guard that waits for an extension.
#[test]
fn check_leaves_other_wish_open() {
    for is_answered in [false, true] {
        let mut world = World::new();
        let hold = world.take(1, false);
        let (renew, script) = wish(&mut world, hold, Want::Renew);
        let _none = world.holds.end_renewal(script, None, world.now, |_| 0, &mut Effects::default());
        let (check, script) = wish(&mut world, hold, Want::Check);
        assert!(!world.holds.batch(script)[0].extend);
        if is_answered {
            world.answer(script, &[500]);
            assert!(has_ended(&mut world, check) && !has_ended(&mut world, renew));
        }
        world.now = world.now + WAIT;
        let _renewals = world.due();
        let end = world.holds.result(renew, Waker::noop());
        assert!(matches!(end, Some(Err(Failed::TimedOut { ambiguous: false, .. }))), "{end:?}");
    }
}

/// An extension counts only when other servers have acknowledged it. A check needs no acknowledgement.
#[test]
fn unacknowledged_extension_is_repeated() {
    let mut world = World::new();
    let hold = world.take(1, true);
    world.now = world.now + LEASE / 10;
    let (check, script) = wish(&mut world, hold, Want::Check);
    let (renew, _) =
        world.holds.wish(hold, Want::Renew, (world.now, world.now + WAIT), Waker::noop()).unwrap();
    let believed = world.valid_until(hold);
    let reply = RenewalReply { server: world.server_time(), locks: vec![Renewed::Extended] };
    let mut effects = Effects::default();
    assert!(world.holds.await_acks(script, &reply, world.now, |_| 0, &mut effects).0);
    assert!(has_ended(&mut world, check) && !has_ended(&mut world, renew));
    world.holds.end_wait(script, false, world.now, &mut effects);
    assert!(!has_ended(&mut world, renew) && world.holds.renewals.is_empty());
    assert_eq!(world.valid_until(hold), believed);
    assert_eq!(planned(&world, hold), Some(world.now + LEASE / 20));
    assert_eq!(
        (
            world.holds.counted().failed_renewals,
            world.holds.failures.failing(),
            world.holds.failures.unreported()
        ),
        (1, 1, 1)
    );
    // The reply shows a loss, so no acknowledgement is to come.
    let (_, script) = {
        let (caller, renewal) =
            world.holds.wish(hold, Want::Check, (world.now, world.now + WAIT), Waker::noop()).unwrap();
        (caller, world.holds.begin_renewal(vec![renewal.unwrap()], Some(0), world.now))
    };
    let reply = RenewalReply { server: world.server_time(), locks: vec![Renewed::NotOwner] };
    assert!(!world.holds.await_acks(script, &reply, world.now, |_| 0, &mut effects).0);
    assert_eq!(world.holds.lost(hold), Some(LostReason::NotOwner));
    assert!(world.holds.renewals.is_empty());
    assert_eq!(
        (world.holds.failures.failing(), world.holds.counted().failing),
        (0, 0),
        "the lost hold is not renewed"
    );
}

/// A log line reports the failure, and another line its end.
#[test]
fn recovered_renewal_is_reported() {
    for answer in [1, 0] {
        let mut world = World::new();
        let (hold, start) = (world.take(1, true), world.now);
        for number in 1..=2 {
            world.now = start + number * LEASE / 20;
            let (_, script) = wish(&mut world, hold, Want::Renew);
            let _none = world.holds.end_renewal(script, None, world.now, |_| 0, &mut Effects::default());
            assert_eq!(
                (world.holds.failures.failing(), world.holds.failures.unreported()),
                (1, u64::from(number))
            );
            assert_eq!(world.holds.counted().failing, 1);
        }
        let told = world.holds.failures.tell(world.now).unwrap();
        assert_eq!((told.locks, told.failures, told.failing), (1, 2, LEASE / 20));
        let (_, script) = wish(&mut world, hold, Want::Renew);
        let how = if answer == 1 { Renewed::Extended } else { Renewed::NotOwner };
        let reply = RenewalReply { server: world.server_time(), locks: vec![how] };
        let mut effects = Effects::default();
        let _none = world.holds.end_renewal(script, Some(&reply), world.now, |_| 0, &mut effects);
        assert_eq!((world.holds.failures.failing(), world.holds.counted().failing), (0, 0));
        effects.wake_all();
        let rest = effects.rest;
        let recovered = rest.and_then(|rest| rest.renewed_again);
        assert_eq!(recovered, (answer == 1).then_some(LEASE / 20), "a loss is no recovery");
    }
}

/// The delay counts from the instant at which a third of the lease has passed.
#[test]
fn only_late_renewal_has_lateness() {
    let nanosecond = Duration::from_nanos(1);
    for (after, is_late) in [(LEASE / 3 - nanosecond, false), (LEASE / 3, true), (LEASE / 2, true)] {
        let mut world = World::new();
        let hold = world.take(1, true);
        let (_, script) = wish(&mut world, hold, Want::Renew);
        world.now = world.now + after;
        world.answer(script, &[1]);
        let counted = world.holds.counted();
        assert_eq!((counted.renewals, counted.renewal_lateness.count()), (1, u64::from(is_late)));
    }
}

/// The server may have extended the lease, although no reply came.
#[test]
fn unanswered_renewal_lengthens_release() {
    for (answer, is_longer) in [(None, true), (Some(0), false)] {
        let mut world = World::new();
        let hold = world.take(1, true);
        let (caller, script) = wish(&mut world, hold, Want::Renew);
        world.holds.leave(caller);
        assert!(world.holds.release(hold, GUARD, world.now).is_some());
        let before = world.holds.get(hold).unwrap().expired_by;
        world.now = world.now + LEASE / 10;
        match answer {
            Some(answer) => world.answer(script, &[answer]),
            None => {
                let mut effects = Effects::default();
                let _none = world.holds.end_renewal(script, None, world.now, |_| 0, &mut effects);
            }
        }
        let after = world.holds.get(hold).unwrap().expired_by;
        assert_eq!(after, if is_longer { before + LEASE / 10 } else { before });
    }
}

/// The reply to the release reports the loss, if a guard waits for it.
#[test]
fn renewal_reply_ends_unreleased_hold() {
    // The release of one of two guards is under way.
    let (mut world, hold) = World::with_guards(2);
    let (_, script) = wish(&mut world, hold, Want::Renew);
    assert!(world.holds.release(hold, GUARD, world.now).is_some());
    world.answer(script, &[0]);
    assert_eq!(world.holds.lost(hold), Some(LostReason::NotOwner));
    // The release waits for its retry.
    let (mut world, hold) = World::with_guards(1);
    let (caller, script) = wish(&mut world, hold, Want::Renew);
    world.holds.leave(caller);
    assert!(world.holds.release(hold, GUARD, world.now).is_some());
    world.holds.reconcile_again(hold, Unreconciled::Failed, world.now, &mut Effects::default());
    world.answer(script, &[0]);
    assert!(world.holds.holds.is_empty());
}

/// The watchdog begins to keep the hold while a check is under way.
#[test]
fn short_checked_lease_is_renewed_early() {
    for (left, is_early) in [(150, true), (500, false)] {
        let mut world = World::new();
        let (hold, terms) = (world.begin().unwrap(), world.terms());
        world.grant(hold, Terms { share: FIXED, ..terms });
        world.now = world.now + TICK;
        let (_, script) = wish(&mut world, hold, Want::Check);
        let again = world.begin().unwrap();
        let mut effects = Effects::default();
        let granted = world.holds.granted(again, terms, GrantReply::Again, world.now, &mut effects);
        assert!(matches!(granted, Some(Granted::Held(..))));
        world.answer(script, &[left]);
        assert_eq!(planned(&world, hold), is_early.then_some(world.now), "{left}");
    }
}

/// The lease ends while a request is under way.
#[test]
fn expiry_counts_only_extension_as_failed() {
    for want in [Want::Check, Want::Renew] {
        let mut world = World::new();
        let hold = world.take(1, false);
        let end = world.holds.get(hold).unwrap().lost_at();
        world.now = end.saturating_sub(WAIT / 2);
        let (caller, _script) = wish(&mut world, hold, want);
        world.now = end;
        assert!(world.due().is_empty());
        assert_eq!(world.holds.lost(hold), Some(LostReason::Expired));
        assert!(has_ended(&mut world, caller));
        assert_eq!(world.holds.counted().failed_renewals, u64::from(want == Want::Renew));
    }
}

/// A request may wait for a connection for longer than the time that the server reports.
#[test]
fn delayed_check_is_repeated() {
    // A hold is declared lost a twentieth of its lease and a tick before its end.
    let first = u64::try_from((LEASE / 20 + TICK).as_millis()).unwrap();
    for (left, delay, is_doubtful) in [
        (400, 400, true),
        (295, 295, true),
        (400, 394 - first, true),
        (400, 393 - first, false),
        (100, 100, false),
    ] {
        let mut world = World::new();
        let hold = world.take(1, false);
        let believed = world.valid_until(hold);
        world.now = world.now + TICK;
        let (sent, (_, script)) = (world.now, wish(&mut world, hold, Want::Check));
        world.now = sent + Duration::from_millis(delay);
        world.answer(script, &[left]);
        assert_eq!(planned(&world, hold), is_doubtful.then_some(world.now), "{left} {delay}");
        let until = sent + Duration::from_micros(left.unsigned_abs() * 990 - 2000);
        assert_eq!(world.valid_until(hold), if is_doubtful { believed } else { until });
    }
}

/// The server executed the check no earlier than the extension.
#[test]
fn check_spares_later_extension() {
    for is_same_instant in [true, false] {
        let mut world = World::new();
        let (hold, terms) = (world.begin().unwrap(), world.terms());
        world.grant(hold, Terms { share: FIXED, ..terms });
        if !is_same_instant {
            world.now = world.now + TICK;
        }
        let (_, script) = wish(&mut world, hold, Want::Check);
        if !is_same_instant {
            world.now = world.now + TICK;
            let again = (world.begin().unwrap(), Terms { share: FIXED, ..world.terms() });
            let mut effects = Effects::default();
            let granted = world.holds.granted(again.0, again.1, GrantReply::Again, world.now, &mut effects);
            assert!(matches!(granted, Some(Granted::Held(..))));
        }
        let believed = world.valid_until(hold);
        world.answer(script, &[150]);
        assert_eq!(world.valid_until(hold), believed);
    }
}

/// -1 stands for a lease without an end.
#[test]
fn check_bounds_lease_on_server() {
    for (left, end) in [(500, Some(Duration::from_millis(507))), (-1, None)] {
        let mut world = World::new();
        let hold = world.take(1, false);
        let before = world.holds.get(hold).unwrap().expired_by;
        let (_, script) = wish(&mut world, hold, Want::Check);
        world.now = world.now + LEASE / 2;
        world.answer(script, &[left]);
        let after = world.holds.get(hold).unwrap().expired_by;
        assert_eq!(after, end.map_or(before, |end| world.now + end));
    }
}

/// A server that remembers the keys of a million locks would renew them late.
#[test]
fn server_remembers_limited_number_of_keys() {
    let mut world = World::new();
    world.holds.are_told_of_changes();
    let most = MOST_TOLD as usize;
    let holds: Vec<_> = (0..=u64::from(MOST_TOLD)).map(|owner| world.take(owner, true)).collect();
    let remembered = |world: &mut World| {
        world.now = world.now + LEASE / 3;
        let renewals = world.due();
        assert_eq!(renewals.len(), world.holds.holds.len());
        let remembered = renewals.iter().filter(|renewal| renewal.remembers).count();
        let count = renewals.len();
        world.begin_renewals(renewals);
        world.answer(world.renewals[0], &vec![1; count]);
        world.renewals.clear();
        remembered
    };
    assert_eq!(remembered(&mut world), most);
    assert_eq!(remembered(&mut world), most, "the same holds");
    // A hold that ends makes room for the last hold.
    let settle = world.holds.release(holds[0], GUARD, world.now).unwrap();
    world.reconciled(&settle, true, 0);
    assert_eq!(remembered(&mut world), most);
    assert_eq!(world.holds.holds.len(), most);
}
