//! Durations and sizes as people write them: `7d`, `1h30m`, `10GiB`.

use std::time::Duration;

use super::error::Error;

const NANOS: [(&str, u128); 8] = [
    ("w", 7 * 24 * 3600 * 1_000_000_000),
    ("d", 24 * 3600 * 1_000_000_000),
    ("h", 3600 * 1_000_000_000),
    ("m", 60 * 1_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

const BYTES: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

/// Reads a sum of whole numbers with units, such as `1h30m`.
pub(super) fn parse_duration(text: &str) -> Result<Duration, Error> {
    let refuse = || Error::NotDuration(text.to_owned());
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(refuse());
    }
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let (number, unit, after) = split_quantity(rest).ok_or_else(refuse)?;
        let (_, factor) = NANOS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(refuse)?;
        nanos = u128::from(number)
            .checked_mul(*factor)
            .and_then(|part| nanos.checked_add(part))
            .ok_or_else(refuse)?;
        rest = after.trim_start();
    }
    let seconds = u64::try_from(nanos / 1_000_000_000).map_err(|_| refuse())?;
    let rest = u32::try_from(nanos % 1_000_000_000).map_err(|_| refuse())?;
    Ok(Duration::new(seconds, rest))
}

/// Writes a duration so that it reads back the same.
pub(super) fn format_duration(duration: Duration) -> String {
    let mut rest = duration.as_nanos();
    let mut text = String::new();
    for (unit, factor) in NANOS.iter().filter(|(unit, _)| *unit != "w") {
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

/// Reads a whole number of bytes, with or without a unit.
pub(super) fn parse_size(text: &str) -> Result<u64, Error> {
    let refuse = || Error::NotSize(text.to_owned());
    let text = text.trim();
    if let Ok(bytes) = text.parse() {
        return Ok(bytes);
    }
    let (number, unit, after) = split_quantity(text).ok_or_else(refuse)?;
    let (_, factor) = BYTES
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(unit))
        .ok_or_else(refuse)?;
    if !after.is_empty() {
        return Err(refuse());
    }
    number.checked_mul(*factor).ok_or_else(refuse)
}

/// Writes a size in the largest binary unit that loses nothing.
pub(super) fn format_size(bytes: u64) -> String {
    let (unit, factor) = BYTES[..4]
        .iter()
        .find(|(_, factor)| bytes >= *factor && bytes.is_multiple_of(*factor))
        .unwrap_or(&("B", 1));
    format!("{}{unit}", bytes / factor)
}

/// Splits `90 s and more` into 90, `s` and what follows the unit.
fn split_quantity(text: &str) -> Option<(u64, &str, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, rest) = text.split_at(digits);
    let rest = rest.trim_start();
    let letters = rest
        .find(|c: char| !c.is_ascii_alphabetic())
        .unwrap_or(rest.len());
    let (unit, after) = rest.split_at(letters);
    Some((number.parse().ok()?, unit, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written() {
        for (text, seconds, written) in [
            ("90s", 90, "1m30s"),
            ("1h30m", 5400, "1h30m"),
            ("1h 30m", 5400, "1h30m"),
            ("7d", 604_800, "7d"),
            ("1w", 604_800, "7d"),
            ("36 h", 129_600, "1d12h"),
            ("0s", 0, "0s"),
        ] {
            let duration = parse_duration(text).expect(text);
            assert_eq!(duration, Duration::from_secs(seconds), "{text}");
            assert_eq!(format_duration(duration), written);
        }
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(format_duration(Duration::new(1, 1)), "1s1ns");
        assert_eq!(
            parse_duration(&format_duration(Duration::MAX)),
            Ok(Duration::MAX)
        );
    }

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes, written) in [
            ("10GiB", 10 << 30, "10GiB"),
            ("10gib", 10 << 30, "10GiB"),
            ("10 GB", 10_000_000_000, "9765625KiB"),
            ("512", 512, "512B"),
            ("1024B", 1024, "1KiB"),
            ("0", 0, "0B"),
        ] {
            let size = parse_size(text).expect(text);
            assert_eq!(size, bytes, "{text}");
            assert_eq!(format_size(size), written);
        }
        assert_eq!(parse_size(&u64::MAX.to_string()), Ok(u64::MAX));
    }

    #[test]
    fn everything_else_is_refused_with_an_example() {
        for text in [
            "",
            " ",
            "7",
            "d",
            "-1s",
            "1.5h",
            "7 days",
            "1s2",
            "s1",
            "99999999999999999999s",
            "1µs",
            "1y",
        ] {
            assert_eq!(
                parse_duration(text),
                Err(Error::NotDuration(text.to_owned()))
            );
        }
        for text in [
            "",
            "GiB",
            "-1",
            "1.5GiB",
            "1GiB1",
            "1XiB",
            "99999999TiB",
            "1 2",
        ] {
            let error = parse_size(text).expect_err(text);
            assert!(matches!(error, Error::NotSize(_)), "{text}");
        }
    }
}
