//! What tests on NATS share.

#![allow(dead_code, reason = "each test program uses a part of it")]

#[path = "../group/mod.rs"]
mod group;
pub(crate) mod proxy;
pub(crate) mod server;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

#[allow(unused_imports, reason = "each test program uses a part of it")]
pub(crate) use group::*;

/// The time that members may be silent, in these tests: short, because some wait for it. A member that is alone
/// in its group loses nothing when the machine is too busy for it.
pub(crate) const LEASE: Duration = Duration::from_millis(600);

/// The same where several members live side by side: none of them is taken for dead because the machine is busy.
pub(crate) const LONG_LEASE: Duration = Duration::from_secs(15);

/// An address with a namespace that nobody else has.
pub(crate) fn fresh(address: &str, settings: &str) -> String {
    fresh_with_lease(address, LEASE, settings)
}

pub(crate) fn fresh_with_lease(address: &str, lease: Duration, settings: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let lease = lease.as_millis();
    format!("{address}?namespace=t{process}_{count}&session_ms={lease}{settings}")
}
