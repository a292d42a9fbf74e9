//! The topics of a cluster: the intake and the log.

use anyhow::{Context, anyhow, bail};
use laneway::log::Log;
use laneway::topic::Topic;
use laneway::{Bus, DELAY_TOPIC};

use crate::config::Config;
use crate::config::secret::{without_secrets, without_secrets_of};
use crate::delay::Outlet;

/// The topic with the logs of all shards.
const LOG_TOPIC: &str = "laneway.delay.log";

/// The bus with log and intake; the second is the same one if it has to be closed by itself.
pub(super) async fn log_bus(
    config: &Config,
    outlet: &Outlet,
) -> anyhow::Result<(Bus, Option<Bus>)> {
    let address = config.serve.log.as_deref().unwrap_or_default();
    if config.serve.bus.as_deref() == Some(address) {
        return Ok((outlet.bus.clone(), None));
    }
    let bus = Bus::open(address).await.map_err(|error| {
        let shown = without_secrets(address);
        let error = without_secrets_of(address, &error.to_string());
        anyhow!("cannot open the log {shown} (serve.log): {error}")
    })?;
    Ok((bus.clone(), Some(bus)))
}

/// Makes the topics of the cluster, or finds that they are what is set.
pub(crate) async fn open(bus: &Bus, shards: u32) -> anyhow::Result<Log> {
    let log = bus.log(LOG_TOPIC, shards).await;
    let log = log.with_context(|| {
        format!("cannot open {LOG_TOPIC} with {shards} partitions (serve.shards, fixed when the topic was made)")
    })?;
    let there = bus.describe(DELAY_TOPIC).await?;
    let intake = if let Some(topic) = there {
        topic
    } else {
        let topic = Topic::domain(DELAY_TOPIC).partitions(shards).build()?;
        bus.declare(&topic).await?
    };
    let partitions = intake.partitions().get();
    if partitions != shards {
        bail!(
            "{DELAY_TOPIC} has {partitions} partitions, and a cluster with {shards} shards (serve.shards) needs as many: \
             it was made by a server without a cluster, or with another number; use another namespace of the broker, \
             or delete the topic if nothing waits in it"
        );
    }
    Ok(log)
}
