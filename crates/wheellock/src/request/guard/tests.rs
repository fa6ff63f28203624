//! Tests of `guard`.

use std::time::Duration;

use super::*;
use crate::testing::Double;

/// A shutdown between the end of the work and its release is the reason for the loss. The lock had no other holder.
#[tokio::test(start_paused = true)]
async fn work_overtaken_by_shutdown_reports_loss() {
    let double = Double::new();
    let locks = double.manager().await.unwrap();
    let guard = locks.lock("orders:42").acquire().await.unwrap();
    assert!(locks.shutdown(Duration::from_secs(1)).await.is_empty());
    let error = guard.release_after_work().await.unwrap_err();
    assert!(matches!(error, Error::Lost { reason: LostReason::ShutDown, .. }), "{error}");
}
