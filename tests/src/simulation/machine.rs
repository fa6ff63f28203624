//! The simulated machine: one server, its clock, the way to it, and the log of all that happens. Nothing in it reads a real clock.

use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use wheellock::client::Timer;
use wheellock::client::memory::{Connector, Pipe};
use wheellock::testing::server::{Network, Server};

use super::plan::{Kind, LOCKS};
use crate::history::{Event, What};

/// All that has happened, on one clock. Clones are the same log.
#[derive(Clone)]
pub(super) struct Log(Arc<Inner>);

struct Inner {
    events: Mutex<Vec<Event>>,
    timer: Timer,
    start: Instant,
}

impl Log {
    fn new(timer: Timer) -> Self {
        let start = timer.now();
        Self(Arc::new(Inner { events: Mutex::default(), timer, start }))
    }

    /// Nanoseconds since the world began. The first one is missing, as it is on a manager's clock.
    pub(super) fn now(&self) -> u64 {
        let elapsed = self.0.timer.now().saturating_duration_since(self.0.start);
        u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX).max(1)
    }

    pub(super) fn record(&self, process: u32, task: u32, op: u64, lock: &str, what: What) {
        let event = Event { at: self.now(), process, task, op, lock: lock.to_owned(), what };
        self.0.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    /// Of the fleet itself.
    pub(super) fn note(&self, lock: &str, what: What) {
        self.record(0, 0, 0, lock, what);
    }

    pub(super) fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.0.events.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A server that serves whenever it is written to, on the spot.
pub(super) struct Machine {
    server: Mutex<Server>,
    pub(super) network: Arc<Network>,
    bell: Waker,
    /// There is something to do.
    is_wanted: AtomicBool,
    pub(super) timer: Timer,
    pub(super) log: Log,
    /// How far the server's clock is off, in milliseconds.
    pub(super) off: AtomicI64,
    books: Option<Mutex<Books>>,
}

/// What the log knows of the queues of fair locks.
#[derive(Default)]
struct Books {
    queued: HashSet<String>,
    served: HashSet<String>,
}

impl Machine {
    pub(super) fn new(kind: Kind) -> Arc<Self> {
        let timer = Timer::tokio(Duration::from_millis(1));
        Arc::new_cyclic(|machine: &Weak<Self>| {
            let bell = Waker::from(Arc::new(Bell(machine.clone())));
            let network = Arc::new(Network::waking(bell.clone()));
            let mut server = Server::new(Arc::clone(&network));
            server.store.forgets = true;
            server.faults.counts = false;
            Self {
                server: Mutex::new(server),
                network,
                bell,
                is_wanted: AtomicBool::new(false),
                log: Log::new(timer.clone()),
                timer,
                off: AtomicI64::new(0),
                books: (kind == Kind::Fair).then(Mutex::default),
            }
        })
    }

    /// Changes something about the server, and then has it do what follows.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Server) -> T) -> T {
        let mut server = self.lock();
        self.set_clock(&mut server);
        let changed = change(&mut server);
        drop(server);
        self.serve();
        changed
    }

    fn lock(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        self.is_wanted.store(true, Ordering::SeqCst);
        while self.is_wanted.load(Ordering::SeqCst) {
            let mut server = match self.server.try_lock() {
                Ok(server) => server,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                // It looks again when it is done.
                Err(TryLockError::WouldBlock) => return,
            };
            self.is_wanted.store(false, Ordering::SeqCst);
            self.set_clock(&mut server);
            while server.serve() {
                self.keep_books(&server);
            }
            let (due, now) = (server.next_due(), server.store.now());
            drop(server);
            if let Some(due) = due {
                let at = self.timer.now() + Duration::from_millis(due.saturating_sub(now));
                // What could have left by now is held up by something whose end serves again.
                if self.timer.schedule(at, self.bell.clone()).is_err() && due > now {
                    self.is_wanted.store(true, Ordering::SeqCst);
                }
            }
        }
    }

    fn set_clock(&self, server: &mut Server) {
        let elapsed = i64::try_from(self.log.now() / 1_000_000).unwrap_or(i64::MAX);
        let now = BEGAN + elapsed + self.off.load(Ordering::SeqCst);
        server.store.set_now(now.unsigned_abs());
    }

    fn keep_books(&self, server: &Server) {
        let Some(books) = &self.books else { return };
        let mut books = books.lock().unwrap_or_else(PoisonError::into_inner);
        for lock in (0..LOCKS).map(lock_name) {
            for (_, holder, _) in server.store.holds().filter(|(key, ..)| *key == lock) {
                if books.served.insert(holder.to_owned()) {
                    self.log.note(&lock, What::Served { owner: holder.to_owned() });
                }
            }
            for owner in server.store.queue(&format!("redisson_lock_queue:{{{lock}}}")) {
                if books.queued.insert(owner.clone()) {
                    self.log.note(&lock, What::Queued { owner });
                }
            }
        }
    }
}

struct Bell(Weak<Machine>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        if let Some(machine) = self.0.upgrade() {
            machine.serve();
        }
    }
}

/// One process' way to the server, which others do not share.
#[derive(Clone)]
pub(super) struct Way {
    is_shut: Arc<AtomicBool>,
    last: Arc<Mutex<Option<Pipe>>>,
}

impl Way {
    pub(super) fn new() -> Self {
        Self { is_shut: Arc::new(AtomicBool::new(false)), last: Arc::default() }
    }

    pub(super) fn connector(&self, machine: &Machine) -> Connector {
        let (way, open) = (self.clone(), machine.network.connector());
        Arc::new(move || {
            if way.is_shut.load(Ordering::SeqCst) {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let pipe = open()?;
            *way.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(pipe.clone());
            Ok(pipe)
        })
    }

    /// Breaks the connection, and lets no other be made.
    pub(super) fn shut(&self) {
        self.is_shut.store(true, Ordering::SeqCst);
        if let Some(pipe) = self.last.lock().unwrap_or_else(PoisonError::into_inner).take() {
            pipe.rst();
        }
    }

    pub(super) fn open(&self) {
        self.is_shut.store(false, Ordering::SeqCst);
    }
}

pub(super) fn lock_name(number: u64) -> String {
    format!("lock:{number}")
}

/// When the server's clock began, in milliseconds since 1970.
const BEGAN: i64 = 1_700_000_000_000;
