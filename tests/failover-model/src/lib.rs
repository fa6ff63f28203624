//! A model of the protocol that keeps locks across a failover.
//!
//! Wheellock does not have this protocol yet. A later version will follow it. Until then, a failover loses the holds that
//! the promoted replica has not received.

mod check;
mod claims;
mod effects;
mod extensions;
mod model;
mod mutations;
mod protocol;
mod rules;
mod state;
mod steps;
mod story;
mod table;
mod worlds;

pub use check::RunResult;
pub use claims::{Claim, Expected, claims};
pub use model::FleetProperty;
pub use table::{ClaimTable, check};
pub use worlds::FaultWorld;
