//! Model of the scripts of a fleet: refreshes, the grace after a failover, and reclaims.

use super::{Answer, Result, Store, Which, count, integer, permits, read_write};

impl Store {
    /// Refreshes a process's entry, and drives the grace.
    pub(super) fn refresh(&mut self, [fleet, roster, checked_in]: [&str; 3], args: [&str; 10]) -> Result {
        let [process, longest_text, window_text, replicas, rest @ ..] = args;
        let [is_counted, check_in, may_be_new, of, lacks_entry, entry_lasts] = rest;
        let (longest, window) = (integer(longest_text)?, integer(window_text)?);
        let entry_lasts = integer(entry_lasts)?;
        let now = self.millis();
        [roster, checked_in, fleet].iter().try_for_each(|key| self.no_text(key))?;
        let (incarnation, number, begins) = self.incarnation(fleet, of);
        let has_met = of == incarnation;
        let is_counted = is_counted == "1" && has_met;
        let refreshed = self.field(roster, process).and_then(|time| time.parse::<i64>().ok());
        let is_young = |time: i64| now.saturating_sub(time) <= entry_lasts.saturating_sub(window);
        let was_known = refreshed.is_some_and(is_young);
        let mut era = self.field(fleet, "era");
        let all_follow = self.replicas >= integer(replicas)?;
        let numbers = [("longest", longest), ("window", window), ("replicas", integer(replicas)?)];
        let known = numbers.map(|(field, _)| self.field(fleet, field).and_then(|number| number.parse().ok()));
        let differs = numbers.iter().zip(known).any(|((_, number), known)| known != Some(*number));
        let other = (differs && known[0].is_some()).then(|| known.map(Option::unwrap_or_default));
        if let Some([longest, window, _]) = other
            && era.as_ref() == Some(&incarnation)
            && all_follow
        {
            let lasts = entry_lasts.max(longest.saturating_add(window).saturating_mul(2));
            self.prune(roster, now.saturating_sub(lasts));
        }
        let is_empty = !self.keys.contains_key(roster);
        if let Some(other) = other.filter(|_| !is_empty) {
            return Ok(Answer::Array(other.map(Answer::Integer).to_vec()));
        }
        numbers.iter().for_each(|(field, number)| self.set_count(fleet, field, &number.to_string()));
        if is_empty && era.is_none() && may_be_new == "1" {
            self.set_count(fleet, "era", &incarnation);
            self.set_count(fleet, "number", &number);
            era = Some(incarnation.clone());
        }
        let is_entered = was_known || has_met && lacks_entry == "1";
        if is_entered {
            self.set_count(roster, process, &now.to_string());
        }
        let check_in = if has_met && is_entered { check_in } else { "0" };
        let mut is_over = era.as_ref() == Some(&incarnation);
        let (mut left, mut witness) = (-1, false);
        if !is_over {
            if begins {
                self.begin_grace(fleet, checked_in, [&incarnation, &number]);
            }
            if is_counted && self.field(fleet, "start").is_none() {
                self.set_count(fleet, "start", &now.to_string());
            }
            if check_in != "0" {
                self.set_count(checked_in, process, "");
            }
            if check_in == "2" {
                self.set_count(fleet, "witness", "1");
            }
            witness = self.field(fleet, "witness").is_some();
            if let Some(start) = self.field(fleet, "start") {
                let lasts = longest.saturating_add(window).saturating_mul(101);
                let lasts = lasts / 100 + i64::from(lasts % 100 > 0);
                left = integer(&start)?.saturating_add(lasts).saturating_sub(now).max(0);
            }
        }
        self.set_count(checked_in, "", "");
        let (members, checked) = (self.members(roster), self.members(checked_in) - 1);
        if !is_over && (left == 0 || witness && checked >= members) {
            is_over = true;
            self.set_count(fleet, "era", &incarnation);
            ["grace", "start", "witness"].iter().for_each(|field| self.forget(fleet, field));
        } else if is_over && all_follow {
            self.prune(roster, now.saturating_sub(entry_lasts));
        }
        let connected = self.replicas;
        let numbers = [now, i64::from(is_over), i64::from(was_known), members, checked, left, connected];
        let identity = [self.run_id.clone(), incarnation].map(Answer::Bulk);
        Ok(Answer::Array(identity.into_iter().chain(numbers.map(Answer::Integer)).collect()))
    }

