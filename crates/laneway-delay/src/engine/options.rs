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
    /// How many callbacks begin or are answered at once in all. One that waits for its receiver for more
    /// than 100 ms counts as [waiting](Self::waiting_callbacks) instead.
    pub callbacks: usize,
    /// How many callbacks wait for their receivers at once in all, beside those. Each costs a connection. As
    /// this gets scarce the share of each host shrinks.
    pub waiting_callbacks: usize,
    /// How many bytes of payloads callbacks hold in memory at once in all, about: half of it is for payloads up to
    /// 4 KiB, so that large ones to receivers that hang do not stop those, and half for larger ones. A payload
    /// that is larger than that goes alone.
    pub callback_bytes: usize,
    /// The same for messages on their way to the bus. What the bus makes of them while it publishes them comes
    /// on top.
    pub bus_bytes: usize,
    /// The waits between attempts, where neither the message nor its topic has others.
    pub retry: Schedule,
    /// The waits between attempts, by topic.
    pub topic_retry: BTreeMap<String, Schedule>,
    /// How much longer than its schedule says a callback waits for its next attempt, at most, as a part of
    /// that wait: those that fail together do not come back together. 0.1 is a tenth.
    pub retry_jitter: f64,
    /// The longest delay that is accepted; any without it.
    pub max_delay: Option<Duration>,
    /// For how long messages are kept that were delivered or withdrawn. Dead ones are kept until they
    /// are replayed or purged.
    pub keep_ended: Duration,
    /// For how long idempotency keys are kept.
    pub keep_keys: Duration,
    /// For how long a wall clock that was set ahead is not believed, at most. Less makes messages early when the
    /// clock is set ahead by more than that; more makes them late when a clock is put right that was behind.
    pub clock_distrust: Duration,
    /// What is done at a time. Tests make it small, so that every bound acts all the time.
    #[doc(hidden)]
    pub steps: Steps,
}

/// What the engine does at a time.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    /// How many messages may be claimed and not yet settled: of those that go to hosts, and of those that go to
    /// the bus. Neither waits for the other. Half as many are on their way to the bus at once, so that a batch
    /// that is small because of that does not wait here.
    pub unsettled: usize,
    /// How many messages for hosts are claimed together.
    pub claim: usize,
    /// How many messages that are due are taken at once, so that others get the lock in between.
    pub take: usize,
    /// How many messages are read at a time, so that the first ones do not wait for the last ones.
    pub read: usize,
    /// How many bytes of payloads one batch for the bus has, but for one message.
    pub batch_bytes: usize,
}

impl Default for Steps {
    fn default() -> Self {
        Self {
            unsettled: 65_536,
            claim: 64,
            take: 8_192,
            read: 4_096,
            batch_bytes: 4 << 20,
        }
    }
}

impl Steps {
    /// As little at a time as can be.
    pub const TINY: Self = Self {
        unsettled: 32,
        claim: 2,
        take: 3,
        read: 2,
        batch_bytes: 64,
    };
}

impl Default for Options {
    fn default() -> Self {
        Self {
            horizon: Duration::from_mins(1),
            near: 250_000,
            batch: 4096,
            per_host: 64,
            callbacks: 1024,
            waiting_callbacks: 8192,
            callback_bytes: 64 << 20,
            bus_bytes: 32 << 20,
            retry: Schedule::default(),
            topic_retry: BTreeMap::new(),
            retry_jitter: 0.1,
            max_delay: None,
            keep_ended: Duration::from_hours(1),
            keep_keys: Duration::from_hours(24),
            clock_distrust: crate::clock::DISTRUST,
            steps: Steps::default(),
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
            ("callback_bytes", self.callback_bytes),
            ("bus_bytes", self.bus_bytes),
            ("steps.claim", self.steps.claim),
            ("steps.take", self.steps.take),
            ("steps.read", self.steps.read),
        ] {
            if count == 0 {
                return Err(Error::invalid(field, "it is 0; use 1 or more"));
            }
        }
        if self.steps.unsettled < 16.max(self.steps.claim) {
            let problem = "it is below 16 or below steps.claim; use more";
            return Err(Error::invalid("steps.unsettled", problem));
        }
        if !(0.0..=1.0).contains(&self.retry_jitter) {
            return Err(Error::invalid(
                "retry_jitter",
                "it is a part of the wait; use 0 to 1",
            ));
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
