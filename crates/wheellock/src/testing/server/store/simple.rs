//! What the scripts of simple locks mean: the store's part for a key with a token.

use super::{Answer, Result, Store, Which, integer, wrong_type};

impl Store {
    pub(super) fn simple_acquire(&mut self, key: &str, lease: &str, token: &str) -> Result {
        let lease = integer(lease)?;
        let Some(held) = self.text(key) else {
            if self.keys.contains_key(key) {
                return Err(wrong_type());
            }
            self.set_text(key, token, Some(lease));
            self.note(Which::SimpleAcquire, key, token, Some("1"));
            return Ok(Answer::Nil);
        };
        if held == token {
            self.pexpire(key, lease);
            self.note(Which::SimpleAcquire, key, token, Some("1"));
            return Ok(Answer::Status("AGAIN".to_owned()));
        }
        let is_ours = held.len() > 37
            && held
                .rsplit_once(':')
                .is_some_and(|(id, number)| id.split('-').count() == 5 && number.parse::<u64>().is_ok());
        let left = Answer::Integer(self.pttl(key));
        self.note(Which::SimpleAcquire, key, token, None);
        Ok(if is_ours { left } else { Answer::Array(vec![left]) })
    }

    pub(super) fn simple_release(&mut self, key: &str, tell: [&str; 2], token: &str, count: &str) -> Result {
        self.note(Which::SimpleRelease, key, token, Some(count));
        if self.text(key) != Some(token) {
            return Ok(Answer::Nil);
        }
        Ok(Answer::Integer(1 + self.free(key, tell)))
    }

    pub(super) fn simple_force_release(&mut self, key: &str, tell: [&str; 2]) -> Result {
        self.note(Which::SimpleForceRelease, key, "", None);
        if !self.keys.contains_key(key) {
            return Ok(Answer::Integer(0));
        }
        if self.text(key).is_none() {
            return Err(wrong_type());
        }
        self.free(key, tell);
        Ok(Answer::Integer(1))
    }

    pub(super) fn simple_renew(&mut self, keys: &[&str], args: &[[&str; 2]]) -> Result {
        self.renew_each(Which::SimpleRenew, keys, args, |store, key, token| store.text(key) == Some(token))
    }
}