    /// Returns this server's incarnation, its number, and true if its grace begins now. `of` is the last incarnation that a process has met.
    fn incarnation(&self, fleet: &str, of: &str) -> (String, String, bool) {
        let read = |number: &str| number.parse::<u64>().ok();
        let named = |number: u64| format!("{}:{}:{number}", self.run_id, self.replication_id);
        let kept = self.field(fleet, "number").and_then(|number| read(&number));
        let met =
            of.rsplit_once(':').and_then(|(_, number)| read(number)).filter(|number| named(*number) == of);
        let number = kept.max(met).unwrap_or(0);
        let is_in = |field| self.field(fleet, field) == Some(named(number));
        let begins = !is_in("era") && !is_in("grace");
        let number = number + u64::from(begins && self.field(fleet, "era").is_some());
        (named(number), number.to_string(), begins)
    }

    /// Replaces the notes of an earlier grace.
    fn begin_grace(&mut self, fleet: &str, checked_in: &str, [incarnation, number]: [&str; 2]) {
        ["start", "witness"].iter().for_each(|field| self.forget(fleet, field));
        self.set_count(fleet, "grace", incarnation);
        self.set_count(fleet, "number", number);
        self.keys.remove(checked_in);
    }

    /// Removes the entries whose last refresh was at this time or earlier.
    fn prune(&mut self, roster: &str, until: i64) {
        if let Some(entries) = self.keys.get_mut(roster) {
            entries.holders.retain(|(_, time)| time.parse::<i64>().is_ok_and(|time| time > until));
        }
        self.remove_if_empty(roster);
    }

    pub(super) fn leave_fleet(&mut self, keys: [&str; 2], process: &str) -> Result {
        for key in keys {
            self.no_text(key)?;
            self.forget(key, process);
            self.remove_if_empty(key);
        }
        Ok(Answer::Status("OK".to_owned()))
    }

    fn members(&self, key: &str) -> i64 {
        count(self.fields(key).iter())
    }

    fn remove_if_empty(&mut self, key: &str) {
        if self.keys.get(key).is_some_and(|held| held.text.is_none() && held.holders.is_empty()) {
            self.keys.remove(key);
        }
    }

    /// Returns true if the grace is over, false if it is not, and `None` if this server is not the one that the reclaim names.
    fn is_grace_over(&self, fleet: &str, incarnation: &str) -> Result<Option<bool>> {
        self.no_text(fleet)?;
        let is_in = |field: &str| self.field(fleet, field).as_deref() == Some(incarnation);
        Ok(if is_in("era") { Some(true) } else { is_in("grace").then_some(false) })
    }

    /// Returns true if a reclaim has an effect. A reclaim after the end of its hold has no effect. A reclaim takes the place of another
    /// owner only in the grace.
    fn may_reclaim(&self, over: Option<bool>, ends: i64, is_free: bool) -> bool {
        let Some(over) = over else { return false };
        let is_in_time = self.millis() < ends;
        let wins = !over;
        is_in_time && (is_free || wins)
    }

    /// Writes holds of plain locks, each with a lease, a holder, a count and an end.
    pub(super) fn reclaim(&mut self, keys: &[&str], of: [&str; 2], args: &[[&str; 4]]) -> Result {
        let over = self.is_grace_over(of[0], of[1])?;
        let mut answers = Vec::new();
        for (key, args) in keys.iter().zip(args) {
            answers.push(Answer::flag(self.reclaim_one(over, key, *args)?));
        }
        Ok(self.renewed(answers))
    }

    /// Writes holds of fenced locks, each with a lease, a holder, a count, an end, a tag and a token.
    pub(super) fn fenced_reclaim(&mut self, keys: &[&str], of: [&str; 2], args: &[[&str; 6]]) -> Result {
        let over = self.is_grace_over(of[0], of[1])?;
        let mut answers = Vec::new();
        for (key, &[lease, holder, count, ends, tag, token]) in keys.iter().zip(args) {
            let is_written = self.reclaim_one(over, key, [lease, holder, count, ends])?;
            if is_written {
                self.raise_token(tag, integer(token)?);
            }
            answers.push(Answer::flag(is_written));
        }
        Ok(self.renewed(answers))
    }

    fn reclaim_one(&mut self, over: Option<bool>, key: &str, args: [&str; 4]) -> Result<bool> {
        let [lease, holder, count, ends] = args;
        let (lease, ends) = (integer(lease)?, integer(ends)?);
        let (is_held, is_there) = (self.held_by(key, holder), self.keys.contains_key(key));
        let is_lock = self.text(key).is_none();
        let writes = is_lock && self.may_reclaim(over, ends, is_held || !is_there);
        if writes {
            if !is_held {
                self.keys.remove(key);
            }
            self.set_count(key, holder, count);
            if self.pttl(key) < lease {
                self.pexpire(key, lease);
            }
            self.note(Which::Reclaim, key, holder, None);
        }
        Ok(writes)
    }

