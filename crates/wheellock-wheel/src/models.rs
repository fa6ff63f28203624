//! Models of concurrent use of one timer.
//!
//! The model checker runs them through every interleaving: `RUSTFLAGS="--cfg loom" cargo test -p wheellock-wheel --release --lib models`.

use loom::thread;
use std::boxed::Box;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::sync::Parker;
use crate::timer::clock::{Clock, Ticks, VirtualTime};
use crate::timer::driver::Driver;
use crate::timer::shards::{Armed, Hub, Shard, Shards};
use crate::{HashedWheelTimer, Timeout, Timer, TimerKey};

const TICK: Duration = Duration::from_millis(1);

/// Three preemptions find every bug that this code has had; more preemptions multiply the time.
fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(run);
}

struct Counter(AtomicUsize);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn counter() -> (Arc<Counter>, Waker) {
    let counter = Arc::new(Counter(AtomicUsize::new(0)));
    (counter.clone(), counter.into())
}

/// Creates a timer whose driver is the thread that registers as its thread.
fn shards() -> Arc<Shards<Waker>> {
    let clock = Clock::Manual(Arc::new(VirtualTime::new()));
    let ticks = Ticks::new(clock.now(), TICK);
    Shards::new(Driver::thread("model"), clock, ticks, 4, ())
}

fn arm(shard: &Shard<Waker>, tick: u64) -> Option<TimerKey> {
    match shard.arm(tick, Waker::noop().clone()) {
        Armed::Pending(key) => Some(key),
        _ => None,
    }
}

/// Runs one turn at the beginning of `tick`.
fn turn(hub: &Hub<Waker>, tick: u64) -> Option<u64> {
    hub.turn(hub.ticks.start_of(tick)?)
}

/// Makes the driver read the clock from now on: in a model, `MANY` is one timer.
fn arm_many(shards: &Shards<Waker>) {
    let hub = shards.hub();
    shards.nth(0).looked(hub.clock.now());
}

/// A thread that turns like the driver at `now`, until it would look again at `tick` or earlier on its own. A lost wake-up leaves the
/// thread parked for ever, which the checker reports.
struct Drive(thread::JoinHandle<()>);

impl Drive {
    fn until(shards: &Arc<Shards<Waker>>, now: u64, tick: u64) -> Self {
        let hub = shards.hub().clone();
        let parker = Parker::new();
        shards.hub().adopt(parker.unparker());
        let thread = thread::spawn(move || {
            while turn(&hub, now).is_none_or(|next| next > tick) {
                parker.park(None);
            }
        });
        Self(thread)
    }

    fn join(self) {
        self.0.join().unwrap();
    }
}

#[test]
fn an_insert_is_seen_or_told() {
    model(|| {
        let shards = shards();
        let shard = shards.nth(0).clone();
        let driver = Drive::until(&shards, 0, 10);
        arm(&shard, 10);
        driver.join();
    });
}

#[test]
fn inserts_in_two_shards_reach_driver() {
    model(|| {
        let shards = shards();
        let (early, late) = (shards.nth(0).clone(), shards.nth(1).clone());
        let driver = Drive::until(&shards, 0, 10);
        let other = thread::spawn(move || arm(&late, 20));
        arm(&early, 10);
        other.join().unwrap();
        driver.join();
    });
}

#[test]
fn insert_during_fire_reaches_driver() {
    model(|| {
        let shards = shards();
        let shard = shards.nth(0).clone();
        // The driver has promised tick 5, and it is now tick 5.
        turn(shards.hub(), 0);
        shards.hub().adopt(Parker::new().unparker());
        arm(&shard, 5);
        let driver = Drive::until(&shards, 5, 20);
        arm(&shard, 20);
        driver.join();
    });
}

