//! The backend in `ZooKeeper`: ephemeral nodes `ROOT/ROLE/ID` and `ROOT/lock/NAME`.
//!
//! A session reads everything once and follows changes by one persistent recursive watch on the root. After each
//! reconnection it watches and reads anew (events of the time in between are lost, ZOOKEEPER-4698), and every few seconds it
//! lists everything, so that no event has to be seen.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};
use zookeeper_client::{
    Acls, AddWatchMode, Client, CreateMode, Error as ZkError, EventType, PersistentWatcher,
    SessionState,
};

use crate::keeper::{Announced, Backend, News, Session};
use crate::{Error, Instance, InstanceId, Role};

/// Everything is listed so often although nothing was heard.
const SCAN_EVERY: Duration = Duration::from_secs(5);

/// How to reach `ZooKeeper`.
#[derive(Clone)]
pub struct ZooKeeperOptions {
    servers: String,
    root: String,
    session: Duration,
    digest: Option<String>,
}

impl ZooKeeperOptions {
    /// The servers, as `HOST:PORT,HOST:PORT`.
    #[must_use]
    pub fn new(servers: impl Into<String>) -> Self {
        Self {
            servers: servers.into(),
            root: "/laneway".to_owned(),
            session: Duration::from_secs(3),
            digest: None,
        }
    }

    /// Where entries are, `/laneway` by default. Clusters that share servers have different ones.
    #[must_use]
    pub fn root(mut self, root: impl Into<String>) -> Self {
        self.root = root.into();
        self
    }

    /// After so long without a sign of life an instance is missed, 3 s by default; the server has bounds of its own.
    #[must_use]
    pub fn session(mut self, session: Duration) -> Self {
        self.session = session;
        self
    }

    /// Entries can be read and changed only with this user and password (the scheme `digest`).
    #[must_use]
    pub fn digest(mut self, user: &str, password: &str) -> Self {
        self.digest = Some(format!("{user}:{password}"));
        self
    }
}

impl fmt::Debug for ZooKeeperOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeperOptions")
            .field("servers", &self.servers)
            .field("root", &self.root)
            .field("session", &self.session)
            .field("digest", &self.digest.as_ref().map(|_| "…"))
            .finish()
    }
}

pub(crate) struct ZooKeeper {
    options: ZooKeeperOptions,
}

impl ZooKeeper {
    pub(crate) fn new(options: ZooKeeperOptions) -> Self {
        Self { options }
    }
}

impl Backend for ZooKeeper {
    type Session = Connection;

    async fn connect(&mut self) -> Result<Connection, Error> {
        let options = &self.options;
        let mut connector = Client::connector().with_session_timeout(options.session);
        if let Some(digest) = &options.digest {
            connector = connector.with_auth("digest", digest.as_bytes());
        }
        // The client gives up by itself, but not while a server accepts connections and says nothing.
        let connecting = timeout(options.session * 2, connector.connect(&options.servers));
        let client = connecting.await.map_err(Error::away)?.map_err(failed)?;
        let mut connection = Connection {
            within: options.session,
            root: options.root.clone(),
            acls: match options.digest {
                Some(_) => Acls::creator_all(),
                None => Acls::anyone_all(),
            },
            known: BTreeMap::new(),
            created: BTreeSet::new(),
            unread: BTreeSet::new(),
            watcher: None,
            is_away: false,
            is_back: false,
            next_scan: Instant::now() + SCAN_EVERY,
            client,
        };
        connection.prepare().await?;
        Ok(connection)
    }
}

/// A session.
pub(crate) struct Connection {
    within: Duration,
    root: String,
    acls: Acls<'static>,
    known: BTreeMap<(Role, InstanceId), Instance>,
    /// The entries that this session has made.
    created: BTreeSet<(Role, InstanceId)>,
    /// Entries that have changed since they were read.
    unread: BTreeSet<(Role, InstanceId)>,
    /// Nothing once the session has ended: the watcher panics if it is asked again.
    watcher: Option<PersistentWatcher>,
    is_away: bool,
    /// Connected again, and not yet read anew: what happened meanwhile is not told.
    is_back: bool,
    next_scan: Instant,
    client: Client,
}

impl Connection {
    async fn prepare(&mut self) -> Result<(), Error> {
        let directory = CreateMode::Persistent.with_acls(self.acls);
        let folders = Role::ALL.map(Role::as_str).into_iter().chain(["lock"]);
        for folder in folders {
            let path = format!("{}/{folder}", self.root);
            self.call(self.client.mkdir(&path, &directory)).await?;
        }
        self.read_anew().await
    }

