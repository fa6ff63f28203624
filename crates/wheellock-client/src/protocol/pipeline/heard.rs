//! What comes from the server: each reply is its call's, in wire order, and a push is nobody's reply. Whatever does not fit ends the
//! connection, for a reply that goes to another call would be the worst of all. Pure.

use std::task::Waker;
use std::time::Instant;

use wheellock_resp::{Frame, Push, Value};

use super::{Desync, Entry, Failure, NATIVE, Pipeline, What};
use crate::base::error::{ErrorKind, Outcome};

impl Pipeline {
    /// Takes one decoded frame. Wakers go to `wakers`, to be woken after unlocking.
    pub(crate) fn on_frame(
        &mut self,
        frame: Frame,
        now: Instant,
        wakers: &mut Vec<Waker>,
    ) -> Result<(), Desync> {
        match frame {
            Frame::Reply(value) => self.on_reply(value, now, wakers),
            Frame::Push(push) => self.on_push(&push, now, wakers),
        }
    }

    fn on_reply(&mut self, value: Value, now: Instant, wakers: &mut Vec<Waker>) -> Result<(), Desync> {
        const UNASKED: Desync = Desync("a reply came that nothing asked for");
        if let Some(nonce) = self.asked_back
            && !self.front_is(What::Ping(nonce))
            && is_number(&value, nonce)
        {
            return Err(Desync("the answer to PING came for something else: replies have been shifted"));
        }
        let members = self.entries.front().filter(|_| !self.is_idle()).ok_or(UNASKED)?.members;
        self.last_reply = now;
        match members {
            0 if self.is_for_what_has_ended(&value)? => {
                self.behind_an_end = None;
                self.heard_error(value.as_error().unwrap_or_default());
                Ok(())
            }
            0 => {
                let entry = self.pop_written().ok_or(UNASKED)?;
                self.answered(&entry, value, now, wakers)
            }
            NATIVE => self.on_native(value, now, wakers),
            members => self.on_bundle(usize::from(members), value, now, wakers),
        }
    }

    /// Whether this refuses an UNSUBSCRIBE for which the push was taken with which the server had just ended the subscription by itself,
    /// because it gave the slot away. If the push was the answer, it refuses the PING behind; that one is about no slot, and was allowed
    /// when the connection was made: if it is no more, that is told in its name. A server whose disk fails refuses PING, and no order
    /// (`processCommand` in server.c of Redis 7.0). What a server says of every command may be of either.
    fn is_for_what_has_ended(&self, value: &Value) -> Result<bool, Desync> {
        let Some(text) = value.as_error().filter(|_| self.is_behind_an_end()) else { return Ok(false) };
        let names_ping = || text.to_ascii_lowercase().windows(6).any(|word| word == b"'ping'");
        match crate::base::error::error_code(text) {
            "MOVED" | "ASK" | "CLUSTERDOWN" => Ok(true),
            "NOPERM" | "ERR" => Ok(!names_ping()),
            "MISCONF" => Ok(false),
            _ => Err(Desync("UNSUBSCRIBE or the PING behind it was refused, and nothing tells which")),
        }
    }

    fn is_behind_an_end(&self) -> bool {
        self.behind_an_end.is_some_and(|nonce| self.front_is(What::Ping(nonce)))
    }

    /// One entry has its answer.
    pub(super) fn answered(
        &mut self,
        entry: &Entry,
        value: Value,
        now: Instant,
        wakers: &mut Vec<Waker>,
    ) -> Result<(), Desync> {
        match value.as_error() {
            Some(text) => self.heard_error(text),
            None if self.channels.any_put_off() => self.order_what_was_put_off(now, wakers),
            None => {}
        }
        match entry.what {
            What::Call(slot) => {
                self.latency.record(now.saturating_duration_since(entry.at));
                self.finish(slot, Ok(value), wakers);
            }
            What::Detached(token) => {
                self.latency.record(now.saturating_duration_since(entry.at));
                self.finish_detached(token, Ok(value));
            }
            // A replica cannot wait: its connection ends, and with it everything that was to be waited for.
            What::Wait(group) if self.unfit.is_some() => {
                let (kind, outcome) = (ErrorKind::ConnectionLost, Outcome::Rejected);
                self.end_wait(group, &Err(Failure { kind, outcome, cause: None }), wakers);
            }
            What::Wait(group) => self.end_wait(group, &Ok(value), wakers),
            // Refused, it makes the call behind it be refused too.
            What::Orphan | What::Asking | What::Silence => {}
            What::Ping(nonce) => {
                // An error is an answer too: a busy server refuses PING.
                if !is_number(&value, nonce) && !value.is_error() {
                    return Err(Desync("PING was answered with something else: replies have been shifted"));
                }
                self.asked_back = self.entries.iter().find_map(|entry| match entry.what {
                    What::Ping(next) => Some(next),
                    _ => None,
                });
            }
            What::Role => {
                let is_replica =
                    value.get("role").and_then(Value::as_str).is_some_and(|role| role != "master");
                self.unfit = self.unfit.or(is_replica.then_some(DEMOTED));
            }
            What::Subscribe(channel) | What::Unsubscribe(channel) if is_busy(&value) => {
                self.channels.on_put_off(channel);
            }
            // In RESP3 the confirmation is a push; only a refusal is a reply.
            What::Subscribe(channel) => match value.as_error() {
                Some(text) => self.channels.on_refused(channel, crate::base::error::printable(text), wakers),
                None => return Err(Desync("SUBSCRIBE was answered with a reply that is no error")),
            },
            // A node that has given the slot away since refuses, and has ended the subscription by itself.
            What::Unsubscribe(channel) if value.is_error() => {
                self.channels.on_unsubscribed(channel, wakers);
                self.reconcile(channel, now);
            }
            What::Unsubscribe(_) => return Err(Desync("UNSUBSCRIBE was answered with a reply")),
        }
        Ok(())
    }

