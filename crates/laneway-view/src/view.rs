use std::path::{Path, PathBuf};
use std::sync::Arc;

use laneway_cluster::apply::{Head, Identity, Kept, Table};
use laneway_delay::{Counts, MessageId, Timestamp};

use crate::aside::set_aside;
use crate::engine::Engine;
use crate::error::Error;
use crate::keys::{self, List};
use crate::overlay::{Entered, Overlay};
use crate::query::{ListQuery, Page};
use crate::state::{Shared, State};

/// How much may wait for a commit, in bytes, before [`View::wants_commit`].
const UNCOMMITTED_BYTES: usize = 4 << 20;

/// The rows of a shard on disk, and those that were changed since the last commit in memory.
///
/// Only the task of its shard has it. Others read by way of a [`ViewReader`]. Dropped, it closes its files, and the readers answer
/// [`Error::Closed`]; what was not committed is gone, and comes again from the log.
pub struct View {
    reader: ViewReader,
    directory: PathBuf,
}

/// Reads a view from other tasks, committed or not. Every call waits for the shard's task at most as long as one commit takes, and blocks
/// the thread that it is called on.
#[derive(Clone)]
pub struct ViewReader {
    shared: Arc<Shared>,
}

impl View {
    /// Opens the view in a directory, which is made if it is not there. Answers the head of the last commit, too; `None` if there
    /// was none, and the view is empty then.
    ///
    /// A view of another log or format, or one that cannot be read, is [set aside](set_aside), and an empty one is made in its place.
    /// The caller goes on with [`Shard::resume`](laneway_cluster::apply::Shard::resume), which compares all rows with
    /// the head, or with [`Shard::new`](laneway_cluster::apply::Shard::new).
    ///
    /// # Errors
    /// When another process has it, the disk is full, or the system says no.
    pub fn open(directory: &Path, identity: &Identity) -> Result<(Self, Option<Head>), Error> {
        let (engine, found) = match Engine::open(directory, identity) {
            Err(error) if error.is_of_contents() => {
                set_aside(directory, &error)?;
                Engine::open(directory, identity)?
            }
            opened => opened?,
        };
        let state = State::new(engine, found.counts, found.bytes);
        let shared = Arc::new(Shared::new(state));
        let view = Self {
            reader: ViewReader { shared },
            directory: directory.to_owned(),
        };
        Ok((view, found.head))
    }

    /// Writes all that was changed since the last commit, together with the head that belongs to it: after a crash
    /// both are there or neither is. Nothing is synced: a power cut takes the view back to an earlier commit.
    ///
    /// A head has up to 40 kB. Commit once in a second and whenever [`wants_commit`](Self::wants_commit), rather than after every record.
    ///
    /// # Errors
    /// When the view has failed before or fails now. It must not be used any more then.
    pub fn commit(&self, head: &Head) -> Result<(), Error> {
        let shared = &self.reader.shared;
        // Readers go on meanwhile.
        shared.read(|state| state.engine()?.throttle())?;
        shared.write(|state| {
            let mut batch = state.engine()?.batch();
            for (id, pending) in &state.overlay.rows {
                let row = keys::of_id(keys::ROW, id);
                match &pending.row {
                    Some(bare) => batch.put(&row, &bare.encoded),
                    None => batch.remove(&row),
                }
                let has_body = pending.row.as_ref().is_some_and(|bare| bare.body.is_some());
                if pending.is_body_new() {
                    batch.put(&keys::of_id(keys::BODY, id), &pending.body);
                } else if pending.on_disk.is_some() && !has_body {
                    batch.remove(&keys::of_id(keys::BODY, id));
                }
            }
            for (key, entered) in &state.overlay.index {
                match entered {
                    Entered::Added => batch.put_key(key),
                    Entered::Removed => batch.remove(key),
                }
            }
            for topic in &state.overlay.topics {
                match state.counts.get(topic) {
                    Some(counts) => batch.put_counts(topic, counts),
                    None => batch.remove(&keys::counts(topic)),
                }
            }
            batch.put_head(head, state.bytes);
            batch.write()?;
            state.overlay = Overlay::default();
            Ok(())
        })
    }

    /// Whether so much was changed since the last commit that it is time for the next one.
    #[must_use]
    pub fn wants_commit(&self) -> bool {
        self.uncommitted_bytes() >= UNCOMMITTED_BYTES
    }

    /// What was changed since the last commit takes so much memory, about.
    #[must_use]
    pub fn uncommitted_bytes(&self) -> usize {
        self.reader.shared.state.read().overlay.bytes
    }

