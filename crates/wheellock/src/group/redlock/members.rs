//! The guard of a hold on a majority of servers.
//!
//! This module owns the guard's methods. `roster` decides which member counts.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex};

use super::locks::MemberLocks;
use super::member::Member;
use super::roster::{self, Pending, Roster, lock};
use crate::base::clock::BootInstant;
use crate::base::error::{Error, LostReason, MemberFailure};
use crate::base::join_all::JoinAll;
use crate::base::quorum::{Quorum, Verdict};
use crate::base::work::unless_lost;
use crate::request::endangered::until_endangered;
use crate::request::guard::Guard;
use crate::wait::spans::{End, Held, HoldSpan, Subject};

/// One hold of a [`RedLock`](super::RedLock). Dropping it releases all members in the background;
/// [`release`](Self::release) does so with confirmation.
///
/// The guard is valid while a majority of the servers is known to hold the lock for it. A server that grants after
/// `acquire` has returned joins the hold. So the guard survives the later failure of a minority.
///
/// While the guard is valid, the watchdog also requests missing members again with each renewal. These are members that
/// were lost, that refused, or that could not be reached. So you can restart all servers one after the other under a
/// held lock. If a server does not know the hold any more, the watchdog waits for one lease before it requests that
/// member again. With a fixed lease, [`renew`](Self::renew) requests missing members again.
///
/// ```no_run
/// # async fn example(servers: wheellock::RedLockManager) -> Result<(), wheellock::Error> {
/// let guard = servers.lock("orders:42").acquire().await?;
/// if guard.is_valid() {
///     println!("a majority keeps it for {:?} at least", guard.valid_until().remaining());
/// }
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "the lock is given back at once if its guard is not kept"]
pub struct RedLockGuard {
    locks: MemberLocks,
    roster: Arc<Mutex<Roster>>,
    span: HoldSpan,
}

/// One server of a quorum, as a [`RedLockGuard`] sees it.
///
/// ```no_run
/// # async fn example(guard: wheellock::RedLockGuard) -> Result<(), wheellock::Error> {
/// for member in guard.members() {
///     println!("{}: {:?}", member.server, member.state);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RedLockMember {
    /// The server.
    pub server: Arc<str>,
    /// The state of the lock there.
    pub state: MemberState,
}

/// State of a lock on one server of a quorum.
///
/// ```no_run
/// use wheellock::MemberState;
///
/// # async fn example(servers: wheellock::RedLockManager) -> Result<(), wheellock::Error> {
/// let guard = servers.lock("orders:42").acquire().await?;
/// let members = guard.members();
/// let held = members.iter().filter(|member| matches!(member.state, MemberState::Held { .. })).count();
/// println!("{held} of {} servers", members.len());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum MemberState {
    /// The guard holds the lock there.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    Held {
        /// Time until which the member is valid.
        valid_until: BootInstant,
    },
    /// The server has not answered yet. The member joins if the server grants it.
    Pending,
    /// Another holder had the lock.
    Refused,
    /// The server gave no usable reply.
    Failed(Error),
    /// The guard held the lock there, and lost it.
    Lost(LostReason),
}

/// Replies to a request to all members, up to a verdict.
struct Replies {
    tally: Quorum,
    /// Why the last lost member was lost, if too many were lost before: the guard held fewer than a majority.
    lost: Option<LostReason>,
    failures: Vec<MemberFailure>,
}

impl RedLockGuard {
    /// Creates a guard of `members`, of which a majority is held. The requests in `pending` have no reply yet.
    pub(super) fn new(locks: &MemberLocks, members: Vec<Member>, pending: Pending) -> Self {
        let roster = roster::keep(locks.clone(), members, pending);
        Self { locks: locks.clone(), roster, span: HoldSpan::none() }
    }

    /// Returns the lock's name.
    pub fn name(&self) -> &str {
        self.locks.name()
    }

    /// Returns the state of the lock on each server, in the order in which the servers were given. If fewer than all
    /// are `Held`, the guard survives fewer further failures.
    pub fn members(&self) -> Vec<RedLockMember> {
        let roster = lock(&self.roster);
        let members = self.locks.locks.iter().zip(&roster.members).map(|(lock, member)| {
            let state = match member {
                Member::Pending => MemberState::Pending,
                Member::Held(guard) => match guard.reason() {
                    None => MemberState::Held { valid_until: guard.valid_until() },
                    Some(reason) => MemberState::Lost(reason),
                },
                Member::Refused(_) | Member::Released => MemberState::Refused,
                Member::Failed(error) => MemberState::Failed(error.clone()),
            };
            RedLockMember { server: lock.context.client.server_address(), state }
        });
        members.collect()
    }

