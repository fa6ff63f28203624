//! Script calls that are written as native commands.
//!
//! Some servers have native commands with the effect of a script, and then no script runs. A call is always queued as
//! a script call, and becomes native commands when a writer takes it. If the native commands did nothing, the pipeline
//! sends the script call. This module does no I/O.

use bytes::BytesMut;
use wheellock_resp::Command;

use crate::base::script::{Native, Word};

/// Writes a script call to `out` as native commands. The call's key begins behind `head` bytes. Returns false if `out`
/// is unchanged.
pub(super) fn write(form: &Native, (call, head): (&[u8], usize), out: &mut BytesMut) -> bool {
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
    true
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