#[test]
fn cancelled_timer_hides_no_later_timer() {
    model(|| {
        let shards = shards();
        let shard = shards.nth(0).clone();
        let driver = Drive::until(&shards, 0, 20);
        let early = arm(&shard, 10);
        arm(&shard, 20);
        assert!(early.is_some_and(|key| shard.disarm(key).is_some()));
        driver.join();
        // The driver may have promised the cancelled timer's tick. After that turn it must promise the other timer's tick.
        assert_eq!(turn(shards.hub(), 10), Some(20));
    });
}

#[test]
fn rearm_to_earlier_tick_reaches_driver() {
    model(|| {
        let shards = shards();
        let shard = shards.nth(0).clone();
        let driver = Drive::until(&shards, 0, 10);
        let key = arm(&shard, 30).unwrap();
        assert!(shard.rearm(key, 10));
        driver.join();
    });
}

/// A driver that is not notified stays parked.
#[test]
fn undated_timer_notifies_driver() {
    model(|| {
        let shards = shards();
        let shard = shards.nth(0).clone();
        let (hub, parker) = (shards.hub().clone(), Parker::new());
        hub.adopt(parker.unparker());
        let driver = thread::spawn(move || {
            loop {
                let next = turn(&hub, 0);
                hub.fire();
                if next == Some(1) {
                    return;
                }
                parker.park(None);
            }
        });
        arm_many(&shards);
        let armed = shard.arm_undated(5 * TICK, Waker::noop().clone());
        driver.join().unwrap();
        let Ok(key) = armed else { return };
        turn(shards.hub(), 1);
        assert!(!shards.hub().has_undated());
        assert!(shard.disarm(key).is_some());
    });
}

#[test]
fn turn_leaves_no_timer_undated() {
    model(|| {
        let shards = shards();
        let shard = shards.nth(0).clone();
        shards.hub().adopt(Parker::new().unparker());
        arm(&shard, 1);
        arm_many(&shards);
        let hub = shards.hub().clone();
        let driver = thread::spawn(move || {
            turn(&hub, 1);
            // A task may run from here on; no timer may wait for its deadline meanwhile.
            assert!(!hub.has_undated());
        });
        // The first timer makes the driver continue to look. The second may be armed after the driver has looked.
        let armed = [(); 2].map(|()| shard.arm_undated(5 * TICK, Waker::noop().clone()));
        driver.join().unwrap();
        for key in armed.into_iter().flatten() {
            assert!(shard.disarm(key).is_some());
        }
    });
}

#[test]
fn turn_leaves_no_new_shard_undated() {
    model(|| {
        let shards = shards();
        shards.hub().adopt(Parker::new().unparker());
        arm(&shards.nth(0).clone(), 1);
        let hub = shards.hub().clone();
        let driver = thread::spawn(move || {
            turn(&hub, 1);
            assert!(!hub.has_undated());
        });
        let new = shards.nth(1).clone();
        new.looked(shards.hub().clock.now());
        let armed = new.arm_undated(5 * TICK, Waker::noop().clone());
        driver.join().unwrap();
        assert!(armed.is_err() || armed.is_ok_and(|key| new.disarm(key).is_some()));
    });
}

#[test]
fn driver_starts_once_and_fires_all() {
    model(|| {
        let timer = {
            let time = Arc::new(VirtualTime::new());
            let timer = Timer::model(Driver::thread("model"), Clock::Manual(time.clone()), TICK);
            time.move_to(timer.now() + 5 * TICK);
            timer
        };
        let (counter, waker) = counter();
        let at = timer.now();
        // Create the shard before the threads start. The shard's cell is the system's `OnceLock`, which would block the checker.
        assert!(
            timer.schedule(at + TICK * 100, waker.clone()).is_ok_and(|armed| timer.cancel(armed).is_some())
        );
        let others = (timer.clone(), waker.clone());
        let other = thread::spawn(move || others.0.schedule(at - TICK, others.1.clone()).is_ok());
        let armed = usize::from(timer.schedule(at - TICK, waker).is_ok());
        let armed = armed + usize::from(other.join().unwrap());
        while counter.0.load(Ordering::SeqCst) < armed {
            thread::yield_now();
        }
        drop(timer);
    });
}

