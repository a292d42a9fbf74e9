//! Something is being finished: for those who wait until all of it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

/// Counts what is about to be seen as finished, and wakes those who wait for it afterwards.
///
/// Counting comes first: a reader that sees that nothing is left to do, and that the count is the same as
/// before looking, has missed nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress(Arc<Counted>);

#[derive(Debug, Default)]
struct Counted {
    count: AtomicU64,
    wake: watch::Sender<()>,
}

impl Progress {
    /// Something is about to be finished.
    pub(super) fn coming(&self) {
        self.0.count.fetch_add(1, Ordering::SeqCst);
    }

    /// It is.
    pub(super) fn made(&self) {
        self.0.wake.send_replace(());
    }

    #[cfg(feature = "testing")]
    pub(super) fn count(&self) -> u64 {
        self.0.count.load(Ordering::SeqCst)
    }

    #[cfg(feature = "testing")]
    pub(super) fn watch(&self) -> watch::Receiver<()> {
        self.0.wake.subscribe()
    }
}
