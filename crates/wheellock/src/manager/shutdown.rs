//! The end of a manager that is told of it: everything is given back, and the server confirms it. Owns the order of steps; what
//! becomes of the holds is `holds`' business.

use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use wheellock_client::{Client, Outcome};

use crate::base::error::quotable;
use crate::manager::LockManager;
use crate::request::context::Context;
use crate::request::label;
use crate::wait::wait_queue::WaitQueue;

impl LockManager {
    /// Ends everything, for all clones of this manager, and within this time: what a service does last, when its work has
    /// ended.
    ///
    /// 1. From here on nothing is granted: every `acquire` fails with [`Error::ShutDown`](crate::Error::ShutDown), and so do
    ///    those that are waiting.
    /// 2. Guards that still live lose their locks, with [`LostReason::ShutDown`](crate::LostReason::ShutDown).
    /// 3. Every hold is given back, attempts under way and releases that were only queued included, and the server's word
    ///    is waited for.
    /// 4. The connection is closed. Whatever needs it fails from then on.
    ///
    /// Returns what the server has not confirmed in time, which lasts as long as its lease. Work that goes on under a lock is
    /// not waited for, and the next holder may come at once: end it before. May be called again, which waits again. Places in
    /// the queues of [fair locks](Self::fair_lock) are given up, too, without waiting for the server's word: one of which it
    /// never hears, because the connection is broken just then, ends by itself within five seconds.
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
    /// From the first poll on it takes place. If it is dropped, what was queued by then is still sent and the connection
    /// closes, but nobody waits for more than a second.
    pub async fn shutdown(&self, within: Duration) -> Leftover {
        let left = shut_down(&self.context, within).await;
        self.end_reports();
        left
    }
}

pub(crate) async fn shut_down(context: &Context, within: Duration) -> Leftover {
    let timer = &context.client.config().timer;
    let began = timer.now();
    give_everything_back(context);
    let _closed_anyway = Closing(&context.client);
    let mut cursor = 0;
    let given_back = std::future::poll_fn(|cx| context.holds().poll_given_back(&mut cursor, cx.waker()));
    // Once all was confirmed it stays so: who takes something back from then on does so for the second time.
    let confirmed = timer.timeout(within, given_back).await.is_ok();
    label::delete(context, within.saturating_sub(timer.now() - began)).await;
    let server = context.client.server_address();
    let names = if confirmed { Vec::new() } else { context.holds().unreconciled_names() };
    let left = within.saturating_sub(timer.now() - began);
    let _in_time = timer.timeout(left, context.client.close()).await;
    let mut locks: Vec<_> = names
        .into_iter()
        .map(|name| Unreleased { lock: name.text().to_owned(), server: Arc::clone(&server) })
        .collect();
    locks.sort_unstable_by(|one, other| one.lock.cmp(&other.lock));
    locks.dedup();
    Leftover { locks }
}

fn give_everything_back(context: &Context) {
    context.transact(|holds, now, effects| {
        let under_way = holds.shut_down(now, effects);
        effects.request_all(under_way);
        effects.look_at_the_backlog();
    });
    for name in context.names() {
        let fail = |waiters: &mut Box<WaitQueue>| waiters.fail_all(&name.shut_down(Outcome::NotSent));
        let waiters = name.wait_queue().as_mut().map(fail).unwrap_or_default();
        waiters.into_iter().for_each(Waker::wake);
    }
}

/// Closes the connection when it is dropped, which a shutdown may be before its end.
struct Closing<'a>(&'a Client);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.begin_closing();
    }
}

/// What a shutdown has left behind: locks that the server has not confirmed to be free in time. They may be; otherwise each
/// is when its lease has ended. Empty is good.
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
    /// Its name.
    pub lock: String,
    /// Where it is.
    pub server: Arc<str>,
}

impl Leftover {
    /// Whether everything was given back.
    pub fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// The locks, by name.
    pub fn locks(&self) -> &[Unreleased] {
        &self.locks
    }

    /// What several managers have left behind.
    pub(crate) fn together(all: impl IntoIterator<Item = Self>) -> Self {
        Self { locks: all.into_iter().flat_map(|leftover| leftover.locks).collect() }
    }
}

/// One line for a log.
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

/// A line of a log has an end.
const SHOWN: usize = 10;

#[cfg(test)]
mod tests;