/// Cancels, runs and stops a timeout at the same time.
#[test]
fn a_timeout_has_one_fate() {
    model(|| {
        let (timer, ticker) = HashedWheelTimer::builder().tick_duration(TICK).build_manual().unwrap();
        let ran = Arc::new(AtomicUsize::new(0));
        let runs = ran.clone();
        let task = move |_: &Timeout| {
            runs.fetch_add(1, Ordering::SeqCst);
        };
        let timeout = timer.new_timeout(task, TICK).unwrap();
        let same = timeout.clone();
        let canceller = thread::spawn(move || usize::from(same.cancel()));
        let driver = thread::spawn(move || ticker.advance(TICK));
        let returned = timer.stop().unwrap().len();
        let cancelled = canceller.join().unwrap();
        driver.join().unwrap();
        assert_eq!(ran.load(Ordering::SeqCst) + cancelled + returned, 1);
        assert_eq!(timer.pending_timeouts(), 0);
        assert_eq!(timeout.is_expired(), ran.load(Ordering::SeqCst) == 1);
    });
}

#[test]
fn cancel_during_fire_keeps_pending_exact() {
    model(|| {
        let (timer, ticker) =
            HashedWheelTimer::builder().tick_duration(TICK).max_pending_timeouts(2).build_manual().unwrap();
        let timeout = timer.new_timeout(|_: &Timeout| (), TICK).unwrap();
        let far = timer.new_timeout(|_: &Timeout| (), 100 * TICK).unwrap();
        let driver = thread::spawn(move || ticker.advance(TICK));
        timeout.cancel();
        assert_eq!(timer.pending_timeouts(), 1);
        driver.join().unwrap();
        assert_eq!(timer.pending_timeouts(), 1);
        assert!(timer.new_timeout(|_: &Timeout| (), TICK).is_ok(), "its place is free again, once");
        assert!(timer.new_timeout(|_: &Timeout| (), TICK).is_err());
        far.cancel();
    });
}

#[test]
fn stop_returns_or_refuses_new_timeout() {
    model(|| {
        let (timer, _ticker) = HashedWheelTimer::builder().tick_duration(TICK).build_manual().unwrap();
        assert!(timer.new_timeout(|_: &Timeout| (), TICK).is_ok_and(|timeout| timeout.cancel()));
        let handle = timer.clone();
        let maker = thread::spawn(move || handle.new_timeout(|_: &Timeout| (), TICK));
        let returned = timer.stop().unwrap().len();
        match maker.join().unwrap() {
            Ok(timeout) => assert!(returned == 1 && timeout.is_cancelled()),
            Err(_) => assert_eq!(returned, 0),
        }
        assert_eq!(timer.pending_timeouts(), 0);
    });
}

/// The state for handles exists while a handle can query it, and not longer.
#[test]
fn handles_agree_during_fire_leaving_nothing() {
    model(|| {
        let (timer, ticker) = HashedWheelTimer::builder().tick_duration(TICK).build_manual().unwrap();
        let first = timer.new_timeout(|_: &Timeout| (), TICK).unwrap();
        let second = first.clone();
        let driver = thread::spawn(move || ticker.advance(TICK));
        let asker = thread::spawn(move || {
            let cancelled = second.clone().cancel();
            assert!(second.is_cancelled() != second.is_expired());
            (cancelled, second.is_cancelled())
        });
        let cancelled = first.cancel();
        let fate = first.is_cancelled();
        drop(first);
        let (cancelled_too, same) = asker.join().unwrap();
        driver.join().unwrap();
        assert!(!(cancelled && cancelled_too));
        assert_eq!((fate, same), (cancelled || cancelled_too, fate));
        assert_eq!((timer.entries(), timer.pending_timeouts()), (0, 0));
    });
}

