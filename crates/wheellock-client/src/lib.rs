//! One pipelined, multiplexed RESP3 connection per Redis or Valkey server.
//!
//! Many tasks share one socket; an idle caller writes to it itself, busy callers are served in batches. Scripts go by
//! hash, pub/sub messages arrive on the same connection, every call has an absolute deadline, and every error says
//! whether the call may have run.
//!
//! ```no_run
//! use wheellock_client::{Client, Command};
//!
//! # async fn example() -> Result<(), wheellock_client::Error> {
//! let client = Client::connect("redis://127.0.0.1:6379".parse()?).await?;
//! client.call(&Command::new("SET").arg("greeting").arg("hello")).await?;
//! let reply = client.call(&Command::new("GET").arg("greeting")).await?;
//! assert_eq!(reply.as_bytes(), Some(&b"hello"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//!
//! - **Order.** Calls reach the server in the order of their first polls; what is asked after [`Client::subscribe`] reaches it after
//!   the SUBSCRIBE.
//! - **Outcomes.** Every failed call was not sent, was rejected, or may have been executed: [`Error::outcome`]. Nothing that was
//!   written and not answered is ever sent again.
//! - **Deadlines.** Each call has one that covers queueing, connecting and the reply.
//! - **Cancellation.** Any future may be dropped at any time; no other caller gets its reply.
//! - **Bounds.** On calls, on queued bytes, and on what a server may send.
//!
//! More on the page [The connection]. The URL says where the server is: see [`Config`].
//!
//! # Servers
//!
//! RESP3 is needed: Redis 6 or later, or any Valkey. Anything else, a proxy that only speaks RESP2 included, is refused with
//! [`ErrorKind::Unsupported`] before any call is sent.
//!
//! # Features
//!
//! All are off by default.
//!
//! - `tls`: `rediss://` and `valkeys://`, by rustls with ring; adds `TlsConfig`.
//! - `tracing`: connections, refusals and failures as events.
//! - `testing`: in-memory connections whose other end is in a test's hands. Not for production.
//!
//! [The connection]: https://github.com/wheellock/wheellock/blob/main/docs/connection.md
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

// Layout: no file uses one above it. From the top:
//
// - `layer` is what the lock layer asks beyond what users do; `Client` is the handle; `call` is one call of a user, and
//   `attempts` makes a request as often as it takes; `route` knows whether there is one server or a cluster.
// - `topology/cluster` and `topology/scouts` keep connections to servers that tell about others; `link` and `listening` are
//   what they, and `route`, hold of one server; `started` is one attempt at a call.
// - `driver` is the one task that owns the socket's reading side; `open` connects, and `locator` tells it where to; `patience` limits both.
// - `connection` is the state that callers share with the driver. It knows no other server: it tells its `listener`.
// - `pipeline`, `channels`, `exclusive`, `handshake`, `backoff`, `silence` and most of `topology` are plain values that decide everything and
//   touch nothing; only `stream` touches a socket.

mod base;
mod client;
mod config;
mod connection;
mod protocol;
mod topology;

pub use base::address::Address;
pub use base::error::{Error, ErrorKind, Outcome};
pub use base::histogram::{Bucket, Histogram};
#[cfg(feature = "testing")]
pub use base::memory;
pub use base::script::Script;
pub use base::slots::slot_of;
pub use client::Client;
#[doc(hidden)]
pub use client::layer;
pub use client::subscription::Subscription;
pub use client::watch::Watch;
#[cfg(feature = "tls")]
pub use config::tls::{TlsBuilder, TlsConfig};
pub use config::{
    Change, ChangeSink, Config, Credentials, CredentialsFuture, CredentialsProvider, Secret, Sentinels,
    Servers, ShardedPubSub, Translate,
};
pub use connection::options::CallOptions;
pub use connection::{ConnectionState, Stats};
pub use protocol::handshake::ServerInfo;
#[cfg(fuzzing)]
#[doc(hidden)]
pub use topology::fuzzing;
pub use wheellock_resp::{Arg, Command, Limits, Value};
pub use wheellock_wheel::Timer;

/// The examples in the package's README must compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
