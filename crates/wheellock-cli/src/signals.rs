//! The signals that this tool passes on or needs itself.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// The signals that request the end of a program.
const PASSED_ON: [Signal; 4] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM];

/// Receives signals to this process from its creation on.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Signal, Stream)>,
    /// The handler for SIGCHLD. Without a handler, a program that was started with SIGCHLD ignored does not learn how
    /// its children ended.
    _children: Stream,
}

impl Signals {
    /// Registers the handlers. Must be called within a runtime.
    pub(crate) fn new() -> io::Result<Self> {
        let ignored = ignored();
        let heeded = PASSED_ON.into_iter().filter(|signal| ignored & mask(*signal) == 0);
        let stream = |kind: Signal| Ok((kind, signal(SignalKind::from_raw(kind.as_raw()))?));
        Ok(Self {
            streams: heeded.map(stream).collect::<io::Result<_>>()?,
            _children: signal(SignalKind::child())?,
        })
    }

    /// Waits for the next signal. If the future is dropped, no signal is lost.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|cx| {
            let arrived = self.streams.iter_mut().find_map(|(signal, stream)| {
                matches!(stream.poll_recv(cx), Poll::Ready(Some(()))).then_some(*signal)
            });
            arrived.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// Returns the mask of the signals that this process was started to ignore, for example by `nohup`. A handler for
/// such a signal would also stop the command from ignoring it.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn mask(signal: Signal) -> u64 {
    u32::try_from(signal.as_raw() - 1).ok().and_then(|shift| 1_u64.checked_shl(shift)).unwrap_or(0)
}
