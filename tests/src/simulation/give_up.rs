//! A call whose future is dropped before its end.

use std::future::Future;
use std::time::Duration;

use tokio::time::timeout;

use crate::fault::cancel_at;

/// The time at which the future of a call is dropped.
#[derive(Clone, Copy, Debug)]
pub(super) enum GiveUp {
    /// At this number of `Pending`s.
    Polls(usize),
    /// After this number of milliseconds.
    After(u64),
}

/// Returns the output of the call, or `None` if the call is dropped before its end.
pub(super) async fn outcome_unless<T>(give_up: Option<GiveUp>, call: impl Future<Output = T>) -> Option<T> {
    match give_up {
        Some(GiveUp::Polls(polls)) => cancel_at(polls, call).await,
        Some(GiveUp::After(after)) => timeout(Duration::from_millis(after), call).await.ok(),
        None => Some(call.await),
    }
}
