//! A model-based test of the pipeline.
//!
//! The model is a server that echoes, with every kind of failure.

mod batches;
mod natives;
mod subscriptions;
mod waits;

use super::*;
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use wheellock_resp::{Arg, Frame, Push};

use super::batches::MOST;
use crate::base::script::{Native, NativeReply, Script, Word};
use crate::protocol::acks::Acks;
use crate::protocol::request::Eval;

/// One event of a connection.
#[derive(Clone, Debug)]
enum Step {
    Call,
    Detached,
    /// A call of a script that can be batched, by the index of its part.
    Part(usize),
    DetachedPart(usize),
    /// The server refuses the next batch, for lack of the script or of a permission.
    Refuse(bool),
    /// The next native command does nothing, or the server refuses it.
    RefuseNative(usize),
    /// The caller of the n-th answered call waits for acknowledgements.
    Wait(usize),
    DetachedWait(usize),
    Ping,
    Subscribe(u8),
    Unsubscribe(u8),
    /// The server gives a channel's slot away and ends the subscription by itself. It gets the slot back with the
    /// next subscription.
    Move(u8),
    /// The caller of the n-th open call leaves.
    Leave(usize),
    /// A writer takes all queued bytes, and the socket accepts this share of them, in 255ths.
    Write(u8),
    /// The server answers this number of received commands.
    Answer(usize),
    /// The server's next reply belongs to another command, if the pipeline can notice that.
    Shift,
    Message(u8),
    Expire,
    Break,
    Connect,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Call),
        2 => Just(Step::Detached),
        8 => (0..4_usize).prop_map(Step::Part),
        4 => (0..4_usize).prop_map(Step::DetachedPart),
        1 => any::<bool>().prop_map(Step::Refuse),
        1 => (0..3_usize).prop_map(Step::RefuseNative),
        3 => (0..8_usize).prop_map(Step::Wait),
        2 => (0..8_usize).prop_map(Step::DetachedWait),
        1 => Just(Step::Ping),
        2 => (0..3_u8).prop_map(Step::Subscribe),
        3 => (0..3_u8).prop_map(Step::Unsubscribe),
        3 => (0..3_u8).prop_map(Step::Move),
        2 => (0..8_usize).prop_map(Step::Leave),
        6 => any::<u8>().prop_map(Step::Write),
        6 => (0..6_usize).prop_map(Step::Answer),
        1 => Just(Step::Shift),
        1 => (0..3_u8).prop_map(Step::Message),
        1 => Just(Step::Expire),
        1 => Just(Step::Break),
        1 => Just(Step::Connect),
    ];
    proptest::collection::vec(step, 0..200)
}

/// A pipeline, and a server that echoes every command it has fully received.
struct World {
    pipeline: Pipeline,
    connected: bool,
    received: BytesMut,
    /// The commands that the server has fully received on this connection and not answered yet.
    pending: VecDeque<Vec<String>>,
    /// All commands that the server has ever executed.
    executed: HashMap<String, usize>,
    calls: Vec<(u32, String)>,
    detached: HashMap<u64, String>,
    /// The connections of answered calls.
    answered: Vec<ConnectionId>,
    /// The callers that wait for acknowledgements, with the connection of their reply.
    waiting: Vec<(u32, ConnectionId)>,
    waiting_detached: HashMap<u64, ConnectionId>,
    subscriptions: HashMap<u8, (u32, u64)>,
    /// The channels to which this connection is subscribed, and the channels that the server gave away.
    subscribed: HashSet<String>,
    moved: HashSet<String>,
    /// The calls that were reported as never sent. The server must not execute them later, either.
    not_sent: Vec<String>,
    /// The reply to the next batch.
    refusal: Option<&'static str>,
    /// The reply to the next native command. An empty text stands for null.
    native_refusal: Option<&'static str>,
    /// True if the server denies native commands to this connection.
    natives_are_denied: bool,
    next: u64,
    now: Instant,
    wakers: Vec<Waker>,
}

