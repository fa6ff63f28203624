//! The state of one connection, shared by its callers and its driver.
//!
//! One short mutex guards the state. No task holds the mutex during a system call or while it wakes a caller. A
//! caller that finds the connection idle writes to the socket itself. A task switch would cost more than the write.
//! Any other caller only appends, and one flush by the driver serves the whole batch.
//!
//! After the driver has woken several callers, it is `corked`: it yields once to the back of the run queue. The calls
//! that those callers append then leave in a single write. Many calls leave in two writes, so that the server works
//! on the first half while callers append the second.

pub(crate) mod driver;
pub(crate) mod ending;
pub(crate) mod events;
pub(crate) mod finder;
pub(crate) mod link;
pub(crate) mod listener;
pub(crate) mod listening;
pub(crate) mod locator;
pub(crate) mod open;
pub(crate) mod options;
pub(crate) mod started;
pub(crate) mod stream;

use std::borrow::Cow;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use bytes::BytesMut;

use crate::base::address::Address;
use crate::base::detached::Detached;
use crate::base::error::{CONNECT, Error, ErrorKind, Outcome};
use crate::base::histogram::Histogram;
use crate::base::panics::{catch_panic, wake_all};
use crate::base::waiting::{Changes, OnLeave};
use crate::config::{Change, ChangedKeys, Config};
use crate::connection::listener::{Event, Listener};
use crate::connection::stream::WriteHalf;
use crate::protocol::handshake::{Role, ServerInfo};
use crate::protocol::pipeline::{Bounds, Pipeline};

/// One server, as its callers and its driver see it. It does not know other servers; its listener does.
pub(crate) struct Shared {
    pub(crate) config: Config,
    /// The role that the server must have.
    pub(crate) role: Role,
    /// A number that distinguishes the servers of one client.
    pub(crate) node: u32,
    /// Receives the connection's events.
    listener: Listener,
    place: RwLock<Place>,
    /// Number of [`Client`](crate::Client) handles; the driver ends when the last one is gone.
    handles: AtomicUsize,
    state: Mutex<State>,
}

/// The server of a call. It is borrowed if every call has the same server.
pub(crate) type Server<'a> = Cow<'a, Arc<Shared>>;

/// The server's address, or its address when it was last connected.
struct Place {
    /// The name for messages. It contains no credentials.
    name: Arc<str>,
    address: Option<Address>,
}

pub(crate) struct State {
    pub(crate) phase: Phase,
    pub(crate) pipeline: Pipeline,
    /// A writer is inside a system call with the bytes it took. No other task may write.
    pub(crate) writing: bool,
    /// Set after the driver has woken callers, until it writes the calls they append. A caller that finds the
    /// connection idle writes only if at least this number of calls is then in flight.
    pub(crate) corked: Option<usize>,
    pub(crate) driver: Driver,
    pub(crate) alarm: Alarm,
    pub(crate) ending: Ending,
    /// The last server, and its identity, which shows a replacement.
    pub(crate) server: Option<(ServerInfo, String)>,
    /// Why the present connection must not be used any more.
    pub(crate) poisoned: Option<(ErrorKind, String)>,
    /// Number of times the credentials were renewed. A connecting driver that read the credentials before a renewal
    /// reads them again.
    pub(crate) renewals: u64,
    pub(crate) stats: Stats,
    /// The changes of `phase`.
    pub(crate) changes: Changes,
}

pub(crate) enum Phase {
    /// Not connected. Calls queue until their deadlines. The error made the last attempt fail, or ended the last
    /// connection.
    Connecting(Option<Error>),
    /// Connected. Idle callers may write to this socket.
    Ready(Arc<WriteHalf>),
    /// The server refuses this client, and waiting will not cure that soon. Calls fail at once.
    Refused(Error),
    /// Ended for good.
    Closed {
        cause: Error,
        /// The socket that was open when the driver was dropped. A caller that queues a call after that writes it
        /// itself and gets no reply.
        left_open: Option<Arc<WriteHalf>>,
    },
}

