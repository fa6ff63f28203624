//! Notices when one CPU stands still. A worker's own watch speaks for the thread that runs its tasks; the library's timer has a thread of
//! its own, and on a virtual machine either may be on a CPU that the host has taken away while the other goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::worker::{BEAT, STALL};
use crate::history::{Recorder, What, now};

/// One thread on each CPU, which wants it every few milliseconds.
pub(super) struct Cpus {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Cpus {
    /// # Errors
    ///
    /// The system does not say which CPUs there are.
    pub(super) fn watch(recorder: &Arc<Recorder>) -> std::io::Result<Self> {
        let all = sched_getaffinity(None)?;
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..CpuSet::MAX_CPU)
            .filter(|cpu| all.is_set(*cpu))
            .map(|cpu| {
                let (recorder, stop) = (Arc::clone(recorder), Arc::clone(&stop));
                std::thread::spawn(move || {
                    // If the system refuses, this thread watches whatever CPU it is on.
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
