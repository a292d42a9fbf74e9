//! A view from the backup, where there is none: instead of reading the log from its start.
//!
//! **The log decides.** A copy is used only if all of this holds, and otherwise the log is read:
//!
//! 1. It is whole, that of this very log, and has exactly the rows of its head (`laneway_backup::restore`); what is on disk then is
//!    compared with the head once more.
//! 2. The log has the record where the copy ends.
//! 3. A record of the log names the digest of these rows: one before the end of the copy, or one behind it that counts. So
//!    a copy that was changed by another hand is not used, however well it fits together.
//! 4. No record behind it was written on another basis.
//!
//! IMPORTANT: until then a file stands beside the view, so that a view of which that was not found out is never opened.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use laneway_backup::{Backup, Unused};
use laneway_cluster::apply::{Applied, Head, Identity, Shard, Stop, Table, Void};
use laneway_cluster::record::{Basis, Record};
use tokio::time::{Instant, timeout};

use super::open::{OpenError, Reader, asked, blocking, empty};
use crate::rows::Rows;
use crate::shared::Shared;
use crate::stats::count;

/// How long to wait for a turn, and for a copy without rows. After that the log is read.
const WITHIN: Duration = Duration::from_secs(5);

/// A Redis that answers with fewer rows in a second is too slow.
const ROWS_PER_SECOND: u32 = 10_000;

/// A copy is asked for so often, while Redis does not answer.
const TRIES: u32 = 3;

/// So many offsets before the end of a copy are searched for a record that names its digest.
const LOOK_BACK: u64 = 64;

