//! The state of one connection, as a value.
//!
//! The pipeline holds the bytes to write, the calls in wire order and the replies for callers. It has no socket, no
//! clock and no lock. Everything rests on one invariant: the order of the bytes is the order of the entries.
//!
//! A byte's address is its offset in the stream of all bytes ever queued. `claimed` divides this stream. A writer has
//! taken the bytes before `claimed`, so they may be on the wire. The bytes behind it certainly never left. `NotSent`
//! relies on this division.

mod acknowledged;
mod batches;
mod natives;
mod replies;
mod rewriting;

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Instant;

use bytes::BytesMut;
use slab::Slab;
use wheellock_resp::{Command, Value};

use crate::base::connection_id::ConnectionId;
use crate::base::detached::Detached;
use crate::base::error::{Error, ErrorKind, Outcome};
use crate::base::histogram::Histogram;
use crate::config::ChangedKeys;
use crate::protocol::channels::{Channels, Order};
use crate::protocol::handshake::ServerInfo;
use crate::protocol::request::Request;

use acknowledged::WaitGroup;
pub(crate) use batches::MOST as MOST_BATCHED;
use batches::{Batches, Shape};
use rewriting::Rewritten;

/// The lane of a call. `Reserved` calls may use additional room, because renewals and releases must not be refused.
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

/// The command directly before a call, which concerns only that call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Prefix {
    None,
    /// The call is for a slot that is still migrating to this node. Without ASKING the node would redirect the call.
    Asking,
    /// The server remembers the keys that the call reads, and tells about their changes.
    Caching,
}

impl Prefix {
    /// Returns the prefix of a call. The server resets each of the two flags at the other command, so a call has one
    /// prefix (source: `resetClient` in networking.c).
    pub(crate) fn of(asking: bool, remembers: bool) -> Self {
        match (asking, remembers) {
            (true, _) => Self::Asking,
            (false, true) => Self::Caching,
            (false, false) => Self::None,
        }
    }

    /// Returns the prefix for this server. A server that does not track keys would refuse `CLIENT CACHING`.
    fn for_server(self, server: &ServerInfo) -> Self {
        if self == Self::Caching && !server.tracks_keys { Self::None } else { self }
    }
}

/// The failure of a call that received no reply.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    pub(crate) outcome: Outcome,
    /// The broken connection, if it failed many calls.
    pub(crate) cause: Option<Error>,
}

/// The reason why a caller cannot wait for acknowledgements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoWait {
    /// The connection that carried the write has ended.
    Ended,
    /// The queue is full.
    Full,
}

/// The reason why the connection must be closed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Desync(pub(crate) &'static str);

pub(crate) struct Pipeline {
    bounds: Bounds,
    out: BytesMut,
    spare: BytesMut,
    /// The offset behind the last byte of `out`.
    queued: u64,
    /// The offset of the first byte that no writer has taken.
    claimed: u64,
    /// The number of bytes that a writer has taken and no socket has accepted yet.
    held: usize,
    entries: VecDeque<Entry>,
    /// The sequence number of the first entry. An entry's index is its own sequence number minus this number.
    first: u64,
    /// The number of entries whose caller left before they were written.
    orphans: usize,
    connected: bool,
    /// True if the server was told to suppress all further replies.
    replies_suppressed: bool,
    /// The current connection, or the last one.
    connection: ConnectionId,
    slots: Slab<Slot>,
    /// The WAIT commands in flight, in wire order.
    waits: VecDeque<WaitGroup>,
    batches: Batches,
    rewritten: Rewritten,
    /// The reply to the first of the two native commands at the front.
    native_reply: Option<Value>,
    channels: Channels,
    /// True if subscriptions use SSUBSCRIBE.
    pub(crate) sharded: bool,
    /// Results of detached calls, to be delivered after unlocking.
    detached: Vec<Detached>,
    /// Keys that other clients changed, to be delivered after unlocking.
    pub(crate) changed_keys: Option<ChangedKeys>,
    last_reply: Instant,
    /// The nonce of the oldest PING in flight.
    ping_nonce: Option<u64>,
    /// The nonce of the PING behind an UNSUBSCRIBE, once a push was accepted as that order's confirmation.
    after_unsubscribe: Option<u64>,
    /// Set when the server said that this connection has become unusable.
    pub(crate) unusable: Option<&'static str>,
    /// The last reply that named the node which now serves a slot.
    pub(crate) moved: Option<Vec<u8>>,
    pub(crate) latency: Histogram,
    pub(crate) pushes: u64,
    pub(crate) strays: u64,
}

