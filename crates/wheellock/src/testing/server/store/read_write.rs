//! Model of the scripts of read-write locks.

use super::{Answer, Result, Store, Which, integer, wrong_type};

impl Store {
    pub(super) fn read_acquire(
        &mut self,
        key: &str,
        lease: &str,
        holder: &str,
        count: &str,
        tag: &str,
        heeds: &str,
    ) -> Result {
        let (lease, hold) = (integer(lease)?, integer(count)?);
        let (held, writes) = (self.held_by(key, holder), self.held_by(key, &format!("{holder}:write")));
        let mode = self.field(key, "mode");
        let refused = match mode.as_deref() {
            None if self.keys.contains_key(key) => Some(Err(wrong_type())),
            None | Some("read") => None,
            Some("write") if writes => None,
            Some("write") => Some(Ok(Answer::Integer(self.pttl(key)))),
            Some(_) => Some(Err(wrong_type())),
        };
        let (waits, left) = (self.pttl(&mark(tag)), self.pttl(key));
        // A reader that holds already must not wait for a writer that waits for it.
        let stands_behind = !held && !writes && heeds == "1" && waits != -2;
        let waits = stands_behind.then(|| match mode {
            None => Answer::Array(vec![Answer::Integer(waits)]),
            Some(_) if left >= 0 && (waits < 0 || left < waits) => Answer::Integer(left),
            Some(_) => Answer::Integer(waits),
        });
        if let Some(refused) = refused.or(waits.map(Ok)) {
            self.note(Which::ReadAcquire, key, holder, None);
            return refused;
        }
        if mode.is_none() {
            self.set_count(key, "mode", "read");
        }
        let (count, hold) = if held { (count, hold) } else { ("1", 1) };
        self.set_count(key, holder, count);
        self.set_text(&timeout(tag, holder, hold), "1", Some(lease));
        if self.pttl(key) < lease {
            self.pexpire(key, lease);
        }
        self.note(Which::ReadAcquire, key, holder, Some(count));
        Ok(if held { Answer::Status("AGAIN".to_owned()) } else { Answer::Nil })
    }

    pub(super) fn read_release(
        &mut self,
        key: &str,
        tell: [&str; 2],
        holder: &str,
        count: &str,
        tag: &str,
    ) -> Result {
        let left = integer(count)?;
        self.note(Which::ReadRelease, key, holder, Some(count));
        let mode = self.field(key, "mode");
        let held = self.field(key, holder).and_then(|count| count.parse::<i64>().ok());
        let (Some("read" | "write"), Some(held)) = (mode.as_deref(), held) else { return Ok(Answer::Nil) };
        let is_read = mode.as_deref() == Some("read");
        let (count_text, count) = (count, left);
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
        if is_read && lived >= 0 && longest + 2 >= lived || self.fields(key).len() == 1 {
            let left = self.longest_read_lease(key, tag, Some(lived));
            if left > 0 {
                self.pexpire(key, left);
            } else if count == 0 || is_read {
                self.free(key, tell);
                return Ok(Answer::Integer(1));
            }
        }
        Ok(Answer::flag(count <= 0))
    }

    pub(super) fn write_acquire(
        &mut self,
        key: &str,
        lease: &str,
        holder: &str,
        count: &str,
        tag: &str,
        waits: &str,
    ) -> Result {
        let again = match self.writes_already(Which::WriteAcquire, key, holder, tag, waits)? {
            Ok(again) => again,
            Err(refusal) => return Ok(refusal),
        };
        self.write_hold(Which::WriteAcquire, key, lease, [holder, count], tag, again)?;
        Ok(if again { Answer::Status("AGAIN".to_owned()) } else { Answer::Nil })
    }

    /// Returns whether a writer that may write holds the lock already, or the refusal. A refused writer leaves its mark.
    pub(super) fn writes_already(
        &mut self,
        which: Which,
        key: &str,
        holder: &str,
        tag: &str,
        waits: &str,
    ) -> Result<std::result::Result<bool, Answer>> {
        let waits = integer(waits)?;
        let Some(reader) = holder.strip_suffix(":write") else {
            return Err(Answer::Error("ERR a writer's field ends in :write".to_owned()));
        };
        let mode = self.field(key, "mode");
        match mode.as_deref() {
            None if !self.keys.contains_key(key) => return Ok(Ok(false)),
            Some("write") if self.held_by(key, holder) => return Ok(Ok(true)),
            _ => self.note(which, key, holder, None),
        }
        if !matches!(mode.as_deref(), Some("read" | "write")) {
            return Err(wrong_type());
        }
        let reads = self.field(key, reader).and_then(|count| count.parse::<i64>().ok()).unwrap_or_default();
        if (1..=reads.min(1000)).any(|hold| self.pttl(&timeout(tag, reader, hold)) > 0) {
            return Err(Answer::Error("UPGRADE this holder reads, and would wait for itself".to_owned()));
        }
        if waits != 0 && self.pttl(&mark(tag)) < waits {
            self.set_text(&mark(tag), holder, Some(waits));
        }
        Ok(Err(Answer::Integer(self.pttl(key))))
    }

