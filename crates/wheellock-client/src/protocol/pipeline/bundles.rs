//! Calls that leave together as one command. The server pays for each run of a script, and several locks that are asked for at once need
//! no more than one: neighbours in wire order that are parts of the same script become a run of that one, at the moment at which a writer takes
//! them. Owns which calls can, how their bytes become one command, and those bytes until the server has answered: a command that it
//! refuses as a whole, for one member's sake or for all, is sent once more, call by call. Pure.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use wheellock_resp::Arg;

use crate::base::script::{Native, Part, Script};
use crate::protocol::handshake::ServerInfo;
use crate::protocol::request::Request;

/// What can be bundled, and what is under way bundled.
#[derive(Default)]
pub(super) struct Bundles {
    known: Vec<Known>,
    /// In wire order.
    sent: VecDeque<Bundle>,
    /// Room for others.
    spare: Vec<Bundle>,
    /// Room to make the next ones in.
    room: BytesMut,
    /// No bundle is made before this: the last one was refused.
    rests_until: Option<Instant>,
    /// Whether calls may be bundled: those of a cluster may be about keys of different slots.
    may_bundle: bool,
    /// What the server is.
    server: ServerInfo,
}

/// A part of a script, with what its calls look like.
struct Known {
    id: PartId,
    whole: Arc<Script>,
    number: u8,
    /// Bytes before the key.
    head: usize,
    /// Arguments behind it.
    args: usize,
    natives: &'static [Native],
    /// The one of these that the server knows.
    native: Option<&'static Native>,
    /// Whether the server knows one for every part of the script: then nobody needs that one.
    all_native: bool,
}

/// The calls of one command as they would have been sent alone.
#[derive(Default)]
pub(super) struct Bundle {
    whole: Option<Arc<Script>>,
    bytes: BytesMut,
    calls: Vec<Kept>,
}

/// A call among the bytes of a bundle: its last are its arguments, and before them stands its key.
struct Kept {
    end: usize,
    key: u16,
    args: u16,
    /// Which part it is.
    number: u8,
}

/// What a call is to those who bundle it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shape {
    pub(super) part: PartId,
    /// Bytes of its key, with the length before it.
    key: u16,
    /// Bytes of what follows the key.
    args: u16,
}

/// Which part of which script a call is: places of what is known, counted from one; zero if of none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PartId {
    part: u8,
    /// That of the script's first part.
    whole: u8,
}

impl PartId {
    /// Whether it is no part of a script, or of one that is not known.
    pub(super) fn is_of_none(self) -> bool {
        self.part == 0
    }
}

impl Bundles {
    pub(super) fn new(may_bundle: bool) -> Self {
        Self { may_bundle, ..Self::default() }
    }

    /// What this request, which takes so many bytes, is to those who bundle it. One that is not to be bundled now is none of a whole.
    pub(super) fn shape(&mut self, request: &Request<'_>, len: usize, now: Instant) -> Shape {
        let Request::EvalSha(eval) = request else { return Shape::default() };
        let Some(Part { whole, number }) = eval.script.part() else { return Shape::default() };
        let is_it = |known: &&Known| known.number == *number && Arc::ptr_eq(&known.whole, whole);
        let known = self.known.iter().find(is_it).map(|known| (known.id, known.head));
        let Some((id, head)) = known.or_else(|| self.learn(eval.script, whole, *number)) else {
            return Shape::default();
        };
        let key = eval.params.first().map_or(0, |key| key.encoded_len());
        let rests = !self.may_bundle || self.rests_until.is_some_and(|until| now < until);
        match (u16::try_from(key), u16::try_from(len.saturating_sub(head + key))) {
            (Ok(key), Ok(args)) if !rests => Shape { part: id, key, args },
            _ => Shape { part: PartId { whole: 0, ..id }, key: 0, args: 0 },
        }
    }

    /// How many of these calls, from the first on, can be one command, and one that costs less than all of them.
    pub(super) fn go_together(&self, mut calls: impl Iterator<Item = Shape>) -> usize {
        let Some(Shape { part: first, .. }) = calls.next() else { return 0 };
        if first.whole == 0 || self.known(first).is_none_or(|known| known.all_native) {
            return 1;
        }
        1 + calls.take(MOST - 1).take_while(|call| call.part.whole == first.whole).count()
    }

    /// The commands of the server's own that do what this part does, and the bytes of its calls before the key.
    pub(super) fn native(&self, part: PartId) -> Option<(&'static Native, usize)> {
        self.known(part).and_then(|known| Some((known.native?, known.head)))
    }

    /// The server does not let this user have these commands. It is asked for them no more on this connection: each time would stand in
    /// its log of refusals.
    pub(super) fn forgo_native(&mut self, part: PartId) {
        if let Some(known) = self.known.iter_mut().find(|known| known.id.part == part.part) {
            known.native = None;
            self.see_natives();
        }
    }

    /// What is native of which scripts has changed.
    fn see_natives(&mut self) {
        for place in 0..self.known.len() {
            let Some(whole) = self.known.get(place).map(|known| known.id.whole) else { return };
            let all = self.known.iter().filter(|known| known.id.whole == whole).all(|it| it.native.is_some());
            if let Some(known) = self.known.get_mut(place) {
                known.all_native = all;
            }
        }
    }

