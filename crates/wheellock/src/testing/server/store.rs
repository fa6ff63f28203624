//! What a server keeps of locks, as a value: keys, leases, loaded scripts. Owns what the scripts mean, written down a
//! second time in Rust; knows no connection and reads no clock.
//!
//! `tests/tests/it/model_server.rs` at the root of the workspace compares it to a real server, call by call.

mod elections;
mod holders;
mod permits;

use std::collections::{BTreeMap, BTreeSet};

use super::scripts::Which;

/// One server's data, and a log of what its scripts did.
#[derive(Debug, Default)]
pub struct Store {
    /// The server's clock in milliseconds.
    now: u64,
    keys: BTreeMap<String, Key>,
    loaded: BTreeSet<Which>,
    /// What is listened to, and by how many.
    pub channels: BTreeMap<String, i64>,
    /// Messages that nobody has taken yet.
    pub published: Vec<Published>,
    /// What happened to whose hold, in order.
    pub log: Vec<Executed>,
    /// Whether nothing is written there.
    pub forgets: bool,
}

#[derive(Debug, Default)]
struct Key {
    /// Fields and their values, in the order in which they came.
    holders: Vec<(String, String)>,
    /// What is there if it is a string.
    text: Option<String>,
    /// Gone when the clock has passed this.
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

/// What a script did to one hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Executed {
    pub script: Which,
    pub at: u64,
    pub key: String,
    pub holder: String,
    /// The holder's count afterwards, for what sets one.
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
    /// Moves the clock; what has run out is gone.
    pub fn set_now(&mut self, now: u64) {
        self.now = now;
        // `keyIsExpired` in db.c: gone once the clock has passed its time, not when it is reached.
        self.keys.retain(|_, key| key.expires.is_none_or(|expires| now <= expires));
    }

    /// The server's clock in milliseconds.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// One more listens to this channel.
    pub fn subscribe(&mut self, channel: &str) {
        *self.channels.entry(channel.to_owned()).or_default() += 1;
    }

    /// One fewer listens to this channel.
    pub fn unsubscribe(&mut self, channel: &str) {
        if let Some(listeners) = self.channels.get_mut(channel) {
            *listeners -= 1;
            if *listeners == 0 {
                self.channels.remove(channel);
            }
        }
    }

    /// Everything is gone but who listens to what, as after a restart without persistence.
    pub fn forget_everything(&mut self) {
        self.keys.clear();
        self.loaded.clear();
    }

    /// Takes from everybody what they hold under this name, whatever kind of lock it is, and tells all who wait. Returns whether
    /// anybody held anything.
    pub fn take_away(&mut self, name: &str) -> bool {
        let tag = if name.contains('{') { name.to_owned() } else { format!("{{{name}}}") };
        let is_number = self.text(name).is_some_and(|text| text.parse::<i64>().is_ok());
        let held = self.keys.contains_key(name) && !is_number && self.keys.remove(name).is_some();
        self.keys.retain(|key, _| !(key.starts_with(&tag) && key.contains(":rwlock_timeout:")));
        let taken = self.take_back_all(name, &tag) || held;
        let listened = self.channels.keys().filter(|channel| taken && channel.contains(&tag));
        for channel in listened.cloned().collect::<Vec<_>>() {
            self.publish(["PUBLISH", &channel, "0"]);
        }
        taken
    }

