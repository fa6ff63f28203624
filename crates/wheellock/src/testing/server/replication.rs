//! Replication: the roles of servers, the data that replicas lack, and `WAIT`.
//!
//! The owner of the servers decides when a replica gets which data. A replica has an older state of its primary.

use super::connection::Waiting;
use super::store::{Answer, Snapshot};
use super::{How, Server, encode};

/// The state of a server as its replicas know it.
#[derive(Debug, Default)]
pub(super) struct Replication {
    /// The server rejects writes.
    pub(super) is_replica: bool,
    /// Number of writes so far.
    pub(super) offset: u64,
    /// Number of writes that each replica has, by the number of the replica.
    acknowledged: Vec<u64>,
}

/// All data of a primary at one time.
#[derive(Clone, Debug)]
pub struct ReplicatedState {
    snapshot: Snapshot,
    offset: u64,
}

impl ReplicatedState {
    /// Returns the number of writes in this state.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

impl Server {
    /// Returns the number of writes so far.
    pub fn offset(&self) -> u64 {
        self.replication.offset
    }

    /// Returns true if this server rejects writes.
    pub fn is_replica(&self) -> bool {
        self.replication.is_replica
    }

    /// Returns the data for a replica.
    pub fn replicated_state(&self) -> ReplicatedState {
        ReplicatedState { snapshot: self.store.snapshot(), offset: self.replication.offset }
    }

    /// Replaces all data by that of a primary.
    pub fn follow(&mut self, state: &ReplicatedState) {
        self.store.replace(state.snapshot.clone());
        self.replication.offset = state.offset;
    }

    /// Records that replica number `replica` has `state`. Ends the calls of `WAIT` that waited for it.
    pub fn acknowledge(&mut self, replica: usize, state: &ReplicatedState) {
        let acknowledged = &mut self.replication.acknowledged;
        acknowledged.resize(acknowledged.len().max(replica + 1), 0);
        if let Some(known) = acknowledged.get_mut(replica) {
            *known = state.offset;
        }
    }

    /// Makes this replica a primary, which has no replicas yet.
    pub fn promote(&mut self) {
        self.replication.is_replica = false;
        self.replication.acknowledged.clear();
        self.store.replication_id.push('a');
    }

    /// Makes this server a replica. Its connections stay, except for those that wait for replicas.
    pub fn demote(&mut self) {
        self.replication.is_replica = true;
        self.replication.acknowledged.clear();
        let mut place = 0;
        while place < self.connections.len() {
            match self.connections[place].waiting {
                Some(_) => self.end_one(place, How::Fin),
                None => place += 1,
            }
        }
    }

    /// Starts the server again after a crash, as a primary without replicas.
    pub fn restart(&mut self, forgets: bool) {
        self.end(How::Rst);
        if forgets {
            self.store.forget_everything();
        }
        self.store.execute(&["SCRIPT", "FLUSH"]);
        self.store.run_id.push('b');
        self.promote();
    }

    /// Begins the wait for replicas. Returns the reply if the wait ends at once.
    pub(super) fn wait_for_replicas(
        &mut self,
        place: usize,
        replicas: &str,
        timeout: &str,
    ) -> Option<String> {
        if self.replication.is_replica {
            return Some("-ERR WAIT cannot be used with replica instances.\r\n".to_owned());
        }
        let (Ok(wanted), Ok(timeout)) = (replicas.parse(), timeout.parse::<u64>()) else {
            return Some("-ERR value is not an integer or out of range\r\n".to_owned());
        };
        let connection = &mut self.connections[place];
        let offset = connection.wrote_at;
        let due = if timeout == 0 { u64::MAX } else { self.store.now().saturating_add(timeout) };
        let waiting = Waiting { offset, wanted, due };
        let has =
            self.replication.acknowledged.iter().filter(|acknowledged| **acknowledged >= offset).count();
        if has >= wanted {
            return Some(encode(&Answer::Integer(i64::try_from(has).unwrap_or(i64::MAX))));
        }
        connection.waiting = Some(waiting);
        None
    }

    /// Ends the wait of a connection for replicas, if it is over. Returns true if it was.
    pub(super) fn end_wait(&mut self, place: usize) -> bool {
        let Some(Waiting { offset, wanted, due }) = self.connections[place].waiting else { return false };
        let acknowledged = &self.replication.acknowledged;
        let has = acknowledged.iter().filter(|acknowledged| **acknowledged >= offset).count();
        let now = self.store.now();
        if has < wanted && now < due {
            return false;
        }
        self.connections[place].waiting = None;
        let reply = encode(&Answer::Integer(i64::try_from(has).unwrap_or(i64::MAX)));
        self.connections[place].put(&reply, now + self.faults.latency);
        true
    }
}
