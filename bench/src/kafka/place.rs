//! The cluster that all of it runs on.

use std::env;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use laneway::Bus;

use crate::served::Backend;

/// Says where the cluster is.
pub(super) const VARIABLE: &str = "LANEWAY_TEST_KAFKA";

pub(super) fn servers() -> Result<String> {
    env::var(VARIABLE).with_context(|| format!("{VARIABLE} is not set"))
}

/// A name that nobody else has.
pub(super) fn unique(name: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    format!("{name}{process}-{count}")
}

/// A topic with so many partitions.
pub(super) struct On<const PARTITIONS: u32>;

impl<const N: u32> Backend for On<N> {
    const PARTITIONS: u32 = N;

    async fn bus() -> Result<Bus> {
        let address = format!("kafka://{}?namespace={}", servers()?, unique("b"));
        Ok(Bus::open(&address).await?)
    }
}
