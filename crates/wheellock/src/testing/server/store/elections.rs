//! Model of the scripts of elections: leader and announcement.

use super::{Answer, Result, Store, TOKENS, Which, integer, is_number};

impl Store {
    pub(super) fn announce(&mut self, key: &str, verb: &str, tag: &str, said: &str) -> Result<i64> {
        self.no_text(key)?;
        let holder = said.split(' ').next().unwrap_or_default();
        if !self.held_by(key, holder) {
            return Ok(0);
        }
        let left = Some(self.pttl(key)).filter(|left| *left >= 0);
        self.set_text(&format!("{tag}{LEADER}"), said, left);
        self.publish([verb, &format!("wheellock_election:{tag}"), "1"]);
        Ok(1)
    }

    /// Renews each hold, given by its lease, its holder and the common part of its other keys. Extends the announcement of
    /// each renewed hold.
    pub(super) fn fenced_renew(&mut self, keys: &[&str], args: &[[&str; 3]]) -> Result {
        let holds: Vec<_> = args.iter().map(|&[lease, holder, _]| [lease, holder]).collect();
        for (key, &[lease, holder, tag]) in keys.iter().zip(args) {
            if lease != "0" && self.held_by(key, holder) {
                self.pexpire(&format!("{tag}{LEADER}"), integer(lease)?);
            }
        }
        self.renew_each(Which::FencedRenew, keys, &holds, Self::held_by)
    }

    pub(super) fn look_at_leader(&self, key: &str, tag: &str) -> Result {
        self.is_lock(key)?;
        let Some((holder, _)) = self.fields(key).into_iter().next() else { return Ok(Answer::Nil) };
        let said = self.text(&format!("{tag}{LEADER}")).unwrap_or_default();
        let own = said.strip_prefix(&holder).and_then(|said| said.strip_prefix(' '));
        let (token, text) = match own {
            // Other clients may have written there, so their text does not count as an announcement.
            Some(said) => said.split_once(' ').filter(|(token, _)| is_number(token)).unwrap_or(("0", "")),
            None => (self.text(&format!("{TOKENS}{tag}")).unwrap_or("0"), ""),
        };
        let texts = [&holder, token, text].map(|text| Answer::Bulk(text.to_owned()));
        Ok(Answer::Array(texts.into_iter().chain([Answer::Integer(self.pttl(key))]).collect()))
    }
}

/// Suffix of an announcement's key, behind the common part of the lock's keys.
pub(super) const LEADER: &str = ":wheellock_leader";
