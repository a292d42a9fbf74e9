//! The bus on a broker in trouble. Time is virtual here.

mod blocking;
mod closing;
mod delayed;
mod letters;
mod overflow;
mod owners;
mod parking;
mod releases;
mod restarts;
mod seams;
mod settings;
mod troubled;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep};
use waiting::wait_for;

use self::troubled::{Trouble, Troubled};
use super::{Bus, BusLimits, Error, Exhausted, State, Subscription};
use crate::retry::RetryPolicy;
use crate::settle::Position;
use crate::testing;
use crate::topic::Topic;
use crate::{Envelope, Failure};

const DEADLINE: Duration = Duration::from_secs(3);

async fn bus() -> (Bus, Troubled) {
    let broker = Troubled::new().await;
    let bus = Bus::builder().deadline(DEADLINE);
    (bus.over(Arc::new(broker.clone())).unwrap(), broker)
}

fn event(key: &str) -> Envelope {
    Envelope::builder(key, "Happened").json(&json!(1)).unwrap()
}

async fn one_partition(bus: &Bus) {
    let topic = Topic::domain("orders").partitions(1).build().unwrap();
    bus.declare(&topic).await.unwrap();
}

async fn publish(bus: &Bus, key: &str) {
    bus.publish_envelope("orders", &event(key)).await.unwrap();
}

