//! The history file of a process.
//!
//! Writes each event when it occurs.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use super::event::{Event, What};

/// The file of a process. The recorder writes each event separately, so that a SIGKILL loses at most half a line.
#[derive(Debug)]
pub struct Recorder {
    file: File,
    process: u32,
}

impl Recorder {
    /// Opens `directory/<process>.history` for appending.
    ///
    /// # Errors
    ///
    /// Errors of opening the file.
    pub fn create(directory: &Path, process: u32) -> io::Result<Self> {
        let path = directory.join(format!("{process}.history"));
        Ok(Self { file: OpenOptions::new().append(true).create(true).open(path)?, process })
    }

    /// Records an event of this moment.
    ///
    /// # Panics
    ///
    /// If the file cannot be written, because an incomplete history does not prove anything.
    pub fn now(&self, task: u32, op: u64, lock: &str, what: What) {
        self.at(now(), task, op, lock, what);
    }

    /// Records an event of an earlier moment.
    ///
    /// # Panics
    ///
    /// As [`now`](Self::now).
    pub fn at(&self, at: u64, task: u32, op: u64, lock: &str, what: What) {
        self.write(&Event { at, process: self.process, task, op, lock: lock.to_owned(), what });
    }

    /// Records an event of another process.
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

/// Returns `CLOCK_BOOTTIME` in nanoseconds. All processes share this clock, and it continues during suspend.
#[must_use]
pub fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
