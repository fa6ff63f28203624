//! The state of one connection as a value: bytes to write, calls in wire order, replies to callers. Pure: no socket,
//! no clock, no lock; the one invariant everything rests on is that the order of bytes is the order of entries.
//!
//! Bytes are addressed by their offset in the endless stream of everything ever queued. `claimed` separates what a
//! writer has taken (it may be on the wire) from what certainly never left: that is what makes `NotSent` true.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Instant;

use bytes::BytesMut;
use slab::Slab;
use wheellock_resp::{Arg, Command, Frame, Push, Value};

use crate::channels::{Channels, Order};
use crate::error::{Error, ErrorKind, Outcome};
use crate::histogram::Histogram;
use crate::script::Script;

/// What a caller wants sent.
#[derive(Clone, Copy)]
pub(crate) enum Request<'a> {
    Command(&'a Command<'a>),
    EvalSha(Eval<'a>),
    Eval(Eval<'a>),
}

/// A script and its parameters: the keys, then the arguments.
#[derive(Clone, Copy)]
pub(crate) struct Eval<'a> {
    pub(crate) script: &'a Script,
    pub(crate) keys: usize,
    pub(crate) params: &'a [Arg<'a>],
}

impl Request<'_> {
    fn encode(&self, out: &mut BytesMut) {
        match self {
            Request::Command(command) => command.encode(out),
            Request::EvalSha(eval) => eval.script.encode_evalsha(eval.keys, eval.params, out),
            Request::Eval(eval) => eval.script.encode_eval(eval.keys, eval.params, out),
        }
    }

    /// The command's name, for messages.
    pub(crate) fn name(&self) -> &str {
        match self {
            Request::Command(command) => match command.iter().next() {
                Some(Arg::Bytes(name)) => std::str::from_utf8(name).unwrap_or("a command"),
                _ => "a command",
            },
            Request::EvalSha(_) => "EVALSHA",
            Request::Eval(_) => "EVAL",
        }
    }

    pub(crate) fn is_script(&self) -> bool {
        !matches!(self, Request::Command(_))
    }
}

/// Who may use the room that is kept free for what must not be refused: renewals and releases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lane {
    Normal,
    Reserved,
}

/// Bounds of the pipeline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) in_flight: usize,
    pub(crate) queued_bytes: usize,
}

impl Bounds {
    fn admits(self, lane: Lane, in_flight: usize, queued_bytes: usize) -> bool {
        let allow = |bound: usize| match lane {
            Lane::Normal => bound,
            Lane::Reserved => bound.saturating_add(bound / 8),
        };
        in_flight < allow(self.in_flight) && queued_bytes < allow(self.queued_bytes)
    }
}

/// The end of a call that nobody waited for.
#[derive(Debug)]
#[non_exhaustive]
pub struct Detached {
    /// What the call was queued with.
    pub token: u64,
    /// The reply; an error reply is an `Ok` holding an error value. Otherwise, what may have become of the call.
    pub result: Result<Value, Outcome>,
}

/// How a call ended without a reply.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    pub(crate) outcome: Outcome,
    /// The broken connection, if it was one that failed many calls.
    pub(crate) cause: Option<Error>,
}

/// Why the connection must be closed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Desync(pub(crate) &'static str);

pub(crate) struct Pipeline {
    bounds: Bounds,
    out: BytesMut,
    spare: BytesMut,
    /// Offset behind the last byte of `out`.
    queued: u64,
    /// Offset of the first byte that no writer has taken.
    claimed: u64,
    entries: VecDeque<Entry>,
    /// Sequence number of the first entry; an entry's place is its sequence number minus this.
    first: u64,
    slots: Slab<Slot>,
    channels: Channels,
    /// Results of detached calls, to be handed out after unlocking.
    detached: Vec<Detached>,
    last_reply: Instant,
    /// The server said that it cannot be what we need on this connection any more.
    pub(crate) unfit: Option<&'static str>,
    pub(crate) latency: Histogram,
    pub(crate) pushes: u64,
    pub(crate) strays: u64,
}

