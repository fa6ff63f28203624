//! Model of the scripts of semaphores, permits and latches.

use super::{Answer, Result, Store, Which, count, exact, integer, overflow};

impl Store {
    /// Runs a script of a semaphore, a permit or a latch.
    pub(super) fn run_of_many(&mut self, which: Which, key: &str, args: &[&str]) -> Result<Option<Answer>> {
        let answer = match (which, args) {
            (Which::SemaphoreAcquire, &[lease, holder, count, tag]) => {
                self.semaphore_acquire(key, lease, holder, count, tag)
            }
            (Which::SemaphoreRelease, &[channel, holder, count, verb, tag]) => {
                self.semaphore_release(key, [verb, channel], holder, count, tag)
            }
            (Which::PermitAcquire, &[lease, first, count, tag, channel, verb]) => {
                let permits = following(first, count)?;
                self.permit_acquire(key, lease, &permits, tag, [verb, channel])
            }
            (Which::PermitRelease, &[channel, permit, "0", verb, tag]) => {
                self.permit_release(key, [verb, channel], permit, tag)
            }
            (Which::CountPermits, &[tag]) => self.count_permits(key, tag),
            (Which::LookAtLatch, &[tag]) => self.look_at_latch(key, tag),
            (_, &[channel, tag, place, serial, memory, verb, ref more @ ..]) => {
                return self.once(which, key, [verb, channel], tag, [place, serial, memory], more);
            }
            _ => return Ok(None),
        };
        answer.map(Some)
    }

    /// Returns the number of free permits, including permits whose leases have ended, and the number of taken permits.
    pub fn permits(&self, key: &str, tag: &str) -> (i64, i64) {
        let leases = leases(tag);
        let ends = self.ends(&leases).unwrap_or_default();
        let (ended, living): (Vec<_>, Vec<_>) = ends.into_iter().partition(|ends| *ends <= self.millis());
        let free = self.number(key).ok().flatten().unwrap_or_default();
        let had = self.counted(|key| key.contains(HAS));
        (free.saturating_add(count(ended.into_iter())), had.saturating_add(count(living.into_iter())))
    }

    /// Returns the number of permits that the holders of the matching keys have.
    fn counted(&self, is_one: impl Fn(&str) -> bool) -> i64 {
        let has = self.keys.iter().filter(|(key, _)| is_one(key)).filter_map(|(_, has)| has.text.as_deref());
        // A text that is not a number does not count.
        has.filter_map(|text| integer(text).ok()).fold(0, i64::saturating_add)
    }

    /// Returns true if the lease of the permit runs. `permit` is its text as sent or as displayed.
    pub fn has_permit(&self, tag: &str, permit: &str) -> bool {
        let is_it = |id: &str| id == permit || super::hexadecimal(id.as_bytes()) == permit;
        let leases = self.fields(&leases(tag));
        leases.iter().any(|(id, ends)| is_it(id) && integer(ends).is_ok_and(|ends| ends > self.millis()))
    }

    /// Runs a request that takes effect once. A retry gets the recorded reply.
    fn once(
        &mut self,
        which: Which,
        key: &str,
        [verb, channel]: [&str; 2],
        tag: &str,
        [place, serial, memory]: [&str; 3],
        more: &[&str],
    ) -> Result<Option<Answer>> {
        let request = format!("{tag}:wheellock_request:{place}");
        let known = self.text(&request).and_then(|text| text.split_once(' '));
        // Other clients may have written there, so their text does not count as a record.
        let known = known.and_then(|(known, answer)| Some((integer(known).ok()?, integer(answer).ok()?)));
        let (number, memory) = (integer(serial)?, integer(memory)?);
        if let Some((known, answer)) = known
            && known >= number
        {
            return Ok(Some(Answer::Integer(answer)));
        }
        let tell = [verb, channel];
        let answered = match (which, more) {
            (Which::SetPermits, &[permits]) => self.set_once(key, tell, permits, permits),
            (Which::SetLatch, &[count]) => self.set_once(key, tell, count, "1"),
            (Which::AddPermits, &[permits]) => self.add_permits(key, tell, integer(permits)?),
            (Which::Drain, &[]) => self.drain(key),
            (Which::ChangePermits, &[permits]) => self.change_permits(key, tell, integer(permits)?, tag),
            (Which::GiveBack, &[permit]) => self.give_back(key, tell, permit, tag),
            (Which::GiveBackMany, &[permits]) => self.give_back_many(key, tell, permits, tag),
            (Which::CountDown, &[]) => self.count_down(key, tell, tag),
            (Which::DeleteLatch, &[]) => Ok(self.delete_latch(key, tell, tag)),
            (Which::Announce, &[said]) => self.announce(key, verb, tag, said),
            _ => return Ok(None),
        };
        let answered = answered?;
        self.note(which, key, place, Some(serial));
        self.set_text(&request, &format!("{serial} {answered}"), Some(memory));
        Ok(Some(Answer::Integer(answered)))
    }

