//! What the scripts of semaphores, permits with leases and latches mean: the store's part for what is counted.

use super::{Answer, Key, Store, Which, integer};

impl Store {
    /// Runs a script about what many may have.
    pub(super) fn run_of_many(&mut self, which: Which, key: &str, args: &[&str]) -> Option<Answer> {
        Some(match (which, args) {
            (Which::SemaphoreAcquire, &[lease, holder, count, tag]) => {
                self.semaphore_acquire(key, lease, holder, count, tag)
            }
            (Which::SemaphoreRelease, &[channel, holder, count, verb, tag]) => {
                self.semaphore_release(key, [verb, channel], holder, count, tag)
            }
            (Which::PermitAcquire, &[lease, permit, _, tag, channel, verb]) => {
                self.permit_acquire(key, lease, permit, tag, [verb, channel])
            }
            (Which::PermitRelease, &[channel, permit, "0", verb, tag]) => {
                self.permit_release(key, [verb, channel], permit, tag)
            }
            (Which::CountPermits, &[tag]) => self.count_permits(key, tag),
            (Which::LookAtLatch, &[tag]) => self.look_at_latch(key, tag),
            (_, &[channel, tag, place, serial, memory, verb, ref more @ ..]) => {
                self.once(which, key, [verb, channel], tag, [place, serial, memory], more)?
            }
            _ => return None,
        })
    }

    /// How many permits are free, those included whose leases have ended, and how many holders have.
    pub fn permits(&self, key: &str, tag: &str) -> (i64, i64) {
        let leases = leases(tag);
        let (ended, living): (Vec<_>, Vec<_>) = self.ends(&leases).partition(|ends| *ends <= self.millis());
        let free = self.number(key).ok().flatten().unwrap_or_default();
        let has = self.keys.iter().filter(|(key, _)| key.contains(HAS));
        let had: i64 = has.filter_map(|(_, has)| has.text.as_deref()).map(integer).sum();
        (free + count(ended.into_iter()), had + count(living.into_iter()))
    }

    /// Whether the lease of the permit runs that has this text, on the wire or for people.
    pub fn has_permit(&self, tag: &str, permit: &str) -> bool {
        let is_it = |id: &str| id == permit || super::hexadecimal(id.as_bytes()) == permit;
        let leases = self.fields(&leases(tag));
        leases.iter().any(|(id, ends)| is_it(id) && integer(ends) > self.millis())
    }

    /// A request that takes effect once: a repetition is answered from memory.
    fn once(
        &mut self,
        which: Which,
        key: &str,
        tell: [&str; 2],
        tag: &str,
        [place, serial, memory]: [&str; 3],
        more: &[&str],
    ) -> Option<Answer> {
        let request = format!("{tag}:wheellock_request:{place}");
        let known = self.text(&request).and_then(|text| text.split_once(' '));
        if let Some((known, answer)) = known
            && integer(known) >= integer(serial)
        {
            return Some(Answer::Integer(integer(answer)));
        }
        let answered = match (which, more) {
            (Which::SetPermits, &[permits]) => self.set_once(key, tell, permits, permits),
            (Which::SetLatch, &[count]) => self.set_once(key, tell, count, "1"),
            (Which::AddPermits, &[permits]) => self.add_permits(key, tell, integer(permits)),
            (Which::Drain, &[]) => self.drain(key),
            (Which::ChangePermits, &[permits]) => self.change_permits(key, tell, integer(permits), tag),
            (Which::GiveBack, &[permit]) => self.give_back(key, tell, permit, tag),
            (Which::CountDown, &[]) => self.count_down(key, tell, tag),
            (Which::DeleteLatch, &[]) => Ok(self.delete_latch(key, tell, tag)),
            (Which::Announce, &[said]) => self.announce(key, tell[0], tag, said),
            _ => return None,
        };
        Some(match answered {
            Ok(number) => {
                self.note(which, key, place, Some(serial));
                self.set_text(&request, &format!("{serial} {number}"), Some(integer(memory)));
                Answer::Integer(number)
            }
            Err(error) => error,
        })
    }

