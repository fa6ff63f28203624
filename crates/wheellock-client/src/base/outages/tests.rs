//! Tests of `outages`.

use super::*;

const TENTH: Duration = Duration::from_millis(100);

/// E1: a change is reported at once, then one line every ten seconds.
#[test]
fn outage_is_reported_then_rate_limited() {
    let (start, mut outages) = (Instant::now(), Outages::default());
    assert_eq!(outages.connected(start), Some(Connected::First));
    let lost = start + Duration::from_secs(60);
    assert_eq!(outages.lost(lost), Some(Outage { down: Duration::ZERO, attempts: 0, losses: 1 }));
    let told: Vec<_> = (1..=350).filter_map(|tenth| outages.failed(false, lost + TENTH * tenth)).collect();
    assert_eq!(told.iter().map(|outage| outage.down.as_secs()).collect::<Vec<_>>(), [10, 20, 30]);
    assert_eq!(told.iter().map(|outage| outage.attempts).collect::<Vec<_>>(), [100, 200, 300]);
    let again = outages.connected(lost + TENTH * 351).unwrap();
    assert_eq!(again, Connected::Again(Outage { down: TENTH * 351, attempts: 350, losses: 0 }));
    assert!(outages.lost(lost + TENTH * 800).is_some(), "the next one is told at once");
}

/// Regression test: after the first of several restarts, the others were not reported.
#[test]
fn long_outage_end_is_always_reported() {
    let (start, mut outages) = (Instant::now(), Outages::default());
    outages.connected(start);
    let told: Vec<_> = (0..3)
        .map(|restart| {
            let lost = start + TENTH * 50 * restart;
            let line = outages.lost(lost).is_some();
            assert_eq!(outages.failed(false, lost + TENTH), None);
            let again = outages.connected(lost + TENTH * 35);
            let Some(Connected::Again(Outage { down, attempts: 1, .. })) = again else { panic!("{again:?}") };
            assert_eq!(down, TENTH * 35);
            line
        })
        .collect();
    assert_eq!(told, [true, false, true], "once in ten seconds");
}

#[test]
fn unreached_server_is_reported_at_once() {
    let (start, mut outages) = (Instant::now(), Outages::default());
    assert_eq!(outages.failed(false, start).map(|outage| outage.attempts), Some(1));
    assert_eq!(outages.failed(false, start + TENTH), None);
    let Some(Connected::Again(outage)) = outages.connected(start + TENTH * 2) else { panic!() };
    assert_eq!((outage.attempts, outage.down), (2, TENTH * 2));
}

#[test]
fn refusal_during_outage_is_reported_once() {
    let (start, mut outages) = (Instant::now(), Outages::default());
    outages.connected(start);
    assert!(outages.lost(start + TENTH).is_some());
    assert!(outages.failed(false, start + TENTH * 2).is_none());
    assert!(outages.failed(true, start + TENTH * 3).is_some());
    let told = (4..100).filter_map(|tenth| outages.failed(tenth % 2 == 0, start + TENTH * tenth));
    assert_eq!(told.count(), 0);
}

#[test]
fn flapping_logs_seldom_counts_every_loss() {
    let (start, mut outages) = (Instant::now(), Outages::default());
    outages.connected(start);
    let (mut lines, mut losses) = (0, 0);
    for tenth in 0..1000 {
        let at = start + TENTH * tenth;
        let lost = outages.lost(at);
        losses += lost.map_or(0, |outage| outage.losses);
        lines += usize::from(lost.is_some());
        lines += usize::from(outages.failed(false, at + TENTH / 3).is_some());
        lines += usize::from(outages.connected(at + TENTH / 2).is_some());
    }
    assert_eq!(lines, 20, "lost and connected again, every ten seconds");
    assert_eq!(losses + outages.losses, 1000);
}