    /// Takes all permits from their holders. Returns true if any was taken.
    pub(super) fn take_back_all(&mut self, key: &str, tag: &str) -> bool {
        let leases = leases(tag);
        let leased = count(self.fields(&leases).into_iter());
        self.keys.remove(&leases);
        let begins = has(tag, "");
        let taken = self.counted(|key| key.starts_with(&begins)).saturating_add(leased);
        self.keys.retain(|key, _| !key.starts_with(&begins));
        if matches!(self.number(key), Ok(Some(_))) {
            // If the sum overflows, the number of free permits stays as before.
            let _more = self.increase(key, taken);
        }
        taken > 0
    }

    fn semaphore_acquire(&mut self, key: &str, lease: &str, holder: &str, count: &str, tag: &str) -> Result {
        let (lease, wanted) = (integer(lease)?, integer(count)?);
        let free = self.number(key)?.unwrap_or_default();
        let has = has(tag, holder);
        if let Some(had) = self.text(&has) {
            if had != count {
                self.note(Which::SemaphoreAcquire, key, holder, None);
                return Ok(Answer::Integer(-1));
            }
            self.pexpire(&has, lease);
            self.note(Which::SemaphoreAcquire, key, holder, Some(count));
            return Ok(two(2, free));
        }
        if free < wanted {
            self.note(Which::SemaphoreAcquire, key, holder, None);
            return Ok(Answer::Integer(-1));
        }
        let free = self.increase(key, -wanted)?;
        self.set_text(&has, count, Some(lease));
        self.note(Which::SemaphoreAcquire, key, holder, Some(count));
        Ok(two(1, free))
    }

    fn semaphore_release(
        &mut self,
        key: &str,
        tell: [&str; 2],
        holder: &str,
        count: &str,
        tag: &str,
    ) -> Result {
        let left = integer(count)?;
        self.note(Which::SemaphoreRelease, key, holder, Some(count));
        let has = has(tag, holder);
        let had = self.had(&has)?;
        // A retry of a partial release whose reply was lost.
        if had == left && had > 0 {
            return Ok(Answer::Integer(1));
        }
        if had <= left {
            // The acquire that this release takes back may still arrive on a broken connection. The record of 0 refuses
            // it.
            if had == 0 && left == 0 {
                self.set_text(&has, "0", Some(60_000));
            }
            return Ok(Answer::Nil);
        }
        let exists = self.keys.contains_key(key);
        let free = exists.then(|| self.increase(key, had - left));
        if left > 0 {
            self.keys.entry(has).or_default().text = Some(count.to_owned());
        } else {
            self.keys.remove(&has);
        }
        let Some(Ok(free)) = free else { return Ok(Answer::Nil) };
        self.tell_of(free, tell);
        Ok(Answer::Integer(1))
    }

    /// Returns the number of permits recorded under the key.
    fn had(&self, has: &str) -> Result<i64> {
        self.text(has).map_or(Ok(0), integer)
    }

