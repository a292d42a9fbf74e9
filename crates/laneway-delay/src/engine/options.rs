use std::collections::BTreeMap;
use std::time::Duration;

use crate::{Error, Schedule};

/// How the engine works. The defaults are fine for one machine.
///
/// ```
/// use std::time::Duration;
/// use laneway_delay::Options;
///
/// let options = Options {
///     max_delay: Some(Duration::from_secs(30 * 24 * 3600)),
///     ..Options::default()
/// };
/// options.check()?;
/// # Ok::<(), laneway_delay::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    /// How far ahead messages are read into memory.
    pub horizon: Duration,
    /// How many messages wait in memory, about; the others wait in the store.
    pub near: usize,
    /// How many messages are published to a topic of the bus at once.
    pub batch: usize,
    /// How many callbacks run at once at one host.
    pub per_host: usize,
    /// How many callbacks run at once in all.
    pub callbacks: usize,
    /// The waits between attempts, where neither the message nor its topic has others.
    pub retry: Schedule,
    /// The waits between attempts, by topic.
    pub topic_retry: BTreeMap<String, Schedule>,
    /// The longest delay that is accepted; any without it.
    pub max_delay: Option<Duration>,
    /// For how long messages are kept that were delivered or withdrawn. Dead ones are kept until they
    /// are replayed or purged.
    pub keep_ended: Duration,
    /// For how long idempotency keys are kept.
    pub keep_keys: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            horizon: Duration::from_mins(1),
            near: 250_000,
            batch: 4096,
            per_host: 64,
            callbacks: 1024,
            retry: Schedule::default(),
            topic_retry: BTreeMap::new(),
            max_delay: None,
            keep_ended: Duration::from_hours(1),
            keep_keys: Duration::from_hours(24),
        }
    }
}

impl Options {
    /// Whether they can be used.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the field and what to do.
    pub fn check(&self) -> Result<(), Error> {
        for (field, count) in [
            ("near", self.near),
            ("batch", self.batch),
            ("per_host", self.per_host),
            ("callbacks", self.callbacks),
        ] {
            if count == 0 {
                return Err(Error::invalid(field, "it is 0; use 1 or more"));
            }
        }
        if self.horizon < Duration::from_secs(1) {
            return Err(Error::invalid("horizon", "it is below 1 s; make it longer"));
        }
        Ok(())
    }

    /// The waits of a message.
    pub(crate) fn schedule(&self, message: &crate::Message) -> Schedule {
        let of_topic = || self.topic_retry.get(&message.topic);
        let schedule = message.retry.as_ref().or_else(of_topic);
        schedule.unwrap_or(&self.retry).clone()
    }
}
