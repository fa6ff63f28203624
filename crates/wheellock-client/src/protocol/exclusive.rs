//! Commands that a shared connection cannot carry.
//!
//! Such a command would change or block the connection for all of its callers. This module sends nothing.

use wheellock_resp::{Arg, Command};

/// Returns why `command` would harm the other callers of the connection, and the alternative. Returns `None` for a
/// harmless command.
#[inline]
pub(crate) fn objection(command: &Command<'_>) -> Option<&'static str> {
    let mut name = [0; LONGEST_NAME];
    let name = name.get_mut(..command.name().len())?;
    name.copy_from_slice(command.name().as_bytes());
    name.make_ascii_uppercase();
    let mut words = command.iter().skip(1).map(text);
    let objection = match &*name {
        // AUTH is allowed: callers renew a token with it before the token expires.
        b"BLPOP" | b"BRPOP" | b"BLMOVE" | b"BLMPOP" | b"BZMPOP" | b"BZPOPMIN" | b"BZPOPMAX"
        | b"BRPOPLPUSH" => BLOCKS,
        b"XREAD" | b"XREADGROUP" if blocks(words.by_ref()) => BLOCKS,
        b"CLIENT" => return unless(words.next(), CLIENT_FOR_ALL, STATE),
        b"SCRIPT" => return unless(words.next(), SCRIPT_FOR_ALL, DEBUGGER),
        b"DISCARD" | b"EXEC" | b"MULTI" | b"UNWATCH" | b"WATCH" => TRANSACTION,
        b"HELLO" | b"RESET" => WHO,
        b"MONITOR" | b"PSUBSCRIBE" | b"PSYNC" | b"PUNSUBSCRIBE" | b"REPLCONF" | b"SYNC" => STREAM,
        b"SSUBSCRIBE" | b"SUBSCRIBE" | b"SUNSUBSCRIBE" | b"UNSUBSCRIBE" => CHANNEL,
        b"ASKING" | b"READONLY" | b"READWRITE" => CLUSTER,
        b"SELECT" => DATABASE,
        b"QUIT" => ENDS,
        _ => return None,
    };
    Some(objection)
}

/// The length of the longest name of a refused command.
const LONGEST_NAME: usize = "SUNSUBSCRIBE".len();

/// Returns `objection` unless the subcommand is known to leave the connection unchanged. A list of the harmful
/// subcommands would miss those of later servers.
fn unless(subcommand: Option<&[u8]>, known: &str, objection: &'static str) -> Option<&'static str> {
    let subcommand = subcommand?;
    (!known.split(' ').any(|known| is(subcommand, known))).then_some(objection)
}

/// Returns true if the options of a stream command make it wait for new entries.
fn blocks<'a>(mut words: impl Iterator<Item = &'a [u8]>) -> bool {
    while let Some(word) = words.next() {
        if is(word, "BLOCK") {
            return true;
        }
        if is(word, "STREAMS") {
            return false;
        }
        if is(word, "GROUP") {
            // Skip the names of the group and the consumer. Either name may be `BLOCK` or `STREAMS`.
            let _names = (words.next(), words.next());
        }
    }
    false
}

fn is(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}

/// Returns a word of a command. A number becomes an empty word, because numbers do not matter here.
fn text(arg: Arg<'_>) -> &[u8] {
    match arg {
        Arg::Bytes(text) => text,
        Arg::Int(_) | Arg::Uint(_) => b"",
    }
}

/// Subcommands of `CLIENT` and `SCRIPT` that leave the connection unchanged, in Redis 6.0 to 8 and Valkey 7.2 to 9.
const CLIENT_FOR_ALL: &str = "GETNAME GETREDIR HELP ID INFO KILL LIST PAUSE TRACKINGINFO UNBLOCK UNPAUSE";
const SCRIPT_FOR_ALL: &str = "EXISTS FLUSH HELP KILL LOAD SHOW";

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
