//! A latch, by name.
//!
//! A waiter polls the latch until it is open. The waiter holds nothing when its wait has ended.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::base::error::{Error, Outcome};
use crate::kind;
use crate::lock::Lock;
use crate::request::acquire::{AnswerBy, Caller, Limit, Next, Request, Wait, Waiter};
use crate::request::context::Context;
use crate::request::once::{COUNT_DOWN, DELETE_LATCH, SET_LATCH};
use crate::wait::spans::{Held, acquiring};
use crate::wait::wait_queue::WaitQueue;
use crate::wire::{self, Refusal};

/// A latch that opens for all of its waiters when it has been counted down. The waiters may be tasks, processes, and users of Redisson's
/// `RCountDownLatch` in Java. A latch that was never set, or whose count was reached, is open.
///
/// In a cluster, Java cannot use names with a hash tag (`{..}`), because Redisson puts the channel into another slot (source: Redisson
/// 4.7). Such names work among processes of this library.
///
/// ```no_run
/// # async fn example(locks: wheellock::LockManager) -> Result<(), Box<dyn std::error::Error>> {
/// let ready = locks.count_down_latch("ready");
/// ready.try_set_count(3.try_into()?).await?;
/// // Each of three workers:
/// ready.count_down().await?;
/// // All who wait for them:
/// ready.wait().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "this is only a handle: call `wait()` to wait for the latch"]
#[derive(Clone)]
pub struct CountDownLatch {
    lock: Lock,
}

impl CountDownLatch {
    pub(crate) fn new(context: &Arc<Context>, name: &str) -> Self {
        Self { lock: Lock::new(Arc::clone(context), context.name(name, &kind::LATCH)) }
    }

    /// Returns the latch's name, which is also its key on the server.
    pub fn name(&self) -> &str {
        self.lock.name()
    }

    /// Sets the latch, so that it opens after `count` calls of [`count_down`](Self::count_down). Returns false and changes nothing if the
    /// latch is set already.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may still take effect.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`], [`Error::NoCommonSlot`].
    pub async fn try_set_count(&self, count: NonZeroU32) -> Result<bool, Error> {
        Ok(self.lock.once(&SET_LATCH, "set", Some(count.get().into())).await? == 1)
    }

    /// Counts the latch down once. The last count opens the latch and wakes all waiters. Returns the remaining count. An open latch stays
    /// open, with a remaining count of 0.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may still take effect, once.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::OtherData`], [`Error::InvalidName`], [`Error::NoCommonSlot`].
    pub async fn count_down(&self) -> Result<u64, Error> {
        self.lock.once(&COUNT_DOWN, "count down", None).await.map(i64::unsigned_abs)
    }

    /// Returns the remaining count, which is 0 if the latch is open.
    ///
    /// # Cancel safety
    ///
    /// Safe: it changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::OtherData`], [`Error::InvalidName`].
    pub async fn count(&self) -> Result<u64, Error> {
        self.lock.query(wire::count(&self.lock.name), wire::read_count_of_latch).await
    }

    /// Waits until the latch is open. If the latch was opened and then set again, the wait is over nevertheless, provided that this
    /// library counted the latch down.
    ///
    /// Each waiter polls the server once when it arrives. Later a single reply wakes all waiters of one process.
    ///
    /// # Cancel safety
    ///
    /// Safe: it changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Server`] if the server does not reply for longer than the response timeout. [`Error::OtherData`], [`Error::InvalidName`],
    /// [`Error::NoCommonSlot`]. [`Error::ShutDown`] once the manager is [shut down](crate::LockManager::shutdown).
    pub async fn wait(&self) -> Result<(), Error> {
        let Ok(Open) = self.wait_within(Wait::FOREVER).await?;
        Ok(())
    }

