//! This process's membership in the fleet of a server, by one of the fleet's keys, and the grace after a failover. Pure.
//!
//! A failover may lose the newest grants. After it, the living holders write their holds into the new server, and until then
//! no process is granted a lock. `tests/failover-model` has the protocol as a model: each rule here names the mutation that
//! breaks the model without it.

use std::collections::VecDeque;
use std::time::Duration;

use wheellock_client::layer::ConnectionId;

use super::Hold;
use crate::base::clock::BootInstant;
use crate::base::fleet::FleetHealth;
use crate::base::fleet_terms::Terms;

/// The membership of this process.
pub(super) struct Membership {
    terms: Terms,
    /// The server that a refresh last found behind the connection.
    server: Option<Server>,
    /// The connection to that server; `None` since another server may be behind the connection.
    connection: Option<ConnectionId>,
    /// Incarnations that this process has left for a later one, and must not use again ("back to an incarnation that was left").
    left: VecDeque<String>,
    /// When the last refresh was sent that enough servers have acknowledged, on this server or an earlier one.
    counted: Option<BootInstant>,
    /// The last refresh has written an entry into the server behind the connection, so that replicas can acknowledge it.
    has_entry: bool,
    /// The last refresh got no reply.
    is_failing: bool,
    /// Since when no lock can be acquired.
    closed_since: BootInstant,
    /// From and until when requests for locks may be sent, without a further reply. Each acquire asks this twice, so it is computed once for
    /// each reply.
    open: Option<(BootInstant, BootInstant)>,
}

/// A server, from one promotion or restart to the next.
struct Server {
    incarnation: String,
    /// When this process learned that the grace is over.
    grace_over: Option<BootInstant>,
    /// Every server knows this process, so that the next primary knows it as well ("entry not acknowledged").
    is_known: bool,
    /// The last reply has shown that this server has no entry of this process.
    lacks_entry: bool,
    /// This process could acquire locks here.
    was_ready: bool,
    /// The entry of this process shows that this server knows all processes that its predecessor knew ("early end without a
    /// witness").
    is_witness: bool,
    /// When this process learned that enough replicas of this server have acknowledged its last refresh. Until then a replica may have
    /// acknowledged refreshes of other processes on an earlier primary ("secure from the send of a refresh").
    counted: Option<BootInstant>,
    /// The server's clock in milliseconds, and an instant at which it showed this time at least.
    clock: (i64, BootInstant),
    /// Number of replicas that were connected at the last refresh.
    connected: u32,
    news: GraceNews,
}

impl Server {
    fn is_grace_over(&self) -> bool {
        self.grace_over.is_some()
    }

    /// Returns the time until the grace ends at the latest, if that is known.
    fn grace_left(&self, now: BootInstant) -> Option<Duration> {
        let (_, read) = self.clock;
        let since = now.saturating_duration_since(read);
        let left = self.news.ends_in?.saturating_sub(since);
        // A message needs no more than milliseconds.
        Some(Duration::from_millis(u64::try_from(left.as_millis()).unwrap_or(u64::MAX)))
    }
}

/// The progress of a grace, for messages.
#[derive(Clone, Copy, Default)]
struct GraceNews {
    members: u64,
    checked_in: u64,
    ends_in: Option<Duration>,
}

/// The content of a refresh.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refresh {
    /// The server that this process has met last. Another server ignores the rest.
    pub(crate) incarnation: String,
    /// Enough servers have acknowledged an earlier refresh in this incarnation.
    pub(crate) is_counted: bool,
    pub(crate) check_in: CheckIn,
    /// This server has no entry of this process, so that the refresh adds one.
    pub(crate) lacks_entry: bool,
}

/// How far this process is in a grace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CheckIn {
    /// Some holds are not written yet.
    NotYet,
    /// All holds are written.
    Done,
    /// All holds are written, and this process is a witness.
    DoneAsWitness,
}

