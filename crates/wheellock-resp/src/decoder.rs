//! From bytes to frames: nesting, limits, and picking up where the last bytes ended. Tokens are the grammar's business;
//! sockets and the meaning of a reply are nobody's here.

use bytes::{Buf, BytesMut};

use crate::blob::Window;
use crate::grammar::{self, Bad, Short};
use crate::{Blob, Error, ErrorKind, Frame, LimitKind, Limits, Push, Value};

/// An incremental RESP2/RESP3 decoder.
///
/// Feed it the front of a buffer and it takes what it understands, a complete value at a time: a large array leaves the
/// buffer element by element, and nothing is looked at twice except an unfinished number of at most 22 bytes. Work is linear in
/// the bytes however they are cut. It does not recurse, and never allocates on the strength of a header.
///
/// ```
/// use bytes::BytesMut;
/// use wheellock_resp::{Decoder, Frame, Limits, Value};
///
/// let mut decoder = Decoder::new(Limits::default());
/// let mut buf = BytesMut::from("*2\r\n:1\r\n$5\r\nhel");
/// assert_eq!(decoder.decode(&mut buf)?, None);
/// buf.extend_from_slice(b"lo\r\n");
/// let hello = Value::Array(vec![1.into(), "hello".into()]);
/// assert_eq!(decoder.decode(&mut buf)?, Some(Frame::Reply(hello)));
/// # Ok::<(), wheellock_resp::Error>(())
/// ```
#[derive(Debug)]
pub struct Decoder {
    limits: Limits,
    /// How many values of a push are kept; the others are checked and dropped.
    push_values: usize,
    /// Whether the limits allow everything that the short path takes, which does not look at them.
    takes_short: bool,
    /// Whether the short path may not have the next frame: there is a state to go on from, part of a frame, of a line, or an error.
    unfinished: bool,
    /// Bytes taken from the stream so far: the offset of the buffer's front.
    consumed: u64,
    /// The aggregates around the next value, outermost first.
    stack: Vec<Open>,
    /// Values announced by the headers of this frame.
    elements: usize,
    /// Bytes of the payloads of this frame, announced or arrived, of which each needs memory of its own.
    payloads: usize,
    /// Values for which room may still be reserved before they have arrived.
    speculation: usize,
    /// A bulk whose header has been taken and whose payload has not.
    bulk: Option<Bulk>,
    /// Bytes at the buffer's front that belong to an unfinished line and hold no end of it.
    searched: usize,
    wanted: usize,
    /// The size of the block of memory the buffer is in, as far as we can tell; what tells it from the next, the offset in the
    /// stream at which it ends; and where in the stream we last looked.
    block: u64,
    block_end: u64,
    block_seen: u64,
    failed: Option<Error>,
}

