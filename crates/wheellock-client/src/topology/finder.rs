//! Where the primary is, as far as the Sentinels have said. Owns who waits for that; what an answer means is `discovery`'s,
//! and asking is that of `scouts`. Nothing here is on the way of a call.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use wheellock_wheel::Timer;

use super::discovery::{Answer, Discovery};
use super::pace::Pace;
use crate::base::address::Address;
use crate::base::contain::wake_all;
use crate::base::error::{Error, ErrorKind};
use crate::config::Sentinels;

/// Knows where the primary is, as far as the Sentinels do.
pub(crate) struct Finder {
    sentinels: Sentinels,
    state: Mutex<State>,
}

struct State {
    discovery: Discovery,
    /// Counts changes of the address.
    version: u64,
    /// Counts reasons to ask at once.
    hurries: u64,
    /// The primary is connected.
    connected: bool,
    /// How often is asked. That the primary is not to be used, or is in doubt, begins anew with each change of its connection.
    pace: Pace,
    closed: bool,
    /// Which Sentinels have answered, or failed to.
    asked: Vec<bool>,
    /// The address whose server said that it is no primary, and since when.
    turned_away: Option<(Address, Instant)>,
    /// The former primary, used again because its successor does not become one.
    makeshift: Option<Address>,
    /// What became of the last question to each Sentinel, if it failed.
    failures: Vec<Option<Error>>,
    waiting: Vec<Waker>,
}

