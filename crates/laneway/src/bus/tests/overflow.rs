//! A key that falls behind, and what it does to others. Time is virtual.

use std::sync::Mutex;

use waiting::wait_for;

use super::*;
use crate::topic::TopicName;

/// Handled events, in order: key, and place among those of its key.
type Handled = Arc<Mutex<Vec<(String, u64)>>>;

struct Stage {
    bus: Bus,
    broker: Troubled,
    handled: Handled,
}

impl Stage {
    /// One partition; events of the key `hot` take so long, others nothing.
    async fn new(lane_bound: usize, hot: Duration) -> Self {
        let (bus, broker) = bus().await;
        one_partition(&bus).await;
        let handled = Handled::default();
        let seen = handled.clone();
        let handle = move |event: crate::Event| {
            let seen = seen.clone();
            async move {
                let key = event.aggregate_id().as_str().to_owned();
                if key.starts_with("hot") {
                    sleep(hot).await;
                }
                seen.lock().unwrap().push((key, event.event_version()));
                Ok(())
            }
        };
        let subscription = bus.subscription("orders").lane_bound(lane_bound);
        subscription.envelope(handle).await.unwrap();
        Self {
            bus,
            broker,
            handled,
        }
    }

    async fn publish(&self, keys: &[(&str, u64)]) {
        let events: Vec<_> = keys
            .iter()
            .map(|(key, version)| {
                Envelope::builder(*key, "Happened")
                    .event_version(*version)
                    .json(&json!(1))
                    .unwrap()
            })
            .collect();
        let published = self.bus.publish_envelope_batch("orders", &events);
        published.await.unwrap();
    }

    fn count(&self, is_it: impl Fn(&str) -> bool) -> usize {
        let handled = self.handled.lock().unwrap();
        handled.iter().filter(|(key, _)| is_it(key)).count()
    }

    /// Every key has each of its events once, in order.
    fn check_order(&self, keys: &[(&str, u64)]) {
        let mut last: HashMap<String, u64> = HashMap::new();
        for (key, version) in self.handled.lock().unwrap().iter() {
            let last = last.entry(key.clone()).or_default();
            assert_eq!(*last + 1, *version, "{key}");
            *last = *version;
        }
        for (key, version) in keys {
            assert!(last[*key] >= *version, "{key} {version} is missing");
        }
    }
}

fn others(count: u64) -> Vec<(String, u64)> {
    (0..count).map(|key| (format!("other-{key}"), 1)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_slow_key_delays_only_itself_whatever_its_handler_takes() {
    for millis in [1, 5, 20, 49, 60, 200, 10_000] {
        let stage = Stage::new(100, Duration::from_millis(millis)).await;
        let hot: Vec<_> = (1..=1000).map(|version| ("hot", version)).collect();
        stage.publish(&hot).await;
        let others = others(100);
        let others: Vec<_> = others.iter().map(|(key, n)| (key.as_str(), *n)).collect();
        let began = Instant::now();
        stage.publish(&others).await;
        wait_for!(stage.count(|key| key != "hot") == 100, "handled");
        let took = began.elapsed();
        assert!(took < Duration::from_millis(40), "{millis} ms: {took:?}");
        if millis <= 60 {
            wait_for!({ stage.count(|key| key == "hot") == 1000 }, "caught up");
            stage.check_order(&hot);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_behind_do_not_wait_for_each_other() {
    let stage = Stage::new(10, Duration::from_millis(10)).await;
    let names = ["hot-1", "hot-2", "hot-3"];
    // Alternating, in stretches, and far apart.
    let mut keys = Vec::new();
    let mut next = [0_u64; 3];
    for place in 0..6000_usize {
        let key = match place {
            0..2000 => place % 3,
            2000..4000 => (place / 100) % 3,
            _ if place % 400 == 0 => 1,
            _ => continue,
        };
        next[key] += 1;
        keys.push((names[key], next[key]));
    }
    stage.publish(&keys).await;
    let began = Instant::now();
    wait_for!(stage.count(|_| true) == keys.len(), "handled");
    let longest = Duration::from_millis(11) * u32::try_from(*next.iter().max().unwrap()).unwrap();
    assert!(
        began.elapsed() < longest + Duration::from_secs(1),
        "{:?}",
        began.elapsed()
    );
    stage.check_order(&keys);
    let reads = stage.broker.reread_count();
    assert!(reads < 400, "in ranges: {reads} for {} events", keys.len());
    testing::settled(&stage.bus).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_range_that_cannot_be_read_is_read_one_by_one() {
    let stage = Stage::new(10, Duration::from_millis(1)).await;
    stage.broker.begin(Trouble::Ranges);
    let keys: Vec<_> = (1..=2000).map(|version| ("hot", version)).collect();
    stage.publish(&keys).await;
    wait_for!(stage.count(|_| true) == keys.len(), "handled");
    stage.check_order(&keys);
    testing::settled(&stage.bus).await.unwrap();
}

/// Like an event that a compaction removes: it must not be waited for.
#[tokio::test(start_paused = true)]
async fn what_retention_took_meanwhile_is_done_with() {
    let (bus, broker) = bus().await;
    let keep = crate::topic::Retention::FOREVER.count(100);
    let topic = Topic::domain("orders").partitions(1).retention(keep);
    bus.declare(&topic.build().unwrap()).await.unwrap();
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let opened = gate.clone();
    let subscription = bus.subscription("orders").lane_bound(10);
    let orders = subscription
        .envelope(move |_| {
            let gate = opened.clone();
            async move {
                gate.acquire().await.unwrap().forget();
                Ok(())
            }
        })
        .await
        .unwrap();
    for _ in 0..20 {
        let events: Vec<_> = (0..100).map(|_| event("hot")).collect();
        bus.publish_envelope_batch("orders", &events).await.unwrap();
        sleep(Duration::from_secs(1)).await;
    }
    sleep(Duration::from_mins(2)).await;
    gate.add_permits(5000);
    let name = TopicName::new("orders").unwrap();
    let low = async || {
        let position = crate::broker::Broker::position(&broker, &name, 0, "default");
        position.await.unwrap().map_or(0, |position| position.low())
    };
    wait_for!(low().await == 2000, "all is settled");
    assert!(orders.stats().handled < 2000, "some were gone");
}
