//! The model of a server.
//!
//! It takes commands from any number of connections, runs them on one store, replies, and injects faults. This module
//! owns the delivery of replies and messages. The store models the scripts, `connection` moves the bytes, and `faults`
//! holds the faults.
//!
//! The model runs only when it is called. [`Server::serve`] does all work that is possible now. The owner of the server
//! decides when, and sets the clock.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "what the model does not know is a mistake in a test, and is to be loud"
)]

mod connection;
mod faults;
mod host;
mod network;
mod replication;
mod scripts;
mod store;

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;

use wheellock_resp::Value;

use crate::request::diagnostics;

use connection::Connection;
pub use faults::{Cut, Faults, How, Side};
pub use host::Host;
pub use network::Network;
pub use replication::ReplicatedState;
use replication::Replication;
pub use scripts::Which;
pub use store::{Answer, Executed, Make, Published, Snapshot, Store, late_renewals};
use store::{Remembered, text_of};

/// A server that replies to complete commands, in order on each connection.
#[derive(Debug)]
pub struct Server {
    pub store: Store,
    pub faults: Faults,
    network: Arc<Network>,
    connections: Vec<Connection>,
    /// Commands from connections that have ended. A test runs them later.
    late: Vec<Vec<String>>,
    /// Data of the replica, if a test uses one. It has everything that the replica acknowledged, and nothing later.
    pub replica: Option<Snapshot>,
    /// True if replicas get the data by [`Server::follow`]. `WAIT` then waits for them.
    pub replicates: bool,
    replication: Replication,
    /// Unknown commands panic, as mistakes in a test. Otherwise their callers get an error.
    pub strict: bool,
    /// Number of commands that the server has answered, without heartbeats.
    pub commands: u64,
}

/// Ends the connections with their server. Otherwise a caller dropped during a request would wait for the reply.
impl Drop for Server {
    fn drop(&mut self) {
        self.connections.iter().for_each(|connection| connection.end(How::Fin));
        self.network.shut();
    }
}

impl Server {
    /// Creates a server without data, behind `network`.
    pub fn new(network: Arc<Network>) -> Self {
        let mut store = Store::default();
        store.run_id.push_str("model");
        Self {
            store,
            faults: Faults::default(),
            network,
            connections: Vec::new(),
            late: Vec::new(),
            replica: None,
            replicates: false,
            replication: Replication::default(),
            strict: true,
            commands: 0,
        }
    }

    /// Limits the bytes per turn and direction from now on, on every connection.
    pub fn set_trickle(&mut self, trickle: Option<usize>) {
        self.faults.trickle = trickle;
        self.connections.iter_mut().for_each(|connection| connection.accept(trickle));
    }

    /// Does all work that is possible now. Returns true if anything moved.
    pub fn serve(&mut self) -> bool {
        if self.faults.is_silent {
            return false;
        }
        let mut moved = false;
        for pipe in self.network.take_opened() {
            self.connections.push(Connection::new(pipe));
            moved = true;
        }
        let mut place = 0;
        while place < self.connections.len() {
            let (moves, end) = self.serve_one(place);
            moved |= moves;
            match end {
                Some(how) => {
                    self.faults.cut = None;
                    self.end_one(place, how);
                }
                None if self.connections[place].is_abandoned() => self.end_one(place, How::Fin),
                None => place += 1,
            }
        }
        moved
    }

    /// Promotes the replica under the same address. The connections end, and the new primary has no script loaded.
    pub fn fail_over(&mut self) {
        self.end(How::Rst);
        if let Some(snapshot) = self.replica.take() {
            self.store.take_over(snapshot);
        }
        self.store.run_id.push('+');
    }

    /// Shifts the times of delayed replies after a change of the server's clock, so that they are not delayed longer.
    pub fn clock_was_set(&mut self, by: i64) {
        self.connections.iter_mut().for_each(|connection| connection.clock_was_set(by));
    }

    /// Returns the time at which the next delayed reply leaves, in milliseconds of the store's clock.
    pub fn next_due(&self) -> Option<u64> {
        self.connections.iter().filter_map(Connection::next_due).min()
    }

