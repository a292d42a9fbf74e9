//! The configuration: one TOML file, then the environment, then flags; the later one wins.
//!
//! Every setting is one row of the table in [`keys`]. That row is all there is to a setting: its
//! names in the file, the environment and the command line, what it accepts, how it is read and
//! shown. So the three sources cannot drift apart, and a key that exists is a key that works.
//!
//! # Why no configuration crate
//!
//! `config` and `figment` merge sources into one tree and deserialize that. What is wanted here is
//! the opposite view: each value on its own, with the line or variable it was written in, checked
//! against a known key, and every mistake reported at once. With `toml`'s spans that takes less
//! code than getting it out of a merged tree.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `keys`, `key` | the table of all settings; what a setting is |
//! | `source` | where values are written: the file, the environment, the flags |
//! | `overrides` | the flags, one for each key |
//! | `value` | how single values are read and shown |
//! | `roles` | what a process of a cluster does, and where it finds the others |
//! | `show` | what `laneway config` prints |
//! | `secret` | addresses without what is secret in them |
//! | `error` | what can be wrong, with the place, the key and the fix |

mod error;
mod key;
mod keys;
mod overrides;
mod roles;
pub(crate) mod secret;
mod show;
mod source;
pub(crate) mod value;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use laneway_delay::Schedule;
use laneway_delay::callback::Body;

use error::Problem;
pub(crate) use error::Problems;
pub(crate) use overrides::Overrides;
pub(crate) use roles::{Registry, Roles};
pub(crate) use source::{Inputs, Origin};
pub(crate) use value::{HostNames, LogFilter, LogFormat, LogLevel, Reach};

/// Everything that can be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) serve: Serve,
    pub(crate) delay: Delay,
    pub(crate) callback: Callback,
    pub(crate) log: Log,
}

/// `[serve]`: the HTTP server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Serve {
    pub(crate) listen: SocketAddr,
    /// Connections that are open at the same time. The next ones wait in the kernel's queue.
    pub(crate) max_connections: u32,
    /// How long a client may take to send a request head, and to stay idle between two requests.
    pub(crate) header_timeout: Duration,
    /// How long a client may take nothing of an answer that waits for it.
    pub(crate) write_timeout: Duration,
    /// How long requests in flight may take to finish after the signal to stop.
    pub(crate) shutdown_timeout: Duration,
    /// The largest request body, in bytes.
    pub(crate) max_body: u32,
    /// Where messages are kept, and the embedded bus.
    pub(crate) data_dir: PathBuf,
    /// The bus that messages are published to; an embedded one without it.
    pub(crate) bus: Option<String>,
    /// What this process does.
    pub(crate) roles: Roles,
    /// The broker that keeps the messages of a cluster; without it they are in the data directory.
    pub(crate) log: Option<String>,
    /// Where the servers of a cluster find each other.
    pub(crate) registry: Registry,
    /// The Redis that shards are copied to.
    pub(crate) backup: Option<String>,
    /// The name of the cluster.
    pub(crate) cluster: String,
    /// Into how many parts the messages of a cluster are split.
    pub(crate) shards: u32,
    /// Where other servers of the cluster reach this one.
    pub(crate) rpc_listen: SocketAddr,
    /// The address that they are told, if not that one.
    pub(crate) rpc_address: Option<String>,
    /// Certificates and key for the other servers of the cluster, in PEM.
    pub(crate) rpc_ca: Option<PathBuf>,
    pub(crate) rpc_cert: Option<PathBuf>,
    pub(crate) rpc_key: Option<PathBuf>,
    /// What this server is called, for people; the name of the machine without it.
    pub(crate) name: Option<String>,
    /// Whether the routes of `SorakaQ` are served.
    pub(crate) sorakaq: bool,
    /// The names that this server goes by, beside addresses and `localhost`.
    pub(crate) hosts: HostNames,
}

/// `[delay]`: delayed messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Delay {
    /// The longest delay that is accepted; any without it.
    pub(crate) longest: Option<Duration>,
    /// The waits between attempts.
    pub(crate) retry: Vec<Duration>,
    /// The waits between attempts of messages of these topics.
    pub(crate) topic_retry: BTreeMap<String, Vec<Duration>>,
    /// How long messages are kept that were delivered or withdrawn.
    pub(crate) keep_ended: Duration,
    /// For how long a wall clock that was set ahead is not believed, at most.
    pub(crate) clock_distrust: Duration,
}

/// `[callback]`: delivery by HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Callback {
    pub(crate) allow: Reach,
    /// How long a receiver may take to answer, where the message does not say.
    pub(crate) timeout: Duration,
    /// Callbacks at the same time to one host.
    pub(crate) per_host: u32,
    /// Callbacks at the same time to all hosts.
    pub(crate) total: u32,
    /// A file with the secrets that callbacks are signed with, one a line.
    pub(crate) secrets_file: Option<PathBuf>,
    /// Files with the secrets of single hosts.
    pub(crate) host_secrets: BTreeMap<String, PathBuf>,
    pub(crate) body: Body,
}

