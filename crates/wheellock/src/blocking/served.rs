//! The background thread that serves all blocking managers.
//!
//! The last handle of a manager waits for that thread's last replies.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Handle};
use wheellock_client::Client;
use wheellock_wheel::PerProcess;

use crate::{Error, LockManager};

/// The runtime of a manager and of everything that was made with it.
///
/// The last handle waits for the server's replies when it is dropped. The background thread ends with the process, and would
/// leave requests unsent. A server that can no longer reply also discards requests that it has not read yet.
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

    pub(super) fn of_members(members: Vec<Arc<Self>>) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self { runtime: background()?, client: None, members }))
    }

    #[track_caller]
    pub(super) fn block_on<F: Future>(&self, future: F) -> F::Output {
        block_on(self.runtime, future)
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

/// Longest time for which the last handle waits for replies, and the pause between two checks.
const LAST_ANSWERS: Duration = Duration::from_millis(100);
const LAST_LOOKS: Duration = Duration::from_micros(50);

/// Blocks the thread until `future` has ended.
///
/// # Panics
///
/// In asynchronous code, at the place of the public call; or with the panic of `future`.
#[track_caller]
pub(super) fn block_on<F: Future>(runtime: &Handle, future: F) -> F::Output {
    let has_begun = Cell::new(false);
    let work = async {
        has_begun.set(true);
        future.await
    };
    match catch_unwind(AssertUnwindSafe(|| runtime.block_on(work))) {
        Ok(output) => output,
        Err(panic) if has_begun.get() => resume_unwind(panic),
        // tokio refuses before the first poll. Its message names neither the call nor the remedy.
        Err(_) => misused(),
    }
}

#[expect(clippy::panic, reason = "as documented: a blocked worker would stop the tasks of its runtime")]
#[track_caller]
fn misused() -> ! {
    panic!(
        "a blocking call in asynchronous code: await the same call of the asynchronous manager, which `to_async()` returns, \
         or make this call in `tokio::task::spawn_blocking`"
    )
}

/// Returns the runtime of the background thread. After `fork()` the child starts a thread of its own, because the parent's thread
/// does not live on in the child.
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
