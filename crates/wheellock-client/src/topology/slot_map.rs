use super::nodes::Node;
use crate::config::Address;
use std::collections::HashSet;
#[derive(Default)]
pub(crate) struct SlotMap {
    owners: Vec<Option<(Address, u64)>>,
    known: HashSet<Address>,
}
pub(crate) struct Learnt {
    pub(crate) primaries: Vec<Address>,
}
impl SlotMap {
    pub(crate) fn learn(&mut self, nodes: &[Node], asked: &Address, _prefer: bool) -> Learnt {
        self.owners.resize(16384, None);
        let mut primaries = vec![];
        for n in nodes {
            let host = if n.host.is_empty() {
                match asked {
                    Address::Tcp { host, .. } => host.clone(),
                    _ => continue,
                }
            } else {
                n.host.clone()
            };
            let a = Address::Tcp { host, port: n.port };
            self.known.insert(a.clone());
            if n.is_primary && !n.is_failed {
                primaries.push(a.clone());
                for r in &n.slots {
                    for s in r.clone() {
                        self.owners[s as usize] = Some((a.clone(), n.epoch));
                    }
                }
            }
        }
        Learnt { primaries }
    }
    pub(crate) fn owner(&self, slot: u16) -> Option<&Address> {
        self.owners.get(slot as usize)?.as_ref().map(|(a, _)| a)
    }
    pub(crate) fn moved(&mut self, slot: u16, to: &Address) -> bool {
        if !self.known.contains(to) {
            return false;
        }
        self.owners[slot as usize] = Some((to.clone(), 0));
        true
    }
    pub(crate) fn replicas_too(&self) -> impl Iterator<Item = &Address> {
        self.known.iter()
    }
}