    /// Takes all permits from those who have them. Returns whether anybody had one.
    pub(super) fn take_back_all(&mut self, key: &str, tag: &str) -> bool {
        let leases = leases(tag);
        let leased = count(self.fields(&leases).into_iter());
        self.keys.remove(&leases);
        let begins = has(tag, "");
        let counted = self.keys.iter().filter(|(key, _)| key.starts_with(&begins));
        let counted: i64 = counted.filter_map(|(_, has)| has.text.as_deref()).map(integer).sum();
        self.keys.retain(|key, _| !key.starts_with(&begins));
        if matches!(self.number(key), Ok(Some(_))) {
            self.increase(key, leased + counted).expect("a number");
        }
        leased + counted > 0
    }

    fn semaphore_acquire(&mut self, key: &str, lease: &str, holder: &str, count: &str, tag: &str) -> Answer {
        let free = match self.number(key) {
            Ok(free) => free.unwrap_or_default(),
            Err(error) => return error,
        };
        let has = has(tag, holder);
        if let Some(had) = self.text(&has) {
            if had != count {
                self.note(Which::SemaphoreAcquire, key, holder, None);
                return Answer::Integer(-1);
            }
            self.pexpire(&has, integer(lease));
            self.note(Which::SemaphoreAcquire, key, holder, Some(count));
            return two(2, free);
        }
        if free < integer(count) {
            self.note(Which::SemaphoreAcquire, key, holder, None);
            return Answer::Integer(-1);
        }
        let free = self.increase(key, -integer(count)).expect("a number");
        self.set_text(&has, count, Some(integer(lease)));
        self.note(Which::SemaphoreAcquire, key, holder, Some(count));
        two(1, free)
    }

    fn semaphore_release(
        &mut self,
        key: &str,
        tell: [&str; 2],
        holder: &str,
        count: &str,
        tag: &str,
    ) -> Answer {
        self.note(Which::SemaphoreRelease, key, holder, Some(count));
        let has = has(tag, holder);
        let had = self.text(&has).map_or(0, integer);
        if had == integer(count) && had > 0 {
            return Answer::Integer(1);
        }
        if had <= integer(count) {
            if had == 0 && integer(count) == 0 {
                self.set_text(&has, "0", Some(60_000));
            }
            return Answer::Nil;
        }
        let exists = self.keys.contains_key(key);
        let free = exists.then(|| self.increase(key, had - integer(count)));
        if integer(count) > 0 {
            self.keys.entry(has).or_default().text = Some(count.to_owned());
        } else {
            self.keys.remove(&has);
        }
        let Some(Ok(free)) = free else { return Answer::Nil };
        self.tell_of(free, tell);
        Answer::Integer(1)
    }

    pub(super) fn semaphore_renew(&mut self, keys: &[&str], args: &[&str]) -> Answer {
        assert_eq!(args.len(), 3 * keys.len(), "a lease, a holder and a tag for each semaphore");
        let mut answers = Vec::new();
        for (key, args) in keys.iter().zip(args.chunks(3)) {
            let (lease, holder, has) = (args[0], args[1], has(args[2], args[1]));
            let knows = self.text(&has).map_or(0, integer) != 0;
            if lease == "0" {
                answers.push(Answer::Integer(if knows { self.left(&has) } else { 0 }));
                continue;
            }
            if knows {
                self.pexpire(&has, integer(lease));
            }
            self.note(Which::SemaphoreRenew, key, holder, None);
            answers.push(Answer::flag(knows));
        }
        self.renewed(answers)
    }

    fn set_once(
        &mut self,
        key: &str,
        [verb, channel]: [&str; 2],
        to: &str,
        text: &str,
    ) -> Result<i64, Answer> {
        if self.keys.contains_key(key) {
            return Ok(0);
        }
        self.set_text(key, to, None);
        if integer(to) > 0 {
            self.publish([verb, channel, text]);
        }
        Ok(1)
    }

    fn add_permits(&mut self, key: &str, tell: [&str; 2], permits: i64) -> Result<i64, Answer> {
        self.number(key)?;
        let free = self.increase(key, permits)?;
        if permits > 0 {
            self.tell_of(free, tell);
        }
        Ok(free)
    }

    fn drain(&mut self, key: &str) -> Result<i64, Answer> {
        let free = self.number(key)?.unwrap_or_default();
        if free > 0 {
            self.increase(key, -free)?;
        }
        Ok(free.max(0))
    }

