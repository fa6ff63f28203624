//! Calls that a writer sends together as one command.
//!
//! The server pays for each run of a script, and one run can serve several locks. Neighbours in wire order that are
//! parts of the same script become one run of that script. This happens when a writer takes them. This module decides
//! which calls can be batched and how their bytes form one command. If the server refuses the whole command, the
//! pipeline sends each call again by itself. This module does no I/O.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;

use crate::base::script::{Native, Part, Script};
use crate::protocol::handshake::ServerInfo;
use crate::protocol::request::Request;

/// The known parts, and the server that decides in which form their calls leave.
#[derive(Default)]
pub(super) struct Batches {
    known: Vec<Known>,
    /// The calls of the last batch, kept for their memory.
    split: Vec<Split>,
    /// A buffer in which the next batches are encoded.
    pub(super) room: BytesMut,
    /// The end of the pause after a refused batch. Before it no batch is built.
    rests_until: Option<Instant>,
    /// True if calls may be batched. Calls to a cluster must not: their keys may belong to different slots.
    may_batch: bool,
    /// The server of the present connection, or of the last one.
    pub(super) server: ServerInfo,
}

/// A part of a script, with the layout of its calls.
struct Known {
    id: PartId,
    whole: Arc<Script>,
    number: u8,
    /// The number of bytes before the key.
    head: usize,
    /// The number of arguments behind the key.
    args: usize,
    natives: &'static [Native],
    /// The native commands of `natives` that the server knows.
    native: Option<&'static Native>,
    /// True if the server refused the native commands on this connection.
    is_native_refused: bool,
}

/// A call among the bytes of a batch. The call's bytes end with its key and, behind the key, its arguments.
struct Split {
    end: usize,
    key: usize,
    args: usize,
    /// The number of the part.
    number: u8,
}

/// The layout of a call, as far as batching needs it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shape {
    pub(super) part: PartId,
    /// The length of the call in bytes.
    pub(super) len: u16,
    /// The number of bytes behind the key.
    args: u16,
}

/// A part of a script. Both fields are positions in the list of known parts, counted from one. Zero means no part.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PartId {
    part: u8,
    /// The position of the script's first known part.
    whole: u8,
}

impl PartId {
    /// Returns true if the call is not a known part of a script.
    pub(super) fn is_none(self) -> bool {
        self.part == 0
    }
}

impl Batches {
    pub(super) fn new(may_batch: bool) -> Self {
        Self { may_batch, ..Self::default() }
    }

    /// Returns the shape of a request that takes `len` bytes. If the request must not be batched now, the shape's
    /// `whole` is zero.
    pub(super) fn shape(&mut self, request: &Request<'_>, len: usize, now: Instant) -> Shape {
        let Request::EvalSha(eval) = request else { return Shape::default() };
        let Some(Part { whole, number }) = &eval.script.part else { return Shape::default() };
        let is_it = |known: &&Known| known.number == *number && Arc::ptr_eq(&known.whole, whole);
        let known = self.known.iter().find(is_it).map(|known| (known.id, known.head));
        let Some((id, head)) = known.or_else(|| self.learn(eval.script, whole, *number)) else {
            return Shape::default();
        };
        let key = eval.params.first().map_or(0, |key| key.encoded_len());
        let args = len.checked_sub(head + key).and_then(|args| u16::try_from(args).ok());
        let (Ok(len), Some(args)) = (u16::try_from(len), args) else { return Shape::default() };
        let rests = !self.may_batch || self.rests_until.is_some_and(|until| now < until);
        // The part stays known, because native commands may replace a call that must not be batched.
        let part = if rests { PartId { whole: 0, ..id } } else { id };
        Shape { part, len, args }
    }

    /// Returns how many of these calls, beginning with the first, can form one command that costs less than the
    /// single calls.
    pub(super) fn batch_len(&self, mut calls: impl Iterator<Item = Shape>) -> usize {
        let Some(Shape { part: first, .. }) = calls.next() else { return 0 };
        // The server knows native commands for every part of the script. Bundling such parts saves nothing.
        let mut parts = self.known.iter().filter(|known| known.id.whole == first.whole);
        if first.whole == 0 || parts.all(|known| known.usable_native().is_some()) {
            return 1;
        }
        1 + calls.take(MOST - 1).take_while(|call| call.part.whole == first.whole).count()
    }

    /// Returns the native commands that replace this part, and the number of bytes before the key of the part's
    /// calls.
    pub(super) fn native(&self, part: PartId) -> Option<(&'static Native, usize)> {
        self.known(part).and_then(|known| Some((known.usable_native()?, known.head)))
    }