    /// Writes a hold that `writes_already` admits.
    pub(super) fn write_hold(
        &mut self,
        which: Which,
        key: &str,
        lease: &str,
        [holder, count]: [&str; 2],
        tag: &str,
        again: bool,
    ) -> Result<()> {
        let (lease, count) = (integer(lease)?, if again { count } else { "1" });
        if !again {
            self.set_count(key, "mode", "write");
            self.keys.remove(&mark(tag));
        }
        self.set_count(key, holder, count);
        if !again || self.pttl(key) < lease {
            self.pexpire(key, lease);
        }
        self.note(which, key, holder, Some(count));
        Ok(())
    }

    pub(super) fn write_release(
        &mut self,
        key: &str,
        [verb, channel]: [&str; 2],
        holder: &str,
        count: &str,
        tag: &str,
    ) -> Result {
        self.note(Which::WriteRelease, key, holder, Some(count));
        let held = self.field(key, "mode").as_deref() == Some("write") && self.held_by(key, holder);
        if count != "0" {
            if !held {
                return Ok(Answer::Nil);
            }
            self.set_count(key, holder, count);
            return Ok(Answer::Integer(0));
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
        Ok(if held { Answer::Integer(1 + heard) } else { Answer::Nil })
    }

    pub(super) fn side_force_release(
        &mut self,
        key: &str,
        [verb, channel]: [&str; 2],
        [spent, left]: [&str; 2],
        tag: &str,
        side: &str,
    ) -> Result {
        self.note(Which::ReadWriteForceRelease, key, "", None);
        match self.field(key, "mode") {
            Some(mode) if mode == side => {}
            Some(mode) if mode == "read" || mode == "write" => return Ok(Answer::Integer(0)),
            _ if self.keys.contains_key(key) => return Err(wrong_type()),
            _ => return Ok(Answer::Integer(0)),
        }
        for (holder, count) in self.fields(key) {
            for hold in 1..=count.parse::<i64>().unwrap_or_default().min(1000) {
                self.keys.remove(&timeout(tag, &holder, hold));
            }
        }
        self.keys.remove(key);
        self.set_count(key, "mode", "write");
        self.set_count(key, &format!("{}:write", spent.trim_end_matches(":write")), "1");
        self.pexpire(key, integer(left)?);
        self.publish([verb, channel, if side == "read" { "0" } else { "1" }]);
        Ok(Answer::Integer(1))
    }

    /// Renews locks, each with a lease, a holder and a tag.
    pub(super) fn read_write_renew(&mut self, keys: &[&str], args: &[[&str; 3]]) -> Result {
        let mut answers = Vec::new();
        for (key, &[lease, holder, tag]) in keys.iter().zip(args) {
            let lease = integer(lease)?;
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
            let mut own = self.left(key);
            let writes = holder.ends_with(":write");
            if !writes {
                let timeouts = || {
                    let holds = 1..=count.parse::<i64>().unwrap_or_default().min(1000);
                    holds.map(|hold| timeout(tag, holder, hold))
                };
                own = timeouts().map(|timeout| self.pttl(&timeout)).max().unwrap_or_default().max(0);
                if left >= 0 && left < own {
                    left = self.longest_read_lease(key, tag, None);
                    self.pexpire(key, left);
                }
                if lease > 0 {
                    timeouts().for_each(|timeout| self.set_text(&timeout, "1", Some(lease)));
                }
            }
            if lease == 0 {
                answers.push(Answer::Integer(own));
                continue;
            }
            if left < lease {
                self.pexpire(key, lease);
            } else if left > lease && own + 2 >= left && writes == (mode.as_deref() == Some("write")) {
                self.pexpire(key, lease.max(self.longest_read_lease(key, tag, None)));
            }
            answers.push(Answer::Integer(1));
        }
        Ok(self.renewed(answers))
    }

    pub(super) fn is_held(&self, key: &str, side: &str) -> Result {
        self.no_text(key)?;
        let mode = self.field(key, "mode");
        let reads_too = side == "read" && mode.as_deref() == Some("write") && self.fields(key).len() > 2;
        Ok(Answer::flag(mode.as_deref() == Some(side) || reads_too))
    }

    pub(super) fn longest_read_lease(&self, key: &str, tag: &str, lived: Option<i64>) -> i64 {
        let mut longest = 0;
        for (holder, count) in self.fields(key).into_iter().rev() {
            for hold in (1..=count.parse::<i64>().unwrap_or_default().min(1000)).rev() {
                let left = self.pttl(&timeout(tag, &holder, hold));
                if let Some(lived) = lived.filter(|lived| left > 0 && (left - lived).abs() <= 2) {
                    return lived;
                }
                longest = longest.max(left);
            }
        }
        longest
    }
}

/// Returns the key of the mark that a waiting writer leaves.
fn mark(tag: &str) -> String {
    format!("{tag}:wheellock_writer")
}

/// Returns the key of the lease of one hold of a reader.
pub(super) fn timeout(tag: &str, holder: &str, hold: i64) -> String {
    format!("{tag}:{holder}{TIMEOUT}{hold}")
}

pub(super) fn is_companion(key: &str) -> bool {
    key.ends_with(":wheellock_writer") || key.contains(TIMEOUT)
}

/// Middle part of the keys of readers' leases, between the reader and the number of the hold.
pub(super) const TIMEOUT: &str = ":rwlock_timeout:";
