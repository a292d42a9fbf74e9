//! Plain messages: at most once, on whatever worker is free.

use std::sync::Arc;
use std::time::Duration;

use laneway::lanes::LaneBy;
use laneway::topic::Topic;
use laneway::{Bus, Exhausted, Failure, Outgoing, RateLimit, Subscription};
use tokio::sync::Barrier;
use waiting::wait_for;

use super::Fixture;
use super::support::{Gate, Log, SOON, settled};

async fn declare(bus: &Bus, partitions: u32) {
    let topic = Topic::plain("news").partitions(partitions).build();
    let declared = bus.declare(&topic.expect("a valid topic")).await;
    declared.expect("declared");
}

fn messages(numbers: std::ops::Range<u64>) -> impl Iterator<Item = Outgoing> {
    numbers.map(|number| Outgoing::new(number.to_string()))
}

async fn publish(bus: &Bus, numbers: std::ops::Range<u64>) {
    let published = bus.publish_batch("news", messages(numbers)).await;
    published.expect("published");
}

async fn subscribe(bus: &Bus, log: &Log) -> Subscription {
    let seen = log.clone();
    bus.subscribe("news", move |message| {
        seen.note_message(&message);
        async { Ok(()) }
    })
    .await
    .expect("subscribed")
}

pub(crate) async fn every_message_is_handled_once<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, at.partitions(4)).await;
    publish(&bus, 0..500).await;
    let log = Log::default();
    let news = subscribe(&bus, &log).await;
    for number in 500..600 {
        let published = bus.publish("news", number.to_string()).await;
        published.expect("published");
    }
    settled(&bus).await;
    assert_eq!(log.sorted(), (0..600).collect::<Vec<_>>());
    assert_eq!(news.stats().handled, 600);
}

pub(crate) async fn a_failed_message_is_counted_and_does_not_come_again<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    let log = Log::default();
    let seen = log.clone();
    let news = bus
        .subscription("news")
        .time_limit(Duration::from_millis(50))
        .message(move |message| {
            seen.note_message(&message);
            async move {
                match message.payload().as_ref() {
                    b"1" => Err(Failure::new("no")),
                    b"2" => panic!("no"),
                    b"3" => std::future::pending().await,
                    _ => Ok(()),
                }
            }
        })
        .await
        .expect("subscribed");
    publish(&bus, 0..10).await;
    settled(&bus).await;
    assert_eq!(log.sorted(), (0..10).collect::<Vec<_>>());
    let figures = news.stats();
    assert_eq!((figures.handled, figures.failed), (7, 3));
    assert_eq!(figures.dead_lettered, 0);
    news.close(SOON).await;
    subscribe(&bus, &log).await;
    publish(&bus, 10..11).await;
    settled(&bus).await;
    assert_eq!(log.len(), 11, "not even for the next one");
    let dead = bus.dead_letters("news").await.expect("there");
    assert_eq!(dead.list(10).await.expect("a list").len(), 0);
}

pub(crate) async fn settings_of_events_are_refused_for_messages<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    let news = || bus.subscription("news");
    let settings = [
        ("retry", news().retry(super::support::attempts(5))),
        ("on_exhausted", news().on_exhausted(Exhausted::Stop)),
        ("dedup", news().dedup(10)),
        ("lane_by", news().lane_by(LaneBy::Key)),
        ("lane_bound", news().lane_bound(10)),
    ];
    for (name, subscription) in settings {
        let refused = subscription.message(async |_| Ok(())).await;
        let error = refused.expect_err("it does nothing there").to_string();
        assert!(
            error.starts_with(name) && error.contains("topic news is a plain topic"),
            "{error}"
        );
    }
    bus.subscribe("news", async |_| Ok(())).await.expect("free");
}

pub(crate) async fn messages_run_in_parallel<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, at.partitions(1)).await;
    let all_at_once = Arc::new(Barrier::new(32));
    bus.subscribe("news", move |_| {
        let all_at_once = all_at_once.clone();
        async move {
            all_at_once.wait().await;
            Ok(())
        }
    })
    .await
    .expect("subscribed");
    for _ in 0..32 {
        // Whatever id they have.
        let message = Outgoing::new("x").header("X-Aggregate-ID", "a");
        let message = message.expect("a valid header");
        bus.publish("news", message).await.expect("published");
    }
    settled(&bus).await;
}

