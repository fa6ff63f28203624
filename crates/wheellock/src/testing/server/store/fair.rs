//! Model of the scripts of fair locks: queue and deadlines.

use super::{Answer, MARK, Result, Store, Which, integer};

impl Store {
    /// Returns the waiters in the queue under `key`, in order.
    pub fn queue(&self, key: &str) -> Vec<String> {
        self.fields(key).into_iter().map(|(holder, _)| holder).collect()
    }

    pub(super) fn fair_acquire(
        &mut self,
        key: &str,
        lease: &str,
        [holder, count]: [&str; 2],
        stands: &str,
        tell: [&str; 2],
        tag: &str,
    ) -> Result {
        let lease = integer(lease)?;
        self.is_lock(key)?;
        if self.held_by(key, holder) {
            self.set_count(key, holder, count);
            if self.pttl(key) < lease {
                self.pexpire(key, lease);
            }
            self.note(Which::FairAcquire, key, holder, Some(count));
            return Ok(Answer::Status("AGAIN".to_owned()));
        }
        let (head, removed) = self.head_of_queue(tag, holder)?;
        let free = !self.keys.contains_key(key);
        if free && head.as_deref().is_none_or(|head| head == holder) {
            self.leave_queue(tag, holder);
            self.set_count(key, holder, "1");
            self.pexpire(key, lease);
            self.note(Which::FairAcquire, key, holder, Some("1"));
            return Ok(Answer::Nil);
        }
        self.note(Which::FairAcquire, key, holder, None);
        // The waiter behind the removed ones does not know yet that it is the first.
        if free && removed {
            self.tell_the_head(tell, tag)?;
        }
        let left = if self.pttl(key) == -1 { ASKS_AFTER } else { self.pttl(key).max(0) };
        if stands == "0" {
            return Ok(Answer::Integer(left));
        }
        let lives = self.millis().saturating_add(LIVES_FOR).to_string();
        self.set_count(&queue(tag), holder, &lives);
        let is_head = head.is_none_or(|head| head == holder);
        let is_untold = self.keys.contains_key(&format!("{tag}{MARK}"));
        let are_few = self.fields(&queue(tag)).len() <= FEW;
        let after = if is_untold && are_few { ASKS_UNTOLD_AFTER } else { ASKS_AFTER };
        Ok(Answer::Integer(if is_head { left.min(after) } else { after }))
    }

    pub(super) fn fair_release(
        &mut self,
        key: &str,
        tell: [&str; 2],
        holder: &str,
        count: &str,
        tag: &str,
    ) -> Result {
        let left = integer(count)?;
        self.note(Which::FairRelease, key, holder, Some(count));
        let held = self.held_by(key, holder);
        if held && left > 0 {
            self.set_count(key, holder, count);
            return Ok(Answer::Integer(0));
        }
        let mut free = false;
        if held {
            self.forget(key, holder);
            free = self.fields(key).is_empty();
            if free {
                self.keys.remove(key);
            }
        } else if left == 0 && self.held_by(&queue(tag), holder) {
            let is_head = self.fields(&queue(tag)).first().is_some_and(|(head, _)| head == holder);
            self.leave_queue(tag, holder);
            free = is_head && !self.keys.contains_key(key);
        }
        if free {
            self.tell_the_head(tell, tag)?;
        }
        Ok(if held { Answer::Integer(1) } else { Answer::Nil })
    }

    pub(super) fn fair_force_release(
        &mut self,
        key: &str,
        tell: [&str; 2],
        spent: [&str; 2],
        tag: &str,
    ) -> Result {
        self.note(Which::FairForceRelease, key, "", None);
        if !self.is_lock(key)? {
            return Ok(Answer::Integer(0));
        }
        self.leave_to(key, spent)?;
        self.tell_the_head(tell, tag)?;
        Ok(Answer::Integer(1))
    }

    /// Returns the first live waiter of a fair lock, and whether dead waiters were removed. The waiter `asks` counts as
    /// live.
    pub(super) fn head_of_queue(&mut self, tag: &str, asks: &str) -> Result<(Option<String>, bool)> {
        self.no_text(&queue(tag))?;
        let (mut removed, mut asked) = (false, None);
        loop {
            let Some((head, lives)) = self.fields(&queue(tag)).into_iter().next() else {
                return Ok((None, removed));
            };
            let lives = integer(lives.trim_end_matches(SPARED))?;
            if head == asks || lives > self.millis() {
                return Ok((Some(head), removed));
            }
            let asked = *asked.get_or_insert_with(|| self.last_asked_before_stall(tag));
            if asked.is_some_and(|asked| lives > asked) {
                return Ok((Some(head), true));
            }
            self.leave_queue(tag, &head);
            removed = true;
        }
    }

    /// Extends the deadlines after a stall in which all waiters were silent for too long. A waiter that was live at the
    /// last poll gets time for one more poll. Returns the time of that last poll if there was such a stall.
    fn last_asked_before_stall(&mut self, tag: &str) -> Option<i64> {
        let lives = |(holder, lives): (String, String)| {
            let until = lives.trim_end_matches(SPARED).parse::<i64>().ok()?;
            Some((until, lives.ends_with(SPARED), holder))
        };
        let all: Vec<_> = self.fields(&queue(tag)).into_iter().filter_map(lives).collect();
        let (newest, is_spared, _) = all.iter().max_by_key(|(until, is_spared, _)| (until, !is_spared))?;
        let asked = newest.saturating_sub(LIVES_FOR);
        let now = self.millis();
        if *is_spared || now.saturating_sub(asked) <= ASKS_AFTER + 1000 {
            return None;
        }
        let until = format!("{}{SPARED}", now.saturating_add(LIVES_FOR));
        for (.., holder) in all.iter().filter(|(until, ..)| *until > asked) {
            self.set_count(&queue(tag), holder, &until);
        }
        Some(asked)
    }

    pub(super) fn leave_queue(&mut self, tag: &str, holder: &str) {
        self.forget(&queue(tag), holder);
        if self.fields(&queue(tag)).is_empty() {
            self.keys.remove(&queue(tag));
        }
    }

    /// Notifies the first waiter in the queue. If no client receives the message, notifies the first live waiter.
    fn tell_the_head(&mut self, [verb, channel]: [&str; 2], tag: &str) -> Result<()> {
        self.no_text(&queue(tag))?;
        let Some((told, _)) = self.fields(&queue(tag)).into_iter().next() else { return Ok(()) };
        if self.publish([verb, &format!("{channel}:{told}"), "0"]) == 0
            && let (Some(head), _) = self.head_of_queue(tag, "")?
            && head != told
        {
            self.publish([verb, &format!("{channel}:{head}"), "0"]);
        }
        Ok(())
    }
}

/// Returns the key of a fair lock's waiters, in order, each with its deadline. A real server has a list and two sorted
/// sets.
fn queue(tag: &str) -> String {
    format!("{QUEUES}{tag}")
}

/// Interval of a waiter's polls, and its time to live without one, in milliseconds.
const ASKS_AFTER: i64 = 2000;
/// The same behind a holder that cannot announce its releases.
const ASKS_UNTOLD_AFTER: i64 = 250;
/// The longest queue in which all waiters poll that often.
const FEW: usize = 64;
const LIVES_FOR: i64 = 5000;
/// Ends the deadline of a waiter that has not polled since it got more time. A real server has a fraction there.
const SPARED: &str = " spared";

/// Prefix of the keys of queues.
pub(super) const QUEUES: &str = "redisson_lock_queue:";

pub(super) fn is_companion(key: &str) -> bool {
    key.starts_with(QUEUES)
}
