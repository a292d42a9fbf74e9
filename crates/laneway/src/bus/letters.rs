//! Records that were put aside: dead letters and parked events.
//!
//! They are records of a topic of their own (`<topic>.dead`, `<topic>.parked`), with the original
//! body and what happened in headers. One that was replayed or dropped is settled by a group that the
//! bus keeps for the purpose, which every broker can do; nothing has to be deleted from a log.

use std::sync::Arc;

use smol_str::SmolStr;
use tokio::sync::Mutex;

use super::error::Error;
use super::marks;
use crate::broker::embedded::now_ms;
use crate::broker::{Broker, BrokerError};
use crate::record::{Delivered, Record};
use crate::settle::{Position, Tracker};
use crate::topic::{Growth, Strategy, Topic, TopicName};

/// The group that says which letters are gone.
const GROUP: &str = "laneway-letters";

/// Read at once.
const CHUNK: usize = 512;

/// A record that was put aside.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Letter {
    /// Its place among the letters.
    pub id: u64,
    /// Its key.
    pub key: Option<SmolStr>,
    /// The group whose handler failed.
    pub group: String,
    /// What the last attempt said.
    pub reason: String,
    /// How many attempts were made.
    pub attempts: u64,
    /// The partition and the offset that it had.
    pub origin: (u64, u64),
    /// When it was put aside, in milliseconds since 1970.
    pub at_ms: i64,
    /// The record, with the headers it was published with.
    pub record: Record,
}

impl Letter {
    fn read(delivered: &Delivered) -> Self {
        let headers = &delivered.record.headers;
        let text = |name| headers.get_str(name).unwrap_or_default().to_owned();
        let number = |name| marks::get_u64(headers, name).unwrap_or_default();
        Self {
            id: delivered.offset,
            key: delivered.record.key.clone(),
            group: text(marks::GROUP),
            reason: text(marks::REASON),
            attempts: number(marks::ATTEMPTS),
            origin: (number(marks::PARTITION), number(marks::OFFSET)),
            at_ms: i64::try_from(number(marks::AT)).unwrap_or_default(),
            record: Record {
                headers: marks::stripped(headers),
                ..(*delivered.record).clone()
            },
        }
    }
}

/// Why a record is put aside.
pub(super) struct Cause<'a> {
    pub(super) group: &'a str,
    pub(super) partition: u32,
    pub(super) offset: u64,
    pub(super) reason: &'a str,
    pub(super) attempts: u32,
}

/// The letters of one topic, of one kind.
pub(super) struct LetterBox {
    broker: Arc<dyn Broker>,
    /// The topic that they come from.
    origin: TopicName,
    /// The topic that they are in.
    topic: TopicName,
    /// What is gone; loaded when it is first needed, and locked for every change.
    gone: Mutex<Option<Tracker>>,
}

impl LetterBox {
    pub(super) fn new(broker: Arc<dyn Broker>, origin: TopicName, topic: TopicName) -> Self {
        Self {
            broker,
            origin,
            topic,
            gone: Mutex::default(),
        }
    }

    /// Puts a record aside; durable when it resolves.
    pub(super) async fn put(&self, record: &Record, cause: &Cause<'_>) -> Result<(), Error> {
        let mut headers = marks::stripped(&record.headers);
        marks::put(&mut headers, marks::TOPIC, self.origin.as_str());
        marks::put(&mut headers, marks::PARTITION, &cause.partition.to_string());
        marks::put(&mut headers, marks::OFFSET, &cause.offset.to_string());
        marks::put(&mut headers, marks::GROUP, cause.group);
        marks::put(&mut headers, marks::ATTEMPTS, &cause.attempts.to_string());
        marks::put(&mut headers, marks::AT, &now_ms().to_string());
        marks::put_reason(&mut headers, cause.reason);
        let letter = Record {
            headers,
            ..record.clone()
        };
        match self
            .broker
            .publish(&self.topic, 0, vec![letter.clone()])
            .await
        {
            Err(BrokerError::UnknownTopic(_)) => {
                self.declare().await?;
                self.broker.publish(&self.topic, 0, vec![letter]).await?;
            }
            result => {
                result?;
            }
        }
        Ok(())
    }

    async fn declare(&self) -> Result<(), Error> {
        let topic = Topic::beside(self.topic.clone());
        self.broker
            .declare(&topic, Strategy::CreateOnly, Growth::Refused)
            .await?;
        Ok(())
    }

    /// The letters that are not gone, oldest first, up to `most` that `wanted` wants.
    pub(super) async fn list(
        &self,
        most: usize,
        mut wanted: impl FnMut(&Letter) -> bool,
    ) -> Result<Vec<Letter>, Error> {
        let mut gone = self.gone.lock().await;
        let position = self.tracker(&mut gone).await?.position();
        drop(gone);
        let mut letters = Vec::new();
        let mut at = position.low();
        while letters.len() < most {
            let records = match self.broker.peek(&self.topic, 0, at, CHUNK).await {
                Err(BrokerError::UnknownTopic(_)) => break,
                records => records?,
            };
            let Some(last) = records.last() else {
                break;
            };
            at = last.offset + 1;
            letters.extend(
                records
                    .iter()
                    .filter(|delivered| !position.is_done(delivered.offset))
                    .map(Letter::read)
                    .filter(&mut wanted),
            );
        }
        letters.truncate(most);
        Ok(letters)
    }

    /// Says that letters have been dealt with; durable when it resolves.
    pub(super) async fn settle(&self, ids: &[u64]) -> Result<(), Error> {
        let mut gone = self.gone.lock().await;
        let tracker = self.tracker(&mut gone).await?;
        // A tracker knows what was delivered to it; what came since is delivered now.
        loop {
            let from = tracker.low() + tracker.span() as u64;
            let records = match self.broker.peek(&self.topic, 0, from, CHUNK).await {
                Err(BrokerError::UnknownTopic(_)) => return Ok(()),
                records => records?,
            };
            if records.is_empty() {
                break;
            }
            for delivered in records {
                tracker.deliver(delivered.offset);
            }
        }
        for id in ids {
            tracker.done(*id);
        }
        let position = tracker.position();
        self.broker.commit(&self.topic, 0, GROUP, position).await?;
        Ok(())
    }

    async fn tracker<'a>(&self, gone: &'a mut Option<Tracker>) -> Result<&'a mut Tracker, Error> {
        if gone.is_none() {
            let position = match self.broker.position(&self.topic, 0, GROUP).await {
                Err(BrokerError::UnknownTopic(_)) => None,
                position => position?,
            };
            *gone = Some(Tracker::resume(position.unwrap_or_else(|| Position::at(0))));
        }
        gone.as_mut().ok_or(Error::Closed)
    }
}
