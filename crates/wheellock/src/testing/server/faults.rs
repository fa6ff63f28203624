//! Faults of a server, as a value, and their counts.
//!
//! This module recognises calls by their words. It does not know connections.

/// Faults to inject. The default is none.
#[derive(Debug)]
pub struct Faults {
    /// The point at which a connection breaks.
    pub cut: Option<Cut>,
    /// Bytes that pass per turn and direction.
    pub trickle: Option<usize>,
    /// More and more of a client's bytes pass per turn while it has much to send, such as the texts of all scripts.
    pub hurries: bool,
    /// A connection's own message comes after the reply to the script that published it, as since Redis 7.2. If false,
    /// the message comes before the reply, as in 7.0.
    pub messages_last: bool,
    /// Number of script calls to refuse, and the error text.
    pub refusal: Option<(usize, &'static str)>,
    /// Number of script calls to skip, and number of calls whose reply is lost. These are executed, and the connection
    /// ends instead of the reply.
    pub losses: Option<(usize, usize, How)>,
    /// Number of replies lost that way.
    pub lost: usize,
    /// Number of script calls to skip before a call comes late. The connection ends, and that call is its last.
    pub delay: Option<(usize, How)>,
    /// Number of commands that `delay` made late.
    pub delayed: usize,
    /// Delay of replies and messages, in milliseconds.
    pub latency: u64,
    /// The server reads nothing and sends nothing. Connections stay as they are.
    pub is_silent: bool,
    /// A connection with a subscription runs no other command, as in RESP2.
    pub subscriptions_block: bool,
    /// A reply confirms a subscription, not a push, as in RESP2.
    pub confirms_by_reply: bool,
    /// The user may not subscribe to any channel.
    pub forbids_channels: bool,
    /// The server's only replica acknowledges all writes.
    pub replica_acks: bool,
    /// Number of keys of each refused script call. `executed` has those of all other script calls.
    pub refused: Vec<usize>,
    pub executed: Vec<usize>,
    /// `refused` and `executed` are recorded.
    pub counts: bool,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            cut: None,
            trickle: None,
            hurries: false,
            messages_last: false,
            refusal: None,
            losses: None,
            lost: 0,
            delay: None,
            delayed: 0,
            latency: 0,
            is_silent: false,
            subscriptions_block: false,
            confirms_by_reply: false,
            forbids_channels: false,
            replica_acks: true,
            refused: Vec::new(),
            executed: Vec::new(),
            counts: true,
        }
    }
}

/// The break of a connection after `after` more bytes.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    pub side: Side,
    pub after: usize,
    pub how: How,
}

/// The direction whose bytes are counted. Bytes of the other direction in the same turn still pass, unless reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Answers,
    Requests,
}

/// The way in which a connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    Fin,
    Rst,
}

impl Faults {
    /// Returns how many of `bytes` bytes of one direction pass, and how the connection ends after them, if it does.
    pub(super) fn pass(&mut self, side: Side, bytes: usize) -> (usize, Option<How>) {
        match &mut self.cut {
            Some(cut) if cut.side == side && bytes > cut.after => {
                let (after, how) = (cut.after, cut.how);
                self.cut = None;
                (after, Some(how))
            }
            Some(cut) if cut.side == side => {
                cut.after -= bytes;
                (bytes, None)
            }
            _ => (bytes, None),
        }
    }

    /// Returns how the connection ends if this command must come late.
    pub(super) fn delays(&mut self, words: &[&str]) -> Option<How> {
        match &mut self.delay {
            Some((first @ 1.., _)) if is_script(words) => *first -= 1,
            Some((0, how)) if is_script(words) => {
                let how = *how;
                self.delay = None;
                self.delayed += 1;
                return Some(how);
            }
            _ => {}
        }
        None
    }

    /// Returns how the connection ends if the reply to this command must be lost.
    pub(super) fn loses_the_answer(&mut self, words: &[&str]) -> Option<How> {
        let is_script = is_script(words);
        match &mut self.losses {
            Some((first @ 1.., ..)) if is_script => *first -= 1,
            Some((_, left @ 1.., how)) if is_script => {
                *left -= 1;
                self.lost += 1;
                return Some(*how);
            }
            _ => {}
        }
        None
    }

    /// Returns true if a script call with `keys` keys must be refused.
    pub(super) fn refuses(&mut self, keys: &str) -> bool {
        let Ok(keys) = keys.parse() else { return false };
        let refused = match &mut self.refusal {
            Some((left @ 1.., _)) => {
                *left -= 1;
                true
            }
            _ => false,
        };
        if self.counts {
            if refused { &mut self.refused } else { &mut self.executed }.push(keys);
        }
        refused
    }
}

/// Returns true for a call of a script with keys, and for a command that replaces such a script.
fn is_script(words: &[&str]) -> bool {
    keys_of(words).is_some()
}

/// Returns the number of keys of a script call that has keys, or of a command that replaces such a script.
pub(super) fn keys_of<'a>(words: &[&'a str]) -> Option<&'a str> {
    match *words {
        ["EVALSHA" | "EVAL", _, keys, _, ..] if keys != "0" => Some(keys),
        ["SET", _, _, "NX", ..] | ["DELIFEQ" | "DELEX", ..] => Some("1"),
        _ => None,
    }
}
