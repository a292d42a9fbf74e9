//! What a cluster runs on: the servers of its log and of its registry.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::group::Server;
use crate::group::life::{Behind, Entrance};
use crate::{kafka, nats, zookeeper};

/// What a cluster runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stack {
    /// NATS for everything.
    Nats,
    /// Kafka for the log, `ZooKeeper` for the registry.
    Kafka,
}

impl Stack {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Nats, Self::Kafka];

    /// What it is called on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nats => "nats",
            Self::Kafka => "kafka",
        }
    }

    /// The one of that name.
    ///
    /// # Errors
    /// If there is none.
    pub fn named(name: &str) -> Result<Self> {
        match Self::ALL.into_iter().find(|stack| stack.name() == name) {
            Some(stack) => Ok(stack),
            None => bail!("there is no stack {name} (--stack): choose nats or kafka"),
        }
    }

    /// How long a center may be silent before another one has its shards, unless the address of the log says something else.
    #[must_use]
    pub fn session(self) -> Duration {
        match self {
            Self::Nats => Duration::from_secs(3),
            Self::Kafka => Duration::from_secs(6),
        }
    }

    /// What processes are told of the log and the registry at these addresses.
    fn arguments(self, log: &str, registry: Option<&str>, settings: &str) -> Vec<String> {
        let scheme = self.name();
        let mut arguments = vec!["--log".to_owned(), format!("{scheme}://{log}{settings}")];
        if let Some(registry) = registry {
            arguments.extend(["--registry".to_owned(), format!("zookeeper://{registry}")]);
        }
        arguments
    }
}

/// The servers of a stack. Dropped, they are killed.
#[derive(Debug)]
pub struct Servers {
    stack: Stack,
    pub(super) log: Server,
    /// On NATS it is the same server.
    pub(super) registry: Option<Server>,
}

/// How one process reaches servers.
pub(super) struct Reached {
    pub(super) entrances: Vec<Behind>,
    pub(super) arguments: Vec<String>,
}

impl Servers {
    /// Starts them.
    ///
    /// # Errors
    /// If they cannot be had, or do not start.
    pub fn start(stack: Stack, folder: &Path) -> Result<Self> {
        let (servers, _) = Self::reached_by(stack, folder, 0, "")?;
        Ok(servers)
    }

    /// Starts them, with so many ways to reach them. Processes add these settings to the address of the log.
    pub(super) fn reached_by(
        stack: Stack,
        folder: &Path,
        count: usize,
        settings: &str,
    ) -> Result<(Self, Vec<Reached>)> {
        let (mut log, entrances) = match stack {
            Stack::Nats => nats::behind(folder, count)?,
            Stack::Kafka => kafka::behind(folder, count)?,
        };
        let mut registry = match stack {
            Stack::Nats => None,
            Stack::Kafka => Some(zookeeper::not_started(folder)?),
        };
        log.start()?;
        if let Some(registry) = &mut registry {
            registry.start()?;
        }
        let reached = entrances.into_iter().map(|behind| {
            let told = address(&behind.0)?;
            let mut entrances = vec![behind];
            let mut told_registry = None;
            if let Some(registry) = &registry {
                let entrance = Entrance::new()?;
                told_registry = Some(address(&entrance)?);
                entrances.push((entrance, registry.address()));
            }
            let arguments = stack.arguments(&told, told_registry.as_deref(), settings);
            Ok(Reached {
                entrances,
                arguments,
            })
        });
        let reached = reached.collect::<Result<_>>()?;
        let servers = Self {
            stack,
            log,
            registry,
        };
        Ok((servers, reached))
    }

    /// What processes are told that reach them directly.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let registry = self.registry.as_ref().map(Server::address);
        self.stack
            .arguments(&self.log.address(), registry.as_deref(), "")
    }

    /// The address of the log, for a bus.
    #[must_use]
    pub fn address(&self) -> String {
        format!("{}://{}", self.stack.name(), self.log.address())
    }

    /// The registry, where it is a server of its own.
    pub(super) fn registry(&mut self) -> Result<&mut Server> {
        self.registry.as_mut().context("NATS is the registry, too")
    }

    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut Server> {
        [&mut self.log].into_iter().chain(self.registry.as_mut())
    }
}

fn address(entrance: &Entrance) -> Result<String> {
    Ok(format!("127.0.0.1:{}", entrance.port()?))
}
