//! A Lua script and what is needed to call it by its hash. Owns the text and the encodings; knows no connection.

use std::fmt;

use bytes::BytesMut;
use wheellock_resp::{Arg, Command, EvalSha};

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
        Self { text, sha: sha1_smol::Sha1::from(text).digest().to_string(), fixed: None }
    }

    /// The Lua text.
    pub fn text(&self) -> &'static str {
        self.text
    }

    /// The lowercase hexadecimal SHA-1 of the text.
    pub fn sha(&self) -> &str {
        &self.sha
    }

    /// How many keys and how many parameters altogether a call passes; `None` if that varies.
    pub(crate) fn arity(&self) -> Option<(usize, usize)> {
        self.fixed.as_ref().map(|fixed| (fixed.keys, fixed.params))
    }

    pub(crate) fn encode_evalsha(&self, keys: usize, params: &[Arg<'_>], out: &mut BytesMut) {
        let by_template = |fixed: &Fixed| fixed.keys == keys && fixed.template.encode(out, params).is_ok();
        if !self.fixed.as_ref().is_some_and(by_template) {
            encode("EVALSHA", &self.sha, keys, params, out);
        }
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
