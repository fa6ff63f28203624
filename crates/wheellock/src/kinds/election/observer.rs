//! The leader of an election, as observers see it.
//!
//! This module owns when an observer polls again: after a message, at the end of the leader's lease, and at intervals.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::Poll;
use std::time::Duration;

use wheellock_client::{Script, Subscription};

use crate::base::error::Error;
use crate::kind::lua;
use crate::lock::Lock;
use crate::wire;

/// The leader of an [`Election`](crate::Election).
///
/// ```no_run
/// # async fn example(election: wheellock::Election) -> Result<(), wheellock::Error> {
/// match election.leader().await? {
///     Some(leader) => println!("{} leads with token {}", leader.announcement(), leader.token()),
///     None => println!("nobody leads"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leader {
    pub(super) owner: String,
    pub(super) token: u64,
    pub(super) announcement: String,
}

impl Leader {
    /// Returns the leader as the server knows it: `uuid:number`, the text of its [`Owner`](crate::Owner).
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Returns the fencing token of this leadership. It is 0 if a Redisson process leads and the counter of its tokens
    /// was lost.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Returns the leader's announcement. It is empty if the leader has made none, or has made none yet. A leader is
    /// elected one round trip before its announcement.
    pub fn announcement(&self) -> &str {
        &self.announcement
    }
}

/// A watch over the leader of an [`Election`](crate::Election). Use [`Election::observe`](crate::Election::observe) to
/// create one.
///
/// An observer does not see every leader if they follow each other faster than it polls. It always sees the last leader
/// in the end. If a message is lost, it polls within 5 s.
///
/// ```no_run
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// let mut observer = locks.election("scheduler").observe();
/// loop {
///     match observer.changed().await? {
///         Some(leader) => println!("{} leads, with token {}", leader.announcement(), leader.token()),
///         None => println!("nobody leads"),
///     }
/// }
/// # }
/// ```
pub struct Observer {
    lock: Lock,
    /// Subscriptions to resignations and to announcements.
    subscriptions: Option<[Subscription; 2]>,
    /// The leader that the last call returned; `None` before the first.
    last: Option<Option<Leader>>,
}

impl Observer {
    pub(super) fn new(lock: Lock) -> Self {
        Self { lock, subscriptions: None, last: None }
    }

    /// Waits until the leader or its announcement differs from the last call, and returns the leader. The first call
    /// returns the present leader at once.
    ///
    /// # Cancel safety
    ///
    /// Safe: the next call returns the change that a dropped call would have returned.
    ///
    /// # Errors
    ///
    /// [`Error::Server`] if the server does not reply for longer than the response timeout. The last leader may still
    /// lead. The next call polls again. [`Error::OtherData`], [`Error::InvalidName`], [`Error::NoCommonSlot`].
    pub async fn changed(&mut self) -> Result<Option<Leader>, Error> {
        self.lock.check_name()?;
        let name = &self.lock.name;
        let client = &self.lock.context.client;
        let channels = || {
            [
                client.subscribe(name.channel().as_bytes()),
                client.subscribe(wire::election_channel(name).as_bytes()),
            ]
        };
        let subscriptions = self.subscriptions.get_or_insert_with(channels);
        loop {
            for subscription in &mut *subscriptions {
                subscription.take_changed();
            }
            let (leader, lease_left) = poll_leader(&self.lock).await?;
            if self.last.as_ref() != Some(&leader) {
                self.last = Some(leader.clone());
                return Ok(leader);
            }
            // A lease that ends publishes no message, so poll when it has ended.
            let pause = lease_left.map_or(REPOLL, |left| left.min(REPOLL)) + BEYOND_THE_LEASE;
            let mut sleep = client.config().timer.sleep(pause);
            std::future::poll_fn(|cx| {
                if subscriptions.iter_mut().any(|subscription| subscription.poll_changed(cx).is_ready()) {
                    return Poll::Ready(());
                }
                Pin::new(&mut sleep).poll(cx)
            })
            .await;
        }
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer")
            .field("name", &self.lock.name())
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}

/// Polls the leader and its remaining lease.
pub(super) async fn poll_leader(lock: &Lock) -> Result<(Option<Leader>, Option<Duration>), Error> {
    let params = wire::look(&lock.name);
    let seen =
        lock.query_with_retry("ask for the leader of", &LOOK, &params, None, wire::read_leader).await?;
    Ok(seen.map_or((None, None), |seen| {
        let wire::SeenLeader { owner, token, announcement, lease_left } = seen;
        (Some(Leader { owner, token, announcement }), lease_left)
    }))
}

pub(crate) static LOOK: LazyLock<Script> =
    LazyLock::new(|| Script::new(lua!("holders_of.lua", "election/look.lua"), 1, 1));

/// Longest time between two polls, in case a message was lost. Waiters of a lock poll as often.
const REPOLL: Duration = Duration::from_secs(5);
/// Time after the end of a lease until the key is gone by the server's clock.
const BEYOND_THE_LEASE: Duration = Duration::from_millis(2);