impl World {
    fn new(sharded: bool) -> Self {
        let now = Instant::now();
        let bounds = Bounds { in_flight: 1000, queued_bytes: 1 << 20 };
        let mut pipeline = Pipeline::new(bounds, now, NODE, true);
        pipeline.sharded = sharded;
        Self {
            pipeline,
            connected: false,
            received: BytesMut::new(),
            pending: VecDeque::new(),
            executed: HashMap::new(),
            calls: Vec::new(),
            detached: HashMap::new(),
            answered: Vec::new(),
            waiting: Vec::new(),
            waiting_detached: HashMap::new(),
            subscriptions: HashMap::new(),
            subscribed: HashSet::new(),
            moved: HashSet::new(),
            not_sent: Vec::new(),
            refusal: None,
            native_refusal: None,
            natives_are_denied: false,
            next: 0,
            now,
            wakers: Vec::new(),
        }
    }

    fn step(&mut self, step: &Step) {
        self.now += Duration::from_millis(1);
        let now = self.now;
        match *step {
            Step::Call => {
                self.next += 1;
                let nonce = format!("n{}", self.next);
                let command = Command::new("ECHO").arg(&nonce);
                let deadline = now + Duration::from_millis(20);
                let waker = Waker::noop().clone();
                let request = Request::Command(&command);
                let slot =
                    self.pipeline.submit(&request, Lane::Normal, now, deadline, waker, Prefix::None).unwrap();
                self.calls.push((slot, nonce));
            }
            Step::Detached => {
                self.next += 1;
                let nonce = format!("n{}", self.next);
                let command = Command::new("ECHO").arg(&nonce);
                assert!(self.pipeline.submit_detached(
                    &Request::Command(&command),
                    now,
                    self.next,
                    Prefix::None
                ));
                self.detached.insert(self.next, nonce);
            }
            Step::Part(which) => {
                self.next += 1;
                let nonce = format!("n{}", self.next);
                let (script, params) = part(which, &nonce);
                let request = Request::EvalSha(Eval { script, keys: 1, params: &params });
                let (deadline, waker) = (now + Duration::from_millis(20), Waker::noop().clone());
                let slot =
                    self.pipeline.submit(&request, Lane::Normal, now, deadline, waker, Prefix::None).unwrap();
                self.calls.push((slot, nonce));
            }
            Step::DetachedPart(which) => {
                self.next += 1;
                let nonce = format!("n{}", self.next);
                let (script, params) = part(which, &nonce);
                let request = Request::EvalSha(Eval { script, keys: 1, params: &params });
                assert!(self.pipeline.submit_detached(&request, now, self.next, Prefix::None));
                self.detached.insert(self.next, nonce);
            }
            Step::Refuse(is_unknown) => {
                self.refusal =
                    Some(if is_unknown { "NOSCRIPT No matching script" } else { "NOPERM one of the keys" });
            }
            Step::RefuseNative(how) => {
                self.native_refusal = Some(["", "WRONGTYPE for this one", "NOPERM to run the command"][how]);
            }
            Step::Wait(n) if n < self.answered.len() => {
                let connection = self.answered[n];
                let deadline = now + Duration::from_millis(20);
                let waker = Waker::noop().clone();
                match self.pipeline.submit_wait(connection, WAIT, now, deadline, waker) {
                    Ok(slot) => self.waiting.push((slot, connection)),
                    Err(no_wait) => {
                        assert_eq!(no_wait, NoWait::Ended);
                        assert!(!self.is_present(connection));
                    }
                }
            }
            Step::DetachedWait(n) if n < self.answered.len() => {
                let connection = self.answered[n];
                self.next += 1;
                if self.pipeline.submit_detached_wait(connection, WAIT, now, self.next) {
                    self.waiting_detached.insert(self.next, connection);
                } else {
                    assert!(!self.is_present(connection));
                }
            }
            Step::Ping => self.pipeline.submit_ping(now),
            Step::Subscribe(channel) => {
                let pipeline = &mut self.pipeline;
                let (index, _) = *self
                    .subscriptions
                    .entry(channel)
                    .or_insert_with(|| (pipeline.channels().want(&[b'c', channel]), 0));
                if self.connected {
                    self.pipeline.reconcile(index, now);
                }
            }
            Step::Unsubscribe(channel) => {
                if let Some((index, waiter)) = self.subscriptions.remove(&channel) {
                    self.pipeline.channels().unwant(index, waiter);
                    if self.connected {
                        self.pipeline.reconcile(index, now);
                    }
                }
            }
            Step::Move(channel) if self.connected && self.pipeline.sharded => {
                let name = String::from_utf8(vec![b'c', channel]).unwrap();
                if self.subscribed.remove(&name) {
                    self.pending.push_back(vec!["SUNSUBSCRIBE".to_owned(), name.clone()]);
                    self.moved.insert(name);
                }
            }
            Step::Leave(n) if n % 2 == 1 && n / 2 < self.waiting.len() => {
                let (slot, _) = self.waiting.swap_remove(n / 2);
                drop(self.pipeline.leave(slot));
            }
            Step::Leave(n) if n < self.calls.len() => {
                let (slot, _) = self.calls.swap_remove(n);
                drop(self.pipeline.leave(slot));
            }
            Step::Write(share) if self.connected && self.pipeline.has_output() => {
                let mut bytes = self.pipeline.take_output();
                // A caller may append while the writer is in its system call.
                if share % 3 == 1 {
                    self.step(&Step::Call);
                }
                let accepted = (bytes.len() * usize::from(share)).div_ceil(255);
                self.received.extend_from_slice(&bytes.split_to(accepted));
                self.pipeline.give_back(bytes);
                self.receive();
            }
            Step::Answer(count) if self.connected => {
                for command in self.pending.drain(..count.min(self.pending.len())).collect::<Vec<_>>() {
                    self.answer(&command);
                }
            }
            Step::Shift if self.connected => {
                let can_be_seen = |words: &Vec<String>| match words[0].as_str() {
                    "EVALSHA" => words[1] == WHOLE.sha(),
                    verb => matches!(verb, "TAKE" | "TELL"),
                };
                if self.pending.front().is_some_and(can_be_seen) {
                    self.pending.pop_front();
                    let shifted = Frame::Reply(Value::Integer(5));
                    // The command was already refused, so this reply reaches no caller.
                    if self.pipeline.on_frame(shifted, now, &mut self.wakers).is_err() {
                        self.step(&Step::Break);
                    }
                }
            }
            Step::Message(channel) if self.connected => {
                let name = String::from_utf8(vec![b'c', channel]).unwrap();
                self.push("message", &[&name, "0"]);
            }
            Step::Expire => {
                self.now += Duration::from_millis(15);
                self.pipeline.expire(self.now, &mut self.wakers);
            }
            Step::Break if self.connected => {
                let cause =
                    Error::new(ErrorKind::ConnectionLost, Outcome::MaybeExecuted, "t", "s", String::new());
                self.pipeline.disconnect(&cause, &mut self.wakers);
                self.connected = false;
                self.received.clear();
                self.pending.clear();
                self.subscribed.clear();
                self.moved.clear();
            }
            Step::Connect if !self.connected => {
                // Every second server knows native commands.
                let is_native = self.pipeline.connection.epoch.is_multiple_of(2);
                self.pipeline.meet(&server(is_native));
                self.natives_are_denied = !is_native;
                self.pipeline.reconnect(now);
                self.connected = true;
            }
            _ => {}
        }
        self.check();
    }