impl Finder {
    pub(crate) fn new(sentinels: &Sentinels) -> Self {
        let state = State {
            discovery: Discovery::default(),
            version: 0,
            hurries: 0,
            connected: false,
            pace: Pace::new(INTERVAL, HURRIED_INTERVAL, TROUBLED_INTERVAL),
            closed: false,
            asked: vec![false; sentinels.addresses.len()],
            turned_away: None,
            makeshift: None,
            failures: vec![None; sentinels.addresses.len()],
            waiting: Vec::new(),
        };
        Self { sentinels: sentinels.clone(), state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The primary's address and the number of changes so far, once there is an address; if every Sentinel refuses us, which waiting will
    /// not cure, as what the last of them does. The first Sentinel to answer may be the one that has not heard of the last failover, so all
    /// are waited for, but not for long.
    pub(crate) async fn address(&self, timer: &Timer) -> Result<(Address, u64), ErrorKind> {
        let all = std::future::poll_fn(|cx| {
            let mut state = self.lock();
            if state.asked.iter().all(|asked| *asked) { Poll::Ready(()) } else { state.wait(cx) }
        });
        let _late = timer.timeout_at(timer.now() + ALL_WITHIN, all).await;
        std::future::poll_fn(|cx| {
            let mut state = self.lock();
            match (state.discovery.address(), state.refusal()) {
                (Some(address), _) => Poll::Ready(Ok((address.clone(), state.version))),
                (None, Some(kind)) => Poll::Ready(Err(kind)),
                (None, None) => state.wait(cx),
            }
        })
        .await
    }

    /// The server at `address` is no primary. Returns where else to look, if that has been so for a while.
    pub(crate) fn turned_away(&self, address: &Address, now: Instant) -> Option<Address> {
        let mut state = self.lock();
        let since = match &state.turned_away {
            Some((before, since)) if before == address => *since,
            _ => {
                state.turned_away = Some((address.clone(), now));
                now
            }
        };
        let waited = now.saturating_duration_since(since) >= PROMOTED_WITHIN;
        let alternative = state.discovery.alternative().filter(|_| waited).cloned();
        state.makeshift.clone_from(&alternative);
        alternative
    }

    /// Whether the server that is connected is the one to use, as far as the Sentinels say; `is_at` tells where it is.
    pub(crate) fn allows(&self, is_at: impl Fn(&Address) -> bool) -> bool {
        let state = self.lock();
        let makeshift =
            state.makeshift.as_ref().filter(|address| state.discovery.alternative() == Some(address));
        state.discovery.address().into_iter().chain(makeshift).any(is_at)
    }

    pub(crate) fn version(&self) -> u64 {
        self.lock().version
    }

    /// Resolves when the address is another one than at `version`.
    pub(crate) async fn renamed(&self, version: u64) {
        std::future::poll_fn(|cx| {
            let mut state = self.lock();
            if state.version == version { state.wait(cx) } else { Poll::Ready(()) }
        })
        .await;
    }

    /// Why there is no address.
    pub(crate) fn nobody_knows(&self) -> String {
        let failures = self.lock().failures.clone();
        let said: Vec<_> = failures
            .iter()
            .zip(&self.sentinels.addresses)
            .map(|(failure, address)| {
                let why = failure.as_ref().map_or("no answer yet", Error::detail);
                format!("{address}: {why}")
            })
            .collect();
        format!("no Sentinel names a primary for \"{}\": {}", self.service().escape_debug(), said.join("; "))
    }

    pub(crate) fn service(&self) -> &str {
        &self.sentinels.service
    }

    /// Asks at once.
    pub(crate) fn hurry(&self) {
        let mut state = self.lock();
        state.hurries += 1;
        let wakers = std::mem::take(&mut state.waiting);
        drop(state);
        wake_all(wakers);
    }

    /// The connection to the primary is up, or has ended.
    pub(crate) fn connected(&self, connected: bool) {
        let mut state = self.lock();
        let before = std::mem::replace(&mut state.connected, connected);
        if before != connected {
            state.pace.begin_anew();
        }
        drop(state);
        if before && !connected {
            self.hurry();
        }
    }

    /// How long to wait before a Sentinel is asked again. Several times as often as usual while the primary is not connected, while it is
    /// being replaced, or while a Sentinel has lost it and it is not `is_lively` to us either; but not for ever.
    pub(crate) fn interval(&self, now: Instant, is_lively: bool) -> Duration {
        let mut state = self.lock();
        let discovery = &state.discovery;
        let in_doubt = discovery.alternative().is_some() || discovery.is_suspect() && !is_lively;
        let is_well = state.connected && !in_doubt;
        state.pace.pause(is_well, now)
    }

    /// How often somebody has asked to hurry.
    pub(crate) fn hurries(&self) -> u64 {
        self.lock().hurries
    }

    /// Nobody needs the primary's address any more.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.hurry();
    }

    /// Leaves a waker for any news. Returns how often somebody has asked to hurry; `None` if nobody needs answers any more.
    pub(crate) fn wait(&self, cx: &Context<'_>) -> Option<u64> {
        let mut state = self.lock();
        let _pending: Poll<()> = state.wait(cx);
        (!state.closed).then_some(state.hurries)
    }

    /// Takes a Sentinel's answer.
    pub(crate) fn heard(&self, number: usize, answer: Result<Answer, Error>) {
        let mut state = self.lock();
        let before = state.discovery.address().cloned();
        let failure = match answer {
            Ok(answer) => {
                state.discovery.heard(number, answer);
                None
            }
            Err(error) => {
                state.discovery.silent(number);
                Some(error)
            }
        };
        if let Some(place) = state.failures.get_mut(number) {
            *place = failure;
        }
        let first = state.asked.get_mut(number).is_some_and(|asked| !std::mem::replace(asked, true));
        let renamed = state.discovery.address() != before.as_ref();
        state.version += u64::from(renamed);
        let wakers = if first || renamed || state.refusal().is_some() {
            std::mem::take(&mut state.waiting)
        } else {
            Vec::new()
        };
        drop(state);
        wake_all(wakers);
    }
}

impl State {
    /// What the last of them refuses us as, if each of them does; that there is none is no reason to wait either.
    fn refusal(&self) -> Option<ErrorKind> {
        self.failures.iter().try_fold(ErrorKind::Unsupported, |_, failure| {
            failure.as_ref().filter(|error| error.is_refusal()).map(Error::kind)
        })
    }

    fn wait<T>(&mut self, cx: &Context<'_>) -> Poll<T> {
        if !self.waiting.iter().any(|known| known.will_wake(cx.waker())) {
            self.waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl fmt::Debug for Finder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Finder").field("service", &self.service()).finish_non_exhaustive()
    }
}

/// Time between two questions to a Sentinel while all is well, as in Redisson (`scanInterval`).
const INTERVAL: Duration = Duration::from_secs(1);
/// Time between two questions while the primary is in doubt: a quarter of the time within which a new one is to be used.
pub(super) const HURRIED_INTERVAL: Duration = Duration::from_millis(25);
/// Time between two questions while the primary has been in doubt for long. What Sentinels announce is asked about at once all the same.
const TROUBLED_INTERVAL: Duration = Duration::from_millis(500);
/// How long a replica that is to be promoted is waited for, before the former primary is tried again. It took 0.1 s.
const PROMOTED_WITHIN: Duration = Duration::from_secs(1);
/// How long all Sentinels are waited for before any answer counts.
const ALL_WITHIN: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests;
