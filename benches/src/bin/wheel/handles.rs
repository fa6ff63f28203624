//! Shared timers: cost and memory of a cancelled timer.

use std::future::{Future, poll_fn, ready};
use std::hint::black_box;
use std::pin::{Pin, pin};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use anyhow::Result;
use hierarchical_hash_wheel_timer::thread_timer::TimerWithThread;
use hierarchical_hash_wheel_timer::wheels::cancellable::QuadWheelWithOverflow;
use hierarchical_hash_wheel_timer::{
    ClosureTimer as _, IdOnlyTimerEntry, OneShotClosureState, PeriodicClosureState, Timer as _,
};
use tokio::runtime::Runtime;
use tokio_util::time::DelayQueue;
use wheellock_benches::{Bench, Report};
use wheellock_wheel::{HashedWheelTimer, Sleep, Timeout, Timer};

use super::core_wheels::{millis, request, scatter};

const TICK: Duration = Duration::from_millis(1);

pub(crate) fn run(report: &mut Report) -> Result<()> {
    for (live, name) in [(0, "0"), (1_000_000, "1M")] {
        deadline_given(report, live, name)?;
    }
    clock_read(report)?;
    two_threads(report)?;
    cancel_elsewhere(report)?;
    ready_future(report)?;
    memory(report)
}

fn current_thread() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_time().build()?)
}

fn multi_thread() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build()?)
}

/// Polls once, as a waiting task would.
async fn poll_once(future: Pin<&mut impl Future<Output = ()>>) -> u64 {
    let mut future = Some(future);
    poll_fn(|cx| {
        let pending = future.take().is_some_and(|future| future.poll(cx).is_pending());
        Poll::Ready(u64::from(pending))
    })
    .await
}

/// Creates, polls and drops `times` sleeps in a task. It is `unconstrained`, or tokio would make it yield every 128 polls.
async fn tokio_sleeps(times: u64, start: Option<Instant>) -> u64 {
    tokio::task::unconstrained(async move {
        let mut done = 0;
        for id in 0..times {
            let sleep = match start {
                Some(start) => tokio::time::sleep_until((start + millis(request(id))).into()),
                None => tokio::time::sleep(millis(request(id))),
            };
            done += poll_once(pin!(sleep)).await;
        }
        done
    })
    .await
}

fn spawn_and_wait(runtime: &Runtime, tasks: u64, times: u64, start: Option<Instant>) -> u64 {
    runtime.block_on(async {
        let tasks: Vec<_> = (0..tasks).map(|_| tokio::spawn(tokio_sleeps(times, start))).collect();
        let mut done = 0;
        for task in tasks {
            done = task.await.unwrap_or_default();
        }
        done
    })
}

fn our_sleeps(timer: &Timer, times: u64, start: Option<Instant>) -> u64 {
    let mut cx = Context::from_waker(Waker::noop());
    let mut done = 0;
    for id in 0..times {
        let mut sleep = match start {
            Some(start) => timer.sleep_until(start + millis(request(id))),
            None => timer.sleep(millis(request(id))),
        };
        done += u64::from(Pin::new(black_box(&mut sleep)).poll(&mut cx).is_pending());
    }
    done
}

fn our_wakers(timer: &Timer, times: u64, start: Option<Instant>) -> u64 {
    let mut done = 0;
    for id in 0..times {
        let start = start.unwrap_or_else(|| timer.now());
        let scheduled = timer.schedule(start + millis(request(id)), Waker::noop().clone());
        done += u64::from(scheduled.ok().and_then(|scheduled| timer.cancel(black_box(scheduled))).is_some());
    }
    done
}

fn our_callbacks(timer: &HashedWheelTimer, times: u64, start: Option<Instant>) -> u64 {
    let task = |_: &Timeout| ();
    let mut done = 0;
    for id in 0..times {
        let timeout = match start {
            Some(start) => timer.new_timeout_at(task, start + millis(request(id))),
            None => timer.new_timeout(task, millis(request(id))),
        };
        done += u64::from(timeout.is_ok_and(|timeout| black_box(timeout).cancel()));
    }
    done
}

fn our_hashed_wheel_timer() -> Result<HashedWheelTimer> {
    Ok(HashedWheelTimer::builder().tick_duration(TICK).ticks_per_wheel(4096).build()?)
}

