//! A server's data of locks: keys, leases, loaded scripts.
//!
//! This module owns the effects of the scripts, written a second time in Rust. It does not know connections, and does
//! not read a clock.
//!
//! `tests/tests/it/model_server.rs` at the root of the workspace compares the store with a real server, call by call.

#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod elections;
mod fair;
mod fleet;
mod holders;
mod permits;
mod read_write;
mod simple;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::scripts::Which;
use crate::wire::holder;
pub use simple::Make;

/// One server's data, and a log of its scripts' effects.
#[derive(Debug, Default)]
pub struct Store {
    /// The server's clock in milliseconds.
    now: u64,
    /// The last time that a script read, in microseconds.
    said: u64,
    keys: Keys,
    loaded: BTreeSet<Which>,
    /// Subscribed channels, each with its number of subscribers.
    pub channels: BTreeMap<String, i64>,
    /// Messages that have not been delivered yet.
    pub published: Vec<Published>,
    /// Effects of scripts on holds, in order.
    pub log: Vec<Executed>,
    /// The log stays empty.
    pub forgets: bool,
    /// The name and version that the server reports.
    pub make: Make,
    /// Identity of the server's process. A restart changes it.
    pub run_id: String,
    /// Identity of the history of the data. A promotion changes it.
    pub replication_id: String,
    /// Number of replicas that follow this server.
    pub replicas: i64,
}

/// Data of a replica.
#[derive(Clone, Debug)]
pub struct Snapshot(Keys);

/// All keys. A copy shares them until one of the two changes, so that replicas can be brought up to date often.
#[derive(Clone, Debug, Default)]
struct Keys(Arc<BTreeMap<String, Key>>);

impl Deref for Keys {
    type Target = BTreeMap<String, Key>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Keys {
    fn deref_mut(&mut self) -> &mut Self::Target {
        Arc::make_mut(&mut self.0)
    }
}

/// Keys that the server remembers for a connection, with their state at that time.
#[derive(Debug, Default)]
pub struct Remembered(BTreeMap<String, Option<Key>>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Key {
    /// Fields and their values, in the order in which they came.
    holders: Vec<(String, String)>,
    /// The value, if the key is a string.
    text: Option<String>,
    /// The key is deleted when the clock has passed this time.
    expires: Option<u64>,
}

/// A message, as it was sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Published {
    /// PUBLISH or SPUBLISH.
    pub verb: String,
    pub channel: String,
    pub text: String,
}

/// The effect of a script on one hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Executed {
    pub script: Which,
    pub at: u64,
    pub key: String,
    pub holder: String,
    /// The holder's count afterwards, if the script sets one.
    pub count: Option<i64>,
}

/// A reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    Nil,
    Status(String),
    Error(String),
    Integer(i64),
    Bulk(String),
    Array(Vec<Self>),
}

impl Store {
    /// Sets the clock, and deletes expired keys.
    pub fn set_now(&mut self, now: u64) {
        self.now = now.min(LARGEST.unsigned_abs());
        let now = self.now;
        // `keyIsExpired` in db.c: a key is deleted when the clock has passed its time, not when it is reached.
        let is_left = |key: &Key| key.expires.is_none_or(|expires| now <= expires);
        if !self.keys.values().all(is_left) {
            self.keys.retain(|_, key| is_left(key));
        }
    }

    /// Returns the server's clock in milliseconds.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Adds a subscriber to this channel.
    pub fn subscribe(&mut self, channel: &str) {
        *self.channels.entry(channel.to_owned()).or_default() += 1;
    }

    /// Removes a subscriber from this channel.
    pub fn unsubscribe(&mut self, channel: &str) {
        if let Some(listeners) = self.channels.get_mut(channel) {
            *listeners -= 1;
            if *listeners == 0 {
                self.channels.remove(channel);
            }
        }
    }

    /// Deletes everything but the subscriptions, as a restart without persistence does.
    pub fn forget_everything(&mut self) {
        self.keys.clear();
        self.loaded.clear();
    }

