//! Removes what is too old or too much, in the background.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{Inner, Log, TopicState};
use crate::broker::BrokerError;
use crate::time::now_ms;
use crate::topic::Retention;

/// How often it is looked for what can go, unless a store on disk is opened with another value.
pub(super) const EVERY: Duration = Duration::from_secs(1);

/// Read at once when looking for the first record that is young enough.
const CHUNK: usize = 256;

/// Looks every so often, for as long as the broker lives.
pub(super) async fn run(broker: Weak<Inner>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        let Some(broker) = broker.upgrade() else {
            return;
        };
        let topics: Vec<_> = broker.topics.read().await.values().cloned().collect();
        for topic in topics {
            if let Err(error) = enforce(&topic).await {
                tracing::warn!(topic = %topic.topic.name(), %error, "retention failed, retrying");
            }
        }
    }
}

async fn enforce(topic: &Arc<TopicState>) -> Result<(), BrokerError> {
    let retention = topic.topic.retention();
    let partitions = u64::from(topic.topic.partitions().get());
    for partition in &topic.partitions {
        let log = &*partition.log;
        if let Some(before) = first_to_keep(log, retention, partitions, now_ms()).await? {
            log.trim(before).await?;
        }
    }
    Ok(())
}

/// The offset below which everything may go, or `None` if nothing may. Bytes and count of a topic
/// are shared evenly by its partitions.
async fn first_to_keep(
    log: &dyn Log,
    retention: Retention,
    partitions: u64,
    now_ms: i64,
) -> Result<Option<u64>, BrokerError> {
    let span = log.span();
    let mut keep_from = span.start;
    if let Some(count) = retention.max_count() {
        keep_from = keep_from.max(span.end.saturating_sub(count.div_ceil(partitions)));
    }
    let mut excess = retention.max_bytes().map_or(0, |bytes| {
        log.bytes().saturating_sub(bytes.div_ceil(partitions))
    });
    let oldest_allowed = retention.max_age().map(|age| {
        let age = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
        now_ms.saturating_sub(age)
    });
    if excess == 0 && oldest_allowed.is_none() {
        return Ok((keep_from > span.start).then_some(keep_from));
    }
    let mut at = span.start;
    'scan: while at < span.end {
        let records = log.read(at, CHUNK).await?;
        if records.is_empty() {
            break;
        }
        for delivered in &records {
            let too_old =
                oldest_allowed.is_some_and(|oldest| delivered.record.timestamp_ms < oldest);
            if !too_old && excess == 0 && delivered.offset >= keep_from {
                break 'scan;
            }
            if too_old || excess > 0 {
                keep_from = keep_from.max(delivered.offset + 1);
            }
            excess = excess.saturating_sub(delivered.record.size() as u64);
            at = delivered.offset + 1;
        }
    }
    Ok((keep_from > span.start).then_some(keep_from))
}

#[cfg(test)]
mod tests {
    use super::super::memory::MemoryStore;
    use super::super::store::Store;
    use super::*;
    use crate::record::Record;
    use crate::topic::TopicName;

    async fn log_of(ages: &[i64]) -> Arc<dyn Log> {
        let store = MemoryStore::default();
        let log = store.log(&TopicName::new("t").unwrap(), 0).await.unwrap();
        let records = ages
            .iter()
            .map(|age| Record {
                timestamp_ms: 1_000_000 - age,
                ..Record::default()
            })
            .collect();
        log.append(records).await.unwrap();
        log
    }

    async fn kept(ages: &[i64], retention: Retention) -> Option<u64> {
        let log = log_of(ages).await;
        first_to_keep(&*log, retention, 1, 1_000_000).await.unwrap()
    }

    #[tokio::test]
    async fn by_age_by_count_and_by_bytes() {
        let ages = [9000, 8000, 7000, 100, 50];
        let size = Record::default().size() as u64;
        let forever = Retention::FOREVER;
        assert_eq!(kept(&ages, forever).await, None);
        assert_eq!(
            kept(&ages, forever.age(Duration::from_secs(1))).await,
            Some(3)
        );
        assert_eq!(kept(&ages, forever.count(1)).await, Some(4));
        assert_eq!(kept(&ages, forever.bytes(2 * size)).await, Some(3));
        assert_eq!(kept(&ages, forever.count(100)).await, None);
    }

    #[tokio::test]
    async fn the_strictest_wins() {
        let ages = [9000, 8000, 7000, 100, 50];
        let retention = Retention::FOREVER.count(4).age(Duration::from_secs(1));
        assert_eq!(kept(&ages, retention).await, Some(3));
    }
}
