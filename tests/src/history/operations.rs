//! Operations, built from the events of a history.
//!
//! An operation is an attempt to acquire with all its later events. Pure.

use std::collections::{HashMap, HashSet};

use super::event::{Event, Kind, Outcome, Reason, What};

/// An attempt to acquire a lock, with all later events.
#[derive(Clone, Debug)]
pub struct Operation {
    /// The process and the operation's number there.
    pub id: (u32, u64),
    /// The task.
    pub task: u32,
    /// The lock.
    pub lock: String,
    /// The kind of attempt.
    pub kind: Kind,
    /// True if the watchdog had to renew the lease.
    pub renewed: bool,
    /// The lease, in nanoseconds.
    pub lease: u64,
    /// The begin of the attempt.
    pub invoked: u64,
    /// The time at which the hold was requested. After hand-overs, it is the request of the first operation of the process; the operations
    /// share a `valid_until`.
    pub since: u64,
    /// The deadline of the wait.
    pub deadline: Option<u64>,
    /// The owner; empty if it is unknown.
    pub owner: String,
    /// True if other shared holds may exist at the same time.
    pub shared: bool,
    /// The number of permits of a pool.
    pub permits: u64,
    /// The minimum time of the hold, from the grant.
    pub min: Option<u64>,
    /// The maximum time of the hold, from the grant.
    pub max: Option<u64>,
    /// The owner whose ticket the operation adopts.
    pub adopts: Option<String>,
    /// The fencing token of the grant.
    pub token: Option<u64>,
    /// The time and the kind of the acquire's end.
    pub answer: Option<(u64, Answer)>,
    /// The time in which the holder believed, if the lock was granted.
    pub belief: Option<Belief>,
    /// The last known `valid_until`.
    pub valid_until: u64,
    /// The time and the reason of the reported loss, and the guard's `valid_until` then.
    pub lost: Option<(u64, Reason, u64)>,
    /// The begin of the release, if there was one.
    pub ended: Option<u64>,
    /// The time and the kind of the release's end.
    pub ending: Option<(u64, Ending)>,
    /// The kill of the process, if it was killed before the end.
    pub killed: Option<u64>,
    /// The time of the last event.
    pub last: u64,
    /// The operation's events, as indices into the history.
    pub events: Vec<usize>,
}

/// The end of an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The lock was granted.
    Granted,
    /// The lock was not granted.
    NotGranted,
    /// The acquire failed.
    Failed(Outcome),
    /// The future was dropped.
    Cancelled,
}

/// The end of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The server confirmed the release.
    Released,
    /// The hold was already lost.
    AlreadyLost,
    /// Unknown: the release continues in the background.
    Unconfirmed,
    /// The guard was dropped.
    Dropped,
    /// The guard became a ticket.
    Sent,
}

/// The time in which a holder was entitled to work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Belief {
    /// The return of the acquire.
    pub from: u64,
    /// The end, which is the first of these events:
    /// - the release is about to be sent
    /// - the loss was reported
    /// - the guard called itself invalid
    /// - the last known `valid_until` has passed
    /// - the process was killed
    pub to: u64,
}

impl Operation {
    /// Returns true if the operation waits beyond the first reply.
    #[must_use]
    pub fn waits(&self) -> bool {
        matches!(self.kind, Kind::Acquire | Kind::TryFor | Kind::Run)
    }

    /// Returns true if the operation polled until its deadline. An attempt on one lock of a set does not wait for a turn, but has a
    /// deadline nevertheless.
    #[must_use]
    pub fn asks_again(&self) -> bool {
        self.waits() || self.deadline.is_some()
    }

    /// Returns until when the minimum keeps the lock after a release that ended at `at`. A slow release keeps the lock longer.
    #[must_use]
    pub fn kept_until(&self, at: u64) -> u64 {
        let slow = self.ended.map_or(0, |ended| at.saturating_sub(ended));
        let end = self.answered().zip(self.min).map_or(0, |(granted, min)| granted + min + slow);
        end.max(at)
    }

    /// Returns when the maximum ends the hold, if it has one.
    #[must_use]
    pub fn over_at(&self) -> Option<u64> {
        self.answered().zip(self.max).map(|(granted, max)| granted + max)
    }

    /// Returns when the maximum has freed the lock, if there is one. A waiter may know the lease from before a hand-over, and then polls at
    /// its end.
    #[must_use]
    pub fn freed_by(&self) -> Option<u64> {
        Some(self.over_at()?.max(self.answered()? + self.lease))
    }

    /// Returns the end of the acquire, if the history contains it.
    #[must_use]
    pub fn answered(&self) -> Option<u64> {
        self.answer.map(|(at, _)| at)
    }
}

