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

mod error;
mod keys;
mod overrides;
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

use error::Problem;
pub(crate) use error::Problems;
pub(crate) use overrides::Overrides;
pub(crate) use source::{Inputs, Origin};
pub(crate) use value::{CallbackBody, LogFormat, LogLevel, Reach};

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
    /// Whether the routes of `SorakaQ` are served.
    pub(crate) sorakaq: bool,
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
    pub(crate) body: CallbackBody,
}

/// `[log]`: what is logged to standard error, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    pub(crate) level: LogLevel,
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
                sorakaq: false,
            },
            delay: Delay {
                longest: None,
                retry: Schedule::default().waits().to_vec(),
                topic_retry: BTreeMap::new(),
                keep_ended: Duration::from_hours(1),
            },
            callback: Callback {
                allow: Reach::Auto,
                timeout: Duration::from_secs(10),
                per_host: 64,
                total: 1_024,
                secrets_file: None,
                body: CallbackBody::Payload,
            },
            log: Log {
                level: LogLevel::Info,
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
}

impl Inputs {
    /// Applies all sources in order of strength, or says everything that is wrong with them.
    pub(crate) fn resolve(self) -> Result<Effective, Problems> {
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