    /// Runs one command on the data. `None` if it is no command of this kind.
    pub fn execute(&mut self, words: &[&str]) -> Option<Answer> {
        Some(match *words {
            ["SCRIPT", "LOAD", text] => match Which::by(|which| which.text() == text) {
                Some(which) => {
                    self.loaded.insert(which);
                    Answer::Bulk(which.sha().to_owned())
                }
                None => return None,
            },
            ["SCRIPT", "FLUSH"] => {
                self.loaded.clear();
                Answer::Status("OK".to_owned())
            }
            ["EVALSHA", sha, keys, ref params @ ..] => {
                match Which::by(|which| self.loaded.contains(&which) && which.sha() == sha) {
                    Some(which) => self.run(which, keys, params),
                    None => Answer::Error("NOSCRIPT No matching script. Please use EVAL.".to_owned()),
                }
            }
            // The connection's question whether the server takes writes.
            ["EVAL", "#!lua\nreturn 1", "0"] => Answer::Integer(1),
            ["EVAL", text, keys, ref params @ ..] => {
                let which = Which::by(|which| which.text() == text)?;
                self.loaded.insert(which);
                self.run(which, keys, params)
            }
            ["EXISTS", key] => Answer::flag(self.keys.contains_key(key)),
            ["PTTL", key] => Answer::Integer(self.pttl(key)),
            ["PEXPIRE", key, millis] => Answer::flag(self.pexpire(key, integer(millis))),
            ["PERSIST", key] => {
                Answer::flag(self.keys.get_mut(key).and_then(|key| key.expires.take()).is_some())
            }
            ["DEL", key, ref others @ ..] => {
                let removed = self.keys.remove(key).is_some();
                let gone = others.iter().filter(|key| self.keys.remove(**key).is_some()).count();
                Answer::Integer(i64::from(removed) + i64::try_from(gone).expect("few"))
            }
            ["SET", key, text, "PX", lease] => {
                self.set_text(key, text, Some(integer(lease)));
                Answer::Status("OK".to_owned())
            }
            ["SET", key, text] => {
                self.set_text(key, text, None);
                Answer::Status("OK".to_owned())
            }
            ["ZADD", key, ends, permit] => {
                let new = !self.held_by(key, permit);
                self.set_count(key, permit, ends);
                Answer::flag(new)
            }
            ["GET", key] => self.text(key).map_or(Answer::Nil, |text| Answer::Bulk(text.to_owned())),
            ["HEXISTS", key, holder] => Answer::flag(self.held_by(key, holder)),
            ["HGET", key, holder] => {
                let holders = self.keys.get(key).into_iter().flat_map(|key| &key.holders);
                let count = holders.into_iter().find(|(known, _)| known == holder);
                count.map_or(Answer::Nil, |(_, count)| Answer::Bulk(count.clone()))
            }
            ["HSET", key, field, value] => {
                let new = !self.held_by(key, field);
                self.set_count(key, field, value);
                Answer::flag(new)
            }
            ["HKEYS", key] if self.text(key).is_some() => wrong_type(),
            ["HKEYS", key] => {
                let fields = self.fields(key).into_iter().map(|(field, _)| Answer::Bulk(field));
                Answer::Array(fields.collect())
            }
            ["LLEN", key] => Answer::Integer(i64::try_from(self.fields(key).len()).expect("few")),
            ["LPOS", key, holder] => {
                let place = self.fields(key).iter().position(|(known, _)| known == holder);
                place.map_or(Answer::Nil, |place| Answer::Integer(i64::try_from(place).expect("few")))
            }
            ["HGETALL", key] => {
                let holders = self.keys.get(key).into_iter().flat_map(|key| &key.holders);
                let flat = holders.flat_map(|(holder, count)| [holder, count]);
                Answer::Array(flat.map(|text| Answer::Bulk(text.clone())).collect())
            }
            _ => return None,
        })
    }

    /// Who stands in the queue that is under `key`, the first first.
    pub fn queue(&self, key: &str) -> Vec<String> {
        self.fields(key).into_iter().map(|(holder, _)| holder).collect()
    }

    /// Who holds what, and how often.
    pub fn holds(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.keys.iter().filter(|(key, _)| !is_companion(key)).flat_map(|(key, held)| {
            let only = held.text.as_deref().map(|token| (token, "1"));
            let all = held.holders.iter().map(|(holder, count)| (holder.as_str(), count.as_str()));
            all.chain(only).map(move |(holder, count)| (key.as_str(), holder, count))
        })
    }

    /// Keys that belong to a lock besides its own, and are to go with it.
    pub fn companions(&self) -> impl Iterator<Item = &str> {
        self.keys.keys().map(String::as_str).filter(|key| is_companion(key) && !key.starts_with(TOKENS))
    }

