//! A model of the protocol that keeps locks across a failover, and its exhaustive check.
//!
//! Without it, a failover loses every hold that the promoted replica has not received. The library follows the form "early
//! end without replicas". `cargo xtask prove` runs the checker, and the crate depends on no other crate of this workspace.
//!
//! # The protocol
//!
//! After a change of the server, a new primary grants no lock in a *grace*. Meanwhile the living holders *reclaim* their
//! holds: they write them into the new primary. The grace ends when all managers in the *roster* have checked in, or when
//! every hold of the old primary must be over. `rules` lists the rules, and `mutations` shows the damage without each of them.
//!
//! - An *incarnation* is one term of a primary. The *era* is the incarnation whose grace is over.
//! - The roster has an *entry* for each manager. A manager *refreshes* its entry, and the refresh counts once half of the
//!   servers, rounded down, have acknowledged it as replicas.
//! - A manager acquires and renews only in a *window* after a refresh that counts.
//! - A *witness* is a manager whose fresh entry the new primary has. Without a witness a grace ends by time alone.
//! - In the simple form, all servers know a manager before its first acquire. So the new primary's roster is complete, and
//!   its grace can end early before a replica follows it. Until one does, earlier windows remain open.
//! - A reclaim in a grace wins against the copies of other owners, because valid holds never exclude each other.
//!
//! # The model
//!
//! Two, three or five servers and two or three managers use one lock. Time is a step like any other, so a process that
//! stops is a process without steps. A replica has the data that its primary had at an earlier moment. The worlds have
//! crashes, stops, splits, second failovers, false alarms, restarts without data, broken connections, slow messages,
//! pruning, releases and shutdowns. A lock is exclusive, a read-write lock with fixed roles, or a semaphore of two permits.
//!
//! The checker visits all states of a world, breadth first, so a counterexample is the shortest. This is a bounded check,
//! not a proof. A lease has one to three ticks, and the window has one.
//!
//! # Limits
//!
//! The model does not have:
//!
//! - Queues, fencing counters, managers that change between reading and writing, or several locks. An owner is a process.
//! - Clocks that disagree or jump. This matters for the deadline of a reclaim and for pruning.
//! - A gap of more than one tick between a refresh and its acknowledgement. In most worlds both are one step. Refreshes that
//!   too few servers acknowledge, but for a few whose replies are lost.
//! - More than two requests under way, and more than one closed connection with late requests.
//! - Promotion during a synchronisation, replicas of replicas, disks, or a replica that loses acknowledged data.
//! - Clusters: shards, and slots that move.
//! - Liveness, except for the end of a grace.
//! - Two connections of one process with different incarnations.
//! - Dropped futures, hand-over between waiters of one process, quorums, and the server in memory.

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
