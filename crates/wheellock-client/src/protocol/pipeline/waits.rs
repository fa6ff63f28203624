//! Groups of callers that wait for acknowledgements together.
//!
//! WAIT blocks its connection on the server. Callers with equal parameters therefore share one command if they arrive
//! before it is written. The command covers every write that the server answered before, and each caller has such an
//! answer. This module does no I/O.

use std::time::Duration;

use slab::Slab;

use crate::protocol::acks::Acks;

/// All wait commands in flight on one connection.
#[derive(Default)]
pub(super) struct Waits {
    groups: Slab<Group>,
    /// The group that was queued last.
    last: Option<u32>,
}

/// One wait command and the callers that share it.
pub(super) struct Group {
    acks: Acks,
    millis: u64,
    /// The offset of the command's first byte.
    start: u64,
    /// The sequence number of the command's entry.
    pub(super) sequence: u64,
    members: Vec<Member>,
}

/// A waiting caller: the slot of a call, or the token of a detached call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Member {
    Call(u32),
    Detached(u64),
}

impl Waits {
    /// Returns the group with these parameters of which no byte has been written, if any.
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

    /// Removes a caller that left. The command stays, because it may be on its way and other callers may join.
    pub(super) fn leave(&mut self, group: u32, slot: u32) {
        if let Some(group) = self.groups.get_mut(group as usize) {
            group.members.retain(|member| *member != Member::Call(slot));
        }
    }

    /// Removes the group of a finished command and returns its members.
    pub(super) fn end(&mut self, group: u32) -> Vec<Member> {
        self.groups.try_remove(group as usize).map(|group| group.members).unwrap_or_default()
    }
}

impl Group {
    /// Returns the number of callers that share the command.
    pub(super) fn callers(&self) -> usize {
        self.members.len()
    }

    /// Returns the time for which the server may stay silent because of this command.
    pub(super) fn timeout(&self) -> Duration {
        Duration::from_millis(self.millis)
    }
}
