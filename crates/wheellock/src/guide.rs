//! The guide: the page `docs/guide.md` of the repository.
//!
//! [Changes by other clients]: https://github.com/wheellock/wheellock/blob/main/docs/guarantees.md#changes-by-other-clients
//! [Guarantees]: https://github.com/wheellock/wheellock/blob/main/docs/guarantees.md
//! [Beside Redisson]: https://github.com/wheellock/wheellock/blob/main/docs/interop.md
//! [Coming from Redisson]: https://github.com/wheellock/wheellock/blob/main/docs/from-redisson.md
//! [the command line]: https://github.com/wheellock/wheellock/blob/main/docs/cli.md
//! [simple]: https://github.com/wheellock/wheellock/blob/main/docs/interop.md#simple-locks-beside-everybody-else
//! [failovers]: https://github.com/wheellock/wheellock/blob/main/docs/benchmarks.md#failovers
//! [hot]: https://github.com/wheellock/wheellock/blob/main/docs/benchmarks.md#a-hot-lock
//! [observability]: crate::guide::observability
//! [alerts]: crate::guide::observability#three-alerts
//!
// The first definition of a link counts, so the definitions above win over the page's own.
#![doc = include_str!("../docs/guide.md")]

/// Metrics, events and alerts for operators: the page `docs/observability.md` of the repository.
///
/// [fixed leases]: crate::guide#fixed-leases
/// [maximum]: crate::guide#maximum-time
/// [fleet]: crate::guide#keep-locks-across-a-failover
/// [a service]: https://github.com/wheellock/wheellock/blob/main/examples/service/src/main.rs
///
#[doc = include_str!("../docs/observability.md")]
pub mod observability {}
