//! Rig: many tasks at work on one connection, round by round.
//!
//! The rig owns the tasks, the clock readings and the counts. It does not know the contenders.

use std::future::Future;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use allocation_counter::measure;
use anyhow::Result;
use tokio::runtime::Runtime;
use tokio::sync::{Notify, watch};
use wheellock_benches::process_cpu;

/// The repeated work of one task.
pub(crate) trait Session: Send + 'static {
    /// Does one unit of work. Returns true if its outcome was right.
    fn once(&mut self) -> impl Future<Output = bool> + Send;

    /// Returns the number of units per call.
    fn units(&self) -> u64 {
        1
    }
}

/// The tasks of one contender. They stay alive between rounds, so that a round contains only their work.
pub(crate) struct Rig {
    name: String,
    runtime: Runtime,
    orders: watch::Sender<u64>,
    board: Arc<Board>,
    tasks: u64,
    units: u64,
}

/// The state that the tasks share with the rig.
struct Board {
    /// Number of tasks still at work in this round.
    running: AtomicUsize,
    done: Notify,
    wrong: AtomicU64,
    /// Nanoseconds of the timed operations.
    latencies: Mutex<Vec<u64>>,
    /// One in this many operations is timed. Two readings of the clock cost a considerable part of an operation.
    every: u64,
}

/// The results of one rig's round, per unit of work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub(crate) per_second: f64,
    pub(crate) cpu_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p90_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    /// Allocations of the thread that runs a current-thread runtime, and of no other thread.
    pub(crate) allocations: f64,
    /// Wrong replies, errors included.
    pub(crate) wrong: f64,
}

impl Rig {
    /// Spawns a task for each session.
    pub(crate) fn new<S: Session>(name: &str, runtime: Runtime, sessions: Vec<S>) -> Self {
        let tasks = sessions.len() as u64;
        let units = sessions.first().map_or(1, Session::units);
        let board = Arc::new(Board {
            running: AtomicUsize::new(0),
            done: Notify::new(),
            wrong: AtomicU64::new(0),
            latencies: Mutex::new(Vec::new()),
            every: if tasks == 1 { 1 } else { 8 },
        });
        let (orders, receiver) = watch::channel(0);
        for session in sessions {
            let (board, orders) = (Arc::clone(&board), receiver.clone());
            runtime.spawn(serve(session, board, orders));
        }
        Self { name: name.to_owned(), runtime, orders, board, tasks, units }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Runs about `units` units of work, divided equally among the tasks.
    pub(crate) fn run(&self, units: u64) -> Result<Round> {
        let each = (units / self.units / self.tasks).max(1);
        let units = each * self.tasks * self.units;
        let timed = (each / self.board.every + 1) * self.tasks;
        self.latencies(|latencies| {
            latencies.clear();
            latencies.reserve(usize::try_from(timed).unwrap_or_default());
        });
        self.board.running.store(usize::try_from(self.tasks)?, Ordering::Relaxed);
        let (mut elapsed, mut cpu) = (Duration::ZERO, Duration::ZERO);
        let allocated = measure(|| {
            let (before, cpu_before) = (Instant::now(), process_cpu());
            self.runtime.block_on(self.work(each));
            elapsed = before.elapsed();
            cpu = process_cpu() - cpu_before;
        });
        let wrong = self.board.wrong.swap(0, Ordering::Relaxed);
        #[expect(clippy::cast_precision_loss, reason = "figures with three digits")]
        let per_unit = |total: f64| total / units as f64;
        #[expect(clippy::cast_precision_loss, reason = "figures with three digits")]
        let [p50_us, p90_us, p99_us, p999_us] = self.latencies(|latencies| {
            latencies.sort_unstable();
            [500, 900, 990, 999].map(|per_mille| percentile(latencies, per_mille) as f64 / 1e3)
        });
        #[expect(clippy::cast_precision_loss, reason = "figures with three digits")]
        let (allocations, wrong) = (allocated.count_total as f64, wrong as f64);
        Ok(Round {
            per_second: 1.0 / per_unit(elapsed.as_secs_f64()),
            cpu_us: per_unit(cpu.as_secs_f64() * 1e6),
            p50_us,
            p90_us,
            p99_us,
            p999_us,
            allocations: per_unit(allocations),
            wrong: per_unit(wrong),
        })
    }

    /// Starts the round from a task of the tasks' own runtime. A busy runtime only occasionally checks for tasks that other threads have
    /// woken. With a busy contender, few tasks would then work at the same time.
    async fn work(&self, each: u64) {
        let orders = self.orders.clone();
        let started = tokio::spawn(async move { orders.send_replace(each) }).await;
        assert!(started.is_ok(), "nothing in it panics");
        self.board.done.notified().await;
    }

    fn latencies<T>(&self, with: impl FnOnce(&mut Vec<u64>) -> T) -> T {
        with(&mut self.board.latencies.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Rig {
    /// Returns the number of units that take about `seconds`, and warms up meanwhile.
    pub(crate) fn units_within(&self, seconds: f64) -> Result<u64> {
        let mut units = self.tasks * self.units * LEAST;
        loop {
            let round = self.run(units)?;
            #[expect(clippy::cast_precision_loss, reason = "a rough estimate")]
            let took = units as f64 / round.per_second;
            if took >= seconds / 4.0 {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "positive and small"
                )]
                let wanted = (round.per_second * seconds) as u64;
                let of_all = self.tasks * self.units;
                return Ok((wanted / of_all).max(LEAST) * of_all);
            }
            units *= 2;
        }
    }
}

/// Runs one task: waits for orders, executes them and reports, until the rig is dropped.
async fn serve<S: Session>(mut session: S, board: Arc<Board>, mut orders: watch::Receiver<u64>) {
    while orders.changed().await.is_ok() {
        let count = *orders.borrow_and_update();
        for index in 0..count {
            let timed = index % board.every == 0;
            let before = timed.then(Instant::now);
            let right = session.once().await;
            if let Some(before) = before {
                let nanos = u64::try_from(before.elapsed().as_nanos()).unwrap_or(u64::MAX);
                board.latencies.lock().unwrap_or_else(PoisonError::into_inner).push(nanos);
            }
            if !right {
                board.wrong.fetch_add(1, Ordering::Relaxed);
            }
        }
        if board.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            board.done.notify_one();
        }
    }
}

/// Returns the value that `per_mille` thousandths of the sorted samples do not exceed.
pub(crate) fn percentile(sorted: &[u64], per_mille: usize) -> u64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((sorted.len() * per_mille / 1000).min(last)).copied().unwrap_or_default()
}

/// Minimum number of calls of each task within a round. Starting a round wakes every task once, and that cost should not dominate.
const LEAST: u64 = 16;
