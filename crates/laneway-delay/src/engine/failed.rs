//! What follows from a failure, and who is told.

use std::borrow::Cow;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Core;
use crate::host::host_and_port;
use crate::ration::Ration;
use crate::store::{Claim, Outcome};
use crate::{Failure, Message, Schedule, State, Target, Timestamp, Undelivered};

/// How often failures are told of.
#[derive(Debug)]
pub(super) struct Told {
    failures: Ration,
    deaths: Ration,
    /// Claims and settlements that the store refuses.
    pub(super) refusals: Ration,
}

impl Default for Told {
    fn default() -> Self {
        Self {
            failures: Ration::new(10),
            deaths: Ration::new(50),
            refusals: Ration::new(2),
        }
    }
}

impl Core {
    /// What an attempt that failed comes to.
    pub(super) fn failed(
        &self,
        claim: &Claim,
        undelivered: Undelivered,
        now: Timestamp,
    ) -> Outcome {
        let message = &*claim.message;
        let schedule = self.options.schedule(message);
        let undelivered = Undelivered {
            failure: spread(
                undelivered.failure,
                message,
                &schedule,
                self.options.retry_jitter,
            ),
            ..undelivered
        };
        let record = message.record;
        let next = record.fail(record.version(), now, undelivered.failure, &schedule);
        let next = next.map(|next| next.state());
        self.tell(message, &undelivered.reason, next.ok());
        Outcome::Failed(undelivered, schedule)
    }

    fn tell(&self, message: &Message, reason: &str, next: Option<State>) {
        let (id, topic) = (&message.id, &message.topic);
        let (attempt, destination) = (message.record.attempts(), destination(&message.target));
        match next {
            Some(State::Dead { .. }) => {
                self.deaths.fetch_add(1, Ordering::Relaxed);
                if let Some(left_out) = self.told.deaths.take() {
                    tracing::warn!(
                        %id, topic, %destination, attempt, reason, left_out,
                        "a message failed for good: it is a dead letter now"
                    );
                }
            }
            Some(State::Scheduled { at }) => {
                if let Some(left_out) = self.told.failures.take() {
                    let again_ms = at.as_millis();
                    tracing::warn!(
                        %id, topic, %destination, attempt, reason, again_ms, left_out,
                        "an attempt failed, retrying"
                    );
                }
            }
            _ => {}
        }
    }
}

/// The host or the topic of the bus that a message goes to.
fn destination(target: &Target) -> Cow<'_, str> {
    match target {
        Target::Callback(callback) => host_and_port(&callback.url),
        Target::Bus(bus) => Cow::Borrowed(&bus.topic),
    }
}

/// A retry that is later than the schedule says, by up to a part of the wait, so that those that failed
/// together do not come back together.
fn spread(failure: Failure, message: &Message, schedule: &Schedule, jitter: f64) -> Failure {
    let asked_for = match failure {
        Failure::Retry | Failure::Unknown => Duration::ZERO,
        Failure::RetryAfter(wait) | Failure::UnknownAfter(wait) => wait,
        other => return other,
    };
    let failures = message.record.failures().saturating_add(1);
    let Some(wait) = schedule.wait_after(failures) else {
        return failure;
    };
    let wait = wait.max(asked_for);
    // A wait may be as long as a duration can be, where it came from an earlier version.
    let late = Duration::try_from_secs_f64(wait.as_secs_f64() * jitter * fraction(message));
    let wait = wait.saturating_add(late.unwrap_or(Duration::MAX));
    if failure.is_unknown() {
        Failure::UnknownAfter(wait)
    } else {
        Failure::RetryAfter(wait)
    }
}

/// Somewhere from 0 to 1, another one for each message and attempt.
fn fraction(message: &Message) -> f64 {
    let seed = u64::from(message.record.attempts());
    let hash = xxhash_rust::xxh3::xxh3_64_with_seed(message.id.as_str().as_bytes(), seed);
    #[expect(clippy::cast_precision_loss, reason = "16 bits are enough")]
    let fraction = (hash >> 48) as f64;
    fraction / f64::from(1_u32 << 16)
}
