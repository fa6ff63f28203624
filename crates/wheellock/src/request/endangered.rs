//! The wait until a hold may soon be lost.
//!
//! This module derives that instant from the lease's end. It sends no request, and the watchdog does not know of it.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::base::clock::BootInstant;
use crate::request::context::Context;

/// Waits until the instant that `at` returns has passed, or until `lost` resolves. A renewal moves the instant. `None`
/// means that the hold is lost.
pub(crate) async fn until_endangered(
    context: &Context,
    at: impl Fn() -> Option<BootInstant>,
    lost: impl Future,
) {
    let late = async {
        while let Some(left) = time_left(context, at()) {
            context.client.config().timer.sleep(left).await;
        }
    };
    let (mut late, mut lost) = (pin!(late), pin!(lost));
    std::future::poll_fn(|cx| {
        let is_over = lost.as_mut().poll(cx).is_ready() || late.as_mut().poll(cx).is_ready();
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Returns the pause before the next look at the clock, or `None` if the instant has passed.
fn time_left(context: &Context, at: Option<BootInstant>) -> Option<Duration> {
    let left = at?.saturating_duration_since(context.clock.now());
    // While the machine is suspended, the lease's clock runs and the timer does not.
    let left = if context.clock.outruns_timers() { left.min(LONGEST_SLEEP) } else { left };
    Some(left).filter(|left| !left.is_zero())
}

/// Longest pause between two looks at a clock that may outrun the timer.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
