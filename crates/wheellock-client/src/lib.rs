//! One pipelined, multiplexed RESP3 connection per Redis or Valkey server.
//!
//! Many tasks share one socket. A caller writes directly to an idle socket. While replies are outstanding, one write
//! serves many callers. Scripts are called by hash, and pub/sub messages arrive on the same connection. Every call has
//! an absolute deadline, and every error shows whether the call may have been executed.
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
//! - **Order.** Calls reach the server in the order of their first polls. A call made after [`Client::subscribe`] reaches the
//!   server after the SUBSCRIBE.
//! - **Outcomes.** A failed call was not sent, was rejected, or may have been executed: [`Error::outcome`]. The client never
//!   repeats a call that was written and received no reply.
//! - **Deadlines.** Each call has a deadline that covers queueing, connecting and the reply.
//! - **Cancellation.** You may drop any future at any time. No other caller receives its reply.
//! - **Bounds.** The client limits calls, queued bytes, and the size of the server's replies.
//!
//! The page [The connection] explains these promises. The URL selects the server: see [`Config`].
//!
//! # Servers
//!
//! The server must speak RESP3: Redis 6 or later, or any Valkey. The client refuses any other server with
//! [`ErrorKind::Unsupported`] before it sends a call. The same applies to a proxy that only speaks RESP2.
//!
//! # Features
//!
//! All features are off by default.
//!
//! - `tls`: `rediss://` and `valkeys://`, by rustls with ring. The feature adds `TlsConfig`.
//! - `tracing`: events for connections, refusals and failures.
//! - `testing`: in-memory connections whose other end a test controls. Not for production.
//!
//! [The connection]: https://github.com/wheellock/wheellock/blob/main/docs/connection.md
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

// Layout, from the top. No file uses a file above it.
//
// - `layer` is the internal API for the lock layer. `Client` is the handle. `call` is one call of a user, and
//   `attempts` repeats a request as often as necessary. `route` hides the difference between one server and a cluster.
// - `topology/cluster` and `topology/sentinels` keep connections to servers that name other servers. `link` and `listening`
//   are their handles to one server, and those of `route`. `started` is one attempt at a call.
// - `driver` is the one task that owns the socket's reading side. `open` connects to the address that `locator` returns.
//   `patience` limits the time of both.
// - `connection` is the state that callers share with the driver. It knows no other server, and reports to its `listener`.
// - `pipeline`, `channels`, `exclusive`, `handshake`, `backoff`, `silence`, `discovery` and most of `topology` are plain values. They
//   decide everything and do no I/O. Only `stream` uses a socket.

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
