//! The server's end of one in-memory connection.
//!
//! It takes bytes in, gives commands out, and sends replies back. This module owns the bytes under way. It does not
//! know the meaning of commands.

use std::collections::{BTreeSet, VecDeque};

use bytes::BytesMut;
use wheellock_client::memory::Pipe;
use wheellock_resp::{Decoder, Frame, Limits, Value};

use super::faults::{Faults, How, Side};
use super::store::Remembered;

/// A `WAIT` that has not ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    /// Number of writes that the replicas must have.
    pub(super) offset: u64,
    /// Number of replicas.
    pub(super) wanted: usize,
    /// Time at which the wait ends at the latest.
    pub(super) due: u64,
}

/// One client's connection.
#[derive(Debug)]
pub(super) struct Connection {
    pipe: Pipe,
    input: BytesMut,
    /// Decoder of the command that the input is in.
    decoder: Decoder,
    /// Replies that have not left yet, in order, each with the earliest time at which it may leave.
    output: VecDeque<(u64, BytesMut)>,
    /// Subscribed channels.
    pub(super) channels: BTreeSet<String>,
    /// Number of the client's bytes that pass per turn.
    accepts: Option<usize>,
    /// Number of turns in a row in which the client sent all bytes that could pass.
    full_turns: u32,
    /// A command on this connection wrote data.
    pub(super) wrote: bool,
    /// Number of the server's writes at the last write on this connection.
    pub(super) wrote_at: u64,
    /// The wait for replicas, before which no other command runs on this connection.
    pub(super) waiting: Option<Waiting>,
    /// The server tells this connection of changed keys (`CLIENT TRACKING`).
    pub(super) tracks: bool,
    /// The server remembers the keys of the next command for this connection (`CLIENT CACHING`).
    pub(super) remembers_next: bool,
    /// Keys that the server remembers for this connection, with their state then.
    pub(super) remembered: Remembered,
}

impl Connection {
    pub(super) fn new(pipe: Pipe) -> Self {
        Self {
            pipe,
            input: BytesMut::new(),
            decoder: Decoder::new(Limits::default()),
            output: VecDeque::new(),
            channels: BTreeSet::new(),
            accepts: None,
            full_turns: 0,
            wrote: false,
            wrote_at: 0,
            waiting: None,
            tracks: false,
            remembers_next: false,
            remembered: Remembered::default(),
        }
    }

    /// Lets `trickle` bytes of the client, times 2^`haste`, pass until the next turn. `None` lets all pass.
    pub(super) fn accept(&mut self, trickle: Option<usize>) {
        self.accepts = trickle;
        self.pipe.accept(trickle.map_or(usize::MAX, |bytes| bytes << self.haste()));
    }

    /// Returns how many times the bytes per turn have doubled.
    fn haste(&self) -> u32 {
        self.full_turns.saturating_sub(PATIENT_TURNS).min(MOST_HASTE)
    }

    pub(super) fn end(&self, how: How) {
        match how {
            How::Fin => self.pipe.fin(),
            How::Rst => self.pipe.rst(),
        }
    }

    /// Returns true if the client has gone and left nothing to read.
    pub(super) fn is_abandoned(&self) -> bool {
        self.pipe.is_abandoned()
    }

    /// Takes the client's bytes. Returns true if there were any, and how the connection must end after them, if it
    /// must.
    pub(super) fn take_in(&mut self, faults: &mut Faults) -> (bool, Option<How>) {
        let arrived = self.pipe.take();
        if arrived.is_empty() && self.accepts == faults.trickle {
            return (false, None);
        }
        let is_full = self.accepts.is_some_and(|bytes| arrived.len() >= bytes << self.haste());
        self.full_turns = if is_full && faults.hurries { self.full_turns.saturating_add(1) } else { 0 };
        let (passes, broken) = faults.pass(Side::Requests, arrived.len());
        self.accept(faults.trickle);
        let moved = !arrived.is_empty();
        if self.input.is_empty() && passes == arrived.len() {
            self.input = arrived;
        } else {
            self.input.extend_from_slice(&arrived[..passes]);
        }
        (moved, broken)
    }

    /// Returns the next complete command, or the error in the bytes that came.
    pub(super) fn next_command(&mut self) -> Result<Option<Value>, String> {
        let frame = self.decoder.decode(&mut self.input).map_err(|error| error.to_string())?;
        let Some(Frame::Reply(command)) = frame else { return Ok(None) };
        Ok(Some(command))
    }

    /// Queues a reply that may leave from `due` on.
    pub(super) fn put(&mut self, text: &str, due: u64) {
        if text.is_empty() {
            return;
        }
        match self.output.back_mut() {
            // A later reply leaves later, even if the reply before it is delayed for longer.
            Some((last, bytes)) if *last >= due => bytes.extend_from_slice(text.as_bytes()),
            _ => self.output.push_back((due, text.as_bytes().into())),
        }
    }

    /// Shifts the times of replies by a change of the clock, so that they are not delayed longer.
    pub(super) fn clock_was_set(&mut self, by: i64) {
        self.output.iter_mut().for_each(|(due, _)| *due = due.saturating_add_signed(by));
        if let Some(waiting) = &mut self.waiting {
            waiting.due = waiting.due.saturating_add_signed(by);
        }
    }

    /// Returns the time at which the next reply leaves or a wait for replicas ends, if there is one.
    pub(super) fn next_due(&self) -> Option<u64> {
        let wait = self.waiting.map(|waiting| waiting.due).filter(|due| *due < u64::MAX);
        self.next_reply().into_iter().chain(wait).min()
    }

    fn next_reply(&self) -> Option<u64> {
        self.output.front().map(|(due, _)| *due)
    }

    /// Sends the bytes that may leave. Returns true if there were any, and how the connection must end after them, if
    /// it must.
    pub(super) fn give_out(&mut self, faults: &mut Faults, now: u64) -> (bool, Option<How>) {
        if self.next_reply().is_none_or(|due| due > now) {
            return (false, None);
        }
        let mut room = faults.trickle.unwrap_or(usize::MAX);
        let mut bytes = Vec::new();
        while let Some((due, answer)) = self.output.front_mut()
            && *due <= now
            && room > 0
        {
            let count = answer.len().min(room);
            bytes.extend_from_slice(&answer.split_to(count));
            room -= count;
            if answer.is_empty() {
                self.output.pop_front();
            }
        }
        let (passes, broken) = faults.pass(Side::Answers, bytes.len());
        if passes > 0 {
            self.pipe.send(&bytes[..passes]);
        }
        (!bytes.is_empty(), broken)
    }
}

/// Turns before the bytes per turn begin to double. A command with its arguments usually needs fewer.
const PATIENT_TURNS: u32 = 16;
/// Most doublings. A thousand times as many bytes are as good as all at once.
const MOST_HASTE: u32 = 10;
