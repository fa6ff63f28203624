//! A guard's wait for a request to release its lock.
//!
//! The guard listens from the first wait until its end. This module does not send requests.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{self, Poll};

use wheellock_client::{Client, Subscription};

use crate::request::events;
use crate::wait::name::Name;
use crate::wire::release_request::ReleaseRequest;

/// The requests that a guard received. Boxed, because few guards listen.
#[derive(Default)]
pub(crate) struct Requested(OnceLock<Box<Listener>>);

struct Listener {
    channel: String,
    /// Keeps the channel subscribed and its messages until the end of the guard. A wait may be dropped and made again, and a
    /// request in between must not be lost.
    subscription: Mutex<Subscription>,
    request: OnceLock<ReleaseRequest>,
}

impl Requested {
    /// Waits for a request on the guard's channel. The first valid message counts. `channel` is called once.
    pub(crate) async fn wait(
        &self,
        client: &Client,
        name: &Name,
        channel: impl FnOnce() -> String,
    ) -> ReleaseRequest {
        let listener = self.0.get_or_init(|| Box::new(Listener::new(client, channel())));
        // Each wait has a subscription of its own, because a subscription wakes only one waiter.
        let mut wakes = client.subscribe(listener.channel.as_bytes());
        std::future::poll_fn(|cx| listener.poll(name, &mut wakes, cx)).await
    }
}

impl Listener {
    fn new(client: &Client, channel: String) -> Self {
        let subscription = client.subscribe_keeping_payloads(channel.as_bytes());
        Self { channel, subscription: Mutex::new(subscription), request: OnceLock::new() }
    }

    fn poll(
        &self,
        name: &Name,
        wakes: &mut Subscription,
        cx: &mut task::Context<'_>,
    ) -> Poll<ReleaseRequest> {
        // The waker is registered before the messages are read. Otherwise a message in between would wake no task.
        while wakes.poll_changed(cx).is_ready() {}
        if self.request.get().is_none() {
            let payloads = self.subscription().take_payloads();
            if let Some(request) = payloads.iter().find_map(|payload| ReleaseRequest::read(payload))
                && self.request.set(request.clone()).is_ok()
            {
                events::release_requested(name, &request);
            }
        }
        self.request.get().cloned().map_or(Poll::Pending, Poll::Ready)
    }

    fn subscription(&self) -> MutexGuard<'_, Subscription> {
        self.subscription.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
