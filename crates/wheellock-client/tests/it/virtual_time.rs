//! A whole client, in memory and on a manual clock.
//!
//! The tests drop each future at every poll and break each connection at every byte, one at a time.

mod credentials;

use std::collections::VecDeque;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::BytesMut;
use wheellock_client::layer::{Detached, Retry, Start};
use wheellock_client::memory::Pipe;
use wheellock_client::{
    Arg, CallOptions, Client, Command, Config, ConnectionState, Credentials, Error, ErrorKind, Outcome,
    Script, Value,
};
use wheellock_resp::{Decoder, Frame, Limits};
use wheellock_wheel::ManualClock;

use crate::in_memory::{Pipes, in_memory, settle, virtual_time};

/// A client, a clock, and a server that supports a few commands.
struct World {
    client: Client,
    clock: ManualClock,
    pipes: Pipes,
    server: Server,
}

/// A server that replies to complete commands, in order.
#[derive(Default)]
struct Server {
    pipe: Option<Pipe>,
    input: BytesMut,
    executed: Vec<Vec<String>>,
    loaded: bool,
    /// The server is loading its data.
    loading: bool,
    /// Number of bytes of replies that still arrive. The connection breaks after them.
    budget: Option<usize>,
    /// Number of the client's bytes that the server accepts per turn.
    trickle: Option<usize>,
    /// Number of restarts.
    restarts: usize,
}

impl Server {
    fn serve(&mut self, pipes: &Mutex<VecDeque<Pipe>>) {
        if let Some(pipe) = pipes.lock().unwrap().pop_front() {
            self.pipe = Some(pipe);
            self.input.clear();
        }
        let Some(pipe) = self.pipe.clone() else { return };
        self.input.extend_from_slice(&pipe.take());
        if let Some(trickle) = self.trickle {
            pipe.accept(trickle);
        }
        loop {
            let mut rest = self.input.clone();
            match Decoder::new(Limits::default()).decode(&mut rest).expect("whole commands, untorn") {
                Some(Frame::Reply(command)) => {
                    self.input = rest;
                    let words =
                        command.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned());
                    let words: Vec<String> = words.collect();
                    let answer = self.answer(&words);
                    self.executed.push(words);
                    self.send(&pipe, &answer);
                    if self.pipe.is_none() {
                        return;
                    }
                }
                _ => return,
            }
        }
    }

    fn send(&mut self, pipe: &Pipe, answer: &[u8]) {
        match &mut self.budget {
            None => pipe.send(answer),
            Some(budget) if *budget >= answer.len() => {
                *budget -= answer.len();
                pipe.send(answer);
            }
            Some(budget) => {
                pipe.send(&answer[..*budget]);
                pipe.fin();
                self.budget = None;
                self.pipe = None;
            }
        }
    }

    fn answer(&mut self, words: &[String]) -> Vec<u8> {
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
        let push = |kind: &str, channel: &str| format!(">3\r\n{}{}:1\r\n", bulk(kind), bulk(channel));
        let answer = match words[..] {
            ["HELLO", ..] => "%3\r\n+proto\r\n:3\r\n+role\r\n+master\r\n+mode\r\n+standalone\r\n".to_owned(),
            ["CLIENT", ..] => "+OK\r\n".to_owned(),
            ["AUTH", _, token] if token.starts_with('-') => format!("{token}\r\n"),
            ["AUTH", ..] => "+OK\r\n".to_owned(),
            ["PING"] if self.loading => "-LOADING Redis is loading the dataset in memory\r\n".to_owned(),
            ["PING"] => "+PONG\r\n".to_owned(),
            ["PING", nonce] => bulk(nonce),
            ["ECHO", nonce] => bulk(nonce),
            ["INFO", "server"] => bulk(&format!("run_id:model{}\r\n", self.restarts)),
            [_, error] if error.starts_with('-') => format!("{error}\r\n"),
            ["EVAL", "#!lua\nreturn 1", "0"] => ":1\r\n".to_owned(),
            ["EVALSHA", ..] if !self.loaded => "-NOSCRIPT No matching script.\r\n".to_owned(),
            ["EVAL" | "EVALSHA", .., nonce] => {
                self.loaded = true;
                bulk(nonce)
            }
            ["SUBSCRIBE", channel] => push("subscribe", channel),
            ["UNSUBSCRIBE", channel] => push("unsubscribe", channel),
            _ => panic!("unexpected command {words:?}"),
        };
        answer.into_bytes()
    }
}

