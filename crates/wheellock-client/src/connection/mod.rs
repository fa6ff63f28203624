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
pub(crate) mod server;
pub(crate) mod started;
pub(crate) mod stream;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use bytes::BytesMut;

use crate::base::address::Address;
use crate::base::contain::{contained, wake_all};
use crate::base::detached::Detached;
use crate::base::error::{CONNECT, Error, ErrorKind, Outcome};
use crate::base::histogram::Histogram;
use crate::base::waiting::{OnLeave, Waiting};
use crate::config::Config;
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
    /// The driver waits for a wake-up.
    pub(crate) parked: bool,
    /// A caller left bytes to the driver and found it awake. The driver may have checked for output just before, so
    /// it flushes once more.
    left_to_driver: bool,
    pub(crate) driver: Option<Waker>,
    /// The instant at which the driver's timer fires. A caller with an earlier deadline must wake the driver.
    pub(crate) armed: Option<Instant>,
    /// The instant at which a caller disarmed the timer and woke the driver. The driver clears it when it next keeps
    /// time.
    pub(crate) disarmed: Option<Instant>,
    /// Number of connections. A writer that returns in another epoch must not return its bytes to the pipeline.
    pub(crate) epoch: u64,
    pub(crate) info: Option<ServerInfo>,
    /// The latest failure to connect, for callers whose deadline passes meanwhile.
    pub(crate) last_error: Option<Error>,
    pub(crate) closing: bool,
    /// The driver's runtime dropped it while the connection was open. The driver no longer writes the calls that
    /// callers append.
    pub(crate) abandoned: bool,
    /// The driver is gone for good. A writer is still at work, and ends the connection when it is done.
    pub(crate) ending: bool,
    /// The socket that was open when the driver was dropped. A caller that queues a call after that writes it itself
    /// and gets no reply.
    pub(crate) left_open: Option<Arc<WriteHalf>>,
    /// Why the present connection must not be used any more.
    pub(crate) poisoned: Option<(ErrorKind, String)>,
    /// The identity of the last server, to detect a replacement.
    pub(crate) identity: Option<String>,
    /// Number of times the credentials were renewed. A connecting driver that read the credentials before a renewal
    /// reads them again.
    pub(crate) renewals: u64,
    /// Set when the client stops using this server. The remaining calls fail with this error.
    pub(crate) retired: Option<Error>,
    pub(crate) stats: Stats,
    /// Tasks that wait for a phase change.
    phase_waiters: Waiting,
    /// Number of phase changes.
    phase_changes: u64,
    next_waiter: u64,
}

