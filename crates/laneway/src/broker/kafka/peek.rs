//! Reading without a group: a few clients, each somewhere in a partition.

use std::ops::ControlFlow;

use parking_lot::Mutex;
use rdkafka::error::KafkaError;

use super::client::{self, Telling};
use super::cluster::blocking;
use super::message::{delivered, is_tombstone};
use super::options::KafkaOptions;
use super::range_reader::RangeReader;
use super::server::Kafka;
use super::topics::TopicHandle;
use crate::broker::BrokerError;
use crate::record::Delivered;
use crate::topic::Kind;

/// Clients that are kept.
const KEPT: usize = 4;

/// Clients that look into partitions.
pub(super) struct Lookers {
    options: KafkaOptions,
    telling: Telling,
    idle: Mutex<Vec<RangeReader>>,
}

impl Lookers {
    pub(super) fn new(options: KafkaOptions, telling: Telling) -> Self {
        Self {
            options,
            telling,
            idle: Mutex::default(),
        }
    }

    pub(super) fn take_all(&self) -> Vec<RangeReader> {
        std::mem::take(&mut *self.idle.lock())
    }

    /// The one that is nearest, or a new one.
    fn take(&self, topic: &str, partition: i32, from: i64) -> Result<RangeReader, KafkaError> {
        let mut idle = self.idle.lock();
        let near = idle
            .iter()
            .position(|looker| looker.is_near(topic, partition, from));
        if let Some(index) = near.or_else(|| (idle.len() == KEPT).then_some(0)) {
            return Ok(idle.remove(index));
        }
        drop(idle);
        let consumer = client::looker(&self.options).create_with_context(self.telling.clone())?;
        Ok(RangeReader::new(consumer))
    }

    /// Keeps one for the next look, unless there are enough.
    fn keep(&self, looker: RangeReader) -> Option<RangeReader> {
        let mut idle = self.idle.lock();
        if idle.len() < KEPT {
            idle.push(looker);
            return None;
        }
        Some(looker)
    }
}

impl Kafka {
    /// Reads up to `most` records from an offset on, as far as there are any before `end`.
    pub(super) async fn look(
        &self,
        handle: &TopicHandle,
        partition: u32,
        from: u64,
        end: u64,
        most: usize,
    ) -> Result<Vec<Delivered>, BrokerError> {
        if from >= end || most == 0 {
            return Ok(Vec::new());
        }
        let failed = |error| self.failed("reading records", error);
        let number = i32::try_from(partition).unwrap_or_default();
        let from = i64::try_from(from).unwrap_or(i64::MAX);
        let end = i64::try_from(end).unwrap_or(i64::MAX);
        let topic = handle.name.clone();
        let passes_over = handle.topic.kind() == Kind::Domain;
        let mut looker = self.lookers.take(&topic, number, from).map_err(failed)?;
        let looking = blocking(move || {
            let mut records = Vec::new();
            let read = looker.read(&topic, number, from, end, |message| {
                if !(passes_over && is_tombstone(message)) {
                    records.push(delivered(message));
                }
                if records.len() == most {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
            Ok((looker, read.map(|()| records)))
        });
        let (looker, records) = looking.await.map_err(failed)?;
        if let Some(surplus) = self.lookers.keep(looker) {
            // Letting it go takes a while.
            drop(tokio::task::spawn_blocking(move || drop(surplus)));
        }
        records.map_err(failed)
    }
}
