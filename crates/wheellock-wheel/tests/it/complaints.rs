//! Complaints about Netty's timer from twenty years, one test each.
//!
//! The numbers are Netty's issues unless a comment names another project.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use wheellock_wheel::{HashedWheelTimer, NewTimeoutError, Timeout, TimerTask, Wheel};

const MS: Duration = Duration::from_millis(1);
const FOR_EVER: Duration = Duration::from_secs(3600);

fn nothing(_: &Timeout) {}

fn count(runs: &AtomicUsize) {
    runs.fetch_add(1, Ordering::SeqCst);
}

fn counter() -> (Arc<AtomicUsize>, impl TimerTask) {
    let runs = Arc::new(AtomicUsize::new(0));
    let inside = runs.clone();
    (runs, move |_: &Timeout| count(&inside))
}

/// #5647, #5852, #6947: the limit counted only timeouts that the worker had accepted, so a burst of schedule and cancel exhausted the
/// memory.
#[test]
fn schedule_and_cancel_keeps_nothing() {
    let (timer, _clock) =
        HashedWheelTimer::builder().tick_duration(MS).max_pending_timeouts(1).build_manual().unwrap();
    for _ in 0..200_000 {
        assert!(timer.new_timeout(nothing, FOR_EVER).unwrap().cancel());
    }
    let last = timer.new_timeout(nothing, FOR_EVER).unwrap();
    assert!(matches!(timer.new_timeout(nothing, FOR_EVER), Err(NewTimeoutError::Full { max: 1 })));
    assert_eq!(timer.pending_timeouts(), 1);
    drop(last);

    let mut wheel = Wheel::new(512);
    for id in 0..200_000_u64 {
        let key = wheel.insert(1_000_000, id);
        wheel.remove(key);
    }
    assert!(wheel.capacity() <= 8, "{} entries for one timer at a time", wheel.capacity());
}

/// #2541, #2561, dubbo #6820, hertzbeat #4201: a cancelled task stayed in memory until its bucket was reached.
#[test]
fn cancel_frees_task_at_once() {
    let (timer, _clock) = HashedWheelTimer::builder().build_manual().unwrap();
    let memory = Arc::new([0_u8; 1024]);
    let inside = memory.clone();
    let timeout = timer.new_timeout(move |_: &Timeout| drop(inside.clone()), FOR_EVER).unwrap();
    timeout.cancel();
    drop(timeout);
    assert_eq!(Arc::strong_count(&memory), 1);
}

/// #2453: an empty instance took 250 KB.
#[test]
fn empty_wheel_holds_no_memory() {
    let mut wheel = Wheel::new(512);
    assert_eq!(wheel.capacity(), 0);
    let keys: Vec<_> = (0..10_000).map(|id| wheel.insert(id, id)).collect();
    for key in keys {
        wheel.remove(key);
    }
    wheel.shrink_to_fit();
    assert_eq!(wheel.capacity(), 0);
}

/// #7760, #7765: a delay that overflowed fired at once.
#[test]
fn a_delay_that_overflows_is_never() {
    let (timer, clock) = HashedWheelTimer::builder().build_manual().unwrap();
    let (runs, task) = counter();
    let timeout = timer.new_timeout(task, Duration::MAX).unwrap();
    clock.advance(Duration::from_secs(100 * 365 * 24 * 3600));
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    assert!(timeout.cancel());
}

/// #1959, #1953, #1115: delays of more than a revolution drifted, and a deadline in the past fired a whole revolution late.
#[test]
fn far_and_past_deadlines_are_exact() {
    for ticks_per_wheel in [1, 2, 32, 512] {
        let (timer, clock) = HashedWheelTimer::builder()
            .tick_duration(10 * MS)
            .ticks_per_wheel(ticks_per_wheel)
            .build_manual()
            .unwrap();
        let start = clock.now();
        clock.advance(7_770 * MS);
        let past = timer.new_timeout_at(nothing, start).unwrap();
        clock.advance(10 * MS);
        assert!(past.is_expired(), "at the next tick");
        for revolutions in [1, 2, 10, 1_000] {
            let delay = 10 * MS * u32::try_from(ticks_per_wheel * revolutions).unwrap() + 10 * MS;
            let far = timer.new_timeout(nothing, delay).unwrap();
            clock.advance(delay - MS);
            assert!(!far.is_expired());
            clock.advance(MS);
            assert!(far.is_expired(), "{revolutions} revolutions of {ticks_per_wheel}");
        }
    }
}

