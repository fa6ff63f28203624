//! The guard of a hold on a majority of servers.
//!
//! This module owns the guard's methods. `roster` decides which member counts.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Poll, Waker};

use tokio::runtime::Handle;

use super::roster::{self, Asker, Member, Pending, Roster, Standing, lock};
use crate::base::clock::BootInstant;
use crate::base::error::LostReason;
use crate::base::error::{Error, MemberFailure};
use crate::base::join_all::{JoinAll, Request};
use crate::base::quorum::{Quorum, Verdict};
use crate::base::work::unless_lost;
use crate::lock::Lock;
use crate::request::guard::{Guard, Released};
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
    locks: Arc<[Lock]>,
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

/// Outcome of a request to all members.
struct Asked {
    verdict: Verdict,
    granted: usize,
    /// Too many members were lost before. The guard held fewer than a majority.
    is_lost: bool,
    failures: Vec<MemberFailure>,
}

impl RedLockGuard {
    /// Creates a guard of `members`, of which a majority is held. The requests in `pending` have no reply yet.
    pub(super) fn new(asker: &Asker, members: Vec<Member>, pending: Pending, runtime: &Handle) -> Self {
        let locks = Arc::clone(&asker.locks);
        let roster = roster::keep(asker.clone(), members, pending, runtime);
        Self { locks, roster, span: HoldSpan::none() }
    }

    /// Returns the lock's name.
    pub fn name(&self) -> &str {
        self.locks.first().map_or("", Lock::name)
    }

    /// Returns the state of the lock on each server, in the order in which the servers were given. If fewer than all
    /// are `Held`, the guard survives fewer further failures.
    pub fn members(&self) -> Vec<RedLockMember> {
        let roster = lock(&self.roster);
        let told = self.locks.iter().zip(&roster.members).map(|(lock, member)| {
            let state = match member {
                Member::Asked => MemberState::Pending,
                Member::Held(guard) => match guard.reason() {
                    None => MemberState::Held { valid_until: guard.valid_until() },
                    Some(reason) => MemberState::Lost(reason),
                },
                Member::Refused(_) | Member::GivenBack => MemberState::Refused,
                Member::Failed(error) => MemberState::Failed(error.clone()),
            };
            RedLockMember { server: lock.context.client.server_address(), state }
        });
        told.collect()
    }

    /// Returns the time until which a majority is known to be held. Renewals move it.
    pub fn valid_until(&self) -> BootInstant {
        let now = || self.locks.first().map_or_else(BootInstant::now, |lock| lock.context.clock.now());
        lock(&self.roster).valid_until().unwrap_or_else(now)
    }

    /// Returns true if a majority is held now, as far as is known.
    pub fn is_valid(&self) -> bool {
        lock(&self.roster).is_valid()
    }

    /// Resolves when fewer than a majority are valid. If the runtime polls its tasks, the future resolves at
    /// [`valid_until`](Self::valid_until) at the latest. Returns the reason of the member that was lost last.
    ///
    /// # Cancel safety
    ///
    /// Safe: the call only waits.
    pub async fn lost(&self) -> LostReason {
        let mut watch = Watch { roster: &self.roster, watched: vec![Watched::default(); self.locks.len()] };
        std::future::poll_fn(|cx| watch.poll(cx.waker())).await
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
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        let output = self.run_unconfirmed(work).await?;
        self.confirm().await?;
        Ok(output)
    }

    /// [`run`](Self::run) for work that can fail: one `Result` for both, as in [`Lock::try_run`](crate::Lock::try_run).
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    ///
    /// # Errors
    ///
    /// The error of `work`, and all errors of [`run`](Self::run).
    pub async fn try_run<T, E: From<Error>>(&self, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        self.run(work).await?
    }

