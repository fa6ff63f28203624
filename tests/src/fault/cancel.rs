//! A future that drops another future at a chosen point.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Future that polls an inner future until it is ready, or drops it after a number of `Pending`s.
#[derive(Debug)]
pub struct CancelAt<F> {
    inner: Option<Pin<Box<F>>>,
    pendings_left: usize,
}

/// Drops `future` at its `pendings`-th `Pending` (0: before the first poll) and resolves to `None`. Resolves to `Some` if `future` was
/// ready earlier.
pub fn cancel_at<F: Future>(pendings: usize, future: F) -> CancelAt<F> {
    CancelAt { inner: Some(Box::pin(future)), pendings_left: pendings }
}

impl<F: Future> Future for CancelAt<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.pendings_left > 0
            && let Some(inner) = &mut this.inner
        {
            match inner.as_mut().poll(cx) {
                Poll::Ready(output) => {
                    this.inner = None;
                    return Poll::Ready(Some(output));
                }
                Poll::Pending => this.pendings_left -= 1,
            }
        }
        if this.pendings_left == 0 {
            // Drops the inner future at once, not together with this wrapper.
            this.inner = None;
            return Poll::Ready(None);
        }
        Poll::Pending
    }
}
