//! Looks at what a bus would run on, and says what to change.
//!
//! ```no_run
//! # async fn run() -> Result<(), laneway::Error> {
//! use laneway::doctor::{self, Checkup};
//!
//! for finding in doctor::examine("nats://localhost:4222", &Checkup::default()).await? {
//!     println!("{:?} {}: {}", finding.state, finding.about, finding.what);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! On the command line it is `laneway doctor nats://localhost:4222`, or `laneway doctor
//! kafka://localhost:9092`.

#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "nats")]
mod monitor;
#[cfg(feature = "nats")]
mod nats;

#[cfg(any(feature = "kafka", feature = "nats"))]
use std::time::Duration;

use crate::Error;

/// Something that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// What was looked at.
    pub about: &'static str,
    /// How it is.
    pub state: State,
    /// What was found.
    pub what: String,
    /// What to change, if anything.
    pub change: Option<String>,
}

/// How something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum State {
    /// As it should be.
    Fine,
    /// It could not be found out.
    Unknown,
    /// It works, and something can be lost or slow.
    Doubtful,
    /// It will not work, or messages are at risk.
    Bad,
}

/// What an examination may use.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Checkup {
    /// The monitoring address of a NATS server (`http://host:8222`). It tells what the server says to
    /// nobody else: whether it syncs before it acknowledges.
    pub monitor: Option<String>,
}

impl Checkup {
    /// Asks a monitoring address, too.
    #[must_use]
    pub fn monitor(mut self, address: impl Into<String>) -> Self {
        self.monitor = Some(address.into());
        self
    }
}

/// Examines what is at an address. Nothing is left behind there.
///
/// # Errors
/// When the address is none that can be examined, or nobody answers.
#[cfg_attr(
    not(any(feature = "kafka", feature = "nats")),
    expect(clippy::unused_async, reason = "whom it would wait for is left out")
)]
pub async fn examine(address: &str, checkup: &Checkup) -> Result<Vec<Finding>, Error> {
    #[cfg(feature = "kafka")]
    if address.starts_with("kafka://") {
        return kafka::examine(address).await;
    }
    #[cfg(feature = "nats")]
    if address.starts_with("nats://") {
        return nats::examine(address, checkup).await;
    }
    let _ = checkup;
    let url = address.to_owned();
    Err(match address.split_once(':') {
        Some(("memory" | "file", _)) => Error::NoServer { url },
        #[cfg(not(feature = "kafka"))]
        Some(("kafka", _)) => Error::FeatureOff { feature: "kafka" },
        #[cfg(not(feature = "nats"))]
        Some(("nats", _)) => Error::FeatureOff { feature: "nats" },
        _ => Error::Address { url },
    })
}

#[cfg(any(feature = "kafka", feature = "nats"))]
impl Finding {
    fn new(about: &'static str, state: State, what: impl Into<String>) -> Self {
        Self {
            about,
            state,
            what: what.into(),
            change: None,
        }
    }

    fn fine(about: &'static str, what: impl Into<String>) -> Self {
        Self::new(about, State::Fine, what)
    }

    /// Of the time that a server takes to answer.
    fn of_round_trip(took: Duration) -> Self {
        let what = format!("{:.1} ms", took.as_secs_f64() * 1e3);
        if took > Duration::from_millis(50) {
            return Self::new("round trip", State::Doubtful, what)
                .change("run the service near the server: every publish waits for one round trip");
        }
        Self::fine("round trip", what)
    }

    fn change(mut self, change: impl Into<String>) -> Self {
        self.change = Some(change.into());
        self
    }
}