/// The reply to a refresh.
pub(crate) struct Refreshed {
    pub(crate) run_id: String,
    /// The server's run id and replication id, and the number of its grace.
    pub(crate) incarnation: String,
    /// The server's clock in milliseconds.
    pub(crate) time: i64,
    pub(crate) is_grace_over: bool,
    /// The server knew this process before the refresh.
    pub(crate) was_known: bool,
    pub(crate) members: u64,
    pub(crate) checked_in: u64,
    /// Time until the grace ends at the latest, if that is known.
    pub(crate) ends_in: Option<Duration>,
    /// Number of replicas that are connected to the server.
    pub(crate) connected: u32,
}

/// The server of a refresh, compared with that of the refresh before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Found {
    /// The same connection to the same server, or no server behind the connection for locks.
    NothingNew,
    /// The same server behind a new connection.
    SameServer,
    /// Another server, into which all holds have to be written.
    OtherServer,
}

/// The meaning of a reply about holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Trust {
    /// The reply comes from a server that this process does not know yet.
    None,
    /// The reply is right, and extends no hold.
    NoExtension,
    /// The reply counts as that of a server without failovers.
    Full,
}

impl Membership {
    pub(super) fn new(terms: Terms, now: BootInstant) -> Self {
        Self {
            terms,
            server: None,
            connection: None,
            left: VecDeque::new(),
            counted: None,
            has_entry: false,
            is_failing: false,
            closed_since: now,
            open: None,
        }
    }

    /// Returns true if the last refresh found the server of this connection.
    pub(super) fn is_on(&self, connection: ConnectionId) -> bool {
        self.connection == Some(connection)
    }

    /// Returns true if the last refresh did not find the server of this connection.
    pub(super) fn is_elsewhere(&self, connection: Option<ConnectionId>) -> bool {
        self.connection != connection
    }

    /// Returns true if the last refresh found a server that is still there.
    pub(super) fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Returns true if every server knows this process.
    pub(super) fn is_entered(&self) -> bool {
        self.server.as_ref().is_some_and(|server| server.is_known)
    }

    /// Returns true if the last server can extend holds.
    pub(super) fn can_extend(&self) -> bool {
        self.server.as_ref().is_some_and(|server| server.is_known && server.counted.is_some())
    }

    /// Records that another server may be behind the connection.
    pub(super) fn is_replaced(&mut self, now: BootInstant) {
        if self.connection.take().is_some() {
            self.closed_since = now;
        }
        self.open = None;
    }

    /// Records that a refresh has failed, so that the next one follows soon.
    pub(super) fn refresh_failed(&mut self) {
        self.is_failing = true;
    }

    /// Handles the reply to a refresh. `behind` is the connection for locks, and the run id of the server behind it.
    pub(super) fn refreshed(
        &mut self,
        reply: &Refreshed,
        behind: Option<(ConnectionId, String)>,
        now: BootInstant,
    ) -> Found {
        // Acknowledgements of a reply that is not used say nothing about the server of an earlier reply.
        (self.has_entry, self.is_failing) = (false, false);
        // Refreshes have a connection of their own. A refresh of one server says nothing about locks on another.
        let behind = behind.filter(|(_, run_id)| *run_id == reply.run_id);
        let Some((connection, _)) = behind.filter(|_| self.accepts(&reply.incarnation, now)) else {
            self.is_replaced(now);
            return Found::NothingNew;
        };
        let is_new = self.connection.replace(connection) != Some(connection);
        let is_other = self.server.as_ref().is_none_or(|server| server.incarnation != reply.incarnation);
        if is_other {
            self.meet(reply, now);
        }
        let Some(server) = &mut self.server else { return Found::NothingNew };
        // A refresh adds an entry only if an earlier reply has shown that there is none. Otherwise a process that misses the reply would find
        // its own entry, and vouch for a server that has lost its data, or acquire locks though others have removed its entry.
        self.has_entry = reply.was_known || server.lacks_entry && !is_other;
        server.lacks_entry = !self.has_entry;
        if !is_other && !reply.was_known {
            // Another process has removed the entry, so this process counts as new ("a vanished entry is entered again and counts").
            (server.is_known, server.counted, self.counted) = (false, None, None);
        }
        (server.clock, server.connected) = ((reply.time, now), reply.connected);
        server.grace_over = server.grace_over.or_else(|| reply.is_grace_over.then_some(now));
        server.news =
            GraceNews { members: reply.members, checked_in: reply.checked_in, ends_in: reply.ends_in };
        self.open = self.opening();
        match (is_other, is_new) {
            (true, _) => Found::OtherServer,
            (false, true) => Found::SameServer,
            (false, false) => Found::NothingNew,
        }
    }

