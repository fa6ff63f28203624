//! A server and who has it serve: whoever wrote to it, on the spot. Owns the server's clock, and when the server looks again.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::task::{Poll, Wake, Waker};
use std::time::{Duration, Instant};

use wheellock_client::Timer;

use super::{Network, Server};

/// A server that needs nobody who drives it.
pub struct Host {
    server: Mutex<Server>,
    network: Arc<Network>,
    bell: Waker,
    /// There is something to do for the server. Whoever serves looks again when he has unlocked it, so nobody waits for it who wrote.
    is_wanted: AtomicBool,
    timer: Timer,
    /// When the server's clock stood at `began`.
    start: Instant,
    /// In milliseconds since 1970.
    began: u64,
    /// How far the server's clock is off, in milliseconds.
    off: AtomicI64,
    /// When the bell rings next, in milliseconds since `start`.
    rings: Mutex<u64>,
    /// Who has it take its turns, if not everybody who writes.
    turner: Mutex<Option<Waker>>,
    after_serving: Box<dyn Fn(&Server) + Send + Sync>,
}

impl Host {
    /// A server without data whose clock stands at `began`, in milliseconds since 1970, and goes as `timer` does. `after_serving` looks
    /// at it whenever it has done something.
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

    /// The way to the server.
    pub fn network(&self) -> &Arc<Network> {
        &self.network
    }

    /// What its time is made of.
    pub fn timer(&self) -> &Timer {
        &self.timer
    }

    /// Changes something about the server, and then has it do what follows.
    pub fn change<T>(&self, change: impl FnOnce(&mut Server) -> T) -> T {
        let mut server = self.lock();
        self.set_clock(&mut server);
        let changed = change(&mut server);
        drop(server);
        self.serve();
        changed
    }

    /// Sets the server's clock forward by so many milliseconds, or back.
    pub fn set_clock_by(&self, millis: i64) {
        self.off.fetch_add(millis, Ordering::SeqCst);
        self.change(|server| server.clock_was_set(millis));
    }

    /// Serves for ever, one turn at a time: between two turns others run, so that bytes that trickle arrive as they do on a wire. From
    /// the first poll on nobody else has the server serve.
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

    /// Serves for so many turns. Returns whether there may be more to do.
    fn serve_up_to(&self, turns: usize) -> bool {
        let mut moves = false;
        self.is_wanted.store(true, Ordering::SeqCst);
        while self.is_wanted.load(Ordering::SeqCst) {
            let mut server = match self.server.try_lock() {
                Ok(server) => server,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                // Whoever has it looks again.
                Err(TryLockError::WouldBlock) => return false,
            };
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

    /// Has the server serve at `due`, when an answer leaves that is held up; if the bell rings before, it comes back to that.
    fn look_again(&self, due: u64, now: u64) {
        let off = self.off.load(Ordering::SeqCst);
        let since = due.saturating_sub(self.began).saturating_add_signed(-off);
        let mut rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        if *rings <= since && *rings > self.elapsed() {
            return;
        }
        match self.timer.schedule(self.start + Duration::from_millis(since), self.bell.clone()) {
            Ok(_) => *rings = since,
            // It became due meanwhile; if its timer has ended, nobody is left whom it would reach.
            Err(_) if due > now => self.is_wanted.store(self.millis() >= due, Ordering::SeqCst),
            Err(_) => {}
        }
    }

    /// Only whoever has locked the server reads its clock, so the clock goes back where it is set back, and nowhere else.
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

/// Has the server serve when it is woken, as long as there is one.
struct Bell(Weak<Host>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        if let Some(host) = self.0.upgrade() {
            host.serve();
        }
    }
}
