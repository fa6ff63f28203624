//! Wake-ups of idle timers' threads, counted by the system.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use hierarchical_hash_wheel_timer::thread_timer::TimerWithThread;
use hierarchical_hash_wheel_timer::{ClosureTimer as _, OneShotClosureState, PeriodicClosureState};
use std::task::Waker;
use wheellock_benches::Report;
use wheellock_wheel::{HashedWheelTimer, Timeout, Timer};

const TICK: Duration = Duration::from_millis(1);

pub(crate) fn run(report: &mut Report) -> Result<()> {
    idle(report)?;
    churn(report)
}

/// Measures an idle minute of all timers at once.
fn idle(report: &mut Report) -> Result<()> {
    const MINUTE: Duration = Duration::from_secs(60);
    let name = "idle wakeups";
    if !report.wants(name) {
        return Ok(());
    }
    let builder = || HashedWheelTimer::builder().tick_duration(TICK);
    let unused = builder().thread_name("ours-unused").build()?;
    unused.start()?;
    let one = builder().thread_name("ours-30s").build()?;
    let far = builder().thread_name("ours-far").build()?;
    far.new_timeout(|_: &Timeout| (), Duration::from_secs(3600))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("tokio-idle")
        .enable_time()
        .build()?;
    runtime.spawn(async { tokio::time::sleep(Duration::from_secs(3600)).await });
    let channel = TimerWithThread::<u64, OneShotClosureState<u64>, PeriodicClosureState<u64>>::new()?;
    channel.timer_ref().schedule_action_once(1, Duration::from_secs(3600), |_| ());
    one.new_timeout(|_: &Timeout| (), Duration::from_secs(30))?;
    thread::sleep(Duration::from_millis(500));

    let threads = ["ours-unused", "ours-30s", "ours-far", "tokio-idle", "timer-thread"];
    let before = threads.map(voluntary_switches);
    thread::sleep(MINUTE);
    let after = threads.map(voluntary_switches);
    let rate = |index: usize| [(after[index] - before[index]) as f64 / MINUTE.as_secs_f64()];
    report.row(name, "wheellock, no timer", "wakeups", "1/s", &rate(0));
    report.row(name, "wheellock, one 30 s timer", "in a minute", "1", &[(after[1] - before[1]) as f64]);
    report.row(name, "wheellock, one far timer", "wakeups", "1/s", &rate(2));
    report.row(name, "tokio, one far timer", "wakeups", "1/s", &rate(3));
    report.row(name, "hierarchical_hash_wheel_timer", "wakeups", "1/s", &rate(4));
    Ok(())
}

/// Measures requests with a timeout of 3 s whose replies arrive at once.
fn churn(report: &mut Report) -> Result<()> {
    let name = "wakeups under request churn";
    if !report.wants(name) {
        return Ok(());
    }
    let timer = Timer::thread(TICK);
    let seconds = 12;
    let mut made = 0_u64;
    let start = timer.now();
    let mut before = None;
    while timer.now() < start + Duration::from_secs(seconds) {
        let now = timer.now();
        let flight: Vec<_> = (0..20)
            .filter_map(|_| timer.schedule(now + Duration::from_secs(3), Waker::noop().clone()).ok())
            .collect();
        made += flight.len() as u64;
        thread::sleep(Duration::from_micros(200));
        flight.into_iter().for_each(|scheduled| drop(timer.cancel(scheduled)));
        before.get_or_insert_with(|| voluntary_switches("wheellock-timer"));
    }
    let wakes = voluntary_switches("wheellock-timer") - before.unwrap_or_default();
    report.row(name, "wheellock Timer", "wakeups", "1/s", &[wakes as f64 / seconds as f64]);
    report.row(name, "wheellock Timer", "timers", "1/s", &[made as f64 / seconds as f64]);
    Ok(())
}

/// Counts the voluntary switches of this process's threads with that name (the system keeps 15 bytes of it).
fn voluntary_switches(name: &str) -> u64 {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks
        .filter_map(|task| {
            let comm = fs::read_to_string(task.path().join("comm")).ok()?;
            let status =
                fs::read_to_string(task.path().join("status")).ok().filter(|_| comm.trim() == name)?;
            let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"))?;
            line.split_whitespace().last()?.parse::<u64>().ok()
        })
        .sum()
}