    /// Returns true if this process may use a server that it has not left, or that it meets again after all of its holds are over. Then this
    /// process is new: otherwise it would wait for ever if no later server comes back.
    fn accepts(&mut self, incarnation: &str, now: BootInstant) -> bool {
        if !self.left.iter().any(|left| left == incarnation) {
            return true;
        }
        let closed = now.saturating_duration_since(self.closed_since);
        let lasts = self.terms.longest_lease.duration() + self.terms.window;
        let is_over = self.connection.is_none() && closed > lasts;
        if is_over {
            self.left.clear();
            self.server = None;
        }
        is_over
    }

    fn meet(&mut self, reply: &Refreshed, now: BootInstant) {
        let before = self.server.take();
        // A refresh in an unfinished grace makes no witness ("a refresh in an unfinished grace is a witness").
        let was_entered = before.as_ref().is_some_and(|before| before.is_known);
        let was_witness = before.as_ref().is_some_and(|before| before.was_ready || before.is_witness);
        if let Some(before) = before {
            if self.left.len() == MOST_LEFT {
                self.left.pop_front();
            }
            self.left.push_back(before.incarnation);
        }
        self.closed_since = now;
        self.server = Some(Server {
            incarnation: reply.incarnation.clone(),
            grace_over: None,
            // A server that restarts has the entry of a process that no other server knows. Another server may be promoted meanwhile.
            is_known: reply.was_known && was_entered,
            lacks_entry: false,
            was_ready: false,
            is_witness: reply.was_known && was_witness,
            counted: None,
            clock: (reply.time, now),
            connected: reply.connected,
            news: GraceNews::default(),
        });
    }

    /// Records that this many replicas have acknowledged the last refresh, which was sent at `sent`. Returns true if this server can extend
    /// holds from now on.
    pub(super) fn acknowledged(&mut self, (sent, now): (BootInstant, BootInstant), replicas: u32) -> bool {
        // A refresh that found another server, or added no entry, says nothing about this one.
        let counts = self.connection.is_some() && self.has_entry;
        let could_extend = self.can_extend();
        let Some(server) = self.server.as_mut().filter(|_| counts) else { return false };
        // Among more replicas, one that has not acknowledged may become the primary.
        if server.connected <= self.terms.replicas {
            server.is_known |= replicas >= self.terms.replicas;
        }
        if replicas < self.terms.majority() {
            return false;
        }
        (self.counted, server.counted) = (Some(sent), Some(now));
        self.open = self.opening();
        self.can_extend() && !could_extend
    }

    /// Returns what the next refresh says. `all_written` is true if every hold is written or over.
    pub(super) fn next_refresh(&self, all_written: bool) -> Refresh {
        let server = self.server.as_ref().filter(|_| self.connection.is_some());
        let is_counted = server.is_some_and(|server| server.counted.is_some());
        let is_witness = server.is_some_and(|server| server.is_witness);
        // No replica has to acknowledge the check-in: every server knew each process before its first lock ("available form, early end
        // without replicas").
        let check_in = match (server.is_some() && all_written, is_witness) {
            (false, _) => CheckIn::NotYet,
            (true, false) => CheckIn::Done,
            (true, true) => CheckIn::DoneAsWitness,
        };
        let lacks_entry = self.server.as_ref().is_some_and(|server| server.lacks_entry);
        Refresh { incarnation: self.incarnation().to_owned(), is_counted, check_in, lacks_entry }
    }

    /// Returns the number of replicas that are to acknowledge a refresh, and the time that they have.
    pub(super) fn wanted_replicas(&self, now: BootInstant) -> (u32, Duration) {
        let is_known = self.server.as_ref().is_some_and(|server| server.is_known);
        let wanted = match (self.has_entry, is_known) {
            (false, _) => 0,
            (true, false) => self.terms.replicas,
            (true, true) => self.terms.majority(),
        };
        let longest = self.terms.reply_within / 2;
        // The next refresh may be the check-in that ends a grace, and no replica delays it much.
        let closed = now.saturating_duration_since(self.closed_since);
        let within =
            if self.may_acquire(now) { longest } else { (closed / 2).max(SHORTEST_PAUSE).min(longest) };
        (wanted, within)
    }

