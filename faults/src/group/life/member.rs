//! The ones that handle.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use laneway::retry::RetryPolicy;
use laneway::testing::history::{Attempt, History, Outcome};
use laneway::{Bus, Event, Exhausted, Failure, Message, Start, Subscription};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::super::child::{CLOSE_WITHIN, OWNS, READY, attempt_at};
use super::child::{Arguments, GROUP, ORDERS, PINGS, SICK, Task, VISITS, WELL, cure};
use super::publisher::Visit;

/// So often one gives up that cannot make up its mind, if there is time for it: a broker may take long to let one go.
const GIVES_UP: usize = 6;
const GIVES_UP_WITHIN: Duration = Duration::from_secs(5);

/// What all handlers of a member know.
#[derive(Clone)]
struct Handlers {
    history: Arc<History>,
    owner: u64,
    /// Whether visits fail here, whatever they are.
    is_sick: Arc<AtomicBool>,
    cure: PathBuf,
    /// Partitions that it has had, with their epochs.
    places: Arc<Mutex<HashSet<(u32, u64)>>>,
}

/// Is a member of all groups until it is dismissed.
pub(super) async fn handle(
    bus: &Bus,
    history: Arc<History>,
    arguments: &Arguments,
    mut told: mpsc::UnboundedReceiver<String>,
) -> Result<()> {
    let handlers = Handlers {
        history,
        owner: arguments.owner,
        is_sick: Arc::default(),
        cure: cure(&arguments.history),
        places: Arc::default(),
    };
    if arguments.task == Task::Waver {
        let mut dice = StdRng::seed_from_u64(arguments.number);
        let topic = if dice.random() { VISITS } else { ORDERS };
        handlers.waver(bus, topic, &mut dice).await?;
    }
    let mut subscriptions = Vec::new();
    for topic in [ORDERS, VISITS, PINGS] {
        let subscription = handlers.subscribe(bus, topic).await;
        subscriptions.push(subscription.with_context(|| format!("subscribing to {topic}"))?);
    }
    println!("{READY}");
    while let Some(line) = told.recv().await {
        match line.as_str() {
            SICK => handlers.is_sick.store(true, Ordering::SeqCst),
            WELL => handlers.is_sick.store(false, Ordering::SeqCst),
            _ => eprintln!("{line:?} is nothing that a member does"),
        }
    }
    for subscription in subscriptions {
        subscription.close(CLOSE_WITHIN).await;
    }
    Ok(())
}

impl Handlers {
    /// Gives up subscribing, somewhere on the way; it does not once, to know how long the way is.
    async fn waver(&self, bus: &Bus, topic: &str, dice: &mut StdRng) -> Result<()> {
        let began = Instant::now();
        self.subscribe(bus, topic).await?.close(CLOSE_WITHIN).await;
        let whole = began.elapsed();
        for _ in 0..GIVES_UP {
            if began.elapsed() > GIVES_UP_WITHIN {
                break;
            }
            let patience = whole.mul_f64(dice.random_range(0.0..0.8));
            if let Ok(subscribed) = timeout(patience, self.subscribe(bus, topic)).await {
                subscribed?.close(CLOSE_WITHIN).await;
            }
        }
        Ok(())
    }

    async fn subscribe(&self, bus: &Bus, topic: &str) -> Result<Subscription> {
        match topic {
            ORDERS => self.orders(bus).await,
            VISITS => self.visits(bus).await,
            _ => self.pings(bus).await,
        }
    }

    /// From now on: groups join before anything is published, and have read before when they join again.
    async fn orders(&self, bus: &Bus) -> Result<Subscription> {
        let handlers = self.clone();
        let handler = move |event: Event| {
            let handlers = handlers.clone();
            async move { handlers.order(&event).await }
        };
        // So often that the planned failures never add up.
        let most = Duration::from_millis(50);
        let retry = RetryPolicy::exponential(30, Duration::from_millis(5), most)?;
        let subscription = bus.subscription(ORDERS).group(GROUP).start(Start::Latest);
        Ok(subscription.retry(retry).envelope(handler).await?)
    }

    async fn visits(&self, bus: &Bus) -> Result<Subscription> {
        let handlers = self.clone();
        let handler = move |event: Event| {
            let handlers = handlers.clone();
            async move { handlers.visit(&event).await }
        };
        let subscription = bus.subscription(VISITS).group(GROUP).start(Start::Latest);
        let subscription = subscription.on_exhausted(Exhausted::ParkKey);
        Ok(subscription.envelope(handler).await?)
    }

    async fn pings(&self, bus: &Bus) -> Result<Subscription> {
        let handlers = self.clone();
        let handler = move |message: Message| {
            let handlers = handlers.clone();
            async move {
                handlers.ping(&message);
                Ok(())
            }
        };
        let subscription = bus.subscription(PINGS).group(GROUP).start(Start::Latest);
        Ok(subscription.message(handler).await?)
    }

    async fn order(&self, event: &Event) -> Result<(), Failure> {
        let place = (event.context().partition(), event.context().epoch());
        let is_new = self.places.lock().is_ok_and(|mut all| all.insert(place));
        if is_new {
            println!("{OWNS}");
        }
        let seq: u64 = event.json()?;
        let key = event.aggregate_id().as_str();
        let run = self
            .history
            .started(key, seq, attempt_at(event, self.owner));
        let (wait, fails) = {
            let mut dice = rand::rng();
            // Some take so long that they are under way whatever happens.
            let is_long = dice.random_bool(0.05);
            let longest = if is_long { 100_000 } else { 3_000 };
            (dice.random_range(0..longest), dice.random_bool(0.02))
        };
        sleep(Duration::from_micros(wait)).await;
        if fails {
            run.finish(Outcome::Failed);
            return Err(Failure::new("as planned"));
        }
        run.finish(Outcome::Done);
        Ok(())
    }

    async fn visit(&self, event: &Event) -> Result<(), Failure> {
        let visit: Visit = event.json()?;
        let key = event.aggregate_id().as_str();
        let attempt = attempt_at(event, self.owner);
        let run = self.history.started(key, visit.seq, attempt);
        let is_cured = self.cure.exists();
        if !is_cured {
            // So that some are under way when it is cut off.
            let wait = rand::rng().random_range(0..100_000);
            sleep(Duration::from_micros(wait)).await;
        }
        let is_sick = self.is_sick.load(Ordering::SeqCst);
        if is_sick || visit.is_sick && !is_cured {
            run.finish(Outcome::Failed);
            return Err(Failure::fatal("as planned"));
        }
        run.finish(Outcome::Done);
        Ok(())
    }

    fn ping(&self, message: &Message) {
        let text = String::from_utf8_lossy(message.payload());
        let Some((key, seq)) = text.split_once(' ') else {
            return;
        };
        let attempt = Attempt {
            number: 1,
            owner: self.owner,
            epoch: 0,
        };
        let run = self
            .history
            .started(key, seq.parse().unwrap_or_default(), attempt);
        run.finish(Outcome::Done);
    }
}
