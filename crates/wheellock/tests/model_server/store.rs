//! What a server keeps of locks, as a value: keys, leases, loaded scripts. Owns what the scripts mean, written down a
//! second time in Rust; knows no connection and reads no clock.
//!
//! `tests/tests/model_server.rs` at the root of the workspace compares it to a real server, call by call.

use std::collections::{BTreeMap, BTreeSet};

use wheellock_client::Script;

/// One server's data, and a log of what its scripts did.
#[derive(Debug, Default)]
pub(crate) struct Store {
    /// The server's clock in milliseconds.
    now: u64,
    keys: BTreeMap<String, Key>,
    loaded: BTreeSet<Which>,
    /// Messages that nobody has taken yet.
    pub(crate) published: Vec<Published>,
    /// What happened to whose hold, in order.
    pub(crate) log: Vec<Executed>,
}

#[derive(Debug, Default)]
struct Key {
    /// Fields and their values, in the order in which they came.
    holders: Vec<(String, String)>,
    /// Gone when the clock has passed this.
    expires: Option<u64>,
}

/// The scripts of the library.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Which {
    Acquire,
    AcquireAll,
    Release,
    Renew,
    ForceRelease,
}

/// A message, as it was sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Published {
    /// PUBLISH or SPUBLISH.
    pub(crate) verb: String,
    pub(crate) channel: String,
    pub(crate) text: String,
}

/// What a script did to one hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Executed {
    pub(crate) script: Which,
    pub(crate) at: u64,
    pub(crate) key: String,
    pub(crate) holder: String,
    /// The holder's count afterwards, for what sets one.
    pub(crate) count: Option<i64>,
}

/// A reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    Nil,
    Status(String),
    Error(String),
    Integer(i64),
    Bulk(String),
    Array(Vec<Self>),
}

impl Which {
    pub(crate) const ALL: [Self; 5] =
        [Self::Acquire, Self::AcquireAll, Self::Release, Self::Renew, Self::ForceRelease];

    /// The very text that the library ships.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Acquire => include_str!("../../src/scripts/acquire.lua"),
            Self::AcquireAll => include_str!("../../src/scripts/acquire_all.lua"),
            Self::Release => include_str!("../../src/scripts/release.lua"),
            Self::Renew => include_str!("../../src/scripts/renew.lua"),
            Self::ForceRelease => include_str!("../../src/scripts/force_release.lua"),
        }
    }

    pub(crate) fn sha(self) -> String {
        Script::variadic(self.text()).sha().to_owned()
    }

    fn by(matches: impl Fn(Self) -> bool) -> Option<Self> {
        Self::ALL.into_iter().find(|which| matches(*which))
    }
}

impl Store {
    /// Moves the clock; what has run out is gone.
    pub(crate) fn set_now(&mut self, now: u64) {
        self.now = now;
        // `keyIsExpired` in db.c: gone once the clock has passed its time, not when it is reached.
        self.keys.retain(|_, key| key.expires.is_none_or(|expires| now <= expires));
    }

    /// Runs one command on the data. `None` if it is no command of this kind.
    pub(crate) fn execute(&mut self, words: &[&str]) -> Option<Answer> {
        Some(match *words {
            ["SCRIPT", "LOAD", text] => match Which::by(|which| which.text() == text) {
                Some(which) => {
                    self.loaded.insert(which);
                    Answer::Bulk(which.sha())
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
            ["DEL", key] => Answer::flag(self.keys.remove(key).is_some()),
            ["PTTL", key] => Answer::Integer(self.pttl(key)),
            ["PEXPIRE", key, millis] => Answer::flag(self.pexpire(key, integer(millis))),
            ["PERSIST", key] => {
                Answer::flag(self.keys.get_mut(key).and_then(|key| key.expires.take()).is_some())
            }
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
            ["HGETALL", key] => {
                let holders = self.keys.get(key).into_iter().flat_map(|key| &key.holders);
                let flat = holders.flat_map(|(holder, count)| [holder, count]);
                Answer::Array(flat.map(|text| Answer::Bulk(text.clone())).collect())
            }
            _ => return None,
        })
    }

    /// Who holds what, and how often.
    pub(crate) fn holds(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.keys.iter().flat_map(|(key, held)| {
            held.holders.iter().map(move |(holder, count)| (key.as_str(), holder.as_str(), count.as_str()))
        })
    }

    /// Runs a script, loaded or not.
    pub(crate) fn run(&mut self, which: Which, keys: &str, params: &[&str]) -> Answer {
        let (keys, args) = params.split_at(keys.parse().expect("a number of keys"));
        match (which, keys, args) {
            (Which::Acquire, &[key], &[lease, holder, count]) => self.acquire(key, lease, holder, count),
            (Which::Release, &[key], &[channel, holder, count, verb]) => {
                self.release(key, [verb, channel], holder, count)
            }
            (Which::AcquireAll, keys, args) => self.acquire_all(keys, args),
            (Which::Renew, keys, args) => self.renew(keys, args),
            (Which::ForceRelease, &[key], &[channel, verb]) => self.force_release(key, [verb, channel]),
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
                self.free(key, tell);
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

    fn free(&mut self, key: &str, [verb, channel]: [&str; 2]) {
        self.keys.remove(key);
        let [verb, channel, text] = [verb, channel, "0"].map(str::to_owned);
        self.published.push(Published { verb, channel, text });
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
        let (at, key, holder) = (self.now, key.to_owned(), holder.to_owned());
        self.log.push(Executed { script, at, key, holder, count: count.map(integer) });
    }
}

impl Answer {
    fn flag(flag: bool) -> Self {
        Self::Integer(i64::from(flag))
    }
}

fn integer(text: &str) -> i64 {
    text.parse().expect("an integer")
}

/// Renewals of a hold that came after its release and before it was taken again.
pub(crate) fn late_renewals(log: &[Executed]) -> Vec<&Executed> {
    let mut released = BTreeSet::new();
    let mut late = Vec::new();
    for executed in log {
        let hold = (executed.key.as_str(), executed.holder.as_str());
        match (executed.script, executed.count) {
            (Which::Release, Some(0)) => _ = released.insert(hold),
            (Which::Acquire, _) => _ = released.remove(&hold),
            (Which::Renew, _) if released.contains(&hold) => late.push(executed),
            _ => {}
        }
    }
    late
}
