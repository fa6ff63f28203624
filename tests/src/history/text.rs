//! Histories as text.
//!
//! Each event is a line of words separated by blanks. Defines the text form, and reads the files.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::str::{FromStr, SplitAsciiWhitespace};

use super::event::{Change, Event, Fault, Kind, Outcome, Reason, What};

/// Events of several processes, ordered by time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The events.
    pub events: Vec<Event>,
}

impl History {
    /// Merges the events of several recorders.
    #[must_use]
    pub fn merge(mut events: Vec<Event>) -> Self {
        // The sort is stable: events that a process recorded in the same nanosecond keep their order.
        events.sort_by_key(|event| event.at);
        Self { events }
    }

    /// Parses the record of a process. Skips an incomplete last line, which a killed process may leave; every other line must be correct.
    /// Empty lines and lines that begin with `#` are comments.
    ///
    /// # Errors
    ///
    /// The first line that is not an event.
    pub fn parse(text: &str) -> Result<Vec<Event>, Malformed> {
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'))
            .map(|(number, line)| {
                line.parse().map_err(|Malformed { text, .. }| Malformed { line: number + 1, text })
            })
            .collect()
    }

    /// Reads and merges every file of `directory` whose name ends in `.history`.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or a line is not an event.
    pub fn read(directory: &Path) -> io::Result<Self> {
        let mut events = Vec::new();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "history") {
                let parsed = Self::parse(&String::from_utf8_lossy(&fs::read(&path)?));
                events.extend(parsed.map_err(|bad| io::Error::other(format!("{}: {bad}", path.display())))?);
            }
        }
        Ok(Self::merge(events))
    }
}

/// A line that is not an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The number of the line, from 1.
    pub line: usize,
    /// The text of the line.
    pub text: String,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} is no event: {:?}", self.line, self.text)
    }
}

impl std::error::Error for Malformed {}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, process, task, op, lock, what } = self;
        write!(f, "{at} {process} {task} {op} {} ", Word(lock))?;
        match what {
            What::Setup { longest, patience, wake } => write!(f, "setup {longest} {patience} {wake}"),
            What::Pool { permits } => write!(f, "pool {permits}"),
            What::Takes { permits } => write!(f, "takes {permits}"),
            What::Limits { min, max } => write!(f, "limits {} {}", Time(*min), Time(*max)),
            What::Adopts { owner } => write!(f, "adopts {}", Word(owner)),
            What::Invoked { kind, renewed, lease, deadline, owner, shared } => {
                let kind = name_of(KINDS, kind);
                write!(f, "invoked {kind} {renewed} {lease} {} {}", Time(*deadline), Word(owner))?;
                if *shared { write!(f, " {SHARED}") } else { Ok(()) }
            }
            What::Granted { owner, valid_until, token } => {
                write!(f, "granted {} {valid_until}", Word(owner))?;
                token.map_or(Ok(()), |token| write!(f, " {token}"))
            }
            What::NotGranted => f.write_str("not-granted"),
            What::Failed { outcome, text } => {
                write!(f, "failed {} {}", name_of(OUTCOMES, outcome), Word(text))
            }
            What::Cancelled => f.write_str("cancelled"),
            What::Moved { valid_until } => write!(f, "moved {valid_until}"),
            What::Claimed { until } => write!(f, "claimed {until}"),
            What::Disclaimed => f.write_str("disclaimed"),
            What::Lost { reason, valid_until } => {
                write!(f, "lost {} {valid_until}", name_of(REASONS, reason))
            }
            What::Releasing => f.write_str("releasing"),
            What::Released => f.write_str("released"),
            What::AlreadyLost => f.write_str("already-lost"),
            What::Unconfirmed { text } => write!(f, "unconfirmed {}", Word(text)),
            What::Sent => f.write_str("sent"),
            What::Dropped => f.write_str("dropped"),
            What::Entered { token } => write!(f, "entered {token}"),
            What::Left => f.write_str("left"),
            What::Overlap { other } => write!(f, "overlap {other}"),
            What::Wrote { token, highest, accepted } => write!(f, "wrote {token} {highest} {accepted}"),
            What::Started => f.write_str("started"),
            What::Finished => f.write_str("finished"),
            What::ShutDown => f.write_str("shut-down"),
            What::Killed => f.write_str("killed"),
            What::Stopped => f.write_str("stopped"),
            What::Continued => f.write_str("continued"),
            What::Stalled { until } => write!(f, "stalled {until}"),
            What::Begins { fault, detail } => {
                write!(f, "begins {} {}", name_of(FAULTS, fault), Word(detail))
            }
            What::Ends { fault } => write!(f, "ends {}", name_of(FAULTS, fault)),
            What::Holder { owner } => write!(f, "holder {}", Word(owner)),
            What::Majority => f.write_str("majority"),
            What::Watched => f.write_str("watched"),
            What::Queued { owner } => write!(f, "queued {}", Word(owner)),
            What::Served { owner } => write!(f, "served {}", Word(owner)),
            What::Awaits { deadline } => write!(f, "awaits {}", Time(*deadline)),
            What::Passed => f.write_str("passed"),
            What::Changes { how: Change::Set(count) } => write!(f, "changes set {count}"),
            What::Changes { how: Change::CountDown } => f.write_str("changes count-down"),
            What::Changes { how: Change::Delete } => f.write_str("changes delete"),
            What::Changed { answer } => write!(f, "changed {answer}"),
            What::Latch { left, opened } => write!(f, "latch {left} {opened}"),
            What::Healed => f.write_str("healed"),
            What::Probe { name, found, allowed } => write!(f, "probe {} {found} {allowed}", Word(name)),
        }
    }
}

