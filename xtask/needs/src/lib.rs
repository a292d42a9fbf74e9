//! What a test needs from outside, and how it says that it had to be skipped.
//!
//! Tests on real servers live in integration test files named after the services they use, such as
//! `tests/nats_publish.rs` or `tests/redis_zookeeper_failover.rs`. They ask for an address first:
//!
//! ```
//! # fn connect(_: &str) {}
//! // With #[test] above it:
//! fn a_published_event_arrives() {
//!     let address = needs::service!("nats");
//!     connect(&address);
//! }
//! # a_published_event_arrives();
//! ```
//!
//! `cargo xtask services run -- CMD` and `cargo xtask test` start the servers and hand their
//! addresses over in `LANEWAY_TEST_NATS` and the like. Where the variable is not set, the test ends
//! there and says so in one line on the standard error, past the capture of the test harness:
//!
//! ```text
//! skipped: a_published_event_arrives: needs nats: LANEWAY_TEST_NATS is not set
//! ```
//!
//! The harness knows no skipped tests and reports such a test as `ok`. `cargo xtask test` reads the
//! line and counts the test as skipped instead, with the reason.
//!
//! A test that takes longer than a few seconds begins with [`slow!`](crate::slow), which
//! leaves it out of `cargo xtask test --quick` in the same way.

use std::env;
use std::fmt;
use std::io::{self, Write};

/// Set by `cargo xtask test --quick`: slow tests are left out.
pub const QUICK: &str = "LANEWAY_TEST_QUICK";

/// How the reason begins when a service is missing.
const NEEDS: &str = "needs ";

/// The address of a service (a `&str` such as `"nats"`), or the end of this test.
///
/// Ends the calling test function with `return`, so it is to be used in tests that return `()`.
#[macro_export]
macro_rules! service {
    ($service:expr) => {
        match $crate::address($service) {
            Ok(address) => address,
            Err(why) => {
                $crate::skip!(why);
                return;
            }
        }
    };
}

/// Ends this test here if only quick tests are wanted.
#[macro_export]
macro_rules! slow {
    () => {
        if $crate::quick() {
            $crate::skip!("slow, left out by --quick");
            return;
        }
    };
}

/// Says that the calling test is skipped, and why. The test itself has to end then.
#[macro_export]
macro_rules! skip {
    ($why:expr) => {{
        // The name of the test thread will not do: with one test thread it is `main`.
        fn here() {}
        $crate::Skip::of_function(::std::any::type_name_of_val(&here), $why).announce();
    }};
}

/// The name of the environment variable that holds the address of `service`.
///
/// ```
/// assert_eq!(needs::variable("nats"), "LANEWAY_TEST_NATS");
/// ```
#[must_use]
pub fn variable(service: &str) -> String {
    format!("LANEWAY_TEST_{}", service.to_ascii_uppercase())
}

/// The address of a service, or the reason why there is none.
///
/// # Errors
///
/// Says which variable is not set.
pub fn address(service: &str) -> Result<String, String> {
    let variable = variable(service);
    env::var(&variable)
        .ok()
        .filter(|address| !address.is_empty())
        .ok_or_else(|| format!("{NEEDS}{service}: {variable} is not set"))
}

/// Whether slow tests are to be left out.
#[must_use]
pub fn quick() -> bool {
    env::var_os(QUICK).is_some_and(|value| !value.is_empty())
}

/// One skipped test: what the line on the standard error says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skip {
    /// The name of the test as the harness knows it, `module::test`.
    pub test: String,
    /// Why it could not run.
    pub why: String,
}

impl Skip {
    const MARK: &str = "skipped: ";

    /// A skip of the test in which the function item with this type name was declared.
    #[must_use]
    pub fn of_function(inner: &str, why: impl Into<String>) -> Self {
        let path: Vec<&str> = inner
            .split("::")
            .filter(|part| *part != "{{closure}}")
            .collect();
        // The first part is the crate, the last one the inner function.
        let test = path
            .get(1..path.len().saturating_sub(1))
            .unwrap_or_default()
            .join("::");
        Self {
            test,
            why: why.into(),
        }
    }

    /// Reads a line that [`announce`](Self::announce) wrote.
    ///
    /// ```
    /// let skip = needs::Skip::parse("skipped: tests::it_works: needs nats: gone").unwrap();
    /// assert_eq!(skip.test, "tests::it_works");
    /// assert_eq!(skip.why, "needs nats: gone");
    /// ```
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let (test, why) = line.strip_prefix(Self::MARK)?.split_once(": ")?;
        Some(Self {
            test: test.to_owned(),
            why: why.to_owned(),
        })
    }

    /// Whether it was skipped for want of a service, and not for being slow.
    #[must_use]
    pub fn wants_service(&self) -> bool {
        self.why.starts_with(NEEDS)
    }

    /// Writes the line. Unlike `eprintln!` this is not captured by the test harness, so a plain
    /// `cargo test` shows it too.
    pub fn announce(&self) {
        // Nobody is left to be told when the standard error is closed.
        let _ = io::stderr().write_all(format!("{self}\n").as_bytes());
    }
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}: {}", Self::MARK, self.test, self.why)
    }
}

#[cfg(test)]
mod tests {
    use super::Skip;

    #[test]
    fn a_skip_carries_the_name_that_the_harness_uses() {
        fn here() {}
        let skip = Skip::of_function(std::any::type_name_of_val(&here), "why");
        assert_eq!(
            skip.test,
            "tests::a_skip_carries_the_name_that_the_harness_uses"
        );
    }

    #[test]
    fn an_async_test_is_named_without_its_closure() {
        let skip = Skip::of_function("nats_publish::round_trip::{{closure}}::here", "why");
        assert_eq!(skip.test, "round_trip");
    }

    #[test]
    fn a_skip_survives_its_line() {
        let skip = Skip {
            test: "module::test".into(),
            why: "needs nats: LANEWAY_TEST_NATS is not set".into(),
        };
        assert_eq!(Skip::parse(&skip.to_string()), Some(skip));
    }

    #[test]
    fn other_lines_are_not_skips() {
        assert_eq!(Skip::parse("test module::test ... ok"), None);
        assert_eq!(Skip::parse("skipped: no reason given"), None);
    }
}