    /// Runs a script for another client.
    pub fn run_for_another(&mut self, which: Which, keys: &str, params: &[&str]) {
        let answer = self.store.run(which, keys, params);
        assert!(answer.is_some(), "{which:?} takes other parameters than {params:?}");
        self.tell(None);
    }

    /// Sends published messages to the subscribers, after a caller has changed the store's data itself.
    pub fn tell_all(&mut self) {
        self.tell(None);
    }

    /// Breaks all connections, including connections that the server has not accepted yet.
    pub fn end(&mut self, how: How) {
        self.faults.cut = None;
        self.connections.extend(self.network.take_opened().into_iter().map(Connection::new));
        while !self.connections.is_empty() {
            self.end_one(0, how);
        }
    }

    /// Runs the late commands of ended connections, and returns their number.
    pub fn read_late(&mut self) -> usize {
        let late = std::mem::take(&mut self.late);
        let count = late.len();
        for words in late {
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            self.store.execute(&words);
            self.tell(None);
        }
        count
    }

    /// Returns true if late commands of an ended connection are left to run.
    pub fn is_late(&self) -> bool {
        !self.late.is_empty()
    }

    fn end_one(&mut self, place: usize, how: How) {
        let connection = self.connections.remove(place);
        connection.end(how);
        connection.channels.iter().for_each(|channel| self.store.unsubscribe(channel));
    }

    /// Serves one connection. Returns whether anything moved, and how the connection must end, if it must.
    fn serve_one(&mut self, place: usize) -> (bool, Option<How>) {
        let (mut arrived, broken) = self.connections[place].take_in(&mut self.faults);
        // Commands behind a `WAIT` have arrived before it ends.
        arrived |= self.end_wait(place);
        if let Some(how) = arrived.then(|| self.answer_all(place)).flatten() {
            return (true, Some(how));
        }
        let now = self.store.now();
        let (left, cut) = self.connections[place].give_out(&mut self.faults, now);
        (arrived || left || cut.is_some(), cut.or(broken))
    }

    /// Answers all complete commands of one connection. Returns how the connection must end, if it must.
    fn answer_all(&mut self, place: usize) -> Option<How> {
        loop {
            if self.connections[place].waiting.is_some() {
                return None;
            }
            let command = self.connections[place].next_command().transpose()?;
            let words = match command.as_ref().map_err(Clone::clone).and_then(words_of) {
                Ok(words) => words,
                Err(wrong) if self.strict => panic!("no command: {wrong}"),
                Err(wrong) => return Some(self.refuse(place, &wrong)),
            };
            let words: Vec<_> = words.iter().map(AsRef::as_ref).collect();
            if let Some(how) = self.faults.delays(&words) {
                self.late.push(words.into_iter().map(str::to_owned).collect());
                return Some(how);
            }
            let lost = self.faults.loses_the_answer(&words);
            self.answer(place, &words);
            if lost.is_some() {
                return lost;
            }
        }
    }

    /// Replies to bytes that are not a command as a server does, which then ends the connection.
    fn refuse(&mut self, place: usize, wrong: &str) -> How {
        let now = self.store.now();
        self.connections[place].put(&format!("-ERR Protocol error: {}\r\n", wrong.escape_debug()), now);
        self.connections[place].give_out(&mut self.faults, now);
        How::Fin
    }

