//! Callers that wait for acknowledgements of their writes.
//!
//! `waits` groups these callers, and this module only queues and ends the groups.

use std::task::Waker;
use std::time::Instant;

use wheellock_resp::Value;

use super::waits::{Group, Member};
use super::{Entry, Failure, Lane, NoWait, Pipeline, Slot, SlotState, What};
use crate::base::connection_id::ConnectionId;
use crate::base::error::Outcome;
use crate::protocol::acks::Acks;

impl Pipeline {
    /// Makes a caller wait for acknowledgements of its write on `connection`, for at most `millis` milliseconds. The
    /// caller already has a reply of that connection. Its write therefore precedes every wait command that has not
    /// been written yet.
    pub(crate) fn submit_wait(
        &mut self,
        connection: ConnectionId,
        (acks, millis): (Acks, u64),
        now: Instant,
        deadline: Instant,
        waker: Waker,
    ) -> Result<u32, NoWait> {
        let group = self.group(connection, acks, millis, now)?;
        let sequence = self.waits.get(group).map_or(0, |group| group.sequence);
        let slot = self.slots.insert(Slot { state: SlotState::Waiting(waker), sequence, deadline });
        let slot = u32::try_from(slot).map_err(|_| NoWait::Full)?;
        self.waits.join(group, Member::Call(slot));
        Ok(slot)
    }

    /// Does the same as [`submit_wait`](Self::submit_wait) for a detached call, whose result is delivered with its
    /// token. Returns whether the wait was queued.
    pub(crate) fn submit_detached_wait(
        &mut self,
        connection: ConnectionId,
        (acks, millis): (Acks, u64),
        now: Instant,
        token: u64,
    ) -> bool {
        let Ok(group) = self.group(connection, acks, millis, now) else { return false };
        self.waits.join(group, Member::Detached(token));
        true
    }

    /// Returns a group that the caller can join: an unwritten group with equal parameters, or a new group.
    fn group(
        &mut self,
        connection: ConnectionId,
        acks: Acks,
        millis: u64,
        now: Instant,
    ) -> Result<u32, NoWait> {
        // WAIT covers only the writes of its own connection.
        if !self.connected || self.connection != connection {
            return Err(NoWait::Ended);
        }
        if let Some(group) = self.waits.unwritten(acks, millis, self.claimed) {
            let members = self.waits.get(group).map_or(0, Group::callers);
            return self.bounds.admits(Lane::Reserved, members, 0).then_some(group).ok_or(NoWait::Full);
        }
        if !self.admits(Lane::Reserved) {
            return Err(NoWait::Full);
        }
        let sequence = self.first + self.entries.len() as u64;
        let group = self.waits.insert(acks, millis, self.queued, sequence);
        self.push_encoded(What::Wait(group), now, |out| acks.encode(millis, out));
        Ok(group)
    }

    pub(super) fn end_wait(&mut self, group: u32, result: &Result<Value, Failure>, wakers: &mut Vec<Waker>) {
        for member in self.waits.end(group) {
            match member {
                Member::Call(slot) => self.finish(slot, result.clone(), wakers),
                Member::Detached(token) => self.finish_detached(token, result.clone()),
            }
        }
    }

    /// Fails unwritten waits, because the next connection cannot wait for writes of the previous one.
    pub(super) fn fail_unwritten_waits(&mut self, lost: &Failure, wakers: &mut Vec<Waker>) {
        let failure = Err(Failure { outcome: Outcome::NotSent, ..lost.clone() });
        for place in 0..self.entries.len() {
            if let Some(&Entry { what: What::Wait(group), .. }) = self.entries.get(place) {
                self.end_wait(group, &failure, wakers);
            }
        }
    }
}
