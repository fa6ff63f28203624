//! Which address is the primary, from what several sentinels say, who may disagree. Pure: asks nobody, and verifies nothing:
//! whether the server there really is a primary, only its own ROLE can tell.
//!
//! What a failover looks like from outside (redis-server 7.0.15, three sentinels, SIGKILL of the primary at 0; SIGSTOP and
//! `SENTINEL FAILOVER` take the same steps):
//!
//! | s | who | what |
//! |---|---|---|
//! | 0.02 | all | flag `disconnected` (not after SIGSTOP), then `s_down` at 0.55 |
//! | 0.61 | leader | flag `failover_in_progress` |
//! | 0.75 | leader | the selected replica has the flag `promoted`; all epochs are still the old ones |
//! | 0.84 | replica | is a primary and accepts writes |
//! | 1.71 | leader | the new `config-epoch`, beside the **old** address; `promoted` goes on |
//! | 1.77 | others | the new address and epoch, and `+switch-master` |
//! | 2.86 | leader | the new address, and `+switch-master`; nobody is `promoted` any more |
//!
//! So `promoted` tells of the new primary a second before any epoch does, and without it the leader's own answer is wrong
//! for the second after that. After `SENTINEL FAILOVER` the old primary went on accepting writes for eleven seconds:
//! that it calls itself a primary is no reason to go back to it.

use std::collections::BTreeMap;

use wheellock_resp::Value;

use crate::base::address::Address;
use crate::base::endpoint::{Malformed, address, parse_host, parse_port};

/// What one sentinel says about one service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Of the primary; of the former one, if this sentinel is leading a failover.
    pub(crate) address: Address,
    /// Grows with every failover (`config-epoch`).
    pub(crate) epoch: u64,
    /// The sentinel has lost the primary, or is replacing it.
    pub(crate) suspect: bool,
    /// The replica that this sentinel, leading a failover, has selected.
    pub(crate) promoted: Option<Address>,
}

/// Reads the reply to `SENTINEL MASTER <service>`, a map in RESP3 and a flat list in RESP2. `promoted` is up to
/// [`parse_promoted`].
pub(crate) fn parse_master(reply: &Value) -> Result<Answer, Malformed> {
    let flags = field(reply, "flags")?;
    let epoch = field(reply, "config-epoch")?;
    Ok(Answer {
        address: parse_address(reply)?,
        epoch: epoch.parse().map_err(|_| Malformed("a config epoch is not a number"))?,
        suspect: flags.split(',').any(|flag| SUSPECT.contains(&flag)),
        promoted: None,
    })
}

/// Reads the reply to `SENTINEL REPLICAS <service>`: which one is being promoted, if this sentinel leads a failover.
///
/// It must have been asked before `SENTINEL MASTER`, best in one write. The other way round the end of a failover may fall
/// between the two, and then nothing in the answers tells that the old address is the old one (seen on redis-server 7.0.15).
pub(crate) fn parse_promoted(reply: &Value) -> Result<Option<Address>, Malformed> {
    let replicas = reply.as_array().ok_or(Malformed("the replicas are not a list"))?;
    for replica in replicas {
        if field(replica, "flags")?.split(',').any(|flag| flag == "promoted") {
            return parse_address(replica).map(Some);
        }
    }
    Ok(None)
}

fn parse_address(entry: &Value) -> Result<Address, Malformed> {
    let host = parse_host(field(entry, "ip")?)?;
    if host.is_empty() {
        return Err(Malformed("an address lacks its host"));
    }
    Ok(address(&host, parse_port(field(entry, "port")?)?))
}

fn field<'a>(entry: &'a Value, name: &str) -> Result<&'a str, Malformed> {
    let value = match entry {
        Value::Map(_) => entry.get(name),
        Value::Array(flat) => flat.chunks_exact(2).find_map(|pair| match pair {
            [key, value] if key.as_bytes() == Some(name.as_bytes()) => Some(value),
            _ => None,
        }),
        _ => return Err(Malformed("an entry is neither a map nor a list of pairs")),
    };
    value.and_then(Value::as_str).ok_or(Malformed("an entry lacks ip, port, flags or config-epoch"))
}

const SUSPECT: [&str; 4] = ["s_down", "o_down", "disconnected", "failover_in_progress"];

/// What the sentinels of one service say, and what follows from it.
#[derive(Debug, Default)]
pub(crate) struct Discovery {
    /// By index; ordered, because of equals the lowest is believed.
    sentinels: BTreeMap<usize, Heard>,
    choice: Option<Choice>,
    /// The address that was last stated as the primary's while nothing was being promoted, and under which epoch.
    settled: Option<(Address, u64)>,
}

