//! What the scripts of simple locks do in commands of the server's own, for servers that know them: which these are, and what their replies
//! mean in the words of the scripts. Everything but taking what is free and giving back what one holds is left to the scripts; renewals,
//! too, of which one does many.

use wheellock_client::Value;
use wheellock_client::layer::{Native, NativeReply, Word};

use Word::{Param, Text};

/// For `simple/acquire.lua`.
pub(crate) static SET: [Native; 1] = [Native {
    // Every version of both knows it. A server that calls itself something else in HELLO, or nothing, gets the script.
    known_by: &[("redis", (0, 0)), ("valkey", (0, 0))],
    commands: &[&[Text("SET"), Param(KEY), Param(TOKEN), Text("NX"), Text("PX"), Param(LEASE)]],
    read: read_set,
}];

/// For `simple/release.lua`. The message goes out behind the key's end, and also if the key was not this token's: a release may be a
/// repetition of one whose message got lost.
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

/// PUBLISH or SPUBLISH, as the script is told.
const MESSAGE: &[Word] = &[Param(PUBLISH), Param(CHANNEL), Text("0")];

// Where `wire::acquire` (the lease) and `wire::release` (the channel and how to publish) put the parameters of the two scripts.
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

/// A user without the channel frees locks all the same; waiters then find out by asking.
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
