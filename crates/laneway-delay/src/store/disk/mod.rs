//! A store on disk, for one process.
//!
//! # What is where
//!
//! | table | key | row |
//! |---|---|---|
//! | `line` | when it may fire, number | a message that waits |
//! | `ids` | id | where its message is |
//! | `ended` | state, when it ended, number | a message that has ended; of delivered and withdrawn ones without payload |
//! | `topics` | topic, state, and where it stands in `line` or `ended` | nothing: messages by topic |
//! | `keys` | idempotency key, and by age | what it was used for |
//! | `meta` | | the last commit, the floor of the line, counts |
//!
//! The line is read from its floor on, which is kept with it: what fired is never walked over again, not
//! even after a restart.
//!
//! # Who decides
//!
//! One writer makes all changes, many at a time: one batch, one sync, all answers. Claims do not wait for
//! it. They are in memory only ([`Claims`](claims)): whoever claims first notes so and then looks at the
//! row; whoever changes a message notes so, unless it is claimed, and removes the row before it lets go.
//! So of a claim and a withdraw that meet, one finds the other. A crash forgets claims, and what was
//! firing fires again.
//!
//! # Layout
//!
//! | file | what it is |
//! |---|---|
//! | `tables` | the tables, and opening them |
//! | `keys`, `codec` | rows as bytes |
//! | `claims` | who is firing, and who is being changed |
//! | `request`, `writer` | group commit |
//! | `ahead` | what changes need, read before it is their turn |
//! | `batch` | what changes make of the tables |
//! | `read` | looking something up |

mod ahead;
mod batch;
mod claims;
mod codec;
mod keys;
mod read;
mod request;
mod tables;
#[cfg(test)]
mod tests;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use laneway_disk::{Directory, Disk, RealDisk};
use tokio::sync::{mpsc, oneshot};

use self::claims::Claims;
use self::request::{Entry, Request};
use self::tables::Tables;
use self::writer::Writer;
use super::{Change, Claim, Draft, Line, Outcome, Place, Settlement, Store, Waiting};
use crate::{Accepted, BoxFuture, Counts, Error, Message, MessageId, Page, Query, Timestamp};

/// What is in the directory, and in which version.
const FORMAT: &str = "laneway-delay-store 2";

/// How many requests wait for the writer.
const QUEUE: usize = 1024;

/// How long anybody waits for a disk that hangs. The engine itself waits for longer, and says so.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Messages in a directory, for one process. Dropped without being closed, it closes itself soon after.
pub struct DiskStore {
    shared: Arc<Shared>,
    requests: mpsc::Sender<Request>,
}

/// What the store and its writer share.
struct Shared {
    path: PathBuf,
    identity: u64,
    disk: Box<dyn Disk>,
    /// `None` once the store is closed.
    tables: RwLock<Option<Tables>>,
    claims: Claims,
    line: OnceLock<Arc<dyn Line>>,
    next_serial: AtomicU64,
    /// How many batches were written since it was opened.
    batches: AtomicU64,
    contents: Mutex<Contents>,
    /// How many wait for the disk for longer than anybody should.
    overdue: AtomicUsize,
}

/// What is known without looking at the disk. Only the writer changes it.
#[derive(Clone, Debug)]
struct Contents {
    floor: Place,
    /// Those that fire are counted as scheduled here.
    counts: Counts,
    /// Why nothing can be written.
    trouble: Option<Error>,
}

impl std::fmt::Debug for DiskStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskStore")
            .field("path", &self.shared.path)
            .finish_non_exhaustive()
    }
}

impl DiskStore {
    /// Opens a directory, and makes it if it is not there. Within a tokio runtime.
    ///
    /// # Errors
    /// When it is in use or damaged, or the system says no.
    pub async fn open(directory: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_on(directory.as_ref(), Box::new(RealDisk)).await
    }

    async fn open_on(directory: &Path, disk: Box<dyn Disk>) -> Result<Self, Error> {
        let path = directory.to_owned();
        let runtime = tokio::runtime::Handle::current();
        let opening = tokio::task::spawn_blocking(move || open(&path, disk, runtime));
        opening.await.unwrap_or_else(|error| {
            // The engine gives up like that on some of what it cannot read.
            Err(Error::Damaged {
                what: directory.display().to_string(),
                detail: error.to_string(),
            })
        })
    }

