//! Tests of `kind` on the in-memory server.

use super::super::*;
use crate::lock::Lock;
use crate::testing::Double;
use crate::{Guard, LockManager, LostReason};

/// The plain lock under another key and channel.
static TRIAL: LazyLock<Kind> =
    LazyLock::new(|| Kind { label: "trial", ..Kind::counted("trial:", "trial_channel:") });

fn trial_lock(locks: &LockManager) -> Lock {
    Lock::new(Arc::clone(&locks.context), locks.context.name("orders", &TRIAL))
}

/// A kind is only a row. A kind that no other code knows is held beside a plain lock of the same name. It is waited for, passes from
/// process to process, and is lost.
#[tokio::test(start_paused = true)]
async fn a_row_is_a_kind() {
    let double = Double::new();
    let (ours, theirs) = (double.manager().await.unwrap(), double.manager().await.unwrap());
    let plain = theirs.lock("orders").acquire().await.unwrap();
    let guard = trial_lock(&ours).acquire().await.unwrap();
    assert!(!trial_lock(&theirs).try_acquire().await.unwrap().is_acquired());
    let lock = trial_lock(&theirs);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    while theirs.metrics().waiting == 0 {
        tokio::task::yield_now().await;
    }
    guard.release().await.unwrap();
    let guard: Guard = waiter.await.unwrap().unwrap();
    let key = TRIAL.own_key("orders").unwrap();
    assert!(double.lose(&key), "{key}");
    assert_eq!(guard.lost().await, LostReason::NotOwner);
    assert!(plain.is_valid());
}