    /// Remembers the present state of these keys.
    pub fn remember<'k>(&self, keys: impl Iterator<Item = &'k &'k str>, into: &mut Remembered) {
        into.0.extend(keys.map(|key| ((*key).to_owned(), self.keys.get(*key).cloned())));
    }

    /// Forgets the remembered keys that have changed since, and returns them.
    pub fn changed(&self, remembered: &mut Remembered) -> Vec<String> {
        let has_changed = |(key, before): &(&String, &Option<Key>)| self.keys.get(*key) != before.as_ref();
        let changed: Vec<_> = remembered.0.iter().filter(has_changed).map(|(key, _)| key.clone()).collect();
        changed.iter().for_each(|key| drop(remembered.0.remove(key)));
        changed
    }

    /// Returns a copy of all data, without the scripts.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.keys.clone())
    }

    /// Replaces all data by `snapshot`. Scripts stay loaded.
    pub fn replace(&mut self, snapshot: Snapshot) {
        self.keys = snapshot.0;
        self.set_now(self.now);
    }

    /// Replaces all data by `snapshot`, and unloads all scripts.
    pub fn take_over(&mut self, snapshot: Snapshot) {
        self.keys = snapshot.0;
        self.loaded.clear();
        self.set_now(self.now);
    }

    /// Takes all holds under this name away, of any kind of lock, and notifies all waiters. Returns true if anything
    /// was held.
    pub fn take_away(&mut self, name: &str) -> bool {
        let tag = if name.contains('{') { name.to_owned() } else { format!("{{{name}}}") };
        let is_number = self.text(name).is_some_and(|text| text.parse::<i64>().is_ok());
        let held = self.keys.contains_key(name) && !is_number && self.keys.remove(name).is_some();
        self.keys.retain(|key, _| !(key.starts_with(&tag) && key.contains(read_write::TIMEOUT)));
        let taken = self.take_back_all(name, &tag) || held;
        let listened = self.channels.keys().filter(|channel| taken && channel.contains(&tag));
        for channel in listened.cloned().collect::<Vec<_>>() {
            self.publish(["PUBLISH", &channel, "0"]);
        }
        taken
    }

    /// Runs one command on the data. `None` if the command is unknown, or has parameters that the library never sends.
    pub fn execute(&mut self, words: &[&str]) -> Option<Answer> {
        self.executed(words).unwrap_or_else(Some)
    }

    fn executed(&mut self, words: &[&str]) -> Result<Option<Answer>> {
        Ok(Some(match *words {
            ["SCRIPT", "LOAD", text] => match Which::by(|which| which.text() == text) {
                Some(which) => {
                    self.loaded.insert(which);
                    Answer::Bulk(which.sha().to_owned())
                }
                None => return Ok(None),
            },
            ["SCRIPT", "FLUSH"] => {
                self.loaded.clear();
                Answer::Status("OK".to_owned())
            }
            ["EVALSHA", sha, keys, ref params @ ..] => {
                match self.loaded.iter().find(|which| which.sha() == sha) {
                    Some(&which) => return self.ran(which, keys, params),
                    None => Answer::Error("NOSCRIPT No matching script. Please use EVAL.".to_owned()),
                }
            }
            // The connection's probe for whether the server takes writes.
            ["EVAL", "#!lua\nreturn 1", "0"] => Answer::Integer(1),
            ["EVAL", text, keys, ref params @ ..] => {
                let Some(which) = Which::by(|which| which.text() == text) else { return Ok(None) };
                self.loaded.insert(which);
                return self.ran(which, keys, params);
            }
            ["EXISTS", key] => Answer::flag(self.keys.contains_key(key)),
            ["PTTL", key] => Answer::Integer(self.pttl(key)),
            ["PEXPIRE", key, millis] => Answer::flag(self.pexpire(key, integer(millis)?)),
            ["PERSIST", key] => {
                Answer::flag(self.keys.get_mut(key).and_then(|key| key.expires.take()).is_some())
            }
            ["DEL", key, ref others @ ..] => {
                let all = [&key].into_iter().chain(others);
                Answer::Integer(count(all.filter(|key| self.keys.remove(**key).is_some())))
            }
            ["SET", key, text, "PX", lease] => {
                self.set_text(key, text, Some(integer(lease)?));
                Answer::Status("OK".to_owned())
            }
            ["SET", key, token, "NX", "PX", lease] => self.set_if_free(key, token, lease)?,
            ["DELIFEQ", key, token] if self.make == Make::Valkey90 => self.delete_if_own(key, token)?,
            ["DELEX", key, "IFEQ", token] if self.make == Make::Redis84 => self.delete_if_own(key, token)?,
            [verb @ ("PUBLISH" | "SPUBLISH"), channel, text] => {
                Answer::Integer(self.publish([verb, channel, text]))
            }
            ["SET", key, text] => {
                self.set_text(key, text, None);
                Answer::Status("OK".to_owned())
            }
            ["ZADD", _, ends, _] if integer(ends).is_err() => {
                Answer::Error("ERR value is not a valid float".to_owned())
            }
            ["ZADD", key, ends, permit] => {
                self.no_text(key)?;
                let new = !self.held_by(key, permit);
                self.set_count(key, permit, ends);
                Answer::flag(new)
            }
            ["GET", key] => match self.text(key) {
                Some(text) => Answer::Bulk(text.to_owned()),
                None if self.keys.contains_key(key) => wrong_type(),
                None => Answer::Nil,
            },
            ["HEXISTS", key, holder] => {
                self.no_text(key)?;
                Answer::flag(self.held_by(key, holder))
            }
            ["HGET", key, holder] => {
                self.no_text(key)?;
                let holders = self.keys.get(key).into_iter().flat_map(|key| &key.holders);
                let count = holders.into_iter().find(|(known, _)| known == holder);
                count.map_or(Answer::Nil, |(_, count)| Answer::Bulk(count.clone()))
            }
            ["HSET", key, field, value] => {
                self.no_text(key)?;
                let new = !self.held_by(key, field);
                self.set_count(key, field, value);
                Answer::flag(new)
            }
            ["HKEYS", key] => {
                self.no_text(key)?;
                let fields = self.fields(key).into_iter().map(|(field, _)| Answer::Bulk(field));
                Answer::Array(fields.collect())
            }
            ["LLEN", key] => {
                self.no_text(key)?;
                Answer::Integer(count(self.fields(key).into_iter()))
            }
            ["LRANGE", key, "0", last] => {
                self.no_text(key)?;
                let most = last.parse::<usize>().map_or(usize::MAX, |last| last.saturating_add(1));
                let fields = self.fields(key).into_iter().take(most);
                Answer::Array(fields.map(|(field, _)| Answer::Bulk(field)).collect())
            }
            ["LPOS", key, holder] => {
                self.no_text(key)?;
                let fields = self.fields(key);
                let before = fields.iter().take_while(|(known, _)| known != holder);
                if self.held_by(key, holder) { Answer::Integer(count(before)) } else { Answer::Nil }
            }
            ["HGETALL", key] => {
                self.no_text(key)?;
                let holders = self.keys.get(key).into_iter().flat_map(|key| &key.holders);
                let flat = holders.flat_map(|(holder, count)| [holder, count]);
                Answer::Array(flat.map(|text| Answer::Bulk(text.clone())).collect())
            }
            _ => return Ok(None),
        }))
    }

    /// Returns all holds, as key, holder and count.
    pub fn holds(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.keys.iter().filter(|(key, _)| !is_companion(key)).flat_map(|(key, held)| {
            let only = held.text.as_deref().map(|token| (token, "1"));
            let all = held.holders.iter().map(|(holder, count)| (holder.as_str(), count.as_str()));
            all.chain(only).map(move |(holder, count)| (key.as_str(), holder, count))
        })
    }

    /// Returns the keys that belong to a lock beside its own, and that must be deleted with it.
    pub fn companions(&self) -> impl Iterator<Item = &str> {
        self.keys
            .keys()
            .map(String::as_str)
            .filter(|key| is_companion(key) && !key.starts_with(TOKENS) && !key.ends_with(MARK))
    }

    /// Runs a script, loaded or not. `None` if the script does not take these parameters.
    pub fn run(&mut self, which: Which, keys: &str, params: &[&str]) -> Option<Answer> {
        self.ran(which, keys, params).unwrap_or_else(Some)
    }

    fn ran(&mut self, which: Which, keys: &str, params: &[&str]) -> Result<Option<Answer>> {
        let keys = keys.parse().map_err(|_| no_number())?;
        let Some((keys, args)) = params.split_at_checked(keys) else {
            return Err(Answer::Error("ERR Number of keys can't be greater than number of args".to_owned()));
        };
        if let Which::Together(_) = which {
            return self.ran_together(which, keys, args);
        }
        if let (Some(acquire), Some((own, [channel, _]))) =
            (which.polls(), args.len().checked_sub(2).and_then(|own| args.split_at_checked(own)))
        {
            return Ok(match self.ran(acquire, "1", &[keys, own].concat())? {
                Some(Answer::Integer(left)) => {
                    let listeners = self.channels.get(*channel).copied().unwrap_or_default();
                    Some(Answer::Array(vec![Answer::Integer(left), Answer::Integer(listeners)]))
                }
                other => other,
            });
        }
        let answer = match (which, keys, args) {
            (Which::Acquire, &[key], &[lease, holder, count]) => self.acquire(key, lease, holder, count),
            (Which::Release, &[key], &[channel, holder, count, verb]) => {
                self.release(key, [verb, channel], holder, count)
            }
            (Which::Retire, &[key], &[channel, holder, spent, left, verb, tag]) => {
                self.retire(key, [verb, channel], [holder, spent], left, tag)
            }
            (Which::Adopt, &[key], &[lease, holder, owner]) => self.adopt(key, lease, holder, owner),
            (Which::FencedAdopt, &[key], &[lease, holder, owner, tag]) => {
                self.fenced_adopt(key, lease, [holder, owner], tag)
            }
            (Which::SimpleAdopt, &[key], &[lease, token, owner]) => {
                self.simple_adopt(key, lease, token, owner)
            }
            (Which::SimpleRetire, &[key], &[channel, token, spent, left, verb, _]) => {
                self.simple_retire(key, [verb, channel], [token, spent], left)
            }
            (Which::HotRelease(_), &[key], &[ref args @ .., tag, opening]) => {
                return self.hot_release(which, key, args, tag, opening);
            }
            (Which::Mark, &[_], &[tag, lasts]) => {
                self.set_text(&format!("{tag}{MARK}"), "1", Some(integer(lasts)?));
                Ok(Answer::Status("OK".to_owned()))
            }
            (Which::Tell, &[key], &[channel, verb]) => {
                if self.keys.contains_key(key) {
                    Ok(Answer::Nil)
                } else {
                    Ok(Answer::Integer(self.publish([verb, channel, "1"])))
                }
            }
            (Which::AcquireAll, keys, args) => self.acquire_all(keys, each(keys, args)?),
            (Which::Renew, keys, args) => self.renew(keys, each(keys, args)?),
            (Which::ForceRelease, &[key], &[channel, verb, spent, left]) => {
                self.force_release(key, [verb, channel], [spent, left])
            }
            (Which::FencedAcquire, &[key], &[lease, holder, count, tag]) => {
                self.fenced_acquire(key, lease, holder, count, tag)
            }
            (Which::FencedRenew, keys, args) => self.fenced_renew(keys, each(keys, args)?),
            (Which::ReadAcquire, &[key], &[lease, holder, count, tag, heeds]) => {
                self.read_acquire(key, lease, holder, count, tag, heeds)
            }
            (Which::ReadRelease, &[key], &[channel, holder, count, verb, tag]) => {
                self.read_release(key, [verb, channel], holder, count, tag)
            }
            (Which::WriteAcquire, &[key], &[lease, holder, count, tag, mark]) => {
                self.write_acquire(key, lease, holder, count, tag, mark)
            }
            (Which::WriteRelease, &[key], &[channel, holder, count, verb, tag]) => {
                self.write_release(key, [verb, channel], holder, count, tag)
            }
            (Which::ReadWriteRenew, keys, args) => self.read_write_renew(keys, each(keys, args)?),
            (Which::ReadWriteForceRelease, &[key], &[channel, verb, spent, left, tag, side]) => {
                self.side_force_release(key, [verb, channel], [spent, left], tag, side)
            }
            (Which::SimpleAcquire, &[key], &[lease, token, _]) => self.simple_acquire(key, lease, token),
            (Which::SimpleRelease, &[key], &[channel, token, count, verb]) => {
                self.simple_release(key, [verb, channel], token, count)
            }
            (Which::SimpleRenew, keys, args) => self.simple_renew(keys, each(keys, args)?),
            (Which::LookAtLeader, &[key], &[tag]) => self.look_at_leader(key, tag),
            (Which::Refresh, &[fleet, roster, checked_in], args) => match args.try_into() {
                Ok(args) => self.refresh([fleet, roster, checked_in], args),
                Err(_) => return Ok(None),
            },
            (Which::LeaveFleet, &[roster, checked_in], &[process]) => {
                self.leave_fleet([roster, checked_in], process)
            }
            (Which::Reclaim, keys, &[fleet, incarnation, ref args @ ..]) if args.len() == 6 * keys.len() => {
                self.fenced_reclaim(keys, [fleet, incarnation], each(keys, args)?)
            }
            (Which::Reclaim, keys, &[fleet, incarnation, ref args @ ..]) => {
                self.reclaim(keys, [fleet, incarnation], each(keys, args)?)
            }
            (Which::SimpleReclaim, keys, &[fleet, incarnation, ref args @ ..]) => {
                self.simple_reclaim(keys, [fleet, incarnation], each(keys, args)?)
            }
            (Which::ReadWriteReclaim, keys, &[fleet, incarnation, ref args @ ..]) => {
                self.read_write_reclaim(keys, [fleet, incarnation], each(keys, args)?)
            }
            (Which::PermitReclaim, keys, &[fleet, incarnation, ref args @ ..]) => {
                self.permit_reclaim(keys, [fleet, incarnation], each(keys, args)?)
            }
            (Which::ReadWriteIsHeld, &[key], &[side]) => self.is_held(key, side),
            (Which::Holders, &[key], &[most]) => self.holders_of_lock(key, most),
            (Which::SimpleHolders, &[key], &[_]) => self.holder_of_simple(key),
            (Which::ReadWriteHolders, &[key], &[most, side, tag]) => {
                self.holders_of_side(key, most, side, tag)
            }
            (Which::SemaphoreRenew, keys, args) => self.semaphore_renew(keys, each(keys, args)?),
            (Which::PermitRenew, keys, args) => self.permit_renew(keys, each(keys, args)?),
            (Which::FairAcquire, &[key], &[lease, holder, count, stands, channel, verb, tag]) => {
                self.fair_acquire(key, lease, [holder, count], stands, [verb, channel], tag)
            }
            (Which::FairRelease, &[key], &[channel, holder, count, verb, tag]) => {
                self.fair_release(key, [verb, channel], holder, count, tag)
            }
            (Which::FairForceRelease, &[key], &[channel, verb, spent, left, tag]) => {
                self.fair_force_release(key, [verb, channel], [spent, left], tag)
            }
            (Which::SimpleForceRelease, &[key], &[channel, verb, spent, left]) => {
                self.simple_force_release(key, [verb, channel], [spent, left])
            }
            // new-kind: calls
            (which, &[key], args) => return self.run_of_many(which, key, args),
            _ => return Ok(None),
        };
        answer.map(Some)
    }

    /// Runs several calls of scripts, each as if it came alone.
    fn ran_together(&mut self, which: Which, keys: &[&str], mut args: &[&str]) -> Result<Option<Answer>> {
        let (mut answers, parts) = (Vec::new(), which.parts());
        for key in keys {
            let Some((number, behind)) = args.split_first() else { return Ok(None) };
            let part = number.parse::<usize>().ok().and_then(|number| parts.get(number.checked_sub(1)?));
            let Some((part, (own, rest))) =
                part.and_then(|(part, count)| Some((*part, behind.split_at_checked(*count)?)))
            else {
                return Ok(None);
            };
            let Some(answer) = self.run(part, "1", &[&[*key], own].concat()) else { return Ok(None) };
            answers.push(answer);
            args = rest;
        }
        Ok(args.is_empty().then_some(Answer::Array(answers)))
    }

    fn acquire(&mut self, key: &str, lease: &str, holder: &str, count: &str) -> Result {
        let lease = integer(lease)?;
        let is_held = self.is_lock(key).inspect_err(|_| self.note(Which::Acquire, key, holder, None))?;
        if !is_held {
            self.set_count(key, holder, "1");
            self.pexpire(key, lease);
            self.note(Which::Acquire, key, holder, Some("1"));
            return Ok(Answer::Nil);
        }
        if !self.held_by(key, holder) {
            self.note(Which::Acquire, key, holder, None);
            return Ok(Answer::Integer(self.pttl(key)));
        }
        self.set_count(key, holder, count);
        if self.pttl(key) < lease {
            self.pexpire(key, lease);
        }
        self.note(Which::Acquire, key, holder, Some(count));
        Ok(Answer::Status("AGAIN".to_owned()))
    }

    /// Acquires all locks or none, each with a lease, a holder and a count.
    fn acquire_all(&mut self, keys: &[&str], args: &[[&str; 3]]) -> Result {
        let array =
            |numbers: &[i64]| Ok(Answer::Array(numbers.iter().copied().map(Answer::Integer).collect()));
        for (place, (key, [_, holder, _])) in (1..).zip(keys.iter().zip(args)) {
            let is_held = self.is_lock(key);
            let is_other = is_held.is_err();
            if is_other || is_held == Ok(true) && !self.held_by(key, holder) {
                self.note(Which::AcquireAll, key, holder, None);
                return match is_other {
                    true => array(&[-1, place]),
                    false => array(&[0, place, self.pttl(key)]),
                };
            }
        }
        // The script also checks all keys first, so a new key that is named twice counts as new at both places.
        let known: Vec<bool> = keys.iter().map(|key| self.keys.contains_key(*key)).collect();
        let mut reply = vec![1];
        for ((key, [lease, holder, count]), known) in keys.iter().zip(args).zip(known) {
            let (lease, count) = (integer(lease)?, if known { count } else { "1" });
            self.set_count(key, holder, count);
            if !known || self.pttl(key) < lease {
                self.pexpire(key, lease);
            }
            self.note(Which::AcquireAll, key, holder, Some(count));
            reply.push(if known { 2 } else { 1 });
        }
        array(&reply)
    }

    fn release(&mut self, key: &str, tell: [&str; 2], holder: &str, count: &str) -> Result {
        let left = integer(count)?;
        self.note(Which::Release, key, holder, Some(count));
        if !self.held_by(key, holder) {
            return Ok(Answer::Nil);
        }
        if left > 0 {
            self.set_count(key, holder, count);
            return Ok(Answer::Integer(0));
        }
        if let Some(held) = self.keys.get_mut(key) {
            held.holders.retain(|(known, _)| known != holder);
            if held.holders.is_empty() {
                return Ok(Answer::Integer(1 + self.free(key, tell)));
            }
        }
        Ok(Answer::Integer(1))
    }

    /// Replaces a holder by a spent owner, which keeps the lock for `left` milliseconds.
    fn retire(
        &mut self,
        key: &str,
        [verb, channel]: [&str; 2],
        [holder, spent]: [&str; 2],
        left: &str,
        tag: &str,
    ) -> Result {
        self.note(Which::Retire, key, holder, Some("0"));
        if self.text(key).is_some() {
            return Ok(Answer::Nil);
        }
        if !self.held_by(key, holder) {
            return Ok(if self.held_by(key, spent) { Answer::Integer(1) } else { Answer::Nil });
        }
        let left = integer(left)?;
        self.set_count(key, spent, "1");
        self.forget(key, holder);
        if self.fields(key).is_empty() {
            self.keys.remove(key);
        }
        if self.fields(key).len() == 1 || self.pttl(key) < left {
            self.pexpire(key, left);
        }
        let heard = self.publish([verb, channel, "0"]);
        if let Some((first, _)) = self.fields(&format!("{}{tag}", fair::QUEUES)).into_iter().next() {
            self.publish([verb, &format!("{channel}:{first}"), "0"]);
        }
        Ok(Answer::Integer(1 + heard))
    }

    /// Gives a lock to a new holder in place of `owner`.
    fn adopt(&mut self, key: &str, lease: &str, holder: &str, owner: &str) -> Result {
        let again = self.may_adopt(Which::Adopt, key, holder, owner)?;
        let Some(again) = again else { return Ok(Answer::Integer(self.pttl(key))) };
        self.succeed(key, lease, holder, owner)?;
        Ok(if again { Answer::Status("AGAIN".to_owned()) } else { Answer::Nil })
    }

    fn fenced_adopt(&mut self, key: &str, lease: &str, [holder, owner]: [&str; 2], tag: &str) -> Result {
        let again = self.may_adopt(Which::FencedAdopt, key, holder, owner)?;
        let Some(again) = again else { return Ok(Answer::Integer(self.pttl(key))) };
        let token = self.token_of_grant(tag, again)?;
        self.succeed(key, lease, holder, owner)?;
        Ok(Answer::Array(vec![Answer::Integer(if again { 2 } else { 1 }), token]))
    }

    /// Returns whether the holder has the lock already. Returns `None` if the holder may not take the place of `owner`.
    fn may_adopt(&mut self, which: Which, key: &str, holder: &str, owner: &str) -> Result<Option<bool>> {
        self.no_text(key)?;
        let fields = self.fields(key);
        let again = self.held_by(key, holder);
        let others = fields.iter().filter(|(field, _)| field != owner && field != "mode").count();
        let may = again || others == 0 && self.field(key, owner).as_deref() == Some("1");
        self.note(which, key, holder, may.then_some("1"));
        Ok(may.then_some(again))
    }

    fn succeed(&mut self, key: &str, lease: &str, holder: &str, owner: &str) -> Result<()> {
        if !self.held_by(key, holder) {
            self.forget(key, owner);
            self.set_count(key, holder, "1");
        }
        self.pexpire(key, integer(lease)?);
        Ok(())
    }

    /// Runs a release, and checks for contenders that no message reaches.
    fn hot_release(
        &mut self,
        which: Which,
        key: &str,
        args: &[&str],
        tag: &str,
        opening: &str,
    ) -> Result<Option<Answer>> {
        let Some(release) = which.releases() else { return Ok(None) };
        let (mut args, silent) = (args.to_vec(), opening == "2");
        let (Some(&channel), Some(&verb)) = (args.first(), args.get(3)) else { return Ok(None) };
        if let Some(verb) = args.get_mut(3).filter(|_| silent) {
            *verb = "";
        }
        let Some(released) = self.ran(release, "1", &[&[key], args.as_slice()].concat())? else {
            return Ok(None);
        };
        let Answer::Integer(mut heard) = released else { return Ok(Some(released)) };
        if heard == 0 {
            return Ok(Some(released));
        }
        if silent {
            heard = heard.max(1);
        }
        let mut found = self.keys.contains_key(&format!("{tag}{MARK}"));
        if let Some((first, _)) = self.fields(&format!("{}{tag}", fair::QUEUES)).into_iter().next() {
            found = true;
            if opening != "0" {
                self.publish([verb, &format!("{channel}:{first}"), "0"]);
            }
        }
        Ok(Some(Answer::Array(vec![Answer::Integer(heard), Answer::flag(found)])))
    }

    fn renew(&mut self, keys: &[&str], args: &[[&str; 2]]) -> Result {
        self.renew_each(Which::Renew, keys, args, Self::held_by)
    }

    /// Renews each hold, given by its lease and its holder. The reply has 1 for each renewed hold. For a lease of 0 it
    /// has the remaining lease instead.
    fn renew_each(
        &mut self,
        which: Which,
        keys: &[&str],
        args: &[[&str; 2]],
        has: impl Fn(&Self, &str, &str) -> bool,
    ) -> Result {
        let mut answers = Vec::new();
        for (key, &[lease, holder]) in keys.iter().zip(args) {
            let held = has(self, key, holder);
            if lease == "0" {
                answers.push(Answer::Integer(if held { self.left(key) } else { 0 }));
                continue;
            }
            if held {
                self.pexpire(key, integer(lease)?);
            }
            self.note(which, key, holder, None);
            answers.push(Answer::flag(held));
        }
        Ok(self.renewed(answers))
    }

    /// Returns the remaining time of a running lease, and 1 in its last millisecond.
    fn left(&self, key: &str) -> i64 {
        if self.pttl(key) == 0 { 1 } else { self.pttl(key) }
    }

    /// Returns the renewing script's reply. Only this function knows its form.
    fn renewed(&self, answers: Vec<Answer>) -> Answer {
        let now = self.millis();
        let time = [now / 1000, now % 1000 * 1000].map(Answer::Integer);
        Answer::Array(time.into_iter().chain(answers).collect())
    }

    fn force_release(&mut self, key: &str, [verb, channel]: [&str; 2], spent: [&str; 2]) -> Result {
        self.note(Which::ForceRelease, key, "", None);
        if !self.is_lock(key)? {
            return Ok(Answer::Integer(0));
        }
        self.leave_to(key, spent)?;
        self.publish([verb, channel, "0"]);
        Ok(Answer::Integer(1))
    }

    /// Leaves a lock to a spent owner, for this number of milliseconds.
    fn leave_to(&mut self, key: &str, [spent, left]: [&str; 2]) -> Result<()> {
        self.keys.remove(key);
        self.set_count(key, spent, "1");
        self.pexpire(key, integer(left)?);
        Ok(())
    }

    /// Returns true if the key is a lock whose fields are holders. Fails if it holds other data.
    fn is_lock(&self, key: &str) -> Result<bool> {
        self.no_text(key)?;
        let Some(held) = self.keys.get(key) else { return Ok(false) };
        match held.holders.iter().all(|(field, count)| is_owner(field) && is_positive(count)) {
            true => Ok(true),
            false => Err(wrong_type()),
        }
    }

    fn fenced_acquire(&mut self, key: &str, lease: &str, holder: &str, count: &str, tag: &str) -> Result {
        let lease = integer(lease)?;
        let is_held =
            self.is_lock(key).inspect_err(|_| self.note(Which::FencedAcquire, key, holder, None))?;
        let held = self.held_by(key, holder);
        if is_held && !held {
            self.note(Which::FencedAcquire, key, holder, None);
            return Ok(Answer::Integer(self.pttl(key)));
        }
        let token = self.token_of_grant(tag, held)?;
        self.set_count(key, holder, if held { count } else { "1" });
        if !held || self.pttl(key) < lease {
            self.pexpire(key, lease);
        }
        self.note(Which::FencedAcquire, key, holder, Some(if held { count } else { "1" }));
        Ok(Answer::Array(vec![Answer::Integer(if held { 2 } else { 1 }), token]))
    }

    /// Returns the token of a grant. A holder that has the lock already keeps the latest token.
    fn token_of_grant(&mut self, tag: &str, held: bool) -> Result {
        let counter = format!("{TOKENS}{tag}");
        let stored = self.number(&counter)?;
        let mut token = stored.unwrap_or_default();
        if !held || stored.is_none() {
            let now = self.micros();
            token = if token < now { now } else { token.checked_add(1).ok_or_else(overflow)? };
            self.set_text(&counter, &token.to_string(), None);
        }
        Ok(Answer::Bulk(token.to_string()))
    }

    /// Raises the counter of a lock's tokens to this token at least.
    fn raise_token(&mut self, tag: &str, token: i64) {
        let counter = format!("{TOKENS}{tag}");
        if self.number(&counter).is_ok_and(|stored| stored.unwrap_or_default() < token) {
            self.set_text(&counter, &token.to_string(), None);
        }
    }

    fn fields(&self, key: &str) -> Vec<(String, String)> {
        self.keys.get(key).map(|key| key.holders.clone()).unwrap_or_default()
    }

    fn field(&self, key: &str, field: &str) -> Option<String> {
        let fields = self.keys.get(key)?.holders.iter();
        fields.clone().find(|(known, _)| known == field).map(|(_, value)| value.clone())
    }

    fn forget(&mut self, key: &str, field: &str) {
        if let Some(held) = self.keys.get_mut(key) {
            held.holders.retain(|(known, _)| known != field);
        }
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.keys.get(key)?.text.as_deref()
    }

    /// Fails if the key is a string, because a real server keeps fields in other types.
    fn no_text(&self, key: &str) -> Result<()> {
        if self.text(key).is_some() { Err(wrong_type()) } else { Ok(()) }
    }

    /// Returns the number under a key, or `None` if the key does not exist.
    fn number(&self, key: &str) -> Result<Option<i64>> {
        let Some(Key { text, .. }) = self.keys.get(key) else { return Ok(None) };
        // A text with a needless plus sign is not a number for Redis.
        match text.as_deref().filter(|text| !text.starts_with('+')).map(str::parse) {
            Some(Ok(number)) => Ok(Some(number)),
            _ => Err(Answer::Error("WRONGTYPE what is under this name is no number".to_owned())),
        }
    }

    fn set_text(&mut self, key: &str, text: &str, lease: Option<i64>) {
        let text = Some(text.to_owned());
        self.keys.insert(key.to_owned(), Key { text, ..Key::default() });
        if let Some(lease) = lease {
            self.pexpire(key, lease);
        }
    }

    /// Deletes the lock's key and publishes its release. Returns the number of receivers.
    fn free(&mut self, key: &str, [verb, channel]: [&str; 2]) -> i64 {
        self.keys.remove(key);
        self.publish([verb, channel, "0"])
    }

    /// Publishes a message and returns the number of receivers. With an empty verb no message is sent; then this returns
    /// -2, so that a release returns -1.
    fn publish(&mut self, message: [&str; 3]) -> i64 {
        if message[0].is_empty() {
            return -2;
        }
        let [verb, channel, text] = message.map(str::to_owned);
        let heard = self.channels.get(&channel).copied().unwrap_or_default();
        self.published.push(Published { verb, channel, text });
        heard
    }

    fn held_by(&self, key: &str, holder: &str) -> bool {
        self.keys.get(key).is_some_and(|key| key.holders.iter().any(|(known, _)| known == holder))
    }

    fn set_count(&mut self, key: &str, holder: &str, count: &str) {
        let holders = &mut self.keys.entry(key.to_owned()).or_default().holders;
        match holders.iter_mut().find(|(known, _)| known == holder) {
            Some((_, known)) => count.clone_into(known),
            None => holders.push((holder.to_owned(), count.to_owned())),
        }
    }

    fn pttl(&self, key: &str) -> i64 {
        match self.keys.get(key) {
            None => -2,
            Some(Key { expires: None, .. }) => -1,
            Some(Key { expires: Some(expires), .. }) => signed(expires.saturating_sub(self.now)),
        }
    }

    /// Returns the server's clock as a script reads it.
    fn millis(&self) -> i64 {
        signed(self.now)
    }

    /// Returns the clock in microseconds. At least one microsecond passes between two scripts.
    fn micros(&mut self) -> i64 {
        let now = self.now * 1000;
        self.said = if self.said / 1000 == self.now { self.said + 1 } else { now };
        signed(self.said)
    }

    fn pexpire(&mut self, key: &str, millis: i64) -> bool {
        let Some(held) = self.keys.get_mut(key) else { return false };
        match u64::try_from(millis) {
            Ok(millis) if millis > 0 => held.expires = Some(self.now + millis),
            // `checkAlreadyExpired` in expire.c: a time that is not in the future deletes the key at once.
            _ => drop(self.keys.remove(key)),
        }
        true
    }

    fn note(&mut self, script: Which, key: &str, holder: &str, count: Option<&str>) {
        if self.forgets {
            return;
        }
        let (at, key, holder) = (self.now, key.to_owned(), holder.to_owned());
        let count = count.and_then(|count| count.parse().ok());
        self.log.push(Executed { script, at, key, holder, count });
    }
}

