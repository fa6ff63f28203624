//! What happened, as it was seen from outside the library, and whether that may happen.
//!
//! Worker processes record every operation on one clock ([`Recorder`]); a [`Witness`] that shares no code with the
//! library says who was inside; [`check`] judges the merged [`History`]. A history is text, so it can be kept, read,
//! cut down by hand and judged again. Nothing here knows the lock layer or a runtime.

mod checkers;
mod event;
mod operations;
mod recorder;
mod slots;
mod spans;
mod text;
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
pub use witness::{Cell, Entry, Witness, Write};
