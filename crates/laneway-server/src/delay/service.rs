//! Starts what delayed messages need, and stops it.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use laneway::{Bus, BusSink, Subscription};
use laneway_delay::callback::{Allow, Client, Guard, Limits, Secret};
use laneway_delay::{Delays, Options, Schedule, Sinks};

use super::Figures;
use super::callbacks::Callbacks;
use super::publish::OnBus;
use crate::config::{Config, Reach};

/// The roles receive, center and worker of this process.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) delays: Delays,
    pub(crate) client: Client,
    pub(crate) figures: Figures,
    /// Whom callbacks may reach beside public addresses.
    pub(crate) reach: Allow,
    pub(crate) signed: bool,
    bus: Bus,
    /// Where events come from that others publish later, on a bus that is shared.
    intake: Option<Subscription>,
}

impl Service {
    /// Opens the data directory and starts to fire what is due.
    pub(crate) async fn start(config: &Config) -> anyhow::Result<Self> {
        let directory = &config.serve.data_dir;
        fs::create_dir_all(directory).with_context(|| {
            let directory = directory.display();
            format!("cannot make the data directory {directory} (serve.data_dir): choose another one with --data-dir")
        })?;
        let secrets = secrets(config.callback.secrets_file.as_deref())?;
        let signed = !secrets.is_empty();
        let reach = reach(config);
        let limits = limits(config);
        let client = Client::new(Guard::new(reach.clone()), limits, secrets)?;
        let bus = bus(config).await?;
        let figures = Figures::new();
        let sinks = Sinks {
            callbacks: Some(Arc::new(Callbacks {
                client: client.clone(),
                body: config.callback.body,
                figures: figures.clone(),
            })),
            bus: Some(Arc::new(OnBus {
                sink: BusSink::new(bus.clone()),
                figures: figures.clone(),
            })),
        };
        let delays = open(config, sinks).await?;
        let intake = if config.serve.bus.is_some() {
            let kept = bus.keep_delayed(delays.clone()).await;
            Some(kept.context("cannot take delayed events from the bus (serve.bus)")?)
        } else {
            None
        };
        Ok(Self {
            delays,
            client,
            figures,
            reach,
            signed,
            bus,
            intake,
        })
    }

    /// Stops firing, finishes what runs, and lets the directory go.
    pub(crate) async fn stop(&self, deadline: Duration) -> anyhow::Result<()> {
        if let Some(intake) = &self.intake {
            // What it has not taken stays on the bus.
            intake.close(deadline).await;
        }
        self.delays
            .close(deadline)
            .await
            .context("cannot close the messages")?;
        self.bus
            .close(deadline)
            .await
            .context("cannot close the bus")?;
        Ok(())
    }
}

async fn open(config: &Config, sinks: Sinks) -> anyhow::Result<Delays> {
    let callback = &config.callback;
    let topic_retry = config.delay.topic_retry.iter();
    let options = Options {
        per_host: callback.per_host as usize,
        callbacks: callback.total as usize,
        retry: Schedule::new(config.delay.retry.iter().copied()),
        topic_retry: topic_retry
            .map(|(topic, waits)| (topic.clone(), Schedule::new(waits.iter().copied())))
            .collect(),
        max_delay: config.delay.longest,
        keep_ended: config.delay.keep_ended,
        ..Options::default()
    };
    let directory = config.serve.data_dir.join("messages");
    let delays = Delays::open(&directory, sinks, options).await;
    delays.with_context(|| format!("cannot open the messages in {}", directory.display()))
}

async fn bus(config: &Config) -> anyhow::Result<Bus> {
    let address = match &config.serve.bus {
        Some(address) => address.clone(),
        None => format!("file:{}", config.serve.data_dir.join("bus").display()),
    };
    let bus = Bus::open(&address).await;
    bus.with_context(|| format!("cannot open the bus {address} (serve.bus)"))
}

fn limits(config: &Config) -> Limits {
    let mut limits = Limits::default();
    limits.timeout = config.callback.timeout;
    limits.per_host = config.callback.per_host as usize;
    limits.total = config.callback.total as usize;
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

/// One secret a line; empty lines and those that begin with `#` do not count.
fn secrets(file: Option<&Path>) -> anyhow::Result<Vec<Secret>> {
    let Some(path) = file else {
        return Ok(Vec::new());
    };
    let name = path.display();
    let text = fs::read_to_string(path)
        .with_context(|| format!("cannot read {name} (callback.secrets_file)"))?;
    let lines = text.lines().map(str::trim).enumerate();
    let secrets: Vec<Secret> = lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(number, line)| {
            let secret = line.parse();
            secret.with_context(|| format!("{name}:{} (callback.secrets_file)", number + 1))
        })
        .collect::<anyhow::Result<_>>()?;
    ensure!(
        !secrets.is_empty(),
        "{name} (callback.secrets_file) has no secret in it"
    );
    Ok(secrets)
}
