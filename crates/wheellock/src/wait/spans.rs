//! The spans of the lock layer.
//!
//! There is one span around each wait for a lock and one around each hold. They go through `tracing` if that feature is on. This module
//! owns their names and fields. Without the feature the spans cost nothing: they add no bytes to a guard and no step to any path.

#[cfg(not(feature = "tracing"))]
pub(crate) use off::{HoldSpan, acquiring};
#[cfg(feature = "tracing")]
pub(crate) use on::{HoldSpan, acquiring};

use crate::base::attempt::Attempt;

/// The lock that a span describes.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "tracing"), allow(dead_code, reason = "nobody listens"))]
pub(crate) struct Subject<'a> {
    pub(crate) lock: &'a str,
    pub(crate) kind: &'static str,
}

/// The result of a wait, with its own span or several spans.
#[cfg_attr(not(feature = "tracing"), allow(dead_code, reason = "nobody listens"))]
pub(crate) trait Held {
    /// Returns how the span of the wait ends.
    fn outcome(&self) -> &'static str {
        "granted"
    }

    /// Begins the span of the hold, because the caller has the hold from now on. Called outside of the span of the wait. Otherwise that
    /// span could not end before the hold's.
    fn begin_span(&mut self);
}

/// Held if another holder still had the lock when the wait ended.
impl<T: Held> Held for Attempt<T> {
    fn outcome(&self) -> &'static str {
        match self {
            Self::Acquired(held) => held.outcome(),
            Self::Held { .. } => "held",
        }
    }

    fn begin_span(&mut self) {
        if let Self::Acquired(held) = self {
            held.begin_span();
        }
    }
}

/// Each hold of a joint grant has its own span.
impl<T: Held> Held for Vec<T> {
    fn begin_span(&mut self) {
        self.iter_mut().for_each(T::begin_span);
    }
}

/// As for an [`Attempt`].
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
    /// The server has confirmed the release.
    Released,
    /// Another task of this process has the hold.
    HandedOver,
    /// The hold was lost before.
    Lost,
    /// The release was sent, but no caller waits for the server's reply, or the reply did not arrive.
    Dropped,
    /// The hold stays on the server.
    Left,
}

#[cfg(feature = "tracing")]
mod on {
    use std::panic::{RefUnwindSafe, UnwindSafe};
    use std::pin::pin;
    use std::time::Instant;

    use tracing::{Span, field};

    use super::{End, Held, Subject};
    use crate::base::error::Error;

    /// Target of the spans. The target, the span names and the field names are part of the public interface.
    const TARGET: &str = "wheellock::lock";

    /// Polls the future of `wait` within a span and records how it ended. `is_final` is true if the caller gets the result.
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
        // Without a subscriber, do not read the clock. Otherwise every acquire pays for a time that no span records.
        let began = (!span.is_disabled()).then(Instant::now);
        let mut waiting = Waiting { span, began };
        let mut result = {
            let mut wait = pin!(wait());
            std::future::poll_fn(|cx| {
                // Enter per poll. A span that stays entered across an await would contain the events of other tasks.
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
        // Close the span of the wait before the span of the hold begins, so that subscribers see them in this order.
        drop(waiting);
        if let (true, Ok(held)) = (is_final, &mut result) {
            held.begin_span();
        }
        result
    }

    struct Waiting {
        span: Span,
        /// Start of the wait. `None` after its end, or if the span is disabled.
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

    // A panic of a subscriber is the subscriber's matter. The span itself is only entered.
    impl UnwindSafe for HoldSpan {}
    impl RefUnwindSafe for HoldSpan {}

    impl HoldSpan {
        /// Returns no span, for a hold without a wait or not granted yet.
        pub(crate) const fn none() -> Self {
            Self { span: Span::none(), is_over: true }
        }

        pub(crate) fn begin(Subject { lock, kind }: Subject<'_>) -> Self {
            let span = tracing::debug_span!(target: TARGET, "hold", lock, kind, outcome = field::Empty);
            Self { is_over: span.is_disabled(), span }
        }

        /// Records how the hold ended. The span closes when it is dropped.
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

    // The type adds no bytes to a guard.
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
