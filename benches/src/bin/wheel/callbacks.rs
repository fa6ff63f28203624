//! Timers that fire: their cost and their lateness.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use hierarchical_hash_wheel_timer::thread_timer::TimerWithThread;
use hierarchical_hash_wheel_timer::{ClosureTimer as _, OneShotClosureState, PeriodicClosureState};
use tokio_util::time::DelayQueue;
use wheellock_benches::{Report, process_cpu};
use wheellock_wheel::{HashedWheelTimer, Timeout, Timer};

use super::core_wheels::{millis, scatter};

const TICK: Duration = Duration::from_millis(1);

pub(crate) fn run(report: &mut Report) -> Result<()> {
    million(report)?;
    stop_million(report)?;
    punctuality(report, false)?;
    punctuality(report, true)
}

/// A million deadlines within a second, and their lateness. One timer in sixteen reads the clock.
struct Volley {
    start: Instant,
    left: AtomicU64,
    late: Vec<AtomicU64>,
    done: mpsc::Sender<()>,
}

impl Volley {
    const COUNT: u64 = 1_000_000;
    const SAMPLED: u64 = 16;
    /// Time for making all timers before the first is due.
    const LEAD: Duration = Duration::from_secs(5);

    fn new() -> (Arc<Self>, mpsc::Receiver<()>) {
        let (done, finished) = mpsc::channel();
        let late = (0..Self::COUNT / Self::SAMPLED).map(|_| AtomicU64::new(0)).collect();
        let start = Instant::now() + Self::LEAD;
        (Arc::new(Self { start, left: AtomicU64::new(Self::COUNT), late, done }), finished)
    }

    fn due(&self, id: u64) -> Instant {
        self.start + Duration::from_nanos(scatter(id, 1_000_000_000))
    }

    fn fired(&self, id: u64) {
        if id.is_multiple_of(Self::SAMPLED) {
            let late = Instant::now().saturating_duration_since(self.due(id)).as_nanos();
            self.late[(id / Self::SAMPLED) as usize].store(late as u64, Ordering::Relaxed);
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let _ = self.done.send(());
        }
    }

    /// Measures CPU per timer from just before the first timer until the last has fired, and lateness in ms.
    fn measure(&self, finished: &mpsc::Receiver<()>) -> Result<Samples> {
        let before_first = self.start - Duration::from_millis(100);
        anyhow::ensure!(Instant::now() < before_first, "it took too long to make them");
        thread::sleep(before_first.saturating_duration_since(Instant::now()));
        let before = process_cpu();
        finished.recv()?;
        let cpu = (process_cpu() - before).as_secs_f64() * 1e9 / Self::COUNT as f64;
        let mut late: Vec<u64> = self.late.iter().map(|late| late.load(Ordering::Relaxed)).collect();
        late.sort_unstable();
        let at = |share: f64| late[(late.len() as f64 * share) as usize] as f64 / 1e6;
        Ok(Samples { cpu, p50: at(0.5), p99: at(0.99) })
    }
}

struct Samples {
    cpu: f64,
    p50: f64,
    p99: f64,
}

fn million(report: &mut Report) -> Result<()> {
    let name = "1M timers over 1 s";
    if !report.wants(name) {
        return Ok(());
    }
    let contenders: [(&str, fn() -> Result<Samples>); 5] = [
        ("wheellock HashedWheelTimer", our_callbacks),
        ("wheellock Sleep, a task each", our_tasks),
        ("tokio Sleep, a task each", tokio_tasks),
        ("tokio_util DelayQueue", delay_queue),
        ("hierarchical_hash_wheel_timer", channel_timer),
    ];
    let mut samples: Vec<Vec<Samples>> = contenders.iter().map(|_| Vec::new()).collect();
    for _ in 0..report.rounds().min(5) {
        for ((_, run), samples) in contenders.iter().zip(&mut samples) {
            samples.push(run()?);
        }
    }
    for ((subject, _), samples) in contenders.iter().zip(&samples) {
        let column = |pick: fn(&Samples) -> f64| samples.iter().map(pick).collect::<Vec<_>>();
        report.row(name, subject, "cpu", "ns/timer", &column(|sample| sample.cpu));
        report.row(name, subject, "lateness p50", "ms", &column(|sample| sample.p50));
        report.row(name, subject, "lateness p99", "ms", &column(|sample| sample.p99));
    }
    Ok(())
}

fn our_callbacks() -> Result<Samples> {
    let (volley, finished) = Volley::new();
    let timer = HashedWheelTimer::builder().tick_duration(TICK).ticks_per_wheel(4096).build()?;
    for id in 0..Volley::COUNT {
        let own = volley.clone();
        timer.new_timeout_at(move |_: &Timeout| own.fired(id), volley.due(id))?;
    }
    volley.measure(&finished)
}

fn our_tasks() -> Result<Samples> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let (volley, finished) = Volley::new();
    let timer = Timer::thread(TICK);
    for id in 0..Volley::COUNT {
        let (own, timer) = (volley.clone(), timer.clone());
        runtime.spawn(async move {
            timer.sleep_until(own.due(id)).await;
            own.fired(id);
        });
    }
    in_runtime(runtime, &volley, &finished)
}

fn tokio_tasks() -> Result<Samples> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let (volley, finished) = Volley::new();
    for id in 0..Volley::COUNT {
        let own = volley.clone();
        runtime.spawn(async move {
            tokio::time::sleep_until(own.due(id).into()).await;
            own.fired(id);
        });
    }
    in_runtime(runtime, &volley, &finished)
}

