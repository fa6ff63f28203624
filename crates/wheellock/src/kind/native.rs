//! Native server commands for the scripts of simple locks.
//!
//! On servers that know these commands, they take a free lock and release an owner's lock. This module translates their replies into those
//! of the scripts. All other steps stay with the scripts. Renewals do, too, because one script renews many locks.

use wheellock_client::Value;
use wheellock_client::layer::{Native, NativeReply, Word};

use Word::{Param, Text};

/// Replacement of `simple/acquire.lua`.
pub(crate) static SET: [Native; 1] = [Native {
    // Every version of both servers knows the command. A server that reports another name in HELLO, or no name, gets the script.
    known_by: &[("redis", (0, 0)), ("valkey", (0, 0))],
    commands: &[&[Text("SET"), Param(KEY), Param(TOKEN), Text("NX"), Text("PX"), Param(LEASE)]],
    read: read_set,
}];

/// Replacement of `simple/release.lua`. The message follows the key's deletion, and is also sent if the key did not hold this token. The
/// release may repeat an earlier one whose message was lost.
pub(crate) static DELETE: [Native; 2] = [
    Native {
        known_by: &[("valkey", (9, 0))],
        commands: &[&[Text("DELIFEQ"), Param(KEY), Param(TOKEN)], MESSAGE],
        read: read_delete,
    },
    Native {
        known_by: &[("redis", (8, 4))],
        commands: &[&[Text("DELEX"), Param(KEY), Text("IFEQ"), Param(TOKEN)], MESSAGE],
        read: read_delete,
    },
];

/// PUBLISH or SPUBLISH, as given to the script.
const MESSAGE: &[Word] = &[Param(PUBLISH), Param(CHANNEL), Text("0")];

// Indices of the parameters of both scripts, as `wire::acquire` (the lease) and `wire::release` (the channel and the publish command) set
// them.
const KEY: usize = 0;
const LEASE: usize = 1;
const CHANNEL: usize = 1;
const TOKEN: usize = 2;
const PUBLISH: usize = 4;

fn read_set(reply: &Value, _: Option<&Value>) -> Option<NativeReply> {
    match reply {
        Value::Null => Some(NativeReply::Refused),
        reply if reply.as_bytes() == Some(b"OK") => Some(NativeReply::Done(Value::Null)),
        _ => None,
    }
}

/// Reads the replies to the deletion and to the message. A user without permission for the channel can still release locks. The waiters
/// then notice the release when they poll.
fn read_delete(reply: &Value, told: Option<&Value>) -> Option<NativeReply> {
    let heard = match told? {
        told if told.is_error() => 0,
        told => told.as_i64().filter(|heard| *heard >= 0)?,
    };
    match reply.as_i64()? {
        0 => Some(NativeReply::Done(Value::Null)),
        1 => Some(NativeReply::Done(Value::Integer(heard.saturating_add(1)))),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