    /// A part that was not known, and the bytes of its calls before the key.
    #[cold]
    fn learn(&mut self, script: &Script, whole: &Arc<Script>, number: u8) -> Option<(PartId, usize)> {
        let (keys, params) = script.arity().filter(|(keys, _)| *keys == 1)?;
        // With nothing in them, parameters are six bytes each.
        let mut empty = BytesMut::new();
        script.encode_evalsha(keys, &vec![Arg::from(""); params], &mut empty);
        let head = empty.len().checked_sub(6 * params)?;
        let part = u8::try_from(self.known.len() + 1).ok()?;
        let first = self.known.iter().find(|known| Arc::ptr_eq(&known.whole, whole));
        let id = PartId { part, whole: first.map_or(part, |first| first.id.part) };
        let (whole, natives) = (Arc::clone(whole), script.natives());
        let native = known_by(natives, &self.server);
        let args = params - keys;
        self.known.push(Known { id, whole, number, head, args, natives, native, all_native: false });
        self.see_natives();
        Some((id, head))
    }

    fn known(&self, part: PartId) -> Option<&Known> {
        self.known.get(usize::from(part.part).checked_sub(1)?)
    }

    /// Writes calls that follow each other, all of which are these bytes, to `out` as one command, and keeps them as they are. Returns
    /// whether that was done.
    pub(super) fn write(
        &mut self,
        calls: impl Iterator<Item = Shape>,
        bytes: &[u8],
        out: &mut BytesMut,
    ) -> bool {
        let mut bundle = self.spare.pop().unwrap_or_default();
        let (mut whole, mut end, mut words) = (None, 0, 0);
        for Shape { part, key, args } in calls {
            let Some(known) = self.known(part) else { return false };
            end += known.head + usize::from(key) + usize::from(args);
            words += 2 + known.args;
            whole = Some(known);
            bundle.calls.push(Kept { end, key, args, number: known.number });
        }
        let Some(Known { whole, .. }) = whole.filter(|_| end == bytes.len()) else { return false };
        bundle.whole = Some(Arc::clone(whole));
        bundle.bytes.extend_from_slice(bytes);
        whole.begin_evalsha(bundle.calls.len(), words, out);
        for call in &bundle.calls {
            out.extend_from_slice(call.key(bytes));
        }
        for call in &bundle.calls {
            out.extend_from_slice(&[b'$', b'1', b'\r', b'\n', b'0'.wrapping_add(call.number), b'\r', b'\n']);
            out.extend_from_slice(call.args(bytes));
        }
        self.sent.push_back(bundle);
        true
    }

    /// The bundle that went first, or was to go first, of those that have not ended.
    pub(super) fn next(&mut self) -> Bundle {
        self.sent.pop_front().unwrap_or_default()
    }

    /// A bundle has ended. Its room is for the next one.
    pub(super) fn ended(&mut self, mut bundle: Bundle) {
        bundle.bytes.clear();
        bundle.calls.clear();
        if self.spare.len() < SPARE && bundle.bytes.capacity() <= ROOM {
            self.spare.push(bundle);
        }
    }

    pub(super) fn forget_all(&mut self) {
        self.sent.clear();
    }

    /// One was refused, and may be again: for a while calls go alone.
    pub(super) fn rest(&mut self, now: Instant) {
        self.rests_until = Some(now + REST);
    }

    /// The next connection may be to another server, and as another user.
    pub(super) fn meet(&mut self, server: &ServerInfo) {
        self.rests_until = None;
        self.server.clone_from(server);
        for known in &mut self.known {
            known.native = known_by(known.natives, server);
        }
        self.see_natives();
    }

    /// Room to make bundles in, which is given back.
    pub(super) fn take_room(&mut self) -> BytesMut {
        std::mem::take(&mut self.room)
    }

    pub(super) fn give_room(&mut self, mut room: BytesMut) {
        room.clear();
        // One flood must not keep megabytes for ever.
        if room.capacity() <= ROOM {
            self.room = room;
        }
    }
}

impl Kept {
    /// Its key, with the length before it.
    fn key<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let end = self.end - usize::from(self.args);
        bytes.get(end - usize::from(self.key)..end).unwrap_or_default()
    }

    fn args<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        bytes.get(self.end - usize::from(self.args)..self.end).unwrap_or_default()
    }
}

impl Bundle {
    /// The script that it is a run of.
    pub(super) fn whole(&self) -> Option<&Arc<Script>> {
        self.whole.as_ref()
    }

    /// One of its calls, as it would have been sent alone.
    pub(super) fn call(&self, place: usize) -> Option<&[u8]> {
        let start = match place.checked_sub(1) {
            Some(before) => self.calls.get(before)?.end,
            None => 0,
        };
        self.bytes.get(start..self.calls.get(place)?.end)
    }
}

/// The first of these that a server knows.
fn known_by(natives: &'static [Native], server: &ServerInfo) -> Option<&'static Native> {
    natives.iter().find(|native| native.known_by.iter().any(|(name, since)| server.is(name, *since)))
}

/// Calls of one command at most: the server does nothing else meanwhile.
pub(crate) const MOST: usize = 32;
/// For how long calls go alone after a bundle was refused.
const REST: Duration = Duration::from_secs(1);
/// Rooms that are kept, and bytes that are kept of each.
const SPARE: usize = 8;
const ROOM: usize = 64 << 10;
