//! The one task per connection: connects, reads, decodes, completes calls, flushes batches, keeps time, reconnects.
//! Everything it decides is decided by the pure parts; this is the loop that feeds them.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use wheellock_resp::{Decoder, Frame};
use wheellock_wheel::Sleep;

use crate::backoff::Backoff;
use crate::connection::{Phase, Shared};
use crate::error::{Error, ErrorKind, Outcome};
use crate::handshake::{Handshake, ServerInfo, Step};
use crate::pipeline::Detached;
use crate::stream::{self, ReadHalf, WriteHalf};

/// Spare room offered to each read. A short read tells tokio that the socket is drained, which saves a system call.
const READ_ROOM: usize = 64 << 10;
/// Reads and frames per turn before other tasks get theirs.
const READS_PER_TURN: usize = 8;
const FRAMES_PER_TURN: usize = 4096;
/// A read that woke more callers than this is followed by a cork.
const CORK_ABOVE: usize = 1;
/// A connection that lived this long has proved itself; shorter lives keep the backoff growing.
const STABLE: Duration = Duration::from_secs(1);
/// Refused credentials do not heal within milliseconds, and servers log or punish retries.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);
/// How long a closing client waits for the replies to what it has sent.
const CLOSING_GRACE: Duration = Duration::from_secs(1);

/// Runs until the last handle is gone.
pub(crate) async fn drive(shared: Arc<Shared>) {
    let ended = EndOnDrop(&shared);
    let (min, max) = shared.config.reconnect;
    let mut backoff = Backoff::new(min, max);
    let timer = shared.config.timer.clone();
    while !is_closing(&shared) {
        let error = match housekeeping(&shared, connect(&shared)).await {
            None => break,
            Some(Ok(open)) => {
                let since = timer.now();
                let error = Running::new(&shared, open).await;
                if timer.now().saturating_duration_since(since) >= STABLE {
                    backoff.reset();
                }
                error
            }
            Some(Err(error)) => {
                connect_failed(&shared, &error);
                error
            }
        };
        let mut pause = backoff.next(random());
        if error.kind() == ErrorKind::Auth || error.kind() == ErrorKind::Unsupported {
            pause = pause.max(REFUSED_PAUSE);
        }
        if housekeeping(&shared, timer.sleep(pause)).await.is_none() {
            break;
        }
    }
    drop(ended);
}

/// Fails everything that is left, also when the runtime drops the driver in the middle of anything.
struct EndOnDrop<'a>(&'a Shared);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        let shared = self.0;
        let mut wakers = Vec::new();
        let mut state = shared.lock();
        let detail =
            if state.closing { "the client was closed" } else { "the client's runtime was shut down" };
        let cause = shared.error(ErrorKind::Closed, Outcome::NotSent, "the connection", detail);
        state.epoch += 1;
        state.driver = None;
        state.pipeline.close(&cause, &mut wakers);
        let phase = std::mem::replace(&mut state.phase, Phase::Closed(cause));
        wakers.append(&mut state.phase_waiters);
        let mut detached = Vec::new();
        state.pipeline.take_detached(&mut detached);
        drop(state);
        drop(phase);
        shared.report(&mut detached);
        wakers.into_iter().for_each(Waker::wake);
    }
}

fn is_closing(shared: &Shared) -> bool {
    shared.lock().closing
}

/// Uniform over `u64`. Without randomness from the system, which is not a reason to stay disconnected, the clock's
/// low bits still spread clients apart.
fn random() -> u64 {
    getrandom::u64().unwrap_or_else(|_| {
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        u64::from(since.subsec_nanos()).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    })
}

fn connect_failed(shared: &Shared, error: &Error) {
    let mut wakers = Vec::new();
    let mut state = shared.lock();
    state.last_error = Some(error.clone());
    if matches!(error.kind(), ErrorKind::Auth | ErrorKind::Unsupported) {
        state.pipeline.fail_unwritten(error, &mut wakers);
        state.phase = Phase::Refused(error.clone());
    } else {
        state.phase = Phase::Connecting;
    }
    wakers.append(&mut state.phase_waiters);
    let mut detached = Vec::new();
    state.pipeline.take_detached(&mut detached);
    drop(state);
    shared.report(&mut detached);
    wakers.into_iter().for_each(Waker::wake);
}