    /// Executes every command that has fully arrived. Its reply may come late or never.
    fn receive(&mut self) {
        let mut decoder = wheellock_resp::Decoder::new(wheellock_resp::Limits::default());
        loop {
            let mut rest = self.received.clone();
            let Some(Frame::Reply(command)) = decoder.decode(&mut rest).expect("whole commands, untorn")
            else {
                return;
            };
            let words: Vec<String> =
                command.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect();
            let is_native = matches!(words[0].as_str(), "TAKE" | "GIVE");
            assert!(
                !is_native || !self.natives_are_denied,
                "what is not known, or not allowed, is not tried"
            );
            if let Some(refusal) = self.native_refusal.take_if(|_| is_native) {
                self.pending.push_back(vec!["REFUSED".to_owned(), refusal.to_owned()]);
                self.received = rest;
                decoder = wheellock_resp::Decoder::new(wheellock_resp::Limits::default());
                continue;
            }
            let is_bundle = words.get(1).is_some_and(|sha| sha == WHOLE.sha());
            if words[0] == "SUNSUBSCRIBE" && self.moved.contains(&words[1]) {
                // The user may not unsubscribe, or the slot is already gone.
                let refusal =
                    ["NOPERM to run the command", "MOVED 1 h:1"][usize::from(words[1].ends_with('\0'))];
                self.pending.push_back(vec!["REFUSED".to_owned(), refusal.to_owned()]);
            } else if let Some(refusal) = self.refusal.take_if(|_| is_bundle) {
                self.pending.push_back(vec!["REFUSED".to_owned(), refusal.to_owned()]);
            } else {
                for nonce in nonces(&words) {
                    match words[0].as_str() {
                        "SSUBSCRIBE" => _ = (self.moved.remove(nonce), self.subscribed.insert(nonce.clone())),
                        "SUNSUBSCRIBE" => _ = self.subscribed.remove(nonce),
                        _ => {}
                    }
                    *self.executed.entry(nonce.clone()).or_default() += 1;
                }
                self.pending.push_back(words);
            }
            self.received = rest;
            decoder = wheellock_resp::Decoder::new(wheellock_resp::Limits::default());
        }
    }

