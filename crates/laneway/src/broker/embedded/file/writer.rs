//! The one thread that writes: group commit.
//!
//! It takes all that waits, writes it as one batch, syncs once, and answers everybody. While a sync
//! runs the next batch gathers by itself; an idle writer commits at once.
//!
//! # When something fails
//!
//! - **No room.** Publishers get an error; nothing was acknowledged. It is looked again and again
//!   whether there is room. If the engine itself has failed for want of it, it is opened anew then.
//! - **Anything else**, above all a failed sync: nothing is accepted any more. After a failed sync
//!   the system forgets what it could not write, so reading it back proves nothing.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::Shared;
use super::batch::{Ack, Append, Batch, Pending};
use super::catalog::{self, Key};
use super::directory::Directory;
use super::disk::Space;
use super::engine::{CommitError, Engine, row_key};
use super::fault::{self, Trouble};
use super::journals;
use super::pace::Pace;
use super::queue::Place;
use super::recover::Recovered;
use super::retire::Moved;
use super::state::{LogState, Mark, Span, TopicState, lock};
use crate::broker::BrokerError;
use crate::topic::{Topic, TopicName};

/// More than this in one batch would only add latency.
const BATCH_BYTES: usize = 8 << 20;

/// How often it is looked for room on a full disk.
const LOOK_FOR_ROOM: Duration = Duration::from_millis(250);

/// Records that are kept in memory for readers at the end of their logs, by their size.
const CACHE_SIZE: u64 = 32 << 20;

/// What the writer is asked to do.
pub(super) enum Request {
    Append(Append),
    /// A position; it need not be synced.
    Save {
        log: Arc<LogState>,
        group: String,
        position: Vec<u8>,
        ack: Ack<()>,
        place: Place,
    },
    /// A log begins later now; it need not be synced.
    Trim {
        log: Arc<LogState>,
        start: Mark,
        ack: Ack<()>,
    },
    /// All that was written before must be durable.
    Sync {
        ack: Ack<()>,
    },
    Put {
        topic: Topic,
        ack: Ack<()>,
    },
    Remove {
        topic: TopicName,
        ack: Ack<()>,
    },
    Move {
        topic: Arc<TopicState>,
        moved: Vec<Moved>,
        ack: Ack<()>,
    },
    Close {
        ack: Ack<()>,
    },
}

impl Request {
    fn refuse(self, error: BrokerError) {
        match self {
            Self::Append(append) => drop(append.ack.send(Err(error))),
            Self::Save { ack, .. }
            | Self::Trim { ack, .. }
            | Self::Sync { ack }
            | Self::Put { ack, .. }
            | Self::Remove { ack, .. }
            | Self::Move { ack, .. }
            | Self::Close { ack } => drop(ack.send(Err(error))),
        }
    }

    /// Whether it is done alone, after all that came before it.
    fn is_alone(&self) -> bool {
        matches!(
            self,
            Self::Put { .. } | Self::Remove { .. } | Self::Move { .. } | Self::Close { .. }
        )
    }
}

