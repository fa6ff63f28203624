//! Waiting for a condition, bounded by a timeout.
//!
//! Tests wait in no other way.

use std::time::{Duration, Instant};

/// Checks `condition` until it is true or `timeout` has passed. Returns true if the condition was true.
///
/// Blocks the thread; in async code use [`eventually`].
#[must_use = "a condition that never held is a failed test"]
pub fn poll_until(timeout: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + timeout;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Waits as [`poll_until`] does, in async code: `eventually(timeout, async || lock.is_locked().await == Ok(false))`.
#[must_use = "a condition that never held is a failed test"]
pub async fn eventually(timeout: Duration, mut condition: impl AsyncFnMut() -> bool) -> bool {
    let deadline = Instant::now() + timeout;
    loop {
        if condition().await {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// The pause between two checks. It is short beside a server's start (about 50 ms) and long beside a PING (about 50 us).
const INTERVAL: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_condition_is_detected() {
        let mut left = 3;
        assert!(poll_until(Duration::from_secs(10), || {
            left -= 1;
            left == 0
        }));
    }

    #[test]
    fn zero_timeout_checks_condition_once() {
        let mut asked = 0;
        assert!(!poll_until(Duration::ZERO, || {
            asked += 1;
            false
        }));
        assert_eq!(asked, 1);
    }

    #[tokio::test]
    async fn the_async_form_agrees() {
        let mut left = 3;
        let held = eventually(Duration::from_secs(10), async || {
            left -= 1;
            left == 0
        });
        assert!(held.await);
        assert!(!eventually(Duration::ZERO, async || false).await);
    }
}
