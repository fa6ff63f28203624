//! A node's view of the cluster, parsed from CLUSTER NODES.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use anyhow::{Context, Result, bail};

use super::ask;
use crate::server::RedisServer;

/// The cluster as a node sees it.
#[derive(Debug)]
pub(super) struct View {
    pub(super) nodes: BTreeMap<String, Known>,
    /// Slots that the node imports in unfinished moves.
    pub(super) importing: Vec<u16>,
    /// Slots that the node gives away in unfinished moves, and their targets.
    pub(super) migrating: Vec<(u16, String)>,
}

/// A node's record of another node.
#[derive(Debug)]
pub(super) struct Known {
    flags: Vec<String>,
    pub(super) master: Option<String>,
    pub(super) epoch: u64,
    connected: bool,
    pub(super) slots: Vec<RangeInclusive<u16>>,
}

impl View {
    pub(super) fn of(node: &RedisServer) -> Result<Self> {
        Self::parse(&ask(node, &["CLUSTER", "NODES"])?.to_string())
    }

    /// Parses lines of `id address flags master ping pong epoch link slots...`
    fn parse(text: &str) -> Result<Self> {
        let mut view = Self { nodes: BTreeMap::new(), importing: Vec::new(), migrating: Vec::new() };
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let Some((&[id, _, flags, master, _, _, epoch, link], slots)) = words.split_first_chunk() else {
                bail!("no line of CLUSTER NODES: {line:?}");
            };
            let mut known = Known {
                flags: flags.split(',').map(str::to_owned).collect(),
                master: (master != "-").then(|| master.to_owned()),
                epoch: epoch.parse()?,
                connected: link == "connected",
                slots: Vec::new(),
            };
            for slots in slots {
                if let Some(open) = slots.strip_prefix('[') {
                    let open = open.trim_end_matches(']');
                    if let Some((slot, to)) = open.split_once("->-") {
                        view.migrating.push((slot.parse()?, to.to_owned()));
                    } else {
                        let (slot, _from) = open.split_once("-<-").context("an open slot has a direction")?;
                        view.importing.push(slot.parse()?);
                    }
                } else {
                    let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
                    known.slots.push(first.parse()?..=last.parse()?);
                }
            }
            view.nodes.insert(id.to_owned(), known);
        }
        Ok(view)
    }

    pub(super) fn owner_of(&self, slot: u16) -> Option<(&String, &Known)> {
        self.nodes.iter().find(|(_, known)| known.slots.iter().any(|range| range.contains(&slot)))
    }

    /// Returns the owners of slots, by the first slot of each range.
    pub(super) fn owners(&self) -> BTreeMap<u16, (u16, String)> {
        let owned =
            self.nodes.iter().flat_map(|(id, known)| known.slots.iter().map(move |range| (id, range)));
        owned.map(|(id, range)| (*range.start(), (*range.end(), id.clone()))).collect()
    }
}

impl Known {
    pub(super) fn is_well(&self) -> bool {
        let ill = ["fail", "fail?", "handshake", "noaddr"];
        let is_ill = self.flags.iter().any(|flag| ill.contains(&flag.as_str()));
        !is_ill && (self.connected || self.is("myself"))
    }

    pub(super) fn is(&self, flag: &str) -> bool {
        self.flags.iter().any(|own| own == flag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_view_text_is_parsed() {
        let view = View::parse(
            "aa 127.0.0.1:1@11 myself,master - 0 1 3 connected 0-5 7 [8->-bb] [9-<-bb]\n\
             bb 127.0.0.1:2@12,host master,fail? - 0 1 4 disconnected 6 8-16383\n\
             cc 127.0.0.1:3@13 slave aa 0 1 3 connected\n",
        )
        .unwrap();
        let owner = |slot| view.owner_of(slot).map(|(id, known)| (id.as_str(), known.epoch));
        assert_eq!(
            [0, 6, 7, 16_383].map(owner).map(Option::unwrap),
            [("aa", 3), ("bb", 4), ("aa", 3), ("bb", 4)]
        );
        assert_eq!((view.migrating, view.importing), (vec![(8, "bb".to_owned())], vec![9]));
        assert!(view.nodes["aa"].is("master") && view.nodes["aa"].is_well() && !view.nodes["bb"].is_well());
        assert_eq!(view.nodes["cc"].master.as_deref(), Some("aa"));
        View::parse("aa 127.0.0.1:1@11 master").unwrap_err();
    }
}
