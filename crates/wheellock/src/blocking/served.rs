//! The background thread that serves the connections of all blocking managers, and the wait of their last handles for its
//! answers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Handle};
use wheellock_client::Client;
use wheellock_wheel::PerProcess;

use crate::{Error, LockManager};

/// What serves a manager and everything that was made with it. The last of them to go waits for the server's answers: the
/// background thread ends with the process, whatever it was about to send, and a server that cannot answer any more throws
/// away what it has not read yet.
#[derive(Debug)]
pub(super) struct Served {
    runtime: &'static Handle,
    client: Option<Client>,
    #[expect(dead_code, reason = "held only to be dropped")]
    members: Vec<Arc<Self>>,
}

impl Served {
    pub(super) fn new(runtime: &'static Handle, manager: &LockManager) -> Arc<Self> {
        Arc::new(Self { runtime, client: Some(manager.client().clone()), members: Vec::new() })
    }

    pub(super) fn together(members: Vec<Arc<Self>>) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self { runtime: background()?, client: None, members }))
    }

    pub(super) fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let Some(client) = &self.client else { return };
        let began = Instant::now();
        let unanswered = || {
            let stats = client.stats();
            client.is_ready() && (stats.in_flight, stats.queued_bytes) != (0, 0)
        };
        while unanswered() && began.elapsed() < LAST_ANSWERS {
            std::thread::sleep(LAST_LOOKS);
        }
    }
}

/// How long the last handle waits for answers, and how long between two looks.
const LAST_ANSWERS: Duration = Duration::from_millis(100);
const LAST_LOOKS: Duration = Duration::from_micros(50);

/// The runtime of the background thread. After `fork()` the child starts a thread of its own, because that of its parent does not live on
/// there.
pub(super) fn background() -> Result<&'static Handle, Error> {
    static BACKGROUND: PerProcess<Result<Handle, Error>> = PerProcess::new();
    let start = || {
        let failed = |error: std::io::Error| Error::NoBackgroundThread { reason: error.to_string() };
        let runtime = Builder::new_current_thread().enable_io().build().map_err(failed)?;
        let handle = runtime.handle().clone();
        let serve = move || runtime.block_on(std::future::pending::<()>());
        std::thread::Builder::new().name("wheellock-blocking".to_owned()).spawn(serve).map_err(failed)?;
        Ok(handle)
    };
    BACKGROUND.get_or_init(start).as_ref().map_err(Clone::clone)
}
