//! Reads a range of a partition without a group: from an offset up to an end that is known.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use super::client::{ANSWER_WITHIN, Telling};
use super::ledger::{LOOK_AGAIN, is_passing};

/// Going on over so many records is cheaper than going elsewhere.
const NEAR: i64 = 2000;

/// Looks this often whether it took too long.
const POLL: Duration = Duration::from_millis(100);

/// A client that stays at its offset, and goes on from there if the next range begins nearby.
pub(super) struct RangeReader {
    consumer: BaseConsumer<Telling>,
    /// The topic, the partition, and the offset that comes next.
    at: Option<(String, i32, i64)>,
}

impl RangeReader {
    pub(super) fn new(consumer: BaseConsumer<Telling>) -> Self {
        Self { consumer, at: None }
    }

    pub(super) fn is_near(&self, topic: &str, partition: i32, from: i64) -> bool {
        self.at.as_ref().is_some_and(|(of, number, next)| {
            of == topic && *number == partition && (*next..=next + NEAR).contains(&from)
        })
    }

    /// Where a partition ends. One that was just made, or whose broker was just lost, is waited for.
    pub(super) fn end(&self, topic: &str, partition: i32) -> Result<i64, KafkaError> {
        let deadline = Instant::now() + ANSWER_WITHIN;
        loop {
            match self.end_now(topic, partition) {
                Err(error) if is_passing(&error) && Instant::now() < deadline => {
                    std::thread::sleep(LOOK_AGAIN);
                }
                answer => return answer,
            }
        }
    }

    fn end_now(&self, topic: &str, partition: i32) -> Result<i64, KafkaError> {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, partition, Offset::End)?;
        let list = self.consumer.offsets_for_times(list, ANSWER_WITHIN)?;
        let found = list.find_partition(topic, partition);
        let found = found.ok_or(KafkaError::OffsetFetch(RDKafkaErrorCode::UnknownPartition))?;
        found.error()?;
        Ok(found.offset().to_raw().unwrap_or_default())
    }

    /// Shows the messages from an offset up to an end, for as long as the visitor wants.
    ///
    /// The last offsets before the end may have no message: they were compacted away, or are markers of
    /// transactions. The client says when it has nothing more; but that may be about what was there when
    /// it got there the last time, so it counts only if it was sent here anew since.
    pub(super) fn read(
        &mut self,
        topic: &str,
        partition: i32,
        from: i64,
        end: i64,
        mut visit: impl FnMut(&BorrowedMessage<'_>) -> ControlFlow<()>,
    ) -> Result<(), KafkaError> {
        let mut next = from;
        if next >= end {
            return Ok(());
        }
        let mut is_anew = !self.is_near(topic, partition, from);
        // If anything goes wrong, its offset is not known.
        self.at = None;
        if is_anew {
            self.go(topic, partition, next)?;
        }
        let deadline = Instant::now() + ANSWER_WITHIN;
        while next < end {
            match self.consumer.poll(POLL) {
                Some(Ok(message)) => {
                    let is_there = message.topic() == topic && message.partition() == partition;
                    if is_there && message.offset() >= next {
                        next = message.offset() + 1;
                        if visit(&message).is_break() {
                            break;
                        }
                    }
                }
                Some(Err(KafkaError::PartitionEOF(_))) if is_anew => break,
                Some(Err(error)) if Instant::now() > deadline => return Err(error),
                None if Instant::now() > deadline => {
                    let code = RDKafkaErrorCode::OperationTimedOut;
                    return Err(KafkaError::MessageConsumption(code));
                }
                None if !is_anew => {
                    self.go(topic, partition, next)?;
                    is_anew = true;
                }
                Some(Err(_)) | None => {}
            }
        }
        self.at = Some((topic.to_owned(), partition, next));
        Ok(())
    }

    /// Reads nothing ahead any more, and begins anew the next time. A client that waits for what is published
    /// next asks the broker many times a second, and whatever else it asks waits behind that.
    pub(super) fn rest(&mut self) -> Result<(), KafkaError> {
        self.at = None;
        self.consumer.unassign()
    }

    fn go(&self, topic: &str, partition: i32, to: i64) -> Result<(), KafkaError> {
        // Of a topic that it has not heard of, the client learns the leaders within a second. Or now.
        self.consumer.fetch_metadata(Some(topic), ANSWER_WITHIN)?;
        let mut assignment = TopicPartitionList::new();
        assignment.add_partition_offset(topic, partition, Offset::Offset(to))?;
        self.consumer.assign(&assignment)
    }
}
