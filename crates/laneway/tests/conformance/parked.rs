//! Keys that are parked, and released.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use laneway::record::Record;
use laneway::{Bus, Error, Exhausted, Subscription, testing};

use super::Fixture;
use super::support::{Log, SOON, attempts, declare, event, fail_if, number, publish, settled};

/// A handler that fails for aggregate `bad`, as told.
#[derive(Clone, Default)]
struct Ledger {
    log: Log,
    /// Which numbers of `bad` fail.
    fails: Arc<Mutex<Vec<u64>>>,
}

impl Ledger {
    fn failing(numbers: impl IntoIterator<Item = u64>) -> Self {
        let ledger = Self::default();
        ledger.now_fails(numbers);
        ledger
    }

    fn now_fails(&self, numbers: impl IntoIterator<Item = u64>) {
        *self.fails.lock().expect("no panic") = numbers.into_iter().collect();
    }

    async fn subscribe(&self, bus: &Bus, group: &str) -> Subscription {
        let ledger = self.clone();
        bus.subscription("transfers")
            .group(group)
            .retry(attempts(3))
            .on_exhausted(Exhausted::ParkKey)
            .envelope(move |event| {
                let bad = event.aggregate_id().as_str() == "bad";
                let fails = ledger.fails.lock().expect("no panic");
                let fails = bad && fails.contains(&number(&event));
                if !fails {
                    ledger.log.note(&event);
                }
                async move { fail_if(fails, "the account is frozen") }
            })
            .await
            .expect("subscribed")
    }
}

async fn parked_numbers(bus: &Bus) -> Vec<u64> {
    let parked = bus.parked("transfers").await.expect("there");
    let letters = parked.list(usize::MAX).await.expect("a list");
    letters
        .iter()
        .map(|letter| {
            let event = laneway::Envelope::decode(letter.record.payload.clone());
            event.expect("an event").json().expect("a number")
        })
        .collect()
}

async fn release(bus: &Bus, group: &str) {
    let parked = bus.parked("transfers").await.expect("there");
    parked.release(group, "bad").await.expect("asked for");
}

pub(crate) async fn later_events_of_a_parked_key_follow_it<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "transfers", at.partitions(1)).await;
    let ledger = Ledger::failing([1]);
    let transfers = ledger.subscribe(&bus, "ledger").await;
    for number in 0..10 {
        publish(&bus, "transfers", "bad", [number]).await;
        publish(&bus, "transfers", "good", [number]).await;
    }
    settled(&bus).await;
    assert_eq!(ledger.log.of("bad"), [0], "what came before it");
    assert_eq!(ledger.log.of("good"), (0..10).collect::<Vec<_>>());
    assert_eq!(parked_numbers(&bus).await, (1..10).collect::<Vec<_>>());
    let parked = bus.parked("transfers").await.expect("there");
    let keys = parked.keys().await.expect("a list");
    assert_eq!(keys, [("ledger".to_owned(), "bad".into())]);
    let letters = parked.list(2).await.expect("a list");
    assert_eq!(letters[0].reason, "the account is frozen");
    assert_eq!((letters[0].attempts, letters[1].attempts), (3, 0));
    assert!(letters[1].reason.contains("earlier event of its key"));
    let figures = transfers.stats();
    assert_eq!((figures.parked, figures.dead_lettered), (9, 0));
}

pub(crate) async fn a_released_key_goes_on_in_order<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "transfers", at.partitions(16)).await;
    let ledger = Ledger::failing([0]);
    ledger.subscribe(&bus, "ledger").await;
    publish(&bus, "transfers", "bad", 0..5).await;
    settled(&bus).await;
    ledger.now_fails([]);
    // Some come before the request, some after it: they go on behind the parked ones.
    publish(&bus, "transfers", "bad", 5..8).await;
    release(&bus, "ledger").await;
    publish(&bus, "transfers", "bad", 8..10).await;
    settled(&bus).await;
    assert_eq!(ledger.log.of("bad"), (0..10).collect::<Vec<_>>());
    assert_eq!(parked_numbers(&bus).await, [] as [u64; 0]);
    let parked = bus.parked("transfers").await.expect("there");
    assert_eq!(parked.keys().await.expect("a list"), []);
    // It is a key like any other again.
    let released = parked.release("ledger", "bad").await;
    assert!(matches!(released, Err(Error::NotParked { .. })));
    publish(&bus, "transfers", "bad", [10]).await;
    settled(&bus).await;
    assert_eq!(ledger.log.of("bad"), (0..=10).collect::<Vec<_>>());
}