    /// Returns the pause before the next refresh.
    pub(super) fn pause(&self, now: BootInstant) -> Duration {
        let counts = self.server.as_ref().is_some_and(|server| server.counted.is_some());
        if self.may_acquire(now) && counts && !self.is_failing {
            return self.terms.window / 3;
        }
        if self.connection.is_some() && !self.has_entry && !self.is_failing {
            // The next refresh adds the entry.
            return Duration::ZERO;
        }
        // The first refreshes follow soon, because a server may know this process within milliseconds.
        let closed = now.saturating_duration_since(self.closed_since);
        (closed / 8).clamp(SHORTEST_PAUSE, LONGEST_PAUSE).min(self.terms.window / 3)
    }

    /// Returns true if a lock may be acquired now.
    pub(super) fn may_acquire(&self, now: BootInstant) -> bool {
        self.open.is_some_and(|(_, until)| now <= until)
    }

    /// Returns the instants from which and until which requests for locks may be sent, if they may.
    fn opening(&self) -> Option<(BootInstant, BootInstant)> {
        let server = self.server.as_ref().filter(|_| self.connection.is_some())?;
        // "No grace" and "first acquire after one partial acknowledgement".
        let from = server.grace_over?;
        let is_open = server.is_known && !self.has_more_replicas(server);
        self.window_end().filter(|_| is_open).map(|until| (from, until))
    }

    /// Returns true if the server has more replicas than the fleet has. A replica that no acknowledgement awaits may become the primary.
    fn has_more_replicas(&self, server: &Server) -> bool {
        server.connected > self.terms.replicas
    }

    /// Returns the end of the window after the last refresh that counted ("no window"). An earlier server's refresh is enough: until its
    /// window closes, no grace of another server can end by time.
    fn window_end(&self) -> Option<BootInstant> {
        self.counted.map(|counted| counted + self.terms.window)
    }

    /// Returns true if a lock may be acquired now, and remembers that.
    pub(super) fn note_ready(&mut self, now: BootInstant) -> bool {
        let may_acquire = self.may_acquire(now);
        if let Some(server) = self.server.as_mut().filter(|_| may_acquire) {
            server.was_ready = true;
        }
        may_acquire
    }

    /// Returns true if a grant of this server counts, of a request that was sent at `sent`.
    #[inline]
    pub(super) fn believes_grant(&self, sent: BootInstant, now: BootInstant) -> bool {
        // A late grant may come after the grace of the next server ("late grants are believed").
        let is_late = now > sent + self.terms.reply_within;
        // A request that waited for a connection may run in a grace. Then its lock may be another process's, which takes it back.
        let counts = |(from, until)| from <= sent && sent <= until;
        self.open.is_some_and(counts) && !is_late
    }

    /// Returns the meaning of this server's reply about a hold, to a request that was sent at `sent`.
    pub(super) fn trust(&self, hold: &Hold, sent: BootInstant) -> Trust {
        let Some(server) = &self.server else { return Trust::None };
        let is_extended = server.is_known && self.window_end().is_some_and(|end| sent <= end);
        match server.is_grace_over() {
            true if is_extended => Trust::Full,
            false if is_extended && self.is_secure(server, hold) => Trust::Full,
            true | false => Trust::NoExtension,
        }
    }

    /// Returns true if the grace of the last server is over.
    pub(super) fn is_grace_over(&self) -> bool {
        self.server.as_ref().is_some_and(Server::is_grace_over)
    }

    /// Returns true if this hold outlasts everything that the old server may still grant ("reclaim extends the belief at once").
    fn is_secure(&self, server: &Server, hold: &Hold) -> bool {
        let Terms { window, reply_within, .. } = self.terms;
        server.counted.is_some_and(|counted| hold.valid_until >= counted + window + reply_within)
    }

    /// Returns the incarnation of the present server.
    pub(super) fn incarnation(&self) -> &str {
        self.server.as_ref().map_or("", |server| &server.incarnation)
    }

