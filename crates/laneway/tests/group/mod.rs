//! What tests of groups share, on whatever broker.

#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod letters;
pub(crate) mod logs;
pub(crate) mod members;
pub(crate) mod ports;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use laneway::topic::Topic;
use laneway::{Bus, Envelope, Event};
use tokio::time::{Instant, sleep};
use waiting::wait_for;

/// For closing where nothing is expected to take long.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// Opens a bus.
pub(crate) async fn open(address: &str) -> Bus {
    let bus = Bus::open(address).await;
    bus.expect("the server is there")
}

/// A domain topic with so many partitions.
pub(crate) async fn declare(bus: &Bus, name: &str, partitions: u32) {
    let topic = Topic::domain(name).partitions(partitions).build();
    let declared = bus.declare(&topic.expect("a valid topic")).await;
    declared.expect("declared");
}

/// Event `number` of an aggregate.
pub(crate) fn event(key: &str, number: u64) -> Envelope {
    let event = Envelope::builder(key, "Happened").json(&number);
    event.expect("a valid envelope")
}

/// Publishes an event, again and again until the server has it: each call has a deadline of its own.
pub(crate) async fn publish(bus: &Bus, topic: &str, event: &Envelope) {
    let deadline = Instant::now() + Duration::from_mins(2);
    while let Err(error) = bus.publish_envelope(topic, event).await {
        assert!(Instant::now() < deadline, "{error}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until a group has settled everything, whoever of its members does it.
pub(crate) async fn settled(bus: &Bus, topic: &str) {
    wait_for!(
        {
            let lags = bus.backlog(topic, "default").await;
            lags.is_ok_and(|lags| lags.iter().all(|lag| lag.records == 0))
        },
        "everything is settled"
    );
}

/// A start of a handler.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) member: &'static str,
    pub(crate) key: String,
    pub(crate) number: u64,
    pub(crate) partition: u32,
    pub(crate) epoch: u64,
    pub(crate) at: std::time::Instant,
}

/// All starts of handlers of all members, in the order in which they happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Starts(Arc<Mutex<Vec<Start>>>);

impl Starts {
    pub(crate) fn note(&self, member: &'static str, event: &Event) {
        let context = event.context();
        let start = Start {
            member,
            key: event.aggregate_id().as_str().to_owned(),
            number: event.json().expect("a number"),
            partition: context.partition(),
            epoch: context.epoch(),
            at: std::time::Instant::now(),
        };
        self.0.lock().expect("no panic in here").push(start);
    }

    pub(crate) fn all(&self) -> Vec<Start> {
        self.0.lock().expect("no panic in here").clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().expect("no panic in here").len()
    }

    /// How many different events were started.
    pub(crate) fn distinct(&self) -> usize {
        let all = self.all();
        let distinct: std::collections::HashSet<_> =
            all.iter().map(|start| (&start.key, start.number)).collect();
        distinct.len()
    }

    /// Per key, no event starts before all earlier ones of the key have: after a takeover some come
    /// again, from there on in order. And no owner starts anything once a later one has.
    pub(crate) fn assert_in_order(&self) {
        let mut next = std::collections::HashMap::new();
        let mut epochs = std::collections::HashMap::new();
        for start in self.all() {
            let next = next.entry(start.key.clone()).or_insert(0);
            assert!(
                start.number <= *next,
                "{start:?} came before number {next} of its key"
            );
            *next = (*next).max(start.number + 1);
            let epoch = epochs.entry(start.partition).or_insert(0);
            assert!(
                start.epoch >= *epoch,
                "{start:?} came after the owner of epoch {epoch} had begun"
            );
            *epoch = start.epoch;
        }
    }

    /// How many partitions each member was the last to handle.
    pub(crate) fn shares(&self) -> std::collections::HashMap<&'static str, usize> {
        let mut last = std::collections::HashMap::new();
        for start in self.all() {
            last.insert(start.partition, start.member);
        }
        let mut shares = std::collections::HashMap::new();
        for member in last.into_values() {
            *shares.entry(member).or_insert(0) += 1;
        }
        shares
    }
}
