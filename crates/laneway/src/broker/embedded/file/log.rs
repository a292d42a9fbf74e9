//! The log of one partition.

use std::ops::Range;
use std::sync::Arc;

use laneway_disk::planted;

use super::Shared;
use super::read::{self, Most};
use super::request::{Append, Request, Save, Together, Trim};
use super::retire;
use super::row::Chunks;
use super::state::LogState;
use crate::broker::embedded::store::Log;
use crate::broker::{BoxFuture, BrokerError};
use crate::record::{Delivered, Record};
use crate::settle::Position;

pub(super) struct FileLog {
    pub(super) shared: Arc<Shared>,
    pub(super) log: Arc<LogState>,
}

impl FileLog {
    fn check(&self) -> Result<(), BrokerError> {
        if self.log.topic.is_removed() {
            return Err(BrokerError::UnknownTopic(self.log.topic.name.clone()));
        }
        Ok(())
    }

    async fn append_all(&self, records: Vec<Record>) -> Result<u64, BrokerError> {
        self.check()?;
        if records.is_empty() {
            return Ok(self.span().end);
        }
        // Encoded here, so that publishers share the work and the writer has less of it; and what is
        // encoded is freed where it was made, which costs far less than to free it elsewhere.
        let chunks = Chunks::of(&records);
        drop(records);
        let log = self.log.clone();
        self.shared
            .ask(chunks.len(), |ack, permit| {
                Request::Together(Together::Append(Append {
                    log,
                    chunks,
                    ack,
                    permit,
                }))
            })
            .await
    }

    async fn read_some(&self, from: u64, most: usize) -> Result<Vec<Delivered>, BrokerError> {
        self.check()?;
        let cached = self.log.lock().cached(from, most);
        let most = Most {
            records: most,
            bytes: self.shared.limits.read,
        };
        if let Some((from, runs)) = cached {
            return read::cached(&self.log, &runs, from, most);
        }
        let log = self.log.clone();
        let read = self
            .shared
            .with_engine(move |engine, identity| read::records(engine, identity, &log, from, most))
            .await;
        // What is missing may have been removed meanwhile.
        read.or_else(|error| self.check().and(Err(error)))
    }

    async fn trim_to(&self, before: u64) -> Result<(), BrokerError> {
        self.check()?;
        if before <= self.span().start {
            return Ok(());
        }
        let log = self.log.clone();
        let start = self
            .shared
            .with_engine(move |engine, identity| read::mark(engine, identity, &log, before))
            .await?;
        let log = self.log.clone();
        self.shared
            .ask(0, |ack, _| {
                Request::Together(Together::Trim(Trim { log, start, ack }))
            })
            .await?;
        retire::sweep(&self.shared, &self.log.topic).await
    }

    /// Notes a position, which survives the process then, and if `is_synced` the machine, too.
    async fn save(
        &self,
        group: &str,
        position: &Position,
        is_synced: bool,
    ) -> Result<(), BrokerError> {
        self.check()?;
        // About what it takes: two numbers a range.
        let bytes = 8 * (1 + position.done_above().len());
        let permit = self.shared.permit(bytes).await?;
        let (ack, answer) = tokio::sync::oneshot::channel();
        {
            // Held until it is in the queue, so that two saves get there in this order.
            let mut contents = self.log.lock();
            let known = contents.asked_for.get(group);
            let known = known.or_else(|| contents.positions.get(group));
            // One that must be synced is written again: whether the one that is known is durable is not known.
            let known = known.filter(|known| position.is_behind(known)).cloned();
            if known.is_some() && !is_synced {
                return Ok(());
            }
            let position = known.as_ref().unwrap_or(position);
            self.shared.push(Request::Together(Together::Save(Save {
                log: self.log.clone(),
                group: group.to_owned(),
                position: position.clone(),
                is_synced,
                ack,
                permit,
            })))?;
            contents
                .asked_for
                .insert(group.to_owned(), position.clone());
        }
        self.shared.answered(answer).await
    }
}

impl Log for FileLog {
    fn append(&self, records: Vec<Record>) -> BoxFuture<'_, Result<u64, BrokerError>> {
        Box::pin(self.append_all(records))
    }

    fn read(&self, from: u64, most: usize) -> BoxFuture<'_, Result<Vec<Delivered>, BrokerError>> {
        Box::pin(self.read_some(from, most))
    }

    fn span(&self) -> Range<u64> {
        let contents = self.log.lock();
        contents.start.offset..contents.end.offset
    }

    fn bytes(&self) -> u64 {
        let contents = self.log.lock();
        contents.end.size - contents.start.size
    }

    fn trim(&self, before: u64) -> BoxFuture<'_, Result<(), BrokerError>> {
        Box::pin(self.trim_to(before))
    }

    fn save_position<'a>(
        &'a self,
        group: &'a str,
        position: &'a Position,
    ) -> BoxFuture<'a, Result<(), BrokerError>> {
        Box::pin(self.save(group, position, false))
    }

    fn sync_position<'a>(
        &'a self,
        group: &'a str,
        position: &'a Position,
    ) -> BoxFuture<'a, Result<(), BrokerError>> {
        Box::pin(self.save(group, position, !planted("C5")))
    }

    fn position<'a>(
        &'a self,
        group: &'a str,
    ) -> BoxFuture<'a, Result<Option<Position>, BrokerError>> {
        let position = self.log.lock().positions.get(group).cloned();
        Box::pin(std::future::ready(Ok(position)))
    }
}
