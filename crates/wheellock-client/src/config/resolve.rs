//! Lookups of host names on dedicated threads.
//!
//! At most one lookup per name runs in the process at a time. This module caches no result.
//!
//! The system's lookup blocks while a name server is silent. On the runtime's blocking pool it would take threads
//! from the user, and would delay the runtime's shutdown.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Poll, Waker};

use crate::base::panics::{catch_panic, wake_all};
use crate::base::waiting::{OnLeave, Waiting};

/// A resolver with its own threads. Clones share the threads and the lookups.
#[derive(Clone)]
pub(crate) struct Resolver(Arc<Inner>);

type LookUp = dyn Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync;
type Answer = Result<Vec<SocketAddr>, (io::ErrorKind, String)>;

struct Inner {
    look_up: Box<LookUp>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The process that started the threads. After `fork`, the child process has no such threads.
    process: u32,
    threads: usize,
    lookups: HashMap<Arc<str>, Lookup>,
    /// The names that wait for a thread, oldest first.
    queue: VecDeque<Arc<str>>,
    next_caller: u64,
}

/// A lookup in progress. It stays in the map until its result is there. A lookup that no thread has taken also ends
/// when its last caller leaves.
struct Lookup {
    answer: Arc<OnceLock<Answer>>,
    callers: usize,
    waiting: Waiting,
    is_running: bool,
}

static OF_THE_SYSTEM: LazyLock<Resolver> =
    LazyLock::new(|| Resolver::new(|host| Ok((host, 0).to_socket_addrs()?.collect())));

impl Resolver {
    /// Returns the process-wide resolver, which uses the system's lookup.
    pub(crate) fn of_the_system() -> Self {
        OF_THE_SYSTEM.clone()
    }

    /// Returns a resolver that uses `look_up`, which may block.
    pub(crate) fn new(look_up: impl Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner { look_up: Box::new(look_up), state: Mutex::default() }))
    }

    /// Returns the addresses of `host`, each with `port`. Joins a running lookup of the same name.
    pub(crate) async fn look_up(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, port)]);
        }
        let host: Arc<str> = host.into();
        let (answer, caller) = self.join(&host);
        let _leaves = OnLeave(|| self.0.lock().leave(&host, &answer, caller));
        std::future::poll_fn(|cx| {
            // Check and store the waker under one lock. A result that arrived between the two steps would wake no
            // caller.
            let mut state = self.0.lock();
            if answer.get().is_some() {
                return Poll::Ready(());
            }
            if let Some(lookup) = state.lookups.get_mut(&host) {
                lookup.waiting.add(caller, cx.waker());
            }
            Poll::Pending
        })
        .await;
        match answer.get().cloned().unwrap_or_else(|| Ok(Vec::new())) {
            Ok(mut found) => {
                found.iter_mut().for_each(|address| address.set_port(port));
                Ok(found)
            }
            Err((kind, said)) => Err(io::Error::new(kind, said)),
        }
    }

    fn join(&self, host: &Arc<str>) -> (Arc<OnceLock<Answer>>, u64) {
        let mut state = self.0.lock();
        // In a child process the parent's threads do not exist, so its lookups would never end.
        let process = std::process::id();
        if state.process != process {
            *state = State { process, ..State::default() };
        }
        state.next_caller += 1;
        let caller = state.next_caller;
        if let Some(lookup) = state.lookups.get_mut(host) {
            lookup.callers += 1;
            return (Arc::clone(&lookup.answer), caller);
        }
        let answer = Arc::new(OnceLock::new());
        let lookup = Lookup {
            answer: Arc::clone(&answer),
            callers: 1,
            waiting: Waiting::default(),
            is_running: false,
        };
        state.lookups.insert(Arc::clone(host), lookup);
        state.queue.push_back(Arc::clone(host));
        if state.threads == MOST_THREADS {
            return (answer, caller);
        }
        state.threads += 1;
        drop(state);
        let inner = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("wheellock-resolver".to_owned());
        if let Err(error) = thread.spawn(move || inner.work()) {
            self.0.thread_refused(&error);
        }
        (answer, caller)
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks up the queued names, and ends when the queue is empty.
    fn work(&self) {
        while let Some(host) = self.take() {
            let found = catch_panic(|| (self.look_up)(&host));
            let found = found.unwrap_or_else(|| Err(io::Error::other("the lookup panicked")));
            self.answer(&host, found.map_err(|error| (error.kind(), error.to_string())));
        }
    }

    fn take(&self) -> Option<Arc<str>> {
        let mut state = self.lock();
        let Some(host) = state.queue.pop_front() else {
            state.threads -= 1;
            return None;
        };
        if let Some(lookup) = state.lookups.get_mut(&host) {
            lookup.is_running = true;
        }
        Some(host)
    }

    fn answer(&self, host: &str, answer: Answer) {
        let mut state = self.lock();
        let Some(mut lookup) = state.lookups.remove(host) else { return };
        // The lookup was still in the map, so no other call has set the result.
        let _is_first = lookup.answer.set(answer);
        let mut wakers = Vec::new();
        lookup.waiting.wake(&mut wakers);
        drop(state);
        wake_all(wakers);
    }

    /// Handles the system's refusal to start a thread. Running threads serve the queue. Without a running thread each
    /// lookup fails.
    fn thread_refused(&self, error: &io::Error) {
        let mut state = self.lock();
        state.threads -= 1;
        let stranded = if state.threads == 0 { std::mem::take(&mut state.queue) } else { VecDeque::new() };
        drop(state);
        for host in stranded {
            self.answer(&host, Err((error.kind(), format!("no thread to look the name up: {error}"))));
        }
    }
}

impl State {
    /// Removes a caller. With the last caller, also removes a lookup that no thread has taken. The queue is therefore
    /// never longer than the number of names with callers.
    fn leave(&mut self, host: &Arc<str>, answer: &Arc<OnceLock<Answer>>, caller: u64) -> Option<Waker> {
        let lookup = self.lookups.get_mut(host).filter(|lookup| Arc::ptr_eq(&lookup.answer, answer))?;
        lookup.callers -= 1;
        let waker = lookup.waiting.forget(caller);
        if lookup.callers == 0 && !lookup.is_running {
            self.lookups.remove(host);
            self.queue.retain(|queued| queued != host);
        }
        waker
    }
}

/// The limit for threads that a silent name server can block. Each thread looks up another name.
const MOST_THREADS: usize = 16;

#[cfg(test)]
mod tests;
