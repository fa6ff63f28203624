//! Memory of a process that runs for a long time: row O9 of the failure catalogue. One test, because it measures the memory of its whole
//! process, and tests of one program share theirs.

use std::time::Duration;

use tokio::task::JoinSet;
use wheellock::LockManager;
use wheellock_tests::{RedisServer, eventually};

/// A bound on hangs; nothing here takes nearly as long.
const PATIENCE: Duration = Duration::from_secs(30);

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or_default() * 4096
}

#[tokio::test]
async fn o09_released_names_leave_no_memory() {
    const TASKS: u32 = 64;
    let server = RedisServer::start();
    let locks = LockManager::connect(&server.url()).await.unwrap();
    let churn = async |round: u32, names: u32| {
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let locks = locks.clone();
            tasks.spawn(async move {
                for number in (task..names).step_by(TASKS as usize) {
                    let guard = locks.lock(&format!("churn:{round}:{number}")).acquire().await.unwrap();
                    guard.release().await.unwrap();
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
        resident_bytes()
    };
    let warm = churn(0, 20_000).await;
    let mut after = warm;
    for round in 1..4 {
        after = churn(round, 20_000).await;
    }
    assert!(after <= warm + warm / 20 + (2 << 20), "{warm} bytes after 20,000 names, {after} after 80,000");
    assert_eq!(locks.metrics().held, 0);
    assert_eq!(locks.client().stats().in_flight, 0);
    assert!(eventually(PATIENCE, async || server.cli(&["DBSIZE"]) == "0").await);
    assert_eq!(server.cli(&["PUBSUB", "CHANNELS"]), "");
}