    /// Asks the writer, and does not wait for ever. What was asked for stays in the queue.
    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<T>) -> Request,
    ) -> Result<T, Error> {
        in_time(self.ask_patiently(request)).await
    }

    async fn ask_patiently<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<T>) -> Request,
    ) -> Result<T, Error> {
        let (ack, answer) = oneshot::channel();
        let sent = self.requests.send(request(ack)).await;
        sent.map_err(|_| self.shared.refusal())?;
        answer.await.map_err(|_| self.shared.refusal())
    }

    /// Waits for as long as it takes: what the engine asks for may not be left half done. A disk that hangs is
    /// told about, and the store counts as unwell meanwhile.
    async fn however_long<T>(&self, what: &'static str, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        if let Ok(done) = tokio::time::timeout(ANSWER_WITHIN, &mut work).await {
            return done;
        }
        let directory = self.shared.path.display();
        tracing::error!(%directory, what, "the disk does not answer; it is waited for");
        let _overdue = Overdue::note(&self.shared.overdue);
        let done = work.await;
        tracing::info!(%directory, what, "the disk has answered");
        done
    }

    /// Does something where it may block.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let shared = self.shared.clone();
        let working = tokio::task::spawn_blocking(move || work(&shared));
        let broke_off = |error: tokio::task::JoinError| Error::Failed(error.to_string());
        working.await.map_err(broke_off)?
    }
}

/// Counts one that waits for too long, until it is dropped.
struct Overdue<'a>(&'a AtomicUsize);

impl<'a> Overdue<'a> {
    fn note(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Overdue<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn in_time<T>(answer: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let answer = tokio::time::timeout(ANSWER_WITHIN, answer).await;
    answer.unwrap_or(Err(Error::Unanswered(ANSWER_WITHIN)))
}

fn open(
    path: &Path,
    disk: Box<dyn Disk>,
    runtime: tokio::runtime::Handle,
) -> Result<DiskStore, Error> {
    let mut directory = Directory::take(path, FORMAT)?;
    let identity = directory.seal.identity;
    directory.make_log(|draft| match Tables::open(draft) {
        Ok(_) => Ok(()),
        Err(error) => Err(laneway_disk::Error::opening(directory.path(), error)),
    })?;
    let least = directory.prepare(&tables::Marks { identity })?;
    let tables = Tables::open(&directory.log())
        .map_err(|error| laneway_disk::Error::opening(directory.path(), error))?;
    let found = tables.recover(identity)?;
    directory.expect(least, found.commit)?;
    let shared = Arc::new(Shared {
        path: directory.path().to_owned(),
        identity,
        disk,
        tables: RwLock::new(Some(tables)),
        claims: Claims::default(),
        line: OnceLock::new(),
        next_serial: AtomicU64::new(found.next_serial),
        batches: AtomicU64::new(0),
        contents: Mutex::new(Contents {
            floor: found.floor,
            counts: found.counts,
            trouble: None,
        }),
        overdue: AtomicUsize::new(0),
    });
    let (requests, queue) = mpsc::channel(QUEUE);
    let writer = Writer::new(shared.clone(), directory, queue, runtime, found.commit);
    std::thread::Builder::new()
        .name("laneway-delay".to_owned())
        .spawn(move || writer.run())
        .map_err(|error| Error::Failed(format!("starting the writer: {error}")))?;
    Ok(DiskStore { shared, requests })
}

impl Shared {
    fn tables(&self) -> RwLockReadGuard<'_, Option<Tables>> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why nothing can be asked any more.
    fn refusal(&self) -> Error {
        self.contents().trouble.clone().unwrap_or(Error::Closed)
    }

    fn with_tables<T>(&self, work: impl FnOnce(&Tables) -> Result<T, Error>) -> Result<T, Error> {
        match self.tables().as_ref() {
            Some(tables) => work(tables),
            None => Err(self.refusal()),
        }
    }

    fn admit(&self, waiting: &[Waiting]) {
        if !waiting.is_empty()
            && let Some(line) = self.line.get()
        {
            line.admit(waiting);
        }
    }
}

impl Store for DiskStore {
    fn attach(&self, line: Arc<dyn Line>) {
        // A second one would be a mistake of ours; the first one stays.
        let _ = self.shared.line.set(line);
    }

    fn submit(&self, drafts: Vec<Draft>) -> BoxFuture<'_, Vec<Result<Accepted, Error>>> {
        Box::pin(async move {
            let count = drafts.len();
            if count == 0 {
                return Vec::new();
            }
            // Encoded here, where many can do so at once.
            let entries = drafts.into_iter().map(|draft| {
                let serial = self.shared.next_serial.fetch_add(1, Ordering::Relaxed);
                Entry::new(draft, serial, self.shared.identity)
            });
            let entries = entries.collect();
            match self.ask(|ack| Request::Submit(entries, ack)).await {
                Ok(answers) => answers,
                Err(error) => vec![Err(error); count],
            }
        })
    }

    fn change(&self, changes: Vec<Change>) -> BoxFuture<'_, Vec<Result<Message, Error>>> {
        Box::pin(async move {
            let count = changes.len();
            if count == 0 {
                return Vec::new();
            }
            let answers = in_time(async {
                let ahead = move |shared: &Shared| {
                    let found = shared.look_ahead(&changes);
                    Ok(changes.into_iter().zip(found).collect())
                };
                let changes = self.blocking(ahead).await?;
                self.ask_patiently(|ack| Request::Change(changes, ack))
                    .await
            });
            match answers.await {
                Ok(answers) => answers,
                Err(error) => vec![Err(error); count],
            }
        })
    }

