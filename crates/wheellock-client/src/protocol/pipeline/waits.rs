//! Who waits for replicas or disks to acknowledge what a connection has written. Pure.
//!
//! WAIT blocks its connection on the server, so those who ask for the same at about the same time share one command: it
//! covers everything that was answered before it is written, and each of them had an answer before coming here.

use std::time::Duration;

use slab::Slab;

use crate::protocol::acks::Acks;

/// All commands of this kind that are under way on one connection.
#[derive(Default)]
pub(super) struct Waits {
    groups: Slab<Group>,
    /// The last one that was queued.
    last: Option<u32>,
}

/// One command and those who share it.
pub(super) struct Group {
    acks: Acks,
    millis: u64,
    /// Offset of its first byte.
    start: u64,
    /// Its place in wire order.
    pub(super) sequence: u64,
    members: Vec<Member>,
}

/// One who waits: the slot of a call, or the token of a detached one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Member {
    Call(u32),
    Detached(u64),
}

impl Waits {
    /// The command that waits for just this and of which no byte has left, if there is one.
    pub(super) fn unwritten(&self, acks: Acks, millis: u64, claimed: u64) -> Option<u32> {
        let last = self.last?;
        let group = self.groups.get(last as usize)?;
        ((group.acks, group.millis) == (acks, millis) && group.start >= claimed).then_some(last)
    }

    pub(super) fn insert(&mut self, acks: Acks, millis: u64, start: u64, sequence: u64) -> u32 {
        let group = Group { acks, millis, start, sequence, members: Vec::new() };
        let index = u32::try_from(self.groups.insert(group)).unwrap_or(u32::MAX);
        self.last = Some(index);
        index
    }

    pub(super) fn get(&self, group: u32) -> Option<&Group> {
        self.groups.get(group as usize)
    }

    pub(super) fn join(&mut self, group: u32, member: Member) {
        if let Some(group) = self.groups.get_mut(group as usize) {
            group.members.push(member);
        }
    }

    /// The caller is gone. The command stays: it may be on its way, and others may join.
    pub(super) fn leave(&mut self, group: u32, slot: u32) {
        if let Some(group) = self.groups.get_mut(group as usize) {
            group.members.retain(|member| *member != Member::Call(slot));
        }
    }

    /// The command has ended, for these.
    pub(super) fn end(&mut self, group: u32) -> Vec<Member> {
        self.groups.try_remove(group as usize).map(|group| group.members).unwrap_or_default()
    }
}

impl Group {
    pub(super) fn members(&self) -> &[Member] {
        &self.members
    }

    /// For how long the server may be silent because of it.
    pub(super) fn timeout(&self) -> Duration {
        Duration::from_millis(self.millis)
    }
}