fn delay_queue() -> Result<Samples> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let (volley, finished) = Volley::new();
    let own = volley.clone();
    runtime.spawn(async move {
        let mut queue = DelayQueue::with_capacity(Volley::COUNT as usize);
        for id in 0..Volley::COUNT {
            queue.insert_at(id, own.due(id).into());
        }
        while let Some(expired) = std::future::poll_fn(|cx| queue.poll_expired(cx)).await {
            own.fired(expired.into_inner());
        }
    });
    in_runtime(runtime, &volley, &finished)
}

/// Drives the runtime on a thread of its own until all timers have fired.
fn in_runtime(
    runtime: tokio::runtime::Runtime,
    volley: &Volley,
    finished: &mpsc::Receiver<()>,
) -> Result<Samples> {
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let turning = thread::spawn(move || runtime.block_on(async { drop(stopped.await) }));
    let samples = volley.measure(finished);
    let _ = stop.send(());
    let _ = turning.join();
    samples
}

fn channel_timer() -> Result<Samples> {
    let (volley, finished) = Volley::new();
    let channel = TimerWithThread::<u64, OneShotClosureState<u64>, PeriodicClosureState<u64>>::new()?;
    let mut timer = channel.timer_ref();
    for id in 0..Volley::COUNT {
        let own = volley.clone();
        let delay = volley.due(id).saturating_duration_since(Instant::now());
        timer.schedule_action_once(id, delay, move |_| own.fired(id));
    }
    let samples = volley.measure(&finished);
    let _ = channel.shutdown_async();
    samples
}

fn stop_million(report: &mut Report) -> Result<()> {
    const COUNT: u64 = 1_000_000;
    let name = "1M pending: make in 2 threads, stop";
    if !report.wants(name) {
        return Ok(());
    }
    let (mut made, mut stopped) = (Vec::new(), Vec::new());
    for _ in 0..report.rounds() {
        let timer = HashedWheelTimer::builder().tick_duration(TICK).ticks_per_wheel(4096).build()?;
        let far = Instant::now() + Duration::from_secs(600);
        let before = Instant::now();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for id in 0..COUNT / 2 {
                        let _ = timer.new_timeout_at(|_: &Timeout| (), far + millis(id % 4096));
                    }
                });
            }
        });
        made.push(before.elapsed().as_secs_f64() * 1e3);
        anyhow::ensure!(timer.pending_timeouts() as u64 == COUNT, "all are placed at once");
        let before = Instant::now();
        let returned = timer.stop()?;
        stopped.push(before.elapsed().as_secs_f64() * 1e3);
        anyhow::ensure!(returned.len() as u64 == COUNT);
    }
    report.row(name, "wheellock HashedWheelTimer", "make", "ms", &made);
    report.row(name, "wheellock HashedWheelTimer", "stop", "ms", &stopped);
    Ok(())
}

/// Measures the lateness of a single timer of 5 ms, beyond its tick. It runs alone, or while every worker of a runtime is busy for 50 ms at
/// a time.
fn punctuality(report: &mut Report, busy: bool) -> Result<()> {
    let name = if busy { "lateness, runtime workers busy" } else { "lateness, idle" };
    if !report.wants(name) {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build()?;
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    for _ in 0..if busy { 2 } else { 0 } {
        let stop = stop.clone();
        runtime.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let until = Instant::now() + Duration::from_millis(50);
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
                tokio::task::yield_now().await;
            }
        });
    }
    // A tick of 10 us, so that the driver is measured and not the rounding.
    let timer = Timer::thread(Duration::from_micros(10));
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..report.rounds() {
        ours.push(quantiles(|| {
            let due = Instant::now() + Duration::from_millis(5);
            let (send, receive) = mpsc::channel();
            struct Note(mpsc::Sender<Instant>);
            impl std::task::Wake for Note {
                fn wake(self: Arc<Self>) {
                    let _ = self.0.send(Instant::now());
                }
            }
            let _ = timer.schedule(due, Arc::new(Note(send)).into());
            receive.recv().unwrap_or(due).saturating_duration_since(due)
        }));
        theirs.push(quantiles(|| {
            let due = Instant::now() + Duration::from_millis(5);
            let task = runtime.spawn(async move {
                tokio::time::sleep_until(due.into()).await;
                Instant::now()
            });
            runtime.block_on(task).unwrap_or(due).saturating_duration_since(due)
        }));
    }
    stop.store(true, Ordering::Relaxed);
    for (subject, samples) in [("wheellock Timer::thread", &ours), ("tokio Sleep multi_thread", &theirs)] {
        let column = |pick: fn(&[f64; 3]) -> f64| samples.iter().map(pick).collect::<Vec<_>>();
        report.row(name, subject, "p50", "ms", &column(|quantiles| quantiles[0]));
        report.row(name, subject, "p99", "ms", &column(|quantiles| quantiles[1]));
        report.row(name, subject, "max", "ms", &column(|quantiles| quantiles[2]));
    }
    Ok(())
}

/// Returns quantiles of a hundred samples.
fn quantiles(mut late: impl FnMut() -> Duration) -> [f64; 3] {
    let mut samples: Vec<Duration> = (0..100).map(|_| late()).collect();
    samples.sort_unstable();
    [samples[50], samples[98], samples[99]].map(|sample| sample.as_secs_f64() * 1e3)
}
