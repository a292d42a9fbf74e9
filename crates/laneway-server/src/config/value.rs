//! How single values are read and shown.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Stores a value that could be read.
pub(crate) fn set<T>(place: &mut T, value: Option<T>) -> Option<()> {
    *place = value?;
    Some(())
}

pub(crate) fn count(text: &str, range: RangeInclusive<u32>) -> Option<u32> {
    text.parse().ok().filter(|count| range.contains(count))
}

/// A whole number and a unit, without a space: the one way to write a time, so that `10` can't
/// mean seconds to one reader and milliseconds to another.
pub(crate) fn time(text: &str, range: RangeInclusive<Duration>) -> Option<Duration> {
    let unit_at = text.find(|character: char| !character.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit_at);
    let millis_per_unit = UNITS.iter().find(|(name, _)| *name == unit)?.1;
    let millis = number.parse::<u64>().ok()?.checked_mul(millis_per_unit)?;
    Some(Duration::from_millis(millis)).filter(|time| range.contains(time))
}

/// From the largest, which is the one that is shown.
const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

pub(crate) fn show_time(time: Duration) -> String {
    let millis = time.as_millis();
    let (unit, millis_per_unit) = UNITS
        .into_iter()
        .find(|(_, unit)| millis >= u128::from(*unit) && millis.is_multiple_of(u128::from(*unit)))
        .unwrap_or(("s", 1_000));
    format!("{}{unit}", millis / u128::from(millis_per_unit))
}

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    const ALL: [Self; 6] = [
        Self::Off,
        Self::Error,
        Self::Warn,
        Self::Info,
        Self::Debug,
        Self::Trace,
    ];

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.name() == text)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// What a log line looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    Human,
    Json,
}

impl LogFormat {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        [Self::Human, Self::Json]
            .into_iter()
            .find(|format| format.name() == text)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Human => "human",
            Self::Json => "json",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: RangeInclusive<Duration> = Duration::ZERO..=Duration::MAX;

    #[test]
    fn times_are_read_with_their_unit() {
        for (text, millis) in [("0s", 0), ("500ms", 500), ("10s", 10_000), ("2m", 120_000)] {
            assert_eq!(time(text, ANY), Some(Duration::from_millis(millis)));
        }
    }

    #[test]
    fn times_without_a_known_unit_are_refused() {
        for text in [
            "", "10", "s", "10 s", "10S", "-1s", "1.5s", "1d", "+1s", "9e9h",
        ] {
            assert_eq!(time(text, ANY), None, "{text:?}");
        }
    }

    #[test]
    fn a_time_too_long_to_count_is_refused() {
        assert_eq!(time("18446744073709551615h", ANY), None);
        assert_eq!(time("99999999999999999999ms", ANY), None);
    }

    #[test]
    fn times_are_shown_as_they_are_read() {
        for text in ["0s", "1ms", "1500ms", "10s", "90s", "2m", "1h"] {
            assert_eq!(show_time(time(text, ANY).expect(text)), text);
        }
        assert_eq!(show_time(Duration::from_mins(1)), "1m");
    }
}
