//! What the behaviours are written with.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use laneway::retry::RetryPolicy;
use laneway::testing::Witness;
use laneway::topic::Topic;
use laneway::{Bus, Envelope, Event, Failure, Message, testing};
use waiting::wait_for;

/// For closing where nothing is expected to take long.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// Event `number` of an aggregate.
pub(crate) fn event(key: &str, number: u64) -> Envelope {
    let event = Envelope::builder(key, "Happened").json(&number);
    event.expect("a valid envelope")
}

pub(crate) fn number(event: &Event) -> u64 {
    event.json().expect("a number")
}

pub(crate) fn fail_if(fails: bool, why: &str) -> Result<(), Failure> {
    if fails {
        return Err(Failure::new(why));
    }
    Ok(())
}

/// Publishes events of an aggregate, one after the other.
pub(crate) async fn publish(
    bus: &Bus,
    topic: &str,
    key: &str,
    numbers: impl IntoIterator<Item = u64>,
) {
    for number in numbers {
        let published = bus.publish_envelope(topic, &event(key, number)).await;
        published.expect("the event is published");
    }
}

/// Publishes as a witness sees it: the events of an aggregate one after the other, aggregates at
/// the same time.
pub(crate) async fn publish_watched(witness: &Witness, bus: &Bus, keys: u64, per_key: u64) {
    let publishing = (0..keys).map(|key| async move {
        for number in 0..per_key {
            let event = event(&format!("key-{key}"), per_key * key + number);
            let published = witness.publish(bus, "orders", &event).await;
            published.expect("the event is published");
        }
    });
    futures_util::future::join_all(publishing).await;
}

/// A domain topic with so many partitions.
pub(crate) async fn declare(bus: &Bus, name: &str, partitions: u32) {
    let topic = Topic::domain(name).partitions(partitions).build();
    let declared = bus.declare(&topic.expect("a valid topic")).await;
    declared.expect("the topic is declared");
}

/// So many attempts, a few milliseconds apart.
pub(crate) fn attempts(attempts: u32) -> RetryPolicy {
    let (first, longest) = (Duration::from_millis(1), Duration::from_millis(5));
    RetryPolicy::exponential(attempts, first, longest).expect("a valid policy")
}

pub(crate) async fn settled(bus: &Bus) {
    testing::settled_within(bus, Duration::from_mins(2))
        .await
        .expect("everything is settled");
}

/// Waits until a group has so many records of `orders` left, by what it has committed.
pub(crate) async fn left(bus: &Bus, group: &str, records: u64) {
    wait_for!(
        {
            let lags = bus.backlog("orders", group).await.expect("an answer");
            lags.iter().map(|lag| lag.records).sum::<u64>() == records
        },
        "group {group} has {records} left"
    );
}

/// What handlers have seen, in the order in which they did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<(String, u64)>>>);

impl Log {
    pub(crate) fn note(&self, event: &Event) {
        self.push(event.aggregate_id().as_str(), number(event));
    }

    pub(crate) fn note_message(&self, message: &Message) {
        let number = std::str::from_utf8(message.payload()).ok();
        let number = number.and_then(|text| text.parse().ok());
        self.push("", number.expect("a number"));
    }

    pub(crate) fn push(&self, key: &str, number: u64) {
        let entry = (key.to_owned(), number);
        self.0.lock().expect("no panic in here").push(entry);
    }

    pub(crate) fn all(&self) -> Vec<(String, u64)> {
        self.0.lock().expect("no panic in here").clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().expect("no panic in here").len()
    }

    /// The numbers of one aggregate.
    pub(crate) fn of(&self, key: &str) -> Vec<u64> {
        let all = self.all().into_iter();
        all.filter(|(of, _)| of == key)
            .map(|(_, number)| number)
            .collect()
    }

    /// All numbers, in ascending order.
    pub(crate) fn sorted(&self) -> Vec<u64> {
        let mut numbers: Vec<_> = self.all().into_iter().map(|(_, number)| number).collect();
        numbers.sort_unstable();
        numbers
    }
}

/// A handler waits here until it is let through.
#[derive(Clone, Debug)]
pub(crate) struct Gate(Arc<tokio::sync::Semaphore>);

impl Gate {
    pub(crate) fn closed() -> Self {
        Self(Arc::new(tokio::sync::Semaphore::new(0)))
    }

    pub(crate) fn open(&self) {
        self.0.add_permits(tokio::sync::Semaphore::MAX_PERMITS / 2);
    }

    pub(crate) async fn pass(&self) {
        let permit = self.0.acquire().await;
        permit.expect("a gate is never taken away").forget();
    }
}
