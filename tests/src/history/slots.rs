//! The slots of a pool, which show the processes inside.
//!
//! A pool has a file for each permit, and the kernel's `flock` gives each file to one task at a time. The module is the truth about pools,
//! as [`Cell`](super::Cell) is about locks.
//!
//! # Why a pool found full is certain
//!
//! A task enters under the file lock of the gate, and tries every slot. No other task enters meanwhile. So a slot that is taken when it is
//! tried was also taken when the first slot was tried. A task that enters got its grant before that, and is still valid afterwards. The
//! kernel frees the slots of a killed process.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// The slots of a pool. Every task opens its own files, because `flock` excludes open files, not processes.
#[derive(Debug)]
pub struct Slots {
    gate: File,
    places: Vec<File>,
}

/// The result of an attempt to enter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Way {
    /// The task took these slots.
    In(Vec<usize>),
    /// Too few slots were free, all at the same moment, while the entering task was valid.
    Full,
    /// Unknown: another process held the gate, or the entering task was not valid.
    NotNow,
}

impl Slots {
    /// Opens the slots of the pool `name`, in a directory that all its users share.
    ///
    /// # Errors
    ///
    /// Errors of opening files.
    pub fn open(directory: &Path, name: &str, places: usize) -> io::Result<Self> {
        let open = |what: String| {
            let path = directory.join(format!("{name}.{what}"));
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
        };
        let places = (0..places).map(|place| open(place.to_string())).collect::<io::Result<_>>()?;
        Ok(Self { gate: open("gate".to_owned())?, places })
    }

    /// Takes `places` slots or no slot, for a task that is `valid`.
    ///
    /// # Errors
    ///
    /// Errors of the files.
    pub fn enter(&self, places: usize, valid: impl Fn() -> bool) -> io::Result<Way> {
        if !take(&self.gate)? {
            return Ok(Way::NotNow);
        }
        let way = self.enter_by_the_gate(places, valid);
        flock(&self.gate, FlockOperation::Unlock)?;
        way
    }

    fn enter_by_the_gate(&self, wanted: usize, valid: impl Fn() -> bool) -> io::Result<Way> {
        if !valid() {
            return Ok(Way::NotNow);
        }
        let mut taken = Vec::new();
        for (place, file) in self.places.iter().enumerate() {
            if taken.len() < wanted && take(file)? {
                taken.push(place);
            }
        }
        if taken.len() == wanted {
            return Ok(Way::In(taken));
        }
        self.leave(&taken)?;
        Ok(if valid() { Way::Full } else { Way::NotNow })
    }

    /// Leaves the slots.
    ///
    /// # Errors
    ///
    /// Errors of the files.
    pub fn leave(&self, places: &[usize]) -> io::Result<()> {
        for place in places {
            flock(&self.places[*place], FlockOperation::Unlock)?;
        }
        Ok(())
    }
}

/// Takes a file lock without waiting. Returns true if it was free.
fn take(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::poll_until;

    #[test]
    fn slots_beyond_last_are_refused() {
        let directory = std::env::temp_dir().join(format!("wheellock-slots-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let users = [(); 3].map(|()| Slots::open(&directory, "pool", 3).unwrap());
        let enter = |user: usize, places| users[user].enter(places, || true).unwrap();
        assert_eq!(enter(0, 2), Way::In(vec![0, 1]));
        assert_eq!(enter(1, 2), Way::Full, "all or none");
        assert_eq!(enter(1, 1), Way::In(vec![2]));
        assert_eq!(users[2].enter(1, || false).unwrap(), Way::NotNow);
        assert_eq!(enter(2, 1), Way::Full);
        users[0].leave(&[0]).unwrap();
        assert_eq!(enter(2, 1), Way::In(vec![0]));
        users[2].leave(&[0]).unwrap();
        // Closing the files frees the slots.
        let [first, ..] = users;
        drop(first);
        let another = Slots::open(&directory, "pool", 3).unwrap();
        // A program that a concurrent test starts also has these files, until it runs.
        let enters = || another.enter(2, || true).unwrap() == Way::In(vec![0, 1]);
        assert!(poll_until(Duration::from_secs(10), enters));
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