    /// Runs a script, loaded or not.
    pub fn run(&mut self, which: Which, keys: &str, params: &[&str]) -> Answer {
        let (keys, args) = params.split_at(keys.parse().expect("a number of keys"));
        match (which, keys, args) {
            (Which::Acquire, &[key], &[lease, holder, count]) => self.acquire(key, lease, holder, count),
            (Which::Release, &[key], &[channel, holder, count, verb]) => {
                self.release(key, [verb, channel], holder, count)
            }
            (Which::AcquireAll, keys, args) => self.acquire_all(keys, args),
            (Which::Renew, keys, args) => self.renew(keys, args),
            (Which::ForceRelease, &[key], &[channel, verb]) => self.force_release(key, [verb, channel]),
            (Which::FencedAcquire, &[key], &[lease, holder, count, tag]) => {
                self.fenced_acquire(key, lease, holder, count, tag)
            }
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
            (Which::ReadWriteRenew, keys, args) => self.read_write_renew(keys, args),
            (Which::ReadWriteForceRelease, &[key], &[channel, verb, tag, side]) => {
                self.side_force_release(key, [verb, channel], tag, side)
            }
            (Which::SimpleAcquire, &[key], &[lease, token, _]) => self.simple_acquire(key, lease, token),
            (Which::SimpleRelease, &[key], &[channel, token, count, verb]) => {
                self.simple_release(key, [verb, channel], token, count)
            }
            (Which::SimpleRenew, keys, args) => self.simple_renew(keys, args),
            (Which::LookAtLeader, &[key], &[tag]) => self.look_at_leader(key, tag),
            (Which::ReadWriteIsHeld, &[key], &[side]) => self.is_held(key, side),
            (Which::Holders, &[key], &[most]) => self.holders_of_lock(key, most),
            (Which::SimpleHolders, &[key], &[_]) => self.holder_of_simple(key),
            (Which::ReadWriteHolders, &[key], &[most, side, tag]) => {
                self.holders_of_side(key, most, side, tag)
            }
            (Which::SemaphoreRenew, keys, args) => self.semaphore_renew(keys, args),
            (Which::PermitRenew, keys, args) => self.permit_renew(keys, args),
            (Which::FairAcquire, &[key], &[lease, holder, count, stands, channel, verb, tag]) => {
                self.fair_acquire(key, lease, [holder, count], stands, [verb, channel], tag)
            }
            (Which::FairRelease, &[key], &[channel, holder, count, verb, tag]) => {
                self.fair_release(key, [verb, channel], holder, count, tag)
            }
            (Which::FairForceRelease, &[key], &[channel, verb, tag]) => {
                self.note(which, key, "", None);
                if self.keys.remove(key).is_none() {
                    return Answer::Integer(0);
                }
                self.tell_the_head([verb, channel], tag);
                Answer::Integer(1)
            }
            (Which::SimpleForceRelease, &[key], &[channel, verb]) => {
                self.note(which, key, "", None);
                if self.text(key).is_none() {
                    return Answer::Integer(0);
                }
                self.free(key, [verb, channel]);
                Answer::Integer(1)
            }
            (which, &[key], args) => self.run_of_many(which, key, args),
            _ => panic!("{which:?} takes other parameters than {params:?}"),
        }
    }

    fn acquire(&mut self, key: &str, lease: &str, holder: &str, count: &str) -> Answer {
        let lease = integer(lease);
        if !self.keys.contains_key(key) {
            self.set_count(key, holder, "1");
            self.pexpire(key, lease);
            self.note(Which::Acquire, key, holder, Some("1"));
            return Answer::Nil;
        }
        if !self.held_by(key, holder) {
            self.note(Which::Acquire, key, holder, None);
            if self.held_by(key, "mode") {
                return Answer::Error("WRONGTYPE a read-write lock is under this name".to_owned());
            }
            return Answer::Integer(self.pttl(key));
        }
        self.set_count(key, holder, count);
        if self.pttl(key) < lease {
            self.pexpire(key, lease);
        }
        self.note(Which::Acquire, key, holder, Some(count));
        Answer::Status("AGAIN".to_owned())
    }