pub(crate) enum Phase {
    /// Not connected. Calls queue until their deadlines.
    Connecting,
    /// Connected. Idle callers may write to this socket.
    Ready(Arc<WriteHalf>),
    /// The server refuses this client, and waiting will not cure that soon. Calls fail at once.
    Refused(Error),
    Closed(Error),
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
    pub(crate) fn together(mut self, other: Self) -> Self {
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
///     ConnectionState::Ready { connection } => println!("up, for the {connection}. time"),
///     ConnectionState::Connecting { last_error } => println!("not up: {last_error:?}"),
///     refused_or_closed => println!("{refused_or_closed:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ConnectionState {
    /// The client is not connected. Calls queue until their deadlines.
    Connecting {
        /// Why the last attempt or connection ended. `None` before the first attempt has ended.
        last_error: Option<Error>,
    },
    /// The client is connected, and the server accepts calls.
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
    Write { writer: Arc<WriteHalf>, bytes: BytesMut, epoch: u64 },
}

impl Shared {
    pub(crate) fn new(config: Config, role: Role, node: u32, listener: Listener) -> Self {
        let now = config.timer.now();
        let bounds = Bounds { in_flight: config.max_in_flight, queued_bytes: config.max_queued_bytes };
        let state = State {
            phase: Phase::Connecting,
            pipeline: Pipeline::new(bounds, now, node, role == Role::Primary),
            writing: false,
            corked: None,
            parked: false,
            left_to_driver: false,
            driver: None,
            armed: None,
            disarmed: None,
            epoch: 0,
            info: None,
            last_error: None,
            closing: false,
            abandoned: false,
            ending: false,
            left_open: None,
            poisoned: None,
            identity: None,
            renewals: 0,
            retired: None,
            stats: Stats::default(),
            phase_waiters: Waiting::Nobody,
            phase_changes: 0,
            next_waiter: 0,
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

    /// Notifies the listener. Must not be called under the lock.
    pub(crate) fn tell(&self, event: Event<'_>) {
        contained(|| (self.listener)(event));
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
        state.phase_changes += 1;
        state.phase_waiters.wake(&mut wakers);
        let mut detached = Vec::new();
        state.pipeline.take_detached(&mut detached);
        drop(state);
        drop(before);
        self.report(&mut detached);
        self.tell(event);
        wake_all(wakers);
    }

    /// Ends the connection for good. Every call fails.
    pub(crate) fn end_with(&self, mut state: MutexGuard<'_, State>) {
        let mut wakers = Vec::new();
        let detail =
            if state.closing { "the client was closed" } else { "the client's runtime was shut down" };
        let closed = || self.error(ErrorKind::Closed, Outcome::NotSent, "the connection", detail);
        let cause = state.retired.clone().unwrap_or_else(closed);
        // The socket has not taken all bytes. No command can be sent after half a command.
        let torn = state.pipeline.has_output();
        state.pipeline.close(&cause, &mut wakers);
        if let (Phase::Ready(writer), false) = (&state.phase, torn) {
            state.left_open = Some(Arc::clone(writer));
        }
        (state.epoch, state.ending) = (state.epoch + 1, false);
        self.enter(state, Phase::Closed(cause), Event::Closed, wakers);
    }

    /// Returns the number of phase changes.
    pub(crate) fn changes(&self) -> u64 {
        self.lock().phase_changes
    }

    /// Waits until `look` returns a value. Calls `look` under the lock, now and after each phase change.
    pub(crate) async fn wait_for_phase<T>(&self, mut look: impl FnMut(&State) -> Option<T>) -> T {
        let waiter = self.lock().new_waiter();
        let _leaves = OnLeave(|| self.lock().phase_waiters.forget(waiter));
        std::future::poll_fn(|cx| {
            let mut state = self.lock();
            match look(&state) {
                Some(found) => Poll::Ready(found),
                None => {
                    state.phase_waiters.add(waiter, cx.waker());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Waits until the number of phase changes differs from `seen`. Returns that number and the state.
    pub(crate) async fn changed(&self, seen: u64) -> (u64, ConnectionState) {
        self.wait_for_phase(|state| {
            (state.phase_changes != seen).then(|| (state.phase_changes, state.connection_state()))
        })
        .await
    }

    /// Waits until the connection has ended for good.
    pub(crate) async fn closed(&self) {
        self.wait_for_phase(|state| matches!(state.phase, Phase::Closed(_)).then_some(())).await;
    }

    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.lock().phase, Phase::Ready(_))
    }

    /// Returns true if the connection has ended for good.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.lock().phase, Phase::Closed(_))
    }

    /// Returns true if the server is connected and replies.
    pub(crate) fn is_lively(&self) -> bool {
        let now = self.config.timer.now();
        let state = self.lock();
        let silent = |since: Instant| now.saturating_duration_since(since) >= SILENCE;
        matches!(state.phase, Phase::Ready(_)) && !state.pipeline.waiting_since().is_some_and(silent)
    }

    /// Returns true if the last attempt could not reach the server.
    pub(crate) fn cannot_be_reached(&self) -> bool {
        let state = self.lock();
        let failed = state.last_error.as_ref().is_some_and(|error| error.kind() == ErrorKind::Connect);
        matches!(state.phase, Phase::Connecting) && failed
    }

    /// Returns the channels to which the server has refused a subscription.
    pub(crate) fn refused_channels(&self) -> Vec<Arc<[u8]>> {
        self.lock().pipeline.channels().refused()
    }

    /// Subscribes once more to channels that the server has refused.
    pub(crate) fn ask_again(&self, channels: &[Arc<[u8]>]) {
        let (mut wakers, now) = (Vec::new(), self.config.timer.now());
        let mut state = self.lock();
        let ready = matches!(state.phase, Phase::Ready(_));
        for channel in channels {
            state.pipeline.ask_again(channel, ready, now, &mut wakers);
        }
        let driver = state.driver_to_wake();
        drop(state);
        wake_all(wakers.into_iter().chain(driver));
    }

    /// Retires a server that the client no longer uses. Unwritten calls fail at once. Written calls fail after a
    /// short grace.
    pub(crate) fn retire(&self, why: &str) {
        let cause = self.error(ErrorKind::ConnectionLost, Outcome::NotSent, "the connection", why);
        self.lock().retired = Some(cause);
        self.begin_closing();
    }

    /// Wakes the callers after slots have moved away from this server. Callers that wait for messages or for a
    /// connection must find the new server.
    pub(crate) fn reroute(&self, why: &str) {
        let cause = self.error(ErrorKind::ConnectionLost, Outcome::NotSent, "the connection", why);
        let (mut wakers, mut detached) = (Vec::new(), Vec::new());
        let now = self.config.timer.now();
        let mut state = self.lock();
        let ready = matches!(state.phase, Phase::Ready(_));
        if !ready {
            state.pipeline.fail_unwritten(&cause, &mut wakers);
        }
        state.pipeline.look_again(ready, now, &mut wakers);
        state.pipeline.take_detached(&mut detached);
        let driver = state.driver_to_wake();
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
        let state = self.lock();
        let connecting = matches!(state.phase, Phase::Connecting);
        let last = state.last_error.clone().filter(|_| connecting);
        drop(state);
        let failed = |detail: &str| self.error(ErrorKind::Timeout, outcome, operation, detail);
        match last {
            Some(last) => {
                let why = last.detail();
                failed(&format!("the deadline passed while connecting; the last attempt failed: {why}"))
                    .because_of_the_same_as(&last)
            }
            None if connecting => failed("the deadline passed while connecting"),
            None => failed("the deadline passed before a reply arrived"),
        }
    }

    /// Does the step that [`State::after_append`] returned.
    pub(crate) fn act(&self, next: Next) {
        match next {
            Next::Nothing => {}
            Next::WakeDriver(driver) => driver.wake(),
            Next::Write { writer, bytes, epoch } => self.write_here(&writer, bytes, epoch),
        }
    }

    /// Writes from the caller's task, in one attempt. The driver, if there is one, writes the bytes that the socket
    /// does not take, and handles any error.
    pub(crate) fn write_here(&self, writer: &WriteHalf, mut bytes: BytesMut, epoch: u64) {
        loop {
            let written = writer.try_write(&bytes).unwrap_or(0);
            let complete = written == bytes.len() && writer.try_flush().is_ok();
            drop(bytes.split_to(written.min(bytes.len())));
            let mut state = self.lock();
            // The connection has ended meanwhile, and its end has already dealt with these bytes.
            if state.epoch != epoch {
                return;
            }
            state.stats.idle_writes += 1;
            state.stats.bytes_written += written as u64;
            state.writing = false;
            state.pipeline.give_back(bytes);
            let more = state.pipeline.has_output();
            // Callers that appended during this write have left their bytes to this writer.
            if complete && more && (state.abandoned || self.config.write_at_once) {
                state.writing = true;
                bytes = state.pipeline.take_output();
                continue;
            }
            // The driver is gone, so this writer has to end the connection.
            if state.ending {
                return self.end_with(state);
            }
            let driver = if complete && !more { None } else { state.leave_to_driver() };
            drop(state);
            if let Some(driver) = driver {
                driver.wake();
            }
            return;
        }
    }

    /// Begins to close, after `close` or when the last handle is dropped. The driver finishes the queued calls and
    /// ends.
    pub(crate) fn begin_closing(&self) {
        let mut state = self.lock();
        state.closing = true;
        let driver = state.driver.clone();
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    /// Ends the present connection.
    pub(crate) fn poison(&self, kind: ErrorKind, why: &str) {
        let mut state = self.lock();
        let ready = matches!(state.phase, Phase::Ready(_));
        let driver = if ready {
            state.poisoned = Some((kind, why.to_owned()));
            state.driver.clone()
        } else {
            None
        };
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    /// Counts a renewal of the credentials. Returns true if a connection is up, which must then authenticate again. A
    /// connection attempt that is under way reads the credentials again.
    pub(crate) fn credentials_renewed(&self) -> bool {
        let mut state = self.lock();
        state.renewals += 1;
        matches!(state.phase, Phase::Ready(_))
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
                contained(|| sink(detached));
            }
            detached.clear();
        }
    }

    pub(crate) fn handle_cloned(&self) {
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn handle_dropped(&self) {
        if self.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.begin_closing();
        }
    }
}

/// Silence after which a server that may have a successor becomes suspect.
pub(crate) const SILENCE: Duration = Duration::from_millis(300);

impl State {
    /// Decides which task writes the bytes that were just appended. `call` is the instant at which a call was made,
    /// and its deadline. With `at_once`, the caller writes even if the connection is busy.
    pub(crate) fn after_append(&mut self, call: Option<(Instant, Instant)>, at_once: bool) -> Next {
        let call = call.filter(|(_, deadline)| self.armed.is_none_or(|armed| *deadline < armed));
        let earlier = call.is_some();
        if let Some((made, _)) = call {
            // The driver must check the deadlines again before it waits.
            self.armed = None;
            self.disarmed = self.disarmed.or(Some(made));
        }
        let writer = match &self.phase {
            Phase::Ready(writer) => Some(writer),
            _ => self.left_open.as_ref(),
        };
        if let Some(writer) = writer {
            if !self.pipeline.has_output() {
                return Next::Nothing;
            }
            let enough = self.corked.is_none_or(|enough| self.pipeline.in_flight() >= enough);
            // A caller with an earlier deadline leaves the write to the driver, which must wake anyway to arm its
            // timer.
            let idle = enough && self.pipeline.is_idle() && !earlier;
            if !self.writing && (idle || at_once || self.abandoned) {
                let writer = Arc::clone(writer);
                self.writing = true;
                return Next::Write { writer, bytes: self.pipeline.take_output(), epoch: self.epoch };
            }
            // A writer checks for more output when it is done, and a corked driver is about to flush.
            if (self.writing || self.corked.is_some()) && !earlier {
                return Next::Nothing;
            }
        } else if !earlier {
            return Next::Nothing;
        }
        self.driver_to_wake().map_or(Next::Nothing, Next::WakeDriver)
    }

    /// Returns true if replies are outstanding to requests from before the driver was dropped.
    pub(crate) fn owes_answers(&self) -> bool {
        self.abandoned && matches!(self.phase, Phase::Ready(_)) && self.pipeline.owes_answers()
    }

    pub(crate) fn connection_state(&self) -> ConnectionState {
        match &self.phase {
            Phase::Connecting => ConnectionState::Connecting { last_error: self.last_error.clone() },
            Phase::Ready(_) => ConnectionState::Ready { connection: self.stats.connections },
            Phase::Refused(error) => ConnectionState::Refused(error.clone()),
            Phase::Closed(error) => ConnectionState::Closed(error.clone()),
        }
    }

    /// Leaves to the driver the bytes that the socket did not take. Encrypted bytes are not in any queue any more. A
    /// driver that has just flushed would miss them, so it must flush once more before it waits.
    fn leave_to_driver(&mut self) -> Option<Waker> {
        let driver = self.driver_to_wake();
        self.left_to_driver |= driver.is_none();
        driver
    }

    /// Marks the driver as waiting. Returns false if work is left that only the driver does.
    pub(crate) fn park(&mut self) -> bool {
        let left = std::mem::take(&mut self.left_to_driver);
        // A caller with an earlier deadline has disarmed the timer and found the driver awake.
        if left || self.armed.is_none() || self.pipeline.has_output() && !self.writing {
            return false;
        }
        self.parked = true;
        true
    }

    /// Returns the driver's waker if the driver waits and was not woken yet.
    pub(crate) fn driver_to_wake(&mut self) -> Option<Waker> {
        std::mem::take(&mut self.parked).then(|| self.driver.clone()).flatten()
    }

    /// Returns a number that distinguishes waiters.
    pub(crate) fn new_waiter(&mut self) -> u64 {
        self.next_waiter += 1;
        self.next_waiter
    }
}

#[cfg(test)]
mod tests;
