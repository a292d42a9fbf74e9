//! Parked keys that are released while something goes wrong. Time is virtual.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Semaphore;

use super::letters::long;
use super::*;
use crate::Event;
use crate::broker::Broker;
use crate::broker::lease::Lease;
use crate::bus::dead_letters::release_request;
use crate::record::Record;
use crate::topic::TopicName;

/// A topic whose events fail until they are cured, and what was handled of it.
struct Ward {
    bus: Bus,
    broker: Troubled,
    orders: Subscription,
    is_cured: Arc<AtomicBool>,
    handled: Arc<Mutex<Vec<(u32, u64)>>>,
    gate: Arc<Semaphore>,
}

impl Ward {
    async fn open(broker: Troubled, partitions: u32) -> Self {
        let bus = Bus::builder().deadline(DEADLINE);
        let bus = bus.over(Arc::new(broker.clone())).unwrap();
        let topic = Topic::domain("orders").partitions(partitions);
        bus.declare(&topic.build().unwrap()).await.unwrap();
        let is_cured = Arc::<AtomicBool>::default();
        let handled = Arc::<Mutex<Vec<_>>>::default();
        let gate = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
        let (cured, seen, passing) = (is_cured.clone(), handled.clone(), gate.clone());
        let subscription = bus
            .subscription("orders")
            .retry(RetryPolicy::none())
            .time_limit(Duration::from_secs(1))
            .on_exhausted(Exhausted::ParkKey);
        let orders = subscription.envelope(move |event: Event| {
            let (cured, seen, passing) = (cured.clone(), seen.clone(), passing.clone());
            async move {
                if !cured.load(Ordering::SeqCst) {
                    return Err(Failure::new("no"));
                }
                passing.acquire().await.unwrap().forget();
                let place = (event.context().partition(), event.context().offset());
                seen.lock().unwrap().push(place);
                Ok(())
            }
        });
        Self {
            orders: orders.await.unwrap(),
            bus,
            broker,
            is_cured,
            handled,
            gate,
        }
    }

    /// An event of the key `a`, in a partition that a foreign producer chose.
    async fn publish_to(&self, partition: u32) {
        let before = self.orders.stats().parked;
        let record = self.bus.enveloped(&event("a"));
        self.append(partition, record).await;
        let is_parked = async || self.orders.stats().parked == before + 1;
        wait_for!(is_parked().await, "parked");
    }

    async fn append(&self, partition: u32, record: Record) {
        let orders = TopicName::new("orders").unwrap();
        let publishing = self.broker.publish(&orders, partition, vec![record]);
        publishing.await.unwrap();
    }

    async fn release(&self) {
        let parked = self.bus.parked("orders").await.unwrap();
        parked.release("default", "a").await.unwrap();
    }

    async fn parked(&self) -> usize {
        let parked = self.bus.parked("orders").await.unwrap();
        parked.list(usize::MAX).await.unwrap().len()
    }

    fn handled(&self) -> Vec<(u32, u64)> {
        self.handled.lock().unwrap().clone()
    }
}

/// The letter stays where it is when the first event was handled.
async fn release_in(trouble: Trouble) {
    let ward = Ward::open(Troubled::new().await, 1).await;
    for _ in 0..3 {
        ward.publish_to(0).await;
    }
    ward.is_cured.store(true, Ordering::SeqCst);
    ward.broker.begin(trouble);
    ward.release().await;
    wait_for!(!ward.handled().is_empty(), "one is handled");
    // It is tried no more: the request is spent.
    let lag = async || ward.bus.backlog("orders", "default").await.unwrap()[0].records;
    wait_for!(lag().await == 0, "the request is settled");
    assert!(ward.parked().await > 0, "not all of it was released");
    ward.broker.end(trouble);
    ward.release().await;
    wait_for!(ward.parked().await == 0, "all are released");
    assert_eq!(ward.handled(), [(0, 0), (0, 1), (0, 2)], "{trouble:?}");
}

#[tokio::test(start_paused = true)]
async fn what_a_release_has_handled_and_could_not_settle_is_not_handled_again() {
    release_in(Trouble::LetterSettles).await;
    release_in(Trouble::SlowLetterSettles).await;
}

