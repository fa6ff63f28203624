//! Tests of `roster`.

use tokio::time::sleep;

use crate::testing::{Double, Outage};
use crate::{Error, LostReason, MemberState, RedLockGuard, RedLockManager};

use super::Duration;

const LEASE: Duration = Duration::from_secs(30);
/// Longer than the pause between two renewals.
const TURN: Duration = Duration::from_secs(11);

async fn three() -> ([Double; 3], RedLockManager) {
    let doubles = [Double::new(), Double::new(), Double::new()];
    let red = red(&doubles).await;
    (doubles, red)
}

async fn red(doubles: &[Double]) -> RedLockManager {
    let mut managers = Vec::new();
    for double in doubles {
        managers.push(double.manager().await.unwrap());
    }
    RedLockManager::new(managers).await.unwrap()
}

fn is_held(guard: &RedLockGuard, place: usize) -> bool {
    matches!(guard.members()[place].state, MemberState::Held { .. })
}

/// Each server is away for two leases, with its data and without, and the next one follows one renewal later.
#[tokio::test(start_paused = true)]
async fn rolling_restart_keeps_hold() {
    let (doubles, red) = three().await;
    for forgets in [false, true] {
        let guard = red.lock("l").acquire().await.unwrap();
        let roll = async {
            for _ in 0..2 {
                for double in &doubles {
                    double.outage(Outage::Down);
                    sleep(2 * LEASE).await;
                    if forgets {
                        double.forget_everything();
                    }
                    double.come_back();
                    sleep(TURN).await;
                    assert!((0..3).all(|place| is_held(&guard, place)), "{:?}", guard.members());
                }
            }
            Ok::<_, Error>(())
        };
        guard.run(roll).await.unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn forgetful_member_waits_one_lease() {
    let (doubles, red) = three().await;
    let guard = red.lock("l").acquire().await.unwrap();
    sleep(TURN).await;
    assert!(doubles[0].lose("l"));
    for _ in 0..29 {
        sleep(Duration::from_secs(1)).await;
        let state = &guard.members()[0].state;
        assert!(matches!(state, MemberState::Lost(LostReason::NotOwner)), "{state:?}");
    }
    sleep(2 * TURN).await;
    assert!(is_held(&guard, 0) && guard.is_valid(), "{:?}", guard.members());
}

/// A rival has one member at the grant, for two leases.
#[tokio::test(start_paused = true)]
async fn refused_member_joins_after_rival() {
    let (doubles, red) = three().await;
    let rival = doubles[0].manager().await.unwrap().lock("l").acquire().await.unwrap();
    let guard = red.lock("l").acquire().await.unwrap();
    sleep(2 * LEASE).await;
    assert!(matches!(guard.members()[0].state, MemberState::Refused), "{:?}", guard.members());
    assert!(rival.is_valid(), "the question took nothing");
    rival.release().await.unwrap();
    sleep(TURN).await;
    assert!(is_held(&guard, 0), "{:?}", guard.members());
    doubles[1].outage(Outage::Silent);
    sleep(2 * LEASE).await;
    assert!(guard.is_valid(), "{:?}", guard.members());
}

#[tokio::test(start_paused = true)]
async fn lost_quorum_asks_no_member_again() {
    let (doubles, red) = three().await;
    let guard = red.lock("l").acquire().await.unwrap();
    doubles[..2].iter().for_each(|double| double.outage(Outage::Down));
    assert_eq!(guard.lost().await, LostReason::Expired);
    doubles.iter().for_each(Double::come_back);
    sleep(2 * LEASE).await;
    assert!(!guard.is_valid() && !is_held(&guard, 0) && !is_held(&guard, 1), "{:?}", guard.members());
    let other = self::red(&doubles).await;
    assert!(other.lock("l").try_acquire().await.unwrap().is_acquired(), "two servers are free");
    assert!(!guard.is_valid());
}

#[tokio::test(start_paused = true)]
async fn fixed_lease_asks_with_renewal_only() {
    let (doubles, red) = three().await;
    doubles[0].outage(Outage::Down);
    let guard = red.lock("l").with_lease(LEASE).acquire().await.unwrap();
    sleep(TURN).await;
    doubles[0].come_back();
    let promised = guard.valid_until();
    sleep(TURN).await;
    assert!(!is_held(&guard, 0) && guard.valid_until() == promised, "{:?}", guard.members());
    guard.renew().await.unwrap();
    sleep(Duration::from_secs(1)).await;
    assert!(is_held(&guard, 0), "{:?}", guard.members());
    assert_eq!(guard.lost().await, LostReason::Expired);
}
