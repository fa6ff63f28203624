//! The protocol: how a manager reads a server, when it may send, and the effect of its requests.
//!
//! This module does not know faults. `steps` decides which of these functions can run.

use crate::rules::{FirstAcquire, FullReclaim, Incarnation, ProtocolRules, WINDOW, WitnessRule};
use crate::state::{
    ConnectionPhase, Dataset, FleetState, GraceRecord, Liveness, LockRequest, MANAGERS, ManagerState, OLD,
    Registration, RequestKind, RequestReply, RosterEntry,
};
use crate::worlds::{FaultWorld, LockModel};

/// The protocol with these rules, in this world, with `N` servers.
#[derive(Debug)]
pub(crate) struct FailoverModel<const N: usize> {
    pub(crate) rules: ProtocolRules,
    pub(crate) world: FaultWorld,
}

/// Returns the number that the state has for a manager or a server.
pub(crate) fn number(index: usize) -> u8 {
    u8::try_from(index).unwrap_or(u8::MAX)
}

impl<const N: usize> FailoverModel<N> {
    pub(crate) fn is_outsider(&self, manager: usize) -> bool {
        self.world.has_outsider && manager + 1 == self.world.managers
    }

    pub(crate) fn is_slow(&self, manager: usize) -> bool {
        self.world.slow & 1 << manager != 0
    }

    pub(crate) fn is_writer(&self, manager: usize) -> bool {
        matches!(self.world.lock, LockModel::ReadWrite(writers) if writers & 1 << manager != 0)
    }

    /// Returns true if a server accepts writes.
    pub(crate) fn can_write(&self, state: &FleetState<N>, server: usize) -> bool {
        let has_replicas = self.rules.min_replicas == 0 || state.servers[server].ticks_alone <= WINDOW;
        state.servers[server].liveness == Liveness::Running && state.is_primary(server) && has_replicas
    }

    /// Returns true if two holds exclude each other, whatever the other holds are.
    fn excludes(&self, manager: usize, other: usize) -> bool {
        match self.world.lock {
            LockModel::Exclusive => manager != other,
            LockModel::ReadWrite(_) => manager != other && (self.is_writer(manager) || self.is_writer(other)),
            LockModel::Permits(_) => false,
        }
    }

    /// Returns true if the holds of these managers may exist together.
    pub(crate) fn can_share(&self, holders: u8) -> bool {
        let is_holder = |manager: &usize| holders & 1 << manager != 0;
        let mut pairs = (0..MANAGERS)
            .filter(is_holder)
            .flat_map(|manager| (0..MANAGERS).filter(is_holder).map(move |other| (manager, other)));
        let are_few = match self.world.lock {
            LockModel::Permits(permits) => holders.count_ones() <= u32::from(permits),
            LockModel::Exclusive | LockModel::ReadWrite(_) => true,
        };
        are_few && !pairs.any(|(manager, other)| self.excludes(manager, other))
    }

    fn is_free(&self, data: &Dataset, manager: usize) -> bool {
        let is_holder = |other: &usize| *other == manager || data.leases[*other] > 0;
        self.can_share((0..MANAGERS).filter(is_holder).fold(0, |mask, holder| mask | 1 << holder))
    }

    /// Removes the holds that a winning reclaim replaces.
    fn evict(&self, data: &mut Dataset, manager: usize, incarnation: u8) {
        let others = (0..MANAGERS).filter(|other| *other != manager);
        if let LockModel::Permits(_) = self.world.lock {
            let mut holders = others.filter(|other| data.leases[*other] > 0);
            let evicted = match self.rules.full_reclaim {
                FullReclaim::Exceeds => None,
                FullReclaim::EvictsOld => holders.find(|other| data.written_in[*other] != incarnation),
                FullReclaim::EvictsFirst => holders.next(),
            };
            if let Some(evicted) = evicted {
                data.leases[evicted] = 0;
            }
            return;
        }
        for other in others {
            let is_reader = !self.is_writer(manager) && !self.is_writer(other);
            let are_readers = matches!(self.world.lock, LockModel::ReadWrite(_)) && is_reader;
            if self.excludes(manager, other) || are_readers && !self.rules.reader_spares_readers {
                data.leases[other] = 0;
            }
        }
    }

    /// Returns true if a reclaim may remove the copies of other owners.
    fn can_win(&self, data: &Dataset, manager: usize, is_grace_over: bool) -> bool {
        let has_readers = (0..MANAGERS).any(|other| data.leases[other] > 0 && !self.is_writer(other));
        let has_writer = (0..MANAGERS).any(|other| data.leases[other] > 0 && self.is_writer(other));
        let yields = match self.is_writer(manager) {
            true => has_readers && !self.rules.writer_beats_readers,
            false => has_writer && !self.rules.reader_beats_writer,
        };
        self.rules.reclaim_wins && !(self.rules.reclaim_checks_era && is_grace_over) && !yields
    }