    /// Returns the time until which a majority is known to be held. Renewals move it.
    pub fn valid_until(&self) -> BootInstant {
        let now = || self.locks.locks.first().map_or_else(BootInstant::now, |lock| lock.context.clock.now());
        lock(&self.roster).valid_until().unwrap_or_else(now)
    }

    /// Returns true if a majority is held now, as far as is known.
    pub fn is_valid(&self) -> bool {
        lock(&self.roster).is_valid()
    }

    /// Returns true if fewer than a majority of the members have more than a third of their leases left. See
    /// [`Guard::is_endangered`].
    pub fn is_endangered(&self) -> bool {
        let now = || self.locks.locks.first().map_or_else(BootInstant::now, |lock| lock.context.clock.now());
        lock(&self.roster).endangered_at().is_none_or(|at| at <= now())
    }

    /// Waits until the quorum [is endangered](Self::is_endangered), a third of the lease before
    /// [`valid_until`](Self::valid_until). See [`Guard::endangered`].
    ///
    /// # Cancel safety
    ///
    /// Safe: the call only waits.
    pub async fn endangered(&self) {
        // A guard has at least one member.
        let Some(first) = self.locks.locks.first() else { return };
        until_endangered(&first.context, || lock(&self.roster).endangered_at(), self.lost()).await;
    }

    /// Resolves when fewer than a majority are valid. If the runtime polls its tasks, the future resolves at
    /// [`valid_until`](Self::valid_until) at the latest. Returns the reason of the member that was lost last.
    ///
    /// # Cancel safety
    ///
    /// Safe: the call only waits.
    pub async fn lost(&self) -> LostReason {
        let (mut losses, mut last) = (JoinAll::default(), None);
        while self.watch(&mut losses) {
            last = losses.ready().await.pop().map(|(_, reason)| reason).or(last);
        }
        last.unwrap_or_else(|| self.reason())
    }

    /// Watches the held members that are not watched yet. Returns false if the quorum is lost.
    ///
    /// A member that joins later is watched from the next loss on. That is early enough. The watched members are a
    /// majority, so the quorum is lost only together with one of them.
    fn watch(&self, losses: &mut JoinAll<'static, LostReason>) -> bool {
        let roster = lock(&self.roster);
        for (place, guard) in roster.held().filter(|(_, guard)| guard.is_valid()) {
            if !losses.is_under_way(place) {
                let guard = Arc::clone(guard);
                losses.add(place, async move { guard.lost().await });
            }
        }
        roster.is_valid()
    }

    /// Runs `work` while a majority is held. If the majority is lost first, `work` is dropped at its current await
    /// point. After `work` has ended, the servers are polled once more, as [`Guard::run`] does.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`. The guard stays.
    ///
    /// # Errors
    ///
    /// As [`Guard::run`], of a majority.
    pub async fn run<T, E: From<Error>>(&self, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let result = self.run_unconfirmed(work).await?;
        self.confirm().await?;
        result
    }

    /// Polls the servers whether the lock is still held, until a majority has confirmed it or no reply is missing.
    /// Members that join meanwhile are polled, too. Fails only if the quorum is lost.
    async fn confirm(&self) -> Result<(), Error> {
        let mut polled = HashSet::new();
        let (mut replies, mut confirmed) = (JoinAll::default(), 0);
        loop {
            for (place, guard) in lock(&self.roster).held().filter(|(place, _)| polled.insert(*place)) {
                let guard = Arc::clone(guard);
                replies.add(place, async move { guard.confirm().await });
            }
            if confirmed >= self.locks.quorum().wanted() || replies.is_over() {
                return self.check();
            }
            let answers = replies.ready().await;
            confirmed += answers.into_iter().filter(|(_, answer)| matches!(answer, Ok(true))).count();
        }
    }

