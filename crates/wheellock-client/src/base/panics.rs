//! Containment of panics in foreign code.
//!
//! A panic in a user's callback must not end other calls. The panic hook has already reported it. This module knows
//! no connection.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::{Poll, Waker};

/// Runs a function and catches its panic. Returns `None` after a panic. The payload may panic again when it is
/// dropped, so that panic is caught, too.
pub(crate) fn catch_panic<T>(run: impl FnOnce() -> T) -> Option<T> {
    let drop_thrown = |thrown: Box<dyn Any + Send>| {
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(thrown))) {
            // Dropping the second payload could panic again, so it leaks.
            std::mem::forget(again);
        }
    };
    catch_unwind(AssertUnwindSafe(run)).map_err(drop_thrown).ok()
}

/// Wakes all wakers, even if some of them panic.
pub(crate) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    let mut wakers = wakers.into_iter();
    // The iterator continues behind the waker that panicked.
    while catch_panic(|| wakers.by_ref().for_each(Waker::wake)).is_none() {}
}

/// Creates a future and waits for it. Returns `None` if the creation or the future panicked.
pub(crate) async fn catch_panic_of<F: Future>(make: impl FnOnce() -> F) -> Option<F::Output> {
    let mut future = pin!(catch_panic(make)?);
    std::future::poll_fn(|cx| match catch_panic(|| future.as_mut().poll(cx)) {
        Some(poll) => poll.map(Some),
        None => Poll::Ready(None),
    })
    .await
}
