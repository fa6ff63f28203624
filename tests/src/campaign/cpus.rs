//! Detection of a CPU that stands still.
//!
//! A worker's own stall detector covers only the thread that runs its tasks. The library's timer has a separate thread. On a virtual
//! machine, the host may take away the CPU of either thread while the other continues.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::worker::{BEAT, STALL};
use crate::history::{Recorder, What, now};

/// A thread on each CPU, which runs every few milliseconds.
pub(super) struct Cpus {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Cpus {
    /// Starts the threads.
    ///
    /// # Errors
    ///
    /// The system does not report its CPUs.
    pub(super) fn watch(recorder: &Arc<Recorder>) -> std::io::Result<Self> {
        let all = sched_getaffinity(None)?;
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..CpuSet::MAX_CPU)
            .filter(|cpu| all.is_set(*cpu))
            .map(|cpu| {
                let (recorder, stop) = (Arc::clone(recorder), Arc::clone(&stop));
                std::thread::spawn(move || {
                    // If the system refuses, the thread watches the CPU that it happens to run on.
                    let _refused = sched_setaffinity(None, &only(cpu));
                    watch(&recorder, &stop);
                })
            })
            .collect();
        Ok(Self { stop, threads })
    }
}

impl Drop for Cpus {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _panicked = thread.join();
        }
    }
}

fn only(cpu: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(cpu);
    set
}

fn watch(recorder: &Recorder, stop: &AtomicBool) {
    let mut before = now();
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(BEAT);
        let after = now();
        if after - before > STALL {
            recorder.at(before, 0, 0, "", What::Stalled { until: after });
        }
        before = after;
    }
}
