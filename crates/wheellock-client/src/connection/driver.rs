//! The driver: one task per connection.
//!
//! The driver connects, reads, decodes, completes calls, flushes batches, keeps time and reconnects. It does not
//! decide anything itself: the pure modules do, and this loop feeds them.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use wheellock_resp::{Decoder, Frame, LimitKind, Limits};
use wheellock_wheel::Sleep;

use crate::base::detached::Detached;
use crate::base::error::{Error, ErrorKind, Outcome, said};
use crate::base::outages::{Connected, Outages};
use crate::base::panics::wake_all;
use crate::base::patience::late;
use crate::base::pauses::Pauses;
use crate::base::read_buffer::ReadBuffer;
use crate::base::silence::{Silence, Verdict, last_part, stood_still};
use crate::config::{Change, ChangedKeys};
use crate::connection::ending::{LAST_REPLIES, READ_PAUSE};
use crate::connection::events;
use crate::connection::listener::Event;
use crate::connection::locator::Locator;
use crate::connection::open::{Open, open};
use crate::connection::stream::Stream;
use crate::connection::{Alarm, Ending, Phase, SILENCE, Shared};
use crate::protocol::handshake::Role;

/// Reads and frames per turn. After these, the driver yields to other tasks.
const READS_PER_TURN: usize = 8;
const FRAMES_PER_TURN: usize = 4096;
/// Reads before a verdict, of 4 KiB each. The total is more than a socket's buffer holds with the defaults of Linux.
const READS_PER_LOOK: usize = 2048;
/// The driver corks after a read that woke more callers than this.
const CORK_ABOVE: usize = 1;
/// The minimum number of calls for a write before the cork's own write. It is the maximum number of calls in one
/// command.
const WORTH_A_WRITE: usize = crate::protocol::pipeline::MOST_BATCHED;
/// Why the driver drops a new connection whose credentials are out of date.
const RENEWED: &str = "the credentials were renewed while it was made";
/// Lifetime after which a connection resets the backoff. Connections with shorter lives keep the backoff growing.
const STABLE: Duration = Duration::from_secs(1);
/// How long a closing client waits for the replies to its written calls.
const CLOSING_GRACE: Duration = Duration::from_secs(1);
/// How long a retired node may still reply to its written calls.
const RETIRING_GRACE: Duration = Duration::from_millis(250);

/// Starts to connect. Must be called within a runtime.
pub(crate) fn start(shared: &Arc<Shared>, locator: Locator) {
    // The guard is created here, because a runtime that ends also drops tasks that were never polled.
    tokio::spawn(drive(EndOnDrop(Arc::clone(shared)), locator));
}

/// Runs until the last handle is dropped.
async fn drive(ended: EndOnDrop, locator: Locator) {
    let shared = &*ended.0;
    let mut pauses = Pauses::new(shared.config.reconnect);
    let timer = shared.config.timer.clone();
    let mut outages = Outages::default();
    while !is_closing(shared) {
        let error = match housekeeping(shared, open(shared, &locator)).await {
            None => break,
            Some(Ok(open)) => {
                let since = timer.now();
                let connected = outages.connected(since);
                let error = match Running::new(shared, open, locator.may_move(), connected) {
                    Ok(running) => running.await,
                    Err(error) => error,
                };
                if is_closing(shared) {
                    events::closed(&shared.server());
                } else if let Some(outage) = outages.lost(timer.now()) {
                    events::disconnected(&shared.server(), &error, outage);
                }
                if timer.now().saturating_duration_since(since) >= STABLE {
                    pauses.reset();
                }
                error
            }
            Some(Err(error)) => {
                if let Some(outage) = outages.failed(error.is_refusal(), timer.now()) {
                    events::connect_failed(&shared.server(), &error, outage);
                }
                connect_failed(shared, &error);
                error
            }
        };
        let random = (shared.config.random)();
        let pause = pauses.after(&error, locator.may_move(), timer.now(), random);
        if housekeeping(shared, locator.sleep_unless_renamed(&timer, pause)).await.is_none() {
            break;
        }
    }
}

