//! The thread that writes.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::pace::Pace;
use super::shared::{Commits, State, StoreError};
use super::{Batch, Durability, OpenError, Reopened, Turn, Writer};
use crate::database::CommitError;
use crate::directory::Directory;
use crate::disk::Space;
use crate::error::{is_full, told};
use crate::journals::is_want_of_descriptors;
use crate::planted::planted;

/// How often it is looked for room, or a free descriptor.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How long to wait before the engine is opened again, at first and at most.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// How long after the disk was full, or no descriptor free, a failure of the engine may still come from that: it fails in
/// the background, and is found out by the next commit.
const LINGERS: Duration = Duration::from_mins(1);

/// The one thread that writes to a store. See the [module](super).
pub struct Committer<W: Writer> {
    writer: W,
    shared: Arc<Commits<W::Engine, W::Request>>,
    /// Locked until the thread ends.
    directory: Directory,
    /// The last synced commit.
    commit: u64,
    waiting: VecDeque<W::Request>,
    /// What was handed back while nothing could be written.
    kept: Vec<W::Request>,
    pace: Pace,
    /// When the last commit was noted.
    noted: Instant,
    /// Since when something is written and not synced.
    unsynced_since: Option<Instant>,
    /// When the disk was last seen full.
    full_at: Option<Instant>,
    /// When the process was last seen without a free descriptor.
    starved_at: Option<Instant>,
    /// When the engine is opened again, if it has to be before it can write.
    reopening: Option<Instant>,
    /// Whether it gave up for no reason that is known, and what it could not read is to be [mended](Writer::mend) before.
    needs_mending: bool,
    /// When nothing was found to mend.
    sound_at: Option<Instant>,
    /// When the engine last gave up for no reason that is known, and how long it was left alone then.
    gave_up: Option<(Instant, Duration)>,
    /// How long to wait before that the next time. An engine that was opened again and fails with the next batch has not
    /// recovered, however well its own small writes went: only a batch of the writer makes it [`FIRST_WAIT`] again.
    wait: Duration,
}