/// The driver, as its callers see it.
pub(crate) enum Driver {
    /// At work. With `again`, the driver takes one more turn before it waits.
    Awake { again: bool },
    /// The driver waits for a wake-up.
    Parked(Waker),
    /// The driver's runtime dropped it while the connection was open. The callers write, and the driver reads for a
    /// moment.
    Abandoned,
    /// The driver is gone for good. A writer that is still at work ends the connection when it is done.
    Gone,
}

/// The driver's timer, as its callers see it.
pub(crate) enum Alarm {
    /// The timer fires at this instant. A caller with an earlier deadline must wake the driver.
    Set(Instant),
    /// The driver sets the timer before it waits. The instant is that at which a caller unset the timer and woke the
    /// driver.
    Unset(Option<Instant>),
}

/// The intention to end the connection for good.
pub(crate) enum Ending {
    No,
    /// The client was closed. The driver finishes the queued calls.
    Closing,
    /// The client stops using this server. The remaining calls fail with this error.
    Retiring(Error),
}

/// Counters of one client since its creation.
///
/// ```no_run
/// # async fn example(client: wheellock_client::Client) -> Result<(), wheellock_client::Error> {
/// let stats = client.stats();
/// println!("{} calls, {} in flight, {} connections", stats.calls, stats.in_flight, stats.connections);
/// println!("99 % within {:?}", stats.latency.quantile(0.99));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Calls of the client's users that were queued. The client's own requests are not counted: handshakes,
    /// subscriptions and probes.
    pub calls: u64,
    /// Bytes handed to sockets.
    pub bytes_written: u64,
    /// Bytes read from sockets.
    pub bytes_read: u64,
    /// Writes by callers that found the connection idle.
    pub idle_writes: u64,
    /// Writes by the driver, each for a batch of calls.
    pub batch_writes: u64,
    /// Connections established, including the first.
    pub connections: u64,
    /// Callers and waiters woken by replies and messages.
    pub wakeups: u64,
    /// Pushes received.
    pub pushes: u64,
    /// Pushes that the client did not request. The client ignores them.
    pub strays: u64,
    /// Calls that are waiting for a reply now.
    pub in_flight: usize,
    /// Bytes that are queued and not yet accepted by a socket.
    pub queued_bytes: usize,
    /// Time from queueing to reply, of every call whose caller was still waiting for the reply.
    pub latency: Histogram,
}

impl Stats {
    /// Adds up the counters of two connections.
    pub(crate) fn merged(mut self, other: Self) -> Self {
        self.calls += other.calls;
        self.bytes_written += other.bytes_written;
        self.bytes_read += other.bytes_read;
        self.idle_writes += other.idle_writes;
        self.batch_writes += other.batch_writes;
        self.connections += other.connections;
        self.wakeups += other.wakeups;
        self.pushes += other.pushes;
        self.strays += other.strays;
        self.in_flight += other.in_flight;
        self.queued_bytes += other.queued_bytes;
        self.latency.add(&other.latency);
        self
    }
}

/// The state of the connection between a client and its server. See [`Client::state`](crate::Client::state).
///
/// ```no_run
/// use wheellock_client::ConnectionState;
///
/// # async fn example(client: wheellock_client::Client) -> Result<(), wheellock_client::Error> {
/// match client.state() {
///     ConnectionState::Ready { connection, .. } => println!("up, for the {connection}. time"),
///     ConnectionState::Connecting { last_error, .. } => println!("not up: {last_error:?}"),
///     refused_or_closed => println!("{refused_or_closed:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ConnectionState {
    /// The client is not connected. Calls queue until their deadlines.
    #[non_exhaustive]
    Connecting {
        /// Why the last attempt or connection ended. `None` before the first attempt has ended.
        last_error: Option<Error>,
    },
    /// The client is connected, and the server accepts calls.
    #[non_exhaustive]
    Ready {
        /// The number of this connection, counted from 1.
        connection: u64,
    },
    /// The server refuses the client, and waiting will not cure that soon. Calls fail at once. The client retries
    /// every second.
    Refused(Error),
    /// The client was closed, or its runtime has ended.
    Closed(Error),
}

