//! Replies and pushes from the server.
//!
//! Each reply belongs to the next call in wire order, and a push is never a reply. An unexpected frame ends the
//! connection. Otherwise a call could receive the reply of another call, which would be the worst of all errors. This
//! module does no I/O.

use std::task::Waker;
use std::time::Instant;

use wheellock_resp::{Frame, Push, Value};

use super::{Desync, Entry, Failure, Form, Pipeline, What};
use crate::base::error::{ErrorKind, Outcome};
use crate::config::{Change, ChangedKeys};

impl Pipeline {
    /// Takes one decoded frame. Wakers are added to `wakers`, and the caller wakes them after unlocking.
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
        // Check the nonce before delivering the value: no caller may receive a PING's reply.
        if let Some(nonce) = self.ping_nonce
            && !self.front_is(What::Ping(nonce))
            && is_number(&value, nonce)
        {
            return Err(Desync("the answer to PING came for something else: replies have been shifted"));
        }
        let form = self.entries.front().filter(|_| !self.is_idle()).ok_or(UNASKED)?.form;
        self.last_reply = now;
        match form {
            Form::Native => self.on_native(value, now, wakers),
            Form::First(members) => self.on_batch(usize::from(members), value, now, wakers),
            _ if self.refuses_unsubscribe(&value)? => {
                self.after_unsubscribe = None;
                self.note_error(value.as_error().unwrap_or_default());
                Ok(())
            }
            _ => {
                let entry = self.pop_written().ok_or(UNASKED)?;
                self.deliver(&entry, value, now, wakers)
            }
        }
    }

    /// Returns true if this error refuses an UNSUBSCRIBE that an unsolicited push seemed to confirm.
    ///
    /// A node that gives a slot away ends the subscription by itself and sends a push. It then also refuses the
    /// UNSUBSCRIBE in flight. If the push was the confirmation, the error refuses the PING behind the UNSUBSCRIBE. A
    /// PING concerns no slot, and the user had the permission for it when the connection was made. If the permission
    /// is gone, the refusal names PING. A server whose disk fails refuses PING but no subscription order
    /// (`processCommand` in server.c of Redis 7.0). An error that every command can receive may belong to either.
    fn refuses_unsubscribe(&self, value: &Value) -> Result<bool, Desync> {
        let Some(text) = value.as_error().filter(|_| self.is_after_unsubscribe()) else { return Ok(false) };
        let names_ping = || text.to_ascii_lowercase().windows(6).any(|word| word == b"'ping'");
        match crate::base::error::error_code(text) {
            "MOVED" | "ASK" | "CLUSTERDOWN" => Ok(true),
            "NOPERM" | "ERR" => Ok(!names_ping()),
            "MISCONF" => Ok(false),
            _ => Err(Desync("UNSUBSCRIBE or the PING behind it was refused, and nothing tells which")),
        }
    }

    fn is_after_unsubscribe(&self) -> bool {
        self.after_unsubscribe.is_some_and(|nonce| self.front_is(What::Ping(nonce)))
    }

    /// Delivers a reply to its entry.
    pub(super) fn deliver(
        &mut self,
        entry: &Entry,
        value: Value,
        now: Instant,
        wakers: &mut Vec<Waker>,
    ) -> Result<(), Desync> {
        match value.as_error() {
            Some(text) => self.note_error(text),
            None if self.channels.any_postponed() => self.send_postponed_orders(now, wakers),
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
            // A replica refuses WAIT. Its connection ends, and every wait on it fails.
            What::Wait if self.unusable.is_some() => {
                let (kind, outcome) = (ErrorKind::ConnectionLost, Outcome::Rejected);
                self.end_wait(&Err(Failure { kind, outcome, cause: None }), wakers);
            }
            What::Wait => self.end_wait(&Ok(value), wakers),
            // If the server refuses ASKING, it also refuses the call behind it, so the reply to ASKING needs no
            // handling. After a refused `CLIENT CACHING`, only the news about the call's keys are missing.
            What::Orphan | What::ReplyOff => {}
            What::Ping(nonce) => {
                // An error counts as a reply, because a busy server refuses PING.
                if !is_number(&value, nonce) && !value.is_error() {
                    return Err(Desync("PING was answered with something else: replies have been shifted"));
                }
                self.ping_nonce = self
                    .entries
                    .iter()
                    .find_map(|entry| if let What::Ping(next) = entry.what { Some(next) } else { None });
            }
            What::Role => {
                let is_replica =
                    value.get("role").and_then(Value::as_str).is_some_and(|role| role != "master");
                self.unusable = self.unusable.or(is_replica.then_some(DEMOTED));
            }
            What::Subscribe(channel) | What::Unsubscribe(channel) if is_busy(&value) => {
                self.channels.on_postponed(channel);
            }
            // In RESP3 the server confirms with a push. Only a refusal is a reply.
            What::Subscribe(channel) => match value.as_error() {
                Some(text) => self.channels.on_refused(channel, crate::base::error::printable(text), wakers),
                None => return Err(Desync("SUBSCRIBE was answered with a reply that is no error")),
            },
            // A node that has given the slot away meanwhile refuses. It has already ended the subscription by itself.
            What::Unsubscribe(channel) if value.is_error() => {
                self.channels.on_unsubscribed(channel, wakers);
                self.reconcile(channel, now);
            }
            What::Unsubscribe(_) => return Err(Desync("UNSUBSCRIBE was answered with a reply")),
        }
        Ok(())
    }

    /// Queues the postponed subscription orders, now that the server is no longer busy.
    #[cold]
    fn send_postponed_orders(&mut self, now: Instant, wakers: &mut Vec<Waker>) {
        for channel in self.channels.on_server_free(wakers) {
            self.reconcile(channel, now);
        }
    }

    /// Examines an error that says more about the connection than about the request.
    pub(super) fn note_error(&mut self, text: &[u8]) {
        self.unusable = self.unusable.or_else(|| unusable(text));
        if text.starts_with(b"MOVED ") {
            self.moved = Some(text.to_vec());
        }
    }

    /// Takes a push, which never consumes a call's reply. A confirmation is matched by its channel, because a server
    /// may also end a subscription by itself.
    fn on_push(&mut self, push: &Push, now: Instant, wakers: &mut Vec<Waker>) -> Result<(), Desync> {
        self.pushes += 1;
        let channel = push.args().first().and_then(Value::as_bytes).unwrap_or_default();
        match push.kind() {
            b"message" | b"smessage" => {
                let payload = push.args().get(1).and_then(Value::as_bytes).unwrap_or_default();
                if !self.channels.on_message(channel, payload, wakers) {
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
                        self.after_unsubscribe = match self.entries.front() {
                            Some(Entry { what: What::Ping(nonce), .. }) if self.sharded => Some(*nonce),
                            _ => None,
                        };
                    } else if self.channels.is_being_ended(index) {
                        // The server ended the subscription by itself. Our UNSUBSCRIBE still receives its own reply,
                        // and the subscription's state changes only then.
                        return Ok(());
                    }
                    self.channels.on_unsubscribed(index, wakers);
                    self.reconcile(index, now);
                }
            }
            b"invalidate" => self.on_changed_keys(push.args().first()),
            _ => self.strays += 1,
        }
        Ok(())
    }

    /// Takes the keys that another client changed. A push without keys concerns all keys.
    fn on_changed_keys(&mut self, keys: Option<&Value>) {
        let keys = keys.and_then(Value::as_array);
        self.changed_keys = Some(match (self.changed_keys.take(), keys) {
            (Some(ChangedKeys::Any(_)), _) | (_, None) => ChangedKeys::Any(Change::everywhere()),
            (None, Some(keys)) => ChangedKeys::These(keys.to_vec()),
            (Some(ChangedKeys::These(mut earlier)), Some(keys)) => {
                earlier.extend_from_slice(keys);
                ChangedKeys::These(earlier)
            }
        });
    }
}