impl<W: Writer> Committer<W> {
    /// Starts the thread. `commit` is the last one in the engine.
    ///
    /// # Errors
    /// When the system has no thread.
    pub fn spawn(
        name: &str,
        writer: W,
        shared: Arc<Commits<W::Engine, W::Request>>,
        directory: Directory,
        commit: u64,
    ) -> io::Result<()> {
        let committer = Self {
            writer,
            shared,
            directory,
            commit,
            waiting: VecDeque::new(),
            kept: Vec::new(),
            pace: Pace::default(),
            noted: Instant::now(),
            unsynced_since: None,
            full_at: None,
            starved_at: None,
            reopening: None,
            needs_mending: false,
            sound_at: None,
            gave_up: None,
            wait: FIRST_WAIT,
        };
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || committer.run())?;
        Ok(())
    }

    fn run(mut self) {
        let _last_words = LastWords(self.shared.clone());
        loop {
            if self.waiting.is_empty() {
                self.wait();
            }
            let is_open = self.shared.queue.take(&mut self.waiting);
            self.recover();
            self.note();
            self.sync_overdue();
            if let Some(failure) = self.shared.failure() {
                self.refuse_waiting(&failure);
            }
            if !self.waiting.is_empty() {
                self.turn();
            } else if !is_open {
                return self.close();
            }
        }
    }

    /// Waits for something to do.
    fn wait(&mut self) {
        let limits = self.shared.limits();
        let queue = &self.shared.queue;
        let company = self.pace.wait(queue.len());
        let time = match self.shared.state() {
            State::ShortOfRoom => Some(LOOK_EVERY),
            State::Refusing(_) => self.reopening.map(|at| {
                let left = at.saturating_duration_since(Instant::now());
                left.clamp(Duration::from_millis(1), LOOK_EVERY)
            }),
            State::Open if self.unsynced_since.is_some() => Some(limits.sync_every),
            State::Open if self.commit > self.directory.seal.commit => Some(limits.note_every),
            State::Open => None,
        };
        if let Some(time) = self.pace.watch() {
            self.pace.watched(queue.watch(time));
        }
        queue.wait(1, time);
        if let Some(company) = company {
            let came = queue.wait(company.entries, Some(company.time));
            self.pace.waited(company, came);
        }
    }

    /// Notes the last commit now and then, so that a journal that ends too early is noticed even if nothing in it
    /// tells.
    fn note(&mut self) {
        if self.noted.elapsed() < self.shared.limits().note_every
            || self.shared.state() != State::Open
        {
            return;
        }
        self.noted = Instant::now();
        let shared = self.shared.clone();
        let _busy = shared.busy();
        if let Err(error) = self.directory.note(self.commit) {
            tracing::warn!(%error, "noting the last commit failed, retrying");
        }
    }

    /// Syncs what was written without a sync, after [`sync_every`](super::CommitLimits::sync_every). A power cut takes
    /// back no more than that; and the journals are followed, also while no batch needs a sync.
    fn sync_overdue(&mut self) {
        let is_overdue = |since: Instant| since.elapsed() >= self.shared.limits().sync_every;
        if !self.unsynced_since.is_some_and(is_overdue)
            || self.shared.failure().is_some()
            || planted("A2")
        {
            return;
        }
        let shared = self.shared.clone();
        let guard = shared.engine();
        if let Some(engine) = guard.as_ref()
            && let Err(error) = self.sync(engine)
        {
            self.fail(engine, &error);
        }
    }

    /// Makes durable what was written. A wait for a free descriptor is told meanwhile.
    fn sync(&mut self, engine: &W::Engine) -> Result<(), CommitError> {
        let shared = self.shared.clone();
        let _busy = shared.busy();
        let before = shared.state();
        let mut has_waited = false;
        let result = engine.as_ref().sync(shared.disk(), |_| {
            has_waited = true;
            shared.set_state(State::Refusing(StoreError::NoDescriptor));
        });
        if has_waited {
            self.starved_at = Some(Instant::now());
            shared.set_state(before);
        }
        if result.is_ok() {
            self.unsynced_since = None;
            self.writer.synced();
        }
        result
    }

    /// One batch: written, synced if it has to be, answered.
    fn turn(&mut self) {
        let shared = self.shared.clone();
        let guard = shared.engine();
        let Some(engine) = guard.as_ref() else {
            drop(guard);
            return self.refuse_waiting(&StoreError::Closed);
        };
        let busy = shared.busy();
        let mut full_at = None;
        let mut room = || {
            let is_short = look_for_room(&shared);
            full_at = is_short.then(Instant::now);
            is_short
        };
        let mut turn = Turn {
            commit: self.commit + 1,
            room: &mut room,
            is_short: None,
        };
        let Batch {
            mut pending,
            durability,
            result,
        } = self.writer.write(engine, &mut self.waiting, &mut turn);
        self.full_at = full_at.or(self.full_at);
        let mut result = result.map_err(CommitError::Write);
        let mut sync = Duration::ZERO;
        if result.is_ok() {
            self.writer.written(&mut pending);
            match durability {
                Durability::Nothing => {}
                Durability::Written => {
                    self.unsynced_since.get_or_insert_with(Instant::now);
                }
                Durability::Synced => {
                    let began = Instant::now();
                    result = self.sync(engine);
                    sync = began.elapsed();
                }
            }
        }
        drop(busy);
        match result {
            Ok(()) => {
                drop(guard);
                self.commit += u64::from(durability == Durability::Synced);
                if durability != Durability::Nothing {
                    self.wait = FIRST_WAIT;
                }
                let answered = self.writer.committed(pending, &mut self.waiting);
                self.pace.committed(answered, sync);
            }
            Err(error) => {
                let failure = self.fail(engine, &error);
                drop(guard);
                let is_unknown = error.may_be_there();
                let kept = self.writer.refused(pending, &failure, is_unknown);
                self.kept.extend(kept);
            }
        }
    }

    /// Notes what a failed commit means for all that come after it.
    fn fail(&mut self, engine: &W::Engine, error: &CommitError) -> StoreError {
        let passing = self.passing(engine, error);
        let failure = match passing.filter(|_| engine.as_ref().is_intact()) {
            Some(passing) => {
                self.reopen_later();
                passing
            }
            None => StoreError::Failed(error.to_string()),
        };
        let directory = self.shared.path().display();
        tracing::error!(%directory, %error, ?failure, "a commit failed");
        self.shared.set_state(State::Refusing(failure.clone()));
        failure
    }

    /// Has the engine opened again, later each time.
    fn reopen_later(&mut self) {
        self.reopening = Some(Instant::now() + self.wait);
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
    }

    /// What a failure comes from, if that passes.
    fn passing(&mut self, engine: &W::Engine, error: &CommitError) -> Option<StoreError> {
        let CommitError::Write(error) = error else {
            return None;
        };
        if is_full(error) || lately(self.full_at) || self.is_tight() {
            return Some(StoreError::Full);
        }
        let source = match error {
            fjall::Error::Io(source) | fjall::Error::Storage(fjall::LsmError::Io(source)) => {
                Some(source)
            }
            // A background thread tells nothing but that it has failed.
            _ => None,
        };
        if source.is_some_and(is_want_of_descriptors)
            || self.is_starved()
            || lately(self.starved_at)
        {
            return Some(StoreError::NoDescriptor);
        }
        let mut passes = source.is_some();
        // The failure of a sync would have been told to the journals that are held, and of others nothing is known.
        if matches!(error, fjall::Error::Poisoned) && engine.as_ref().holds_journals() {
            self.give_up();
            passes = true;
        }
        passes.then(|| StoreError::Unavailable(told(error)))
    }

    /// Notes that the engine gave up for no reason that is known. If it does so again and again it is opened
    /// less and less often, whatever it writes in between, and all that it reads is looked at once in a while.
    fn give_up(&mut self) {
        let again = self.gave_up.filter(|(at, _)| lately(Some(*at)));
        let wait = again.map_or(FIRST_WAIT, |(_, wait)| (wait * 2).min(LONGEST_WAIT));
        self.gave_up = Some((Instant::now(), wait));
        self.wait = self.wait.max(wait);
        self.needs_mending |= W::MENDS && !lately(self.sound_at);
    }

    fn is_tight(&self) -> bool {
        let space = self.shared.disk().space(self.shared.path());
        space.is_ok_and(Space::is_tight)
    }

    /// Whether there is room to open the engine again. Less than new data needs: what gives room back has to go
    /// through the engine, too.
    fn has_some_room(&self) -> bool {
        let space = self.shared.disk().space(self.shared.path());
        space.map_or(true, Space::is_some)
    }

    /// Whether the process has no free descriptor.
    fn is_starved(&mut self) -> bool {
        let opened = File::open(self.shared.path());
        let is_starved = opened.is_err_and(|error| is_want_of_descriptors(&error));
        if is_starved {
            self.starved_at = Some(Instant::now());
        }
        is_starved
    }

    /// Goes on by itself when the cause of a failure is gone.
    fn recover(&mut self) {
        if self.shared.state() == State::ShortOfRoom {
            if look_for_room(&self.shared) {
                self.full_at = Some(Instant::now());
            }
            return;
        }
        let is_due = |at: &mut Instant| *at <= Instant::now();
        if self.reopening.take_if(is_due).is_none() {
            return;
        }
        let directory = self.shared.path().to_owned();
        let directory = directory.display();
        if !self.has_some_room() || self.is_starved() {
            self.reopening = Some(Instant::now() + LOOK_EVERY);
            return;
        }
        match self.reopen() {
            Ok(()) => {
                tracing::info!(%directory, "the store writes again");
                self.shared.set_state(State::Open);
                let later = std::mem::take(&mut self.waiting);
                self.waiting.extend(self.kept.drain(..).chain(later));
                if look_for_room(&self.shared) {
                    self.full_at = Some(Instant::now());
                }
            }
            Err(OpenError::Passes(error)) => {
                tracing::warn!(%directory, %error, "the store cannot write yet, retrying");
                self.reopen_later();
            }
            Err(OpenError::Stays(error)) => {
                tracing::error!(%directory, %error, "the store cannot be opened again");
                self.shared
                    .set_state(State::Refusing(StoreError::Failed(error)));
            }
        }
    }

    /// Opens the engine again, and has it write something.
    fn reopen(&mut self) -> Result<(), OpenError> {
        let passes = |error: &dyn std::fmt::Display| OpenError::Passes(error.to_string());
        self.directory
            .note(self.commit)
            .map_err(|error| passes(&error))?;
        let shared = self.shared.clone();
        let mut guard = shared.engine_mut();
        // Readers wait for the lock.
        *guard = None;
        if self.needs_mending {
            let is_mended = self.writer.mend(&mut self.directory)?;
            self.needs_mending = false;
            self.sound_at = (!is_mended).then(Instant::now);
        }
        let Reopened {
            engine,
            commit,
            found,
        } = self.writer.open(&mut self.directory)?;
        // Batches that were refused may be there nevertheless.
        // IMPORTANT: they are synced before `mark` writes the next one, and before `note` tells of them: after a power cut a
        // later commit without an earlier one, or one that was noted and is not there, is taken for damage.
        self.sync(&engine)
            .map_err(|error| OpenError::Stays(error.to_string()))?;
        self.commit = commit;
        if let Err(error) = self.writer.mark(&engine, commit + 1) {
            if matches!(error, fjall::Error::Poisoned) {
                self.give_up();
            }
            return Err(passes(&told(&error)));
        }
        // IMPORTANT: before `adopt`, and before any reader sees it. See the module.
        self.sync(&engine)
            .map_err(|error| OpenError::Stays(error.to_string()))?;
        self.commit += 1;
        self.writer.adopt(found);
        *guard = Some(engine);
        Ok(())
    }

    fn refuse_waiting(&mut self, failure: &StoreError) {
        if !failure.passes() {
            self.waiting.extend(self.kept.drain(..));
        }
        for request in self.waiting.drain(..) {
            self.kept.extend(self.writer.refuse(request, failure));
        }
    }

    fn close(mut self) {
        self.refuse_waiting(&StoreError::Closed);
        let shared = self.shared.clone();
        let result = match shared.failure() {
            Some(failure) => Err(failure),
            // One last commit, so that all that was written is durable, and it is known that nothing is missing.
            None => self.mark_last(),
        };
        shared.set_state(State::Refusing(StoreError::Closed));
        *shared.engine_mut() = None;
        let noted = self.directory.note(self.commit);
        let result =
            result.and_then(|()| noted.map_err(|error| StoreError::Unavailable(error.to_string())));
        // IMPORTANT: before the answer, after which the directory may be opened again.
        drop(self.directory);
        let closing = shared.end(StoreError::Closed);
        if closing.is_empty()
            && let Err(failure) = &result
        {
            tracing::warn!(?failure, "a store that was dropped could not be closed");
        }
        for ack in closing {
            let _ = ack.send(result.clone());
        }
    }

    /// Commits nothing but a number, and that this is the end, synced.
    fn mark_last(&mut self) -> Result<(), StoreError> {
        let shared = self.shared.clone();
        let guard = shared.engine();
        let Some(engine) = guard.as_ref() else {
            return Err(StoreError::Closed);
        };
        let marked = self.writer.mark_last(engine, self.commit + 1);
        let marked = marked.map_err(CommitError::Write);
        match marked.and_then(|()| self.sync(engine)) {
            Ok(()) => {
                self.commit += 1;
                Ok(())
            }
            Err(error) => Err(self.fail(engine, &error)),
        }
    }
}