    fn answer(&mut self, command: &[String]) {
        match command[0].as_str() {
            "ECHO" => {
                let reply = Value::BulkString(command[1].as_bytes().to_vec().into());
                self.frame(Frame::Reply(reply));
            }
            "EVALSHA" if command[1] == WHOLE.sha() => {
                let answers =
                    nonces(command).iter().map(|nonce| Value::BulkString(nonce.as_bytes().to_vec().into()));
                self.frame(Frame::Reply(Value::Array(answers.collect())));
            }
            "EVALSHA" => self.frame(Frame::Reply(Value::BulkString(command[3].as_bytes().to_vec().into()))),
            "SCRIPT" => self.frame(Frame::Reply(Value::BulkString(WHOLE.sha().as_bytes().to_vec().into()))),
            "TAKE" | "GIVE" | "TELL" => {
                self.frame(Frame::Reply(Value::BulkString(command[1].as_bytes().to_vec().into())));
            }
            "REFUSED" if command[1].is_empty() => self.frame(Frame::Reply(Value::Null)),
            "REFUSED" => self.frame(Frame::Reply(Value::Error(command[1].as_bytes().to_vec().into()))),
            // The number of acknowledgements equals the number of this connection.
            "WAIT" => {
                let number = i64::from(self.pipeline.connection.epoch);
                self.frame(Frame::Reply(Value::Integer(number)));
            }
            "PING" => self.frame(Frame::Reply(Value::BulkString(command[1].as_bytes().to_vec().into()))),
            verb => self.push(&verb.to_lowercase(), &[&command[1]]),
        }
    }

    fn push(&mut self, kind: &str, args: &[&str]) {
        let words = std::iter::once(kind).chain(args.iter().copied());
        let words = words.map(|word| Value::BulkString(word.as_bytes().to_vec().into())).collect();
        self.frame(Frame::Push(Push::new(words).unwrap()));
    }

    fn frame(&mut self, frame: Frame) {
        self.pipeline.on_frame(frame, self.now, &mut self.wakers).expect("an honest server causes no desync");
    }

