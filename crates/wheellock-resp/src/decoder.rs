//! Incremental decoder: nesting, limits and resumption.
//!
//! The grammar module reads single tokens. The decoder does not know sockets or the meaning of a reply.

use bytes::{Buf, BytesMut};

use crate::blob::Window;
use crate::grammar::{self, Bad, Short};
use crate::{Blob, Error, ErrorKind, Frame, LimitKind, Limits, Push, Value};

/// An incremental RESP2/RESP3 decoder.
///
/// Pass the decoder a buffer, and it takes complete values from the front. A large array leaves the buffer element by element. It reads no
/// byte twice except those of an unfinished number of at most 22 bytes. The work is linear in the bytes, however they are split. The
/// decoder does not recurse, and it never allocates because of a header alone.
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
    /// Number of values of a push to keep. The decoder checks and drops the rest.
    push_values: usize,
    /// Number of values of a push before which a bulk of any length is kept, and the longest bulk that is kept after them.
    short_of_push: Option<(usize, usize)>,
    /// True if the limits allow everything that the short path accepts. The short path does not check limits.
    takes_short: bool,
    /// True if the short path must not decode the next frame, because there is an unfinished frame or line, or an error.
    unfinished: bool,
    /// Number of bytes taken from the stream: the offset of the buffer's front.
    consumed: u64,
    /// The aggregates around the next value, outermost first.
    stack: Vec<Open>,
    /// Number of values announced by the headers of this frame.
    elements: usize,
    /// Payload bytes of this frame, announced or received. Only payloads with memory of their own count.
    payloads: usize,
    /// Number of values that may still be reserved before they arrive.
    speculation: usize,
    /// A bulk whose header was taken but whose payload was not.
    bulk: Option<Bulk>,
    /// Number of bytes at the buffer's front that belong to an unfinished line and contain no line ending.
    searched: usize,
    wanted: usize,
    /// The estimated size of the memory block that contains the buffer. `block_end` is the stream offset at which the block ends; it
    /// identifies the block. `block_seen` is the stream offset of the last estimate.
    block: u64,
    block_end: u64,
    block_seen: u64,
    failed: Option<Error>,
}

