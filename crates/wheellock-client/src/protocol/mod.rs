//! Requests, replies and the pipeline between them.
//!
//! These modules do no I/O.

pub(crate) mod acks;
pub(crate) mod channels;
pub(crate) mod discovery;
pub(crate) mod exclusive;
pub(crate) mod handshake;
pub(crate) mod pipeline;
pub(crate) mod request;
