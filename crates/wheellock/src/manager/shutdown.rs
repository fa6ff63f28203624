//! Shutdown of a manager, with confirmed releases.
//!
//! This module owns the order of steps. `holds` ends the holds.

use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use wheellock_client::{Client, Outcome};

use crate::base::error::quotable;
use crate::manager::LockManager;
use crate::request::context::Context;
use crate::request::fleet;
use crate::request::label;
use crate::wait::wait_queue::WaitQueue;

impl LockManager {
    /// Shuts the manager down, for all its clones, in at most `within`. A service calls this last, when its work has
    /// ended.
    ///
    /// 1. No lock is granted any more. Every `acquire` fails with [`Error::ShutDown`](crate::Error::ShutDown), and so
    ///    does every waiter.
    /// 2. Live guards lose their locks, with [`LostReason::ShutDown`](crate::LostReason::ShutDown).
    /// 3. Every hold is released, including requests under way and queued releases. The call waits for the server's
    ///    confirmation.
    /// 4. The connection is closed. Every later call on it fails.
    ///
    /// Returns the locks that the server has not confirmed in time. Each is held until its lease ends. The call does
    /// not wait for work under a lock. The next holder may start at once, so end that work first. You may call it
    /// again, which waits again.
    ///
    /// Waiters leave the queues of [fair locks](Self::fair_lock), too, without the server's confirmation. If the
    /// connection is broken just then, the server removes the waiter by itself within five seconds.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// # async fn example(locks: wheellock::LockManager) {
    /// let left = locks.shutdown(Duration::from_secs(2)).await;
    /// if !left.is_empty() {
    ///     eprintln!("{left}"); // their leases run on
    /// }
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// The shutdown starts with the first poll. If the future is dropped, queued requests are still sent and the
    /// connection closes, within a second.
    pub async fn shutdown(&self, within: Duration) -> Leftover {
        let context = &*self.context;
        let timer = &context.client.config().timer;
        let began = timer.now();
        release_everything(context);
        let _closed_anyway = Closing(&context.client);
        let mut cursor = 0;
        let released = std::future::poll_fn(|cx| {
            context.change(|holds, _| holds.poll_given_back(&mut cursor, cx.waker()))
        });
        // A confirmed state stays so, because a later release of the same hold changes nothing.
        let confirmed = timer.timeout(within, released).await.is_ok();
        if confirmed {
            // Not earlier: after a failover, the holds that are not released yet need this entry.
            let left = within.saturating_sub(timer.now() - began);
            let _in_time = timer.timeout(left, fleet::leave(context)).await;
        }
        label::delete(context, within.saturating_sub(timer.now() - began)).await;
        let server = context.client.server_address();
        let names = if confirmed { Vec::new() } else { context.holds().unreconciled_names() };
        let left = within.saturating_sub(timer.now() - began);
        let _in_time = timer.timeout(left, context.client.close()).await;
        let unreleased =
            names.iter().map(|name| Unreleased { lock: name.text().to_owned(), server: server.clone() });
        let mut locks: Vec<_> = unreleased.collect();
        locks.sort_unstable_by(|one, other| one.lock.cmp(&other.lock));
        locks.dedup();
        self.end_reports();
        Leftover { locks }
    }
}

fn release_everything(context: &Context) {
    context.transact(|holds, now, effects| {
        let under_way = holds.shut_down(now, effects);
        effects.request_all(under_way);
        effects.look_at_the_backlog();
    });
    for name in context.names_waited_for() {
        let fail = |waiters: &mut Box<WaitQueue>| waiters.fail_all(&name.shut_down(Outcome::NotSent));
        let waiters = name.waiting().queue.as_mut().map(fail).unwrap_or_default();
        waiters.into_iter().for_each(Waker::wake);
    }
}

/// Closes the connection on drop, because a shutdown's future may be dropped before its end.
struct Closing<'a>(&'a Client);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.begin_closing();
    }
}

/// Locks whose release the server has not confirmed during a shutdown. They may be free; otherwise each is free when
/// its lease has ended. An empty list is good.
///
/// ```no_run
/// use std::time::Duration;
///
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// let left = locks.shutdown(Duration::from_secs(2)).await;
/// if !left.is_empty() {
///     eprintln!("{left}"); // these end with their leases
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "these locks may still be held for as long as their leases"]
pub struct Leftover {
    locks: Vec<Unreleased>,
}

/// A lock of a [`Leftover`].
///
/// ```no_run
/// use std::time::Duration;
///
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// for unreleased in locks.shutdown(Duration::from_secs(2)).await.locks() {
///     eprintln!("{} on {}", unreleased.lock, unreleased.server);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unreleased {
    /// Name of the lock.
    pub lock: String,
    /// Address of the lock's server.
    pub server: Arc<str>,
}

impl Leftover {
    /// Returns true if every lock was released.
    pub fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// Returns the locks, by name.
    pub fn locks(&self) -> &[Unreleased] {
        &self.locks
    }

    /// Combines the leftovers of several managers.
    pub(crate) fn combine(all: impl IntoIterator<Item = Self>) -> Self {
        Self { locks: all.into_iter().flat_map(|leftover| leftover.locks).collect() }
    }
}

/// Writes one line for a log.
impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.locks.len() {
            0 => return f.write_str("every lock was released"),
            1 => f.write_str("1 lock was not confirmed to be released:")?,
            count => write!(f, "{count} locks were not confirmed to be released:")?,
        }
        let shown = self.locks.iter().take(SHOWN);
        shown.enumerate().try_for_each(|(place, Unreleased { lock, server })| {
            write!(f, "{} \"{}\" on {server}", if place > 0 { "," } else { "" }, quotable(lock))
        })?;
        if self.locks.len() > SHOWN { f.write_str(", ..") } else { Ok(()) }
    }
}

/// Most locks that a log line names.
const SHOWN: usize = 10;

#[cfg(test)]
mod tests;