    fn permit_acquire(&mut self, key: &str, lease: &str, permit: &str, tag: &str, tell: [&str; 2]) -> Answer {
        let free = match self.number(key) {
            Ok(free) => free.unwrap_or_default(),
            Err(error) => return error,
        };
        let leases = leases(tag);
        if self.held_by(&leases, permit) {
            self.note(Which::PermitAcquire, key, permit, Some("1"));
            return two(2, free.max(0));
        }
        let ended = self.reap(key, &leases);
        let free = free + ended;
        if free < 1 {
            self.note(Which::PermitAcquire, key, permit, None);
            let first = self.ends(&leases).min().filter(|ends| *ends < FOR_EVER);
            return Answer::Integer(first.map_or(-1, |ends| ends - self.millis()));
        }
        self.increase(key, -1).expect("a number");
        self.set_count(&leases, permit, &(self.millis() + integer(lease)).to_string());
        let left = self.pttl(key);
        if left > 0 {
            self.pexpire(&leases, left);
        }
        if ended > 0 {
            self.tell_of(free - 1, tell);
        }
        self.note(Which::PermitAcquire, key, permit, Some("1"));
        two(1, free - 1)
    }

    fn permit_release(&mut self, key: &str, tell: [&str; 2], permit: &str, tag: &str) -> Answer {
        self.note(Which::PermitRelease, key, permit, Some("0"));
        if !self.forget_permit(&leases(tag), permit) {
            return Answer::Nil;
        }
        // To a semaphore that was deleted nothing is given back.
        if let Ok(Some(_)) = self.number(key)
            && let Ok(free) = self.increase(key, 1)
        {
            self.tell_of(free, tell);
        }
        Answer::Integer(1)
    }

    pub(super) fn permit_renew(&mut self, keys: &[&str], args: &[&str]) -> Answer {
        assert_eq!(args.len(), 3 * keys.len(), "a lease, a permit and a tag for each semaphore");
        let mut answers = Vec::new();
        for (key, args) in keys.iter().zip(args.chunks(3)) {
            let (lease, permit, leases) = (integer(args[0]), args[1], leases(args[2]));
            let left = self.field(&leases, permit).map_or(0, |ends| integer(&ends) - self.millis());
            if lease > 0 {
                self.note(Which::PermitRenew, key, permit, None);
            }
            if left > 0 && lease > left {
                self.set_count(&leases, permit, &(self.millis() + lease).to_string());
            }
            let answer = if lease > 0 { left.clamp(0, 1) } else { left.max(0) };
            answers.push(Answer::Integer(answer));
        }
        self.renewed(answers)
    }

    fn count_permits(&self, key: &str, tag: &str) -> Answer {
        let leases = leases(tag);
        let ended = count(self.ends(&leases).filter(|ends| *ends <= self.millis()));
        match self.number(key) {
            Ok(free) => two(free.unwrap_or_default() + ended, count(self.ends(&leases)) - ended),
            Err(error) => error,
        }
    }

    fn change_permits(&mut self, key: &str, tell: [&str; 2], permits: i64, tag: &str) -> Result<i64, Answer> {
        let leases = leases(tag);
        let free = self.number(key)?.unwrap_or_default();
        let free = self.increase(key, permits - free - count(self.ends(&leases)))?;
        let free = free + self.reap(key, &leases);
        self.tell_of(free, tell);
        Ok(free)
    }

    fn give_back(&mut self, key: &str, tell: [&str; 2], permit: &str, tag: &str) -> Result<i64, Answer> {
        self.number(key)?;
        let Some(ends) = self.field(&leases(tag), permit) else { return Ok(0) };
        self.forget_permit(&leases(tag), permit);
        let free = self.increase(key, 1)?;
        self.tell_of(free, tell);
        Ok(i64::from(integer(&ends) > self.millis()))
    }

    fn look_at_latch(&self, key: &str, tag: &str) -> Answer {
        let ended = self.text(&ended(tag)).unwrap_or("0").to_owned();
        match self.number(key) {
            Ok(count) => Answer::Array(vec![Answer::Integer(count.unwrap_or_default()), Answer::Bulk(ended)]),
            Err(error) => error,
        }
    }

