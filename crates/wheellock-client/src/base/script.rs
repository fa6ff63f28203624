//! A Lua script and what is needed to call it by its hash, or by commands of the server's own that do the same. Owns the text and the
//! encodings; knows no connection.

use std::fmt;
use std::sync::Arc;

use bytes::BytesMut;
use wheellock_resp::{Arg, Command, EvalSha, Value};

/// A Lua script.
///
/// The SHA-1 that `EVALSHA` names and the head of the command are computed once, here.
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
    part: Option<Part>,
    natives: &'static [Native],
}

/// Which part of another script a script is: that one does in one run what several calls of its parts ask for.
pub(crate) struct Part {
    pub(crate) whole: Arc<Script>,
    pub(crate) number: u8,
}

/// Commands of the server's own that do what a script does, where it knows them: they cost it less than a script.
#[derive(Debug)]
pub struct Native {
    /// Which servers know them, by name, and from which version on.
    pub known_by: &'static [(&'static str, (u32, u32))],
    /// One command, or two, of which the second is executed whatever comes of the first. Each begins with its name.
    pub commands: &'static [&'static [Word]],
    /// What they were answered with, the first of them not with an error; `None` if they never are.
    pub read: fn(&Value, Option<&Value>) -> Option<NativeReply>,
}

/// One word of a command that does what a script does.
#[derive(Debug)]
pub enum Word {
    /// This one.
    Text(&'static str),
    /// What the script's call has at this place of its parameters, the keys included.
    Param(usize),
}

/// What commands say that do what a script does.
#[derive(Debug)]
pub enum NativeReply {
    /// The same as the script would have returned.
    Done(Value),
    /// Nothing was done, and the script is to be asked why.
    Refused,
}

/// A script that always takes the same number of parameters has the head of its command encoded beforehand.
struct Fixed {
    keys: usize,
    params: usize,
    template: EvalSha,
}

impl Script {
    /// A script whose every call passes `keys` keys and then `args` arguments.
    pub fn new(text: &'static str, keys: usize, args: usize) -> Self {
        let mut script = Self::variadic(text);
        let template = EvalSha::new(&script.sha, keys, args);
        script.fixed = Some(Fixed { keys, params: keys + args, template });
        script
    }

    /// A script whose calls differ in how many keys and arguments they pass.
    pub fn variadic(text: &'static str) -> Self {
        let sha = sha1_smol::Sha1::from(text).digest().to_string();
        Self { text, sha, fixed: None, part: None, natives: &[] }
    }

    /// This script, of one key and up to nine parts, as a part of `whole`, which does in one run what several calls of its parts ask for.
    /// Calls that leave in the same write may then be sent as one of `whole`: its keys are theirs, its arguments are for each the number of
    /// the part and that one's arguments, and it returns for each what the part would have returned, an error included. None of them may
    /// keep the others from being run.
    #[doc(hidden)]
    #[must_use]
    pub fn as_part(&self, whole: &Arc<Self>, number: u8) -> Self {
        let script = match self.arity() {
            Some((keys, params)) => Self::new(self.text, keys, params - keys),
            None => Self::variadic(self.text),
        };
        Self { part: Some(Part { whole: Arc::clone(whole), number }), natives: self.natives, ..script }
    }

    /// This script, of one key and of up to eight parameters, with commands that do the same. A server gets the first of them that it
    /// knows. Whenever it refuses them, or they did nothing, the script is run.
    #[doc(hidden)]
    #[must_use]
    pub fn natively(self, natives: &'static [Native]) -> Self {
        Self { natives, ..self }
    }

    /// The Lua text.
    pub fn text(&self) -> &'static str {
        self.text
    }

    /// The lowercase hexadecimal SHA-1 of the text.
    pub fn sha(&self) -> &str {
        &self.sha
    }

    /// How many keys and how many parameters, keys included, a call passes; `None` if that varies.
    pub fn arity(&self) -> Option<(usize, usize)> {
        self.fixed.as_ref().map(|fixed| (fixed.keys, fixed.params))
    }

    pub(crate) fn part(&self) -> Option<&Part> {
        self.part.as_ref()
    }

    pub(crate) fn natives(&self) -> &'static [Native] {
        self.natives
    }

    pub(crate) fn encode_evalsha(&self, keys: usize, params: &[Arg<'_>], out: &mut BytesMut) {
        let by_template = |fixed: &Fixed| fixed.keys == keys && fixed.template.encode(out, params).is_ok();
        if !self.fixed.as_ref().is_some_and(by_template) {
            encode("EVALSHA", &self.sha, keys, params, out);
        }
    }

    /// The beginning of a call, behind which its parameters are still to be written.
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
