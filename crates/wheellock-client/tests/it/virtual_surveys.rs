//! A client's surveys of a cluster, on a manual clock.
//!
//! The connections are in memory. A test chooses the replies of the nodes, and counts the connections.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::BytesMut;
use wheellock_client::layer::{Detached, Retry};
use wheellock_client::memory::Pipe;
use wheellock_client::{
    Address, Arg, CallOptions, Client, Command, Config, ConnectionState, Credentials, Script, Secret, slot_of,
};
use wheellock_resp::{Decoder, Frame, Limits};
use wheellock_wheel::ManualClock;

use crate::in_memory::{Pipes, in_memory, settle, virtual_time};

/// All nodes as one. An in-memory connection does not have an address.
struct World<A> {
    clock: ManualClock,
    new: Pipes,
    /// Connections, and their received bytes without a reply.
    pipes: Vec<(Pipe, BytesMut)>,
    answer: A,
}

impl<A: FnMut(&Pipe, &[&str]) -> String> World<A> {
    fn new(answer: A) -> (Self, Config) {
        let (config, clock, new) = in_memory("redis+cluster://in.memory:7000");
        (Self { clock, new, pipes: Vec::new(), answer }, config)
    }

    /// Runs all tasks until they have no more work, while the clock stands still.
    async fn settle(&mut self) {
        settle(|| self.serve()).await;
    }

    fn serve(&mut self) {
        self.pipes.extend(self.new.lock().unwrap().drain(..).map(|pipe| (pipe, BytesMut::new())));
        for (pipe, input) in &mut self.pipes {
            input.extend_from_slice(&pipe.take());
            while let Ok(Some(Frame::Reply(command))) = Decoder::new(Limits::default()).decode(input) {
                let words = command.as_array().unwrap().iter().map(|word| word.as_str().unwrap());
                pipe.send((self.answer)(pipe, &words.collect::<Vec<_>>()).as_bytes());
            }
        }
    }

    /// Lets time pass until `done` returns true.
    async fn until(&mut self, mut done: impl FnMut(&Self) -> bool) {
        for _ in 0..5000 {
            self.settle().await;
            if done(self) {
                return;
            }
            self.clock.advance(Duration::from_millis(1));
        }
        panic!("it never came to that");
    }

    /// Lets `time` pass, in steps of length `step`.
    async fn pass(&mut self, time: Duration, step: Duration) {
        let mut passed = Duration::ZERO;
        while passed < time {
            self.clock.advance(step);
            passed += step;
            self.settle().await;
        }
    }