    /// The first error of the disk, or of what is on it. From then on the view reads and writes nothing.
    ///
    /// IMPORTANT: [`Table`] has no errors, and `get` answers `None` for a row that cannot be read. The task of the shard looks here after
    /// every record that it applied, before anything is done because of it.
    #[must_use]
    pub fn failure(&self) -> Option<Arc<Error>> {
        self.reader.shared.failure()
    }

    /// For other tasks.
    #[must_use]
    pub fn reader(&self) -> ViewReader {
        self.reader.clone()
    }

    /// As [`ViewReader::due`].
    ///
    /// # Errors
    /// As there.
    pub fn due(
        &self,
        after: Option<&(Timestamp, MessageId)>,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<(Timestamp, MessageId)>, Error> {
        self.reader.due(after, until, limit)
    }

    /// As [`ViewReader::forgettable`].
    ///
    /// # Errors
    /// As there.
    pub fn forgettable(
        &self,
        after: Option<&(Timestamp, MessageId)>,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<(Timestamp, MessageId)>, Error> {
        self.reader.forgettable(after, until, limit)
    }

    /// As [`ViewReader::list`].
    ///
    /// # Errors
    /// As there.
    pub fn list(&self, query: &ListQuery) -> Result<Page, Error> {
        self.reader.list(query)
    }

    /// As [`ViewReader::counts`].
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.reader.counts()
    }

    /// As [`ViewReader::needed_bytes`].
    #[must_use]
    pub fn needed_bytes(&self) -> u64 {
        self.reader.needed_bytes()
    }

    /// Closes it and sets its directory aside.
    ///
    /// # Errors
    /// When the system says no.
    pub fn set_aside(self, why: &dyn std::fmt::Display) -> Result<(), Error> {
        self.close();
        set_aside(&self.directory, why)
    }

    /// IMPORTANT: an engine whose directory is renamed would write into the one that is made in its place, so no
    /// reader keeps it open.
    fn close(&self) {
        let engine = self.reader.shared.state.write().engine.take();
        drop(engine);
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View")
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ViewReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ViewReader").finish_non_exhaustive()
    }
}

impl Table for View {
    fn get(&self, id: &MessageId) -> Option<Arc<Kept>> {
        // The error is in `failure`, where the shard's task looks.
        self.reader.get(id).unwrap_or_default()
    }

    fn put(&mut self, id: &MessageId, row: Arc<Kept>) {
        let _ = self.reader.shared.write(|state| state.put(id, Some(&row)));
    }

    fn remove(&mut self, id: &MessageId) {
        let _ = self.reader.shared.write(|state| state.put(id, None));
    }

    fn page(&self, after: Option<&MessageId>, limit: usize) -> Vec<(MessageId, Arc<Kept>)> {
        self.reader.page(after, limit).unwrap_or_default()
    }
}

impl ViewReader {
    /// The row of an id.
    ///
    /// # Errors
    /// When it cannot be read, or the view has failed before or is closed.
    pub fn get(&self, id: &MessageId) -> Result<Option<Arc<Kept>>, Error> {
        self.shared.read(|state| state.get(id))
    }

    /// Up to `limit` rows behind `after`, by id; fewer, but at least one, where they are large.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn page(
        &self,
        after: Option<&MessageId>,
        limit: usize,
    ) -> Result<Vec<(MessageId, Arc<Kept>)>, Error> {
        self.shared.read(|state| state.page(after, limit))
    }

    /// Scheduled rows whose next attempt may begin at `until` or before, the earliest first, behind `after`.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn due(
        &self,
        after: Option<&(Timestamp, MessageId)>,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<(Timestamp, MessageId)>, Error> {
        let prefix = keys::prefix(None, List::Scheduled);
        self.shared
            .read(|state| state.places(&prefix, after, until, limit))
    }

    /// Rows that ended (or got their last answer) at `until` or before and are not dead letters, the earliest first, behind `after`. Whether one of
    /// them is forgotten is up to [`ShardOwner::forget`](laneway_cluster::owner::ShardOwner::forget).
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn forgettable(
        &self,
        after: Option<&(Timestamp, MessageId)>,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<(Timestamp, MessageId)>, Error> {
        self.shared
            .read(|state| state.places(keys::FORGETTABLE, after, until, limit))
    }

    /// Rows by state and sort time.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn list(&self, query: &ListQuery) -> Result<Page, Error> {
        self.shared.read(|state| state.list(query))
    }

    /// How many rows of each topic are in which state. None counts as firing.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.state.read().counts.clone()
    }

    /// About what all rows would take in the log if they were carried: what
    /// [`is_worth_trimming`](laneway_cluster::owner::is_worth_trimming) compares the log with.
    #[must_use]
    pub fn needed_bytes(&self) -> u64 {
        self.shared.state.read().bytes
    }
}