    /// Executes a request on its server.
    pub(crate) fn execute(
        &self,
        state: &mut FleetState<N>,
        manager: usize,
        mut request: LockRequest,
        is_late: bool,
    ) -> LockRequest {
        let is_valid = state.managers[manager].validity > 0 && !is_late;
        let is_newest = state.newest == request.server;
        let server = &mut state.servers[usize::from(request.server)];
        let (incarnation, is_grace_over) = (server.incarnation, server.data.era == server.incarnation);
        let data = &mut server.data;
        let (has_hold, is_free) = (data.leases[manager] > 0, self.is_free(data, manager));
        let is_reclaim = request.kind == RequestKind::Reclaim;
        let is_too_late = is_reclaim && self.rules.reclaim_has_deadline && request.deadline == 0;
        let is_granted = match request.kind {
            RequestKind::Acquire => is_free && !has_hold,
            RequestKind::Renew => has_hold,
            RequestKind::Reclaim if is_too_late => false,
            RequestKind::Reclaim => is_free || has_hold || self.can_win(data, manager, is_grace_over),
        };
        if is_granted {
            if is_reclaim && (!is_free || !self.rules.reader_spares_readers) {
                self.evict(data, manager, incarnation);
            }
            if !(is_reclaim && has_hold) || self.rules.reclaim_extends {
                data.leases[manager] = data.leases[manager].max(request.lease);
            }
            data.written_in[manager] = incarnation;
        } else if is_reclaim && is_valid && is_newest {
            // A late copy harms nothing if the server has the hold, and the manager keeps it.
            let is_harmless = is_too_late && has_hold && self.rules.deadline_spares_hold;
            state.was_refused |= !is_harmless;
        }
        request.reply = match is_granted {
            true => RequestReply::Granted,
            false if is_too_late && self.rules.deadline_spares_hold => RequestReply::TooLate,
            false => RequestReply::Refused,
        };
        request
    }

    /// Returns true if a hold outlasts every window in which an earlier primary can grant.
    pub(crate) fn outlasts_windows(&self, manager: &ManagerState) -> bool {
        // A replica may have acknowledged refreshes of other managers until it acknowledged this one.
        let from_acknowledgement = self.rules.secure_from_acknowledgement;
        let age = if from_acknowledgement { manager.acknowledged_age } else { manager.refresh_age };
        manager.has_refreshed && manager.validity + age > WINDOW + self.world.patience
    }

    /// Applies a reply to the manager's hold.
    pub(crate) fn receive(&self, state: &mut FleetState<N>, manager: usize, request: LockRequest) {
        let outlasts = self.outlasts_windows(&state.managers[manager]);
        let manager = &mut state.managers[manager];
        match (request.kind, request.reply) {
            (_, RequestReply::Pending | RequestReply::TooLate)
            | (RequestKind::Acquire, RequestReply::Refused) => {}
            (RequestKind::Acquire, RequestReply::Granted) => {
                let is_late = request.validity + self.world.patience < request.lease;
                if !(self.rules.rejects_late_grants && is_late) {
                    manager.validity = manager.validity.max(request.validity);
                    manager.is_written = true;
                    manager.is_secure = true;
                }
            }
            (kind, RequestReply::Granted) => {
                let is_valid = manager.validity > 0 || !self.rules.reclaims_valid_only;
                let is_registered = manager.registration == Registration::Complete;
                let is_ready = manager.phase == ConnectionPhase::Ready;
                manager.is_secure |= is_valid
                    && (is_registered || !self.rules.extends_if_registered)
                    && (outlasts || is_ready || !self.rules.extends_secure_only);
                manager.is_written |= kind == RequestKind::Reclaim;
                if is_valid && manager.is_secure {
                    manager.validity = manager.validity.max(request.validity);
                }
            }
            (_, RequestReply::Refused) => manager.validity = 0,
        }
    }

