//! Tests of `resolve`.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::*;
use crate::client::Client;
use crate::config::Config;

const LONG: Duration = Duration::from_secs(20);
/// A hundred times the time that an idle runtime needs.
const LATE: Duration = Duration::from_millis(100);

/// A resolver whose name server is silent until `answers` is dropped, and the names it was queried for.
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

/// The name server is silent until the runtime is gone, so waiting for a reply would never end.
#[test]
fn silent_dns_does_not_block_runtime() {
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
    // The lookup is still running, so a new caller joins it.
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
    // Names without callers leave the queue.
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
