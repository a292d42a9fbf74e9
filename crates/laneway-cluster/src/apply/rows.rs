use std::collections::BTreeSet;
use std::sync::Arc;

use laneway_delay::MessageId;

use super::{Kept, Shard, Stub, Table, is_forgettable, transition};
use crate::record::{Change, Forgotten, HistoryEvent, Image, MessageRow, Row};
use crate::rules::Rule;

/// What is known of an id.
enum Known {
    Row(Arc<Kept>),
    Stub(Stub),
    Nothing,
}

impl Known {
    fn version(&self) -> u64 {
        match self {
            Self::Row(row) => row.version,
            Self::Stub(stub) if !stub.is_gone => stub.version,
            Self::Stub(_) | Self::Nothing => 0,
        }
    }
}

impl<T: Table> Shard<T> {
    pub(super) fn count_rows(&mut self, offset: u64, epoch: u64, rows: &[Row]) -> Vec<bool> {
        let mut seen = BTreeSet::new();
        let mut counted = Vec::with_capacity(rows.len());
        for row in rows {
            let counts = match row {
                Row::Message(row) => seen.insert(&row.id) && self.count_row(offset, epoch, row),
                Row::Open(_) | Row::Close(_) => false,
            };
            counted.push(counts);
        }
        counted
    }

    fn known(&self, id: &MessageId) -> Known {
        match (self.table.get(id), self.head.stubs.get(id)) {
            (Some(row), _) => Known::Row(row),
            (None, Some(stub)) => Known::Stub(*stub),
            (None, None) => Known::Nothing,
        }
    }

    fn count_row(&mut self, offset: u64, epoch: u64, row: &MessageRow) -> bool {
        let known = self.known(&row.id);
        if let Change::Carried { image } = &row.change {
            return self.carry(offset, row, image, &known);
        }
        let is_on_base = row.base() == known.version();
        match known {
            Known::Row(kept) => {
                (is_on_base || !self.rules.holds(Rule::Bases))
                    && self.change(offset, epoch, row, &kept)
            }
            _ if row.base() == 0 => is_on_base && self.create(offset, epoch, row),
            Known::Nothing if self.head.is_complete => false,
            Known::Stub(stub) if stub.is_gone => false,
            Known::Stub(_) if !is_on_base => false,
            Known::Stub(_) | Known::Nothing => {
                self.leave_stub(offset, row);
                true
            }
        }
    }

    /// The first row of an id.
    fn create(&mut self, offset: u64, epoch: u64, row: &MessageRow) -> bool {
        let is_first = matches!(
            row.change,
            Change::Accepted { .. } | Change::Answered { .. }
        );
        let absent = Image::absent();
        let image = is_first
            .then(|| transition(self.rules, &absent, &row.change, epoch))
            .flatten();
        let Some(image) = image else { return false };
        self.head.stubs.remove(&row.id);
        self.put(&row.id, None, row.version, offset, offset, image);
        true
    }

    fn change(&mut self, offset: u64, epoch: u64, row: &MessageRow, kept: &Arc<Kept>) -> bool {
        if row.change == Change::Forgotten(Forgotten::Message) {
            if !is_forgettable(&kept.image) {
                return false;
            }
            self.remove(&row.id, kept);
            self.head.forgotten = offset + 1;
            if !self.head.is_complete {
                self.leave_stub(offset, row);
            }
            return true;
        }
        if let Change::Replayed { to, .. } = &row.change
            && (row.id == *to || !matches!(self.known(to), Known::Nothing))
        {
            return false;
        }
        let Some(image) = transition(self.rules, &kept.image, &row.change, epoch) else {
            return false;
        };
        let image_at = kept.image_at;
        self.put(&row.id, Some(kept), row.version, image_at, offset, image);
        if let Change::Replayed { to, at, .. } = &row.change
            && self.rules.holds(Rule::ReplayInOneRow)
        {
            let old = &kept.image;
            let (topic, body) = (old.topic.clone(), old.body.clone());
            let mut new = Image::accepted(*at, *at, old.digest, topic, body);
            new.note(self.rules, *at, HistoryEvent::Replayed(row.id.clone()));
            // The contents are where those of the old one are.
            self.put(to, None, 1, kept.image_at, offset, new);
        }
        true
    }

    fn carry(&mut self, offset: u64, row: &MessageRow, image: &Image, known: &Known) -> bool {
        let above = match known {
            Known::Row(kept) => row.version > kept.version,
            Known::Stub(stub) => row.version > stub.version,
            // What a complete shard does not know has been forgotten, and is not revived.
            Known::Nothing => !self.head.is_complete,
        };
        if !above && self.rules.holds(Rule::CarriedAbove) {
            return false;
        }
        self.head.stubs.remove(&row.id);
        let before = match known {
            Known::Row(kept) => Some(kept),
            _ => None,
        };
        self.put(&row.id, before, row.version, offset, offset, image.clone());
        true
    }

    /// Remembers how far a row has come that is somewhere before the `open` at which this reader began.
    fn leave_stub(&mut self, offset: u64, row: &MessageRow) {
        if row.change == Change::Forgotten(Forgotten::Message) {
            self.head.forgotten = offset + 1;
        }
        if !self.rules.holds(Rule::Stubs) {
            return;
        }
        let stub = Stub {
            version: row.version,
            is_gone: row.change == Change::Forgotten(Forgotten::Message),
        };
        self.head.stubs.insert(row.id.clone(), stub);
        if let Change::Replayed { to, .. } = &row.change {
            let (version, is_gone) = (1, false);
            self.head
                .stubs
                .insert(to.clone(), Stub { version, is_gone });
        }
    }

    fn put(
        &mut self,
        id: &MessageId,
        before: Option<&Arc<Kept>>,
        version: u64,
        image_at: u64,
        changed_at: u64,
        image: Image,
    ) {
        if let Some(before) = before {
            self.take_away(id, before);
        }
        let row = Kept {
            version,
            image_at,
            changed_at,
            image,
        };
        let head = &mut self.head;
        head.rows += 1;
        if head.covers(image_at) {
            head.digest = head.digest.with(row.digest(id));
        } else {
            head.without_image += 1;
        }
        self.table.put(id, Arc::new(row));
    }

    fn remove(&mut self, id: &MessageId, row: &Arc<Kept>) {
        self.take_away(id, row);
        self.table.remove(id);
    }

    fn take_away(&mut self, id: &MessageId, row: &Arc<Kept>) {
        let head = &mut self.head;
        // A damaged view is found out by its digest, not by a subtraction that fails.
        head.rows = head.rows.wrapping_sub(1);
        if head.covers(row.image_at) {
            head.digest = head.digest.without(row.digest(id));
        } else {
            head.without_image = head.without_image.wrapping_sub(1);
        }
    }
}