    /// Watches, and reads everything. Also after each reconnection: a watch does not outlive every restart of a server,
    /// and events of the time in between are lost.
    async fn read_anew(&mut self) -> Result<(), Error> {
        let mode = AddWatchMode::PersistentRecursive;
        let watching = self.client.watch(&self.root, mode);
        self.watcher = Some(self.call(watching).await?);
        self.list().await
    }

    /// Notes all entries to be read, and forgets those that are gone.
    async fn list(&mut self) -> Result<(), Error> {
        let mut there = BTreeSet::new();
        for role in Role::ALL {
            let path = format!("{}/{role}", self.root);
            let children = self.call(self.client.list_children(&path)).await?;
            let ids = children.iter().filter_map(|name| name.parse().ok());
            there.extend(ids.map(|id| (role, id)));
        }
        self.known.retain(|entry, _| there.contains(entry));
        self.unread = there;
        self.read().await
    }

    /// Reads what has changed.
    async fn read(&mut self) -> Result<(), Error> {
        while let Some((role, id)) = self.unread.first().copied() {
            let path = self.path(role, id);
            match self.call_raw(self.client.get_data(&path)).await {
                Ok((bytes, _)) => match Instance::decode(role, id, &bytes) {
                    Some(instance) => {
                        self.known.insert((role, id), instance);
                    }
                    None => {
                        self.known.remove(&(role, id));
                    }
                },
                Err(Call::Failed(ZkError::NoNode)) => {
                    self.known.remove(&(role, id));
                }
                Err(error) => return Err(error.into()),
            }
            self.unread.remove(&(role, id));
        }
        Ok(())
    }

    fn path(&self, role: Role, id: InstanceId) -> String {
        format!("{}/{role}/{id}", self.root)
    }

    fn lock_path(&self, name: &str) -> String {
        format!("{}/lock/{name}", self.root)
    }

    async fn call<T>(&self, calling: impl Future<Output = Result<T, ZkError>>) -> Result<T, Error> {
        Ok(self.call_raw(calling).await?)
    }

    async fn call_raw<T>(
        &self,
        calling: impl Future<Output = Result<T, ZkError>>,
    ) -> Result<T, Call> {
        match timeout(self.within, calling).await {
            Ok(result) => result.map_err(Call::Failed),
            Err(_) => Err(Call::TimedOut),
        }
    }

    /// Makes an ephemeral node that has no other owner than this session: one that an earlier session of the same instance
    /// has left is replaced.
    async fn create(&self, path: &str, bytes: &[u8]) -> Result<(), Call> {
        let ephemeral = CreateMode::Ephemeral.with_acls(self.acls);
        let creating = self.client.create(path, bytes, &ephemeral);
        match self.call_raw(creating).await {
            Err(Call::Failed(ZkError::NodeExists)) => {}
            created => return created.map(drop),
        }
        match self.call_raw(self.client.delete(path, None)).await {
            Ok(()) | Err(Call::Failed(ZkError::NoNode)) => {}
            Err(error) => return Err(error),
        }
        let creating = self.client.create(path, bytes, &ephemeral);
        self.call_raw(creating).await.map(drop)
    }

    /// The entry that a path is of.
    fn entry(&self, path: &str) -> Option<(Role, InstanceId)> {
        let path = path.strip_prefix(&self.root)?.strip_prefix('/')?;
        let (folder, id) = path.split_once('/')?;
        let role = Role::ALL.into_iter().find(|role| role.as_str() == folder)?;
        Some((role, id.parse().ok()?))
    }
}

impl Session for Connection {
    async fn announce(&mut self, instance: &Instance) -> Result<Announced, Error> {
        let entry = (instance.role, instance.id);
        let path = self.path(instance.role, instance.id);
        let bytes = instance.encode();
        // A node of an earlier session would go with that session.
        if self.created.contains(&entry) {
            let setting = self.client.set_data(&path, &bytes, None);
            match self.call_raw(setting).await {
                Ok(_) => {}
                // It was there in this session: an operator has taken it off.
                Err(Call::Failed(ZkError::NoNode)) => {
                    self.known.remove(&entry);
                    return Ok(Announced::Removed);
                }
                Err(error) => return Err(error.into()),
            }
        } else {
            self.create(&path, &bytes).await?;
            self.created.insert(entry);
        }
        self.known.insert(entry, instance.clone());
        Ok(Announced::Listed)
    }

    async fn withdraw(&mut self, role: Role, id: InstanceId) -> Result<(), Error> {
        self.remove(role, id).await.map(drop)
    }