/// Cancelling through the only handle removes the entry. A concurrent query or clone through that handle finds no entry, and must still
/// return the right result.
#[test]
fn shared_handle_agrees_across_threads() {
    model(|| {
        let (timer, ticker) = HashedWheelTimer::builder().tick_duration(TICK).build_manual().unwrap();
        let timeout = Arc::new(timer.new_timeout(|_: &Timeout| (), TICK).unwrap());
        let shared = timeout.clone();
        let canceller = thread::spawn(move || shared.cancel());
        let driver = thread::spawn(move || ticker.advance(TICK));
        let clone = Timeout::clone(&timeout);
        let cancelled = timeout.cancel();
        let told = [clone.is_cancelled(), timeout.is_cancelled()];
        let cancelled_too = canceller.join().unwrap();
        driver.join().unwrap();
        assert!(!(cancelled && cancelled_too));
        assert_eq!(told, [cancelled || cancelled_too; 2]);
        assert_eq!([clone.is_expired(), timeout.is_expired()], told.map(|cancelled| !cancelled));
        drop(clone);
        drop(timeout);
        assert_eq!((timer.entries(), timer.pending_timeouts()), (0, 0));
    });
}

/// A driver that is not notified stays parked, which the checker reports.
#[test]
fn timer_ends_with_last_timeout() {
    model(|| {
        let clock = Clock::Manual(Arc::new(VirtualTime::new()));
        let timer =
            HashedWheelTimer::builder().tick_duration(TICK).build_model(Driver::thread("model"), clock);
        let timeout = timer.new_timeout(|_: &Timeout| (), 100 * TICK).unwrap();
        let canceller = thread::spawn(move || timeout.cancel());
        drop(timer);
        assert!(canceller.join().unwrap());
    });
}

#[test]
fn poll_during_fire_completes_or_wakes() {
    model(|| {
        let (timer, clock) = Timer::manual(TICK);
        let (_, first) = counter();
        let mut sleep = Box::new(timer.sleep(TICK));
        assert!(Pin::new(&mut *sleep).poll(&mut Context::from_waker(&first)).is_pending());
        let driver = thread::spawn(move || clock.advance(TICK));
        let (second, waker) = counter();
        let polled = Pin::new(&mut *sleep).poll(&mut Context::from_waker(&waker));
        driver.join().unwrap();
        assert!(polled == Poll::Ready(()) || second.0.load(Ordering::SeqCst) == 1);
        assert!(Pin::new(&mut *sleep).poll(&mut Context::from_waker(&waker)).is_ready());
    });
}

#[test]
fn sleep_dropped_during_fire_leaves_nothing() {
    model(|| {
        let (timer, clock) = Timer::manual(TICK);
        let (counter, waker) = counter();
        let mut sleep = timer.sleep(TICK);
        assert!(Pin::new(&mut sleep).poll(&mut Context::from_waker(&waker)).is_pending());
        drop(waker);
        let driver = thread::spawn(move || clock.advance(TICK));
        drop(sleep);
        driver.join().unwrap();
        assert!(counter.0.load(Ordering::SeqCst) <= 1);
        assert_eq!(Arc::strong_count(&counter), 1, "no waker is kept");
    });
}

#[test]
fn sleep_reset_during_fire_fires_again() {
    model(|| {
        let (timer, clock) = Timer::manual(TICK);
        let (counter, waker) = counter();
        let start = timer.now();
        let mut sleep = timer.sleep(TICK);
        assert!(Pin::new(&mut sleep).poll(&mut Context::from_waker(&waker)).is_pending());
        let driver = {
            let clock = clock.clone();
            thread::spawn(move || clock.advance(TICK))
        };
        sleep.reset(start + 3 * TICK);
        assert!(Pin::new(&mut sleep).poll(&mut Context::from_waker(&waker)).is_pending());
        driver.join().unwrap();
        clock.advance(2 * TICK);
        assert!(counter.0.load(Ordering::SeqCst) >= 1);
        assert!(Pin::new(&mut sleep).poll(&mut Context::from_waker(&waker)).is_ready());
    });
}