pub(crate) async fn a_key_that_fails_again_stays_parked<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "transfers", at.partitions(16)).await;
    let ledger = Ledger::failing([0, 2]);
    ledger.subscribe(&bus, "ledger").await;
    publish(&bus, "transfers", "bad", 0..5).await;
    settled(&bus).await;
    ledger.now_fails([2]);
    release(&bus, "ledger").await;
    settled(&bus).await;
    assert_eq!(ledger.log.of("bad"), [0, 1]);
    assert_eq!(parked_numbers(&bus).await, [2, 3, 4]);
    publish(&bus, "transfers", "bad", [5]).await;
    settled(&bus).await;
    assert_eq!(parked_numbers(&bus).await, [2, 3, 4, 5]);
    ledger.now_fails([]);
    release(&bus, "ledger").await;
    settled(&bus).await;
    assert_eq!(ledger.log.of("bad"), (0..6).collect::<Vec<_>>());
}

pub(crate) async fn a_release_survives_failures_that_go_away<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "transfers", at.partitions(1)).await;
    let log = Log::default();
    let parks = Arc::new(AtomicBool::new(true));
    let (seen, parking) = (log.clone(), parks.clone());
    bus.subscription("transfers")
        .group("ledger")
        .retry(attempts(3))
        .on_exhausted(Exhausted::ParkKey)
        .envelope(move |event| {
            let first = event.context().attempt() == 1;
            let fails = parking.load(Ordering::SeqCst) || first;
            if !fails {
                seen.note(&event);
            }
            async move { fail_if(fails, "the account is frozen") }
        })
        .await
        .expect("subscribed");
    publish(&bus, "transfers", "bad", 0..20).await;
    settled(&bus).await;
    parks.store(false, Ordering::SeqCst);
    // Each of them fails once more: together more often than one event may.
    release(&bus, "ledger").await;
    settled(&bus).await;
    assert_eq!(log.of("bad"), (0..20).collect::<Vec<_>>());
}

pub(crate) async fn more_than_one_request_can_release_is_released<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "transfers", at.partitions(16)).await;
    let ledger = Ledger::failing([0]);
    ledger.subscribe(&bus, "ledger").await;
    publish(&bus, "transfers", "bad", [0]).await;
    let key = super::support::event;
    let events: Vec<_> = (1..300).map(|number| key("bad", number)).collect();
    bus.publish_envelope_batch("transfers", &events)
        .await
        .expect("published");
    settled(&bus).await;
    assert_eq!(parked_numbers(&bus).await.len(), 300);
    ledger.now_fails([]);
    release(&bus, "ledger").await;
    settled(&bus).await;
    assert_eq!(ledger.log.of("bad"), (0..300).collect::<Vec<_>>());
}

pub(crate) async fn a_key_is_parked_for_one_group<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "transfers", at.partitions(16)).await;
    let (frozen, other, open) = (
        Ledger::failing([0]),
        Ledger::failing([1]),
        Ledger::default(),
    );
    frozen.subscribe(&bus, "frozen").await;
    other.subscribe(&bus, "other").await;
    open.subscribe(&bus, "open").await;
    publish(&bus, "transfers", "bad", 0..4).await;
    settled(&bus).await;
    assert_eq!(open.log.of("bad"), [0, 1, 2, 3]);
    assert_eq!(other.log.of("bad"), [0]);
    assert_eq!(frozen.log.of("bad"), [] as [u64; 0]);
    for ledger in [&frozen, &other] {
        ledger.now_fails([]);
    }
    release(&bus, "frozen").await;
    settled(&bus).await;
    assert_eq!(frozen.log.of("bad"), [0, 1, 2, 3]);
    assert_eq!(other.log.of("bad"), [0], "not released");
    assert_eq!(open.log.of("bad"), [0, 1, 2, 3], "each once");
}

