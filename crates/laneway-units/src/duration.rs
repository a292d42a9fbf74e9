use std::time::Duration;

use super::{Error, digits};

const SECOND: u128 = 1_000_000_000;
const MINUTE: u128 = 60 * SECOND;
const HOUR: u128 = 60 * MINUTE;
const DAY: u128 = 24 * HOUR;
const WEEK: u128 = 7 * DAY;

/// Nanoseconds by unit, the largest first.
const UNITS: [(&str, u128); 8] = [
    ("w", WEEK),
    ("d", DAY),
    ("h", HOUR),
    ("m", MINUTE),
    ("s", SECOND),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Reads a duration. See the [crate](crate) for the grammar.
///
/// # Errors
/// [`Error::Duration`] with the text.
pub fn parse_duration(text: &str) -> Result<Duration, Error> {
    let nanos = match text.strip_prefix('P') {
        Some(rest) => iso(rest),
        None => sum(text, &UNITS),
    };
    let duration = nanos.and_then(|nanos| {
        let seconds = u64::try_from(nanos / SECOND).ok()?;
        let rest = u32::try_from(nanos % SECOND).ok()?;
        Some(Duration::new(seconds, rest))
    });
    duration.ok_or_else(|| Error::Duration(text.to_owned()))
}

/// Writes a duration so that it reads back the same.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let mut rest = duration.as_nanos();
    let mut text = String::new();
    for (unit, factor) in UNITS.iter().filter(|(unit, _)| *unit != "w") {
        let number = rest / factor;
        if number > 0 {
            text.push_str(&number.to_string());
            text.push_str(unit);
        }
        rest %= factor;
    }
    if text.is_empty() {
        "0s".to_owned()
    } else {
        text
    }
}

/// The sum of numbers with units, each unit at most once and in this order.
fn sum(text: &str, units: &[(&str, u128)]) -> Option<u128> {
    let mut units = units.iter();
    let mut rest = text;
    let mut sum: u128 = 0;
    loop {
        let unit_at = rest.find(|character: char| !character.is_ascii_digit())?;
        let (number, after) = rest.split_at(unit_at);
        let unit_end = after.find(|character: char| character.is_ascii_digit());
        let (unit, next) = after.split_at(unit_end.unwrap_or(after.len()));
        let factor = units.find(|(name, _)| *name == unit)?.1;
        let part = u128::from(digits(number)?).checked_mul(factor)?;
        sum = sum.checked_add(part)?;
        rest = next;
        if rest.is_empty() {
            return Some(sum);
        }
    }
}

/// What follows the `P` of ISO 8601: weeks and days, and after a `T` hours, minutes and seconds.
fn iso(text: &str) -> Option<u128> {
    let (days, times) = match text.split_once('T') {
        Some((days, times)) => (days, Some(times)),
        None => (text, None),
    };
    let of_days = match (days, times) {
        ("", Some(_)) => 0,
        (days, _) => sum(days, &[("W", WEEK), ("D", DAY)])?,
    };
    let of_times = match times {
        Some(times) => sum(times, &[("H", HOUR), ("M", MINUTE), ("S", SECOND)])?,
        None => 0,
    };
    of_days.checked_add(of_times)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table;

    #[test]
    fn durations_of_the_table_are_read_and_all_others_refused() {
        for (text, millis) in table::DURATIONS {
            let duration = Duration::from_millis(millis);
            assert_eq!(parse_duration(text), Ok(duration), "{text}");
        }
        for text in table::NOT_DURATIONS {
            let refused = Err(Error::Duration(text.to_owned()));
            assert_eq!(parse_duration(text), refused, "{text}");
        }
        assert_eq!(parse_duration("3us"), Ok(Duration::from_micros(3)));
    }

    #[test]
    fn durations_read_back_as_they_are_written() {
        for (duration, written) in [
            (Duration::ZERO, "0s"),
            (Duration::from_millis(1500), "1s500ms"),
            (Duration::from_secs(90), "1m30s"),
            (Duration::from_hours(36), "1d12h"),
            (Duration::from_hours(7 * 24), "7d"),
            (Duration::new(1, 1), "1s1ns"),
        ] {
            assert_eq!(format_duration(duration), written);
            assert_eq!(parse_duration(written), Ok(duration));
        }
        let longest = format_duration(Duration::MAX);
        assert_eq!(parse_duration(&longest), Ok(Duration::MAX));
    }
}
