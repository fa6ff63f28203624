//! The steps that are possible in a state: time, faults, replication, and the managers' own steps.
//!
//! This module decides whether a step can happen. `effects` carries it out.

use crate::protocol::{FailoverModel, number};
use crate::rules::{Acknowledgements, WitnessRule};
use crate::state::{ConnectionPhase, FleetState, Liveness, RequestKind};

/// One step of the fleet. Numbers are those of servers or managers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FleetStep {
    Tick,
    Replicate(u8),
    Follow(u8),
    Promote(u8),
    Crash(u8),
    Return(u8),
    RestartEmpty(u8),
    Stop(u8),
    Resume(u8),
    /// The servers and the managers of these masks are on the far side.
    Split(u8, u8),
    Heal,
    CrashManager(u8),
    Connect(u8, u8),
    /// The manager's refresh, and the replicas that acknowledge it.
    Refresh(u8, u8),
    /// The same, but the manager sent the refresh a tick earlier.
    RefreshLate(u8, u8),
    /// The manager's refresh, whose reply is lost.
    RefreshUnanswered(u8),
    StartGrace(u8),
    RaiseLease(u8),
    Send(u8, RequestKind),
    Execute(u8),
    Receive(u8),
    ExecuteLate(u8),
    ReceiveLate(u8),
    CheckIn(u8),
    EndGrace(u8),
    Release(u8),
    RepeatRelease(u8),
    Shutdown(u8),
}

impl<const N: usize> FailoverModel<N> {
    /// Returns the steps of servers and their replication.
    pub(crate) fn server_steps(&self, state: &FleetState<N>, steps: &mut Vec<FleetStep>) {
        let newest = usize::from(state.newest);
        for index in 0..N {
            let (server, id) = (&state.servers[index], number(index));
            let upstream = usize::from(server.follows);
            let replicates =
                upstream != index && state.is_primary(upstream) && state.are_linked(index, upstream);
            let has_news = server.data != state.servers[upstream].data && state.faults.promotions > 0;
            if replicates && has_news {
                steps.push(FleetStep::Replicate(id));
            }
            if index != newest && upstream != newest && state.are_linked(index, newest) {
                steps.push(FleetStep::Follow(id));
            }
            if self.can_promote(state, index) {
                steps.push(FleetStep::Promote(id));
            }
            if server.liveness == Liveness::Dead && state.faults.returns > 0 && index != newest {
                steps.push(FleetStep::Return(id));
            }
            if server.liveness == Liveness::Stopped {
                steps.push(FleetStep::Resume(id));
            }
        }
    }

    fn can_promote(&self, state: &FleetState<N>, index: usize) -> bool {
        let (server, newest) = (&state.servers[index], usize::from(state.newest));
        // The replicas are alike, so S1 is the first of them.
        let is_next = state.incarnations > 1 || index == 1;
        let is_demoted = self.world.promotes_undemoted || !state.is_primary(index);
        let primary = state.newest_server();
        let seems_dead = primary.liveness != Liveness::Running || state.is_split && primary.is_far;
        state.faults.promotions > 0
            && is_next
            && is_demoted
            && state.ticks_demoted >= self.world.demotion_pause
            && (self.world.has_false_alarms || seems_dead)
            && index != newest
            && server.liveness == Liveness::Running
            && !(state.is_split && server.is_far)
    }

    /// Returns the faults of the newest primary and of the network.
    pub(crate) fn fault_steps(&self, state: &FleetState<N>, steps: &mut Vec<FleetStep>) {
        let (faults, id) = (&state.faults, state.newest);
        match state.newest_server().liveness {
            Liveness::Running => {
                steps.extend((faults.crashes > 0).then_some(FleetStep::Crash(id)));
                steps.extend((faults.stops > 0).then_some(FleetStep::Stop(id)));
            }
            Liveness::Dead if faults.empty_restarts > 0 => steps.push(FleetStep::RestartEmpty(id)),
            Liveness::Dead | Liveness::Stopped => {}
        }
        if faults.splits > 0 {
            let (all, primary) = ((1_u8 << N) - 1, 1_u8 << id);
            // At least one replica stays on the near side, so that it can be promoted.
            let far = (0..=all).filter(|servers| servers & primary != 0 && *servers != all);
            for servers in far {
                let managers = 0..1_u8 << self.world.managers;
                steps.extend(managers.map(|managers| FleetStep::Split(servers, managers)));
            }
        }
        if state.is_split && faults.heals > 0 {
            steps.push(FleetStep::Heal);
        }
    }

    /// Returns the steps of a living manager.
    pub(crate) fn manager_steps(&self, state: &FleetState<N>, index: usize, steps: &mut Vec<FleetStep>) {
        let (manager, id) = (&state.managers[index], number(index));
        if state.faults.manager_crashes > 0 {
            steps.push(FleetStep::CrashManager(id));
        }
        self.connect_steps(state, index, steps);
        let server = state.server_of(index);
        if let Some(server) = server.filter(|_| !self.is_outsider(index)) {
            if self.can_write(state, server) && manager.requests.len() < self.world.requests {
                self.roster_steps(state, index, server, steps);
                self.grace_steps(state, index, server, steps);
                self.ending_steps(state, index, steps);
            }
            let data = &state.servers[server].data;
            let sees_end = data.era == manager.incarnation
                || self.can_end_grace(data, manager.incarnation) && self.can_write(state, server);
            if manager.phase == ConnectionPhase::Grace && sees_end {
                steps.push(FleetStep::EndGrace(id));
            }
        }
        if state.faults.raises > 0 && manager.lease < self.world.lease {
            steps.push(FleetStep::RaiseLease(id));
        }
        if self.world.has_releases && manager.validity > 0 && manager.requests.is_empty() {
            steps.push(FleetStep::Release(id));
        }
        self.request_steps(state, index, server, steps);
    }

