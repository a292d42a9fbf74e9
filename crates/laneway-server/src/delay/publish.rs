//! Messages that go to a topic of the bus.

use std::sync::Arc;

use laneway::{Bus, Envelope, Error};
use laneway_delay::{BoxFuture, BusTarget, Firing, Publish, Target, Undelivered};

use super::Figures;
use super::envelope;

/// Publishes what is due, by the same way that any other event goes.
pub(super) struct OnBus {
    pub(super) bus: Bus,
    pub(super) figures: Figures,
}

impl Publish for OnBus {
    fn publish(&self, batch: Vec<Firing>) -> BoxFuture<'_, Vec<Result<(), Undelivered>>> {
        for firing in &batch {
            self.figures.started(firing);
        }
        Box::pin(async move {
            let results = self.publish_batch(&batch).await;
            for result in &results {
                self.figures.published(result);
            }
            results
        })
    }
}

impl OnBus {
    async fn publish_batch(&self, batch: &[Firing]) -> Vec<Result<(), Undelivered>> {
        let made: Vec<Result<Envelope, Undelivered>> = batch.iter().map(event).collect();
        let events: Vec<Envelope> = made.iter().flatten().cloned().collect();
        // All of a batch go to the same topic.
        let topic = batch
            .iter()
            .find_map(|firing| target(firing).map(|target| &target.topic));
        let published = match topic {
            Some(topic) if !events.is_empty() => {
                let receipts = self.bus.publish_envelope_batch(topic, &events).await;
                receipts.map(drop).map_err(|error| undelivered(&error))
            }
            _ => Ok(()),
        };
        made.into_iter()
            .map(|event| event.and_then(|_| published.clone()))
            .collect()
    }
}

fn target(firing: &Firing) -> Option<&BusTarget> {
    match &firing.message.target {
        Target::Bus(target) => Some(target),
        _ => None,
    }
}

fn event(firing: &Firing) -> Result<Envelope, Undelivered> {
    let message = Arc::as_ref(&firing.message);
    let target =
        target(firing).ok_or_else(|| Undelivered::permanent("its target is not the bus"))?;
    let kind = message.content_type.as_deref();
    envelope::made_of(message.id.as_str(), target, kind, &message.payload)
        .map_err(|error| Undelivered::permanent(error.to_string()))
}

/// What is wrong with the topic stays wrong; a broker that cannot be reached can be again.
fn undelivered(error: &Error) -> Undelivered {
    let reason = error.to_string();
    match error {
        Error::Topic(_)
        | Error::Envelope(_)
        | Error::Header(_)
        | Error::WrongKind { .. }
        | Error::Reserved(_) => Undelivered::permanent(reason),
        _ => Undelivered::retry(reason),
    }
}
