//! Sleeps, timeouts and intervals through the public handle.
//!
//! They run on the manual clock, on the real clock, and on tokio's paused clock.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use futures_util::future::{pending, ready};
use wheellock_wheel::{Elapsed, MissedTicks, Sleep, Timer};

const MS: Duration = Duration::from_millis(1);

/// Counts its wake-ups.
#[derive(Default)]
struct Alarm(AtomicUsize);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Alarm {
    fn new() -> (Arc<Self>, Waker) {
        let alarm = Arc::new(Self::default());
        (alarm.clone(), alarm.into())
    }

    fn rung(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

/// Parks the thread until the future is ready: a minimal runtime.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park();
    }
}

#[test]
fn sleep_completes_at_deadline() {
    let (timer, clock) = Timer::manual(MS);
    let (alarm, waker) = Alarm::new();
    let mut sleep = timer.sleep(30 * MS);
    assert!(poll(&mut sleep, &waker).is_pending());
    clock.advance(30 * MS - Duration::from_nanos(1));
    assert_eq!((alarm.rung(), sleep.is_elapsed()), (0, false));
    assert!(poll(&mut sleep, &waker).is_pending());
    clock.advance(Duration::from_nanos(1));
    assert_eq!((alarm.rung(), sleep.is_elapsed()), (1, true));
    assert!(poll(&mut sleep, &waker).is_ready());
    assert!(poll(&mut sleep, &waker).is_ready(), "polling a completed sleep again is harmless");
}

#[test]
fn deadline_between_ticks_rounds_up() {
    let (timer, clock) = Timer::manual(10 * MS);
    let (alarm, waker) = Alarm::new();
    let mut sleep = timer.sleep(11 * MS);
    assert!(poll(&mut sleep, &waker).is_pending());
    clock.advance(19 * MS);
    assert_eq!(alarm.rung(), 0);
    clock.advance(MS);
    assert_eq!(alarm.rung(), 1);
}

#[test]
fn unpolled_or_dropped_sleep_registers_nothing() {
    let (timer, clock) = Timer::manual(MS);
    let (alarm, waker) = Alarm::new();
    let unpolled = timer.sleep(5 * MS);
    let mut dropped = timer.sleep(5 * MS);
    assert!(poll(&mut dropped, &waker).is_pending());
    assert_eq!(Arc::strong_count(&alarm), 3, "the wheel holds one clone of the waker");
    drop(dropped);
    assert_eq!(Arc::strong_count(&alarm), 2);
    clock.advance(10 * MS);
    assert_eq!(alarm.rung(), 0);
    drop(unpolled);
}

#[test]
fn past_deadline_completes_immediately() {
    let (timer, clock) = Timer::manual(MS);
    let (_, waker) = Alarm::new();
    clock.advance(Duration::from_secs(3600));
    assert!(poll(&mut timer.sleep_until(timer.now()), &waker).is_ready());
    assert!(poll(&mut timer.sleep(Duration::ZERO), &waker).is_ready());
    assert!(poll(&mut timer.sleep_until(timer.now() - Duration::from_secs(1)), &waker).is_ready());
    assert!(poll(&mut timer.sleep(MS), &waker).is_pending());
}

#[test]
fn only_last_waker_is_woken() {
    let (timer, clock) = Timer::manual(MS);
    let ((first, first_waker), (second, second_waker)) = (Alarm::new(), Alarm::new());
    let mut sleep = timer.sleep(5 * MS);
    assert!(poll(&mut sleep, &first_waker).is_pending());
    assert!(poll(&mut sleep, &first_waker).is_pending());
    assert_eq!(Arc::strong_count(&first), 3, "polling again with the same waker clones nothing");
    assert!(poll(&mut sleep, &second_waker).is_pending());
    clock.advance(5 * MS);
    assert_eq!((first.rung(), second.rung()), (0, 1));
}

#[test]
fn reset_moves_deadline_and_rearms_sleep() {
    let (timer, clock) = Timer::manual(MS);
    let (alarm, waker) = Alarm::new();
    let mut sleep = timer.sleep(10 * MS);
    assert!(poll(&mut sleep, &waker).is_pending());
    sleep.reset(timer.now() + 20 * MS);
    clock.advance(19 * MS);
    assert_eq!(alarm.rung(), 0, "moved back");
    sleep.reset(timer.now() + 100 * MS);
    sleep.reset(timer.now() + 2 * MS);
    clock.advance(2 * MS);
    assert_eq!(alarm.rung(), 1, "moved forward");
    sleep.reset(timer.now() + 5 * MS);
    assert!(!sleep.is_elapsed());
    assert!(poll(&mut sleep, &waker).is_pending());
    clock.advance(5 * MS);
    assert_eq!(alarm.rung(), 2);
    let deadline = timer.now() + MS;
    sleep.reset(deadline);
    assert_eq!(sleep.deadline(), deadline);
    assert!(poll(&mut sleep, &waker).is_pending());
    sleep.reset(timer.now() - 5 * MS);
    clock.advance(MS);
    assert!(poll(&mut sleep, &waker).is_ready(), "a deadline in the past");
}