/// Why a copy is not used.
#[derive(Debug, thiserror::Error)]
enum NotUsed {
    #[error(transparent)]
    Copy(Unused),
    #[error("the backup is too slow")]
    Slow,
    #[error("the log has another record where the copy ends, or none")]
    OtherRecord,
    #[error("no record of the log names the digest of its rows")]
    Unnamed,
    #[error("a record of the log was written on another basis")]
    OtherBasis,
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// The file that stands beside a view until it is borne out.
fn mark(place: &Path) -> PathBuf {
    place.with_extension("restoring")
}

/// Removes a view that was being restored when its center ended.
pub(super) fn remove_unfinished(place: &Path) -> io::Result<()> {
    let mark = mark(place);
    if !mark.exists() {
        return Ok(());
    }
    if place.exists() {
        fs::remove_dir_all(place)?;
    }
    fs::remove_file(mark)
}

/// IMPORTANT: on disk before anything of the view is.
fn put_mark(place: &Path) -> io::Result<()> {
    let folder = place.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    File::create(mark(place))?.sync_all()?;
    File::open(folder)?.sync_all()
}

/// The shard as the backup and the end of the log have it; `None`: the log is to be read from its start.
pub(super) async fn restore(
    shared: &Shared,
    number: u32,
    identity: &Identity,
    place: &Path,
) -> Result<Option<Shard<Rows>>, OpenError> {
    let Some(backup) = &shared.backup else {
        return Ok(None);
    };
    let within = shared.settings.ask_within;
    let bounds = asked(within, shared.log.bounds(number)).await?;
    if bounds.is_empty() {
        return Ok(None);
    }
    let Ok(Ok(_turn)) = timeout(WITHIN, shared.restores.acquire()).await else {
        return Ok(None);
    };
    put_mark(place)?;
    let reader = Reader {
        log: &*shared.log,
        number,
        end: bounds.end,
        within,
    };
    let restoring = async {
        let mut restored = read_again(backup, identity, place).await?;
        let record = match restored.head().next.checked_sub(1) {
            Some(last) => asked(within, shared.log.read(number, last)).await,
            None => Ok(None),
        };
        let record = record.map_err(OpenError::from)?;
        restored
            .verify(record.as_ref())
            .map_err(|_| NotUsed::OtherRecord)?;
        bear_out(&reader, &mut restored, bounds.start).await?;
        Ok(restored)
    };
    match restoring.await {
        Ok(restored) => {
            fs::remove_file(mark(place))?;
            count(&shared.counters.restored);
            let head = restored.head();
            tracing::info!(
                shard = number,
                rows = head.rows,
                next = head.next,
                "restored the view of a shard from the backup"
            );
            Ok(Some(restored))
        }
        Err(why) => {
            remove_unfinished(place)?;
            if let NotUsed::Open(OpenError::Log(error)) = why {
                return Err(error.into());
            }
            tracing::info!(shard = number, %why, "the backup of a shard is not used, its log is read");
            Ok(None)
        }
    }
}

/// As [`read`]. One answer that is late does not cost the copy.
async fn read_again(
    backup: &Backup,
    identity: &Identity,
    place: &Path,
) -> Result<Shard<Rows>, NotUsed> {
    let mut tries = 1;
    loop {
        match read(backup, identity, place).await {
            Err(NotUsed::Copy(Unused::Redis(_))) if tries < TRIES => tries += 1,
            done => return done,
        }
        fs::remove_dir_all(place).map_err(OpenError::from)?;
    }
}

/// The shard as the copy has it.
async fn read(backup: &Backup, identity: &Identity, place: &Path) -> Result<Shard<Rows>, NotUsed> {
    let empty = empty(place.to_owned(), identity.clone()).await?;
    let mut rows = empty.into_table();
    let begun = Instant::now();
    let mut is_slow = false;
    let mut failure = None;
    let reading = backup.restore(identity, |head, page| {
        for (id, row) in page {
            rows.view.put(&id, row);
        }
        if rows.view.wants_commit() {
            failure = rows.view.commit(head).err();
        }
        is_slow = begun.elapsed() > patience(head);
        !is_slow && failure.is_none()
    });
    let head = match reading.await {
        Ok(head) => head,
        Err(_) if is_slow => return Err(NotUsed::Slow),
        Err(unused) => {
            return Err(failure.map_or(NotUsed::Copy(unused), |error| {
                NotUsed::Open(OpenError::View(error))
            }));
        }
    };
    let resumed = blocking(move || {
        rows.view.commit(&head)?;
        Ok(Shard::resume(head, rows)?)
    });
    resumed.await.map_err(|error| match error {
        OpenError::Stop(Stop::OtherRows) => NotUsed::Copy(Unused::OtherRows),
        error => error.into(),
    })
}

/// How long a copy may take.
fn patience(head: &Head) -> Duration {
    let rows = u32::try_from(head.rows).unwrap_or(u32::MAX);
    WITHIN + Duration::from_secs(1) * rows / ROWS_PER_SECOND
}

/// Reads on to the end of the log, and finds out whether the log bears the copy out.
async fn bear_out(reader: &Reader<'_>, shard: &mut Shard<Rows>, start: u64) -> Result<(), NotUsed> {
    let copied = shard.head().clone();
    let mut is_named = false;
    let mut is_other = false;
    let from = start.max(copied.next.saturating_sub(LOOK_BACK));
    let each = reader.each(from, |offset, bytes| {
        let basis = basis(bytes);
        if offset < copied.next {
            let known = basis.and_then(|basis| Some((basis, copied.knows(&basis)?)));
            is_other |= known.is_some_and(|(_, is_same)| !is_same);
            is_named |= known.is_some_and(|(basis, _)| basis.digest == copied.digest);
        } else {
            let applied = shard.apply(offset, bytes)?;
            is_other |= applied == Applied::Void(Void::OtherBasis);
            let counts = matches!(applied, Applied::Owner | Applied::Fact { .. });
            is_named |= counts && basis.is_some_and(|basis| basis.read >= copied.next);
            shard.table().take_changed();
            if shard.table().view.wants_commit() {
                shard.table().view.commit(shard.head())?;
            }
        }
        Ok(!is_other)
    });
    each.await?;
    if is_other {
        return Err(NotUsed::OtherBasis);
    }
    if !is_named {
        return Err(NotUsed::Unnamed);
    }
    let committed = shard.table().view.commit(shard.head());
    committed.map_err(|error| NotUsed::Open(error.into()))
}

/// What the writer of a record had read.
fn basis(bytes: &Bytes) -> Option<Basis> {
    match Record::decode(bytes).ok()? {
        Record::Owner(owner) => Some(owner.basis),
        Record::Fact(fact) => Some(fact.basis),
    }
}