/// Whether something was seen so short a time ago that a failure may come from it.
fn lately(at: Option<Instant>) -> bool {
    at.is_some_and(|at| at.elapsed() < LINGERS)
}

/// Looks whether there is room for new data, and notes it.
fn look_for_room<E, R>(shared: &Commits<E, R>) -> bool {
    let space = shared.disk().space(shared.path());
    // What cannot be asked is found out by writing.
    let is_short = space.is_ok_and(Space::is_short);
    let directory = shared.path().display();
    match (is_short, shared.state()) {
        (true, State::Open) => {
            tracing::error!(%directory, "the disk is full; nothing new is taken");
            shared.set_state(State::ShortOfRoom);
        }
        (false, State::ShortOfRoom) => {
            tracing::info!(%directory, "there is room again");
            shared.set_state(State::Open);
        }
        _ => {}
    }
    is_short
}

/// Leaves no caller waiting for a thread that ended by a panic: those whose requests wait in the queue, those that
/// wait for room in it, and those that wait for the store to be closed.
struct LastWords<E, R>(Arc<Commits<E, R>>);

impl<E, R> Drop for LastWords<E, R> {
    fn drop(&mut self) {
        let failed = StoreError::Failed("the thread that writes has stopped".to_owned());
        drop(self.0.end(failed));
        self.0.queue.close();
        let mut left = VecDeque::new();
        self.0.queue.take(&mut left);
    }
}