#[test]
fn maximum_deadline_never_fires() {
    let (timer, clock) = Timer::manual(Duration::from_nanos(1));
    let (alarm, waker) = Alarm::new();
    let mut sleep = timer.sleep(Duration::MAX);
    assert!(poll(&mut sleep, &waker).is_pending());
    clock.advance(Duration::from_secs(20 * 365 * 24 * 3600));
    assert_eq!(alarm.rung(), 0);
    assert!(poll(&mut sleep, &waker).is_pending());
}

#[test]
fn clock_jump_fires_sleeps_on_time() {
    struct Stamp(Timer, std::sync::Mutex<Vec<Duration>>, Instant);
    impl Wake for Stamp {
        fn wake(self: Arc<Self>) {
            self.1.lock().unwrap().push(self.0.now() - self.2);
        }
    }
    let (timer, clock) = Timer::manual(MS);
    let stamp = Arc::new(Stamp(timer.clone(), std::sync::Mutex::default(), timer.now()));
    let waker = Waker::from(stamp.clone());
    let due = [7, 3, 4_097, 3_600_000, 5];
    let mut sleeps: Vec<Sleep> = due.iter().map(|&ms| timer.sleep(ms * MS)).collect();
    for sleep in &mut sleeps {
        assert!(poll(sleep, &waker).is_pending());
    }
    clock.advance(Duration::from_secs(7200));
    let seen: Vec<u128> = stamp.1.lock().unwrap().iter().map(Duration::as_millis).collect();
    assert_eq!(seen, [3, 5, 7, 4_097, 3_600_000]);
    assert_eq!(clock.now() - stamp.2, Duration::from_secs(7200));
}

#[test]
fn panicking_waker_spares_other_sleeps() {
    struct Rude;
    impl Wake for Rude {
        fn wake(self: Arc<Self>) {
            std::panic::resume_unwind(Box::new("rude"));
        }
    }
    let (timer, clock) = Timer::manual(MS);
    let (alarm, waker) = Alarm::new();
    let (mut rude, mut polite) = (timer.sleep(MS), timer.sleep(MS));
    assert!(poll(&mut rude, &Arc::new(Rude).into()).is_pending());
    assert!(poll(&mut polite, &waker).is_pending());
    clock.advance(MS);
    assert_eq!(alarm.rung(), 1);
}

#[test]
fn manual_clock_saturates_at_maximum() {
    let (timer, clock) = Timer::manual(MS);
    let (alarm, waker) = Alarm::new();
    let mut sleep = timer.sleep(MS);
    assert!(poll(&mut sleep, &waker).is_pending());
    clock.advance(Duration::MAX);
    assert_eq!(alarm.rung(), 1);
    let end = clock.now();
    clock.advance(Duration::from_secs(1));
    assert_eq!(clock.now(), end);
}

#[test]
fn cancel_returns_only_unwoken_waker() {
    let (timer, clock) = Timer::manual(MS);
    let (alarm, waker) = Alarm::new();
    let woken = timer.schedule(timer.now() + 5 * MS, waker.clone()).unwrap();
    let cancelled = timer.schedule(timer.now() + 5 * MS, waker.clone()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(timer.cancel(cancelled).is_some_and(|back| back.will_wake(&waker))));
    });
    clock.advance(5 * MS);
    assert_eq!(alarm.rung(), 1);
    assert!(timer.cancel(woken).is_none());
    assert!(timer.schedule(timer.now(), waker).is_err(), "the tick has passed");
}

#[test]
fn timeout_gives_the_output_or_elapsed() {
    let (timer, clock) = Timer::manual(MS);
    let (_, waker) = Alarm::new();
    assert_eq!(poll(&mut pin!(timer.timeout(MS, ready(1))), &waker), Poll::Ready(Ok(1)));
    let mut never = pin!(timer.timeout(5 * MS, pending::<()>()));
    let mut until = pin!(timer.timeout_at(timer.now() + 5 * MS, pending::<()>()));
    assert!(poll(&mut never, &waker).is_pending());
    assert!(poll(&mut until, &waker).is_pending());
    clock.advance(5 * MS);
    assert!(matches!(poll(&mut never, &waker), Poll::Ready(Err(Elapsed { .. }))));
    assert!(matches!(poll(&mut until, &waker), Poll::Ready(Err(Elapsed { .. }))));
}

