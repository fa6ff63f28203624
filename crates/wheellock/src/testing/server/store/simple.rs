//! What the scripts of simple locks mean: the store's part for a key with a token.

use super::{Answer, Store, Which, integer};

impl Store {
    pub(super) fn simple_acquire(&mut self, key: &str, lease: &str, token: &str) -> Answer {
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

    pub(super) fn simple_release(&mut self, key: &str, tell: [&str; 2], token: &str, count: &str) -> Answer {
        self.note(Which::SimpleRelease, key, token, Some(count));
        if self.text(key) != Some(token) {
            return Answer::Nil;
        }
        Answer::Integer(1 + self.free(key, tell))
    }

    pub(super) fn simple_renew(&mut self, keys: &[&str], args: &[&str]) -> Answer {
        self.renew_each(Which::SimpleRenew, keys, args, |store, key, token| store.text(key) == Some(token))
    }
}