/// Ends the connection when dropped, also if the runtime drops the driver at any await point.
struct EndOnDrop(Arc<Shared>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end();
    }
}

fn is_closing(shared: &Shared) -> bool {
    !matches!(shared.lock().ending, Ending::No)
}

fn connect_failed(shared: &Shared, error: &Error) {
    let mut wakers = Vec::new();
    let mut state = shared.lock();
    let phase = if error.is_refusal() {
        state.pipeline.fail_unwritten(error, &mut wakers);
        Phase::Refused(error.clone())
    } else {
        Phase::Connecting(Some(error.clone()))
    };
    shared.enter(state, phase, Event::Down, wakers);
}

/// Polls `work`, and meanwhile expires queued calls at their deadlines. Returns `None` if the client is closing.
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
            if !matches!(state.ending, Ending::No) {
                return Poll::Ready(None);
            }
            let earliest = state.pipeline.expire(now, &mut wakers);
            state.alarm = earliest.map_or(Alarm::Unset(None), Alarm::Set);
            state.driver.park(cx.waker());
            drop(state);
            wake_all(wakers.drain(..));
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

/// An open connection at work. The future resolves with the reason why the connection ended.
struct Running<'a> {
    shared: &'a Shared,
    /// True if another server may replace this one.
    may_move: bool,
    stream: Stream,
    decoder: Decoder,
    input: ReadBuffer,
    /// The error of the one call whose reply has ended this connection.
    culprit: Option<Error>,
    /// Bytes that a flush took and that the socket has not accepted yet.
    output: BytesMut,
    frames: Vec<Frame>,
    wakers: Vec<Waker>,
    detached: Vec<Detached>,
    timer: Sleep,
    /// The instant at which bytes last arrived.
    last_read: Instant,
    silence: Silence,
    next_ping: Instant,
    pings: u32,
    closing_since: Option<Instant>,
}

/// Returns the number of calls that are written before all `woken` callers have appended theirs. While the server
/// works on one half, the callers append the other, so neither side waits for the other.
fn half_of(woken: usize) -> usize {
    WORTH_A_WRITE.max(woken / 2)
}

impl<'a> Running<'a> {
    /// Puts a connection to work. Rejects a connection that was authenticated with outdated credentials.
    fn new(
        shared: &'a Shared,
        open: Open,
        may_move: bool,
        connected: Option<Connected>,
    ) -> Result<Self, Error> {
        let Open { address, stream, decoder, input, info, renewals } = open;
        let now = shared.config.timer.now();
        let identity = info.run_id.clone().unwrap_or_else(|| address.to_string());
        shared.found_at(address);
        if let Some(connected) = connected {
            events::connected(&shared.server(), &info, connected);
            if !shared.config.timer.is_driven() {
                events::timer_refused(&shared.server());
            }
        }
        let mut state = shared.lock();
        // `reauthenticate` skips a connection that is not up. Without this check, the new connection would keep the
        // old credentials.
        if state.renewals != renewals {
            drop(state);
            return Err(shared.not_connected(ErrorKind::ConnectionLost, RENEWED));
        }
        state.stats.connections += 1;
        state.pipeline.meet(&info);
        state.poisoned = None;
        let replaced = state.server.as_ref().is_some_and(|(_, before)| *before != identity);
        let tracks_keys = info.tracks_keys;
        state.server = Some((info, identity));
        // The instant belongs to the timer of the connecting phase.
        state.alarm = Alarm::Unset(None);
        state.pipeline.reconnect(now);
        shared.enter(state, Phase::Ready(stream.writer()), Event::Up { replaced }, Vec::new());
        if tracks_keys {
            // Keys may have changed while no connection was up.
            shared.report_changed_keys(&ChangedKeys::Any(Change::everywhere()));
        }
        Ok(Self {
            shared,
            may_move,
            stream,
            decoder,
            input: ReadBuffer::new(input),
            culprit: None,
            output: BytesMut::new(),
            frames: Vec::new(),
            wakers: Vec::new(),
            detached: Vec::new(),
            timer: shared.config.timer.sleep_until(now),
            last_read: now,
            silence: Silence::default(),
            next_ping: now + shared.config.heartbeat,
            pings: 0,
            closing_since: None,
        })
    }

