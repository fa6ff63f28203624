//! Netty's semantics on the manual clock and on the real clock.
//!
//! Times are exact on the manual clock. On the real clock the tests check only the order and that no task runs early.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use wheellock_wheel::{
    BuildError, HashedWheelTimer, Job, ManualTicker, NewTimeoutError, StopError, Timeout, TimerTask,
};

const MS: Duration = Duration::from_millis(1);
const FOR_EVER: Duration = Duration::from_secs(3600);

fn manual(tick: Duration) -> (HashedWheelTimer, ManualTicker) {
    HashedWheelTimer::builder().tick_duration(tick).build_manual().unwrap()
}

fn real() -> HashedWheelTimer {
    HashedWheelTimer::builder().tick_duration(MS).build().unwrap()
}

fn nothing(_: &Timeout) {}

fn count(runs: &AtomicUsize) {
    runs.fetch_add(1, Ordering::SeqCst);
}

/// Polls until `holds` returns true. The time limit is generous: it only ends a test that would hang.
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        thread::yield_now();
    }
}

#[derive(Default)]
struct Log(Mutex<Vec<&'static str>>);

impl Log {
    fn add(&self, what: &'static str) {
        self.0.lock().unwrap().push(what);
    }

    fn all(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().clone()
    }
}

struct Logged(Arc<Log>);

impl TimerTask for Logged {
    fn run(&self, timeout: &Timeout) {
        assert!(timeout.is_expired() && !timeout.is_cancelled());
        self.0.add("run");
    }

    fn cancelled(&self, timeout: &Timeout) {
        assert!(timeout.is_cancelled() && !timeout.is_expired());
        self.0.add("cancelled");
    }
}

mod construction {
    use super::*;

    #[test]
    fn defaults_are_those_of_netty() {
        let timer = HashedWheelTimer::new();
        assert_eq!((timer.tick_duration(), timer.ticks_per_wheel()), (100 * MS, 512));
        assert_eq!(timer.pending_timeouts(), 0);
        assert!(!timer.is_stopped());
    }

    #[test]
    fn wheel_size_becomes_power_of_two() {
        for (asked, given) in
            [(1, 1), (2, 2), (3, 4), (5, 8), (32, 32), (33, 64), (1000, 1024), (usize::MAX, 65_536)]
        {
            let timer = HashedWheelTimer::builder().tick_duration(MS).ticks_per_wheel(asked).build().unwrap();
            assert_eq!(timer.ticks_per_wheel(), given, "{asked}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let builder = HashedWheelTimer::builder;
        assert_eq!(builder().tick_duration(Duration::ZERO).build().unwrap_err(), BuildError::ZeroTick);
        assert_eq!(builder().ticks_per_wheel(0).build().unwrap_err(), BuildError::ZeroTicksPerWheel);
        let long = Duration::from_nanos(i64::MAX as u64 / 512);
        assert_eq!(builder().tick_duration(long + MS).build().unwrap_err(), BuildError::RevolutionTooLong);
        assert!(builder().tick_duration(long - MS).build().is_ok());
        assert_eq!(builder().thread_name("a\0b").build().unwrap_err(), BuildError::ZeroByteInThreadName);
    }

    #[test]
    fn short_tick_becomes_one_millisecond() {
        let timer = HashedWheelTimer::builder().tick_duration(Duration::from_micros(10)).build().unwrap();
        assert_eq!(timer.tick_duration(), MS);
    }
}

mod scheduling {
    use super::*;

    #[test]
    fn task_runs_once_at_tick() {
        let (timer, clock) = manual(10 * MS);
        let log = Arc::new(Log::default());
        let timeout = timer.new_timeout(Logged(log.clone()), 25 * MS).unwrap();
        clock.advance(30 * MS - Duration::from_nanos(1));
        assert_eq!((log.all().len(), timeout.is_expired(), timer.pending_timeouts()), (0, false, 1));
        clock.advance(Duration::from_nanos(1));
        assert_eq!((log.all(), timeout.is_expired(), timer.pending_timeouts()), (vec!["run"], true, 0));
        clock.advance(FOR_EVER);
        assert_eq!(log.all(), ["run"]);
    }

    #[test]
    fn deadline_on_tick_fires_on_time() {
        let (timer, clock) = manual(10 * MS);
        let timeout = timer.new_timeout(nothing, 20 * MS).unwrap();
        clock.advance(20 * MS);
        assert!(timeout.is_expired());
    }

    #[test]
    fn real_clock_fires_in_deadline_order() {
        let timer = real();
        let (send, receive) = mpsc::channel();
        let start = Instant::now();
        for delay in [30, 0, 7, 7, 1, 15] {
            let send = send.clone();
            let due = start + delay * MS;
            timer
                .new_timeout_at(move |_: &Timeout| send.send((delay, due, Instant::now())).unwrap(), due)
                .unwrap();
        }
        let fired: Vec<_> = (0..6).map(|_| receive.recv().unwrap()).collect();
        assert!(fired.iter().all(|(_, due, at)| at >= due));
        assert_eq!(fired.iter().map(|fired| fired.0).collect::<Vec<_>>(), [0, 1, 7, 7, 15, 30]);
    }

    /// Most of these timeouts do not read the clock.
    #[test]
    fn dense_timeouts_none_early_none_lost() {
        const EACH: u32 = 50_000;
        let (timer, all) = (real(), Barrier::new(3));
        let (ran, early) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let make = || {
            all.wait();
            let mut left = 0;
            for number in 0..EACH {
                let (ran, early) = (ran.clone(), early.clone());
                let delay = Duration::from_micros(1) * (number % 7_000);
                let due = Instant::now() + delay;
                let task = move |_: &Timeout| {
                    early.fetch_add(usize::from(Instant::now() < due), Ordering::SeqCst);
                    count(&ran);
                };
                let timeout = timer.new_timeout(task, delay).unwrap();
                left += usize::from(number % 3 == 0 || !timeout.cancel());
            }
            left
        };
        let left: usize = thread::scope(|scope| {
            let makers: Vec<_> = (0..3).map(|_| scope.spawn(make)).collect();
            makers.into_iter().map(|maker| maker.join().unwrap()).sum()
        });
        eventually("some never ran", || ran.load(Ordering::SeqCst) == left);
        assert_eq!(early.load(Ordering::SeqCst), 0);
        assert_eq!(timer.pending_timeouts(), 0);
    }

    #[test]
    fn zero_delay_runs_at_next_tick() {
        fn again(timeout: &Timeout, runs: &Arc<AtomicUsize>) {
            runs.fetch_add(1, Ordering::SeqCst);
            let runs = runs.clone();
            if let Some(timer) = timeout.timer() {
                timer.new_timeout(move |timeout: &Timeout| again(timeout, &runs), Duration::ZERO).unwrap();
            }
        }
        let (timer, clock) = manual(MS);
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = runs.clone();
        timer.new_timeout(move |timeout: &Timeout| again(timeout, &counted), Duration::ZERO).unwrap();
        assert_eq!(runs.load(Ordering::SeqCst), 0, "not on the caller's thread");
        clock.advance(10 * MS);
        assert_eq!(runs.load(Ordering::SeqCst), 10, "once per tick");
    }

    #[test]
    fn task_reschedules_on_real_clock() {
        fn tick(timer: &HashedWheelTimer, left: usize, done: &mpsc::Sender<()>) {
            if left == 0 {
                return done.send(()).unwrap();
            }
            let done = done.clone();
            timer
                .new_timeout(move |timeout: &Timeout| tick(&timeout.timer().unwrap(), left - 1, &done), MS)
                .unwrap();
        }
        let timer = real();
        let (send, receive) = mpsc::channel();
        tick(&timer, 5, &send);
        receive.recv().unwrap();
    }

    #[test]
    fn equal_deadlines_run_in_creation_order() {
        let (timer, clock) = manual(MS);
        let order = Arc::new(Mutex::new(Vec::new()));
        let start = clock.now();
        let make = |id: usize| {
            let order = order.clone();
            timer
                .new_timeout_at(move |_: &Timeout| order.lock().unwrap().push(id), start + 2_000 * MS)
                .unwrap();
        };
        (0..50).for_each(make);
        clock.advance(1_990 * MS);
        (50..100).for_each(make);
        clock.advance(10 * MS);
        assert_eq!(*order.lock().unwrap(), (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn pending_limit_is_enforced() {
        let (timer, clock) =
            HashedWheelTimer::builder().tick_duration(MS).max_pending_timeouts(2).build_manual().unwrap();
        let first = timer.new_timeout(nothing, MS).unwrap();
        let second = timer.new_timeout(nothing, 2 * MS).unwrap();
        let full = NewTimeoutError::Full { max: 2 };
        assert_eq!(timer.new_timeout(nothing, MS).unwrap_err(), full);
        assert_eq!(timer.pending_timeouts(), 2, "a refused one is not counted");
        assert!(second.cancel());
        let third = timer.new_timeout(nothing, 5 * MS).unwrap();
        assert_eq!(timer.new_timeout(nothing, MS).unwrap_err(), full);
        clock.advance(MS);
        assert!(first.is_expired());
        timer.new_timeout(nothing, MS).unwrap();
        assert_eq!(timer.new_timeout(nothing, MS).unwrap_err(), full);
        assert!(!third.is_expired());
        assert_eq!(full.to_string(), "the timer has 2 timeouts pending, the most it may have");
    }
}

mod timeouts {
    use super::*;

    #[test]
    fn cancel_or_expiry_wins_once() {
        let (timer, clock) = manual(MS);
        let log = Arc::new(Log::default());
        let timeout = timer.new_timeout(Logged(log.clone()), 5 * MS).unwrap();
        let same = timeout.clone();
        assert!(timeout.cancel());
        assert!(!timeout.cancel() && !same.cancel());
        assert!(timeout.is_cancelled() && same.is_cancelled() && !timeout.is_expired());
        clock.advance(FOR_EVER);
        assert_eq!(log.all(), ["cancelled"]);

        let timeout = timer.new_timeout(Logged(log.clone()), 5 * MS).unwrap();
        clock.advance(5 * MS);
        assert!(!timeout.cancel());
        assert!(timeout.is_expired() && !timeout.is_cancelled());
        assert_eq!(log.all(), ["cancelled", "run"]);
    }

    #[test]
    fn cancelling_frees_the_task_at_once() {
        let (timer, _clock) = manual(MS);
        let held = Arc::new(());
        let inside = held.clone();
        let timeout = timer.new_timeout(move |_: &Timeout| drop(inside.clone()), FOR_EVER).unwrap();
        assert_eq!(Arc::strong_count(&held), 2);
        assert!(timeout.cancel());
        drop(timeout);
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[test]
    fn task_cancels_sibling_of_same_tick() {
        let (timer, clock) = manual(MS);
        let log = Arc::new(Log::default());
        let sibling = Arc::new(Mutex::new(None::<Timeout>));
        let (inside, observed) = (sibling.clone(), Arc::new(AtomicUsize::new(9)));
        let pending = observed.clone();
        timer
            .new_timeout(
                move |timeout: &Timeout| {
                    let timer = timeout.timer().unwrap();
                    assert_eq!(timer.pending_timeouts(), 1, "the sibling; this one has expired");
                    assert!(inside.lock().unwrap().as_ref().unwrap().cancel());
                    pending.store(timer.pending_timeouts(), Ordering::SeqCst);
                },
                5 * MS,
            )
            .unwrap();
        *sibling.lock().unwrap() = Some(timer.new_timeout(Logged(log.clone()), 5 * MS).unwrap());
        clock.advance(5 * MS);
        assert_eq!(log.all(), ["cancelled"]);
        assert_eq!((observed.load(Ordering::SeqCst), timer.pending_timeouts()), (0, 0));
    }

    #[test]
    fn timeout_exposes_timer_and_task() {
        let (timer, clock) = manual(MS);
        let log = Arc::new(Log::default());
        let timeout = timer.new_timeout(Logged(log.clone()), 5 * MS).unwrap();
        let other = timeout.timer().unwrap().new_timeout(nothing, MS).unwrap();
        assert_eq!(timer.pending_timeouts(), 2);
        let text = format!("{timeout:?}");
        assert!(text.contains("due_in: 5ms") && text.contains("cancelled: false"), "{text}");
        clock.advance(MS);
        timeout.task().run(&other);
        assert_eq!(log.all(), ["run"]);
    }

    #[test]
    fn task_is_reusable_as_in_netty() {
        let (timer, clock) = manual(MS);
        let log = Arc::new(Log::default());
        let first = timer.new_timeout(Logged(log.clone()), 5 * MS).unwrap();
        clock.advance(5 * MS);
        let again = timer.new_timeout(first.task(), 5 * MS).unwrap();
        let third = timer.new_timeout(again.task(), 5 * MS).unwrap();
        assert!(first.is_expired() && !again.is_expired());
        assert!(third.cancel() && !again.is_cancelled(), "each timeout ends by itself");
        clock.advance(5 * MS);
        assert_eq!((log.all(), again.is_expired()), (vec!["run", "cancelled", "run"], true));
    }

    #[test]
    fn task_panics_are_contained() {
        struct Rude;
        impl TimerTask for Rude {
            fn run(&self, _: &Timeout) {
                std::panic::resume_unwind(Box::new("run"));
            }
            fn cancelled(&self, _: &Timeout) {
                std::panic::resume_unwind(Box::new("cancelled"));
            }
        }
        impl Drop for Rude {
            fn drop(&mut self) {
                std::panic::resume_unwind(Box::new("drop"));
            }
        }
        for real_clock in [false, true] {
            let (timer, clock) = if real_clock {
                (real(), None)
            } else {
                let (timer, clock) = manual(MS);
                (timer, Some(clock))
            };
            let log = Arc::new(Log::default());
            let rude = timer.new_timeout(Rude, MS).unwrap();
            // If the task runs before the handle is dropped, then this drop panics, on this thread.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(rude)));
            timer.new_timeout(Logged(log.clone()), 2 * MS).unwrap();
            if let Some(clock) = &clock {
                clock.advance(5 * MS);
            }
            eventually("the next task runs", || log.all() == ["run"]);
            let cancelled = timer.new_timeout(Rude, FOR_EVER).unwrap();
            assert!(cancelled.cancel());
            assert_eq!(timer.pending_timeouts(), 0);
            std::mem::forget(cancelled);
        }
    }

    /// The code that catches a panic also drops its payload.
    #[test]
    fn panicking_panic_payload_is_contained() {
        struct Thrown;
        impl Drop for Thrown {
            fn drop(&mut self) {
                std::panic::resume_unwind(Box::new("again"));
            }
        }
        let (log, first) = (Arc::new(Log::default()), AtomicUsize::new(0));
        let execute = move |job: Job| {
            if first.fetch_add(1, Ordering::SeqCst) == 0 {
                std::panic::resume_unwind(Box::new(Thrown));
            }
            job.run();
        };
        let timer = HashedWheelTimer::builder().tick_duration(MS).executor(execute).build().unwrap();
        timer.new_timeout(nothing, MS).unwrap();
        timer.new_timeout(Logged(log.clone()), 2 * MS).unwrap();
        eventually("the next task runs", || log.all() == ["run"]);
    }

    /// A channel parks its waiting thread. The thread that unparks it may also be the thread that makes a timeout.
    #[test]
    fn parked_task_steals_no_timer_wake() {
        let timer = real();
        let log = Arc::new(Log::default());
        let next = Logged(log.clone());
        let next = Mutex::new(Some(next));
        let parks = move |timeout: &Timeout| {
            let (Some(next), Some(timer)) = (next.lock().unwrap().take(), timeout.timer()) else { return };
            timer.new_timeout(next, 20 * MS).unwrap();
            thread::park_timeout(100 * MS);
        };
        timer.new_timeout(parks, MS).unwrap();
        eventually("what a task has made runs", || log.all() == ["run"]);
        // Another thread makes a later timeout while a task waits.
        let (go, wait) = mpsc::channel::<()>();
        let (waits, is_waiting) = mpsc::channel();
        let wait = Mutex::new(wait);
        let waiting = move |_: &Timeout| {
            waits.send(()).unwrap();
            wait.lock().unwrap().recv().unwrap();
        };
        timer.new_timeout(waiting, MS).unwrap();
        is_waiting.recv().unwrap();
        timer.new_timeout(Logged(log.clone()), 20 * MS).unwrap();
        go.send(()).unwrap();
        eventually("what was made meanwhile runs", || log.all() == ["run", "run"]);
    }
}

mod executors {
    use super::*;

    #[test]
    fn tasks_run_where_the_executor_says() {
        let (jobs, queue) = mpsc::channel::<Job>();
        let (timer, clock) = HashedWheelTimer::builder()
            .tick_duration(MS)
            .executor(move |job| jobs.send(job).unwrap())
            .build_manual()
            .unwrap();
        let log = Arc::new(Log::default());
        let timeout = timer.new_timeout(Logged(log.clone()), MS).unwrap();
        clock.advance(MS);
        assert!(timeout.is_expired(), "before the executor has run it");
        assert_eq!((log.all().len(), timer.pending_timeouts()), (0, 0));
        queue.recv().unwrap().run();
        assert_eq!(log.all(), ["run"]);
    }

    #[test]
    fn rejected_job_leaves_timer_running() {
        let rejected = Arc::new(AtomicUsize::new(0));
        let count = rejected.clone();
        let (timer, clock) = HashedWheelTimer::builder()
            .tick_duration(MS)
            .executor(move |job| {
                if count.fetch_add(1, Ordering::SeqCst) == 0 {
                    std::panic::resume_unwind(Box::new("rejected"));
                }
                job.run();
            })
            .build_manual()
            .unwrap();
        let log = Arc::new(Log::default());
        timer.new_timeout(Logged(log.clone()), MS).unwrap();
        timer.new_timeout(Logged(log.clone()), MS).unwrap();
        clock.advance(MS);
        assert_eq!((log.all(), timer.pending_timeouts()), (vec!["run"], 0));
    }

    #[test]
    fn executor_task_may_stop_timer() {
        let (jobs, queue) = mpsc::channel::<Job>();
        let timer = HashedWheelTimer::builder()
            .tick_duration(MS)
            .executor(move |job| drop(jobs.send(job)))
            .build()
            .unwrap();
        let stopped = Arc::new(Mutex::new(None));
        let result = stopped.clone();
        timer
            .new_timeout(
                move |timeout: &Timeout| {
                    *result.lock().unwrap() = timeout.timer().map(|timer| timer.stop().unwrap().len());
                },
                MS,
            )
            .unwrap();
        timer.new_timeout(nothing, FOR_EVER).unwrap();
        queue.recv().unwrap().run();
        assert_eq!(*stopped.lock().unwrap(), Some(1));
    }
}

mod stopping {
    use super::*;

    #[test]
    fn stop_returns_and_cancels_pending() {
        for real_clock in [false, true] {
            let timer = if real_clock { real() } else { manual(MS).0 };
            let log = Arc::new(Log::default());
            let made: Vec<_> =
                (0..100).map(|_| timer.new_timeout(Logged(log.clone()), FOR_EVER).unwrap()).collect();
            assert!(made[0].cancel());
            let unprocessed = timer.stop().unwrap();
            assert_eq!(unprocessed.len(), 99);
            assert!(unprocessed.iter().all(Timeout::is_cancelled));
            assert_eq!((timer.pending_timeouts(), log.all()), (0, vec!["cancelled"; 100]));
            assert!(timer.stop().unwrap().is_empty(), "stopping again finds nothing");
            assert!(timer.is_stopped());
        }
    }

    #[test]
    fn stopped_timer_refuses_timeouts_and_start() {
        for timer in [real(), HashedWheelTimer::builder().max_pending_timeouts(1).build().unwrap()] {
            assert!(timer.stop().unwrap().is_empty(), "never started");
            for _ in 0..3 {
                assert_eq!(timer.new_timeout(nothing, MS).unwrap_err(), NewTimeoutError::Stopped);
            }
            assert_eq!(timer.start(), Err(NewTimeoutError::Stopped));
            assert_eq!(timer.pending_timeouts(), 0);
        }
    }

    #[test]
    fn start_is_idempotent() {
        let timer = real();
        assert_eq!((timer.start(), timer.start()), (Ok(()), Ok(())));
        timer.stop().unwrap();
    }

    #[test]
    fn stop_from_own_task_is_refused() {
        let (send, receive) = mpsc::channel();
        let timer = real();
        let handle = timer.clone();
        timer.new_timeout(move |_: &Timeout| send.send(handle.stop().map(|_| ())).unwrap(), MS).unwrap();
        let refused: Result<(), StopError> = receive.recv().unwrap();
        assert_eq!(refused.unwrap_err().to_string(), "a timer cannot be stopped by one of its own tasks");
        assert!(!timer.is_stopped());
        let log = Arc::new(Log::default());
        timer.new_timeout(Logged(log.clone()), MS).unwrap();
        eventually("it goes on", || log.all() == ["run"]);
    }

    #[test]
    fn a_task_may_stop_another_timer() {
        let (outer, clock) = manual(MS);
        let (inner, _) = manual(MS);
        inner.new_timeout(nothing, FOR_EVER).unwrap();
        let handle = inner.clone();
        outer.new_timeout(move |_: &Timeout| assert_eq!(handle.stop().unwrap().len(), 1), MS).unwrap();
        clock.advance(MS);
        assert!(inner.is_stopped());
    }

    #[test]
    fn stop_returns_timeouts_behind_running_task() {
        let timer = real();
        let (running, finish) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
        let (inside, until) = (running.clone(), finish.clone());
        let log = Arc::new(Log::default());
        let at = Instant::now() + 10 * MS;
        timer
            .new_timeout_at(
                move |_: &Timeout| {
                    inside.wait();
                    until.wait();
                },
                at,
            )
            .unwrap();
        let behind: Vec<_> =
            (0..10).map(|_| timer.new_timeout_at(Logged(log.clone()), at).unwrap()).collect();
        running.wait();
        assert_eq!(timer.pending_timeouts(), 10);
        assert_eq!(timer.stop().unwrap().len(), 10, "without waiting for the task that runs");
        finish.wait();
        assert!(behind.iter().all(Timeout::is_cancelled));
        assert_eq!(log.all(), ["cancelled"; 10]);
    }

    #[test]
    fn every_timeout_has_exactly_one_outcome() {
        for round in 0..20 {
            let timer = real();
            let (ran, cancelled) = (Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0));
            let (made, returned) = (AtomicUsize::new(0), AtomicUsize::new(0));
            thread::scope(|scope| {
                for thread in 0..2 {
                    let (timer, ran, cancelled, made) = (&timer, &ran, &cancelled, &made);
                    scope.spawn(move || {
                        for step in 0.. {
                            let ran = ran.clone();
                            let task = move |_: &Timeout| count(&ran);
                            let Ok(timeout) = timer.new_timeout(task, step % 5 * MS) else { break };
                            made.fetch_add(1, Ordering::SeqCst);
                            if (step + thread) % 3 == 0 && timeout.cancel() {
                                cancelled.fetch_add(1, Ordering::SeqCst);
                            }
                        }
                    });
                }
                eventually("some have been made", || made.load(Ordering::SeqCst) > 200 * (round % 4 + 1));
                returned.store(timer.stop().unwrap().len(), Ordering::SeqCst);
            });
            let accounted = || {
                ran.load(Ordering::SeqCst)
                    + cancelled.load(Ordering::SeqCst)
                    + returned.load(Ordering::SeqCst)
            };
            eventually("the task that ran during stop is done", || {
                accounted() == made.load(Ordering::SeqCst)
            });
            assert_eq!(timer.pending_timeouts(), 0);
        }
    }
}

mod ending {
    use super::*;

    #[test]
    fn pending_timeout_runs_without_handles() {
        let (send, receive) = mpsc::channel();
        real()
            .new_timeout(move |timeout: &Timeout| send.send(timeout.timer().is_none()).unwrap(), 5 * MS)
            .unwrap();
        assert!(receive.recv().unwrap());
        assert!(receive.recv().is_err(), "the task has been dropped");
    }

    #[test]
    fn manual_timer_without_handles_frees_tasks() {
        let held = Arc::new(());
        let inside = held.clone();
        let (timer, clock) = manual(MS);
        timer.new_timeout(move |_: &Timeout| drop(inside.clone()), MS).unwrap();
        drop((timer, clock));
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn thread_ends_with_last_handle() {
        let threads = || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap();
            let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
            names.filter(|name| name.trim() == "ends-soon").count()
        };
        let timer = HashedWheelTimer::builder().thread_name("ends-soon").build().unwrap();
        timer.start().unwrap();
        eventually("it starts", || threads() == 1);
        let timeout = timer.new_timeout(nothing, FOR_EVER).unwrap();
        assert!(timeout.cancel());
        drop((timer, timeout));
        eventually("it ends", || threads() == 0);

        // A timeout that can never expire does not keep the timer's thread. A timeout that can expire keeps the thread until then.
        let timer = HashedWheelTimer::builder().thread_name("ends-soon").build().unwrap();
        let expired = Arc::new(AtomicUsize::new(0));
        let counts = expired.clone();
        drop(timer.new_timeout(nothing, Duration::MAX).unwrap());
        let expires = move |_: &Timeout| count(&counts);
        drop(timer.new_timeout(expires, Duration::from_millis(50)).unwrap());
        drop(timer);
        eventually("the other one expires", || expired.load(Ordering::SeqCst) == 1);
        eventually("it ends", || threads() == 0);
    }
}
