//! What every world here is made of: connections in memory, a clock that stands still, and tasks that run until nothing is left to do.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use wheellock_client::memory::Pipe;
use wheellock_client::{Config, Timer};
use wheellock_wheel::ManualClock;

/// Turns of the run queue after which nothing is left to happen by itself.
pub(crate) const TURNS: usize = 12;

/// Connections that were made and that nobody serves yet.
pub(crate) type Pipes = Arc<Mutex<VecDeque<Pipe>>>;

/// A client's configuration; its clock, and where its connections come in.
pub(crate) fn in_memory(url: &str) -> (Config, ManualClock, Pipes) {
    let (timer, clock) = Timer::manual(Duration::from_millis(1));
    let pipes = Pipes::default();
    let mut config: Config = url.parse().unwrap();
    (config.timer, config.random) = (timer, || 0);
    let connected = Arc::clone(&pipes);
    config.connector = Some(Arc::new(move || {
        let pipe = Pipe::new();
        connected.lock().unwrap().push_back(pipe.clone());
        Ok(pipe)
    }));
    (config, clock, pipes)
}

/// Lets everything happen that happens without time passing. After everybody's turn comes that of `serve`: what it answers is read in the
/// next one.
pub(crate) async fn settle(mut serve: impl FnMut()) {
    for _ in 0..TURNS {
        tokio::task::yield_now().await;
        serve();
    }
}

pub(crate) fn virtual_time(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test);
}
