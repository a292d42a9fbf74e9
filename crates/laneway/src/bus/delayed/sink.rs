//! From the delay core to the bus, when events are due.

use laneway_delay::{BoxFuture, Firing, Message, Publish, Target, Undelivered};

use super::ENVELOPE;
use crate::bus::{Bus, Error};
use crate::envelope::{self, Envelope};

/// Publishes delayed messages on a bus: what a delay core with targets on a bus needs.
///
/// A message that came from [`Bus::publish_after`] is published as the event that it was. Any other one
/// becomes an event of the aggregate and type that its target names, with the id of the message as its
/// event id, so that a consumer can tell when it comes twice.
#[derive(Clone, Debug)]
pub struct BusSink {
    bus: Bus,
}

impl BusSink {
    /// Publishes on this bus.
    #[must_use]
    pub fn new(bus: Bus) -> Self {
        Self { bus }
    }

    async fn publish(&self, batch: Vec<Firing>) -> Vec<Result<(), Undelivered>> {
        let mut results: Vec<Option<Result<(), Undelivered>>> = vec![None; batch.len()];
        // By topic, in order. Most batches have one.
        let mut topics: Vec<(&str, Vec<usize>, Vec<Envelope>)> = Vec::new();
        for (index, firing) in batch.iter().enumerate() {
            match event(&firing.message) {
                Ok((topic, envelope)) => {
                    let known = topics.iter_mut().find(|(name, ..)| *name == topic);
                    if let Some((_, indices, envelopes)) = known {
                        indices.push(index);
                        envelopes.push(envelope);
                    } else {
                        topics.push((topic, vec![index], vec![envelope]));
                    }
                }
                Err(reason) => results[index] = Some(Err(Undelivered::permanent(reason))),
            }
        }
        for (topic, indices, envelopes) in topics {
            let published = self.bus.publish_envelope_batch(topic, &envelopes).await;
            let result = published.map(drop).map_err(undelivered);
            for index in indices {
                results[index] = Some(result.clone());
            }
        }
        let unanswered = || Err(Undelivered::retry("it was not published"));
        let results = results.into_iter();
        results
            .map(|result| result.unwrap_or_else(unanswered))
            .collect()
    }
}

impl Publish for BusSink {
    fn publish(&self, batch: Vec<Firing>) -> BoxFuture<'_, Vec<Result<(), Undelivered>>> {
        Box::pin(self.publish(batch))
    }
}

/// The topic and the event of a message.
fn event(message: &Message) -> Result<(&str, Envelope), String> {
    let Target::Bus(target) = &message.target else {
        return Err("its target is not the bus".to_owned());
    };
    let envelope = match message.content_type.as_deref() {
        Some(ENVELOPE) => Envelope::decode(message.payload.clone()),
        content_type => made_of(message, target, content_type),
    };
    match envelope {
        Ok(envelope) => Ok((&target.topic, envelope)),
        Err(error) => Err(error.to_string()),
    }
}

fn made_of(
    message: &Message,
    target: &laneway_delay::BusTarget,
    content_type: Option<&str>,
) -> Result<Envelope, envelope::Error> {
    let builder = Envelope::builder(&target.aggregate_id, &target.event_type);
    let builder = builder.event_id(message.id.as_str());
    match content_type {
        None if message.payload.is_empty() => builder.json(&()),
        None => builder.bytes("application/octet-stream", message.payload.clone()),
        Some(content_type) => builder.bytes(content_type, message.payload.clone()),
    }
}

/// What an error of the bus means for a message: waiting does not turn a plain topic into a domain topic.
fn undelivered(error: Error) -> Undelivered {
    match error {
        Error::Topic(_)
        | Error::Envelope(_)
        | Error::Header(_)
        | Error::WrongKind { .. }
        | Error::Reserved(_) => Undelivered::permanent(error.to_string()),
        error => Undelivered::retry(error.to_string()),
    }
}
