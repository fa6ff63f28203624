//! RESP2/RESP3 codec without I/O: iterative, resumable and bounded.
//!
//! The codec turns bytes of a Redis or Valkey server into [`Frame`]s, and commands into bytes. It does not depend on a socket, a runtime or
//! a clock, and it does not know any command by name.
//!
//! ```
//! use bytes::BytesMut;
//! use wheellock_resp::{Command, Decoder, Frame, Limits, Value};
//!
//! // Out: a command, written straight into the buffer that will be sent.
//! let mut out = BytesMut::new();
//! Command::new("GET").arg("key").encode(&mut out);
//! assert_eq!(&out[..], b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n");
//!
//! // In: whatever has arrived, in whatever pieces.
//! let mut decoder = Decoder::new(Limits::default());
//! let mut buf = BytesMut::from("$5\r\nval");
//! assert_eq!(decoder.decode(&mut buf)?, None);
//! buf.extend_from_slice(b"ue\r\n>2\r\n+invalidate\r\n*1\r\n$3\r\nkey\r\n");
//!
//! let reply = decoder.decode(&mut buf)?;
//! assert_eq!(reply, Some(Frame::Reply(Value::BulkString("value".into()))));
//! match decoder.decode(&mut buf)? {
//!     Some(Frame::Push(push)) => assert_eq!(push.kind(), b"invalidate"),
//!     other => panic!("{other:?}"),
//! }
//! # Ok::<(), wheellock_resp::Error>(())
//! ```
//!
//! | to | use |
//! |---|---|
//! | decode the bytes of a server | [`Decoder`], with [`Limits`] |
//! | inspect a decoded message | [`Frame`], [`Value`], [`Push`], [`Blob`] |
//! | encode a command | [`Command`], [`Arg`] |
//! | call one script frequently | [`EvalSha`] |
//! | act as the server, in tests or a proxy | [`Value::encode`], [`Frame::encode`] |
//! | use tokio-util's `Framed` | feature `codec`: `codec::RespCodec` |
//!
//! # The grammar
//!
//! The decoder accepts exactly this grammar. `CRLF` is CR LF; a CR or LF anywhere else outside a payload is an error.
//!
//! ```text
//! frame      = *attribute ( value / push )
//! value      = *attribute ( simple / error / integer / double / bignum / boolean / null
//!                         / bulk / bulk-error / verbatim / array / set / map )
//!
//! simple     = "+" line CRLF                       -> SimpleString
//! error      = "-" line CRLF                       -> Error
//! integer    = ":" ["+" / "-"] 1*20DIGIT CRLF      -> Integer, within 64 bits signed
//! double     = "," ["+" / "-"] ( 1*DIGIT ["." *DIGIT] [("e" / "E") ["+" / "-"] 1*DIGIT] / "inf" / "nan" ) CRLF
//!                                                  -> Double, too large is infinite
//! bignum     = "(" ["+" / "-"] 1*DIGIT CRLF        -> BigNumber
//! boolean    = "#" ("t" / "f") CRLF                -> Boolean
//! null       = "_" CRLF / "$-1" CRLF / "*-1" CRLF  -> Null, the last two from RESP2
//!
//! bulk       = "$" length CRLF payload CRLF        -> BulkString
//! bulk-error = "!" length CRLF payload CRLF        -> BulkError
//! verbatim   = "=" length CRLF 3byte ":" payload CRLF  -> Verbatim, the length counts format and colon
//!
//! array      = "*" length CRLF length value        -> Array
//! set        = "~" length CRLF length value        -> Set, order and duplicates kept
//! map        = "%" length CRLF length (value value)  -> Map, order and duplicates kept
//! push       = ">" length CRLF string length-1 value  -> Push, only as a frame; string is simple, bulk or verbatim
//! attribute  = "|" length CRLF length (value value)  -> checked and skipped
//!
//! length     = "0" / 1-9 *DIGIT                    ; no sign, no leading zero, within 63 bits
//! line       = *any byte but CR and LF
//! payload    = as many bytes, of any kind, as the length says
//! ```
//!
//! The streamed types of RESP3 (`$?`, `*?` and so on, `;`, `.`) are legal, but no server sends them. They are [`ErrorKind::Unsupported`].
//! RESP2 is a part of this grammar, so the decoder also understands a server that never switched to RESP3.
//!
//! # Limits
//!
//! | [`Limits`] | bounds | default | ceiling |
//! |---|---|---|---|
//! | `depth` | aggregates open inside each other | 32 | 128 |
//! | `bulk` | bytes of a payload | 16 MiB | 512 MiB |
//! | `elements` | values in a frame, all levels together, attributes included | 1 Mi | 64 Mi |
//! | `line` | bytes of a line | 64 KiB | 16 MiB |
//! | `frame` | payload bytes in a frame, of all levels and attributes, but not the bytes that are stored inside a value | 64 MiB, at least `bulk` and `line` | 1 GiB |
//!
//! The decoder rejects a header that announces more than a limit before it allocates anything. For a smaller header it allocates only as
//! bytes arrive. **Headers alone make the decoder hold less than 64 KiB**, whatever they announce. Received bytes take at most 14 bytes of
//! memory each. This worst case is an array of nulls, which have three bytes on the wire and 32 in memory. A payload takes its own length.
//!
//! By default a whole frame takes about 40 MiB at most for its values, because a growing vector exists twice for a moment. Its payloads
//! take 64 MiB at most, and keep at most four times as much of the read buffer alive.
//!
//! # What it costs
//!
//! `cargo xtask bench codec` measured these figures on one core of an AMD EPYC (Zen 3), in nanoseconds of CPU time. Two other parsers
//! decoded the same bytes:
//!
//! | work | this crate | `redis-protocol` 6 | `redis` 2.0 |
//! |---|---|---|---|
//! | a reply `:1`, many per read | 6, no allocation | 108 | 80 |
//! | a reply `:29849`, one per read | 22, no allocation | 140 | 131, 1 allocation |
//! | a reply of 16 bytes | 10, no allocation | 125 | 132, 1 allocation |
//! | one of 1000 bulks of 16 bytes in nested arrays | 13, no allocation | 156 | 142, 1 allocation |
//! | one of 1000 bulks of 38 bytes in nested arrays | 52, 1 allocation | 128 | 146, 1 allocation |
//! | a bulk of 1 MiB | 180, no copy | 310, no copy | 350 000 |
//! | `EVALSHA`, one key, two arguments | 25 from a template, 52 built, no allocation | 274 | 171, 6 allocations |
//! | twice the elements in 1-byte chunks | twice the time | four times | twice |
//!
//! - **Storage** is described at [`Blob`]: up to 22 bytes are in the value itself. From 32 KiB on, a blob is a slice of the read buffer.
//!   Between these sizes it has an allocation of exact size. A short reply never keeps its read block alive, and a slice never keeps a
//!   block of more than four times its size.
//! - **Work** is linear in the bytes, however they are split: finished values leave the buffer at once, and an unfinished line is searched
//!   once. Only an unfinished number of at most 22 bytes is read again.
//! - **A large bulk** is read in few steps if the reader reserves the room that [`Decoder::wanted`] returns.
//! - **Stack**: decoding does not recurse. Dropping, cloning, comparing, printing and encoding a value recurse once per level.
//!   [`Limits::depth`] bounds the levels.
//!
//! # Errors
//!
//! An [`Error`] has a kind and an offset: the number of bytes of the stream before the offending byte. Both depend only on the bytes, not
//! on how they were split. Every error is fatal to the stream, because the decoder cannot know where the next frame begins. The decoder
//! returns the same error for ever, and the caller must close the connection.
//!
//! | [`ErrorKind`] | example | offset of |
//! |---|---|---|
//! | `UnknownType` | `HTTP/1.1 400` | the type byte |
//! | `Unsupported` | `$?`, `;4` | the `?`, or the type byte |
//! | `LineEnding` | `+OK` LF, `$1` CRLF `xy` | the byte in place of CR or LF |
//! | `Length` | `$05`, `*+1`, `%-1` | the first invalid byte |
//! | `Integer`, `Double`, `BigNumber` | `:1.5`, `,.5`, `(1a` | the first invalid byte |
//! | `Boolean`, `Null` | `#x`, `_x` | the invalid byte |
//! | `Verbatim` | `=3`, `=8` CRLF `txt;` | the length, or the byte in place of the colon |
//! | `PushKind` | `>0`, `>1` CRLF `:1` | the push, or its first element |
//! | `PushInside` | `*1` CRLF `>1` | the push |
//! | `Limit` | see above | the type byte of the value over the limit |
//!
//! # Features
//!
//! - `codec`: `codec::RespCodec` for tokio-util. Off by default; without this feature the only dependency is `bytes`.
#![cfg_attr(docsrs, feature(doc_cfg))]

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

/// The `bytes` crate in the version used here: buffers are `BytesMut`, and whole payloads are `Bytes`.
pub use bytes;

pub use blob::Blob;
pub use command::{Arg, ArgCount, Command, EvalSha};
pub use decoder::Decoder;
pub use error::{Error, ErrorKind, LimitKind};
pub use limits::Limits;
pub use value::{Frame, Push, Value};

/// Compiles the examples in the package's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