    /// Does the work that is due. Returns true if more work may be left, so that the driver only yields to other tasks.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Result<bool, Error> {
        let mut again = false;
        let mut state = self.shared.lock();
        let uncorked = state.corked.take().is_some();
        let (armed, closing) = (state.alarm.instant(), !matches!(state.ending, Ending::No));
        let poisoned = state.poisoned.take();
        drop(state);
        if let Some((kind, why)) = poisoned {
            return Err(self.error(kind, &why));
        }
        // Write the bytes that were corked on the last turn, together with the calls that the woken callers appended.
        if uncorked {
            self.poll_flush(cx)?;
        }
        let before = self.last_read;
        let mut woken = self.poll_input(cx, &mut again)?;
        // This precedes `keep_time`, which then arms the timer for the grace. Otherwise a closing client would wait
        // for its next PING.
        if closing {
            woken += self.check_closing()?;
        }
        // The instant of the last read shows that the armed timer is not due, so it need not be polled. A timer
        // without a driver has to be polled on every turn.
        let due_later = self.last_read > before && armed.is_some_and(|armed| self.last_read < armed);
        if closing || !due_later || !self.timer.is_driven() {
            woken += self.keep_time(cx)?;
        }
        if woken > CORK_ABOVE {
            self.shared.lock().corked = Some(half_of(woken));
            return Ok(true);
        }
        if !uncorked && woken == 0 && self.output.is_empty() {
            // Callers have requested a flush. Usually more callers append in this round of the run queue.
            let mut state = self.shared.lock();
            if state.pipeline.has_output() && !state.writing && state.pipeline.in_flight() > 1 {
                state.corked = Some(WORTH_A_WRITE);
                return Ok(true);
            }
        }
        self.poll_flush(cx)?;
        Ok(again)
    }

    /// Reads and decodes the bytes that have arrived. Returns the number of woken callers.
    fn poll_input(&mut self, cx: &mut Context<'_>, again: &mut bool) -> Result<usize, Error> {
        let mut woken = 0;
        for _ in 0..READS_PER_TURN {
            self.input.make_room(self.decoder.wanted());
            let Poll::Ready(read) = self.stream.poll_read(cx, &mut self.input.bytes) else {
                return Ok(woken);
            };
            woken += self.received(read)?;
            self.input.shrink(self.decoder.wanted());
        }
        *again = true;
        Ok(woken)
    }

    /// Takes the result of one read. Returns the number of woken callers.
    fn received(&mut self, read: io::Result<usize>) -> Result<usize, Error> {
        match read {
            Ok(0) => Err(self.lost(&format!("the server closed the connection{}", self.why_ended()))),
            Ok(read) => {
                self.last_read = self.shared.config.timer.now();
                self.decode(read)
            }
            Err(error) => Err(self.failed("reading", error)),
        }
    }

    fn decode(&mut self, mut read: usize) -> Result<usize, Error> {
        let mut woken = 0;
        loop {
            let mut end = None;
            while end.is_none() && self.frames.len() < FRAMES_PER_TURN {
                match self.decoder.decode(&mut self.input.bytes) {
                    Ok(Some(frame)) => self.frames.push(frame),
                    Ok(None) => end = Some(Ok(())),
                    Err(error) => end = Some(Err(error)),
                }
            }
            let mut state = self.shared.lock();
            state.stats.bytes_read += std::mem::take(&mut read) as u64;
            let mut frames = self.frames.drain(..);
            let taken =
                frames.try_for_each(|frame| state.pipeline.on_frame(frame, self.last_read, &mut self.wakers));
            drop(frames);
            state.pipeline.take_detached(&mut self.detached);
            let changed_keys = state.pipeline.changed_keys.take();
            let unusable = state.pipeline.unusable;
            let moved = state.pipeline.moved.take();
            state.stats.wakeups += self.wakers.len() as u64;
            drop(state);
            // Most detached results also have a waiting task.
            woken += self.wakers.len() + self.detached.len();
            // Update the slot map before waking callers, or they retry on the old node.
            if let Some(moved) = moved {
                self.shared.notify(Event::Redirected { reply: &moved, host: self.shared.host() });
            }
            // Replies come first: the reply to a request that remembers a key precedes every change of that key.
            self.shared.report(&mut self.detached);
            if let Some(keys) = changed_keys {
                self.shared.report_changed_keys(&keys);
            }
            wake_all(self.wakers.drain(..));
            // The report precedes any return. Results of detached calls are in no queue any more, so a return would
            // lose them.
            taken.map_err(|desync| self.error(ErrorKind::Protocol, desync.0))?;
            if let Some(unusable) = unusable {
                return Err(self.lost(unusable));
            }
            match end {
                Some(Ok(())) => return Ok(woken),
                Some(Err(error)) => return Err(self.undecodable(error)),
                None => {}
            }
        }
    }

    /// Reads the socket directly, without the runtime's readiness. A runtime that stood still has not polled for
    /// events yet. The timer may wake this task before that poll. Returns the number of woken callers.
    fn read_directly(&mut self) -> Result<usize, Error> {
        let mut woken = 0;
        for _ in 0..READS_PER_LOOK {
            let Some(received) = self.try_receive() else { break };
            woken += received?;
        }
        Ok(woken)
    }

    /// Reads the socket directly, once. Returns `None` if no bytes have arrived.
    fn try_receive(&mut self) -> Option<Result<usize, Error>> {
        match self.stream.try_read(&mut self.input.bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            read => Some(self.received(read)),
        }
    }

    /// Returns the error for undecodable bytes. Bytes that are not RESP fail every call. A reply over a limit fails
    /// its own call, and ends the connection for the other calls.
    fn undecodable(&mut self, error: wheellock_resp::Error) -> Error {
        let wheellock_resp::ErrorKind::Limit(limit) = error.kind() else {
            let detail = format!("the server's bytes are not RESP: {error}");
            return self.error(ErrorKind::Protocol, &detail).because_of(error);
        };
        let most = bound(self.decoder.limits(), limit);
        let detail = format!(
            "its reply has more than {most} {limit}: raise it in Config::limits, or ask for less at once"
        );
        self.culprit = Some(self.error(ErrorKind::Protocol, &detail).because_of(error));
        self.lost(&format!(
            "the reply to another call had more than {most} {limit}, and ended the connection"
        ))
    }

    /// Returns why the server may have ended a connection with subscriptions after large replies. The server does not
    /// send the reason.
    fn why_ended(&self) -> &'static str {
        let mut state = self.shared.lock();
        let suspect = state.pipeline.awaits_replies() && state.pipeline.channels().any_confirmed();
        if suspect && self.input.was_large() { BUFFER_LIMIT } else { "" }
    }

    /// Ends a closing client when every call has its reply, or after the grace. Returns the number of woken callers.
    fn check_closing(&mut self) -> Result<usize, Error> {
        let now = self.shared.config.timer.now();
        let since = *self.closing_since.get_or_insert_with(|| {
            // The timer is armed for normal work, and the grace ends earlier.
            self.shared.lock().alarm.unset(None);
            now
        });
        let is_over = now >= since + grace(&self.shared.lock().ending);
        let woken = if is_over { self.read_directly()? } else { 0 };
        let state = self.shared.lock();
        if is_over || state.pipeline.is_empty() {
            return Err(match &state.ending {
                Ending::Retiring(cause) => cause.clone(),
                _ => self.error(ErrorKind::Closed, "the client was closed"),
            });
        }
        Ok(woken)
    }

    /// Expires calls, checks the server's health and arms the timer. Returns the number of woken callers.
    fn keep_time(&mut self, cx: &mut Context<'_>) -> Result<usize, Error> {
        let armed = self.shared.lock().alarm.instant();
        // A caller unset the timer, because its deadline is earlier than the armed instant.
        let mut due = armed != Some(self.timer.deadline());
        let mut woken = 0;
        loop {
            if !due && std::pin::Pin::new(&mut self.timer).poll(cx).is_pending() {
                return Ok(woken);
            }
            due = false;
            woken += self.pass_verdicts()?;
        }
    }

    /// Passes every verdict that is due. Reads the socket first, because a reply may be there.
    fn pass_verdicts(&mut self) -> Result<usize, Error> {
        let config = &self.shared.config;
        let (now, timeout) = (config.timer.now(), config.response_timeout);
        let woken = if self.is_verdict_due(now) { self.read_directly()? } else { 0 };
        let mut state = self.shared.lock();
        // A caller that unset the timer woke the driver at once. The timer itself may be due long after that.
        let due = state.alarm.unset_since().map_or(self.timer.deadline(), |at| at.min(self.timer.deadline()));
        let late = late(&self.shared.config.timer, due, now);
        if stood_still(late, timeout) {
            // This process caused the delay, not the server.
            state.pipeline.spare(now + last_part(timeout));
        }
        let earliest = state.pipeline.expire(now, &mut self.wakers);
        let waiting_since = state.pipeline.waiting_since();
        let overdue = match self.silence.judge(waiting_since, late, now, timeout) {
            // A queued call will still be written. Watch the last quarter of its time, or its deadline passes before
            // the verdict.
            Verdict::Quiet => {
                earliest.and_then(|at| at.checked_sub(last_part(timeout))).filter(|begins| now < *begins)
            }
            Verdict::CheckAt(at) => Some(at),
            Verdict::Lost => {
                drop(state);
                wake_all(self.wakers.drain(..));
                return Err(self.lost(&format!("no reply for {timeout:?}")));
            }
        };
        let silent = waiting_since.filter(|_| self.may_move).map(|since| since + SILENCE);
        let is_silent = silent.is_some_and(|at| now >= at);
        let silent = silent.map(|at| if is_silent { now + SILENCE } else { at });
        // The PING finds a dead peer on a silent connection, and shifted replies on a busy one.
        if now >= self.next_ping {
            self.next_ping = now + self.shared.config.heartbeat.max(MIN_HEARTBEAT);
            state.pipeline.submit_ping(now);
            self.pings = self.pings.wrapping_add(1);
            // A replica rejects the reads of a cluster's client by itself.
            if self.shared.role == Role::Primary && self.pings.is_multiple_of(PINGS_PER_ROLE) {
                state.pipeline.submit_role(now);
            }
        }
        // The next turn ends the connection. An instant in the past would make this turn loop.
        let grace = self.closing_since.map(|since| (since + grace(&state.ending)).max(now + MIN_HEARTBEAT));
        let times = [Some(self.next_ping), overdue, earliest, silent, grace];
        let armed = times.into_iter().flatten().min().unwrap_or(self.next_ping);
        state.alarm = Alarm::Set(armed);
        drop(state);
        if is_silent && !stood_still(late, timeout) {
            self.shared.notify(Event::Silent);
        }
        wake_all(self.wakers.drain(..));
        self.timer.reset(armed);
        Ok(woken)
    }

    /// Returns true if a call's deadline has passed, or if the server has been silent for a while.
    fn is_verdict_due(&self, now: Instant) -> bool {
        let state = self.shared.lock();
        let is_over = |deadline| now >= deadline;
        let patience = SILENCE.min(self.shared.config.response_timeout / 2);
        state.pipeline.earliest_deadline().is_some_and(is_over)
            || state.pipeline.waiting_since().is_some_and(|since| is_over(since + patience))
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        loop {
            if self.output.is_empty() {
                let mut state = self.shared.lock();
                if state.writing || !state.pipeline.has_output() {
                    drop(state);
                    return match self.stream.poll_flush(cx) {
                        Poll::Pending | Poll::Ready(Ok(())) => Ok(()),
                        Poll::Ready(Err(error)) => Err(self.failed("writing", error)),
                    };
                }
                state.writing = true;
                self.output = state.pipeline.take_output();
            }
            let written = match self.stream.poll_write(cx, &self.output) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(0)) => return Err(self.lost("the socket takes no bytes")),
                Poll::Ready(Ok(written)) => written,
                Poll::Ready(Err(error)) => {
                    return Err(self.failed("writing", error));
                }
            };
            // Drop the written part at once. While it shares the buffer, the buffer cannot determine its capacity.
            drop(self.output.split_to(written));
            let mut state = self.shared.lock();
            state.stats.batch_writes += 1;
            state.stats.bytes_written += written as u64;
            if self.output.is_empty() {
                state.writing = false;
                state.pipeline.give_back(std::mem::take(&mut self.output));
            } else {
                state.pipeline.wrote(written);
            }
        }
    }

    fn failed(&self, what: &str, error: io::Error) -> Error {
        self.lost(&format!("{what} failed: {}{}", said(&error), self.why_ended())).because_of_io(error)
    }

    fn lost(&self, detail: &str) -> Error {
        self.error(ErrorKind::ConnectionLost, detail)
    }

    fn error(&self, kind: ErrorKind, detail: &str) -> Error {
        self.shared.error(kind, Outcome::MaybeExecuted, "the connection", detail)
    }

    fn end(&mut self, error: &Error) {
        let state = self.shared.lock();
        let is_given_up = !matches!(state.ending, Ending::Closing);
        drop(state);
        // No system call runs under the lock, because callers wait for it. A closed client repeats no call, and its
        // last bytes must still arrive.
        if is_given_up {
            // The calls are repeated on another connection. Bytes of this connection must not arrive after them.
            self.stream.forget_undelivered();
        }
        let mut state = self.shared.lock();
        state.writing = false;
        state.corked = None;
        // The socket did not accept these bytes, so they never left.
        state.pipeline.give_back(std::mem::take(&mut self.output));
        if let Some(culprit) = &self.culprit {
            state.pipeline.fail_front(culprit, &mut self.wakers);
        }
        state.pipeline.disconnect(error, &mut self.wakers);
        let phase = Phase::Connecting(Some(error.clone()));
        self.shared.enter(state, phase, Event::Down, std::mem::take(&mut self.wakers));
    }
}

