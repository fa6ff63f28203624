//! Work under a lock, as every closure form runs it. Owns the order of the two questions that make an honest result: is the
//! lock lost, and has the work ended? What a lock is, is the caller's.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use crate::base::error::Error;

/// Runs `work` unless `lost` resolves first: then `work` is dropped where it stands. `check` has the last word on a result:
/// work that blocked its thread may have outlived the lease without `lost` ever being polled.
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
