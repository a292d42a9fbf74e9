//! The view of a shard, and which rows have changed.

use std::sync::Arc;

use laneway_cluster::apply::{Kept, Table};
use laneway_delay::MessageId;
use laneway_view::View;
use parking_lot::Mutex;

/// The view of a shard, which tells the rows that were changed since it was last asked.
#[derive(Debug)]
pub(crate) struct Rows {
    pub(crate) view: View,
    changed: Mutex<Vec<Changed>>,
}

/// A row that was changed, as it is now; `None`: it was taken away.
pub(crate) type Changed = (MessageId, Option<Arc<Kept>>);

impl Rows {
    pub(crate) fn new(view: View) -> Self {
        Self {
            view,
            changed: Mutex::default(),
        }
    }

    /// The rows that changed since this was called last.
    pub(crate) fn take_changed(&self) -> Vec<Changed> {
        std::mem::take(&mut self.changed.lock())
    }
}

impl Table for Rows {
    fn get(&self, id: &MessageId) -> Option<Arc<Kept>> {
        self.view.get(id)
    }

    fn put(&mut self, id: &MessageId, row: Arc<Kept>) {
        self.view.put(id, row.clone());
        self.changed.get_mut().push((id.clone(), Some(row)));
    }

    fn remove(&mut self, id: &MessageId) {
        self.view.remove(id);
        self.changed.get_mut().push((id.clone(), None));
    }

    fn page(&self, after: Option<&MessageId>, limit: usize) -> Vec<(MessageId, Arc<Kept>)> {
        self.view.page(after, limit)
    }
}