pub(crate) async fn messages_go_to_the_partitions_in_turn<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, 4).await;
    let mut partitions = Vec::new();
    for _ in 0..8 {
        let receipt = bus.publish("news", "x").await.expect("published");
        partitions.push(receipt.partition);
        // What goes to other topics makes no difference.
        bus.publish("other", "x").await.expect("published");
    }
    let batch = bus.publish_batch("news", messages(0..4)).await;
    let batch = batch.expect("published");
    partitions.extend(batch.iter().map(|receipt| receipt.partition));
    for four in partitions.chunks(4) {
        let mut four = four.to_vec();
        four.sort_unstable();
        assert_eq!(four, [0, 1, 2, 3], "{partitions:?}");
    }
    let lags = bus.backlog("news", "nobody").await.expect("an answer");
    assert!(lags.iter().all(|lag| lag.records == 3), "{lags:?}");
}

pub(crate) async fn closing_loses_and_repeats_nothing<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, at.partitions(2)).await;
    let log = Log::default();
    for round in 0..5_u64 {
        publish(&bus, 500 * round..500 * (round + 1)).await;
        let news = subscribe(&bus, &log).await;
        wait_for!(log.len() > 0, "it is at it");
        let report = news.close(SOON).await;
        assert!(report.is_clean(), "{report:?}");
    }
    let news = subscribe(&bus, &log).await;
    settled(&bus).await;
    news.close(SOON).await;
    assert_eq!(log.sorted(), (0..2500).collect::<Vec<_>>());
}

pub(crate) async fn what_does_not_fit_into_the_deadline_is_reported<F: Fixture>(at: &F) {
    let one_worker = laneway::lanes::Options::default().workers(1);
    let bus = at.open(Bus::builder().lanes(one_worker)).await;
    let bus = bus.expect("the broker can be opened");
    declare(&bus, at.partitions(1)).await;
    let (gate, log) = (Gate::closed(), Log::default());
    let (held, seen) = (gate.clone(), log.clone());
    let news = bus
        .subscription("news")
        .time_limit(None)
        .message(move |message| {
            seen.note_message(&message);
            let gate = held.clone();
            async move {
                gate.pass().await;
                Ok(())
            }
        })
        .await
        .expect("subscribed");
    publish(&bus, 0..100).await;
    wait_for!(
        {
            let lags = bus.backlog("news", "default").await.expect("an answer");
            log.len() == 1
                && lags.iter().all(|lag| lag.records == 0)
                && bus.lanes().stats().topics[0].depth.messages == 100
        },
        "all were taken"
    );
    let report = news.close(Duration::from_millis(50)).await;
    // Where the machine is too busy to drop its future, the one that runs is told apart.
    let left = report.left.iter().map(|left| left.abandoned + left.stuck);
    let left: usize = left.sum();
    assert_eq!(
        left, 100,
        "they were taken and do not come again: {report:?}"
    );
    assert_eq!(news.stats().failed, 0, "it is nobody's fault");
}

pub(crate) async fn a_rate_limit_leaves_messages_in_the_broker<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, at.partitions(1)).await;
    publish(&bus, 0..100).await;
    let log = Log::default();
    let seen = log.clone();
    let news = bus
        .subscription("news")
        .rate_limit(RateLimit::per_second(1).burst(3))
        .message(move |message| {
            seen.note_message(&message);
            async { Ok(()) }
        })
        .await
        .expect("subscribed");
    wait_for!(log.len() >= 3, "the first are handled");
    let report = news.close(SOON).await;
    assert!(report.is_clean(), "{report:?}");
    // Those that waited for their turn were not taken.
    subscribe(&bus, &log).await;
    settled(&bus).await;
    assert_eq!(log.sorted(), (0..100).collect::<Vec<_>>());
}