impl World {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(adjust: impl FnOnce(&mut Config)) -> Self {
        let (mut config, clock, pipes) = in_memory("redis://in.memory");
        adjust(&mut config);
        Self { client: Client::lazy(config), clock, pipes, server: Server::default() }
    }

    /// Runs all tasks until they have no more work, while the clock stands still.
    async fn settle(&mut self) {
        settle(|| self.server.serve(&self.pipes)).await;
    }

    /// Lets time pass until `done` returns true.
    async fn until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..2000 {
            self.settle().await;
            if done(self) {
                return;
            }
            self.clock.advance(Duration::from_millis(5));
        }
        panic!("it never came to that");
    }

    /// Asserts that the world has no trace of earlier events. The next caller gets its own reply, and no call is pending.
    async fn check(mut self, what: &str) {
        self.server.budget = None;
        self.server.trickle = None;
        if let Some(pipe) = &self.server.pipe {
            pipe.accept(usize::MAX);
        }
        let nonce = format!("after {what}");
        let client = self.client.clone();
        let call = tokio::spawn(async move {
            let deadline = client.config().timer.now() + Duration::from_secs(60);
            client
                .call_with(&Command::new("ECHO").arg(&nonce), CallOptions::by(deadline))
                .await
                .map(|r| (r, nonce))
        });
        self.until(|_| call.is_finished()).await;
        let (reply, nonce) = call.await.unwrap().unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(reply.as_str(), Some(nonce.as_str()), "{what}: another caller's reply");
        self.until(|world| world.client.stats().in_flight == 0).await;
        assert_eq!(self.client.stats().queued_bytes, 0, "{what}");
        let closing = self.client.clone();
        let close = tokio::spawn(async move { closing.close().await });
        self.until(|_| close.is_finished()).await;
    }
}

/// The operation of a caller at the time of a drop or a broken connection.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Operation {
    Call,
    Eval,
    Subscribe,
    Two,
}

const OPERATIONS: [Operation; 4] = [Operation::Call, Operation::Eval, Operation::Subscribe, Operation::Two];

async fn operate(client: Client, operation: Operation) -> Result<(), Error> {
    let echo = async |nonce: &str| {
        let reply = client.call(&Command::new("ECHO").arg(nonce)).await?;
        assert_eq!(reply.as_str(), Some(nonce), "another caller's reply");
        Ok(())
    };
    match operation {
        Operation::Call => echo("one").await,
        Operation::Eval => {
            let script = Script::new("return ARGV[1]", 1, 1);
            let reply = client.eval(&script, &["key".into(), "arg".into()]).await?;
            assert_eq!(reply.as_str(), Some("arg"), "another caller's reply");
            Ok(())
        }
        Operation::Subscribe => {
            let mut subscription = client.subscribe(b"news");
            echo("subscribed").await?;
            subscription.settled().await;
            Ok(())
        }
        Operation::Two => {
            let (first, second) = tokio::join!(echo("first"), echo("second"));
            first.and(second)
        }
    }
}

fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Callers that the same read has woken write together. A few callers write once. Many callers write in two halves, so that the server has the
/// first half while the others still write. The test counts the writes of the second of two rounds.
#[test]
fn woken_callers_share_few_writes() {
    for (callers, by_callers, by_the_driver) in [(2, 0, 1), (31, 0, 1), (64, 1, 1), (500, 1, 1)] {
        virtual_time(async {
            let mut world = World::new();
            world.until(|world| world.client.is_ready()).await;
            let calls: Vec<_> = (0..callers)
                .map(|_| {
                    let client = world.client.clone();
                    tokio::spawn(async move {
                        operate(client.clone(), Operation::Call).await?;
                        operate(client, Operation::Call).await
                    })
                })
                .collect();
            let mut before = world.client.stats();
            for _ in 0..2 {
                before = world.client.stats();
                settle(|| {}).await;
                world.server.serve(&world.pipes);
            }
            let after = world.client.stats();
            assert_eq!(
                after.idle_writes - before.idle_writes,
                by_callers,
                "{callers} callers, by themselves"
            );
            assert_eq!(after.batch_writes - before.batch_writes, by_the_driver, "{callers} callers");
            for call in calls {
                world.until(|_| call.is_finished()).await;
                call.await.unwrap().unwrap();
            }
        });
    }
}

/// A command that would change the shared connection for all callers, or block it, is not sent.
#[test]
fn unshareable_command_is_not_sent() {
    virtual_time(async {
        let mut world = World::new();
        world.until(|world| world.client.is_ready()).await;
        let sent = world.server.executed.len();
        for line in
            ["SELECT 1", "multi", "SUBSCRIBE news", "BLPOP key 0", "CLIENT REPLY OFF", "XREAD BLOCK 0"]
        {
            let words: Vec<_> = line.split(' ').collect();
            let client = world.client.clone();
            let call = tokio::spawn(async move {
                let command = Command::new(words[0]).args(words[1..].iter().copied());
                client.call(&command).await
            });
            world.until(|_| call.is_finished()).await;
            let error = call.await.unwrap().unwrap_err();
            assert_eq!((error.kind(), error.outcome()), (ErrorKind::Config, Outcome::NotSent), "{error}");
        }
        assert_eq!(world.server.executed.len(), sent, "{:?}", world.server.executed);
        world.check("what was not sent").await;
    });
}

/// A request that runs several commands may fail after some of them took effect, for every author of such a request.
#[test]
fn midway_failure_may_have_executed() {
    virtual_time(async {
        let mut world = World::new();
        let mut outcome = async |name: &'static str, error: &'static str| {
            let client = world.client.clone();
            let call = tokio::spawn(async move { client.call(&Command::new(name).arg(error)).await });
            world.until(|_| call.is_finished()).await;
            call.await.unwrap().unwrap_err().outcome()
        };
        for name in ["EVAL", "evalsha", "Eval_RO", "EVALSHA_RO", "FCALL", "fcall_ro", "MIGRATE", "migrate"] {
            assert_eq!(outcome(name, "-ERR it failed").await, Outcome::MaybeExecuted, "{name}");
            assert_eq!(outcome(name, "-IOERR it failed").await, Outcome::MaybeExecuted, "{name}");
            for refused in [
                "-NOSCRIPT No matching script.",
                "-OOM command not allowed when used memory > 'maxmemory'.",
                "-LOADING Redis is loading the dataset in memory",
            ] {
                assert_eq!(outcome(name, refused).await, Outcome::Rejected, "{name} {refused}");
            }
        }
        for name in ["SET", "EVALUATE", "EXECUTE", "E"] {
            assert_eq!(outcome(name, "-ERR it failed").await, Outcome::Rejected, "{name}");
        }
    });
}

#[test]
fn operation_dropped_anywhere_leaves_nothing() {
    virtual_time(async {
        let mut worlds = 0;
        for operation in OPERATIONS {
            for trickle in [None, Some(1), Some(7)] {
                for polls in 0.. {
                    let mut world = World::new();
                    world.until(|world| world.client.is_ready()).await;
                    world.server.trickle = trickle;
                    if let (Some(pipe), Some(bytes)) = (&world.server.pipe, trickle) {
                        pipe.accept(bytes);
                    }
                    let mut future = Box::pin(operate(world.client.clone(), operation));
                    let mut done = false;
                    for _ in 0..polls {
                        if let Poll::Ready(result) = poll_once(future.as_mut()) {
                            result.unwrap();
                            done = true;
                            break;
                        }
                        // One turn at a time, so that the test sees every intermediate state.
                        tokio::task::yield_now().await;
                        world.server.serve(&world.pipes);
                    }
                    drop(future);
                    world.check(&format!("{operation:?}, {trickle:?}, {polls} polls")).await;
                    worlds += 1;
                    if done {
                        break;
                    }
                }
            }
        }
        println!("{worlds} worlds");
    });
}

