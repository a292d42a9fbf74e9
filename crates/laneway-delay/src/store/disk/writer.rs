//! The one thread that writes: group commit.
//!
//! It takes all that waits, writes it as one batch, syncs once if anybody is to be told that something
//! is durable, and answers everybody. While a sync runs the next batch gathers by itself.
//!
//! A commit that fails is final: nothing is accepted any more until the store is opened anew. After a failed
//! sync the system forgets what it could not write, so reading it back proves nothing. New messages are
//! refused before the disk is full, so that withdrawing and settling still find room.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use laneway_disk::{Directory, Space};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::Shared;
use super::ahead::Recent;
use super::batch::{self, Batch, Written};
use super::request::Request;
use super::tables::Tables;
use crate::store::{Line, Place};
use crate::{Accepted, Error, Message};

/// More than this in one batch would only add latency.
const BATCH_BYTES: usize = 4 << 20;

/// What a settlement comes to in the journal, about.
const SETTLEMENT_BYTES: usize = 400;

/// How often the floor of the line is looked at.
const RAISE_FLOOR_EVERY: Duration = Duration::from_secs(1);

/// How long what nobody waits for may stay unsynced: a power cut repeats it. Much at once would hold up
/// others who sync on the same disk.
const SYNC_EVERY: Duration = Duration::from_millis(100);

/// How often the last commit is noted where damage to the engine's files does not reach it.
const NOTE_EVERY: Duration = Duration::from_secs(10);

/// How often it is looked whether there is room.
const LOOK_FOR_ROOM_EVERY: Duration = Duration::from_millis(250);

pub(super) struct Writer {
    shared: Arc<Shared>,
    /// Ours until the thread ends.
    directory: Directory,
    queue: mpsc::Receiver<Request>,
    runtime: Handle,
    /// The last synced commit.
    commit: u64,
    floor: Floor,
    /// When all that was written was last synced; `None` if it is.
    unsynced_since: Option<Instant>,
    noted: Instant,
    /// Whether the disk was short of room, and when that was.
    room: Option<(Instant, bool)>,
}

/// Where the line begins, on its way to being written.
///
/// The floor may rise only over what is gone for good: were it durable before the removal of a row
/// below it, a power cut would leave a message that nobody looks for. So a floor is looked up, waits until
/// all that was written before is synced, and is written then; whoever takes a place below it meanwhile
/// lowers it.
struct Floor {
    looked: Instant,
    next: Option<Place>,
    ready: Option<Place>,
}

impl Floor {
    fn new() -> Self {
        Self {
            looked: Instant::now(),
            next: None,
            ready: None,
        }
    }

    /// The floor for the next batch.
    fn take(&mut self, line: Option<&Arc<dyn Line>>, known: Place) -> Place {
        if let Some(line) = line
            && self.next.is_none()
            && self.looked.elapsed() >= RAISE_FLOOR_EVERY
        {
            self.looked = Instant::now();
            self.next = Some(line.floor());
        }
        self.ready.take().unwrap_or(known)
    }

    fn lower(&mut self, lowest: Place) {
        self.next = self.next.map(|next| next.min(lowest));
        self.ready = self.ready.map(|ready| ready.min(lowest));
    }

    fn synced(&mut self) {
        self.ready = self.next.take();
    }
}

/// An answer that waits for the batch.
enum Answer {
    Submitted(
        Vec<Result<Accepted, Error>>,
        super::request::Ack<Vec<Result<Accepted, Error>>>,
    ),
    Changed(
        Vec<Result<Message, Error>>,
        super::request::Ack<Vec<Result<Message, Error>>>,
    ),
    Settled(Result<(), Error>, super::request::Ack<Result<(), Error>>),
    Forgotten(
        Result<bool, Error>,
        super::request::Ack<Result<bool, Error>>,
    ),
}

impl Writer {
    pub(super) fn new(
        shared: Arc<Shared>,
        directory: Directory,
        queue: mpsc::Receiver<Request>,
        runtime: Handle,
        commit: u64,
    ) -> Self {
        Self {
            shared,
            directory,
            queue,
            runtime,
            commit,
            floor: Floor::new(),
            unsynced_since: None,
            noted: Instant::now(),
            room: None,
        }
    }

