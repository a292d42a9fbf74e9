//! Reads a partition that is ours.

use std::sync::Arc;

use super::assignment::OwnedPartition;
use super::subject_reader::{Stopped, SubjectReader};
use crate::broker::{BoxFuture, BrokerError, Reader};
use crate::record::Delivered;

/// Reads for as long as the positions of the group mean something in the stream.
pub(super) struct PartitionReader {
    owned: Arc<OwnedPartition>,
    reader: SubjectReader,
}

impl PartitionReader {
    pub(super) fn new(owned: Arc<OwnedPartition>, next: u64) -> Self {
        let (server, handle) = (owned.server.clone(), owned.handle.clone());
        Self {
            reader: SubjectReader::new(server, handle, owned.partition, next),
            owned,
        }
    }

    async fn read(&mut self) -> Result<Vec<Delivered>, BrokerError> {
        match self.reader.read().await {
            Ok(records) => return Ok(records),
            Err(Stopped::Failed(error)) => return Err(error),
            Err(Stopped::Gone) => {
                // A topic in memory may be made anew; it is another one then.
                let topic = self.owned.handle.topic.name();
                self.owned.server.find(topic).await?;
            }
            // Our position means nothing in it.
            Err(Stopped::Other(_) | Stopped::Shortened(_)) => {}
        }
        self.owned.lose();
        Err(self.owned.not_ours())
    }
}

impl Reader for PartitionReader {
    fn next(&mut self) -> BoxFuture<'_, Result<Vec<Delivered>, BrokerError>> {
        Box::pin(self.read())
    }
}
