//! Work under a lock, as every closure form runs it.
//!
//! This module owns the order of the two checks that make a result honest. The first check is whether the lock is lost, the second whether
//! the work has ended. The module does not know the lock.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use crate::base::error::Error;

/// Runs `work` unless `lost` resolves first; then drops `work` where it stands. `check` decides last about a result. Work that blocked its
/// thread may have outlived the lease without a poll of `lost`.
pub(crate) async fn unless_lost<W: Future>(
    work: W,
    lost: impl Future<Output = Error>,
    check: impl FnOnce() -> Result<(), Error>,
) -> Result<W::Output, Error> {
    let (mut work, mut lost) = (pin!(work), pin!(lost));
    let output = std::future::poll_fn(|cx| {
        // A lost lock comes first: the work must not take another step under it.
        if let Poll::Ready(error) = lost.as_mut().poll(cx) {
            return Poll::Ready(Err(error));
        }
        work.as_mut().poll(cx).map(Ok)
    })
    .await?;
    check()?;
    Ok(output)
}
