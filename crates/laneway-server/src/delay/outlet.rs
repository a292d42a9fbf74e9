//! The ways out of a server: callbacks, and the bus.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow, ensure};
use laneway::{BrokerError, Bus, BusSink};
use laneway_delay::callback::{Allow, Client, Guard, Limits, Secret, Secrets};
use laneway_delay::{Options, Schedule, Sinks};

use super::Metrics;
use super::metered::Metered;
use crate::config::secret::{without_secrets, without_secrets_of};
use crate::config::{Config, Reach};
use crate::open_files;

/// What delivers messages that are due.
#[derive(Debug)]
pub(crate) struct Outlet {
    pub(crate) client: Client,
    pub(crate) metrics: Metrics,
    /// Addresses that callbacks may reach beside public ones.
    pub(crate) reach: Allow,
    pub(crate) signed: bool,
    /// The bus that messages are published to.
    pub(crate) bus: Bus,
    pub(crate) sinks: Sinks,
}

impl Outlet {
    /// Makes the data directory, and opens the bus.
    pub(crate) async fn open(config: &Config) -> anyhow::Result<Self> {
        let directory = &config.serve.data_dir;
        // Payloads and the secrets in headers are readable by the owner of the process only.
        let made = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory);
        made.with_context(|| {
            let directory = directory.display();
            format!("cannot make the data directory {directory} (serve.data_dir): choose another one with --data-dir")
        })?;
        let secrets = all_secrets(config)?;
        let signed = !secrets.is_empty();
        let reach = reach(config);
        let limits = limits(config);
        let client = Client::new(Guard::new(reach.clone()), limits, secrets)?;
        let client = client.with_body(config.callback.body);
        let bus = bus(config).await?;
        let metrics = Metrics::new();
        let sinks = Sinks {
            callbacks: Some(Arc::new(Metered::new(client.clone(), &metrics))),
            bus: Some(Arc::new(Metered::new(BusSink::new(bus.clone()), &metrics))),
        };
        Ok(Self {
            client,
            metrics,
            reach,
            signed,
            bus,
            sinks,
        })
    }
}

/// Slots, waits and bounds, as they are set.
pub(crate) fn engine_options(config: &Config) -> Options {
    let callback = &config.callback;
    let topic_retry = config.delay.topic_retry.iter();
    Options {
        per_host: callback.per_host as usize,
        callbacks: callback.total as usize,
        waiting_callbacks: open_files::budget(config).waiting,
        retry: Schedule::new(config.delay.retry.iter().copied()),
        topic_retry: topic_retry
            .map(|(topic, waits)| (topic.clone(), Schedule::new(waits.iter().copied())))
            .collect(),
        max_delay: config.delay.longest,
        keep_ended: config.delay.keep_ended,
        clock_distrust: config.delay.clock_distrust,
        ..Options::default()
    }
}

async fn bus(config: &Config) -> anyhow::Result<Bus> {
    let address = match &config.serve.bus {
        Some(address) => address.clone(),
        None => format!("file:{}", config.serve.data_dir.join("bus").display()),
    };
    let bus = Bus::open(&address).await;
    bus.map_err(|error| {
        let is_in_use = matches!(error, laneway::Error::Broker(BrokerError::InUse { .. }));
        if is_in_use && config.serve.bus.is_none() {
            let directory = config.serve.data_dir.display();
            return anyhow!(
                "the data directory {directory} (serve.data_dir) is in use by another process, perhaps another laneway: \
                 stop that one, or choose another directory with --data-dir"
            );
        }
        let shown = without_secrets(&address);
        let error = without_secrets_of(&address, &error.to_string());
        anyhow!("cannot open the bus {shown} (serve.bus): {error}")
    })
}

fn limits(config: &Config) -> Limits {
    let mut limits = Limits::default();
    limits.timeout = config.callback.timeout;
    limits.idle = open_files::budget(config).idle;
    limits
}

/// Whom callbacks may reach. A server that only this machine can talk to may call this machine, so that it
/// can be tried out.
fn reach(config: &Config) -> Allow {
    match &config.callback.allow {
        Reach::Auto if config.serve.listen.ip().is_loopback() => Allow::loopback(),
        Reach::Auto => Allow::nothing(),
        Reach::Listed(allow) => allow.clone(),
    }
}

/// Those of single hosts, and those of all others.
pub(crate) fn all_secrets(config: &Config) -> anyhow::Result<Secrets> {
    let callback = &config.callback;
    let others = match &callback.secrets_file {
        Some(file) => secrets(file, "callback.secrets_file")?,
        None => Vec::new(),
    };
    let mut all = Secrets::from(others);
    for (host, file) in &callback.host_secrets {
        all = all.for_host(host, secrets(file, "callback.host_secrets")?);
    }
    Ok(all)
}

/// One secret a line; empty lines and those that begin with `#` do not count.
pub(crate) fn secrets(path: &Path, key: &str) -> anyhow::Result<Vec<Secret>> {
    let name = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {name} ({key})"))?;
    let lines = text.lines().map(str::trim).enumerate();
    let secrets: Vec<Secret> = lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(number, line)| {
            let secret = line.parse();
            secret.with_context(|| format!("{name}:{} ({key})", number + 1))
        })
        .collect::<anyhow::Result<_>>()?;
    ensure!(!secrets.is_empty(), "{name} ({key}) has no secret in it");
    Ok(secrets)
}
