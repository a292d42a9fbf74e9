//! Delayed events on a bus in trouble: what each of them comes to.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use laneway_delay::message::Reason;
use laneway_delay::{Delays, Error, Message, MessageId, Options, Refusal, Sinks, StateName};
use laneway_delay::{Submission, Target, When};
use waiting::wait_for;

use super::{DEADLINE, Trouble, Troubled, bus};
use crate::bus::{Bus, BusSink};
use crate::topic::{Partitions, Topic, partition_of};

struct Stage {
    bus: Bus,
    broker: Troubled,
    delays: Delays,
    /// The aggregates of the events that were published, in order.
    published: Arc<Mutex<Vec<String>>>,
}

async fn stage() -> Stage {
    stage_of(1).await
}

async fn stage_of(partitions: u32) -> Stage {
    let (bus, broker) = bus().await;
    let topic = Topic::domain("orders").partitions(partitions);
    bus.declare(&topic.build().unwrap()).await.unwrap();
    let published = Arc::new(Mutex::new(Vec::new()));
    let seen = published.clone();
    bus.subscribe_envelope("orders", move |event| {
        let key = event.envelope().aggregate_id().as_str().to_owned();
        seen.lock().unwrap().push(key);
        std::future::ready(Ok(()))
    })
    .await
    .unwrap();
    let sinks = Sinks {
        bus: Some(Arc::new(BusSink::new(bus.clone()))),
        callbacks: None,
    };
    let delays = Delays::in_memory(sinks, Options::default()).unwrap();
    Stage {
        bus,
        broker,
        delays,
        published,
    }
}

fn id(text: &str) -> MessageId {
    MessageId::new(text).unwrap()
}

impl Stage {
    /// Events with these keys, due together, with their keys as ids.
    async fn submit(&self, keys: &[String]) {
        let due = self.delays.now() + Duration::from_secs(1);
        let submissions = keys.iter().map(|key| {
            let target = Target::bus("orders", key, "Due");
            Submission::new("t", When::At(due), target).id(id(key))
        });
        for answer in self.delays.submit(submissions.collect()).await {
            answer.unwrap();
        }
    }

    async fn message(&self, key: &str) -> Message {
        self.delays.get(&id(key)).await.unwrap()
    }

    async fn becomes(&self, key: &str, state: StateName) {
        let is_so = async || StateName::from(self.message(key).await.record.state()) == state;
        wait_for!(is_so().await, "in that state");
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_that_the_broker_never_takes_is_a_dead_letter_and_holds_up_nobody() {
    let stage = stage().await;
    stage.broker.begin(Trouble::Poison);
    let mut keys: Vec<_> = (0..300).map(|number| format!("k{number}")).collect();
    keys.insert(150, "poison".to_owned());
    stage.submit(&keys).await;
    stage.becomes("poison", StateName::Dead).await;
    stage.becomes("k299", StateName::Delivered).await;
    let counts = stage.delays.counts()["t"];
    assert_eq!((counts.delivered, counts.dead), (300, 1));
    let dead = stage.message("poison").await;
    assert_eq!(dead.record.attempts(), 1);

    // They came at most once for each size of a batch, and not again and again.
    tokio::time::sleep(Duration::from_mins(5)).await;
    crate::testing::settled(&stage.bus).await.unwrap();
    let published = stage.published.lock().unwrap().clone();
    assert!(published.len() <= 3 * 300, "{}", published.len());
    assert!(!published.contains(&"poison".to_owned()));
    for key in keys.iter().filter(|key| *key != "poison") {
        let times = published.iter().filter(|seen| *seen == key).count();
        assert!((1..=3).contains(&times), "{key}: {times}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_that_may_have_been_published_is_not_taken_back() {
    let stage = stage().await;
    for trouble in [Trouble::Stalls, Trouble::Answers] {
        let key = format!("{trouble:?}");
        stage.broker.begin(trouble);
        stage.submit(std::slice::from_ref(&key)).await;
        wait_for!({ stage.message(&key).await.record.is_in_doubt() }, "tried");
        let message = stage.message(&key).await;
        assert!(message.record.attempts() >= 1);
        assert!(!message.history.is_empty(), "the attempt is remembered");
        let refused = stage.delays.withdraw(&id(&key)).await;
        // While the next attempt runs it is firing, between attempts it is in doubt.
        let Err(Error::Refused(Refusal { reason, .. })) = refused else {
            panic!("{refused:?}");
        };
        assert!(matches!(reason, Reason::InDoubt | Reason::WrongState));
        stage.broker.end(trouble);
        stage.becomes(&key, StateName::Delivered).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_that_was_certainly_not_published_is_taken_back() {
    let (bus, broker) = bus().await;
    let sinks = Sinks {
        bus: Some(Arc::new(BusSink::new(bus.clone()))),
        callbacks: None,
    };
    let delays = Delays::in_memory(sinks, Options::default()).unwrap();
    // Not even the topic could be asked for.
    broker.begin(Trouble::Stalls);
    let target = Target::bus("orders", "k", "Due");
    let when = When::After(Duration::from_secs(1));
    let submission = Submission::new("t", when, target).id(id("a"));
    delays.submit_one(submission).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    // It is tried at first, and rests for a moment after each try.
    let begun = tokio::time::Instant::now();
    while delays.withdraw(&id("a")).await.is_err() {
        assert!(begun.elapsed() < 2 * DEADLINE, "it is never taken back");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    broker.end(Trouble::Stalls);
    tokio::time::sleep(Duration::from_mins(1)).await;
    let counts = delays.counts()["t"];
    assert_eq!((counts.withdrawn, counts.delivered), (1, 0));
    assert!(bus.describe("orders").await.unwrap().is_none());
}

/// One batch, of which what is for some partitions goes through at once, and for others no answer comes.
#[tokio::test(start_paused = true)]
async fn of_a_batch_only_what_may_not_have_been_published_is_tried_again() {
    const PARTITIONS: u32 = 4;
    let stage = stage_of(PARTITIONS).await;
    let keys: Vec<_> = (0..200).map(|number| format!("k{number}")).collect();
    let partitions = Partitions::new(PARTITIONS).unwrap();
    let is_odd = |key: &&String| partition_of(key.as_bytes(), partitions) % 2 == 1;
    let (odd, even): (Vec<_>, Vec<_>) = keys.iter().partition(is_odd);
    assert!(odd.len() > 20 && even.len() > 20);
    stage.broker.begin(Trouble::OddAnswers);
    stage.submit(&keys).await;
    for key in &even {
        stage.becomes(key, StateName::Delivered).await;
    }
    for key in &odd {
        let in_doubt = async || stage.message(key).await.record.is_in_doubt();
        wait_for!(in_doubt().await, "in doubt");
    }
    // All of them are published, so none is taken back.
    for key in &keys {
        let refused = stage.delays.withdraw(&id(key)).await;
        assert!(
            matches!(refused, Err(Error::Refused(_))),
            "{key}: {refused:?}"
        );
    }
    stage.broker.end(Trouble::OddAnswers);
    for key in &odd {
        stage.becomes(key, StateName::Delivered).await;
    }
    crate::testing::settled(&stage.bus).await.unwrap();
    let published = stage.published.lock().unwrap().clone();
    let times = |key: &String| published.iter().filter(|seen| *seen == key).count();
    for key in even {
        assert_eq!(times(key), 1, "{key} went through at once");
        assert_eq!(stage.message(key).await.record.attempts(), 1);
    }
    assert!(odd.into_iter().all(|key| times(key) >= 1));
}