/// A reply, or the error with which a script ends.
type Result<T = Answer> = std::result::Result<T, Answer>;

impl Remembered {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Answer {
    fn flag(flag: bool) -> Self {
        Self::Integer(i64::from(flag))
    }
}

/// Suffix of the mark that polling contenders leave, behind the common part of a lock's keys.
const MARK: &str = ":wheellock_poller";

/// Prefix of the counters of fencing tokens, which never expire.
const TOKENS: &str = "redisson_lock_token:";

fn is_companion(key: &str) -> bool {
    let is_of_a_lock = key.starts_with(TOKENS) || fair::is_companion(key) || read_write::is_companion(key);
    is_of_a_lock || permits::is_companion(key) || key.ends_with(elections::LEADER) || key.ends_with(MARK)
}

/// Returns true for a uuid, a colon and a number. More text may follow behind another colon.
fn is_owner(field: &str) -> bool {
    let owner = field.splitn(3, ':').take(2).collect::<Vec<_>>().join(":");
    holder::process_in(&owner).is_some()
}

fn is_positive(count: &str) -> bool {
    !count.starts_with('0') && is_number(count)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit())
}

fn wrong_type() -> Answer {
    Answer::Error("WRONGTYPE another kind of lock is under this name".to_owned())
}

fn no_number() -> Answer {
    Answer::Error("ERR value is not an integer or out of range".to_owned())
}

