//! A bus on a server, as it is measured on every broker that has one.
//!
//! - `ours`: publishing, consuming and both, through the bus
//! - `latency`: from publish to handled, at a steady rate
//! - `slow`: one key of many that is slow
//! - `hot`: keys that hold themselves up: with very many events, panics, or a blocked thread

pub(crate) mod hot;
pub(crate) mod latency;
pub(crate) mod ours;
pub(crate) mod slow;

use std::future::Future;
use std::time::Duration;

use anyhow::Result;
use laneway::Bus;

use crate::bus::load::TOPIC;

/// Events that a publisher has on their way before it waits for the first acknowledgement.
pub(crate) const UNANSWERED: usize = 4000;

const CLOSE_WITHIN: Duration = Duration::from_secs(10);

/// Where a measurement takes place: on one server for all, each in a namespace of its own.
pub(crate) trait Backend {
    /// Of the topic.
    const PARTITIONS: u32;

    /// A bus with nothing in it.
    fn bus() -> impl Future<Output = Result<Bus>> + Send;
}

/// Leaves the disk as it was.
pub(crate) async fn clear(bus: &Bus) -> Result<()> {
    bus.delete(TOPIC).await?;
    bus.close(CLOSE_WITHIN).await?;
    Ok(())
}