/// Polls `work` while calls that are queued meanwhile keep their deadlines. `None` if the client is being closed.
async fn housekeeping<T>(shared: &Shared, work: impl Future<Output = T>) -> Option<T> {
    let timer = &shared.config.timer;
    let mut sleep = timer.sleep_until(timer.now());
    let mut armed = None;
    let mut work = pin!(work);
    std::future::poll_fn(move |cx| {
        let mut wakers = Vec::new();
        loop {
            let now = timer.now();
            let mut state = shared.lock();
            if state.closing {
                return Poll::Ready(None);
            }
            let earliest = state.pipeline.expire(now, false, &mut wakers);
            state.armed = earliest;
            remember_driver(&mut state.driver, cx.waker());
            state.parked = true;
            drop(state);
            wakers.drain(..).for_each(Waker::wake);
            if armed != earliest {
                armed = earliest;
                if let Some(earliest) = earliest {
                    sleep.reset(earliest);
                }
            }
            if armed.is_none() || std::pin::Pin::new(&mut sleep).poll(cx).is_pending() {
                break;
            }
            armed = None;
        }
        work.as_mut().poll(cx).map(Some)
    })
    .await
}

fn remember_driver(driver: &mut Option<Waker>, waker: &Waker) {
    match driver {
        Some(old) if old.will_wake(waker) => {}
        _ => *driver = Some(waker.clone()),
    }
}

/// A connection that has passed its handshake.
struct Open {
    read: ReadHalf,
    write: WriteHalf,
    decoder: Decoder,
    input: BytesMut,
    info: ServerInfo,
}

async fn connect(shared: &Shared) -> Result<Open, Error> {
    let config = &shared.config;
    let attempt = async {
        let liveness = config.response_timeout.max(Duration::from_secs(1));
        let (mut read, write) = stream::connect(&config.address, liveness).await.map_err(|error| {
            let detail = format!("cannot connect: {error}");
            shared.error(ErrorKind::Connect, Outcome::NotSent, "connecting", &detail).with_source(error)
        })?;
        let mut output = BytesMut::new();
        let mut input = BytesMut::with_capacity(READ_ROOM);
        let mut decoder = Decoder::new(config.limits);
        let mut handshake = Handshake::start(config, &shared.server, &mut output);
        let broken = |error: io::Error| {
            let detail = format!("the connection broke during the handshake: {error}");
            shared.error(ErrorKind::Connect, Outcome::NotSent, "connecting", &detail).with_source(error)
        };
        loop {
            write_all(&write, &mut output).await.map_err(broken)?;
            let step = loop {
                let frame = decoder.decode(&mut input).map_err(|error| {
                    let detail = format!("the server's answer is not RESP: {error}");
                    shared
                        .error(ErrorKind::Protocol, Outcome::NotSent, "connecting", &detail)
                        .with_source(error)
                })?;
                match frame {
                    Some(Frame::Reply(reply)) => match handshake.on_reply(&reply, &mut output)? {
                        Step::Read => {}
                        step => break step,
                    },
                    Some(Frame::Push(_)) => {}
                    None => {
                        let read = std::future::poll_fn(|cx| read.poll_read(cx, &mut input)).await;
                        if read.map_err(broken)? == 0 {
                            return Err(broken(io::ErrorKind::UnexpectedEof.into()));
                        }
                    }
                }
            };
            if step == Step::Done {
                let info = handshake.info;
                return Ok(Open { read, write, decoder, input, info });
            }
        }
    };
    match config.timer.timeout(config.connect_timeout, attempt).await {
        Ok(result) => result,
        Err(_elapsed) => {
            let detail = format!("no answer within {:?}", config.connect_timeout);
            Err(shared.error(ErrorKind::Connect, Outcome::NotSent, "connecting", &detail))
        }
    }
}

