//! The catalog of the cluster, as this process follows and changes it: a log of one partition, of which
//! [`Chain`] says what counts.
//!
//! A broker that is away freezes it: what was set last goes on to count.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use bytes::Bytes;
use laneway::Bus;
use laneway::log::{Error, Fault, Follower, Log};
use laneway_cluster::balance::Placement;
use laneway_cluster::catalog::{Catalog, Chain};
use laneway_registry::InstanceId;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{error, warn};

/// The topic with the catalog.
const CATALOG_TOPIC: &str = "laneway.delay.catalog";

/// How long the start waits for what was set before.
const READ_WITHIN: Duration = Duration::from_secs(30);

/// How long a change may take.
const CHANGE_WITHIN: Duration = Duration::from_secs(10);

/// Between two tries of a broker that is away.
const PAUSE: Duration = Duration::from_millis(500);

/// With more entries than this those that do not count any more are removed.
const MOST_ENTRIES: u64 = 64;

/// The catalog of the cluster.
#[derive(Debug)]
pub(crate) struct SharedCatalog {
    log: Log,
    known: watch::Sender<Known>,
}

/// What was read of it.
#[derive(Debug, Default)]
struct Known {
    chain: Chain,
    /// Behind the last record that was read.
    next: u64,
    /// As the center asks for them, for every attempt.
    placements: HashMap<String, Arc<Placement>>,
    others: Arc<Placement>,
}

/// Why nothing was set.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotSet<E> {
    /// It was not wanted after all.
    #[error("{0}")]
    Refused(E),
    /// The broker did not answer, or others were faster each time.
    #[error("{0}; it may have been set all the same: look, and send it again")]
    Away(String),
    /// An entry is one record.
    #[error(
        "the catalog would have {size} bytes, and the broker takes {most}: take topics out of it that need nothing of their own"
    )]
    Full { size: usize, most: usize },
}

impl SharedCatalog {
    /// Opens it, makes it if it is not there, and reads what was set. The follower goes on from there.
    pub(super) async fn open(bus: &Bus) -> anyhow::Result<(Arc<Self>, Follower)> {
        let log = bus.log(CATALOG_TOPIC, 1).await;
        let log = log.with_context(|| format!("cannot open {CATALOG_TOPIC}"))?;
        let catalog = Self {
            known: watch::Sender::default(),
            log,
        };
        let reading = async {
            let bounds = catalog.log.bounds(0).await?;
            let mut follower = catalog.log.follow(0, bounds.start);
            while follower.position() < bounds.end {
                catalog.note(follower.next().await?);
            }
            Ok::<_, Error>(follower)
        };
        let read = timeout(READ_WITHIN, reading).await;
        let read = read.map_err(|_| anyhow!("no answer in time"))?;
        let follower = read.with_context(|| format!("cannot read {CATALOG_TOPIC}"))?;
        Ok((Arc::new(catalog), follower))
    }

    /// Follows what is set from now on. It does not end.
    pub(super) async fn follow(self: Arc<Self>, mut follower: Follower) {
        loop {
            match follower.next().await {
                Ok(records) => self.note(records),
                Err(Error::Fault(Fault::Trimmed { .. })) => {
                    // What counts is never trimmed.
                    if let Ok(bounds) = self.log.bounds(0).await {
                        follower = self.log.follow(0, bounds.start);
                    } else {
                        sleep(PAUSE).await;
                    }
                }
                Err(error) => {
                    warn!(%error, "the catalog cannot be read; what was set last counts, retrying");
                    sleep(PAUSE).await;
                }
            }
        }
    }

    fn note(&self, records: Vec<(u64, Bytes)>) {
        self.known.send_modify(|known| {
            let mut has_changed = false;
            for (offset, bytes) in records {
                known.next = known.next.max(offset + 1);
                match serde_json::from_slice(&bytes) {
                    Ok(entry) => has_changed |= known.chain.note(offset, entry),
                    Err(error) => {
                        error!(offset, %error, "an entry of the catalog cannot be read and is passed over: is it of a later version?");
                    }
                }
            }
            if has_changed {
                let topics = known.chain.catalog().topics.iter();
                let topics = topics.map(|(topic, it)| (topic.clone(), Arc::new(it.clone())));
                known.placements = topics.collect();
            }
        });
    }

    /// What is set, as far as is known here.
    pub(crate) fn now(&self) -> Catalog {
        self.known.borrow().chain.catalog().clone()
    }

    /// Which workers a topic has.
    pub(super) fn placement(&self, topic: &str) -> Arc<Placement> {
        let known = self.known.borrow();
        known.placements.get(topic).unwrap_or(&known.others).clone()
    }

    pub(super) fn is_drained(&self, id: InstanceId) -> bool {
        let known = self.known.borrow();
        known.chain.catalog().drained.contains(&id.to_string())
    }

    /// Calls `see` with what is set, now and after every change. It does not end.
    pub(super) async fn each(self: Arc<Self>, mut see: impl FnMut(&Catalog)) {
        let mut known = self.known.subscribe();
        loop {
            // IMPORTANT: what is shown and its offset together, or a change that comes while `see` runs is missed.
            let (catalog, before) = {
                let now = known.borrow_and_update();
                (now.chain.catalog().clone(), now.chain.offset())
            };
            see(&catalog);
            let has_changed = |known: &Known| known.chain.offset() != before;
            if known.wait_for(has_changed).await.is_err() {
                return;
            }
        }
    }