#[test]
fn reply_cut_at_every_byte_recovers() {
    virtual_time(async {
        let mut worlds = 0;
        for operation in OPERATIONS {
            for cut in 0.. {
                let mut world = World::new();
                world.until(|world| world.client.is_ready()).await;
                world.server.budget = Some(cut);
                let call = tokio::spawn(operate(world.client.clone(), operation));
                world.until(|_| call.is_finished()).await;
                let broke = world.client.stats().connections > 1 || world.server.pipe.is_none();
                if let Err(error) = call.await.unwrap() {
                    assert!(broke, "{operation:?} cut at {cut}: {error}");
                    assert_eq!(
                        (error.kind(), error.outcome()),
                        (ErrorKind::ConnectionLost, Outcome::MaybeExecuted)
                    );
                }
                world.check(&format!("{operation:?} cut at {cut}")).await;
                worlds += 1;
                if !broke {
                    break;
                }
            }
        }
        println!("{worlds} worlds");
    });
}

#[test]
fn handshake_cut_anywhere_is_retried() {
    virtual_time(async {
        for cut in 0.. {
            let mut world = World::new();
            world.server.budget = Some(cut);
            let call = tokio::spawn(operate(world.client.clone(), Operation::Call));
            world.until(|_| call.is_finished()).await;
            let survived = world.client.stats().connections == 1 && world.server.budget.is_some();
            let executed = world.server.executed.iter().filter(|words| words[0] == "ECHO").count();
            match call.await.unwrap() {
                Ok(()) => assert_eq!(executed, 1, "cut at {cut}"),
                Err(error) => assert_eq!(error.outcome(), Outcome::MaybeExecuted, "cut at {cut}: {error}"),
            }
            world.check(&format!("handshake cut at {cut}")).await;
            if survived {
                break;
            }
        }
    });
}

#[test]
fn deadlines_and_heartbeats_keep_virtual_time() {
    virtual_time(async {
        let mut world = World::new();
        world.until(|world| world.client.is_ready()).await;
        let timer = world.client.config().timer.clone();
        let start = timer.now();

        // The server stops replying. The call ends at its deadline, and the connection at the response timeout.
        world.server.budget = Some(0);
        world.server.pipe.as_ref().unwrap().accept(usize::MAX);
        let silent = world.server.pipe.take();
        let client = world.client.clone();
        let call = tokio::spawn(async move {
            let deadline = client.config().timer.now() + Duration::from_millis(100);
            client.call_with(&Command::new("ECHO").arg("late"), CallOptions::by(deadline)).await
        });
        world.until(|_| call.is_finished()).await;
        let error = call.await.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Timeout, Outcome::MaybeExecuted));
        let waited = timer.now() - start;
        assert!((100..=106).contains(&waited.as_millis()), "{waited:?}");
        world.server.budget = None;
        world.until(|world| world.client.stats().connections == 2).await;
        let replaced = timer.now() - start;
        assert!((3000..=3020).contains(&replaced.as_millis()), "{replaced:?}");
        drop(silent);

        // An idle connection sends a PING at every heartbeat, and at no other time.
        world.server.executed.clear();
        let idle = timer.now();
        world.until(|_| timer.now() - idle >= Duration::from_secs(6)).await;
        let pings =
            world.server.executed.iter().filter(|words| words[0] == "PING" && words.len() == 2).count();
        assert_eq!(pings, 4, "one every 1.5 s");
        world.check("deadlines").await;
    });
}

