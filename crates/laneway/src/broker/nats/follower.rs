//! Reads a partition of a log without a group.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::logs::identity_of;
use super::server::Nats;
use super::subject_reader::{Stopped, SubjectReader};
use super::topics::TopicHandle;
use crate::broker::log::LogPartition;
use crate::broker::{BoxFuture, BrokerError, Reader};
use crate::record::Delivered;

/// A follower that has heard of nothing for this long may have missed a trim: what comes next is given after a look at
/// the mark. Between an append and its trim there is far more time.
const FRESH: Duration = Duration::from_millis(100);

/// A follower that waits looks at the mark this often.
const LOOK_EVERY: Duration = Duration::from_secs(5);

pub(super) struct LogFollower {
    server: Arc<Nats>,
    log: LogPartition,
    next: u64,
    source: Option<Source>,
}

struct Source {
    handle: Arc<TopicHandle>,
    reader: SubjectReader,
    /// What was read, and is given when it is known that nothing before it was trimmed. A caller that gives up
    /// meanwhile finds it here.
    unchecked: Vec<Delivered>,
    /// When the last records came that had none behind them.
    at_end: Option<Instant>,
}

impl LogFollower {
    pub(super) fn new(server: Arc<Nats>, log: LogPartition, from: u64) -> Self {
        Self {
            server,
            log,
            next: from,
            source: None,
        }
    }

    async fn read(&mut self) -> Result<Vec<Delivered>, BrokerError> {
        let source = match self.source.take() {
            Some(source) => source,
            None => self.open().await?,
        };
        let (server, log, next) = (&self.server, &self.log, self.next);
        // Also when the caller gives up: the reader goes on where it was.
        let source = self.source.insert(source);
        if source.unchecked.is_empty() {
            match source.wait(server, log, next).await? {
                Ok(records) => source.unchecked = records,
                Err(stopped) => {
                    self.source = None;
                    return Err(self.fault(stopped));
                }
            }
        }
        let is_fresh = source.at_end.is_some_and(|at| at.elapsed() < FRESH);
        if !is_fresh {
            check_mark(server, &source.handle, log, next).await?;
        }
        let records = std::mem::take(&mut source.unchecked);
        source.at_end = (!source.reader.has_more()).then(Instant::now);
        if let Some(last) = records.last() {
            self.next = last.offset + 1;
        }
        Ok(records)
    }

    async fn open(&self) -> Result<Source, BrokerError> {
        let found = self.server.find(&self.log.topic).await?;
        self.log.check(found.as_deref().map(identity_of))?;
        let handle = found.ok_or_else(|| BrokerError::UnknownTopic(self.log.topic.clone()))?;
        check_mark(&self.server, &handle, &self.log, self.next).await?;
        let (server, partition) = (self.server.clone(), self.log.partition);
        let reader = SubjectReader::new(server, handle.clone(), partition, self.next);
        Ok(Source {
            handle,
            reader,
            unchecked: Vec::new(),
            at_end: None,
        })
    }

    fn fault(&self, stopped: Stopped) -> BrokerError {
        let now = match stopped {
            Stopped::Failed(error) => return error,
            Stopped::Shortened(end) => return self.log.shortened(self.next, end).into(),
            Stopped::Other(born) => Some(born.to_string()),
            Stopped::Gone => None,
        };
        match self.log.check(now) {
            Err(fault) => fault.into(),
            Ok(()) => BrokerError::UnknownTopic(self.log.topic.clone()),
        }
    }
}

impl Source {
    /// Waits for the next records, and looks at the mark meanwhile.
    async fn wait(
        &mut self,
        server: &Nats,
        log: &LogPartition,
        next: u64,
    ) -> Result<Result<Vec<Delivered>, Stopped>, BrokerError> {
        let handle = self.handle.clone();
        let mut reading = std::pin::pin!(self.reader.read());
        loop {
            tokio::select! {
                biased;
                read = &mut reading => return Ok(read),
                () = sleep(LOOK_EVERY) => {
                    server.check_open()?;
                    check_mark(server, &handle, log, next).await?;
                }
            }
        }
    }
}

/// That nothing from a sequence on was trimmed.
async fn check_mark(
    server: &Nats,
    handle: &TopicHandle,
    log: &LogPartition,
    next: u64,
) -> Result<(), BrokerError> {
    let mark = server.trimmed_before(handle, log.partition).await?;
    if mark > next {
        return Err(log.trimmed(next, mark).into());
    }
    Ok(())
}

impl Reader for LogFollower {
    fn next(&mut self) -> BoxFuture<'_, Result<Vec<Delivered>, BrokerError>> {
        Box::pin(self.read())
    }
}
