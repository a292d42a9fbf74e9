//! Records that are being put aside: each is written once, whoever asks for it again.
//!
//! An attempt that is over its time limit leaves its letter on the way to the broker, and the next
//! attempt comes to the same letter. It waits for the one on the way, and only when that one has
//! failed, so that nobody knows whether it was written, are the letters looked through for it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};

use super::marks;
use crate::broker::embedded::now_ms;
use crate::lanes::Failure;
use crate::record::Record;
use crate::topic::TopicName;

/// What tells a letter from others: its group, and the partition and the offset that it had.
pub(super) type Origin = (String, u64, u64);

/// Why a record is put aside.
pub(super) struct Cause<'a> {
    pub(super) group: &'a str,
    pub(super) partition: u32,
    pub(super) offset: u64,
    pub(super) reason: &'a str,
    pub(super) attempts: u32,
}

impl Cause<'_> {
    pub(super) fn origin(&self) -> Origin {
        let partition = u64::from(self.partition);
        (self.group.to_owned(), partition, self.offset)
    }

    /// The record, with what happened to it.
    pub(super) fn letter(&self, topic: &TopicName, record: &Record) -> Record {
        let mut headers = marks::stripped(&record.headers);
        marks::put(&mut headers, marks::TOPIC, topic.as_str());
        marks::put(&mut headers, marks::PARTITION, &self.partition.to_string());
        marks::put(&mut headers, marks::OFFSET, &self.offset.to_string());
        marks::put(&mut headers, marks::GROUP, self.group);
        marks::put(&mut headers, marks::ATTEMPTS, &self.attempts.to_string());
        marks::put(&mut headers, marks::AT, &now_ms().to_string());
        marks::put_reason(&mut headers, self.reason);
        Record {
            headers,
            ..record.clone()
        }
    }
}

type Writing = Shared<BoxFuture<'static, Result<(), Failure>>>;

/// The letters that somebody began to write, and was not told about.
#[derive(Default)]
pub(super) struct Putting(Mutex<HashMap<Origin, Writing>>);

impl Putting {
    /// Waits for an earlier attempt to write this letter. Answers how it ended, if there was one.
    pub(super) async fn earlier(&self, origin: &Origin) -> Option<Result<(), Failure>> {
        let writing = self.begun().get(origin).cloned()?;
        Some(writing.await)
    }

    /// Writes a letter. Dropped on the way, or failed, it is an earlier attempt for the next one.
    pub(super) async fn begin(
        &self,
        origin: &Origin,
        writing: impl Future<Output = Result<(), Failure>> + Send + 'static,
    ) -> Result<(), Failure> {
        let writing = writing.boxed().shared();
        self.begun().insert(origin.clone(), writing.clone());
        writing.await
    }

    /// The letter is written, and whoever asked for it knows.
    pub(super) fn done(&self, origin: &Origin) {
        self.begun().remove(origin);
    }

    fn begun(&self) -> MutexGuard<'_, HashMap<Origin, Writing>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
