//! Support for tests and tools that need real servers.
//!
//! Provides private `redis-server` processes that cannot outlive their owner, a small blocking client to examine them, and bounded polling.
//!
//! Only [`worker`], [`ending`], [`pauses`], [`locks`], [`beside`], the workers of [`campaign`] and the simulation use the project's own
//! crates. The rest of this library is independent of the code under test.

pub mod beside;
pub mod campaign;
pub mod certificates;
mod cli;
pub mod ending;
pub mod fault;
pub mod guide;
pub mod history;
pub mod hot;
pub mod interop;
pub mod locks;
mod monitor;
pub mod network;
pub mod pauses;
pub mod peers;
mod percent;
mod poll;
mod port;
mod server;
#[cfg(feature = "simulation")]
pub mod simulation;
mod told;
pub mod topology;
pub mod wire;
pub mod worker;

pub use cli::{Cli, Reply};
pub use monitor::{Following, Monitor, Observed};
pub use poll::{eventually, poll_until};
pub use server::{Builder, RedisServer, find_server_binary};

/// Compiles the examples in the README and the pages. The guide's examples are tested as `wheellock::guide`.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
#[doc = include_str!("../../docs/observability.md")]
struct Pages;
