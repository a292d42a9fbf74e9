//! Publishing events together so that the fate of each is known.
//!
//! The error of a batch says little of its events: some may have been published, and one of them may be the
//! cause that the others would never be. So a batch that fails is published again in smaller parts, and in the end one
//! by one, in order, until one event fails for a reason that is not its own.

use std::ops::Range;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::broker::BrokerError;
use crate::bus::shared::KnownTopic;
use crate::bus::{Bus, Error};
use crate::envelope::Envelope;
use crate::record::Record;
use crate::topic::{Kind, partition_of};

/// Between a whole batch and single events. An event may be published once for each of the three; who reads
/// it tells by its event id.
const PART: usize = 64;

/// What became of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Published,
    /// It can never be published.
    Never(String),
    /// It was certainly not published.
    NotSent(String),
    /// It may have been published, and may still be.
    Unknown(String),
}

impl Fate {
    /// Of an event that was not tried again, after it was perhaps sent before.
    fn untried(in_doubt: bool, reason: &str) -> Self {
        if in_doubt {
            Self::Unknown(reason.to_owned())
        } else {
            Self::NotSent(reason.to_owned())
        }
    }
}

/// What an error tells of the events of a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// One of them can never be published; others may have been.
    Never,
    /// None was sent, and none will be for now.
    NotSent,
    /// The broker gives no answer at all.
    Silent,
    /// Some may have been sent.
    Unknown,
}

impl Verdict {
    fn of(error: &Error) -> Self {
        match error {
            // Waiting does not turn a plain topic into a domain topic.
            Error::Topic(_)
            | Error::Envelope(_)
            | Error::Header(_)
            | Error::WrongKind { .. }
            | Error::Reserved(_)
            | Error::Broker(BrokerError::TooLarge { .. } | BrokerError::Key { .. }) => Self::Never,
            Error::RateLimited { .. }
            | Error::Closed
            | Error::Broker(BrokerError::UnknownTopic(_) | BrokerError::DiskFull { .. }) => {
                Self::NotSent
            }
            Error::TimedOut { .. } => Self::Silent,
            _ => Self::Unknown,
        }
    }
}

impl Bus {
    /// Publishes domain events to a topic; those of one partition in order. Tells of each what became of it.
    pub(super) async fn publish_each(&self, topic: &str, envelopes: &[Envelope]) -> Vec<Fate> {
        let all = |fate: Fate| vec![fate; envelopes.len()];
        let known = match self.topic(topic, Kind::Domain).await {
            Ok(known) => known,
            // The topic was asked for, and no event was sent.
            Err(error) if Verdict::of(&error) == Verdict::Never => {
                return all(Fate::Never(error.to_string()));
            }
            Err(error) => return all(Fate::NotSent(error.to_string())),
        };
        if let Err(error) = self.take_turns(envelopes.len()).await {
            return all(Fate::NotSent(error.to_string()));
        }
        let partitions = known.topic.partitions();
        let mut fates = vec![None; envelopes.len()];
        let mut by_partition = vec![Vec::new(); partitions.get() as usize];
        let most = self.shared.broker.largest();
        for (index, envelope) in envelopes.iter().enumerate() {
            let record = self.enveloped(envelope);
            if let Some(most) = most
                && record.payload.len() > most
            {
                let size = record.size();
                fates[index] = Some(Fate::Never(
                    BrokerError::TooLarge { size, most }.to_string(),
                ));
                continue;
            }
            let partition = partition_of(envelope.aggregate_id().as_bytes(), partitions);
            by_partition[partition as usize].push((index, record));
        }
        let mut publishing: FuturesUnordered<_> = (0..)
            .zip(by_partition)
            .filter(|(_, records)| !records.is_empty())
            .map(|(partition, records)| self.publish_in_parts(&known, partition, records))
            .collect();
        while let Some(of_partition) = publishing.next().await {
            for (index, fate) in of_partition {
                fates[index] = Some(fate);
            }
        }
        let unanswered = || Fate::Unknown("it was not answered for".to_owned());
        let fates = fates.into_iter();
        fates.map(|fate| fate.unwrap_or_else(unanswered)).collect()
    }

    /// Publishes records of one partition: all at once, then in parts of what fails, then one by one.
    async fn publish_in_parts(
        &self,
        known: &KnownTopic,
        partition: u32,
        records: Vec<(usize, Record)>,
    ) -> Vec<(usize, Fate)> {
        let mut fates = Vec::with_capacity(records.len());
        // What is still to be published, the first part last, and whether it may have been sent before.
        let mut parts: Vec<(Range<usize>, bool)> = vec![(0..records.len(), false)];
        while let Some((part, in_doubt)) = parts.pop() {
            let batch = &records[part.clone()];
            let copies = batch.iter().map(|(_, record)| record.clone()).collect();
            let Err(error) = self.append(known, partition, copies).await else {
                fates.extend(batch.iter().map(|(index, _)| (*index, Fate::Published)));
                continue;
            };
            let (verdict, reason) = (Verdict::of(&error), error.to_string());
            let in_doubt = in_doubt || verdict != Verdict::NotSent;
            let is_one = part.len() == 1;
            match verdict {
                Verdict::Never if is_one => {
                    fates.push((batch[0].0, Fate::Never(reason)));
                    continue;
                }
                Verdict::Never | Verdict::Unknown if !is_one => {
                    let size = if part.len() > PART { PART } else { 1 };
                    let smaller = part.clone().step_by(size).rev();
                    let smaller = smaller.map(|from| from..part.end.min(from + size));
                    parts.extend(smaller.map(|smaller| (smaller, in_doubt)));
                    continue;
                }
                _ => {}
            }
            // It is not about this one: those that come after it would overtake it.
            parts.push((part, in_doubt));
            for (part, in_doubt) in parts.drain(..).rev() {
                let rest = records[part].iter();
                fates.extend(rest.map(|(index, _)| (*index, Fate::untried(in_doubt, &reason))));
            }
        }
        fates
    }

    /// Why the broker would never take an event, as far as that is known.
    pub(super) fn objection(&self, envelope: &Envelope) -> Option<String> {
        let most = self.shared.broker.largest()?;
        let size = self.enveloped(envelope).size();
        (size > most).then(|| BrokerError::TooLarge { size, most }.to_string())
    }
}
