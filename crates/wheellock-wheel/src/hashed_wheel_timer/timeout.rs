//! Handle of a timeout, and the timeout's states.
//!
//! A timeout is pending, then expired or cancelled, once. The types depend on each other. A shard keeps entries, a task runs with a handle,
//! and a handle has its shard. Only this file and its submodules know all three. The timer is above them.

mod share;
mod task;

use std::fmt;
use std::sync::Arc;

use share::Share;
use task::KeptTask;
pub(super) use task::{AnyTask, any_task};
pub use task::{Task, TimerTask};

use super::NewTimeoutError;
use super::entry::{self, CANCELLED, EXPIRED, PENDING};
use crate::TimerKey;
use crate::contain::contained;
use crate::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use crate::timer::shards::{Expire, Shard, Shards, Stored};

/// A handle of a task that was passed to a [`HashedWheelTimer`](crate::HashedWheelTimer). Dropping the handle does not cancel the timeout.
///
/// A handle keeps its task in memory. A handle of an expired timeout, or of a timeout that a clone cancelled, also keeps 48 bytes in the
/// wheel.
///
/// ```
/// use std::time::Duration;
/// use wheellock_wheel::{HashedWheelTimer, Timeout};
///
/// let timer = HashedWheelTimer::new();
/// let timeout = timer.new_timeout(|_: &Timeout| println!("no reply"), Duration::from_secs(3))?;
/// assert!(!timeout.is_expired());
/// assert!(timeout.cancel());
/// assert!(timeout.is_cancelled() && !timeout.cancel()); // once
/// # Ok::<(), wheellock_wheel::NewTimeoutError>(())
/// ```
pub struct Timeout {
    shard: Share,
    key: TimerKey,
    /// The tick of the deadline. `UNDATED` if the timeout had no deadline when this handle was made.
    tick: u64,
    task: AnyTask,
    /// The final state once this handle no longer counts in the entry; `PENDING` before. It changes once, under the shard's lock.
    known: AtomicU8,
}

impl Timeout {
    #[inline]
    pub(super) fn of(shard: &Arc<Shard<Entry>>, key: TimerKey, tick: u64, task: AnyTask, known: u8) -> Self {
        Self { shard: Share::of(shard), key, tick, task, known: AtomicU8::new(known) }
    }

    pub(super) fn shards(&self) -> Option<Arc<Shards<Entry>>> {
        self.shard.all()
    }

    /// Returns the task. The caller may pass it to a timer again.
    #[must_use]
    pub fn task(&self) -> Task {
        Task(self.task.clone())
    }

    /// Returns true once the timeout has expired: while its task runs, and afterwards.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.fate() == EXPIRED
    }

    /// Returns true if the timeout was cancelled, or returned by [`HashedWheelTimer::stop`](crate::HashedWheelTimer::stop).
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.fate() == CANCELLED
    }

    /// Cancels the timeout, frees its memory at once and calls [`TimerTask::cancelled`]. Returns false if the timeout has expired or was
    /// cancelled before.
    pub fn cancel(&self) -> bool {
        if self.known.load(Ordering::Acquire) != PENDING {
            return false;
        }
        if !self.shard.with(|stored| Entry::cancel(stored, self.key, &self.known)) {
            return false;
        }
        self.shard.hub().shared.leave();
        self.shard.taken_out();
        self.tell_cancelled();
        true
    }

    fn fate(&self) -> u8 {
        match self.known.load(Ordering::Acquire) {
            PENDING => self.shard.with(|stored| match stored.wheel.get_mut(self.key) {
                Some(entry) => entry.fate(),
                // Another thread has just cancelled the timeout through this same handle.
                None => self.known.load(Ordering::Acquire),
            }),
            known => known,
        }
    }

    pub(super) fn tell_cancelled(&self) {
        contained(|| self.task.get().cancelled(self));
    }
}

impl Clone for Timeout {
    fn clone(&self) -> Self {
        let known = match self.known.load(Ordering::Acquire) {
            PENDING => self.shard.with(|stored| match stored.wheel.get_mut(self.key) {
                Some(entry) => {
                    *entry.handles() += 1;
                    PENDING
                }
                None => self.known.load(Ordering::Acquire),
            }),
            known => known,
        };
        Self {
            shard: Share::of(&self.shard),
            key: self.key,
            tick: self.tick,
            task: self.task.clone(),
            known: AtomicU8::new(known),
        }
    }
}