    /// Renews semaphores, each with a lease, a holder and a tag.
    pub(super) fn semaphore_renew(&mut self, keys: &[&str], args: &[[&str; 3]]) -> Result {
        let mut answers = Vec::new();
        for (key, &[lease, holder, tag]) in keys.iter().zip(args) {
            let has = has(tag, holder);
            // Only the number 0 means that the permits were released.
            let knows = self.text(&has).is_some_and(|had| integer(had) != Ok(0));
            if lease == "0" {
                answers.push(Answer::Integer(if knows { self.left(&has) } else { 0 }));
                continue;
            }
            if knows {
                self.pexpire(&has, integer(lease)?);
            }
            self.note(Which::SemaphoreRenew, key, holder, None);
            answers.push(Answer::flag(knows));
        }
        Ok(self.renewed(answers))
    }

    fn set_once(&mut self, key: &str, [verb, channel]: [&str; 2], to: &str, text: &str) -> Result<i64> {
        if self.keys.contains_key(key) {
            return Ok(0);
        }
        let number = integer(to)?;
        self.set_text(key, to, None);
        if number > 0 {
            self.publish([verb, channel, text]);
        }
        Ok(1)
    }

    fn add_permits(&mut self, key: &str, tell: [&str; 2], permits: i64) -> Result<i64> {
        self.number(key)?;
        let free = self.increase(key, permits)?;
        if permits > 0 {
            self.tell_of(free, tell);
        }
        Ok(free)
    }

    fn drain(&mut self, key: &str) -> Result<i64> {
        let free = exact(self.number(key)?.unwrap_or_default())?;
        if free > 0 {
            self.increase(key, -free)?;
        }
        Ok(free.max(0))
    }

    fn permit_acquire(
        &mut self,
        key: &str,
        lease: &str,
        permits: &[String],
        tag: &str,
        tell: [&str; 2],
    ) -> Result {
        let lease = integer(lease)?;
        let free = self.number(key)?.unwrap_or_default();
        let leases = leases(tag);
        let taken = |store: &Self| permits.iter().filter(|permit| store.held_by(&leases, permit)).count();
        let before = taken(self);
        // A retry of an acquire whose reply was lost. Its lease counts from the request with the reply.
        if before == permits.len() {
            self.take_permits(key, &leases, permits, lease);
            return Ok(two(2, free.max(0)));
        }
        let ended = self.reap(key, &leases)?;
        let free = free.checked_add(ended).ok_or_else(overflow)?;
        let wanted = count(permits.iter());
        // If only a part of these permits is left, the others were released or have expired since. Then this request
        // came late.
        if free < wanted || before > 0 && taken(self) > 0 {
            permits.iter().for_each(|permit| self.note(Which::PermitAcquire, key, permit, None));
            if ended > 0 {
                self.tell_of(free, tell);
            }
            let first = self.ends(&leases)?.into_iter().min().filter(|ends| *ends < FOR_EVER);
            return Ok(Answer::Integer(first.map_or(-1, |ends| (ends - self.millis()).max(0))));
        }
        self.increase(key, -wanted)?;
        self.take_permits(key, &leases, permits, lease);
        let left = self.pttl(key);
        if left > 0 {
            self.pexpire(&leases, left);
        }
        if ended > 0 {
            self.tell_of(free - wanted, tell);
        }
        Ok(two(1, free - wanted))
    }

    fn take_permits(&mut self, key: &str, leases: &str, permits: &[String], lease: i64) {
        let ends = (self.millis() + lease).to_string();
        for permit in permits {
            self.set_count(leases, permit, &ends);
            self.note(Which::PermitAcquire, key, permit, Some("1"));
        }
    }

    fn permit_release(&mut self, key: &str, tell: [&str; 2], permit: &str, tag: &str) -> Result {
        self.note(Which::PermitRelease, key, permit, Some("0"));
        let ends = self.field(&leases(tag), permit).map(|ends| integer(&ends)).transpose()?;
        if !self.forget_permit(&leases(tag), permit) {
            return Ok(Answer::Nil);
        }
        // A deleted semaphore gets no permits back.
        if let Ok(Some(_)) = self.number(key)
            && let Ok(free) = self.increase(key, 1)
        {
            self.tell_of(free, tell);
        }
        let has_ended = ends.is_none_or(|ends| ends <= self.millis());
        Ok(if has_ended { Answer::Nil } else { Answer::Integer(1) })
    }

