//! A server that runs inside its clients' writes.
//!
//! This module owns the server's clock, and the time at which the server runs again.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::task::{Poll, Wake, Waker};
use std::time::{Duration, Instant};

use wheellock_client::Timer;

use super::{Network, Server};

/// A server that runs without a task of its own.
pub struct Host {
    server: Mutex<Server>,
    network: Arc<Network>,
    bell: Waker,
    /// The server has work. The thread that serves checks this again after unlocking, so a writer need not wait for the
    /// lock.
    is_wanted: AtomicBool,
    timer: Timer,
    /// The time at which the server's clock showed `began`.
    start: Instant,
    /// First time of the server's clock, in milliseconds since 1970.
    began: u64,
    /// Offset of the server's clock, in milliseconds.
    off: AtomicI64,
    /// Time at which the bell rings next, in milliseconds since `start`.
    rings: Mutex<u64>,
    /// The task that takes the server's turns. If `None`, every writer serves.
    turner: Mutex<Option<Waker>>,
    after_serving: Box<dyn Fn(&Server) + Send + Sync>,
}

impl Host {
    /// Creates a server without data. Its clock starts at `began`, in milliseconds since 1970, and runs with `timer`.
    /// `after_serving` gets the server after each of its turns.
    pub fn new(
        timer: Timer,
        began: u64,
        after_serving: impl Fn(&Server) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new_cyclic(|host: &Weak<Self>| {
            let bell = Waker::from(Arc::new(Bell(host.clone())));
            let network = Arc::new(Network::waking(bell.clone()));
            let mut server = Server::new(Arc::clone(&network));
            server.store.forgets = true;
            server.faults.counts = false;
            Self {
                server: Mutex::new(server),
                network,
                bell,
                is_wanted: AtomicBool::new(false),
                start: timer.now(),
                timer,
                began,
                off: AtomicI64::new(0),
                rings: Mutex::new(0),
                turner: Mutex::new(None),
                after_serving: Box::new(after_serving),
            }
        })
    }

    /// Returns the network in front of the server.
    pub fn network(&self) -> &Arc<Network> {
        &self.network
    }

    /// Returns the timer of the server's clock.
    pub fn timer(&self) -> &Timer {
        &self.timer
    }

    /// Changes the server, and then serves.
    pub fn change<T>(&self, change: impl FnOnce(&mut Server) -> T) -> T {
        let mut server = self.lock();
        self.set_clock(&mut server);
        let changed = change(&mut server);
        drop(server);
        self.serve();
        changed
    }

    /// Sets the server's clock forward by `millis` milliseconds, or back.
    pub fn set_clock_by(&self, millis: i64) {
        self.off.fetch_add(millis, Ordering::SeqCst);
        self.change(|server| server.clock_was_set(millis));
    }

    /// Serves for ever, one turn at a time. Other tasks run between two turns, so bytes trickle in as they do on a
    /// wire. From the first poll on only this task serves.
    pub async fn take_turns(&self) {
        std::future::poll_fn(|cx| {
            *self.turner.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
            if self.serve_up_to(1) {
                cx.waker().wake_by_ref();
            }
            Poll::<()>::Pending
        })
        .await;
    }

    fn serve(&self) {
        let turner = self.turner.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match turner {
            Some(turner) => turner.wake(),
            None => _ = self.serve_up_to(usize::MAX),
        }
    }

    /// Serves for at most `turns` turns. Returns true if there may be more work.
    fn serve_up_to(&self, turns: usize) -> bool {
        let mut moves = false;
        self.is_wanted.store(true, Ordering::SeqCst);
        while self.is_wanted.load(Ordering::SeqCst) {
            let mut server = match self.server.try_lock() {
                Ok(server) => server,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                // The thread that has the lock checks `is_wanted` again.
                Err(TryLockError::WouldBlock) => return false,
            };
            // Cleared before serving, so that a write meanwhile sets it again and the loop serves once more.
            self.is_wanted.store(false, Ordering::SeqCst);
            self.set_clock(&mut server);
            let mut left = turns;
            while left > 0 && server.serve() {
                (self.after_serving)(&server);
                left -= 1;
            }
            moves = left == 0;
            let due = server.next_due();
            let now = server.store.now();
            drop(server);
            if let Some(due) = due {
                self.look_again(due, now);
            }
        }
        moves
    }

    /// Schedules the server for `due`, when its next delayed reply leaves. An earlier bell schedules it again.
    fn look_again(&self, due: u64, now: u64) {
        let off = self.off.load(Ordering::SeqCst);
        let since = due.saturating_sub(self.began).saturating_add_signed(-off);
        let mut rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        if *rings <= since && *rings > self.elapsed() {
            return;
        }
        match self.timer.schedule(self.start + Duration::from_millis(since), self.bell.clone()) {
            Ok(_) => *rings = since,
            // `due` has passed meanwhile, so serve at once. If the timer has ended, no client could receive the reply.
            Err(_) if due > now => self.is_wanted.store(self.millis() >= due, Ordering::SeqCst),
            Err(_) => {}
        }
    }

    /// Sets the store's clock. Only the thread that has locked the server sets it. So the clock goes back only when a
    /// test sets it back.
    fn set_clock(&self, server: &mut Server) {
        server.store.set_now(self.millis());
    }

    fn millis(&self) -> u64 {
        self.began.saturating_add(self.elapsed()).saturating_add_signed(self.off.load(Ordering::SeqCst))
    }

    fn elapsed(&self) -> u64 {
        let elapsed = self.timer.now().saturating_duration_since(self.start).as_millis();
        u64::try_from(elapsed).unwrap_or(u64::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("server", &self.server).finish_non_exhaustive()
    }
}

/// Serves when woken, while the host lives.
struct Bell(Weak<Host>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        if let Some(host) = self.0.upgrade() {
            host.serve();
        }
    }
}