#[test]
fn maximum_duration_means_never() {
    virtual_time(async {
        let mut world = World::with(|config| {
            let times = [&mut config.connect_timeout, &mut config.response_timeout, &mut config.heartbeat];
            times.into_iter().for_each(|time| *time = Duration::MAX);
        });
        let config = world.client.config().clone();
        world.client.begin_closing();
        world.settle().await;
        let connect = tokio::spawn(Client::connect(config));
        world.until(|_| connect.is_finished()).await;
        world.client = connect.await.unwrap().unwrap();
        for operation in OPERATIONS {
            let call = tokio::spawn(operate(world.client.clone(), operation));
            world.until(|_| call.is_finished()).await;
            call.await.unwrap().unwrap();
        }
        // A call without a reply waits for this long.
        let silent = world.server.pipe.take();
        let call = tokio::spawn(operate(world.client.clone(), Operation::Call));
        world.settle().await;
        world.clock.advance(Duration::from_secs(365 * 24 * 3600));
        world.settle().await;
        assert!(!call.is_finished());
        silent.unwrap().fin();
        world.until(|_| call.is_finished()).await;
        assert_eq!(call.await.unwrap().unwrap_err().kind(), ErrorKind::ConnectionLost);
        world.check("never").await;
    });
}

/// Panics when it is woken, without a log entry.
struct Grenade;

impl Wake for Grenade {
    fn wake(self: Arc<Self>) {
        std::panic::resume_unwind(Box::new(Fragment))
    }
}

/// Panics when it is dropped.
struct Fragment;

impl Drop for Fragment {
    fn drop(&mut self) {
        std::panic::resume_unwind(Box::new(()))
    }
}

/// If a task panics when it is woken, the other tasks are woken nevertheless, and the connection stays usable.
#[test]
fn panicking_waker_spares_other_tasks() {
    virtual_time(async {
        let mut world = World::new();
        let grenade = Waker::from(Arc::new(Grenade));
        let cx = &mut Context::from_waker(&grenade);
        let (mut first, mut second) = (world.client.watch(), world.client.watch());
        let mut waits = Box::pin(first.changed());
        assert!(waits.as_mut().poll(cx).is_pending());
        let changed = tokio::spawn(async move { second.changed().await });
        world.until(|_| changed.is_finished()).await;
        world.until(|world| world.client.is_ready()).await;

        let echo = Command::new("ECHO").arg("first");
        let client = world.client.clone();
        let mut call = Box::pin(client.call(&echo));
        assert!(call.as_mut().poll(cx).is_pending());
        let other = tokio::spawn(operate(world.client.clone(), Operation::Call));
        settle(|| {}).await;
        world.settle().await;
        assert!(other.is_finished());
        other.await.unwrap().unwrap();
        let Poll::Ready(reply) = poll_once(call.as_mut()) else { panic!("it has its answer, too") };
        assert_eq!(reply.unwrap().as_str(), Some("first"));
        assert_eq!(world.client.stats().connections, 1);
        drop((call, waits));
        world.check("a waker that panics").await;
    });
}

/// A waker that does nothing. The test counts its clones.
struct Sleeper;

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {}
}

/// Creates a future again and again, polls each one in a new task and drops it. Asserts that no task's waker is kept.
pub(crate) fn assert_it_forgets_who_left<F: Future>(mut make: impl FnMut() -> F) {
    for round in 0..3 {
        let task = Arc::new(Sleeper);
        let waker = Waker::from(Arc::clone(&task));
        let mut waits = Box::pin(make());
        assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop((waits, waker));
        assert_eq!(Arc::strong_count(&task), 1, "round {round}: somebody still has its waker");
    }
}

/// A `select!` creates and drops many futures. Their state must not accumulate.
#[test]
fn who_waits_no_more_is_forgotten() {
    virtual_time(async {
        let world = World::new();
        let client = world.client.clone();
        assert_it_forgets_who_left(|| {
            let mut watch = client.watch();
            async move { watch.changed().await }
        });
        assert_it_forgets_who_left(|| client.close());
        drop(client);
    });
}

/// All watchers of one change are notified, in one task or in several.
#[test]
fn everybody_who_waits_is_told() {
    virtual_time(async {
        let mut world = World::new();
        let mut watches = [world.client.watch(), world.client.watch()];
        let told = tokio::spawn(async move {
            let [first, second] = &mut watches;
            tokio::join!(first.changed(), second.changed());
        });
        world.until(|world| world.client.is_ready()).await;
        world.until(|_| told.is_finished()).await;
    });
}

