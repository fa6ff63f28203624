//! One run of the checker: all states of a world, breadth first, so that a counterexample is the shortest.

use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model, Path};

use crate::model::{FleetProperty, Situation};
use crate::protocol::FailoverModel;
use crate::rules::ProtocolRules;
use crate::state::FleetState;
use crate::steps::FleetStep;
use crate::story::told;
use crate::worlds::FaultWorld;

/// Maximum number of generated states of a run. A run that reaches it is incomplete.
const MOST_GENERATED: usize = 150_000_000;

/// The result of a run.
#[derive(Debug)]
pub struct RunResult {
    /// The shortest counterexample: its property, and a line for each step.
    pub(crate) counterexample: Option<(FleetProperty, Vec<String>)>,
    /// The run has seen all states, or a counterexample.
    pub(crate) is_complete: bool,
    /// Situations that were reached.
    pub(crate) situations: Vec<&'static str>,
    /// Number of distinct states.
    pub(crate) states: usize,
    pub(crate) took: Duration,
}

impl RunResult {
    /// Returns true if a server ended the grace of its promotion.
    pub(crate) fn has_ended_grace(&self) -> bool {
        self.situations.contains(&Situation::GraceOver.name())
    }
}

/// Explores a world with these rules.
pub(crate) fn explore(rules: ProtocolRules, world: FaultWorld) -> RunResult {
    match world.servers {
        2 => explore_servers::<2>(rules, world),
        5 => explore_servers::<5>(rules, world),
        _ => explore_servers::<3>(rules, world),
    }
}

fn explore_servers<const N: usize>(rules: ProtocolRules, world: FaultWorld) -> RunResult {
    let began = Instant::now();
    // One thread: with several, a counterexample is not always the shortest.
    let checker = FailoverModel::<N> { rules, world }
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .target_state_count(MOST_GENERATED)
        .spawn_bfs()
        .join();
    let mut discoveries = checker.discoveries();
    let broken = FleetProperty::ALL
        .into_iter()
        .filter_map(|property| Some((property, discoveries.remove(property.name())?)))
        .min_by_key(|(_, path)| path.clone().into_vec().len());
    let counterexample = broken.map(|(property, path)| (property, story(path, world.managers)));
    RunResult {
        is_complete: counterexample.is_some() || checker.state_count() < MOST_GENERATED,
        counterexample,
        situations: discoveries.into_keys().collect(),
        states: checker.unique_state_count(),
        took: began.elapsed(),
    }
}

/// Returns a line for each step, with the state behind it.
fn story<const N: usize>(path: Path<FleetState<N>, FleetStep>, managers: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut step = None;
    for (state, next) in path.into_vec() {
        let shown = step.map_or_else(|| "Start".to_owned(), |step: FleetStep| format!("{step:?}"));
        lines.push(format!("{shown}{}", told(&state, managers)));
        step = next;
    }
    lines
}