    /// Returns the number of connections that the client has not closed.
    fn open(&self) -> usize {
        self.pipes.iter().filter(|(pipe, _)| !pipe.is_abandoned()).count()
    }
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// Returns a line of `CLUSTER NODES`. The node `a` is at port 7000, and `b` is at 7001.
fn line(node: char, flags: &str, primary: char, epoch: u64, slots: &str) -> String {
    let port = 7000 + u32::from(node) - u32::from('a');
    let [id, primary] = [node, primary].map(|of| of.to_string().repeat(if of == '-' { 1 } else { 40 }));
    format!("{id} in.memory:{port}@1 {flags} {primary} 0 0 {epoch} connected {slots}\n")
}

fn well_behaved(words: &[&str]) -> String {
    match words {
        ["HELLO", ..] => "%3\r\n+proto\r\n:3\r\n+role\r\n+master\r\n+mode\r\n+cluster\r\n".to_owned(),
        ["CLUSTER", "NODES"] => bulk(&line('a', "myself,master", '-', 1, "0-16383")),
        ["PUBSUB", ..] => "*0\r\n".to_owned(),
        ["INFO", "server"] => bulk("run_id:model\r\n"),
        ["PING"] => "+PONG\r\n".to_owned(),
        ["PING", nonce] => bulk(nonce),
        ["SSUBSCRIBE", channel] => format!(">3\r\n{}{}:1\r\n", bulk("ssubscribe"), bulk(channel)),
        _ => "+OK\r\n".to_owned(),
    }
}

/// Returns the last error of a client that surveys one node and receives `nodes`.
fn unusable_answer(nodes: String, forbids: bool) -> String {
    let said = Rc::new(RefCell::new(String::new()));
    let told = Rc::clone(&said);
    virtual_time(async move {
        let (mut world, mut config) = World::new(move |_: &Pipe, words: &[&str]| match words {
            ["CLUSTER", "NODES"] => bulk(&nodes),
            _ => well_behaved(words),
        });
        config.translate = forbids.then(|| Arc::new(|_: &Address| None) as wheellock_client::Translate);
        let client = Client::lazy(config);
        let error = || match client.state() {
            ConnectionState::Connecting { last_error: Some(error), .. } => error.to_string(),
            _ => String::new(),
        };
        world.until(|_| !error().is_empty()).await;
        told.replace(error());
    });
    said.take()
}

#[test]
fn forbidden_nodes_are_told() {
    let error = unusable_answer(line('a', "myself,master", '-', 1, "0-16383"), true);
    assert!(
        error.contains("`Config::translate` forbids every node that it names: in.memory:7000"),
        "{error}"
    );
}

#[test]
fn empty_list_of_nodes_is_told() {
    let tls_only = line('a', "myself,master", '-', 1, "0-16383").replace("in.memory:7000", "in.memory:0");
    for nodes in [String::new(), tls_only] {
        let error = unusable_answer(nodes, false);
        assert!(error.contains("names no node that serves connections without TLS"), "{error}");
    }
}

/// The subscription's node is down and retired before another node takes over the slot.
#[test]
fn subscription_follows_slot_to_successor() {
    virtual_time(async {
        let replica = line('b', "slave", 'a', 1, "");
        let views = [
            line('a', "master", '-', 1, "0-16383") + &replica,
            line('a', "master,fail", '-', 1, "0-16383") + &replica,
            line('a', "master,fail", '-', 1, "") + &line('b', "master", '-', 2, "0-16383"),
        ];
        let (now, asked) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(Vec::new())));
        let (mut world, config) = World::new({
            let (now, asked) = (Rc::clone(&now), Rc::clone(&asked));
            move |pipe: &Pipe, words: &[&str]| match words {
                ["CLUSTER", "NODES"] => bulk(&views[now.get()]),
                ["SSUBSCRIBE", _] => {
                    asked.borrow_mut().push(pipe.clone());
                    well_behaved(words)
                }
                _ => well_behaved(words),
            }
        });
        let client = Client::lazy(config);
        world.until(|_| client.is_ready()).await;
        let mut news = client.subscribe(b"news");
        let looked = Arc::new(AtomicUsize::new(0));
        let looks = Arc::clone(&looked);
        tokio::spawn(async move {
            loop {
                news.changed().await;
                looks.fetch_add(1, SeqCst);
            }
        });
        world.until(|_| asked.borrow().len() == 1).await;

        now.set(1);
        world.until(|_| client.nodes().is_empty()).await;
        // The node's connection ends, which is a reason to survey.
        world.until(|_| looked.load(SeqCst) > 0).await;

        now.set(2);
        world.until(|_| asked.borrow().len() == 2).await;
        world.settle().await;
        let before = looked.load(SeqCst);
        let message = format!(">3\r\n{}{}{}", bulk("smessage"), bulk("news"), bulk("0"));
        asked.borrow()[1].send(message.as_bytes());
        world.settle().await;
        assert_eq!(looked.load(SeqCst), before + 1, "the message is heard");
    });
}

/// A subscription is settled at the node that serves its channel's slot, however late that node appears. A slot without a node is a
/// reason to survey.
#[test]
fn subscription_settles_when_slot_is_served() {
    virtual_time(async {
        let views = [
            String::new(),
            line('a', "master", '-', 1, "0-16383"),
            line('a', "master,fail", '-', 1, "") + &line('b', "master", '-', 2, ""),
            line('a', "master,fail", '-', 1, "") + &line('b', "master", '-', 2, "0-16383"),
        ];
        let now = Rc::new(Cell::new(0));
        let (mut world, config) = World::new({
            let now = Rc::clone(&now);
            move |_: &Pipe, words: &[&str]| match words {
                ["CLUSTER", "NODES"] => bulk(&views[now.get()]),
                _ => well_behaved(words),
            }
        });
        let client = Client::lazy(config);
        let mut news = client.subscribe(b"news");
        let settled = tokio::spawn(async move {
            news.settled().await;
            news
        });
        world.settle().await;
        assert!(!settled.is_finished(), "no node is known yet");
        now.set(1);
        world.until(|_| settled.is_finished()).await;
        let mut news = settled.await.unwrap();
        assert!(news.is_confirmed());
        assert_eq!((news.take_changes(), news.has_changed()), (1, false), "it is somewhere else now");

        // The subscription's node is retired, and no node serves the slot for a while.
        now.set(2);
        world.until(|_| client.nodes().iter().all(|node| node.server_address().ends_with(":7001"))).await;
        world.until(|_| !news.is_confirmed()).await;
        let settled = tokio::spawn(async move {
            news.settled().await;
            news
        });
        world.settle().await;
        assert!(!settled.is_finished(), "nobody serves the slot");
        now.set(3);
        world.until(|_| settled.is_finished()).await;
        let news = settled.await.unwrap();
        assert!(news.is_confirmed() && news.has_changed());
    });
}