/// The client is closed, so the subscription will never be confirmed. No caller must wait for that.
#[test]
fn closing_client_settles_subscription() {
    virtual_time(async {
        for is_up in [false, true] {
            let mut world = World::new();
            if is_up {
                world.until(|world| world.client.is_ready()).await;
            }
            let mut news = world.client.subscribe(b"news");
            let settled = tokio::spawn(async move {
                news.settled().await;
                assert!(!news.is_confirmed());
                news.settled().await;
            });
            tokio::task::yield_now().await;
            assert!(!settled.is_finished());
            world.client.begin_closing();
            // The server does not reply any more.
            for _ in 0..2 {
                settle(|| {}).await;
                world.clock.advance(Duration::from_secs(1));
            }
            settle(|| {}).await;
            assert!(settled.is_finished());
            settled.await.unwrap();
        }
    });
}

#[test]
fn panicking_user_callbacks_are_contained() {
    virtual_time(async {
        let (asked, told) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut world = World::with(|config| {
            let (asks, tells) = (Arc::clone(&asked), Arc::clone(&told));
            config.credentials = Some(Arc::new(move || match asks.fetch_add(1, Ordering::Relaxed) {
                0 => std::panic::resume_unwind(Box::new(())),
                1 => Box::pin(async { std::panic::resume_unwind(Box::new(())) }),
                _ => Box::pin(async { Ok(Credentials { username: None, password: None }) }),
            }));
            config.on_change = Some(Arc::new(|_| std::panic::resume_unwind(Box::new(()))));
            config.hooks.on_change = Some(Arc::new(move |_| {
                tells.fetch_add(1, Ordering::Relaxed);
            }));
        });
        world.until(|world| world.client.is_ready()).await;
        assert_eq!(asked.load(Ordering::Relaxed), 3);
        world.server.restarts += 1;
        world.server.pipe.take().unwrap().rst();
        world.until(|world| world.client.stats().connections == 2).await;
        assert_eq!(told.load(Ordering::Relaxed), 1, "the layer above is told all the same");
        world.check("what panics").await;
    });
}

/// `connect` waits for a server that loads its data, but not for longer than its timeout.
#[test]
fn connect_ends_at_connect_timeout() {
    virtual_time(async {
        let (mut config, clock, pipes) = in_memory("redis://in.memory");
        config.connect_timeout = Duration::from_millis(300);
        let (timer, mut server) = (config.timer.clone(), Server { loading: true, ..Server::default() });
        let began = timer.now();
        let connected = tokio::spawn(Client::connect(config));
        loop {
            settle(|| server.serve(&pipes)).await;
            if connected.is_finished() {
                break;
            }
            clock.advance(Duration::from_millis(1));
        }
        let took = timer.now() - began;
        let error = connected.await.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::NotReady, Some("LOADING")), "{error}");
        assert!(took <= Duration::from_millis(302), "it took {took:?}");
    });
}

/// Sends a push from the server, a moment later, when it is woken.
struct Announcement {
    clock: ManualClock,
    pipe: Pipe,
}

impl Wake for Announcement {
    fn wake(self: Arc<Self>) {
        self.clock.advance(Duration::from_millis(1));
        self.pipe.send(b">2\r\n+news\r\n+none\r\n");
    }
}

#[test]
fn early_push_does_not_suspend_deadlines() {
    virtual_time(async {
        let mut world = World::new();
        let client = world.client.clone();
        let call = tokio::spawn(async move {
            let deadline = client.config().timer.now() + Duration::from_secs(1);
            client.call_with(&Command::new("ECHO").arg("late"), CallOptions::by(deadline)).await
        });
        while world.server.pipe.is_none() {
            tokio::task::yield_now().await;
            world.server.serve(&world.pipes);
        }
        let (clock, pipe) = (world.clock.clone(), world.server.pipe.clone().unwrap());
        let mut watch = world.client.watch();
        let mut connected = Box::pin(watch.changed());
        let waker = Waker::from(Arc::new(Announcement { clock, pipe }));
        assert!(connected.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        loop {
            tokio::task::yield_now().await;
            if world.client.is_ready() {
                break;
            }
            world.server.serve(&world.pipes);
        }
        // From now on the server does not reply.
        settle(|| {}).await;
        assert_eq!(world.client.stats().pushes, 1);
        world.clock.advance(Duration::from_secs(2));
        settle(|| {}).await;
        assert!(call.is_finished(), "nobody keeps time");
        let error = call.await.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Timeout, Outcome::MaybeExecuted));
    });
}

