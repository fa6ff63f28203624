//! Model of the scripts that list a lock's holders.

use super::read_write::timeout;
use super::{Answer, Result, Store, integer, wrong_type};

impl Store {
    pub(super) fn holders_of_lock(&self, key: &str, most: &str) -> Result {
        let most = usize::try_from(integer(most)?).unwrap_or_default();
        self.is_lock(key)?;
        let (all, left) = (self.fields(key), self.pttl(key));
        let said = all.iter().take(most);
        let told = said.map(|(holder, count)| (holder.clone(), number(count), left));
        Ok(told_of(all.len(), told.collect()))
    }

    pub(super) fn holder_of_simple(&self, key: &str) -> Result {
        match self.text(key) {
            Some(token) => Ok(told_of(1, vec![(token.to_owned(), 1, self.pttl(key))])),
            None if self.keys.contains_key(key) => Err(wrong_type()),
            None => Ok(told_of(0, Vec::new())),
        }
    }

    pub(super) fn holders_of_side(&self, key: &str, most: &str, side: &str, tag: &str) -> Result {
        let most = usize::try_from(integer(most)?).unwrap_or_default();
        let mode = match self.field(key, "mode") {
            Some(mode) if mode == "read" || mode == "write" => mode,
            _ if self.keys.contains_key(key) => return Err(wrong_type()),
            _ => return Ok(told_of(0, Vec::new())),
        };
        if side == "write" && mode != "write" {
            return Ok(told_of(0, Vec::new()));
        }
        let (all, left) = (self.fields(key), self.pttl(key));
        let (mut told, mut ended) = (Vec::new(), 0);
        for (field, count) in all.iter().filter(|(field, _)| field != "mode") {
            let writer = field.strip_suffix(":write");
            if told.len() == most || writer.is_some() != (side == "write") {
                continue;
            }
            let count = number(count);
            match writer {
                Some(writer) => told.push((writer.to_owned(), count, left)),
                None => match self.reader_has_left(tag, field, count, left) {
                    0 => ended += 1,
                    left => told.push((field.clone(), count, left)),
                },
            }
        }
        let beside = if mode == "write" { 2 } else { 1 };
        let readers = all.len().saturating_sub(beside + ended).max(told.len());
        Ok(told_of(if side == "write" { told.len() } else { readers }, told))
    }

    /// Returns the remaining time of a reader's longest lease.
    fn reader_has_left(&self, tag: &str, reader: &str, count: i64, left: i64) -> i64 {
        let own = |hold: i64| self.pttl(&timeout(tag, reader, hold));
        let leases: Vec<i64> = (count.saturating_sub(99).max(1)..=count).map(own).collect();
        if leases.contains(&-1) {
            return left;
        }
        let longest = leases.into_iter().max().unwrap_or_default().max(0);
        if left >= 0 { longest.min(left) } else { longest }
    }
}

/// Returns the reply with the number of holders, and each listed holder with its count and remaining lease.
fn told_of(all: usize, said: Vec<(String, i64, i64)>) -> Answer {
    let said = said.into_iter().flat_map(|(holder, count, left)| {
        [Answer::Bulk(holder), Answer::Integer(count), Answer::Integer(left)]
    });
    let all = Answer::Integer(i64::try_from(all).unwrap_or(i64::MAX));
    Answer::Array(std::iter::once(all).chain(said).collect())
}

/// Parses a count, which may have been edited by hand.
fn number(count: &str) -> i64 {
    count.parse().unwrap_or_default()
}