    /// Returns the native commands of a part's calls in flight.
    pub(super) fn sent_native(&self, part: PartId) -> Option<&'static Native> {
        self.known(part)?.native
    }

    /// Returns the script of which this is a part.
    pub(super) fn whole(&self, part: PartId) -> Option<&Arc<Script>> {
        self.known(part).map(|known| &known.whole)
    }

    /// Disables the native commands of a part on this connection, because the server refused them. Each further
    /// attempt would add a line to the server's log of refusals.
    pub(super) fn disable_native(&mut self, part: PartId) {
        if let Some(known) = self.known.iter_mut().find(|known| known.id.part == part.part) {
            known.is_native_refused = true;
        }
    }

    /// Records an unknown part. Returns its identifier and the number of bytes before the key of its calls.
    #[cold]
    fn learn(&mut self, script: &Script, whole: &Arc<Script>, number: u8) -> Option<(PartId, usize)> {
        // A batch takes one key from each call.
        let (keys, params) = script.arity().filter(|(keys, _)| *keys == 1)?;
        let mut head = BytesMut::new();
        script.begin_evalsha(keys, params, &mut head);
        let head = head.len();
        let part = u8::try_from(self.known.len() + 1).ok()?;
        let first = self.known.iter().find(|known| Arc::ptr_eq(&known.whole, whole));
        let id = PartId { part, whole: first.map_or(part, |first| first.id.part) };
        let (whole, natives) = (Arc::clone(whole), script.natives);
        // `meet` updates only the parts that it knows, so a later part compares the server here.
        let native = known_by(natives, &self.server);
        let args = params - keys;
        self.known.push(Known { id, whole, number, head, args, natives, native, is_native_refused: false });
        Some((id, head))
    }

    fn known(&self, part: PartId) -> Option<&Known> {
        self.known.get(usize::from(part.part).checked_sub(1)?)
    }

    /// Writes adjacent calls, whose bytes are `bytes`, to `out` as one command. Returns false if `out` is unchanged.
    pub(super) fn write(
        &mut self,
        calls: impl Iterator<Item = Shape>,
        bytes: &[u8],
        out: &mut BytesMut,
    ) -> bool {
        let mut split = std::mem::take(&mut self.split);
        split.clear();
        let (mut whole, mut end, mut words) = (None, 0, 0);
        for Shape { part, len, args } in calls {
            let Some(known) = self.known(part) else { return false };
            let (len, args) = (usize::from(len), usize::from(args));
            end += len;
            words += 2 + known.args;
            whole = Some(&known.whole);
            let key = len.saturating_sub(known.head + args);
            split.push(Split { end, key, args, number: known.number });
        }
        // If the lengths do not add up, each call leaves alone. A wrong split would give callers each other's keys.
        let Some(whole) = whole.filter(|_| end == bytes.len()) else { return false };
        whole.begin_evalsha(split.len(), words, out);
        // EVALSHA takes all keys before the first argument.
        for call in &split {
            let end = call.end - call.args;
            out.extend_from_slice(bytes.get(end - call.key..end).unwrap_or_default());
        }
        for call in &split {
            out.extend_from_slice(&[b'$', b'1', b'\r', b'\n', b'0'.wrapping_add(call.number), b'\r', b'\n']);
            out.extend_from_slice(bytes.get(call.end - call.args..call.end).unwrap_or_default());
        }
        self.split = split;
        true
    }

    /// Pauses batching after a refused batch, because the next batch may be refused, too.
    pub(super) fn rest(&mut self, now: Instant) {
        self.rests_until = Some(now + REST);
    }

    /// Adapts to a new connection, which may have another server or another user.
    pub(super) fn meet(&mut self, server: &ServerInfo) {
        self.rests_until = None;
        self.server.clone_from(server);
        for known in &mut self.known {
            known.native = known_by(known.natives, server);
            known.is_native_refused = false;
        }
    }

    /// Keeps the buffer in which the next batches are encoded.
    pub(super) fn give_room(&mut self, mut room: BytesMut) {
        room.clear();
        // Without this limit, one flood would keep megabytes for the connection's lifetime.
        if room.capacity() <= ROOM {
            self.room = room;
        }
    }
}

impl Known {
    /// Returns the native commands that replace the part's next call.
    fn usable_native(&self) -> Option<&'static Native> {
        self.native.filter(|_| !self.is_native_refused)
    }
}

/// Returns the first of these native forms that the server knows.
fn known_by(natives: &'static [Native], server: &ServerInfo) -> Option<&'static Native> {
    natives.iter().find(|native| native.known_by.iter().any(|(name, since)| server.is(name, *since)))
}

/// The largest number of calls in one command. The server does nothing else while it runs the command.
pub(crate) const MOST: usize = 32;
/// The pause of batching after a refused batch.
const REST: Duration = Duration::from_secs(1);
/// The largest number of bytes that stay reserved for the encoding of batches.
const ROOM: usize = 64 << 10;