#[test]
fn simulation_is_deterministic() {
    fn story() -> Vec<Vec<String>> {
        let mut executed = Vec::new();
        virtual_time(async {
            let mut world = World::new();
            for operation in OPERATIONS {
                let call = tokio::spawn(operate(world.client.clone(), operation));
                world.until(|_| call.is_finished()).await;
                world.server.pipe.take().unwrap().rst();
                world.clock.advance(Duration::from_secs(2));
            }
            world.settle().await;
            executed = std::mem::take(&mut world.server.executed);
        });
        executed
    }
    assert_eq!(story(), story());
}

/// Returns a connected world whose runtime is about to end, and the results of its detached calls.
fn before_the_end() -> (tokio::runtime::Runtime, World, Arc<Mutex<Vec<Detached>>>) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let ended = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&ended);
    let world = runtime.block_on(async {
        let mut world = World::with(|config| {
            config.hooks.on_detached = Some(Arc::new(move |results| sink.lock().unwrap().append(results)));
        });
        world.until(|world| world.client.is_ready()).await;
        world
    });
    (runtime, world, ended)
}

fn queue(client: &Client, token: u64) -> bool {
    let (script, number) = (Script::new("return ARGV[1]", 1, 1), token.to_string());
    let params = ["key".into(), number.as_bytes().into()];
    client.queue_eval(&script, 1, &params, &Retry::default(), token, false).map(drop).is_some()
}

/// B1: when a runtime ends, queued requests are written as far as the socket accepts them. Only the rest is reported as not sent.
#[test]
fn runtime_end_flushes_queued_calls() {
    for accepted in (0..).step_by(13) {
        let (runtime, mut world, ended) = before_the_end();
        let (client, pipe) = (world.client.clone(), world.server.pipe.clone().unwrap());
        pipe.accept(accepted);
        let numbers = ["1", "2", "3"];
        let commands = numbers.map(|number| Command::new("ECHO").arg(number));
        let mut calls: Vec<_> = commands.iter().map(|command| Box::pin(client.call(command))).collect();
        assert!(calls.iter_mut().all(|call| poll_once(call.as_mut()).is_pending()));
        assert!(queue(&client, 4));
        drop(runtime);
        pipe.accept(usize::MAX);
        let open = queue(&client, 5);
        let written = pipe.take();
        let reached = |number: &str| {
            let last = format!("${}\r\n{number}\r\n", number.len());
            written.windows(last.len()).any(|bytes| bytes == last.as_bytes())
        };
        let outcomes = calls.iter_mut().zip(numbers).map(|(call, number)| {
            let Poll::Ready(Err(error)) = poll_once(call.as_mut()) else { panic!("nobody answered") };
            assert_eq!(error.kind(), ErrorKind::Closed);
            (number.to_owned(), error.outcome())
        });
        let mut outcomes: Vec<_> = outcomes.collect();
        let detached = ended.lock().unwrap().pop().unwrap();
        outcomes.push((detached.token.to_string(), detached.result.unwrap_err()));
        for (number, outcome) in outcomes {
            assert!(outcome == Outcome::MaybeExecuted || !reached(&number), "{accepted}: {number} was sent");
            assert!(outcome == Outcome::NotSent || accepted > 0, "{number} was not sent");
        }
        assert_eq!(reached("5"), open, "{accepted}");
        assert_eq!(open, written.len() > accepted, "{accepted}: behind half a command");
        world.server.input.extend_from_slice(&written);
        world.server.loaded = true;
        world.server.serve(&world.pipes);
        if open {
            let words = world.server.executed.iter().map(|words| words.last().unwrap().as_str());
            let words: Vec<_> = words.collect();
            assert!(words.ends_with(&["1", "2", "3", "4", "OFF", "5"]), "{words:?}");
            return;
        }
    }
}

