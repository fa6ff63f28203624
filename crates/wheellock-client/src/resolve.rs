//! Host names to addresses, at most one lookup per name at a time in the process. Caches no answer.
//!
//! The system's lookup blocks for as long as a name server is silent. On the runtime's blocking pool it would take
//! threads from the user, and would delay the end of the runtime.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Poll, Waker};

use crate::contain::{contained, wake_all};
use crate::waiting::{OnLeave, Waiting};

/// Looks names up on threads of its own. Clones share the threads and the lookups.
#[derive(Clone)]
pub(crate) struct Resolver(Arc<Inner>);

type LookUp = dyn Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync;
type Answer = Result<Vec<SocketAddr>, (io::ErrorKind, String)>;

struct Inner {
    look_up: Box<LookUp>,
    state: Mutex<State>,
}

struct State {
    /// The process that started the threads. A child of `fork` has none of them.
    process: u32,
    threads: usize,
    lookups: HashMap<Arc<str>, Lookup>,
    /// Names whose lookup waits for a thread, oldest first.
    queue: VecDeque<Arc<str>>,
    next_caller: u64,
}

/// A lookup on its way. Lives in the map until it is answered or, before a thread takes it, until its last caller leaves.
struct Lookup {
    answer: Arc<OnceLock<Answer>>,
    callers: usize,
    waiting: Waiting,
    is_running: bool,
}

static OF_THE_SYSTEM: LazyLock<Resolver> =
    LazyLock::new(|| Resolver::new(|host| Ok((host, 0).to_socket_addrs()?.collect())));

impl Resolver {
    /// Returns the process-wide resolver, which asks the system.
    pub(crate) fn of_the_system() -> Self {
        OF_THE_SYSTEM.clone()
    }

