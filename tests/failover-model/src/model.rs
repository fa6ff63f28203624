//! The model for the checker: steps, states, and the properties that every state must have.

use std::fmt;

use stateright::{Model, Property};

use crate::protocol::FailoverModel;
use crate::rules::WINDOW;
use crate::state::{ConnectionPhase, FleetState, Liveness};
use crate::steps::FleetStep;

/// Property of every state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FleetProperty {
    /// Valid holds of different managers do not exclude each other.
    Exclusion,
    /// A hold that is reclaimed in time stays on the new server for as long as it is valid.
    Survival,
    /// A grace ends after the longest lease and the window.
    GraceEnds,
    /// A hold without an owner ends after one lease.
    OrphansEnd,
}

impl FleetProperty {
    /// Every property, in the order of their numbers.
    pub(crate) const ALL: [Self; 4] = [Self::Exclusion, Self::Survival, Self::GraceEnds, Self::OrphansEnd];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Exclusion => "P1 exclusion",
            Self::Survival => "P2 survival",
            Self::GraceEnds => "P3 grace ends",
            Self::OrphansEnd => "P4 orphans end",
        }
    }
}

impl fmt::Display for FleetProperty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Situation that a run should reach. A run that does not reach it proves less than it seems to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Situation {
    /// A manager has reclaimed and renewed a hold in a grace.
    RenewedInGrace,
    /// The clock of a grace has run out.
    GraceExpired,
    /// The grace of a promoted or empty server is over.
    GraceOver,
}

impl Situation {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::RenewedInGrace => "a hold is renewed in a grace",
            Self::GraceExpired => "the clock of a grace runs out",
            Self::GraceOver => "a grace is over",
        }
    }

    fn is_reached<const N: usize>(self, state: &FleetState<N>) -> bool {
        let newest = state.newest_server();
        let is_promoted = newest.incarnation > 1;
        match self {
            Self::RenewedInGrace => {
                state.managers.iter().any(|m| m.is_secure && m.phase == ConnectionPhase::Grace)
            }
            Self::GraceExpired => {
                let grace = &newest.data.grace;
                is_promoted && grace.runs_in(newest.incarnation) && grace.ticks_left == 0
            }
            Self::GraceOver => is_promoted && newest.data.era == newest.incarnation,
        }
    }
}

impl<const N: usize> FailoverModel<N> {
    fn has_exclusion(&self, state: &FleetState<N>) -> bool {
        let managers = state.managers.iter().enumerate();
        let holders = managers.filter(|(_, manager)| manager.validity > 0);
        self.can_share(holders.fold(0, |mask, (index, _)| mask | 1 << index))
    }

    fn has_survival(&self, state: &FleetState<N>) -> bool {
        let newest = state.newest_server();
        let is_kept = |index: usize| {
            let manager = &state.managers[index];
            let is_here = manager.is_written
                && manager.incarnation == newest.incarnation
                && newest.liveness != Liveness::Dead;
            manager.validity == 0 || !is_here || newest.data.leases[index] >= manager.validity
        };
        self.world.has_outsider || !state.was_refused && (0..state.managers.len()).all(is_kept)
    }

    fn has_ending_grace(&self, state: &FleetState<N>) -> bool {
        let newest = state.newest_server();
        let has_begun = newest.data.grace.runs_in(newest.incarnation);
        !has_begun
            || newest.data.era == newest.incarnation
            || state.grace_age < self.world.lease + WINDOW
            || self.can_end_grace(&newest.data, newest.incarnation)
    }

    fn has_property(&self, property: FleetProperty, state: &FleetState<N>) -> bool {
        match property {
            FleetProperty::Exclusion => self.has_exclusion(state),
            FleetProperty::Survival => self.has_survival(state),
            FleetProperty::GraceEnds => self.has_ending_grace(state),
            FleetProperty::OrphansEnd => state.orphan_ages.iter().all(|age| *age <= self.world.lease),
        }
    }
}

impl<const N: usize> Model for FailoverModel<N> {
    type State = FleetState<N>;
    type Action = FleetStep;

    fn init_states(&self) -> Vec<FleetState<N>> {
        vec![self.first_state()]
    }

    fn actions(&self, state: &FleetState<N>, steps: &mut Vec<FleetStep>) {
        steps.push(FleetStep::Tick);
        self.server_steps(state, steps);
        self.fault_steps(state, steps);
        for index in 0..self.world.managers {
            self.late_steps(state, index, steps);
            if state.managers[index].is_alive {
                self.manager_steps(state, index, steps);
            }
        }
    }

    fn next_state(&self, last: &FleetState<N>, step: FleetStep) -> Option<FleetState<N>> {
        let mut next = *last;
        self.apply(&mut next, step)?;
        self.normalise(&mut next);
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        use FleetProperty as P;
        use Situation as S;
        vec![
            Property::always(P::Exclusion.name(), |m: &Self, s| m.has_property(P::Exclusion, s)),
            Property::always(P::Survival.name(), |m: &Self, s| m.has_property(P::Survival, s)),
            Property::always(P::GraceEnds.name(), |m: &Self, s| m.has_property(P::GraceEnds, s)),
            Property::always(P::OrphansEnd.name(), |m: &Self, s| m.has_property(P::OrphansEnd, s)),
            Property::sometimes(S::RenewedInGrace.name(), |_, s| S::RenewedInGrace.is_reached(s)),
            Property::sometimes(S::GraceExpired.name(), |_, s| S::GraceExpired.is_reached(s)),
            Property::sometimes(S::GraceOver.name(), |_, s| S::GraceOver.is_reached(s)),
        ]
    }
}