    fn acquire_all(&mut self, keys: &[&str], args: &[&str]) -> Answer {
        assert_eq!(args.len(), 3 * keys.len(), "a lease, a holder and a count for each lock");
        let array = |numbers: &[i64]| Answer::Array(numbers.iter().copied().map(Answer::Integer).collect());
        for (place, (key, args)) in (1..).zip(keys.iter().zip(args.chunks(3))) {
            if self.keys.contains_key(*key) && !self.held_by(key, args[1]) {
                self.note(Which::AcquireAll, key, args[1], None);
                return match self.held_by(key, "mode") {
                    true => array(&[-1, place]),
                    false => array(&[0, place, self.pttl(key)]),
                };
            }
        }
        // A key that is named twice is new only once for the script, too: it looks at all of them first.
        let known: Vec<bool> = keys.iter().map(|key| self.keys.contains_key(*key)).collect();
        let mut reply = vec![1];
        for ((key, args), known) in keys.iter().zip(args.chunks(3)).zip(known) {
            let (lease, holder, count) = (integer(args[0]), args[1], if known { args[2] } else { "1" });
            self.set_count(key, holder, count);
            if !known || self.pttl(key) < lease {
                self.pexpire(key, lease);
            }
            self.note(Which::AcquireAll, key, holder, Some(count));
            reply.push(if known { 2 } else { 1 });
        }
        array(&reply)
    }

    fn release(&mut self, key: &str, tell: [&str; 2], holder: &str, count: &str) -> Answer {
        self.note(Which::Release, key, holder, Some(count));
        if !self.held_by(key, holder) {
            return Answer::Nil;
        }
        if integer(count) > 0 {
            self.set_count(key, holder, count);
            return Answer::Integer(0);
        }
        if let Some(held) = self.keys.get_mut(key) {
            held.holders.retain(|(known, _)| known != holder);
            if held.holders.is_empty() {
                return Answer::Integer(1 + self.free(key, tell));
            }
        }
        Answer::Integer(1)
    }

    fn renew(&mut self, keys: &[&str], args: &[&str]) -> Answer {
        assert_eq!(args.len(), 2 * keys.len(), "a lease and a holder for each lock");
        let mut answers = Vec::new();
        for (key, args) in keys.iter().zip(args.chunks(2)) {
            let (lease, holder) = (args[0], args[1]);
            let held = self.held_by(key, holder);
            if lease == "0" {
                let left = Answer::Integer(if self.pttl(key) == 0 { 1 } else { self.pttl(key) });
                answers.push(if held { left } else { Answer::Integer(0) });
                continue;
            }
            if held {
                self.pexpire(key, integer(lease));
            }
            self.note(Which::Renew, key, holder, None);
            answers.push(Answer::flag(held));
        }
        self.renewed(answers)
    }

    /// The form in which the renewing script answers. The only place that knows it.
    fn renewed(&self, answers: Vec<Answer>) -> Answer {
        let integer = |number: u64| Answer::Integer(i64::try_from(number).expect("a time"));
        let time = [integer(self.now / 1000), integer(self.now % 1000 * 1000)];
        Answer::Array(time.into_iter().chain(answers).collect())
    }

    fn force_release(&mut self, key: &str, tell: [&str; 2]) -> Answer {
        self.note(Which::ForceRelease, key, "", None);
        let Some(held) = self.keys.get(key) else { return Answer::Integer(0) };
        let is_owner =
            |field: &str| field.rsplit_once(':').is_some_and(|(_, number)| number.parse::<u64>().is_ok());
        if !held.holders.iter().all(|(field, count)| is_owner(field) && count.parse::<i64>().is_ok()) {
            return Answer::Error("WRONGTYPE what is under this name is no lock of this kind".to_owned());
        }
        self.free(key, tell);
        Answer::Integer(1)
    }

    fn fenced_acquire(&mut self, key: &str, lease: &str, holder: &str, count: &str, tag: &str) -> Answer {
        let counter = format!("{TOKENS}{tag}");
        let held = self.held_by(key, holder);
        if !held && self.keys.contains_key(key) {
            self.note(Which::FencedAcquire, key, holder, None);
            return match self.held_by(key, "mode") {
                true => wrong_type(),
                false => Answer::Integer(self.pttl(key)),
            };
        }
        let stored = self.text(&counter).map(integer);
        let mut token = stored.unwrap_or_default();
        if !held || stored.is_none() {
            let now = i64::try_from(self.now).expect("a time") * 1000;
            token = if token < now { now } else { token + 1 };
            self.set_text(&counter, &token.to_string(), None);
        }
        let token = Answer::Bulk(token.to_string());
        self.set_count(key, holder, if held { count } else { "1" });
        if !held || self.pttl(key) < integer(lease) {
            self.pexpire(key, integer(lease));
        }
        self.note(Which::FencedAcquire, key, holder, Some(if held { count } else { "1" }));
        Answer::Array(vec![Answer::Integer(if held { 2 } else { 1 }), token])
    }

