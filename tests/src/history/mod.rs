//! Histories of events, and the checkers that judge them.
//!
//! Worker processes record every operation on a shared clock ([`Recorder`]). A [`Witness`], which shares no code with the library, records
//! the holders. [`check`] judges the merged [`History`]. A history is text, so a maintainer can store, read, shorten and recheck it. This
//! module does not know the lock layer or a runtime.

mod checkers;
mod event;
mod operations;
mod recorder;
mod slots;
mod spans;
mod text;
mod told;
mod witness;

pub use checkers::{
    COUNTED_DOWN, Checker, DEAD_TOOK, Verdict, WritersWaits, check, handoffs, most_inside, queued_grants,
    takeovers, writers_waits,
};
pub use event::{Change, Event, Fault, Kind, OTHERS, Outcome, Reason, What};
pub use operations::{Answer, Belief, Ending, Operation, operations};
pub use recorder::{Recorder, now};
pub use slots::{Slots, Way};
pub use text::{History, Malformed};
pub use told::{Told, told};
pub use witness::{Cell, Entry, Witness, Write};
