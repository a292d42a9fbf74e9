//! Partitions that come and go. Time is virtual, except that of a lease.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tokio::sync::Semaphore;
use waiting::wait_for;

use super::*;
use crate::Event;
use crate::broker::Broker;
use crate::broker::lease::Lease;
use crate::bus::dead_letters::fencing::Fence;
use crate::topic::{Growth, Strategy, TopicName};

/// One that nobody renews.
const LONG: Duration = Duration::from_hours(1);

struct Stage {
    bus: Bus,
    broker: Troubled,
    lease: Arc<Lease>,
    orders: Subscription,
    begun: Arc<AtomicUsize>,
    gate: Arc<Semaphore>,
}

impl Stage {
    /// A partition that is ours until then, and a handler that waits to be let through.
    async fn new(valid_until: Instant) -> Self {
        let lease = Arc::new(Lease::until(valid_until));
        let broker = Troubled::held(&lease).await;
        let bus = Bus::builder().deadline(DEADLINE);
        let bus = bus.over(Arc::new(broker.clone())).unwrap();
        one_partition(&bus).await;
        let (begun, gate) = (Arc::<AtomicUsize>::default(), Arc::new(Semaphore::new(0)));
        let orders = bus.subscribe_envelope("orders", {
            let (begun, gate) = (begun.clone(), gate.clone());
            move |_| {
                let (begun, gate) = (begun.clone(), gate.clone());
                async move {
                    begun.fetch_add(1, Ordering::SeqCst);
                    gate.acquire().await.unwrap().forget();
                    Ok(())
                }
            }
        });
        Self {
            orders: orders.await.unwrap(),
            bus,
            broker,
            lease,
            begun,
            gate,
        }
    }

    fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    async fn committed(&self) -> u64 {
        let topic = crate::topic::TopicName::new("orders").unwrap();
        let position = crate::broker::Broker::position(&self.broker, &topic, 0, "default");
        position.await.unwrap().map_or(0, |position| position.low())
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_is_not_sure_starts_nothing_until_it_is() {
    let stage = Stage::new(Instant::now()).await;
    stage.gate.add_permits(10);
    publish(&stage.bus, "a").await;
    publish(&stage.bus, "b").await;
    sleep(Duration::from_mins(1)).await;
    assert_eq!(stage.begun(), 0);
    assert_eq!(stage.orders.stats().failed, 0, "it counts as no attempt");
    stage.lease.extend(Instant::now() + LONG);
    wait_for!(stage.orders.stats().handled == 2, "handled");
}

#[tokio::test(start_paused = true)]
async fn a_revoked_partition_is_released_when_what_runs_is_done() {
    let stage = Stage::new(Instant::now() + LONG).await;
    for _ in 0..3 {
        publish(&stage.bus, "a").await;
    }
    wait_for!(stage.begun() == 1, "begun");
    stage.lease.revoke();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(stage.broker.released(), [] as [u32; 0], "it waits");
    stage.gate.add_permits(10);
    wait_for!(stage.broker.released() == [0], "released");
    assert_eq!(stage.begun(), 1, "nothing new was started");
    assert_eq!(stage.committed().await, 1);
    assert!(stage.bus.health().await.is_well());
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_does_not_end_keeps_a_partition_only_for_a_while() {
    let stage = Stage::new(Instant::now() + LONG).await;
    publish(&stage.bus, "a").await;
    wait_for!(stage.begun() == 1, "begun");
    stage.lease.revoke();
    wait_for!(stage.broker.released() == [0], "released");
    stage.gate.add_permits(1);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(stage.gate.available_permits(), 1, "it was cancelled");
    assert_eq!(stage.committed().await, 0);
    assert_eq!(
        stage.orders.stats().failed,
        0,
        "a cancelled attempt is no failed one"
    );
}

/// Notes whether its handler is gone before the partition is.
struct Gone {
    broker: Troubled,
    was_released: Arc<Mutex<Option<bool>>>,
}

impl Drop for Gone {
    fn drop(&mut self) {
        let was_released = !self.broker.released().is_empty();
        *self.was_released.lock().unwrap() = Some(was_released);
    }
}

#[tokio::test(start_paused = true)]
async fn a_partition_is_released_when_the_handlers_that_were_cancelled_are_gone() {
    let lease = Arc::new(Lease::until(Instant::now() + LONG));
    let broker = Troubled::held(&lease).await;
    let bus = Bus::builder().deadline(DEADLINE);
    let bus = bus.over(Arc::new(broker.clone())).unwrap();
    one_partition(&bus).await;
    let was_released = Arc::<Mutex<Option<bool>>>::default();
    let begun = Arc::<AtomicUsize>::default();
    let orders = bus.subscribe_envelope("orders", {
        let (broker, was_released, begun) = (broker.clone(), was_released.clone(), begun.clone());
        move |_| {
            let gone = Gone {
                broker: broker.clone(),
                was_released: was_released.clone(),
            };
            begun.fetch_add(1, Ordering::SeqCst);
            async move {
                let _gone = gone;
                std::future::pending().await
            }
        }
    });
    orders.await.unwrap();
    publish(&bus, "a").await;
    wait_for!(begun.load(Ordering::SeqCst) == 1, "begun");
    lease.revoke();
    wait_for!(broker.released() == [0], "released");
    assert_eq!(*was_released.lock().unwrap(), Some(false));
}

#[tokio::test(start_paused = true)]
async fn what_runs_in_a_partition_that_is_lost_is_cancelled_and_counts_for_nothing() {
    let stage = Stage::new(Instant::now() + LONG).await;
    for key in ["a", "a", "b"] {
        publish(&stage.bus, key).await;
    }
    wait_for!(stage.begun() == 2, "begun");
    stage.lease.lose();
    sleep(Duration::from_secs(1)).await;
    stage.gate.add_permits(10);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(stage.begun(), 2, "nothing new was started");
    assert_eq!(stage.gate.available_permits(), 10, "they were cancelled");
    assert_eq!(stage.committed().await, 0);
    assert_eq!(stage.broker.released(), [] as [u32; 0]);
    assert_eq!(stage.bus.lanes().stats().topics[0].depth.messages, 0);
}

#[tokio::test(start_paused = true)]
async fn closing_releases_what_is_held() {
    let stage = Stage::new(Instant::now() + LONG).await;
    publish(&stage.bus, "a").await;
    stage.gate.add_permits(1);
    wait_for!(stage.orders.stats().handled == 1, "handled");
    stage.orders.close(Duration::from_secs(1)).await;
    assert_eq!(stage.broker.released(), [0]);
    assert_eq!(stage.committed().await, 1);
}

#[tokio::test(start_paused = true)]
async fn what_runs_while_a_partition_drains_is_cancelled_when_it_is_lost() {
    let stage = Stage::new(Instant::now() + LONG).await;
    publish(&stage.bus, "a").await;
    wait_for!(stage.begun() == 1, "begun");
    stage.lease.revoke();
    sleep(Duration::from_secs(1)).await;
    stage.lease.lose();
    sleep(Duration::from_millis(100)).await;
    stage.gate.add_permits(1);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(
        stage.gate.available_permits(),
        1,
        "it was cancelled at once"
    );
    assert_eq!(stage.committed().await, 0);
    assert_eq!(
        stage.broker.released(),
        [] as [u32; 0],
        "it is not ours to give"
    );
}

#[tokio::test(start_paused = true)]
async fn what_runs_while_a_subscription_closes_is_cancelled_when_its_partition_is_lost() {
    let stage = Stage::new(Instant::now() + LONG).await;
    publish(&stage.bus, "a").await;
    wait_for!(stage.begun() == 1, "begun");
    let closing = tokio::spawn({
        let orders = stage.orders.clone();
        async move { orders.close(Duration::from_mins(1)).await }
    });
    sleep(Duration::from_secs(1)).await;
    assert!(!closing.is_finished(), "the handler may finish");
    stage.lease.lose();
    sleep(Duration::from_millis(100)).await;
    stage.gate.add_permits(1);
    closing.await.unwrap();
    assert_eq!(stage.gate.available_permits(), 1, "it was cancelled");
    assert_eq!(stage.committed().await, 0);
}

/// A release handles many events in one attempt. The lease is real time, so that is what passes here.
#[tokio::test]
async fn a_release_starts_no_event_that_it_is_not_sure_of() {
    let short = Duration::from_millis(300);
    let lease = Arc::new(Lease::until(Instant::now() + short));
    let broker = Troubled::held(&lease).await;
    let bus = Bus::builder().deadline(DEADLINE);
    let bus = bus.over(Arc::new(broker.clone())).unwrap();
    one_partition(&bus).await;
    let is_bad = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let begun = Arc::<AtomicUsize>::default();
    // Confirmed until the first of them has begun.
    tokio::spawn({
        let (begun, lease) = (begun.clone(), lease.clone());
        async move {
            while begun.load(Ordering::SeqCst) == 0 {
                lease.extend(Instant::now() + short);
                sleep(Duration::from_millis(20)).await;
            }
        }
    });
    let subscription = bus
        .subscription("orders")
        .retry(RetryPolicy::none())
        .on_exhausted(Exhausted::ParkKey);
    let orders = subscription.envelope({
        let (is_bad, begun, lease) = (is_bad.clone(), begun.clone(), lease.clone());
        move |_| {
            let (is_bad, begun, lease) = (is_bad.clone(), begun.clone(), lease.clone());
            async move {
                if is_bad.load(Ordering::SeqCst) {
                    return Err(Failure::new("no"));
                }
                begun.fetch_add(1, Ordering::SeqCst);
                // The member is frozen, and wakes up too late.
                while begun.load(Ordering::SeqCst) == 1 && lease.is_valid() {
                    sleep(Duration::from_millis(5)).await;
                }
                Ok(())
            }
        }
    });
    let orders = orders.await.unwrap();
    for _ in 0..3 {
        publish(&bus, "a").await;
    }
    let parked = async || orders.stats().parked;
    wait_for!(parked().await == 3, "parked");
    is_bad.store(false, Ordering::SeqCst);
    bus.parked("orders")
        .await
        .unwrap()
        .release("default", "a")
        .await
        .unwrap();
    wait_for!(begun.load(Ordering::SeqCst) > 0, "begun");
    wait_for!(!lease.is_valid(), "the lease is not valid");
    // It asks again and again whether it may start the next one, and does not start it.
    let asked = broker.leases_asked();
    wait_for!(broker.leases_asked() > asked + 10, "asked");
    assert_eq!(
        begun.load(Ordering::SeqCst),
        1,
        "the leases of the others are not valid"
    );
    lease.extend(Instant::now() + LONG);
    wait_for!(begun.load(Ordering::SeqCst) == 3, "begun");
}

/// At most once: what is not committed is the next owner's.
#[tokio::test(start_paused = true)]
async fn plain_messages_of_a_partition_that_is_lost_do_not_run() {
    let lease = Arc::new(Lease::until(Instant::now() + LONG));
    let broker = Troubled::held(&lease).await;
    let bus = Bus::builder().deadline(DEADLINE);
    let bus = bus.over(Arc::new(broker.clone())).unwrap();
    let topic = Topic::plain("news").partitions(1).build().unwrap();
    bus.declare(&topic).await.unwrap();
    let ran = Arc::<AtomicUsize>::default();
    let count = ran.clone();
    let news = bus.subscribe("news", move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok(()))
    });
    let news = news.await.unwrap();
    bus.publish("news", "hello").await.unwrap();
    wait_for!(ran.load(Ordering::SeqCst) == 1, "handled");
    // Another member has it, and this one is about to hear of it.
    broker.begin(Trouble::NotOurs);
    for _ in 0..3 {
        bus.publish("news", "hello").await.unwrap();
    }
    sleep(Duration::from_secs(20)).await;
    assert_eq!(ran.load(Ordering::SeqCst), 1, "nothing of it was committed");
    let report = news.close(Duration::from_secs(1)).await;
    assert!(report.is_clean(), "it is the next owner's: {report:?}");
}

/// A bus with partitions that are ours each by its own lease.
async fn two_partitions() -> (Bus, Troubled, [Arc<Lease>; 2]) {
    let leases = [0, 1].map(|_| Arc::new(Lease::until(Instant::now() + LONG)));
    let broker = Troubled::held_by(leases.to_vec()).await;
    let bus = Bus::builder().deadline(DEADLINE);
    let bus = bus.over(Arc::new(broker.clone())).unwrap();
    let two = Topic::domain("orders").partitions(2).build().unwrap();
    bus.declare(&two).await.unwrap();
    (bus, broker, leases)
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_is_lost_while_it_is_prepared_holds_up_no_other() {
    let (bus, broker, [zero, _one]) = two_partitions().await;
    broker.begin(Trouble::LateAssignments);
    let handled = Arc::<Mutex<Vec<u32>>>::default();
    let seen = handled.clone();
    let subscription = bus
        .subscription("orders")
        .on_exhausted(Exhausted::ParkKey)
        .envelope(move |event: Event| {
            seen.lock().unwrap().push(event.context().partition());
            std::future::ready(Ok(()))
        });
    let _orders = subscription.await.unwrap();
    for number in 0..20 {
        publish(&bus, &format!("key-{number}")).await;
    }
    // A rebalance gives partition 0 to another member, which fences it, while both are being prepared.
    broker.begin(Trouble::SlowLetters);
    broker.end(Trouble::LateAssignments);
    sleep(Duration::from_millis(500)).await;
    zero.revoke();
    wait_for!(broker.released() == [0], "released");
    zero.lose();
    let parked = TopicName::new("orders").unwrap().parked();
    let fence = Fence {
        group: "default".into(),
        partition: 0,
        epoch: 1 << 40,
        anew: false,
    };
    let other = broker.seen_by_another(&Arc::new(Lease::until(Instant::now() + LONG)));
    let beside = Topic::beside(parked.clone());
    let declaring = other.declare(&beside, Strategy::CreateOnly, Growth::Refused);
    declaring.await.unwrap();
    let fencing = other.publish(&parked, 0, vec![fence.record()]);
    fencing.await.unwrap();
    broker.end(Trouble::SlowLetters);
    let of_one = async || handled.lock().unwrap().contains(&1);
    wait_for!(of_one().await, "partition 1 is read");
    let of_zero = handled.lock().unwrap().contains(&0);
    assert!(!of_zero, "partition 0 is with another member");
}

/// A topic that has grown has events of one key in two partitions.
#[tokio::test(start_paused = true)]
async fn a_batch_is_of_one_partition_and_drained_with_it() {
    let (bus, broker, [_zero, one]) = two_partitions().await;
    let gate = Arc::new(Semaphore::new(0));
    let batches = Arc::<Mutex<Vec<Vec<(u32, u64)>>>>::default();
    let (passing, seen) = (gate.clone(), batches.clone());
    let subscription = bus
        .subscription("orders")
        .envelopes(10, move |events: Vec<Event>| {
            let passing = passing.clone();
            let contexts = events.iter().map(Event::context);
            let places = contexts.map(|context| (context.partition(), context.offset()));
            seen.lock().unwrap().push(places.collect());
            async move {
                passing.acquire().await.unwrap().forget();
                Ok(())
            }
        });
    let orders = subscription.await.unwrap();
    let topic = TopicName::new("orders").unwrap();
    let begun = async |count| batches.lock().unwrap().len() == count;
    for (partition, waiting) in [(0, 1), (0, 2), (1, 3), (1, 4)] {
        let record = bus.enveloped(&event("a"));
        broker
            .publish(&topic, partition, vec![record])
            .await
            .unwrap();
        let depth = || bus.lanes().stats().topics[0].depth.messages;
        wait_for!(depth() == waiting, "it waits in the lane");
    }
    wait_for!(begun(1).await, "the first has begun");
    gate.add_permits(1);
    wait_for!(begun(2).await, "the second has begun");
    gate.add_permits(1);
    wait_for!(begun(3).await, "the third has begun");
    let expected = [vec![(0, 0)], vec![(0, 1)], vec![(1, 0), (1, 1)]];
    assert_eq!(*batches.lock().unwrap(), expected);
    one.revoke();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(broker.released(), [] as [u32; 0], "it waits for the batch");
    gate.add_permits(1);
    wait_for!(broker.released() == [1], "released");
    let commits = broker.commits();
    let committed = commits.iter().filter(|commit| commit.partition == 1);
    let committed = committed.map(|commit| commit.position.low()).max();
    assert_eq!(committed, Some(2), "what ran is committed");
    assert_eq!(orders.stats().handled, 4);
    assert_eq!(orders.stats().failed, 0);
}
