//! Reading without a group: a few clients, each somewhere in a partition.

use std::ops::ControlFlow;
use std::sync::Mutex;

use rdkafka::error::KafkaError;

use super::client::{self, Telling};
use super::cluster::{blocking, lock};
use super::message::delivered;
use super::options::KafkaOptions;
use super::server::Server;
use super::stretch::Stretch;
use crate::broker::BrokerError;
use crate::record::Delivered;

/// Clients that are kept.
const KEPT: usize = 4;

/// Clients that look into partitions.
pub(super) struct Lookers {
    options: KafkaOptions,
    telling: Telling,
    idle: Mutex<Vec<Stretch>>,
}

impl Lookers {
    pub(super) fn new(options: KafkaOptions, telling: Telling) -> Self {
        Self {
            options,
            telling,
            idle: Mutex::default(),
        }
    }

    pub(super) fn take_all(&self) -> Vec<Stretch> {
        std::mem::take(&mut *lock(&self.idle))
    }

    /// The one that is nearest, or a new one.
    fn take(&self, topic: &str, partition: i32, from: i64) -> Result<Stretch, KafkaError> {
        let mut idle = lock(&self.idle);
        let near = idle
            .iter()
            .position(|looker| looker.is_near(topic, partition, from));
        if let Some(index) = near.or_else(|| (idle.len() == KEPT).then_some(0)) {
            return Ok(idle.remove(index));
        }
        drop(idle);
        let consumer = client::looker(&self.options).create_with_context(self.telling.clone())?;
        Ok(Stretch::new(consumer))
    }

    /// Keeps one for the next look, unless there are enough.
    fn keep(&self, looker: Stretch) -> Option<Stretch> {
        let mut idle = lock(&self.idle);
        if idle.len() < KEPT {
            idle.push(looker);
            return None;
        }
        Some(looker)
    }
}

impl Server {
    /// Reads up to `most` records from an offset on, as far as there are any before `end`.
    pub(super) async fn look(
        &self,
        topic: String,
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
        let mut looker = self.lookers.take(&topic, number, from).map_err(failed)?;
        let looking = blocking(move || {
            let mut records = Vec::new();
            let read = looker.read(&topic, number, from, end, |message| {
                records.push(delivered(message));
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
