//! Tests of `verbs`.

use std::time::Duration;

use crate::testing::Double;
use crate::{Error, RedLockManager, multi_lock};

/// Returns the future, which a task of any thread may poll.
fn spawnable<F: Future + Send>(future: F) -> F {
    future
}

const WAIT: Duration = Duration::from_secs(1);

/// Runs each closure verb of a lock, in futures that may be spawned.
macro_rules! run_each_verb {
    ($lock:expr) => {
        let lock = $lock;
        assert_eq!(spawnable(lock.run(async |_| Ok::<_, Error>(1))).await.unwrap(), 1);
        let at_once = spawnable(lock.try_run(async |_| Ok::<_, Error>(2))).await;
        assert_eq!(at_once.unwrap().acquired(), Some(2));
        let in_time = spawnable(lock.run_for(WAIT, async |_| Ok::<_, Error>(3))).await;
        assert_eq!(in_time.unwrap().acquired(), Some(3));
    };
}

#[tokio::test(start_paused = true)]
async fn closure_verbs_make_spawnable_futures() {
    let double = Double::new();
    let locks = double.manager().await.unwrap();
    run_each_verb!(locks.lock("lock"));
    run_each_verb!(locks.fenced_lock("fenced"));
    run_each_verb!(multi_lock([locks.lock("a"), locks.lock("b")]).unwrap());
    let permits = locks.permit_semaphore("permits");
    permits.set_permits(1).await.unwrap();
    run_each_verb!(permits);
    let servers = RedLockManager::new([Double::new().manager().await.unwrap()]).await.unwrap();
    run_each_verb!(servers.lock("red"));
}