    fn read_acquire(
        &mut self,
        key: &str,
        lease: &str,
        holder: &str,
        count: &str,
        tag: &str,
        heeds: &str,
    ) -> Answer {
        let (held, writes) = (self.held_by(key, holder), self.held_by(key, &format!("{holder}:write")));
        let mode = self.field(key, "mode");
        let refused = match mode.as_deref() {
            None if self.keys.contains_key(key) => Some(wrong_type()),
            None | Some("read") => None,
            Some("write") if writes => None,
            Some("write") => Some(Answer::Integer(self.pttl(key))),
            Some(_) => Some(wrong_type()),
        };
        let waits = self.pttl(&mark(tag));
        let waits = (!held && !writes && heeds == "1" && waits != -2).then_some(Answer::Integer(waits));
        if let Some(refused) = refused.or(waits) {
            self.note(Which::ReadAcquire, key, holder, None);
            return refused;
        }
        if mode.is_none() {
            self.set_count(key, "mode", "read");
        }
        self.set_count(key, holder, count);
        self.set_text(&timeout(tag, holder, integer(count)), "1", Some(integer(lease)));
        if self.pttl(key) < integer(lease) {
            self.pexpire(key, integer(lease));
        }
        self.note(Which::ReadAcquire, key, holder, Some(count));
        if held { Answer::Status("AGAIN".to_owned()) } else { Answer::Nil }
    }

    fn read_release(&mut self, key: &str, tell: [&str; 2], holder: &str, count: &str, tag: &str) -> Answer {
        self.note(Which::ReadRelease, key, holder, Some(count));
        let mode = self.field(key, "mode");
        let held = self.field(key, holder).and_then(|count| count.parse::<i64>().ok());
        let (Some("read" | "write"), Some(held)) = (mode.as_deref(), held) else { return Answer::Nil };
        let (count_text, count) = (count, integer(count));
        let lived = self.pttl(key);
        let mut longest = 0;
        for hold in count + 1..=held.min(count + 1000) {
            let timeout = timeout(tag, holder, hold);
            longest = longest.max(self.pttl(&timeout));
            self.keys.remove(&timeout);
        }
        if count > 0 {
            self.set_count(key, holder, count_text);
        } else {
            self.forget(key, holder);
        }
        if mode.as_deref() == Some("read") && lived >= 0 && longest + 2 >= lived
            || self.fields(key).len() == 1
        {
            let left = self.longest_read_lease(key, tag, Some(lived));
            if left > 0 {
                self.pexpire(key, left);
            } else if count == 0 {
                self.free(key, tell);
                return Answer::Integer(1);
            }
        }
        Answer::flag(count <= 0)
    }

    fn write_acquire(
        &mut self,
        key: &str,
        lease: &str,
        holder: &str,
        count: &str,
        tag: &str,
        waits: &str,
    ) -> Answer {
        let reader = holder.strip_suffix(":write").expect("a writer");
        let Some(mode) = self.field(key, "mode") else {
            if self.keys.contains_key(key) {
                self.note(Which::WriteAcquire, key, holder, None);
                return wrong_type();
            }
            self.set_count(key, "mode", "write");
            self.set_count(key, holder, "1");
            self.pexpire(key, integer(lease));
            self.keys.remove(&mark(tag));
            self.note(Which::WriteAcquire, key, holder, Some("1"));
            return Answer::Nil;
        };
        if mode == "write" && self.held_by(key, holder) {
            self.set_count(key, holder, count);
            if self.pttl(key) < integer(lease) {
                self.pexpire(key, integer(lease));
            }
            self.note(Which::WriteAcquire, key, holder, Some(count));
            return Answer::Status("AGAIN".to_owned());
        }
        self.note(Which::WriteAcquire, key, holder, None);
        if mode != "read" && mode != "write" {
            return wrong_type();
        }
        let reads = self.field(key, reader).and_then(|count| count.parse::<i64>().ok()).unwrap_or_default();
        if (1..=reads.min(1000)).any(|hold| self.pttl(&timeout(tag, reader, hold)) > 0) {
            return Answer::Error("UPGRADE this holder reads, and would wait for itself".to_owned());
        }
        if waits != "0" {
            self.set_text(&mark(tag), holder, Some(integer(waits)));
        }
        Answer::Integer(self.pttl(key))
    }