async fn subscribe(bus: &Bus) -> Subscription {
    bus.subscribe_envelope("orders", async |_| Ok(()))
        .await
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn every_call_has_a_deadline() {
    let (bus, broker) = bus().await;
    publish(&bus, "a").await;
    bus.publish("news", "hello").await.unwrap();
    subscribe(&bus).await;
    let dead = bus.dead_letters("orders").await.unwrap();
    let parked = bus.parked("orders").await.unwrap();
    testing::settled(&bus).await.unwrap();
    broker.begin(Trouble::Stalls);

    let timed_out = |error: Option<Error>| {
        let error = error.expect("it cannot have worked");
        assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    };
    let began = Instant::now();
    timed_out(bus.publish_envelope("orders", &event("a")).await.err());
    assert_eq!(began.elapsed(), DEADLINE, "and that is it");
    timed_out(
        bus.publish_envelope_batch("orders", &[event("a")])
            .await
            .err(),
    );
    timed_out(bus.publish("news", "hello").await.err());
    timed_out(bus.publish_batch("news", ["hello".into()]).await.err());
    timed_out(bus.publish("new", "hello").await.err());
    let topic = Topic::domain("more").build().unwrap();
    timed_out(bus.declare(&topic).await.err());
    timed_out(bus.describe("orders").await.err());
    timed_out(bus.topics().await.err());
    timed_out(bus.delete("orders").await.err());
    timed_out(bus.backlog("orders", "g").await.err());
    timed_out(bus.dead_letters("orders").await.err());
    timed_out(bus.parked("orders").await.err());
    timed_out(dead.list(1).await.err());
    timed_out(dead.replay_all().await.err());
    timed_out(dead.discard(&[0]).await.err());
    timed_out(parked.list(1).await.err());
    timed_out(parked.keys().await.err());
    timed_out(parked.release("g", "a").await.err());
    timed_out(parked.discard(&[0]).await.err());
    timed_out(bus.subscribe("news", async |_| Ok(())).await.err());
    let other = bus.subscription("orders").group("other");
    timed_out(other.envelope(async |_| Ok(())).await.err());
    let health = bus.health().await;
    assert!(health.broker.unwrap().contains("took longer"));
    timed_out(bus.close(Duration::from_secs(1)).await.err());
}

#[tokio::test(start_paused = true)]
async fn a_failed_commit_is_told_and_tried_again_until_it_works() {
    let (bus, broker) = bus().await;
    one_partition(&bus).await;
    let orders = subscribe(&bus).await;
    broker.begin(Trouble::Commits);
    publish(&bus, "a").await;
    let failing = async || matches!(orders.state(), State::Failing(_));
    wait_for!(failing().await, "failing");
    assert!(!bus.health().await.is_well());
    let before = broker.commits().len();
    sleep(Duration::from_secs(10)).await;
    let tried = broker.commits().len() - before;
    assert!((15..=25).contains(&tried), "twice a second, not {tried}");
    // Reading works, which does not make the commits work.
    publish(&bus, "b").await;
    wait_for!(orders.stats().handled == 2, "handled");
    assert!(failing().await);
    broker.end(Trouble::Commits);
    testing::settled(&bus).await.unwrap();
    wait_for!(bus.health().await.is_well(), "well");
    assert_eq!(orders.stats().handled, 2, "each once");
}

#[tokio::test(start_paused = true)]
async fn a_failed_read_is_told_until_it_works() {
    let (bus, broker) = bus().await;
    let two = Topic::domain("orders").partitions(2).build().unwrap();
    bus.declare(&two).await.unwrap();
    broker.begin(Trouble::Reads);
    let orders = subscribe(&bus).await;
    for key in ["a", "b", "c", "d"] {
        publish(&bus, key).await;
    }
    let failing = async || matches!(orders.state(), State::Failing(_));
    wait_for!(failing().await, "failing");
    // The other partition is well, which does not make this one well.
    wait_for!(orders.stats().handled > 0, "handled");
    sleep(Duration::from_secs(5)).await;
    assert!(failing().await);
    broker.end(Trouble::Reads);
    testing::settled(&bus).await.unwrap();
    assert_eq!(orders.stats().handled, 4);
    assert!(bus.health().await.is_well());
}

#[tokio::test(start_paused = true)]
async fn an_event_is_settled_only_when_its_dead_letter_is_written() {
    let (bus, broker) = bus().await;
    one_partition(&bus).await;
    let orders = bus
        .subscription("orders")
        .retry(RetryPolicy::none())
        .envelope(async |event| match event.aggregate_id().as_str() {
            "bad" => Err(Failure::new("no")),
            _ => Ok(()),
        })
        .await
        .unwrap();
    broker.begin(Trouble::Letters);
    for key in ["bad", "good", "bad"] {
        publish(&bus, key).await;
    }
    let lag = async || bus.backlog("orders", "default").await.unwrap()[0].records;
    wait_for!(lag().await == 2, "the good one is settled");
    sleep(Duration::from_mins(1)).await;
    assert_eq!(lag().await, 2, "the bad ones wait, in order");
    assert_eq!(orders.stats().dead_lettered, 0);
    broker.end(Trouble::Letters);
    testing::settled_within(&bus, Duration::from_mins(1))
        .await
        .unwrap();
    let dead = bus.dead_letters("orders").await.unwrap();
    assert_eq!(dead.list(10).await.unwrap().len(), 2);
}

/// Puts three events aside, the second one in trouble.
async fn put_three_aside(exhausted: Exhausted, trouble: Trouble) {
    let (bus, broker) = bus().await;
    one_partition(&bus).await;
    let orders = bus
        .subscription("orders")
        .retry(RetryPolicy::none())
        .time_limit(Duration::from_secs(1))
        .on_exhausted(exhausted)
        .envelope(async |_| Err(Failure::new("no")))
        .await
        .unwrap();
    let letters = async || {
        if exhausted == Exhausted::ParkKey {
            let parked = bus.parked("orders").await.unwrap();
            return parked.list(10).await.unwrap();
        }
        let dead = bus.dead_letters("orders").await.unwrap();
        dead.list(10).await.unwrap()
    };
    // The topic for them is there.
    publish(&bus, "bad").await;
    wait_for!(letters().await.len() == 1, "one is put aside");
    broker.begin(trouble);
    publish(&bus, "bad").await;
    wait_for!(letters().await.len() == 2, "two are");
    broker.end(trouble);
    publish(&bus, "bad").await;
    testing::settled_within(&bus, Duration::from_mins(1))
        .await
        .unwrap();
    let places: Vec<_> = letters().await.iter().map(|letter| letter.origin).collect();
    assert_eq!(
        places,
        [(0, 0), (0, 1), (0, 2)],
        "{exhausted:?} {trouble:?}"
    );
    let stats = orders.stats();
    assert_eq!(stats.parked + stats.dead_lettered, 3);
}

#[tokio::test(start_paused = true)]
async fn what_was_put_aside_without_an_answer_is_not_put_aside_again() {
    put_three_aside(Exhausted::ParkKey, Trouble::LetterAnswers).await;
    put_three_aside(Exhausted::DeadLetter, Trouble::LetterAnswers).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_put_aside_for_longer_than_the_time_limit_is_put_aside_once() {
    put_three_aside(Exhausted::ParkKey, Trouble::SlowLetters).await;
    put_three_aside(Exhausted::DeadLetter, Trouble::SlowLetters).await;
}

#[tokio::test(start_paused = true)]
async fn a_commit_never_lands_behind_a_newer_one() {
    let (bus, broker) = bus().await;
    broker.begin(Trouble::SlowCommits);
    subscribe(&bus).await;
    bus.subscribe("news", async |_| Ok(())).await.unwrap();
    for round in 0..300 {
        publish(&bus, &format!("key-{}", round % 10)).await;
        bus.publish("news", "hello").await.unwrap();
        sleep(Duration::from_millis(round % 7)).await;
    }
    testing::settled(&bus).await.unwrap();
    let mut last: HashMap<_, Position> = HashMap::new();
    for commit in broker.commits() {
        let last = last.entry((commit.topic, commit.partition)).or_default();
        assert!(last.is_behind(&commit.position), "{last:?} was there");
        *last = commit.position;
    }
    assert_eq!(last.len(), 10 + 16, "all partitions that were used");
}

#[tokio::test(start_paused = true)]
async fn a_bus_closes_although_its_broker_stalls() {
    let (bus, broker) = bus().await;
    subscribe(&bus).await;
    publish(&bus, "a").await;
    broker.begin(Trouble::Stalls);
    let began = Instant::now();
    let closed = bus.close(Duration::from_secs(1)).await;
    assert!(matches!(closed, Err(Error::TimedOut { .. })));
    assert!(began.elapsed() < Duration::from_mins(2), "{began:?}");
    let again = bus.close(Duration::ZERO).await;
    assert!(matches!(again, Err(Error::Closed)));
}
