//! The primary's address, as far as the Sentinels have stated it.
//!
//! This module owns the tasks that wait for the address. It does not interpret replies (`discovery` does) and does
//! not query Sentinels (`sentinels` does). No call waits for it.

use std::future::Future;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use wheellock_wheel::Timer;

use crate::base::address::Address;
use crate::base::error::{Error, ErrorKind};
use crate::base::pace::Pace;
use crate::base::panics::wake_all;
use crate::config::Sentinels;
use crate::protocol::discovery::{Answer, Discovery};

/// The primary's address and the tasks that wait for it.
pub(crate) struct Finder {
    sentinels: Sentinels,
    state: Mutex<State>,
}

struct State {
    discovery: Discovery,
    /// Number of changes of the address.
    version: u64,
    /// Number of requests to query at once.
    query_requests: u64,
    /// True while the primary is connected.
    connected: bool,
    /// The query interval. It restarts at the hurried interval when the connection to the primary goes up or down.
    pace: Pace,
    closed: bool,
    /// By Sentinel, the end of its last query. `None` before the first query has ended.
    queries: Vec<Option<Result<(), Error>>>,
    /// The address whose server reported that it is not a primary, and the instant of the first report.
    turned_away: Option<(Address, Instant)>,
    /// The former primary, in use again because its successor was not promoted.
    fallback: Option<Address>,
    waiting: Vec<Waker>,
}

