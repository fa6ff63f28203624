//! Asks Sentinels where the primary is. Owns the connections to them; what their answers mean is `discovery`'s.
//!
//! Every Sentinel is asked once a second, whenever it announces something, and several times as often while the primary
//! is in doubt. Nothing here is on the way of a call.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use wheellock_resp::Command;
use wheellock_wheel::Timer;

use super::discovery::{Answer, Discovery, parse_master, parse_promoted};
use crate::address::Address;
use crate::client::{CallOptions, Client};
use crate::config::{Config, Sentinels, Servers};
use crate::connection::Shared;
use crate::error::{Error, ErrorKind, Outcome};
use crate::handshake::Role;
use crate::subscription::Subscription;

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
            closed: false,
            asked: vec![false; sentinels.addresses.len()],
            turned_away: None,
            makeshift: None,
            failures: vec![None; sentinels.addresses.len()],
            waiting: Vec::new(),
        };
        Self { sentinels: sentinels.clone(), state: Mutex::new(state) }
    }

    /// Starts to ask. Call once, within a runtime.
    pub(crate) fn start(self: &Arc<Self>, shared: &Arc<Shared>) {
        for (number, address) in self.sentinels.addresses.iter().enumerate() {
            let client = Client::lazy_as(self.config(&shared.config, address), Role::Sentinel);
            let scout =
                Scout { finder: Arc::downgrade(self), shared: Arc::downgrade(shared), number, client };
            tokio::spawn(scout.run());
        }
    }

    /// How to connect to a Sentinel: with its own credentials, and what the servers' connection has for the rest.
    fn config(&self, of_servers: &Config, address: &Address) -> Config {
        let mut config = Config::with(Servers::One(address.clone()));
        config.username.clone_from(&self.sentinels.username);
        config.password.clone_from(&self.sentinels.password);
        #[cfg(feature = "tls")]
        config.tls.clone_from(&self.sentinels.tls);
        config.client_name.clone_from(&of_servers.client_name);
        config.connect_timeout = of_servers.connect_timeout;
        config.response_timeout = PATIENCE;
        config.heartbeat = of_servers.heartbeat;
        config.reconnect = RECONNECT;
        config.limits = of_servers.limits;
        config.random = of_servers.random;
        config.timer = of_servers.timer.clone();
        config
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The primary's address and the number of changes so far, once there is an address. The first Sentinel to answer may
    /// be the one that has not heard of the last failover, so all are waited for, but not for long.
    pub(crate) async fn address(&self, timer: &Timer) -> (Address, u64) {
        let all = std::future::poll_fn(|cx| {
            let mut state = self.lock();
            if state.asked.iter().all(|asked| *asked) { Poll::Ready(()) } else { state.wait(cx) }
        });
        let _late = timer.timeout_at(timer.now() + ALL_WITHIN, all).await;
        std::future::poll_fn(|cx| {
            let mut state = self.lock();
            match state.discovery.address() {
                Some(address) => Poll::Ready((address.clone(), state.version)),
                None => state.wait(cx),
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

    /// Whether the server that is connected is the one to use, as far as the Sentinels say.
    fn allows(&self, shared: &Shared) -> bool {
        let state = self.lock();
        let makeshift =
            state.makeshift.as_ref().filter(|address| state.discovery.alternative() == Some(address));
        state.discovery.address().into_iter().chain(makeshift).any(|address| shared.is_at(address))
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

    fn service(&self) -> &str {
        &self.sentinels.service
    }

    /// Asks at once.
    pub(crate) fn hurry(&self) {
        let mut state = self.lock();
        state.hurries += 1;
        let wakers = std::mem::take(&mut state.waiting);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The connection to the primary is up, or has ended.
    pub(crate) fn connected(&self, connected: bool) {
        let before = std::mem::replace(&mut self.lock().connected, connected);
        if before && !connected {
            self.hurry();
        }
    }

    fn is_hurried(&self) -> bool {
        let state = self.lock();
        !state.connected || state.discovery.is_suspect()
    }

    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.hurry();
    }

    /// Takes a Sentinel's answer.
    fn heard(&self, number: usize, answer: Result<Answer, Error>) {
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
        let wakers = if first || renamed { std::mem::take(&mut state.waiting) } else { Vec::new() };
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl State {
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

/// Asks one Sentinel, until the finder is gone.
struct Scout {
    finder: Weak<Finder>,
    shared: Weak<Shared>,
    number: usize,
    client: Client,
}

impl Scout {
    async fn run(self) {
        let mut news: Vec<Subscription> =
            NEWS.iter().map(|channel| self.client.subscribe(channel.as_bytes())).collect();
        loop {
            let Some(finder) = self.finder.upgrade() else { return };
            let hurries = finder.lock().hurries;
            let answer = self.ask(&finder).await;
            finder.heard(self.number, answer);
            if let Some(shared) = self.shared.upgrade().filter(|shared| !finder.allows(shared)) {
                shared.condemn(ErrorKind::ConnectionLost, "the Sentinels name another primary now");
            }
            let hurried = finder.is_hurried();
            let timer = &self.client.config().timer;
            let mut sleep = timer.sleep(if hurried { HURRIED_INTERVAL } else { INTERVAL });
            let closed = std::future::poll_fn(|cx| {
                let mut state = finder.lock();
                if state.closed || Arc::strong_count(&finder) == 1 {
                    return Poll::Ready(true);
                }
                let hurried = state.hurries != hurries && !hurried;
                let _pending: Poll<()> = state.wait(cx);
                drop(state);
                let told = news.iter_mut().any(|news| news.poll_changed(cx).is_ready());
                if hurried || told || Pin::new(&mut sleep).poll(cx).is_ready() {
                    return Poll::Ready(false);
                }
                Poll::Pending
            });
            if closed.await {
                return;
            }
        }
    }

    async fn ask(&self, finder: &Finder) -> Result<Answer, Error> {
        let options = CallOptions::by(self.client.config().timer.now() + PATIENCE);
        let ask = async |subcommand: &str| {
            let question = Command::new("SENTINEL").arg(subcommand).arg(finder.service());
            self.client.call_with(&question, options).await
        };
        // Polled in this order they go out in this order, which is the one in which they cannot contradict each other.
        let (mut replicas, mut master) = (pin!(ask("REPLICAS")), pin!(ask("MASTER")));
        let mut promoted = None;
        let master = std::future::poll_fn(|cx| {
            if promoted.is_none()
                && let Poll::Ready(reply) = replicas.as_mut().poll(cx)
            {
                promoted = Some(reply);
            }
            master.as_mut().poll(cx)
        });
        let master = master.await?;
        let replicas = match promoted {
            Some(replicas) => replicas?,
            None => return Err(self.nonsense("it answers out of order")),
        };
        let mut answer = parse_master(&master).map_err(|malformed| self.nonsense(malformed.0))?;
        answer.promoted = parse_promoted(&replicas).map_err(|malformed| self.nonsense(malformed.0))?;
        answer.address = self.translated(answer.address)?;
        answer.promoted = answer.promoted.map(|address| self.translated(address)).transpose()?;
        Ok(answer)
    }

    fn translated(&self, address: Address) -> Result<Address, Error> {
        let shared = self.shared.upgrade();
        match shared.as_ref().and_then(|shared| shared.config.translate.as_ref()) {
            None => Ok(address),
            Some(translate) => translate(&address)
                .ok_or_else(|| self.nonsense(&format!("it names {address}, which is forbidden"))),
        }
    }

    fn nonsense(&self, why: &str) -> Error {
        let server = self.client.server_address();
        Error::new(ErrorKind::Protocol, Outcome::Rejected, "asking a Sentinel", &server, why.to_owned())
    }
}

/// What Sentinels announce when a primary is failing, has a successor, or was replaced.
const NEWS: [&str; 3] = ["+odown", "+selected-slave", "+switch-master"];
/// Time between two questions while all is well, as in Redisson (`scanInterval`).
const INTERVAL: Duration = Duration::from_secs(1);
/// Time between two questions while the primary is in doubt: a quarter of the time within which a new one is to be used.
const HURRIED_INTERVAL: Duration = Duration::from_millis(25);
/// How long a replica that is to be promoted is waited for, before the former primary is tried again. It took 0.1 s.
const PROMOTED_WITHIN: Duration = Duration::from_secs(1);
/// How long all Sentinels are waited for before any answer counts.
const ALL_WITHIN: Duration = Duration::from_millis(250);
/// How long a Sentinel may take to answer.
const PATIENCE: Duration = Duration::from_millis(500);
/// Pauses between attempts to connect to a Sentinel. Longer than those for a server: others know as much.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