/// One command in wire order.
struct Entry {
    what: What,
    /// Offset of its first byte.
    start: u64,
    /// When it was queued on this connection.
    at: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Call(u32),
    /// Nobody waits; the result is handed out with the token.
    Detached(u64),
    /// Its caller left; the reply is still to come.
    Orphan,
    /// Asks for its own number back, so that a shifted stream shows within a heartbeat.
    Ping(u64),
    Subscribe(u32),
    Unsubscribe(u32),
}

struct Slot {
    state: SlotState,
    sequence: u64,
    deadline: Instant,
}

enum SlotState {
    Waiting(Waker),
    Done(Result<Value, Failure>),
}

impl Pipeline {
    pub(crate) fn new(bounds: Bounds, now: Instant) -> Self {
        Self {
            bounds,
            out: BytesMut::new(),
            spare: BytesMut::new(),
            queued: 0,
            claimed: 0,
            entries: VecDeque::new(),
            first: 0,
            slots: Slab::new(),
            channels: Channels::default(),
            detached: Vec::new(),
            last_reply: now,
            unfit: None,
            latency: Histogram::default(),
            pushes: 0,
            strays: 0,
        }
    }

    /// Queues a call; the returned slot holds its result until [`take`](Self::take) or [`leave`](Self::leave).
    pub(crate) fn submit(
        &mut self,
        request: &Request<'_>,
        lane: Lane,
        now: Instant,
        deadline: Instant,
        waker: Waker,
    ) -> Option<u32> {
        if !self.bounds.admits(lane, self.entries.len(), self.out.len()) {
            return None;
        }
        let sequence = self.first + self.entries.len() as u64;
        let slot = self.slots.insert(Slot { state: SlotState::Waiting(waker), sequence, deadline });
        let slot = u32::try_from(slot).ok()?;
        self.push(What::Call(slot), now);
        request.encode(&mut self.out);
        self.close_entry();
        Some(slot)
    }

    /// Queues a call whose result goes to [`take_detached`](Self::take_detached), with its token.
    pub(crate) fn submit_detached(&mut self, request: &Request<'_>, now: Instant, token: u64) -> bool {
        if !self.bounds.admits(Lane::Reserved, self.entries.len(), self.out.len()) {
            return false;
        }
        self.push(What::Detached(token), now);
        request.encode(&mut self.out);
        self.close_entry();
        true
    }

    pub(crate) fn submit_ping(&mut self, now: Instant) {
        let nonce = self.queued;
        self.push(What::Ping(nonce), now);
        Command::new("PING").arg(nonce).encode(&mut self.out);
        self.close_entry();
    }

    fn push(&mut self, what: What, now: Instant) {
        self.entries.push_back(Entry { what, start: self.queued, at: now });
    }

    /// Accounts for the bytes that were just encoded.
    fn close_entry(&mut self) {
        self.queued = self.claimed + self.out.len() as u64;
    }

    /// The result of a slot, if it has one; the slot is then free. Otherwise leaves the waker.
    pub(crate) fn take(&mut self, slot: u32, waker: &Waker) -> Option<Result<Value, Failure>> {
        let index = slot as usize;
        match &mut self.slots.get_mut(index)?.state {
            SlotState::Waiting(old) => {
                if !old.will_wake(waker) {
                    old.clone_from(waker);
                }
                None
            }
            SlotState::Done(_) => match self.slots.remove(index).state {
                SlotState::Done(result) => Some(result),
                SlotState::Waiting(_) => None,
            },
        }
    }

    /// The caller is gone: its slot is free at once, its reply will pass by.
    pub(crate) fn leave(&mut self, slot: u32) -> Option<Slotted> {
        let slot = self.slots.try_remove(slot as usize)?;
        if let SlotState::Waiting(_) = &slot.state {
            self.orphan(slot.sequence);
        }
        Some(Slotted(slot))
    }