/// The step that a caller has to take after it has unlocked the state.
pub(crate) enum Next {
    Nothing,
    WakeDriver(Waker),
    Write { writer: Arc<WriteHalf>, bytes: BytesMut },
}

impl Shared {
    pub(crate) fn new(config: Config, role: Role, node: u32, listener: Listener) -> Self {
        let now = config.timer.now();
        let bounds = Bounds { in_flight: config.max_in_flight, queued_bytes: config.max_queued_bytes };
        let state = State {
            phase: Phase::Connecting(None),
            pipeline: Pipeline::new(bounds, now, node, role == Role::Primary),
            writing: false,
            corked: None,
            // The driver's first turn is still to come, so no caller has to wake it.
            driver: Driver::Awake { again: false },
            alarm: Alarm::Unset(None),
            ending: Ending::No,
            server: None,
            poisoned: None,
            renewals: 0,
            stats: Stats::default(),
            changes: Changes::default(),
        };
        let place = RwLock::new(Place { name: config.servers.to_string().into(), address: None });
        let (handles, state) = (AtomicUsize::new(1), Mutex::new(state));
        Self { config, role, node, listener, place, handles, state }
    }

    /// Returns the server's address for messages.
    pub(crate) fn server(&self) -> Arc<str> {
        Arc::clone(&self.place.read().unwrap_or_else(PoisonError::into_inner).name)
    }

    /// Returns the host at which the server was last reached.
    pub(crate) fn host(&self) -> Option<String> {
        match self.place.read().unwrap_or_else(PoisonError::into_inner).address.as_ref()? {
            Address::Tcp { host, .. } => Some(host.clone()),
            Address::Unix(_) => None,
        }
    }

    pub(crate) fn is_at(&self, address: &Address) -> bool {
        self.place.read().unwrap_or_else(PoisonError::into_inner).address.as_ref() == Some(address)
    }

    pub(crate) fn found_at(&self, address: Address) {
        let mut place = self.place.write().unwrap_or_else(PoisonError::into_inner);
        if place.address.as_ref() != Some(&address) {
            *place = Place { name: address.to_string().into(), address: Some(address) };
        }
    }

    /// Notifies the callbacks of another server for all keys, and the listener. Must not be called under the lock.
    pub(crate) fn notify(&self, event: Event<'_>) {
        // A cluster's node serves some keys only, and its listener knows them.
        if let (Role::Primary, Event::Up { replaced: true }) = (self.role, &event) {
            self.config.notify(&Change::everywhere());
        }
        catch_panic(|| (self.listener)(event));
    }

    /// Enters another phase and unlocks the state. Then notifies in this order: the sink of detached calls that ended
    /// with the last phase, the listener, the waiting tasks.
    pub(crate) fn enter(
        &self,
        mut state: MutexGuard<'_, State>,
        phase: Phase,
        event: Event<'_>,
        mut wakers: Vec<Waker>,
    ) {
        let before = std::mem::replace(&mut state.phase, phase);
        state.changes.advance(&mut wakers);
        let mut detached = Vec::new();
        state.pipeline.take_detached(&mut detached);
        drop(state);
        // The old phase may be the last to hold a socket, and closing a socket is a system call.
        drop(before);
        self.report(&mut detached);
        self.notify(event);
        wake_all(wakers);
    }