fn queue_pairs(queue: &Mutex<DelayQueue<u64>>, times: u64, start: Option<Instant>) -> u64 {
    let mut done = 0;
    for id in 0..times {
        let start = start.unwrap_or_else(Instant::now);
        let key = lock(queue).insert_at(id, (start + millis(request(id))).into());
        done += u64::from(lock(queue).remove(&black_box(key)).into_inner() == id);
    }
    done
}

type ChannelTimer = TimerWithThread<u64, OneShotClosureState<u64>, PeriodicClosureState<u64>>;

/// Measures pairs through a handle that sends to a thread over a channel. The figure does not show whether that thread keeps up.
fn channel_pairs(timer: &ChannelTimer, times: u64, first: u64) -> u64 {
    let mut timer = timer.timer_ref();
    for id in first..first + times {
        timer.schedule_action_once(id, black_box(millis(request(id))), |_| ());
        timer.cancel(&id);
    }
    times
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn deadline_given(report: &mut Report, live: u64, live_name: &str) -> Result<()> {
    let name = format!("shared: schedule+cancel, {live_name} live");
    if !report.wants(&name) {
        return Ok(());
    }
    let start = Instant::now() + Duration::from_secs(600);
    let at = |id| start + millis(scatter(id, 30_000));
    let (current, multi) = (current_thread()?, multi_thread()?);
    let _entered = current.enter();
    let mut cx = Context::from_waker(Waker::noop());

    let timer = Timer::thread(TICK);
    let mut sleeps: Vec<Sleep> = (0..live).map(|id| timer.sleep_until(at(id))).collect();
    for sleep in &mut sleeps {
        let _ = Pin::new(sleep).poll(&mut cx);
    }
    let facade = our_hashed_wheel_timer()?;
    let timeouts: Vec<_> = (0..live).map(|id| facade.new_timeout_at(|_: &Timeout| (), at(id))).collect();
    let queue = Mutex::new(DelayQueue::new());
    for id in 0..live {
        lock(&queue).insert_at(id, at(id).into());
    }
    let tokio_sleeps = |runtime: &Runtime| {
        let _entered = runtime.enter();
        let mut sleeps: Vec<_> =
            (0..live).map(|id| Box::pin(tokio::time::sleep_until(at(id).into()))).collect();
        for sleep in &mut sleeps {
            let _ = sleep.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
        sleeps
    };
    let (held, held_too) = (tokio_sleeps(&current), tokio_sleeps(&multi));
    let result = Bench::new(&name, "pair")
        .subject("wheellock Timer::schedule", |times| our_wakers(&timer, times, Some(start)))
        .subject("wheellock Sleep", |times| our_sleeps(&timer, times, Some(start)))
        .subject("wheellock HashedWheelTimer", |times| our_callbacks(&facade, times, Some(start)))
        .subject("tokio Sleep current_thread", |times| spawn_and_wait(&current, 1, times, Some(start)))
        .subject("tokio Sleep multi_thread", |times| spawn_and_wait(&multi, 1, times, Some(start)))
        .subject("DelayQueue in a mutex", |times| queue_pairs(&queue, times, Some(start)))
        .run(report);
    drop((sleeps, timeouts, held, held_too));
    result
}

fn clock_read(report: &mut Report) -> Result<()> {
    let (current, multi) = (current_thread()?, multi_thread()?);
    let _entered = current.enter();
    let timer = Timer::thread(TICK);
    let facade = our_hashed_wheel_timer()?;
    let queue = Mutex::new(DelayQueue::new());
    let mut cx = Context::from_waker(Waker::noop());
    Bench::new("shared: schedule+cancel, clock read", "pair")
        .beside("Instant::now", |times| {
            (0..times)
                .map(|_| {
                    black_box(Instant::now());
                    1
                })
                .sum()
        })
        .subject("wheellock Timer::schedule", |times| our_wakers(&timer, times, None))
        .subject("wheellock Sleep", |times| our_sleeps(&timer, times, None))
        .subject("wheellock HashedWheelTimer", |times| our_callbacks(&facade, times, None))
        .subject("tokio Sleep current_thread", |times| spawn_and_wait(&current, 1, times, None))
        .subject("tokio Sleep multi_thread", |times| spawn_and_wait(&multi, 1, times, None))
        .subject("DelayQueue in a mutex", |times| queue_pairs(&queue, times, None))
        .subject("pingora-timeout", |times| {
            let mut done = 0;
            for id in 0..times {
                let never = std::future::pending::<()>();
                let timeout = pin!(pingora_timeout::timeout(millis(request(id)), never));
                done += u64::from(timeout.poll(&mut cx).is_pending());
            }
            done
        })
        .subject("async-io Timer", |times| {
            let mut done = 0;
            for id in 0..times {
                let mut sleep = async_io::Timer::after(millis(request(id)));
                done += u64::from(
                    Pin::new(&mut sleep).poll(&mut Context::from_waker(Waker::noop())).is_pending(),
                );
            }
            done
        })
        .run(report)
}

/// Runs all of the work in each of two threads. The figure is per pair of one thread.
fn in_two_threads(times: u64, work: impl Fn(u64) -> u64 + Sync) -> u64 {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| work(times));
        let done = work(times);
        other.join().map_or(0, |other| done.min(other))
    })
}

