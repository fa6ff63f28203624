//! Writes down what happens as it happens. Owns the file of one process.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use super::event::{Event, What};

/// The file of one process: one write for each event, so that a SIGKILL loses at most half a line.
#[derive(Debug)]
pub struct Recorder {
    file: File,
    process: u32,
}

impl Recorder {
    /// Appends to `directory/<process>.history`.
    ///
    /// # Errors
    ///
    /// Those of opening the file.
    pub fn create(directory: &Path, process: u32) -> io::Result<Self> {
        let path = directory.join(format!("{process}.history"));
        Ok(Self { file: OpenOptions::new().append(true).create(true).open(path)?, process })
    }

    /// Records what happens now.
    ///
    /// # Panics
    ///
    /// If the file cannot be written: a history with holes proves nothing.
    pub fn now(&self, task: u32, op: u64, lock: &str, what: What) {
        self.at(now(), task, op, lock, what);
    }

    /// Records what happened at a moment that was noted before.
    ///
    /// # Panics
    ///
    /// As [`now`](Self::now).
    pub fn at(&self, at: u64, task: u32, op: u64, lock: &str, what: What) {
        self.write(&Event { at, process: self.process, task, op, lock: lock.to_owned(), what });
    }

    /// Records what happens to another process.
    ///
    /// # Panics
    ///
    /// As [`now`](Self::now).
    pub fn about(&self, process: u32, what: What) {
        self.write(&Event { at: now(), process, task: 0, op: 0, lock: String::new(), what });
    }

    fn write(&self, event: &Event) {
        (&self.file).write_all(format!("{event}\n").as_bytes()).expect("a history can be written");
    }
}

/// `CLOCK_BOOTTIME` in nanoseconds: all processes share it, and it goes on during suspend.
#[must_use]
pub fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