/// No node can confirm the subscription any more. The end of one node's client would not settle the subscription. The user may have
/// closed that client, or the node may have a successor.
#[test]
fn closing_cluster_settles_subscription() {
    virtual_time(async {
        let (mut world, config) = World::new(|_: &Pipe, words: &[&str]| match words {
            ["SSUBSCRIBE", _] => String::new(),
            _ => well_behaved(words),
        });
        for (is_known, by_hand) in [(false, false), (true, false), (true, true)] {
            let client = Client::lazy(config.clone());
            if is_known {
                world.until(|_| client.is_ready()).await;
            }
            if by_hand {
                client.nodes()[0].begin_closing();
                world.until(|_| !client.is_ready()).await;
            }
            let mut news = client.subscribe(b"news");
            let settled = tokio::spawn(async move {
                news.settled().await;
                news.is_confirmed()
            });
            world.settle().await;
            assert!(!settled.is_finished());
            client.begin_closing();
            world.until(|_| settled.is_finished()).await;
            assert!(!settled.await.unwrap(), "nobody serves it");
        }
    });
}

/// Only a server that does not know the command decides that messages are sent to all nodes.
#[test]
fn transient_failure_keeps_sharded_publish() {
    let unknown =
        "-ERR Unknown PUBSUB subcommand or wrong number of arguments for 'SHARDNUMSUB'. Try PUBSUB HELP.\r\n";
    for (first, verb) in [
        (
            "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n",
            "SPUBLISH",
        ),
        ("the connection ends", "SPUBLISH"),
        ("no answer in time", "SPUBLISH"),
        (unknown, "PUBLISH"),
    ] {
        virtual_time(async move {
            let mut asked = 0;
            let (mut world, config) = World::new(move |pipe: &Pipe, words: &[&str]| match words {
                ["PUBSUB", ..] if asked == 0 => {
                    asked += 1;
                    match first.strip_prefix('-') {
                        Some(_) => first.to_owned(),
                        None => {
                            if first == "the connection ends" {
                                pipe.fin();
                            }
                            String::new()
                        }
                    }
                }
                _ => well_behaved(words),
            });
            let client = Client::lazy(config);
            world.until(|_| client.is_ready()).await;
            assert_eq!(client.publish_verb(), verb, "{first}");
        });
    }
}

/// A reply to a survey may arrive after the client is gone. The reply must not open a connection, because no task would close it.
#[test]
fn late_survey_reply_opens_no_connection() {
    for closes in [false, true] {
        virtual_time(async move {
            let held_back = Rc::new(RefCell::new(None));
            let (mut world, config) = World::new({
                let held_back = Rc::clone(&held_back);
                move |pipe: &Pipe, words: &[&str]| match words {
                    ["CLUSTER", "NODES"] => {
                        *held_back.borrow_mut() = Some(pipe.clone());
                        String::new()
                    }
                    _ => well_behaved(words),
                }
            });
            let client = Client::lazy(config);
            world.until(|_| held_back.borrow().is_some()).await;
            if closes {
                client.close().await;
            }
            drop(client);
            let pipe = held_back.borrow_mut().take().unwrap();
            pipe.send(well_behaved(&["CLUSTER", "NODES"]).as_bytes());
            drop(pipe);
            world.until(|world| world.open() == 0).await;
            assert_eq!(world.pipes.len(), 1, "no node was connected");
        });
    }
}

