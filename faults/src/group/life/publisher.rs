//! The one that publishes.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use laneway::testing::history::{History, MessageId};
use laneway::{Bus, Envelope, Error, Outgoing};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, RwLock, mpsc};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::super::child::READY;
use super::super::story::PLAIN;
use super::child::{GO_ON, GROUP, Left, ORDERS, PINGS, REST, RESTING, VISITS};

const OF_ORDERS: u64 = 6;
const OF_VISITS: u64 = 2;
const OF_PINGS: u64 = 2;
const KEYS_EACH: u64 = 4;

/// Of so many visits one fails while there is no cure.
const ONE_SICK_IN: u32 = 20;

/// If it takes longer, what is left is told.
const RESTS_SOON: Duration = Duration::from_secs(20);

/// What is in a visit.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Visit {
    pub(super) seq: u64,
    pub(super) is_sick: bool,
}

/// Whether all that was published is settled.
enum Rest {
    /// But for these keys, which are parked.
    Some(HashSet<String>),
    /// What is left: how many, and where.
    None(u64, String),
}

pub(super) struct Publisher {
    bus: Bus,
    history: Arc<History>,
    owner: u64,
    seed: u64,
    /// How often topics have changed. Keys of another era are others, since epochs begin anew.
    era: AtomicU64,
    /// Held while something is published; whoever wants quiet takes it.
    quiet: RwLock<()>,
    /// Acknowledged, and not yet known to be settled.
    acked: Mutex<Vec<MessageId>>,
}

impl Publisher {
    pub(super) fn new(bus: &Bus, history: Arc<History>, owner: u64, seed: u64) -> Self {
        Self {
            bus: bus.clone(),
            history,
            owner,
            seed,
            era: AtomicU64::new(0),
            quiet: RwLock::new(()),
            acked: Mutex::default(),
        }
    }

    pub(super) async fn live(
        self: &Arc<Self>,
        mut told: mpsc::UnboundedReceiver<String>,
    ) -> Result<()> {
        let mut publishers = JoinSet::new();
        for number in 0..OF_ORDERS {
            publishers.spawn(self.clone().publish(number, ORDERS));
        }
        for number in OF_ORDERS..OF_ORDERS + OF_VISITS {
            publishers.spawn(self.clone().publish(number, VISITS));
        }
        for number in 0..OF_PINGS {
            publishers.spawn(self.clone().ping(number));
        }
        println!("{READY}");
        while let Some(line) = told.recv().await {
            if line != REST {
                bail!("{line:?} is nothing that a publisher does");
            }
            let quiet = self.quiet.write().await;
            self.rest().await;
            println!("{RESTING}");
            let next = told.recv().await;
            self.era.fetch_add(1, Ordering::SeqCst);
            drop(quiet);
            if next.as_deref() != Some(GO_ON) {
                break;
            }
        }
        let _quiet = self.quiet.write().await;
        publishers.shutdown().await;
        self.rest().await;
        Ok(())
    }

    /// Publishes on keys of its own, one event after the other.
    async fn publish(self: Arc<Self>, number: u64, topic: &'static str) -> Result<()> {
        let mut dice = StdRng::seed_from_u64(self.seed ^ (number << 32));
        let is_visit = topic == VISITS;
        for count in 1.. {
            let key = number * KEYS_EACH + dice.random_range(0..KEYS_EACH);
            let is_sick = dice.random_ratio(1, ONE_SICK_IN);
            let loud = self.quiet.read().await;
            let era = self.era.load(Ordering::SeqCst);
            let seq = self.owner * 1_000_000 + count;
            let message = MessageId::new(format!("era-{era}-key-{key}"), seq);
            let envelope = Envelope::builder(&*message.key, "Tested");
            let envelope = if is_visit {
                envelope.json(&Visit { seq, is_sick })?
            } else {
                envelope.json(&seq)?
            };
            self.history.submitted(message.key.clone(), message.seq);
            // After an error nobody knows: it may run.
            if self.bus.publish_envelope(topic, &envelope).await.is_ok() {
                self.history.acked(message.key.clone(), message.seq);
                self.acked.lock().await.push(message);
            }
            drop(loud);
            // What is parked is read letter by letter, so there is less of it.
            let longest = if is_visit { 240_000 } else { 40_000 };
            sleep(Duration::from_micros(dice.random_range(0..longest))).await;
        }
        Ok(())
    }

    /// Publishes messages that run at most once.
    async fn ping(self: Arc<Self>, number: u64) -> Result<()> {
        let mut dice = StdRng::seed_from_u64(!self.seed ^ (number << 32));
        for count in 1.. {
            let message =
                MessageId::new(format!("{PLAIN}{number}"), self.owner * 1_000_000 + count);
            let loud = self.quiet.read().await;
            self.history.submitted(message.key.clone(), message.seq);
            let text = format!("{} {}", message.key, message.seq);
            // It may be lost, and it may run although this is an error.
            let _ = self.bus.publish(PINGS, Outgoing::new(text)).await;
            drop(loud);
            sleep(Duration::from_micros(dice.random_range(0..12_000))).await;
        }
        Ok(())
    }

    /// Waits until everything that was published is settled, and notes that of what is not parked. Whoever calls it
    /// keeps it quiet.
    async fn rest(&self) {
        let began = Instant::now();
        let mut is_told = false;
        let mut less = Left::default();
        let parked = loop {
            let left = match self.parked_at_rest().await {
                Ok(Rest::Some(parked)) => break parked,
                Ok(Rest::None(count, left)) => {
                    less.are(count);
                    left
                }
                Err(error) => error.to_string(),
            };
            if !is_told && began.elapsed() > RESTS_SOON {
                is_told = true;
                eprintln!("there is no rest: {left}");
            }
            sleep(Duration::from_millis(50)).await;
        };
        self.acked.lock().await.retain(|MessageId { key, seq }| {
            let is_parked = parked.contains(&**key);
            if !is_parked {
                self.history.settled(key.clone(), *seq);
            }
            is_parked
        });
    }

    /// The keys that are parked, if there is nothing else left.
    async fn parked_at_rest(&self) -> Result<Rest, Error> {
        let (mut count, mut left) = (0, Vec::new());
        for topic in [ORDERS, VISITS] {
            let backlog = self.bus.backlog(topic, GROUP).await?;
            let of_topic: u64 = backlog.iter().map(|lag| lag.records).sum();
            if of_topic > 0 {
                count += of_topic;
                left.push(format!("{topic}: {backlog:?}"));
            }
        }
        if count > 0 {
            return Ok(Rest::None(count, left.join(", ")));
        }
        let parked = self.bus.parked(VISITS).await?;
        let keys = parked.keys().await?.into_iter();
        Ok(Rest::Some(keys.map(|(_, key)| key.to_string()).collect()))
    }
}
