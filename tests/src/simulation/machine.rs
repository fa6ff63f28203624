//! The simulated server, its clock, its network and the log.
//!
//! Does not read a real clock.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use wheellock::client::Timer;
use wheellock::client::memory::{Connector, WeakPipe};
use wheellock::testing::server::{Host, Server};

use super::plan::{Kind, LOCKS, Plan};
use crate::history::{Event, What};

/// The log of all events, on a single clock. Clones share the log.
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

    /// Returns the nanoseconds since the world began, at least 1. A manager's clock does not have the value 0 either.
    pub(super) fn now(&self) -> u64 {
        self.elapsed().max(1)
    }

    /// Returns the nanoseconds since the world began.
    pub(super) fn elapsed(&self) -> u64 {
        let elapsed = self.0.timer.now().saturating_duration_since(self.0.start);
        u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
    }

    pub(super) fn record(&self, process: u32, task: u32, op: u64, lock: &str, what: What) {
        let event = Event { at: self.now(), process, task, op, lock: lock.to_owned(), what };
        self.0.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    /// Records an event of the fleet itself.
    pub(super) fn note(&self, lock: &str, what: What) {
        self.record(0, 0, 0, lock, what);
    }

    pub(super) fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.0.events.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A server, the network to it, and the observers of its changes.
pub(super) struct Machine {
    pub(super) host: Arc<Host>,
    pub(super) log: Log,
    /// Notified of each write.
    pub(super) changed: Arc<Notify>,
}

impl Machine {
    /// Makes all servers that a fleet with locks of this kind needs. The servers share a log.
    pub(super) fn all(plan: &Plan) -> Vec<Arc<Self>> {
        let timer = Timer::tokio(Duration::from_millis(1));
        let log = Log::new(timer.clone());
        (0..plan.servers()).map(|number| Self::new(plan.kind, number, &timer, &log)).collect()
    }

    fn new(kind: Kind, number: u64, timer: &Timer, log: &Log) -> Arc<Self> {
        let (timer, log) = (timer.clone(), log.clone());
        let books = Mutex::new(Books::of(kind, log.clone()));
        let (changed, known) = (Arc::new(Notify::new()), AtomicU64::new(0));
        let told = Arc::clone(&changed);
        let host = Host::new(timer, BEGAN, move |server| {
            books.lock().unwrap_or_else(PoisonError::into_inner).keep(server);
            if known.swap(server.offset(), Ordering::SeqCst) != server.offset() {
                told.notify_waiters();
            }
        });
        host.change(|server| {
            server.store.run_id = format!("model-{number}");
            // The executed commands are counted at the end.
            server.store.forgets = false;
        });
        Arc::new(Self { host, log, changed })
    }

    /// Changes the server, and then makes the server act on the change.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Server) -> T) -> T {
        self.host.change(change)
    }
}

/// The records that the log gets after each action of a server.
enum Books {
    Queues(Queues),
    Latches(Latches),
    None,
}

impl Books {
    fn of(kind: Kind, log: Log) -> Self {
        match kind {
            Kind::Fair => Self::Queues(Queues { log, queued: HashSet::new(), served: HashSet::new() }),
            Kind::Latch => Self::Latches(Latches { log, known: HashMap::new() }),
            _ => Self::None,
        }
    }

    fn keep(&mut self, server: &Server) {
        match self {
            Self::Queues(queues) => queues.keep(server),
            Self::Latches(latches) => latches.keep(server),
            Self::None => {}
        }
    }
}

/// The logged states of latches.
struct Latches {
    log: Log,
    known: HashMap<String, What>,
}

impl Latches {
    fn keep(&mut self, server: &Server) {
        for name in (0..LOCKS).map(lock_name) {
            let latch = latch(server, &name);
            if self.known.insert(name.clone(), latch.clone()).as_ref() != Some(&latch) {
                self.log.note(&name, latch);
            }
        }
    }
}

/// The logged entries of the queues of fair locks.
struct Queues {
    log: Log,
    queued: HashSet<String>,
    served: HashSet<String>,
}

impl Queues {
    fn keep(&mut self, server: &Server) {
        for lock in (0..LOCKS).map(lock_name) {
            for (_, holder, _) in server.store.holds().filter(|(key, ..)| *key == lock) {
                if self.served.insert(holder.to_owned()) {
                    self.log.note(&lock, What::Served { owner: holder.to_owned() });
                }
            }
            for owner in server.store.queue(&format!("redisson_lock_queue:{{{lock}}}")) {
                if self.queued.insert(owner.clone()) {
                    self.log.note(&lock, What::Queued { owner });
                }
            }
        }
    }
}

/// A process' own network path to the servers.
#[derive(Clone)]
pub(super) struct Way {
    is_shut: Arc<AtomicBool>,
    /// The server of new connections.
    to: Arc<AtomicUsize>,
    /// The connections, each with its server.
    opened: Arc<Mutex<Vec<(usize, WeakPipe)>>>,
}

impl Way {
    pub(super) fn new() -> Self {
        Self { is_shut: Arc::new(AtomicBool::new(false)), to: Arc::default(), opened: Arc::default() }
    }

    pub(super) fn connector(&self, machines: &[Arc<Machine>]) -> Connector {
        let way = self.clone();
        let opens: Vec<_> = machines.iter().map(|machine| machine.host.network().connector()).collect();
        Arc::new(move || {
            if way.is_shut.load(Ordering::SeqCst) {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let to = way.to.load(Ordering::SeqCst);
            let pipe = opens.get(to).ok_or(io::ErrorKind::ConnectionRefused)?()?;
            let mut opened = way.opened();
            opened.retain(|(_, pipe)| pipe.upgrade().is_some());
            opened.push((to, pipe.downgrade()));
            Ok(pipe)
        })
    }

    /// Breaks the connections, and refuses new connections.
    pub(super) fn shut(&self) {
        self.is_shut.store(true, Ordering::SeqCst);
        let opened = self.opened().clone();
        opened.iter().filter_map(|(_, pipe)| pipe.upgrade()).for_each(|pipe| pipe.rst());
    }

    /// Leads new connections to this server. Ends the connections to other servers, if they are to end.
    pub(super) fn go_to(&self, server: usize, ends_others: bool) {
        self.to.store(server, Ordering::SeqCst);
        let others = self.opened().iter().filter(|(to, _)| ends_others && *to != server).cloned().collect();
        let others: Vec<(usize, WeakPipe)> = others;
        others.iter().filter_map(|(_, pipe)| pipe.upgrade()).for_each(|pipe| pipe.rst());
    }

    /// Hides everything that arrives from the process, or shows it.
    pub(super) fn hold_back(&self, is_held_back: bool) {
        let opened = self.opened().clone();
        opened.iter().filter_map(|(_, pipe)| pipe.upgrade()).for_each(|pipe| pipe.hold_back(is_held_back));
    }

    fn opened(&self) -> std::sync::MutexGuard<'_, Vec<(usize, WeakPipe)>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn open(&self) {
        self.is_shut.store(false, Ordering::SeqCst);
    }
}

/// Returns the server's state of a latch.
pub(super) fn latch(server: &Server, name: &str) -> What {
    let (left, opened) = server.store.latch(name, &format!("{{{name}}}"));
    What::Latch { left, opened }
}

pub(super) fn lock_name(number: u64) -> String {
    format!("lock:{number}")
}

/// The start of the server's clock, in milliseconds since 1970.
const BEGAN: u64 = 1_700_000_000_000;
