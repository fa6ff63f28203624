//! Somebody else's code, and what it throws: contained, so that it does not take others with it. The panic hook has reported it. Knows
//! nothing of connections.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::{Poll, Waker};

/// Runs it. What it throws may panic once more when it is dropped. `None` if it panicked.
pub(crate) fn contained<T>(run: impl FnOnce() -> T) -> Option<T> {
    let drop_thrown = |thrown: Box<dyn Any + Send>| {
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(thrown))) {
            std::mem::forget(again);
        }
    };
    catch_unwind(AssertUnwindSafe(run)).map_err(drop_thrown).ok()
}

/// Wakes all of them, each whatever the others do.
pub(crate) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    let mut wakers = wakers.into_iter();
    while contained(|| wakers.by_ref().for_each(Waker::wake)).is_none() {}
}

/// Makes a future and waits for it. `None` if either panicked.
pub(crate) async fn finished<F: Future>(make: impl FnOnce() -> F) -> Option<F::Output> {
    let mut future = pin!(contained(make)?);
    std::future::poll_fn(|cx| match contained(|| future.as_mut().poll(cx)) {
        Some(poll) => poll.map(Some),
        None => Poll::Ready(None),
    })
    .await
}