    fn write_release(
        &mut self,
        key: &str,
        [verb, channel]: [&str; 2],
        holder: &str,
        count: &str,
        tag: &str,
    ) -> Answer {
        self.note(Which::WriteRelease, key, holder, Some(count));
        let held = self.field(key, "mode").as_deref() == Some("write") && self.held_by(key, holder);
        if count != "0" {
            if !held {
                return Answer::Nil;
            }
            self.set_count(key, holder, count);
            return Answer::Integer(0);
        }
        let waited = self.text(&mark(tag)) == Some(holder);
        if waited {
            self.keys.remove(&mark(tag));
        }
        if held {
            self.forget(key, holder);
            let left = if self.fields(key).len() > 1 { self.longest_read_lease(key, tag, None) } else { 0 };
            if left > 0 {
                self.set_count(key, "mode", "read");
                self.pexpire(key, left);
            } else {
                self.keys.remove(key);
            }
        }
        let heard = if held || waited { self.publish([verb, channel, "1"]) } else { 0 };
        if held { Answer::Integer(1 + heard) } else { Answer::Nil }
    }

    fn side_force_release(&mut self, key: &str, [verb, channel]: [&str; 2], tag: &str, side: &str) -> Answer {
        self.note(Which::ReadWriteForceRelease, key, "", None);
        match self.field(key, "mode") {
            Some(mode) if mode == side => {}
            Some(mode) if mode == "read" || mode == "write" => return Answer::Integer(0),
            _ if self.keys.contains_key(key) => return wrong_type(),
            _ => return Answer::Integer(0),
        }
        for (holder, count) in self.fields(key) {
            for hold in 1..=count.parse::<i64>().unwrap_or_default().min(1000) {
                self.keys.remove(&timeout(tag, &holder, hold));
            }
        }
        self.keys.remove(key);
        self.publish([verb, channel, if side == "read" { "0" } else { "1" }]);
        Answer::Integer(1)
    }

    fn read_write_renew(&mut self, keys: &[&str], args: &[&str]) -> Answer {
        assert_eq!(args.len(), 3 * keys.len(), "a lease, a holder and a tag for each lock");
        let mut answers = Vec::new();
        for (key, args) in keys.iter().zip(args.chunks(3)) {
            let (lease, holder, tag) = (integer(args[0]), args[1], args[2]);
            if lease > 0 {
                self.note(Which::ReadWriteRenew, key, holder, None);
            }
            let mode = self.field(key, "mode");
            let Some(count) =
                self.field(key, holder).filter(|_| matches!(mode.as_deref(), Some("read" | "write")))
            else {
                answers.push(Answer::Integer(0));
                continue;
            };
            let mut left = self.pttl(key);
            let mut own = if left == 0 { 1 } else { left };
            if !holder.ends_with(":write") {
                own = 0;
                for hold in 1..=count.parse::<i64>().unwrap_or_default().min(1000) {
                    let timeout = timeout(tag, holder, hold);
                    own = own.max(self.pttl(&timeout));
                    if lease > 0 {
                        self.set_text(&timeout, "1", Some(lease));
                    }
                }
                if left >= 0 && left < own {
                    left = self.longest_read_lease(key, tag, None);
                    self.pexpire(key, left);
                }
            }
            if lease == 0 {
                answers.push(Answer::Integer(own));
                continue;
            }
            if left < lease {
                self.pexpire(key, lease);
            }
            answers.push(Answer::Integer(1));
        }
        self.renewed(answers)
    }

    fn is_held(&self, key: &str, side: &str) -> Answer {
        let mode = self.field(key, "mode");
        let reads_too = side == "read" && mode.as_deref() == Some("write") && self.fields(key).len() > 2;
        match self.text(key) {
            Some(_) => wrong_type(),
            None => Answer::flag(mode.as_deref() == Some(side) || reads_too),
        }
    }

