//! Worlds of connections in memory and a manual clock.
//!
//! Tasks run until there is no more work.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use wheellock_client::memory::Pipe;
use wheellock_client::{Config, Timer};
use wheellock_wheel::ManualClock;

/// Turns of the run queue after which no task has more work.
pub(crate) const TURNS: usize = 12;

/// Connections that were opened and are not served yet.
pub(crate) type Pipes = Arc<Mutex<VecDeque<Pipe>>>;

/// Returns a client's configuration, its clock, and the queue of its new connections.
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

/// Runs all tasks until they have no more work, while the clock stands still. `serve` runs after all other tasks. They read its replies
/// in the next turn.
pub(crate) async fn settle(mut serve: impl FnMut()) {
    for _ in 0..TURNS {
        tokio::task::yield_now().await;
        serve();
    }
}

pub(crate) fn virtual_time(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test);
}