fn overflow() -> Answer {
    Answer::Error("ERR increment or decrement would overflow".to_owned())
}

/// Parses a number from a command or a key. Any client may have put it there.
fn integer(text: &str) -> Result<i64> {
    text.parse().map_err(|_| no_number()).and_then(exact)
}

/// Returns a number if scripts can compute with it exactly.
fn exact(number: i64) -> Result<i64> {
    if (-LARGEST..=LARGEST).contains(&number) { Ok(number) } else { Err(no_number()) }
}

/// Splits the parameters of a script that takes `N` of them for each key.
fn each<'a, const N: usize>(keys: &[&str], args: &'a [&'a str]) -> Result<&'a [[&'a str; N]]> {
    match args.as_chunks() {
        (each, []) if each.len() == keys.len() => Ok(each),
        _ => Err(Answer::Error("ERR Lua redis lib command arguments must be strings or integers".to_owned())),
    }
}

fn signed(millis: u64) -> i64 {
    i64::try_from(millis).unwrap_or(i64::MAX)
}

fn count<T>(all: impl Iterator<Item = T>) -> i64 {
    i64::try_from(all.count()).unwrap_or(i64::MAX)
}

/// Largest integer that Lua's numbers represent exactly. Times in milliseconds and microseconds are far below.
const LARGEST: i64 = 1 << 53;

/// Returns renewals of a hold that came after its release and before its next acquire.
pub fn late_renewals(log: &[Executed]) -> Vec<&Executed> {
    let mut released = BTreeSet::new();
    let mut late = Vec::new();
    for executed in log {
        let hold = (executed.key.as_str(), executed.holder.as_str());
        match (executed.script, executed.count) {
            (script, Some(0)) if script.is_release() => _ = released.insert(hold),
            (script, _) if script.is_acquire() => _ = released.remove(&hold),
            (script, _) if script.is_renewal() && released.contains(&hold) => late.push(executed),
            _ => {}
        }
    }
    late
}

/// Returns bytes as this store keeps them. They need not be text; the id of a permit usually is not.
pub(super) fn text_of(bytes: &[u8]) -> Cow<'_, str> {
    std::str::from_utf8(bytes).map_or_else(|_| hexadecimal(bytes).into(), Cow::Borrowed)
}

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