    fn check(&mut self) {
        let executed = &self.executed;
        let (pipeline, not_sent) = (&mut self.pipeline, &mut self.not_sent);
        self.calls.retain(|(slot, nonce)| match pipeline.take(*slot, Waker::noop()) {
            None => true,
            Some(Done { result: Ok(reply), epoch }) => {
                assert_eq!(reply.as_str(), Some(nonce.as_str()), "another caller's reply");
                self.answered.insert(0, ConnectionId { node: NODE, epoch });
                self.answered.truncate(8);
                false
            }
            Some(Done { result: Err(failure), .. }) => {
                if failure.outcome == Outcome::NotSent {
                    not_sent.push(nonce.clone());
                }
                false
            }
        });
        self.waiting.retain(|(slot, connection)| match pipeline.take(*slot, Waker::noop()) {
            None => true,
            Some(Done { result, .. }) => {
                let epoch = i64::from(connection.epoch);
                assert!(result.is_err() || result.is_ok_and(|reply| reply.as_i64() == Some(epoch)));
                false
            }
        });
        let mut results = Vec::new();
        pipeline.take_detached(&mut results);
        for Detached { token, result, .. } in results {
            if let Some(connection) = self.waiting_detached.remove(&token) {
                let epoch = i64::from(connection.epoch);
                assert!(result.is_err() || result.is_ok_and(|reply| reply.as_i64() == Some(epoch)));
                continue;
            }
            let nonce = self.detached.remove(&token).expect("reported once");
            match result {
                Ok(reply) => assert_eq!(reply.as_str(), Some(nonce.as_str())),
                Err(Outcome::NotSent) => not_sent.push(nonce),
                Err(_) => {}
            }
        }
        assert!(not_sent.iter().all(|nonce| !executed.contains_key(nonce)), "said NotSent, but it ran");
        assert!(executed.iter().all(|(nonce, times)| !nonce.starts_with('n') || *times == 1), "ran twice");
    }

    fn is_present(&self, connection: ConnectionId) -> bool {
        self.connected && connection == self.pipeline.connection
    }

    /// Ends all failures: every call ends, and the pipeline is empty.
    fn settle(&mut self) {
        if !self.connected {
            self.step(&Step::Connect);
        }
        for _ in 0..20 {
            self.step(&Step::Write(255));
            self.step(&Step::Answer(usize::MAX));
        }
        assert!(self.calls.is_empty() && self.detached.is_empty(), "a call never ended");
        assert!(self.waiting.is_empty() && self.waiting_detached.is_empty(), "a wait never ended");
        assert!(self.pipeline.is_empty() && !self.pipeline.has_output() && self.pipeline.slots.is_empty());
        for (index, _) in self.subscriptions.values() {
            assert!(self.pipeline.channels().is_confirmed(*index));
        }
    }
}

static WHOLE: LazyLock<Arc<Script>> = LazyLock::new(|| Arc::new(Script::variadic("whole")));
static PARTS: LazyLock<[Script; 4]> = LazyLock::new(|| {
    [
        Script::new("one", 1, 1).as_part(&WHOLE, 1),
        Script::new("two", 1, 2).as_part(&WHOLE, 2),
        Script::new("take", 1, 1).as_part(&WHOLE, 3).natively(&TAKE),
        Script::new("give", 1, 2).natively(&GIVE).as_part(&WHOLE, 4),
    ]
});

static TAKE: [Native; 1] = [Native {
    known_by: &[("other", (1, 0)), ("native", (9, 0))],
    commands: &[&[Word::Text("TAKE"), Word::Param(1)]],
    read: |first, second| {
        assert!(second.is_none());
        if first.as_i64().is_some() {
            return None;
        }
        Some(if first.is_null() { NativeReply::Refused } else { NativeReply::Done(first.clone()) })
    },
}];
static GIVE: [Native; 2] = [
    Native { known_by: &[("native", (9, 2))], commands: &[], read: |_, _| None },
    Native {
        known_by: &[("native", (9, 1))],
        commands: &[
            &[Word::Text("GIVE"), Word::Param(0), Word::Param(2)],
            &[Word::Text("TELL"), Word::Param(0)],
        ],
        read: |first, second| match second {
            Some(second) if first.is_null() || first == second => {
                Some(if first.is_null() { NativeReply::Refused } else { NativeReply::Done(first.clone()) })
            }
            _ => None,
        },
    },
];