/// The user's timeout limits every connection, including the connection of a survey.
#[test]
fn slow_connection_within_timeout_joins_cluster() {
    virtual_time(async {
        let (mut world, mut config) = World::new(|_: &Pipe, words: &[&str]| well_behaved(words));
        let timer = config.timer.clone();
        config.credentials = Some(Arc::new(move || {
            let timer = timer.clone();
            Box::pin(async move {
                timer.sleep(Duration::from_millis(1200)).await;
                Ok(Credentials { username: None, password: Some(Secret::new("a token")) })
            })
        }));
        let connected = tokio::spawn(Client::connect(config));
        world.until(|_| connected.is_finished()).await;
        connected.await.unwrap().unwrap();
    });
}

/// A node's other name is translated, too. The server chooses which of the two names a redirection contains.
#[test]
fn either_translated_name_finds_node() {
    for named in ["in.memory", "b.example"] {
        virtual_time(async move {
            let other = line('b', "master", '-', 2, "").replace("@1", "@1,b.example");
            let nodes = line('a', "myself,master", '-', 1, "0-16383") + &other;
            let mut is_asking = false;
            let (mut world, mut config) = World::new(move |_: &Pipe, words: &[&str]| match words {
                ["CLUSTER", "NODES"] => bulk(&nodes),
                ["ASKING"] => {
                    is_asking = true;
                    well_behaved(words)
                }
                ["GET", key] if !std::mem::take(&mut is_asking) => {
                    format!("-ASK {} {named}:7001\r\n", slot_of(key.as_bytes()))
                }
                _ => well_behaved(words),
            });
            config.translate = Some(Arc::new(|address| match address {
                Address::Tcp { host, port } => {
                    Some(Address::Tcp { host: format!("{host}.tunnel"), port: *port })
                }
                _ => None,
            }));
            let client = Client::lazy(config);
            world.until(|_| client.nodes().iter().filter(|node| node.is_ready()).count() == 2).await;
            let call = tokio::spawn(async move { client.call(&Command::new("GET").arg("key")).await });
            world.until(|_| call.is_finished()).await;
            assert_eq!(call.await.unwrap().unwrap().as_str(), Some("OK"), "{named}");
        });
    }
}

/// A translation that panics has no lasting effect. The address is not used, as if it were forbidden, and the next survey translates it
/// again.
#[test]
fn panicking_translation_forbids_address_temporarily() {
    virtual_time(async {
        let nodes = line('a', "myself,master", '-', 1, "0-99") + &line('b', "master", '-', 2, "100-16383");
        let (mut world, mut config) = World::new(move |_: &Pipe, words: &[&str]| match words {
            ["CLUSTER", "NODES"] => bulk(&nodes),
            _ => well_behaved(words),
        });
        let asked = Arc::new(AtomicUsize::new(0));
        let asks = Arc::clone(&asked);
        config.translate = Some(Arc::new(move |address| match address {
            Address::Tcp { port: 7001, .. } if asks.fetch_add(1, SeqCst) < 2 => {
                std::panic::resume_unwind(Box::new(()))
            }
            address => Some(address.clone()),
        }));
        let client = Client::lazy(config);
        world.until(|_| client.nodes().iter().any(Client::is_ready)).await;
        assert_eq!(client.nodes().len(), 1, "the other one is not used");
        world.until(|_| client.nodes().iter().filter(|node| node.is_ready()).count() == 2).await;
        assert_eq!(asked.load(SeqCst), 3);
    });
}

/// A node that accepts connections and never replies, before a node that is refused at first or slow.
#[test]
fn silent_seed_does_not_block_others() {
    let ms = Duration::from_millis;
    for (timeout, refuses_for, takes) in
        [(ms(3000), ms(1300), ms(0)), (ms(3000), ms(0), ms(1400)), (Duration::MAX, ms(1300), ms(0))]
    {
        virtual_time(async move {
            let is_joined = Arc::new(AtomicBool::new(false));
            let (mut world, mut config) = World::new({
                let is_joined = Arc::clone(&is_joined);
                move |_: &Pipe, words: &[&str]| {
                    is_joined.fetch_or(matches!(words, ["CLUSTER", _]), SeqCst);
                    well_behaved(words)
                }
            });
            config.servers = "redis+cluster://silent:7000,in.memory:7000".parse::<Config>().unwrap().servers;
            config.connect_timeout = timeout;
            // The pending request is gone before the next attempt to connect.
            config.random = || 4_000_000;
            let (timer, new) = (config.timer.clone(), Arc::clone(&world.new));
            let (begin, connections) = (timer.now(), AtomicUsize::new(0));
            // Each node is connected once in every round of the survey.
            config.connector = Some(Arc::new(move || {
                let is_silent = connections.fetch_add(1, SeqCst).is_multiple_of(2) && !is_joined.load(SeqCst);
                let pipe = Pipe::new();
                if is_silent {
                    return Ok(pipe);
                }
                if timer.now() < begin + refuses_for {
                    return Err(std::io::ErrorKind::ConnectionRefused.into());
                }
                new.lock().unwrap().push_back(pipe.clone());
                Ok(pipe)
            }));
            let timer = config.timer.clone();
            config.credentials = Some(Arc::new(move || {
                let timer = timer.clone();
                Box::pin(async move {
                    timer.sleep(takes).await;
                    Ok(Credentials { username: None, password: Some(Secret::new("a token")) })
                })
            }));
            let connected = tokio::spawn(Client::connect(config));
            world.pass(ms(7000), ms(1)).await;
            assert!(connected.is_finished(), "{timeout:?}, {refuses_for:?}, {takes:?}");
            connected.await.unwrap().unwrap_or_else(|error| panic!("{refuses_for:?}, {takes:?}: {error}"));
        });
    }
}

