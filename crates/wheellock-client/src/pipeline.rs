//! The state of one connection as a value: bytes to write, calls in wire order, replies to callers. Pure: no socket,
//! no clock, no lock; the one invariant everything rests on is that the order of bytes is the order of entries.
//!
//! Bytes are addressed by their offset in the endless stream of everything ever queued. `claimed` separates what a
//! writer has taken (it may be on the wire) from what certainly never left: that is what makes `NotSent` true.

mod bundles;
mod natives;
mod waits;

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Instant;

use bytes::BytesMut;
use slab::Slab;
use wheellock_resp::{Command, Frame, Push, Value};

use crate::acks::Acks;
use crate::channels::{Channels, Order};
use crate::connection_id::ConnectionId;
use crate::detached::Detached;
use crate::error::{Error, ErrorKind, Outcome};
use crate::handshake::ServerInfo;
use crate::histogram::Histogram;
use crate::request::Request;
use crate::script::NativeReply;

pub(crate) use bundles::MOST as MOST_BUNDLED;
use bundles::{Bundle, Bundles, Shape};
use natives::{Natives, Replied};
use waits::{Member, Waits};

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

/// How a call ended without a reply.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    pub(crate) outcome: Outcome,
    /// The broken connection, if it was one that failed many calls.
    pub(crate) cause: Option<Error>,
}

/// Why nobody can wait for acknowledgements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoWait {
    /// The connection on which it was written has ended.
    Ended,
    /// There is no room.
    Full,
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
    /// How many bytes a writer has that no socket has taken yet.
    held: usize,
    entries: VecDeque<Entry>,
    /// Sequence number of the first entry; an entry's place is its sequence number minus this.
    first: u64,
    /// Entries whose caller has left, and that were not written when it did.
    orphans: usize,
    connected: bool,
    /// The server was asked to answer nothing any more.
    hushed: bool,
    /// The present connection, or the last one.
    connection: ConnectionId,
    slots: Slab<Slot>,
    waits: Waits,
    bundles: Bundles,
    natives: Natives,
    channels: Channels,
    /// Subscribe with SSUBSCRIBE.
    pub(crate) sharded: bool,
    /// Results of detached calls, to be handed out after unlocking.
    detached: Vec<Detached>,
    last_reply: Instant,
    /// What the first PING that is under way asks back.
    asked_back: Option<u64>,
    /// What the PING asks back that is behind an UNSUBSCRIBE for which a push was taken.
    behind_an_end: Option<u64>,
    /// The server said that it cannot be what we need on this connection any more.
    pub(crate) unfit: Option<&'static str>,
    /// The last reply that said which node serves a slot now.
    pub(crate) moved: Option<Vec<u8>>,
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
    /// As what it may be bundled.
    shape: Shape,
    /// For how many calls the command stands that begins here: this entry's and those of the entries behind it. Zero if it is this call's
    /// alone, or if it begins with an entry before; [`NATIVE`] if this call is written in commands of the server's own.
    members: u8,
}

/// [`members`](Entry::members) of a call that is written in commands of the server's own.
const NATIVE: u8 = 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Call(u32),
    /// Nobody waits; the result is handed out with the token.
    Detached(u64),
    /// ASKING, which belongs to the call behind it.
    Asking,
    /// Its caller left; the reply is still to come.
    Orphan,
    /// Asks for its own number back, so that a shifted stream shows within a heartbeat.
    Ping(u64),
    Subscribe(u32),
    Unsubscribe(u32),
    /// A group waits for acknowledgements.
    Wait(u32),
    /// `CLIENT REPLY OFF`: nothing from here on is answered.
    Silence,
}

struct Slot {
    state: SlotState,
    sequence: u64,
    deadline: Instant,
}

enum SlotState {
    Waiting(Waker),
    Done(Done),
}

/// The end of a call that somebody waited for.
pub(crate) struct Done {
    pub(crate) result: Result<Value, Failure>,
    /// Which of the node's connections it was.
    pub(crate) epoch: u32,
}

