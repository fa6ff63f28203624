//! The rules of the protocol, each as a value that a mutation can change.
//!
//! This module does not know servers or managers. `protocol` applies the rules.

/// Lease of a manager before it changes to the lease of its world.
pub(crate) const SHORT_LEASE: u8 = 1;

/// Ticks after an acknowledged refresh in which a manager may acquire and renew. `min-replicas-max-lag` has the same length.
pub(crate) const WINDOW: u8 = 1;

/// Acknowledgements that a refresh needs before it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acknowledgements {
    /// The primary's reply is enough.
    Primary,
    /// All replicas that are connected at that moment, even if no replica is connected.
    Connected,
    /// One replica, whatever the number of servers.
    OneReplica,
    /// Half of all servers, rounded down. Together with the primary they are a majority.
    Majority,
}

/// Condition for the first acquire of a new process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FirstAcquire {
    /// One refresh counts.
    OneRefresh,
    /// All servers have acknowledged one refresh, or a second refresh counts more than a window later.
    TwoRefreshes,
    /// All servers have acknowledged one refresh.
    AllServers,
}

/// Evidence on the new server that makes a manager a witness. A grace needs a witness to end early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WitnessRule {
    /// Every manager is a witness.
    Anyone,
    /// The server has the manager's entry.
    Entry,
    /// The server has the manager's last acknowledged refresh, and that is at most a window old.
    FreshRefresh,
}

/// Identity of a primary. An era names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Incarnation {
    /// `run_id`, which stays the same if the process is promoted again.
    Process,
    /// `run_id` and `master_replid`. Every promotion creates a new one.
    Promotion,
}

/// Age at which entries of the roster are pruned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PruneAge {
    LeaseAndWindows,
    Lease,
    Window,
}

/// Effect of a reclaim in a grace if the permits of the new server are all taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FullReclaim {
    /// The reclaim is written beside the other permits, above the limit.
    Exceeds,
    /// The reclaim removes a permit that has not been written in this incarnation.
    EvictsOld,
    /// The reclaim removes the permit of the first other manager.
    EvictsFirst,
}

