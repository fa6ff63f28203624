//! Who waits for replicas or disks to acknowledge what a connection has written. Pure.
//!
//! WAIT blocks its connection on the server, so those who ask for the same at about the same time share one command: it
//! covers everything that was answered before it is written, and each of them had an answer before coming here.

use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use slab::Slab;
use wheellock_resp::{Command, Value};

use super::{Detached, Failure, Lane, Pipeline, Slot, SlotState, What};
use crate::error::{ErrorKind, Outcome};

/// One connection, from its handshake to its end. What was written on another one is none of its business.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnectionId {
    pub(crate) node: u32,
    pub(crate) epoch: u32,
}

impl ConnectionId {
    /// The number of the server that it leads to: the one that [`Client::node_of`](crate::Client::node_of) gives for the
    /// keys that are served there. A server that takes another's place may have the same.
    pub fn node(self) -> u32 {
        self.node
    }
}

/// Who is to acknowledge a write before it counts as kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Acks {
    /// So many replicas (`WAIT`).
    Replicas(u32),
    /// The server's own append-only file, fsynced, and those of so many replicas (`WAITAOF`, Redis 7.2).
    Disks {
        /// How many besides the server's own.
        replicas: u32,
    },
}

impl Acks {
    /// How many acknowledgements are wanted.
    pub fn wanted(self) -> u32 {
        match self {
            Self::Replicas(replicas) => replicas,
            Self::Disks { replicas } => replicas.saturating_add(1),
        }
    }

    /// How many of them the server has told of; `None` if this is no answer to the command.
    pub fn heard(self, reply: &Value) -> Option<u32> {
        let count = |value: &Value| value.as_i64().and_then(|count| u32::try_from(count).ok());
        match self {
            Self::Replicas(_) => count(reply),
            Self::Disks { replicas } => {
                let [own, theirs] = reply.as_array()? else { return None };
                // More replicas than wanted do not make good for the missing own.
                Some(count(own)?.min(1) + count(theirs)?.min(replicas))
            }
        }
    }

    pub(crate) fn verb(self) -> &'static str {
        match self {
            Self::Replicas(_) => "WAIT",
            Self::Disks { .. } => "WAITAOF",
        }
    }

    /// The command that waits for so many milliseconds; 0 would be for ever.
    #[cold]
    pub(super) fn encode(self, millis: u64, out: &mut BytesMut) {
        let command = Command::new(self.verb());
        let command = match self {
            Self::Replicas(replicas) => command.arg(u64::from(replicas)),
            Self::Disks { replicas } => command.arg(1_u64).arg(u64::from(replicas)),
        };
        command.arg(millis.max(1)).encode(out);
    }
}

impl Pipeline {
    /// Has a caller wait until what was written on `connection` is acknowledged, or so many milliseconds have passed. The
    /// caller has an answer of that connection, so it comes before any such wait that is not on its way yet. `None` if that
    /// connection has ended, `Some(None)` if there is no room.
    pub(crate) fn submit_wait(
        &mut self,
        connection: ConnectionId,
        (acks, millis): (Acks, u64),
        now: Instant,
        deadline: Instant,
        waker: Waker,
    ) -> Option<Option<u32>> {
        let Some(group) = self.group(connection, acks, millis, now)? else { return Some(None) };
        let sequence = self.waits.get(group).map_or(0, |group| group.sequence);
        let slot = self.slots.insert(Slot { state: SlotState::Waiting(waker), sequence, deadline });
        let slot = u32::try_from(slot).ok();
        if let Some(slot) = slot {
            self.waits.join(group, Member::Call(slot));
        }
        Some(slot)
    }

    /// As [`submit_wait`](Self::submit_wait), for a result that is handed out with its token. Returns whether it was queued.
    pub(crate) fn submit_detached_wait(
        &mut self,
        connection: ConnectionId,
        (acks, millis): (Acks, u64),
        now: Instant,
        token: u64,
    ) -> bool {
        let Some(Some(group)) = self.group(connection, acks, millis, now) else { return false };
        self.waits.join(group, Member::Detached(token));
        true
    }

