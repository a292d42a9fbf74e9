//! Records that are being put aside: each is written once, however often it is asked for.
//!
//! An attempt that is over its time limit leaves its letter on the way to the broker, and the next
//! attempt comes to the same letter. It waits for the one on the way, and only when that one has
//! failed, so that it is unknown whether it was written, are the letters looked through for it.

use std::collections::HashMap;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::{Mutex, MutexGuard};
use smol_str::SmolStr;

use super::digest::Digest;
use super::headers as letter_headers;
use crate::headers::Headers;
use crate::lanes::Failure;
use crate::record::Record;
use crate::time::now_ms;
use crate::topic::TopicName;

/// What tells a letter from others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::bus) struct Origin {
    pub(in crate::bus) group: String,
    pub(in crate::bus) partition: u32,
    pub(in crate::bus) offset: u64,
    pub(in crate::bus) digest: Option<Digest>,
    /// What an owner began to write does not count when it has lost the partition, so that the next one
    /// writes it again, also where both are one process.
    epoch: u64,
}

/// The longest key that a letter has which has to be small. Those of events are no longer.
pub(in crate::bus) const LONGEST_KEY: usize = 256;

/// Why a record is put aside.
pub(in crate::bus) struct Cause<'a> {
    pub(in crate::bus) group: &'a str,
    pub(in crate::bus) partition: u32,
    pub(in crate::bus) offset: u64,
    /// Which record is put aside.
    pub(in crate::bus) digest: Option<Digest>,
    pub(in crate::bus) epoch: u64,
    /// What its lane goes by.
    pub(in crate::bus) key: Option<&'a str>,
    pub(in crate::bus) reason: &'a str,
    pub(in crate::bus) attempts: u32,
    /// The offset of the record that is meant, if it is not the one that is put aside.
    pub(in crate::bus) reference: Option<u64>,
}

impl Cause<'_> {
    pub(in crate::bus) fn origin(&self) -> Origin {
        Origin {
            group: self.group.to_owned(),
            partition: self.partition,
            offset: self.offset,
            digest: self.digest,
            epoch: self.epoch,
        }
    }

    /// The record, with what happened to it; then the same in less and less room, for a broker that
    /// does not take more.
    pub(in crate::bus) fn letters(&self, topic: &TopicName, record: &Record) -> Vec<Record> {
        let by_reference = self.by_reference(topic, record.timestamp_ms);
        if self.reference.is_some() {
            return vec![by_reference];
        }
        let mut headers = letter_headers::stripped(&record.headers);
        self.mark(&mut headers, topic);
        // Others write records without a key, or with one of their own.
        if let Some(key) = self.key.filter(|key| record.key.as_deref() != Some(key)) {
            letter_headers::put(&mut headers, letter_headers::KEY, key);
        }
        let mut brief = headers.clone();
        letter_headers::put_reason(&mut headers, self.reason);
        letter_headers::put_brief_reason(&mut brief, self.reason);
        let with = |headers| Record {
            headers,
            ..record.clone()
        };
        vec![with(headers), with(brief), by_reference]
    }

    /// Where the record is, instead of the record.
    fn by_reference(&self, topic: &TopicName, timestamp_ms: i64) -> Record {
        let mut headers = Headers::new();
        self.mark(&mut headers, topic);
        letter_headers::put_brief_reason(&mut headers, self.reason);
        let offset = self.reference.unwrap_or(self.offset);
        letter_headers::put(&mut headers, letter_headers::REFERENCE, &offset.to_string());
        let key = self.key.filter(|key| key.len() <= LONGEST_KEY);
        Record {
            key: key.map(SmolStr::new),
            headers,
            payload: Bytes::new(),
            timestamp_ms,
        }
    }

    fn mark(&self, headers: &mut Headers, topic: &TopicName) {
        letter_headers::put(headers, letter_headers::TOPIC, topic.as_str());
        letter_headers::put(
            headers,
            letter_headers::PARTITION,
            &self.partition.to_string(),
        );
        letter_headers::put(headers, letter_headers::OFFSET, &self.offset.to_string());
        if let Some(digest) = self.digest {
            letter_headers::put(headers, letter_headers::DIGEST, &digest.to_string());
        }
        letter_headers::put(headers, letter_headers::EPOCH, &self.epoch.to_string());
        letter_headers::put(headers, letter_headers::GROUP, self.group);
        letter_headers::put(
            headers,
            letter_headers::ATTEMPTS,
            &self.attempts.to_string(),
        );
        letter_headers::put(headers, letter_headers::AT, &now_ms().to_string());
    }
}

type Writing = Shared<BoxFuture<'static, Result<(), Failure>>>;

/// The letters whose write began, and whose outcome is not known.
#[derive(Default)]
pub(in crate::bus) struct InFlight(Mutex<HashMap<Origin, Writing>>);

impl InFlight {
    /// Waits for an earlier attempt to write this letter. Answers how it ended, if there was one.
    pub(in crate::bus) async fn earlier(&self, origin: &Origin) -> Option<Result<(), Failure>> {
        let writing = self.begun().get(origin).cloned()?;
        Some(writing.await)
    }

    /// Writes a letter. Dropped on the way, or failed, it is an earlier attempt for the next one.
    pub(in crate::bus) async fn begin(
        &self,
        origin: &Origin,
        writing: impl Future<Output = Result<(), Failure>> + Send + 'static,
    ) -> Result<(), Failure> {
        let writing = writing.boxed().shared();
        self.note(origin, writing.clone());
        writing.await
    }

    fn note(&self, origin: &Origin, writing: Writing) {
        let mut begun = self.begun();
        // What was begun before the partition was lost is not asked for again.
        begun.retain(|other, _| {
            let same = (&other.group, other.partition) == (&origin.group, origin.partition);
            !same || other.epoch >= origin.epoch
        });
        begun.insert(origin.clone(), writing);
    }

    /// The letter is written, and its caller knows.
    pub(in crate::bus) fn done(&self, origin: &Origin) {
        self.begun().remove(origin);
    }

    fn begun(&self) -> MutexGuard<'_, HashMap<Origin, Writing>> {
        self.0.lock()
    }
}
