//! On a broker that others share: the way of a delayed event to a server that keeps it.
//!
//! The event travels as a domain event of its own, on a topic for all of them, with the id of the
//! message as its aggregate: durable and in order. What no server has read is read by the next one; what a server has taken is on its disk.

use laneway_delay::{Delays, MessageId, Submission, Timestamp, When};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::submission;
use crate::bus::{Bus, Error, Subscription};
use crate::envelope::Envelope;
use crate::lanes::Failure;
use crate::retry::RetryPolicy;

/// Where events wait for a server that keeps them until they are due.
pub const DELAY_TOPIC: &str = "laneway.delayed";

/// The group of the servers.
const GROUP: &str = "delays";

const SUBMITTED: &str = "DelaySubmitted";

/// What is sent.
#[derive(Serialize, Deserialize)]
struct Command<'a> {
    /// Where the event goes.
    #[serde(borrow)]
    topic: std::borrow::Cow<'a, str>,
    /// When it is due, in milliseconds since the Unix epoch.
    due_ms: u64,
    /// The event.
    #[serde(borrow)]
    envelope: &'a RawValue,
}

/// Hands an event to the server that keeps it. The delay is counted from now, by our own clock.
pub(super) async fn send(
    bus: &Bus,
    submission: Submission,
    envelope: &Envelope,
) -> Result<(MessageId, Timestamp), Error> {
    submission.check()?;
    let id = submission.id.unwrap_or_else(MessageId::unique);
    let now = Timestamp::not_before(std::time::SystemTime::now());
    let due = match submission.when {
        When::After(delay) => now + delay,
        When::At(due) => due,
    };
    let envelope = envelope.encode();
    let envelope = serde_json::from_slice(&envelope).map_err(|error| unwritable(&error))?;
    let command = Command {
        topic: submission.topic.into(),
        due_ms: due.as_millis(),
        envelope,
    };
    let command = Envelope::builder(id.as_str(), SUBMITTED)
        .event_id(id.as_str())
        .json(&command)?;
    bus.publish_envelope(DELAY_TOPIC, &command).await?;
    Ok((id, due))
}

/// An envelope is JSON, so this does not happen.
fn unwritable(error: &serde_json::Error) -> Error {
    Error::Delay(laneway_delay::Error::Failed(error.to_string()))
}

impl Bus {
    /// Takes delayed events that were published on this bus into a delay core, until the subscription is
    /// closed. The core publishes them back by a [`BusSink`](super::BusSink) on the same bus.
    ///
    /// This is what a server does for a bus that others share. An event is settled here once it is
    /// durable in the core, so none is lost on the way; one that comes twice is taken once.
    ///
    /// # Errors
    /// When this process does so already, or the broker fails.
    pub async fn keep_delayed(&self, delays: Delays) -> Result<Subscription, Error> {
        // A core that cannot take events now (its disk is full) is asked again, for about a day.
        let wait = std::time::Duration::from_millis(100);
        let longest = std::time::Duration::from_secs(30);
        let retry = RetryPolicy::exponential(3000, wait, longest).unwrap_or_default();
        self.subscription(DELAY_TOPIC)
            .group(GROUP)
            .retry(retry)
            .envelope(move |event| {
                let delays = delays.clone();
                async move { take(&delays, event.envelope()).await }
            })
            .await
    }
}

async fn take(delays: &Delays, event: &Envelope) -> Result<(), Failure> {
    let submission = read(event)?;
    match delays.submit_one(submission).await {
        Ok(_) => Ok(()),
        // The limit is the server's, and its publisher could not know it: the letter can be replayed.
        Err(error @ laneway_delay::Error::Invalid { field: "due", .. }) => {
            Err(Failure::fatal(format!(
                "{error}; the event is due later than the server that keeps delayed events allows: raise \
                 its max_delay and replay this dead letter of {DELAY_TOPIC}"
            )))
        }
        Err(error @ (laneway_delay::Error::Invalid { .. } | laneway_delay::Error::IdTaken(_))) => {
            Err(Failure::fatal(error))
        }
        Err(error) => Err(error.into()),
    }
}