    /// Waits up to `wait`, counted from this call. Returns false if the latch is not open by then. The wait ends in the same way as that
    /// of [`Lock::try_acquire_for`](crate::Lock::try_acquire_for).
    ///
    /// # Cancel safety
    ///
    /// Safe: it changes nothing.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    pub async fn wait_for(&self, wait: Duration) -> Result<bool, Error> {
        let wait = Wait::up_to(wait, &self.lock.context.client.config().timer);
        Ok(self.wait_within(wait).await?.is_ok())
    }

    async fn wait_within<L: Copy + Into<Limit>>(&self, wait: Wait<L>) -> Result<Result<Open, L>, Error> {
        let request = self.lock.request()?;
        acquiring(Some(request.name.span_fields()), true, || self.poll_until_open(&request, wait)).await
    }

    /// Polls until the latch is open or the wait is over. Each caller polls once before it joins the queue. The reply has the end of the
    /// last latch of this name, and the caller compares later ends with it. In the queue, the head polls for all waiters.
    async fn poll_until_open<L: Copy + Into<Limit>>(
        &self,
        request: &Request<'_>,
        wait: Wait<L>,
    ) -> Result<Result<Open, L>, Error> {
        let Request { context, name, owner, .. } = *request;
        let (mut caller, mut first_end) = (Caller::new(request), None);
        let room = loop {
            let is_open =
                || first_end.is_some_and(|end| name.waiters(|waiters| waiters.latch.is_open_for(owner, end)));
            let by = match &mut caller.waiter {
                None => AnswerBy::first(context, name, Duration::ZERO, wait.of_any()),
                // The head's reply may have arrived before this caller joined. Nothing wakes this caller then.
                Some(_) if is_open() => break 1,
                Some(waiter) => match waiter.turn(wait).await? {
                    _ if is_open() => break 1,
                    Next::Ask(by) => by,
                    Next::Over(limit) => return Ok(Err(limit)),
                    Next::Take(_) => continue,
                },
            };
            if context.holds().is_shut() {
                return Err(name.shut_down(Outcome::NotSent));
            }
            let (number, script, params) = (context.new_owner(), &name.kind().acquire, wire::look(name));
            let poll =
                self.lock.query_with_retry(name.kind().verb, script, &params, by.instant(), wire::read_look);
            let (count, ended) = match poll.await {
                Ok(reply) => reply,
                Err(error) => return caller.failed(error, &by, wait).map(Err),
            };
            if count <= 0 || ended > *first_end.get_or_insert(ended) {
                if caller.waiter.is_some() {
                    name.waiters(|waiters| waiters.latch.on_end(number, count <= 0, ended));
                }
                break u32::MAX;
            }
            let over = || wait.over(&context.client.config().timer).filter(|_| caller.waiter.is_none());
            if let Some(limit) = wait.one_try().or_else(over) {
                return Ok(Err(limit));
            }
            let waiter = caller.waiter.get_or_insert_with(|| Waiter::join(request, WaitQueue::join));
            waiter.on_held(Refusal::UNBOUNDED, true);
        };
        if let Some(waiter) = &mut caller.waiter {
            // The waiter leaves as after a shared grant. The waiter with the reply wakes all others, which find its result. Each of them
            // wakes only the next waiter: if all woke all, the waiters for a later latch would poll again and again.
            waiter.granted(room);
        }
        Ok(Ok(Open))
    }

    /// Removes the latch. All waiters return, as if the latch had opened. Returns true if there was a latch.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may still take effect.
    ///
    /// # Errors
    ///
    /// As [`try_set_count`](Self::try_set_count).
    pub async fn delete(&self) -> Result<bool, Error> {
        Ok(self.lock.once(&DELETE_LATCH, "delete", None).await? == 1)
    }
}

/// The result of a wait: the latch is open.
struct Open;

impl Held for Open {
    fn outcome(&self) -> &'static str {
        "open"
    }

    fn begin_span(&mut self) {}
}

impl fmt::Debug for CountDownLatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountDownLatch").field("name", &self.name()).finish_non_exhaustive()
    }
}
