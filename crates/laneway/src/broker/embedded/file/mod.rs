//! A store on disk: `file:DIR`.
//!
//! # What it promises
//!
//! - A record is on stable storage before its publisher is told, and no reader sees it earlier.
//!   Many publishers share one sync (group commit).
//! - What was told is there after a crash of the process or of the machine, in order.
//! - A position survives a crash of the process. A power cut may bring back one that is up to a second older, which
//!   repeats work and loses nothing. Where nothing may be repeated (plain topics) it is synced before
//!   anything is handled.
//! - Bytes that are not what was written are noticed, by checksums over every row and by counting.
//!   Two things cannot be told from a crash of a store that was not closed: damage to its very last
//!   commit, and a journal of which everything since the last note is gone without a trace.
//! - One process owns a directory.
//!
//! # Layout
//!
//! | file | what it is |
//! |---|---|
//! | `engine` | fjall, as it is used here |
//! | `journals` | what our rows tell about our commits |
//! | `limits` | the sizes at which something happens |
//! | `row` | records as bytes |
//! | `catalog` | everything else as bytes |
//! | `recover` | from disk to memory |
//! | `state`, `topics` | topics and logs in memory |
//! | `request`, `batch`, `writer`, `alone` | what is committed together |
//! | `log`, `read` | the log of a partition |
//! | `retire` | gives space back |
//! | `fault` | what can go wrong |
//! | `probe` | feeds any bytes to all that reads them |
//!
//! The lock of the directory, the check of the journals, group commit and the syncs are in `laneway_disk`, which
//! other stores share.

mod alone;
mod batch;
mod catalog;
mod engine;
mod fault;
mod journals;
mod limits;
mod log;
#[cfg(any(test, fuzzing))]
pub(crate) mod probe;
mod read;
mod recover;
mod request;
mod retire;
mod row;
mod state;
mod topics;
mod writer;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use laneway_disk::{
    CommitLimits, Commits, Committer, Directory, Disk, Format, QueuePermit, RealDisk, StoreError,
    varint,
};
use parking_lot::{Mutex, RwLockReadGuard, RwLockWriteGuard};
use tokio::sync::oneshot;

use self::engine::Engine;
pub use self::limits::FileLimits;
use self::log::FileLog;
use self::recover::Recovered;
use self::request::{Ack, Alone, Request};
use self::topics::Topics;
use self::writer::Writer;
use super::store::{Log, Store};
use crate::broker::{BoxFuture, BrokerError};
use crate::topic::{Topic, TopicName};

/// What is in the directory, and in which version.
const FORMAT: Format = Format {
    name: "laneway-file-store",
    version: 1,
    steps: &[],
};

/// Topics and logs in a directory. Dropped without being closed, it closes itself soon after.
pub(crate) struct FileStore {
    shared: Arc<Shared>,
}

/// What the store, its logs and the writer share.
struct Shared {
    commits: Arc<Commits<Engine, Request>>,
    identity: u64,
    limits: FileLimits,
    topics: Mutex<Topics>,
}

impl FileStore {
    /// Opens a directory, and makes it if it is not there.
    pub(crate) async fn open(
        directory: impl AsRef<Path>,
        limits: FileLimits,
    ) -> Result<Self, BrokerError> {
        Self::open_on(directory.as_ref(), Box::new(RealDisk), limits).await
    }

    async fn open_on(
        directory: &Path,
        disk: Box<dyn Disk>,
        limits: FileLimits,
    ) -> Result<Self, BrokerError> {
        let path = directory.to_owned();
        let opening = tokio::task::spawn_blocking(move || open(&path, disk, limits));
        opening.await.unwrap_or_else(|error| {
            // The engine gives up like that on some of what it cannot read.
            Err(BrokerError::Damaged {
                what: directory.display().to_string(),
                detail: error.to_string(),
            })
        })
    }
}

fn open(path: &Path, disk: Box<dyn Disk>, limits: FileLimits) -> Result<FileStore, BrokerError> {
    let mut directory = Directory::take(path, &FORMAT)?;
    let identity = directory.seal.identity;
    directory.make_log(|draft| match Engine::open(draft, &limits) {
        Ok(_) => Ok(()),
        Err(error) => Err(laneway_disk::Error::opening(directory.path(), error)),
    })?;
    let (mut engine, found) = open_engine(&mut directory, &limits)?;
    let known = |id: &u32| !found.topics.contains_key(id);
    let removed: Vec<_> = engine.topics().filter(known).collect();
    for topic in removed {
        engine
            .delete_topic(topic)
            .map_err(|error| opening(directory.path(), error))?;
    }
    let commit = found.commit;
    let commit_limits = CommitLimits {
        queue: limits.queue,
        note_every: limits.note_every,
        sync_every: limits.sync_every,
        slow_after: std::time::Duration::from_secs(5),
    };
    let path = directory.path().to_owned();
    let commits = Arc::new(Commits::new(path, disk, commit_limits, engine));
    let shared = Arc::new(Shared {
        commits: commits.clone(),
        identity,
        limits,
        topics: Mutex::new(Topics::new(&limits)),
    });
    shared.topics.lock().adopt(found);
    let writer = Writer::new(shared.clone());
    Committer::spawn("laneway-file", writer, commits, directory, commit).map_err(|source| {
        BrokerError::Io {
            doing: "starting the thread that writes".to_owned(),
            source,
        }
    })?;
    Ok(FileStore { shared })
}

