//! Containment of panics in callers' code.
//!
//! The panic hook has already reported the panic.

use std::any::Any;
use std::boxed::Box;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `run` and catches its panic. The payload may panic again when it is dropped; that second panic is caught too.
pub(crate) fn contained(run: impl FnOnce()) {
    let drop_thrown = |thrown: Box<dyn Any + Send>| catch_unwind(AssertUnwindSafe(|| drop(thrown)));
    if let Err(again) = catch_unwind(AssertUnwindSafe(run)).or_else(drop_thrown) {
        std::mem::forget(again);
    }
}
