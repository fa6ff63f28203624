//! Batched and native calls: writing them and splitting their replies.
//!
//! `batches` and `natives` decide which calls qualify. This module keeps the bytes of such calls, as they were queued,
//! until the server has replied. It does no I/O.

use std::collections::VecDeque;
use std::collections::vec_deque::Drain;
use std::task::Waker;
use std::time::Instant;

use wheellock_resp::{Command, Value};

use super::batches::Shape;
use super::{Desync, Entry, Form, Pipeline, What, natives};
use crate::base::script::NativeReply;

impl Pipeline {
    /// Rewrites the entries that no writer has taken. Neighbours become one command where that is possible and costs
    /// less. Other calls become native commands where the server has some. The rewritten bytes are shorter and end at
    /// the same offset.
    pub(super) fn batch(&mut self) {
        let base = self.queued - self.out.len() as u64;
        let first = self.entries.partition_point(|entry| entry.start < base);
        let mut parts = self.entries.range(first..).map(|entry| entry.shape_to_rewrite().part);
        let is_alone = parts.len() == 1;
        // Most writes contain no call to rewrite, and then no byte is copied.
        if parts.all(|part| part.is_none() || is_alone && self.batches.native(part).is_none()) {
            return;
        }
        let (old, mut new) = (std::mem::take(&mut self.out), std::mem::take(&mut self.batches.room));
        new.reserve(old.len());
        let within = |offset: u64| usize::try_from(offset - base).unwrap_or(usize::MAX).min(old.len());
        // Until `new` is complete, the starts of entries are relative to the beginning of `new`.
        let (mut place, mut copied) = (first, 0);
        while let Some(entry) = self.entries.get(place) {
            let (part, begin) = (entry.shape_to_rewrite().part, within(entry.start));
            let shapes = self.entries.range(place..).map(Entry::shape_to_rewrite);
            let calls = self.batches.batch_len(shapes.clone());
            // While replies are suppressed, a refusal would not arrive, and the call could not be sent again as a
            // script.
            let native = self.batches.native(part).filter(|_| calls == 1 && !self.replies_suppressed);
            if calls > 1 || native.is_some() {
                new.extend_from_slice(old.get(copied..begin).unwrap_or_default());
                copied = begin;
            }
            let start = (new.len() + begin - copied) as u64;
            let end = self.entries.get(place + calls).map_or(old.len(), |next| within(next.start));
            let bytes = old.get(begin..end).unwrap_or_default();
            let form = match native {
                Some((native, head)) => {
                    natives::write(native, (bytes, head), &mut new).then_some(Form::Native)
                }
                None if calls > 1 && self.batches.write(shapes.take(calls), bytes, &mut new) => {
                    Some(Form::First(u8::try_from(calls).unwrap_or(u8::MAX)))
                }
                None => None,
            };
            let Some(entry) = self.entries.get_mut(place) else { break };
            let Some(form) = form else {
                entry.start = start;
                place += 1;
                continue;
            };
            (entry.start, entry.form) = (start, form);
            for entry in self.entries.range_mut(place + 1..place + calls) {
                (entry.start, entry.form) = (start, Form::Member);
            }
            self.rewritten.0.extend(bytes);
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
        self.batches.give_room(room);
    }

    /// Splits the reply of a batch among its calls. If the server refused the batch, it had no effect, and each
    /// call is sent again by itself.
    pub(super) fn on_batch(
        &mut self,
        members: usize,
        value: Value,
        now: Instant,
        wakers: &mut Vec<Waker>,
    ) -> Result<(), Desync> {
        const SHIFTED: Desync = Desync("several calls were answered as one of another number");
        // Check the reply before taking entries. A shifted reply ends the connection, which fails the calls that are
        // still queued.
        if !value.is_error() && value.as_array().is_none_or(|answers| answers.len() != members) {
            return Err(SHIFTED);
        }
        if let Some(text) = value.as_error() {
            self.note_error(text);
            let lacks_script = crate::base::error::error_code(text) == "NOSCRIPT";
            let first = self.entries.front().filter(|_| lacks_script);
            match first.and_then(|first| self.batches.whole(first.shape.part)).cloned() {
                Some(whole) => {
                    // Load the script for later batches. An orphan discards the reply.
                    let load = Command::new("SCRIPT").arg("LOAD").arg(whole.text());
                    self.push_command(What::Orphan, &load, now);
                }
                None => self.batches.rest(now),
            }
        }
        let Value::Array(answers) = value else {
            for _ in 0..members {
                let entry = self.pop_written().ok_or(SHIFTED)?;
                self.resend(&entry, now);
            }
            return Ok(());
        };
        let queued = self.entries.iter().take(members).map(|entry| usize::from(entry.shape.len)).sum();
        drop(self.rewritten.take(queued));
        for answer in answers {
            let entry = self.pop_written().ok_or(SHIFTED)?;
            self.deliver(&entry, answer, now, wakers)?;
        }
        Ok(())
    }

    /// Takes a reply to a native call: the last of its replies, or a reply that shows whether the commands ran. If
    /// the commands did nothing, the script call is sent.
    pub(super) fn on_native(
        &mut self,
        value: Value,
        now: Instant,
        wakers: &mut Vec<Waker>,
    ) -> Result<(), Desync> {
        let Some(part) = self.entries.front().map(|entry| entry.shape.part) else { return Ok(()) };
        let Some(native) = self.batches.sent_native(part) else { return Ok(()) };
        let (first, second) = match self.native_reply.take() {
            Some(first) => (first, Some(value)),
            None if native.commands.len() > 1 => {
                self.native_reply = Some(value);
                return Ok(());
            }
            None => (value, None),
        };
        let done = match first.as_error() {
            Some(text) => {
                self.note_error(text);
                if is_of_the_command(text) {
                    self.batches.disable_native(part);
                }
                None
            }
            None => match (native.read)(&first, second.as_ref()) {
                Some(NativeReply::Done(value)) => Some(value),
                Some(NativeReply::Refused) => None,
                // The call stays queued, and the end of the connection fails it.
                None => return Err(Desync("a command was answered with what it never returns")),
            },
        };
        let Some(entry) = self.pop_written() else { return Ok(()) };
        match done {
            Some(value) => {
                drop(self.rewritten.take(usize::from(entry.shape.len)));
                self.deliver(&entry, value, now, wakers)
            }
            None => {
                self.resend(&entry, now);
                Ok(())
            }
        }
    }

    /// Queues a call once more as it was queued first, if its caller still waits.
    fn resend(&mut self, entry: &Entry, now: Instant) {
        let is_wanted = self.requeue(entry.what, now);
        let call = self.rewritten.take(usize::from(entry.shape.len));
        if is_wanted {
            self.out.extend(call);
            self.close_entry();
        }
    }

    /// Prepares a written call for being queued once more. Returns true if the call's result is still wanted.
    fn requeue(&mut self, what: What, now: Instant) -> bool {
        let sequence = self.first + self.entries.len() as u64;
        match what {
            What::Call(slot) => match self.slots.get_mut(slot as usize) {
                Some(slot) => slot.sequence = sequence,
                None => return false,
            },
            What::Detached(_) => {}
            _ => return false,
        }
        self.push(what, now, Shape::default());
        true
    }
}

/// The calls in flight that were written in another form, as they were queued. They are in wire order, without gaps.
#[derive(Default)]
pub(super) struct Rewritten(VecDeque<u8>);

impl Rewritten {
    /// Takes the first `len` bytes, which belong to removed entries.
    pub(super) fn take(&mut self, len: usize) -> Drain<'_, u8> {
        // Without this limit, one flood would keep megabytes for the connection's lifetime.
        if self.0.len() <= len && self.0.capacity() > ROOM {
            self.0.shrink_to(ROOM);
        }
        self.0.drain(..len.min(self.0.len()))
    }
}

/// The number of bytes that stay reserved for calls in flight.
const ROOM: usize = 64 << 10;

/// Returns true if the server does not know the command or denies it to this user, regardless of the key (sources:
/// `processCommand` in server.c and `getAclErrorMessage` in acl.c).
fn is_of_the_command(refusal: &[u8]) -> bool {
    let is_said_of_commands = || crate::base::error::printable(refusal).contains("command");
    matches!(crate::base::error::error_code(refusal), "ERR" | "NOPERM") && is_said_of_commands()
}
