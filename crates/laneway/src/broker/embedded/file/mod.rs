//! A store on disk: `file:DIR`.
//!
//! # What it promises
//!
//! - A record is on stable storage before its publisher is told, and no reader sees it earlier.
//!   Many publishers share one sync (group commit).
//! - What was told is there after a crash of the process or of the machine, in order.
//! - A position survives a crash of the process. A power cut may bring back an older one, which
//!   repeats work and loses nothing.
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
//! | `row` | records as bytes |
//! | `catalog` | everything else as bytes |
//! | `recover` | from disk to memory |
//! | `state`, `topics` | topics and logs in memory |
//! | `request`, `queue`, `pace`, `batch`, `writer`, `alone` | group commit |
//! | `log`, `read` | the log of a partition |
//! | `retire` | gives space back |
//! | `fault` | what can go wrong |
//! | `probe` | feeds any bytes to all that reads them |
//!
//! The lock of the directory, the check of the journals and the syncs are in `laneway_disk`, which other
//! stores share.

mod alone;
mod batch;
mod catalog;
mod engine;
mod fault;
mod journals;
mod log;
mod pace;
#[cfg(any(test, fuzzing))]
pub(crate) mod probe;
mod queue;
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

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use laneway_disk::{Directory, Disk, RealDisk, varint};
use tokio::sync::oneshot;

use self::engine::Engine;
use self::fault::Trouble;
use self::log::FileLog;
use self::queue::{Place, Queue};
use self::recover::Recovered;
use self::request::{Ack, Alone, Request};
use self::state::lock;
use self::topics::Topics;
use self::writer::Writer;
use super::store::{Log, Store};
use crate::broker::{BoxFuture, BrokerError};
use crate::topic::{Topic, TopicName};

/// What is in the directory, and in which version.
const FORMAT: &str = "laneway-file-store 1";

/// Topics and logs in a directory. Dropped without being closed, it closes itself soon after.
pub(crate) struct FileStore {
    shared: Arc<Shared>,
}

/// What the store, its logs and the writer share.
struct Shared {
    path: PathBuf,
    identity: u64,
    disk: Box<dyn Disk>,
    queue: Queue<Request>,
    /// `None` once the store is closed.
    engine: RwLock<Option<Engine>>,
    trouble: Mutex<Option<Trouble>>,
    topics: Mutex<Topics>,
}

impl FileStore {
    /// Opens a directory, and makes it if it is not there.
    pub(crate) async fn open(directory: impl AsRef<Path>) -> Result<Self, BrokerError> {
        Self::open_on(directory.as_ref(), Box::new(RealDisk)).await
    }

    async fn open_on(directory: &Path, disk: Box<dyn Disk>) -> Result<Self, BrokerError> {
        let path = directory.to_owned();
        let opening = tokio::task::spawn_blocking(move || open(&path, disk));
        opening.await.unwrap_or_else(|error| {
            // The engine gives up like that on some of what it cannot read.
            Err(BrokerError::Damaged {
                what: directory.display().to_string(),
                detail: error.to_string(),
            })
        })
    }
}

fn open(path: &Path, disk: Box<dyn Disk>) -> Result<FileStore, BrokerError> {
    let mut directory = Directory::take(path, FORMAT)?;
    let identity = directory.seal.identity;
    directory.make_log(|draft| match Engine::open(draft) {
        Ok(_) => Ok(()),
        Err(error) => Err(laneway_disk::Error::opening(directory.path(), error)),
    })?;
    let (mut engine, found) = open_engine(&mut directory)?;
    let known = |id: &u32| !found.topics.contains_key(id);
    let removed: Vec<_> = engine.topics().filter(known).collect();
    for topic in removed {
        engine
            .delete_topic(topic)
            .map_err(|error| opening(directory.path(), error))?;
    }
    let commit = found.commit;
    let shared = Arc::new(Shared {
        path: directory.path().to_owned(),
        identity,
        disk,
        queue: Queue::new(),
        engine: RwLock::new(Some(engine)),
        trouble: Mutex::default(),
        topics: Mutex::default(),
    });
    lock(&shared.topics).adopt(found);
    let writer = Writer::new(shared.clone(), directory, commit);
    std::thread::Builder::new()
        .name("laneway-file".to_owned())
        .spawn(move || writer.run())
        .map_err(|source| BrokerError::Io {
            doing: "starting the writer".to_owned(),
            source,
        })?;
    Ok(FileStore { shared })
}

/// Opens the engine, and makes sure that all is there that was ever acknowledged, as far as anything
/// tells.
fn open_engine(directory: &mut Directory) -> Result<(Engine, Recovered), BrokerError> {
    let identity = directory.seal.identity;
    let least = directory.prepare(&journals::Marks { identity })?;
    let engine =
        Engine::open(&directory.log()).map_err(|error| opening(directory.path(), error))?;
    let found = Recovered::read(&engine, identity)?;
    directory.expect(least, found.commit)?;
    Ok((engine, found))
}

fn opening(path: &Path, error: fjall::Error) -> BrokerError {
    laneway_disk::Error::opening(path, error).into()
}

impl Drop for FileStore {
    fn drop(&mut self) {
        self.shared.queue.close();
    }
}

impl Store for FileStore {
    fn topics(&self) -> BoxFuture<'_, Result<Vec<Topic>, BrokerError>> {
        let topics = lock(&self.shared.topics).declarations();
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
            let state = lock(&self.shared.topics)
                .state(topic)
                .ok_or_else(|| BrokerError::UnknownTopic(topic.clone()))?;
            self.shared.make_room_for(state.id).await?;
            let log = lock(&self.shared.topics).log(&state, partition);
            let shared = self.shared.clone();
            Ok(Arc::new(FileLog { shared, log }) as Arc<dyn Log>)
        })
    }

    fn health(&self) -> Result<(), BrokerError> {
        match self.shared.trouble() {
            None => Ok(()),
            Some(trouble) => Err(trouble.error(&self.shared.path)),
        }
    }

    fn close(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            match self
                .shared
                .ask(0, |ack, _| Request::Alone(Alone::Close(ack)))
                .await
            {
                Err(BrokerError::Closed) => Ok(()),
                result => result,
            }
        })
    }
}

impl Shared {
    /// Waits for room in the queue.
    async fn place(&self, bytes: usize) -> Result<Place, BrokerError> {
        self.queue.place(bytes).await.ok_or_else(|| self.refusal())
    }

    fn push(&self, request: Request) -> Result<(), BrokerError> {
        self.queue.push(request).map_err(|_| self.refusal())
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
        request: impl FnOnce(Ack<T>, Place) -> Request,
    ) -> Result<T, BrokerError> {
        let place = self.place(bytes).await?;
        let (ack, answer) = oneshot::channel();
        self.push(request(ack, place))?;
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
                what: self.path.display().to_string(),
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
                    .map_err(|error| opening(&shared.path, error)),
                None => Err(shared.refusal()),
            }
        });
        making.await.unwrap_or_else(|_| Err(self.refusal()))
    }

    fn engine(&self) -> RwLockReadGuard<'_, Option<Engine>> {
        self.engine.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn engine_mut(&self) -> RwLockWriteGuard<'_, Option<Engine>> {
        self.engine.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn trouble(&self) -> Option<Trouble> {
        lock(&self.trouble).clone()
    }

    fn set_trouble(&self, trouble: Option<Trouble>) {
        *lock(&self.trouble) = trouble;
    }

    /// Why nothing can be asked any more.
    fn refusal(&self) -> BrokerError {
        let trouble = self.trouble().unwrap_or(Trouble::Closed);
        trouble.error(&self.path)
    }
}
