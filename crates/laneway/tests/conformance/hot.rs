//! Keys that have very many events, and others beside them in the same partition.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use laneway::{Bus, Event};
use tokio::time::{Instant, sleep};
use waiting::wait_for;

use super::Fixture;
use super::support::{declare, event, number};

/// The others are done so soon, whatever the hot ones take. The benchmarks measure it, where nothing else runs.
const SOON: Duration = Duration::from_millis(500);

/// On a machine that is busy all takes longer, the hot ones as well. One in so many of the events in front of the others
/// is done before these at most, by a handler of 20 ms. If the others waited for a hot key, it would be all but those that
/// its lane holds, which are one in three.
const ONE_IN: u64 = 2;

const OTHERS: u64 = 200;
const BATCH: u16 = 1000;

/// What was handled: of the others, how many; of each hot key, the next in order.
#[derive(Default)]
struct Seen {
    others: AtomicU64,
    hot: [AtomicU64; 5],
    is_out_of_order: AtomicBool,
}

impl Seen {
    fn note(&self, event: &Event) {
        match hot_key(event) {
            None => {
                self.others.fetch_add(1, Ordering::SeqCst);
            }
            Some(index) => {
                let next = self.hot[index].fetch_add(1, Ordering::SeqCst);
                self.is_out_of_order
                    .fetch_or(next != number(event), Ordering::SeqCst);
            }
        }
    }

    fn of_hot(&self, index: usize) -> u64 {
        self.hot[index].load(Ordering::SeqCst)
    }
}

fn hot_key(event: &Event) -> Option<usize> {
    let index = event.aggregate_id().as_str().strip_prefix("hot-")?;
    index.parse().ok()
}

async fn publish_hot(bus: &Bus, keys: usize, count: u64) {
    for first in (0..count).step_by(usize::from(BATCH)) {
        for key in 0..keys {
            let numbers = first..count.min(first + u64::from(BATCH));
            let events: Vec<_> = numbers.map(|n| event(&format!("hot-{key}"), n)).collect();
            let published = bus.publish_envelope_batch("orders", &events).await;
            published.expect("the events are published");
        }
    }
}

/// Waits until all of the quickest hot key are handled, for as long as a behaviour may take: that depends on the machine.
async fn has_caught_up(seen: &Seen, in_front: u64) {
    while seen.of_hot(0) < in_front {
        waiting::pause().await;
    }
}

/// Publishes events of other keys, and waits until they are handled.
async fn handle_others(bus: &Bus, seen: &Seen) -> Duration {
    let before = seen.others.load(Ordering::SeqCst);
    let began = Instant::now();
    let events: Vec<_> = (0..OTHERS)
        .map(|n| event(&format!("other-{n}"), n))
        .collect();
    let published = bus.publish_envelope_batch("orders", &events).await;
    published.expect("the events are published");
    let handled = async || seen.others.load(Ordering::SeqCst) == before + OTHERS;
    wait_for!(handled().await, "the others are handled");
    began.elapsed()
}

/// The same, while hot keys are at work: soon, by the clock or by what a hot key with a handler of 20 ms has done.
async fn others_are_soon_done(bus: &Bus, seen: &Seen, index: usize, in_front: u64) {
    let before = seen.of_hot(index);
    let took = handle_others(bus, seen).await;
    let meanwhile = seen.of_hot(index) - before;
    assert!(
        took < SOON || meanwhile < in_front / ONE_IN,
        "they took {took:?}, and {meanwhile} events of a hot key were done meanwhile"
    );
}

pub(crate) async fn keys_delay_only_themselves_whatever_their_handlers_take<F: Fixture>(at: &F) {
    const MILLIS: [u64; 5] = [1, 5, 20, 60, 200];
    /// As many again as a lane holds, and once more: of the handler of 5 ms that is ten seconds.
    const IN_FRONT: u64 = 3000;
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(1)).await;
    let seen = Arc::new(Seen::default());
    let subscription = bus.subscribe_envelope("orders", {
        let seen = seen.clone();
        move |event| {
            let seen = seen.clone();
            async move {
                if let Some(index) = hot_key(&event) {
                    sleep(Duration::from_millis(MILLIS[index])).await;
                }
                seen.note(&event);
                Ok(())
            }
        }
    });
    let subscription = subscription.await.expect("subscribed");
    publish_hot(&bus, MILLIS.len(), IN_FRONT).await;
    others_are_soon_done(&bus, &seen, 2, IN_FRONT).await;
    assert!(seen.of_hot(4) < IN_FRONT, "the hot ones are not done");
    has_caught_up(&seen, IN_FRONT).await;
    assert!(!seen.is_out_of_order.load(Ordering::SeqCst));
    subscription.close(Duration::from_secs(1)).await;
}

pub(crate) async fn fifty_thousand_events_in_front_delay_only_their_key_which_catches_up<
    F: Fixture,
>(
    at: &F,
) {
    const IN_FRONT: u64 = 50_000;
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(1)).await;
    let seen = Arc::new(Seen::default());
    let is_slow = Arc::new(AtomicBool::new(true));
    let subscription = bus.subscribe_envelope("orders", {
        let (seen, is_slow) = (seen.clone(), is_slow.clone());
        move |event| {
            let (seen, is_slow) = (seen.clone(), is_slow.clone());
            async move {
                if hot_key(&event).is_some() && is_slow.load(Ordering::SeqCst) {
                    sleep(Duration::from_millis(20)).await;
                }
                seen.note(&event);
                Ok(())
            }
        }
    });
    let subscription = subscription.await.expect("subscribed");
    publish_hot(&bus, 1, IN_FRONT).await;
    others_are_soon_done(&bus, &seen, 0, IN_FRONT).await;
    assert!(seen.of_hot(0) < IN_FRONT / 2, "the hot one is not done");
    is_slow.store(false, Ordering::SeqCst);
    has_caught_up(&seen, IN_FRONT).await;
    assert!(!seen.is_out_of_order.load(Ordering::SeqCst));
    handle_others(&bus, &seen).await;
    subscription.close(Duration::from_secs(1)).await;
}