    fn answer(&mut self, place: usize, words: &[&str]) {
        // A client's heartbeat is a PING, or a bare HELLO that tells the server's role.
        let is_heartbeat = matches!(words, ["PING", ..] | ["HELLO", "3"]);
        self.commands += u64::from(!is_heartbeat);
        let mut before = Remembered::default();
        if self.connections[place].remembers_next {
            self.store.remember(script_keys(words), &mut before);
        }
        let reply = match *words {
            [verb, ..] if self.is_blocked(place, verb) => {
                format!(
                    "-ERR Can't execute '{verb}': only (P)SUBSCRIBE / (P)UNSUBSCRIBE / PING / QUIT are allowed\r\n"
                )
            }
            ["HELLO", ..] => {
                let role = if self.is_replica() { "replica" } else { "master" };
                let fields = format!("+proto\r\n:3\r\n+role\r\n+{role}\r\n+mode\r\n+standalone\r\n");
                match self.store.make.name() {
                    None => format!("%3\r\n{fields}"),
                    Some((name, version)) => {
                        format!("%5\r\n{fields}+server\r\n+{name}\r\n+version\r\n+{version}\r\n")
                    }
                }
            }
            ["CLIENT", "TRACKING", ..] => {
                self.connections[place].tracks = true;
                "+OK\r\n".to_owned()
            }
            ["CLIENT", "CACHING", ..] => {
                self.connections[place].remembers_next = self.connections[place].tracks;
                return self.tell(Some((place, "+OK\r\n")));
            }
            ["CLIENT", ..] => "+OK\r\n".to_owned(),
            ["PING"] => "+PONG\r\n".to_owned(),
            ["PING" | "ECHO", nonce] => bulk(nonce),
            ["INFO", "replication"] => bulk("role:master\r\nconnected_slaves:1\r\n"),
            ["WAIT", replicas, timeout] if self.replicates => {
                match self.wait_for_replicas(place, replicas, timeout) {
                    Some(reply) => reply,
                    None => return,
                }
            }
            // A connection that has written nothing has nothing to wait for, so the reply says that all replicas have
            // it.
            ["WAIT", _, _] => encode(&self.acked(place)),
            ["WAITAOF", _, _, _] => encode(&Answer::Array(vec![Answer::Integer(1), self.acked(place)])),
            ["INFO", "server"] => bulk(&format!("run_id:{}\r\n", self.store.run_id)),
            ["INFO"] => {
                bulk(&format!("redis_version:7.0.15\r\naof_enabled:1\r\nrun_id:{}\r\n", self.store.run_id))
            }
            // The user has every permission.
            ["EVAL", text, "0", ..] if diagnostics::scripts().contains(&text) => "*0\r\n".to_owned(),
            ["EVAL", diagnostics::PROBE, "0"] => ":1\r\n".to_owned(),
            ["SUBSCRIBE", _] if self.faults.forbids_channels => {
                "-NOPERM No permissions to access a channel\r\n".to_owned()
            }
            ["SUBSCRIBE", channel] => {
                if self.connections[place].channels.insert(channel.to_owned()) {
                    self.store.subscribe(channel);
                }
                let confirmed = confirmation("subscribe", channel);
                // RESP2 does not have pushes.
                if self.faults.confirms_by_reply { confirmed.replacen('>', "*", 1) } else { confirmed }
            }
            ["UNSUBSCRIBE", channel] => {
                if self.connections[place].channels.remove(channel) {
                    self.store.unsubscribe(channel);
                }
                confirmation("unsubscribe", channel)
            }
            _ if faults::keys_of(words).is_some_and(|keys| self.faults.refuses(keys)) => {
                encode(&Answer::Error(self.faults.refusal.map_or("", |(_, text)| text).to_owned()))
            }
            _ if self.is_replica() && faults::keys_of(words).is_some() => {
                "-READONLY You can't write against a read only replica.\r\n".to_owned()
            }
            _ => {
                if faults::keys_of(words).is_some() {
                    self.replication.offset += 1;
                    self.connections[place].wrote = true;
                    self.connections[place].wrote_at = self.replication.offset;
                }
                match self.store.execute(words) {
                    Some(answer) => encode(&answer),
                    None if self.strict => panic!("unexpected command {words:?}"),
                    None => {
                        let verb =
                            words.first().map_or(String::new(), |verb| verb.escape_debug().to_string());
                        encode(&Answer::Error(format!("ERR the in-memory server does not know this {verb}")))
                    }
                }
            }
        };
        // The command's own writes are no news to its connection.
        let connection = &mut self.connections[place];
        drop(self.store.changed(&mut connection.remembered));
        if std::mem::take(&mut connection.remembers_next) {
            // A granted request ends with writes. A server remembers only keys that a script reads after its last write.
            let written = self.store.changed(&mut before);
            let acquires =
                Which::by(|which| words.get(1) == Some(&which.sha()) && which.is_acquire()).is_some();
            let is_read = |key: &&&str| !(acquires && written.iter().any(|written| written == **key));
            self.store.remember(script_keys(words).filter(is_read), &mut connection.remembered);
        }
        self.tell(Some((place, &reply)));
    }