impl FromStr for Event {
    type Err = Malformed;

    fn from_str(line: &str) -> Result<Self, Malformed> {
        let mut words = Words(line.split_ascii_whitespace());
        let event = words.event();
        event.filter(|_| words.0.next().is_none()).ok_or_else(|| Malformed { line: 1, text: line.to_owned() })
    }
}

struct Words<'a>(SplitAsciiWhitespace<'a>);

impl Words<'_> {
    fn event(&mut self) -> Option<Event> {
        Some(Event {
            at: self.parse()?,
            process: self.parse()?,
            task: self.parse()?,
            op: self.parse()?,
            lock: self.text()?,
            what: self.what()?,
        })
    }

    fn what(&mut self) -> Option<What> {
        Some(match self.0.next()? {
            "setup" => What::Setup { longest: self.parse()?, patience: self.parse()?, wake: self.parse()? },
            "pool" => What::Pool { permits: self.parse()? },
            "takes" => What::Takes { permits: self.parse()? },
            "limits" => What::Limits { min: self.time()?, max: self.time()? },
            "adopts" => What::Adopts { owner: self.text()? },
            "invoked" => What::Invoked {
                kind: self.named(KINDS)?,
                renewed: self.parse()?,
                lease: self.parse()?,
                deadline: self.time()?,
                owner: self.text()?,
                shared: match self.0.next() {
                    None => false,
                    Some(SHARED) => true,
                    Some(_) => return None,
                },
            },
            "granted" => What::Granted {
                owner: self.text()?,
                valid_until: self.parse()?,
                token: match self.0.next() {
                    None => None,
                    Some(token) => Some(token.parse().ok()?),
                },
            },
            "not-granted" => What::NotGranted,
            "failed" => What::Failed { outcome: self.named(OUTCOMES)?, text: self.text()? },
            "cancelled" => What::Cancelled,
            "moved" => What::Moved { valid_until: self.parse()? },
            "claimed" => What::Claimed { until: self.parse()? },
            "disclaimed" => What::Disclaimed,
            "lost" => What::Lost { reason: self.named(REASONS)?, valid_until: self.parse()? },
            "releasing" => What::Releasing,
            "released" => What::Released,
            "already-lost" => What::AlreadyLost,
            "unconfirmed" => What::Unconfirmed { text: self.text()? },
            "sent" => What::Sent,
            "dropped" => What::Dropped,
            "entered" => What::Entered { token: self.parse()? },
            "left" => What::Left,
            "overlap" => What::Overlap { other: self.parse()? },
            "wrote" => What::Wrote { token: self.parse()?, highest: self.parse()?, accepted: self.parse()? },
            "started" => What::Started,
            "finished" => What::Finished,
            "shut-down" => What::ShutDown,
            "killed" => What::Killed,
            "stopped" => What::Stopped,
            "continued" => What::Continued,
            "stalled" => What::Stalled { until: self.parse()? },
            "begins" => What::Begins { fault: self.named(FAULTS)?, detail: self.text()? },
            "ends" => What::Ends { fault: self.named(FAULTS)? },
            "holder" => What::Holder { owner: self.text()? },
            "majority" => What::Majority,
            "watched" => What::Watched,
            "queued" => What::Queued { owner: self.text()? },
            "served" => What::Served { owner: self.text()? },
            "awaits" => What::Awaits { deadline: self.time()? },
            "passed" => What::Passed,
            "changes" => What::Changes {
                how: match self.0.next()? {
                    "set" => Change::Set(self.parse()?),
                    "count-down" => Change::CountDown,
                    "delete" => Change::Delete,
                    _ => return None,
                },
            },
            "changed" => What::Changed { answer: self.parse()? },
            "latch" => What::Latch { left: self.parse()?, opened: self.parse()? },
            "healed" => What::Healed,
            "probe" => What::Probe { name: self.text()?, found: self.parse()?, allowed: self.parse()? },
            _ => return None,
        })
    }

    fn time(&mut self) -> Option<Option<u64>> {
        Some(match self.0.next()? {
            NONE => None,
            time => Some(time.parse().ok()?),
        })
    }

    fn parse<T: FromStr>(&mut self) -> Option<T> {
        self.0.next()?.parse().ok()
    }

    fn named<T: Copy>(&mut self, names: &[(T, &str)]) -> Option<T> {
        let name = self.0.next()?;
        names.iter().find(|(_, known)| *known == name).map(|(value, _)| *value)
    }

    fn text(&mut self) -> Option<String> {
        unescape(self.0.next()?)
    }
}