impl Decoder {
    /// A decoder at the start of a stream. Limits above their ceilings are lowered to them.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let limits = limits.clamped();
        let takes_short = limits.bulk.min(limits.line) >= Blob::INLINE;
        Self {
            limits,
            push_values: usize::MAX,
            takes_short,
            unfinished: !takes_short,
            consumed: 0,
            stack: Vec::new(),
            elements: 0,
            payloads: 0,
            speculation: SPECULATION,
            bulk: None,
            searched: 0,
            wanted: 0,
            block: 0,
            block_end: 0,
            block_seen: 0,
            failed: None,
        }
    }

    /// Keeps the first `count` values of each push, at least one. The decoder checks and drops the others as they arrive, so a
    /// message's payload of any length up to [`Limits::MAX_BULK`] takes no memory and does not count towards the [`Limits`] of
    /// payloads. For readers that need a message's channel and not its payload.
    ///
    /// ```
    /// use bytes::BytesMut;
    /// use wheellock_resp::{Decoder, Frame, Limits};
    ///
    /// let mut decoder = Decoder::new(Limits { bulk: 100, ..Limits::default() }).keeping_of_pushes(2);
    /// let mut buf = BytesMut::from(">3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$1000\r\n");
    /// assert_eq!(decoder.decode(&mut buf)?, None);
    /// buf.extend_from_slice(&[b'x'; 600]);
    /// assert_eq!((decoder.decode(&mut buf)?, buf.len()), (None, 0)); // none of it is kept
    /// buf.extend_from_slice(&[b'x'; 400]);
    /// buf.extend_from_slice(b"\r\n");
    /// let Some(Frame::Push(push)) = decoder.decode(&mut buf)? else { unreachable!() };
    /// assert_eq!((push.kind(), push.args()), (&b"message"[..], &["news".into()][..]));
    /// # Ok::<(), wheellock_resp::Error>(())
    /// ```
    #[must_use]
    pub fn keeping_of_pushes(mut self, count: usize) -> Self {
        self.push_values = count.max(1);
        self
    }

    /// Takes one frame from the front of `buf`, or `None` if it does not hold a whole one.
    ///
    /// Call it again until it answers `None`, then append to the same buffer and go on. What has been understood of an
    /// unfinished frame is taken out of the buffer and kept in the decoder.
    ///
    /// # Errors
    ///
    /// When the bytes are not RESP or exceed the [`Limits`]. The stream is lost then: every later call returns the same error
    /// and takes nothing.
    // Always: the short path is what a caller's loop consists of, and its result must not be moved to get there.
    #[inline(always)]
    pub fn decode(&mut self, buf: &mut BytesMut) -> Result<Option<Frame>, Error> {
        if !self.unfinished
            && let Some((short, used)) = Short::find(buf)
        {
            self.consumed += used as u64;
            // One arm each, so that every value is written once, where the caller finds it.
            return match short {
                Short::Null => {
                    buf.advance(used);
                    Ok(Some(Frame::Reply(Value::Null)))
                }
                Short::Integer(number) => {
                    buf.advance(used);
                    Ok(Some(Frame::Reply(Value::Integer(number))))
                }
                Short::Line { len } => {
                    let window = Window::load(buf, 1);
                    buf.advance(used);
                    Ok(Some(Frame::Reply(Value::SimpleString(window.blob(len)))))
                }
                Short::Bulk { header, len } => {
                    let window = Window::load(buf, header.into());
                    buf.advance(used);
                    Ok(Some(Frame::Reply(Value::BulkString(window.blob(len)))))
                }
            };
        }
        self.decode_any(buf)
    }

    /// The limits in force.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// How many more bytes to make room for: what the bulk under way still lacks, or 0 if no bulk is under way.
    ///
    /// Never more than the largest of 16 KiB, what has arrived of it already, and 16 times that but 1 MiB at most. So whatever a header
    /// claimed, a reader that reserves this much holds 16 KiB until something has arrived, and twice what it received and 1 MiB at most;
    /// up to 1 MiB it copies the first sixteenth of a bulk alone, and a larger one it reads in a logarithmic number of steps.
    #[must_use]
    pub fn wanted(&self) -> usize {
        self.wanted
    }

    /// Bytes taken from the stream since the decoder was made.
    #[must_use]
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Whether a frame has begun and not ended, as far as the bytes taken tell. If so, or if the buffer is not empty, the end
    /// of the stream is a truncation.
    #[must_use]
    pub fn is_mid_frame(&self) -> bool {
        self.failed.is_none() && (self.bulk.is_some() || !self.stack.is_empty() || self.elements > 0)
    }

    #[inline(never)]
    fn decode_any(&mut self, buf: &mut BytesMut) -> Result<Option<Frame>, Error> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        self.wanted = 0;
        self.see_block(buf.capacity());
        loop {
            let mut used = 0;
            let step = self.step(buf, &mut used);
            let step = step.map_err(|Bad { kind, at }| Error::new(kind, self.consumed + at as u64));
            buf.advance(used.min(buf.len()));
            self.consumed += used as u64;
            let frame = match step {
                Ok(Step::Frame(frame)) => Some(frame),
                Ok(Step::Share(len)) => {
                    let payload = buf.split_to(len.min(buf.len())).freeze();
                    buf.advance(LINE_ENDING.min(buf.len()));
                    self.consumed += (len + LINE_ENDING) as u64;
                    let kind = self.bulk.take().map_or(BulkKind::String, |bulk| bulk.kind);
                    self.emit(kind.value(payload.into()))
                }
                Ok(Step::More) => {
                    // Between frames the short path may have the next one, even if some of it is here already.
                    self.unfinished = !self.takes_short || self.is_mid_frame() || self.searched > 0;
                    return Ok(None);
                }
                Err(error) => {
                    self.fail(error);
                    return Err(error);
                }
            };
            if let Some(frame) = frame {
                self.unfinished = !self.takes_short;
                self.elements = 0;
                self.payloads = 0;
                return Ok(Some(frame));
            }
        }
    }

    /// Finds out how large a block of memory a slice of the buffer would keep alive.
    fn see_block(&mut self, capacity: usize) {
        let end = self.consumed + capacity as u64;
        if end != self.block_end {
            // What the short path has taken in the meantime may have been the front of this block.
            self.block = end - self.block_seen;
            self.block_end = end;
        }
        self.block_seen = self.consumed;
    }

    /// Reads values until a frame is complete, the bytes end, or a payload comes that is to be sliced from the buffer.
    /// `used` counts the bytes that are done with. Errors are at an index of `bytes`.
    fn step(&mut self, bytes: &[u8], used: &mut usize) -> Result<Step, Bad> {
        loop {
            let rest = bytes.get(*used..).unwrap_or_default();
            let token = if let Some(bulk) = self.bulk {
                self.payload(bulk, rest)
            } else {
                // The hot path: a short value in an array that is not complete with it.
                if self.takes_short
                    && let Some((short, len)) = Short::find(rest)
                    && let Some(open) = self.stack.last_mut()
                    && !open.push_kind_due()
                {
                    *used += len;
                    // Whichever path finished the line, the next one has not been searched.
                    self.searched = 0;
                    open.add(short.value(rest), self.push_values);
                    if open.left == 0
                        && let Some(frame) = self.close()
                    {
                        return Ok(Step::Frame(frame));
                    }
                    continue;
                }
                self.token(rest)
            };
            let value = match token.map_err(|Bad { kind, at }| Bad { kind, at: *used + at })? {
                Token::Value(value, len) => {
                    *used += len;
                    self.searched = 0;
                    value
                }
                Token::Header(len) => {
                    *used += len;
                    continue;
                }
                Token::Share(len) => return Ok(Step::Share(len)),
                Token::More => return Ok(Step::More),
            };
            if let Some(frame) = self.emit(value) {
                return Ok(Step::Frame(frame));
            }
        }
    }

    /// Reads one value or header of any type, type byte first.
    fn token(&mut self, bytes: &[u8]) -> Result<Token, Bad> {
        let Some((&kind, rest)) = bytes.split_first() else { return Ok(Token::More) };
        let after_type = |bad: Bad| match bad.kind {
            // A limit is exceeded by the value as a whole.
            ErrorKind::Limit(_) => Bad { at: 0, ..bad },
            _ => Bad { at: bad.at + 1, ..bad },
        };
        if self.push_kind_due() && is_type(kind) && !matches!(kind, b'+' | b'$' | b'=' | b'|' | b';' | b'.') {
            return Err(Bad { kind: ErrorKind::PushKind, at: 0 });
        }
        let value = match kind {
            b'+' | b'-' | b'(' | b',' => return self.line(kind, rest).map_err(after_type),
            b':' => {
                grammar::integer(rest).map_err(after_type)?.map(|(number, len)| (Value::Integer(number), len))
            }
            b'#' => {
                grammar::boolean(rest).map_err(after_type)?.map(|(truth, len)| (Value::Boolean(truth), len))
            }
            b'_' => grammar::null(rest).map_err(after_type)?.map(|((), len)| (Value::Null, len)),
            b'$' => return self.bulk(BulkKind::String, rest),
            b'!' => return self.bulk(BulkKind::Error, rest),
            b'=' => return self.bulk(BulkKind::Verbatim, rest),
            b'*' => return self.aggregate(Aggregate::Array, rest),
            b'~' => return self.aggregate(Aggregate::Set, rest),
            b'%' => return self.aggregate(Aggregate::Map, rest),
            b'>' => return self.aggregate(Aggregate::Push, rest),
            b'|' => return self.aggregate(Aggregate::Attribute, rest),
            b';' | b'.' => return Err(Bad { kind: ErrorKind::Unsupported(kind), at: 0 }),
            _ => return Err(Bad { kind: ErrorKind::UnknownType(kind), at: 0 }),
        };
        Ok(value.map_or(Token::More, |(value, len)| Token::Value(value, 1 + len)))
    }

    /// Reads a type that is one line of text. Errors are at an index of `rest`, the bytes after the type byte.
    fn line(&mut self, kind: u8, rest: &[u8]) -> Result<Token, Bad> {
        let Some((line, len)) = grammar::line(rest, self.searched, self.limits.line)? else {
            // A CR at the end is looked at again together with what follows it.
            self.searched = rest.len() - usize::from(rest.last() == Some(&b'\r'));
            return Ok(Token::More);
        };
        let text = match kind {
            b',' => return Ok(Token::Value(Value::Double(grammar::double(line)?), 1 + len)),
            b'(' => {
                grammar::big_number(line)?;
                Value::BigNumber
            }
            b'+' => Value::SimpleString,
            _ => Value::Error,
        };
        self.count(line.len())?;
        Ok(Token::Value(text(self.keep(line)), 1 + len))
    }

    /// Reads the header of a bulk.
    fn bulk(&mut self, kind: BulkKind, rest: &[u8]) -> Result<Token, Bad> {
        if kind == BulkKind::String && rest.first() == Some(&b'?') {
            return Err(Bad { kind: ErrorKind::Unsupported(b'$'), at: 1 });
        }
        let Some((length, used)) = grammar::length(rest).map_err(|bad| Bad { at: bad.at + 1, ..bad })? else {
            return Ok(Token::More);
        };
        let Some(length) = length else {
            if kind != BulkKind::String {
                return Err(Bad { kind: ErrorKind::Length, at: 1 });
            }
            if self.push_kind_due() {
                return Err(Bad { kind: ErrorKind::PushKind, at: 0 });
            }
            return Ok(Token::Value(Value::Null, 1 + used));
        };
        let len = usize::try_from(length).unwrap_or(usize::MAX);
        let dropped = self.drops_of_push();
        let most = if dropped { Limits::MAX_BULK } else { self.limits.bulk };
        if len > most {
            return Err(Bad { kind: ErrorKind::Limit(LimitKind::Bulk), at: 0 });
        }
        if kind == BulkKind::Verbatim && len < VERBATIM_PREFIX {
            return Err(Bad { kind: ErrorKind::Verbatim, at: 1 });
        }
        self.count(len)?;
        self.bulk = Some(Bulk { kind, len, dropped });
        Ok(Token::Header(1 + used))
    }

    /// Counts a payload of this frame, unless it has room in its value. The hot path has no other ones. An error is at index 0.
    fn count(&mut self, len: usize) -> Result<(), Bad> {
        if len > Blob::INLINE && !self.drops_of_push() {
            self.payloads = self.payloads.saturating_add(len);
            if self.payloads > self.limits.frame {
                return Err(Bad { kind: ErrorKind::Limit(LimitKind::Frame), at: 0 });
            }
        }
        Ok(())
    }

    /// Reads the payload of a bulk and its end.
    fn payload(&mut self, Bulk { kind, len, dropped }: Bulk, bytes: &[u8]) -> Result<Token, Bad> {
        if kind == BulkKind::Verbatim && bytes.get(VERBATIM_PREFIX - 1).is_some_and(|&byte| byte != b':') {
            return Err(Bad { kind: ErrorKind::Verbatim, at: VERBATIM_PREFIX - 1 });
        }
        if grammar::ended(bytes, len, ())?.is_none() {
            // The format of a verbatim string has to be checked before any of it may go.
            if dropped
                && !bytes.is_empty()
                && len > 0
                && (kind != BulkKind::Verbatim || bytes.len() >= VERBATIM_PREFIX)
            {
                let gone = bytes.len().min(len);
                self.bulk = Some(Bulk { kind: BulkKind::String, len: len - gone, dropped });
                return Ok(Token::Header(gone));
            }
            if dropped {
                return Ok(Token::More);
            }
            let arrived = bytes.len();
            let ahead = arrived.saturating_mul(AHEAD).clamp(WANTED, MOST_AHEAD);
            self.wanted = (len + LINE_ENDING - arrived).min(arrived.max(ahead));
            return Ok(Token::More);
        }
        if len >= Blob::SHARE && len as u64 >= self.block / PINNED && !self.skipping() {
            return Ok(Token::Share(len));
        }
        self.bulk = None;
        let payload = bytes.get(..len).unwrap_or(bytes);
        let value = if kind == BulkKind::Verbatim {
            // Taken apart before it is copied, so that the text alone decides where it is kept.
            let (format, text) = verbatim(payload);
            Value::Verbatim { format, text: self.keep(text) }
        } else {
            kind.value(self.keep(payload))
        };
        Ok(Token::Value(value, len + LINE_ENDING))
    }

    /// Reads the header of an aggregate and opens it, unless it is empty.
    fn aggregate(&mut self, kind: Aggregate, rest: &[u8]) -> Result<Token, Bad> {
        let first = |kind| Err(Bad { kind, at: 0 });
        if kind == Aggregate::Push && !self.stack.is_empty() {
            return first(ErrorKind::PushInside);
        }
        if rest.first() == Some(&b'?') {
            return Err(Bad { kind: ErrorKind::Unsupported(kind.type_byte()), at: 1 });
        }
        let Some((length, used)) = grammar::length(rest).map_err(|bad| Bad { at: bad.at + 1, ..bad })? else {
            return Ok(Token::More);
        };
        let header = 1 + used;
        let Some(length) = length else {
            if kind != Aggregate::Array {
                return Err(Bad { kind: ErrorKind::Length, at: 1 });
            }
            return Ok(Token::Value(Value::Null, header));
        };
        if kind == Aggregate::Push && length == 0 {
            return first(ErrorKind::PushKind);
        }
        if self.stack.len() >= self.limits.depth {
            return first(ErrorKind::Limit(LimitKind::Depth));
        }
        // An attribute counts as a value of its own, so that an endless chain of empty ones ends.
        let own = u64::from(kind == Aggregate::Attribute);
        let values = length.checked_mul(if kind.is_paired() { 2 } else { 1 });
        let elements = values.and_then(|values| values.checked_add(own)?.checked_add(self.elements as u64));
        let (Some(values), Some(elements)) = (values, elements) else {
            return first(ErrorKind::Limit(LimitKind::Elements));
        };
        if elements > self.limits.elements as u64 {
            return first(ErrorKind::Limit(LimitKind::Elements));
        }
        // Neither is above the limit, which is a `usize`.
        self.elements = usize::try_from(elements).unwrap_or(usize::MAX);
        let left = usize::try_from(values).unwrap_or(usize::MAX);

        let skipped = kind == Aggregate::Attribute || self.skipping();
        let reserved = if skipped { 0 } else { left.min(self.speculation) };
        let open = Open { kind, left, reserved, body: Body::new(kind, skipped, reserved) };
        if left > 0 {
            self.speculation -= reserved;
            self.stack.push(open);
            return Ok(Token::Header(header));
        }
        Ok(match open.finish() {
            Finished::Value(value) => Token::Value(value, header),
            Finished::Push(_) | Finished::Attribute => Token::Header(header),
        })
    }

    /// Adds a value to the innermost aggregate and closes what it completes. Answers the frame, if that was all of it.
    fn emit(&mut self, value: Value) -> Option<Frame> {
        let Some(open) = self.stack.last_mut() else { return Some(Frame::Reply(value)) };
        open.add(value, self.push_values);
        if open.left > 0 { None } else { self.close() }
    }

    /// Closes the innermost aggregate, which is complete, and those that it completes. Answers the frame, if that was all.
    fn close(&mut self) -> Option<Frame> {
        loop {
            let open = self.stack.pop()?;
            self.speculation += open.reserved;
            let value = match open.finish() {
                Finished::Value(value) => value,
                Finished::Push(push) => return Some(Frame::Push(push)),
                Finished::Attribute => return None,
            };
            let Some(around) = self.stack.last_mut() else { return Some(Frame::Reply(value)) };
            around.add(value, self.push_values);
            if around.left > 0 {
                return None;
            }
        }
    }

    /// A copy of bytes of the buffer, or nothing if they belong to an attribute.
    fn keep(&self, bytes: &[u8]) -> Blob {
        if self.skipping() { Blob::new() } else { Blob::copy_from_slice(bytes) }
    }

    /// Whether the next value belongs to an attribute, or to the part of a push that is dropped, and is only checked.
    fn skipping(&self) -> bool {
        self.stack.last().is_some_and(|open| matches!(open.body, Body::Skipped)) || self.drops_of_push()
    }

    /// Whether the next value belongs to the part of a push that is dropped. A push is never inside another value.
    fn drops_of_push(&self) -> bool {
        self.stack.first().is_some_and(|open| open.kind == Aggregate::Push && open.is_full(self.push_values))
    }

    /// Whether the next value is the first of a push.
    fn push_kind_due(&self) -> bool {
        self.stack.last().is_some_and(Open::push_kind_due)
    }

    fn fail(&mut self, error: Error) {
        self.failed = Some(error);
        self.unfinished = true;
        self.stack = Vec::new();
        self.bulk = None;
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

/// How far `step` got.
enum Step {
    Frame(Frame),
    /// A payload of this length, checked, lies at the front of the buffer.
    Share(usize),
    More,
}

/// What one look at the bytes found, and how many of them it took.
enum Token {
    Value(Value, usize),
    /// The header of a value whose content follows, or an empty attribute.
    Header(usize),
    /// A payload of this length, checked and not taken.
    Share(usize),
    More,
}

#[derive(Debug, Clone, Copy)]
struct Bulk {
    kind: BulkKind,
    /// Bytes of the payload that are still to be taken.
    len: usize,
    /// The payload is dropped as it arrives.
    dropped: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BulkKind {
    String,
    Error,
    Verbatim,
}

impl BulkKind {
    fn value(self, payload: Blob) -> Value {
        match self {
            Self::String => Value::BulkString(payload),
            Self::Error => Value::BulkError(payload),
            Self::Verbatim => {
                let mut payload = bytes::Bytes::from(payload);
                let (format, _) = verbatim(&payload);
                payload.advance(VERBATIM_PREFIX.min(payload.len()));
                Value::Verbatim { format, text: payload.into() }
            }
        }
    }
}

/// The format and the text of a verbatim string, whose colon has been checked.
fn verbatim(payload: &[u8]) -> ([u8; 3], &[u8]) {
    match payload {
        [a, b, c, _, text @ ..] => ([*a, *b, *c], text),
        _ => ([0; 3], payload),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Aggregate {
    Array,
    Set,
    Map,
    Push,
    Attribute,
}

impl Aggregate {
    fn type_byte(self) -> u8 {
        match self {
            Self::Array => b'*',
            Self::Set => b'~',
            Self::Map => b'%',
            Self::Push => b'>',
            Self::Attribute => b'|',
        }
    }

    fn is_paired(self) -> bool {
        matches!(self, Self::Map | Self::Attribute)
    }
}

/// An aggregate some of whose values have not arrived.
#[derive(Debug)]
struct Open {
    kind: Aggregate,
    /// Values yet to come; a map entry is two.
    left: usize,
    /// Values for which room was reserved when it was opened.
    reserved: usize,
    body: Body,
}

impl Open {
    #[inline]
    fn add(&mut self, value: Value, push_values: usize) {
        match &mut self.body {
            Body::List(items) if self.kind == Aggregate::Push && items.len() >= push_values => {}
            Body::List(items) => {
                if items.len() == items.capacity() {
                    items.reserve_exact(growth(items.len(), self.left));
                }
                items.push(value);
            }
            Body::Pairs(pairs, key) => match key.take() {
                None => *key = Some(value),
                Some(key) => {
                    if pairs.len() == pairs.capacity() {
                        pairs.reserve_exact(growth(pairs.len(), self.left.div_ceil(2)));
                    }
                    pairs.push((key, value));
                }
            },
            Body::Skipped => {}
        }
        self.left -= 1;
    }

    fn finish(self) -> Finished {
        match (self.kind, self.body) {
            (Aggregate::Attribute, _) => Finished::Attribute,
            (_, Body::Skipped) => Finished::Value(Value::Null),
            (_, Body::Pairs(pairs, _)) => Finished::Value(Value::Map(pairs)),
            (Aggregate::Push, Body::List(items)) => {
                Push::new(items).map_or(Finished::Attribute, Finished::Push)
            }
            (Aggregate::Set, Body::List(items)) => Finished::Value(Value::Set(items)),
            (_, Body::List(items)) => Finished::Value(Value::Array(items)),
        }
    }

    /// Whether it has `count` values.
    fn is_full(&self, count: usize) -> bool {
        matches!(&self.body, Body::List(items) if items.len() >= count)
    }

    fn push_kind_due(&self) -> bool {
        self.kind == Aggregate::Push && matches!(&self.body, Body::List(items) if items.is_empty())
    }
}

#[derive(Debug)]
enum Body {
    List(Vec<Value>),
    /// The pairs so far, and a key whose value has not arrived.
    Pairs(Vec<(Value, Value)>, Option<Value>),
    /// An attribute, or something inside one.
    Skipped,
}

impl Body {
    fn new(kind: Aggregate, skipped: bool, reserved: usize) -> Self {
        if skipped {
            Self::Skipped
        } else if kind == Aggregate::Map {
            Self::Pairs(Vec::with_capacity(reserved / 2), None)
        } else {
            Self::List(Vec::with_capacity(reserved))
        }
    }
}

enum Finished {
    Value(Value),
    Push(Push),
    Attribute,
}

/// For how many more items to make room: a quarter of what there is, so that at most a fifth of a large array's memory is
/// spare, however many values its header announced.
#[cold]
fn growth(len: usize, left: usize) -> usize {
    (len / 4).max(8).min(left)
}

fn is_type(byte: u8) -> bool {
    matches!(
        byte,
        b'+' | b'-'
            | b':'
            | b'$'
            | b'*'
            | b'_'
            | b'#'
            | b','
            | b'('
            | b'!'
            | b'='
            | b'%'
            | b'~'
            | b'>'
            | b'|'
            | b';'
            | b'.'
    )
}

/// Values of 32 bytes for which room is reserved before they arrive, in all open aggregates together: 32 KiB. With the stack
/// at its deepest (12 KiB) and [`WANTED`] that is below 64 KiB, which is all that headers alone can make us hold.
const SPECULATION: usize = 1024;

/// The least [`Decoder::wanted`] asks for, if so much is missing.
const WANTED: usize = 16 * 1024;

/// [`Decoder::wanted`] asks for so many times what has arrived, up to so much.
const AHEAD: usize = 16;
const MOST_AHEAD: usize = 1 << 20;

/// How many times its own size a slice may keep alive: a reader's block can be of any size, and the last 32 KiB of 16 MiB are
/// better copied.
const PINNED: u64 = 4;

/// CR LF.
const LINE_ENDING: usize = 2;

/// Three bytes of format and a colon.
const VERBATIM_PREFIX: usize = 4;