pub(super) struct Writer {
    shared: Arc<Shared>,
    /// Ours until the thread ends.
    directory: Directory,
    /// The last synced commit.
    commit: u64,
    waiting: VecDeque<Request>,
    /// What is in memory for readers, the oldest first.
    cached: VecDeque<(Arc<LogState>, usize, u64)>,
    cached_size: u64,
    pace: Pace,
    /// Whether the engine must be opened anew before it can write.
    is_broken: bool,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, directory: Directory, commit: u64) -> Self {
        Self {
            shared,
            directory,
            commit,
            waiting: VecDeque::new(),
            cached: VecDeque::new(),
            cached_size: 0,
            pace: Pace::default(),
            is_broken: false,
        }
    }

    /// Writes until the store is closed.
    pub(super) fn run(mut self) {
        let _last_words = LastWords(self.shared.clone());
        loop {
            if self.waiting.is_empty() {
                self.wait();
            }
            let is_open = self.shared.queue.take(&mut self.waiting);
            self.look_for_room();
            if let Some(Request::Close { .. }) = self.waiting.front() {
                let close = self.waiting.pop_front();
                return self.close(close);
            }
            if self.waiting.is_empty() && !is_open {
                return self.close(None);
            }
            self.write();
        }
    }

    /// Waits for something to do.
    fn wait(&mut self) {
        let queue = &self.shared.queue;
        let company = self.pace.wait(queue.len());
        let patience = match self.shared.trouble() {
            Some(Trouble::Full) => Some(LOOK_FOR_ROOM),
            _ => None,
        };
        queue.wait(1, patience);
        if let Some(company) = company {
            let came = queue.wait(company.entries, Some(company.time));
            self.pace.waited(company, came);
        }
    }

    /// One batch, or one request that is done alone.
    fn write(&mut self) {
        if let Some(trouble) = self.shared.trouble()
            && (self.is_broken || trouble != Trouble::Full)
        {
            self.refuse_waiting(&trouble);
            return;
        }
        let shared = self.shared.clone();
        if self.waiting.front().is_some_and(Request::is_alone) {
            if let Some(request) = self.waiting.pop_front() {
                self.write_alone(&shared, request);
            }
            return;
        }
        let guard = shared.engine();
        let Some(engine) = guard.as_ref() else {
            return;
        };
        let mut batch = Batch::new(engine, shared.identity, self.commit + 1);
        let mut written = Vec::new();
        let mut synced = Vec::new();
        let mut trims = Vec::new();
        let mut is_short = None;
        while batch.bytes() < BATCH_BYTES
            && let Some(request) = self.waiting.pop_front_if(|next| !next.is_alone())
        {
            match request {
                Request::Append(append) if append.log.topic.is_removed() => {
                    let name = append.log.topic.name.clone();
                    let _ = append.ack.send(Err(BrokerError::UnknownTopic(name)));
                }
                Request::Append(append) => {
                    if *is_short.get_or_insert_with(|| self.is_short_of_room()) {
                        let full = Trouble::Full.error(&shared.path);
                        let _ = append.ack.send(Err(full));
                    } else {
                        batch.append(append);
                    }
                }
                Request::Save {
                    log,
                    group,
                    position,
                    ack,
                    place,
                } => {
                    if !log.topic.is_removed() {
                        let key = Key::Position(log.topic.id, log.partition, group);
                        batch.put(&key, position);
                    }
                    written.push((ack, Some(place)));
                }
                Request::Trim { log, start, ack } => {
                    if !log.topic.is_removed() && start > log.lock().start {
                        batch.trim(&log, start);
                        trims.push((log, start));
                    }
                    written.push((ack, None));
                }
                Request::Sync { ack } => {
                    batch.sync();
                    synced.push(ack);
                }
                // Told apart above.
                alone => alone.refuse(BrokerError::Closed),
            }
        }
        let must_sync = batch.must_sync();
        let (pending, mut result) = batch.commit();
        let mut sync = Duration::ZERO;
        if result.is_ok() {
            for (log, start) in trims {
                log.lock().trim(start);
            }
            for (ack, place) in written.drain(..) {
                drop(place);
                let _ = ack.send(Ok(()));
            }
            if must_sync {
                let began = Instant::now();
                result = engine.sync(&*shared.disk);
                sync = began.elapsed();
            }
        }
        match result {
            Ok(()) => {
                self.pace.committed(pending.len(), sync);
                self.commit += u64::from(must_sync);
                self.tell(pending);
                for ack in synced {
                    let _ = ack.send(Ok(()));
                }
            }
            Err(error) => {
                let trouble = self.fail(engine, &error);
                pending.refuse(|| trouble.error(&shared.path));
                for ack in written.into_iter().map(|(ack, _)| ack).chain(synced) {
                    let _ = ack.send(Err(trouble.error(&shared.path)));
                }
            }
        }
    }

    /// Tells publishers and readers, and forgets the oldest records that are in memory.
    fn tell(&mut self, pending: Pending) {
        pending.tell(|log, count, size| {
            self.cached_size += size;
            self.cached.push_back((log.clone(), count, size));
        });
        while self.cached_size > CACHE_SIZE
            && let Some((log, count, size)) = self.cached.pop_front()
        {
            self.cached_size -= size;
            log.lock().forget(count);
        }
    }

    fn write_alone(&mut self, shared: &Arc<Shared>, request: Request) {
        let (ack, result) = match request {
            Request::Put { topic, ack } => (ack, self.put_topic(shared, &topic)),
            Request::Remove { topic, ack } => (ack, self.remove_topic(shared, &topic)),
            Request::Move { topic, moved, ack } => (ack, self.move_rows(shared, &topic, &moved)),
            other => return other.refuse(BrokerError::Closed),
        };
        let _ = ack.send(result);
    }

    fn put_topic(&mut self, shared: &Shared, topic: &Topic) -> Result<(), BrokerError> {
        let (id, next) = lock(&shared.topics).number_of(topic.name());
        let declaration = serde_json::to_vec(topic).map_err(|error| BrokerError::Io {
            doing: format!("encoding topic {}", topic.name()),
            source: error.into(),
        })?;
        self.commit_now(shared, |batch| {
            batch.put(&Key::Topic(id), declaration);
            batch.put(&Key::NextTopic, catalog::numbers([u64::from(next)]));
        })?;
        lock(&shared.topics).put(id, next, topic.clone());
        Ok(())
    }

    fn remove_topic(&mut self, shared: &Shared, name: &TopicName) -> Result<(), BrokerError> {
        let Some(topic) = lock(&shared.topics).state(name) else {
            return Ok(());
        };
        let logs = lock(&shared.topics).logs_of(topic.id);
        self.commit_now(shared, |batch| {
            batch.remove(&Key::Topic(topic.id));
            for log in &logs {
                let contents = log.lock();
                let partition = log.partition;
                batch.remove(&Key::Start(topic.id, partition));
                for span in &contents.spans {
                    batch.remove(&Key::Span(topic.id, partition, span.first.offset));
                }
                for group in contents.positions.keys() {
                    batch.remove(&Key::Position(topic.id, partition, group.clone()));
                }
            }
        })?;
        lock(&shared.topics).remove(&topic);
        // If this fails the records are removed when the store is opened again.
        let mut engine = shared.engine_mut();
        if let Some(engine) = engine.as_mut()
            && let Err(error) = engine.delete_topic(topic.id)
        {
            tracing::warn!(topic = %name, %error, "the records of a removed topic are still there");
        }
        Ok(())
    }

    fn move_rows(
        &mut self,
        shared: &Shared,
        topic: &TopicState,
        moved: &[Moved],
    ) -> Result<(), BrokerError> {
        if topic.is_removed() {
            return Ok(());
        }
        let segment = lock(&topic.segments).aside();
        // A log may have been trimmed meanwhile; what is left of it is still among the rows.
        let kept: Vec<_> = moved
            .iter()
            .filter_map(|moved| {
                let contents = moved.log.lock();
                let span = *contents
                    .spans
                    .iter()
                    .find(|span| span.first.offset == moved.span)?;
                Some((moved, Span { segment, ..span }))
            })
            .collect();
        self.commit_now(shared, |batch| {
            for (moved, span) in &kept {
                let partition = moved.log.partition;
                batch.put_span(topic.id, partition, *span);
                for (last, row) in &moved.rows {
                    batch.put_row(topic.id, row_key(segment, partition, *last), row);
                }
            }
        })?;
        for (moved, span) in kept {
            moved.log.lock().move_span(span.first.offset, segment);
        }
        Ok(())
    }

    /// Commits something of its own, synced.
    fn commit_now(
        &mut self,
        shared: &Shared,
        fill: impl FnOnce(&mut Batch<'_>),
    ) -> Result<(), BrokerError> {
        let guard = shared.engine();
        let Some(engine) = guard.as_ref() else {
            return Err(BrokerError::Closed);
        };
        let mut batch = Batch::new(engine, shared.identity, self.commit + 1);
        batch.sync();
        fill(&mut batch);
        let (_, result) = batch.commit();
        match result.and_then(|()| engine.sync(&*shared.disk)) {
            Ok(()) => {
                self.commit += 1;
                Ok(())
            }
            Err(error) => Err(self.fail(engine, &error).error(&shared.path)),
        }
    }

    /// Notes what a failed commit means for all that come after it.
    fn fail(&mut self, engine: &Engine, error: &CommitError) -> Trouble {
        let from_want_of_room = match error {
            CommitError::Sync(_) => false,
            // A background thread tells nothing but that it has failed.
            CommitError::Write(error) => fault::is_full(error) || self.is_tight(),
        };
        let trouble = if from_want_of_room && engine.is_intact() {
            self.is_broken = true;
            Trouble::Full
        } else {
            Trouble::Failed(error.to_string())
        };
        tracing::error!(directory = %self.shared.path.display(), %error, ?trouble, "a commit failed");
        self.shared.set_trouble(Some(trouble.clone()));
        trouble
    }

    fn is_short_of_room(&self) -> bool {
        let space = self.shared.disk.space(&self.shared.path);
        // What cannot be asked is found out by writing.
        let is_short = space.is_ok_and(Space::is_short);
        match (is_short, self.shared.trouble()) {
            (true, None) => self.shared.set_trouble(Some(Trouble::Full)),
            (false, Some(Trouble::Full)) => self.shared.set_trouble(None),
            _ => {}
        }
        is_short
    }

    fn is_tight(&self) -> bool {
        let space = self.shared.disk.space(&self.shared.path);
        space.is_ok_and(Space::is_tight)
    }

    /// Goes on by itself when there is room again.
    fn look_for_room(&mut self) {
        if self.shared.trouble() != Some(Trouble::Full) {
            return;
        }
        if !self.is_broken {
            self.is_short_of_room();
        } else if !self.is_tight() {
            match self.reopen() {
                Ok(()) => {
                    self.is_broken = false;
                    self.shared.set_trouble(None);
                    tracing::info!(directory = %self.shared.path.display(), "there is room again");
                }
                Err(BrokerError::DiskFull { .. }) => {}
                Err(error) => {
                    let trouble = Trouble::Failed(error.to_string());
                    self.shared.set_trouble(Some(trouble));
                }
            }
        }
    }

    /// Opens the engine anew, after it has failed for want of room.
    fn reopen(&mut self) -> Result<(), BrokerError> {
        let mut guard = self.shared.engine_mut();
        // Readers have no engine for a moment, and wait for the lock.
        *guard = None;
        journals::check(&self.directory.log(), self.shared.identity)?;
        let engine = super::open_engine(&self.directory)?;
        let found = Recovered::read(&engine, self.shared.identity)?;
        if found.commit < self.commit {
            return Err(BrokerError::Damaged {
                what: self.shared.path.display().to_string(),
                detail: "acknowledged records are gone".to_owned(),
            });
        }
        // What was refused may be there nevertheless.
        self.commit = found.commit;
        self.cached.clear();
        self.cached_size = 0;
        lock(&self.shared.topics).adopt(found);
        *guard = Some(engine);
        Ok(())
    }

    fn refuse_waiting(&mut self, trouble: &Trouble) {
        let closes: VecDeque<_> = self
            .waiting
            .drain(..)
            .filter_map(|request| match request {
                Request::Close { .. } => Some(request),
                other => {
                    other.refuse(trouble.error(&self.shared.path));
                    None
                }
            })
            .collect();
        self.waiting = closes;
    }

    fn close(mut self, request: Option<Request>) {
        let shared = self.shared.clone();
        let result = match shared.trouble() {
            Some(trouble) if self.is_broken || trouble != Trouble::Full => {
                Err(trouble.error(&shared.path))
            }
            // One last commit, so that positions are safe, and it is known that nothing is missing.
            _ => self.commit_now(&shared, |_| {}),
        };
        shared.set_trouble(Some(Trouble::Closed));
        shared.queue.close();
        *shared.engine_mut() = None;
        let result = result.and_then(|()| self.directory.seal(self.commit));
        shared.queue.take(&mut self.waiting);
        for request in self.waiting.drain(..) {
            request.refuse(BrokerError::Closed);
        }
        // The lock goes before the answer: whoever hears it may open the store again.
        drop(self.directory);
        if let Some(Request::Close { ack }) = request {
            let _ = ack.send(result);
        } else if let Err(error) = result {
            tracing::warn!(%error, "a store that was dropped could not be closed");
        }
    }
}

/// A writer that ends by a panic must not leave anybody waiting.
struct LastWords(Arc<Shared>);

impl Drop for LastWords {
    fn drop(&mut self) {
        let mut trouble = self
            .0
            .trouble
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if *trouble != Some(Trouble::Closed) {
            *trouble = Some(Trouble::Failed("the writer stopped".to_owned()));
        }
        drop(trouble);
        self.0.queue.close();
    }
}
