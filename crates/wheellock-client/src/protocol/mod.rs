//! Requests, their replies, and the pipeline between them. No I/O.

pub(crate) mod acks;
pub(crate) mod channels;
pub(crate) mod exclusive;
pub(crate) mod handshake;
pub(crate) mod pipeline;
pub(crate) mod request;
