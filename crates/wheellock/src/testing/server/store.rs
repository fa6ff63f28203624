//! What a server keeps of locks, as a value: keys, leases, loaded scripts. Owns what the scripts mean, written down a
//! second time in Rust; knows no connection and reads no clock.
//!
//! `tests/tests/it/model_server.rs` at the root of the workspace compares it to a real server, call by call.

mod elections;
mod fair;
mod holders;
mod permits;
mod read_write;
mod simple;

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
        self.keys.retain(|key, _| !(key.starts_with(&tag) && key.contains(read_write::TIMEOUT)));
        let taken = self.take_back_all(name, &tag) || held;
        let listened = self.channels.keys().filter(|channel| taken && channel.contains(&tag));
        for channel in listened.cloned().collect::<Vec<_>>() {
            self.publish(["PUBLISH", &channel, "0"]);
        }
        taken
    }

    /// Runs one command on the data. `None` if it is no command of this kind, or has parameters that the library never sends.
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
                    Some(which) => self.run(which, keys, params)?,
                    None => Answer::Error("NOSCRIPT No matching script. Please use EVAL.".to_owned()),
                }
            }
            // The connection's question whether the server takes writes.
            ["EVAL", "#!lua\nreturn 1", "0"] => Answer::Integer(1),
            ["EVAL", text, keys, ref params @ ..] => {
                let which = Which::by(|which| which.text() == text)?;
                self.loaded.insert(which);
                self.run(which, keys, params)?
            }
            ["EXISTS", key] => Answer::flag(self.keys.contains_key(key)),
            ["PTTL", key] => Answer::Integer(self.pttl(key)),
            ["PEXPIRE", key, millis] => match millis.parse() {
                Ok(millis) => Answer::flag(self.pexpire(key, millis)),
                Err(_) => no_number(),
            },
            ["PERSIST", key] => {
                Answer::flag(self.keys.get_mut(key).and_then(|key| key.expires.take()).is_some())
            }
            ["DEL", key, ref others @ ..] => {
                let removed = self.keys.remove(key).is_some();
                let gone = others.iter().filter(|key| self.keys.remove(**key).is_some()).count();
                Answer::Integer(i64::from(removed) + i64::try_from(gone).expect("few"))
            }
            ["SET", key, text, "PX", lease] => match lease.parse() {
                Ok(lease) => {
                    self.set_text(key, text, Some(lease));
                    Answer::Status("OK".to_owned())
                }
                Err(_) => no_number(),
            },
            ["SET", key, text] => {
                self.set_text(key, text, None);
                Answer::Status("OK".to_owned())
            }
            ["ZADD", _, ends, _] if ends.parse::<i64>().is_err() => {
                Answer::Error("ERR value is not a valid float".to_owned())
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

    /// Runs a script, loaded or not. `None` if these are no parameters of it.
    pub fn run(&mut self, which: Which, keys: &str, params: &[&str]) -> Option<Answer> {
        let Ok(keys) = keys.parse() else { return Some(no_number()) };
        let Some((keys, args)) = params.split_at_checked(keys) else {
            let text = "ERR Number of keys can't be greater than number of args";
            return Some(Answer::Error(text.to_owned()));
        };
        Some(match (which, keys, args) {
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
                    return Some(Answer::Integer(0));
                }
                self.tell_the_head([verb, channel], tag);
                Answer::Integer(1)
            }
            (Which::SimpleForceRelease, &[key], &[channel, verb]) => {
                self.note(which, key, "", None);
                if self.text(key).is_none() {
                    return Some(Answer::Integer(0));
                }
                self.free(key, [verb, channel]);
                Answer::Integer(1)
            }
            (which, &[key], args) => self.run_of_many(which, key, args)?,
            _ => return None,
        })
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
        self.renew_each(Which::Renew, keys, args, Self::held_by)
    }

    /// Renews what its holder has, and answers for each: whether, or what is left where nothing is to be renewed.
    fn renew_each(
        &mut self,
        which: Which,
        keys: &[&str],
        args: &[&str],
        has: impl Fn(&Self, &str, &str) -> bool,
    ) -> Answer {
        assert_eq!(args.len(), 2 * keys.len(), "a lease and a holder for each lock");
        let mut answers = Vec::new();
        for (key, args) in keys.iter().zip(args.chunks(2)) {
            let (lease, holder) = (args[0], args[1]);
            let held = has(self, key, holder);
            if lease == "0" {
                answers.push(Answer::Integer(if held { self.left(key) } else { 0 }));
                continue;
            }
            if held {
                self.pexpire(key, integer(lease));
            }
            self.note(which, key, holder, None);
            answers.push(Answer::flag(held));
        }
        self.renewed(answers)
    }

    /// What is left of a lease that runs: in its last millisecond, one.
    fn left(&self, key: &str) -> i64 {
        if self.pttl(key) == 0 { 1 } else { self.pttl(key) }
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

/// Where the tokens of fenced locks are counted, for good.
const TOKENS: &str = "redisson_lock_token:";

fn is_companion(key: &str) -> bool {
    let is_of_a_lock = key.starts_with(TOKENS) || fair::is_companion(key) || read_write::is_companion(key);
    is_of_a_lock || permits::is_companion(key) || key.ends_with(elections::LEADER)
}

fn wrong_type() -> Answer {
    Answer::Error("WRONGTYPE another kind of lock is under this name".to_owned())
}

fn no_number() -> Answer {
    Answer::Error("ERR value is not an integer or out of range".to_owned())
}

/// Of what the library sends.
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
