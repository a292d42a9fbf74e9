use futures_util::FutureExt;

use super::*;
use crate::broker::Assignment;
use crate::broker::Reader;
use crate::topic::Retention;

async fn broker() -> Embedded {
    Embedded::in_memory().await.unwrap()
}

fn orders() -> TopicName {
    TopicName::new("orders").unwrap()
}

async fn declare(broker: &Embedded, topic: &Topic) -> Result<Topic, BrokerError> {
    broker
        .declare(topic, Strategy::CreateOrUpdate, Growth::Forced)
        .await
}

fn topic(partitions: u32) -> Topic {
    let topic = Topic::domain("orders").partitions(partitions);
    topic.build().unwrap()
}

async fn publish(broker: &Embedded, partition: u32, body: &'static str) {
    let record = Record {
        payload: body.into(),
        timestamp_ms: now_ms(),
        ..Record::default()
    };
    broker
        .publish(&orders(), partition, vec![record])
        .await
        .unwrap();
}

async fn join(broker: &Embedded, group: &str, start: Start) -> Vec<Arc<dyn Assignment>> {
    let mut member = broker.join(&orders(), group, start).await.unwrap();
    let assignments = std::iter::from_fn(|| member.next().now_or_never());
    assignments.map(Result::unwrap).collect()
}

/// What a reader has for us now, without waiting.
fn read(reader: &mut Box<dyn Reader>) -> Vec<u64> {
    let records = reader.next().now_or_never();
    let records = records.map_or_else(Vec::new, Result::unwrap);
    records.iter().map(|delivered| delivered.offset).collect()
}

#[tokio::test]
async fn a_reader_goes_on_when_its_topic_is_updated() {
    let broker = broker().await;
    let one_day = Retention::FOREVER.age(Duration::from_hours(24));
    let audited = Topic::domain("orders").partitions(1).audit_trail();
    declare(&broker, &audited.build().unwrap()).await.unwrap();
    let mut reader = join(&broker, "g", Start::Earliest).await[0].read();
    publish(&broker, 0, "before").await;
    assert_eq!(read(&mut reader), [0]);
    let shorter = Topic::domain("orders").partitions(1).retention(one_day);
    let updated = declare(&broker, &shorter.build().unwrap()).await.unwrap();
    assert_eq!(updated.retention(), one_day);
    assert_eq!(updated.compression(), None, "a wish of the preset");
    publish(&broker, 0, "after").await;
    assert_eq!(read(&mut reader), [1]);
}

#[tokio::test]
async fn a_topic_that_is_read_neither_grows_nor_goes() {
    let broker = broker().await;
    declare(&broker, &topic(1)).await.unwrap();
    let assignments = join(&broker, "g", Start::Latest).await;
    for refused in [
        declare(&broker, &topic(2)).await.map(drop),
        broker.delete(&orders()).await,
    ] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("group g reads orders"), "{error}");
    }
    drop(assignments);
    declare(&broker, &topic(2)).await.unwrap();
    broker.delete(&orders()).await.unwrap();
}

#[tokio::test]
async fn a_group_misses_nothing_of_a_partition_that_is_new() {
    let broker = broker().await;
    declare(&broker, &topic(1)).await.unwrap();
    publish(&broker, 0, "before the group").await;
    drop(join(&broker, "g", Start::Latest).await);
    declare(&broker, &topic(2)).await.unwrap();
    publish(&broker, 1, "before it is back").await;
    let assignments = join(&broker, "g", Start::Latest).await;
    assert_eq!(read(&mut assignments[0].read()), [] as [u64; 0]);
    assert_eq!(read(&mut assignments[1].read()), [0]);
}

#[tokio::test]
async fn every_owner_has_a_higher_epoch() {
    let broker = broker().await;
    declare(&broker, &topic(1)).await.unwrap();
    for (group, epoch) in [("a", 1), ("a", 2), ("b", 1), ("a", 3)] {
        let assignments = join(&broker, group, Start::Latest).await;
        assert_eq!(assignments[0].epoch(), epoch, "{group}");
    }
}

#[tokio::test]
async fn the_lag_counts_what_is_there_and_not_done() {
    let broker = broker().await;
    declare(&broker, &topic(1)).await.unwrap();
    for _ in 0..10 {
        publish(&broker, 0, "x").await;
    }
    let lag = async || broker.lag(&orders(), "g").await.unwrap()[0];
    assert_eq!(lag().await.records, 10);
    assert!(lag().await.oldest.is_some());
    let mut tracker = crate::settle::Tracker::resume(Position::at(0));
    for offset in 0..10 {
        tracker.deliver(offset);
    }
    for done in [2, 3, 5] {
        tracker.done(done);
    }
    let commit = |position| async {
        let name = orders();
        broker.settle(&name, 0, "g", position).await.unwrap();
    };
    let early = tracker.position();
    commit(early.clone()).await;
    assert_eq!(lag().await.records, 7);
    let log = &broker.inner.topic(&orders()).await.unwrap().partitions[0].log;
    log.trim(3).await.unwrap();
    assert_eq!(lag().await.records, 5, "4, 6, 7, 8, 9");
    for done in 0..10 {
        tracker.done(done);
    }
    commit(tracker.position()).await;
    commit(early).await;
    assert_eq!(lag().await.records, 0, "a late commit is ignored");
    assert_eq!(lag().await.oldest, None);
}

#[tokio::test]
async fn a_closed_broker_says_so() {
    let broker = broker().await;
    declare(&broker, &topic(1)).await.unwrap();
    broker.close().await.unwrap();
    let closed = |result: Result<(), BrokerError>| matches!(result, Err(BrokerError::Closed));
    assert!(closed(broker.health().await));
    assert!(closed(broker.topics().await.map(drop)));
    assert!(closed(
        broker.publish(&orders(), 0, Vec::new()).await.map(drop)
    ));
    assert!(closed(declare(&broker, &topic(1)).await.map(drop)));
    assert!(closed(
        broker.join(&orders(), "g", Start::Latest).await.map(drop)
    ));
}
