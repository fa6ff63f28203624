//! Tests of `watchdog` on the in-memory server.

use super::super::*;
use crate::base::clock::Clock;
use crate::base::lease::Lease;
use crate::kind;
use crate::request::context::Settings;
use crate::request::guard::Guard;
use crate::table::holds::{GrantReply, Granted, Share, Terms};
use crate::testing::Double;

/// L16: while a machine is suspended its timers stand still, and leases run on.
#[tokio::test(start_paused = true)]
async fn expiry_during_suspend_is_reported_soon() {
    let locks = Double::new().manager().await.unwrap();
    let client = locks.context.client.clone();
    let timer = client.config().timer.clone();
    let (boot, suspends) = Timer::manual(Duration::from_millis(1));
    let lease = Lease::new(Duration::from_secs(3600)).unwrap();
    let settings = Settings {
        watchdog_lease: Lease::DEFAULT,
        hand_over: Duration::ZERO,
        releases_are_silent: false,
        wanted: None,
        fleet: None,
        label: None,
        prefix: "".into(),
        classifier: None,
    };
    let mut context = Context::new(client, "suspended".into(), settings);
    context.clock = Clock::Apart { start: boot.now(), timer: boot };
    let context = Arc::new(context);
    let _runs_on = tokio::spawn(keep(Arc::downgrade(&context), timer.clone()));
    let name = context.name("n", &kind::REENTRANT);
    let share = Share { count: 1, renew: false };
    let hold = context.transact(|holds, now, effects| {
        let begun = holds.begin_attempt((&name, 1), false, (lease, 1), now, Waker::noop());
        let Poll::Ready(Some((hold, 1))) = begun else { panic!("nobody else asks") };
        let terms = Terms { lease, share, sent: now, connection: None };
        match holds.granted(hold, terms, GrantReply::Fresh, now, effects) {
            Some(Granted::Held(hold, None)) => hold,
            _ => panic!("it was free"),
        }
    });
    let guard = Guard::new(Arc::clone(&context), name, hold, share);
    let told = tokio::spawn(async move { guard.lost().await });
    timer.sleep(Duration::from_secs(60)).await;
    assert!(!told.is_finished(), "its lease runs");
    suspends.advance(Duration::from_secs(2 * 3600));
    let resumed = timer.now();
    told.await.unwrap();
    assert!(timer.now() - resumed <= LONGEST_SLEEP + Duration::from_millis(10));
}