    /// The server was busy and is no more.
    #[cold]
    fn order_what_was_put_off(&mut self, now: Instant, wakers: &mut Vec<Waker>) {
        for channel in self.channels.free_again(wakers) {
            self.reconcile(channel, now);
        }
    }

    /// Some errors say more of the connection than of what was asked.
    pub(super) fn heard_error(&mut self, text: &[u8]) {
        self.unfit = self.unfit.or_else(|| unfit(text));
        if text.starts_with(b"MOVED ") {
            self.moved = Some(text.to_vec());
        }
    }

    /// A push never consumes a call's reply. A (un)subscribe confirmation is matched by its channel, because a server
    /// may also end a subscription by itself.
    fn on_push(&mut self, push: &Push, now: Instant, wakers: &mut Vec<Waker>) -> Result<(), Desync> {
        self.pushes += 1;
        let channel = push.args().first().and_then(Value::as_bytes).unwrap_or_default();
        match push.kind() {
            b"message" | b"smessage" => {
                if !self.channels.on_message(channel, wakers) {
                    self.strays += 1;
                }
            }
            b"subscribe" | b"ssubscribe" => match self.channels.find(channel) {
                Some(index) if self.front_is(What::Subscribe(index)) => {
                    self.pop_written();
                    self.last_reply = now;
                    self.channels.on_subscribed(index, wakers);
                    self.reconcile(index, now);
                }
                _ => return Err(Desync("a subscription was confirmed out of order")),
            },
            b"unsubscribe" | b"sunsubscribe" => {
                if let Some(index) = self.channels.find(channel) {
                    if self.front_is(What::Unsubscribe(index)) {
                        self.pop_written();
                        self.last_reply = now;
                        self.behind_an_end = match self.entries.front() {
                            Some(Entry { what: What::Ping(nonce), .. }) if self.sharded => Some(*nonce),
                            _ => None,
                        };
                    } else if self.channels.is_being_ended(index) {
                        // The server has ended it by itself. What we have asked for is answered, too, and until then it is not over.
                        return Ok(());
                    }
                    self.channels.on_unsubscribed(index, wakers);
                    self.reconcile(index, now);
                }
            }
            _ => self.strays += 1,
        }
        Ok(())
    }
}

fn is_number(value: &Value, number: u64) -> bool {
    value.as_str().and_then(|text| text.parse().ok()) == Some(number)
}

/// Whether a script keeps the server from doing anything else: SUBSCRIBE and UNSUBSCRIBE, too (redis-server 7.0.15).
fn is_busy(value: &Value) -> bool {
    value.as_error().is_some_and(|text| crate::base::error::error_code(text) == "BUSY")
}

/// Error replies after which only a new connection helps. A primary that became a replica keeps its sockets open
/// (observed on Redis 7.0), so nothing else would ever end this one.
///
/// Only in a server's own words: a script may say such a code of something else.
fn unfit(text: &[u8]) -> Option<&'static str> {
    match crate::base::error::error_code(text) {
        "READONLY" | "MASTERDOWN" | "NOAUTH" if !crate::base::error::is_the_servers_refusal(text) => None,
        "READONLY" => Some(DEMOTED),
        "MASTERDOWN" => Some("the server lost its primary"),
        "NOAUTH" => Some("the server no longer knows who we are"),
        // How WAIT and WAITAOF say it.
        "ERR" if REFUSED_BY_REPLICAS.iter().any(|refusal| text.starts_with(refusal)) => Some(DEMOTED),
        _ => None,
    }
}

const DEMOTED: &str = "the server became a replica";

/// How a replica answers WAIT and WAITAOF (`waitCommand` and `waitaofCommand` in replication.c of Redis 7.2).
const REFUSED_BY_REPLICAS: [&[u8]; 2] =
    [b"ERR WAIT cannot be used with replica", b"ERR WAITAOF cannot be used with replica"];
