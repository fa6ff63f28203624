//! A client of several addresses, on a manual clock.
//!
//! The connections are in memory. The tests count the attempts at each address, and check the callers meanwhile.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::BytesMut;
use wheellock_client::memory::Pipe;
use wheellock_client::{CallOptions, Client, Command, Config, ConnectionState, ErrorKind};
use wheellock_resp::{Decoder, Frame, Limits};
use wheellock_wheel::ManualClock;

use crate::in_memory::{in_memory, settle, virtual_time};

/// State of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Server {
    Primary,
    Replica,
    /// The server replies that the password is wrong.
    Refusing,
    /// The server does not accept connections.
    Down,
}

/// A client of two addresses, which it tries at once and in order. `who` returns the state of each server by the number of the attempt,
/// from 0.
struct World {
    client: Client,
    clock: ManualClock,
    asked: Arc<AtomicUsize>,
    connections: Arc<Mutex<Vec<(Server, Pipe, BytesMut)>>>,
}

impl World {
    fn new(adjust: impl FnOnce(&mut Config), who: impl Fn(usize) -> Server + Send + Sync + 'static) -> Self {
        let (mut config, clock, _) = in_memory("redis://:sesame@a,b");
        let (asked, connections) = (Arc::new(AtomicUsize::new(0)), Arc::default());
        let (count, accepted) = (Arc::clone(&asked), Arc::<Mutex<Vec<_>>>::clone(&connections));
        config.connector = Some(Arc::new(move || {
            let server = who(count.fetch_add(1, Ordering::Relaxed));
            if server == Server::Down {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let pipe = Pipe::new();
            accepted.lock().unwrap().push((server, pipe.clone(), BytesMut::new()));
            Ok(pipe)
        }));
        // Almost the longest possible random part of each pause.
        config.random = || 199_999_999;
        adjust(&mut config);
        Self { client: Client::lazy(config), clock, asked, connections }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    fn serve(&self) {
        let mut connections = self.connections.lock().unwrap();
        // The client has closed all connections but the last two.
        let left = connections.len().saturating_sub(2);
        connections.drain(..left);
        for (server, pipe, input) in connections.iter_mut() {
            input.extend_from_slice(&pipe.take());
            while let Some(Frame::Reply(command)) = Decoder::new(Limits::default()).decode(input).unwrap() {
                let words = command.as_array().unwrap().iter().map(|word| word.as_str().unwrap());
                pipe.send(answer(*server, &words.collect::<Vec<_>>()).as_bytes());
            }
        }
    }

    /// Lets `time` pass.
    async fn pass(&self, time: Duration) {
        let timer = self.client.config().timer.clone();
        let end = timer.now() + time;
        loop {
            settle(|| self.serve()).await;
            if timer.now() >= end {
                return;
            }
            self.clock.advance(Duration::from_millis(1));
        }
    }
}

fn answer(server: Server, words: &[&str]) -> String {
    let role = if server == Server::Replica { "replica" } else { "master" };
    match words {
        ["HELLO", ..] if server == Server::Refusing => "-WRONGPASS invalid password\r\n".to_owned(),
        ["HELLO", ..] => format!("%3\r\n+proto\r\n:3\r\n+role\r\n+{role}\r\n+mode\r\n+standalone\r\n"),
        ["PING"] => "+PONG\r\n".to_owned(),
        [_, word, ..] => format!("${}\r\n{word}\r\n", word.len()),
        _ => panic!("unexpected command {words:?}"),
    }
}

/// One server is restarting, and another server refuses the password. That is an outage, for which callers wait, and not a refusal.
#[test]
fn call_waits_unless_all_servers_refuse() {
    virtual_time(async {
        let is_up = Arc::new(AtomicUsize::new(0));
        let up = Arc::clone(&is_up);
        let world = World::new(
            |_| {},
            move |number| match number {
                1 => Server::Refusing,
                _ if up.load(Ordering::Relaxed) == 0 => Server::Down,
                _ => Server::Primary,
            },
        );
        let client = world.client.clone();
        let call = tokio::spawn(async move {
            let deadline = client.config().timer.now() + Duration::from_secs(60);
            client.call_with(&Command::new("ECHO").arg("at last"), CallOptions::by(deadline)).await
        });
        world.pass(Duration::from_millis(1500)).await;
        assert!(world.asked() >= 4, "who is down is asked again");
        assert!(!call.is_finished(), "{:?}", call.await);
        is_up.store(1, Ordering::Relaxed);
        world.pass(Duration::from_millis(300)).await;
        assert_eq!(call.await.unwrap().unwrap().as_str(), Some("at last"));
    });
}

/// The error contains the reply of the server that refuses the client.
#[test]
fn attempt_is_refused_if_all_refuse() {
    for (first, kind) in [
        (Server::Refusing, ErrorKind::Auth),
        (Server::Down, ErrorKind::Connect),
        (Server::Replica, ErrorKind::NotReady),
    ] {
        virtual_time(async {
            let world = World::new(|_| {}, move |number| if number == 1 { Server::Refusing } else { first });
            // Just after the end of the first attempt.
            world.pass(world.client.config().connect_timeout + Duration::from_millis(2)).await;
            let error = match world.client.state() {
                ConnectionState::Refused(error)
                | ConnectionState::Connecting { last_error: Some(error), .. } => error,
                state => panic!("{first:?}: {state:?}"),
            };
            assert_eq!(error.kind(), kind, "{first:?}: {error}");
            assert!(error.to_string().contains("WRONGPASS"), "{first:?}: {error}");
        });
    }
}

/// Servers log refusals, and punish them.
#[test]
fn retries_after_refusal_are_bounded() {
    virtual_time(async {
        for other in [Server::Replica, Server::Down] {
            let world = World::new(|_| {}, move |number| if number == 1 { Server::Refusing } else { other });
            world.pass(Duration::from_millis(2900)).await;
            let asked = world.asked();
            assert!((15..=25).contains(&asked), "{other:?}: {asked} times");
        }
    });
}

/// A short attempt ends soon, and the next attempt follows.
#[test]
fn lasting_replica_is_tried_less_often() {
    virtual_time(async {
        let world =
            World::new(|config| config.connect_timeout = Duration::from_millis(2), |_| Server::Replica);
        world.pass(Duration::from_secs(2)).await;
        let at_first = world.asked();
        assert!(at_first > 150, "a failover is not missed: {at_first} times");
        world.pass(Duration::from_secs(9)).await;
        let before = world.asked();
        world.pass(Duration::from_secs(2)).await;
        let later = world.asked() - before;
        assert!(later <= 40, "{later} times");
    });
}
