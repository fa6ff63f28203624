//! Events put together: one operation is an attempt to acquire and all that followed. Pure.

use std::collections::HashMap;

use super::event::{Event, Kind, Outcome, Reason, What};

/// One attempt to acquire a lock, and what followed.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Its process and its number there.
    pub id: (u32, u64),
    /// The task.
    pub task: u32,
    /// The lock.
    pub lock: String,
    /// How it asked.
    pub kind: Kind,
    /// Whether the watchdog was to renew the lease.
    pub renewed: bool,
    /// The lease, in nanoseconds.
    pub lease: u64,
    /// When it asked.
    pub invoked: u64,
    /// When its hold was asked for: by itself, or by the first of those of its process who have handed it over since, which is told by
    /// its `valid_until`.
    pub since: u64,
    /// When its wait was to end.
    pub deadline: Option<u64>,
    /// Its owner; empty if nobody has learnt of it.
    pub owner: String,
    /// Whether others who share may hold the lock at the same time.
    pub shared: bool,
    /// How many permits of a pool it is about.
    pub permits: u64,
    /// The fencing token of its grant.
    pub token: Option<u64>,
    /// How the acquire ended, and when.
    pub answer: Option<(u64, Answer)>,
    /// When the holder believed, if it was granted.
    pub belief: Option<Belief>,
    /// The last `valid_until` known.
    pub valid_until: u64,
    /// When the guard said that it was lost, and why.
    pub lost: Option<(u64, Reason, u64)>,
    /// When the holder began to give the lock back, if it did.
    pub ended: Option<u64>,
    /// How that ended, and when.
    pub ending: Option<(u64, Ending)>,
    /// When its process was killed, if that was before the end.
    pub killed: Option<u64>,
    /// Its last event.
    pub last: u64,
    /// Its events, as places in the history.
    pub events: Vec<usize>,
}

/// How an acquire ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// With the lock.
    Granted,
    /// Without.
    NotGranted,
    /// With an error.
    Failed(Outcome),
    /// Its future was dropped.
    Cancelled,
}

/// How giving the lock back ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Confirmed.
    Released,
    /// There was nothing left to release.
    AlreadyLost,
    /// Nobody knows; it goes on in the background.
    Unconfirmed,
    /// The guard was dropped.
    Dropped,
}

/// The time in which a holder had every right to work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Belief {
    /// The return of the acquire.
    pub from: u64,
    /// The first of: the release is about to be sent, the loss was told, the guard called itself invalid, `valid_until`
    /// as last seen has come, the process was killed.
    pub to: u64,
}

impl Operation {
    /// Whether it asked for longer than one answer takes.
    #[must_use]
    pub fn waits(&self) -> bool {
        matches!(self.kind, Kind::Acquire | Kind::TryFor | Kind::Run)
    }

    /// Whether it asked again until its time was up. Who asks for a lock where others ask for several at once waits for nobody's turn, and
    /// has such a time nevertheless.
    #[must_use]
    pub fn asks_again(&self) -> bool {
        self.waits() || self.deadline.is_some()
    }

    /// When its acquire was over, as far as the history goes.
    #[must_use]
    pub fn answered(&self) -> Option<u64> {
        self.answer.map(|(at, _)| at)
    }
}

/// Puts the events of every operation together, in the order in which they began.
#[must_use]
pub fn operations(events: &[Event]) -> Vec<Operation> {
    let mut operations: Vec<Operation> = Vec::new();
    let mut known: HashMap<(u32, u64), usize> = HashMap::new();
    let mut killed: HashMap<u32, u64> = HashMap::new();
    let mut granted: HashMap<(u32, &str), usize> = HashMap::new();
    for (place, event) in events.iter().enumerate() {
        if event.what == What::Killed {
            killed.insert(event.process, event.at);
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
                // What moves after it has passed brings nothing back.
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
    fn a_belief_ends_with_whatever_comes_first() {
        let granted = "10 1 1 1 a invoked acquire true 100 - -\n20 1 1 1 a granted me:1 110\n";
        for (rest, to) in [
            ("", 110),
            ("50 1 1 1 a releasing\n60 1 1 1 a released\n", 50),
            ("50 1 1 1 a dropped\n", 50),
            ("50 1 1 1 a lost expired 110\n", 50),
            ("50 1 1 1 a disclaimed\n", 50),
            ("50 1 0 0 - killed\n", 50),
            ("50 2 0 0 - killed\n", 110),
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
