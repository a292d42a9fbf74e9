//! Starts what delayed messages need on one machine, and stops it.

use std::time::Duration;

use anyhow::{Context, ensure};
use laneway::Subscription;
use laneway_delay::Delays;
use tokio::time::{Instant, timeout};
use tracing::warn;

use super::{Outlet, engine_options};
use crate::config::Config;

/// The roles receive, center and worker of this process, without a cluster.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) delays: Delays,
    pub(crate) outlet: Outlet,
    /// Where events come from that others publish later, on a bus that is shared.
    intake: Option<Subscription>,
}

impl Service {
    /// Opens the data directory and starts to fire what is due.
    pub(crate) async fn start(config: &Config) -> anyhow::Result<Self> {
        let outlet = Outlet::open(config).await?;
        let directory = config.serve.data_dir.join("messages");
        let delays = Delays::open(&directory, outlet.sinks.clone(), engine_options(config)).await;
        let delays = delays
            .with_context(|| format!("cannot open the messages in {}", directory.display()))?;
        // An embedded bus has one owner, this process: no other one publishes to it.
        let shared = config.serve.bus.as_deref();
        let shared =
            shared.is_some_and(|bus| !bus.starts_with("file:") && !bus.starts_with("memory:"));
        let intake = if shared {
            let kept = outlet.bus.keep_delayed(delays.clone()).await;
            Some(kept.context("cannot take delayed events from the bus (serve.bus)")?)
        } else {
            None
        };
        Ok(Self {
            delays,
            outlet,
            intake,
        })
    }

    /// Stops firing, finishes what runs, and lets the directory go, all of it within `limit`. A bus that is away
    /// takes no more than half of it before the messages are closed.
    pub(crate) async fn stop(&self, limit: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + limit;
        let left = || deadline.saturating_duration_since(Instant::now());
        if let Some(intake) = &self.intake {
            // What it has not taken stays on the bus.
            let share = limit / 2;
            if timeout(share, intake.close(share)).await.is_err() {
                warn!("the bus does not answer: what was taken from it last may be taken again");
            }
        }
        // Its own limit is for attempts that run. The store needs a moment after that.
        let closed = self.delays.close(left().mul_f32(0.8)).await;
        closed.context("cannot close the messages")?;
        let running: u64 = (self.delays.counts().values())
            .map(|counts| counts.firing)
            .sum();
        let closed = self.outlet.bus.close(left()).await;
        closed.context("cannot close the bus")?;
        ensure!(
            running == 0,
            "cut off after {limit:?} (serve.shutdown_timeout), with attempts still running: {running}; they come again"
        );
        Ok(())
    }
}
