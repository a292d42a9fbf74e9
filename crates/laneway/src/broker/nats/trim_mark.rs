//! What was trimmed of a partition of a log.
//!
//! The partitions of a topic share the sequences of one stream, so a sequence that a partition does not have may have
//! been trimmed or may be of another one. `trim` therefore notes how far it goes, before it removes anything. A reader
//! that was at an earlier sequence when the mark was written has missed something, or would have.

use super::bucket::Unchanged;
use super::names;
use super::server::Nats;
use super::topics::TopicHandle;
use crate::broker::BrokerError;

/// Two processes may trim at the same moment, one of them looks again.
const TRIES: usize = 10;

/// When the stream was made, and the sequence before which all was trimmed.
const LENGTH: usize = 16;

impl Nats {
    /// The sequence before which everything of a partition was trimmed; 0 if nothing was.
    pub(super) async fn trimmed_before(
        &self,
        handle: &TopicHandle,
        partition: u32,
    ) -> Result<u64, BrokerError> {
        let (mark, _) = self.trim_mark(handle, partition).await?;
        Ok(mark)
    }

    /// Notes that everything of a partition before a sequence is about to be trimmed.
    pub(super) async fn note_trim(
        &self,
        handle: &TopicHandle,
        partition: u32,
        before: u64,
    ) -> Result<(), BrokerError> {
        let key = names::trim_key(handle.topic.name(), partition);
        let mut value = handle.born.to_le_bytes().to_vec();
        value.extend_from_slice(&before.to_le_bytes());
        for _ in 0..TRIES {
            let (mark, revision) = self.trim_mark(handle, partition).await?;
            if mark >= before {
                return Ok(());
            }
            match self
                .groups
                .write(&key, value.clone().into(), revision)
                .await
            {
                Ok(_) => return Ok(()),
                Err(Unchanged::Conflict) => {}
                Err(Unchanged::Unknown(error)) => return Err(self.failed_with(error)),
            }
        }
        Err(self.failed("trimming a log", "others trim it all the time"))
    }

    async fn trim_mark(
        &self,
        handle: &TopicHandle,
        partition: u32,
    ) -> Result<(u64, u64), BrokerError> {
        let key = names::trim_key(handle.topic.name(), partition);
        let entry = self.groups.read(&key).await;
        let entry = entry.map_err(|error| self.failed_with(error))?;
        let Some(value) = entry.value else {
            return Ok((0, entry.revision));
        };
        let parts = (value.first_chunk(), value.last_chunk());
        let (Some(born), Some(mark), LENGTH) = (parts.0, parts.1, value.len()) else {
            return Err(BrokerError::Damaged {
                what: format!("entry {key}"),
                detail: format!("it has {} bytes, not {LENGTH}", value.len()),
            });
        };
        // That of a stream that was deleted says nothing.
        let mark = u64::from_le_bytes(*mark);
        let is_of_stream = i64::from_le_bytes(*born) == handle.born;
        Ok((if is_of_stream { mark } else { 0 }, entry.revision))
    }
}
