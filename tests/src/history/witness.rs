//! A witness of the holders, independent of the library.
//!
//! Each lock has a small file, which tasks change under `flock`. The witness is the truth about overlaps, and the resource that checks
//! tokens.
//!
//! # Why an overlap found here is certain
//!
//! A holder enters under the file's lock, and only if its guard reports that it is valid *while it holds that lock*. Suppose that A has
//! entered, and later reads that the cell has another entry. Then some B entered after A, and B's guard was valid at a moment t, after A's
//! entry. Now A's guard, asked after that read, still reports that it is valid. A lost guard never becomes valid again. So A believed from
//! its grant (before its entry, so before t) until that answer (after t). Both believed at t. The order matters: a guard that was asked
//! *before* the read may have been right.
//!
//! For shared holds, the same is true of every exclusive holder that enters after them. The cell counts exclusive entries separately. A
//! shared holder checks for later exclusive entries, and an exclusive holder checks for any later entry.
//!
//! Kills and stops do not change this. A process that is killed inside leaves a cell with its token, and the next entry replaces it. An
//! entry does not accuse the holder that it finds in the cell. A process that is stopped inside does not ask its guard until it continues.
//! A process that is stopped between its guard's answer and the change of the cell keeps the file's lock. So a later holder enters after
//! it. A process that is killed at that point has not changed the cell.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// The cells of a campaign, in a directory that all its processes share. A memory file system is best, because entering must cost less than
/// the observed work.
#[derive(Clone, Debug)]
pub struct Witness {
    directory: PathBuf,
}

impl Witness {
    /// Makes the witness of the cells in `directory`, which must exist.
    #[must_use]
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// Opens the cell of a lock.
    ///
    /// # Errors
    ///
    /// Errors of opening a file.
    pub fn cell(&self, lock: &str) -> io::Result<Cell> {
        let name: String =
            lock.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' }).collect();
        let path = self.directory.join(format!("{name}.cell"));
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        Ok(Cell { file })
    }
}

/// The cell of a lock. Every task opens its own file, because `flock` excludes open files, not processes.
#[derive(Debug)]
pub struct Cell {
    file: File,
}

/// An entry of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The token: one more than the token of the entry before.
    pub token: u64,
    /// True if other shared holders may be inside at the same time.
    pub shared: bool,
    /// The token of the last exclusive entry, which may be this entry.
    alone: u64,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The time of the decision, while no other process could write.
    pub at: u64,
    /// The highest token accepted before.
    pub highest: u64,
    /// True if the write was accepted, because its token is not below the highest token.
    pub accepted: bool,
}

impl Cell {
    /// Enters exclusively if `valid` returns true while other tasks cannot enter. Returns `None` if another process holds the file's lock,
    /// or if `valid` returns false.
    ///
    /// # Errors
    ///
    /// Errors of the file.
    pub fn enter(&self, valid: impl FnOnce() -> bool) -> io::Result<Option<Entry>> {
        self.enter_as(false, valid)
    }

    /// Enters like [`enter`](Self::enter), exclusively or shared.
    ///
    /// # Errors
    ///
    /// Errors of the file.
    pub fn enter_as(&self, shared: bool, valid: impl FnOnce() -> bool) -> io::Result<Option<Entry>> {
        let Some(held) = self.try_lock()? else { return Ok(None) };
        if !valid() {
            return Ok(None);
        }
        let before = held.read()?;
        let token = before.last + 1;
        let alone = if shared { before.alone } else { token };
        held.write(State { inside: token, last: token, alone, ..before })?;
        Ok(Some(Entry { token, shared, alone }))
    }

    /// Returns the token of a holder that entered after `entry` and must not be inside beside it, if there is one.
    ///
    /// # Errors
    ///
    /// Errors of the file.
    pub fn entered_since(&self, entry: Entry) -> io::Result<Option<u64>> {
        // Reads without the file's lock, because a stopped process may hold it. A half-written change still shows as a change, and only an
        // entry changes these words.
        let State { last, alone, .. } = State::read(&self.file)?;
        let (now, then) = if entry.shared { (alone, entry.alone) } else { (last, entry.token) };
        Ok((now != then).then_some(now))
    }

    /// Leaves, if no other holder has entered since.
    ///
    /// # Errors
    ///
    /// Errors of the file.
    pub fn leave(&self, entry: Entry) -> io::Result<()> {
        let Some(held) = self.try_lock()? else { return Ok(()) };
        let state = held.read()?;
        if state.inside == entry.token { held.write(State { inside: 0, ..state }) } else { Ok(()) }
    }

    /// Returns the token of the last entry if that holder is still inside, or 0.
    ///
    /// # Errors
    ///
    /// Errors of the file.
    pub fn inside(&self) -> io::Result<u64> {
        Ok(State::read(&self.file)?.inside)
    }