/// What was sent. Trying again does not make it readable.
fn read(event: &Envelope) -> Result<Submission, Failure> {
    let command: Command<'_> = event.json().map_err(Failure::fatal)?;
    let body = bytes::Bytes::copy_from_slice(command.envelope.get().as_bytes());
    let envelope = Envelope::decode(body).map_err(Failure::fatal)?;
    let when = When::At(Timestamp::from_millis(command.due_ms));
    let id = MessageId::new(event.aggregate_id().as_str()).map_err(Failure::fatal)?;
    // The key outlives the message: an event that comes again after it was withdrawn and forgotten is known still.
    let key = format!("{DELAY_TOPIC}/{id}");
    Ok(submission(&command.topic, &envelope, when)
        .id(id)
        .idempotency_key(key))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use laneway_delay::{Options, Sinks};

    use super::*;
    use crate::bus::BusSink;
    use crate::testing;

    fn delays(bus: &Bus) -> Delays {
        delays_with(bus, Options::default())
    }

    fn delays_with(bus: &Bus, options: Options) -> Delays {
        let sinks = Sinks {
            bus: Some(Arc::new(BusSink::new(bus.clone()))),
            callbacks: None,
        };
        Delays::in_memory(sinks, options).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_goes_by_way_of_a_server_and_comes_back_when_it_is_due() {
        let bus = testing::bus().await;
        let (sent, mut received) = tokio::sync::mpsc::unbounded_channel();
        bus.subscribe_envelope("orders", move |event| {
            sent.send(event.envelope().clone()).ok();
            std::future::ready(Ok(()))
        })
        .await
        .unwrap();
        let original = Envelope::builder("a", "Due").json(&"body").unwrap();
        let when = When::After(Duration::from_mins(1));
        let asked = submission("orders", &original, when);
        let (id, due) = send(&bus, asked, &original).await.unwrap();
        let delays = delays(&bus);
        bus.keep_delayed(delays.clone()).await.unwrap();
        testing::settled(&bus).await.unwrap();
        assert_eq!(delays.get(&id).await.unwrap().record.due(), due);
        assert!(received.try_recv().is_err());
        assert_eq!(received.recv().await, Some(original));
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_beyond_the_limit_of_the_server_is_a_dead_letter_that_says_what_to_do() {
        let bus = testing::bus().await;
        let original = Envelope::builder("a", "Due").json(&"body").unwrap();
        let when = When::After(Duration::from_hours(1));
        let asked = submission("orders", &original, when);
        let (id, due) = send(&bus, asked, &original).await.unwrap();
        let strict = Options {
            max_delay: Some(Duration::from_mins(1)),
            ..Options::default()
        };
        let strict = bus.keep_delayed(delays_with(&bus, strict)).await.unwrap();
        testing::settled(&bus).await.unwrap();
        let dead = bus.dead_letters(DELAY_TOPIC).await.unwrap();
        let letters = dead.list(10).await.unwrap();
        let reason = &letters[0].reason;
        assert!(
            reason.contains("60 s are the most here") && reason.contains("raise its max_delay"),
            "{reason}"
        );
        strict.close(Duration::from_secs(5)).await;
        // The limit is raised, and the letter replayed: nothing was lost.
        let generous = delays(&bus);
        bus.keep_delayed(generous.clone()).await.unwrap();
        dead.replay_all().await.unwrap();
        testing::settled(&bus).await.unwrap();
        assert_eq!(generous.get(&id).await.unwrap().record.due(), due);
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_that_comes_again_after_it_was_taken_back_and_forgotten_is_known_still() {
        let bus = testing::bus().await;
        let forgetful = Options {
            keep_ended: Duration::from_secs(1),
            ..Options::default()
        };
        let delays = delays_with(&bus, forgetful);
        bus.keep_delayed(delays.clone()).await.unwrap();
        let original = Envelope::builder("a", "Due").json(&"body").unwrap();
        let when = When::At(delays.now() + Duration::from_hours(1));
        let asked = submission("orders", &original, when).id(MessageId::unique());
        let (id, _) = send(&bus, asked.clone(), &original).await.unwrap();
        testing::settled(&bus).await.unwrap();
        delays.withdraw(&id).await.unwrap();
        let began = tokio::time::Instant::now();
        while delays.get(&id).await.is_ok() {
            assert!(
                began.elapsed() < Duration::from_mins(1),
                "it is not forgotten"
            );
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        // The broker brings it once more, as it may.
        send(&bus, asked, &original).await.unwrap();
        testing::settled(&bus).await.unwrap();
        assert!(delays.get(&id).await.is_err(), "it is planned anew");
        assert!(delays.counts().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_read_becomes_a_dead_letter() {
        let bus = testing::bus().await;
        bus.keep_delayed(delays(&bus)).await.unwrap();
        let odd = Envelope::builder("a", SUBMITTED).json(&7).unwrap();
        bus.publish_envelope(DELAY_TOPIC, &odd).await.unwrap();
        testing::settled(&bus).await.unwrap();
        let dead = bus.dead_letters(DELAY_TOPIC).await.unwrap();
        assert_eq!(dead.list(10).await.unwrap()[0].attempts, 1);
    }
}