/// Servers that accept connections and never reply, in every topology. The timeout counts from the beginning, and not from the moment at
/// which another server named the silent server.
#[test]
fn silence_ends_connect_at_timeout() {
    let ms = Duration::from_millis;
    let named = "redis+sentinel://in.memory/service";
    let urls = ["redis://in.memory", "redis://in.memory,in.memory:7001", named, "redis+cluster://in.memory"];
    let silent = urls.into_iter().map(|url| (url, false));
    for (url, is_named) in silent.chain([(named, true), ("redis+cluster://in.memory", true)]) {
        virtual_time(async move {
            let (mut greeted, time) = (0, Rc::new(Cell::new(Duration::ZERO)));
            let now = Rc::clone(&time);
            let (mut world, mut config) = World::new(move |_: &Pipe, words: &[&str]| {
                greeted += usize::from(words.first() == Some(&"HELLO"));
                match words {
                    // The first connection leads to the server that names the silent server.
                    _ if !is_named || greeted > 1 => String::new(),
                    ["HELLO", ..] if url == named => well_behaved(words).replace("cluster", "sentinel"),
                    ["SENTINEL", ..] if now.get() < ms(200) => "-ERR not yet\r\n".to_owned(),
                    ["SENTINEL", "REPLICAS", _] => "*0\r\n".to_owned(),
                    ["SENTINEL", "MASTER", _] => {
                        let fields =
                            ["ip", "in.memory", "port", "7001", "flags", "master", "config-epoch", "1"];
                        format!("%4\r\n{}", fields.map(bulk).concat())
                    }
                    _ => well_behaved(words),
                }
            });
            config.servers = url.parse::<Config>().unwrap().servers;
            config.connect_timeout = ms(300);
            let connected = tokio::spawn(Client::connect(config));
            world.settle().await;
            while !connected.is_finished() {
                world.pass(ms(1), ms(1)).await;
                time.set(time.get() + ms(1));
            }
            let error = connected.await.unwrap().unwrap_err();
            assert!(time.get() <= ms(305), "{url}, {is_named}: {:?}, {error}", time.get());
            assert!(time.get() >= ms(300), "{url}, {is_named}: {:?}, {error}", time.get());
            assert!(!error.detail().contains("no answer in time"), "{url}, {is_named}: {error}");
        });
    }
}

/// The client waits for a node that never replies, and its timeout is unlimited.
#[test]
fn client_awaiting_first_node_can_close() {
    virtual_time(async {
        let (mut world, mut config) = World::new(|_: &Pipe, _: &[&str]| String::new());
        config.connect_timeout = Duration::MAX;
        let client = Client::lazy(config);
        world.until(|world| world.open() == 1).await;
        world.pass(Duration::from_secs(2), Duration::from_millis(5)).await;
        drop(client);
        world.settle().await;
        assert_eq!(world.open(), 0);
    });
}

