//! The effect of each step on a state.

use crate::protocol::{FailoverModel, number};
use crate::rules::{FirstAcquire, Incarnation, WINDOW, WitnessRule};
use crate::state::{
    ConnectionPhase, Dataset, FleetState, GraceRecord, Liveness, LockRequest, MANAGERS, ManagerState, OLD,
    Registration, RequestKind, RequestReply, RosterEntry, ServerState,
};
use crate::steps::FleetStep;

impl<const N: usize> FailoverModel<N> {
    /// Applies a step. Returns `None` if the step is not possible.
    pub(crate) fn apply(&self, state: &mut FleetState<N>, step: FleetStep) -> Option<()> {
        let manager = |index: u8| usize::from(index);
        match step {
            FleetStep::Tick => self.tick(state),
            FleetStep::Connect(index, server) => self.connect(state, manager(index), server),
            FleetStep::Refresh(index, replicas) => self.refresh(state, manager(index), replicas, 0)?,
            FleetStep::RefreshLate(index, replicas) => self.refresh(state, manager(index), replicas, 1)?,
            FleetStep::RefreshUnanswered(index) => self.refresh_unanswered(state, manager(index))?,
            FleetStep::StartGrace(index) => {
                let server = state.server_of(manager(index))?;
                self.start_grace(state, server, manager(index));
            }
            FleetStep::RaiseLease(index) => self.raise_lease(state, manager(index)),
            FleetStep::Send(index, kind) => self.send(state, manager(index), kind)?,
            FleetStep::Execute(index) => {
                let request = *state.managers[manager(index)].requests.next_pending()?;
                let request = self.execute(state, manager(index), request, false);
                *state.managers[manager(index)].requests.next_pending()? = request;
            }
            FleetStep::Receive(index) => {
                let request = state.managers[manager(index)].requests.pop()?;
                self.receive(state, manager(index), request);
            }
            FleetStep::ExecuteLate(index) => {
                let request = state.managers[manager(index)].late.pop()?;
                self.execute(state, manager(index), request, true);
            }
            FleetStep::ReceiveLate(index) => {
                let request = state.managers[manager(index)].late.pop()?;
                self.receive(state, manager(index), request);
            }
            FleetStep::CheckIn(index) => self.check_in(state, manager(index))?,
            FleetStep::EndGrace(index) => {
                let server = state.server_of(manager(index))?;
                state.servers[server].data.era = state.managers[manager(index)].incarnation;
                become_ready(&mut state.managers[manager(index)]);
            }
            FleetStep::Release(index) => self.release(state, manager(index)),
            FleetStep::RepeatRelease(index) => {
                let server = state.server_of(manager(index))?;
                state.managers[manager(index)].repeats_release = false;
                state.servers[server].data.leases[manager(index)] = 0;
            }
            FleetStep::Shutdown(index) => self.shutdown(state, manager(index))?,
            fault => self.apply_fault(state, fault),
        }
        Some(())
    }

    /// Applies a fault, or a step of servers alone.
    fn apply_fault(&self, state: &mut FleetState<N>, step: FleetStep) {
        match step {
            FleetStep::Replicate(replica) => {
                let upstream = state.servers[usize::from(replica)].follows;
                state.servers[usize::from(replica)].data = state.servers[usize::from(upstream)].data;
            }
            FleetStep::Follow(server) => self.follow(state, server),
            FleetStep::Promote(server) => self.promote(state, server),
            FleetStep::Crash(server) => self.crash(state, server),
            FleetStep::Return(index) => {
                state.faults.returns -= 1;
                let (follows, data) = (state.newest, state.newest_server().data);
                let server = &mut state.servers[usize::from(index)];
                *server = ServerState { follows, data, is_far: server.is_far, ..ServerState::default() };
            }
            FleetStep::RestartEmpty(follows) => {
                state.faults.empty_restarts -= 1;
                state.incarnations += 1;
                let incarnation = state.incarnations;
                let server = &mut state.servers[usize::from(follows)];
                let is_far = server.is_far;
                *server = ServerState { follows, incarnation, is_far, ..ServerState::default() };
            }
            FleetStep::Stop(server) => {
                state.faults.stops -= 1;
                state.servers[usize::from(server)].liveness = Liveness::Stopped;
            }
            FleetStep::Resume(server) => state.servers[usize::from(server)].liveness = Liveness::Running,
            FleetStep::Split(servers, managers) => {
                state.faults.splits -= 1;
                self.place(state, servers, managers);
                state.is_split = true;
            }
            FleetStep::Heal => {
                state.faults.heals -= 1;
                self.place(state, 0, 0);
                state.is_split = false;
            }
            FleetStep::CrashManager(index) => {
                state.faults.manager_crashes -= 1;
                state.disconnect(usize::from(index), false);
                state.managers[usize::from(index)].is_alive = false;
            }
            _ => {}
        }
    }