impl Drop for Timeout {
    fn drop(&mut self) {
        if self.known.load(Ordering::Acquire) == PENDING {
            self.shard.with(|stored| Entry::forget(stored, self.key));
        }
    }
}

impl fmt::Debug for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hub = self.shard.hub();
        let now = hub.clock.now();
        let mut out = f.debug_struct("Timeout");
        let tick = match self.tick {
            UNDATED => self.shard.with(|stored| stored.wheel.deadline(self.key)).unwrap_or(UNDATED),
            tick => tick,
        };
        match hub.ticks.start_of(tick) {
            None if tick == UNDATED => &mut out,
            None => out.field("deadline", &"never"),
            Some(at) if at > now => out.field("due_in", &(at - now)),
            Some(at) => out.field("due_ago", &(now - at)),
        };
        out.field("expired", &self.is_expired()).field("cancelled", &self.is_cancelled()).finish()
    }
}

/// An expired timeout, passed to an executor to be run.
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use wheellock_wheel::{HashedWheelTimer, Job, Timeout};
///
/// let (jobs, inbox) = mpsc::channel::<Job>();
/// std::thread::spawn(move || inbox.into_iter().for_each(Job::run)); // a thread that may be slow
/// let (timer, ticker) =
///     HashedWheelTimer::builder().executor(move |job| drop(jobs.send(job))).build_manual()?;
///
/// let (said, heard) = mpsc::channel();
/// timer.new_timeout(move |_: &Timeout| drop(said.send("no reply")), Duration::from_secs(3))?;
/// ticker.advance(Duration::from_secs(4));
/// assert_eq!(heard.recv()?, "no reply");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Job(Timeout);

impl Job {
    /// Runs the task. The caller must handle a panic of the task.
    pub fn run(self) {
        self.0.task.get().run(&self.0);
    }

    /// Returns the timeout.
    #[must_use]
    pub fn timeout(&self) -> &Timeout {
        &self.0
    }
}

pub(super) type Executor = Arc<dyn Fn(Job) + Send + Sync>;

/// Data that all timeouts of a timer share.
pub(crate) struct Shared {
    executor: Option<Executor>,
    /// Maximum number of pending timeouts; 0 means any number.
    limit: usize,
    /// Number of pending timeouts, counted only with a limit. Without a limit the threads avoid the contention.
    counted: AtomicUsize,
}

impl Shared {
    pub(super) fn new(executor: Option<Executor>, limit: usize) -> Self {
        Self { executor, limit, counted: AtomicUsize::new(0) }
    }

    pub(super) fn enter(&self) -> Result<(), NewTimeoutError> {
        if self.limit > 0 && self.counted.fetch_add(1, Ordering::AcqRel) >= self.limit {
            return Err(self.refuse(NewTimeoutError::Full { max: self.limit }));
        }
        Ok(())
    }

    pub(super) fn refuse(&self, error: NewTimeoutError) -> NewTimeoutError {
        self.leave();
        error
    }