    fn orphan(&mut self, sequence: u64) {
        let place = sequence.checked_sub(self.first).and_then(|place| usize::try_from(place).ok());
        if let Some(entry) = place.and_then(|place| self.entries.get_mut(place)) {
            entry.what = What::Orphan;
        }
    }

    /// Whether nothing that was written still waits for a reply: then the line is free, and a caller may write.
    pub(crate) fn is_idle(&self) -> bool {
        self.entries.front().is_none_or(|entry| entry.start >= self.claimed)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn has_output(&self) -> bool {
        !self.out.is_empty()
    }

    pub(crate) fn queued_bytes(&self) -> usize {
        self.out.len()
    }

    /// Hands all queued bytes to a writer. Exactly one writer may exist at a time.
    pub(crate) fn take_output(&mut self) -> BytesMut {
        self.claimed = self.queued;
        std::mem::replace(&mut self.out, std::mem::take(&mut self.spare))
    }

    /// The writer is done; `rest` is what the socket did not take (usually nothing). It goes back in front.
    pub(crate) fn give_back(&mut self, mut rest: BytesMut) {
        if rest.is_empty() {
            rest.clear();
            // One flood must not keep megabytes for ever.
            if rest.capacity() <= SPARE_LIMIT {
                self.spare = rest;
            }
            return;
        }
        self.claimed -= rest.len() as u64;
        rest.extend_from_slice(&self.out);
        self.out = rest;
    }

    /// Takes one decoded frame. Wakers go to `wakers`, to be woken after unlocking.
    pub(crate) fn on_frame(
        &mut self,
        frame: Frame,
        now: Instant,
        wakers: &mut Vec<Waker>,
    ) -> Result<(), Desync> {
        match frame {
            Frame::Reply(value) => self.on_reply(value, now, wakers),
            Frame::Push(push) => self.on_push(&push, now, wakers),
        }
    }

    fn on_reply(&mut self, value: Value, now: Instant, wakers: &mut Vec<Waker>) -> Result<(), Desync> {
        let Some(entry) = self.pop_written() else {
            return Err(Desync("a reply came that nothing asked for"));
        };
        self.last_reply = now;
        if let Some(text) = value.as_error() {
            self.unfit = self.unfit.or_else(|| unfit(text));
        }
        match entry.what {
            What::Call(slot) => {
                self.latency.record(now.saturating_duration_since(entry.at));
                self.finish(slot, Ok(value), wakers);
            }
            What::Detached(token) => self.detached.push(Detached { token, result: Ok(value) }),
            What::Orphan => {}
            What::Ping(nonce) => {
                // An error is an answer too: a busy server refuses PING.
                let echoed = value.as_str().and_then(|text| text.parse().ok()) == Some(nonce);
                if !echoed && !value.is_error() {
                    return Err(Desync("PING was answered with something else: replies have been shifted"));
                }
            }
            // In RESP3 the confirmation is a push; only a refusal is a reply.
            What::Subscribe(channel) => match value.as_error() {
                Some(text) => self.channels.on_refused(channel, crate::error::printable(text), wakers),
                None => return Err(Desync("SUBSCRIBE was answered with a reply that is no error")),
            },
            What::Unsubscribe(_) => return Err(Desync("UNSUBSCRIBE was answered with a reply")),
        }
        Ok(())
    }

    /// A push never consumes a call's reply. A (un)subscribe confirmation is matched by its channel, because a server
    /// may also end a subscription by itself.
    fn on_push(&mut self, push: &Push, now: Instant, wakers: &mut Vec<Waker>) -> Result<(), Desync> {
        self.pushes += 1;
        let channel = push.args().first().and_then(Value::as_bytes).unwrap_or_default();
        match push.kind() {
            b"message" => {
                if !self.channels.on_message(channel, wakers) {
                    self.strays += 1;
                }
            }
            b"subscribe" => match self.channels.find(channel) {
                Some(index) if self.front_is(What::Subscribe(index)) => {
                    self.pop_written();
                    self.last_reply = now;
                    self.channels.on_subscribed(index, wakers);
                    self.reconcile(index, now);
                }
                _ => return Err(Desync("a subscription was confirmed out of order")),
            },
            b"unsubscribe" => {
                if let Some(index) = self.channels.find(channel) {
                    if self.front_is(What::Unsubscribe(index)) {
                        self.pop_written();
                        self.last_reply = now;
                    }
                    self.channels.on_unsubscribed(index, wakers);
                    self.reconcile(index, now);
                }
            }
            _ => self.strays += 1,
        }
        Ok(())
    }

    fn front_is(&self, what: What) -> bool {
        self.entries.front().is_some_and(|entry| entry.what == what && entry.start < self.claimed)
    }

    fn pop_written(&mut self) -> Option<Entry> {
        if self.is_idle() {
            return None;
        }
        self.first += 1;
        self.entries.pop_front()
    }

    fn finish(&mut self, slot: u32, result: Result<Value, Failure>, wakers: &mut Vec<Waker>) {
        if let Some(slot) = self.slots.get_mut(slot as usize)
            && let SlotState::Waiting(waker) = std::mem::replace(&mut slot.state, SlotState::Done(result))
        {
            wakers.push(waker);
        }
    }

    fn fail_detached(&mut self, token: u64, outcome: Outcome) {
        self.detached.push(Detached { token, result: Err(outcome) });
    }

    /// Moves the results of detached calls to `into`, which must be empty.
    pub(crate) fn take_detached(&mut self, into: &mut Vec<Detached>) {
        std::mem::swap(&mut self.detached, into);
    }

    pub(crate) fn channels(&mut self) -> &mut Channels {
        &mut self.channels
    }

    /// Queues the order that a channel needs, if any. Call only while connected.
    pub(crate) fn reconcile(&mut self, channel: u32, now: Instant) -> bool {
        let Some((order, name)) = self.channels.next_order(channel) else { return false };
        let (what, verb) = match order {
            Order::Subscribe => (What::Subscribe(channel), "SUBSCRIBE"),
            Order::Unsubscribe => (What::Unsubscribe(channel), "UNSUBSCRIBE"),
        };
        self.push(what, now);
        Command::new(verb).arg(&name[..]).encode(&mut self.out);
        self.close_entry();
        true
    }

    /// Fails every call whose deadline has passed; returns the earliest deadline that is left.
    pub(crate) fn expire(
        &mut self,
        now: Instant,
        connected: bool,
        wakers: &mut Vec<Waker>,
    ) -> Option<Instant> {
        let mut earliest = None::<Instant>;
        for place in 0..self.entries.len() {
            let Some(&Entry { what: What::Call(slot), .. }) = self.entries.get(place) else { continue };
            let Some(deadline) = self.slots.get(slot as usize).map(|slot| slot.deadline) else { continue };
            if deadline > now {
                earliest = Some(earliest.map_or(deadline, |earliest| earliest.min(deadline)));
                continue;
            }
            // While connected, what is queued will still be written; an orphan that never was is dropped below.
            let outcome = if connected { Outcome::MaybeExecuted } else { Outcome::NotSent };
            let failure = Failure { kind: ErrorKind::Timeout, outcome, cause: None };
            if let Some(entry) = self.entries.get_mut(place) {
                entry.what = What::Orphan;
            }
            self.finish(slot, Err(failure), wakers);
        }
        earliest
    }

    /// Since when the oldest written entry has been waiting without any reply arriving.
    pub(crate) fn waiting_since(&self) -> Option<Instant> {
        let oldest = self.entries.front().filter(|entry| entry.start < self.claimed)?;
        Some(oldest.at.max(self.last_reply))
    }

    /// The connection broke. Written calls fail with `MaybeExecuted`; unwritten ones stay queued for the next
    /// connection. Orphans, pings and subscription orders are dropped: the first have no caller, the others are made
    /// anew.
    pub(crate) fn disconnect(&mut self, cause: &Error, wakers: &mut Vec<Waker>) {
        let kind = match cause.kind() {
            kind @ (ErrorKind::Protocol | ErrorKind::Closed) => kind,
            _ => ErrorKind::ConnectionLost,
        };
        let lost = Failure { kind, outcome: Outcome::MaybeExecuted, cause: Some(cause.clone()) };
        while let Some(entry) = self.pop_written() {
            match entry.what {
                What::Call(slot) => self.finish(slot, Err(lost.clone()), wakers),
                What::Detached(token) => self.fail_detached(token, Outcome::MaybeExecuted),
                _ => {}
            }
        }
        self.channels.on_disconnect(wakers);
        self.drop_unwritten(is_kept);
    }

    /// A connection is up: subscribes to what is wanted, in front of the calls that were queued meanwhile.
    pub(crate) fn reconnect(&mut self, now: Instant) {
        // Whoever gave up meanwhile was told that nothing was sent.
        self.drop_unwritten(is_kept);
        let calls = std::mem::take(&mut self.out);
        let entries = std::mem::take(&mut self.entries);
        let base = self.claimed;
        self.queued = base;
        for channel in self.channels.indices() {
            self.reconcile(channel, now);
        }
        let moved = self.queued - base;
        let orders = self.entries.len() as u64;
        for entry in entries {
            if let What::Call(slot) = entry.what
                && let Some(slot) = self.slots.get_mut(slot as usize)
            {
                slot.sequence += orders;
            }
            self.entries.push_back(Entry { start: entry.start + moved, at: now, ..entry });
        }
        self.out.extend_from_slice(&calls);
        self.close_entry();
        self.last_reply = now;
        self.unfit = None;
    }

    /// Nothing will ever be sent again: every call fails.
    pub(crate) fn close(&mut self, cause: &Error, wakers: &mut Vec<Waker>) {
        self.disconnect(cause, wakers);
        self.fail_unwritten(cause, wakers);
    }

    /// Fails the calls that were never written, with `cause`.
    pub(crate) fn fail_unwritten(&mut self, cause: &Error, wakers: &mut Vec<Waker>) {
        let failure = Failure { kind: cause.kind(), outcome: Outcome::NotSent, cause: Some(cause.clone()) };
        let entries = std::mem::take(&mut self.entries);
        self.first += entries.len() as u64;
        for entry in entries {
            match entry.what {
                What::Call(slot) => self.finish(slot, Err(failure.clone()), wakers),
                What::Detached(token) => self.fail_detached(token, Outcome::NotSent),
                _ => {}
            }
        }
        self.out.clear();
        self.queued = self.claimed;
    }

    /// Keeps of the unwritten entries only those that `keep` names, with their bytes.
    fn drop_unwritten(&mut self, keep: impl Fn(What) -> bool) {
        let old_bytes = std::mem::take(&mut self.out);
        let old_entries = std::mem::take(&mut self.entries);
        let (base, end) = (self.queued - old_bytes.len() as u64, self.queued);
        let ends: Vec<u64> = old_entries.iter().skip(1).map(|entry| entry.start).chain([end]).collect();
        // Whatever was only partly written went down with its connection.
        self.claimed = base;
        self.queued = base;
        for (entry, end) in old_entries.into_iter().zip(ends) {
            if !keep(entry.what) {
                continue;
            }
            let within = |offset: u64| usize::try_from(offset - base).unwrap_or(usize::MAX);
            let Some(bytes) = old_bytes.get(within(entry.start)..within(end)) else { continue };
            if let What::Call(slot) = entry.what
                && let Some(slot) = self.slots.get_mut(slot as usize)
            {
                slot.sequence = self.first + self.entries.len() as u64;
            }
            self.entries.push_back(Entry { start: self.queued, ..entry });
            self.out.extend_from_slice(bytes);
            self.close_entry();
        }
    }
}

/// Error replies after which only a new connection helps. A primary that became a replica keeps its sockets open
/// (observed on Redis 7.0), so nothing else would ever end this one.
fn unfit(text: &[u8]) -> Option<&'static str> {
    match crate::error::error_code(text) {
        "READONLY" => Some("the server became a replica"),
        "MASTERDOWN" => Some("the server lost its primary"),
        "NOAUTH" => Some("the server no longer knows who we are"),
        _ => None,
    }
}

