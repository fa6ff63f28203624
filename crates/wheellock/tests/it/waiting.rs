//! Waits that would be too long, or without an end: what a caller has asked, or heard, is not forgotten because of another one. Time is
//! tokio's, and stands still while nobody waits for it.

use std::time::Duration;

use tokio::time::timeout;
use wheellock::testing::Double;
use wheellock::{Error, multi_lock};

/// Longer than any round trip here, and shorter than the time after which a head asks though it has heard nothing.
const SOON: Duration = Duration::from_secs(1);
const TRIP: Duration = Duration::from_millis(6);

/// Both leases are over before the other one's answer comes.
#[tokio::test(start_paused = true)]
async fn a_set_that_cannot_be_held_at_once_is_an_error() {
    let (near, far) = (Double::new(), Double::new());
    let locks = [near.manager().await.unwrap().lock("a"), far.manager().await.unwrap().lock("b")];
    near.delay(TRIP);
    far.delay(TRIP);
    let set = multi_lock(locks).unwrap().with_lease(10 * TRIP / 6);
    let too_late = |error: Error| assert!(matches!(error, Error::GrantedTooLate { .. }), "{error}");
    too_late(timeout(SOON, set.try_acquire()).await.expect("it ends").unwrap_err());
    too_late(timeout(SOON, set.try_acquire_for(60 * SOON)).await.expect("it ends").unwrap_err());
    too_late(timeout(SOON, set.acquire()).await.expect("it ends").unwrap_err());
}