/// Runs when the runtime drops the driver while the connection is open.
impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.output.is_empty() {
            // Bytes that a flush took and the socket did not accept must be written first.
            let mut state = self.shared.lock();
            state.writing = false;
            state.pipeline.give_back(std::mem::take(&mut self.output));
        }
        self.shared.abandon();
        // The loop reads real time, because a manual clock may stand still and never end it.
        let began = Instant::now();
        while self.shared.lock().awaits_replies() && began.elapsed() < LAST_REPLIES {
            match self.try_receive() {
                Some(Ok(_)) => {}
                Some(Err(_)) => return,
                None => std::thread::sleep(READ_PAUSE),
            }
        }
    }
}

/// Returns the time for which a connection that ends waits for the replies to its written calls.
fn grace(ending: &Ending) -> Duration {
    if matches!(ending, Ending::Retiring(_)) { RETIRING_GRACE } else { CLOSING_GRACE }
}

/// Returns the value of a limit.
fn bound(limits: Limits, kind: LimitKind) -> usize {
    match kind {
        LimitKind::Depth => limits.depth,
        LimitKind::Bulk => limits.bulk,
        LimitKind::Elements => limits.elements,
        LimitKind::Line => limits.line,
        // The only limit that is left.
        _ => limits.frame,
    }
}

/// Redis ends a connection with subscriptions when 32 MiB of replies wait to be read (redis.conf).
const BUFFER_LIMIT: &str = "; a connection with subscriptions has the server's `client-output-buffer-limit pubsub`: read large values \
                            by another Client";

/// Number of PINGs per check of the server's role. A check costs more than a PING, and a demotion is rare.
const PINGS_PER_ROLE: u32 = 4;

/// Minimum interval between two PINGs. It overrides a shorter configured interval.
const MIN_HEARTBEAT: Duration = Duration::from_millis(1);

impl Future for Running<'_> {
    type Output = Error;

    fn poll(mut self: std::pin::Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Error> {
        let this = &mut *self;
        match this.poll_turn(cx) {
            Ok(false) if this.shared.lock().park(cx.waker()) => Poll::Pending,
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
