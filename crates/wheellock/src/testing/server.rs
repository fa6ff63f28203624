//! The server's end of an in-memory connection: takes commands, runs them on the [`Store`], answers, and breaks where it
//! is told to. Owns the connection's state; what scripts mean is the store's.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "what the model does not know is a mistake in a test, and is to be loud"
)]

mod scripts;
mod store;

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use wheellock_client::memory::{Connector, Pipe};
use wheellock_resp::{Decoder, Frame, Limits};

use crate::diagnostics;

pub use scripts::Which;
pub use store::{Answer, Executed, Published, Store, late_renewals};

/// The way to the server.
#[derive(Debug, Default)]
pub struct Network {
    opened: Mutex<VecDeque<Pipe>>,
    down: AtomicBool,
}

/// Answers complete commands, in order, on one connection at a time.
#[derive(Debug)]
pub struct Server {
    pub store: Store,
    network: Arc<Network>,
    pipe: Option<Pipe>,
    input: BytesMut,
    /// Where in a command the input stands.
    decoder: Decoder,
    /// Answers that have not left yet.
    output: VecDeque<u8>,
    /// Where the connection breaks.
    pub cut: Option<Cut>,
    /// Bytes that pass per turn and direction.
    trickle: Option<usize>,
    /// Whether a connection's own message comes after the reply to the script that published it, as since Redis 7.2;
    /// before it as in 7.0 otherwise.
    pub messages_last: bool,
    /// So many calls of scripts are refused, in these words.
    pub refusal: Option<(usize, &'static str)>,
    /// From so many calls of scripts on, and then so many: executed, and instead of the answer the connection ends.
    pub losses: Option<(usize, usize, How)>,
    /// How many answers got lost that way.
    pub lost: usize,
    /// After so many calls of scripts the connection ends, and the next one is what came last on it.
    pub delay: Option<(usize, How)>,
    /// Commands that are read from connections that have ended, one day.
    late: Vec<Vec<String>>,
    /// How many there were.
    pub delayed: usize,
    /// Whether its only replica acknowledges what it is sent.
    pub replica_acks: bool,
    /// Something was written on this connection.
    wrote: bool,
    /// What tells this server from others.
    pub run_id: String,
    /// How many keys each call of a script had that was refused, and each that was not.
    pub refused: Vec<usize>,
    pub executed: Vec<usize>,
}

/// A connection breaks after so many more bytes.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    pub side: Side,
    pub after: usize,
    pub how: How,
}

/// Whose bytes are counted. Those of the other side that come with the last one still pass, unless reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Answers,
    Requests,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    Fin,
    Rst,
}

impl Network {
    /// Whether new connections are refused.
    pub fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::Relaxed);
    }

    pub fn connector(self: &Arc<Self>) -> Connector {
        let network = Arc::clone(self);
        Arc::new(move || {
            if network.down.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let pipe = Pipe::new();
            network.opened.lock().unwrap().push_back(pipe.clone());
            Ok(pipe)
        })
    }
}

/// The connection ends with its server, or whoever is dropped with a question under way would listen for an answer.
impl Drop for Server {
    fn drop(&mut self) {
        if let Some(pipe) = &self.pipe {
            pipe.fin();
        }
        self.network.set_down(true);
        self.network.opened.lock().unwrap().iter().for_each(Pipe::fin);
    }
}

impl Server {
    pub fn new(network: Arc<Network>) -> Self {
        Self {
            store: Store::default(),
            network,
            pipe: None,
            input: BytesMut::new(),
            decoder: Decoder::new(Limits::default()),
            output: VecDeque::new(),
            cut: None,
            trickle: None,
            messages_last: false,
            refusal: None,
            losses: None,
            lost: 0,
            delay: None,
            late: Vec::new(),
            delayed: 0,
            replica_acks: true,
            wrote: false,
            run_id: "model".to_owned(),
            refused: Vec::new(),
            executed: Vec::new(),
        }
    }

    /// From now on so many bytes pass per turn and direction.
    pub fn set_trickle(&mut self, trickle: Option<usize>) {
        self.trickle = trickle;
        if let Some(pipe) = &self.pipe {
            pipe.accept(trickle.unwrap_or(usize::MAX));
        }
    }

