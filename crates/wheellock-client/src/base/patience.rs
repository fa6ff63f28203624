//! Time limits for lookups, sockets and handshakes.
//!
//! This module does not limit calls.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, Instant};

use wheellock_wheel::{Sleep, Timer};

/// A time limit that counts only the time in which this process runs.
///
/// A suspended process has not read its sockets, so the clock alone proves nothing about a server. The wait is
/// divided into short slices, and a slice that ends late does not count.
pub(crate) struct Patience<'a> {
    timer: &'a Timer,
    end: Instant,
}

impl<'a> Patience<'a> {
    pub(crate) fn new(timer: &'a Timer, length: Duration) -> Self {
        Self { timer, end: timer.now() + length }
    }

    /// Waits for `future`. Returns `None` if the limit passed first.
    pub(crate) async fn wait_for<F: Future>(&mut self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let mut slice: Option<(Instant, Sleep)> = None;
        poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                // Without this correction, the pause would shorten the next wait.
                if let Some((began, sleep)) = &slice {
                    self.leave_out_pause(*began, sleep.deadline(), self.timer.now());
                }
                return Poll::Ready(Some(output));
            }
            // The slice starts here, so that a future that is ready at once reads no clock.
            let (began, sleep) = slice.get_or_insert_with(|| {
                let now = self.timer.now();
                (now, self.timer.sleep_until(self.end_of_slice(now)))
            });
            while Pin::new(&mut *sleep).poll(cx).is_ready() {
                let now = self.timer.now();
                self.leave_out_pause(*began, sleep.deadline(), now);
                if now >= self.end {
                    return Poll::Ready(None);
                }
                *began = now;
                sleep.reset(self.end_of_slice(now));
            }
            Poll::Pending
        })
        .await
    }

    /// Moves the limit if the slice that `began` ends late.
    fn leave_out_pause(&mut self, began: Instant, due: Instant, now: Instant) {
        if late(self.timer, due, now) >= STALL {
            // The pause may have begun with the slice, so the whole slice does not count.
            self.end += now.saturating_duration_since(began);
        }
    }

    fn end_of_slice(&self, now: Instant) -> Instant {
        self.end.min(now + SLICE)
    }
}

/// Returns the delay of a wake-up that was due at `due`. The process may have been suspended for that long.
pub(crate) fn late(timer: &Timer, due: Instant, now: Instant) -> Duration {
    // A manual clock jumps without a suspended process.
    if timer.is_manual() { Duration::ZERO } else { now.saturating_duration_since(due) }
}

/// The longest time between two checks of the clock.
const SLICE: Duration = Duration::from_millis(250);
/// The shortest delay that counts as a pause. A busy machine wakes its tasks sooner.
const STALL: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test]
    async fn limit_ends_wait_in_time() {
        let (timer, clock) = Timer::manual(MS);
        let mut patience = Patience::new(&timer, 1_100 * MS);
        assert_eq!(patience.wait_for(async { 7 }).await, Some(7));
        let mut waits = Box::pin(patience.wait_for(pending::<()>()));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        for _ in 0..1_099 {
            assert_eq!(waits.as_mut().poll(&mut cx), Poll::Pending);
            clock.advance(MS);
        }
        assert_eq!(waits.as_mut().poll(&mut cx), Poll::Pending);
        clock.advance(MS);
        assert_eq!(waits.as_mut().poll(&mut cx), Poll::Ready(None));
        drop(waits);
        assert_eq!(patience.wait_for(async { 8 }).await, Some(8), "what is ready is taken all the same");
    }

    #[tokio::test]
    async fn pause_before_answer_leaves_next_wait() {
        let timer = Timer::global();
        let mut patience = Patience::new(timer, 200 * MS);
        let mut polls = 0;
        let answer = poll_fn(|cx| {
            polls += 1;
            if polls > 1 {
                return Poll::Ready(7);
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        });
        let stands_still = async { std::thread::sleep(400 * MS) };
        let (answer, ()) = tokio::join!(patience.wait_for(answer), stands_still);
        assert_eq!(answer, Some(7));
        assert_eq!(patience.wait_for(timer.sleep(50 * MS)).await, Some(()), "time is left");
    }

    #[tokio::test]
    async fn pause_does_not_count() {
        let timer = Timer::global();
        let (start, mut patience) = (timer.now(), Patience::new(timer, 300 * MS));
        let waits = async {
            assert_eq!(patience.wait_for(pending::<()>()).await, None);
            timer.now() - start
        };
        let stands_still = async {
            timer.sleep(50 * MS).await;
            std::thread::sleep(400 * MS);
        };
        let (waited, ()) = tokio::join!(waits, stands_still);
        // The first slice ends 200 ms late or later, at 450 ms, and does not count.
        assert!(waited >= 750 * MS, "{waited:?}");
    }
}