    /// Puts the servers and managers of these masks on the far side of a split.
    fn place(&self, state: &mut FleetState<N>, servers: u8, managers: u8) {
        for (index, server) in state.servers.iter_mut().enumerate() {
            server.is_far = servers & 1 << index != 0;
        }
        for (index, manager) in state.managers[..self.world.managers].iter_mut().enumerate() {
            manager.is_far = managers & 1 << index != 0;
        }
    }

    fn tick(&self, state: &mut FleetState<N>) {
        for server in 0..N {
            self.tick_server(state, server);
        }
        for manager in &mut state.managers[..self.world.managers] {
            manager.validity = manager.validity.saturating_sub(1);
            manager.refresh_age = (manager.refresh_age + 1).min(self.oldest());
            manager.acknowledged_age = (manager.acknowledged_age + 1).min(self.oldest());
            if self.rules.witness == WitnessRule::FreshRefresh {
                manager.witness_age = (manager.witness_age + 1).min(OLD);
            }
            if let Registration::Partial(age) = manager.registration {
                manager.registration = Registration::Partial((age + 1).min(WINDOW + 1));
            }
            for request in manager.requests.iter_mut().chain(manager.late.iter_mut()) {
                request.validity = request.validity.saturating_sub(1);
                request.deadline = request.deadline.saturating_sub(1);
            }
        }
        state.ticks_demoted = (state.ticks_demoted + 1).min(self.world.demotion_pause);
        state.grace_age = (state.grace_age + 1).min(self.world.lease + WINDOW + 1);
        let leases = state.newest_server().data.leases;
        let holds = leases.into_iter().zip(&state.managers);
        for (age, (lease, manager)) in state.orphan_ages.iter_mut().zip(holds) {
            let is_used = manager.validity > 0 || !manager.requests.is_empty() || !manager.late.is_empty();
            *age = if lease == 0 || is_used { 0 } else { (*age + 1).min(self.world.lease + 1) };
        }
    }

    fn tick_server(&self, state: &mut FleetState<N>, index: usize) {
        let has_enough = state.replicas(index).count_ones() >= u32::from(self.rules.min_replicas);
        let is_primary = state.is_primary(index);
        let is_complete = state.replicas(index).count_ones() as usize == N - 1;
        let server = &mut state.servers[index];
        if server.liveness == Liveness::Dead {
            return;
        }
        if is_primary && server.liveness == Liveness::Running {
            server.ticks_alone = if has_enough { 0 } else { (server.ticks_alone + 1).min(WINDOW + 1) };
        }
        let is_in_grace = server.data.era != server.incarnation;
        let may_prune = is_complete || !self.rules.prunes_complete_fleet;
        let keeps = is_in_grace && self.rules.grace_keeps_entries;
        let prunes = self.world.has_pruning && is_primary && may_prune && !keeps;
        let data = &mut server.data;
        for lease in &mut data.leases {
            *lease = lease.saturating_sub(1);
        }
        data.grace.ticks_left = data.grace.ticks_left.saturating_sub(1);
        for entry in data.roster.iter_mut().filter(|entry| entry.is_present) {
            entry.age = (entry.age + 1).min(self.oldest());
            if prunes && entry.age >= self.rules.prune_age(self.world.lease) {
                *entry = RosterEntry::default();
            }
        }
    }

    fn follow(&self, state: &mut FleetState<N>, server: u8) {
        let (index, newest) = (usize::from(server), usize::from(state.newest));
        if state.is_primary(index) {
            state.ticks_demoted = 0;
            if !self.world.keeps_connections {
                self.close_connections(state, server);
            }
        }
        state.servers[index].follows = state.newest;
        if state.replicas(newest).count_ones() >= u32::from(self.rules.min_replicas) {
            state.servers[newest].ticks_alone = 0;
        }
    }

    fn close_connections(&self, state: &mut FleetState<N>, server: u8) {
        for index in 0..self.world.managers {
            if state.managers[index].connection == server + 1 {
                state.disconnect(index, !self.rules.drops_late_replies);
            }
        }
    }

