//! How long a topic keeps its messages.

use std::fmt;
use std::time::Duration;

use super::error::Error;
use laneway_units::{format_duration, format_size};

/// How long a topic keeps its messages: until the first limit that is reached. Without limits, forever.
///
/// Limits hold for the whole topic, all partitions together.
///
/// ```
/// use laneway::topic::Retention;
/// use std::time::Duration;
///
/// let week = Retention::FOREVER.age(Duration::from_hours(7 * 24)).bytes(10 << 30);
/// assert_eq!(week.to_string(), "7d, 10GiB");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    age: Option<Duration>,
    bytes: Option<u64>,
    count: Option<u64>,
}

impl Retention {
    /// No limits.
    pub const FOREVER: Self = Self {
        age: None,
        bytes: None,
        count: None,
    };

    /// Keeps messages no longer than this.
    #[must_use]
    pub const fn age(mut self, age: Duration) -> Self {
        self.age = Some(age);
        self
    }

    /// Keeps no more than this many bytes.
    #[must_use]
    pub const fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = Some(bytes);
        self
    }

    /// Keeps no more than this many messages.
    #[must_use]
    pub const fn count(mut self, count: u64) -> Self {
        self.count = Some(count);
        self
    }

    /// The longest time that messages are kept.
    #[must_use]
    pub const fn max_age(&self) -> Option<Duration> {
        self.age
    }

    /// The most bytes that are kept.
    #[must_use]
    pub const fn max_bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// The most messages that are kept.
    #[must_use]
    pub const fn max_count(&self) -> Option<u64> {
        self.count
    }

    /// Refuses limits that keep nothing.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.age == Some(Duration::ZERO) {
            return Err(Error::KeepsNothing("age"));
        }
        if self.bytes == Some(0) {
            return Err(Error::KeepsNothing("bytes"));
        }
        if self.count == Some(0) {
            return Err(Error::KeepsNothing("count"));
        }
        Ok(())
    }
}

impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits: Vec<String> = [
            self.age.map(format_duration),
            self.bytes.map(format_size),
            self.count.map(|count| format!("{count} messages")),
        ]
        .into_iter()
        .flatten()
        .collect();
        if limits.is_empty() {
            return f.write_str("forever");
        }
        f.write_str(&limits.join(", "))
    }
}