    /// Does what can be done now; returns whether anything moved.
    pub fn serve(&mut self) -> bool {
        let mut moved = self.accept();
        let Some(pipe) = self.pipe.clone() else { return moved };
        let arrived = pipe.take();
        moved |= !arrived.is_empty();
        let broken = self.take_in(&arrived);
        pipe.accept(self.trickle.unwrap_or(usize::MAX));
        while let Some(words) = self.next_command() {
            if let Some(how) = self.delays(&words) {
                self.late.push(words);
                self.delayed += 1;
                self.end(how);
                return true;
            }
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            if let Some(how) = self.loses_the_answer(&words) {
                self.answer(&words);
                self.lost += 1;
                self.end(how);
                return true;
            }
            self.answer(&words);
        }
        moved |= self.give_out(&pipe);
        if let Some(how) = broken {
            self.end(how);
        }
        moved
    }

    /// Runs a script for another client.
    pub fn run_for_another(&mut self, which: Which, keys: &str, params: &[&str]) {
        self.store.run(which, keys, params);
        let messages = self.messages();
        self.output.extend(messages.as_bytes());
    }

    /// Breaks the connection.
    pub fn end(&mut self, how: How) {
        if let Some(pipe) = self.pipe.take() {
            match how {
                How::Fin => pipe.fin(),
                How::Rst => pipe.rst(),
            }
        }
        self.cut = None;
        self.store.channels.clear();
        self.output.clear();
    }

    fn accept(&mut self) -> bool {
        let Some(pipe) = self.network.opened.lock().unwrap().pop_front() else { return false };
        self.pipe = Some(pipe);
        self.wrote = false;
        self.input.clear();
        self.decoder = Decoder::new(Limits::default());
        self.output.clear();
        self.store.channels.clear();
        true
    }

    fn take_in(&mut self, arrived: &[u8]) -> Option<How> {
        match &mut self.cut {
            Some(Cut { side: Side::Requests, after, how }) if arrived.len() > *after => {
                self.input.extend_from_slice(&arrived[..*after]);
                Some(*how)
            }
            Some(Cut { side: Side::Requests, after, .. }) => {
                *after -= arrived.len();
                self.input.extend_from_slice(arrived);
                None
            }
            _ => {
                self.input.extend_from_slice(arrived);
                None
            }
        }
    }

    fn give_out(&mut self, pipe: &Pipe) -> bool {
        let mut count = self.output.len().min(self.trickle.unwrap_or(usize::MAX));
        let mut broken = None;
        if let Some(Cut { side: Side::Answers, after, how }) = &mut self.cut {
            if count > *after {
                count = *after;
                broken = Some(*how);
            }
            *after -= count;
        }
        let bytes: Vec<u8> = self.output.drain(..count).collect();
        if !bytes.is_empty() {
            pipe.send(&bytes);
        }
        if let Some(how) = broken {
            self.end(how);
        }
        count > 0 || broken.is_some()
    }

    fn next_command(&mut self) -> Option<Vec<String>> {
        let frame = self.decoder.decode(&mut self.input).expect("whole commands, untorn");
        let Some(Frame::Reply(command)) = frame else { return None };
        let words = command.as_array().expect("a command is an array").iter();
        // The id of a permit is no text, as a rule.
        let text = |bytes: &[u8]| match std::str::from_utf8(bytes) {
            Ok(text) => text.to_owned(),
            Err(_) => store::hexadecimal(bytes),
        };
        Some(words.map(|word| text(word.as_bytes().expect("of text"))).collect())
    }