/// What outlives a connection if it was not written.
fn is_kept(what: What) -> bool {
    matches!(what, What::Call(_) | What::Detached(_))
}

/// A slot's remains; dropped outside the lock, because wakers and values may run foreign code.
pub(crate) struct Slotted(#[expect(dead_code, reason = "held only to be dropped later")] Slot);

/// Largest buffer that is kept between flushes.
const SPARE_LIMIT: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;
    use std::time::Duration;

    /// One thing that happens to a connection.
    #[derive(Clone, Debug)]
    enum Step {
        Call,
        Detached,
        Ping,
        Subscribe(u8),
        Unsubscribe(u8),
        /// The caller of the n-th open call leaves.
        Leave(usize),
        /// A writer takes everything and the socket accepts this share of it.
        Write(u8),
        /// The server answers so many of the commands it has got.
        Answer(usize),
        Message(u8),
        Expire,
        Break,
        Connect,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            6 => Just(Step::Call),
            2 => Just(Step::Detached),
            1 => Just(Step::Ping),
            1 => (0..3_u8).prop_map(Step::Subscribe),
            1 => (0..3_u8).prop_map(Step::Unsubscribe),
            2 => (0..8_usize).prop_map(Step::Leave),
            6 => any::<u8>().prop_map(Step::Write),
            6 => (0..6_usize).prop_map(Step::Answer),
            1 => (0..3_u8).prop_map(Step::Message),
            1 => Just(Step::Expire),
            1 => Just(Step::Break),
            1 => Just(Step::Connect),
        ];
        proptest::collection::vec(step, 0..200)
    }

    /// A pipeline, and a server that echoes what it has fully received.
    struct World {
        pipeline: Pipeline,
        connected: bool,
        received: BytesMut,
        /// Commands the server has fully received on this connection and not answered yet.
        pending: VecDeque<Vec<String>>,
        /// Everything the server has ever executed.
        executed: HashMap<String, usize>,
        calls: Vec<(u32, String)>,
        detached: HashMap<u64, String>,
        subscriptions: HashMap<u8, (u32, u64)>,
        /// What callers were told was never sent; it must not be, later on, either.
        not_sent: Vec<String>,
        next: u64,
        now: Instant,
        wakers: Vec<Waker>,
    }

    impl World {
        fn new() -> Self {
            let now = Instant::now();
            let bounds = Bounds { in_flight: 1000, queued_bytes: 1 << 20 };
            Self {
                pipeline: Pipeline::new(bounds, now),
                connected: false,
                received: BytesMut::new(),
                pending: VecDeque::new(),
                executed: HashMap::new(),
                calls: Vec::new(),
                detached: HashMap::new(),
                subscriptions: HashMap::new(),
                not_sent: Vec::new(),
                next: 0,
                now,
                wakers: Vec::new(),
            }
        }

        fn step(&mut self, step: &Step) {
            self.now += Duration::from_millis(1);
            let now = self.now;
            match *step {
                Step::Call => {
                    self.next += 1;
                    let nonce = format!("n{}", self.next);
                    let command = Command::new("ECHO").arg(&nonce);
                    let deadline = now + Duration::from_millis(20);
                    let waker = Waker::noop().clone();
                    let request = Request::Command(&command);
                    let slot = self.pipeline.submit(&request, Lane::Normal, now, deadline, waker).unwrap();
                    self.calls.push((slot, nonce));
                }
                Step::Detached => {
                    self.next += 1;
                    let nonce = format!("n{}", self.next);
                    let command = Command::new("ECHO").arg(&nonce);
                    assert!(self.pipeline.submit_detached(&Request::Command(&command), now, self.next));
                    self.detached.insert(self.next, nonce);
                }
                Step::Ping => self.pipeline.submit_ping(now),
                Step::Subscribe(channel) => {
                    let pipeline = &mut self.pipeline;
                    let (index, _) = *self
                        .subscriptions
                        .entry(channel)
                        .or_insert_with(|| (pipeline.channels().want(&[b'c', channel]), 0));
                    if self.connected {
                        self.pipeline.reconcile(index, now);
                    }
                }
                Step::Unsubscribe(channel) => {
                    if let Some((index, waiter)) = self.subscriptions.remove(&channel) {
                        self.pipeline.channels().unwant(index, waiter);
                        if self.connected {
                            self.pipeline.reconcile(index, now);
                        }
                    }
                }
                Step::Leave(n) if n < self.calls.len() => {
                    let (slot, _) = self.calls.swap_remove(n);
                    drop(self.pipeline.leave(slot));
                }
                Step::Write(share) if self.connected && self.pipeline.has_output() => {
                    let mut bytes = self.pipeline.take_output();
                    // Somebody may append while the writer is in its system call.
                    if share % 3 == 1 {
                        self.step(&Step::Call);
                    }
                    let accepted = (bytes.len() * usize::from(share)).div_ceil(255);
                    self.received.extend_from_slice(&bytes.split_to(accepted));
                    self.pipeline.give_back(bytes);
                    self.receive();
                }
                Step::Answer(count) if self.connected => {
                    for command in self.pending.drain(..count.min(self.pending.len())).collect::<Vec<_>>() {
                        self.answer(&command);
                    }
                }
                Step::Message(channel) if self.connected => {
                    let name = String::from_utf8(vec![b'c', channel]).unwrap();
                    self.push("message", &[&name, "0"]);
                }
                Step::Expire => {
                    self.now += Duration::from_millis(15);
                    self.pipeline.expire(self.now, self.connected, &mut self.wakers);
                }
                Step::Break if self.connected => {
                    let cause = Error::new(
                        ErrorKind::ConnectionLost,
                        Outcome::MaybeExecuted,
                        "t",
                        "s",
                        String::new(),
                    );
                    self.pipeline.disconnect(&cause, &mut self.wakers);
                    self.connected = false;
                    self.received.clear();
                    self.pending.clear();
                }
                Step::Connect if !self.connected => {
                    self.pipeline.reconnect(now);
                    self.connected = true;
                }
                _ => {}
            }
            self.check();
        }

        /// What has fully arrived at the server is executed at once; its answer may come late or never.
        fn receive(&mut self) {
            let mut decoder = wheellock_resp::Decoder::new(wheellock_resp::Limits::default());
            loop {
                let mut rest = self.received.clone();
                let Some(Frame::Reply(command)) = decoder.decode(&mut rest).expect("whole commands, untorn")
                else {
                    return;
                };
                let words: Vec<String> = command
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|word| word.as_str().unwrap().to_owned())
                    .collect();
                *self.executed.entry(words.get(1).cloned().unwrap_or_default()).or_default() += 1;
                self.pending.push_back(words);
                self.received = rest;
                decoder = wheellock_resp::Decoder::new(wheellock_resp::Limits::default());
            }
        }

        fn answer(&mut self, command: &[String]) {
            match command[0].as_str() {
                "ECHO" => {
                    let reply = Value::BulkString(command[1].as_bytes().to_vec().into());
                    self.frame(Frame::Reply(reply));
                }
                "PING" => self.frame(Frame::Reply(Value::BulkString(command[1].as_bytes().to_vec().into()))),
                verb => self.push(&verb.to_lowercase(), &[&command[1]]),
            }
        }

        fn push(&mut self, kind: &str, args: &[&str]) {
            let words = std::iter::once(kind).chain(args.iter().copied());
            let words = words.map(|word| Value::BulkString(word.as_bytes().to_vec().into())).collect();
            self.frame(Frame::Push(Push::new(words).unwrap()));
        }

        fn frame(&mut self, frame: Frame) {
            self.pipeline
                .on_frame(frame, self.now, &mut self.wakers)
                .expect("an honest server causes no desync");
        }

        fn check(&mut self) {
            let executed = &self.executed;
            let (pipeline, not_sent) = (&mut self.pipeline, &mut self.not_sent);
            self.calls.retain(|(slot, nonce)| match pipeline.take(*slot, Waker::noop()) {
                None => true,
                Some(Ok(reply)) => {
                    assert_eq!(reply.as_str(), Some(nonce.as_str()), "another caller's reply");
                    false
                }
                Some(Err(failure)) => {
                    if failure.outcome == Outcome::NotSent {
                        not_sent.push(nonce.clone());
                    }
                    false
                }
            });
            let mut results = Vec::new();
            pipeline.take_detached(&mut results);
            for Detached { token, result } in results {
                let nonce = self.detached.remove(&token).expect("reported once");
                match result {
                    Ok(reply) => assert_eq!(reply.as_str(), Some(nonce.as_str())),
                    Err(Outcome::NotSent) => not_sent.push(nonce),
                    Err(_) => {}
                }
            }
            assert!(not_sent.iter().all(|nonce| !executed.contains_key(nonce)), "said NotSent, but it ran");
            assert!(
                executed.iter().all(|(nonce, times)| !nonce.starts_with('n') || *times == 1),
                "ran twice"
            );
        }

        /// Everything heals: every call ends, and nothing is left.
        fn settle(&mut self) {
            if !self.connected {
                self.step(&Step::Connect);
            }
            for _ in 0..20 {
                self.step(&Step::Write(255));
                self.step(&Step::Answer(usize::MAX));
            }
            assert!(self.calls.is_empty() && self.detached.is_empty(), "a call never ended");
            assert!(
                self.pipeline.is_empty() && !self.pipeline.has_output() && self.pipeline.slots.is_empty()
            );
            for (index, _) in self.subscriptions.values() {
                assert!(self.pipeline.channels().is_confirmed(*index));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
        #[test]
        fn every_reply_reaches_its_caller_whatever_happens(steps in steps()) {
            let mut world = World::new();
            for step in &steps {
                world.step(step);
            }
            world.settle();
        }
    }

    #[test]
    fn replies_that_nothing_asked_for_are_a_desync() {
        let now = Instant::now();
        let fresh = || Pipeline::new(Bounds { in_flight: 9, queued_bytes: 999 }, now);
        let ok = || Frame::Reply(Value::SimpleString(b"OK".to_vec().into()));
        assert!(fresh().on_frame(ok(), now, &mut Vec::new()).is_err(), "nothing is in flight");

        let mut unwritten = fresh();
        unwritten.submit_ping(now);
        assert!(unwritten.on_frame(ok(), now, &mut Vec::new()).is_err(), "nothing was written yet");

        let mut subscribing = fresh();
        let channel = subscribing.channels().want(b"c");
        subscribing.reconcile(channel, now);
        drop(subscribing.take_output());
        assert!(subscribing.on_frame(ok(), now, &mut Vec::new()).is_err(), "SUBSCRIBE has no such reply");

        let mut refused = fresh();
        let channel = refused.channels().want(b"c");
        refused.reconcile(channel, now);
        drop(refused.take_output());
        let noperm = Frame::Reply(Value::Error(b"NOPERM no channel".to_vec().into()));
        assert!(refused.on_frame(noperm, now, &mut Vec::new()).is_ok());
        assert_eq!(refused.channels().refusal(channel).as_deref(), Some("NOPERM no channel"));
    }

    #[test]
    fn bounds_refuse_the_normal_and_keep_room_for_the_reserved() {
        let now = Instant::now();
        let mut pipeline = Pipeline::new(Bounds { in_flight: 16, queued_bytes: 1 << 20 }, now);
        let ping = Command::new("PING");
        let request = Request::Command(&ping);
        let mut submit = |lane| pipeline.submit(&request, lane, now, now, Waker::noop().clone()).is_some();
        assert!((0..16).all(|_| submit(Lane::Normal)));
        assert!(!submit(Lane::Normal));
        assert!((0..2).all(|_| submit(Lane::Reserved)));
        assert!(!submit(Lane::Reserved), "that is bounded too");
    }
}
