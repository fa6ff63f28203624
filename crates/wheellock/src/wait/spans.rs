//! The spans of the lock layer, through `tracing` if that feature is on: one around each wait for a lock, one around each hold. Owns their
//! names and fields. Without the feature nothing is left of them: no bytes in a guard, no step on any way.

#[cfg(not(feature = "tracing"))]
pub(crate) use off::{HoldSpan, acquiring};
#[cfg(feature = "tracing")]
pub(crate) use on::{HoldSpan, acquiring};

/// What is waited for, or held.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "tracing"), allow(dead_code, reason = "nobody listens"))]
pub(crate) struct Subject<'a> {
    pub(crate) lock: &'a str,
    pub(crate) kind: &'static str,
}

/// What may come of waiting: it has a span of its own, or several.
#[cfg_attr(not(feature = "tracing"), allow(dead_code, reason = "nobody listens"))]
pub(crate) trait Held {
    /// How the span of the wait for it ends.
    fn outcome(&self) -> &'static str {
        "granted"
    }

    /// It is the caller's from now on. Called outside of the span of the wait, which could not end otherwise before the hold's.
    fn begin_span(&mut self);
}

/// `None` if another holder still had the lock when the wait was over.
impl<T: Held> Held for Option<T> {
    fn outcome(&self) -> &'static str {
        self.as_ref().map_or("held", T::outcome)
    }

    fn begin_span(&mut self) {
        if let Some(held) = self {
            held.begin_span();
        }
    }
}

/// Several that are granted together have a span each.
impl<T: Held> Held for Vec<T> {
    fn begin_span(&mut self) {
        self.iter_mut().for_each(T::begin_span);
    }
}

/// As of an `Option`.
impl<T: Held, L> Held for Result<T, L> {
    fn outcome(&self) -> &'static str {
        self.as_ref().map_or("held", T::outcome)
    }

    fn begin_span(&mut self) {
        if let Ok(held) = self {
            held.begin_span();
        }
    }
}

/// How a hold ends for its guard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(feature = "tracing"), allow(dead_code, reason = "nobody listens"))]
pub(crate) enum End {
    /// The server has confirmed that it was given back, or others of this process share it.
    Released,
    /// Another task of this process has it.
    HandedOver,
    /// It was lost before.
    Lost,
    /// It is given back, and nobody waits for the server's word, or that did not come.
    Dropped,
    /// It stays on the server.
    Left,
}

#[cfg(feature = "tracing")]
mod on {
    use std::pin::pin;
    use std::time::Instant;

    use tracing::{Span, field};

    use super::{End, Held, Subject};
    use crate::base::error::Error;

    /// A part of the interface, with the names of the spans and their fields.
    const TARGET: &str = "wheellock::lock";

    /// Polls what `wait` makes within a span, and records how it ended. `is_final` says whether what comes of it is the caller's.
    pub(crate) async fn acquiring<T: Held, F: Future<Output = Result<T, Error>>>(
        subject: Option<Subject<'_>>,
        is_final: bool,
        wait: impl FnOnce() -> F,
    ) -> Result<T, Error> {
        let span = subject.map_or_else(Span::none, |Subject { lock, kind }| {
            tracing::debug_span!(
                target: TARGET, "acquire", lock, kind,
                waited_us = field::Empty, outcome = field::Empty, error = field::Empty
            )
        });
        let began = (!span.is_disabled()).then(Instant::now);
        let mut waiting = Waiting { span, began };
        let mut result = {
            let mut wait = pin!(wait());
            std::future::poll_fn(|cx| {
                let _entered = waiting.span.enter();
                wait.as_mut().poll(cx)
            })
            .await
        };
        waiting.ends(|span| match &result {
            Ok(end) => end.outcome(),
            Err(error) => {
                span.record("error", field::display(error));
                "failed"
            }
        });
        drop(waiting);
        if let (true, Ok(held)) = (is_final, &mut result) {
            held.begin_span();
        }
        result
    }

    struct Waiting {
        span: Span,
        /// Until it has ended, or if nobody listens.
        began: Option<Instant>,
    }

    impl Waiting {
        fn ends(&mut self, outcome: impl FnOnce(&Span) -> &'static str) {
            if let Some(began) = self.began.take() {
                let waited = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
                self.span.record("waited_us", waited).record("outcome", outcome(&self.span));
            }
        }
    }

    impl Drop for Waiting {
        fn drop(&mut self) {
            self.ends(|_| "dropped");
        }
    }

    /// The span of one guard's hold.
    pub(crate) struct HoldSpan {
        span: Span,
        is_over: bool,
    }

    impl HoldSpan {
        /// For what nobody has waited for, or has not got yet.
        pub(crate) const fn none() -> Self {
            Self { span: Span::none(), is_over: true }
        }

        pub(crate) fn begin(Subject { lock, kind }: Subject<'_>) -> Self {
            let span = tracing::debug_span!(target: TARGET, "hold", lock, kind, outcome = field::Empty);
            Self { is_over: span.is_disabled(), span }
        }

        /// It closes when it is dropped.
        pub(crate) fn end(&mut self, how: impl FnOnce() -> End) {
            if std::mem::replace(&mut self.is_over, true) {
                return;
            }
            let outcome = match how() {
                End::Released => "released",
                End::HandedOver => "handed_over",
                End::Lost => "lost",
                End::Dropped => "dropped",
                End::Left => "left",
            };
            self.span.record("outcome", outcome);
        }
    }
}

#[cfg(not(feature = "tracing"))]
mod off {
    use super::{End, Held, Subject};
    use crate::base::error::Error;

    pub(crate) fn acquiring<T: Held, F: Future<Output = Result<T, Error>>>(
        _subject: Option<Subject<'_>>,
        _is_final: bool,
        wait: impl FnOnce() -> F,
    ) -> F {
        wait()
    }

    pub(crate) struct HoldSpan;

    // A guard is no bigger for it.
    const _: () = assert!(size_of::<HoldSpan>() == 0);

    #[allow(dead_code, reason = "nobody listens")]
    impl HoldSpan {
        pub(crate) const fn none() -> Self {
            Self
        }

        pub(crate) fn begin(_: Subject<'_>) -> Self {
            Self
        }

        #[expect(clippy::unused_self, reason = "nobody listens")]
        pub(crate) fn end(&mut self, _: impl FnOnce() -> End) {}
    }
}
