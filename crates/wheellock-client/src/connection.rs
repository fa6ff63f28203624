//! The state that callers and the driver share, and the rules by which they share it.
//!
//! One short mutex guards everything; nobody holds it during a system call or while waking a caller. A caller that
//! finds the line idle writes to the socket itself, because one task switch costs more than the write. Otherwise it
//! only appends, and one flush by the driver serves the whole batch. While the driver is `corked` it has just woken
//! several callers and gone once to the back of the run queue, so that what they append goes out in a single write.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::Waker;
use std::time::Instant;

use bytes::BytesMut;

use crate::config::Config;
use crate::error::{Error, ErrorKind, Outcome};
use crate::handshake::ServerInfo;
use crate::histogram::Histogram;
use crate::pipeline::{Bounds, Detached, Pipeline};
use crate::stream::WriteHalf;

/// One server as seen by callers and by the driver.
pub(crate) struct Shared {
    pub(crate) config: Config,
    /// Where the server is, or was when it was last looked for. For messages; contains no credentials.
    server: RwLock<Arc<str>>,
    /// Number of [`Client`](crate::Client) handles; the driver ends when the last one is gone.
    pub(crate) handles: AtomicUsize,
    state: Mutex<State>,
}

pub(crate) struct State {
    pub(crate) phase: Phase,
    pub(crate) pipeline: Pipeline,
    /// A writer is inside a system call with the bytes it took; nobody else may write.
    pub(crate) writing: bool,
    pub(crate) corked: bool,
    /// The driver waits for a wake-up.
    pub(crate) parked: bool,
    pub(crate) driver: Option<Waker>,
    /// When the driver's timer will fire; an earlier deadline must wake it.
    pub(crate) armed: Option<Instant>,
    /// Counts connections. A writer that returns to another epoch than it left has nothing to give back.
    pub(crate) epoch: u64,
    pub(crate) info: Option<ServerInfo>,
    /// The latest failure to connect, told to callers whose deadline passes meanwhile.
    pub(crate) last_error: Option<Error>,
    pub(crate) closing: bool,
    /// Why the present connection is not to be trusted any more.
    pub(crate) condemned: Option<String>,
    pub(crate) stats: Stats,
    /// Wakers of those who wait for the phase to change.
    pub(crate) phase_waiters: Vec<Waker>,
    /// How often the phase has changed.
    pub(crate) phase_changes: u64,
    next_waiter: u64,
}

pub(crate) enum Phase {
    /// No connection yet, or again. Calls queue until their deadlines.
    Connecting,
    /// Serving; with what idle callers may write to, if the stream allows it.
    Ready(Option<Arc<WriteHalf>>),
    /// The server refuses us for a reason that waiting will not cure soon; calls fail at once.
    Refused(Error),
    Closed(Error),
}

/// Counters of one client, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Calls queued.
    pub calls: u64,
    /// Bytes handed to sockets.
    pub bytes_written: u64,
    /// Bytes read from sockets.
    pub bytes_read: u64,
    /// Writes made by callers who found the line idle.
    pub idle_writes: u64,
    /// Writes made by the driver for a batch.
    pub batch_writes: u64,
    /// Connections established, the first included.
    pub connections: u64,
    /// Callers and waiters woken by what arrived.
    pub wakeups: u64,
    /// Pushes received.
    pub pushes: u64,
    /// Pushes that nobody had asked for; ignored.
    pub strays: u64,
    /// Calls that wait for a reply now.
    pub in_flight: usize,
    /// Bytes that wait to be written now.
    pub queued_bytes: usize,
    /// Time from queueing to reply of every answered call that somebody waited for.
    pub latency: Histogram,
}

/// Where a client stands with its server: see [`Client::state`](crate::Client::state).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ConnectionState {
    /// No connection yet, or again. Calls queue until their deadlines.
    Connecting {
        /// Why the last attempt or connection ended, if there was one.
        last_error: Option<Error>,
    },
    /// Connected and serving.
    Ready {
        /// Which connection this is, counted from 1.
        connection: u64,
    },
    /// The server refuses us, and waiting will not cure that soon: calls fail at once. It is asked again every second.
    Refused(Error),
    /// The client was closed, or its runtime has ended.
    Closed(Error),
}

/// What the caller has to do after it has unlocked.
pub(crate) enum Next {
    Nothing,
    WakeDriver(Waker),
    Write { writer: Arc<WriteHalf>, bytes: BytesMut, epoch: u64 },
}

impl Shared {
    pub(crate) fn new(config: Config) -> Self {
        let now = config.timer.now();
        let bounds = Bounds { in_flight: config.max_in_flight, queued_bytes: config.max_queued_bytes };
        let state = State {
            phase: Phase::Connecting,
            pipeline: Pipeline::new(bounds, now),
            writing: false,
            corked: false,
            parked: false,
            driver: None,
            armed: None,
            epoch: 0,
            info: None,
            last_error: None,
            closing: false,
            condemned: None,
            stats: Stats::default(),
            phase_waiters: Vec::new(),
            phase_changes: 0,
            next_waiter: 0,
        };
        let server = RwLock::new(config.servers.to_string().into());
        Self { config, server, handles: AtomicUsize::new(1), state: Mutex::new(state) }
    }