impl Decoder {
    /// Creates a decoder for the start of a stream. Limits above their ceilings are lowered to them.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let limits = limits.clamped();
        let takes_short = limits.bulk.min(limits.line) >= Blob::INLINE;
        Self {
            limits,
            push_values: usize::MAX,
            short_of_push: None,
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

    /// Keeps only the first `count` values of each push, at least one. The decoder checks and drops the other values as they arrive. A
    /// message's payload of any length up to [`Limits::MAX_BULK`] then takes no memory and does not count towards the [`Limits`] of
    /// payloads. Use this if you need a message's channel but not its payload.
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

    /// Does the same as [`keeping_of_pushes`](Self::keeping_of_pushes), and keeps one value more if that is a bulk of at most `longest`
    /// bytes, or if it takes no memory of its own. The decoder drops a longer bulk as it arrives, and puts an empty bulk in
    /// its place. Use this if you need short payloads of messages.
    ///
    /// ```
    /// use bytes::BytesMut;
    /// use wheellock_resp::{Decoder, Frame, Limits};
    ///
    /// let mut decoder = Decoder::new(Limits::default()).keeping_short_of_pushes(2, 100);
    /// let long = format!("$101\r\n{}", "x".repeat(101));
    /// for (payload, kept) in [("$3\r\nabc", "abc"), (&*long, "")] {
    ///     let mut buf = BytesMut::from(&*format!(">3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n{payload}\r\n"));
    ///     let Some(Frame::Push(push)) = decoder.decode(&mut buf)? else { unreachable!() };
    ///     assert_eq!(push.args(), &["news".into(), kept.into()][..]);
    /// }
    /// # Ok::<(), wheellock_resp::Error>(())
    /// ```
    #[must_use]
    pub fn keeping_short_of_pushes(mut self, count: usize, longest: usize) -> Self {
        let count = count.max(1);
        // The short path does not look at limits.
        self.short_of_push = Some((count, longest.max(Blob::INLINE)));
        self.keeping_of_pushes(count.saturating_add(1))
    }

    /// Takes one frame from the front of `buf`. Returns `None` if `buf` does not contain a complete frame.
    ///
    /// Call it until it returns `None`, then append to the same buffer and continue. The decoder takes the decoded part of an unfinished
    /// frame out of the buffer and keeps it.
    ///
    /// # Errors
    ///
    /// [`Error`] if the bytes are not RESP or exceed the [`Limits`]. The stream is then unusable: every later call returns the same error
    /// and takes no bytes.
    // Inline always: a caller's loop consists of the short path, and a call would move the result.
    #[inline(always)]
    pub fn decode(&mut self, buf: &mut BytesMut) -> Result<Option<Frame>, Error> {
        if !self.unfinished
            && let Some((short, used)) = Short::find(buf)
        {
            self.consumed += used as u64;
            // One arm per kind, so that each value is written once, at the place where the caller reads it.
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

    /// Returns the limits in force.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns the number of bytes for which the reader should reserve room. This is the missing part of the current bulk, or 0 if no bulk
    /// has begun.
    ///
    /// The number is bounded by the number of bytes of the bulk that have arrived. It is at most the largest of these: 16 KiB, the arrived
    /// bytes, and 16 times the arrived bytes up to 1 MiB. A reader that reserves this much therefore holds 16 KiB until a byte arrives,
    /// whatever a header announces. After that it holds at most twice the received bytes plus 1 MiB. Up to 1 MiB, the reader copies only
    /// the first sixteenth of a bulk. It reads a larger bulk in a logarithmic number of steps.
    #[must_use]
    pub fn wanted(&self) -> usize {
        self.wanted
    }

    /// Returns the number of bytes taken from the stream since the decoder was created.
    #[must_use]
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Returns true if a frame has begun and not ended, judging by the bytes taken. If it returns true, or if the buffer is not empty, the
    /// end of the stream is a truncation.
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
                    // Between frames the short path may take the next frame, even if a part of it is already here.
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

    /// Estimates the size of the memory block that a slice of the buffer would keep alive.
    fn see_block(&mut self, capacity: usize) {
        let end = self.consumed + capacity as u64;
        if end != self.block_end {
            // The bytes that the short path has taken since then may have been the front of this block.
            self.block = end - self.block_seen;
            self.block_end = end;
        }
        self.block_seen = self.consumed;
    }

    /// Reads values until a frame is complete, the bytes end, or a payload can be sliced from the buffer. `used` counts the bytes that are
    /// done. The index of an error refers to `bytes`.
    fn step(&mut self, bytes: &[u8], used: &mut usize) -> Result<Step, Bad> {
        loop {
            let rest = bytes.get(*used..).unwrap_or_default();
            let token = if let Some(bulk) = self.bulk {
                self.payload(bulk, rest)
            } else {
                // The hot path: a short value in an array that this value does not complete.
                if self.takes_short
                    && let Some((short, len)) = Short::find(rest)
                    && let Some(open) = self.stack.last_mut()
                    && !open.push_kind_due()
                {
                    *used += len;
                    // An earlier call may have searched a part of this line. Without a reset the next line would inherit the count.
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

    /// Reads one value or header of any type, beginning with the type byte.
    fn token(&mut self, bytes: &[u8]) -> Result<Token, Bad> {
        let Some((&kind, rest)) = bytes.split_first() else { return Ok(Token::More) };
        let after_type = |bad: Bad| match bad.kind {
            // Report a limit at the type byte: the value as a whole exceeds it.
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

    /// Reads a type that is one line of text. The index of an error refers to `rest`, the bytes after the type byte.
    fn line(&mut self, kind: u8, rest: &[u8]) -> Result<Token, Bad> {
        let Some((line, len)) = grammar::line(rest, self.searched, self.limits.line)? else {
            // A CR at the end is read again together with the next byte.
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
        let dropped = self.drops_of_push() || self.is_too_long_of_push(len);
        let most = if dropped { Limits::MAX_BULK } else { self.limits.bulk };
        if len > most {
            return Err(Bad { kind: ErrorKind::Limit(LimitKind::Bulk), at: 0 });
        }
        if kind == BulkKind::Verbatim && len < VERBATIM_PREFIX {
            return Err(Bad { kind: ErrorKind::Verbatim, at: 1 });
        }
        if !dropped {
            self.count(len)?;
        }
        self.bulk = Some(Bulk { kind, len, dropped });
        Ok(Token::Header(1 + used))
    }

    /// Counts a payload of this frame, unless its value stores it inline. The hot path has only inline payloads. An error is at index 0.
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
            // Check the format of a verbatim string before dropping a part of it.
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
        if len >= Blob::SHARE && len as u64 >= self.block / PINNED && !dropped && !self.skipping() {
            return Ok(Token::Share(len));
        }
        self.bulk = None;
        let payload = bytes.get(..len).unwrap_or(bytes);
        let value = if dropped {
            Value::BulkString(Blob::new())
        } else if kind == BulkKind::Verbatim {
            // Split the payload before copying, so that only the length of the text decides the storage.
            let (format, text) = verbatim(payload);
            Value::Verbatim { format, text: self.keep(text) }
        } else {
            kind.value(self.keep(payload))
        };
        Ok(Token::Value(value, len + LINE_ENDING))
    }

    /// Reads the header of an aggregate, and opens the aggregate unless it is empty.
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
        // Count an attribute as a value of its own. Otherwise an endless chain of empty attributes would pass the limit.
        let own = u64::from(kind == Aggregate::Attribute);
        let values = length.checked_mul(if kind.is_paired() { 2 } else { 1 });
        let elements = values.and_then(|values| values.checked_add(own)?.checked_add(self.elements as u64));
        let (Some(values), Some(elements)) = (values, elements) else {
            return first(ErrorKind::Limit(LimitKind::Elements));
        };
        if elements > self.limits.elements as u64 {
            return first(ErrorKind::Limit(LimitKind::Elements));
        }
        // Both numbers are at most the limit, which is a `usize`.
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

    /// Adds a value to the innermost aggregate and closes every aggregate that it completes. Returns the frame if it is complete.
    fn emit(&mut self, value: Value) -> Option<Frame> {
        let Some(open) = self.stack.last_mut() else { return Some(Frame::Reply(value)) };
        open.add(value, self.push_values);
        if open.left > 0 { None } else { self.close() }
    }

    /// Closes the innermost aggregate, which must be complete, and every aggregate that this completes. Returns the frame if it is
    /// complete.
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

    /// Copies bytes of the buffer. Returns an empty blob if they belong to an attribute or are dropped.
    fn keep(&self, bytes: &[u8]) -> Blob {
        if self.skipping() { Blob::new() } else { Blob::copy_from_slice(bytes) }
    }

    /// Returns true if the next value is only checked, because it belongs to an attribute or to the dropped part of a push.
    fn skipping(&self) -> bool {
        self.stack.last().is_some_and(|open| matches!(open.body, Body::Skipped)) || self.drops_of_push()
    }

    /// Returns true if the next value belongs to the dropped part of a push. A push is never inside another value.
    fn drops_of_push(&self) -> bool {
        self.stack.first().is_some_and(|open| open.kind == Aggregate::Push && open.is_full(self.push_values))
    }

    /// Returns true if the next value belongs to a push and is a bulk of more bytes than are kept of it.
    fn is_too_long_of_push(&self, len: usize) -> bool {
        let ([open], Some((count, longest))) = (&*self.stack, self.short_of_push) else { return false };
        open.kind == Aggregate::Push && open.is_full(count) && len > longest
    }

    /// Returns true if the next value is the first of a push.
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

/// The result of `step`.
enum Step {
    Frame(Frame),
    /// A complete, checked payload of this length is at the front of the buffer.
    Share(usize),
    More,
}

/// The result of reading one token, and the number of its bytes.
enum Token {
    Value(Value, usize),
    /// The header of a value whose content follows, or an empty attribute.
    Header(usize),
    /// A complete, checked payload of this length, which is not taken yet.
    Share(usize),
    More,
}

#[derive(Debug, Clone, Copy)]
struct Bulk {
    kind: BulkKind,
    /// Number of payload bytes that are still to be taken.
    len: usize,
    /// True if the payload is dropped as it arrives.
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

/// Splits a verbatim string into format and text. The colon must already be checked.
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

/// An aggregate with missing values.
#[derive(Debug)]
struct Open {
    kind: Aggregate,
    /// Number of missing values. A map entry counts as two.
    left: usize,
    /// Number of values reserved when the aggregate was opened.
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

    /// Returns true if the list has at least `count` values.
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
    /// An attribute, or a value inside an attribute or inside the dropped part of a push.
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

/// Returns the number of items to reserve: a quarter of the present items. Thus at most a fifth of a large array's memory is unused,
/// whatever its header announced.
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

/// Maximum number of values (32 bytes each) reserved before they arrive, in all open aggregates together: 32 KiB. With the deepest stack
/// (12 KiB) and [`WANTED`] the sum is below 64 KiB, the bound for headers alone.
const SPECULATION: usize = 1024;

/// The smallest room that [`Decoder::wanted`] requests, if that much is missing.
const WANTED: usize = 16 * 1024;

/// [`Decoder::wanted`] requests up to `AHEAD` times the arrived bytes, but at most `MOST_AHEAD`.
const AHEAD: usize = 16;
const MOST_AHEAD: usize = 1 << 20;

/// Maximum ratio of a block to a slice that keeps it alive. A reader's block can have any size. Copying the last 32 KiB of a 16 MiB block
/// is better than keeping the block.
const PINNED: u64 = 4;

/// Length of CR LF.
const LINE_ENDING: usize = 2;

/// Length of a verbatim string's format and colon.
const VERBATIM_PREFIX: usize = 4;