/// #2651, #2662: concurrent use corrupted the intake queue, with endless loops and null pointers.
#[test]
fn concurrent_use_loses_and_repeats_nothing() {
    let timer = HashedWheelTimer::builder().tick_duration(MS).build().unwrap();
    let (runs, cancelled) = (Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for step in 0..5_000 {
                    let runs = runs.clone();
                    let task = move |_: &Timeout| count(&runs);
                    let timeout = timer.new_timeout(task, step % 4 * MS).unwrap();
                    if step % 2 == 0 && timeout.cancel() {
                        cancelled.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    while timer.pending_timeouts() > 0 {
        std::thread::yield_now();
    }
    drop(timer.stop());
    // The last claimed timeout may still be running.
    while runs.load(Ordering::SeqCst) + cancelled.load(Ordering::SeqCst) < 20_000 {
        std::thread::yield_now();
    }
    assert_eq!(runs.load(Ordering::SeqCst) + cancelled.load(Ordering::SeqCst), 20_000);
}

/// #1246, #9710, #9714, #10398, pulsar #6414, jraft #344: an idle timer wakes, or spins, for ever.
#[cfg(target_os = "linux")]
#[test]
fn an_idle_timer_does_not_wake() {
    let timer = HashedWheelTimer::builder().tick_duration(MS).thread_name("idle-timer").build().unwrap();
    let far = timer.new_timeout(nothing, FOR_EVER).unwrap();
    let wakeups = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        tasks
            .filter_map(|task| {
                let path = task.ok()?.path();
                let own = std::fs::read_to_string(path.join("comm")).ok()?.trim() == "idle-timer";
                let status = std::fs::read_to_string(path.join("status")).ok().filter(|_| own)?;
                let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"))?;
                line.split_whitespace().last()?.parse::<u64>().ok()
            })
            .next()
    };
    let other = HashedWheelTimer::builder().tick_duration(MS).build().unwrap();
    let pass = |ticks: u32| {
        let (send, receive) = mpsc::channel();
        other.new_timeout(move |_: &Timeout| send.send(()).unwrap(), ticks * MS).unwrap();
        receive.recv().unwrap();
    };
    // The driver falls asleep twice: before it is notified of the timeout, and after.
    let settled = || {
        let before = wakeups();
        pass(30);
        before.is_some_and(|count| count > 0) && wakeups() == before
    };
    assert!((0..20).any(|_| settled()), "it wakes all the time");
    // Churn of later deadlines, over 100 ticks.
    let before = wakeups();
    let later = Instant::now() + FOR_EVER + MS;
    for _ in 0..10_000 {
        assert!(timer.new_timeout_at(nothing, later).unwrap().cancel());
    }
    pass(100);
    assert_eq!(wakeups(), before);
    // While thousands of timeouts per tick leave the clock to the driver, it wakes twice per tick. Afterwards it stops.
    for _ in 0..10_000 {
        assert!(timer.new_timeout(nothing, FOR_EVER + MS).unwrap().cancel());
    }
    assert!((0..20).any(|_| settled()), "it goes on waking");
    assert!(far.cancel());
}

/// #11724, #11728, dubbo #3910: one slow task delays all others.
#[test]
fn slow_executor_task_delays_nothing() {
    let timer = HashedWheelTimer::builder()
        .tick_duration(MS)
        .executor(|job| drop(std::thread::spawn(move || job.run())))
        .build()
        .unwrap();
    let (release, blocked) = mpsc::channel::<()>();
    let blocked = std::sync::Mutex::new(blocked);
    let (send, receive) = mpsc::channel();
    timer.new_timeout(move |_: &Timeout| assert_eq!(blocked.lock().unwrap().recv(), Ok(())), MS).unwrap();
    timer.new_timeout(move |_: &Timeout| send.send(()).unwrap(), 5 * MS).unwrap();
    receive.recv().unwrap();
    release.send(()).unwrap();
}

/// #14081, #14083: timeouts that `stop` returned were not marked as cancelled.
#[test]
fn what_stop_returns_is_cancelled() {
    let (timer, clock) = HashedWheelTimer::builder().build_manual().unwrap();
    let (runs, task) = counter();
    timer.new_timeout(task, MS).unwrap();
    let left = timer.stop().unwrap();
    assert!(left.len() == 1 && left[0].is_cancelled() && !left[0].cancel());
    clock.advance(FOR_EVER);
    assert_eq!(runs.load(Ordering::SeqCst), 0);
}

/// #14959, #15000: a timeout that was cancelled in the tick of its deadline was counted down twice.
#[test]
fn cancel_at_due_tick_counts_once() {
    for round in 0..200 {
        let timer = HashedWheelTimer::builder().tick_duration(MS).build().unwrap();
        let (runs, task) = counter();
        let due = Instant::now() + MS;
        let timeout = timer.new_timeout_at(task, due).unwrap();
        while round % 2 == 0 && Instant::now() < due {
            std::hint::spin_loop();
        }
        let cancelled = timeout.cancel();
        assert_eq!(timer.pending_timeouts(), 0, "whoever won, it has left");
        while !cancelled && runs.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(runs.load(Ordering::SeqCst) + usize::from(cancelled), 1);
    }
}

/// redisson #3984, #2304: `stop` waited for a task that never ended.
#[test]
fn stop_returns_despite_hanging_task() {
    let timer = HashedWheelTimer::builder().tick_duration(MS).build().unwrap();
    let (release, hang) = mpsc::channel::<()>();
    let hang = std::sync::Mutex::new(hang);
    let (send, running) = mpsc::channel();
    timer
        .new_timeout(
            move |_: &Timeout| {
                send.send(()).unwrap();
                let _ = hang.lock().unwrap().recv();
            },
            MS,
        )
        .unwrap();
    running.recv().unwrap();
    assert!(timer.stop().unwrap().is_empty());
    drop(release);
}
