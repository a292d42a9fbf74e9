//! What a center is started with.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use laneway::Bus;
use laneway::log::Log;
use laneway_backup::Backup;
use laneway_cluster::balance::Placement;
use laneway_cluster::owner;
use laneway_cluster::record::Instance;
use laneway_delay::Schedule;
use laneway_delay::clock::Clock;
use laneway_registry::Registry;

use crate::workers::Connect;

/// What a center is started with.
#[derive(Clone)]
pub struct Options {
    /// The cluster. Workers of another one are refused.
    pub cluster: String,
    /// This process.
    pub instance: Instance,
    /// What people call it.
    pub name: String,
    /// The log of the shards.
    pub log: Log,
    /// The bus with the intake. Its delay topic needs as many partitions as there are shards.
    pub bus: Bus,
    /// Where views are kept, a directory for each shard.
    pub directory: PathBuf,
    /// Where workers are found.
    pub registry: Registry,
    /// How they are reached.
    pub connector: Arc<dyn Connect>,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// What is set for topics.
    pub topics: Arc<dyn Topics>,
    /// Where owned shards are copied to, and where views that are gone may be restored from. Nothing is decided by it.
    pub backup: Option<Backup>,
    /// Times and bounds.
    pub settings: Settings,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("cluster", &self.cluster)
            .field("name", &self.name)
            .field("directory", &self.directory)
            .field("backup", &self.backup)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// What is set for topics of delayed messages. It is asked for every attempt, so that a change counts from the next one on.
pub trait Topics: Send + Sync + 'static {
    /// Which workers a topic has, and how they share its messages.
    fn placement(&self, topic: &str) -> Arc<Placement> {
        let _ = topic;
        Arc::default()
    }

    /// The waits between the attempts of a message that brings none of its own.
    fn waits(&self, topic: &str) -> Schedule {
        let _ = topic;
        Schedule::default()
    }
}

/// All topics have all workers, and the documented waits.
#[derive(Clone, Copy, Debug, Default)]
pub struct DefaultTopics;

impl Topics for DefaultTopics {}

/// Times and bounds of a center.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The times of an owner: how long before it is due an attempt is begun, and how long ended messages are kept.
    pub owner: owner::Settings,
    /// How far ahead the due index is read into memory.
    pub horizon: Duration,
    /// The most messages of one shard that are in memory because they are due soon.
    pub near: usize,
    /// Attempts are begun in ticks of this.
    pub tick: Duration,
    /// The state is scanned so often for what no event told of.
    pub scan: Duration,
    /// How long an append may take. After that its outcome is unknown, and everything is sent again.
    pub append_within: Duration,
    /// How long other calls of the log may take.
    pub ask_within: Duration,
    /// How long a shard that is given up may wait for the attempts of its messages.
    pub drain: Duration,
    /// How long a caller waits for an answer of the owner.
    pub call_within: Duration,
    /// Old ended messages are looked for so often.
    pub forget: Duration,
    /// Whether trimming pays is looked at so often.
    pub trim: Duration,
    /// A log with fewer bytes than this since its last `open` is not trimmed.
    pub trim_bytes: u64,
    /// Workers are pinged so often.
    pub ping: Duration,
    /// A worker without a pong for so long is dead.
    pub silence: Duration,
    /// A worker whose connection broke, and that cannot be reached again for so long, is dead.
    pub grace: Duration,
    /// The most records that are applied before the view is committed.
    pub batch: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            owner: owner::Settings::default(),
            horizon: Duration::from_mins(1),
            near: 200_000,
            tick: Duration::from_millis(10),
            scan: Duration::from_secs(5),
            append_within: Duration::from_secs(5),
            ask_within: Duration::from_secs(5),
            drain: Duration::from_secs(10),
            call_within: Duration::from_secs(5),
            forget: Duration::from_mins(1),
            trim: Duration::from_secs(10),
            trim_bytes: 16 << 20,
            ping: Duration::from_secs(1),
            silence: Duration::from_secs(3),
            grace: Duration::from_secs(1),
            batch: 512,
        }
    }
}