async fn write_all(write: &WriteHalf, bytes: &mut BytesMut) -> io::Result<()> {
    while !bytes.is_empty() {
        std::future::poll_fn(|cx| write.poll_writable(cx)).await?;
        match write.try_write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => drop(bytes.split_to(n)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// An open connection at work; the future resolves with the reason why it ended.
struct Running<'a> {
    shared: &'a Shared,
    read: ReadHalf,
    write: Arc<WriteHalf>,
    decoder: Decoder,
    input: BytesMut,
    /// Bytes taken for a flush that the socket has not accepted yet.
    output: BytesMut,
    frames: Vec<Frame>,
    wakers: Vec<Waker>,
    detached: Vec<Detached>,
    timer: Sleep,
    /// Last time any byte arrived.
    heard: Instant,
    closing_since: Option<Instant>,
}

enum Turn {
    /// Nothing left to do until something happens.
    Idle,
    /// More may be waiting; come back after the other tasks.
    Again,
}

impl<'a> Running<'a> {
    fn new(shared: &'a Shared, open: Open) -> Self {
        let Open { read, write, decoder, input, info } = open;
        let now = shared.config.timer.now();
        let write = Arc::new(write);
        let mut state = shared.lock();
        state.epoch += 1;
        state.stats.connections += 1;
        state.info = Some(info);
        state.last_error = None;
        state.writing = false;
        state.corked = false;
        state.pipeline.reconnect(now);
        state.phase = Phase::Ready(Arc::clone(&write));
        let wakers = std::mem::take(&mut state.phase_waiters);
        drop(state);
        let mut running = Self {
            shared,
            read,
            write,
            decoder,
            input,
            output: BytesMut::new(),
            frames: Vec::new(),
            wakers,
            detached: Vec::new(),
            timer: shared.config.timer.sleep_until(now),
            heard: now,
            closing_since: None,
        };
        running.wake_all();
        running
    }

    fn wake_all(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
    }

    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Result<Turn, Error> {
        let mut again = false;
        // What was corked on the last turn goes out now, together with what the woken callers appended.
        let uncorked = std::mem::take(&mut self.shared.lock().corked);
        if uncorked {
            self.poll_flush(cx)?;
        }
        let woken = self.poll_input(cx, &mut again)?;
        self.keep_time(cx)?;
        if woken > CORK_ABOVE {
            self.shared.lock().corked = true;
            return Ok(Turn::Again);
        }
        if !uncorked && woken == 0 && self.output.is_empty() {
            // Callers asked for a flush. They are usually not the last ones in this round of the run queue.
            let mut state = self.shared.lock();
            if state.pipeline.has_output() && !state.writing && state.pipeline.in_flight() > 1 {
                state.corked = true;
                return Ok(Turn::Again);
            }
        }
        self.poll_flush(cx)?;
        Ok(if again { Turn::Again } else { Turn::Idle })
    }

    /// Reads and decodes what has arrived; returns how many callers were woken.
    fn poll_input(&mut self, cx: &mut Context<'_>, again: &mut bool) -> Result<usize, Error> {
        let mut woken = 0;
        for _ in 0..READS_PER_TURN {
            if self.input.capacity() - self.input.len() < READ_ROOM / 4 {
                self.input.reserve(READ_ROOM);
            }
            let read = match self.read.poll_read(cx, &mut self.input) {
                Poll::Pending => return Ok(woken),
                Poll::Ready(Ok(0)) => return Err(self.lost("the server closed the connection")),
                Poll::Ready(Ok(read)) => read,
                Poll::Ready(Err(error)) => {
                    let lost = self.lost(&format!("reading failed: {error}"));
                    return Err(lost.with_source(error));
                }
            };
            self.heard = self.shared.config.timer.now();
            woken += self.decode(read)?;
        }
        *again = true;
        Ok(woken)
    }

    fn decode(&mut self, mut read: usize) -> Result<usize, Error> {
        let mut woken = 0;
        loop {
            let decoded = loop {
                match self.decoder.decode(&mut self.input) {
                    Ok(Some(frame)) => self.frames.push(frame),
                    Ok(None) => break Ok(true),
                    Err(error) => break Err(error),
                }
                if self.frames.len() >= FRAMES_PER_TURN {
                    break Ok(false);
                }
            };
            let mut state = self.shared.lock();
            state.stats.bytes_read += std::mem::take(&mut read) as u64;
            let mut desync = None;
            for frame in self.frames.drain(..) {
                if let Err(error) = state.pipeline.on_frame(frame, self.heard, &mut self.wakers) {
                    desync = Some(error);
                    break;
                }
            }
            state.pipeline.take_detached(&mut self.detached);
            drop(state);
            woken += self.wakers.len();
            self.shared.report(&mut self.detached);
            self.wake_all();
            if let Some(desync) = desync {
                return Err(self.error(ErrorKind::Protocol, desync.0));
            }
            match decoded {
                Ok(true) => return Ok(woken),
                Ok(false) => {}
                Err(error) => {
                    let detail = format!("the server's bytes are not RESP: {error}");
                    return Err(self.error(ErrorKind::Protocol, &detail).with_source(error));
                }
            }
        }
    }

    /// Expires calls, checks the server's health, and arms the timer for the next time.
    fn keep_time(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        loop {
            let due = match self.shared.lock().armed {
                Some(armed) if armed == self.timer.deadline() => {
                    std::pin::Pin::new(&mut self.timer).poll(cx).is_ready()
                }
                _ => true,
            };
            if !due && self.closing_since.is_some() == self.shared.lock().closing {
                return Ok(());
            }
            let config = &self.shared.config;
            let now = config.timer.now();
            let mut state = self.shared.lock();
            if state.closing {
                let since = *self.closing_since.get_or_insert(now);
                if state.pipeline.is_empty() || now.saturating_duration_since(since) >= CLOSING_GRACE {
                    drop(state);
                    return Err(self.error(ErrorKind::Closed, "the client was closed"));
                }
            }
            let earliest = state.pipeline.expire(now, true, &mut self.wakers);
            let next_check = match state.pipeline.waiting_since() {
                Some(since) if now.saturating_duration_since(since) >= config.response_timeout => {
                    drop(state);
                    self.wake_all();
                    return Err(self.lost(&format!("no reply for {:?}", config.response_timeout)));
                }
                Some(since) => since + config.response_timeout,
                None if now.saturating_duration_since(self.heard) >= config.heartbeat
                    && state.pipeline.is_empty() =>
                {
                    state.pipeline.submit_ping(now);
                    now + config.response_timeout
                }
                None => (self.heard + config.heartbeat).max(now + MIN_CHECK),
            };
            let next_check = match self.closing_since {
                Some(since) => next_check.min(since + CLOSING_GRACE),
                None => next_check,
            };
            let armed = earliest.map_or(next_check, |earliest| earliest.min(next_check));
            state.armed = Some(armed);
            drop(state);
            self.wake_all();
            self.timer.reset(armed);
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        loop {
            if self.output.is_empty() {
                let mut state = self.shared.lock();
                if state.writing || !state.pipeline.has_output() {
                    return Ok(());
                }
                state.writing = true;
                self.output = state.pipeline.take_output();
            }
            let written = match self.write.try_write(&self.output) {
                Ok(0) => return Err(self.lost("the socket takes no bytes")),
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match self.write.poll_writable(cx)
                {
                    Poll::Pending => return Ok(()),
                    Poll::Ready(Ok(())) => continue,
                    Poll::Ready(Err(error)) => {
                        return Err(self.lost(&format!("writing failed: {error}")).with_source(error));
                    }
                },
                Err(error) => return Err(self.lost(&format!("writing failed: {error}")).with_source(error)),
            };
            let _written = self.output.split_to(written);
            let mut state = self.shared.lock();
            state.stats.batch_writes += 1;
            state.stats.bytes_written += written as u64;
            if self.output.is_empty() {
                state.writing = false;
                state.pipeline.give_back(std::mem::take(&mut self.output));
            }
        }
    }

    /// Says that the driver waits; false if there is output that nobody else will flush.
    fn park(&mut self, cx: &Context<'_>) -> bool {
        let mut state = self.shared.lock();
        remember_driver(&mut state.driver, cx.waker());
        if state.pipeline.has_output() && !state.writing {
            return false;
        }
        state.parked = true;
        true
    }

    fn lost(&self, detail: &str) -> Error {
        self.error(ErrorKind::ConnectionLost, detail)
    }

    fn error(&self, kind: ErrorKind, detail: &str) -> Error {
        self.shared.error(kind, Outcome::MaybeExecuted, "the connection", detail)
    }

    fn end(&mut self, error: &Error) {
        let mut state = self.shared.lock();
        state.epoch += 1;
        state.writing = false;
        state.corked = false;
        state.last_error = Some(error.clone());
        state.phase = Phase::Connecting;
        // Bytes that this flush took but the socket did not accept never left.
        state.pipeline.give_back(std::mem::take(&mut self.output));
        state.pipeline.disconnect(error, &mut self.wakers);
        state.pipeline.take_detached(&mut self.detached);
        drop(state);
        self.shared.report(&mut self.detached);
        self.wake_all();
    }
}

/// Shortest distance between two health checks.
const MIN_CHECK: Duration = Duration::from_millis(1);

impl Future for Running<'_> {
    type Output = Error;

    fn poll(mut self: std::pin::Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Error> {
        let this = &mut *self;
        match this.poll_turn(cx) {
            Ok(Turn::Idle) if this.park(cx) => Poll::Pending,
            Ok(_) => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Err(error) => {
                this.end(&error);
                Poll::Ready(error)
            }
        }
    }
}