    fn connect_steps(&self, state: &FleetState<N>, index: usize, steps: &mut Vec<FleetStep>) {
        let manager = &state.managers[index];
        let has_server = state.server_of(index).is_some();
        for (other, server) in (0_u8..).zip(&state.servers) {
            let is_primary = server.follows == other;
            let is_reachable =
                server.liveness == Liveness::Running && is_primary && server.is_far == manager.is_far;
            let was_left = manager.left & 1 << server.incarnation != 0;
            let is_refused = self.rules.refuses_left && was_left && manager.incarnation != server.incarnation;
            let is_connected = manager.connection == other + 1;
            let can_connect = match (has_server, is_connected) {
                (false, _) => !is_connected,
                (true, true) => state.faults.resets > 0,
                (true, false) => other == state.newest,
            };
            if is_reachable && !is_refused && can_connect {
                steps.push(FleetStep::Connect(number(index), other));
            }
        }
    }

    fn roster_steps(&self, state: &FleetState<N>, index: usize, server: usize, steps: &mut Vec<FleetStep>) {
        let manager = &state.managers[index];
        let needs_age = self.rules.acquires_in_window
            || self.rules.witness == WitnessRule::FreshRefresh
            || self.world.has_pruning;
        if manager.has_refreshed && !(manager.refresh_age > 0 && needs_age) {
            return;
        }
        if state.faults.lost_replies > 0 {
            steps.push(FleetStep::RefreshUnanswered(number(index)));
        }
        let replicas = state.replicas(server);
        let id = number(index);
        let refresh = |mask: u8| FleetStep::Refresh(id, mask);
        let needed = match self.rules.acknowledgements {
            Acknowledgements::Primary => return steps.push(refresh(0)),
            Acknowledgements::Connected => return steps.push(refresh(replicas)),
            Acknowledgements::OneReplica => 1,
            Acknowledgements::Majority => N / 2,
        };
        let masks = (1..1_u8 << N).filter(|mask| mask & !replicas == 0);
        for mask in masks.filter(|mask| mask.count_ones() as usize >= needed) {
            steps.push(refresh(mask));
            steps.extend(self.world.has_late_refreshes.then_some(FleetStep::RefreshLate(id, mask)));
        }
    }

    fn grace_steps(&self, state: &FleetState<N>, index: usize, server: usize, steps: &mut Vec<FleetStep>) {
        let manager = &state.managers[index];
        if manager.phase != ConnectionPhase::Grace {
            return;
        }
        if !self.rules.clock_after_write && self.needs_grace_start(state, server) {
            steps.push(FleetStep::StartGrace(number(index)));
        }
        let is_reclaimed =
            manager.validity == 0 || manager.is_written || !self.rules.reclaims_before_check_in;
        let has_grace = state.servers[server].data.grace.incarnation == manager.incarnation;
        let is_entered = manager.has_refreshed && has_grace || self.rules.ends_early_alone;
        if !manager.has_checked_in && is_entered && is_reclaimed {
            steps.push(FleetStep::CheckIn(number(index)));
        }
    }

    /// Returns repeated releases and shutdowns.
    fn ending_steps(&self, state: &FleetState<N>, index: usize, steps: &mut Vec<FleetStep>) {
        let (manager, id) = (&state.managers[index], number(index));
        let has_hold = manager.validity > 0;
        if manager.repeats_release && !(has_hold && self.rules.repeat_spares_owner) {
            steps.push(FleetStep::RepeatRelease(id));
        }
        let can_shut_down = self.world.has_releases && state.faults.shutdowns > 0 && manager.has_refreshed;
        if can_shut_down && !(has_hold && self.rules.entry_outlives_holds) {
            steps.push(FleetStep::Shutdown(id));
        }
    }

    fn request_steps(
        &self,
        state: &FleetState<N>,
        index: usize,
        server: Option<usize>,
        steps: &mut Vec<FleetStep>,
    ) {
        let (manager, id) = (&state.managers[index], number(index));
        let is_writable = server.is_some_and(|server| self.can_write(state, server));
        for kind in [RequestKind::Acquire, RequestKind::Renew, RequestKind::Reclaim] {
            if (self.is_slow(index) || is_writable) && self.can_send(state, index, kind) {
                steps.push(FleetStep::Send(id, kind));
            }
        }
        if manager.requests.has_pending() && is_writable {
            steps.push(FleetStep::Execute(id));
        }
        if manager.requests.has_reply() && server.is_some() {
            steps.push(FleetStep::Receive(id));
        }
    }

    /// Returns the steps of requests of a closed connection, which a dead manager can have, too.
    pub(crate) fn late_steps(&self, state: &FleetState<N>, index: usize, steps: &mut Vec<FleetStep>) {
        let (manager, id) = (&state.managers[index], number(index));
        if manager.late.has_reply() {
            steps.extend(manager.is_alive.then_some(FleetStep::ReceiveLate(id)));
        } else if let Some(request) = manager.late.first() {
            let can_execute = self.can_write(state, usize::from(request.server));
            steps.extend(can_execute.then_some(FleetStep::ExecuteLate(id)));
        }
    }
}