    /// Returns true if a manager may send such a request now.
    pub(crate) fn can_send(&self, state: &FleetState<N>, index: usize, kind: RequestKind) -> bool {
        let manager = &state.managers[index];
        let under_way: usize = state.managers.iter().map(|manager| manager.requests.len()).sum();
        if state.server_of(index).is_none() || under_way >= self.world.requests {
            return false;
        }
        let has_hold = manager.validity > 0;
        if self.is_outsider(index) {
            return match kind {
                RequestKind::Acquire => !has_hold && state.has_begun,
                RequestKind::Renew => has_hold && manager.validity < manager.lease,
                RequestKind::Reclaim => false,
            };
        }
        let rules = &self.rules;
        let is_complete = manager.registration == Registration::Complete;
        let is_in_window = manager.refresh_age <= WINDOW;
        let is_ready = manager.phase == ConnectionPhase::Ready;
        let has_refreshed = manager.has_refreshed || is_ready && self.rules.ends_early_alone;
        match kind {
            RequestKind::Acquire => {
                is_ready
                    && has_refreshed
                    && (is_complete || rules.first_acquire == FirstAcquire::OneRefresh)
                    && (is_in_window || !rules.acquires_in_window)
                    && !has_hold
                    && (state.has_begun || index == 0)
            }
            RequestKind::Renew => {
                manager.is_written
                    && has_hold
                    && manager.validity < manager.lease
                    && has_refreshed
                    && (is_in_window || !rules.renews_in_window)
                    && (is_complete || !rules.extends_if_registered)
            }
            // Without a valid hold there is nothing to reclaim.
            RequestKind::Reclaim => {
                manager.phase != ConnectionPhase::Disconnected
                    && !manager.is_written
                    && manager.incarnation != 0
                    && has_hold
                    && rules.has_grace
            }
        }
    }

    fn bound(&self, data: &Dataset, lease: u8) -> u8 {
        let present = data.roster.iter().filter(|entry| entry.is_present);
        let announced = present.map(|entry| entry.lease).max().unwrap_or(0).max(lease);
        let longest = if self.rules.fleet_has_longest { self.world.lease } else { announced };
        longest + if self.rules.bound_has_window { WINDOW } else { 0 }
    }

    /// Returns true if the script that decides on the end of a grace would end it now.
    pub(crate) fn can_end_grace(&self, data: &Dataset, incarnation: u8) -> bool {
        let grace = &data.grace;
        if grace.incarnation != incarnation {
            return false;
        }
        let is_done =
            |manager: usize| !data.roster[manager].is_present || grace.checked_in & 1 << manager != 0;
        let has_witness = grace.has_witness || self.rules.witness == WitnessRule::Anyone;
        (self.rules.ends_by_time && grace.has_clock && grace.ticks_left == 0)
            || (self.rules.ends_early && has_witness && (0..MANAGERS).all(is_done))
    }

    pub(crate) fn start_grace(&self, state: &mut FleetState<N>, server: usize, manager: usize) {
        let (incarnation, lease) = (state.servers[server].incarnation, state.managers[manager].lease);
        let data = &mut state.servers[server].data;
        if !data.grace.runs_in(incarnation) {
            let ticks_left = self.bound(data, lease);
            let begun = Some(data.grace).filter(|grace| grace.incarnation == incarnation);
            data.grace =
                GraceRecord { incarnation, ticks_left, has_clock: true, ..begun.unwrap_or_default() };
            if usize::from(state.newest) == server {
                state.grace_age = 0;
            }
        } else if !self.rules.clock_starts_once {
            data.grace.ticks_left = self.bound(data, lease);
        }
    }

    pub(crate) fn needs_grace_start(&self, state: &FleetState<N>, server: usize) -> bool {
        let server = &state.servers[server];
        !server.data.grace.runs_in(server.incarnation) && server.data.era != server.incarnation
    }

    /// Returns true if this entry shows that all servers know its manager.
    pub(crate) fn is_known(&self, entry: &RosterEntry) -> bool {
        // Only worlds with pruning have such ages.
        let is_old = self.world.has_pruning && entry.age >= self.rules.prune_age(self.world.lease);
        entry.is_present && !(is_old && self.rules.old_entry_is_new)
    }

