use std::collections::BTreeMap;
use std::sync::Arc;

use laneway_delay::MessageId;

use crate::record::{Image, RowDigest, image_bytes};

/// A message as a shard has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Counts its changes.
    pub version: u64,
    /// The offset of the record from which it can be restored together with what came later: an `accepted`, an `answered` of
    /// an unknown id, or a `carried`.
    pub image_at: u64,
    /// The offset of the record that changed it last.
    pub changed_at: u64,
    /// All that is known of it.
    pub image: Image,
}

impl Kept {
    /// What the row adds to the digest of all rows.
    #[must_use]
    pub fn digest(&self, id: &MessageId) -> RowDigest {
        let mut bytes = Vec::with_capacity(192);
        bytes.extend_from_slice(&(id.as_str().len() as u64).to_le_bytes());
        bytes.extend_from_slice(id.as_str().as_bytes());
        bytes.extend_from_slice(&self.version.to_le_bytes());
        image_bytes(&mut bytes, &self.image);
        RowDigest::of(&bytes)
    }
}

/// Where the rows of a shard are kept: in memory, or in a view on disk.
pub trait Table {
    /// The row of an id.
    fn get(&self, id: &MessageId) -> Option<Arc<Kept>>;

    /// Puts a row in the place of the one that its id has.
    fn put(&mut self, id: &MessageId, row: Arc<Kept>);

    /// Takes a row away.
    fn remove(&mut self, id: &MessageId);

    /// Up to `limit` rows behind `after`, by id.
    fn page(&self, after: Option<&MessageId>, limit: usize) -> Vec<(MessageId, Arc<Kept>)>;
}

/// Rows in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory(BTreeMap<MessageId, Arc<Kept>>);

impl Memory {
    /// All rows, by id.
    pub fn iter(&self) -> impl Iterator<Item = (&MessageId, &Kept)> {
        self.0.iter().map(|(id, row)| (id, &**row))
    }
}

impl Table for Memory {
    fn get(&self, id: &MessageId) -> Option<Arc<Kept>> {
        self.0.get(id).cloned()
    }

    fn put(&mut self, id: &MessageId, row: Arc<Kept>) {
        self.0.insert(id.clone(), row);
    }

    fn remove(&mut self, id: &MessageId) {
        self.0.remove(id);
    }

    fn page(&self, after: Option<&MessageId>, limit: usize) -> Vec<(MessageId, Arc<Kept>)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, Excluded);
        let rows = self.0.range::<MessageId, _>((from, Unbounded)).take(limit);
        rows.map(|(id, row)| (id.clone(), row.clone())).collect()
    }
}