/// One command in wire order.
struct Entry {
    what: What,
    /// The offset of the command's first byte.
    start: u64,
    /// The time at which the entry was queued on this connection.
    at: Instant,
    /// The call's shape for batching.
    shape: Shape,
    form: Form,
}

/// The form in which an entry leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// As it was queued.
    Queued,
    /// As native commands of the server.
    Native,
    /// As the first of this number of calls in one command.
    First(u8),
    /// As a further call of a command that begins at an earlier entry.
    Member,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Call(u32),
    /// A call without a waiting caller. Its result is delivered with this token.
    Detached(u64),
    /// A command whose reply no caller awaits. The reply is still due. It is a call whose caller left, ASKING for the call
    /// behind this entry, or the loading of a script.
    Orphan,
    /// A PING with a nonce. A shifted reply stream becomes visible within one heartbeat.
    Ping(u64),
    /// `HELLO 3`, whose reply contains the server's role.
    Role,
    Subscribe(u32),
    Unsubscribe(u32),
    /// A WAIT or WAITAOF for a group of callers.
    Wait,
    /// `CLIENT REPLY OFF`: the server suppresses all further replies.
    ReplyOff,
}

pub(crate) struct Slot {
    state: SlotState,
    sequence: u64,
    deadline: Instant,
}

enum SlotState {
    Waiting(Waker),
    Done(Done),
}

impl Entry {
    /// Returns the shape by which another form may be found for this entry.
    fn shape_to_rewrite(&self) -> Shape {
        if self.form == Form::Queued { self.shape } else { Shape::default() }
    }

    /// Returns the number of bytes that `rewritten` has of this entry.
    fn rewritten_len(&self) -> usize {
        if self.form == Form::Queued { 0 } else { usize::from(self.shape.len) }
    }
}

impl Slot {
    fn is_waiting(&self) -> bool {
        matches!(self.state, SlotState::Waiting(_))
    }
}

/// The result of a call that has a waiting caller.
pub(crate) struct Done {
    pub(crate) result: Result<Value, Failure>,
    /// The epoch of the connection that carried the call.
    pub(crate) epoch: u32,
}