    pub(super) async fn run_unconfirmed<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        let lost = async { self.lost_error(self.lost().await) };
        unless_lost(work, lost, || self.check()).await
    }

    /// Releases all members after work that ended under a valid quorum: see [`Guard::release_after_work`].
    pub(super) async fn release_after_work(self) -> Result<(), Error> {
        match self.release().await {
            Err(lost @ Error::Lost { .. }) => Err(lost),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Extends the leases of all members at once, and returns when a majority is extended. Slower members keep their
    /// old leases. See [`Guard::renew`].
    ///
    /// # Cancel safety
    ///
    /// As [`Guard::renew`].
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if a majority is lost, or is found lost; [`Error::NoQuorum`] if too few servers replied. After
    /// `NoQuorum` the lock stays valid until [`valid_until`](Self::valid_until), as before.
    pub async fn renew(&self) -> Result<(), Error> {
        roster::request_missing(&self.roster);
        let members = lock(&self.roster).members.clone();
        let renew = |guard: Arc<Guard>| async move { guard.renew().await };
        let Replies { tally, failures, .. } = self.request_all(members, renew).await;
        self.check()?;
        if tally.is_reached() { Ok(()) } else { Err(self.locks.no_quorum(tally.granted, failures)) }
    }

    /// Releases all members at once, and returns when a majority has confirmed it. The other releases continue in the
    /// background.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases in the background, as dropping the guard does.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the quorum had been lost before; [`Error::NoQuorum`] if too few servers answered. The release is
    /// then retried in the background until the leases have ended.
    pub async fn release(mut self) -> Result<(), Error> {
        let was_valid = self.check();
        // `close` takes back unanswered requests, and no member joins from here on.
        let members = roster::close(&self.roster);
        let release = |guard: Arc<Guard>| async move {
            match Arc::try_unwrap(guard) {
                Ok(guard) => guard.give_back().await,
                // `renew` holds a second reference, but it borrows this guard, so it cannot run now.
                Err(guard) => Err(guard.lost_error(LostReason::NotOwner)),
            }
        };
        let Replies { tally, lost, failures } = self.request_all(members, release).await;
        let released = match tally.verdict() {
            Some(Verdict::Dead) => Err(self.locks.no_quorum(tally.granted, failures)),
            _ => was_valid.and(lost.map_or(Ok(()), |reason| Err(self.lost_error(reason)))),
        };
        self.span.end(|| match &released {
            Ok(()) => End::Released,
            Err(Error::Lost { .. }) => End::Lost,
            Err(_) => End::Dropped,
        });
        released
    }

    /// Sends a request to every held member, until the majority's outcome is certain.
    async fn request_all<F: Future<Output = Result<(), Error>> + Send>(
        &self,
        members: Vec<Member>,
        request: impl Fn(Arc<Guard>) -> F,
    ) -> Replies {
        let mut tally = self.locks.quorum();
        let (mut held, mut lost, mut last, mut failures) = (0, 0, None, Vec::new());
        let mut replies = JoinAll::default();
        let failure = |place, error| self.locks.servers.failure(place, error);
        for (place, member) in members.into_iter().enumerate() {
            match member {
                Member::Held(guard) => {
                    held += 1;
                    replies.add(place, request(guard));
                }
                Member::Failed(error) => {
                    tally.failed += 1;
                    failures.push(failure(place, error));
                }
                Member::Pending | Member::Refused(_) | Member::Released => tally.refused += 1,
            }
        }
        // Once every member has answered, there is a verdict, so this loop ends.
        while tally.verdict().is_none() {
            for (place, answer) in replies.ready().await {
                match answer {
                    Ok(()) => tally.granted += 1,
                    Err(Error::Lost { reason, .. }) => {
                        (lost, last) = (lost + 1, Some(reason));
                        tally.refused += 1;
                    }
                    Err(error) => {
                        tally.failed += 1;
                        failures.push(failure(place, error));
                    }
                }
            }
        }
        let is_lost = lost + tally.wanted() > held;
        Replies { tally, lost: is_lost.then(|| last.unwrap_or(LostReason::NotOwner)), failures }
    }

    /// Fails if the quorum is lost.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.is_valid() { Ok(()) } else { Err(self.lost_error(self.reason())) }
    }

    fn reason(&self) -> LostReason {
        let reasons = lock(&self.roster).guards().filter_map(|guard| guard.reason()).last();
        reasons.unwrap_or(LostReason::Expired)
    }

    fn lost_error(&self, reason: LostReason) -> Error {
        Error::Lost { lock: self.name().to_owned(), reason }
    }
}

impl Held for RedLockGuard {
    fn begin_span(&mut self) {
        self.span = HoldSpan::begin(Subject { lock: self.name(), kind: "redlock" });
    }
}

impl Drop for RedLockGuard {
    fn drop(&mut self) {
        let roster = &self.roster;
        self.span.end(|| if lock(roster).is_valid() { End::Dropped } else { End::Lost });
        drop(roster::close(roster));
    }
}

impl fmt::Debug for RedLockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedLockGuard")
            .field("name", &self.name())
            .field("valid", &self.is_valid())
            .field("members", &self.members())
            .finish()
    }
}
