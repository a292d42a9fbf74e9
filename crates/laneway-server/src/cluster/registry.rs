//! Where the processes of a cluster find each other.

use std::time::Duration;

use anyhow::Context;
use laneway_registry::{Registry, ZooKeeperOptions};

use crate::config::{self, Config};

/// How long the first connection may take.
#[cfg(feature = "nats")]
const CONNECT_WITHIN: Duration = Duration::from_secs(30);

/// Opens the registry of the cluster.
pub(super) async fn open(config: &Config) -> anyhow::Result<Registry> {
    let serve = &config.serve;
    let log = serve.log.as_deref().unwrap_or_default();
    match &serve.registry {
        config::Registry::ZooKeeper(servers) => {
            let options = ZooKeeperOptions::new(servers.clone());
            Ok(Registry::zookeeper(
                options.root(format!("/{}", serve.cluster)),
            ))
        }
        config::Registry::Nats(address) => nats(address, &serve.cluster).await,
        config::Registry::Auto if log.starts_with("nats:") => nats(log, &serve.cluster).await,
        // On Kafka, which has no place for it, all roles are here: the configuration was checked for that.
        config::Registry::Auto | config::Registry::Local => Ok(Registry::local()),
    }
}

/// Whether no other process is reached.
pub(super) fn is_local(config: &Config) -> bool {
    let serve = &config.serve;
    let is_on_nats = serve
        .log
        .as_deref()
        .is_some_and(|log| log.starts_with("nats:"));
    match &serve.registry {
        config::Registry::Local => true,
        config::Registry::Auto => !is_on_nats,
        _ => false,
    }
}

#[cfg(feature = "nats")]
async fn nats(address: &str, cluster: &str) -> anyhow::Result<Registry> {
    use laneway::NatsOptions;

    use crate::config::secret::{without_secrets, without_secrets_of};

    let opening = async {
        let options = NatsOptions::parse(address).map_err(|error| error.to_string())?;
        // Clusters on one server are as separate as their buses.
        let bucket = format!("{}-registry-{cluster}", options.namespace_or_default());
        let connecting = tokio::time::timeout(CONNECT_WITHIN, options.client());
        let client = connecting
            .await
            .map_err(|_| "no answer in time".to_owned())?;
        let client = client.map_err(|error| error.to_string())?;
        let options = laneway_registry::NatsOptions::default().bucket(bucket);
        Ok::<_, String>(Registry::nats(client, options))
    };
    let opened = opening.await;
    let opened = opened.map_err(|error| anyhow::anyhow!(without_secrets_of(address, &error)));
    opened.with_context(|| {
        let shown = without_secrets(address);
        format!("cannot reach the registry {shown} (serve.registry)")
    })
}

#[cfg(not(feature = "nats"))]
async fn nats(_: &str, _: &str) -> anyhow::Result<Registry> {
    anyhow::bail!(
        "the registry (serve.registry) needs the feature `nats`, which this program was built without: build it with \
         `--features nats`"
    )
}
