use std::fmt;
use std::sync::Arc;

use laneway_cluster::apply::Kept;
use laneway_delay::MessageId;

/// A row with its id.
pub type Row = (MessageId, Arc<Kept>);

/// A row that was changed, as it is now; `None`: it was taken away.
pub type Changed = (MessageId, Option<Arc<Kept>>);

/// How the rows of a shard are read while it changes.
#[derive(Clone)]
pub struct Rows(Arc<Page>);

type Page = dyn Fn(Option<&MessageId>, usize) -> Option<Vec<Row>> + Send + Sync;

impl Rows {
    /// From a function that answers up to so many rows behind an id, by id, and `None` when they cannot be read any more. It may
    /// block.
    ///
    /// IMPORTANT: it must answer at least what was told to [`ShardBackup::note`](crate::ShardBackup::note) before it was asked.
    pub fn new(
        page: impl Fn(Option<&MessageId>, usize) -> Option<Vec<Row>> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(page))
    }

    pub(crate) async fn page(&self, after: Option<MessageId>, limit: usize) -> Option<Vec<Row>> {
        let page = self.0.clone();
        let reading = tokio::task::spawn_blocking(move || page(after.as_ref(), limit));
        reading.await.unwrap_or_default()
    }
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows").finish_non_exhaustive()
    }
}
