//! The backend in a `JetStream` bucket: entries `instance.ROLE.ID` and `lock.NAME`.
//!
//! Every process writes its entries again three times in a session, by compare-and-set, and follows those of others by a
//! watch. Silence is counted by each reader, in time during which the server answered it (`answered`): an
//! outage, a restart of the server or a reader that was frozen itself makes nobody look dead.
//!
//! An operator removes an instance by writing [`REMOVED`] into its entry, which the next heartbeat of the instance meets.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use async_nats::Client;
use async_nats::connection::State;
use async_nats::jetstream::kv::{
    Config, CreateErrorKind, Entry, Operation, Store, UpdateErrorKind, Watch,
};
use async_nats::jetstream::{self, stream::StorageType};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::time::{Instant, sleep_until, timeout};

use crate::keeper::{Announced, Backend, News, Session};
use crate::{Error, Instance, InstanceId, Role};

/// In the place of an instance that an operator has removed.
const REMOVED: &[u8] = b"removed";

/// An entry that is silent for so many sessions is deleted by those who see that.
const FORGOTTEN_AFTER: u32 = 100;

/// What is left of a deleted entry goes away after this.
const MARKERS_KEPT: Duration = Duration::from_mins(1);

/// Conflicts in a row with writers of the same entry.
const TRIES: usize = 5;

/// How the registry is kept in NATS.
#[derive(Clone, Debug)]
pub struct NatsOptions {
    bucket: String,
    session: Duration,
    replicas: usize,
}

impl Default for NatsOptions {
    fn default() -> Self {
        Self {
            bucket: "laneway-registry".to_owned(),
            session: Duration::from_secs(3),
            replicas: 1,
        }
    }
}

impl NatsOptions {
    /// The bucket, `laneway-registry` by default. Clusters that share servers have different ones.
    #[must_use]
    pub fn bucket(mut self, bucket: impl Into<String>) -> Self {
        self.bucket = bucket.into();
        self
    }

    /// After so long without a heartbeat an instance is missed, 3 s by default. The same for all processes.
    #[must_use]
    pub fn session(mut self, session: Duration) -> Self {
        self.session = session;
        self
    }

    /// How many servers keep the bucket, when it is made.
    #[must_use]
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }
}

pub(crate) struct Nats {
    client: Client,
    options: NatsOptions,
}

impl Nats {
    pub(crate) fn new(client: Client, options: NatsOptions) -> Self {
        Self { client, options }
    }

    async fn bucket(&self) -> Result<Store, Error> {
        let context = jetstream::new(self.client.clone());
        if let Ok(store) = context.get_key_value(&self.options.bucket).await {
            return Ok(store);
        }
        let config = Config {
            bucket: self.options.bucket.clone(),
            description: "instances of laneway".to_owned(),
            history: 1,
            storage: StorageType::File,
            num_replicas: self.options.replicas,
            limit_markers: Some(MARKERS_KEPT),
            ..Config::default()
        };
        context.create_key_value(config).await.map_err(Error::away)
    }
}

impl Backend for Nats {
    type Session = Connection;

    async fn connect(&mut self) -> Result<Connection, Error> {
        let session = self.options.session;
        let opening = async {
            let store = self.bucket().await?;
            let watch = watch(&store).await?;
            Ok::<_, Error>((store, watch))
        };
        let opened = timeout(session.max(Duration::from_secs(1)), opening).await;
        let (store, watch) = opened.map_err(Error::away)??;
        Ok(Connection {
            client: self.client.clone(),
            store,
            watch: Some(watch),
            session,
            entries: BTreeMap::new(),
            own: HashMap::new(),
            answered: Duration::ZERO,
            last_answer: Instant::now(),
            next_heartbeat: Instant::now(),
            away_since: None,
        })
    }
}

async fn watch(store: &Store) -> Result<Watch, Error> {
    let watching = store.watch_with_history("instance.>").await;
    watching.map_err(Error::away)
}

/// What is known of an entry.
struct Seen {
    instance: Option<Instance>,
    revision: u64,
    /// When it was last written, in [`Connection::answered`].
    at: Duration,
}

/// An entry of this process.
struct Own {
    bytes: Bytes,
    revision: Option<u64>,
}

/// A session.
pub(crate) struct Connection {
    client: Client,
    store: Store,
    /// Nothing if it broke.
    watch: Option<Watch>,
    session: Duration,
    entries: BTreeMap<(Role, InstanceId), Seen>,
    own: HashMap<(Role, InstanceId), Own>,
    /// How long the server has answered this process.
    answered: Duration,
    last_answer: Instant,
    next_heartbeat: Instant,
    away_since: Option<Instant>,
}

impl Connection {
    fn heartbeat_every(&self) -> Duration {
        self.session / 3
    }

