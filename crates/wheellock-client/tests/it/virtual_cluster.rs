//! A cluster of one node, on a manual clock.
//!
//! The connections are in memory. The tests choose the state of a call when its deadline passes.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::BytesMut;
use tokio::task::JoinHandle;
use wheellock_client::memory::Pipe;
use wheellock_client::{CallOptions, Client, Command, Config, ConnectionState, Error, ErrorKind, Outcome};
use wheellock_resp::{Decoder, Frame, Limits, Value};
use wheellock_wheel::ManualClock;

use crate::in_memory::{Pipes, TURNS, in_memory, settle, virtual_time};
use crate::virtual_time::assert_it_forgets_who_left;

const DEADLINE: Duration = Duration::from_millis(200);

struct World {
    client: Client,
    clock: ManualClock,
    new: Pipes,
    /// Connections, and their received bytes without a reply.
    pipes: Vec<(Pipe, BytesMut)>,
    /// Replies to GET, in order. The last reply is used again and again. An empty string means that there is no reply, and that the
    /// connection does not reply any more.
    answers: VecDeque<&'static str>,
    asked: usize,
}

impl World {
    async fn start(answers: &[&'static str]) -> Self {
        let mut world = Self::new(answers, |_| {});
        world.until(|world| world.client.is_ready()).await;
        world
    }

    /// Returns a world in which the client does not know a node yet.
    fn new(answers: &[&'static str], adjust: impl FnOnce(&mut Config)) -> Self {
        let (mut config, clock, new) = in_memory("redis+cluster://in.memory:7000");
        adjust(&mut config);
        let answers = answers.iter().copied().collect();
        let client = Client::lazy(config);
        Self { client, clock, new, pipes: Vec::new(), answers, asked: 0 }
    }

    /// Runs all tasks until they have no more work, while the clock stands still.
    async fn settle(&mut self) {
        settle(|| self.serve()).await;
    }

    fn serve(&mut self) {
        self.pipes.extend(self.new.lock().unwrap().drain(..).map(|pipe| (pipe, BytesMut::new())));
        let (answers, asked) = (&mut self.answers, &mut self.asked);
        self.pipes.retain_mut(|(pipe, input)| serve(pipe, input, answers, asked));
    }

    /// Lets time pass until `done` returns true.
    async fn until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..2000 {
            self.settle().await;
            if done(self) {
                return;
            }
            self.clock.advance(Duration::from_millis(1));
        }
        panic!("it never came to that");
    }

    fn call(&self) -> JoinHandle<Result<Value, Error>> {
        let client = self.client.clone();
        tokio::spawn(async move {
            let deadline = CallOptions::by(client.config().timer.now() + DEADLINE);
            client.call_with(&Command::new("GET").arg("key"), deadline).await
        })
    }
}

/// Replies to the requests that a connection has received. Returns false if the connection does not reply any more.
fn serve(pipe: &Pipe, input: &mut BytesMut, answers: &mut VecDeque<&str>, asked: &mut usize) -> bool {
    input.extend_from_slice(&pipe.take());
    while let Ok(Some(Frame::Reply(command))) = Decoder::new(Limits::default()).decode(input) {
        let words: Vec<_> = command.as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        if words[0] != "GET" {
            pipe.send(well_behaved(&words).as_bytes());
            continue;
        }
        *asked += 1;
        let answer = if answers.len() == 1 { answers[0] } else { answers.pop_front().unwrap() };
        if answer.is_empty() {
            return false;
        }
        pipe.send(answer.as_bytes());
    }
    true
}

fn well_behaved(words: &[&str]) -> String {
    let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    match words {
        ["HELLO", ..] => "%3\r\n+proto\r\n:3\r\n+role\r\n+master\r\n+mode\r\n+cluster\r\n".to_owned(),
        ["CLUSTER", "NODES"] => {
            let id = "a".repeat(40);
            bulk(&format!("{id} in.memory:7000@1 myself,master - 0 0 1 connected 0-16383\n"))
        }
        ["PUBSUB", ..] => "*0\r\n".to_owned(),
        ["INFO", "server"] => bulk("run_id:model\r\n"),
        ["PING"] => "+PONG\r\n".to_owned(),
        ["PING", nonce] => bulk(nonce),
        ["EVAL", ..] => ":1\r\n".to_owned(),
        _ => "+OK\r\n".to_owned(),
    }
}

/// E8: a call that is redirected until its deadline fails with the redirection. The number of its attempts is bounded.
#[test]
fn call_redirected_until_deadline_reports_redirection() {
    for answer in
        ["-MOVED 1 :0\r\n", "-MOVED\r\n", "-ASK 70000 h:1\r\n", "-CLUSTERDOWN Hash slot not served\r\n"]
    {
        virtual_time(async move {
            let mut world = World::start(&[answer]).await;
            let call = world.call();
            world.until(|_| call.is_finished()).await;
            let error = call.await.unwrap().unwrap_err();
            assert_eq!(error.outcome(), Outcome::Rejected, "{error}");
            assert!(answer.contains(error.code().unwrap()), "{error}");
            assert!((8..=14).contains(&world.asked), "asked {} times", world.asked);
        });
    }
}

/// E8: endless redirections are the reason of a failure, even if the deadline passes while the last reply is on its way. The first few
/// redirections are not, because the node that they name would have replied.
#[test]
fn repeated_redirection_at_deadline_is_reason() {
    for (asked, is_reason) in [(1, false), (5, false), (7, true)] {
        virtual_time(async move {
            let mut world = World::start(&["-MOVED 1 :0\r\n"]).await;
            let call = world.call();
            for turn in 1.. {
                tokio::task::yield_now().await;
                world.serve();
                if world.asked == asked {
                    break;
                }
                if turn % TURNS == 0 {
                    world.clock.advance(Duration::from_millis(1));
                }
            }
            world.clock.advance(DEADLINE);
            world.until(|_| call.is_finished()).await;
            let error = call.await.unwrap().unwrap_err();
            let (kind, code) =
                if is_reason { (ErrorKind::Server, Some("MOVED")) } else { (ErrorKind::Timeout, None) };
            assert_eq!(
                (error.kind(), error.code(), error.outcome()),
                (kind, code, Outcome::Rejected),
                "{error}"
            );
            assert!(error.detail().contains("MOVED 1 :0"), "{error}");
        });
    }
}

/// E8: if the deadline passes between two attempts, the redirection is the only reason, and nothing was executed.
#[test]
fn deadline_between_attempts_means_rejected() {
    virtual_time(async {
        let mut world = World::start(&["-MOVED 1 :0\r\n"]).await;
        let call = world.call();
        world.until(|world| world.asked == 7).await;
        world.settle().await;
        // The call pauses. Its task runs late, as on a busy machine.
        world.clock.advance(DEADLINE);
        world.until(|_| call.is_finished()).await;
        let error = call.await.unwrap().unwrap_err();
        assert_eq!((error.code(), error.outcome()), (Some("MOVED"), Outcome::Rejected), "{error}");
        assert_eq!(world.asked, 7, "no attempt is made after the deadline");
    });
}

/// E8: if the deadline passes during an attempt after a redirection, the error contains both.
#[test]
fn deadline_during_attempt_mentions_redirection() {
    virtual_time(async {
        let mut world = World::start(&["-MOVED 1 :0\r\n", "-MOVED 1 :0\r\n", ""]).await;
        let call = world.call();
        world.until(|_| call.is_finished()).await;
        let error = call.await.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Timeout, Outcome::MaybeExecuted), "{error}");
        assert!(error.to_string().contains("MOVED 1 :0"), "{error}");
        assert_eq!(world.asked, 3);
    });
}