/// Opens the engine, and makes sure that all is there that was ever acknowledged, as far as anything
/// tells.
fn open_engine(
    directory: &mut Directory,
    limits: &FileLimits,
) -> Result<(Engine, Recovered), BrokerError> {
    let identity = directory.seal.identity;
    let least = directory.prepare(&journals::Marks { identity })?;
    let engine = Engine::open(&directory.log(), limits).map_err(|error| {
        directory.restore();
        opening(directory.path(), error)
    })?;
    let found = Recovered::read(&engine, identity, limits).and_then(|found| {
        directory.expect(least, found.commit)?;
        Ok(found)
    });
    match found {
        Ok(found) => Ok((engine, found)),
        Err(error) => {
            // For people who salvage what can be: they find all that was there.
            drop(engine);
            directory.restore();
            Err(error)
        }
    }
}

fn opening(path: &Path, error: fjall::Error) -> BrokerError {
    laneway_disk::Error::opening(path, error).into()
}

impl Drop for FileStore {
    fn drop(&mut self) {
        self.shared.commits.close_soon();
    }
}

impl Store for FileStore {
    fn topics(&self) -> BoxFuture<'_, Result<Vec<Topic>, BrokerError>> {
        let topics = self.shared.topics.lock().declarations();
        Box::pin(std::future::ready(Ok(topics)))
    }

    fn put_topic<'a>(&'a self, topic: &'a Topic) -> BoxFuture<'a, Result<(), BrokerError>> {
        let topic = topic.clone();
        Box::pin(
            self.shared
                .ask(0, |ack, _| Request::Alone(Alone::Put(topic, ack))),
        )
    }

    fn remove_topic<'a>(&'a self, topic: &'a TopicName) -> BoxFuture<'a, Result<(), BrokerError>> {
        let topic = topic.clone();
        Box::pin(
            self.shared
                .ask(0, |ack, _| Request::Alone(Alone::Remove(topic, ack))),
        )
    }

    fn log<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
    ) -> BoxFuture<'a, Result<Arc<dyn Log>, BrokerError>> {
        Box::pin(async move {
            let state = self.shared.topics.lock().state(topic);
            let state = state.ok_or_else(|| BrokerError::UnknownTopic(topic.clone()))?;
            self.shared.make_room_for(state.id).await?;
            let log = self.shared.topics.lock().log(&state, partition);
            let shared = self.shared.clone();
            Ok(Arc::new(FileLog { shared, log }) as Arc<dyn Log>)
        })
    }

    fn health(&self) -> Result<(), BrokerError> {
        match self.shared.commits.health() {
            None => Ok(()),
            Some(failure) => Err(self.shared.error(&failure)),
        }
    }

    fn close(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            let closed = self.shared.commits.close().await;
            closed.map_err(|failure| self.shared.error(&failure))
        })
    }
}

impl Shared {
    /// Waits for room in the queue.
    async fn permit(&self, bytes: usize) -> Result<QueuePermit, BrokerError> {
        let permit = self.commits.permit(bytes).await;
        permit.map_err(|failure| self.error(&failure))
    }

    fn push(&self, request: Request) -> Result<(), BrokerError> {
        let pushed = self.commits.push(request);
        pushed.map_err(|failure| self.error(&failure))
    }

    async fn answered<T>(
        &self,
        answer: oneshot::Receiver<Result<T, BrokerError>>,
    ) -> Result<T, BrokerError> {
        answer.await.unwrap_or_else(|_| Err(self.refusal()))
    }

    /// Asks the writer for something, and waits for its answer.
    async fn ask<T>(
        &self,
        bytes: usize,
        request: impl FnOnce(Ack<T>, QueuePermit) -> Request,
    ) -> Result<T, BrokerError> {
        let permit = self.permit(bytes).await?;
        let (ack, answer) = oneshot::channel();
        self.push(request(ack, permit))?;
        self.answered(answer).await
    }

    /// Does something with the engine where it may block.
    async fn with_engine<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Engine, u64) -> Result<T, BrokerError> + Send + 'static,
    ) -> Result<T, BrokerError> {
        let shared = self.clone();
        let working = tokio::task::spawn_blocking(move || match shared.engine().as_ref() {
            Some(engine) => work(engine, shared.identity),
            None => Err(shared.refusal()),
        });
        working.await.unwrap_or_else(|error| {
            Err(BrokerError::Damaged {
                what: self.commits.path().display().to_string(),
                detail: error.to_string(),
            })
        })
    }

    /// Makes a place for the records of a topic.
    async fn make_room_for(self: &Arc<Self>, topic: u32) -> Result<(), BrokerError> {
        let shared = self.clone();
        let making = tokio::task::spawn_blocking(move || {
            let is_there = |engine: &Engine| engine.has_topic(topic);
            if shared.engine().as_ref().is_some_and(is_there) {
                return Ok(());
            }
            match shared.engine_mut().as_mut() {
                Some(engine) => engine
                    .make_topic(topic)
                    .map_err(|error| opening(shared.commits.path(), error)),
                None => Err(shared.refusal()),
            }
        });
        making.await.unwrap_or_else(|_| Err(self.refusal()))
    }

    fn engine(&self) -> RwLockReadGuard<'_, Option<Engine>> {
        self.commits.engine()
    }

    fn engine_mut(&self) -> RwLockWriteGuard<'_, Option<Engine>> {
        self.commits.engine_mut()
    }

    fn error(&self, failure: &StoreError) -> BrokerError {
        fault::error(failure, self.commits.path())
    }

    /// What a request is answered with that got no answer.
    fn refusal(&self) -> BrokerError {
        self.error(&self.commits.refusal())
    }
}