    /// Writes until the store is closed.
    pub(super) fn run(mut self) {
        let _last_words = LastWords(self.shared.clone());
        let mut recent = Recent::new();
        loop {
            let Some(request) = self.queue.blocking_recv() else {
                return self.close(None);
            };
            self.note();
            let shared = self.shared.clone();
            let guard = shared.tables();
            let Some(tables) = guard.as_ref() else {
                return;
            };
            if let Some(close) = self.write(tables, &mut recent, request) {
                drop(guard);
                return self.close(Some(close));
            }
        }
    }

    /// One batch. Answers the request to close, if there was one.
    fn write(
        &mut self,
        tables: &Tables,
        recent: &mut Recent,
        first: Request,
    ) -> Option<super::request::Ack<Result<(), Error>>> {
        let shared = self.shared.clone();
        let known_floor = shared.contents().floor;
        let floor = self.floor.take(shared.line.get(), known_floor);
        let mut batch = Batch::new(&shared, tables, recent, floor);
        let (mut answers, mut close) = (Vec::new(), None);
        // They come last, see `Batch`. Whoever asks for a change meanwhile finds the message firing.
        let mut settlements = Vec::new();
        let mut next = Some(first);
        while let Some(request) = next {
            match request {
                Request::Close(ack) => {
                    close = Some(ack);
                    break;
                }
                Request::Settle(some, ack) => {
                    batch.bytes += some.len() * SETTLEMENT_BYTES;
                    settlements.push((some, ack));
                }
                request => answers.extend(self.add(&mut batch, request)),
            }
            next = if batch.bytes < BATCH_BYTES {
                self.queue.try_recv().ok()
            } else {
                None
            };
        }
        for (some, ack) in settlements {
            let mut some = some.into_iter();
            let answer = some.try_for_each(|settlement| batch.settle(settlement));
            answers.push(Answer::Settled(answer, ack));
        }
        let trouble = shared.contents().trouble.clone();
        if let Some(trouble) = trouble {
            self.answer(answers, Some(&trouble));
            return close;
        }
        self.floor.lower(batch.lowest);
        let is_overdue = |since: Instant| since.elapsed() >= SYNC_EVERY;
        let must_sync = batch.must_sync || self.unsynced_since.is_some_and(is_overdue);
        let commit = must_sync.then_some(self.commit + 1);
        if batch.is_empty() && batch.floor == known_floor && !must_sync {
            self.written(batch.write(None, known_floor).0);
            self.answer(answers, None);
            return close;
        }
        let (written, result) = batch.write(commit, known_floor);
        let places = written.places.clone();
        let mut error = result.err().map(|error| laneway_disk::told(&error));
        if error.is_none() {
            self.written(written);
            if must_sync {
                let synced = tables.database.sync(&*shared.disk);
                error = synced.err().map(|error| error.to_string());
            }
        }
        match error {
            None => {
                if must_sync {
                    self.commit += 1;
                    self.unsynced_since = None;
                    self.floor.synced();
                } else {
                    self.unsynced_since.get_or_insert_with(Instant::now);
                }
                // IMPORTANT: before anybody is told, so that the floor never passes them.
                shared.admit(&places);
                self.answer(answers, None);
            }
            Some(error) => {
                tracing::error!(directory = %shared.path.display(), %error, "a commit failed");
                let trouble = Error::Failed(error);
                shared.contents().trouble = Some(trouble.clone());
                self.answer(answers, Some(&trouble));
            }
        }
        close
    }

    fn add(&mut self, batch: &mut Batch<'_>, request: Request) -> Option<Answer> {
        let answer = match request {
            Request::Submit(entries, ack) => {
                let answers = if self.is_short_of_room() {
                    let directory = self.shared.path.display().to_string();
                    vec![Err(Error::DiskFull { directory }); entries.len()]
                } else {
                    let entries = entries.into_iter();
                    entries.map(|entry| batch.submit(entry)).collect()
                };
                Answer::Submitted(answers, ack)
            }
            Request::Change(changes, ack) => {
                let changes = changes.into_iter();
                let answers = changes.map(|(change, ahead)| batch.change(change, ahead));
                let answers = answers.collect();
                Answer::Changed(answers, ack)
            }
            Request::Forget {
                keys_before,
                ended_before,
                ack,
            } => Answer::Forgotten(batch.forget(keys_before, ended_before), ack),
            // They are not added one by one.
            Request::Settle(..) | Request::Close(_) => return None,
        };
        Some(answer)
    }