    /// Returns the present server, whatever the number of its grace.
    pub(super) fn server(&self) -> &str {
        self.incarnation().rsplit_once(':').map_or("", |(server, _)| server)
    }

    /// Returns true if a reclaim of this hold may write a new lease.
    pub(super) fn may_renew(&self, hold: &Hold) -> bool {
        self.server.as_ref().is_some_and(|server| server.is_grace_over() || self.is_secure(server, hold))
    }

    /// Returns the lease that a reclaim of this hold writes, and the end of the hold by the server's clock. Both are in milliseconds.
    /// With `may_renew` the lease is a new one.
    pub(super) fn reclaim(&self, hold: &Hold, may_renew: bool) -> Option<Reclaim> {
        self.connection?;
        let server = self.server.as_ref()?;
        let (time, read) = server.clock;
        // The clock showed this time at that instant at least, so the end is early rather than late.
        let left = hold.valid_until.saturating_duration_since(read).as_millis();
        let left = i64::try_from(left).unwrap_or(i64::MAX).max(1);
        // A fixed lease keeps its end.
        let is_full = hold.renewing.is_wanted() && may_renew;
        let lease = if is_full { hold.longest_lease().millis() } else { left };
        let (count, ends) = (hold.wanted(), time.saturating_add(left));
        let token = hold.rare.as_ref().and_then(|rare| rare.token).map_or(0, u64::from);
        Some(Reclaim { lease, count, ends, token, is_full, number: 0 })
    }

    /// Returns the state of this process for operators.
    pub(super) fn health(&self, now: BootInstant) -> FleetHealth {
        let present = self.server.as_ref().filter(|_| self.connection.is_some());
        let grace = present.filter(|server| !server.is_grace_over());
        FleetHealth {
            is_in_grace: grace.is_some(),
            grace_ends_in: grace.and_then(|server| server.grace_left(now)),
            obstacle: self.obstacle(now),
        }
    }

    /// Returns why no lock can be acquired now.
    pub(super) fn obstacle(&self, now: BootInstant) -> Option<String> {
        if self.may_acquire(now) {
            return None;
        }
        let Some(server) = self.server.as_ref().filter(|_| self.connection.is_some()) else {
            return Some("this process does not know the present server yet".to_owned());
        };
        let Terms { replicas, .. } = self.terms;
        Some(match self.counted {
            _ if self.has_more_replicas(server) => {
                format!(
                    "the fleet has {} servers, and the primary has {} replicas",
                    replicas + 1,
                    server.connected
                )
            }
            _ if !server.is_grace_over() => {
                let GraceNews { members, checked_in, .. } = server.news;
                let left = server.grace_left(now);
                let at_most =
                    left.map(|left| format!(", and this lasts for {left:?} at most")).unwrap_or_default();
                format!(
                    "a failover: {checked_in} of {members} processes have written their locks into the new server{at_most}"
                )
            }
            _ if server.connected < self.terms.majority() => {
                format!(
                    "the primary has {} of {replicas} replicas, and {} must acknowledge a refresh",
                    server.connected,
                    self.terms.majority()
                )
            }
            None => format!(
                "fewer than {} of {replicas} replicas have acknowledged this process",
                self.terms.majority()
            ),
            Some(_) if !server.is_known => {
                format!(
                    "this process is new to the primary, and not all of {replicas} replicas have acknowledged it"
                )
            }
            Some(_) => format!("no refresh was acknowledged for {:?}", self.terms.window),
        })
    }
}

/// A hold as a reclaim writes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Reclaim {
    /// Lease in milliseconds.
    pub(crate) lease: i64,
    pub(crate) count: u32,
    /// End of the hold by the server's clock, in milliseconds since the Unix epoch.
    pub(crate) ends: i64,
    /// Fencing token of the hold, or 0.
    pub(crate) token: u64,
    /// True if the lease is a new one, so that the reply may extend the hold.
    pub(super) is_full: bool,
    /// Number of the membership on the hold's server.
    pub(crate) number: usize,
}

/// Number of left incarnations that this process remembers. An older one cannot come back within a lease.
const MOST_LEFT: usize = 16;
/// Shortest and longest pause between two refreshes while no lock can be acquired.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests;