#[derive(Debug, Default)]
struct Heard {
    answer: Option<Answer>,
    is_silent: bool,
    /// It was heard since nobody vouches for the epoch of the choice any more.
    is_fresh: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Choice {
    address: Address,
    epoch: u64,
    is_suspect: bool,
    alternative: Option<Address>,
}

impl Discovery {
    /// A sentinel answered. Its answer counts until its next one, or until it is silent.
    pub(crate) fn heard(&mut self, sentinel: usize, answer: Answer) {
        self.sentinels.insert(sentinel, Heard { answer: Some(answer), is_silent: false, is_fresh: true });
        self.choose();
    }

    /// A sentinel cannot be reached: what it said no longer counts. If none can, everything stays as it was.
    pub(crate) fn silent(&mut self, sentinel: usize) {
        let heard = self.sentinels.entry(sentinel).or_default();
        (heard.is_silent, heard.is_fresh) = (true, false);
        self.choose();
    }

    /// The primary's address, as far as anybody has ever said.
    pub(crate) fn address(&self) -> Option<&Address> {
        self.choice.as_ref().map(|choice| &choice.address)
    }

    /// What to use as long as the server at [`address`](Self::address) turns out not to be a primary: the former primary,
    /// while a replica is selected but no epoch says that it was promoted. The promotion may never happen, and then the
    /// leader takes a whole `failover-timeout` (3 minutes by default) to give up.
    pub(crate) fn alternative(&self) -> Option<&Address> {
        self.choice.as_ref()?.alternative.as_ref()
    }

    /// Whether a sentinel has lost the primary, or is replacing it.
    pub(crate) fn is_suspect(&self) -> bool {
        self.choice.as_ref().is_some_and(|choice| choice.is_suspect)
    }

    fn choose(&mut self) {
        if self.answers().any(|answer| answer.epoch >= self.epoch()) {
            self.sentinels.values_mut().for_each(|heard| heard.is_fresh = false);
        }
        let Some(choice) = self.best() else { return };
        if choice.alternative.is_none() {
            self.settled = Some((choice.address.clone(), choice.epoch));
        }
        self.choice = Some(choice);
    }

    /// What follows from the answers; `None` if nothing does and the choice stays as it is.
    fn best(&self) -> Option<Choice> {
        let epoch = self.answers().map(|answer| answer.epoch).max()?;
        // Sentinels that were set up anew count from zero again, and a failover that its leader did not live to announce has
        // not happened. But that takes more than one that was cut off and is the only one to be heard now, and more than what
        // the others said before they had heard of it.
        let fresh = self.sentinels.values().filter(|heard| heard.is_fresh).count();
        if epoch < self.epoch() && fresh * 2 <= self.sentinels.len() {
            return None;
        }

        let newest = || self.answers().filter(|answer| answer.epoch == epoch);
        let stated = most_said(newest().map(|answer| &answer.address))?;
        let promoted = most_said(newest().filter_map(|answer| answer.promoted.as_ref()));
        let address = promoted.unwrap_or(stated);
        let is_over = newest().any(|answer| answer.address == *address)
            // The leader may be the only one to be heard, and goes on to state the former primary: but under a higher epoch
            // than before, which says that it is the former one.
            || self.settled.as_ref().is_some_and(|(settled, under)| {
                (settled == stated && *under < epoch) || (settled == address && *under == epoch)
            });
        let alternative = (!is_over).then(|| stated.clone());
        let is_lost = newest().any(|answer| answer.suspect && answer.address == *address);
        Some(Choice {
            address: address.clone(),
            epoch,
            is_suspect: is_lost || alternative.is_some(),
            alternative,
        })
    }

    /// Those that count.
    fn answers(&self) -> impl Iterator<Item = &Answer> {
        self.sentinels.values().filter(|heard| !heard.is_silent).filter_map(|heard| heard.answer.as_ref())
    }

    /// That of the choice.
    fn epoch(&self) -> u64 {
        self.choice.as_ref().map_or(0, |choice| choice.epoch)
    }
}

/// The address that most say; of equals, the one that is said first.
fn most_said<'a>(addresses: impl Iterator<Item = &'a Address>) -> Option<&'a Address> {
    let mut said: Vec<(&Address, usize)> = Vec::new();
    for address in addresses {
        match said.iter_mut().find(|(known, _)| *known == address) {
            Some((_, times)) => *times += 1,
            None => said.push((address, 1)),
        }
    }
    let most = said.iter().map(|(_, times)| *times).max()?;
    said.into_iter().find(|(_, times)| *times == most).map(|(address, _)| address)
}

#[cfg(test)]
mod tests;