    /// The group to join: one that is still to be written, or a new one.
    fn group(
        &mut self,
        connection: ConnectionId,
        acks: Acks,
        millis: u64,
        now: Instant,
    ) -> Option<Option<u32>> {
        if !self.connected || self.connection != connection {
            return None;
        }
        if let Some(group) = self.waits.unwritten(acks, millis, self.claimed) {
            let members = self.waits.get(group).map_or(0, |group| group.members().len());
            return Some(self.bounds.admits(Lane::Reserved, members, 0).then_some(group));
        }
        if !self.bounds.admits(Lane::Reserved, self.entries.len(), self.out.len()) {
            return Some(None);
        }
        let sequence = self.first + self.entries.len() as u64;
        let group = self.waits.insert(acks, millis, self.queued, sequence);
        self.push(What::Wait(group), now);
        acks.encode(millis, &mut self.out);
        self.close_entry();
        Some(Some(group))
    }

    pub(super) fn end_wait(&mut self, group: u32, result: &Result<Value, Failure>, wakers: &mut Vec<Waker>) {
        for member in self.waits.end(group) {
            match member {
                Member::Call(slot) => self.finish(slot, result.clone(), wakers),
                Member::Detached(token) => {
                    let result = result.clone().map_err(|failure| failure.outcome);
                    self.detached.push(Detached { token, result, connection: self.connection });
                }
            }
        }
    }

    /// Fails those of a group whose deadlines have passed; returns the earliest deadline that is left.
    pub(super) fn expire_members(
        &mut self,
        group: u32,
        now: Instant,
        wakers: &mut Vec<Waker>,
    ) -> Option<Instant> {
        let members = self.waits.get(group)?.members().to_vec();
        let mut earliest = None::<Instant>;
        for member in members {
            let Member::Call(slot) = member else { continue };
            let Some(deadline) = self.slots.get(slot as usize).map(|slot| slot.deadline) else { continue };
            if deadline > now {
                earliest = Some(earliest.map_or(deadline, |earliest| earliest.min(deadline)));
                continue;
            }
            self.waits.leave(group, slot);
            let outcome = Outcome::MaybeExecuted;
            self.finish(slot, Err(Failure { kind: ErrorKind::Timeout, outcome, cause: None }), wakers);
        }
        earliest
    }

    /// What was written on a connection cannot be waited for on the next one.
    pub(super) fn fail_unwritten_waits(&mut self, lost: &Failure, wakers: &mut Vec<Waker>) {
        let waits: Vec<u32> = self
            .entries
            .iter()
            .filter_map(|entry| match entry.what {
                What::Wait(group) => Some(group),
                _ => None,
            })
            .collect();
        for group in waits {
            self.end_wait(group, &Err(Failure { outcome: Outcome::NotSent, ..lost.clone() }), wakers);
        }
    }
}

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
    /// Its place in line.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_disk_of_its_own_is_not_made_good_by_replicas() {
        let disks = |own: i64, theirs: i64| Value::Array(vec![Value::Integer(own), Value::Integer(theirs)]);
        let acks = Acks::Disks { replicas: 1 };
        assert_eq!((acks.wanted(), acks.heard(&disks(1, 1))), (2, Some(2)));
        assert_eq!(acks.heard(&disks(0, 5)), Some(1));
        assert_eq!(acks.heard(&disks(1, 0)), Some(1));
        assert_eq!(acks.heard(&Value::Integer(3)), None);
        assert_eq!(Acks::Replicas(2).heard(&Value::Integer(3)), Some(3));
        assert_eq!(Acks::Replicas(2).heard(&disks(1, 1)), None);
        assert_eq!(Acks::Replicas(2).heard(&Value::Integer(-1)), None);
    }

    #[test]
    fn nobody_waits_for_ever() {
        let encoded = |acks: Acks, millis| {
            let mut out = BytesMut::new();
            acks.encode(millis, &mut out);
            String::from_utf8(out.to_vec()).unwrap()
        };
        assert_eq!(encoded(Acks::Replicas(2), 0), "*3\r\n$4\r\nWAIT\r\n$1\r\n2\r\n$1\r\n1\r\n");
        let disks = encoded(Acks::Disks { replicas: 0 }, 900);
        assert_eq!(disks, "*4\r\n$7\r\nWAITAOF\r\n$1\r\n1\r\n$1\r\n0\r\n$3\r\n900\r\n");
    }
}
