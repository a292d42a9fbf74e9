//! Handlers that fail on purpose.

use std::hash::BuildHasher;
use std::time::Duration;

use crate::{Context, Event, EventHandler, Failure, Message, MessageHandler};

/// What goes wrong, and how often. Put it [around](Self::around) a handler.
///
/// Whether an attempt fails follows from the seed and from which attempt at which event it is, not
/// from the order in which handlers happen to run: the same seed gives the same faults.
///
/// ```
/// use laneway::testing::{self, Faults};
/// use laneway::{Envelope, Event};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let bus = testing::bus().await;
/// let orders = bus
///     .subscription("orders")
///     .envelope_handler(Faults::none().failing_first(2).around(async |_: Event| Ok(())))
///     .await?;
/// bus.publish_envelope("orders", &Envelope::builder("order-1", "Placed").json(&1)?).await?;
/// testing::settled(&bus).await?;
/// let figures = orders.stats();
/// assert_eq!((figures.failed, figures.handled), (2, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Faults {
    seed: u64,
    first: u32,
    failing: f64,
    panicking: f64,
    delay: Duration,
}

impl Faults {
    /// Nothing goes wrong.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Nothing goes wrong yet; what does will be up to this seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self {
            seed,
            ..Self::default()
        }
    }

    /// The first so many attempts at every event fail.
    #[must_use]
    pub fn failing_first(mut self, attempts: u32) -> Self {
        self.first = attempts;
        self
    }

    /// This share of all attempts fails: 0.1 for one in ten.
    #[must_use]
    pub fn failing(mut self, share: f64) -> Self {
        self.failing = share;
        self
    }

    /// This share of all attempts panics.
    #[must_use]
    pub fn panicking(mut self, share: f64) -> Self {
        self.panicking = share;
        self
    }

    /// Every attempt takes up to this long before it begins.
    #[must_use]
    pub fn delaying(mut self, most: Duration) -> Self {
        self.delay = most;
        self
    }

    /// A handler with these faults, of events or of plain messages.
    pub fn around<H>(self, handler: H) -> Faulty<H> {
        Faulty {
            faults: self,
            handler,
        }
    }

    async fn strike(&self, context: &Context) -> Result<(), Failure> {
        if !self.delay.is_zero() {
            tokio::time::sleep(self.delay.mul_f64(self.dice(context, "delay"))).await;
        }
        let attempt = context.attempt();
        assert!(
            self.dice(context, "panic") >= self.panicking,
            "attempt {attempt} panics on purpose"
        );
        if attempt <= self.first || self.dice(context, "fail") < self.failing {
            return Err(Failure::new(format_args!(
                "attempt {attempt} fails on purpose"
            )));
        }
        Ok(())
    }

    /// A number from 0 to 1, always the same for the same attempt.
    fn dice(&self, context: &Context, what: &str) -> f64 {
        /// Beyond this a float does not tell numbers apart.
        const STEPS: u64 = 1 << 53;
        let hasher = foldhash::fast::FixedState::with_seed(self.seed);
        let hash = hasher.hash_one((
            what,
            context.topic().as_str(),
            context.partition(),
            context.offset(),
            context.attempt(),
        ));
        (hash % STEPS) as f64 / STEPS as f64
    }
}

/// A handler with [`Faults`].
#[derive(Clone, Debug)]
pub struct Faulty<H> {
    faults: Faults,
    handler: H,
}

impl<H: EventHandler> EventHandler for Faulty<H> {
    async fn handle(&self, event: Event) -> Result<(), Failure> {
        self.faults.strike(event.context()).await?;
        self.handler.handle(event).await
    }
}

impl<H: MessageHandler> MessageHandler for Faulty<H> {
    async fn handle(&self, message: Message) -> Result<(), Failure> {
        self.faults.strike(message.context()).await?;
        self.handler.handle(message).await
    }
}
