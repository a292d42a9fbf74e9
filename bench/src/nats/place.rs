//! Where a measurement takes place: on one server for all, each in a namespace of its own.

use std::env;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use async_nats::jetstream;
use laneway::Bus;

use crate::bus::load::TOPIC;

/// Says where the server is.
pub(super) const VARIABLE: &str = "LANEWAY_TEST_NATS";

/// Events that a publisher has on their way before it waits for the first acknowledgement.
pub(super) const UNANSWERED: usize = 4000;

const CLOSE_WITHIN: Duration = Duration::from_secs(10);

fn address() -> Result<String> {
    env::var(VARIABLE).with_context(|| format!("{VARIABLE} is not set"))
}

/// A bus with nothing in it.
pub(super) async fn bus() -> Result<Bus> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    Ok(Bus::open(&format!("{}?namespace=b{process}_{count}", address()?)).await?)
}

/// Leaves the disk as it was.
pub(super) async fn clear(bus: &Bus) -> Result<()> {
    bus.delete(TOPIC).await?;
    bus.close(CLOSE_WITHIN).await?;
    Ok(())
}

/// The server itself.
pub(super) async fn context() -> Result<jetstream::Context> {
    let address = address()?;
    let client = async_nats::connect(&address)
        .await
        .with_context(|| format!("no answer from {address}"))?;
    let context = jetstream::context::ContextBuilder::new().max_ack_inflight(UNANSWERED);
    Ok(context.build(client))
}