    fn promote(&self, state: &mut FleetState<N>, promoted: u8) {
        let was_primary = state.is_primary(usize::from(promoted));
        state.faults.promotions -= 1;
        state.newest = promoted;
        state.grace_age = 0;
        state.orphan_ages = [0; MANAGERS];
        if was_primary {
            return;
        }
        let server = &mut state.servers[usize::from(promoted)];
        server.follows = promoted;
        server.ticks_alone = WINDOW + 1;
        if self.rules.incarnation == Incarnation::Promotion || server.incarnation == 0 {
            state.incarnations += 1;
            server.incarnation = state.incarnations;
        }
    }

    fn crash(&self, state: &mut FleetState<N>, crashed: u8) {
        state.faults.crashes -= 1;
        self.close_connections(state, crashed);
        for manager in &mut state.managers {
            let is_read =
                |request: &LockRequest| request.server != crashed || request.reply != RequestReply::Pending;
            manager.late = manager.late.filtered(is_read);
        }
        let server = &mut state.servers[usize::from(crashed)];
        server.liveness = Liveness::Dead;
        server.incarnation = 0;
    }

    fn connect(&self, state: &mut FleetState<N>, index: usize, server: u8) {
        if state.managers[index].connection == server + 1 {
            state.faults.resets -= 1;
        }
        state.disconnect(index, !self.rules.drops_late_replies);
        state.managers[index].connection = server + 1;
        self.read_era(state, usize::from(server), index);
    }

    /// Writes a manager's entry, and notes the acknowledgements of these replicas. The manager sent the refresh `age` ticks ago.
    fn refresh(&self, state: &mut FleetState<N>, index: usize, replicas: u8, age: u8) -> Option<()> {
        let server = state.server_of(index)?;
        let has_changed = state.managers[index].incarnation != state.servers[server].incarnation;
        if self.rules.refresh_reads_era && has_changed {
            self.read_era(state, server, index);
        }
        let manager = &mut state.managers[index];
        let entry = &mut state.servers[server].data.roster[index];
        if self.rules.missing_entry_is_new && !self.is_known(entry) {
            manager.registration = Registration::Missing;
        }
        *entry = RosterEntry { is_present: true, age: 0, lease: manager.lease };
        let data = state.servers[server].data;
        for replica in (0..N).filter(|replica| replicas & 1 << replica != 0) {
            state.servers[replica].data = data;
        }
        let is_everywhere = replicas.count_ones() as usize == N - 1;
        let is_enough = is_everywhere || self.rules.first_acquire == FirstAcquire::OneRefresh;
        let is_second = self.rules.first_acquire == FirstAcquire::TwoRefreshes;
        manager.registration = match manager.registration {
            _ if is_enough => Registration::Complete,
            Registration::Partial(age) if age > WINDOW && is_second => Registration::Complete,
            Registration::Missing => Registration::Partial(0),
            registration => registration,
        };
        let is_first = !manager.has_refreshed;
        manager.has_refreshed = true;
        (manager.refresh_age, manager.acknowledged_age) = (manager.refresh_age.min(age), 0);
        let is_in_grace = manager.phase == ConnectionPhase::Grace;
        let starts = self.needs_grace_start(state, server) || is_first && !self.rules.clock_starts_once;
        if is_in_grace && self.rules.clock_after_write && starts {
            self.start_grace(state, server, index);
        }
        Some(())
    }

    /// Writes a manager's entry. The manager learns nothing of it.
    fn refresh_unanswered(&self, state: &mut FleetState<N>, index: usize) -> Option<()> {
        let server = state.server_of(index)?;
        state.faults.lost_replies -= 1;
        let (manager, server) = (&state.managers[index], &mut state.servers[server]);
        let misses_entry =
            manager.incarnation == server.incarnation && manager.registration == Registration::Missing;
        let entry = &mut server.data.roster[index];
        if self.is_known(entry) || misses_entry || !self.rules.adds_missed_entry {
            *entry = RosterEntry { is_present: true, age: 0, lease: manager.lease };
        }
        Some(())
    }

    fn raise_lease(&self, state: &mut FleetState<N>, index: usize) {
        state.faults.raises -= 1;
        let manager = &mut state.managers[index];
        manager.lease = self.world.lease;
        if self.rules.announces_lease && !self.rules.fleet_has_longest {
            manager.registration = Registration::Missing;
            manager.has_refreshed = false;
        }
    }

