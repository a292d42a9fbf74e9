//! A center: all its tasks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use laneway::Subscription;
use laneway::topic::Topic;
use laneway_registry::InstanceId;
use laneway_rpc::proto;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::intake;
use crate::log::ShardLog;
use crate::options::Options;
use crate::shard::{Mailbox, supervise};
use crate::shared::{ShardState, Shared};
use crate::stats::{CenterStats, Counters};
use crate::workers::{self, Workers};

/// Events that wait for the task of one shard.
const MAILBOX: usize = 8_192;

/// How often it is looked whether all shards are released.
const LOOK: Duration = Duration::from_millis(5);

/// Why a center does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bus or its broker.
    #[error(transparent)]
    Bus(#[from] laneway::Error),
    /// The delay topic has another number of partitions than the log.
    #[error(
        "the intake has {intake} partitions and the log {log}: they have to be the same, so one of the topics was changed \
         or made with other settings"
    )]
    Partitions {
        /// Of the intake.
        intake: u32,
        /// Of the log.
        log: u32,
    },
    /// Its directory.
    #[error("the directory of the views cannot be made: {0}")]
    Directory(#[from] std::io::Error),
}

/// A center that runs. It answers calls as [`CenterCalls`](laneway_rpc::CenterCalls). All its tasks end when it is
/// dropped, without a word to others: [`stop`](Self::stop) ends it well.
pub struct Center {
    pub(crate) shared: Arc<Shared>,
    pub(crate) mailboxes: Arc<Vec<Mailbox>>,
    subscription: Mutex<Option<Subscription>>,
    /// What the shards are told about their assignment, behind what the group says.
    assigned: watch::Sender<BTreeMap<u32, u64>>,
    tasks: Mutex<JoinSet<()>>,
}

