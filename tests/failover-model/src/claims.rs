//! Claims about the protocol, each with the expected result: the worlds, the mutations and the limits.
//!
//! The nightly run checks all claims. The tests check the claims that take little time.

use crate::check::RunResult;
use crate::extensions::{all_worlds, huge_worlds};
use crate::model::FleetProperty;
use crate::mutations::{Effect, Mutation, mutations};
use crate::rules::ProtocolRules;
use crate::worlds::{FaultWorld, LARGEST, LIMITS};

/// The expected result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// No state breaks a property.
    Holds,
    /// The shortest counterexample breaks this property.
    Breaks(FleetProperty),
}

/// A claim: rules, worlds, and the result that each world must have.
#[derive(Debug)]
pub struct Claim {
    /// Name in tables and on the command line.
    pub name: &'static str,
    /// The part of the table.
    pub part: &'static str,
    pub(crate) rules: ProtocolRules,
    /// Worlds that are explored, one run for each.
    pub worlds: Vec<FaultWorld>,
    /// Expected result.
    pub expected: Expected,
    /// The claim takes little time, so the tests check it.
    pub is_short: bool,
    /// The claim takes minutes, so only a run that names it checks it.
    pub is_huge: bool,
}

impl Claim {
    fn ends_grace(&self, world: &FaultWorld) -> bool {
        world.ends_grace || self.rules.ends_early_alone
    }

    /// Returns the reason why a result contradicts the claim.
    #[must_use]
    pub fn contradiction(&self, world: &FaultWorld, result: &RunResult) -> Option<String> {
        let found = result.counterexample.as_ref().map(|(property, _)| *property);
        match (self.expected, found) {
            (Expected::Holds, Some(property)) => Some(format!("{property} is broken")),
            (Expected::Breaks(expected), None) => Some(format!("{expected} is not broken")),
            (Expected::Breaks(expected), Some(found)) if expected != found => {
                Some(format!("{found} is broken in place of {expected}"))
            }
            _ if !result.is_complete => Some("not all states were seen".to_owned()),
            (Expected::Holds, None) if result.has_ended_grace() != self.ends_grace(world) => {
                let reached = if self.ends_grace(world) { "no" } else { "a" };
                Some(format!("{reached} promoted server ends its grace"))
            }
            _ => None,
        }
    }
}

/// Returns all claims, in the order of the table.
#[must_use]
pub fn claims() -> Vec<Claim> {
    let holds = |part: &'static str| {
        move |world: &FaultWorld| Claim {
            name: world.name,
            part,
            rules: ProtocolRules::COMPLETE,
            worlds: vec![*world],
            expected: Expected::Holds,
            is_short: world.is_small,
            is_huge: false,
        }
    };
    let limit = |world: &FaultWorld| Claim {
        part: "limit",
        expected: Expected::Breaks(FleetProperty::Exclusion),
        ..holds("")(world)
    };
    let mutated = mutations().map(|mutation| {
        let mut rules = ProtocolRules::COMPLETE;
        (mutation.change)(&mut rules);
        let is_used = |part: &str, world: &FaultWorld| match mutation.effect {
            Effect::Breaks(_, name) => world.name == name,
            Effect::Harmless { part: used, has_largest } => {
                part == used && (has_largest || !LARGEST.contains(&world.name))
            }
        };
        let worlds = all_worlds().filter(|(part, world)| is_used(part, world)).map(|(_, world)| world);
        let worlds = worlds.collect();
        let expected = match mutation.effect {
            Effect::Breaks(property, _) => Expected::Breaks(property),
            Effect::Harmless { .. } => Expected::Holds,
        };
        let is_short = mutation.is_fast;
        let &Mutation { name, part, is_huge, .. } = mutation;
        Claim { name, part, rules, worlds, expected, is_short, is_huge }
    });
    let explored = all_worlds().filter(|(part, _)| !["pruning", "late"].contains(part));
    let protocol = explored.map(|(part, world)| holds(part)(&world));
    let huge = huge_worlds().map(|world| Claim { is_huge: true, ..holds("huge")(&world) });
    protocol.chain(mutated).chain(LIMITS.iter().map(limit)).chain(huge).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::check;

    fn short(is_chosen: impl Fn(&Claim) -> bool) -> Vec<Claim> {
        let mut short = claims();
        short.retain(|claim| claim.is_short && is_chosen(claim));
        short
    }

    #[test]
    fn small_worlds_keep_properties() {
        let claims = short(|claim| claim.expected == Expected::Holds);
        let table = check(&claims, 1);
        assert!(claims.len() >= 5 && table.contradictions().is_empty(), "{}", table.text());
    }

    #[test]
    fn fast_mutations_break_properties() {
        let claims = short(|claim| claim.expected != Expected::Holds);
        let table = check(&claims, 1);
        assert!(claims.len() >= 20 && table.contradictions().is_empty(), "{}", table.text());
    }

    #[test]
    fn claims_have_worlds_and_names() {
        let claims = claims();
        for claim in &claims {
            assert!(!claim.worlds.is_empty(), "{} has no world", claim.name);
            let same = claims.iter().filter(|other| other.name == claim.name).count();
            assert_eq!(same, 1, "{} is the name of {same} claims", claim.name);
        }
    }

    #[test]
    fn unexpected_result_contradicts_claim() {
        let mut claims = short(|claim| claim.name == "no grace");
        claims[0].expected = Expected::Holds;
        assert_eq!(check(&claims, 1).contradictions(), ["no grace, in \"crash\": P1 exclusion is broken"]);
        claims[0].expected = Expected::Breaks(FleetProperty::Survival);
        assert_eq!(
            check(&claims, 1).contradictions(),
            ["no grace, in \"crash\": P1 exclusion is broken in place of P2 survival"]
        );
    }
}
