//! A bucket of entries that are changed only by those who know their last revision.

use std::error::Error;
use std::time::Duration;

use async_nats::jetstream::kv::{self, Store, UpdateErrorKind};
use async_nats::jetstream::stream::RawMessageErrorKind;
use async_nats::jetstream::{self, Context, ErrorCode};
use bytes::Bytes;

use super::connect::{call, retry_placement};
use super::error::NatsError;

/// What the bucket of a store calls an entry that was removed.
const OPERATION: &str = "KV-Operation";

/// An entry as it is now.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    /// Nothing if it does not exist, or not any more.
    pub(super) value: Option<Bytes>,
    /// What a change has to name; 0 if there was never anything.
    pub(super) revision: u64,
}

/// Why an entry was not changed.
#[derive(Debug)]
pub(super) enum Unchanged {
    /// The entry has another revision than the change names.
    Conflict,
    /// It may have been changed or not.
    Unknown(NatsError),
}

#[derive(Clone, Debug)]
pub(super) struct Bucket {
    store: Store,
}

impl Bucket {
    /// Opens a bucket; makes it if it is not there.
    pub(super) async fn open(
        context: &Context,
        name: String,
        description: &str,
        replicas: u8,
        max_age: Duration,
    ) -> Result<Self, NatsError> {
        if let Ok(store) = context.get_key_value(&name).await {
            return Ok(Self { store });
        }
        let config = kv::Config {
            bucket: name.clone(),
            description: description.to_owned(),
            history: 1,
            max_age,
            num_replicas: usize::from(replicas),
            ..kv::Config::default()
        };
        match retry_placement(|| context.create_key_value(config.clone())).await {
            Ok(store) => Ok(Self { store }),
            // Another process may have made it meanwhile.
            Err(error) => match context.get_key_value(&name).await {
                Ok(store) => Ok(Self { store }),
                Err(_) => Err(NatsError::new("making a bucket", error)),
            },
        }
    }

    /// Reads an entry from the one server that has the last word: a copy may be behind.
    pub(super) async fn read(&self, key: &str) -> Result<Entry, NatsError> {
        let subject = format!("{}{key}", self.store.prefix);
        let stream = &self.store.stream;
        match call(|| stream.get_last_raw_message_by_subject(&subject)).await {
            Ok(message) => {
                let is_there = message.headers.get(OPERATION).is_none();
                Ok(Entry {
                    value: is_there.then_some(message.payload),
                    revision: message.sequence,
                })
            }
            Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => {
                Ok(Entry::default())
            }
            Err(error) => Err(NatsError::new("reading an entry", error)),
        }
    }

    /// Changes an entry; answers its new revision.
    pub(super) async fn write(
        &self,
        key: &str,
        value: Bytes,
        revision: u64,
    ) -> Result<u64, Unchanged> {
        let written = self.store.update(key, value, revision).await;
        written.map_err(|error| unchanged("writing an entry", error))
    }

    /// Removes an entry.
    pub(super) async fn remove(&self, key: &str, revision: u64) -> Result<(), Unchanged> {
        let removed = self.store.delete_expect_revision(key, Some(revision)).await;
        removed.map_err(|error| unchanged("removing an entry", error))
    }

    /// The entries that a pattern names, as they are and as they change.
    pub(super) async fn watch(&self, pattern: &str) -> Result<kv::Watch, NatsError> {
        let watching = self.store.watch_with_history(pattern).await;
        watching.map_err(|error| NatsError::new("watching a bucket", error))
    }

    /// The keys of entries that a pattern names.
    pub(super) async fn keys(&self, pattern: &str) -> Result<Vec<String>, NatsError> {
        use futures_util::TryStreamExt;

        let subjects = format!("{}{pattern}", self.store.prefix);
        let failed = |error| NatsError::new("listing a bucket", error);
        let info = self.store.stream.info_with_subjects(subjects).await;
        let named: Vec<_> = info.map_err(failed)?.try_collect().await.map_err(failed)?;
        Ok(named
            .into_iter()
            .filter_map(|(subject, _)| Some(subject.strip_prefix(&self.store.prefix)?.to_owned()))
            .collect())
    }

    /// Removes all entries that a pattern names, and every trace of them.
    pub(super) async fn purge(&self, pattern: &str) -> Result<(), NatsError> {
        let subjects = format!("{}{pattern}", self.store.prefix);
        let purging = self.store.stream.purge().filter(subjects).await;
        purging
            .map(drop)
            .map_err(|error| NatsError::new("purging a bucket", error))
    }
}

fn unchanged(doing: &'static str, error: kv::UpdateError) -> Unchanged {
    if error.kind() == UpdateErrorKind::WrongLastRevision || is_overtaken(&error) {
        Unchanged::Conflict
    } else {
        Unchanged::Unknown(NatsError::new(doing, error))
    }
}

/// In a cluster a change is refused in this way while another one is on its way.
fn is_overtaken(error: &kv::UpdateError) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<jetstream::Error>() {
            let code = error.error_code();
            return code == ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT
                || code == ErrorCode::STREAM_WRONG_LAST_SEQUENCE;
        }
        cause = error.source();
    }
    false
}