    fn count_down(&mut self, key: &str, tell: [&str; 2], tag: &str) -> Result<i64, Answer> {
        match self.number(key)? {
            None => Ok(0),
            Some(2..) => self.increase(key, -1),
            Some(_) => {
                self.end_latch(key, tell, tag);
                Ok(0)
            }
        }
    }

    fn delete_latch(&mut self, key: &str, tell: [&str; 2], tag: &str) -> i64 {
        let exists = self.keys.contains_key(key);
        if exists {
            self.end_latch(key, tell, tag);
        }
        i64::from(exists)
    }

    fn end_latch(&mut self, key: &str, tell: [&str; 2], tag: &str) {
        let micros = self.now * 1000;
        self.set_text(&ended(tag), &format!("{}{:06}", micros / 1_000_000, micros % 1_000_000), Some(A_DAY));
        self.free(key, tell);
    }

    /// Gives the permits back whose leases have ended; returns how many.
    fn reap(&mut self, key: &str, leases: &str) -> i64 {
        let now = self.millis();
        let ended = self.fields(leases).into_iter().filter(|(_, ends)| integer(ends) <= now);
        let ended: Vec<_> = ended.collect();
        assert!(ended.len() <= 1000, "so many are never reaped at once");
        for (permit, _) in &ended {
            self.forget_permit(leases, permit);
        }
        let ended = count(ended.into_iter());
        if ended > 0 {
            self.increase(key, ended).expect("a number");
        }
        ended
    }

    fn ends(&self, leases: &str) -> impl Iterator<Item = i64> {
        self.fields(leases).into_iter().map(|(_, ends)| integer(&ends))
    }

    /// Returns whether there was one. The last one takes the key with it.
    fn forget_permit(&mut self, leases: &str, permit: &str) -> bool {
        let known = self.held_by(leases, permit);
        self.forget(leases, permit);
        if self.fields(leases).is_empty() {
            self.keys.remove(leases);
        }
        known
    }

    /// The number under a key; `None` if there is nothing.
    fn number(&self, key: &str) -> Result<Option<i64>, Answer> {
        let Some(Key { text, .. }) = self.keys.get(key) else { return Ok(None) };
        match text.as_deref().map(str::parse) {
            Some(Ok(number)) => Ok(Some(number)),
            _ => Err(Answer::Error("WRONGTYPE what is under this name is no number".to_owned())),
        }
    }

    /// INCRBY: what is there keeps its lease.
    fn increase(&mut self, key: &str, by: i64) -> Result<i64, Answer> {
        let Some(sum) = self.number(key)?.unwrap_or_default().checked_add(by) else {
            return Err(Answer::Error("ERR increment or decrement would overflow".to_owned()));
        };
        self.keys.entry(key.to_owned()).or_default().text = Some(sum.to_string());
        Ok(sum)
    }

    fn tell_of(&mut self, free: i64, [verb, channel]: [&str; 2]) {
        if free > 0 {
            self.publish([verb, channel, &free.to_string()]);
        }
    }

    fn millis(&self) -> i64 {
        i64::try_from(self.now).expect("a time")
    }
}

fn two(one: i64, other: i64) -> Answer {
    Answer::Array(vec![Answer::Integer(one), Answer::Integer(other)])
}

fn count<T>(all: impl Iterator<Item = T>) -> i64 {
    i64::try_from(all.count()).expect("few")
}

/// What a holder has of a counted semaphore.
fn has(tag: &str, holder: &str) -> String {
    format!("{tag}{HAS}{holder}")
}

/// When the leases of a semaphore's permits end. The server has a sorted set.
fn leases(tag: &str) -> String {
    format!("{tag}:timeout")
}

/// When the last latch of a name has ended.
fn ended(tag: &str) -> String {
    format!("{tag}:wheellock_latch")
}

pub(super) fn is_companion(key: &str) -> bool {
    let ends = key.ends_with(":timeout") || key.ends_with(":wheellock_latch");
    ends || key.contains(HAS) || key.contains(":wheellock_request:")
}

const HAS: &str = ":wheellock_permits:";
/// For how long the end of a latch is remembered, in milliseconds.
const A_DAY: i64 = 86_400_000;
/// From here on a permit has no end.
const FOR_EVER: i64 = 922_337_203_685_477;