    fn answer(&mut self, words: &[&str]) {
        let reply = match *words {
            ["HELLO", ..] => "%3\r\n+proto\r\n:3\r\n+role\r\n+master\r\n+mode\r\n+standalone\r\n".to_owned(),
            ["CLIENT", ..] => "+OK\r\n".to_owned(),
            ["PING"] => "+PONG\r\n".to_owned(),
            ["PING" | "ECHO", nonce] => bulk(nonce),
            ["INFO", "replication"] => bulk("role:master\r\nconnected_slaves:1\r\n"),
            // Whoever has written nothing on this connection has nothing to wait for, and is told that all have it.
            ["WAIT", _, _] => {
                let acked = i64::from(self.replica_acks || !self.wrote);
                encode(&Answer::Integer(acked))
            }
            ["INFO", "server"] => bulk(&format!("run_id:{}\r\n", self.run_id)),
            ["INFO"] => bulk(&format!("redis_version:7.0.15\r\naof_enabled:1\r\nrun_id:{}\r\n", self.run_id)),
            // Nothing is forbidden.
            ["EVAL", text, "0", ..] if is_diagnosis(text) => "*0\r\n".to_owned(),
            ["SUBSCRIBE", channel] => {
                self.store.channels.insert(channel.to_owned());
                confirmation("subscribe", channel)
            }
            ["UNSUBSCRIBE", channel] => {
                self.store.channels.remove(channel);
                confirmation("unsubscribe", channel)
            }
            ["EVALSHA" | "EVAL", _, keys, _, ..] if self.refuses(keys) => {
                encode(&Answer::Error(self.refusal.map_or("", |(_, text)| text).to_owned()))
            }
            _ => {
                self.wrote |= matches!(words, ["EVALSHA" | "EVAL", _, "1", ..]);
                let answer = self.store.execute(words);
                encode(&answer.unwrap_or_else(|| panic!("unexpected command {words:?}")))
            }
        };
        let messages = self.messages();
        let (first, second) = if self.messages_last { (reply, messages) } else { (messages, reply) };
        self.output.extend(first.as_bytes());
        self.output.extend(second.as_bytes());
    }

    /// Reads what came on connections that have ended.
    pub fn read_late(&mut self) {
        for words in std::mem::take(&mut self.late) {
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            self.store.execute(&words);
            let messages = self.messages();
            self.output.extend(messages.as_bytes());
        }
    }

    fn delays(&mut self, words: &[String]) -> Option<How> {
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        match &mut self.delay {
            Some((first @ 1.., _)) if is_script(&words) => *first -= 1,
            Some((0, _)) if is_script(&words) => return self.delay.take().map(|(_, how)| how),
            _ => {}
        }
        None
    }

    fn loses_the_answer(&mut self, words: &[&str]) -> Option<How> {
        let is_script = is_script(words);
        match &mut self.losses {
            Some((first @ 1.., ..)) if is_script => *first -= 1,
            Some((_, left @ 1.., how)) if is_script => {
                *left -= 1;
                return Some(*how);
            }
            _ => {}
        }
        None
    }

    fn refuses(&mut self, keys: &str) -> bool {
        let keys = keys.parse().expect("a number of keys");
        match &mut self.refusal {
            Some((left @ 1.., _)) => {
                *left -= 1;
                self.refused.push(keys);
                true
            }
            _ => {
                self.executed.push(keys);
                false
            }
        }
    }

    /// What was published on channels of this connection.
    fn messages(&mut self) -> String {
        let published = self.store.published.drain(..);
        let heard = published.filter(|message| {
            assert_eq!(message.verb, "PUBLISH", "nobody here listens in another way");
            self.store.channels.contains(&message.channel)
        });
        heard
            .map(|Published { channel, text, .. }| {
                format!(">3\r\n$7\r\nmessage\r\n{}{}", bulk(&channel), bulk(&text))
            })
            .collect()
    }
}

fn is_diagnosis(text: &str) -> bool {
    text == diagnostics::SCRIPT
}

/// Whether it is a call of a script that has keys.
fn is_script(words: &[&str]) -> bool {
    matches!(words, ["EVALSHA" | "EVAL", _, keys, _, ..] if *keys != "0")
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn confirmation(kind: &str, channel: &str) -> String {
    format!(">3\r\n{}{}:1\r\n", bulk(kind), bulk(channel))
}

fn encode(answer: &Answer) -> String {
    match answer {
        Answer::Nil => "_\r\n".to_owned(),
        Answer::Status(text) => format!("+{text}\r\n"),
        Answer::Error(text) => format!("-{text}\r\n"),
        Answer::Integer(number) => format!(":{number}\r\n"),
        Answer::Bulk(text) => bulk(text),
        Answer::Array(elements) => {
            let encoded: String = elements.iter().map(encode).collect();
            format!("*{}\r\n{encoded}", elements.len())
        }
    }
}
