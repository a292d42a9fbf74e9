//! How times are written in JSON.

use std::fmt;
use std::time::Duration;

use laneway_delay::Timestamp;
use serde::de::{self, Deserialize, Deserializer, Visitor};

/// The last moment that is taken: the end of the year 9998. Dates have four digits for the year, in
/// every time zone.
pub(crate) const LAST: Timestamp = Timestamp::from_millis(253_370_764_799_999);

/// A duration by the grammar of [`laneway_units`], or a number of milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

/// A moment: a date by RFC 3339, or a number of milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment(pub(crate) Timestamp);

/// In milliseconds, March of 1973. Numbers below it are seconds that were taken for milliseconds: as such
/// they reach until the year 5138.
const LEAST_MILLIS: u64 = 100_000_000_000;

/// What to say of such a number.
pub(crate) fn seconds(number: u64) -> String {
    format!(
        "{number} looks like seconds, and numbers are milliseconds since 1970 here: multiply it by 1000, or \
         send a date such as \"2030-01-31T12:00:00Z\""
    )
}

impl Moment {
    /// `None` if the number is too small to be one of milliseconds.
    pub(crate) fn from_millis(millis: u64) -> Option<Self> {
        (millis >= LEAST_MILLIS).then(|| Self(Timestamp::from_millis(millis)))
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let moment: jiff::Timestamp = text.parse().ok()?;
        // Rounded up: a part of a millisecond too late is better than too early.
        let millis = moment.as_nanosecond().max(0).div_euclid(1_000_000);
        let part = i128::from(moment.as_nanosecond().rem_euclid(1_000_000) > 0);
        let millis = u64::try_from(millis + part).ok()?;
        Some(Self(Timestamp::from_millis(millis)))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl Visitor<'_> for Read {
            type Value = Span;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(
                    f,
                    "a duration {}, or a whole number of milliseconds",
                    laneway_units::DURATION_EXAMPLES
                )
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                laneway_units::parse_duration(text)
                    .map(Span)
                    .map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, millis: u64) -> Result<Span, E> {
                Ok(Span(Duration::from_millis(millis)))
            }
        }
        deserializer.deserialize_any(Read)
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl Visitor<'_> for Read {
            type Value = Moment;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a date such as \"2030-01-31T12:00:00Z\", or a whole number of milliseconds \
                     since 1970",
                )
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Moment, E> {
                Moment::parse(text)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }

            fn visit_u64<E: de::Error>(self, millis: u64) -> Result<Moment, E> {
                Moment::from_millis(millis).ok_or_else(|| E::custom(seconds(millis)))
            }
        }
        deserializer.deserialize_any(Read)
    }
}

/// A moment as a date.
pub(crate) fn date(moment: Timestamp) -> String {
    let millis = moment.min(LAST).as_millis();
    let millis = i64::try_from(millis).unwrap_or(i64::MAX);
    match jiff::Timestamp::from_millisecond(millis) {
        // Always the same length, so that dates sort as text.
        Ok(moment) => format!("{moment:.3}"),
        Err(_) => millis.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_over_http_are_those_of_the_table_or_milliseconds() {
        let read = |json: String| serde_json::from_str::<Span>(&json);
        for (text, millis) in laneway_units::table::DURATIONS {
            let span = read(format!("{text:?}")).expect(text);
            assert_eq!(span, Span(Duration::from_millis(millis)));
        }
        assert_eq!(
            read("7".to_owned()).ok(),
            Some(Span(Duration::from_millis(7)))
        );
        for text in laneway_units::table::NOT_DURATIONS {
            let error = read(format!("{text:?}")).expect_err(text).to_string();
            let refusal = laneway_units::Error::Duration(text.to_owned()).to_string();
            assert!(error.starts_with(&refusal), "{error}");
        }
        for json in ["-1", "1.5", "null", "{}"] {
            let error = read(json.to_owned()).expect_err(json).to_string();
            assert!(error.contains(laneway_units::DURATION_EXAMPLES), "{error}");
        }
    }

    #[test]
    fn moments_are_dates_or_milliseconds() {
        for (json, millis) in [
            ("\"1970-01-01T00:00:01Z\"", 1_000),
            ("\"1970-01-01T01:00:00.5+01:00\"", 500),
            ("\"1970-01-01T00:00:00.0000001Z\"", 1),
            ("1794787200000", 1_794_787_200_000),
        ] {
            let moment: Moment = serde_json::from_str(json).expect(json);
            assert_eq!(moment, Moment(Timestamp::from_millis(millis)));
        }
        for json in [
            "\"tomorrow\"",
            "\"2030-01-31\"",
            "\"2030-01-31T12:00:00\"",
            "-1",
            "1.5",
        ] {
            let error = serde_json::from_str::<Moment>(json)
                .expect_err(json)
                .to_string();
            assert!(error.contains("a date such as"), "{error}");
        }
    }

    #[test]
    fn seconds_are_not_taken_for_milliseconds() {
        for json in ["1900000000", "0", "99999999999"] {
            let error = serde_json::from_str::<Moment>(json)
                .expect_err(json)
                .to_string();
            assert!(error.contains("multiply it by 1000"), "{error}");
        }
    }

    #[test]
    fn dates_read_back_as_they_are_shown() {
        for millis in [0, 1, 1_794_787_200_000, LAST.as_millis()] {
            let moment = Timestamp::from_millis(millis);
            assert_eq!(Moment::parse(&date(moment)), Some(Moment(moment)));
        }
        assert_eq!(date(Timestamp::MAX), date(LAST));
    }
}
