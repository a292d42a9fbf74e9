use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use laneway_delay::{Delays, Error};
use laneway_rpc::connection::CenterConnection;
use laneway_rpc::proto;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};

use crate::held::Held;
use crate::serve::serve;
use crate::shared::Shared;
use crate::sinks::fenced;
use crate::{Options, Stats};

/// How often the ledger is swept.
const SWEEP_EVERY: Duration = Duration::from_millis(50);

/// The load of the machine is sampled at every so many sweeps: once a second.
const SWEEPS_PER_SAMPLE: u32 = 20;

/// A process that runs attempts for the centers of its cluster.
///
/// Cheap to clone. It works until it is [drained](Self::drain), also when all handles are dropped.
#[derive(Clone)]
pub struct Worker {
    shared: Arc<Shared>,
    delays: Delays,
}

/// What was left when a worker was drained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drained {
    /// Attempts that were still running. What becomes of them is not known.
    pub running: usize,
    /// Outcomes that no owner has logged.
    pub unlogged: usize,
}

impl Drained {
    /// Whether nothing was left.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        self.running == 0 && self.unlogged == 0
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker")
            .field("options", &self.shared.options)
            .finish_non_exhaustive()
    }
}

impl Worker {
    /// Starts a worker, which has nothing to do before it [serves](Self::serve) a center. Within a tokio runtime.
    ///
    /// # Errors
    /// When the limits cannot be used.
    pub fn start(options: Options) -> Result<Self, Error> {
        if options.credit == 0 {
            return Err(Error::Invalid {
                field: "credit",
                problem: "it is 0; use 1 or more".to_owned(),
            });
        }
        let shared = Shared::new(options);
        let store = Arc::new(Held(shared.clone()));
        let clock = shared.options.clock.clone();
        let limits = shared.options.limits.clone();
        let delays = Delays::start(store, clock, fenced(&shared), limits)?;
        tokio::spawn(sweep(shared.clone()));
        Ok(Self { shared, delays })
    }

    /// What it says about itself when a connection begins.
    #[must_use]
    pub fn hello(&self) -> proto::Hello {
        let options = &self.shared.options;
        proto::Hello {
            cluster: options.cluster.clone(),
            instance: Bytes::copy_from_slice(&options.instance.0),
            name: options.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Serves a center until its connection ends. There may be any number of them, also to one center: one that comes back is
    /// another connection. What was given over a connection outlives it. A center that says that it is of another cluster is refused.
    pub fn serve(&self, connection: CenterConnection) {
        tokio::spawn(serve(self.shared.clone(), connection));
    }

    /// Takes no more gos, and hands back what has not started. What runs goes on, its outcomes are told, and its centers stay
    /// connected: it is idle soon, and [`drain`](Self::drain) or the end of its process is all that is left for it.
    pub fn start_draining(&self) {
        let counter = self.shared.counter();
        self.shared.ledger().drain(counter);
    }

    /// Takes no more gos, hands back what has not started, waits until what runs has ended and until all outcomes are logged, but not
    /// longer than `deadline`; then closes the connections.
    pub async fn drain(&self, deadline: Duration) -> Drained {
        let until = Instant::now().checked_add(deadline);
        let until = until.unwrap_or_else(|| Instant::now() + Duration::from_hours(24));
        self.start_draining();
        let left = || {
            let (running, unlogged) = self.shared.ledger().open();
            Drained { running, unlogged }
        };
        loop {
            let settled = self.shared.settled.notified();
            let mut settled = std::pin::pin!(settled);
            // Before looking, so that nothing is missed in between.
            settled.as_mut().enable();
            if left().is_clean() || timeout_at(until, settled).await.is_err() {
                break;
            }
        }
        let left = left();
        if !left.is_clean() {
            tracing::warn!(
                running = left.running,
                unlogged = left.unlogged,
                "not all of the worker ended in time"
            );
        }
        if let Err(error) = self.delays.close(Duration::ZERO).await {
            tracing::warn!(%error, "the engine of the worker did not end well");
        }
        self.shared.is_closed.send_replace(true);
        left
    }

    /// What it does.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.ledger().stats()
    }

    /// Whether it takes no more gos.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.shared.ledger().is_draining()
    }
}

async fn sweep(shared: Arc<Shared>) {
    let mut ticks = interval(SWEEP_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_closed = shared.is_closed.subscribe();
    let mut sweeps: u32 = 0;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = is_closed.wait_for(|is_closed| *is_closed) => return,
        }
        if sweeps.is_multiple_of(SWEEPS_PER_SAMPLE) {
            shared.load.sample();
        }
        sweeps = sweeps.wrapping_add(1);
        let counter = shared.counter();
        shared.ledger().sweep(counter);
    }
}
