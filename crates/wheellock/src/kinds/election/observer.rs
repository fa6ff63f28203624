//! Who leads, as others see it. Owns when to look again: when a message says so, when the leader's lease ends, and from time to time.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Poll, Waker};
use std::time::Duration;

use wheellock_client::layer::Retry;
use wheellock_client::{Script, Subscription};

use crate::base::error::Error;
use crate::lock::Lock;
use crate::request::retry::retry;
use crate::wire;

/// Who leads an [`Election`](crate::Election).
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
    /// The leader as it is written on the server: `uuid:number`, the text of its [`Owner`](crate::Owner).
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// The fencing token of its leadership; 0 if a Redisson process leads and the counter of its tokens was lost.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// What it has said of itself. Empty if it has not, or not yet: a leader is elected a round trip before it is announced.
    pub fn announcement(&self) -> &str {
        &self.announcement
    }
}

/// Watches who leads an [`Election`](crate::Election). Made by [`Election::observe`](crate::Election::observe).
///
/// It does not see every leader, if they follow each other faster than it looks, but it always comes to see the last one: a message that is
/// lost is made up for within 5 s.
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
    /// Of what is listened to: resignations, and announcements.
    subscriptions: Option<[Subscription; 2]>,
    /// What was told last; `None` if nothing was.
    told: Option<Option<Leader>>,
}

impl Observer {
    pub(super) fn new(lock: Lock) -> Self {
        Self { lock, subscriptions: None, told: None }
    }

    /// Who leads, if that is another one than was told last, or says something else of itself; otherwise waits until it is. The first call
    /// tells who leads now.
    ///
    /// # Cancel safety
    ///
    /// Safe: what a dropped call would have told, the next one tells.
    ///
    /// # Errors
    ///
    /// [`Error::Server`] if the server cannot be asked for longer than the response timeout: who led may lead on. The next call asks again.
    /// [`Error::OtherData`], [`Error::InvalidName`], [`Error::NoCommonSlot`].
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
            let (leader, lease_left) = look(&self.lock).await?;
            if self.told.as_ref() != Some(&leader) {
                self.told = Some(leader.clone());
                return Ok(leader);
            }
            // Nobody tells of a lease that ends.
            let pause = lease_left.map_or(LOOK_AGAIN, |left| left.min(LOOK_AGAIN)) + BEYOND_THE_LEASE;
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
            .field("told", &self.told)
            .finish_non_exhaustive()
    }
}

/// Asks who leads, and for how long its lease still runs.
pub(super) async fn look(lock: &Lock) -> Result<(Option<Leader>, Option<Duration>), Error> {
    lock.check_name()?;
    let (context, name) = (&lock.context, &lock.name);
    let params = wire::look(name);
    let ask = |learnt: &Retry, start, waker: &Waker| {
        context.client.start_eval(&LOOK, wire::KEYS, &params, learnt, start, waker)
    };
    let operation = || format!("ask for the leader of {}", name.titled());
    let reply = retry(context, ask, None).await.result;
    let reply = reply.map_err(|source| Error::of_lock(name.text(), operation(), source))?;
    let Some(seen) = wire::read_leader(&reply) else {
        return Err(context.unexpected(name, operation(), &reply));
    };
    Ok(match seen {
        None => (None, None),
        Some(wire::SeenLeader { owner, token, announcement, lease_left }) => {
            (Some(Leader { owner, token, announcement }), lease_left)
        }
    })
}

pub(crate) static LOOK: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        concat!(
            include_str!("../../scripts/holders_of.lua"),
            include_str!("../../scripts/election/look.lua")
        ),
        1,
        1,
    )
});

/// As often as waiters of a lock ask, in case a message was lost.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// A key is gone when the server's clock has passed the end of its lease.
const BEYOND_THE_LEASE: Duration = Duration::from_millis(2);