pub(crate) async fn a_key_stays_parked_for_the_next_subscription<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "transfers", at.partitions(16)).await;
    let ledger = Ledger::failing([0]);
    let first = ledger.subscribe(&bus, "ledger").await;
    publish(&bus, "transfers", "bad", 0..3).await;
    settled(&bus).await;
    first.close(SOON).await;
    ledger.now_fails([]);
    publish(&bus, "transfers", "bad", 3..5).await;
    ledger.subscribe(&bus, "ledger").await;
    settled(&bus).await;
    assert_eq!(ledger.log.of("bad"), [] as [u64; 0]);
    assert_eq!(parked_numbers(&bus).await, [0, 1, 2, 3, 4]);
    release(&bus, "ledger").await;
    settled(&bus).await;
    assert_eq!(ledger.log.of("bad"), [0, 1, 2, 3, 4]);
}

pub(crate) async fn a_parked_event_can_be_dropped<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "transfers", at.partitions(16)).await;
    let ledger = Ledger::failing([0]);
    ledger.subscribe(&bus, "ledger").await;
    publish(&bus, "transfers", "bad", 0..3).await;
    settled(&bus).await;
    let parked = bus.parked("transfers").await.expect("there");
    let letters = parked.list(10).await.expect("a list");
    parked.discard(&[letters[0].id]).await.expect("dropped");
    release(&bus, "ledger").await;
    publish(&bus, "transfers", "bad", [3]).await;
    settled(&bus).await;
    assert_eq!(
        ledger.log.of("bad"),
        [1, 2, 3],
        "without the one that fails"
    );
}

pub(crate) async fn an_event_named_by_its_record_key_is_released<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "transfers", at.partitions(1)).await;
    let ledger = Ledger::failing([0]);
    ledger.subscribe(&bus, "ledger").await;
    publish(&bus, "transfers", "bad", [0]).await;
    let body = serde_json::json!({
        "event_id": "e-1", "event_type": "Happened", "event_version": 1,
        "timestamp": "2026-01-01T00:00:00Z", "payload": 1,
    });
    let record = Record {
        key: Some("bad".into()),
        payload: body.to_string().into(),
        ..Record::default()
    };
    testing::publish_foreign(&bus, "transfers", record)
        .await
        .expect("published");
    settled(&bus).await;
    ledger.now_fails([]);
    release(&bus, "ledger").await;
    settled(&bus).await;
    assert_eq!(ledger.log.of("bad"), [0, 1]);
}

pub(crate) async fn a_key_is_parked_by_its_aggregate_id_whatever_the_record_key_is<F: Fixture>(
    at: &F,
) {
    for record_key in [None, Some("tenant-1")] {
        let bus = at.bus().await;
        declare(&bus, "transfers", at.partitions(1)).await;
        let ledger = Ledger::failing(0..3);
        let first = ledger.subscribe(&bus, "ledger").await;
        let foreign = async |number| {
            let record = Record {
                key: record_key.map(Into::into),
                payload: event("bad", number).encode(),
                ..Record::default()
            };
            let published = testing::publish_foreign(&bus, "transfers", record).await;
            published.expect("published");
            settled(&bus).await;
        };
        foreign(0).await;
        foreign(1).await;
        let parked = bus.parked("transfers").await.expect("there");
        let keys = parked.keys().await.expect("a list");
        assert_eq!(keys, [("ledger".into(), "bad".into())], "{record_key:?}");
        first.close(SOON).await;

        ledger.now_fails([]);
        let second = ledger.subscribe(&bus, "ledger").await;
        foreign(2).await;
        assert_eq!(ledger.log.of("bad"), [] as [u64; 0], "none overtakes");
        release(&bus, "ledger").await;
        settled(&bus).await;
        assert_eq!(ledger.log.of("bad"), [0, 1, 2], "{record_key:?}");
        assert_eq!(parked_numbers(&bus).await, [] as [u64; 0]);
        second.close(SOON).await;
        bus.close(SOON).await.expect("closed");
    }
}