    /// Sends a write to the resource that checks tokens. Returns `None` if another process holds the file's lock.
    ///
    /// # Errors
    ///
    /// Errors of the file.
    pub fn write(&self, token: u64) -> io::Result<Option<Write>> {
        let Some(held) = self.try_lock()? else { return Ok(None) };
        let state = held.read()?;
        let accepted = token >= state.highest;
        if accepted {
            held.write(State { highest: token, ..state })?;
        }
        Ok(Some(Write { at: super::now(), highest: state.highest, accepted }))
    }

    /// Does not wait. A stopped process may hold the lock for seconds, and waiting would stop this process, too.
    fn try_lock(&self) -> io::Result<Option<Held<'_>>> {
        match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Held(&self.file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

struct Held<'a>(&'a File);

impl Held<'_> {
    fn read(&self) -> io::Result<State> {
        State::read(self.0)
    }

    fn write(&self, state: State) -> io::Result<()> {
        let words = [state.inside, state.last, state.highest, state.alone];
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        self.0.write_all_at(&bytes, 0)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let _closed_with_the_file = flock(self.0, FlockOperation::Unlock);
    }
}

#[derive(Clone, Copy, Default)]
struct State {
    /// The token of the last entry if that holder is inside, or 0.
    inside: u64,
    /// The last token.
    last: u64,
    /// The highest token whose write was accepted.
    highest: u64,
    /// The token of the last exclusive entry.
    alone: u64,
}

impl State {
    fn read(file: &File) -> io::Result<Self> {
        let mut bytes = [0; 32];
        let mut filled = 0;
        while filled < bytes.len() {
            match file.read_at(&mut bytes[filled..], filled as u64)? {
                0 => break,
                read => filled += read,
            }
        }
        let word = |place: usize| {
            bytes
                .get(8 * place..8 * place + 8)
                .and_then(|word| word.try_into().ok())
                .map_or(0, u64::from_le_bytes)
        };
        Ok(Self { inside: word(0), last: word(1), highest: word(2), alone: word(3) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn witness(name: &str) -> Witness {
        let directory = std::env::temp_dir().join(format!("wheellock-witness-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        Witness::new(&directory)
    }

    #[test]
    fn holder_inside_sees_later_entry() {
        let witness = witness("later");
        let (a, b) = (witness.cell("l").unwrap(), witness.cell("l").unwrap());
        let first = a.enter(|| true).unwrap().unwrap();
        assert_eq!(a.entered_since(first).unwrap(), None);
        assert_eq!(b.enter(|| false).unwrap(), None, "without a valid guard nobody enters");
        let second = b.enter(|| true).unwrap().unwrap();
        assert!(second.token > first.token);
        assert_eq!(a.entered_since(first).unwrap(), Some(second.token));
        a.leave(first).unwrap();
        assert_eq!(b.inside().unwrap(), second.token, "who was replaced takes nobody else out");
        b.leave(second).unwrap();
        assert_eq!(b.inside().unwrap(), 0);
        std::fs::remove_dir_all(&witness.directory).unwrap();
    }

    #[test]
    fn only_later_conflicting_entry_is_seen() {
        let witness = witness("shared");
        let cells = [(); 4].map(|()| witness.cell("l").unwrap());
        let enter = |place: usize, shared| cells[place].enter_as(shared, || true).unwrap().unwrap();
        let (first, second) = (enter(0, true), enter(1, true));
        for (cell, entry) in cells.iter().zip([first, second]) {
            assert_eq!(cell.entered_since(entry).unwrap(), None, "readers do not disturb readers");
        }
        let alone = enter(2, false);
        for (cell, entry) in cells.iter().zip([first, second]) {
            assert_eq!(cell.entered_since(entry).unwrap(), Some(alone.token));
        }
        assert_eq!(cells[2].entered_since(alone).unwrap(), None);
        let third = enter(3, true);
        assert_eq!(cells[2].entered_since(alone).unwrap(), Some(third.token));
        assert_eq!(
            cells[3].entered_since(third).unwrap(),
            None,
            "who was there before is accused of nothing"
        );
        std::fs::remove_dir_all(&witness.directory).unwrap();
    }

    #[test]
    fn resource_rejects_late_write() {
        let witness = witness("late");
        let cell = witness.cell("l").unwrap();
        for (token, accepted) in [(1, true), (1, true), (3, true), (2, false), (3, true)] {
            assert_eq!(cell.write(token).unwrap().unwrap().accepted, accepted, "{token}");
        }
        std::fs::remove_dir_all(&witness.directory).unwrap();
    }

    #[test]
    fn locked_file_refuses_without_waiting() {
        let witness = witness("file");
        let (a, b) = (witness.cell("l").unwrap(), witness.cell("l").unwrap());
        let held = a.try_lock().unwrap().unwrap();
        assert_eq!(b.enter(|| true).unwrap(), None);
        drop(held);
        assert!(b.enter(|| true).unwrap().is_some());
        std::fs::remove_dir_all(&witness.directory).unwrap();
    }
}
