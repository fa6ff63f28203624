//! What is to go wrong at a server, as a value, and what has gone wrong so far. Knows calls by their words, and no connection.

/// What is to go wrong. By default nothing.
#[derive(Debug)]
pub struct Faults {
    /// Where a connection breaks.
    pub cut: Option<Cut>,
    /// Bytes that pass per turn and direction.
    pub trickle: Option<usize>,
    /// Whether more and more of a client's bytes pass per turn while it has much to send, as the texts of all scripts are.
    pub hurries: bool,
    /// Whether a connection's own message comes after the reply to the script that published it, as since Redis 7.2; before it
    /// as in 7.0 otherwise.
    pub messages_last: bool,
    /// So many calls of scripts are refused, in these words.
    pub refusal: Option<(usize, &'static str)>,
    /// From so many calls of scripts on, and then so many: executed, and instead of the answer the connection ends.
    pub losses: Option<(usize, usize, How)>,
    /// How many answers got lost that way.
    pub lost: usize,
    /// After so many calls of scripts the connection ends, and the next one is what came last on it.
    pub delay: Option<(usize, How)>,
    /// How many commands are read late for that.
    pub delayed: usize,
    /// For how long answers and messages are held up, in milliseconds.
    pub latency: u64,
    /// Nothing is read and nothing is answered, and connections stay as they are.
    pub is_silent: bool,
    /// Whether a connection with a subscription runs no other command, as in RESP2.
    pub subscriptions_block: bool,
    /// Whether a subscription is confirmed by a reply and not by a push, as in RESP2.
    pub confirms_by_reply: bool,
    /// Whether the server's only replica acknowledges what it is sent.
    pub replica_acks: bool,
    /// How many keys each call of a script had that was refused, and each that was not.
    pub refused: Vec<usize>,
    pub executed: Vec<usize>,
    /// Whether these two are written down.
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
            replica_acks: true,
            refused: Vec::new(),
            executed: Vec::new(),
            counts: true,
        }
    }
}

/// A connection breaks after so many more bytes.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    pub side: Side,
    pub after: usize,
    pub how: How,
}

/// Whose bytes are counted. Those of the other side that come with the last one still pass, unless reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Answers,
    Requests,
}

/// How a connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    Fin,
    Rst,
}

impl Faults {
    /// How many of so many bytes of one side pass, and how the connection ends after them, if it does.
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

    /// Whether this command is the one that comes late, and how the connection ends on which it came.
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

    /// Whether the answer to this command is lost, and how.
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

    /// Whether a call of a script with so many keys is refused.
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

/// Whether it is a call of a script that has keys, or does what one does.
fn is_script(words: &[&str]) -> bool {
    keys_of(words).is_some()
}

/// How many keys it has, if it is a call of a script that has some, or does what one does.
pub(super) fn keys_of<'a>(words: &[&'a str]) -> Option<&'a str> {
    match *words {
        ["EVALSHA" | "EVAL", _, keys, _, ..] if keys != "0" => Some(keys),
        ["SET", _, _, "NX", ..] | ["DELIFEQ" | "DELEX", ..] => Some("1"),
        _ => None,
    }
}