impl std::fmt::Debug for Center {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Center")
            .field("cluster", &self.shared.cluster)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Center {
    /// Starts a center: it follows all shards, takes the intake of those that its group gives it, and owns these.
    ///
    /// # Errors
    /// When the intake cannot be subscribed to, or has another number of partitions than the log.
    pub async fn start(options: Options) -> Result<Self, Error> {
        let bus = options.bus.clone();
        let (shards, largest) = (options.log.partitions(), options.log.largest());
        let log: Arc<dyn ShardLog> = Arc::new(options.log.clone());
        let center = Self::over(&options.into(), log)?;
        let topic = if let Some(topic) = bus.describe(laneway::DELAY_TOPIC).await? {
            topic
        } else {
            let topic = Topic::domain(laneway::DELAY_TOPIC).partitions(shards);
            bus.declare(&topic.build().map_err(laneway::Error::from)?)
                .await?
        };
        let intake = topic.partitions().get();
        if intake != shards {
            let log = shards;
            return Err(Error::Partitions { intake, log });
        }
        let subscription = intake::subscribe(&bus, center.mailboxes.clone(), largest).await?;
        center.forward(subscription.assigned());
        *center.subscription.lock() = Some(subscription);
        Ok(center)
    }

    /// A center over any log, without an intake.
    pub(crate) fn over(parts: &Parts, log: Arc<dyn ShardLog>) -> Result<Self, Error> {
        std::fs::create_dir_all(&parts.directory)?;
        let counters = Arc::new(Counters::default());
        let (mut mailboxes, mut receivers) = (Vec::new(), Vec::new());
        for _ in 0..log.shards() {
            let (mailbox, receiver) = mpsc::channel(MAILBOX);
            mailboxes.push(mailbox);
            receivers.push(receiver);
        }
        let hello = proto::Hello {
            cluster: parts.cluster.clone(),
            instance: parts.instance.0.to_vec().into(),
            name: parts.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let workers = Arc::new(Workers::new(
            parts.cluster.clone(),
            hello,
            parts.settings.clone(),
            parts.clock.clone(),
            parts.topics.clone(),
            counters.clone(),
            mailboxes.clone(),
        ));
        let shared = Arc::new(Shared {
            cluster: parts.cluster.clone(),
            log,
            directory: parts.directory.clone(),
            settings: parts.settings.clone(),
            clock: parts.clock.clone(),
            topics: parts.topics.clone(),
            workers: workers.clone(),
            counters,
            backup: parts.backup.clone(),
            restores: Semaphore::new(crate::backup::RESTORES),
            has_left: AtomicBool::new(false),
            states: receivers.iter().map(|_| ShardState::default()).collect(),
            #[cfg(test)]
            planted: parts.planted.clone(),
        });
        let (assigned, assignments) = watch::channel(BTreeMap::new());
        let mut tasks = JoinSet::new();
        for (number, receiver) in (0..).zip(receivers) {
            let (shared, assignments) = (shared.clone(), assignments.clone());
            tasks.spawn(supervise(shared, number, receiver, assignments));
        }
        let (registry, connector) = (parts.registry.clone(), parts.connector.clone());
        tasks.spawn(workers::watch(workers, registry, connector));
        Ok(Self {
            shared,
            mailboxes: Arc::new(mailboxes),
            subscription: Mutex::new(None),
            assigned,
            tasks: Mutex::new(tasks),
        })
    }

    /// Tells the shards what the group says.
    pub(crate) fn forward(&self, mut group: watch::Receiver<BTreeMap<u32, u64>>) {
        let assigned = self.assigned.clone();
        self.tasks.lock().spawn(async move {
            loop {
                let now = group.borrow_and_update().clone();
                assigned.send_replace(now);
                if group.changed().await.is_err() {
                    assigned.send_replace(BTreeMap::new());
                    return;
                }
            }
        });
    }

    /// What it has done.
    #[must_use]
    pub fn stats(&self) -> CenterStats {
        self.shared.counters.read()
    }

    /// How many shards there are.
    #[must_use]
    pub fn shards(&self) -> u32 {
        self.shared.log.shards()
    }

    /// The shards that the group has given to this center and that can go no further here, each with the offset that it got to.
    #[must_use]
    pub fn halted(&self) -> Vec<(u32, u64)> {
        let assigned = self.assigned.borrow().clone();
        let halted = assigned.into_keys().filter_map(|number| {
            let state = self.shared.states.get(number as usize)?;
            state.stopped()?;
            Some((number, state.applied.load(Relaxed)))
        });
        halted.collect()
    }

    /// Whether it has given up all shards, and takes none.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.shared.has_left.load(Relaxed)
    }

    /// Takes a worker for dead that an operator has removed, whatever is heard of it: its stream is closed, and what it had goes to
    /// others.
    pub fn remove_worker(&self, worker: InstanceId) {
        self.shared.workers.remove(worker);
    }

    /// Leaves the group and gives all shards up, and waits until nothing of them is under way, but not longer than `drain`. It
    /// follows the shards from then on, and gets none before it is started again. Whether it owns none.
    pub async fn give_up(&self, drain: Duration) -> bool {
        self.shared.has_left.store(true, Relaxed);
        let until = Instant::now() + drain.min(Duration::from_hours(1));
        let subscription = self.subscription.lock().take();
        let closing = subscription
            .map(|subscription| tokio::spawn(async move { subscription.close(drain).await }));
        if closing.is_none() {
            self.assigned.send_replace(BTreeMap::new());
        }
        if let Some(closing) = closing {
            let left = until.saturating_duration_since(Instant::now());
            let _ = tokio::time::timeout(left + Duration::from_secs(2), closing).await;
            self.assigned.send_replace(BTreeMap::new());
        }
        while self.stats().owned > 0 && Instant::now() < until {
            sleep(LOOK).await;
        }
        self.stats().owned == 0
    }

    /// Gives all shards up, as [`give_up`](Self::give_up) does, and ends all tasks.
    pub async fn stop(&self, drain: Duration) {
        self.give_up(drain).await;
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.shutdown().await;
    }
}

/// What a center is made of, apart from log and bus.
pub(crate) struct Parts {
    pub(crate) cluster: String,
    pub(crate) instance: laneway_cluster::record::Instance,
    pub(crate) name: String,
    pub(crate) directory: std::path::PathBuf,
    pub(crate) registry: laneway_registry::Registry,
    pub(crate) connector: Arc<dyn workers::Connect>,
    pub(crate) clock: Arc<dyn laneway_delay::clock::Clock>,
    pub(crate) topics: Arc<dyn crate::options::Topics>,
    pub(crate) backup: Option<laneway_backup::Backup>,
    pub(crate) settings: crate::options::Settings,
    #[cfg(test)]
    pub(crate) planted: Option<crate::shared::Planted>,
}

impl From<Options> for Parts {
    fn from(options: Options) -> Self {
        Self {
            cluster: options.cluster,
            instance: options.instance,
            name: options.name,
            directory: options.directory,
            registry: options.registry,
            connector: options.connector,
            clock: options.clock,
            topics: options.topics,
            backup: options.backup,
            settings: options.settings,
            #[cfg(test)]
            planted: None,
        }
    }
}
