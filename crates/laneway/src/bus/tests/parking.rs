//! Which events of a key are parked, whatever their offsets and the keys of their records are. Time is virtual.

use std::sync::atomic::Ordering;

use super::letters::{Process, long};
use super::*;
use crate::broker::Broker;
use crate::headers::Headers;
use crate::record::Record;
use crate::topic::TopicName;

fn orders() -> TopicName {
    TopicName::new("orders").unwrap()
}

async fn release(process: &Process) {
    let parked = process.bus.parked("orders").await.unwrap();
    parked.release("default", "a").await.unwrap();
    process.settled().await;
}

/// Other tools have made the topic again, or a restart took a stream in memory: the letters are still there.
#[tokio::test(start_paused = true)]
async fn events_of_a_parked_key_are_parked_when_offsets_have_begun_anew() {
    for before in [1, 3] {
        let broker = Troubled::held(&long()).await;
        let process = Process::start(&broker, true, Exhausted::ParkKey).await;
        for _ in 0..before {
            publish(&process.bus, "a").await;
        }
        process.settled().await;
        assert_eq!(process.parked().await.len(), before);
        process.stop().await;
        broker.delete(&orders()).await.unwrap();

        let next = broker.seen_by_another(&long());
        let process = Process::start(&next, false, Exhausted::ParkKey).await;
        for _ in 0..2 {
            publish(&process.bus, "a").await;
        }
        process.settled().await;
        assert_eq!(
            process.handled(),
            [] as [u64; 0],
            "an earlier one is parked"
        );
        assert_eq!(process.parked().await.len(), before + 2, "none is missing");
        release(&process).await;
        let all: Vec<_> = (0..before as u64).chain(0..2).collect();
        assert_eq!(process.handled(), all, "in order");
        assert!(process.parked().await.is_empty());
    }
}

/// A crash, or a power cut: the group reads again from an earlier position.
#[tokio::test(start_paused = true)]
async fn what_was_parked_and_dropped_comes_again_and_is_not_parked_behind_later_ones() {
    let broker = Troubled::held(&long()).await;
    let process = Process::start(&broker, true, Exhausted::ParkKey).await;
    broker.begin(Trouble::Commits);
    for _ in 0..3 {
        publish(&process.bus, "a").await;
    }
    let count = async || process.orders.stats().parked;
    wait_for!(count().await == 3, "parked");
    let first = process.parked().await[0].id;
    let parked = process.bus.parked("orders").await.unwrap();
    parked.discard(&[first]).await.unwrap();
    process.stop().await;

    let next = broker.seen_by_another(&long());
    let process = Process::start(&next, true, Exhausted::ParkKey).await;
    publish(&process.bus, "a").await;
    process.settled().await;
    let origins: Vec<_> = process.parked().await.iter().map(|l| l.origin).collect();
    assert_eq!(origins, [(0, 1), (0, 2), (0, 3)], "each once, in order");
}

/// A letter that says where its event is says which one, too.
#[tokio::test(start_paused = true)]
async fn a_letter_by_reference_is_about_no_other_event_at_its_offset() {
    let broker = Troubled::held(&long()).await;
    let process = Process::start(&broker, true, Exhausted::DeadLetter).await;
    let text = "x".repeat(4_000);
    let large = Envelope::builder("a", "Happened").json(&text).unwrap();
    process
        .bus
        .publish_envelope("orders", &large)
        .await
        .unwrap();
    let record = broker.peek(&orders(), 0, 0, 1).await.unwrap();
    broker.takes_up_to(record[0].record.size());
    process.settled().await;
    assert_eq!(process.dead().await[0].missing, None);
    let dead = process.bus.dead_letters("orders").await.unwrap();
    assert_eq!(dead.replay_all().await.unwrap(), 1);
    process.settled().await;
    process.stop().await;
    broker.delete(&orders()).await.unwrap();

    let next = broker.seen_by_another(&long());
    let process = Process::start(&next, false, Exhausted::DeadLetter).await;
    publish(&process.bus, "b").await;
    process.settled().await;
    let letters = process.dead().await;
    assert_eq!(letters.len(), 1);
    assert!(letters[0].missing.is_some(), "{:?}", letters[0].record);
    assert_eq!(letters[0].key.as_deref(), Some("a"));
}

/// An event of the aggregate `a` as others publish it: the key of the record is another one, or none.
async fn park_and_release_foreign(key: Option<&str>, headers: Headers) {
    let broker = Troubled::held(&long()).await;
    let foreign = async |process: &Process| {
        let record = Record {
            key: key.map(Into::into),
            headers: headers.clone(),
            payload: event("a").encode(),
            ..Record::default()
        };
        broker.publish(&orders(), 0, vec![record]).await.unwrap();
        process.settled().await;
    };
    let process = Process::start(&broker, true, Exhausted::ParkKey).await;
    for _ in 0..2 {
        foreign(&process).await;
    }
    let parked = process.bus.parked("orders").await.unwrap();
    let keys = parked.keys().await.unwrap();
    assert_eq!(keys, [("default".into(), "a".into())], "{key:?}");
    process.stop().await;

    let next = broker.seen_by_another(&long());
    let process = Process::start(&next, false, Exhausted::ParkKey).await;
    foreign(&process).await;
    assert_eq!(process.handled(), [] as [u64; 0], "{key:?} overtakes none");
    assert_eq!(process.parked().await.len(), 3);
    release(&process).await;
    assert_eq!(process.handled(), [0, 1, 2], "{key:?}");
    assert!(process.parked().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_parked_key_is_the_aggregate_id_whatever_the_key_of_the_record_is() {
    park_and_release_foreign(None, Headers::new()).await;
    park_and_release_foreign(Some("tenant-1"), Headers::new()).await;
}

/// What is too large to be put aside whole has its aggregate id all the same.
#[tokio::test(start_paused = true)]
async fn a_letter_by_reference_has_the_aggregate_id_as_its_key() {
    let broker = Troubled::held(&long()).await;
    let process = Process::start(&broker, true, Exhausted::ParkKey).await;
    let text = "x".repeat(4_000);
    let large = Envelope::builder("a", "Happened").json(&text).unwrap();
    let record = Record {
        key: Some("tenant-1".into()),
        payload: large.encode(),
        ..Record::default()
    };
    let size = record.size();
    broker.publish(&orders(), 0, vec![record]).await.unwrap();
    broker.takes_up_to(size);
    process.settled().await;
    process.fails.store(false, Ordering::SeqCst);
    release(&process).await;
    assert_eq!(process.handled(), [0]);
}
