//! Lua scripts and their encodings as calls.
//!
//! A script is called by its hash, or by native commands of the server that have the same effect. This module knows
//! no connection.

use std::fmt;
use std::sync::Arc;

use bytes::BytesMut;
use wheellock_resp::{Arg, Command, EvalSha, Value};

/// A Lua script.
///
/// The constructor computes the SHA-1 for `EVALSHA` and the head of the command once.
///
/// ```
/// use wheellock_client::Script;
///
/// let incr_if_exists = Script::new(
///     "if redis.call('exists', KEYS[1]) == 1 then return redis.call('incrby', KEYS[1], ARGV[1]) end",
///     1,
///     1,
/// );
/// assert_eq!(incr_if_exists.sha().len(), 40);
/// ```
pub struct Script {
    text: &'static str,
    sha: String,
    fixed: Option<Fixed>,
    pub(crate) part: Option<Part>,
    pub(crate) natives: &'static [Native],
}

/// The place of a script in another script, which does in one run the work of several such parts.
pub(crate) struct Part {
    pub(crate) whole: Arc<Script>,
    pub(crate) number: u8,
}

/// Native commands with the effect of a script, for servers that know them. They cost the server less than a script.
#[derive(Debug)]
pub struct Native {
    /// The servers that know the commands, by name and first version.
    pub known_by: &'static [(&'static str, (u32, u32))],
    /// One or two commands, each with its name first. The server executes the second command regardless of the first
    /// one's result.
    pub commands: &'static [&'static [Word]],
    /// Interprets the replies. The first reply is not an error. Returns `None` for replies that the commands never
    /// send.
    pub read: fn(&Value, Option<&Value>) -> Option<NativeReply>,
}

/// One word of a native command.
#[derive(Debug)]
pub enum Word {
    /// This text.
    Text(&'static str),
    /// The parameter of the script call at this index. Keys count as parameters.
    Param(usize),
}

/// The result of native commands.
#[derive(Debug)]
pub enum NativeReply {
    /// The value that the script would have returned.
    Done(Value),
    /// The commands had no effect, and the script must be run to find out why.
    Refused,
}

/// The encoded head of the command, for a script with a fixed number of parameters.
struct Fixed {
    keys: usize,
    params: usize,
    template: EvalSha,
}

impl Script {
    /// Creates a script whose calls always pass `keys` keys and then `args` arguments.
    pub fn new(text: &'static str, keys: usize, args: usize) -> Self {
        let mut script = Self::variadic(text);
        let template = EvalSha::new(&script.sha, keys, args);
        script.fixed = Some(Fixed { keys, params: keys + args, template });
        script
    }

    /// Creates a script whose calls pass a varying number of keys and arguments.
    pub fn variadic(text: &'static str) -> Self {
        let sha = sha1_smol::Sha1::from(text).digest().to_string();
        Self { text, sha, fixed: None, part: None, natives: &[] }
    }

    /// Returns this script as a part of `whole`. One run of `whole` does the work of several calls of its parts. The
    /// part has one key, and `whole` has at most nine parts.
    ///
    /// The client may then send calls from the same write as one call of `whole`. The keys of that call are the keys
    /// of the parts. Its arguments are, for each part, the part's number and the part's arguments. It returns for
    /// each part the value or error that the part would have returned. No part may prevent the others from running.
    #[doc(hidden)]
    #[must_use]
    pub fn as_part(&self, whole: &Arc<Self>, number: u8) -> Self {
        let script = match self.arity() {
            Some((keys, params)) => Self::new(self.text, keys, params - keys),
            None => Self::variadic(self.text),
        };
        Self { part: Some(Part { whole: Arc::clone(whole), number }), natives: self.natives, ..script }
    }

    /// Returns this script together with native commands that have the same effect. The script has one key and at
    /// most eight parameters. The client uses the first of `natives` that the server knows. If the server refuses the
    /// commands, or they had no effect, the client runs the script.
    #[doc(hidden)]
    #[must_use]
    pub fn natively(self, natives: &'static [Native]) -> Self {
        Self { natives, ..self }
    }

    /// Returns the Lua text.
    pub fn text(&self) -> &'static str {
        self.text
    }

    /// Returns the lowercase hexadecimal SHA-1 of the text.
    pub fn sha(&self) -> &str {
        &self.sha
    }

    /// Returns the number of keys and the number of parameters, including keys, of each call. Returns `None` if these
    /// numbers vary.
    pub fn arity(&self) -> Option<(usize, usize)> {
        self.fixed.as_ref().map(|fixed| (fixed.keys, fixed.params))
    }

    pub(crate) fn encode_evalsha(&self, keys: usize, params: &[Arg<'_>], out: &mut BytesMut) {
        let by_template = |fixed: &Fixed| fixed.keys == keys && fixed.template.encode(out, params).is_ok();
        if !self.fixed.as_ref().is_some_and(by_template) {
            encode("EVALSHA", &self.sha, keys, params, out);
        }
    }

    /// Encodes the beginning of a call. The caller appends the parameters.
    pub(crate) fn begin_evalsha(&self, keys: usize, params: usize, out: &mut BytesMut) {
        EvalSha::begin(&self.sha, keys, params, out);
    }

    pub(crate) fn encode_eval(&self, keys: usize, params: &[Arg<'_>], out: &mut BytesMut) {
        encode("EVAL", self.text, keys, params, out);
    }
}

fn encode(verb: &str, script: &str, keys: usize, params: &[Arg<'_>], out: &mut BytesMut) {
    Command::new(verb).arg(script).arg(keys).args(params).encode(out);
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script").field("sha", &self.sha).finish_non_exhaustive()
    }
}
