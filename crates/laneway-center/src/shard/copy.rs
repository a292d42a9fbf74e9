//! The copy of an owned shard in the backup: what it is told, and when the log is to bear it out.
//!
//! A copy is believed only if a record of the log names the digest of its rows (`restore`). A record names what its writer had
//! read, so the last change of a shard is borne out by the record behind it. A shard that is quiet has none: there the owner
//! appends a fact without rows.

use std::sync::Arc;
use std::time::Duration;

use laneway_backup::{Changed, Rows, ShardBackup};
use laneway_cluster::apply::Kept;
use laneway_cluster::owner::Request;
use laneway_cluster::record::RowDigest;
use laneway_delay::MessageId;
use tokio::time::Instant;

use super::Task;
use crate::backup::Progress;

/// When nothing was read for so long, the log is to bear out what was read last.
const QUIET: Duration = Duration::from_millis(200);

/// No caller has this ticket.
const NO_CALLER: u64 = 0;

/// Any id: the fact is without rows.
const ANY: &str = "any";

/// The copy of a shard, as long as this center owns it.
#[derive(Debug, Default)]
pub(super) struct Copied {
    copy: Option<ShardBackup>,
    /// Applied and not told.
    changes: Vec<Changed>,
    /// How far the shard was read when that was last looked at, and since when.
    read: Option<(u64, Instant)>,
    /// A record that names this digest was asked for.
    borne_out: Option<RowDigest>,
}

impl Copied {
    /// A row has changed.
    pub(super) fn change(&mut self, id: MessageId, row: Option<Arc<Kept>>) {
        if self.copy.is_some() {
            self.changes.push((id, row));
        }
    }

    pub(super) fn progress(&self) -> Option<Progress> {
        self.copy.as_ref().map(|copy| Progress {
            is_whole: copy.is_whole(),
            waiting_bytes: copy.waiting_bytes(),
        })
    }

    /// Whether nothing was read for a while, and the log does not name what was read last.
    fn wants_record(&mut self, next: u64, digest: RowDigest) -> bool {
        let now = Instant::now();
        match self.read {
            Some((read, since)) if read == next => {
                self.borne_out != Some(digest) && now.duration_since(since) >= QUIET
            }
            _ => {
                self.read = Some((next, now));
                false
            }
        }
    }
}

impl Task {
    /// This center owns the shard: it writes the copy.
    pub(super) fn begin_copy(&mut self) {
        let Some(backup) = &self.shared.backup else {
            return;
        };
        let reader = self.shard.table().view.reader();
        let rows = Rows::new(move |after, limit| reader.page(after, limit).ok());
        let copy = backup.shard(self.shard.head().identity.clone(), rows);
        copy.note(Vec::new(), self.shard.head());
        self.copied = Copied {
            copy: Some(copy),
            ..Copied::default()
        };
    }

    /// Tells the copy what was applied. Waits for nothing.
    pub(super) fn note_copy(&mut self) {
        let changes = std::mem::take(&mut self.copied.changes);
        if let Some(copy) = &self.copied.copy {
            copy.note(changes, self.shard.head());
        }
    }

    /// What the copy needs now and then.
    pub(super) fn keep_copy(&mut self) {
        let Some(copy) = &self.copied.copy else {
            return;
        };
        let head = self.shard.head();
        if copy.wants_note() {
            copy.note(Vec::new(), head);
        }
        let is_busy = self.is_appending || !self.to_append.is_empty();
        if is_busy || !self.announcing.is_assigned || !self.may_take() {
            return;
        }
        let digest = head.digest;
        if self.copied.wants_record(head.next, digest)
            && let Ok(id) = MessageId::new(ANY)
        {
            self.copied.borne_out = Some(digest);
            self.request(Request::LookUp {
                ticket: NO_CALLER,
                id,
            });
        }
    }
}