    /// Writes an entry of this process. `None` if an operator has removed it.
    async fn write(&mut self, entry: (Role, InstanceId)) -> Result<Option<u64>, Error> {
        let (Some(own), key) = (self.own.get(&entry), key(entry)) else {
            return Ok(None);
        };
        let (bytes, mut expected) = (own.bytes.clone(), own.revision);
        for _ in 0..TRIES {
            let written = if let Some(revision) = expected {
                let updated = self.store.update(&key, bytes.clone(), revision).await;
                updated.map_err(|error| match error.kind() {
                    UpdateErrorKind::WrongLastRevision => None,
                    _ => Some(Error::away(error)),
                })
            } else {
                let created = self.store.create(&key, bytes.clone()).await;
                created.map_err(|error| match error.kind() {
                    CreateErrorKind::AlreadyExists => None,
                    _ => Some(Error::away(error)),
                })
            };
            match written {
                Ok(revision) => {
                    if let Some(own) = self.own.get_mut(&entry) {
                        own.revision = Some(revision);
                    }
                    return Ok(Some(revision));
                }
                Err(Some(error)) => return Err(error),
                Err(None) => {}
            }
            // An answer of ours was lost, or it was removed.
            let found = self.store.entry(&key).await.map_err(Error::away)?;
            expected = match found {
                Some(found) if is_put(&found) && *found.value == *REMOVED => {
                    self.own.remove(&entry);
                    self.entries.remove(&entry);
                    return Ok(None);
                }
                Some(found) if is_put(&found) => Some(found.revision),
                _ => None,
            };
        }
        Err(Error::away("an entry is written by others all the time"))
    }

    async fn limited<T>(
        within: Duration,
        calling: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        match timeout(within, calling).await {
            Ok(result) => result,
            Err(_) => Err(Error::away("no answer in time")),
        }
    }

    /// One heartbeat: of every entry of this process, or a question if it has none.
    async fn heartbeat(&mut self) -> Result<(), Error> {
        let entries: Vec<_> = self.own.keys().copied().collect();
        if entries.is_empty() {
            self.store.status().await.map_err(Error::away)?;
        }
        for entry in entries {
            self.write(entry).await?;
        }
        if self.watch.is_none() {
            self.watch = Some(watch(&self.store).await?);
        }
        Ok(())
    }

    /// The server has answered.
    fn answered(&mut self) {
        // Longer pauses are no silence of others: this process slept, or the server was away.
        let longest = self.heartbeat_every() * 2;
        self.answered += self.last_answer.elapsed().min(longest);
        self.last_answer = Instant::now();
    }

    fn note(&mut self, entry: &Entry) {
        let Some(of) = parse_key(&entry.key) else {
            return;
        };
        if !is_put(entry) {
            self.entries.remove(&of);
            return;
        }
        let instance = (*entry.value != *REMOVED)
            .then(|| Instance::decode(of.0, of.1, &entry.value))
            .flatten();
        let seen = Seen {
            instance,
            revision: entry.revision,
            at: self.answered,
        };
        self.entries.insert(of, seen);
    }

    /// Deletes what has been silent for very long.
    async fn forget(&mut self) {
        let limit = self.session * FORGOTTEN_AFTER;
        let is_old = |seen: &Seen| self.answered.saturating_sub(seen.at) > limit;
        let Some((entry, seen)) = self.entries.iter().find(|(_, seen)| is_old(seen)) else {
            return;
        };
        let (entry, revision) = (*entry, seen.revision);
        // If it was written meanwhile, it is not deleted; either way it is not silent any more.
        let forgetting = self.store.purge_expect_revision(key(entry), Some(revision));
        let _ = timeout(self.heartbeat_every(), forgetting).await;
        self.entries.remove(&entry);
    }

    fn alive(&self) -> HashSet<InstanceId> {
        let listed = Role::ALL.into_iter().flat_map(|role| self.instances(role));
        listed.map(|instance| instance.id).collect()
    }

    fn is_silent(&self, entry: (Role, InstanceId), seen: &Seen) -> bool {
        !self.own.contains_key(&entry) && self.answered.saturating_sub(seen.at) > self.session
    }
}

impl Session for Connection {
    async fn announce(&mut self, instance: &Instance) -> Result<Announced, Error> {
        let entry = (instance.role, instance.id);
        let bytes = Bytes::from(instance.encode());
        let revision = self.own.get(&entry).and_then(|own| own.revision);
        self.own.insert(entry, Own { bytes, revision });
        let within = self.session;
        let written = Self::limited(within, self.write(entry)).await?;
        let Some(revision) = written else {
            return Ok(Announced::Removed);
        };
        let seen = Seen {
            instance: Some(instance.clone()),
            revision,
            at: self.answered,
        };
        self.entries.insert(entry, seen);
        Ok(Announced::Listed)
    }

    async fn withdraw(&mut self, role: Role, id: InstanceId) -> Result<(), Error> {
        let entry = (role, id);
        self.own.remove(&entry);
        self.entries.remove(&entry);
        let purging = async {
            let purged = self.store.purge_with_ttl(key(entry), MARKERS_KEPT).await;
            purged.map_err(Error::away)
        };
        Self::limited(self.session, purging).await
    }