/// Collects the events of every operation. The operations are in the order of their begins.
#[must_use]
pub fn operations(events: &[Event]) -> Vec<Operation> {
    let mut operations: Vec<Operation> = Vec::new();
    let mut known: HashMap<(u32, u64), usize> = HashMap::new();
    let mut killed: HashMap<u32, u64> = HashMap::new();
    let mut shut: HashSet<u32> = HashSet::new();
    let mut granted: HashMap<(u32, &str), usize> = HashMap::new();
    for (place, event) in events.iter().enumerate() {
        if event.what == What::Killed {
            killed.insert(event.process, event.at);
        }
        if event.what == What::ShutDown {
            shut.insert(event.process);
        }
        if event.what == What::Stopped && shut.contains(&event.process) {
            // The shutdown has ended these holds. Their tasks find that only when they run again.
            let held = operations.iter_mut().filter(|operation| operation.id.0 == event.process);
            held.for_each(|operation| operation.believed_until(event.at));
        }
        let id = (event.process, event.op);
        if let What::Invoked { kind, renewed, lease, deadline, owner, shared } = &event.what {
            known.insert(id, operations.len());
            operations.push(Operation {
                id,
                task: event.task,
                lock: event.lock.clone(),
                kind: *kind,
                renewed: *renewed,
                lease: *lease,
                invoked: event.at,
                since: event.at,
                deadline: *deadline,
                owner: owner.clone(),
                shared: *shared,
                permits: 1,
                min: None,
                max: None,
                adopts: None,
                token: None,
                answer: None,
                belief: None,
                valid_until: 0,
                lost: None,
                ended: None,
                ending: None,
                killed: None,
                last: event.at,
                events: vec![place],
            });
            continue;
        }
        if let (What::Granted { valid_until, .. }, Some(&index)) = (&event.what, known.get(&id))
            && let Some(before) = granted.insert((event.process, event.lock.as_str()), index)
            && operations[before].valid_until == *valid_until
        {
            operations[index].since = operations[before].since;
        }
        if let Some(operation) = known.get(&id).map(|index| &mut operations[*index]) {
            operation.events.push(place);
            operation.last = event.at;
            operation.take(event.at, &event.what);
        }
    }
    for operation in &mut operations {
        let over = operation.ending.is_some()
            || operation.answer.is_some_and(|(_, answer)| answer != Answer::Granted);
        operation.killed = killed.get(&operation.id.0).copied().filter(|_| !over);
        operation.close();
    }
    operations
}

impl Operation {
    fn take(&mut self, at: u64, what: &What) {
        match what {
            What::Takes { permits } => self.permits = *permits,
            What::Limits { min, max } => (self.min, self.max) = (*min, *max),
            What::Adopts { owner } => self.adopts = Some(owner.clone()),
            What::Granted { owner, valid_until, token } => {
                self.owner.clone_from(owner);
                self.token = *token;
                self.valid_until = *valid_until;
                self.answer = Some((at, Answer::Granted));
                self.belief = Some(Belief { from: at, to: u64::MAX });
            }
            What::NotGranted => self.answer = Some((at, Answer::NotGranted)),
            What::Failed { outcome, .. } => self.answer = Some((at, Answer::Failed(*outcome))),
            What::Cancelled => self.answer = Some((at, Answer::Cancelled)),
            What::Moved { valid_until } => {
                // A change of `valid_until` after its expiry does not restore the belief.
                self.believed_until(if at > self.valid_until { self.valid_until } else { u64::MAX });
                self.valid_until = *valid_until;
            }
            What::Disclaimed => self.believed_until(at),
            What::Lost { reason, valid_until } => {
                self.lost.get_or_insert((at, *reason, *valid_until));
                self.believed_until(at);
            }
            What::Releasing => self.end(at),
            What::Dropped => {
                self.end(at);
                self.ending.get_or_insert((at, Ending::Dropped));
            }
            What::Sent => self.ending = Some((at, Ending::Sent)),
            What::Released => self.ending = Some((at, Ending::Released)),
            What::AlreadyLost => self.ending = Some((at, Ending::AlreadyLost)),
            What::Unconfirmed { .. } => self.ending = Some((at, Ending::Unconfirmed)),
            _ => {}
        }
    }

    fn end(&mut self, at: u64) {
        self.ended.get_or_insert(at);
        self.believed_until(at);
    }

    fn believed_until(&mut self, at: u64) {
        if let Some(belief) = &mut self.belief {
            belief.to = belief.to.min(at);
        }
    }

    fn close(&mut self) {
        let (valid_until, killed) = (self.valid_until, self.killed);
        self.believed_until(valid_until);
        self.believed_until(killed.unwrap_or(u64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::History;

    fn belief(text: &str) -> Option<(u64, u64)> {
        let history = History::merge(History::parse(text).unwrap());
        let operations = operations(&history.events);
        assert_eq!(operations.len(), 1);
        operations[0].belief.map(|belief| (belief.from, belief.to))
    }

    #[test]
    fn belief_ends_at_earliest_event() {
        let granted = "10 1 1 1 a invoked acquire true 100 - -\n20 1 1 1 a granted me:1 110\n";
        for (rest, to) in [
            ("", 110),
            ("50 1 1 1 a releasing\n60 1 1 1 a released\n", 50),
            ("50 1 1 1 a dropped\n", 50),
            ("50 1 1 1 a lost expired 110\n", 50),
            ("50 1 1 1 a disclaimed\n", 50),
            ("50 1 0 0 - killed\n", 50),
            ("50 2 0 0 - killed\n", 110),
            ("50 1 0 0 - shut-down\n60 1 0 0 - stopped\n90 1 1 1 a disclaimed\n", 60),
            ("50 1 0 0 - stopped\n90 1 1 1 a disclaimed\n", 90),
            ("50 1 1 1 a moved 150\n", 150),
            ("50 1 1 1 a moved 150\n60 1 1 1 a moved 70\n", 70),
            ("120 1 1 1 a moved 220\n", 110),
            ("50 1 1 1 a moved 150\n160 1 1 1 a releasing\n", 150),
        ] {
            assert_eq!(belief(&format!("{granted}{rest}")), Some((20, to)), "{rest:?}");
        }
        assert_eq!(belief("10 1 1 1 a invoked try true 100 - -\n20 1 1 1 a not-granted\n"), None);
    }
}