fn is_number(value: &Value, number: u64) -> bool {
    value.as_str().and_then(|text| text.parse().ok()) == Some(number)
}

/// Returns true if a running script blocks the server. SUBSCRIBE and UNSUBSCRIBE are refused as well (redis-server
/// 7.0.15).
fn is_busy(value: &Value) -> bool {
    value.as_error().is_some_and(|text| crate::base::error::error_code(text) == "BUSY")
}

/// Returns the reason why only a new connection helps after this error, if so. A primary that became a replica keeps
/// its sockets open (observed on Redis 7.0). Without this check such a connection would never end.
///
/// Only the server's own wording counts, because a script may use such a code with another meaning.
fn unusable(text: &[u8]) -> Option<&'static str> {
    match crate::base::error::error_code(text) {
        "READONLY" | "MASTERDOWN" | "NOAUTH" if !crate::base::error::is_the_servers_refusal(text) => None,
        "READONLY" => Some(DEMOTED),
        "MASTERDOWN" => Some("the server lost its primary"),
        "NOAUTH" => Some("the server no longer knows who we are"),
        // The wording of WAIT and WAITAOF on a replica.
        "ERR" if REFUSED_BY_REPLICAS.iter().any(|refusal| text.starts_with(refusal)) => Some(DEMOTED),
        _ => None,
    }
}

const DEMOTED: &str = "the server became a replica";

/// The starts of a replica's replies to WAIT and WAITAOF (`waitCommand` and `waitaofCommand` in replication.c of
/// Redis 7.2).
const REFUSED_BY_REPLICAS: [&[u8]; 2] =
    [b"ERR WAIT cannot be used with replica", b"ERR WAITAOF cannot be used with replica"];
