//! A scanner for the bounds of RESP frames.
//!
//! Deliberately independent of the project's codec; does not check anything else.

/// A scanner that follows a stream of RESP2/RESP3 bytes from frame to frame.
///
/// Invalid RESP makes the scanner give up: it does not find further frames.
#[derive(Clone, Debug, Default)]
pub struct Scanner {
    /// Open aggregates, outermost first.
    open: Vec<Open>,
    line: Vec<u8>,
    /// Missing bytes of a bulk payload, including its CRLF.
    payload: u64,
    /// The first byte of the incomplete frame.
    kind: Option<u8>,
    /// The payload of the frame's first bulk string. For a command, it is the name.
    name: Vec<u8>,
    names: u32,
    lost: bool,
}

#[derive(Clone, Debug)]
struct Open {
    /// The number of missing values.
    left: u64,
    /// True for an attribute, which precedes a value and does not count as a value itself.
    attribute: bool,
}

/// A complete frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// The frame's first byte: `+`, `-`, `:`, `$`, `*`, `%`, `>`, ...
    pub kind: u8,
    /// The frame's first bulk string, cut at 64 bytes. For a command, it is the name.
    pub name: Vec<u8>,
}

impl Scanner {
    /// Takes bytes up to the end of the current frame. Returns the number of bytes, and the frame if it is complete.
    pub fn advance(&mut self, bytes: &[u8]) -> (usize, Option<Scanned>) {
        let mut taken = 0;
        while let Some(&byte) = bytes.get(taken) {
            if self.lost {
                return (bytes.len(), None);
            }
            if self.payload > 0 {
                let rest = &bytes[taken..];
                let length = usize::try_from(self.payload).unwrap_or(usize::MAX).min(rest.len());
                if self.names == 1 {
                    // The two bytes of the CRLF do not belong to the name.
                    let text = usize::try_from(self.payload.saturating_sub(2)).unwrap_or(0).min(length);
                    let room = NAME_LENGTH.saturating_sub(self.name.len());
                    self.name.extend_from_slice(&rest[..text.min(room)]);
                }
                self.payload -= length as u64;
                taken += length;
                if self.payload == 0 && self.close_value() {
                    return (taken, Some(self.finish()));
                }
                continue;
            }
            taken += 1;
            self.line.push(byte);
            if byte == b'\n' {
                let line = std::mem::take(&mut self.line);
                if self.on_line(&line) {
                    return (taken, Some(self.finish()));
                }
            } else if self.line.len() > LINE_LENGTH {
                self.lost = true;
            }
        }
        (taken, None)
    }

    /// Returns true if the next byte begins a frame.
    #[must_use]
    pub fn at_boundary(&self) -> bool {
        self.kind.is_none() && self.line.is_empty()
    }

    /// Takes a line. Returns true if it ends the frame.
    fn on_line(&mut self, line: &[u8]) -> bool {
        let Some((&kind, rest)) = line.strip_suffix(b"\r\n").and_then(<[u8]>::split_first) else {
            self.lost = true;
            return false;
        };
        let in_attribute = self.open.first().map_or(kind == b'|', |outermost| outermost.attribute);
        if !in_attribute {
            self.kind.get_or_insert(kind);
        }
        let length = || std::str::from_utf8(rest).ok().and_then(|text| text.parse::<i64>().ok());
        match kind {
            b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => self.close_value(),
            b'$' | b'!' | b'=' => match length() {
                Some(-1) => self.close_value(),
                Some(length) if length >= 0 => {
                    self.names += 1;
                    self.payload = length.unsigned_abs() + 2;
                    false
                }
                _ => self.lose(),
            },
            b'*' | b'~' | b'>' | b'%' | b'|' => match length() {
                Some(-1) => self.close_value(),
                Some(count) if count >= 0 => {
                    let count = count.unsigned_abs();
                    let left = if matches!(kind, b'%' | b'|') { count.saturating_mul(2) } else { count };
                    let attribute = kind == b'|';
                    if left == 0 {
                        return !attribute && self.close_value();
                    }
                    self.open.push(Open { left, attribute });
                    false
                }
                _ => self.lose(),
            },
            _ => self.lose(),
        }
    }

    fn lose(&mut self) -> bool {
        self.lost = true;
        false
    }

    /// Completes a value. Returns true if it also completes the frame.
    fn close_value(&mut self) -> bool {
        while let Some(innermost) = self.open.last_mut() {
            innermost.left -= 1;
            if innermost.left > 0 {
                return false;
            }
            let attribute = innermost.attribute;
            self.open.pop();
            if attribute {
                return false;
            }
        }
        true
    }

    fn finish(&mut self) -> Scanned {
        self.names = 0;
        Scanned { kind: self.kind.take().unwrap_or_default(), name: std::mem::take(&mut self.name) }
    }
}

const NAME_LENGTH: usize = 64;
/// Far above the limit of 64 KiB in servers and clients.
const LINE_LENGTH: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(wire: &[u8], step: usize) -> (String, usize) {
        let (mut scanner, mut kinds, mut consumed) = (Scanner::default(), String::new(), 0);
        for chunk in wire.chunks(step) {
            let mut rest = chunk;
            while !rest.is_empty() {
                let (taken, frame) = scanner.advance(rest);
                rest = &rest[taken..];
                consumed += taken;
                kinds.extend(frame.map(|frame| char::from(frame.kind)));
            }
        }
        (kinds, consumed)
    }

    #[test]
    fn frames_survive_any_split() {
        let wire = b"+OK\r\n:1\r\n$3\r\n+\r\n\r\n*2\r\n$1\r\na\r\n*1\r\n:1\r\n%1\r\n+a\r\n*0\r\n>2\r\n+a\r\n_\r\n\
            $-1\r\n*-1\r\n*0\r\n|1\r\n+a\r\n*1\r\n:1\r\n:5\r\n*1\r\n|1\r\n+a\r\n:1\r\n:5\r\n#t\r\n$0\r\n\r\n|0\r\n:1\r\n-E\r\n";
        for step in 1..wire.len() {
            assert_eq!(kinds(wire, step), ("+:$*%>$**:*#$:-".to_owned(), wire.len()), "step {step}");
        }
    }

    #[test]
    fn scanner_reads_command_name() {
        let mut scanner = Scanner::default();
        let (taken, frame) = scanner.advance(b"*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\nrest");
        assert_eq!(taken, 22);
        assert_eq!(frame.map(|frame| frame.name), Some(b"ECHO".to_vec()));
        assert!(scanner.at_boundary());
    }

    #[test]
    fn garbage_stops_scanner_not_stream() {
        assert_eq!(kinds(b"+OK\r\n?garbage\r\n+OK\r\n", 3), ("+".to_owned(), 20));
    }
}