/// Each of a cluster's node clients is a handle to the cluster's own connection to that node.
#[test]
fn closed_node_connection_is_reopened() {
    virtual_time(async {
        let (mut world, config) = World::new(|_: &Pipe, words: &[&str]| well_behaved(words));
        let client = Client::lazy(config);
        world.until(|_| client.is_ready()).await;
        let mut news = client.subscribe(b"news");
        world.settle().await;
        let nodes = client.nodes();
        let closing = tokio::spawn(async move {
            for node in nodes {
                node.close().await;
            }
        });
        world.until(|_| closing.is_finished()).await;
        world.until(|_| client.is_ready()).await;
        assert!(matches!(client.state(), ConnectionState::Ready { .. }), "{:?}", client.state());
        let caller = client.clone();
        let call = tokio::spawn(async move { caller.call(&Command::new("GET").arg("key")).await });
        world.until(|_| call.is_finished()).await;
        assert_eq!(call.await.unwrap().unwrap().as_str(), Some("OK"));
        assert!(news.take_changed(), "it moved");
        world.settle().await;
        let message = format!(">3\r\n{}{}{}", bulk("smessage"), bulk("news"), bulk("0"));
        world.pipes.last().unwrap().0.send(message.as_bytes());
        world.settle().await;
        assert!(news.take_changed(), "what is said there is heard");
    });
}

/// A caller waits for a slot without a node, so the client surveys again and again. Surveys must not burden the nodes.
#[test]
fn lasting_trouble_slows_surveys() {
    virtual_time(async {
        let asked = Rc::new(Cell::new(0));
        let (mut world, config) = World::new({
            let asked = Rc::clone(&asked);
            move |_: &Pipe, words: &[&str]| match words {
                ["CLUSTER", "NODES"] => {
                    asked.set(asked.get() + 1);
                    bulk(&line('a', "myself,master", '-', 1, "0-99"))
                }
                _ => well_behaved(words),
            }
        });
        let client = Client::lazy(config);
        world.until(|_| client.is_ready()).await;
        let _news = client.subscribe(b"news");
        let caller = client.clone();
        let call = tokio::spawn(async move {
            let deadline = CallOptions::by(caller.config().timer.now() + Duration::from_secs(60));
            caller.call_with(&Command::new("GET").arg("key"), deadline).await
        });
        assert!(slot_of(b"news") > 99 && slot_of(b"key") > 99);
        let step = Duration::from_millis(5);
        world.pass(Duration::from_secs(11), step).await;
        let before = asked.get();
        assert!(before > 100, "at first every 50 ms: {before}");
        world.pass(Duration::from_secs(5), step).await;
        let asked = asked.get() - before;
        assert!((9..=10).contains(&asked), "then every 500 ms: {asked} in 5 s");
        assert!(!call.is_finished());
    });
}

/// A cluster may lack a part for a long time. Another node's failure is then surveyed as if it were the only failure. A failure that
/// recurs again and again is not.
#[test]
fn other_node_failure_hurries_surveys() {
    virtual_time(async {
        let asked = Rc::new(Cell::new(0));
        let nodes = line('a', "myself,master", '-', 1, "0-99") + &line('b', "master", '-', 2, "100-199");
        let (mut world, config) = World::new({
            let asked = Rc::clone(&asked);
            move |_: &Pipe, words: &[&str]| match words {
                ["CLUSTER", "NODES"] => {
                    asked.set(asked.get() + 1);
                    bulk(&nodes)
                }
                _ => well_behaved(words),
            }
        });
        let client = Client::lazy(config);
        world.until(|_| client.nodes().iter().filter(|node| node.is_ready()).count() == 2).await;
        let (second, step) = (Duration::from_secs(1), Duration::from_millis(5));
        let in_a_second = async |world: &mut World<_>| {
            let before = asked.get();
            world.pass(second, step).await;
            asked.get() - before
        };
        world.pass(11 * second, step).await;
        assert!(in_a_second(&mut world).await <= 2, "a slot has been nobody's for long");

        world.pipes.last().unwrap().0.fin();
        let hurried = in_a_second(&mut world).await;
        assert!(hurried >= 15, "every 50 ms again: {hurried}");
        for _ in 0..10 {
            world.pipes.last().unwrap().0.fin();
            world.pass(second, step).await;
        }
        for _ in 0..10 {
            world.pipes.last().unwrap().0.fin();
            let slowed = in_a_second(&mut world).await;
            assert!(slowed <= 4, "the same node is no news: {slowed}");
        }
        // The node has been healthy for a while.
        world.pass(11 * second, step).await;
        world.pipes.last().unwrap().0.fin();
        let hurried = in_a_second(&mut world).await;
        assert!(hurried >= 15, "it is news again: {hurried}");
    });
}