    async fn remove(&mut self, role: Role, id: InstanceId) -> Result<bool, Error> {
        let key = key((role, id));
        let removing = async {
            let found = self.store.entry(&key).await.map_err(Error::away)?;
            let is_there = found.is_some_and(|it| is_put(&it) && *it.value != *REMOVED);
            if is_there {
                let put = self.store.put(&key, Bytes::from_static(REMOVED)).await;
                put.map_err(Error::away)?;
            }
            Ok(is_there)
        };
        Self::limited(self.session, removing).await
    }

    async fn lock(&mut self, name: &str, holder: InstanceId) -> Result<bool, Error> {
        let key = format!("lock.{name}");
        let bytes = Bytes::from(holder.to_string());
        let alive = self.alive();
        let store = &self.store;
        let locking = async move {
            for _ in 0..TRIES {
                match store.create(&key, bytes.clone()).await {
                    Ok(_) => return Ok(true),
                    Err(error) if error.kind() == CreateErrorKind::AlreadyExists => {}
                    Err(error) => return Err(Error::away(error)),
                }
                let found = store.entry(&key).await.map_err(Error::away)?;
                let Some(found) = found.filter(is_put) else {
                    continue;
                };
                if found.value == bytes {
                    return Ok(true);
                }
                let holds = std::str::from_utf8(&found.value).ok();
                let holds = holds.and_then(|id| id.parse().ok());
                if holds.is_some_and(|holds| alive.contains(&holds)) {
                    return Ok(false);
                }
                let taking = store.update(&key, bytes.clone(), found.revision);
                match taking.await {
                    Ok(_) => return Ok(true),
                    Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => {}
                    Err(error) => return Err(Error::away(error)),
                }
            }
            Ok(false)
        };
        Self::limited(self.session, locking).await
    }

    async fn unlock(&mut self, name: &str, holder: InstanceId) -> Result<(), Error> {
        let key = format!("lock.{name}");
        let unlocking = async {
            let found = self.store.entry(&key).await.map_err(Error::away)?;
            let is_ours = |it: &Entry| is_put(it) && *it.value == *holder.to_string().as_bytes();
            if let Some(found) = found.filter(is_ours) {
                let purging = self.store.purge_expect_revision(&key, Some(found.revision));
                purging.await.map_err(Error::away)?;
            }
            Ok(())
        };
        Self::limited(self.session, unlocking).await
    }

    fn instances(&self, role: Role) -> Vec<Instance> {
        let listed = self.entries.iter();
        let listed =
            listed.filter(|(entry, seen)| entry.0 == role && !self.is_silent(**entry, seen));
        listed
            .filter_map(|(_, seen)| seen.instance.clone())
            .collect()
    }

    async fn next(&mut self) -> News {
        loop {
            let heard = async {
                match &mut self.watch {
                    Some(watch) => watch.next().await,
                    None => std::future::pending().await,
                }
            };
            let heartbeat = tokio::select! {
                heard = heard => {
                    match heard {
                        Some(Ok(entry)) => {
                            self.note(&entry);
                            return News::Changed;
                        }
                        Some(Err(error)) => {
                            tracing::debug!(%error, "watching the registry begins anew");
                            self.watch = None;
                        }
                        None => self.watch = None,
                    }
                    continue;
                }
                () = sleep_until(self.next_heartbeat) => {
                    let within = self.heartbeat_every();
                    Self::limited(within, self.heartbeat()).await
                }
            };
            self.next_heartbeat = Instant::now() + self.heartbeat_every();
            match heartbeat {
                Ok(()) => {
                    self.answered();
                    self.forget().await;
                    if self.away_since.take().is_some() {
                        return News::Back;
                    }
                    return News::Changed;
                }
                Err(error) => {
                    // A watch over a connection that broke may be silent for ever.
                    self.watch = None;
                    let Some(since) = self.away_since else {
                        self.away_since = Some(Instant::now());
                        return News::Away(error.to_string());
                    };
                    let is_connected = self.client.connection_state() == State::Connected;
                    if is_connected && since.elapsed() > self.session * 2 {
                        // Perhaps the bucket is gone.
                        return News::Lost(error.to_string());
                    }
                }
            }
        }
    }
}

fn is_put(entry: &Entry) -> bool {
    entry.operation == Operation::Put
}

fn key((role, id): (Role, InstanceId)) -> String {
    format!("instance.{role}.{id}")
}

fn parse_key(key: &str) -> Option<(Role, InstanceId)> {
    let (role, id) = key.strip_prefix("instance.")?.split_once('.')?;
    let role = Role::ALL.into_iter().find(|it| it.as_str() == role)?;
    Some((role, id.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_read_back_and_others_are_none() {
        let entry = (Role::Center, InstanceId::draw());
        assert_eq!(parse_key(&key(entry)), Some(entry));
        for other in [
            "lock.a",
            "instance.center.x",
            "instance.chief.x",
            "instance.",
            "",
        ] {
            assert_eq!(parse_key(other), None, "{other}");
        }
    }
}
