//! Calls of scripts that leave as commands of the server's own, because it knows some that do the same: no script is run for them. A call
//! is queued as a script, whatever the server, and becomes such commands at the moment at which a writer takes it. Owns what was written
//! so, and how each call would have been sent as a script: as that it goes out once more if the commands did nothing. Pure.

use std::collections::VecDeque;

use bytes::BytesMut;
use wheellock_resp::{Command, Value};

use super::bundles::PartId;
use crate::base::script::{Native, Word};

/// Calls that are under way as such commands.
#[derive(Default)]
pub(super) struct Natives {
    /// In wire order.
    sent: VecDeque<Sent>,
    /// Their bytes as calls of scripts, one behind the other.
    calls: VecDeque<u8>,
}

/// One of them.
struct Sent {
    form: &'static Native,
    part: PartId,
    /// Bytes as a call of a script.
    len: usize,
    /// The reply to the first of two commands.
    first: Option<Value>,
}

/// What was replied to the commands of one call.
pub(super) struct Replied {
    pub(super) form: &'static Native,
    pub(super) part: PartId,
    pub(super) first: Value,
    pub(super) second: Option<Value>,
}

impl Natives {
    /// Writes a call of a script, whose key begins behind `head` bytes, to `out` as such commands, and keeps it as it is. Returns whether
    /// that was done.
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

    /// A reply to the call that was written first. `None` if another one belongs to it.
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

    /// The call that was written first, or was to be, of those that have not ended, has ended so. Returns how it would have been sent as a
    /// script.
    pub(super) fn end(&mut self) -> impl Iterator<Item = u8> + '_ {
        let len = self.sent.pop_front().map_or(0, |sent| sent.len);
        // One flood must not keep megabytes for ever.
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

/// Takes the first bulk string off `bytes`, if one is there.
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

/// No script that has such a form takes more parameters.
const MOST_PARAMS: usize = 8;
/// Bytes of calls that are kept room for.
const ROOM: usize = 64 << 10;
