//! Script calls that are written as native commands.
//!
//! Some servers have native commands with the effect of a script, and then no script runs. A call is always queued as
//! a script call, and becomes native commands when a writer takes it. This module keeps the script form of each call.
//! If the native commands did nothing, the pipeline sends the script form. This module does no I/O.

use std::collections::VecDeque;

use bytes::BytesMut;
use wheellock_resp::{Command, Value};

use super::batches::PartId;
use crate::base::script::{Native, Word};

/// Native calls in flight.
#[derive(Default)]
pub(super) struct Natives {
    /// The calls in wire order.
    sent: VecDeque<Sent>,
    /// The script forms of these calls, in the same order and without gaps.
    calls: VecDeque<u8>,
}

/// One native call in flight.
struct Sent {
    form: &'static Native,
    part: PartId,
    /// The length of the script form in bytes.
    len: usize,
    /// The reply to the first of two commands.
    first: Option<Value>,
}

/// The replies to the commands of one call.
pub(super) struct Replied {
    pub(super) form: &'static Native,
    pub(super) part: PartId,
    pub(super) first: Value,
    pub(super) second: Option<Value>,
}

impl Natives {
    /// Writes a script call to `out` as native commands, and keeps its script form. The call's key begins behind
    /// `head` bytes. Returns false if `out` is unchanged.
    pub(super) fn write(
        &mut self,
        form: &'static Native,
        part: PartId,
        (call, head): (&[u8], usize),
        out: &mut BytesMut,
    ) -> bool {
        let mut params = [None; MOST_PARAMS];
        let mut rest = call.get(head..).unwrap_or_default();
        for param in &mut params {
            *param = bulk(&mut rest);
        }
        let text = |word: &Word| match *word {
            Word::Text(text) => Some(text.as_bytes()),
            Word::Param(place) => params.get(place).copied().flatten(),
        };
        let command = |words: &[Word]| {
            let (verb, args) = words.split_first()?;
            let mut command = Command::new(std::str::from_utf8(text(verb)?).ok()?);
            for word in args {
                command.push(text(word)?);
            }
            Some(command)
        };
        let before = out.len();
        for words in form.commands {
            let Some(command) = command(words).filter(|_| rest.is_empty()) else {
                out.truncate(before);
                return false;
            };
            command.encode(out);
        }
        self.sent.push_back(Sent { form, part, len: call.len(), first: None });
        self.calls.extend(call);
        true
    }

    /// Takes a reply to the oldest native call. Returns `None` if the call's second reply is still due.
    pub(super) fn replied(&mut self, value: Value) -> Option<Replied> {
        let sent = self.sent.front_mut()?;
        let (first, second) = match sent.first.take() {
            Some(first) => (first, Some(value)),
            None if sent.form.commands.len() > 1 => {
                sent.first = Some(value);
                return None;
            }
            None => (value, None),
        };
        Some(Replied { form: sent.form, part: sent.part, first, second })
    }

    /// Ends the oldest native call, whether its replies arrived or not. Returns the call's script form.
    pub(super) fn end(&mut self) -> impl Iterator<Item = u8> + '_ {
        let len = self.sent.pop_front().map_or(0, |sent| sent.len);
        // Without this limit, one flood would keep megabytes for the connection's lifetime.
        if self.sent.is_empty() && self.calls.capacity() > ROOM {
            let calls = std::mem::take(&mut self.calls);
            self.calls.extend(calls);
        }
        self.calls.drain(..len.min(self.calls.len()))
    }

    pub(super) fn forget_all(&mut self) {
        self.sent.clear();
        self.calls.clear();
    }
}

/// Removes the first bulk string from `bytes` and returns it, or returns `None`.
fn bulk<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (mut len, mut at) = (0_usize, 1);
    while let digit @ b'0'..=b'9' = bytes.get(at)? {
        len = len.checked_mul(10)?.checked_add(usize::from(digit - b'0'))?;
        at += 1;
    }
    let (head, behind) = bytes.split_at_checked(at + 2)?;
    let (text, behind) = behind.split_at_checked(len)?;
    let rest = behind.get(2..).filter(|_| head.first() == Some(&b'$'))?;
    *bytes = rest;
    Some(text)
}

/// An upper bound: no script with native commands takes more parameters.
const MOST_PARAMS: usize = 8;
/// The number of bytes that stay reserved for script forms.
const ROOM: usize = 64 << 10;