/// Describes a server with or without native commands.
fn server(is_native: bool) -> ServerInfo {
    let name = if is_native { "native" } else { "plain" };
    ServerInfo { name: name.to_owned(), version: "9.1.0".to_owned(), ..ServerInfo::default() }
}

/// Returns a script that can be batched, and the parameters of a call of it.
fn part(which: usize, nonce: &str) -> (&'static Script, Vec<Arg<'_>>) {
    let params = [nonce.into(), nonce.into(), "second".into()];
    (&PARTS[which], params.into_iter().take(2 + which % 2).collect())
}

/// Returns the nonces of a command. For a batch these are its keys, and each part's arguments must match its key.
fn nonces(words: &[String]) -> &[String] {
    match words {
        [verb, sha, keys, rest @ ..] if verb == "EVALSHA" => {
            let (keys, mut args) = rest.split_at(keys.parse().unwrap());
            if *sha == WHOLE.sha() {
                assert!((2..=MOST).contains(&keys.len()));
                for key in keys {
                    let (part, behind) = args.split_first().unwrap();
                    assert_eq!(behind[0], *key, "the first argument is the same nonce");
                    let two = part == "2" || part == "4";
                    assert!(two || part == "1" || part == "3");
                    assert!(!two || behind[1] == "second");
                    args = &behind[1 + usize::from(two)..];
                }
                assert!(args.is_empty(), "{args:?}");
            }
            keys
        }
        // TELL belongs to the command before it.
        [verb, ..] if verb == "TELL" => &[],
        words => words.get(1..2).unwrap_or_default(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
    #[test]
    fn every_reply_reaches_caller(steps in steps(), sharded in any::<bool>()) {
        let mut world = World::new(sharded);
        for step in &steps {
            world.step(step);
        }
        world.settle();
    }
}

#[test]
fn unsolicited_reply_is_desync() {
    let now = Instant::now();
    let fresh = || {
        let mut pipeline = Pipeline::new(Bounds { in_flight: 9, queued_bytes: 999 }, now, NODE, true);
        pipeline.reconnect(now);
        pipeline
    };
    let ok = || Frame::Reply(Value::SimpleString(b"OK".to_vec().into()));
    assert!(fresh().on_frame(ok(), now, &mut Vec::new()).is_err(), "nothing is in flight");

    let mut unwritten = fresh();
    unwritten.submit_ping(now);
    assert!(unwritten.on_frame(ok(), now, &mut Vec::new()).is_err(), "nothing was written yet");

    let mut subscribing = fresh();
    let channel = subscribing.channels().want(b"c");
    subscribing.reconcile(channel, now);
    drop(subscribing.take_output());
    assert!(subscribing.on_frame(ok(), now, &mut Vec::new()).is_err(), "SUBSCRIBE has no such reply");

    let mut refused = fresh();
    let channel = refused.channels().want(b"c");
    refused.reconcile(channel, now);
    drop(refused.take_output());
    let noperm = Frame::Reply(Value::Error(b"NOPERM no channel".to_vec().into()));
    assert!(refused.on_frame(noperm, now, &mut Vec::new()).is_ok());
    assert_eq!(refused.channels().refusal(channel).as_deref(), Some("NOPERM no channel"));
}

#[test]
fn bounds_keep_room_for_reserved_lane() {
    let now = Instant::now();
    let mut pipeline = Pipeline::new(Bounds { in_flight: 16, queued_bytes: 1 << 20 }, now, NODE, true);
    let ping = Command::new("PING");
    let request = Request::Command(&ping);
    let mut submit =
        |lane| pipeline.submit(&request, lane, now, now, Waker::noop().clone(), Prefix::None).is_some();
    assert!((0..16).all(|_| submit(Lane::Normal)));
    assert!(!submit(Lane::Normal));
    assert!((0..2).all(|_| submit(Lane::Reserved)));
    assert!(!submit(Lane::Reserved), "that is bounded too");
}

/// The server stops reading. Bytes that a writer holds count as queued, like those behind them.
#[test]
fn bytes_held_by_writer_stay_queued() {
    let (mut pipeline, _) = connected(1000);
    pipeline.bounds.queued_bytes = 1000;
    let text = "x".repeat(600);
    let echo = Command::new("ECHO").arg(&text);
    let submit = |pipeline: &mut Pipeline| {
        let (request, now) = (Request::Command(&echo), Instant::now());
        pipeline.submit(&request, Lane::Normal, now, now, Waker::noop().clone(), Prefix::None).is_some()
    };
    assert!(submit(&mut pipeline) && submit(&mut pipeline));
    let queued = pipeline.queued_bytes();
    let mut bytes = pipeline.take_output();
    assert_eq!(pipeline.queued_bytes(), queued);
    assert!(!submit(&mut pipeline), "no byte has left");
    pipeline.wrote(700);
    drop(bytes.split_to(700));
    assert_eq!(pipeline.queued_bytes(), queued - 700);
    assert!(submit(&mut pipeline));
    pipeline.give_back(bytes);
    assert_eq!(pipeline.queued_bytes(), queued - 700 + queued / 2);
    drop(pipeline.take_output());
    pipeline.give_back(BytesMut::new());
    assert_eq!(pipeline.queued_bytes(), 0);
    // The end of a connection discards the bytes that its writer holds.
    assert!(submit(&mut pipeline));
    drop(pipeline.take_output());
    let lost = Error::new(ErrorKind::ConnectionLost, Outcome::MaybeExecuted, "x", "s", String::new());
    pipeline.disconnect(&lost, &mut Vec::new());
    assert_eq!(pipeline.queued_bytes(), 0);
}

#[test]
fn only_flood_capacity_is_released() {
    let (mut pipeline, _) = connected(1 << 20);
    pipeline.bounds.queued_bytes = usize::MAX;
    let ping = Command::new("PING");
    let request = Request::Command(&ping);
    for (calls, kept) in [(100, true), (40_000, false)] {
        let now = Instant::now();
        for _ in 0..calls {
            pipeline.submit(&request, Lane::Normal, now, now, Waker::noop().clone(), Prefix::None).unwrap();
        }
        let mut bytes = pipeline.take_output();
        while !bytes.is_empty() {
            // The socket takes the bytes in pieces.
            drop(bytes.split_to(bytes.len().min(100_000)));
        }
        pipeline.give_back(bytes);
        assert_eq!(pipeline.spare.try_reclaim(1), kept, "{calls} calls");
    }
}

/// Returns a pipeline with a connection, and that connection's identifier.
fn connected(bounds: usize) -> (Pipeline, ConnectionId) {
    let now = Instant::now();
    let mut pipeline = Pipeline::new(Bounds { in_flight: bounds, queued_bytes: 1 << 20 }, now, NODE, true);
    pipeline.reconnect(now);
    let connection = pipeline.connection;
    (pipeline, connection)
}

const NODE: u32 = 3;
const WAIT: (Acks, u64) = (Acks::Replicas(1), 100);

/// Queues calls of these parts, the n-th call with the key `n`, and takes the output. Returns the slots and the
/// written text.
fn batch(pipeline: &mut Pipeline, parts: &[usize]) -> (Vec<u32>, String) {
    let now = Instant::now();
    let slots = parts.iter().enumerate().map(|(number, which)| {
        let nonce = number.to_string();
        let (script, params) = part(*which, &nonce);
        let request = Request::EvalSha(Eval { script, keys: 1, params: &params });
        let (deadline, waker) = (now + Duration::from_secs(60), Waker::noop().clone());
        pipeline.submit(&request, Lane::Normal, now, deadline, waker, Prefix::None).unwrap()
    });
    let slots = slots.collect();
    let bytes = pipeline.take_output();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    pipeline.give_back(BytesMut::new());
    (slots, text)
}

fn answer(pipeline: &mut Pipeline, value: Value) -> Result<(), Desync> {
    pipeline.on_frame(Frame::Reply(value), Instant::now(), &mut Vec::new())
}

fn text_of(pipeline: &mut Pipeline, slot: u32) -> Option<String> {
    let reply = pipeline.take(slot, Waker::noop())?.result.unwrap();
    Some(String::from_utf8_lossy(reply.as_bytes().or(reply.as_error()).unwrap()).into_owned())
}

/// Returns a pipeline whose server knows native commands.
fn native(batches_calls: bool) -> Pipeline {
    let now = Instant::now();
    let bounds = Bounds { in_flight: 100, queued_bytes: 1 << 20 };
    let mut pipeline = Pipeline::new(bounds, now, NODE, batches_calls);
    pipeline.meet(&server(true));
    pipeline.reconnect(now);
    pipeline
}

fn words(commands: &[&[&str]]) -> String {
    let mut out = BytesMut::new();
    for words in commands {
        Command::new(words[0]).args(words[1..].iter().copied()).encode(&mut out);
    }
    String::from_utf8(out.to_vec()).unwrap()
}

#[test]
fn remembering_call_follows_its_order() {
    for tracks_keys in [false, true] {
        let mut pipeline = native(true);
        pipeline.meet(&ServerInfo { tracks_keys, ..server(false) });
        let (script, params) = part(3, "n");
        let request = Request::EvalSha(Eval { script, keys: 1, params: &params });
        assert!(pipeline.submit_detached(&request, Instant::now(), 1, Prefix::Caching));
        let sent = pipeline.take_output();
        let order = b"*3\r\n$6\r\nCLIENT\r\n$7\r\nCACHING\r\n$3\r\nYES\r\n*";
        assert_eq!(sent.starts_with(order), tracks_keys, "{sent:?}");
        if tracks_keys {
            answer(&mut pipeline, Value::SimpleString("OK".into())).unwrap();
        }
        answer(&mut pipeline, Value::Null).unwrap();
        let mut replies = Vec::new();
        pipeline.take_detached(&mut replies);
        assert!(matches!(&replies[..], [Detached { token: 1, result: Ok(Value::Null), .. }]), "{replies:?}");
    }
}

#[test]
fn news_without_keys_concern_all() {
    fn hear(pipeline: &mut Pipeline, keys: Value) {
        let words = vec![Value::BulkString("invalidate".into()), keys];
        let push = Frame::Push(Push::new(words).unwrap());
        pipeline.on_frame(push, Instant::now(), &mut Vec::new()).unwrap();
    }
    let mut pipeline = native(false);
    let keys = |keys: &[&'static str]| {
        Value::Array(keys.iter().map(|key| Value::BulkString((*key).into())).collect())
    };
    hear(&mut pipeline, keys(&["a"]));
    hear(&mut pipeline, keys(&["b", "c"]));
    let told = pipeline.changed_keys.take();
    assert!(matches!(&told, Some(ChangedKeys::These(keys)) if keys.len() == 3), "{told:?}");
    assert!(pipeline.changed_keys.take().is_none(), "each key is told once");
    hear(&mut pipeline, Value::Null);
    hear(&mut pipeline, keys(&["a"]));
    let told = pipeline.changed_keys.take();
    assert!(matches!(told, Some(ChangedKeys::Any(_))), "{told:?}");
}

/// Ends the connection. Every caller learns that the outcome of its call is unknown.
fn break_and_expect_all_lost(pipeline: &mut Pipeline, slots: &[u32]) {
    let cause = Error::new(ErrorKind::Protocol, Outcome::MaybeExecuted, "t", "s", String::new());
    pipeline.disconnect(&cause, &mut Vec::new());
    for slot in slots {
        let failure = pipeline.take(*slot, Waker::noop()).expect("told").result.unwrap_err();
        assert_eq!((failure.kind, failure.outcome), (ErrorKind::Protocol, Outcome::MaybeExecuted));
    }
    assert!(pipeline.is_empty() && !pipeline.has_output() && pipeline.slots.is_empty());
}