    /// Writes holds of simple locks, each with a lease, a token, a count and an end.
    pub(super) fn simple_reclaim(&mut self, keys: &[&str], of: [&str; 2], args: &[[&str; 4]]) -> Result {
        let over = self.is_grace_over(of[0], of[1])?;
        let mut answers = Vec::new();
        for (key, &[lease, token, _, ends]) in keys.iter().zip(args) {
            let (lease, ends) = (integer(lease)?, integer(ends)?);
            let is_there = self.keys.contains_key(*key);
            let is_own = self.text(key) == Some(token);
            let is_lock = !is_there || self.text(key).is_some();
            let writes = is_lock && self.may_reclaim(over, ends, is_own || !is_there);
            if writes {
                let lease = if is_own { lease.max(self.pttl(key)) } else { lease };
                if lease <= 0 {
                    return Err(Answer::Error("ERR invalid expire time in 'set' command".to_owned()));
                }
                self.set_text(key, token, Some(lease));
                self.note(Which::SimpleReclaim, key, token, None);
            }
            answers.push(Answer::flag(writes));
        }
        Ok(self.renewed(answers))
    }

    /// Writes holds of read-write locks, each with a lease, a holder, a count, an end and a tag.
    pub(super) fn read_write_reclaim(&mut self, keys: &[&str], of: [&str; 2], args: &[[&str; 5]]) -> Result {
        let over = self.is_grace_over(of[0], of[1])?;
        let mut answers = Vec::new();
        for (key, &[lease, holder, count_text, ends, tag]) in keys.iter().zip(args) {
            let (lease, count, ends) = (integer(lease)?, integer(count_text)?, integer(ends)?);
            let (owner, writes) = match holder.strip_suffix(":write") {
                Some(owner) => (owner, true),
                None => (holder, false),
            };
            let own_write = format!("{owner}:write");
            let excludes = |field: &str| {
                field != "mode"
                    && field != owner
                    && field != own_write
                    && (writes || field.ends_with(":write"))
            };
            let others = self.fields(key).into_iter().map(|(field, _)| field).filter(|field| excludes(field));
            let others: Vec<String> = others.collect();
            let has_writer = writes || self.held_by(key, &own_write);
            let is_lock = self.text(key).is_none();
            let is_written = is_lock && self.may_reclaim(over, ends, others.is_empty());
            if is_written {
                others.iter().for_each(|field| self.forget(key, field));
                self.remove_if_empty(key);
                self.set_count(key, "mode", if has_writer { "write" } else { "read" });
                self.set_count(key, holder, count_text);
                for hold in 1..=if writes { 0 } else { count.min(1000) } {
                    let timeout = read_write::timeout(tag, holder, hold);
                    let lease = lease.max(self.pttl(&timeout));
                    if lease <= 0 {
                        return Err(Answer::Error("ERR invalid expire time in 'set' command".to_owned()));
                    }
                    self.set_text(&timeout, "1", Some(lease));
                }
                if self.pttl(key) < lease {
                    self.pexpire(key, lease);
                }
                self.note(Which::ReadWriteReclaim, key, holder, None);
            }
            answers.push(Answer::flag(is_written));
        }
        Ok(self.renewed(answers))
    }

    /// Writes permits, each with a lease, an id, a count, an end and a tag.
    pub(super) fn permit_reclaim(&mut self, keys: &[&str], of: [&str; 2], args: &[[&str; 5]]) -> Result {
        let over = self.is_grace_over(of[0], of[1])?;
        let mut answers = Vec::new();
        for (key, &[lease, permit, _, ends, tag]) in keys.iter().zip(args) {
            let (leases, ends) = (permits::leases(tag), integer(ends)?);
            let then = self.millis().saturating_add(integer(lease)?);
            let known = self.field(&leases, permit).map(|ends| integer(&ends)).transpose()?;
            let ended =
                self.ends(&leases).map(|all| count(all.iter().filter(|ends| **ends <= self.millis())));
            // Without its number, the total of a semaphore is unknown.
            let free =
                self.number(key).ok().flatten().and_then(|free| Some(free.saturating_add(ended.ok()?)));
            let is_free = known.is_some() || free.is_some_and(|free| free > 0);
            let is_written = free.is_some() && self.may_reclaim(over, ends, is_free);
            if is_written {
                if known.is_none() {
                    self.increase(key, -1)?;
                }
                self.set_count(&leases, permit, &known.unwrap_or_default().max(then).to_string());
                let left = self.pttl(key);
                if known.is_none() && left > 0 {
                    self.pexpire(&leases, left);
                }
                self.note(Which::PermitReclaim, key, permit, None);
            }
            let is_unknown = over.is_some() && free.is_none();
            answers.push(if is_unknown { Answer::Integer(-2) } else { Answer::flag(is_written) });
        }
        Ok(self.renewed(answers))
    }
}