    /// Sets what `set` makes of what is set. It is called again if something else was set meanwhile.
    pub(crate) async fn change<T, E>(
        &self,
        mut set: impl FnMut(&mut Catalog) -> Result<T, E>,
    ) -> Result<T, NotSet<E>> {
        let deadline = Instant::now() + CHANGE_WITHIN;
        let away =
            |error: Error| NotSet::Away(format!("the catalog cannot be changed now: {error}"));
        let late = || NotSet::Away("the catalog could not be changed in time".to_owned());
        let mut tried: Option<(String, T)> = None;
        loop {
            let bounds = timeout_at(deadline, self.log.bounds(0)).await;
            let bounds = bounds.map_err(|_| late())?.map_err(away)?;
            if !bounds.is_empty() && !self.read_to(bounds.end, deadline).await {
                return Err(late());
            }
            let chain = self.known.borrow().chain.clone();
            if let Some((token, made)) = tried.take()
                && chain.has_counted(&token)
            {
                self.tidy(&chain, bounds.end - bounds.start).await;
                return Ok(made);
            }
            let mut catalog = chain.catalog().clone();
            let made = set(&mut catalog).map_err(NotSet::Refused)?;
            if catalog == *chain.catalog() {
                return Ok(made);
            }
            let token = InstanceId::draw().to_string();
            let entry = chain.entry(token.clone(), catalog);
            let entry = serde_json::to_vec(&entry).unwrap_or_default();
            let (size, most) = (entry.len(), self.log.largest());
            if size > most {
                return Err(NotSet::Full { size, most });
            }
            tried = Some((token, made));
            let appending = self.log.append(0, vec![entry.into()]);
            match timeout_at(deadline, appending).await {
                Err(_) => return Err(late()),
                Ok(Ok(_)) => {}
                // It may be there all the same: what is read next says so.
                Ok(Err(error)) if error.is_unknown() => sleep(PAUSE).await,
                Ok(Err(error)) => return Err(away(error)),
            }
        }
    }

    /// Waits until everything before an offset was read. `false`: not in time.
    async fn read_to(&self, end: u64, deadline: Instant) -> bool {
        let mut known = self.known.subscribe();
        let reading = known.wait_for(|known| known.next >= end);
        matches!(timeout_at(deadline, reading).await, Ok(Ok(_)))
    }

    /// Removes what does not count any more. If that fails, the next change does it.
    async fn tidy(&self, chain: &Chain, entries: u64) {
        if let Some(current) = chain.offset().filter(|_| entries > MOST_ENTRIES) {
            let trimming = self.log.trim(0, current);
            if let Ok(Err(error)) = timeout(PAUSE, trimming).await {
                warn!(%error, "old entries of the catalog cannot be removed");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use laneway_cluster::balance::Strategy;

    async fn opened(bus: &Bus) -> Arc<SharedCatalog> {
        let (catalog, follower) = SharedCatalog::open(bus).await.expect("a catalog");
        tokio::spawn(catalog.clone().follow(follower));
        catalog
    }

    async fn place(catalog: &SharedCatalog, topic: &str, strategy: Strategy) {
        let set = |catalog: &mut Catalog| {
            let placement = Placement {
                strategy,
                ..Placement::default()
            };
            catalog.topics.insert(topic.to_owned(), placement);
            Ok::<_, String>(())
        };
        catalog.change(set).await.expect("it is set");
    }

    #[tokio::test]
    async fn what_many_set_at_once_is_all_there_for_all_also_later_and_is_tidied() {
        let bus = Bus::open("memory:").await.expect("a bus");
        let processes = [opened(&bus).await, opened(&bus).await, opened(&bus).await];
        let setting = (0..90).map(|number| {
            let catalog = &processes[number % 3];
            async move {
                place(catalog, &format!("t{number}"), Strategy::RoundRobin).await;
            }
        });
        futures_util::future::join_all(setting).await;
        let later = opened(&bus).await;
        for catalog in processes.iter().chain([&later]) {
            waiting::wait_for!(catalog.now().topics.len() == 90);
            assert_eq!(catalog.placement("t7").strategy, Strategy::RoundRobin);
            assert_eq!(*catalog.placement("other"), Placement::default());
        }
        place(&later, "last", Strategy::Random).await;
        let bounds = later.log.bounds(0).await.expect("bounds");
        assert!(bounds.end - bounds.start <= 2 * MOST_ENTRIES, "{bounds:?}");
        waiting::wait_for!(processes[0].placement("last").strategy == Strategy::Random);
    }

    #[tokio::test]
    async fn what_is_refused_changes_nothing_and_foreign_records_are_passed_over() {
        let bus = Bus::open("memory:").await.expect("a bus");
        let catalog = opened(&bus).await;
        let foreign = vec![Bytes::from("{"), Bytes::from("[]")];
        catalog.log.append(0, foreign).await.expect("appended");
        place(&catalog, "t", Strategy::LeastLoaded).await;
        let refused = catalog.change(|_| Err::<(), _>("no")).await;
        assert!(matches!(refused, Err(NotSet::Refused("no"))), "{refused:?}");
        let large = |catalog: &mut Catalog| {
            catalog
                .topics
                .insert("x".repeat(65 << 20), Placement::default());
            Ok::<_, String>(())
        };
        let full = catalog.change(large).await;
        assert!(matches!(full, Err(NotSet::Full { .. })), "it is too large");
        assert_eq!(catalog.now().topics.len(), 1);
    }
}