#[test]
fn dropped_watch_is_forgotten() {
    virtual_time(async {
        let world = World::new(&[], |_| {});
        assert_it_forgets_who_left(|| {
            let mut watch = world.client.watch();
            async move { watch.changed().await }
        });
    });
}

/// A subscriber to a slot without a node is notified of the end, as at a node.
#[test]
fn unassigned_subscriber_is_notified_of_close() {
    virtual_time(async {
        let mut world = World::new(&[], |_| {});
        let mut news = world.client.subscribe(b"news");
        let told = tokio::spawn(async move { news.changed().await });
        tokio::task::yield_now().await;
        assert!(!told.is_finished());
        world.client.close().await;
        world.until(|_| told.is_finished()).await;
    });
}

/// The last event is that the cluster was closed. It arrives once, whatever happens to the nodes' connections afterwards.
#[test]
fn watch_reports_closed_cluster_once() {
    virtual_time(async {
        // The call has no reply, so its node is closed a while after the cluster.
        let mut world = World::start(&[""]).await;
        let call = world.call();
        world.until(|world| world.asked == 1).await;
        let told = Arc::new(AtomicUsize::new(0));
        let (mut watch, tells) = (world.client.watch(), Arc::clone(&told));
        tokio::spawn(async move {
            loop {
                assert!(matches!(watch.changed().await, ConnectionState::Closed(_)));
                tells.fetch_add(1, SeqCst);
            }
        });
        world.settle().await;
        let client = world.client.clone();
        let closed = tokio::spawn(async move { client.close().await });
        world.settle().await;
        assert_eq!((told.load(SeqCst), closed.is_finished()), (1, false));
        world.until(|_| closed.is_finished() && call.is_finished()).await;
        world.settle().await;
        assert_eq!(told.load(SeqCst), 1);
    });
}

/// If a runtime ends, no task can ever connect again. That is as final as closing the client.
#[test]
fn runtime_end_closes_cluster() {
    for is_known in [false, true] {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let client = runtime.block_on(async {
            let world = if is_known { World::start(&[]).await } else { World::new(&[], |_| {}) };
            world.client
        });
        let waits = |client: &Client| {
            let (mut news, mut watch) = (client.subscribe(b"news"), client.watch());
            async move { tokio::join!(news.changed(), watch.changed()) }
        };
        let woken = Arc::new(Woken::default());
        let (mut told, waker) = (Box::pin(waits(&client)), Waker::from(Arc::clone(&woken)));
        assert!(told.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(runtime);
        assert!(woken.0.load(SeqCst), "{is_known}");
        let Poll::Ready(((), state)) = told.as_mut().poll(&mut Context::from_waker(&waker)) else {
            panic!("who waits is told, {is_known}")
        };
        for state in [state, client.state()] {
            let ConnectionState::Closed(why) = state else { panic!("{state:?}, {is_known}") };
            assert!(why.detail().contains("runtime"), "{why}");
        }
        let get = Command::new("GET").arg("key");
        let Poll::Ready(Err(error)) = pin!(client.call(&get)).poll(&mut Context::from_waker(&waker)) else {
            panic!("a call fails at once, {is_known}")
        };
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Closed, Outcome::NotSent), "{error}");
        assert!(error.detail().contains("runtime"), "{error}");
    }
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}