    /// Polls the servers whether the lock is still held, until a majority has confirmed it or no reply is missing.
    /// Members that join meanwhile are polled, too. Fails only if the quorum is lost.
    async fn confirm(&self) -> Result<(), Error> {
        let wanted = Quorum::majority(self.locks.len()).wanted();
        let mut asked = vec![false; self.locks.len()];
        let (mut flight, mut confirmed) = (JoinAll::new([]), 0);
        loop {
            for (place, (member, asked)) in lock(&self.roster).members.iter().zip(&mut asked).enumerate() {
                if let Member::Held(guard) = member
                    && !std::mem::replace(asked, true)
                {
                    let guard = Arc::clone(guard);
                    flight.add(place, Box::pin(async move { guard.confirm().await }));
                }
            }
            if confirmed >= wanted || flight.is_over() {
                return self.check();
            }
            let answers = flight.ready().await;
            confirmed += answers.into_iter().filter(|(_, answer)| matches!(answer, Ok(true))).count();
        }
    }

    pub(super) async fn run_unconfirmed<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        let lost = async { self.lost_error(self.lost().await) };
        unless_lost(work, lost, || self.check()).await
    }

    /// Releases all members after work that ended under a valid quorum: see [`Guard::release_after_work`].
    pub(crate) async fn release_after_work(self) -> Result<(), Error> {
        let locks = Arc::clone(&self.locks);
        match self.release().await {
            Ok(Released::AlreadyLost) => {
                let is_shut = locks.iter().any(|lock| lock.context.holds().is_shut());
                let reason = if is_shut { LostReason::ShutDown } else { LostReason::NotOwner };
                Err(Error::Lost { lock: locks.first().map_or("", Lock::name).to_owned(), reason })
            }
            Ok(Released::Released) | Err(_) => Ok(()),
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
        roster::ask_missing(&self.roster);
        let members: Vec<_> = lock(&self.roster).members.iter().map(Member::standing).collect();
        let renew = |guard: Arc<Guard>| -> Request<'static, _> {
            Box::pin(async move { guard.renew().await.map(|()| Released::Released) })
        };
        let asked = self.ask_all(members, renew).await;
        match asked.verdict {
            Verdict::Reached => self.check(),
            Verdict::Busy | Verdict::Dead => {
                self.check()?;
                Err(self.no_quorum(asked.granted, asked.failures))
            }
        }
    }

    /// Releases all members at once, and returns when a majority has confirmed it. The other releases continue in the
    /// background.
    ///
    /// [`Released::AlreadyLost`] if the quorum had been lost before.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases in the background, as dropping the guard does.
    ///
    /// # Errors
    ///
    /// [`Error::NoQuorum`] if too few servers answered. The release is then retried in the background until the leases
    /// have ended.
    pub async fn release(mut self) -> Result<Released, Error> {
        let believed = self.is_valid();
        // `close` takes back unanswered requests, and no member joins from here on.
        let members: Vec<_> = roster::close(&self.roster).into_iter().map(Member::into_standing).collect();
        let release = |guard: Arc<Guard>| -> Request<'static, _> {
            Box::pin(async move {
                match Arc::into_inner(guard) {
                    Some(guard) => guard.give_back().await.map(Released::of),
                    // `renew` holds a second reference, but it borrows this guard, so it cannot run now.
                    None => Ok(Released::AlreadyLost),
                }
            })
        };
        let asked = self.ask_all(members, release).await;
        let is_lost = !believed || asked.is_lost;
        self.span.end(|| match asked.verdict {
            Verdict::Dead => End::Dropped,
            Verdict::Reached | Verdict::Busy => {
                if is_lost {
                    End::Lost
                } else {
                    End::Released
                }
            }
        });
        match asked.verdict {
            Verdict::Dead => Err(self.no_quorum(asked.granted, asked.failures)),
            Verdict::Reached | Verdict::Busy if !is_lost => Ok(Released::Released),
            Verdict::Reached | Verdict::Busy => Ok(Released::AlreadyLost),
        }
    }

    /// Sends a request to every held member, until the majority's outcome is certain.
    async fn ask_all(
        &self,
        members: Vec<Standing>,
        ask: impl Fn(Arc<Guard>) -> Request<'static, Result<Released, Error>>,
    ) -> Asked {
        let mut tally = Quorum::majority(members.len());
        let (mut held, mut lost, mut failures) = (0, 0, Vec::new());
        let mut requests = Vec::new();
        for (place, member) in members.into_iter().enumerate() {
            match member {
                Standing::Held(guard) => {
                    held += 1;
                    requests.push((place, ask(guard)));
                }
                Standing::NotHeld => tally.refused += 1,
                Standing::Failed(error) => {
                    tally.failed += 1;
                    failures.push(self.failure(place, error));
                }
            }
        }
        let mut flight = JoinAll::new(requests);
        loop {
            // Once every member has answered, there is a verdict, so this loop ends.
            if let Some(verdict) = tally.verdict() {
                let is_lost = lost + tally.wanted() > held;
                return Asked { verdict, granted: tally.granted, is_lost, failures };
            }
            for (place, answer) in flight.ready().await {
                match answer {
                    Ok(Released::Released) => tally.granted += 1,
                    Ok(Released::AlreadyLost) | Err(Error::Lost { .. }) => {
                        lost += 1;
                        tally.refused += 1;
                    }
                    Err(error) => {
                        tally.failed += 1;
                        failures.push(self.failure(place, error));
                    }
                }
            }
        }
    }

    fn failure(&self, place: usize, error: Error) -> MemberFailure {
        let server = self.locks.get(place).map(|lock| lock.context.client.server_address());
        MemberFailure { server: server.unwrap_or_default(), error }
    }

    /// Fails if the quorum is lost.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_valid() { Ok(()) } else { Err(self.lost_error(self.reason())) }
    }

    fn reason(&self) -> LostReason {
        let reasons = lock(&self.roster).guards().filter_map(|guard| guard.reason()).last();
        reasons.unwrap_or(LostReason::Expired)
    }

    fn lost_error(&self, reason: LostReason) -> Error {
        Error::Lost { lock: self.name().to_owned(), reason }
    }

    fn no_quorum(&self, granted: usize, failures: Vec<MemberFailure>) -> Error {
        let wanted = Quorum::majority(self.locks.len()).wanted();
        Error::NoQuorum { lock: self.name().to_owned(), granted, wanted, failures }
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

/// Watches for the loss of a quorum.
///
/// A member that joins while this waits is watched from the next poll on. That is early enough. The watched members are
/// a majority, so the quorum is lost only together with one of them. The loss of that member polls this watch.
struct Watch<'a> {
    roster: &'a Mutex<Roster>,
    watched: Vec<Watched>,
}

/// The watched guard at one place, and the number of its watcher. A member that joins again has a new guard.
#[derive(Clone, Default)]
struct Watched {
    guard: Weak<Guard>,
    number: Option<u64>,
}

impl Watch<'_> {
    fn poll(&mut self, waker: &Waker) -> Poll<LostReason> {
        let roster = lock(self.roster);
        let (mut held, mut lost) = (0, None);
        for (member, watched) in roster.members.iter().zip(&mut self.watched) {
            let Member::Held(guard) = member else { continue };
            if !std::ptr::eq(watched.guard.as_ptr(), Arc::as_ptr(guard)) {
                *watched = Watched { guard: Arc::downgrade(guard), number: None };
            }
            match guard.poll_lost(&mut watched.number, waker) {
                Poll::Pending => held += 1,
                Poll::Ready(reason) => lost = Some(reason),
            }
        }
        if held >= roster.quorum.wanted() && !roster.broken {
            return Poll::Pending;
        }
        Poll::Ready(lost.unwrap_or(LostReason::Expired))
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        for Watched { guard, number } in &self.watched {
            if let (Some(guard), Some(number)) = (guard.upgrade(), number) {
                guard.unwatch(*number);
            }
        }
    }
}
