//! The server that all of it runs on.

use std::env;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use async_nats::jetstream;
use laneway::Bus;

use crate::served::{Backend, UNANSWERED};

/// Says where the server is.
pub(super) const VARIABLE: &str = "LANEWAY_TEST_NATS";

fn address() -> Result<String> {
    env::var(VARIABLE).with_context(|| format!("{VARIABLE} is not set"))
}

/// One server.
pub(super) struct Server;

impl Backend for Server {
    const PARTITIONS: u32 = 16;

    async fn bus() -> Result<Bus> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Ok(Bus::open(&format!("{}?namespace=b{process}_{count}", address()?)).await?)
    }
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