/// With `cluster-preferred-endpoint-type unknown-endpoint` a redirection does not name a host. The redirection then means the node that
/// sent it.
#[test]
fn detached_call_follows_hostless_redirection() {
    virtual_time(async {
        let nodes = line('a', "myself,master", '-', 1, "0-16383") + &line('b', "master", '-', 2, "");
        let mut is_asking = false;
        let (mut world, mut config) = World::new(move |_: &Pipe, words: &[&str]| match words {
            ["CLUSTER", "NODES"] => bulk(&nodes),
            ["ASKING"] => {
                is_asking = true;
                well_behaved(words)
            }
            ["EVALSHA", _, "1", key] if !std::mem::take(&mut is_asking) => {
                format!("-ASK {} :7001\r\n", slot_of(key.as_bytes()))
            }
            _ => well_behaved(words),
        });
        let results = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&results);
        config.hooks.on_detached = Some(Arc::new(move |results| sink.lock().unwrap().append(results)));
        let client = Client::lazy(config);
        world.until(|_| client.nodes().iter().filter(|node| node.is_ready()).count() == 2).await;
        let (script, params) = (Script::new("return 1", 1, 0), [Arg::from("key")]);
        let mut retry = Retry::default();
        for (token, answer) in [(1, None), (2, Some("OK"))] {
            drop(client.queue_eval(&script, 1, &params, &retry, token, false).unwrap());
            world.until(|_| !results.lock().unwrap().is_empty()).await;
            let detached: Detached = results.lock().unwrap().pop().unwrap();
            let reply = detached.result.unwrap();
            assert_eq!((detached.token, reply.as_str()), (token, answer), "{reply:?}");
            retry.after_reply(&reply, || client.host_of(detached.connection));
        }
    });
}

/// A subscription follows its slot when its owner polls it. Until then its node rejects the subscription. The rejection must not cause
/// endless requests, or wake subscribers to the node's other channels.
#[test]
fn unpolled_subscription_does_not_burden_node() {
    virtual_time(async {
        let slot = slot_of(b"gone");
        let (before, behind) = (format!("0-{}", slot - 1), format!("{}-16383", slot + 1));
        let views = [
            line('a', "master", '-', 1, "0-16383") + &line('b', "master", '-', 2, ""),
            line('a', "master", '-', 1, &format!("{before} {behind}"))
                + &line('b', "master", '-', 3, &slot.to_string()),
        ];
        let (now, left) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(None::<Pipe>)));
        let (asked, refused) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let (mut world, config) = World::new({
            let (now, left, asked, refused) =
                (Rc::clone(&now), Rc::clone(&left), Rc::clone(&asked), Rc::clone(&refused));
            move |pipe: &Pipe, words: &[&str]| match words {
                ["CLUSTER", "NODES"] => {
                    asked.set(asked.get() + 1);
                    bulk(&views[now.get()])
                }
                ["SSUBSCRIBE", "gone"] if now.get() == 1 => {
                    refused.set(refused.get() + 1);
                    format!("-MOVED {slot} in.memory:7001\r\n")
                }
                ["SSUBSCRIBE", "gone"] => {
                    *left.borrow_mut() = Some(pipe.clone());
                    well_behaved(words)
                }
                _ => well_behaved(words),
            }
        });
        let client = Client::lazy(config);
        world.until(|_| client.is_ready()).await;
        let (gone, mut stays) = (client.subscribe(b"gone"), client.subscribe(b"stays"));
        assert_ne!(slot_of(b"stays"), slot);
        world.until(|_| gone.is_confirmed() && stays.is_confirmed()).await;

        now.set(1);
        let ended = format!(">3\r\n{}{}:0\r\n", bulk("sunsubscribe"), bulk("gone"));
        left.borrow().as_ref().unwrap().send(ended.as_bytes());
        world.pass(Duration::from_secs(1), Duration::from_millis(10)).await;
        assert!(gone.has_changed(), "it is to look for its slot");
        asked.set(0);
        refused.set(0);
        let _earlier = stays.take_changes();
        world.pass(Duration::from_secs(20), Duration::from_millis(10)).await;
        let counted = (asked.get(), refused.get(), stays.take_changes());
        assert!(counted.0 <= 6 && counted.1 <= 6 && counted.2 <= 6, "{counted:?}");
    });
}
