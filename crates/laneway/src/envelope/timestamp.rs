//! Time on the wire: RFC 3339, years 0000 to 9999.
//!
//! jiff reads more than that (ISO 8601 with signs, brackets and spaces) and would accept what other
//! languages then refuse, so the shape is checked here before jiff looks at the values.

use jiff::Timestamp;
use jiff::fmt::temporal::{DateTimeParser, DateTimePrinter};

use super::error::Problem;

static PARSER: DateTimeParser = DateTimeParser::new();
static PRINTER: DateTimePrinter = DateTimePrinter::new();

/// 0000-01-01T00:00:00Z, the earliest time that RFC 3339 can write.
const EARLIEST_SECOND: i64 = -62_167_219_200;

/// Reads a time with any offset. A leap second is read as the second before it, and the last hours of the
/// year 9999 as the last time that can be held.
pub(super) fn parse(text: &str) -> Result<Timestamp, Problem> {
    if !is_rfc3339_shaped(text.as_bytes()) {
        return Err(Problem::NotRfc3339);
    }
    match PARSER.parse_timestamp(text) {
        Ok(timestamp) => check(timestamp).map(|()| timestamp),
        Err(_) if is_past_the_last(text) => Ok(Timestamp::MAX),
        Err(_) => Err(Problem::NotRfc3339),
    }
}

/// Whether this is one of the last hours of the year 9999, which a [`Timestamp`] cannot hold. "Never" is often
/// written so: it is read as the last time that can be held.
fn is_past_the_last(text: &str) -> bool {
    let date = &text[.."YYYY-MM-DDTHH:MM:SS".len()];
    date.starts_with("9999-12-3") && PARSER.parse_datetime(date).is_ok()
}

/// Refuses what RFC 3339 cannot write.
pub(super) fn check(timestamp: Timestamp) -> Result<(), Problem> {
    if timestamp.as_second() < EARLIEST_SECOND {
        return Err(Problem::NotRfc3339);
    }
    Ok(())
}

/// Appends the time in UTC, with as many decimals as it has.
pub(super) fn write(timestamp: Timestamp, out: &mut Vec<u8>) {
    PRINTER
        .print_timestamp(&timestamp, out)
        .expect("writing to memory does not fail");
}

/// `YYYY-MM-DDTHH:MM:SS`, up to nine decimals, then `Z` or `+HH:MM`.
fn is_rfc3339_shaped(text: &[u8]) -> bool {
    const SHAPE: &[u8; 19] = b"dddd-dd-ddTdd:dd:dd";
    let Some((head, tail)) = text.split_at_checked(SHAPE.len()) else {
        return false;
    };
    head.iter().zip(SHAPE).all(matches_shape) && is_tail(tail)
}

fn is_tail(tail: &[u8]) -> bool {
    let offset = match tail.split_first() {
        Some((b'.', rest)) => {
            let decimals = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if !(1..=9).contains(&decimals) {
                return false;
            }
            &rest[decimals..]
        }
        _ => tail,
    };
    match offset {
        [b'Z' | b'z'] => true,
        [b'+' | b'-', rest @ ..] => rest.len() == 5 && rest.iter().zip(b"dd:dd").all(matches_shape),
        _ => false,
    }
}

fn matches_shape((byte, shape): (&u8, &u8)) -> bool {
    match shape {
        b'd' => byte.is_ascii_digit(),
        b'T' => matches!(byte, b'T' | b't'),
        literal => byte == literal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> String {
        let mut out = Vec::new();
        write(parse(text).expect(text), &mut out);
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn times_with_any_offset_are_written_in_utc() {
        for (read, expected) in [
            ("2026-11-15T09:30:00Z", "2026-11-15T09:30:00Z"),
            ("2026-11-15t09:30:00z", "2026-11-15T09:30:00Z"),
            (
                "2026-11-15T17:30:00.123456789+08:00",
                "2026-11-15T09:30:00.123456789Z",
            ),
            ("2026-11-15T09:30:00.500-00:00", "2026-11-15T09:30:00.5Z"),
            ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
            ("0000-01-01T00:00:00Z", "0000-01-01T00:00:00Z"),
            ("2016-12-31T23:59:60Z", "2016-12-31T23:59:59Z"),
            // What jxt-core and others write for "never".
            (
                "9999-12-31T23:59:59.999999999Z",
                "9999-12-30T22:00:00.999999999Z",
            ),
            (
                "9999-12-31T00:00:00-05:00",
                "9999-12-30T22:00:00.999999999Z",
            ),
            ("9999-12-30T22:00:00Z", "9999-12-30T22:00:00Z"),
        ] {
            assert_eq!(written(read), expected);
        }
    }

    #[test]
    fn what_other_languages_refuse_is_refused() {
        for text in [
            "",
            "2026-11-15",
            "2026-11-15 09:30:00Z",
            "2026-11-15T09:30Z",
            "2026-11-15T09:30:00",
            "2026-11-15T09:30:00,5Z",
            "2026-11-15T09:30:00.Z",
            "2026-11-15T09:30:00.1234567890Z",
            "2026-11-15T09:30:00+0800",
            "2026-11-15T09:30:00+08",
            "2026-11-15T09:30:00Z[UTC]",
            "+002026-11-15T09:30:00Z",
            "2026-02-30T09:30:00Z",
            "9999-12-32T00:00:00Z",
            "9999-12-31T24:00:01Z",
            "2026-11-15T25:30:00Z",
            "0000-01-01T00:00:00+01:00",
            "２026-11-15T09:30:00Z",
        ] {
            assert_eq!(parse(text), Err(Problem::NotRfc3339), "{text:?}");
        }
    }

    #[test]
    fn times_before_the_year_zero_are_refused() {
        assert_eq!(check(Timestamp::MIN), Err(Problem::NotRfc3339));
        assert_eq!(check(Timestamp::MAX), Ok(()));
        let earliest = Timestamp::from_second(EARLIEST_SECOND).expect("in range");
        assert_eq!(check(earliest), Ok(()));
        let before = Timestamp::from_second(EARLIEST_SECOND - 1).expect("in range");
        assert_eq!(check(before), Err(Problem::NotRfc3339));
    }
}