    /// Returns a resolver that asks `look_up`, which may block.
    pub(crate) fn new(look_up: impl Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner { look_up: Box::new(look_up), state: Mutex::new(State::new()) }))
    }

    /// Returns the addresses of `host`, each with `port`. Joins a lookup of the same name that is on its way.
    pub(crate) async fn look_up(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, port)]);
        }
        let host: Arc<str> = host.into();
        let (answer, caller) = self.join(&host);
        let _leaves = OnLeave(|| self.0.lock().leave(&host, &answer, caller));
        std::future::poll_fn(|cx| {
            // Under the lock: an answer that comes between the look and the waker's entry would wake no caller.
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
        if state.process != std::process::id() {
            *state = State::new();
        }
        state.next_caller += 1;
        let caller = state.next_caller;
        if let Some(lookup) = state.lookups.get_mut(host) {
            lookup.callers += 1;
            return (Arc::clone(&lookup.answer), caller);
        }
        let answer = Arc::new(OnceLock::new());
        let lookup =
            Lookup { answer: Arc::clone(&answer), callers: 1, waiting: Waiting::Nobody, is_running: false };
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

    /// Looks up the queued names. Ends when the queue is empty.
    fn work(&self) {
        while let Some(host) = self.take() {
            let found = contained(|| (self.look_up)(&host));
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
        // No other call sets it: the lookup was in the map.
        let _is_first = lookup.answer.set(answer);
        let mut wakers = Vec::new();
        lookup.waiting.wake(&mut wakers);
        drop(state);
        wake_all(wakers);
    }

    /// The system starts no thread. Those that run go on with the queue; without any, each lookup fails.
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
    fn new() -> Self {
        Self {
            process: std::process::id(),
            threads: 0,
            lookups: HashMap::new(),
            queue: VecDeque::new(),
            next_caller: 0,
        }
    }

    /// Removes a caller, and with the last one a lookup that no thread has taken. So the queue is as long as there are names
    /// with callers.
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

/// Bounds the threads that a silent name server holds. Each looks up another name.
const MOST_THREADS: usize = 16;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::client::Client;
    use crate::config::Config;

    const LONG: Duration = Duration::from_secs(20);
    /// A hundred times what an undisturbed runtime takes.
    const LATE: Duration = Duration::from_millis(100);

    /// A resolver whose name server is silent until `answers` is dropped, and the names that it was asked for.
    struct Silent {
        resolver: Resolver,
        asked: Arc<Mutex<Vec<String>>>,
        answers: mpsc::Sender<()>,
    }

    fn silent() -> Silent {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (answers, silence) = mpsc::channel::<()>();
        let silence = Arc::new(Mutex::new(silence));
        let names = Arc::clone(&asked);
        let resolver = Resolver::new(move |host| {
            names.lock().unwrap().push(host.to_owned());
            let _ended = silence.lock().unwrap().recv();
            Ok(vec![SocketAddr::from(([10, 0, 0, 1], 0))])
        });
        Silent { resolver, asked, answers }
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap()
    }

    fn until(met: impl Fn() -> bool) {
        let deadline = Instant::now() + LONG;
        while !met() {
            assert!(Instant::now() < deadline, "not in time");
            std::thread::yield_now();
        }
    }

    #[test]
    fn callers_of_one_name_share_lookup() {
        let Silent { resolver, asked, answers } = silent();
        let runtime = runtime();
        let callers: Vec<_> = (0..200)
            .map(|_| {
                let resolver = resolver.clone();
                runtime.spawn(async move { resolver.look_up("a.example", 6379).await })
            })
            .collect();
        until(|| resolver.0.lock().lookups.get("a.example").is_some_and(|lookup| lookup.callers == 200));
        drop(answers);
        for caller in callers {
            let found = runtime.block_on(caller).unwrap().unwrap();
            assert_eq!(found, [SocketAddr::from(([10, 0, 0, 1], 6379))]);
        }
        assert_eq!(*asked.lock().unwrap(), ["a.example"]);
        assert!(resolver.0.lock().lookups.is_empty());
    }

    /// The name server says nothing before the runtime is gone, so any wait for it would last for ever.
    #[test]
    fn silent_name_server_does_not_hold_runtime() {
        let Silent { resolver, asked, answers } = silent();
        let builder = &mut tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).max_blocking_threads(1).enable_all().build().unwrap();
        let client = |_| {
            let mut config: Config = "redis+sentinel://a.example,b.example/orders".parse().unwrap();
            config.resolver = resolver.clone();
            Client::lazy(config)
        };
        let entered = runtime.enter();
        let clients: Vec<_> = (0..200).map(client).collect();
        drop(entered);
        let callers = |name: &str| resolver.0.lock().lookups.get(name).map_or(0, |lookup| lookup.callers);
        until(|| callers("a.example") == 200 && callers("b.example") == 200);
        let began = Instant::now();
        assert!(runtime.block_on(async { tokio::task::spawn_blocking(|| true).await }).unwrap());
        let of_user = began.elapsed();
        runtime.block_on(async {
            for client in &clients {
                client.close().await;
            }
        });
        drop(clients);
        let began = Instant::now();
        drop(runtime);
        let ended = began.elapsed();
        println!("spawn_blocking took {of_user:?}, the end of the runtime {ended:?}");
        assert!(of_user.max(ended) < LATE, "{of_user:?}, {ended:?}");
        assert_eq!(asked.lock().unwrap().len(), 2);
        // The threads still ask, so a new caller joins them.
        drop(answers);
        let found = self::runtime().block_on(resolver.look_up("a.example", 1)).unwrap();
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn lookups_have_bounded_threads_and_queue() {
        let Silent { resolver, asked, answers } = silent();
        let runtime = runtime();
        let look_up = |n: usize| {
            let resolver = resolver.clone();
            runtime.spawn(async move { resolver.look_up(&format!("{n}.example"), 1).await })
        };
        let callers: Vec<_> = (0..3 * MOST_THREADS).map(look_up).collect();
        let queued = || resolver.0.lock().queue.len();
        until(|| asked.lock().unwrap().len() == MOST_THREADS && queued() == 2 * MOST_THREADS);
        assert_eq!(resolver.0.lock().threads, MOST_THREADS);
        // Names that no caller waits for leave the queue.
        let given_up: Vec<_> = callers.into_iter().collect();
        given_up.iter().for_each(tokio::task::JoinHandle::abort);
        until(|| queued() == 0);
        let last = look_up(usize::MAX);
        drop(answers);
        assert!(runtime.block_on(last).unwrap().is_ok());
        until(|| resolver.0.lock().threads == 0);
        let names: HashSet<_> = asked.lock().unwrap().iter().cloned().collect();
        assert_eq!((names.len(), asked.lock().unwrap().len()), (MOST_THREADS + 1, MOST_THREADS + 1));
    }

    #[test]
    fn panic_of_lookup_is_its_answer() {
        let asked = AtomicUsize::new(0);
        let resolver = Resolver::new(move |_| match asked.fetch_add(1, SeqCst) {
            0 => panic!("a planted panic"),
            _ => Err(io::Error::new(io::ErrorKind::NotFound, "no such name")),
        });
        let runtime = runtime();
        let failed = || runtime.block_on(resolver.look_up("a.example", 1)).unwrap_err().to_string();
        assert_eq!(failed(), "the lookup panicked");
        assert_eq!(failed(), "no such name");
    }

    #[test]
    fn addresses_need_no_lookup() {
        let resolver = Resolver::new(|host| panic!("looked {host} up"));
        let runtime = runtime();
        for (host, shown) in [("10.0.0.1", "10.0.0.1:7"), ("::1", "[::1]:7")] {
            let found = runtime.block_on(resolver.look_up(host, 7)).unwrap();
            assert_eq!(found.iter().map(SocketAddr::to_string).collect::<Vec<_>>(), [shown]);
        }
    }
}