    fn claim(
        &self,
        waiting: Vec<Waiting>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<Claim>, Error>> {
        let claiming = self.blocking(move |shared| shared.claim(&waiting, now));
        Box::pin(self.however_long("claim", claiming))
    }

    fn settle(&self, settlements: Vec<Settlement>) -> BoxFuture<'_, Result<(), Error>> {
        let (released, settled): (Vec<_>, Vec<_>) = settlements
            .into_iter()
            .partition(|settlement| matches!(settlement.outcome, Outcome::Released));
        let places = released.iter().map(|released| released.claim.place);
        self.shared.claims.end(places);
        Box::pin(async move {
            if settled.is_empty() {
                return Ok(());
            }
            // IMPORTANT: however long it takes. Who asks lets the floor of the line rise over these
            // messages then, which must not happen before their rows are gone.
            let asking = self.ask_patiently(|ack| Request::Settle(settled, ack));
            self.however_long("settle", asking).await?
        })
    }

    fn scan(
        &self,
        from: Place,
        until: Place,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Waiting>, Error>> {
        let scanning = self.blocking(move |shared| shared.scan(from, until, limit));
        Box::pin(self.however_long("scan", scanning))
    }

    fn floor(&self) -> Place {
        self.shared.contents().floor
    }

    fn get<'a>(&'a self, id: &'a MessageId) -> BoxFuture<'a, Result<Option<Message>, Error>> {
        let id = id.clone();
        Box::pin(in_time(self.blocking(move |shared| shared.get(&id))))
    }

    fn list<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Page, Error>> {
        let query = query.clone();
        Box::pin(in_time(self.blocking(move |shared| shared.list(&query))))
    }

    fn counts(&self) -> Counts {
        let mut counts = self.shared.contents().counts.clone();
        for message in self.shared.claims.messages() {
            if let Some(counts) = counts.get_mut(&message.topic) {
                counts.scheduled = counts.scheduled.saturating_sub(1);
                counts.firing += 1;
            }
        }
        counts
    }

    fn forget(
        &self,
        keys_before: Timestamp,
        ended_before: Timestamp,
    ) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move {
            self.ask(|ack| Request::Forget {
                keys_before,
                ended_before,
                ack,
            })
            .await?
        })
    }

    fn health(&self) -> Result<(), Error> {
        match &self.shared.contents().trouble {
            Some(trouble) => Err(trouble.clone()),
            None if self.shared.overdue.load(Ordering::SeqCst) > 0 => {
                Err(Error::Unanswered(ANSWER_WITHIN))
            }
            None => Ok(()),
        }
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            match self.ask(Request::Close).await {
                Ok(result) => result,
                Err(Error::Closed) => Ok(()),
                Err(error) => Err(error),
            }
        })
    }
}

impl From<laneway_disk::Error> for Error {
    fn from(error: laneway_disk::Error) -> Self {
        match error {
            laneway_disk::Error::InUse { directory } => Self::InUse { directory },
            laneway_disk::Error::Full { directory } => Self::DiskFull { directory },
            laneway_disk::Error::Damaged { what, detail } => Self::Damaged { what, detail },
            error => Self::Failed(error.to_string()),
        }
    }
}