#[test]
fn interval_keeps_period_and_missed_policy() {
    for (missed, after) in
        [(MissedTicks::Burst, [20, 30]), (MissedTicks::Skip, [20, 50]), (MissedTicks::Delay, [20, 55])]
    {
        let (timer, clock) = Timer::manual(MS);
        let (_, waker) = Alarm::new();
        let start = timer.now();
        let mut interval = timer.interval(10 * MS);
        interval.set_missed_ticks(missed);
        let mut next =
            || interval.poll_tick(&mut Context::from_waker(&waker)).map(|tick| (tick - start).as_millis());
        assert_eq!(next(), Poll::Ready(0));
        assert_eq!(next(), Poll::Pending);
        clock.advance(10 * MS);
        assert_eq!((next(), next()), (Poll::Ready(10), Poll::Pending));
        clock.advance(35 * MS);
        assert_eq!(next(), Poll::Ready(after[0]), "{missed:?}: the tick that was due at 20 is taken at 45");
        clock.advance(10 * MS);
        assert_eq!(next(), Poll::Ready(after[1]), "{missed:?}");
    }
}

#[test]
fn thread_driver_never_wakes_early() {
    let timer = Timer::thread(MS);
    let start = Instant::now();
    block_on(async {
        for ms in [1, 5, 3, 0, 20] {
            let deadline = Instant::now() + ms * MS;
            timer.sleep_until(deadline).await;
            assert!(Instant::now() >= deadline);
        }
        assert_eq!(timer.timeout(5 * MS, pending::<()>()).await.ok(), None);
    });
    assert!(start.elapsed() >= 34 * MS);
    assert_eq!(Timer::global().tick(), MS);
}

#[test]
fn sleeps_of_many_threads_all_complete() {
    let timer = Timer::thread(MS);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let timer = &timer;
            scope.spawn(move || {
                for round in 0..50 {
                    let deadline = Instant::now() + (thread * 7 + round) % 5 * MS;
                    block_on(timer.sleep_until(deadline));
                    assert!(Instant::now() >= deadline);
                }
            });
        }
    });
}

#[test]
fn sleep_outlives_timer_and_changes_threads() {
    let mut sleep = Timer::thread(MS).sleep(5 * MS);
    let (_, waker) = Alarm::new();
    assert!(poll(&mut sleep, &waker).is_pending());
    std::thread::spawn(move || block_on(sleep)).join().unwrap();
}

#[cfg(feature = "tokio")]
mod with_tokio {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn paused_time_advances_to_next_deadline() {
        let timer = Timer::tokio(MS);
        let start = timer.now();
        timer.sleep(Duration::from_secs(30)).await;
        let waited = timer.now() - start;
        assert!(
            waited >= Duration::from_secs(30) && waited <= Duration::from_secs(30) + 2 * MS,
            "{waited:?}"
        );
        assert!(timer.timeout(Duration::from_secs(5), pending::<()>()).await.is_err());
        let mut interval = timer.interval(Duration::from_secs(1));
        let first = interval.tick().await;
        assert_eq!(interval.tick().await - first, Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn timer_keeps_pace_with_tokio() {
        let timer = Timer::tokio(MS);
        for ms in [0, 1, 2, 10, 999, 4_096, 5_000, 30_000, 86_400_000] {
            let deadline = timer.now() + ms * MS;
            let (mut ours, mut theirs) =
                (timer.sleep_until(deadline), Box::pin(tokio::time::sleep_until(deadline.into())));
            theirs.as_mut().await;
            tokio::time::timeout(5 * MS, &mut ours).await.expect("not more than a few ticks later");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn sleeps_of_many_tasks_all_complete() {
        let timer = Timer::tokio(MS);
        let tasks: Vec<_> = (0..1000)
            .map(|task| {
                let timer = timer.clone();
                tokio::spawn(async move {
                    let deadline = Instant::now() + task % 20 * MS;
                    timer.sleep_until(deadline).await;
                    assert!(Instant::now() >= deadline);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    }

    #[test]
    fn sleep_on_ended_runtime_wakes_once() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let timer = runtime.block_on(async { Timer::tokio(MS) });
        runtime.block_on(timer.sleep(MS));
        drop(runtime);
        let mut sleep = timer.sleep(30 * MS);
        let (alarm, waker) = Alarm::new();
        assert!(poll(&mut sleep, &waker).is_pending());
        assert!(sleep.is_driven() && alarm.rung() == 0, "the task may sleep");
        while alarm.rung() == 0 {
            std::thread::sleep(MS);
        }
        assert!(poll(&mut sleep, &waker).is_ready() && alarm.rung() == 1);
        assert!(Instant::now() >= sleep.deadline());
    }

    #[test]
    fn sleep_survives_end_of_runtime() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let timer = runtime.block_on(async { Timer::tokio(MS) });
        let mut sleep = timer.sleep(20 * MS);
        let (alarm, waker) = Alarm::new();
        assert!(poll(&mut sleep, &waker).is_pending());
        runtime.block_on(tokio::task::yield_now());
        drop(runtime);
        assert_eq!(alarm.rung(), 1, "told to look for itself");
        assert!(!sleep.is_elapsed());
        let deadline = sleep.deadline();
        block_on(sleep);
        assert!(Instant::now() >= deadline);
        block_on(timer.sleep(MS));
    }
}
