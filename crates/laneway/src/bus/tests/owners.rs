//! Partitions that come and go. Time is virtual, except that of a tenure.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tokio::sync::Semaphore;

use super::*;
use crate::broker::tenure::Tenure;

/// One that nobody renews.
const LONG: Duration = Duration::from_hours(1);

struct Stage {
    bus: Bus,
    broker: Troubled,
    tenure: Arc<Tenure>,
    orders: Subscription,
    begun: Arc<AtomicUsize>,
    gate: Arc<Semaphore>,
}

impl Stage {
    /// A partition that is ours until then, and a handler that waits to be let through.
    async fn new(sure_until: Instant) -> Self {
        let tenure = Arc::new(Tenure::until(sure_until));
        let broker = Troubled::held(&tenure).await;
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
            tenure,
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
    assert_eq!(stage.orders.figures().failed, 0, "it counts as no attempt");
    stage.tenure.extend(Instant::now() + LONG);
    until("handled", async || stage.orders.figures().handled == 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_is_wanted_is_let_go_when_what_runs_is_done() {
    let stage = Stage::new(Instant::now() + LONG).await;
    for _ in 0..3 {
        publish(&stage.bus, "a").await;
    }
    until("begun", async || stage.begun() == 1).await;
    stage.tenure.want();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(stage.broker.released(), [] as [u32; 0], "it waits");
    stage.gate.add_permits(10);
    until("released", async || stage.broker.released() == [0]).await;
    assert_eq!(stage.begun(), 1, "nothing new was started");
    assert_eq!(stage.committed().await, 1);
    assert!(stage.bus.health().await.is_well());
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_does_not_end_keeps_a_partition_only_for_a_while() {
    let stage = Stage::new(Instant::now() + LONG).await;
    publish(&stage.bus, "a").await;
    until("begun", async || stage.begun() == 1).await;
    stage.tenure.want();
    until("released", async || stage.broker.released() == [0]).await;
    stage.gate.add_permits(1);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(stage.gate.available_permits(), 1, "it was cancelled");
    assert_eq!(stage.committed().await, 0);
    assert_eq!(stage.orders.figures().failed, 0, "it is nobody's fault");
}

#[tokio::test(start_paused = true)]
async fn what_runs_in_a_partition_that_is_lost_is_cancelled_and_counts_for_nothing() {
    let stage = Stage::new(Instant::now() + LONG).await;
    for key in ["a", "a", "b"] {
        publish(&stage.bus, key).await;
    }
    until("begun", async || stage.begun() == 2).await;
    stage.tenure.lose();
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
    until("handled", async || stage.orders.figures().handled == 1).await;
    stage.orders.close(Duration::from_secs(1)).await;
    assert_eq!(stage.broker.released(), [0]);
    assert_eq!(stage.committed().await, 1);
}