    fn simple_acquire(&mut self, key: &str, lease: &str, token: &str) -> Answer {
        let Some(held) = self.text(key) else {
            self.set_text(key, token, Some(integer(lease)));
            self.note(Which::SimpleAcquire, key, token, Some("1"));
            return Answer::Nil;
        };
        if held == token {
            self.pexpire(key, integer(lease));
            self.note(Which::SimpleAcquire, key, token, Some("1"));
            return Answer::Status("AGAIN".to_owned());
        }
        let is_ours = held.len() > 37
            && held
                .rsplit_once(':')
                .is_some_and(|(id, number)| id.split('-').count() == 5 && number.parse::<u64>().is_ok());
        let left = Answer::Integer(self.pttl(key));
        self.note(Which::SimpleAcquire, key, token, None);
        if is_ours { left } else { Answer::Array(vec![left]) }
    }

    fn simple_release(&mut self, key: &str, tell: [&str; 2], token: &str, count: &str) -> Answer {
        self.note(Which::SimpleRelease, key, token, Some(count));
        if self.text(key) != Some(token) {
            return Answer::Nil;
        }
        Answer::Integer(1 + self.free(key, tell))
    }

    fn simple_renew(&mut self, keys: &[&str], args: &[&str]) -> Answer {
        assert_eq!(args.len(), 2 * keys.len(), "a lease and a token for each lock");
        let mut answers = Vec::new();
        for (key, args) in keys.iter().zip(args.chunks(2)) {
            let (lease, token) = (args[0], args[1]);
            let held = self.text(key) == Some(token);
            if lease == "0" {
                let left = Answer::Integer(if self.pttl(key) == 0 { 1 } else { self.pttl(key) });
                answers.push(if held { left } else { Answer::Integer(0) });
                continue;
            }
            if held {
                self.pexpire(key, integer(lease));
            }
            self.note(Which::SimpleRenew, key, token, None);
            answers.push(Answer::flag(held));
        }
        self.renewed(answers)
    }

    fn fair_acquire(
        &mut self,
        key: &str,
        lease: &str,
        [holder, count]: [&str; 2],
        stands: &str,
        tell: [&str; 2],
        tag: &str,
    ) -> Answer {
        if self.held_by(key, holder) {
            self.set_count(key, holder, count);
            if self.pttl(key) < integer(lease) {
                self.pexpire(key, integer(lease));
            }
            self.note(Which::FairAcquire, key, holder, Some(count));
            return Answer::Status("AGAIN".to_owned());
        }
        let (head, removed) = self.head_of_queue(tag);
        let free = !self.keys.contains_key(key);
        if free && head.as_deref().is_none_or(|head| head == holder) {
            self.leave_queue(tag, holder);
            self.set_count(key, holder, "1");
            self.pexpire(key, integer(lease));
            self.note(Which::FairAcquire, key, holder, Some("1"));
            return Answer::Nil;
        }
        self.note(Which::FairAcquire, key, holder, None);
        if free && removed {
            self.tell_the_head(tell, tag);
        }
        let left = self.pttl(key).max(0);
        if stands == "0" {
            return Answer::Integer(left);
        }
        let lives = (self.now + 5000).to_string();
        self.set_count(&queue(tag), holder, &lives);
        let is_head = head.is_none_or(|head| head == holder);
        Answer::Integer(if is_head { left.min(2000) } else { 2000 })
    }

    fn fair_release(&mut self, key: &str, tell: [&str; 2], holder: &str, count: &str, tag: &str) -> Answer {
        self.note(Which::FairRelease, key, holder, Some(count));
        let held = self.held_by(key, holder);
        if held && integer(count) > 0 {
            self.set_count(key, holder, count);
            return Answer::Integer(0);
        }
        let mut free = false;
        if held {
            self.forget(key, holder);
            free = self.fields(key).is_empty();
            if free {
                self.keys.remove(key);
            }
        } else if integer(count) == 0 && self.held_by(&queue(tag), holder) {
            let is_head = self.fields(&queue(tag)).first().is_some_and(|(head, _)| head == holder);
            self.leave_queue(tag, holder);
            free = is_head && !self.keys.contains_key(key);
        }
        if free {
            self.tell_the_head(tell, tag);
        }
        if held { Answer::Integer(1) } else { Answer::Nil }
    }