impl Pipeline {
    pub(crate) fn new(bounds: Bounds, now: Instant, node: u32, bundles_calls: bool) -> Self {
        Self {
            bounds,
            out: BytesMut::new(),
            spare: BytesMut::new(),
            queued: 0,
            claimed: 0,
            held: 0,
            entries: VecDeque::new(),
            first: 0,
            orphans: 0,
            connected: false,
            hushed: false,
            connection: ConnectionId { node, epoch: 0 },
            slots: Slab::new(),
            waits: Waits::default(),
            bundles: Bundles::new(bundles_calls),
            natives: Natives::default(),
            channels: Channels::default(),
            sharded: false,
            detached: Vec::new(),
            last_reply: now,
            asked_back: None,
            behind_an_end: None,
            unfit: None,
            moved: None,
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
        asking: bool,
    ) -> Option<u32> {
        if !self.admits(lane) {
            return None;
        }
        self.ask_if(asking, now);
        let sequence = self.first + self.entries.len() as u64;
        let slot = self.slots.insert(Slot { state: SlotState::Waiting(waker), sequence, deadline });
        let slot = u32::try_from(slot).ok()?;
        self.push_call(What::Call(slot), request, now, asking);
        Some(slot)
    }

    /// Queues a call whose result goes to [`take_detached`](Self::take_detached), with its token.
    pub(crate) fn submit_detached(
        &mut self,
        request: &Request<'_>,
        now: Instant,
        token: u64,
        asking: bool,
    ) -> bool {
        if !self.admits(Lane::Reserved) {
            return false;
        }
        self.ask_if(asking, now);
        self.push_call(What::Detached(token), request, now, asking);
        true
    }

    /// Whether there is room for a call. Whether one is larger than all the room is looked at before: see [`Request::excess`].
    fn admits(&self, lane: Lane) -> bool {
        self.bounds.admits(lane, self.entries.len(), self.queued_bytes())
    }

    /// The next call is for a slot that is only on its way to this node: without ASKING the node would send it back.
    fn ask_if(&mut self, asking: bool, now: Instant) {
        if asking {
            self.push(What::Asking, now);
            Command::new("ASKING").encode(&mut self.out);
            self.close_entry();
        }
    }

    pub(crate) fn submit_ping(&mut self, now: Instant) {
        let nonce = self.queued ^ NO_COUNTER;
        self.asked_back = self.asked_back.or(Some(nonce));
        self.push(What::Ping(nonce), now);
        Command::new("PING").arg(nonce).encode(&mut self.out);
        self.close_entry();
    }

    fn push(&mut self, what: What, now: Instant) {
        self.push_shaped(what, now, Shape::default());
    }

    fn push_shaped(&mut self, what: What, now: Instant, shape: Shape) {
        self.entries.push_back(Entry { what, start: self.queued, at: now, shape, members: 0 });
    }

    fn push_call(&mut self, what: What, request: &Request<'_>, now: Instant, asking: bool) {
        let before = self.out.len();
        request.encode(&mut self.out);
        let len = self.out.len() - before;
        // ASKING is for one command.
        let shape = if asking { Shape::default() } else { self.bundles.shape(request, len, now) };
        self.push_shaped(what, now, shape);
        self.close_entry();
    }

    /// Accounts for the bytes that were just encoded.
    fn close_entry(&mut self) {
        self.queued = self.claimed + self.out.len() as u64;
    }

    /// The result of a slot, if it has one; the slot is then free. Otherwise leaves the waker.
    pub(crate) fn take(&mut self, slot: u32, waker: &Waker) -> Option<Done> {
        let index = slot as usize;
        match &mut self.slots.get_mut(index)?.state {
            SlotState::Waiting(old) => {
                if !old.will_wake(waker) {
                    old.clone_from(waker);
                }
                None
            }
            SlotState::Done(_) => match self.slots.remove(index).state {
                SlotState::Done(done) => Some(done),
                SlotState::Waiting(_) => None,
            },
        }
    }

    /// The caller is gone: its slot is free at once, its reply will pass by.
    pub(crate) fn leave(&mut self, slot: u32) -> Option<Slotted> {
        let (index, slot) = (slot, self.slots.try_remove(slot as usize)?);
        if let SlotState::Waiting(_) = &slot.state {
            self.orphan(index, slot.sequence);
        }
        Some(Slotted(slot))
    }

    fn orphan(&mut self, slot: u32, sequence: u64) {
        let place = sequence.checked_sub(self.first).and_then(|place| usize::try_from(place).ok());
        match place.and_then(|place| self.entries.get_mut(place)) {
            Some(Entry { what: What::Wait(group), .. }) => self.waits.leave(*group, slot),
            Some(entry) => {
                entry.what = What::Orphan;
                self.orphans += 1;
                self.make_room();
            }
            None => {}
        }
    }

    /// While nothing can be written, what nobody waits for any more must not fill the queue. Done when it is half of the
    /// queue, which keeps the cost per call constant.
    fn make_room(&mut self) {
        if !self.connected && self.orphans * 2 > self.entries.len() {
            self.drop_unwritten(is_kept);
        }
    }

    /// Whether nothing that was written still waits for a reply: then the connection is idle, and a caller may write.
    pub(crate) fn is_idle(&self) -> bool {
        self.entries.front().is_none_or(|entry| entry.start >= self.claimed)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The tokens of calls without a caller that wait for a connection.
    pub(crate) fn unsent(&self) -> impl Iterator<Item = u64> {
        // What was written on the last one has left with it; while connected, what is queued will be written.
        let entries = (!self.connected).then_some(&self.entries);
        entries.into_iter().flatten().filter_map(|entry| match entry.what {
            What::Detached(token) => Some(token),
            _ => None,
        })
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn has_output(&self) -> bool {
        !self.out.is_empty()
    }

    /// Bytes that no socket has taken yet.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.held + self.out.len()
    }

    /// Hands all queued bytes to a writer. Exactly one writer may exist at a time.
    pub(crate) fn take_output(&mut self) -> BytesMut {
        self.bundle();
        self.claimed = self.queued;
        self.held = self.out.len();
        std::mem::replace(&mut self.out, std::mem::take(&mut self.spare))
    }

    /// The socket has taken so many of the writer's bytes, and the writer goes on.
    pub(crate) fn wrote(&mut self, bytes: usize) {
        self.held = self.held.saturating_sub(bytes);
    }

    /// The writer is done; `rest` is what the socket did not take (usually nothing). It goes back in front.
    pub(crate) fn give_back(&mut self, mut rest: BytesMut) {
        self.held = 0;
        if rest.is_empty() {
            rest.clear();
            // What was written stood before its room, and is room again.
            let _has_moved = rest.try_reclaim(rest.capacity() + 1);
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
        const UNASKED: Desync = Desync("a reply came that nothing asked for");
        if let Some(nonce) = self.asked_back
            && !self.front_is(What::Ping(nonce))
            && is_number(&value, nonce)
        {
            return Err(Desync("the answer to PING came for something else: replies have been shifted"));
        }
        let members = self.entries.front().filter(|_| !self.is_idle()).ok_or(UNASKED)?.members;
        self.last_reply = now;
        match members {
            0 if self.is_for_what_has_ended(&value)? => {
                self.behind_an_end = None;
                self.heard_error(value.as_error().unwrap_or_default());
                Ok(())
            }
            0 => {
                let entry = self.pop_written().ok_or(UNASKED)?;
                self.answered(&entry, value, now, wakers)
            }
            NATIVE => self.on_native(value, now, wakers),
            members => self.on_bundle(usize::from(members), value, now, wakers),
        }
    }

    /// Whether this refuses an UNSUBSCRIBE for which the push was taken with which the server had just ended the subscription by itself,
    /// because it gave the slot away. If the push was the answer, it refuses the PING behind; that one is about no slot, and was allowed
    /// when the connection was made: if it is no more, that is told in its name. A server whose disk fails refuses PING, and no order
    /// (`processCommand` in server.c of Redis 7.0). What a server says of every command may be of either.
    fn is_for_what_has_ended(&self, value: &Value) -> Result<bool, Desync> {
        let Some(text) = value.as_error().filter(|_| self.is_behind_an_end()) else { return Ok(false) };
        let names_ping = || text.to_ascii_lowercase().windows(6).any(|word| word == b"'ping'");
        match crate::error::error_code(text) {
            "MOVED" | "ASK" | "CLUSTERDOWN" => Ok(true),
            "NOPERM" | "ERR" => Ok(!names_ping()),
            "MISCONF" => Ok(false),
            _ => Err(Desync("UNSUBSCRIBE or the PING behind it was refused, and nothing tells which")),
        }
    }

    fn is_behind_an_end(&self) -> bool {
        self.behind_an_end.is_some_and(|nonce| self.front_is(What::Ping(nonce)))
    }

    /// One entry has its answer.
    fn answered(
        &mut self,
        entry: &Entry,
        value: Value,
        now: Instant,
        wakers: &mut Vec<Waker>,
    ) -> Result<(), Desync> {
        match value.as_error() {
            Some(text) => self.heard_error(text),
            None if self.channels.any_put_off() => self.order_what_was_put_off(now, wakers),
            None => {}
        }
        match entry.what {
            What::Call(slot) => {
                self.latency.record(now.saturating_duration_since(entry.at));
                self.finish(slot, Ok(value), wakers);
            }
            What::Detached(token) => {
                self.latency.record(now.saturating_duration_since(entry.at));
                self.finish_detached(token, Ok(value));
            }
            // A replica cannot wait: its connection ends, and with it everything that was to be waited for.
            What::Wait(group) if self.unfit.is_some() => {
                let (kind, outcome) = (ErrorKind::ConnectionLost, Outcome::Rejected);
                self.end_wait(group, &Err(Failure { kind, outcome, cause: None }), wakers);
            }
            What::Wait(group) => self.end_wait(group, &Ok(value), wakers),
            // Refused, it makes the call behind it be refused too.
            What::Orphan | What::Asking | What::Silence => {}
            What::Ping(nonce) => {
                // An error is an answer too: a busy server refuses PING.
                if !is_number(&value, nonce) && !value.is_error() {
                    return Err(Desync("PING was answered with something else: replies have been shifted"));
                }
                self.asked_back = self.entries.iter().find_map(|entry| match entry.what {
                    What::Ping(next) => Some(next),
                    _ => None,
                });
            }
            What::Subscribe(channel) | What::Unsubscribe(channel) if is_busy(&value) => {
                self.channels.on_put_off(channel);
            }
            // In RESP3 the confirmation is a push; only a refusal is a reply.
            What::Subscribe(channel) => match value.as_error() {
                Some(text) => self.channels.on_refused(channel, crate::error::printable(text), wakers),
                None => return Err(Desync("SUBSCRIBE was answered with a reply that is no error")),
            },
            // A node that has given the slot away since refuses, and has ended the subscription by itself.
            What::Unsubscribe(channel) if value.is_error() => {
                self.channels.on_unsubscribed(channel, wakers);
                self.reconcile(channel, now);
            }
            What::Unsubscribe(_) => return Err(Desync("UNSUBSCRIBE was answered with a reply")),
        }
        Ok(())
    }

    /// The server was busy and is no more.
    #[cold]
    fn order_what_was_put_off(&mut self, now: Instant, wakers: &mut Vec<Waker>) {
        for channel in self.channels.free_again(wakers) {
            self.reconcile(channel, now);
        }
    }

    /// Some errors say more of the connection than of what was asked.
    fn heard_error(&mut self, text: &[u8]) {
        self.unfit = self.unfit.or_else(|| unfit(text));
        if text.starts_with(b"MOVED ") {
            self.moved = Some(text.to_vec());
        }
    }

    /// A push never consumes a call's reply. A (un)subscribe confirmation is matched by its channel, because a server
    /// may also end a subscription by itself.
    fn on_push(&mut self, push: &Push, now: Instant, wakers: &mut Vec<Waker>) -> Result<(), Desync> {
        self.pushes += 1;
        let channel = push.args().first().and_then(Value::as_bytes).unwrap_or_default();
        match push.kind() {
            b"message" | b"smessage" => {
                if !self.channels.on_message(channel, wakers) {
                    self.strays += 1;
                }
            }
            b"subscribe" | b"ssubscribe" => match self.channels.find(channel) {
                Some(index) if self.front_is(What::Subscribe(index)) => {
                    self.pop_written();
                    self.last_reply = now;
                    self.channels.on_subscribed(index, wakers);
                    self.reconcile(index, now);
                }
                _ => return Err(Desync("a subscription was confirmed out of order")),
            },
            b"unsubscribe" | b"sunsubscribe" => {
                if let Some(index) = self.channels.find(channel) {
                    if self.front_is(What::Unsubscribe(index)) {
                        self.pop_written();
                        self.last_reply = now;
                        self.behind_an_end = match self.entries.front() {
                            Some(Entry { what: What::Ping(nonce), .. }) if self.sharded => Some(*nonce),
                            _ => None,
                        };
                    } else if self.channels.is_being_ended(index) {
                        // The server has ended it by itself. What we have asked for is answered, too, and until then it is not over.
                        return Ok(());
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
            && let done = SlotState::Done(Done { result, epoch: self.connection.epoch })
            && let SlotState::Waiting(waker) = std::mem::replace(&mut slot.state, done)
        {
            wakers.push(waker);
        }
    }

    fn finish_detached(&mut self, token: u64, result: Result<Value, Failure>) {
        let (result, cause) = match result {
            Ok(value) => (Ok(value), None),
            Err(Failure { kind, outcome, cause }) => (Err(outcome), cause.map(|cause| (kind, cause))),
        };
        self.detached.push(Detached { token, result, connection: self.connection, cause });
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
            Order::Subscribe if self.sharded => (What::Subscribe(channel), "SSUBSCRIBE"),
            Order::Subscribe => (What::Subscribe(channel), "SUBSCRIBE"),
            Order::Unsubscribe if self.sharded => (What::Unsubscribe(channel), "SUNSUBSCRIBE"),
            Order::Unsubscribe => (What::Unsubscribe(channel), "UNSUBSCRIBE"),
        };
        self.push(what, now);
        Command::new(verb).arg(&name[..]).encode(&mut self.out);
        self.close_entry();
        if self.sharded && order == Order::Unsubscribe {
            // Tells whose a refusal is that follows a push: see `is_for_what_has_ended`.
            self.submit_ping(now);
        }
        true
    }

    /// Every waiter for messages is to look, and what was refused is asked for once more.
    pub(crate) fn look_again(&mut self, connected: bool, now: Instant, wakers: &mut Vec<Waker>) {
        self.channels.look_again(wakers);
        if connected {
            for channel in self.channels.indices() {
                self.reconcile(channel, now);
            }
        }
    }

    /// What was refused is asked for once more.
    pub(crate) fn ask_again(
        &mut self,
        channel: &[u8],
        connected: bool,
        now: Instant,
        wakers: &mut Vec<Waker>,
    ) {
        if let Some(channel) = self.channels.forget_refusal(channel, wakers)
            && connected
        {
            self.reconcile(channel, now);
        }
    }

    /// Fails every call whose deadline has passed; returns the earliest deadline that is left.
    pub(crate) fn expire(&mut self, now: Instant, wakers: &mut Vec<Waker>) -> Option<Instant> {
        let mut earliest = None::<Instant>;
        for place in 0..self.entries.len() {
            let slot = match self.entries.get(place).map(|entry| entry.what) {
                Some(What::Call(slot)) => slot,
                Some(What::Wait(group)) => {
                    let left = self.expire_members(group, now, wakers);
                    earliest = earliest.into_iter().chain(left).min();
                    continue;
                }
                _ => continue,
            };
            let Some(deadline) = self.slots.get(slot as usize).map(|slot| slot.deadline) else { continue };
            if deadline > now {
                earliest = Some(earliest.map_or(deadline, |earliest| earliest.min(deadline)));
                continue;
            }
            // While connected, what is queued will still be written; an orphan that never was is dropped below.
            let outcome = if self.connected { Outcome::MaybeExecuted } else { Outcome::NotSent };
            let failure = Failure { kind: ErrorKind::Timeout, outcome, cause: None };
            if let Some(entry) = self.entries.get_mut(place) {
                entry.what = What::Orphan;
                self.orphans += 1;
            }
            self.finish(slot, Err(failure), wakers);
        }
        self.make_room();
        earliest
    }

    /// Since when the oldest written entry has been waiting without any reply arriving, and without a reason to wait.
    pub(crate) fn waiting_since(&self) -> Option<Instant> {
        let oldest = self.entries.front().filter(|entry| entry.start < self.claimed)?;
        let since = oldest.at.max(self.last_reply);
        match oldest.what {
            What::Wait(group) => Some(self.waits.get(group).map_or(since, |group| since + group.timeout())),
            _ => Some(since),
        }
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
            match entry.members {
                0 => {}
                NATIVE => drop(self.natives.end()),
                _ => {
                    let bundle = self.bundles.next();
                    self.bundles.ended(bundle);
                }
            }
            match entry.what {
                What::Call(slot) => self.finish(slot, Err(lost.clone()), wakers),
                What::Detached(token) => self.finish_detached(token, Err(lost.clone())),
                What::Wait(group) => self.end_wait(group, &Err(lost.clone()), wakers),
                _ => {}
            }
        }
        self.fail_unwritten_waits(&lost, wakers);
        // Whoever is in the middle of a write gives nothing back.
        self.held = 0;
        (self.asked_back, self.behind_an_end) = (None, None);
        self.connected = false;
        self.channels.on_disconnect(wakers);
        self.drop_unwritten(is_kept);
        // What is left goes alone and as a script, until a writer takes it.
        self.bundles.forget_all();
        self.natives.forget_all();
    }

    /// The next connection is to this server.
    pub(crate) fn meet(&mut self, server: &ServerInfo) {
        self.bundles.meet(server);
    }

    /// A connection is up: subscribes to what is wanted, in front of the calls that were queued meanwhile.
    pub(crate) fn reconnect(&mut self, now: Instant) {
        // Whoever gave up meanwhile was told that nothing was sent.
        self.drop_unwritten(is_kept);
        self.connected = true;
        self.connection.epoch = self.connection.epoch.wrapping_add(1);
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

    /// Asks for silence, once: nothing that is queued from now on is answered.
    pub(crate) fn hush(&mut self, now: Instant) {
        if !std::mem::replace(&mut self.hushed, true) {
            self.push(What::Silence, now);
            Command::new("CLIENT").arg("REPLY").arg("OFF").encode(&mut self.out);
            self.close_entry();
        }
    }

    /// Whether an answer is still to come.
    pub(crate) fn owes_answers(&self) -> bool {
        self.entries.front().is_some_and(|entry| entry.what != What::Silence)
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
        self.bundles.forget_all();
        self.natives.forget_all();
        self.first += entries.len() as u64;
        for entry in entries {
            match entry.what {
                What::Call(slot) => self.finish(slot, Err(failure.clone()), wakers),
                What::Detached(token) => self.finish_detached(token, Err(failure.clone())),
                What::Wait(group) => self.end_wait(group, &Err(failure.clone()), wakers),
                _ => {}
            }
        }
        self.out.clear();
        self.queued = self.claimed;
    }

    /// Keeps of the unwritten entries only those that `keep` names, with their bytes; each alone and as a script, if they were bundled or
    /// native.
    fn drop_unwritten(&mut self, keep: impl Fn(What) -> bool) {
        let old_bytes = std::mem::take(&mut self.out);
        let old_entries = std::mem::take(&mut self.entries);
        let (base, end) = (self.queued - old_bytes.len() as u64, self.queued);
        let ends: Vec<u64> = old_entries.iter().skip(1).map(|entry| entry.start).chain([end]).collect();
        // Whatever was only partly written went down with its connection.
        self.claimed = base;
        self.queued = base;
        self.orphans = 0;
        // The bundle whose members come, how many have come, and how many there are.
        let mut bundled = (Bundle::default(), 0, 0);
        for (entry, end) in old_entries.into_iter().zip(ends) {
            if entry.members > NATIVE {
                bundled = (self.bundles.next(), 0, usize::from(entry.members));
            }
            let native: Vec<u8> =
                if entry.members == NATIVE { self.natives.end().collect() } else { Vec::new() };
            let (bundle, come, members) = &mut bundled;
            let bytes = if entry.members == NATIVE {
                Some(&native[..])
            } else if *come < *members {
                *come += 1;
                bundle.call(*come - 1)
            } else {
                let within = |offset: u64| usize::try_from(offset - base).unwrap_or(usize::MAX);
                old_bytes.get(within(entry.start)..within(end))
            };
            let Some(bytes) = bytes.filter(|_| keep(entry.what)) else { continue };
            if let What::Call(slot) = entry.what
                && let Some(slot) = self.slots.get_mut(slot as usize)
            {
                slot.sequence = self.first + self.entries.len() as u64;
            }
            self.entries.push_back(Entry { start: self.queued, members: 0, ..entry });
            self.out.extend_from_slice(bytes);
            self.close_entry();
        }
    }
}

/// Calls that leave together as one command, or in commands of the server's own.
impl Pipeline {
    /// Makes one command of neighbours that no writer has taken, where they can be one and that costs less, and commands of the server's own
    /// of the others, where it knows some. What is left is shorter, and ends where it ended.
    fn bundle(&mut self) {
        let base = self.queued - self.out.len() as u64;
        let first = self.entries.partition_point(|entry| entry.start < base);
        let mut parts = self.entries.range(first..).map(|entry| entry.shape.part);
        let is_alone = parts.len() == 1;
        if parts.all(|part| part.is_of_none() || is_alone && self.bundles.native(part).is_none()) {
            return;
        }
        let (old, mut new) = (std::mem::take(&mut self.out), self.bundles.take_room());
        new.reserve(old.len());
        let within = |offset: u64| usize::try_from(offset - base).unwrap_or(usize::MAX).min(old.len());
        // Where an entry begins is counted from the beginning of `new` until all of it is written.
        let (mut place, mut copied) = (first, 0);
        while let Some(entry) = self.entries.get(place) {
            let (part, begin) = (entry.shape.part, within(entry.start));
            let shapes = self.entries.range(place..).map(|entry| entry.shape);
            let calls = self.bundles.go_together(shapes.clone());
            // What a server is not to answer cannot be sent once more if it is refused.
            let native = self.bundles.native(part).filter(|_| calls == 1 && !self.hushed);
            if calls > 1 || native.is_some() {
                new.extend_from_slice(old.get(copied..begin).unwrap_or_default());
                copied = begin;
            }
            let start = (new.len() + begin - copied) as u64;
            let end = self.entries.get(place + calls).map_or(old.len(), |next| within(next.start));
            let bytes = old.get(begin..end).unwrap_or_default();
            let members = match native {
                Some((form, head)) => {
                    self.natives.write(form, part, (bytes, head), &mut new).then_some(NATIVE)
                }
                None if calls > 1 && self.bundles.write(shapes.take(calls), bytes, &mut new) => {
                    Some(u8::try_from(calls).unwrap_or(u8::MAX))
                }
                None => None,
            };
            let Some(entry) = self.entries.get_mut(place) else { break };
            let Some(members) = members else {
                entry.start = start;
                place += 1;
                continue;
            };
            entry.members = members;
            for entry in self.entries.range_mut(place..place + calls) {
                (entry.start, entry.shape) = (start, Shape::default());
            }
            copied = end;
            place += calls;
        }
        let (out, room) = if new.is_empty() {
            (old, new)
        } else {
            new.extend_from_slice(old.get(copied..).unwrap_or_default());
            (new, old)
        };
        let base = self.queued.saturating_sub(out.len() as u64);
        for entry in self.entries.range_mut(first..) {
            entry.start += base;
        }
        self.out = out;
        self.bundles.give_room(room);
    }

    /// A command has its answer that stands for several calls: each has its own in it. Or it was refused, and had no effect: each call is
    /// sent alone.
    fn on_bundle(
        &mut self,
        members: usize,
        value: Value,
        now: Instant,
        wakers: &mut Vec<Waker>,
    ) -> Result<(), Desync> {
        const SHIFTED: Desync = Desync("several calls were answered as one of another number");
        // Looked at before anything is taken: with a shifted reply the connection ends, and that fails the calls which are still there.
        if !value.is_error() && value.as_array().is_none_or(|answers| answers.len() != members) {
            return Err(SHIFTED);
        }
        let bundle = self.bundles.next();
        if let Some(text) = value.as_error() {
            self.heard_error(text);
            match bundle.whole().filter(|_| crate::error::error_code(text) == "NOSCRIPT") {
                Some(whole) => {
                    self.push(What::Orphan, now);
                    Command::new("SCRIPT").arg("LOAD").arg(whole.text()).encode(&mut self.out);
                    self.close_entry();
                }
                None => self.bundles.rest(now),
            }
        }
        let mut answers = match value {
            Value::Array(answers) => answers.into_iter(),
            _refusal => Vec::new().into_iter(),
        };
        for place in 0..members {
            let entry = self.pop_written().ok_or(SHIFTED)?;
            match answers.next() {
                Some(answer) => self.answered(&entry, answer, now, wakers)?,
                None => self.send_alone(entry.what, bundle.call(place).unwrap_or_default(), now),
            }
        }
        self.bundles.ended(bundle);
        Ok(())
    }

    /// A call that was written in commands of the server's own has a reply: to the last of them, or one that says whether they were
    /// executed. If they did nothing, the script is asked.
    fn on_native(&mut self, value: Value, now: Instant, wakers: &mut Vec<Waker>) -> Result<(), Desync> {
        let Some(Replied { form, part, first, second }) = self.natives.replied(value) else { return Ok(()) };
        let done = match first.as_error() {
            Some(text) => {
                self.heard_error(text);
                if is_of_the_command(text) {
                    self.bundles.forgo_native(part);
                }
                None
            }
            None => match (form.read)(&first, second.as_ref()) {
                Some(NativeReply::Done(value)) => Some(value),
                Some(NativeReply::Refused) => None,
                // The call is still there for the end of the connection, which fails it.
                None => return Err(Desync("a command was answered with what it never returns")),
            },
        };
        let Some(entry) = self.pop_written() else { return Ok(()) };
        if let Some(value) = done {
            drop(self.natives.end());
            return self.answered(&entry, value, now, wakers);
        }
        let is_wanted = self.stands_behind(entry.what, now);
        let call = self.natives.end();
        if is_wanted {
            self.out.extend(call);
            self.close_entry();
        }
        Ok(())
    }

    /// Queues a call once more, if anybody wants its answer.
    fn send_alone(&mut self, what: What, call: &[u8], now: Instant) {
        if self.stands_behind(what, now) {
            self.out.extend_from_slice(call);
            self.close_entry();
        }
    }

    /// A call that was sent is about to be queued once more. Returns whether anybody wants its answer.
    fn stands_behind(&mut self, what: What, now: Instant) -> bool {
        let sequence = self.first + self.entries.len() as u64;
        match what {
            What::Call(slot) => match self.slots.get_mut(slot as usize) {
                Some(slot) => slot.sequence = sequence,
                None => return false,
            },
            What::Detached(_) => {}
            _ => return false,
        }
        self.push(what, now);
        true
    }
}

/// Waits for acknowledgements.
impl Pipeline {
    /// Has a caller wait until what was written on `connection` is acknowledged, or so many milliseconds have passed. The
    /// caller has an answer of that connection, so it comes before any such wait that is not on its way yet.
    pub(crate) fn submit_wait(
        &mut self,
        connection: ConnectionId,
        (acks, millis): (Acks, u64),
        now: Instant,
        deadline: Instant,
        waker: Waker,
    ) -> Result<u32, NoWait> {
        let group = self.group(connection, acks, millis, now)?;
        let sequence = self.waits.get(group).map_or(0, |group| group.sequence);
        let slot = self.slots.insert(Slot { state: SlotState::Waiting(waker), sequence, deadline });
        let slot = u32::try_from(slot).map_err(|_| NoWait::Full)?;
        self.waits.join(group, Member::Call(slot));
        Ok(slot)
    }

    /// As [`submit_wait`](Self::submit_wait), for a result that is handed out with its token. Returns whether it was queued.
    pub(crate) fn submit_detached_wait(
        &mut self,
        connection: ConnectionId,
        (acks, millis): (Acks, u64),
        now: Instant,
        token: u64,
    ) -> bool {
        let Ok(group) = self.group(connection, acks, millis, now) else { return false };
        self.waits.join(group, Member::Detached(token));
        true
    }

    /// The group to join: one that is still to be written, or a new one.
    fn group(
        &mut self,
        connection: ConnectionId,
        acks: Acks,
        millis: u64,
        now: Instant,
    ) -> Result<u32, NoWait> {
        if !self.connected || self.connection != connection {
            return Err(NoWait::Ended);
        }
        if let Some(group) = self.waits.unwritten(acks, millis, self.claimed) {
            let members = self.waits.get(group).map_or(0, |group| group.members().len());
            return self.bounds.admits(Lane::Reserved, members, 0).then_some(group).ok_or(NoWait::Full);
        }
        if !self.bounds.admits(Lane::Reserved, self.entries.len(), self.queued_bytes()) {
            return Err(NoWait::Full);
        }
        let sequence = self.first + self.entries.len() as u64;
        let group = self.waits.insert(acks, millis, self.queued, sequence);
        self.push(What::Wait(group), now);
        acks.encode(millis, &mut self.out);
        self.close_entry();
        Ok(group)
    }

    fn end_wait(&mut self, group: u32, result: &Result<Value, Failure>, wakers: &mut Vec<Waker>) {
        for member in self.waits.end(group) {
            match member {
                Member::Call(slot) => self.finish(slot, result.clone(), wakers),
                Member::Detached(token) => self.finish_detached(token, result.clone()),
            }
        }
    }

    /// Fails those of a group whose deadlines have passed; returns the earliest deadline that is left.
    fn expire_members(&mut self, group: u32, now: Instant, wakers: &mut Vec<Waker>) -> Option<Instant> {
        let members = self.waits.get(group)?.members().to_vec();
        let mut earliest = None::<Instant>;
        for member in members {
            let Member::Call(slot) = member else { continue };
            let Some(deadline) = self.slots.get(slot as usize).map(|slot| slot.deadline) else { continue };
            if deadline > now {
                earliest = Some(earliest.map_or(deadline, |earliest| earliest.min(deadline)));
                continue;
            }
            self.waits.leave(group, slot);
            let outcome = Outcome::MaybeExecuted;
            self.finish(slot, Err(Failure { kind: ErrorKind::Timeout, outcome, cause: None }), wakers);
        }
        earliest
    }

    /// What was written on a connection cannot be waited for on the next one.
    fn fail_unwritten_waits(&mut self, lost: &Failure, wakers: &mut Vec<Waker>) {
        let waits: Vec<u32> = self
            .entries
            .iter()
            .filter_map(|entry| match entry.what {
                What::Wait(group) => Some(group),
                _ => None,
            })
            .collect();
        for group in waits {
            self.end_wait(group, &Err(Failure { outcome: Outcome::NotSent, ..lost.clone() }), wakers);
        }
    }
}

/// Makes of an offset what a PING asks back: a number that no reply says by chance for which a caller waits. Any that is as large and as
/// arbitrary would do.
const NO_COUNTER: u64 = 0x9e37_79b9_7f4a_7c15;

fn is_number(value: &Value, number: u64) -> bool {
    value.as_str().and_then(|text| text.parse().ok()) == Some(number)
}

/// Whether a script keeps the server from doing anything else: SUBSCRIBE and UNSUBSCRIBE, too (redis-server 7.0.15).
fn is_busy(value: &Value) -> bool {
    value.as_error().is_some_and(|text| crate::error::error_code(text) == "BUSY")
}

/// Whether a server does not know a command, or this user may not have it, whatever the key (sources: `processCommand` in server.c and
/// `getAclErrorMessage` in acl.c).
fn is_of_the_command(refusal: &[u8]) -> bool {
    let is_said_of_commands = || crate::error::printable(refusal).contains("command");
    matches!(crate::error::error_code(refusal), "ERR" | "NOPERM") && is_said_of_commands()
}

/// Error replies after which only a new connection helps. A primary that became a replica keeps its sockets open
/// (observed on Redis 7.0), so nothing else would ever end this one.
///
/// Only in a server's own words: a script may say such a code of something else.
fn unfit(text: &[u8]) -> Option<&'static str> {
    match crate::error::error_code(text) {
        "READONLY" | "MASTERDOWN" | "NOAUTH" if !crate::error::is_the_servers_refusal(text) => None,
        "READONLY" => Some("the server became a replica"),
        "MASTERDOWN" => Some("the server lost its primary"),
        "NOAUTH" => Some("the server no longer knows who we are"),
        // How WAIT and WAITAOF say it.
        "ERR" if REFUSED_BY_REPLICAS.iter().any(|refusal| text.starts_with(refusal)) => {
            Some("the server became a replica")
        }
        _ => None,
    }
}

/// How a replica answers WAIT and WAITAOF (`waitCommand` and `waitaofCommand` in replication.c of Redis 7.2).
const REFUSED_BY_REPLICAS: [&[u8]; 2] =
    [b"ERR WAIT cannot be used with replica", b"ERR WAITAOF cannot be used with replica"];

/// What outlives a connection if it was not written.
fn is_kept(what: What) -> bool {
    matches!(what, What::Call(_) | What::Detached(_))
}

/// A slot's remains; dropped outside the lock, because wakers and values may run foreign code.
pub(crate) struct Slotted(#[expect(dead_code, reason = "held only to be dropped later")] Slot);

/// Largest buffer that is kept between flushes: room for what five hundred callers ask at once. There are two, as long as the connection.
const SPARE_LIMIT: usize = 128 << 10;

#[cfg(test)]
mod model;
