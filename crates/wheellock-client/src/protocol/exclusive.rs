//! Which commands a connection cannot carry that many callers share: what they would change, or keep waiting, is everybody's. Pure; sends
//! nothing.

use wheellock_resp::{Arg, Command};

/// Why `command` would be at the expense of all who share the connection, and what to use instead; `None` if it would not.
#[inline]
pub(crate) fn objection(command: &Command<'_>) -> Option<&'static str> {
    let name = command.name().as_bytes();
    let mut words = command.iter().skip(1).map(text);
    let first = name.first()?.to_ascii_uppercase();
    let listed = |list: &[(&str, &'static str)]| {
        list.iter().find(|(listed, _)| is(name, listed)).map(|&(_, objection)| objection)
    };
    match first {
        // AUTH renews a token before it ends.
        b'A' => listed(&[("ASKING", CLUSTER)]),
        b'B' => listed(&[
            ("BLPOP", BLOCKS),
            ("BRPOP", BLOCKS),
            ("BLMOVE", BLOCKS),
            ("BLMPOP", BLOCKS),
            ("BZMPOP", BLOCKS),
            ("BZPOPMIN", BLOCKS),
            ("BZPOPMAX", BLOCKS),
            ("BRPOPLPUSH", BLOCKS),
        ]),
        b'C' if is(name, "CLIENT") => unless(words.next(), CLIENT_FOR_ALL, STATE),
        b'D' => listed(&[("DISCARD", TRANSACTION)]),
        b'E' => listed(&[("EXEC", TRANSACTION)]),
        b'H' => listed(&[("HELLO", WHO)]),
        b'M' => listed(&[("MULTI", TRANSACTION), ("MONITOR", STREAM)]),
        b'P' => listed(&[("PSUBSCRIBE", STREAM), ("PUNSUBSCRIBE", STREAM), ("PSYNC", STREAM)]),
        b'Q' => listed(&[("QUIT", ENDS)]),
        b'R' => {
            listed(&[("RESET", WHO), ("READONLY", CLUSTER), ("READWRITE", CLUSTER), ("REPLCONF", STREAM)])
        }
        b'S' if is(name, "SCRIPT") => unless(words.next(), SCRIPT_FOR_ALL, DEBUGGER),
        b'S' => listed(&[
            ("SYNC", STREAM),
            ("SELECT", DATABASE),
            ("SUBSCRIBE", CHANNEL),
            ("SSUBSCRIBE", CHANNEL),
            ("SUNSUBSCRIBE", CHANNEL),
        ]),
        b'U' => listed(&[("UNWATCH", TRANSACTION), ("UNSUBSCRIBE", CHANNEL)]),
        b'W' => listed(&[("WATCH", TRANSACTION)]),
        b'X' if is(name, "XREAD") || is(name, "XREADGROUP") => blocks(words).then_some(BLOCKS),
        _ => None,
    }
}

/// Returns `objection` unless the container's subcommand is a known one that leaves the connection as it is. A list of the harmful
/// ones would miss those of later servers.
fn unless(subcommand: Option<&[u8]>, known: &[&str], objection: &'static str) -> Option<&'static str> {
    let subcommand = subcommand?;
    (!known.iter().any(|known| is(subcommand, known))).then_some(objection)
}

/// Whether the options of a command that reads streams have it wait for what is not there yet.
fn blocks<'a>(mut words: impl Iterator<Item = &'a [u8]>) -> bool {
    while let Some(word) = words.next() {
        if is(word, "BLOCK") {
            return true;
        }
        if is(word, "STREAMS") {
            return false;
        }
        if is(word, "GROUP") {
            // Its name and the consumer's, which may be any word.
            let _names = (words.next(), words.next());
        }
    }
    false
}

fn is(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}

/// A word of a command; nothing for a number, which is no word that matters here.
fn text(arg: Arg<'_>) -> &[u8] {
    match arg {
        Arg::Bytes(text) => text,
        Arg::Int(_) | Arg::Uint(_) => b"",
    }
}

/// Subcommands of `CLIENT` and `SCRIPT` that leave the connection as it is, of Redis 6.0 to 8 and Valkey 7.2 to 9.
const CLIENT_FOR_ALL: &[&str] = &[
    "GETNAME",
    "GETREDIR",
    "HELP",
    "ID",
    "INFO",
    "KILL",
    "LIST",
    "PAUSE",
    "TRACKINGINFO",
    "UNBLOCK",
    "UNPAUSE",
];
const SCRIPT_FOR_ALL: &[&str] = &["EXISTS", "FLUSH", "HELP", "KILL", "LOAD", "SHOW"];

const DATABASE: &str =
    "it would change the database of all who share this connection; the URL or Config::database chooses it";
const WHO: &str = "it would change the user or the state of all who share this connection; the URL, Config::username and \
                   Config::password or Config::credentials say who they are";
const TRANSACTION: &str = "it would be about the commands of all who share this connection; a script does several things as one (Client::eval)";
const CHANNEL: &str = "its answer is no reply; Client::subscribe subscribes on this connection";
const STREAM: &str = "what it brings is no reply; it needs a connection of its own, by another library, for no Client sends it";
const STATE: &str = "it may change the connection for all who share it; Config::client_name names it, and anything else needs a \
                     connection of its own, by another library, for no Client sends it";
const DEBUGGER: &str = "it may put the debugger in place of the replies of all who share this connection; debug a script with redis-cli \
                        --ldb";
const CLUSTER: &str = "this client itself tells a cluster's nodes how they are asked";
const ENDS: &str = "it would end the connection of all who share it; Client::close does so in order";
const BLOCKS: &str = "it would keep all who share this connection from their answers for as long as it waits; ask without waiting, or \
                      on a connection of its own, by another library, for no Client sends it";

#[cfg(test)]
mod tests;
