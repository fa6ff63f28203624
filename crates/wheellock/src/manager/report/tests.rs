//! Tests of `report`.

use super::*;

fn histogram(durations: impl IntoIterator<Item = u64>) -> Histogram {
    let mut histogram = Histogram::default();
    durations.into_iter().for_each(|micros| histogram.record(Duration::from_micros(micros)));
    histogram
}

#[test]
fn new_durations_are_reported_once() {
    let before = histogram([10, 10, 500_000]);
    let mut now = before;
    now.add(&histogram([10, 2_000, 2_000, 400_000_000]));
    let told = observed(&now, &before);
    assert_eq!(told.iter().map(|(_, times)| *times).collect::<Vec<_>>(), [1, 2, 1]);
    for ((duration, _), micros) in told.iter().zip([10, 2_000]) {
        let truth = Duration::from_micros(micros);
        assert!(duration.abs_diff(truth) <= truth / 8, "{duration:?} for {truth:?}");
    }
    assert!(told[2].0 >= Duration::from_secs(240), "as long as is known");
    assert!(observed(&now, &now).is_empty());
}

#[test]
fn large_report_keeps_proportions() {
    let now = histogram((0..90_000).map(|_| 10).chain((0..9_999).map(|_| 1_000)).chain([1_000_000]));
    let told: Vec<_> = observed(&now, &Histogram::default()).iter().map(|(_, times)| *times).collect();
    assert_eq!(told, [9_000, 999, 1], "the slowest one is not lost");
}
