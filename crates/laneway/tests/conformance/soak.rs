//! Anything, at any time, by chance: keys fail, are parked and released, subscriptions come and go.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use laneway::{Bus, Error, Exhausted, Subscription};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::Fixture;
use super::support::{Log, SOON, attempts, declare, fail_if, publish, settled};

const KEYS: u64 = 5;
const STEPS: u64 = 300;

/// What may happen next.
enum Step {
    Publish,
    Break,
    Mend,
    Release,
    Resubscribe,
    Wait,
}

impl Step {
    fn by_chance(dice: &mut StdRng) -> Self {
        match dice.random_range(0..100) {
            0..65 => Self::Publish,
            65..72 => Self::Break,
            72..81 => Self::Mend,
            81..91 => Self::Release,
            91..96 => Self::Resubscribe,
            _ => Self::Wait,
        }
    }
}

/// A ledger in which every aggregate must be booked in order, without a gap and once.
#[derive(Clone, Default)]
pub(crate) struct Books {
    log: Log,
    broken: Arc<Mutex<HashSet<String>>>,
    published: Arc<Mutex<BTreeMap<String, u64>>>,
}

impl Books {
    pub(crate) async fn subscribe(&self, bus: &Bus) -> Subscription {
        let books = self.clone();
        bus.subscription("transfers")
            .group("books")
            // Full now and then.
            .lane_bound(3)
            .retry(attempts(2))
            .on_exhausted(Exhausted::ParkKey)
            .envelope(move |event| {
                let key = event.aggregate_id().as_str();
                let fails = books.broken.lock().expect("no panic").contains(key);
                if !fails {
                    books.log.note(&event);
                }
                async move { fail_if(fails, "the account is frozen") }
            })
            .await
            .expect("subscribed")
    }

    /// Publishes the next event of an aggregate.
    async fn publish(&self, bus: &Bus, key: &str) {
        let number = {
            let mut published = self.published.lock().expect("no panic");
            let next = published.entry(key.to_owned()).or_default();
            *next += 1;
            *next - 1
        };
        publish(bus, "transfers", key, [number]).await;
    }

    /// So many things happen.
    pub(crate) async fn live(&self, bus: &Bus, dice: &mut StdRng, steps: u64) {
        let mut subscription = self.subscribe(bus).await;
        for _ in 0..steps {
            let key = format!("account-{}", dice.random_range(0..KEYS));
            match Step::by_chance(dice) {
                Step::Publish => self.publish(bus, &key).await,
                Step::Break => {
                    self.broken.lock().expect("no panic").insert(key);
                }
                Step::Mend => {
                    self.broken.lock().expect("no panic").remove(&key);
                }
                Step::Release => self.release(bus, &key).await,
                Step::Resubscribe => {
                    // Long enough for what runs: one that is cancelled may come again.
                    subscription.close(SOON).await;
                    subscription = self.subscribe(bus).await;
                }
                Step::Wait => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    }

    async fn release(&self, bus: &Bus, key: &str) {
        let parked = bus.parked("transfers").await.expect("there");
        match parked.release("books", key).await {
            Ok(()) | Err(Error::NotParked { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Everything is mended and released; answers what was booked of each aggregate, and how much
    /// was published.
    pub(crate) async fn close(&self, bus: &Bus) -> Vec<(Vec<u64>, u64)> {
        self.broken.lock().expect("no panic").clear();
        settled(bus).await;
        let parked = bus.parked("transfers").await.expect("there");
        for (_, key) in parked.keys().await.expect("a list") {
            self.release(bus, &key).await;
        }
        settled(bus).await;
        assert_eq!(parked.keys().await.expect("a list"), []);
        let published = self.published.lock().expect("no panic").clone();
        let booked = published.into_iter();
        booked
            .map(|(key, count)| (self.log.of(&key), count))
            .collect()
    }
}

pub(crate) async fn whatever_happens_every_key_is_handled_in_order_and_once<F: Fixture>(at: &F) {
    for seed in 0..3 {
        let bus = at.bus().await;
        declare(&bus, "transfers", at.partitions(2)).await;
        let books = Books::default();
        let mut dice = StdRng::seed_from_u64(seed);
        books.live(&bus, &mut dice, STEPS).await;
        for (booked, count) in books.close(&bus).await {
            assert_eq!(booked, (0..count).collect::<Vec<_>>(), "seed {seed}");
        }
        bus.close(SOON).await.expect("closed");
    }
}
