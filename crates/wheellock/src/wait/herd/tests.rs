//! Tests of `herd`.

use super::*;

const TRIP: Duration = Duration::from_millis(1);

fn refused(listeners: u32, random: u64) -> Herd {
    let mut herd = Herd::default();
    herd.refused(listeners, TRIP, random);
    herd
}

#[test]
fn few_listeners_poll_at_once() {
    let now = Instant::now();
    let mut unknown = Herd::default();
    assert_eq!([unknown.on_release(now), unknown.on_release(now)], [None, None]);
    for listeners in 0..=FEW {
        let mut herd = refused(listeners, u64::MAX);
        assert_eq!(herd.on_release(now), None, "{listeners}");
        assert!(!herd.is_crowded() && !herd.take_news());
    }
}

#[test]
fn crowd_spreads_polls_beyond_two_trips() {
    let now = Instant::now();
    let at = |place: u64| refused(100, place * (u64::MAX / 100)).on_release(now);
    assert_eq!(at(0), None);
    let due = (1..=100).filter_map(at).filter(|at| *at <= now + 2 * TRIP).count();
    assert!(due <= 2, "{due} of 100 poll within two round trips");
}

#[test]
fn release_never_postpones_poll() {
    let start = Instant::now();
    for (random, between) in [(1, 1), (2, 3), (3, 10), (4, 100), (5, 700)] {
        let mut herd = refused(100, random * (u64::MAX / 5));
        let (mut now, mut due) = (start, herd.on_release(start).unwrap());
        while due > now + between * TRIP {
            now += between * TRIP;
            let Some(next) = herd.on_release(now) else { break };
            assert!(next <= due + Duration::from_nanos(10), "{random} {between}");
            due = next;
        }
        assert!(herd.take_notified() && herd.take_news() && !herd.take_notified() && !herd.take_news());
    }
}

#[test]
fn pause_is_bounded_whatever_server_counts() {
    let now = Instant::now();
    let mut herd = Herd::default();
    herd.refused(u32::MAX, Duration::MAX, u64::MAX);
    assert_eq!(herd.on_release(now), Some(now + REPOLL));
    herd.refused(u32::MAX, Duration::ZERO, u64::MAX);
    assert_eq!(herd.on_release(now), Some(now + REPOLL));
    herd.granted();
    assert_eq!(herd.on_release(now), None);
}

#[test]
fn run_down_inverts_lasts() {
    for pause in [0.0, 0.5, 2.0, 3.0, 8.0, 12.0, 400.0] {
        assert!((run_down(lasts(pause)) - pause).abs() < 1e-6, "{pause}");
    }
}
