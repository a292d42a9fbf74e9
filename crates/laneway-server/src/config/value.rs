//! How single values are read and shown.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use laneway_delay::callback::Allow;

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
const UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

pub(crate) fn show_time(time: Duration) -> String {
    let millis = time.as_millis();
    let (unit, millis_per_unit) = UNITS
        .into_iter()
        .find(|(_, unit)| millis >= u128::from(*unit) && millis.is_multiple_of(u128::from(*unit)))
        .unwrap_or(("s", 1_000));
    format!("{}{unit}", millis / u128::from(millis_per_unit))
}

/// The word for a setting that is not set.
const NONE: &str = "none";

/// Stores nothing for `none`, and otherwise what the reader makes of the text.
pub(crate) fn set_optional<T>(
    place: &mut Option<T>,
    text: &str,
    read: impl FnOnce(&str) -> Option<T>,
) -> Option<()> {
    *place = if text == NONE {
        None
    } else {
        Some(read(text)?)
    };
    Some(())
}

pub(crate) fn show_optional<T>(value: Option<&T>, show: impl FnOnce(&T) -> String) -> String {
    value.map_or_else(|| NONE.to_owned(), show)
}

/// The name of a file or directory. Control characters in one are always a mistake.
pub(crate) fn path(text: &str) -> Option<PathBuf> {
    (!text.is_empty() && !text.contains(char::is_control)).then(|| text.into())
}

/// Waits between attempts, such as `1s,10s,1m`. `none` is a list without any.
pub(crate) fn waits(text: &str) -> Option<Vec<Duration>> {
    const LONGEST: Duration = Duration::from_hours(30 * 24);
    if text == NONE {
        return Some(Vec::new());
    }
    let waits: Option<Vec<Duration>> = text
        .split(',')
        .map(|wait| time(wait.trim(), Duration::ZERO..=LONGEST))
        .collect();
    waits.filter(|waits| waits.len() <= 32)
}

pub(crate) fn show_waits(waits: &[Duration]) -> String {
    if waits.is_empty() {
        return NONE.to_owned();
    }
    let waits: Vec<String> = waits.iter().copied().map(show_time).collect();
    waits.join(",")
}

/// Waits by topic, such as `mail=1m,5m; orders=1s`.
pub(crate) fn waits_by_topic(text: &str) -> Option<BTreeMap<String, Vec<Duration>>> {
    if text == NONE {
        return Some(BTreeMap::new());
    }
    text.split(';')
        .map(|entry| {
            let (topic, waits) = entry.split_once('=')?;
            let topic = topic.trim();
            let usable = !topic.is_empty() && !topic.contains(char::is_control);
            Some((topic.to_owned(), self::waits(waits.trim())?)).filter(|_| usable)
        })
        .collect()
}

pub(crate) fn show_waits_by_topic(waits: &BTreeMap<String, Vec<Duration>>) -> String {
    if waits.is_empty() {
        return NONE.to_owned();
    }
    let entries: Vec<String> = waits
        .iter()
        .map(|(topic, waits)| format!("{topic}={}", show_waits(waits)))
        .collect();
    entries.join("; ")
}

/// `on` or `off`.
pub(crate) fn switch(text: &str) -> Option<bool> {
    match text {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

pub(crate) fn show_switch(on: bool) -> String {
    if on { "on" } else { "off" }.to_owned()
}

/// Whom callbacks may reach beyond public addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// This machine, if only this machine reaches the server; nothing otherwise.
    Auto,
    /// What the operator says.
    Listed(Allow),
}

impl Reach {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "auto" => Some(Self::Auto),
            NONE => Some(Self::Listed(Allow::nothing())),
            list => list.parse().ok().map(Self::Listed),
        }
    }

    pub(crate) fn show(&self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::Listed(allow) if allow.is_empty() => NONE.to_owned(),
            Self::Listed(allow) => allow.to_string(),
        }
    }
}

/// What the body of a callback is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallbackBody {
    /// The payload, as it was submitted.
    Payload,
    /// A JSON object with id, topic, due time, attempt, metadata and payload, signed as a whole.
    Envelope,
}

impl CallbackBody {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        [Self::Payload, Self::Envelope]
            .into_iter()
            .find(|body| body.name() == text)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Payload => "payload",
            Self::Envelope => "envelope",
        }
    }
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
            "", "10", "s", "10 s", "10S", "-1s", "1.5s", "1w", "+1s", "9e9h",
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
        for text in ["0s", "1ms", "1500ms", "10s", "90s", "2m", "1h", "25h", "7d"] {
            assert_eq!(show_time(time(text, ANY).expect(text)), text);
        }
        assert_eq!(show_time(Duration::from_mins(1)), "1m");
    }

    #[test]
    fn waits_are_shown_as_they_are_read() {
        for text in ["none", "1s", "1s,10s,1m,5m,50m", "0s,1d"] {
            assert_eq!(show_waits(&waits(text).expect(text)), text);
        }
        for text in ["none", "mail=1m,5m", "mail=none; orders=1s,2s"] {
            assert_eq!(
                show_waits_by_topic(&waits_by_topic(text).expect(text)),
                text
            );
        }
    }

    #[test]
    fn waits_that_cannot_be_meant_are_refused() {
        for text in ["", "1", "1s,", "1s;2s", "31d", &["1s"; 33].join(",")] {
            assert_eq!(waits(text), None, "{text}");
        }
        for text in ["", "mail", "=1s", "mail=", "mail=1s;", "mail:1s"] {
            assert_eq!(waits_by_topic(text), None, "{text}");
        }
    }

    #[test]
    fn reach_is_shown_as_it_is_read() {
        for text in ["auto", "none", "127.0.0.0/8, hooks.internal"] {
            assert_eq!(Reach::parse(text).expect(text).show(), text);
        }
        assert_eq!(Reach::parse("10.0.0.1/8"), None);
    }
}
