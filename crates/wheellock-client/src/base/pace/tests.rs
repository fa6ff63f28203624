//! Tests of `pace`.

use super::*;

#[test]
fn lasting_fault_slows_polling_until_reset() {
    let [well, hurried, slowed] = [1000, 25, 500].map(Duration::from_millis);
    let (mut pace, mut now) = (Pace::new(well, hurried, slowed), Instant::now());
    let second = Duration::from_secs(1);
    for ends_by_itself in [true, false, true] {
        assert!(pace.is_hurried(now), "whatever comes");
        assert_eq!(pace.pause(false, now), hurried);
        assert_eq!(pace.pause(false, now + 9 * second), hurried);
        assert_eq!(pace.pause(false, now + 10 * second), slowed);
        now += 900 * second;
        assert_eq!(pace.pause(false, now), slowed);
        assert!(!pace.is_hurried(now));
        if ends_by_itself {
            assert_eq!(pace.pause(true, now), well);
        } else {
            pace.begin_anew();
        }
    }
}