    /// Returns true if the connection has a subscription, after which this server refuses most commands.
    fn is_blocked(&self, place: usize, verb: &str) -> bool {
        let blocks = self.faults.subscriptions_block && !self.connections[place].channels.is_empty();
        blocks && !["SUBSCRIBE", "UNSUBSCRIBE", "PING"].contains(&verb)
    }

    fn acked(&mut self, place: usize) -> Answer {
        if self.faults.replica_acks {
            self.replica = self.replica.is_some().then(|| self.store.snapshot());
        }
        Answer::Integer(i64::from(self.faults.replica_acks || !self.connections[place].wrote))
    }

    /// Sends published messages to the subscribed connections, and news of changed keys to those that asked. Sends a reply to the connection at its place, before or
    /// after that connection's own messages.
    fn tell(&mut self, reply: Option<(usize, &str)>) {
        let published = std::mem::take(&mut self.store.published);
        let due = self.store.now() + self.faults.latency;
        for (at, connection) in self.connections.iter_mut().enumerate() {
            let is_replied_to = reply.is_some_and(|(place, _)| place == at);
            if published.is_empty() && connection.remembered.is_empty() && !is_replied_to {
                continue;
            }
            let messages: String = published
                .iter()
                .filter(|message| connection.channels.contains(&message.channel))
                .filter(|message| self.strict || message.verb == "PUBLISH")
                .map(|Published { verb, channel, text }| {
                    assert!(!self.strict || verb == "PUBLISH", "nobody here listens in another way");
                    format!(">3\r\n$7\r\nmessage\r\n{}{}", bulk(channel), bulk(text))
                })
                .collect();
            let changed = self.store.changed(&mut connection.remembered).into_iter();
            let changed = changed.map(|key| format!(">2\r\n$10\r\ninvalidate\r\n*1\r\n{}", bulk(&key)));
            let messages = messages + &changed.collect::<String>();
            let reply = reply.filter(|_| is_replied_to).map_or("", |(_, reply)| reply);
            let (first, second) =
                if self.faults.messages_last { (reply, &*messages) } else { (&*messages, reply) };
            connection.put(first, due);
            connection.put(second, due);
        }
    }
}

/// Returns the words of a command, or the error in it.
fn words_of(command: &Value) -> Result<Vec<Cow<'_, str>>, String> {
    let words = command.as_array().ok_or("expected an array")?.iter();
    Ok(words.map(|word| word.as_bytes().map(text_of)).collect::<Option<_>>().ok_or("expected text")?)
}

/// Returns the keys of a command that runs a script.
fn script_keys<'a>(words: &'a [&'a str]) -> impl Iterator<Item = &'a &'a str> {
    let keys = faults::keys_of(words).and_then(|keys| keys.parse().ok()).unwrap_or_default();
    words.iter().skip(3).take(keys)
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn confirmation(kind: &str, channel: &str) -> String {
    format!(">3\r\n{}{}:1\r\n", bulk(kind), bulk(channel))
}

fn encode(answer: &Answer) -> String {
    let mut text = String::new();
    encode_into(answer, &mut text);
    text
}

fn encode_into(answer: &Answer, text: &mut String) {
    let written = match answer {
        Answer::Nil => write!(text, "_\r\n"),
        Answer::Status(status) => write!(text, "+{status}\r\n"),
        Answer::Error(error) => write!(text, "-{error}\r\n"),
        Answer::Integer(number) => write!(text, ":{number}\r\n"),
        Answer::Bulk(bulk) => write!(text, "${}\r\n{bulk}\r\n", bulk.len()),
        Answer::Array(elements) => write!(text, "*{}\r\n", elements.len()),
    };
    written.expect("a string takes all text");
    if let Answer::Array(elements) = answer {
        elements.iter().for_each(|element| encode_into(element, text));
    }
}
