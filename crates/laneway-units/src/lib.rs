//! Durations and sizes as people write them: one grammar for topics, settings, flags and HTTP.
//!
//! | what | grammar | examples |
//! |---|---|---|
//! | duration | whole numbers with a unit (`w d h m s ms us ns`), each unit once, the largest first, no spaces | `90s`, `1h30m`, `2w` |
//! | duration | ISO 8601 without months and years, whose length is not fixed | `PT5M`, `P1DT12H` |
//! | size | a whole number of bytes, or one with a unit, in any case: `B kB MB GB TB KiB MiB GiB TiB` | `65536`, `10GiB` |
//!
//! A duration is never a number alone: `10` would be seconds to one reader and milliseconds to another.
//!
//! ```
//! use std::time::Duration;
//!
//! assert_eq!(laneway_units::parse_duration("1h30m"), Ok(Duration::from_mins(90)));
//! assert_eq!(laneway_units::parse_duration("PT5M"), Ok(Duration::from_mins(5)));
//! assert_eq!(laneway_units::format_duration(Duration::from_mins(90)), "1h30m");
//! assert_eq!(laneway_units::parse_size("64KiB"), Ok(65_536));
//! assert_eq!(
//!     laneway_units::parse_duration("10").unwrap_err().to_string(),
//!     "\"10\" is not a duration: write whole numbers with units, the largest first, like 90s, 1h30m, 2w or PT5M",
//! );
//! ```
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `duration` | durations, read and written |
//! | `size` | sizes, read and written |
//! | [`table`] | texts that every entry point has to accept or refuse alike |

mod duration;
mod size;
#[doc(hidden)]
pub mod table;

use std::fmt;

pub use duration::{format_duration, parse_duration};
pub use size::{format_size, parse_size};

/// How durations are written, in the words of every error about one.
pub const DURATION_EXAMPLES: &str = "like 90s, 1h30m, 2w or PT5M";

/// Text that is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// Not a duration.
    Duration(String),
    /// Not a size.
    Size(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Duration(text) => write!(
                f,
                "{text:?} is not a duration: write whole numbers with units, the largest first, {DURATION_EXAMPLES}"
            ),
            Self::Size(text) => write!(
                f,
                "{text:?} is not a size: write it like 512KiB, 10GiB or 1000000, without fractions"
            ),
        }
    }
}

impl std::error::Error for Error {}

/// A whole number without a sign.
fn digits(text: &str) -> Option<u64> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| text.parse().ok())?
}