fn two_threads(report: &mut Report) -> Result<()> {
    let start = Instant::now() + Duration::from_secs(600);
    let (multi, timer, facade) = (multi_thread()?, Timer::thread(TICK), our_hashed_wheel_timer()?);
    let current = current_thread()?;
    let _entered = current.enter();
    let queue = Mutex::new(DelayQueue::new());
    let channel = ChannelTimer::new()?;
    let next = std::sync::atomic::AtomicU64::new(0);
    Bench::new("shared: schedule+cancel, 2 threads", "pair of each thread")
        .subject("wheellock Timer::schedule", |times| {
            in_two_threads(times, |times| our_wakers(&timer, times, Some(start)))
        })
        .subject("wheellock Sleep", |times| {
            in_two_threads(times, |times| our_sleeps(&timer, times, Some(start)))
        })
        .subject("wheellock HashedWheelTimer", |times| {
            in_two_threads(times, |times| our_callbacks(&facade, times, Some(start)))
        })
        .subject("tokio Sleep multi_thread", |times| spawn_and_wait(&multi, 2, times, Some(start)))
        .subject("DelayQueue in a mutex", |times| {
            in_two_threads(times, |times| {
                let _entered = current.enter();
                queue_pairs(&queue, times, Some(start))
            })
        })
        .subject("hierarchical_hash_wheel_timer TimerRef", |times| {
            in_two_threads(times, |times| {
                let first = next.fetch_add(times, std::sync::atomic::Ordering::Relaxed);
                channel_pairs(&channel, times, first)
            })
        })
        .run(report)
}

/// Measures timers that are made on one thread and cancelled on a different thread, which makes none.
fn cancel_elsewhere(report: &mut Report) -> Result<()> {
    const BATCH: u64 = 100_000;
    let name = "shared: cancel on another thread";
    if !report.wants(name) {
        return Ok(());
    }
    let timer = Timer::thread(TICK);
    let start = Instant::now() + Duration::from_secs(600);
    let mut samples = Vec::new();
    for _ in 0..report.rounds() {
        let made: Vec<_> = (0..BATCH)
            .filter_map(|id| timer.schedule(start + millis(request(id)), Waker::noop().clone()).ok())
            .collect();
        let timer = &timer;
        let elapsed = std::thread::scope(|scope| {
            let canceller = scope.spawn(move || {
                let before = Instant::now();
                let cancelled = made.into_iter().filter_map(|scheduled| timer.cancel(scheduled)).count();
                (cancelled, before.elapsed())
            });
            canceller.join().ok()
        });
        let Some((cancelled, elapsed)) = elapsed else { anyhow::bail!("the canceller has panicked") };
        anyhow::ensure!(cancelled as u64 == BATCH);
        samples.push(elapsed.as_secs_f64() * 1e9 / BATCH as f64);
    }
    report.row(name, "wheellock Timer", "time", "ns/cancel", &samples);
    Ok(())
}

fn ready_future(report: &mut Report) -> Result<()> {
    let timer = Timer::thread(TICK);
    let runtime = current_thread()?;
    let _entered = runtime.enter();
    let mut cx = Context::from_waker(Waker::noop());
    let mut other_cx = Context::from_waker(Waker::noop());
    let mut third_cx = Context::from_waker(Waker::noop());
    Bench::new("timeout of a ready future", "timeout")
        .no_op()
        .subject("wheellock Timer", |times| {
            let mut done = 0;
            for _ in 0..times {
                let timeout = pin!(timer.timeout(black_box(TICK), ready(black_box(1_u64))));
                done += u64::from(matches!(timeout.poll(&mut cx), Poll::Ready(Ok(1))));
            }
            done
        })
        .subject("tokio", |times| {
            let mut done = 0;
            for _ in 0..times {
                let timeout = pin!(tokio::time::timeout(black_box(TICK), ready(black_box(1_u64))));
                done += u64::from(matches!(timeout.poll(&mut other_cx), Poll::Ready(Ok(1))));
            }
            done
        })
        .subject("pingora-timeout", |times| {
            let mut done = 0;
            for _ in 0..times {
                let timeout = pin!(pingora_timeout::timeout(black_box(TICK), ready(black_box(1_u64))));
                done += u64::from(matches!(timeout.poll(&mut third_cx), Poll::Ready(Ok(1))));
            }
            done
        })
        .run(report)
}

