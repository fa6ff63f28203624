//! The choice of the primary's address from several Sentinels' replies.
//!
//! Sentinels may disagree. This module is pure: it does not query Sentinels. It does not verify that the server is a
//! primary, because only the server's own ROLE reply can show that.
//!
//! The steps of a failover, as seen from outside (redis-server 7.0.15, three Sentinels, SIGKILL of the primary at 0;
//! SIGSTOP and `SENTINEL FAILOVER` take the same steps):
//!
//! | s | who | what |
//! |---|---|---|
//! | 0.02 | all | flag `disconnected` (not after SIGSTOP), then `s_down` at 0.55 |
//! | 0.61 | leader | flag `failover_in_progress` |
//! | 0.75 | leader | the selected replica has the flag `promoted`; all epochs are still the old ones |
//! | 0.84 | replica | is a primary and accepts writes |
//! | 1.71 | leader | the new `config-epoch`, beside the **old** address; the flag `promoted` stays |
//! | 1.77 | others | the new address and epoch, and `+switch-master` |
//! | 2.86 | leader | the new address, and `+switch-master`; the flag `promoted` is gone |
//!
//! The flag `promoted` names the new primary a second before any epoch does. Without the flag, the leader's own reply
//! would be wrong for one more second. After `SENTINEL FAILOVER`, the old primary accepted writes for eleven seconds.
//! The old primary's own claim to be a primary is therefore not a reason to return to it.

use std::collections::BTreeMap;

use wheellock_resp::Value;

use crate::base::address::Address;
use crate::base::endpoint::{Malformed, address, parse_host, parse_port};

/// One Sentinel's reply about one service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The address of the primary. While this Sentinel leads a failover, the address of the former primary.
    pub(crate) address: Address,
    /// The `config-epoch`, which grows with every failover.
    pub(crate) epoch: u64,
    /// The Sentinel has lost the primary, or is replacing it.
    pub(crate) suspect: bool,
    /// The replica that this Sentinel has selected while it leads a failover.
    pub(crate) promoted: Option<Address>,
}

/// Parses the reply to `SENTINEL MASTER <service>`, a map in RESP3 and a flat list in RESP2. [`parse_promoted`]
/// provides `promoted`.
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

/// Parses the reply to `SENTINEL REPLICAS <service>`. Returns the replica that is being promoted, if this Sentinel
/// leads a failover.
///
/// The request must be sent before `SENTINEL MASTER`, best in one write. In the other order, the end of a failover
/// may fall between the two requests. Then no reply shows that the old address is outdated (seen on redis-server
/// 7.0.15).
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

/// The replies of one service's Sentinels, and the choice that follows from them.
#[derive(Debug, Default)]
pub(crate) struct Discovery {
    /// Sentinels by index, in order, because the lowest index wins a tie.
    sentinels: BTreeMap<usize, LastReply>,
    choice: Option<Choice>,
    /// The address last stated as the primary's while no promotion was under way, and its epoch.
    settled: Option<(Address, u64)>,
}

#[derive(Debug, Default)]
struct LastReply {
    /// `None` while the Sentinel cannot be reached.
    answer: Option<Answer>,
    /// True if this reply arrived after the last reply with the epoch of the choice or a higher one.
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
    /// Records a Sentinel's reply. The reply counts until the Sentinel's next reply, or until it is silent.
    pub(crate) fn received(&mut self, sentinel: usize, answer: Answer) {
        self.sentinels.insert(sentinel, LastReply { answer: Some(answer), is_fresh: true });
        self.choose();
    }

    /// Records that a Sentinel cannot be reached. Its last reply no longer counts. If all Sentinels are silent, the
    /// choice stays.
    pub(crate) fn silent(&mut self, sentinel: usize) {
        self.sentinels.insert(sentinel, LastReply::default());
        self.choose();
    }

    /// Returns the primary's address, as last stated.
    pub(crate) fn address(&self) -> Option<&Address> {
        self.choice.as_ref().map(|choice| &choice.address)
    }

    /// Returns the server to use while the server at [`address`](Self::address) is not a primary. This is the former
    /// primary, while a replica is selected and no epoch shows that it was promoted. The promotion may never happen.
    /// The leader then takes a whole `failover-timeout` (3 minutes by default) to give up.
    pub(crate) fn alternative(&self) -> Option<&Address> {
        self.choice.as_ref()?.alternative.as_ref()
    }

    /// Returns true if a Sentinel has lost the primary, or is replacing it.
    pub(crate) fn is_suspect(&self) -> bool {
        self.choice.as_ref().is_some_and(|choice| choice.is_suspect)
    }

    fn choose(&mut self) {
        if self.answers().any(|answer| answer.epoch >= self.epoch()) {
            self.sentinels.values_mut().for_each(|last| last.is_fresh = false);
        }
        let Some(choice) = self.best() else { return };
        if choice.alternative.is_none() {
            self.settled = Some((choice.address.clone(), choice.epoch));
        }
        self.choice = Some(choice);
    }

    /// Returns the choice that follows from the replies. Returns `None` if the present choice stays.
    fn best(&self) -> Option<Choice> {
        let epoch = self.answers().map(|answer| answer.epoch).max()?;
        // A lower epoch can be correct. Recreated Sentinels count from zero again. A failover whose leader died
        // before announcing it has not happened. A lower epoch therefore needs fresh replies from more than half of
        // the Sentinels. One reachable Sentinel that was cut off does not suffice, and neither do replies from before
        // the failover.
        let fresh = self.sentinels.values().filter(|last| last.is_fresh).count();
        if epoch < self.epoch() && fresh * 2 <= self.sentinels.len() {
            return None;
        }

        let newest = || self.answers().filter(|answer| answer.epoch == epoch);
        let stated = most_stated(newest().map(|answer| &answer.address))?;
        let promoted = most_stated(newest().filter_map(|answer| answer.promoted.as_ref()));
        let address = promoted.unwrap_or(stated);
        let is_over = newest().any(|answer| answer.address == *address)
            // The leader may be the only Sentinel that replies, and it keeps stating the former primary. But it does
            // so under a higher epoch than before, which shows that the address is the former one.
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

    /// Returns the replies that count.
    fn answers(&self) -> impl Iterator<Item = &Answer> {
        self.sentinels.values().filter_map(|last| last.answer.as_ref())
    }

    /// Returns the epoch of the choice.
    fn epoch(&self) -> u64 {
        self.choice.as_ref().map_or(0, |choice| choice.epoch)
    }
}

/// Returns the address with the most votes. Of equals, the first one wins.
fn most_stated<'a>(addresses: impl Iterator<Item = &'a Address>) -> Option<&'a Address> {
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
