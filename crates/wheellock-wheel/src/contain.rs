//! Somebody else's code, and what it throws: contained, so that it does not take others with it. The panic hook has reported it.

use std::any::Any;
use std::boxed::Box;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs it. What it throws may panic once more when it is dropped.
pub(crate) fn contained(run: impl FnOnce()) {
    let drop_thrown = |thrown: Box<dyn Any + Send>| catch_unwind(AssertUnwindSafe(|| drop(thrown)));
    if let Err(again) = catch_unwind(AssertUnwindSafe(run)).or_else(drop_thrown) {
        std::mem::forget(again);
    }
}
