//! Events that are published later.
//!
//! | file | what it is |
//! |---|---|
//! | `mod` | publishing later, moving it, taking it back |
//! | `backend` | where delayed events of a bus are kept |
//! | `each` | publishing together, with an answer for each |
//! | `sink` | from the delay core to the bus, when they are due |
//! | `remote` | on a broker that others share: the way to a server that keeps them |

mod backend;
mod each;
mod remote;
mod sink;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use laneway_delay::{BusTarget, Extend, MessageId, StateName, Submission, Target, Timestamp, When};

pub(super) use self::backend::Backend;
pub use self::remote::DELAY_TOPIC;
pub use self::sink::BusSink;
use super::Bus;
use super::error::Error;
use crate::envelope::Envelope;
use crate::topic::{Kind, TopicName};

/// What the delay core knows an envelope by: its payload is the whole of it, and is published as it is.
pub(super) const ENVELOPE: &str = "application/vnd.laneway.envelope+json";

/// An event that is published later. It stays so when this is dropped: [`Bus::delayed`] finds it again by
/// its id.
#[derive(Clone, Debug)]
pub struct Delayed {
    bus: Bus,
    id: MessageId,
    due: Option<SystemTime>,
}

impl Bus {
    /// Publishes a domain event after a while. It is durable when this resolves (on `memory:` as durable
    /// as anything there), and is published at least once, never early.
    ///
    /// On `memory:` and `file:` this process keeps it, and publishes it if it runs then, or when the bus is
    /// opened the next time. On a broker that others share a `laneway serve --bus URL` has to run: it takes
    /// the event from the topic `laneway.delayed` and publishes it back.
    ///
    /// ```
    /// use laneway::{Envelope, testing};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let bus = testing::bus().await;
    /// let reminder = Envelope::builder("order-1", "PaymentMissing").json(&1)?;
    /// let delayed = bus.publish_after("orders", &reminder, Duration::from_secs(3600)).await?;
    /// // The payment came.
    /// delayed.withdraw().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the topic cannot be one or is a plain topic, or the store or broker fails.
    pub async fn publish_after(
        &self,
        topic: &str,
        envelope: &Envelope,
        delay: Duration,
    ) -> Result<Delayed, Error> {
        self.publish_later(topic, envelope, When::After(delay))
            .await
    }

    /// Publishes a domain event at a moment; at once if that is past. As
    /// [`publish_after`](Self::publish_after) otherwise.
    ///
    /// # Errors
    /// As [`publish_after`](Self::publish_after).
    pub async fn publish_at(
        &self,
        topic: &str,
        envelope: &Envelope,
        moment: SystemTime,
    ) -> Result<Delayed, Error> {
        let when = When::At(Timestamp::not_before(moment));
        self.publish_later(topic, envelope, when).await
    }

    /// The delayed event of this id, as [`Delayed::id`] told it.
    ///
    /// # Errors
    /// When it cannot be an id.
    pub fn delayed(&self, id: &str) -> Result<Delayed, Error> {
        Ok(Delayed {
            bus: self.clone(),
            id: MessageId::new(id)?,
            due: None,
        })
    }

    async fn publish_later(
        &self,
        topic: &str,
        envelope: &Envelope,
        when: When,
    ) -> Result<Delayed, Error> {
        self.shared.check_publishing()?;
        let name = TopicName::new(topic)?;
        if name.reserved().is_some() {
            return Err(Error::Reserved(name));
        }
        // What is known to fail when it is due is refused now.
        if let Some(known) = self.shared.known_topic(topic)
            && known.topic.kind() != Kind::Domain
        {
            return Err(Error::WrongKind {
                topic: name,
                is: known.topic.kind(),
                used_as: Kind::Domain,
            });
        }
        let submission = submission(topic, envelope, when).id(MessageId::unique());
        let delays = self.shared.delays.started(self).await?;
        let (id, due) = match delays {
            Some(delays) => {
                let accepted = delays.submit_one(submission).await?;
                (accepted.id, accepted.due)
            }
            None => remote::send(self, submission, envelope).await?,
        };
        let due = UNIX_EPOCH + Duration::from_millis(due.as_millis());
        Ok(Delayed {
            bus: self.clone(),
            id,
            due: Some(due),
        })
    }
}

/// The message that an event is while it waits.
fn submission(topic: &str, envelope: &Envelope, when: When) -> Submission {
    let target = Target::Bus(BusTarget {
        topic: topic.to_owned(),
        aggregate_id: envelope.aggregate_id().as_str().to_owned(),
        event_type: envelope.event_type().to_owned(),
    });
    Submission::new(topic, when, target)
        .payload(envelope.encode())
        .content_type(ENVELOPE)
}

impl Delayed {
    /// The id under which it waits. On a broker that others share, the server knows it by this id.
    #[must_use]
    pub fn id(&self) -> &str {
        self.id.as_str()
    }

    /// When it is due, as far as this handle knows.
    #[must_use]
    pub fn due(&self) -> Option<SystemTime> {
        self.due
    }

    /// Takes it back. The answer is final: after a yes it is not published.
    ///
    /// # Errors
    /// [`Error::Delay`] when it is too late, [`Error::DelayedElsewhere`] on a broker that others share.
    pub async fn withdraw(&self) -> Result<(), Error> {
        let delays = self.delays().await?;
        delays.withdraw(&self.id).await?;
        Ok(())
    }

    /// Makes it due this much later than it is. The answer is final: after a yes it is not published
    /// before.
    ///
    /// # Errors
    /// As [`withdraw`](Self::withdraw).
    pub async fn extend(&mut self, by: Duration) -> Result<SystemTime, Error> {
        let delays = self.delays().await?;
        let message = delays.extend(&self.id, Extend::By(by)).await?;
        let due = UNIX_EPOCH + Duration::from_millis(message.record.due().as_millis());
        self.due = Some(due);
        Ok(due)
    }

    /// Whether it still waits: neither published nor taken back.
    ///
    /// # Errors
    /// As [`withdraw`](Self::withdraw).
    pub async fn is_pending(&self) -> Result<bool, Error> {
        let delays = self.delays().await?;
        let message = delays.get(&self.id).await?;
        let state = StateName::from(message.record.state());
        Ok(matches!(state, StateName::Scheduled | StateName::Firing))
    }

    async fn delays(&self) -> Result<laneway_delay::Delays, Error> {
        let bus = &self.bus;
        bus.shared.check_publishing()?;
        let delays = bus.shared.delays.started(bus).await?;
        delays.ok_or_else(|| Error::DelayedElsewhere {
            id: self.id.to_string(),
        })
    }
}