    async fn remove(&mut self, role: Role, id: InstanceId) -> Result<bool, Error> {
        let path = self.path(role, id);
        let is_there = match self.call_raw(self.client.delete(&path, None)).await {
            Ok(()) => true,
            Err(Call::Failed(ZkError::NoNode)) => false,
            Err(error) => return Err(error.into()),
        };
        self.known.remove(&(role, id));
        self.created.remove(&(role, id));
        Ok(is_there)
    }

    async fn lock(&mut self, name: &str, holder: InstanceId) -> Result<bool, Error> {
        let path = self.lock_path(name);
        let bytes = holder.to_string().into_bytes();
        let ephemeral = CreateMode::Ephemeral.with_acls(self.acls);
        loop {
            let creating = self.client.create(&path, &bytes, &ephemeral);
            match self.call_raw(creating).await {
                Ok(_) => return Ok(true),
                Err(Call::Failed(ZkError::NodeExists)) => {}
                Err(error) => return Err(error.into()),
            }
            match self.call_raw(self.client.get_data(&path)).await {
                // Of this instance, perhaps in an earlier session: that node would go with that session.
                Ok((held, _)) if held == bytes => {
                    self.create(&path, &bytes).await?;
                    return Ok(true);
                }
                Ok(_) => return Ok(false),
                Err(Call::Failed(ZkError::NoNode)) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn unlock(&mut self, name: &str, holder: InstanceId) -> Result<(), Error> {
        let path = self.lock_path(name);
        let unlocking = async {
            let (held, stat) = self.call_raw(self.client.get_data(&path)).await?;
            if held == holder.to_string().as_bytes() {
                let deleting = self.client.delete(&path, Some(stat.version));
                self.call_raw(deleting).await?;
            }
            Ok(())
        };
        match unlocking.await {
            Ok(()) | Err(Call::Failed(ZkError::NoNode | ZkError::BadVersion)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn instances(&self, role: Role) -> Vec<Instance> {
        let of_role = self.known.values().filter(|it| it.role == role);
        of_role.cloned().collect()
    }

    async fn next(&mut self) -> News {
        loop {
            if self.is_back {
                // Cleared only afterwards: the caller may give up waiting while it is read.
                let read = self.read_anew().await;
                self.is_back = false;
                match read {
                    Ok(()) => return News::Back,
                    Err(error) => {
                        self.watcher = None;
                        return News::Lost(error.to_string());
                    }
                }
            }
            if !self.unread.is_empty() && !self.is_away {
                match self.read().await {
                    Ok(()) => return News::Changed,
                    Err(error) => {
                        tracing::debug!(%error, "an entry of the registry could not be read yet");
                    }
                }
            }
            let Some(watcher) = &mut self.watcher else {
                return News::Lost("the session has ended".to_owned());
            };
            let event = tokio::select! {
                event = watcher.changed() => event,
                () = sleep_until(self.next_scan), if !self.is_away => {
                    match self.list().await {
                        Ok(()) => {
                            self.next_scan = Instant::now() + SCAN_EVERY;
                            return News::Changed;
                        }
                        Err(error) => {
                            // The watcher tells what has become of the connection.
                            tracing::debug!(%error, "the registry could not be listed");
                            self.next_scan = Instant::now() + self.within;
                            continue;
                        }
                    }
                }
            };
            if event.event_type != EventType::Session {
                let entry = self.entry(&event.path);
                self.unread.extend(entry);
                continue;
            }
            match event.session_state {
                SessionState::Disconnected => {
                    self.is_away = true;
                    return News::Away("the connection broke".to_owned());
                }
                SessionState::SyncConnected | SessionState::ConnectedReadOnly => {
                    self.is_away = false;
                    self.is_back = true;
                }
                state => {
                    self.watcher = None;
                    return News::Lost(format!("{state:?}"));
                }
            }
        }
    }
}

/// What a call to the server comes to.
enum Call {
    Failed(ZkError),
    TimedOut,
}

impl From<Call> for Error {
    fn from(call: Call) -> Self {
        match call {
            Call::Failed(error) => failed(error),
            Call::TimedOut => Self::away("no answer in time"),
        }
    }
}

fn failed(error: ZkError) -> Error {
    match error {
        ZkError::NoAuth | ZkError::AuthFailed | ZkError::InvalidAcl => Error::Refused {
            detail: error.to_string(),
        },
        error => Error::away(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_is_not_shown() {
        let options = ZooKeeperOptions::new("127.0.0.1:2181").digest("laneway", "hush");
        assert!(!format!("{options:?}").contains("hush"));
    }
}
