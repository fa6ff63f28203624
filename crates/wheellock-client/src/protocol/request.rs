//! A caller's request with borrowed parameters.

use std::borrow::Cow;

use bytes::BytesMut;
use wheellock_resp::{Arg, Command};

use crate::base::retry::Retry;
use crate::base::script::Script;
use crate::protocol::exclusive;

/// A caller's request.
#[derive(Clone, Copy)]
pub(crate) enum Request<'a> {
    Command(&'a Command<'a>),
    EvalSha(Eval<'a>),
    Eval(Eval<'a>),
}

/// A script with its parameters. The keys come first, then the arguments.
#[derive(Clone, Copy)]
pub(crate) struct Eval<'a> {
    pub(crate) script: &'a Script,
    pub(crate) keys: usize,
    pub(crate) params: &'a [Arg<'a>],
}

impl<'a> Request<'a> {
    pub(crate) fn encode(&self, out: &mut BytesMut) {
        match self {
            Request::Command(command) => command.encode(out),
            Request::EvalSha(eval) => eval.script.encode_evalsha(eval.keys, eval.params, out),
            Request::Eval(eval) => eval.script.encode_eval(eval.keys, eval.params, out),
        }
    }

    /// Returns the command's name for error messages.
    pub(crate) fn name(&self) -> &'a str {
        match self {
            Request::Command(command) => command.name(),
            Request::EvalSha(_) => "EVALSHA",
            Request::Eval(_) => "EVAL",
        }
    }

    /// Returns this request in the form that the next attempt sends.
    pub(crate) fn retried(self, retry: &Retry) -> Self {
        match self {
            Request::EvalSha(eval) | Request::Eval(eval) if retry.is_in_full() => Request::Eval(eval),
            request => request,
        }
    }

    /// Returns the reason why the client cannot send the request on a shared connection, or why its parameters are
    /// wrong.
    #[inline]
    pub(crate) fn objection(&self) -> Option<Cow<'static, str>> {
        match self {
            Request::Command(command) => exclusive::objection(command).map(Cow::Borrowed),
            Request::EvalSha(eval) | Request::Eval(eval) => {
                let arity = eval.script.arity();
                let fits = arity.is_some_and(|(_, count)| count == eval.params.len());
                (!fits).then(|| wrong_arity(eval.params.len(), arity).into())
            }
        }
    }

    /// Returns the key that decides which cluster node serves the request. For a command, the key is its first
    /// argument.
    pub(crate) fn key(&self) -> Option<Arg<'a>> {
        match self {
            Request::Command(command) => command.iter().nth(1),
            Request::EvalSha(eval) | Request::Eval(eval) => {
                eval.params.first().filter(|_| eval.keys > 0).copied()
            }
        }
    }

    /// Returns the error text if the request can never fit a queue of at most `bound` bytes.
    #[inline]
    pub(crate) fn excess(&self, bound: usize) -> Option<String> {
        (self.payload() > bound)
            .then(|| format!("it is larger than the queue of this connection may be, which is {bound} bytes"))
    }

    /// Returns the request's size in bytes, without the few bytes of the protocol's framing.
    #[inline]
    fn payload(&self) -> usize {
        fn all<'a>(args: impl Iterator<Item = Arg<'a>>) -> usize {
            args.map(|arg| match arg {
                Arg::Bytes(bytes) => bytes.len(),
                Arg::Int(_) | Arg::Uint(_) => 0,
            })
            .fold(0, usize::saturating_add)
        }
        match self {
            Request::Command(command) => all(command.iter()),
            Request::EvalSha(eval) => all(eval.params.iter().copied()),
            Request::Eval(eval) => all(eval.params.iter().copied()).saturating_add(eval.script.text().len()),
        }
    }

    pub(crate) fn is_script(&self) -> bool {
        !matches!(self, Request::Command(_))
    }
}

#[cold]
fn wrong_arity(given: usize, arity: Option<(usize, usize)>) -> String {
    let wants =
        arity.map_or("a varying number of keys".to_owned(), |(_, count)| format!("{count} parameters"));
    format!("the script takes {wants}, and {given} parameters were given")
}