/// B1: replies that are on their way when a runtime ends still reach their callers.
#[test]
fn replies_in_flight_survive_runtime_end() {
    let (runtime, World { client, pipes, mut server, .. }, ended) = before_the_end();
    server.loaded = true;
    let command = Command::new("ECHO").arg("1");
    let mut call = Box::pin(client.call(&command));
    assert!(poll_once(call.as_mut()).is_pending() && queue(&client, 2));
    std::thread::scope(|threads| {
        let answering = threads.spawn(move || {
            while !server.executed.iter().any(|words| words.ends_with(&["2".into()])) {
                server.serve(&pipes);
                std::thread::yield_now();
            }
        });
        drop(runtime);
        answering.join().unwrap();
    });
    let Poll::Ready(Ok(reply)) = poll_once(call.as_mut()) else { panic!("it was answered in time") };
    assert_eq!(reply.as_str(), Some("1"));
    let detached = ended.lock().unwrap().pop().unwrap();
    assert_eq!((detached.token, detached.result.unwrap().as_str()), (2, Some("2")));
}

/// The call fails however much room there is, because it would never fit. It fails at once, without waiting for a connection.
#[test]
fn oversized_call_is_refused_at_once() {
    async fn call(client: &Client, how: usize, text: &str) -> Result<Value, Error> {
        let params = [Arg::from(text)];
        match how {
            0 => client.call(&Command::new("ECHO").arg(text)).await,
            1 => client.eval(&Script::new("return 1", 0, 1), &params).await,
            _ => {
                let start = Start {
                    at: client.config().timer.now(),
                    options: CallOptions::default(),
                    remembers: false,
                };
                let (varying, retry) = (Script::variadic("return 1"), Retry::default());
                client.start_eval(&varying, 0, &params, &retry, start, Waker::noop()).await
            }
        }
    }
    virtual_time(async {
        for how in 0..3 {
            let (mut config, _clock, _pipes) = in_memory("redis://in.memory");
            config.max_queued_bytes = 1000;
            let client = Client::lazy(config);
            let long = "x".repeat(1001);
            let Poll::Ready(Err(error)) = poll_once(pin!(call(&client, how, &long))) else {
                panic!("it was not refused")
            };
            assert_eq!((error.kind(), error.outcome()), (ErrorKind::Overloaded, Outcome::NotSent));
            assert!(error.to_string().contains("larger than the queue"), "{error}");
            assert!(
                poll_once(pin!(call(&client, how, &long[..900]))).is_pending(),
                "it waits for the connection"
            );
        }
    });
}

/// A runtime may end before the first turn of a connection's task. In that case no task would end calls at their deadlines.
#[test]
fn runtime_end_before_connect_closes_client() {
    for url in ["redis://in.memory", "redis://in.memory,in.memory:1", "redis+sentinel://in.memory/service"] {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (client, mut watch) = runtime.block_on(async {
            let client = Client::lazy(in_memory(url).0);
            let watch = client.watch();
            (client, watch)
        });
        let command = Command::new("ECHO").arg("1");
        let mut call = Box::pin(client.call(&command));
        assert!(poll_once(call.as_mut()).is_pending());
        drop(runtime);
        let late = Command::new("ECHO").arg("2");
        for ended in [poll_once(call.as_mut()), poll_once(pin!(client.call(&late)))] {
            let Poll::Ready(Err(error)) = ended else { panic!("nobody will ever answer: {url}") };
            assert_eq!((error.kind(), error.outcome()), (ErrorKind::Closed, Outcome::NotSent), "{error}");
            assert!(error.detail().contains("runtime"), "{error}");
        }
        let told = poll_once(pin!(watch.changed()));
        assert!(matches!(told, Poll::Ready(ConnectionState::Closed(_))), "{told:?}: {url}");
    }
}
