//! Records that were put aside: dead letters and parked events.
//!
//! They are records of a topic of their own (`<topic>.dead`, `<topic>.parked`), with the original
//! body and what happened in headers. One that was replayed or dropped is settled by a group that the
//! bus keeps for the purpose, which every broker can do; nothing has to be deleted from a log.

use std::ops::ControlFlow;
use std::sync::Arc;

use smol_str::SmolStr;
use tokio::sync::Mutex;

use super::error::Error;
use super::marks;
use super::patience::Patience;
use super::putting::{Cause, Origin, Putting};
use crate::broker::{Broker, BrokerError};
use crate::lanes::Failure;
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

/// The letters of one topic, of one kind.
pub(super) struct LetterBox {
    broker: Arc<dyn Broker>,
    patience: Patience,
    /// The topic that they come from.
    origin: TopicName,
    /// The topic that they are in.
    topic: TopicName,
    /// What is gone, as the broker last said; locked for every change.
    gone: Mutex<Option<Gone>>,
    putting: Putting,
    /// Held while letters are replayed: two that do so at once would replay them twice.
    pub(super) replaying: Mutex<()>,
}

/// Which letters are gone.
struct Gone {
    /// What the broker knows.
    position: Position,
    tracker: Tracker,
    /// One past the last letter that the tracker has heard of.
    next: u64,
}

impl LetterBox {
    pub(super) fn new(
        broker: Arc<dyn Broker>,
        patience: Patience,
        origin: TopicName,
        topic: TopicName,
    ) -> Self {
        Self {
            broker,
            patience,
            origin,
            topic,
            gone: Mutex::default(),
            putting: Putting::default(),
            replaying: Mutex::default(),
        }
    }

    /// Puts a record aside; durable when it resolves. Whoever was not told whether it is may call this
    /// again: what is among the letters by then is not put there a second time.
    pub(super) async fn put(&self, record: &Record, cause: &Cause<'_>) -> Result<(), Failure> {
        let origin = cause.origin();
        match self.putting.earlier(&origin).await {
            Some(Ok(())) => {}
            Some(Err(_)) if self.has(&origin).await? => {}
            _ => {
                let letter = cause.letter(&self.origin, record);
                let (broker, topic) = (self.broker.clone(), self.topic.clone());
                let writing = write(broker, self.patience, topic, letter);
                self.putting.begin(&origin, writing).await?;
            }
        }
        self.putting.done(&origin);
        Ok(())
    }

    async fn has(&self, origin: &Origin) -> Result<bool, Error> {
        let mut is_there = false;
        self.visit(|letter| {
            let (partition, offset) = letter.origin;
            is_there = (letter.group, partition, offset) == *origin;
            if is_there {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
        .await?;
        Ok(is_there)
    }

    /// The letters that are not gone, oldest first, up to `most` that `wanted` wants.
    pub(super) async fn list(
        &self,
        most: usize,
        mut wanted: impl FnMut(&Letter) -> bool,
    ) -> Result<Vec<Letter>, Error> {
        let mut letters = Vec::new();
        if most == 0 {
            return Ok(letters);
        }
        self.visit(|letter| {
            if wanted(&letter) {
                letters.push(letter);
            }
            if letters.len() == most {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
        .await?;
        Ok(letters)
    }

    /// Shows the letters that are not gone, oldest first, for as long as the visitor wants.
    pub(super) async fn visit(
        &self,
        mut visitor: impl FnMut(Letter) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let position = self.position().await?;
        let mut at = position.low();
        loop {
            let records = self.peek(at).await?;
            let Some(last) = records.last() else {
                return Ok(());
            };
            at = last.offset + 1;
            for delivered in &records {
                if !position.is_done(delivered.offset)
                    && visitor(Letter::read(delivered)).is_break()
                {
                    return Ok(());
                }
            }
        }
    }

    /// Says that letters have been dealt with; kept when it resolves.
    pub(super) async fn settle(&self, ids: &[u64]) -> Result<(), Error> {
        let mut gone = self.gone.lock().await;
        let result = self.settle_in(&mut gone, ids).await;
        if result.is_err() {
            // Nobody knows what the broker has noted.
            *gone = None;
        }
        result
    }

    async fn settle_in(&self, gone: &mut Option<Gone>, ids: &[u64]) -> Result<(), Error> {
        let Gone {
            position,
            tracker,
            next,
        } = self.load(gone).await?;
        // A tracker knows what was delivered to it; what came since is delivered now.
        loop {
            let records = self.peek(*next).await?;
            let Some(last) = records.last() else {
                break;
            };
            *next = last.offset + 1;
            for delivered in records {
                tracker.deliver(delivered.offset);
            }
        }
        for id in ids {
            tracker.done(*id);
        }
        let settled = tracker.position();
        let settling = self.broker.settle(&self.topic, 0, GROUP, settled.clone());
        match self.patience.with("settling letters", settling).await {
            // There are no letters.
            Err(Error::Broker(BrokerError::UnknownTopic(_))) => {}
            result => result?,
        }
        *position = settled;
        Ok(())
    }

    /// What is gone.
    pub(super) async fn position(&self) -> Result<Position, Error> {
        let mut gone = self.gone.lock().await;
        Ok(self.load(&mut gone).await?.tracker.position())
    }

    async fn peek(&self, from: u64) -> Result<Vec<Delivered>, Error> {
        let peeking = self.broker.peek(&self.topic, 0, from, CHUNK);
        match self.patience.with("reading letters", peeking).await {
            Err(Error::Broker(BrokerError::UnknownTopic(_))) => Ok(Vec::new()),
            records => records,
        }
    }

    /// What is gone. The broker is asked each time: another process may have dealt with letters.
    async fn load<'a>(&self, gone: &'a mut Option<Gone>) -> Result<&'a mut Gone, Error> {
        let asking = self.broker.position(&self.topic, 0, GROUP);
        let position = match self.patience.with("reading letters", asking).await {
            Err(Error::Broker(BrokerError::UnknownTopic(_))) => None,
            position => position?,
        };
        let position = position.unwrap_or_else(|| Position::at(0));
        if gone.as_ref().is_some_and(|gone| gone.position != position) {
            *gone = None;
        }
        Ok(gone.get_or_insert_with(|| Gone {
            next: position.low(),
            tracker: Tracker::resume(position.clone()),
            position,
        }))
    }
}

/// Writes a letter, and makes the topic for it if need be.
async fn write(
    broker: Arc<dyn Broker>,
    patience: Patience,
    topic: TopicName,
    letter: Record,
) -> Result<(), Failure> {
    let publish = async |letter| {
        let publishing = broker.publish(&topic, 0, vec![letter]);
        patience.with("putting a record aside", publishing).await
    };
    match publish(letter.clone()).await {
        Err(Error::Broker(BrokerError::UnknownTopic(_))) => {
            let beside = Topic::beside(topic.clone());
            let declaring = broker.declare(&beside, Strategy::CreateOnly, Growth::Refused);
            patience.with("declaring a topic", declaring).await?;
            publish(letter).await?;
        }
        result => {
            result?;
        }
    }
    Ok(())
}