    /// Reads incarnation, era and entry, as a handshake does.
    pub(crate) fn read_era(&self, state: &mut FleetState<N>, server: usize, index: usize) {
        let read = state.servers[server];
        let is_new = read.data.era == 0
            && read.data.grace.incarnation == 0
            && read.data.roster.iter().all(|entry| !entry.is_present);
        let before = state.managers[index];
        let is_same = before.incarnation == read.incarnation;
        let comes_from_other = before.incarnation != 0 && !is_same;
        if comes_from_other {
            self.leave_incarnation(&mut state.managers[index], &read.data, index);
        }
        if self.rules.missing_entry_is_new && !self.is_known(&read.data.roster[index]) {
            state.managers[index].registration = Registration::Missing;
        }
        let ignores = !self.rules.has_grace || self.is_outsider(index);
        let phase = if ignores || read.data.era == read.incarnation {
            ConnectionPhase::Ready
        } else if is_new && !self.rules.empty_has_grace && !comes_from_other {
            if self.can_write(state, server) {
                state.servers[server].data.era = read.incarnation;
            }
            ConnectionPhase::Ready
        } else {
            ConnectionPhase::Grace
        };
        let manager = &mut state.managers[index];
        manager.incarnation = read.incarnation;
        manager.phase = phase;
        manager.was_ready |= phase == ConnectionPhase::Ready;
        let starts_now = phase == ConnectionPhase::Grace && !self.rules.clock_after_write;
        if starts_now && self.can_write(state, server) {
            self.start_grace(state, server, index);
        }
    }

    /// Notes that a manager has left its incarnation, and whether it can be a witness in the next one.
    fn leave_incarnation(&self, manager: &mut ManagerState, data: &Dataset, index: usize) {
        let entry = data.roster[index];
        let is_fresh = manager.refresh_age <= WINDOW && entry.age == manager.refresh_age;
        let needs_only_entry = self.rules.witness == WitnessRule::Entry;
        let is_found = self.is_known(&entry) && (is_fresh || needs_only_entry);
        manager.left |= 1 << manager.incarnation;
        manager.witness_age = match is_found {
            // An unfinished grace does not know all managers of earlier incarnations.
            true if !manager.was_ready && self.rules.witness_was_ready => manager.witness_age,
            true if needs_only_entry => 0,
            true => manager.refresh_age,
            false => OLD,
        };
        manager.was_ready = false;
        manager.is_written = false;
        manager.is_secure = false;
        manager.has_checked_in = false;
        manager.has_refreshed = false;
    }

    /// Sets values that cannot matter any more to a default, so that equal futures are equal states.
    pub(crate) fn normalise(&self, state: &mut FleetState<N>) {
        for server in 0..N {
            self.normalise_server(state, server);
        }
        let newest = *state.newest_server();
        let is_over = newest.data.era == newest.incarnation;
        if is_over || !newest.data.grace.runs_in(newest.incarnation) {
            state.grace_age = 0;
        }
        for (age, lease) in state.orphan_ages.iter_mut().zip(newest.data.leases) {
            *age = if lease == 0 { 0 } else { *age };
        }
        for manager in &mut state.managers {
            self.normalise_manager(manager);
        }
        if N > 3 {
            state.sort_replicas();
        }
    }

    fn normalise_server(&self, state: &mut FleetState<N>, index: usize) {
        let is_primary = state.is_primary(index);
        // S1 is the first replica to be promoted.
        let is_next = state.incarnations > 1 || index == 1 || state.faults.promotions > 1;
        let is_lost = !is_primary && (state.faults.promotions == 0 || !is_next);
        let server = &mut state.servers[index];
        let is_dead = server.liveness == Liveness::Dead;
        if is_dead || is_lost {
            server.data = Dataset::default();
        }
        if !is_primary || is_dead {
            server.ticks_alone = 0;
            if self.rules.incarnation == Incarnation::Promotion {
                server.incarnation = 0;
            }
        }
        if self.rules.min_replicas == 0 {
            server.ticks_alone = 0;
        }
        let data = &mut server.data;
        if data.grace.incarnation == data.era {
            data.grace = GraceRecord::default();
        }
        let has_permits = matches!(self.world.lock, LockModel::Permits(_));
        for (written_in, lease) in data.written_in.iter_mut().zip(data.leases) {
            if !has_permits || lease == 0 || self.rules.full_reclaim != FullReclaim::EvictsOld {
                *written_in = 0;
            }
        }
    }

    fn normalise_manager(&self, manager: &mut ManagerState) {
        if !self.rules.refuses_left {
            manager.left = 0;
        }
        if self.rules.witness == WitnessRule::Anyone {
            manager.witness_age = OLD;
            manager.was_ready = false;
        }
        if !manager.is_alive {
            *manager = ManagerState { late: manager.late, ..ManagerState::default() };
            return;
        }
        if manager.validity == 0 && manager.requests.is_empty() {
            manager.is_written = false;
            manager.is_secure = false;
        }
        if manager.phase == ConnectionPhase::Ready {
            manager.has_checked_in = false;
            manager.witness_age = OLD;
        }
    }

    /// Returns the bound of the ages that this world distinguishes.
    pub(crate) fn oldest(&self) -> u8 {
        if self.world.has_pruning { WINDOW + self.world.lease + 2 } else { OLD }
    }
}