/// Any text as a single word. Bytes other than visible ASCII, and `%`, are written as `%` and two hexadecimal digits. The empty text is
/// `-`, and a lone `-` is escaped.
struct Word<'a>(&'a str);

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "" => return f.write_str(NONE),
            NONE => return f.write_str("%2D"),
            _ => {}
        }
        for byte in self.0.bytes() {
            if byte.is_ascii_graphic() && byte != b'%' && byte != b'#' {
                write!(f, "{}", char::from(byte))?;
            } else {
                write!(f, "%{byte:02X}")?;
            }
        }
        Ok(())
    }
}

/// A time as a word; a missing time is `-`.
struct Time(Option<u64>);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(time) => write!(f, "{time}"),
            None => f.write_str(NONE),
        }
    }
}

fn unescape(word: &str) -> Option<String> {
    if word == NONE {
        return Some(String::new());
    }
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// The word for a missing text or time.
const NONE: &str = "-";

/// The word for a shared hold; an exclusive hold has no word.
const SHARED: &str = "shared";

const KINDS: &[(Kind, &str)] = &[
    (Kind::Acquire, "acquire"),
    (Kind::Try, "try"),
    (Kind::TryFor, "try-for"),
    (Kind::Again, "again"),
    (Kind::Run, "run"),
    (Kind::Adopt, "adopt"),
];

const OUTCOMES: &[(Outcome, &str)] = &[
    (Outcome::NotSent, "not-sent"),
    (Outcome::Rejected, "rejected"),
    (Outcome::MaybeExecuted, "maybe-executed"),
];

const REASONS: &[(Reason, &str)] =
    &[(Reason::Expired, "expired"), (Reason::NotOwner, "not-owner"), (Reason::HeldTooLong, "held-too-long")];

const FAULTS: &[(Fault, &str)] = &[
    (Fault::Down, "down"),
    (Fault::Forgot, "forgot"),
    (Fault::Clock, "clock"),
    (Fault::Evicting, "evicting"),
    (Fault::Cut, "cut"),
    (Fault::Deaf, "deaf"),
    (Fault::Silent, "silent"),
    (Fault::Slow, "slow"),
    (Fault::Flushed, "flushed"),
    (Fault::Replaced, "replaced"),
    (Fault::Moving, "moving"),
];

fn name_of<T: PartialEq>(names: &[(T, &'static str)], value: &T) -> &'static str {
    names.iter().find(|(known, _)| known == value).map_or("", |(_, name)| name)
}

macro_rules! named {
    ($($type:ty: $names:ident),*) => {$(
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(name_of($names, self))
            }
        }
    )*};
}

named!(Kind: KINDS, Outcome: OUTCOMES, Reason: REASONS, Fault: FAULTS);

#[cfg(test)]
mod tests {
    use super::*;

    fn one_of_each() -> Vec<What> {
        let odd = || "a b\n% # -ß\u{1F512}".to_owned();
        let mut all = vec![
            What::Setup { longest: 1, patience: 2, wake: 3 },
            What::Pool { permits: 10 },
            What::Takes { permits: 2 },
            What::Limits { min: Some(3), max: None },
            What::Adopts { owner: odd() },
            What::Sent,
            What::Granted { owner: odd(), valid_until: u64::MAX, token: None },
            What::Granted { owner: odd(), valid_until: 0, token: Some(u64::MAX) },
            What::NotGranted,
            What::Cancelled,
            What::Moved { valid_until: 0 },
            What::Claimed { until: 7 },
            What::Disclaimed,
            What::Releasing,
            What::Released,
            What::AlreadyLost,
            What::Unconfirmed { text: odd() },
            What::Dropped,
            What::Entered { token: 9 },
            What::Left,
            What::Overlap { other: 4 },
            What::Wrote { token: 1, highest: 2, accepted: false },
            What::Started,
            What::Finished,
            What::ShutDown,
            What::Killed,
            What::Stopped,
            What::Continued,
            What::Stalled { until: 8 },
            What::Holder { owner: "-".into() },
            What::Majority,
            What::Watched,
            What::Queued { owner: odd() },
            What::Served { owner: odd() },
            What::Awaits { deadline: None },
            What::Awaits { deadline: Some(7) },
            What::Passed,
            What::Changes { how: Change::Set(3) },
            What::Changes { how: Change::CountDown },
            What::Changes { how: Change::Delete },
            What::Changed { answer: 2 },
            What::Latch { left: 1, opened: u64::MAX },
            What::Healed,
            What::Probe { name: "keys left".into(), found: 1, allowed: 0 },
        ];
        for (kind, _) in KINDS {
            for deadline in [None, Some(5)] {
                all.push(What::Invoked {
                    kind: *kind,
                    renewed: deadline.is_some(),
                    lease: 3,
                    deadline,
                    owner: String::new(),
                    shared: deadline.is_none(),
                });
            }
        }
        all.extend(OUTCOMES.iter().map(|(outcome, _)| What::Failed { outcome: *outcome, text: odd() }));
        all.extend(REASONS.iter().map(|(reason, _)| What::Lost { reason: *reason, valid_until: 6 }));
        for (fault, _) in FAULTS {
            all.extend([What::Begins { fault: *fault, detail: odd() }, What::Ends { fault: *fault }]);
        }
        all
    }

    #[test]
    fn every_event_round_trips() {
        assert_eq!(FAULTS.len(), Fault::ALL.len());
        for (at, what) in (0..).zip(one_of_each()) {
            for lock in ["", "-", "orders:42", "#1", "two words"] {
                let event =
                    Event { at, process: 3, task: 4, op: 5, lock: lock.to_owned(), what: what.clone() };
                let line = event.to_string();
                assert!(!line.contains('\n') && !line.starts_with('#'), "{line}");
                assert_eq!(line.parse(), Ok(event), "{line}");
            }
        }
    }

    #[test]
    fn only_truncated_last_line_is_tolerated() {
        let whole = "1 1 1 1 a releasing\n2 1 1 1 a released\n";
        assert_eq!(History::parse(whole).unwrap().len(), 2);
        for cut in 0..whole.len() {
            let lines = whole[..cut].matches('\n').count();
            assert_eq!(History::parse(&whole[..cut]).unwrap().len(), lines, "cut at {cut}");
        }
        for bad in ["1 1 1 1 a\n", "1 1 1 1 a released 7\n", "x 1 1 1 a released\n", "1 1 1 1 a frobbed\n"] {
            assert!(History::parse(bad).is_err(), "{bad:?}");
            let in_the_middle = format!("{bad}{whole}");
            assert_eq!(History::parse(&in_the_middle).unwrap_err().line, 1);
        }
        for bad in ["%", "%4", "%zz", "%ff"] {
            assert!(History::parse(&format!("1 1 1 1 {bad} released\n")).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn merge_keeps_order_of_equal_times() {
        let events =
            History::parse("2 1 1 1 a releasing\n1 2 1 1 a releasing\n1 2 1 1 a released\n").unwrap();
        let merged = History::merge(events.clone());
        assert_eq!(merged.events, [events[1].clone(), events[2].clone(), events[0].clone()]);
    }
}
