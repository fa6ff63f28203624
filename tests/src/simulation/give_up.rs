//! A call whose future is dropped before its end.

use std::future::Future;
use std::time::Duration;

use tokio::time::timeout;

use crate::fault::cancel_at;

/// When the future of a call is dropped.
#[derive(Clone, Copy, Debug)]
pub(super) enum GiveUp {
    /// At so many polls in vain.
    Polls(usize),
    /// After so many milliseconds.
    After(u64),
}

/// What the call says, unless it is given up before.
pub(super) async fn outcome_unless<T>(give_up: Option<GiveUp>, call: impl Future<Output = T>) -> Option<T> {
    match give_up {
        Some(GiveUp::Polls(polls)) => cancel_at(polls, call).await,
        Some(GiveUp::After(after)) => timeout(Duration::from_millis(after), call).await.ok(),
        None => Some(call.await),
    }
}
