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

use laneway_disk::{Directory, Space};
use tokio::runtime::Handle;

use super::Shared;
use super::batch::{Answer, Batch, Pending};
use super::engine::{CommitError, Engine};
use super::fault::{self, Trouble};
use super::pace::Pace;
use super::request::{Alone, Request, Together};
use super::state::{LogState, lock};
use crate::broker::BrokerError;

/// More than this in one batch would only add latency.
const BATCH_BYTES: usize = 8 << 20;

/// How often it is looked for room on a full disk.
const LOOK_FOR_ROOM: Duration = Duration::from_millis(250);

/// How long after the disk was full a failure of the engine may still come from that: it fails in the
/// background, and is found out by the next commit.
const FULL_LINGERS: Duration = Duration::from_mins(1);

/// How often the last commit is noted where damage to the engine's files does not reach it.
const NOTE_EVERY: Duration = if cfg!(test) {
    Duration::from_millis(200)
} else {
    Duration::from_secs(10)
};

/// Records that are kept in memory for readers at the end of their logs, by their size.
const CACHE_SIZE: u64 = 32 << 20;

pub(super) struct Writer {
    pub(super) shared: Arc<Shared>,
    /// Where the store was opened, and publishers run.
    runtime: Handle,
    /// Ours until the thread ends.
    directory: Directory,
    /// The last synced commit.
    commit: u64,
    waiting: VecDeque<Request>,
    /// What is in memory for readers, the oldest first.
    cached: VecDeque<(Arc<LogState>, usize, u64)>,
    cached_size: u64,
    pace: Pace,
    /// When the last commit was noted.
    noted: Instant,
    /// When the disk was last seen full.
    full_at: Option<Instant>,
    /// Whether the engine must be opened anew before it can write.
    is_broken: bool,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, directory: Directory, commit: u64) -> Self {
        Self {
            shared,
            runtime: Handle::current(),
            directory,
            commit,
            waiting: VecDeque::new(),
            cached: VecDeque::new(),
            cached_size: 0,
            pace: Pace::default(),
            noted: Instant::now(),
            full_at: None,
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
            self.note();
            if let Some(Request::Alone(Alone::Close(_))) = self.waiting.front() {
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
            None if self.commit > self.directory.seal.commit => Some(NOTE_EVERY),
            _ => None,
        };
        if let Some(time) = self.pace.watch() {
            self.pace.watched(queue.watch(time));
        }
        queue.wait(1, patience);
        if let Some(company) = company {
            let came = queue.wait(company.entries, Some(company.time));
            self.pace.waited(company, came);
        }
    }

    /// Notes the last commit now and then, so that a journal that ends too early is noticed even if
    /// nothing in it tells.
    fn note(&mut self) {
        if self.noted.elapsed() < NOTE_EVERY || self.shared.trouble().is_some() {
            return;
        }
        self.noted = Instant::now();
        if let Err(error) = self.directory.note(self.commit) {
            tracing::warn!(%error, "the last commit could not be noted; it is tried again");
        }
    }

    /// One batch, or one request that is done alone.
    fn write(&mut self) {
        if let Some(trouble) = self.shared.trouble()
            && (self.is_broken || trouble != Trouble::Full)
        {
            self.refuse_waiting(&trouble);
        } else if let Some(Request::Together(_)) = self.waiting.front() {
            self.write_together();
        } else if let Some(Request::Alone(request)) = self.waiting.pop_front() {
            self.write_alone(request);
        }
    }

    fn write_together(&mut self) {
        let shared = self.shared.clone();
        let guard = shared.engine();
        let Some(engine) = guard.as_ref() else {
            return self.refuse_waiting(&Trouble::Closed);
        };
        let mut batch = Batch::new(engine, shared.identity, self.commit + 1);
        let mut is_short = None;
        while batch.bytes() < BATCH_BYTES
            && let Some(Request::Together(request)) = self
                .waiting
                .pop_front_if(|next| matches!(next, Request::Together(_)))
        {
            match request {
                Together::Append(append) if append.log.topic.is_removed() => {
                    let name = append.log.topic.name.clone();
                    let _ = append.ack.send(Err(BrokerError::UnknownTopic(name)));
                }
                Together::Append(append) => {
                    if *is_short.get_or_insert_with(|| self.is_short_of_room()) {
                        let full = Trouble::Full.error(&shared.path);
                        let _ = append.ack.send(Err(full));
                    } else {
                        batch.append(append);
                    }
                }
                Together::Save(save) => batch.save(save),
                Together::Trim(trim) => batch.trim(trim),
                Together::Sync(ack) => batch.tell_when_durable(ack),
            }
        }
        let must_sync = batch.must_sync();
        let (mut pending, mut result) = batch.commit();
        let mut sync = Duration::ZERO;
        if result.is_ok() {
            pending.written();
            if must_sync {
                let began = Instant::now();
                result = engine.sync(&*shared.disk);
                sync = began.elapsed();
            }
        }
        match result {
            Ok(()) => {
                self.commit += u64::from(must_sync);
                self.pace.committed(pending.publishers(), sync);
                self.tell(pending);
            }
            Err(error) => {
                let trouble = self.fail(engine, &error);
                pending.refuse(|| trouble.error(&shared.path));
            }
        }
    }

    /// Answers publishers. Every answer from this thread may wake a thread of the runtime that takes
    /// this one's place for the sake of one publisher, so several are given from within.
    fn answer(&self, answers: Vec<Answer>) {
        let alone = answers.len() <= 1;
        let give = move || answers.into_iter().for_each(Answer::give);
        if alone {
            give();
        } else {
            self.runtime.spawn(async move { give() });
        }
    }

    /// Tells publishers and readers, and forgets the oldest records that are in memory.
    fn tell(&mut self, pending: Pending) {
        let answers = pending.durable(|log, count, size| {
            self.cached_size += size;
            self.cached.push_back((log.clone(), count, size));
        });
        self.answer(answers);
        while self.cached_size > CACHE_SIZE
            && let Some((log, count, size)) = self.cached.pop_front()
        {
            self.cached_size -= size;
            log.lock().forget(count);
        }
    }

    /// Commits something of its own, synced.
    pub(super) fn commit_now(
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
            CommitError::Write(error) => {
                let was_full = self.full_at.is_some_and(|at| at.elapsed() < FULL_LINGERS);
                fault::is_full(error) || was_full || self.is_tight()
            }
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

    fn is_short_of_room(&mut self) -> bool {
        let space = self.shared.disk.space(&self.shared.path);
        // What cannot be asked is found out by writing.
        let is_short = space.is_ok_and(Space::is_short);
        if is_short {
            self.full_at = Some(Instant::now());
        }
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

    /// Whether the engine may be opened anew. Less than new records need: what gives space back has
    /// to go through the engine, too.
    fn has_some_room(&self) -> bool {
        let space = self.shared.disk.space(&self.shared.path);
        space.is_ok_and(Space::is_some)
    }

    /// Goes on by itself when there is room again.
    fn look_for_room(&mut self) {
        if self.shared.trouble() != Some(Trouble::Full) {
            return;
        }
        if !self.is_broken {
            self.is_short_of_room();
        } else if self.has_some_room() {
            match self.reopen() {
                Ok(()) => {
                    self.is_broken = false;
                    self.shared.set_trouble(None);
                    tracing::info!(directory = %self.shared.path.display(), "there is room again");
                    self.is_short_of_room();
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
        self.directory.note(self.commit)?;
        let shared = self.shared.clone();
        let mut guard = shared.engine_mut();
        // Readers have no engine for a moment, and wait for the lock.
        *guard = None;
        let (engine, found) = super::open_engine(&mut self.directory)?;
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
                Request::Alone(Alone::Close(_)) => Some(request),
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
        let result = result.and_then(|()| Ok(self.directory.note(self.commit)?));
        shared.queue.take(&mut self.waiting);
        for request in self.waiting.drain(..) {
            request.refuse(BrokerError::Closed);
        }
        // The lock goes before the answer: whoever hears it may open the store again.
        drop(self.directory);
        if let Some(Request::Alone(Alone::Close(ack))) = request {
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