    /// Ends the connection for good. Every call fails.
    pub(crate) fn end_with(&self, mut state: MutexGuard<'_, State>) {
        let mut wakers = Vec::new();
        let closed = |detail| self.error(ErrorKind::Closed, Outcome::NotSent, "the connection", detail);
        let cause = match &state.ending {
            Ending::No => closed("the client's runtime was shut down"),
            Ending::Closing => closed("the client was closed"),
            Ending::Retiring(cause) => cause.clone(),
        };
        let left_open = match &state.phase {
            // The socket has not taken all bytes. No command can be sent after half a command.
            Phase::Ready(_) if state.pipeline.has_output() => None,
            Phase::Ready(writer) => Some(Arc::clone(writer)),
            _ => None,
        };
        state.pipeline.close(&cause, &mut wakers);
        self.enter(state, Phase::Closed { cause, left_open }, Event::Closed, wakers);
    }

    /// Returns the number of phase changes.
    pub(crate) fn changes(&self) -> u64 {
        self.lock().changes.count()
    }

    /// Waits until `look` returns a value. Calls `look` under the lock, now and after each phase change.
    pub(crate) async fn wait_for_phase<T>(&self, mut look: impl FnMut(&State) -> Option<T>) -> T {
        let waiter = self.lock().changes.new_waiter();
        let _leaves = OnLeave(|| self.lock().changes.forget(waiter));
        std::future::poll_fn(|cx| {
            let mut state = self.lock();
            match look(&state) {
                Some(found) => Poll::Ready(found),
                None => {
                    state.changes.wait(waiter, cx.waker());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Waits until the number of phase changes differs from `seen`. Returns that number and the state.
    pub(crate) async fn changed(&self, seen: u64) -> (u64, ConnectionState) {
        self.wait_for_phase(|state| {
            let count = state.changes.count();
            (count != seen).then(|| (count, state.connection_state()))
        })
        .await
    }

    /// Waits until the connection has ended for good.
    pub(crate) async fn closed(&self) {
        self.wait_for_phase(|state| state.phase.is_closed().then_some(())).await;
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.lock().phase.is_ready()
    }

    /// Returns true if the connection has ended for good.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().phase.is_closed()
    }

    /// Returns true if the server is connected and replies.
    pub(crate) fn is_responsive(&self) -> bool {
        let now = self.config.timer.now();
        let state = self.lock();
        let silent = |since: Instant| now.saturating_duration_since(since) >= SILENCE;
        state.phase.is_ready() && !state.pipeline.waiting_since().is_some_and(silent)
    }

    /// Returns true if the last attempt could not reach the server.
    pub(crate) fn cannot_be_reached(&self) -> bool {
        matches!(&self.lock().phase, Phase::Connecting(Some(error)) if error.kind() == ErrorKind::Connect)
    }

    /// Returns the channels to which the server has refused a subscription.
    pub(crate) fn refused_channels(&self) -> Vec<Arc<[u8]>> {
        self.lock().pipeline.channels().refused()
    }

    /// Subscribes once more to channels that the server has refused.
    pub(crate) fn resubscribe(&self, channels: &[Arc<[u8]>]) {
        let (mut wakers, now) = (Vec::new(), self.config.timer.now());
        let mut state = self.lock();
        for channel in channels {
            state.pipeline.resubscribe(channel, now, &mut wakers);
        }
        let driver = state.driver.wake();
        drop(state);
        wake_all(wakers.into_iter().chain(driver));
    }

    /// Retires a server that the client no longer uses. Unwritten calls fail at once. Written calls fail after a
    /// short grace.
    pub(crate) fn retire(&self, why: &str) {
        let cause = self.error(ErrorKind::ConnectionLost, Outcome::NotSent, "the connection", why);
        self.end_by(Ending::Retiring(cause));
    }

    /// Wakes the callers after slots have moved away from this server. Callers that wait for messages or for a
    /// connection must find the new server.
    pub(crate) fn reroute(&self, why: &str) {
        let cause = self.error(ErrorKind::ConnectionLost, Outcome::NotSent, "the connection", why);
        let (mut wakers, mut detached) = (Vec::new(), Vec::new());
        let now = self.config.timer.now();
        let mut state = self.lock();
        // A connected node answers MOVED. Without a connection, queued calls would wait for this node until their
        // deadlines.
        if !state.phase.is_ready() {
            state.pipeline.fail_unwritten(&cause, &mut wakers);
        }
        state.pipeline.recheck(now, &mut wakers);
        state.pipeline.take_detached(&mut detached);
        let driver = state.driver.wake();
        drop(state);
        self.report(&mut detached);
        wake_all(wakers.into_iter().chain(driver));
    }

    /// Locks the state. A panic under the lock can only have its cause in a broken allocator. The state is still the
    /// best one known.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn error(&self, kind: ErrorKind, outcome: Outcome, operation: &str, detail: &str) -> Error {
        Error::new(kind, outcome, operation, &self.server(), detail.to_owned())
    }

    /// Returns the error of a failed attempt to connect.
    pub(crate) fn not_connected(&self, kind: ErrorKind, detail: &str) -> Error {
        Error::step(kind, CONNECT, &self.server(), detail.to_owned())
    }

    /// Returns the error of an operation whose deadline has passed. The error names the state of the connection.
    pub(crate) fn timed_out(&self, operation: &str, outcome: Outcome) -> Error {
        let failed = |detail: &str| self.error(ErrorKind::Timeout, outcome, operation, detail);
        match &self.lock().phase {
            Phase::Connecting(Some(last)) => {
                let why = last.detail();
                failed(&format!("the deadline passed while connecting; the last attempt failed: {why}"))
                    .with_cause_of(last)
            }
            Phase::Connecting(None) => failed("the deadline passed while connecting"),
            _ => failed("the deadline passed before a reply arrived"),
        }
    }

    /// Does the step that [`State::after_append`] returned.
    pub(crate) fn act(&self, next: Next) {
        match next {
            Next::Nothing => {}
            Next::WakeDriver(driver) => driver.wake(),
            Next::Write { writer, bytes } => self.write_here(&writer, bytes),
        }
    }

    /// Writes from the caller's task, in one attempt. The driver, if there is one, writes the bytes that the socket
    /// does not take, and handles any error.
    pub(crate) fn write_here(&self, writer: &Arc<WriteHalf>, mut bytes: BytesMut) {
        loop {
            // On an error no byte counts as written. The driver meets the same error at its own write, and ends the
            // connection.
            let written = writer.try_write(&bytes).unwrap_or(0);
            let complete = written == bytes.len() && writer.try_flush().is_ok();
            drop(bytes.split_to(written.min(bytes.len())));
            let mut state = self.lock();
            // The connection has ended meanwhile, and its end has already dealt with these bytes.
            if !state.writer().is_some_and(|present| Arc::ptr_eq(present, writer)) {
                return;
            }
            state.stats.idle_writes += 1;
            state.stats.bytes_written += written as u64;
            state.writing = false;
            state.pipeline.give_back(bytes);
            let more = state.pipeline.has_output();
            // Callers that appended during this write have left their bytes to this writer.
            if complete && more && (state.driver.has_left() || self.config.write_at_once) {
                state.writing = true;
                bytes = state.pipeline.take_output();
                continue;
            }
            // The driver is gone, so this writer has to end the connection.
            if matches!((&state.driver, &state.phase), (Driver::Gone, Phase::Ready(_))) {
                return self.end_with(state);
            }
            // Encrypted bytes are not in any queue any more. A driver that has just flushed would miss them, so it must
            // flush once more before it waits.
            let driver = if complete && !more { None } else { state.driver.wake_or_repeat() };
            drop(state);
            wake_all(driver);
            return;
        }
    }

    /// Begins to close, after `close` or when the last handle is dropped. The driver finishes the queued calls and
    /// ends.
    pub(crate) fn begin_closing(&self) {
        self.end_by(Ending::Closing);
    }

    fn end_by(&self, ending: Ending) {
        let mut state = self.lock();
        // Calls of a retired server are repeated at another server. The error of a closed client would end them
        // instead.
        if !matches!(state.ending, Ending::Retiring(_)) {
            state.ending = ending;
        }
        // `park` does not check `ending`, so a driver that is awake must take one more turn. It would otherwise wait.
        let driver = state.driver.wake_or_repeat();
        drop(state);
        wake_all(driver);
    }

    /// Ends the present connection.
    pub(crate) fn poison(&self, kind: ErrorKind, why: &str) {
        let mut state = self.lock();
        if !state.phase.is_ready() {
            return;
        }
        state.poisoned = Some((kind, why.to_owned()));
        // `park` does not check `poisoned` either, so a driver that is awake takes one more turn.
        let driver = state.driver.wake_or_repeat();
        drop(state);
        wake_all(driver);
    }

    /// Counts a renewal of the credentials. Returns true if a connection is up, which must then authenticate again. A
    /// connection attempt that is under way reads the credentials again.
    pub(crate) fn credentials_renewed(&self) -> bool {
        let mut state = self.lock();
        state.renewals += 1;
        state.phase.is_ready()
    }

    pub(crate) fn stats(&self) -> Stats {
        let state = self.lock();
        Stats {
            pushes: state.pipeline.pushes,
            strays: state.pipeline.strays,
            in_flight: state.pipeline.in_flight(),
            queued_bytes: state.pipeline.queued_bytes(),
            latency: state.pipeline.latency,
            ..state.stats
        }
    }

    /// Passes the results of detached calls to their sink (`Hooks::on_detached`). Must not be called under the lock.
    pub(crate) fn report(&self, detached: &mut Vec<Detached>) {
        if !detached.is_empty() {
            if let Some(sink) = &self.config.hooks.on_detached {
                catch_panic(|| sink(detached));
            }
            detached.clear();
        }
    }

    /// Passes on the keys that other clients changed. Must not be called under the lock.
    #[cold]
    pub(crate) fn report_changed_keys(&self, keys: &ChangedKeys) {
        match (self.role, keys) {
            // A cluster's node serves some keys only, and its listener knows them.
            (Role::Node, ChangedKeys::Any(_)) => {
                catch_panic(|| (self.listener)(Event::AnyKeyChanged));
            }
            _ => self.config.report_changed_keys(keys),
        }
    }
}

/// Silence after which a server that may have a successor becomes suspect.
pub(crate) const SILENCE: Duration = Duration::from_millis(300);

impl State {
    /// Decides which task writes the bytes that were just appended. `call` is the instant at which a call was made,
    /// and its deadline. With `at_once`, the caller writes even if the connection is busy.
    pub(crate) fn after_append(&mut self, call: Option<(Instant, Instant)>, at_once: bool) -> Next {
        let earlier = call.filter(|(_, deadline)| self.alarm.instant().is_none_or(|at| *deadline < at));
        if let Some((made, _)) = earlier {
            // The driver must check the deadlines again before it waits.
            self.alarm.unset(Some(made));
        }
        let earlier = earlier.is_some();
        if let Some(writer) = self.writer() {
            // A `Flush` appends under an earlier lock, so a writer may have taken its bytes meanwhile.
            if !self.pipeline.has_output() {
                return Next::Nothing;
            }
            if self.is_about_to_write(at_once) && !earlier {
                return Next::Nothing;
            }
            // A caller with an earlier deadline leaves the write to the driver, which must wake anyway to arm its
            // timer.
            let idle = self.is_worth_a_write() && !earlier;
            if !self.writing && (idle || at_once || self.driver.has_left()) {
                let writer = Arc::clone(writer);
                self.writing = true;
                return Next::Write { writer, bytes: self.pipeline.take_output() };
            }
        } else if !earlier {
            // The next connection writes this call, so only an earlier deadline needs the driver.
            return Next::Nothing;
        }
        self.driver.wake().map_or(Next::Nothing, Next::WakeDriver)
    }

    /// Returns true if another task writes the queued bytes. A writer checks for more output when it is done, and a
    /// corked driver is about to flush. With `at_once`, the caller writes unless a writer is at work.
    pub(crate) fn is_about_to_write(&self, at_once: bool) -> bool {
        let is_left_to_driver = self.corked.is_some() && !at_once && !self.driver.has_left();
        self.writing || is_left_to_driver && !self.is_worth_a_write()
    }

    /// Returns true if the connection is idle, and enough calls are queued for a write before the driver's.
    fn is_worth_a_write(&self) -> bool {
        self.pipeline.is_idle() && self.corked.is_none_or(|enough| self.pipeline.in_flight() >= enough)
    }

    /// Returns true if replies are outstanding to requests from before the driver was dropped.
    pub(crate) fn awaits_replies(&self) -> bool {
        self.driver.has_left() && self.phase.is_ready() && self.pipeline.awaits_replies()
    }

    pub(crate) fn connection_state(&self) -> ConnectionState {
        match &self.phase {
            Phase::Connecting(last_error) => ConnectionState::Connecting { last_error: last_error.clone() },
            Phase::Ready(_) => ConnectionState::Ready { connection: self.stats.connections },
            Phase::Refused(error) => ConnectionState::Refused(error.clone()),
            Phase::Closed { cause, .. } => ConnectionState::Closed(cause.clone()),
        }
    }

    /// Returns the socket to which callers may write.
    fn writer(&self) -> Option<&Arc<WriteHalf>> {
        match &self.phase {
            Phase::Ready(writer) | Phase::Closed { left_open: Some(writer), .. } => Some(writer),
            _ => None,
        }
    }

    /// Marks the driver as waiting. Returns false if work is left that only the driver does.
    pub(crate) fn park(&mut self, waker: &Waker) -> bool {
        let again = matches!(self.driver, Driver::Awake { again: true });
        if again {
            self.driver = Driver::Awake { again: false };
        }
        // A caller with an earlier deadline has unset the timer and found the driver awake.
        // A caller with output has found the driver awake, too, and has woken no task.
        if again || self.alarm.instant().is_none() || self.pipeline.has_output() && !self.writing {
            return false;
        }
        self.driver.park(waker);
        true
    }
}

impl Phase {
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self, Self::Ready(_))
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(self, Self::Closed { .. })
    }
}

impl Driver {
    /// Returns true if the driver's runtime has dropped it, or it has ended.
    pub(crate) fn has_left(&self) -> bool {
        matches!(self, Self::Abandoned | Self::Gone)
    }

