//! What a caller wants sent, with its parameters borrowed: how it is encoded, named, and which key it is about.

use bytes::BytesMut;
use wheellock_resp::{Arg, Command};

use crate::retry::Retry;
use crate::script::Script;

/// What a caller wants sent.
#[derive(Clone, Copy)]
pub(crate) enum Request<'a> {
    Command(&'a Command<'a>),
    EvalSha(Eval<'a>),
    Eval(Eval<'a>),
}

/// A script and its parameters: the keys, then the arguments.
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

    /// The command's name, for messages.
    pub(crate) fn name(&self) -> &'a str {
        match self {
            Request::Command(command) => match command.iter().next() {
                Some(Arg::Bytes(name)) => std::str::from_utf8(name).unwrap_or("a command"),
                _ => "a command",
            },
            Request::EvalSha(_) => "EVALSHA",
            Request::Eval(_) => "EVAL",
        }
    }

    /// The same request as it is to be made after earlier attempts.
    pub(crate) fn retried(self, retry: &Retry) -> Self {
        match self {
            Request::EvalSha(eval) | Request::Eval(eval) if retry.is_in_full() => Request::Eval(eval),
            request => request,
        }
    }

    /// The key that decides which node of a cluster serves this; the first argument is taken for it.
    pub(crate) fn key(&self) -> Option<Arg<'a>> {
        match self {
            Request::Command(command) => command.iter().nth(1),
            Request::EvalSha(eval) | Request::Eval(eval) => {
                eval.params.first().filter(|_| eval.keys > 0).copied()
            }
        }
    }

    /// Bytes of what it says; the protocol's own are few.
    #[inline]
    pub(crate) fn payload(&self) -> usize {
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