/// `[log]`: what is logged to standard error, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    pub(crate) level: LogLevel,
    /// Levels of parts of the program.
    pub(crate) filter: LogFilter,
    pub(crate) format: LogFormat,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            serve: Serve {
                listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7070)),
                // Below the usual limit of 1024 open files, with room for what else is open.
                max_connections: 512,
                header_timeout: Duration::from_secs(10),
                write_timeout: Duration::from_secs(10),
                shutdown_timeout: Duration::from_secs(10),
                max_body: 16 << 20,
                data_dir: "laneway-data".into(),
                bus: None,
                roles: Roles::ALL,
                log: None,
                registry: Registry::Auto,
                backup: None,
                cluster: "laneway".to_owned(),
                shards: 16,
                rpc_listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
                rpc_address: None,
                rpc_ca: None,
                rpc_cert: None,
                rpc_key: None,
                name: None,
                sorakaq: false,
                hosts: HostNames::default(),
            },
            delay: Delay {
                longest: None,
                retry: Schedule::default().waits().to_vec(),
                topic_retry: BTreeMap::new(),
                keep_ended: Duration::from_hours(1),
                clock_distrust: laneway_delay::Options::default().clock_distrust,
            },
            callback: Callback {
                allow: Reach::Auto,
                timeout: Duration::from_secs(10),
                per_host: 64,
                total: 1_024,
                secrets_file: None,
                host_secrets: BTreeMap::new(),
                body: Body::Payload,
            },
            log: Log {
                level: LogLevel::Info,
                filter: LogFilter::default(),
                format: LogFormat::Human,
            },
        }
    }
}

/// The configuration in force, and where each value of it came from.
#[derive(Debug)]
pub(crate) struct Effective {
    pub(crate) config: Config,
    /// By the name of the key. What is not in here is a default.
    origins: BTreeMap<&'static str, Origin>,
}

impl Effective {
    /// Where the value of a key came from.
    pub(crate) fn origin(&self, name: &str) -> &Origin {
        self.origins.get(name).unwrap_or(&Origin::Default)
    }

    /// What is right by itself and wrong beside other settings.
    fn contradictions(&self) -> Vec<Problem> {
        let serve = &self.config.serve;
        let mut found = Vec::new();
        let mut say = |key: &'static str, advice: String| {
            let origin = self.origin(key).clone();
            found.push(Problem::Contradiction {
                origin,
                key,
                advice,
            });
        };
        if serve.log.is_none() && serve.roles != Roles::ALL {
            let roles = serve.roles.show();
            say(
                "serve.roles",
                format!(
                    "{roles} alone works only with others: name the broker that they share with --log nats://HOST:PORT \
                     or --log kafka://HOST:PORT, or leave --roles out"
                ),
            );
        }
        let is_on_kafka = serve
            .log
            .as_deref()
            .is_some_and(|log| log.starts_with("kafka:"));
        if is_on_kafka && serve.log.as_deref().is_some_and(roles::is_static) {
            say(
                "serve.log",
                "a static member of a group keeps its shards from the others for as long as it is away: leave out \
                 instance=NAME"
                    .to_owned(),
            );
        }
        if is_on_kafka && serve.roles != Roles::ALL && serve.registry == Registry::Auto {
            say(
                "serve.registry",
                "Kafka does not tell servers where the others are: add --registry zookeeper://HOST:PORT or \
                 --registry nats://HOST:PORT"
                    .to_owned(),
            );
        }
        if serve.log.is_some() && serve.roles != Roles::ALL && serve.registry == Registry::Local {
            say(
                "serve.registry",
                "local is this process alone, which has not all roles: name a server with --registry \
                 zookeeper://HOST:PORT or --registry nats://HOST:PORT"
                    .to_owned(),
            );
        }
        if serve.backup.is_some() && serve.log.is_none() {
            say(
                "serve.backup",
                "it is a copy of what the log of a cluster has: name the log with --log nats://HOST:PORT or --log \
                 kafka://HOST:PORT, or leave --backup out"
                    .to_owned(),
            );
        } else if serve.backup.is_some() && !serve.roles.center {
            let roles = serve.roles.show();
            say(
                "serve.backup",
                format!(
                    "only a center writes it, and this process is {roles}: leave --backup out here, or add center to --roles"
                ),
            );
        }
        if serve.rpc_listen.ip().is_unspecified() && serve.rpc_address.is_none() {
            let listen = serve.rpc_listen;
            say(
                "serve.rpc_listen",
                format!(
                    "{listen} is no address that others can be told: add --rpc-address HOST:PORT"
                ),
            );
        }
        let files = [&serve.rpc_ca, &serve.rpc_cert, &serve.rpc_key];
        if files.iter().any(|file| file.is_some()) && files.iter().any(|file| file.is_none()) {
            say(
                "serve.rpc_cert",
                "servers of a cluster check each other: give all of --rpc-ca, --rpc-cert and --rpc-key, or none"
                    .to_owned(),
            );
        }
        found
    }
}

impl Inputs {
    /// The configuration in force, or everything that is wrong with it.
    pub(crate) fn resolve(self) -> Result<Effective, Problems> {
        let mut effective = self.apply_all()?;
        let contradictions = effective.contradictions();
        if !contradictions.is_empty() {
            return Err(Problems(contradictions));
        }
        let serve = &mut effective.config.serve;
        if serve.bus == serve.log {
            serve.bus = None;
        }
        serve.log = serve.log.take().map(roles::with_session);
        serve.bus = serve.bus.take().or_else(|| serve.log.clone());
        Ok(effective)
    }

    /// Applies all sources in order of strength, or says everything that is wrong with single values.
    fn apply_all(self) -> Result<Effective, Problems> {
        let mut effective = Effective {
            config: Config::default(),
            origins: BTreeMap::new(),
        };
        let (written, mut problems) = self.read();
        for setting in written {
            // A value that a stronger source hides is checked too: it would surprise later.
            match setting.apply(&mut effective.config) {
                Ok(()) => {
                    effective.origins.insert(setting.key.name, setting.origin);
                }
                Err(problem) => problems.push(problem),
            }
        }
        if problems.is_empty() {
            Ok(effective)
        } else {
            problems.sort_by_key(Problem::place);
            Err(Problems(problems))
        }
    }
}
