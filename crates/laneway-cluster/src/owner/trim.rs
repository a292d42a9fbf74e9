use laneway_delay::MessageId;

use super::{Decision, Promise, ShardOwner, Standing};
use crate::apply::{Head, Opened, Shard, Table};
use crate::record::{Change, Close, FORMAT, MessageRow, Open, Row};
use crate::rules::Rule;

/// How many rows are looked at in one step.
const PAGE: usize = 256;

/// Whether so much of a log is dead that carrying what is needed pays: the dead part is more than twice as large.
#[must_use]
pub const fn is_worth_trimming(log_bytes: u64, needed_bytes: u64) -> bool {
    log_bytes.saturating_sub(needed_bytes) > needed_bytes.saturating_mul(2)
}

impl ShardOwner {
    /// One step of making the log complete by itself: an `open` if `may_open` and none is unfinished, else rows that have no
    /// image behind it, else the `close`. An owner goes on with what an earlier one has opened.
    pub fn trim<T: Table>(&mut self, shard: &Shard<T>, may_open: bool) -> Vec<Decision> {
        if !matches!(self.standing, Standing::Owning { .. }) {
            return Vec::new();
        }
        let head = shard.head();
        // IMPORTANT: `open` and `close` are judged against all that was decided before them, so nothing is under way.
        let is_idle = self.outbox.is_empty() && self.queue.is_empty() && self.barriers.is_empty();
        match head.open.filter(|open| !open.is_closed) {
            None if may_open && is_idle => {
                self.queue.push((open(head), Promise::Nothing));
                self.carried_to = None;
                let mut decisions = self.flush(shard);
                if !self.rules.holds(Rule::TrimAfterClose) {
                    let before = head.next;
                    decisions.push(Decision::Trim { before });
                }
                decisions
            }
            Some(opened) if head.without_image > 0 => {
                self.carry(shard, opened);
                self.flush(shard)
            }
            Some(opened) if is_idle => {
                self.queue.push((close(head, opened), Promise::Trim));
                self.flush(shard)
            }
            _ => Vec::new(),
        }
    }

    fn carry<T: Table>(&mut self, shard: &Shard<T>, opened: Opened) {
        // Not all of it at once: rows in memory are copies.
        if !self.queue.is_empty() {
            return;
        }
        let page = shard.table().page(self.carried_to.as_ref(), PAGE);
        let Some((last, _)) = page.last() else {
            // Those that lost against a change are carried in the next round, when nothing of this one is under way.
            if self.outbox.is_empty() {
                self.carried_to = None;
            }
            return;
        };
        self.carried_to = Some(last.clone());
        for (id, kept) in page {
            if kept.image_at <= opened.offset {
                let image = Box::new(kept.image.clone());
                let change = Change::Carried { image };
                let row = carried(id, kept.version, change);
                self.queue.push((row, Promise::Nothing));
            }
        }
    }
}

fn carried(id: MessageId, version: u64, change: Change) -> Row {
    let version = version + 1;
    Row::Message(MessageRow {
        id,
        version,
        change,
    })
}

fn open(head: &Head) -> Row {
    Row::Open(Open {
        identity: head.identity.clone(),
        format: FORMAT,
        forgotten: head.forgotten,
    })
}

fn close(head: &Head, opened: Opened) -> Row {
    Row::Close(Close {
        epoch: opened.epoch,
        sequence: opened.sequence,
        rows: head.rows,
        digest: head.digest,
    })
}
