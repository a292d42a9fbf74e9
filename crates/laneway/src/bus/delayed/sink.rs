//! From the delay core to the bus, when events are due.

use bytes::Bytes;
use laneway_delay::{
    BoxFuture, BusTarget, Firing, Message, MessageId, Publish, Submission, Target, Undelivered,
};

use super::ENVELOPE;
use super::each::Fate;
use crate::bus::Bus;
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
            let fates = self.bus.publish_each(topic, &envelopes).await;
            for (index, fate) in indices.into_iter().zip(fates) {
                results[index] = Some(result_of(fate));
            }
        }
        let unanswered = || Err(Undelivered::unknown("the bus gave no answer"));
        let results = results.into_iter();
        results
            .map(|result| result.unwrap_or_else(unanswered))
            .collect()
    }
}

impl Publish for BusSink {
    fn objection(&self, submission: &Submission) -> Option<String> {
        let Target::Bus(target) = &submission.target else {
            return None;
        };
        let event = Event {
            // Any id is as long as one that is made later.
            id: submission.id.clone().unwrap_or_else(MessageId::unique),
            target,
            content_type: submission.content_type.as_deref(),
            payload: &submission.payload,
        };
        match event.envelope() {
            Ok(envelope) => self.bus.objection(&envelope),
            Err(error) => Some(error.to_string()),
        }
    }

    fn publish(&self, batch: Vec<Firing>) -> BoxFuture<'_, Vec<Result<(), Undelivered>>> {
        Box::pin(self.publish(batch))
    }
}

/// What makes an event of a message.
struct Event<'a> {
    id: MessageId,
    target: &'a BusTarget,
    content_type: Option<&'a str>,
    payload: &'a Bytes,
}

impl Event<'_> {
    fn envelope(&self) -> Result<Envelope, envelope::Error> {
        if self.content_type == Some(ENVELOPE) {
            return Envelope::decode(self.payload.clone());
        }
        let builder = Envelope::builder(&self.target.aggregate_id, &self.target.event_type);
        let builder = builder.event_id(self.id.as_str());
        match self.content_type {
            None if self.payload.is_empty() => builder.json(&()),
            None => builder.bytes("application/octet-stream", self.payload.clone()),
            Some(content_type) => builder.bytes(content_type, self.payload.clone()),
        }
    }
}

/// The topic and the event of a message.
fn event(message: &Message) -> Result<(&str, Envelope), String> {
    let Target::Bus(target) = &message.target else {
        return Err("its target is not the bus".to_owned());
    };
    let event = Event {
        id: message.id.clone(),
        target,
        content_type: message.content_type.as_deref(),
        payload: &message.payload,
    };
    match event.envelope() {
        Ok(envelope) => Ok((&target.topic, envelope)),
        Err(error) => Err(error.to_string()),
    }
}

fn result_of(fate: Fate) -> Result<(), Undelivered> {
    match fate {
        Fate::Published => Ok(()),
        Fate::Never(reason) => Err(Undelivered::permanent(reason)),
        Fate::NotSent(reason) => Err(Undelivered::retry(reason)),
        Fate::Unknown(reason) => Err(Undelivered::unknown(reason)),
    }
}