/// Measures the heap of a million pending timers, and the rest of it after their cancellation.
fn memory(report: &mut Report) -> Result<()> {
    const COUNT: u64 = 1_000_000;
    let name = "memory of 1M pending timers";
    if !report.wants(name) {
        return Ok(());
    }
    let runtime = current_thread()?;
    let _entered = runtime.enter();
    let start = Instant::now() + Duration::from_secs(600);
    let mut cx = Context::from_waker(Waker::noop());
    let per = |bytes: f64| [bytes / COUNT as f64];
    let mut row =
        |subject: &str, metric: &str, value: f64| report.row(name, subject, metric, "per timer", &[value]);

    let timer = Timer::thread(TICK);
    let mut sleeps: Vec<Sleep> = (0..COUNT).map(|id| timer.sleep_until(start + millis(id % 4096))).collect();
    let pending = allocation_counter::measure(|| {
        for sleep in &mut sleeps {
            let _ = Pin::new(sleep).poll(&mut cx);
        }
    });
    row("wheellock Sleep", "heap bytes", per(pending.bytes_current as f64)[0]);
    row("wheellock Sleep", "allocations", per(pending.count_current as f64)[0]);
    row("wheellock Sleep", "bytes in the future", size_of::<Sleep>() as f64);
    let again = allocation_counter::measure(|| {
        sleeps.clear();
        sleeps.extend((0..COUNT).map(|id| timer.sleep_until(start + millis(id % 4096))));
        for sleep in &mut sleeps {
            let _ = Pin::new(sleep).poll(&mut cx);
        }
    });
    row("wheellock Sleep", "heap bytes, next million", per(again.bytes_current as f64)[0]);

    let queue = allocation_counter::measure(|| {
        let mut queue = DelayQueue::new();
        for id in 0..COUNT {
            queue.insert_at(id, (start + millis(id % 4096)).into());
        }
        std::mem::forget(queue);
    });
    row("tokio_util DelayQueue", "heap bytes", per(queue.bytes_current as f64)[0]);

    let mut boxed = Vec::with_capacity(COUNT as usize);
    let tokio = allocation_counter::measure(|| {
        for id in 0..COUNT {
            let mut sleep = Box::pin(tokio::time::sleep_until((start + millis(id % 4096)).into()));
            let _ = sleep.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            boxed.push(sleep);
        }
    });
    row("tokio Sleep, boxed", "heap bytes", per(tokio.bytes_current as f64)[0]);
    row("tokio Sleep, boxed", "allocations", per(tokio.count_current as f64)[0]);
    row("tokio Sleep, boxed", "bytes in the future", size_of::<tokio::time::Sleep>() as f64);
    drop(boxed);

    let facade = our_hashed_wheel_timer()?;
    let mut timeouts = Vec::with_capacity(COUNT as usize);
    let pending = allocation_counter::measure(|| {
        timeouts
            .extend((0..COUNT).map(|id| facade.new_timeout_at(|_: &Timeout| (), start + millis(id % 4096))));
    });
    row("wheellock HashedWheelTimer", "heap bytes", per(pending.bytes_current as f64)[0]);
    row("wheellock HashedWheelTimer", "allocations", per(pending.count_current as f64)[0]);

    let mut quad = QuadWheelWithOverflow::<IdOnlyTimerEntry<u64>>::new();
    let pending = allocation_counter::measure(|| {
        for id in 0..COUNT {
            let _ = quad.insert(IdOnlyTimerEntry::new(id, millis(1 + id % 4096)));
        }
    });
    row("hierarchical_hash_wheel_timer", "heap bytes", per(pending.bytes_current as f64)[0]);
    row("hierarchical_hash_wheel_timer", "allocations", per(pending.count_current as f64)[0]);
    let cancelled = allocation_counter::measure(|| {
        for id in 0..COUNT {
            let _ = quad.cancel(&id);
        }
    });
    let kept = pending.bytes_current as f64 + cancelled.bytes_current as f64;
    row("hierarchical_hash_wheel_timer", "kept after cancel", per(kept)[0]);
    Ok(())
}