    /// The first who waits for a fair lock and lives, and whether others were removed for not living.
    fn head_of_queue(&mut self, tag: &str) -> (Option<String>, bool) {
        let mut removed = false;
        loop {
            let Some((head, lives)) = self.fields(&queue(tag)).into_iter().next() else {
                return (None, removed);
            };
            if integer(&lives) > i64::try_from(self.now).expect("a time") {
                return (Some(head), removed);
            }
            self.leave_queue(tag, &head);
            removed = true;
        }
    }

    fn leave_queue(&mut self, tag: &str, holder: &str) {
        self.forget(&queue(tag), holder);
        if self.fields(&queue(tag)).is_empty() {
            self.keys.remove(&queue(tag));
        }
    }

    fn tell_the_head(&mut self, [verb, channel]: [&str; 2], tag: &str) {
        if let (Some(head), _) = self.head_of_queue(tag) {
            self.publish([verb, &format!("{channel}:{head}"), "0"]);
        }
    }

    fn longest_read_lease(&self, key: &str, tag: &str, lived: Option<i64>) -> i64 {
        let mut longest = 0;
        for (holder, count) in self.fields(key).into_iter().rev() {
            for hold in (1..=count.parse::<i64>().unwrap_or_default().min(1000)).rev() {
                let left = self.pttl(&timeout(tag, &holder, hold));
                if left > 0 && lived.is_some_and(|lived| (left - lived).abs() <= 2) {
                    return left;
                }
                longest = longest.max(left);
            }
        }
        longest
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

    fn set_text(&mut self, key: &str, text: &str, lease: Option<i64>) {
        let text = Some(text.to_owned());
        self.keys.insert(key.to_owned(), Key { text, ..Key::default() });
        if let Some(lease) = lease {
            self.pexpire(key, lease);
        }
    }

    /// Returns how many heard of it.
    fn free(&mut self, key: &str, [verb, channel]: [&str; 2]) -> i64 {
        self.keys.remove(key);
        self.publish([verb, channel, "0"])
    }

    /// Returns how many heard it.
    fn publish(&mut self, message: [&str; 3]) -> i64 {
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
            Some(Key { expires: Some(expires), .. }) => i64::try_from(expires - self.now).expect("a TTL"),
        }
    }

    fn pexpire(&mut self, key: &str, millis: i64) -> bool {
        let Some(held) = self.keys.get_mut(key) else { return false };
        match u64::try_from(millis) {
            Ok(millis) if millis > 0 => held.expires = Some(self.now + millis),
            // `checkAlreadyExpired` in expire.c: a time that is not in the future deletes at once.
            _ => drop(self.keys.remove(key)),
        }
        true
    }

    fn note(&mut self, script: Which, key: &str, holder: &str, count: Option<&str>) {
        if self.forgets {
            return;
        }
        let (at, key, holder) = (self.now, key.to_owned(), holder.to_owned());
        self.log.push(Executed { script, at, key, holder, count: count.map(integer) });
    }
}

impl Answer {
    fn flag(flag: bool) -> Self {
        Self::Integer(i64::from(flag))
    }
}

/// What is left while a writer waits.
fn mark(tag: &str) -> String {
    format!("{tag}:wheellock_writer")
}

/// The lease of one hold of a reader.
fn timeout(tag: &str, holder: &str, hold: i64) -> String {
    format!("{tag}:{holder}:rwlock_timeout:{hold}")
}

/// Who waits for a fair lock, in order, each with the time until which it lives. The server has a list and two sorted sets.
fn queue(tag: &str) -> String {
    format!("{QUEUES}{tag}")
}

const QUEUES: &str = "redisson_lock_queue:";

/// Where the tokens of fenced locks are counted, for good.
const TOKENS: &str = "redisson_lock_token:";

fn is_companion(key: &str) -> bool {
    let is_counted = key.starts_with(TOKENS) || key.starts_with(QUEUES);
    let is_lease = key.ends_with(":wheellock_writer") || key.contains(":rwlock_timeout:");
    is_counted || is_lease || permits::is_companion(key) || key.ends_with(elections::LEADER)
}

fn wrong_type() -> Answer {
    Answer::Error("WRONGTYPE another kind of lock is under this name".to_owned())
}

fn integer(text: &str) -> i64 {
    text.parse().expect("an integer")
}

/// Renewals of a hold that came after its release and before it was taken again.
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

/// Of bytes that need not be text.
pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
