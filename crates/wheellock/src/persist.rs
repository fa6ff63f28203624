//! One idempotent script, repeated while that can help. Owns the judgement which failures a repetition may heal.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use wheellock_client::planted::bug;
use wheellock_client::{Arg, CallOptions, EvalCall, Script, Value};
use wheellock_wheel::Sleep;

use crate::clock::BootInstant;
use crate::error::Outcome;
use crate::manager::Inner;

/// The end of a call that was repeated while that could help.
pub(crate) struct Persisted {
    pub(crate) result: Result<Value, wheellock_client::Error>,
    /// Just before the request was sent that was answered.
    pub(crate) sent: BootInstant,
    /// An earlier or the last request may have been executed without an answer.
    pub(crate) ambiguous: bool,
}

/// See [`persist`]. Hand-written: every waiter's future contains one, and an async function would keep its arguments twice.
pub(crate) struct Persist<'a> {
    inner: &'a Inner,
    call: EvalCall<'a>,
    deadline: Instant,
    sent: Option<BootInstant>,
    ambiguous: bool,
    pause: Option<Box<Sleep>>,
}

/// Runs an idempotent script, and again when the connection broke or the server was not ready, until `deadline` or the
/// response timeout, whichever is earlier. `keys` is for a script that takes any number of them.
pub(crate) fn persist<'a>(
    inner: &'a Inner,
    script: &'a Script,
    keys: Option<usize>,
    params: &'a [Arg<'a>],
    deadline: Option<Instant>,
    reserved: bool,
) -> Persist<'a> {
    let config = inner.client.config();
    let patience = config.timer.now() + config.response_timeout;
    let deadline = deadline.map_or(patience, |deadline| deadline.min(patience));
    let options = CallOptions::by(deadline);
    let options = if reserved { options.reserved() } else { options };
    let call = match keys {
        None => inner.client.eval_with(script, params, options),
        Some(keys) => inner.client.eval_keys(script, keys, params, options),
    };
    Persist { inner, call, deadline, sent: None, ambiguous: false, pause: None }
}

impl Future for Persist<'_> {
    type Output = Persisted;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Persisted> {
        let this = &mut *self;
        let timer = &this.inner.client.config().timer;
        loop {
            if let Some(pause) = &mut this.pause {
                ready!(Pin::new(&mut **pause).poll(cx));
                this.pause = None;
            }
            let sent = *this.sent.get_or_insert_with(|| this.inner.clock.now());
            let result = ready!(Pin::new(&mut this.call).poll(cx));
            let pause = result.as_ref().err().and_then(|error| {
                this.ambiguous |= error.outcome() == Outcome::MaybeExecuted;
                if bug("nothing is repeated") {
                    return None;
                }
                pause_before_repeating(error).filter(|pause| timer.now() + *pause < this.deadline)
            });
            let Some(pause) = pause else {
                return Poll::Ready(Persisted { result, sent, ambiguous: this.ambiguous });
            };
            this.sent = None;
            this.call.repeat();
            if !pause.is_zero() {
                this.pause = Some(Box::new(timer.sleep(pause)));
            }
        }
    }
}

/// How long to wait before the same request has a chance; `None` if it has none.
fn pause_before_repeating(error: &wheellock_client::Error) -> Option<Duration> {
    use wheellock_client::ErrorKind;
    match (error.kind(), error.code()) {
        // The next connection is waited for in the queue.
        (ErrorKind::ConnectionLost | ErrorKind::Protocol, _) => Some(Duration::ZERO),
        (_, Some("LOADING" | "BUSY" | "MASTERDOWN" | "TRYAGAIN" | "CLUSTERDOWN")) => {
            Some(Duration::from_millis(10))
        }
        _ => None,
    }
}