/// The time limit of an attempt is over, or a caller gives up, before the broker has noted anything.
#[tokio::test(start_paused = true)]
async fn a_letter_whose_settle_is_cut_off_is_still_there() {
    let ward = Ward::open(Troubled::new().await, 1).await;
    ward.publish_to(0).await;
    ward.is_cured.store(true, Ordering::SeqCst);
    ward.broker.begin(Trouble::SlowLetterSettles);
    let parked = ward.bus.parked("orders").await.unwrap();
    let ids = [parked.list(1).await.unwrap()[0].id];
    let discarding = tokio::time::timeout(Duration::from_millis(100), parked.discard(&ids));
    assert!(discarding.await.is_err(), "its caller gives up");
    assert_eq!(ward.parked().await, 1, "after a discard");
    ward.release().await;
    wait_for!(ward.handled() == [(0, 0)], "handled");
    let lag = async || ward.bus.backlog("orders", "default").await.unwrap()[0].records;
    wait_for!(lag().await == 0, "the request is spent");
    assert_eq!(ward.parked().await, 1, "after a release");
    ward.broker.end(Trouble::SlowLetterSettles);
    ward.release().await;
    wait_for!(ward.parked().await == 0, "released");
    assert_eq!(ward.handled(), [(0, 0)], "once");
    ward.orders.close(Duration::from_secs(1)).await;

    let next = Ward::open(ward.broker.seen_by_another(&long()), 1).await;
    next.is_cured.store(true, Ordering::SeqCst);
    next.append(0, next.bus.enveloped(&event("a"))).await;
    wait_for!(
        { next.handled() == [(0, 3)] },
        "the next owner handles what comes"
    );
}

#[tokio::test(start_paused = true)]
async fn an_event_that_was_put_aside_twice_is_released_once() {
    let ward = Ward::open(Troubled::new().await, 1).await;
    ward.publish_to(0).await;
    // The first try was taken for a failure, and got there late.
    let letters = TopicName::new("orders").unwrap().parked();
    let first = ward.broker.peek(&letters, 0, 0, 1).await.unwrap();
    let again = (*first[0].record).clone();
    ward.broker.publish(&letters, 0, vec![again]).await.unwrap();
    ward.publish_to(0).await;
    assert_eq!(ward.parked().await, 3);
    ward.is_cured.store(true, Ordering::SeqCst);
    ward.release().await;
    wait_for!(ward.parked().await == 0, "all are released");
    assert_eq!(ward.handled(), [(0, 0), (0, 1)]);
}

/// A topic that has grown has events of a key in two partitions, which are lost apart.
#[tokio::test(start_paused = true)]
async fn a_release_handles_what_came_from_another_partition_as_the_owner_of_that_one() {
    let valid_until = std::time::Instant::now() + Duration::from_hours(1);
    let leases: Vec<_> = (0..2)
        .map(|_| Arc::new(Lease::until(valid_until)))
        .collect();
    let ward = Ward::open(Troubled::held_by(leases.clone()).await, 2).await;
    ward.publish_to(1).await;
    ward.publish_to(0).await;
    ward.is_cured.store(true, Ordering::SeqCst);
    ward.gate.forget_permits(Semaphore::MAX_PERMITS);
    let begun = ward.orders.stats();
    // Only the one of partition 0 is asked.
    ward.append(0, release_request("default", "a")).await;
    sleep(Duration::from_millis(100)).await;
    assert_eq!(ward.orders.stats(), begun, "it waits in the handler");
    leases[1].lose();
    sleep(Duration::from_millis(100)).await;
    ward.gate.add_permits(10);
    sleep(Duration::from_mins(1)).await;
    let of_lost = ward.handled().iter().filter(|place| place.0 == 1).count();
    assert_eq!(of_lost, 0, "the next owner of partition 1 handles it");
    // What is still ours is released by the next request.
    ward.append(0, release_request("default", "a")).await;
    wait_for!(ward.handled() == [(0, 0)], "handled");
}
