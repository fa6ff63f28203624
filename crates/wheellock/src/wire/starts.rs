//! When the old holds of a process began, as a text that other processes read, for display.
//!
//! The text has a line for each hold: its age in milliseconds when the text was written, the holder's text on the server, and the lock's
//! full name. The lease of the text's key says when it was written, so no clock of a machine is read.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

use wheellock_client::Value;

use crate::kind::WRITER;
use crate::table::holds::Oldest;
use crate::wire::holder::{Holder, Mode};

/// Adds a line, unless it would be too much. Other lines may still fit.
pub(crate) fn add_start(text: &mut String, age: Duration, holder: &str, name: &str) {
    // A name with a line break would look like two lines.
    let fits = text.len() + DIGITS + holder.len() + name.len() <= MOST_BYTES && !name.contains('\n');
    if fits {
        let _infallible = writeln!(text, "{} {holder} {name}", age.as_millis());
    }
}

/// The times since the starts of a process's old holds, by the rest of their lines. Any client may have written them.
#[derive(Default)]
pub(crate) struct Starts(HashMap<String, Duration>);

impl Starts {
    /// Reads the text, which was written this long ago. Lines that are not as this library writes them count for nothing, and so does a text that is too long.
    pub(crate) fn read(reply: &Value, ago: Duration) -> Self {
        let text = reply.as_str().filter(|text| text.len() <= MOST_BYTES).unwrap_or_default();
        let read = |line: &str| {
            let (age, hold) = line.split_once(' ')?;
            Some((hold.to_owned(), ago.checked_add(Duration::from_millis(age.parse().ok()?))?))
        };
        Self(text.split('\n').take(Oldest::MOST).filter_map(read).collect())
    }

    /// Returns the time since this holder of the lock with this full name was granted it.
    pub(crate) fn of(&self, holder: &Holder, name: &str) -> Option<Duration> {
        // An owner may read and write under the same lock.
        let suffix = if holder.mode == Mode::Write { WRITER } else { "" };
        self.0.get(&format!("{}{suffix} {name}", holder.owner)).copied()
    }
}

/// Largest text.
const MOST_BYTES: usize = 16 << 10;

/// Room for the digits of a time, two spaces and a line break.
const DIGITS: usize = 24;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use wheellock_client::Value;

    use crate::wire::holder::{Holder, Mode};
    use crate::wire::starts::{MOST_BYTES, Starts, add_start};

    const AGO: u64 = 100;
    const OWNER: &str = "0f9a1b2c-0000-4000-8000-00805f9b34fb:7";

    fn start_in(text: &str, mode: Mode) -> Option<u64> {
        let holder = Holder {
            owner: OWNER.to_owned(),
            mode,
            hold_count: 1,
            lease_left: Duration::MAX,
            label: None,
            held_for: None,
        };
        let ago = Duration::from_millis(AGO);
        let age = Starts::read(&Value::from(text), ago).of(&holder, "a lock");
        age.map(|age| u64::try_from((age - ago).as_millis()).unwrap())
    }

    #[test]
    fn start_is_of_owner_mode_and_name() {
        let mut text = String::new();
        let at = Duration::from_millis;
        add_start(&mut text, at(3), &format!("{OWNER}:write"), "a lock");
        add_start(&mut text, at(1), &OWNER.replace(":7", ":8"), "a lock");
        add_start(&mut text, at(2), OWNER, "a");
        assert_eq!((start_in(&text, Mode::Exclusive), start_in(&text, Mode::Write)), (None, Some(3)));
        add_start(&mut text, at(4), OWNER, "a lock");
        assert_eq!((start_in(&text, Mode::Read), start_in(&text, Mode::Write)), (Some(4), Some(3)));
    }

    #[test]
    fn lying_starts_count_for_nothing() {
        let line = format!("5 {OWNER} a lock");
        assert_eq!(start_in(&line, Mode::Exclusive), Some(5));
        let beyond = format!("{}{line}", "6 x y\n".repeat(100));
        let long = format!("{line}\n{}", "x".repeat(MOST_BYTES));
        for text in [
            "",
            "\n",
            "5",
            "5 ",
            OWNER,
            &format!("-{line}"),
            &format!("x{line}"),
            &format!("9{:020}{line}", 0),
        ] {
            assert_eq!(start_in(text, Mode::Exclusive), None, "{text}");
        }
        assert_eq!((start_in(&beyond, Mode::Exclusive), start_in(&long, Mode::Exclusive)), (None, None));
        assert_eq!(start_in(&format!("x\n\n{line}\n5"), Mode::Exclusive), Some(5));
        assert_eq!(
            start_in(&format!("{}{line}", u64::MAX / 10), Mode::Exclusive).map(|start| start > 0),
            Some(true)
        );
    }

    #[test]
    fn long_names_leave_room_for_others() {
        let mut text = String::new();
        add_start(&mut text, Duration::ZERO, OWNER, &"x".repeat(MOST_BYTES));
        add_start(&mut text, Duration::ZERO, OWNER, &format!("a lock\n5 {OWNER} a lock"));
        assert_eq!(text, "");
        for _ in 0..1000 {
            add_start(&mut text, Duration::ZERO, OWNER, &"x".repeat(1000));
        }
        assert!((MOST_BYTES - 1100..=MOST_BYTES).contains(&text.len()), "{}", text.len());
    }
}
