//! Model of simple locks' scripts, and of equivalent commands.

use super::{Answer, Result, Store, Which, integer, wrong_type};

/// The server's name and version, as it reports them. These decide which commands it knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Make {
    /// The server does not report its name.
    #[default]
    Unknown,
    /// A server with `SET`, as every server has it.
    Redis70,
    /// A server that also has `DELEX`.
    Redis84,
    /// A server that also has `DELIFEQ`.
    Valkey90,
}

impl Make {
    pub const ALL: [Self; 4] = [Self::Unknown, Self::Redis70, Self::Redis84, Self::Valkey90];

    /// Returns the server's name and version.
    pub(in super::super) fn name(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Unknown => None,
            Self::Redis70 => Some(("redis", "7.0.15")),
            Self::Redis84 => Some(("redis", "8.4.0")),
            Self::Valkey90 => Some(("valkey", "9.0.1")),
        }
    }
}

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

    /// Runs `SET` with `NX`.
    pub(super) fn set_if_free(&mut self, key: &str, token: &str, lease: &str) -> Result {
        let lease = integer(lease)?;
        if self.keys.contains_key(key) {
            return Ok(Answer::Nil);
        }
        self.set_text(key, token, Some(lease));
        self.note(Which::SimpleAcquire, key, token, Some("1"));
        Ok(Answer::Status("OK".to_owned()))
    }

    /// Runs `DELIFEQ` or `DELEX`.
    pub(super) fn delete_if_own(&mut self, key: &str, token: &str) -> Result {
        self.note(Which::SimpleRelease, key, token, Some("0"));
        if self.text(key).is_none() && self.keys.contains_key(key) {
            return Err(wrong_type());
        }
        let is_own = self.text(key) == Some(token);
        Ok(Answer::flag(is_own && self.keys.remove(key).is_some()))
    }

    pub(super) fn simple_release(&mut self, key: &str, tell: [&str; 2], token: &str, count: &str) -> Result {
        self.note(Which::SimpleRelease, key, token, Some(count));
        if self.text(key) != Some(token) {
            return Ok(Answer::Nil);
        }
        Ok(Answer::Integer(1 + self.free(key, tell)))
    }

    pub(super) fn simple_retire(
        &mut self,
        key: &str,
        tell: [&str; 2],
        [token, spent]: [&str; 2],
        left: &str,
    ) -> Result {
        self.note(Which::SimpleRetire, key, token, Some("0"));
        if self.text(key) == Some(spent) {
            return Ok(Answer::Integer(1));
        }
        if self.text(key) != Some(token) {
            return Ok(Answer::Nil);
        }
        self.set_text(key, spent, Some(integer(left)?));
        Ok(Answer::Integer(1 + self.publish([tell[0], tell[1], "0"])))
    }

    pub(super) fn simple_adopt(&mut self, key: &str, lease: &str, token: &str, owner: &str) -> Result {
        self.note(Which::SimpleAdopt, key, token, Some("1"));
        if self.text(key).is_none() && self.keys.contains_key(key) {
            return Err(wrong_type());
        }
        let again = self.text(key) == Some(token);
        if !again && self.text(key) != Some(owner) {
            return Ok(Answer::Integer(self.pttl(key)));
        }
        self.set_text(key, token, Some(integer(lease)?));
        Ok(if again { Answer::Status("AGAIN".to_owned()) } else { Answer::Nil })
    }

    pub(super) fn simple_force_release(
        &mut self,
        key: &str,
        [verb, channel]: [&str; 2],
        [spent, left]: [&str; 2],
    ) -> Result {
        self.note(Which::SimpleForceRelease, key, "", None);
        if !self.keys.contains_key(key) {
            return Ok(Answer::Integer(0));
        }
        if self.text(key).is_none() {
            return Err(wrong_type());
        }
        self.set_text(key, spent, Some(integer(left)?));
        self.publish([verb, channel, "0"]);
        Ok(Answer::Integer(1))
    }

    pub(super) fn simple_renew(&mut self, keys: &[&str], args: &[[&str; 2]]) -> Result {
        self.renew_each(Which::SimpleRenew, keys, args, |store, key, token| store.text(key) == Some(token))
    }
}
