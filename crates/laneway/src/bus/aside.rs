//! What users can do with records that were put aside.

use std::collections::{BTreeSet, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use smol_str::SmolStr;

use super::Shared;
use super::error::Error;
use super::letters::{Letter, LetterBox};
use super::marks;
use crate::broker::embedded::now_ms;
use crate::record::Record;
use crate::topic::{Topic, partition_of};

/// The dead letters of a topic. See [`Bus::dead_letters`](crate::Bus::dead_letters).
pub struct DeadLetters {
    pub(super) bus: Arc<Shared>,
    pub(super) topic: Topic,
    pub(super) letters: Arc<LetterBox>,
}

impl DeadLetters {
    /// The letters, oldest first, up to `most`.
    ///
    /// # Errors
    /// When the broker cannot be read.
    pub async fn list(&self, most: usize) -> Result<Vec<Letter>, Error> {
        self.bus.check_open()?;
        self.letters.list(most, |_| true).await
    }

    /// Publishes these letters to their topic again, in the given order, as they were at first; only the
    /// group that failed gets them. Letters that are gone already are passed over. Answers how many
    /// were replayed.
    ///
    /// Each letter is gone when its event is durable in the topic. A crash in between replays it
    /// twice rather than never.
    ///
    /// # Errors
    /// When the broker fails; letters before that are replayed.
    pub async fn replay(&self, letters: &[Letter]) -> Result<usize, Error> {
        self.bus.check_open()?;
        let _alone = self.letters.replaying.lock().await;
        let gone = self.letters.position().await?;
        let mut replayed = HashSet::new();
        for letter in letters {
            if gone.is_done(letter.id) || !replayed.insert(letter.id) {
                continue;
            }
            let mut record = letter.record.clone();
            record.timestamp_ms = now_ms();
            marks::put(&mut record.headers, marks::ONLY_GROUP, &letter.group);
            self.bus.append(&self.topic, record).await?;
            self.letters.settle(&[letter.id]).await?;
        }
        Ok(replayed.len())
    }

    /// Replays all of them, oldest first.
    ///
    /// # Errors
    /// As [`replay`](Self::replay).
    pub async fn replay_all(&self) -> Result<usize, Error> {
        let letters = self.list(usize::MAX).await?;
        self.replay(&letters).await
    }

    /// Drops letters for good.
    ///
    /// # Errors
    /// When the broker fails; then none is dropped.
    pub async fn drop(&self, ids: &[u64]) -> Result<(), Error> {
        self.bus.check_open()?;
        self.letters.settle(ids).await
    }
}

/// The parked events of a topic. See [`Bus::parked`](crate::Bus::parked).
pub struct Parked {
    pub(super) bus: Arc<Shared>,
    pub(super) topic: Topic,
    pub(super) letters: Arc<LetterBox>,
}

impl Parked {
    /// The parked events, oldest first, up to `most`.
    ///
    /// # Errors
    /// When the broker cannot be read.
    pub async fn list(&self, most: usize) -> Result<Vec<Letter>, Error> {
        self.bus.check_open()?;
        self.letters.list(most, |_| true).await
    }

    /// The keys that have parked events, with the group they are parked for.
    ///
    /// # Errors
    /// When the broker cannot be read.
    pub async fn keys(&self) -> Result<Vec<(String, SmolStr)>, Error> {
        self.bus.check_open()?;
        let mut keys = BTreeSet::new();
        self.letters
            .visit(|letter| {
                keys.extend(letter.key.map(|key| (letter.group, key)));
                ControlFlow::Continue(())
            })
            .await?;
        Ok(keys.into_iter().collect())
    }

    /// Asks for a key to go on: its parked events are handled in order, and then the ones that came
    /// since. The request is an entry in the topic, so it is durable and in order with the events of
    /// the key. If a parked event fails again, the key stays parked from there on.
    ///
    /// # Errors
    /// When the broker fails.
    pub async fn release(&self, group: &str, key: &str) -> Result<(), Error> {
        self.bus.check_open()?;
        self.bus
            .append(&self.topic, release_request(group, key))
            .await
    }

    /// Drops parked events for good. A key whose last one is dropped goes on when it is released, or
    /// when its subscription starts anew.
    ///
    /// # Errors
    /// When the broker fails; then none is dropped.
    pub async fn drop(&self, ids: &[u64]) -> Result<(), Error> {
        self.bus.check_open()?;
        self.letters.settle(ids).await
    }
}

pub(super) fn release_request(group: &str, key: &str) -> Record {
    let mut record = Record {
        key: Some(SmolStr::new(key)),
        timestamp_ms: now_ms(),
        ..Record::default()
    };
    marks::put_release(&mut record.headers);
    marks::put(&mut record.headers, marks::ONLY_GROUP, group);
    record
}

impl Shared {
    /// Appends one record to the partition of its key.
    pub(super) async fn append(&self, topic: &Topic, record: Record) -> Result<(), Error> {
        let key = record.key.clone().unwrap_or_default();
        let partition = partition_of(key.as_bytes(), topic.partitions());
        let publishing = self.broker.publish(topic.name(), partition, vec![record]);
        self.patience.with("publishing", publishing).await?;
        Ok(())
    }
}