    pub(super) fn leave(&self) {
        if self.limit > 0 {
            self.counted.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// A timeout in its wheel.
pub(super) type Entry = entry::Entry<dyn KeptTask>;

const _: () = assert!(size_of::<Entry>() == 24);

/// Marks a timeout without a deadline. It differs from every tick, including `NEVER`.
pub(super) const UNDATED: u64 = u64::MAX;

impl Expire for Entry {
    type Shared = Shared;

    type Taken = AnyTask;

    const KEEPS_TIMER: bool = true;

    fn take_due(stored: &mut Stored<Self>, key: TimerKey) -> Option<AnyTask> {
        Self::leave(stored, key, |handles| Self::Expired { handles })
    }

    fn take_left(stored: &mut Stored<Self>, key: TimerKey) -> Option<AnyTask> {
        Self::leave(stored, key, |handles| Self::Cancelled { handles })
    }

    fn take_back(stored: &mut Stored<Self>, key: TimerKey) -> Option<Self> {
        Self::take_back(stored, key)
    }

    fn is_pending(&self) -> bool {
        self.fate() == PENDING
    }

    fn fetch(&self) {
        if let Self::Shared { task, .. } = self {
            std::hint::black_box(Arc::strong_count(task));
            task.read_end();
        }
    }

    fn expire(task: AnyTask, shard: &Arc<Shard<Self>>, key: TimerKey, tick: u64) {
        let shared = &shard.hub().shared;
        shared.leave();
        let job = Job(Timeout::of(shard, key, tick, task, EXPIRED));
        match &shared.executor {
            // Contain the run separately from the task's drop, which may panic too: two panics at once would abort the process.
            None => contained(|| job.0.task.get().run(&job.0)),
            Some(execute) => execute(job),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;
    use std::vec::Vec;

    use super::*;
    use crate::HashedWheelTimer;

    #[test]
    fn rescheduling_shares_one_task() {
        let (timer, ticker) = HashedWheelTimer::builder().build_manual().unwrap();
        let held = Arc::new(());
        let first = timer.new_timeout(move |_: &Timeout| drop(held.clone()), Duration::ZERO).unwrap();
        let same = |one: &AnyTask, other: &AnyTask| match (one, other) {
            (AnyTask::Shared(one), AnyTask::Shared(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        let mut last = first.clone();
        for _ in 0..3 {
            last = timer.new_timeout(last.task(), Duration::ZERO).unwrap();
            assert!(same(&last.task().0, &first.task), "no timeout keeps the one before it");
        }
        ticker.advance(Duration::from_secs(1));
        assert!(first.is_expired() && last.is_expired());
    }

    #[test]
    fn handles_agree_and_last_frees_entry() {
        let second = Duration::from_secs(1);
        for kept in 0..3 {
            for end in ["cancelled by a handle", "cancelled by a clone", "expired", "stopped"] {
                let (timer, ticker) = HashedWheelTimer::builder().build_manual().unwrap();
                let first = timer.new_timeout(|_: &Timeout| (), second).unwrap();
                let mut clones: Vec<Timeout> = (0..kept).map(|_| first.clone()).collect();
                assert_eq!((timer.entries(), timer.pending_timeouts()), (1, 1));
                match end {
                    "cancelled by a handle" => assert!(first.cancel()),
                    "cancelled by a clone" => assert!(clones.last().unwrap_or(&first).cancel()),
                    "expired" => ticker.advance(second),
                    _ => assert_eq!(timer.stop().unwrap().len(), 1),
                }
                assert_eq!(timer.pending_timeouts(), 0, "{end}");
                clones.push(first);
                clones.push(clones[0].clone());
                for timeout in &clones {
                    assert_eq!(timeout.is_expired(), end == "expired", "{end}");
                    assert_eq!(timeout.is_cancelled(), end != "expired", "{end}");
                    assert!(!timeout.cancel());
                }
                clones.drain(1..);
                assert_eq!(clones[0].is_expired(), end == "expired", "{end}");
                clones.clear();
                assert_eq!(timer.entries(), 0, "{end}, {kept} clones");
            }
        }
    }

    #[test]
    fn fired_timeout_without_handles_is_freed() {
        let (timer, ticker) = HashedWheelTimer::builder().build_manual().unwrap();
        drop(timer.new_timeout(|_: &Timeout| (), Duration::from_secs(1)).unwrap());
        assert_eq!((timer.entries(), timer.pending_timeouts()), (1, 1));
        ticker.advance(Duration::from_secs(1));
        assert_eq!(timer.entries(), 0);
    }

    #[test]
    fn stateless_task_with_drop_is_dropped() {
        static DROPS: AtomicUsize = AtomicUsize::new(0);
        struct Empty;
        impl TimerTask for Empty {
            fn run(&self, _: &Timeout) {}
        }
        struct Noticed;
        impl TimerTask for Noticed {
            fn run(&self, _: &Timeout) {}
        }
        impl Drop for Noticed {
            fn drop(&mut self) {
                DROPS.fetch_add(1, Ordering::SeqCst);
            }
        }
        assert!(matches!(any_task(Empty), AnyTask::Stateless(_)));
        let (timer, ticker) = HashedWheelTimer::builder().build_manual().unwrap();
        let timeout = timer.new_timeout(Noticed, Duration::from_secs(1)).unwrap();
        assert!(timeout.cancel());
        assert_eq!(DROPS.load(Ordering::SeqCst), 0, "it may be asked for");
        drop(timeout);
        assert_eq!(DROPS.load(Ordering::SeqCst), 1);
        drop(timer.new_timeout(Noticed, Duration::from_secs(1)).unwrap());
        ticker.advance(Duration::from_secs(1));
        assert_eq!(DROPS.load(Ordering::SeqCst), 2);
    }
}