/// All rules. `ProtocolRules::COMPLETE` is the protocol, and each mutation changes some fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProtocolRules {
    /// After a change of the server, acquires wait for the end of a grace.
    pub(crate) has_grace: bool,
    pub(crate) incarnation: Incarnation,
    /// A manager does not return to an incarnation that it has left.
    pub(crate) refuses_left: bool,
    pub(crate) acknowledgements: Acknowledgements,
    pub(crate) first_acquire: FirstAcquire,
    pub(crate) witness: WitnessRule,
    /// A refresh from an unfinished grace does not make a witness.
    pub(crate) witness_was_ready: bool,
    /// The grace can end before its time.
    pub(crate) ends_early: bool,
    /// For the early end, no replica of the new primary has to acknowledge a refresh. Until one does, the last refresh that
    /// counted on an earlier primary opens the window.
    pub(crate) ends_early_alone: bool,
    /// The clock of the grace starts after an acknowledged write.
    pub(crate) clock_after_write: bool,
    /// The clock starts once per incarnation. Otherwise each new connection starts it again.
    pub(crate) clock_starts_once: bool,
    /// The grace ends when its clock has run out.
    pub(crate) ends_by_time: bool,
    /// The clock runs for the window longer than the longest lease.
    pub(crate) bound_has_window: bool,
    /// A manager acquires only within a window after its last counted refresh.
    pub(crate) acquires_in_window: bool,
    /// A manager renews only within that window.
    pub(crate) renews_in_window: bool,
    /// A manager extends holds only if its entry counts.
    pub(crate) extends_if_registered: bool,
    /// A refresh reads incarnation and era again.
    pub(crate) refresh_reads_era: bool,
    /// A reclaim that finds its own hold keeps the longer lease.
    pub(crate) reclaim_extends: bool,
    /// A reclaim removes the copies of other owners that exclude it.
    pub(crate) reclaim_wins: bool,
    /// A late reply does not revive a hold that has expired.
    pub(crate) reclaims_valid_only: bool,
    /// A reply extends only a hold that outlasts the window of all other managers.
    pub(crate) extends_secure_only: bool,
    /// Such a hold outlasts a window after the acknowledgement of the last refresh. Otherwise the window counts from its send.
    pub(crate) secure_from_acknowledgement: bool,
    /// A grant whose reply is late is released.
    pub(crate) rejects_late_grants: bool,
    /// A manager checks in after the reply to its reclaim.
    pub(crate) reclaims_before_check_in: bool,
    /// A manager drops the replies of a connection that it has closed.
    pub(crate) drops_late_replies: bool,
    /// The server lets a reclaim win only in a grace.
    pub(crate) reclaim_checks_era: bool,
    /// The server refuses a reclaim after the end of the reclaimed hold.
    pub(crate) reclaim_has_deadline: bool,
    /// That refusal does not end the hold, because an earlier copy of the reclaim may have extended it.
    pub(crate) deadline_spares_hold: bool,
    pub(crate) prune_age: PruneAge,
    /// A primary prunes entries only while all other servers are its replicas. The model breaks nothing without this rule, because it has no
    /// refreshes that too few servers acknowledge. Such refreshes keep an entry young on another primary.
    pub(crate) prunes_complete_fleet: bool,
    /// Entries are not pruned in a grace.
    pub(crate) grace_keeps_entries: bool,
    /// A manager that finds no entry of its own counts as new.
    pub(crate) missing_entry_is_new: bool,
    /// A manager counts as new if its entry is so old that another server may have pruned it.
    pub(crate) old_entry_is_new: bool,
    /// A refresh adds an entry only if its manager knows that its entry is missing.
    pub(crate) adds_missed_entry: bool,
    /// A shutdown removes the manager's entry after the last release.
    pub(crate) entry_outlives_holds: bool,
    /// A release is not repeated if its owner holds the lock again.
    pub(crate) repeat_spares_owner: bool,
    /// A manager announces a longer lease before it uses the lease.
    pub(crate) announces_lease: bool,
    /// The clock uses the fleet's longest lease, not the longest announced lease.
    pub(crate) fleet_has_longest: bool,
    /// A server without era and roster begins with a grace.
    pub(crate) empty_has_grace: bool,
    /// `min-replicas-to-write`.
    pub(crate) min_replicas: u8,
    /// A reader's reclaim does not remove other readers.
    pub(crate) reader_spares_readers: bool,
    /// A writer's reclaim removes readers.
    pub(crate) writer_beats_readers: bool,
    /// A reader's reclaim removes a writer.
    pub(crate) reader_beats_writer: bool,
    pub(crate) full_reclaim: FullReclaim,
}

impl ProtocolRules {
    /// The protocol in its available form.
    pub(crate) const COMPLETE: Self = Self {
        has_grace: true,
        incarnation: Incarnation::Promotion,
        refuses_left: true,
        acknowledgements: Acknowledgements::Majority,
        first_acquire: FirstAcquire::TwoRefreshes,
        witness: WitnessRule::FreshRefresh,
        witness_was_ready: true,
        ends_early: true,
        ends_early_alone: false,
        clock_after_write: true,
        clock_starts_once: true,
        ends_by_time: true,
        bound_has_window: true,
        acquires_in_window: true,
        renews_in_window: true,
        extends_if_registered: true,
        refresh_reads_era: true,
        reclaim_extends: true,
        reclaim_wins: true,
        reclaims_valid_only: true,
        extends_secure_only: true,
        secure_from_acknowledgement: true,
        rejects_late_grants: true,
        reclaims_before_check_in: true,
        drops_late_replies: true,
        reclaim_checks_era: true,
        reclaim_has_deadline: true,
        deadline_spares_hold: true,
        prune_age: PruneAge::LeaseAndWindows,
        prunes_complete_fleet: true,
        grace_keeps_entries: true,
        missing_entry_is_new: true,
        old_entry_is_new: true,
        adds_missed_entry: true,
        entry_outlives_holds: true,
        repeat_spares_owner: true,
        announces_lease: true,
        fleet_has_longest: true,
        empty_has_grace: true,
        min_replicas: 0,
        reader_spares_readers: true,
        writer_beats_readers: true,
        reader_beats_writer: true,
        full_reclaim: FullReclaim::Exceeds,
    };

    /// Returns the age at which a primary prunes an entry, in a world with this lease.
    pub(crate) fn prune_age(&self, lease: u8) -> u8 {
        match self.prune_age {
            PruneAge::LeaseAndWindows => WINDOW + lease + 1,
            PruneAge::Lease => lease,
            PruneAge::Window => WINDOW,
        }
    }
}
