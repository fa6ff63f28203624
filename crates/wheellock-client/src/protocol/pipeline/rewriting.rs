//! Batched and native calls: writing them and splitting their replies.
//!
//! `batches` and `natives` decide which calls qualify and keep their bytes. This module does no I/O.

use std::task::Waker;
use std::time::Instant;

use wheellock_resp::{Command, Value};

use super::batches::Shape;
use super::natives::Replied;
use super::{Desync, NATIVE, Pipeline, What};
use crate::base::script::NativeReply;

impl Pipeline {
    /// Rewrites the entries that no writer has taken. Neighbours become one command where that is possible and costs
    /// less. Other calls become native commands where the server has some. The rewritten bytes are shorter and end at
    /// the same offset.
    pub(super) fn batch(&mut self) {
        let base = self.queued - self.out.len() as u64;
        let first = self.entries.partition_point(|entry| entry.start < base);
        let mut parts = self.entries.range(first..).map(|entry| entry.shape.part);
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
            let (part, begin) = (entry.shape.part, within(entry.start));
            let shapes = self.entries.range(place..).map(|entry| entry.shape);
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
            let members = match native {
                Some((form, head)) => {
                    self.natives.write(form, part, (bytes, head), &mut new).then_some(NATIVE)
                }
                None if calls > 1 && self.batches.write(shapes.take(calls), bytes, &mut new) => {
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
        let batch = self.batches.next();
        if let Some(text) = value.as_error() {
            self.note_error(text);
            match batch.whole.as_ref().filter(|_| crate::base::error::error_code(text) == "NOSCRIPT") {
                Some(whole) => {
                    // Load the script for later batches. An orphan discards the reply.
                    let load = Command::new("SCRIPT").arg("LOAD").arg(whole.text());
                    self.push_command(What::Orphan, &load, now);
                }
                None => self.batches.rest(now),
            }
        }
        let mut answers = match value {
            Value::Array(answers) => answers.into_iter(),
            _refusal => Vec::new().into_iter(),
        };
        for place in 0..members {
            let entry = self.pop_written().ok_or(SHIFTED)?;
            match answers.next() {
                Some(answer) => self.deliver(&entry, answer, now, wakers)?,
                None => self.resend(entry.what, batch.call(place).unwrap_or_default(), now),
            }
        }
        self.batches.ended(batch);
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
        let Some(Replied { form, part, first, second }) = self.natives.replied(value) else { return Ok(()) };
        let done = match first.as_error() {
            Some(text) => {
                self.note_error(text);
                if is_of_the_command(text) {
                    self.batches.disable_native(part);
                }
                None
            }
            None => match (form.read)(&first, second.as_ref()) {
                Some(NativeReply::Done(value)) => Some(value),
                Some(NativeReply::Refused) => None,
                // The call stays queued, and the end of the connection fails it.
                None => return Err(Desync("a command was answered with what it never returns")),
            },
        };
        let Some(entry) = self.pop_written() else { return Ok(()) };
        if let Some(value) = done {
            drop(self.natives.end());
            return self.deliver(&entry, value, now, wakers);
        }
        let is_wanted = self.requeue(entry.what, now);
        let call = self.natives.end();
        if is_wanted {
            self.out.extend(call);
            self.close_entry();
        }
        Ok(())
    }

    /// Queues a call once more, if its caller still waits.
    fn resend(&mut self, what: What, call: &[u8], now: Instant) {
        if self.requeue(what, now) {
            self.out.extend_from_slice(call);
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

/// Returns true if the server does not know the command or denies it to this user, regardless of the key (sources:
/// `processCommand` in server.c and `getAclErrorMessage` in acl.c).
fn is_of_the_command(refusal: &[u8]) -> bool {
    let is_said_of_commands = || crate::base::error::printable(refusal).contains("command");
    matches!(crate::base::error::error_code(refusal), "ERR" | "NOPERM") && is_said_of_commands()
}