    /// Sends a request. A manager that is not slow has its reply in the same step.
    fn send(&self, state: &mut FleetState<N>, index: usize, kind: RequestKind) -> Option<()> {
        let server = number(state.server_of(index)?);
        state.has_begun = true;
        let outlasts = self.outlasts_windows(&state.managers[index]);
        let manager = &mut state.managers[index];
        let can_extend = kind == RequestKind::Acquire
            || manager.is_secure
            || outlasts
            || manager.phase == ConnectionPhase::Ready
            || !self.rules.extends_secure_only;
        let lease = if can_extend { manager.lease } else { manager.validity };
        let (deadline, reply) = (manager.validity, RequestReply::Pending);
        let request = LockRequest { kind, server, lease, validity: lease, deadline, reply };
        if kind == RequestKind::Acquire && self.rules.repeat_spares_owner {
            manager.repeats_release = false;
        }
        if self.is_slow(index) {
            manager.requests.push(request);
        } else {
            let request = self.execute(state, index, request, false);
            self.receive(state, index, request);
        }
        Some(())
    }

    fn check_in(&self, state: &mut FleetState<N>, index: usize) -> Option<()> {
        let server = state.server_of(index)?;
        let manager = &mut state.managers[index];
        let server = &mut state.servers[server];
        if server.data.grace.incarnation != server.incarnation {
            server.data.grace = GraceRecord { incarnation: server.incarnation, ..GraceRecord::default() };
        }
        server.data.grace.checked_in |= 1 << index;
        if self.rules.ends_early_alone {
            // The check-in is a part of a refresh.
            server.data.roster[index].age = 0;
        }
        server.data.grace.has_witness |= manager.witness_age <= WINDOW;
        manager.has_checked_in = true;
        if self.can_end_grace(&server.data, server.incarnation) {
            server.data.era = server.incarnation;
            become_ready(manager);
        }
        Some(())
    }

    fn release(&self, state: &mut FleetState<N>, index: usize) {
        let server = state.server_of(index).filter(|&server| self.can_write(state, server));
        let is_sure = state.incarnations > 1 && server.is_some() && self.rules.repeat_spares_owner;
        state.managers[index].validity = 0;
        state.managers[index].repeats_release = !is_sure;
        if let Some(server) = server {
            state.servers[server].data.leases[index] = 0;
        }
    }

    fn shutdown(&self, state: &mut FleetState<N>, index: usize) -> Option<()> {
        let server = state.server_of(index)?;
        state.faults.shutdowns -= 1;
        state.servers[server].data.roster[index] = RosterEntry::default();
        // The manager takes no new hold. It keeps its hold until the release.
        state.managers[index].registration = Registration::Missing;
        state.managers[index].has_refreshed = false;
        state.managers[index].is_alive &= !self.rules.entry_outlives_holds;
        Some(())
    }

    /// Returns the state at the beginning.
    pub(crate) fn first_state(&self) -> FleetState<N> {
        let has_raises = self.world.faults.raises > 0;
        let lease = if has_raises { crate::rules::SHORT_LEASE } else { self.world.lease };
        let mut data = Dataset { era: 1, ..Dataset::default() };
        let mut managers = [ManagerState::default(); MANAGERS];
        for (index, manager) in managers[..self.world.managers].iter_mut().enumerate() {
            *manager = ManagerState {
                is_alive: true,
                lease,
                refresh_age: OLD,
                acknowledged_age: OLD,
                witness_age: OLD,
                ..*manager
            };
            if self.world.is_settled && !self.is_outsider(index) {
                manager.connection = 1;
                manager.incarnation = 1;
                manager.registration = Registration::Complete;
                manager.has_refreshed = true;
                (manager.refresh_age, manager.acknowledged_age) = (0, 0);
                become_ready(manager);
                data.roster[index] = RosterEntry { is_present: true, age: 0, lease };
            }
        }
        let mut servers = [ServerState { data, ..ServerState::default() }; N];
        servers[0].incarnation = 1;
        FleetState {
            servers,
            managers,
            newest: 0,
            incarnations: 1,
            ticks_demoted: self.world.demotion_pause,
            is_split: false,
            // With different roles, any manager can be the first.
            has_begun: matches!(self.world.lock, crate::worlds::LockModel::ReadWrite(_)),
            faults: self.world.faults,
            was_refused: false,
            grace_age: 0,
            orphan_ages: [0; MANAGERS],
        }
    }
}

fn become_ready(manager: &mut ManagerState) {
    manager.phase = ConnectionPhase::Ready;
    manager.was_ready = true;
}