    /// The rows are changed: whoever looks at them from now on sees so.
    fn written(&self, written: Written) {
        self.shared.batches.fetch_add(1, Ordering::Release);
        let mut contents = self.shared.contents();
        contents.floor = written.floor;
        batch::merge(&mut contents.counts, written.counts);
        drop(contents);
        self.shared.claims.end_changes(written.changing.into_iter());
        self.shared.claims.end(written.ending.into_iter());
        self.shared.admit(&written.quick_places);
    }

    /// Answers everybody, from within the runtime: an answer from this thread may wake one that takes
    /// its place for the sake of a single answer.
    fn answer(&self, answers: Vec<Answer>, trouble: Option<&Error>) {
        let trouble = trouble.cloned();
        let give = move || {
            for answer in answers {
                answer.give(trouble.as_ref());
            }
        };
        self.runtime.spawn(async move { give() });
    }

    fn is_short_of_room(&mut self) -> bool {
        match self.room {
            Some((at, is_short)) if at.elapsed() < LOOK_FOR_ROOM_EVERY => is_short,
            _ => {
                let space = self.shared.disk.space(&self.shared.path);
                // What cannot be asked is found out by writing.
                let is_short = space.is_ok_and(Space::is_short);
                self.room = Some((Instant::now(), is_short));
                is_short
            }
        }
    }

    /// Notes the last commit now and then, so that a journal that ends too early is noticed even if
    /// nothing in it tells.
    fn note(&mut self) {
        if self.noted.elapsed() < NOTE_EVERY {
            return;
        }
        self.noted = Instant::now();
        if let Err(error) = self.directory.note(self.commit) {
            tracing::warn!(%error, "the last commit could not be noted; it is tried again");
        }
    }

    fn close(mut self, ack: Option<super::request::Ack<Result<(), Error>>>) {
        let trouble = self.shared.contents().trouble.replace(Error::Closed);
        self.queue.close();
        let mut tables = self
            .shared
            .tables
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        // One last sync: what was settled need not be done again.
        let synced = match (tables.as_ref(), &trouble) {
            (Some(tables), None) => tables
                .database
                .sync(&*self.shared.disk)
                .map_err(|error| Error::Failed(error.to_string())),
            _ => Ok(()),
        };
        *tables = None;
        drop(tables);
        let noted = self.directory.note(self.commit).map_err(Error::from);
        let result = match trouble {
            Some(trouble) => Err(trouble),
            None => synced.and(noted),
        };
        // The lock goes before the answer: whoever hears it may open the store again.
        drop(self.directory);
        match ack {
            Some(ack) => drop(ack.send(result)),
            None => {
                if let Err(error) = result {
                    tracing::warn!(%error, "a store that was dropped could not be closed");
                }
            }
        }
    }
}

impl Answer {
    fn give(self, trouble: Option<&Error>) {
        fn each<T>(
            answers: Vec<Result<T, Error>>,
            trouble: Option<&Error>,
        ) -> Vec<Result<T, Error>> {
            match trouble {
                // What was refused anyway keeps its reason.
                Some(trouble) => answers
                    .into_iter()
                    .map(|answer| answer.and_then(|_| Err(trouble.clone())))
                    .collect(),
                None => answers,
            }
        }
        fn one<T>(answer: Result<T, Error>, trouble: Option<&Error>) -> Result<T, Error> {
            match trouble {
                Some(trouble) => answer.and_then(|_| Err(trouble.clone())),
                None => answer,
            }
        }
        // Whoever does not wait any more does not want to know.
        match self {
            Self::Submitted(answers, ack) => drop(ack.send(each(answers, trouble))),
            Self::Changed(answers, ack) => drop(ack.send(each(answers, trouble))),
            Self::Settled(answer, ack) => drop(ack.send(one(answer, trouble))),
            Self::Forgotten(answer, ack) => drop(ack.send(one(answer, trouble))),
        }
    }
}

/// A writer that ends by a panic must not leave anybody in the dark.
struct LastWords(Arc<Shared>);

impl Drop for LastWords {
    fn drop(&mut self) {
        let mut contents = self.0.contents();
        if contents.trouble.is_none() {
            contents.trouble = Some(Error::Failed("the writer stopped".to_owned()));
        }
    }
}