impl Pipeline {
    pub(crate) fn new(bounds: Bounds, now: Instant, node: u32, batches_calls: bool) -> Self {
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
            replies_suppressed: false,
            connection: ConnectionId { node, epoch: 0 },
            slots: Slab::new(),
            waits: VecDeque::new(),
            batches: Batches::new(batches_calls),
            rewritten: Rewritten::default(),
            native_reply: None,
            channels: Channels::default(),
            sharded: false,
            detached: Vec::new(),
            changed_keys: None,
            last_reply: now,
            ping_nonce: None,
            after_unsubscribe: None,
            unusable: None,
            moved: None,
            latency: Histogram::default(),
            pushes: 0,
            strays: 0,
        }
    }

    /// Returns the present connection, or the next one while there is none.
    pub(crate) fn connection(&self) -> ConnectionId {
        self.connection
    }

    /// Queues a call. The returned slot holds the result until [`take`](Self::take) or [`leave`](Self::leave).
    pub(crate) fn submit(
        &mut self,
        request: &Request<'_>,
        lane: Lane,
        now: Instant,
        deadline: Instant,
        waker: Waker,
        prefix: Prefix,
    ) -> Option<u32> {
        if !self.admits(lane) {
            return None;
        }
        let prefix = prefix.for_server(&self.batches.server);
        self.push_prefix(prefix, now);
        // The prefix is an entry of its own, so the call's number follows it. Otherwise `leave` would orphan the prefix.
        let sequence = self.first + self.entries.len() as u64;
        let slot = self.slots.insert(Slot { state: SlotState::Waiting(waker), sequence, deadline });
        let slot = u32::try_from(slot).ok()?;
        self.push_call(What::Call(slot), request, now, prefix);
        Some(slot)
    }

    /// Queues a call whose result goes to [`take_detached`](Self::take_detached) with its token.
    pub(crate) fn submit_detached(
        &mut self,
        request: &Request<'_>,
        now: Instant,
        token: u64,
        prefix: Prefix,
    ) -> bool {
        if !self.admits(Lane::Reserved) {
            return false;
        }
        let prefix = prefix.for_server(&self.batches.server);
        self.push_prefix(prefix, now);
        self.push_call(What::Detached(token), request, now, prefix);
        true
    }

    /// Returns true if the queue has room for a call. Callers first check [`Request::excess`] for requests that can
    /// never fit.
    fn admits(&self, lane: Lane) -> bool {
        self.bounds.admits(lane, self.entries.len(), self.queued_bytes())
    }

    fn push_prefix(&mut self, prefix: Prefix, now: Instant) {
        match prefix {
            Prefix::None => {}
            Prefix::Asking => self.push_command(What::Orphan, &Command::new("ASKING"), now),
            Prefix::Caching => {
                let caching = Command::new("CLIENT").arg("CACHING").arg("YES");
                self.push_command(What::Orphan, &caching, now);
            }
        }
    }

    pub(crate) fn submit_ping(&mut self, now: Instant) {
        let nonce = self.queued ^ NO_COUNTER;
        // The oldest PING gets the next nonce, so a later nonce must not replace its nonce.
        self.ping_nonce = self.ping_nonce.or(Some(nonce));
        self.push_command(What::Ping(nonce), &Command::new("PING").arg(nonce), now);
    }

    /// Queues a query of the server's role. A primary that became a replica keeps its connections open, and still
    /// serves reads.
    ///
    /// HELLO is the only command that returns the role to every user. `ROLE` and `INFO` need a permission, and the
    /// server writes each refusal to its ACL log.
    pub(crate) fn submit_role(&mut self, now: Instant) {
        self.push_command(What::Role, &Command::new("HELLO").arg("3"), now);
    }

    fn push(&mut self, what: What, now: Instant, shape: Shape) {
        self.entries.push_back(Entry { what, start: self.queued, at: now, shape, form: Form::Queued });
    }

    fn push_command(&mut self, what: What, command: &Command<'_>, now: Instant) {
        self.push(what, now, Shape::default());
        command.encode(&mut self.out);
        self.close_entry();
    }

    fn push_call(&mut self, what: What, request: &Request<'_>, now: Instant, prefix: Prefix) {
        let before = self.out.len();
        request.encode(&mut self.out);
        let len = self.out.len() - before;
        // A prefix covers exactly one command, so a call behind it must not be batched.
        let is_alone = prefix != Prefix::None;
        let shape = if is_alone { Shape::default() } else { self.batches.shape(request, len, now) };
        self.push(what, now, shape);
        self.close_entry();
    }

    /// Counts the bytes that were just encoded.
    fn close_entry(&mut self) {
        self.queued = self.claimed + self.out.len() as u64;
    }

    /// Takes the result of a slot and frees the slot. Stores the waker if the result is not there yet.
    pub(crate) fn take(&mut self, slot: u32, waker: &Waker) -> Option<Done> {
        let index = slot as usize;
        match &mut self.slots.get_mut(index)?.state {
            SlotState::Waiting(old) => {
                old.clone_from(waker);
                None
            }
            SlotState::Done(_) => match self.slots.remove(index).state {
                SlotState::Done(done) => Some(done),
                SlotState::Waiting(_) => None,
            },
        }
    }

    /// Frees the slot of a caller that left. The reply of its call will be discarded. The caller drops the remains outside
    /// the lock, because wakers and values may run foreign code.
    pub(crate) fn leave(&mut self, slot: u32) -> Option<Slot> {
        let (index, slot) = (slot, self.slots.try_remove(slot as usize)?);
        if slot.is_waiting() {
            self.orphan(index, slot.sequence);
        }
        Some(slot)
    }

    fn orphan(&mut self, slot: u32, sequence: u64) {
        let place = sequence.checked_sub(self.first).and_then(|place| usize::try_from(place).ok());
        match place.and_then(|place| self.entries.get_mut(place)) {
            Some(Entry { what: What::Wait, .. }) => self.leave_wait(sequence, slot),
            Some(entry) => {
                // The entry stays, because its reply is still due. Without the entry, the next call would receive
                // that reply.
                entry.what = What::Orphan;
                self.orphans += 1;
                self.make_room();
            }
            None => {}
        }
    }

    /// Drops orphans while no connection can write, so that they do not fill the queue. Dropping starts when orphans
    /// are half of the queue, which keeps the cost per call constant.
    fn make_room(&mut self) {
        if !self.connected && self.orphans * 2 > self.entries.len() {
            self.drop_unwritten();
        }
    }

    /// Returns true if no written entry is waiting for a reply. The connection is then idle, and a caller may write.
    pub(crate) fn is_idle(&self) -> bool {
        self.entries.front().is_none_or(|entry| entry.start >= self.claimed)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the tokens of detached calls that are waiting for a connection.
    pub(crate) fn unsent(&self) -> impl Iterator<Item = u64> {
        // Written entries left the queue with their connection. While connected, queued entries will be written.
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

    /// Returns the number of bytes that no socket has taken yet.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.held + self.out.len()
    }

    /// Hands all queued bytes to a writer. At most one writer may exist at a time.
    pub(crate) fn take_output(&mut self) -> BytesMut {
        // Only unwritten neighbours can share a command, so batching happens as late as possible.
        self.batch();
        self.claimed = self.queued;
        self.held = self.out.len();
        // Callers append to the spare buffer while the writer is in its system call.
        std::mem::replace(&mut self.out, std::mem::take(&mut self.spare))
    }

    /// Records that the socket took `bytes` of the writer's bytes. The writer continues with the rest.
    pub(crate) fn wrote(&mut self, bytes: usize) {
        self.held = self.held.saturating_sub(bytes);
    }

    /// Ends the writer's turn. `rest` holds the bytes that the socket did not take, usually none. They return to the
    /// front of the queue.
    pub(crate) fn give_back(&mut self, mut rest: BytesMut) {
        self.held = 0;
        if rest.is_empty() {
            rest.clear();
            // The written bytes lie in front of the buffer's remaining capacity. Reclaim their room for reuse.
            let _has_moved = rest.try_reclaim(rest.capacity() + 1);
            // Without this limit, one flood would keep megabytes for the connection's lifetime.
            if rest.capacity() <= SPARE_LIMIT {
                self.spare = rest;
            }
            return;
        }
        // These bytes never left, so the calls that begin in them count as unwritten again.
        self.claimed -= rest.len() as u64;
        rest.extend_from_slice(&self.out);
        self.out = rest;
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

    /// Fails the callers of an entry.
    fn fail(&mut self, what: What, failure: &Failure, wakers: &mut Vec<Waker>) {
        match what {
            What::Call(slot) => self.finish(slot, Err(failure.clone()), wakers),
            What::Detached(token) => self.finish_detached(token, Err(failure.clone())),
            What::Wait => self.end_wait(&Err(failure.clone()), wakers),
            _ => {}
        }
    }

    /// Moves the results of detached calls to `into`, which must be empty.
    pub(crate) fn take_detached(&mut self, into: &mut Vec<Detached>) {
        std::mem::swap(&mut self.detached, into);
    }

    pub(crate) fn channels(&mut self) -> &mut Channels {
        &mut self.channels
    }

    /// Queues the order that a channel needs, if any. Returns true if an order was queued. The next connection sends
    /// the orders that are needed while not connected.
    pub(crate) fn reconcile(&mut self, channel: u32, now: Instant) -> bool {
        if !self.connected {
            return false;
        }
        let Some((order, name)) = self.channels.next_order(channel) else { return false };
        let (what, verb) = match order {
            Order::Subscribe if self.sharded => (What::Subscribe(channel), "SSUBSCRIBE"),
            Order::Subscribe => (What::Subscribe(channel), "SUBSCRIBE"),
            Order::Unsubscribe if self.sharded => (What::Unsubscribe(channel), "SUNSUBSCRIBE"),
            Order::Unsubscribe => (What::Unsubscribe(channel), "UNSUBSCRIBE"),
        };
        self.push_command(what, &Command::new(verb).arg(&name[..]), now);
        if self.sharded && order == Order::Unsubscribe {
            // A refusal behind a push may belong to the order or to this PING: see `refuses_unsubscribe`.
            self.submit_ping(now);
        }
        true
    }

    /// Wakes every waiter for messages and repeats refused subscriptions.
    pub(crate) fn recheck(&mut self, now: Instant, wakers: &mut Vec<Waker>) {
        self.channels.recheck(wakers);
        self.reconcile_all(now);
    }

    fn reconcile_all(&mut self, now: Instant) {
        for channel in self.channels.indices() {
            self.reconcile(channel, now);
        }
    }

    /// Repeats the subscription to one refused channel.
    pub(crate) fn resubscribe(&mut self, channel: &[u8], now: Instant, wakers: &mut Vec<Waker>) {
        if let Some(channel) = self.channels.forget_refusal(channel, wakers) {
            self.reconcile(channel, now);
        }
    }

    /// Returns the earliest deadline of a call, which may have passed.
    pub(crate) fn earliest_deadline(&self) -> Option<Instant> {
        let waiting = self.slots.iter().map(|(_, slot)| slot).filter(|slot| slot.is_waiting());
        waiting.map(|slot| slot.deadline).min()
    }

    /// Moves the deadline of each call to `until`, if it is earlier.
    ///
    /// The deadlines of written calls move, too. The pause may have begun in the middle of their write. A driver that
    /// collected calls before the pause writes them before it reads the clock.
    pub(crate) fn spare(&mut self, until: Instant) {
        self.slots.iter_mut().for_each(|(_, slot)| slot.deadline = slot.deadline.max(until));
    }

    /// Fails every call whose deadline has passed. Returns the earliest remaining deadline.
    pub(crate) fn expire(&mut self, now: Instant, wakers: &mut Vec<Waker>) -> Option<Instant> {
        // While connected, queued bytes will still be written. While not connected, `make_room` drops unwritten
        // orphans.
        let outcome = if self.connected { Outcome::MaybeExecuted } else { Outcome::NotSent };
        let expired = self.slots.iter().filter(|(_, slot)| slot.is_waiting() && slot.deadline <= now);
        let expired: Vec<usize> = expired.map(|(index, _)| index).collect();
        for index in expired {
            // `orphan` may drop entries and renumber the calls, so each number is read only now.
            let (Ok(slot), Some(sequence)) =
                (u32::try_from(index), self.slots.get(index).map(|slot| slot.sequence))
            else {
                continue;
            };
            self.orphan(slot, sequence);
            self.finish(slot, Err(Failure { kind: ErrorKind::Timeout, outcome, cause: None }), wakers);
        }
        self.earliest_deadline()
    }

    /// Returns the start of the current silence: the time since which a written entry has been waiting without any
    /// reply. A WAIT entry adds its own timeout.
    pub(crate) fn waiting_since(&self) -> Option<Instant> {
        let oldest = self.entries.front().filter(|entry| entry.start < self.claimed)?;
        let since = oldest.at.max(self.last_reply);
        match oldest.what {
            What::Wait => Some(self.waits.front().map_or(since, |group| since + group.timeout())),
            _ => Some(since),
        }
    }

    /// Fails the call whose reply is due, because that call ended the connection. [`disconnect`](Self::disconnect)
    /// fails the others.
    pub(crate) fn fail_front(&mut self, culprit: &Error, wakers: &mut Vec<Waker>) {
        // A reply to several calls is not due to one of them.
        let is_alone = |entry: &&Entry| entry.form == Form::Queued && matches!(entry.what, What::Call(_));
        if self.entries.front().filter(is_alone).is_some()
            && let Some(Entry { what: What::Call(slot), .. }) = self.pop_written()
        {
            let (kind, outcome) = (culprit.kind(), Outcome::MaybeExecuted);
            self.finish(slot, Err(Failure { kind, outcome, cause: Some(culprit.clone()) }), wakers);
        }
    }

    /// Ends the connection. Written calls fail with `MaybeExecuted`, and unwritten calls stay queued for the next
    /// connection. Orphans are dropped, because they have no caller. PINGs and subscription orders are dropped,
    /// because the next connection creates new ones.
    pub(crate) fn disconnect(&mut self, cause: &Error, wakers: &mut Vec<Waker>) {
        let kind = match cause.kind() {
            kind @ (ErrorKind::Protocol | ErrorKind::Closed) => kind,
            _ => ErrorKind::ConnectionLost,
        };
        let lost = Failure { kind, outcome: Outcome::MaybeExecuted, cause: Some(cause.clone()) };
        while let Some(entry) = self.pop_written() {
            drop(self.rewritten.take(entry.rewritten_len()));
            self.fail(entry.what, &lost, wakers);
        }
        // Waits are dropped, so their callers must fail first.
        self.fail_unwritten_waits(&lost, wakers);
        // A writer in the middle of a write returns no bytes to a broken connection.
        self.held = 0;
        (self.ping_nonce, self.after_unsubscribe) = (None, None);
        self.connected = false;
        self.channels.on_disconnect(wakers);
        self.drop_unwritten();
        self.native_reply = None;
    }

    /// Prepares for a connection to this server.
    pub(crate) fn meet(&mut self, server: &ServerInfo) {
        self.batches.meet(server);
    }

    /// Starts a connection. Subscriptions are queued before the calls that were queued while disconnected.
    pub(crate) fn reconnect(&mut self, now: Instant) {
        // Drop the calls that timed out meanwhile: their callers were told `NotSent`, so the calls must never leave.
        self.drop_unwritten();
        self.connected = true;
        self.connection.epoch = self.connection.epoch.wrapping_add(1);
        let calls = std::mem::take(&mut self.out);
        let entries = std::mem::take(&mut self.entries);
        let base = self.claimed;
        self.queued = base;
        self.reconcile_all(now);
        let moved = self.queued - base;
        let orders = self.entries.len() as u64;
        for entry in entries {
            if let What::Call(slot) = entry.what
                && let Some(slot) = self.slots.get_mut(slot as usize)
            {
                // The orders shift every queued call. With its old number, `leave` would orphan another call.
                slot.sequence += orders;
            }
            self.entries.push_back(Entry { start: entry.start + moved, at: now, ..entry });
        }
        self.out.extend_from_slice(&calls);
        self.close_entry();
        self.last_reply = now;
        self.unusable = None;
    }

    /// Queues `CLIENT REPLY OFF` once. The server sends no replies to later entries.
    pub(crate) fn suppress_replies(&mut self, now: Instant) {
        if !std::mem::replace(&mut self.replies_suppressed, true) {
            self.push_command(What::ReplyOff, &Command::new("CLIENT").arg("REPLY").arg("OFF"), now);
        }
    }

    /// Returns true if a reply is still due.
    pub(crate) fn awaits_replies(&self) -> bool {
        self.entries.front().is_some_and(|entry| entry.what != What::ReplyOff)
    }

    /// Closes the pipeline for good: every call fails.
    pub(crate) fn close(&mut self, cause: &Error, wakers: &mut Vec<Waker>) {
        self.disconnect(cause, wakers);
        self.fail_unwritten(cause, wakers);
    }

    /// Fails the unwritten calls with `cause`.
    pub(crate) fn fail_unwritten(&mut self, cause: &Error, wakers: &mut Vec<Waker>) {
        let failure = Failure { kind: cause.kind(), outcome: Outcome::NotSent, cause: Some(cause.clone()) };
        let entries = std::mem::take(&mut self.entries);
        self.rewritten = Rewritten::default();
        self.first += entries.len() as u64;
        for entry in entries {
            self.fail(entry.what, &failure, wakers);
        }
        self.out.clear();
        self.queued = self.claimed;
    }

    /// Drops the unwritten entries that do not survive a connection, with their bytes. Batched and native calls become
    /// single script calls again.
    fn drop_unwritten(&mut self) {
        let old_bytes = std::mem::take(&mut self.out);
        let old_entries = std::mem::take(&mut self.entries);
        let (base, end) = (self.queued - old_bytes.len() as u64, self.queued);
        let ends: Vec<u64> = old_entries.iter().skip(1).map(|entry| entry.start).chain([end]).collect();
        // Partly written commands were lost with their connection.
        self.claimed = base;
        self.queued = base;
        self.orphans = 0;
        for (entry, end) in old_entries.into_iter().zip(ends) {
            let within = |offset: u64| usize::try_from(offset - base).unwrap_or(usize::MAX);
            let queued: Vec<u8> = self.rewritten.take(entry.rewritten_len()).collect();
            let bytes = match entry.form {
                Form::Queued => old_bytes.get(within(entry.start)..within(end)),
                _ => Some(&queued[..]),
            };
            let is_kept = matches!(entry.what, What::Call(_) | What::Detached(_));
            let Some(bytes) = bytes.filter(|_| is_kept) else { continue };
            if let What::Call(slot) = entry.what
                && let Some(slot) = self.slots.get_mut(slot as usize)
            {
                // Dropped entries shift the later ones. With its old number, `leave` would orphan another call.
                slot.sequence = self.first + self.entries.len() as u64;
            }
            let shape = entry.shape_to_rewrite();
            self.entries.push_back(Entry { start: self.queued, shape, form: Form::Queued, ..entry });
            self.out.extend_from_slice(bytes);
            self.close_entry();
        }
    }
}

/// A mask that turns an offset into a PING nonce. No reply to a caller should equal the nonce by chance. Any other
/// large, arbitrary number would serve as well.
const NO_COUNTER: u64 = 0x9e37_79b9_7f4a_7c15;

/// The largest buffer that is kept between flushes. It has room for the simultaneous requests of 500 callers. Each
/// connection keeps two such buffers.
const SPARE_LIMIT: usize = 128 << 10;

#[cfg(test)]
mod model;
