//! A RESP2/RESP3 codec without I/O: iterative, resumable, bounded.

mod blob;
#[cfg(feature = "codec")]
pub mod codec;
mod command;
mod decoder;
mod encode;
mod error;
mod grammar;
mod limits;
mod number;
mod value;
mod writer;

/// Buffers are `BytesMut`, whole payloads `Bytes`: the crate they come from, in the version used here.
pub use bytes;

pub use blob::Blob;
pub use command::{Arg, ArgCount, Command, EvalSha};
pub use decoder::Decoder;
pub use error::{Error, ErrorKind, LimitKind};
pub use limits::Limits;
pub use value::{Frame, Push, Value};
