//! In order per aggregate, in parallel across them.

use std::sync::Arc;
use std::time::Duration;

use laneway::lanes::{Bound, Options};
use laneway::testing::{Faults, Witness};
use laneway::{Bus, Envelope, Event, Failure};
use tokio::sync::Barrier;
use tokio::time::sleep;
use waiting::wait_for;

use super::Fixture;
use super::support::{
    Gate, Log, attempts, declare, event, left, publish, publish_watched, settled,
};

pub(crate) async fn order_holds_under_failures_panics_and_time_outs<F: Fixture>(at: &F) {
    const ATTEMPTS: u32 = 12;
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(4)).await;
    let witness = Witness::of_attempts(ATTEMPTS);
    let handle = async |event: Event| {
        let number: u64 = event.json()?;
        // One attempt in a hundred is over its time limit.
        if number.is_multiple_of(100) && event.context().attempt() == 1 {
            sleep(Duration::from_mins(1)).await;
        }
        Ok::<_, Failure>(())
    };
    let faults = Faults::seeded(11).failing(0.1).panicking(0.02);
    let orders = bus
        .subscription("orders")
        .retry(attempts(ATTEMPTS))
        .time_limit(Duration::from_millis(50))
        .envelope_handler(witness.watching(faults.around(handle)))
        .await
        .expect("subscribed");
    publish_watched(&witness, &bus, 30, 50).await;
    settled(&bus).await;
    let verdict = witness.verdict();
    verdict.assert_ok();
    assert_eq!(verdict.totals().messages, 1500);
    assert!(verdict.totals().failed > 100, "{verdict}");
    assert_eq!(orders.stats().failed, verdict.totals().failed);
    assert_eq!(orders.stats().handled, 1500);
}

pub(crate) async fn keys_run_in_parallel<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    // All in one partition: parallel does not mean by partition.
    declare(&bus, "orders", at.partitions(1)).await;
    let all_at_once = Arc::new(Barrier::new(32));
    bus.subscribe_envelope("orders", move |_| {
        let all_at_once = all_at_once.clone();
        async move {
            all_at_once.wait().await;
            Ok(())
        }
    })
    .await
    .expect("subscribed");
    for key in 0..32 {
        publish(&bus, "orders", &format!("order-{key}"), [1]).await;
    }
    settled(&bus).await;
}

pub(crate) async fn a_slow_key_delays_only_itself<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(1)).await;
    let (gate, log) = (Gate::closed(), Log::default());
    let (slow, seen) = (gate.clone(), log.clone());
    let orders = bus
        .subscribe_envelope("orders", move |event| {
            let (gate, log) = (slow.clone(), seen.clone());
            async move {
                if event.aggregate_id().as_str() == "slow" {
                    gate.pass().await;
                }
                log.note(&event);
                Ok(())
            }
        })
        .await
        .expect("subscribed");
    for number in 0..50 {
        publish(&bus, "orders", "slow", [number]).await;
        publish(&bus, "orders", &format!("quick-{}", number % 5), [number]).await;
    }
    wait_for!(log.len() == 50, "the others are done");
    assert_eq!(log.of("slow"), [] as [u64; 0]);
    assert_eq!(orders.stats().handled, 50);
    gate.open();
    settled(&bus).await;
    assert_eq!(log.of("slow"), (0..50).collect::<Vec<_>>());
}

pub(crate) async fn a_slow_key_with_a_long_backlog_delays_only_itself<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(1)).await;
    let (gate, log) = (Gate::closed(), Log::default());
    let subscribe = async || {
        let (gate, seen) = (gate.clone(), log.clone());
        let orders = bus.subscription("orders").lane_bound(5);
        let orders = orders.envelope(move |event| {
            let (gate, log) = (gate.clone(), seen.clone());
            async move {
                if event.aggregate_id().as_str().starts_with("slow") {
                    gate.pass().await;
                }
                log.note(&event);
                Ok(())
            }
        });
        orders.await.expect("subscribed")
    };
    let orders = subscribe().await;
    let mut events = Vec::new();
    for number in 0..200 {
        for key in ["slow-1", "slow-2", "quick"] {
            events.push(event(key, number));
        }
    }
    let published = bus.publish_envelope_batch("orders", &events).await;
    published.expect("published");
    // Far more wait than a lane holds, and they hold up nobody.
    wait_for!(log.len() == 200, "the quick one is done");
    assert_eq!(log.of("quick"), (0..200).collect::<Vec<_>>());
    // Those that wait are as safe as the others. Closing gives the broker a second to take what was settled, and it may
    // need longer.
    left(&bus, "default", 400).await;
    orders.close(Duration::from_millis(20)).await;
    let orders = subscribe().await;
    publish(&bus, "orders", "quick", [200]).await;
    wait_for!(log.len() == 201, "the quick one goes on");
    gate.open();
    publish(&bus, "orders", "slow-1", [200]).await;
    settled(&bus).await;
    assert_eq!(log.of("slow-1"), (0..=200).collect::<Vec<_>>());
    assert_eq!(log.of("slow-2"), (0..200).collect::<Vec<_>>());
    assert_eq!(log.of("quick"), (0..=200).collect::<Vec<_>>());
    assert_eq!(orders.stats().handled, 402);
}