impl Finder {
    pub(crate) fn new(sentinels: &Sentinels) -> Self {
        let state = State {
            discovery: Discovery::default(),
            version: 0,
            query_requests: 0,
            connected: false,
            pace: Pace::new(INTERVAL, HURRIED_INTERVAL, TROUBLED_INTERVAL),
            closed: false,
            queries: vec![None; sentinels.addresses.len()],
            turned_away: None,
            fallback: None,
            waiting: Vec::new(),
        };
        Self { sentinels: sentinels.clone(), state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the primary's address. Returns the address and the number of its changes.
    ///
    /// The first Sentinel to reply may not know of the last failover. So the wait includes a first reply of every
    /// Sentinel, for at most `ALL_WITHIN`. If every Sentinel refuses this client, returns the last refusal's kind,
    /// because waiting cannot help.
    pub(crate) async fn address(&self, timer: &Timer) -> Result<(Address, u64), ErrorKind> {
        let all = std::future::poll_fn(|cx| {
            let mut state = self.lock();
            if state.queries.iter().all(Option::is_some) { Poll::Ready(()) } else { state.wait(cx) }
        });
        // A Sentinel that is still silent then may be down, so the replies so far decide.
        let _late = timer.timeout_at(timer.now() + ALL_WITHIN, all).await;
        std::future::poll_fn(|cx| {
            let mut state = self.lock();
            match (state.discovery.address(), state.refusal()) {
                // A known address stays valid while every Sentinel refuses or is silent.
                (Some(address), _) => Poll::Ready(Ok((address.clone(), state.version))),
                (None, Some(kind)) => Poll::Ready(Err(kind)),
                (None, None) => state.wait(cx),
            }
        })
        .await
    }

    /// Records that the server at `address` is not a primary. Returns the alternative to try if that has lasted for
    /// `PROMOTED_WITHIN`.
    pub(crate) fn turned_away(&self, address: &Address, now: Instant) -> Option<Address> {
        let mut state = self.lock();
        let since = match &state.turned_away {
            // The time counts for one address. Otherwise a new candidate would have no time for its promotion.
            Some((before, since)) if before == address => *since,
            _ => {
                state.turned_away = Some((address.clone(), now));
                now
            }
        };
        let waited = now.saturating_duration_since(since) >= PROMOTED_WITHIN;
        let alternative = state.discovery.alternative().filter(|_| waited).cloned();
        // Without this, `allows` would reject the former primary, and a Sentinel's task would end its connection.
        state.fallback.clone_from(&alternative);
        alternative
    }

    /// Returns true if the connected server is one that the Sentinels allow. `is_at` returns true for the server's
    /// address.
    pub(crate) fn allows(&self, is_at: impl Fn(&Address) -> bool) -> bool {
        let state = self.lock();
        // A finished promotion leaves no alternative. The client must then leave the former primary.
        let fallback =
            state.fallback.as_ref().filter(|address| state.discovery.alternative() == Some(address));
        state.discovery.address().into_iter().chain(fallback).any(is_at)
    }

    pub(crate) fn version(&self) -> u64 {
        self.lock().version
    }

    /// Waits for `work`. Returns `None` as soon as the address differs from that at `version`.
    pub(crate) async fn unless_renamed<F: Future>(&self, version: u64, work: F) -> Option<F::Output> {
        let mut work = pin!(work);
        std::future::poll_fn(|cx| {
            let mut state = self.lock();
            if state.version != version {
                return Poll::Ready(None);
            }
            // The waker is stored under the lock of the check, so that no change falls in between.
            let _pending: Poll<()> = state.wait(cx);
            drop(state);
            work.as_mut().poll(cx).map(Some)
        })
        .await
    }

    /// Returns the text that says why there is no address.
    pub(crate) fn no_primary_known(&self) -> String {
        let state = self.lock();
        let said = state.queries.iter().zip(&self.sentinels.addresses).map(|(query, address)| match query {
            Some(Err(error)) => format!("{address}: {}", error.detail()),
            _ => format!("{address}: no answer yet"),
        });
        let said: Vec<_> = said.collect();
        format!("no Sentinel names a primary for \"{}\": {}", self.service().escape_debug(), said.join("; "))
    }

    pub(crate) fn service(&self) -> &str {
        &self.sentinels.service
    }

    /// Requests that every Sentinel is queried at once.
    pub(crate) fn query_now(&self) {
        let mut state = self.lock();
        state.query_requests += 1;
        let wakers = std::mem::take(&mut state.waiting);
        drop(state);
        wake_all(wakers);
    }

    /// Records that the connection to the primary is up or has ended.
    pub(crate) fn connected(&self, connected: bool) {
        let mut state = self.lock();
        let before = std::mem::replace(&mut state.connected, connected);
        if before != connected {
            state.pace.begin_anew();
        }
        drop(state);
        // Each failed attempt reports that there is no connection. Only a lost connection is news that needs a query.
        if before && !connected {
            self.query_now();
        }
    }

    /// Returns the pause before a Sentinel is queried again. The pause is short while the primary is not connected or
    /// is being replaced. It is also short while a Sentinel has lost the primary and `is_responsive` is false. A fault
    /// that lasts lengthens the pause.
    pub(crate) fn interval(&self, now: Instant, is_responsive: bool) -> Duration {
        let mut state = self.lock();
        let discovery = &state.discovery;
        // A single Sentinel may have lost a primary that replies to this client. That must not burden every Sentinel.
        let in_doubt = discovery.alternative().is_some() || discovery.is_suspect() && !is_responsive;
        let is_well = state.connected && !in_doubt;
        state.pace.pause(is_well, now)
    }

    /// Returns the number of requests to query at once.
    pub(crate) fn query_requests(&self) -> u64 {
        self.lock().query_requests
    }

    /// Ends the tasks, because no task needs the primary's address any more.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        // The wake-up makes the tasks find `closed`. They would otherwise sleep until their next query.
        self.query_now();
    }

    /// Registers a waker for any change. Returns the number of requests to query at once, or `None` after `close`.
    pub(crate) fn wait(&self, cx: &Context<'_>) -> Option<u64> {
        let mut state = self.lock();
        let _pending: Poll<()> = state.wait(cx);
        (!state.closed).then_some(state.query_requests)
    }

    /// Records a Sentinel's reply or error.
    pub(crate) fn received(&self, number: usize, answer: Result<Answer, Error>) {
        let mut state = self.lock();
        let before = state.discovery.address().cloned();
        let query = answer.map(|answer| state.discovery.received(number, answer));
        if query.is_err() {
            state.discovery.silent(number);
        }
        let first = state.queries.get_mut(number).is_some_and(|last| last.replace(query).is_none());
        let renamed = state.discovery.address() != before.as_ref();
        state.version += u64::from(renamed);
        // Other replies change nothing for the waiting tasks, and each Sentinel replies about once a second.
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
    /// Returns the kind of the last Sentinel's refusal if every Sentinel refuses. Without any Sentinel, returns
    /// `Unsupported`, because waiting cannot help.
    fn refusal(&self) -> Option<ErrorKind> {
        self.queries.iter().try_fold(ErrorKind::Unsupported, |_, query| match query {
            Some(Err(error)) if error.is_refusal() => Some(error.kind()),
            _ => None,
        })
    }

    fn wait<T>(&mut self, cx: &Context<'_>) -> Poll<T> {
        // Only a change empties this list, so a task that is polled often must not fill it.
        if !self.waiting.iter().any(|known| known.will_wake(cx.waker())) {
            self.waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

/// Interval of queries to a Sentinel while all is well, as in Redisson (`scanInterval`).
const INTERVAL: Duration = Duration::from_secs(1);
/// Interval of queries while the primary is in doubt. It is a quarter of the time within which a new primary is to be
/// used.
pub(crate) const HURRIED_INTERVAL: Duration = Duration::from_millis(25);
/// Interval of queries while the primary has been in doubt for long. Announcements of Sentinels still cause a query
/// at once.
const TROUBLED_INTERVAL: Duration = Duration::from_millis(500);
/// How long to wait for the promotion of a replica before the former primary is tried again. A promotion took 0.1 s.
const PROMOTED_WITHIN: Duration = Duration::from_secs(1);
/// How long to wait for all Sentinels before the reply of any Sentinel counts.
const ALL_WITHIN: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests;
