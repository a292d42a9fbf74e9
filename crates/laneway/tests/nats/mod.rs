//! What tests on NATS share.

#![allow(dead_code, reason = "each test program uses a part of it")]

#[path = "../group/mod.rs"]
mod group;
pub(crate) mod server;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

#[allow(unused_imports, reason = "each test program uses a part of it")]
pub(crate) use group::*;

/// The time that members may be silent, in these tests.
pub(crate) const LEASE: Duration = Duration::from_millis(600);

/// An address with a namespace that nobody else has.
pub(crate) fn fresh(address: &str, settings: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let lease = LEASE.as_millis();
    format!("{address}?namespace=t{process}_{count}&lease_ms={lease}{settings}")
}