pub(crate) async fn a_key_that_waits_for_its_retry_delays_only_itself<F: Fixture>(at: &F) {
    // One worker: a key that waits must not hold it.
    let options = Options::default().workers(1);
    let bus = at.open(Bus::builder().lanes(options)).await.expect("open");
    declare(&bus, "orders", at.partitions(1)).await;
    let log = Log::default();
    let seen = log.clone();
    let an_hour = Duration::from_hours(1);
    let retry = laneway::retry::RetryPolicy::exponential(2, an_hour, an_hour).expect("valid");
    let orders = bus
        .subscription("orders")
        .retry(retry)
        .envelope(move |event| {
            let log = seen.clone();
            async move {
                if event.aggregate_id().as_str() == "bad" {
                    return Err(Failure::new("not now"));
                }
                log.note(&event);
                Ok(())
            }
        })
        .await
        .expect("subscribed");
    publish(&bus, "orders", "bad", [0, 1]).await;
    publish(&bus, "orders", "good", 0..100).await;
    wait_for!(log.len() == 100, "the good ones are done");
    assert_eq!(log.of("good"), (0..100).collect::<Vec<_>>());
    assert_eq!(orders.stats().failed, 1, "the second one waits behind");
}

pub(crate) async fn events_wait_for_a_handler<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(16)).await;
    publish(&bus, "orders", "a", 0..100).await;
    publish(&bus, "orders", "b", 0..100).await;
    let log = Log::default();
    let seen = log.clone();
    bus.subscribe_envelope("orders", move |event| {
        seen.note(&event);
        async { Ok(()) }
    })
    .await
    .expect("subscribed");
    settled(&bus).await;
    for key in ["a", "b"] {
        assert_eq!(log.of(key), (0..100).collect::<Vec<_>>());
    }
}

pub(crate) async fn a_batch_of_events_is_published_in_order<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(4)).await;
    let log = Log::default();
    let seen = log.clone();
    bus.subscribe_envelope("orders", move |event| {
        let context = event.context();
        let place = u64::from(context.partition()) << 32 | context.offset();
        seen.push(event.event_id(), place);
        seen.note(&event);
        async { Ok(()) }
    })
    .await
    .expect("subscribed");
    let key = |number: u64| format!("order-{}", number % 7);
    let events: Vec<_> = (0..200).map(|number| event(&key(number), number)).collect();
    let receipts = bus.publish_envelope_batch("orders", &events).await;
    let receipts = receipts.expect("published");
    settled(&bus).await;
    for number in 0..7 {
        let of_key: Vec<_> = (0..200).filter(|n| n % 7 == number).collect();
        assert_eq!(log.of(&key(number)), of_key);
    }
    for (event, receipt) in events.iter().zip(&receipts) {
        let place = u64::from(receipt.partition) << 32 | receipt.offset;
        assert_eq!(log.of(event.event_id()), [place], "the receipt says where");
    }
    let none = bus.publish_envelope_batch("orders", &[]).await;
    assert_eq!(none.expect("nothing to do"), []);
}

pub(crate) async fn a_record_larger_than_all_room_is_handled<F: Fixture>(at: &F) {
    let little = Options::default()
        .most_topics(1)
        .total(Bound::new(100, 64 * 1024));
    let bus = at.open(Bus::builder().lanes(little)).await.expect("open");
    declare(&bus, "orders", at.partitions(1)).await;
    let log = Log::default();
    let seen = log.clone();
    bus.subscribe_envelope("orders", move |event| {
        seen.push(event.aggregate_id().as_str(), event.event_version());
        async { Ok(()) }
    })
    .await
    .expect("subscribed");
    for (version, size) in [(1, 10), (2, 1 << 20), (3, 10), (4, 1 << 20)] {
        let event = Envelope::builder("a", "Grown").event_version(version);
        let event = event.json(&"x".repeat(size)).expect("an envelope");
        bus.publish_envelope("orders", &event)
            .await
            .expect("published");
    }
    settled(&bus).await;
    assert_eq!(log.of("a"), [1, 2, 3, 4]);
}
