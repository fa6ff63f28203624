//! Lengths of time on the command line.

use std::time::Duration;

/// Parses `10s`, `500ms`, `2m`, `1h` or `1.5s`. A number alone is seconds.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let seconds = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("{unit:?} is no unit of time: ms, s, m and h are")),
    };
    let number: f64 = number.parse().map_err(|_| format!("{text:?} does not begin with a number"))?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| "too long".to_owned())
}

/// Returns the text of a time in its largest unit, as the library's `Holder` shows it.
pub(crate) fn in_largest_unit(time: Duration) -> String {
    match time.as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ ..7_200 => format!("{} min", seconds / 60),
        seconds @ ..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_shown_in_largest_unit() {
        for (seconds, shown) in [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7_200, "2 h"), (172_800, "2 d")]
        {
            assert_eq!(in_largest_unit(Duration::from_secs(seconds)), shown);
        }
    }

    #[test]
    fn times_have_units() {
        for (text, millis) in
            [("0", 0), ("10", 10_000), ("10s", 10_000), ("500ms", 500), ("2m", 120_000), ("1.5h", 5_400_000)]
        {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for wrong in ["", "s", "-1s", "1d", "1 s", "1e9", "1..2", "9999999999999999999999h", "\u{660}s"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