    /// Renews permits, each with a lease, the permit and its semaphore. The keys are those of the leases.
    pub(super) fn permit_renew(&mut self, keys: &[&str], args: &[[&str; 3]]) -> Result {
        let mut answers = Vec::new();
        for (&leases, &[lease, permit, key]) in keys.iter().zip(args) {
            let lease = integer(lease)?;
            // A field without a number is other data. A real server finds no lease there.
            let ends = self.field(leases, permit).and_then(|ends| integer(&ends).ok());
            let left = ends.map_or(0, |ends| ends - self.millis());
            if lease > 0 {
                self.note(Which::PermitRenew, key, permit, None);
            }
            if left > 0 && lease > left {
                self.set_count(leases, permit, &(self.millis() + lease).to_string());
            }
            let answer = if lease > 0 { left.clamp(0, 1) } else { left.max(0) };
            answers.push(Answer::Integer(answer));
        }
        Ok(self.renewed(answers))
    }

    fn count_permits(&self, key: &str, tag: &str) -> Result {
        let free = self.number(key)?.unwrap_or_default();
        let ends = self.ends(&leases(tag))?;
        let ended = count(ends.iter().filter(|ends| **ends <= self.millis()));
        Ok(two(free.checked_add(ended).ok_or_else(overflow)?, count(ends.iter()) - ended))
    }

    fn change_permits(&mut self, key: &str, tell: [&str; 2], permits: i64, tag: &str) -> Result<i64> {
        let leases = leases(tag);
        let free = exact(self.number(key)?.unwrap_or_default())?;
        let taken = count(self.ends(&leases)?.iter());
        let free = self.increase(key, permits - free - taken)?;
        let free = free + self.reap(key, &leases)?;
        self.tell_of(free, tell);
        Ok(free)
    }

    fn give_back(&mut self, key: &str, tell: [&str; 2], permit: &str, tag: &str) -> Result<i64> {
        self.number(key)?;
        self.no_text(&leases(tag))?;
        let Some(ends) = self.field(&leases(tag), permit) else { return Ok(0) };
        let ends = integer(&ends)?;
        self.forget_permit(&leases(tag), permit);
        let free = self.increase(key, 1)?;
        self.tell_of(free, tell);
        Ok(i64::from(ends > self.millis()))
    }

    fn give_back_many(&mut self, key: &str, tell: [&str; 2], permits: &str, tag: &str) -> Result<i64> {
        self.number(key)?;
        let leases = leases(tag);
        self.no_text(&leases)?;
        let permits = bytes_of(permits);
        let permits: Vec<_> = permits.chunks(ID).map(super::text_of).collect();
        for permit in &permits {
            let ends = self.field(&leases, permit).map(|ends| integer(&ends)).transpose()?;
            if ends.is_none_or(|ends| ends <= self.millis()) {
                return Ok(0);
            }
        }
        let given_back = count(permits.iter().filter(|permit| self.forget_permit(&leases, permit)));
        let free = self.increase(key, given_back)?;
        self.tell_of(free, tell);
        Ok(1)
    }

    fn look_at_latch(&self, key: &str, tag: &str) -> Result {
        let ended = self.text(&ended(tag)).unwrap_or("0").to_owned();
        let count = self.number(key)?.unwrap_or_default();
        Ok(Answer::Array(vec![Answer::Integer(count), Answer::Bulk(ended)]))
    }

    /// Returns a latch's remaining count, and when the last latch of this name opened, in microseconds since 1970.
    pub fn latch(&self, key: &str, tag: &str) -> (u64, u64) {
        let number = |key: &str| self.text(key).and_then(|text| text.parse().ok()).unwrap_or_default();
        (number(key), number(&ended(tag)))
    }

    fn count_down(&mut self, key: &str, tell: [&str; 2], tag: &str) -> Result<i64> {
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
        let before = self.text(&ended(tag)).and_then(|text| integer(text).ok()).unwrap_or_default();
        let now = self.micros().max(before + 1);
        self.set_text(&ended(tag), &now.to_string(), Some(A_DAY));
        self.free(key, tell);
    }