    /// The server's address for messages.
    pub(crate) fn server(&self) -> Arc<str> {
        Arc::clone(&self.server.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// A panic while holding the lock can only come from a broken allocator; the state is still the best we have.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn error(&self, kind: ErrorKind, outcome: Outcome, operation: &str, detail: &str) -> Error {
        Error::new(kind, outcome, operation, &self.server(), detail.to_owned())
    }

    /// The error that the server sent in reply to `operation`.
    pub(crate) fn refusal(&self, operation: &str, script: bool, text: &[u8]) -> Error {
        Error::server(operation, &self.server(), script, text)
    }

    /// The error of an operation whose deadline has passed: says where the connection stands.
    pub(crate) fn timed_out(&self, operation: &str, outcome: Outcome) -> Error {
        let state = self.lock();
        let detail = match (&state.phase, &state.last_error) {
            (Phase::Connecting, Some(error)) => {
                format!("the deadline passed while connecting; the last attempt failed: {}", error.detail())
            }
            (Phase::Connecting, None) => "the deadline passed while connecting".to_owned(),
            _ => "the deadline passed before a reply arrived".to_owned(),
        };
        drop(state);
        self.error(ErrorKind::Timeout, outcome, operation, &detail)
    }

    /// Does what [`State::after_append`] asked for.
    pub(crate) fn act(&self, next: Next) {
        match next {
            Next::Nothing => {}
            Next::WakeDriver(driver) => driver.wake(),
            Next::Write { writer, bytes, epoch } => self.write_idle(&writer, bytes, epoch),
        }
    }

    /// Writes from the caller's task. One attempt: what the socket does not take, and any error, is the driver's.
    fn write_idle(&self, writer: &WriteHalf, mut bytes: BytesMut, epoch: u64) {
        let written = writer.try_write(&bytes).unwrap_or(0);
        let complete = written == bytes.len();
        let _written = bytes.split_to(written.min(bytes.len()));
        let mut state = self.lock();
        if state.epoch != epoch {
            return;
        }
        state.stats.idle_writes += 1;
        state.stats.bytes_written += written as u64;
        state.writing = false;
        state.pipeline.give_back(bytes);
        let driver = (!complete || state.pipeline.has_output()).then(|| state.driver_to_wake()).flatten();
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    /// The last handle is gone, or `close` was called: the driver finishes what is queued and ends.
    pub(crate) fn begin_closing(&self) {
        let mut state = self.lock();
        state.closing = true;
        let driver = state.driver.clone();
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    pub(crate) fn condemn(&self, why: &str) {
        let mut state = self.lock();
        let ready = matches!(state.phase, Phase::Ready(_));
        let driver = if ready {
            state.condemned = Some(why.to_owned());
            state.driver.clone()
        } else {
            None
        };
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
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

    /// Hands the results of detached calls to whoever asked for them. Not called under the lock.
    pub(crate) fn report(&self, detached: &mut Vec<Detached>) {
        if !detached.is_empty() {
            if let Some(sink) = &self.config.on_detached {
                sink(detached);
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

impl State {
    /// Called right after something was appended: who writes it?
    pub(crate) fn after_append(&mut self, deadline: Option<Instant>) -> Next {
        let earlier = deadline.is_some_and(|deadline| self.armed.is_none_or(|armed| deadline < armed));
        if earlier {
            // The driver looks through the deadlines again before it waits.
            self.armed = None;
        }
        if let Phase::Ready(writer) = &self.phase {
            if !self.pipeline.has_output() {
                return Next::Nothing;
            }
            if let Some(writer) = writer
                && !self.writing
                && !self.corked
                && self.pipeline.is_idle()
                && !earlier
            {
                let writer = Arc::clone(writer);
                self.writing = true;
                return Next::Write { writer, bytes: self.pipeline.take_output(), epoch: self.epoch };
            }
            // Whoever is writing looks again when done, and a corked driver is about to flush.
            if (self.writing || self.corked) && !earlier {
                return Next::Nothing;
            }
        } else if !earlier {
            return Next::Nothing;
        }
        self.driver_to_wake().map_or(Next::Nothing, Next::WakeDriver)
    }

    pub(crate) fn connection_state(&self) -> ConnectionState {
        match &self.phase {
            Phase::Connecting => ConnectionState::Connecting { last_error: self.last_error.clone() },
            Phase::Ready(_) => ConnectionState::Ready { connection: self.stats.connections },
            Phase::Refused(error) => ConnectionState::Refused(error.clone()),
            Phase::Closed(error) => ConnectionState::Closed(error.clone()),
        }
    }

    /// Leaves a waker for the next change of the phase.
    pub(crate) fn wait_for_phase(&mut self, waker: &Waker) {
        if !self.phase_waiters.iter().any(|known| known.will_wake(waker)) {
            self.phase_waiters.push(waker.clone());
        }
    }

    /// The driver's waker, if the driver waits and nobody has woken it yet.
    pub(crate) fn driver_to_wake(&mut self) -> Option<Waker> {
        std::mem::take(&mut self.parked).then(|| self.driver.clone()).flatten()
    }

    /// A number that tells waiters of one channel apart.
    pub(crate) fn new_waiter(&mut self) -> u64 {
        self.next_waiter += 1;
        self.next_waiter
    }
}
