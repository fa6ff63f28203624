//! Callers that wait for acknowledgements of their writes.
//!
//! WAIT blocks its connection on the server. Callers with equal parameters therefore share one command if they arrive
//! before it is written. The command covers every write that the server answered before, and each caller has such an
//! answer.

use std::task::Waker;
use std::time::{Duration, Instant};

use wheellock_resp::Value;

use super::{Failure, Lane, NoWait, Pipeline, Slot, SlotState, What};
use crate::base::connection_id::ConnectionId;
use crate::base::error::Outcome;
use crate::protocol::acks::Acks;

/// One wait command and the callers that share it.
pub(super) struct WaitGroup {
    acks: Acks,
    millis: u64,
    /// The offset of the command's first byte.
    start: u64,
    /// The sequence number of the command's entry.
    sequence: u64,
    members: Vec<Member>,
}

/// A waiting caller: the slot of a call, or the token of a detached call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Member {
    Call(u32),
    Detached(u64),
}

impl WaitGroup {
    /// Returns the time for which the server may stay silent because of this command.
    pub(super) fn timeout(&self) -> Duration {
        Duration::from_millis(self.millis)
    }
}

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
        let sequence = self.unwritten_wait(connection, acks, millis, now)?;
        let slot = self.slots.insert(Slot { state: SlotState::Waiting(waker), sequence, deadline });
        let slot = u32::try_from(slot).map_err(|_| NoWait::Full)?;
        self.join_last_wait(Member::Call(slot));
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
        let is_queued = self.unwritten_wait(connection, acks, millis, now).is_ok();
        if is_queued {
            self.join_last_wait(Member::Detached(token));
        }
        is_queued
    }

    /// Makes sure that the last wait command has these parameters, and that no byte of it was written. Returns the
    /// sequence number of its entry.
    fn unwritten_wait(
        &mut self,
        connection: ConnectionId,
        acks: Acks,
        millis: u64,
        now: Instant,
    ) -> Result<u64, NoWait> {
        // WAIT covers only the writes of its own connection.
        if !self.connected || self.connection != connection {
            return Err(NoWait::Ended);
        }
        let can_share =
            |last: &&WaitGroup| (last.acks, last.millis) == (acks, millis) && last.start >= self.claimed;
        if let Some(last) = self.waits.back().filter(can_share) {
            let has_room = self.bounds.admits(Lane::Reserved, last.members.len(), 0);
            return has_room.then_some(last.sequence).ok_or(NoWait::Full);
        }
        if !self.admits(Lane::Reserved) {
            return Err(NoWait::Full);
        }
        let sequence = self.first + self.entries.len() as u64;
        self.waits.push_back(WaitGroup { acks, millis, start: self.queued, sequence, members: Vec::new() });
        self.push_command(What::Wait, &acks.command(millis), now);
        Ok(sequence)
    }

    fn join_last_wait(&mut self, member: Member) {
        if let Some(last) = self.waits.back_mut() {
            last.members.push(member);
        }
    }

    /// Removes a caller that left. The command stays, because it may be on its way and other callers may join.
    pub(super) fn leave_wait(&mut self, sequence: u64, slot: u32) {
        for group in self.waits.iter_mut().filter(|group| group.sequence == sequence) {
            group.members.retain(|member| *member != Member::Call(slot));
        }
    }

    /// Ends the oldest wait command.
    pub(super) fn end_wait(&mut self, result: &Result<Value, Failure>, wakers: &mut Vec<Waker>) {
        let Some(group) = self.waits.pop_front() else { return };
        for member in group.members {
            match member {
                Member::Call(slot) => self.finish(slot, result.clone(), wakers),
                Member::Detached(token) => self.finish_detached(token, result.clone()),
            }
        }
    }

    /// Fails unwritten waits, because the next connection cannot wait for writes of the previous one.
    pub(super) fn fail_unwritten_waits(&mut self, lost: &Failure, wakers: &mut Vec<Waker>) {
        let failure = Err(Failure { outcome: Outcome::NotSent, ..lost.clone() });
        while !self.waits.is_empty() {
            self.end_wait(&failure, wakers);
        }
    }
}