    /// Frees permits whose leases have ended, the earliest first. Returns their number.
    fn reap(&mut self, key: &str, leases: &str) -> Result<i64> {
        let mut ended: Vec<_> = self.ends(leases)?.into_iter().zip(self.fields(leases)).collect();
        ended.retain(|(ends, _)| *ends <= self.millis());
        ended.sort();
        ended.truncate(MOST_REAPED);
        for (_, (permit, _)) in &ended {
            self.forget_permit(leases, permit);
        }
        let ended = count(ended.into_iter());
        if ended > 0 {
            self.increase(key, ended)?;
        }
        Ok(ended)
    }

    pub(super) fn ends(&self, leases: &str) -> Result<Vec<i64>> {
        self.no_text(leases)?;
        self.fields(leases).into_iter().map(|(_, ends)| integer(&ends)).collect()
    }

    /// Removes a permit, and returns true if it existed. The last permit removes the key.
    fn forget_permit(&mut self, leases: &str, permit: &str) -> bool {
        let known = self.held_by(leases, permit);
        self.forget(leases, permit);
        if self.fields(leases).is_empty() {
            self.keys.remove(leases);
        }
        known
    }

    /// Runs `INCRBY`, which keeps the key's lease.
    pub(super) fn increase(&mut self, key: &str, by: i64) -> Result<i64> {
        let sum = self.number(key)?.unwrap_or_default().checked_add(by).ok_or_else(overflow)?;
        self.keys.entry(key.to_owned()).or_default().text = Some(sum.to_string());
        Ok(sum)
    }

    fn tell_of(&mut self, free: i64, [verb, channel]: [&str; 2]) {
        if free > 0 {
            self.publish([verb, channel, &free.to_string()]);
        }
    }
}

/// Returns the texts of `count` permits, of which `first` is the first.
fn following(first: &str, count: &str) -> Result<Vec<String>> {
    // The library never requests more.
    let count = u16::try_from(integer(count)?).map_err(|_| overflow())?;
    let (mut permits, mut id) = (vec![first.to_owned()], bytes_of(first));
    for _ in 1..count {
        for byte in id.iter_mut().rev() {
            *byte = byte.wrapping_add(1);
            if *byte > 0 {
                break;
            }
        }
        permits.push(super::text_of(&id).into_owned());
    }
    Ok(permits)
}

/// Returns the bytes of permits' ids, which are usually not text.
fn bytes_of(permits: &str) -> Vec<u8> {
    let digits: Option<Vec<u8>> =
        permits.chars().map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
    match digits {
        Some(digits) if digits.len().is_multiple_of(2 * ID) => {
            digits.chunks(2).map(|digits| digits.iter().fold(0, |byte, digit| byte << 4 | digit)).collect()
        }
        _ => permits.as_bytes().to_vec(),
    }
}

fn two(one: i64, other: i64) -> Answer {
    Answer::Array(vec![Answer::Integer(one), Answer::Integer(other)])
}

/// Returns the key of a holder's permits of a counted semaphore.
fn has(tag: &str, holder: &str) -> String {
    format!("{tag}{HAS}{holder}")
}

/// Returns the key of the leases of a semaphore's permits. A real server has a sorted set.
pub(super) fn leases(tag: &str) -> String {
    format!("{tag}:timeout")
}

/// Returns the key of the time at which the last latch of a name opened.
fn ended(tag: &str) -> String {
    format!("{tag}:wheellock_latch")
}

pub(super) fn is_companion(key: &str) -> bool {
    let ends = key.ends_with(":timeout") || key.ends_with(":wheellock_latch");
    ends || key.contains(HAS) || key.contains(":wheellock_request:")
}

/// Length of a permit's id, in bytes.
const ID: usize = 16;
const HAS: &str = ":wheellock_permits:";
/// Time for which the opening of a latch is recorded, in milliseconds.
const A_DAY: i64 = 86_400_000;
/// Most permits that a single script frees.
const MOST_REAPED: usize = 1000;
/// Deadline from which on a permit never expires.
const FOR_EVER: i64 = 922_337_203_685_477;