    /// Returns the driver's waker if the driver waits and was not woken yet.
    pub(crate) fn wake(&mut self) -> Option<Waker> {
        let Self::Parked(_) = self else { return None };
        match std::mem::replace(self, Self::Awake { again: false }) {
            Self::Parked(waker) => Some(waker),
            _ => None,
        }
    }

    /// Returns the driver's waker like [`wake`](Self::wake). A driver that is awake takes one more turn before it
    /// waits.
    pub(crate) fn wake_or_repeat(&mut self) -> Option<Waker> {
        if let Self::Awake { again } = self {
            *again = true;
        }
        self.wake()
    }

    pub(crate) fn park(&mut self, waker: &Waker) {
        match self {
            Self::Parked(old) if old.will_wake(waker) => {}
            _ => *self = Self::Parked(waker.clone()),
        }
    }
}

impl Alarm {
    /// Returns the instant at which the timer fires.
    pub(crate) fn instant(&self) -> Option<Instant> {
        if let Self::Set(at) = self { Some(*at) } else { None }
    }

    /// Unsets the timer, for a call that was made at `made`.
    pub(crate) fn unset(&mut self, made: Option<Instant>) {
        *self = Self::Unset(self.unset_since().or(made));
    }

    /// Returns the instant at which a caller unset the timer.
    pub(crate) fn unset_since(&self) -> Option<Instant> {
        if let Self::Unset(since) = self { *since } else { None }
    }
}

#[cfg(test)]
mod tests;
