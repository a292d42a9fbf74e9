//! How a topic is brought to rest: first no further jobs, then no further patience.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

#[derive(Debug, Default)]
pub(super) struct Halt {
    halted: AtomicBool,
    cancelled: AtomicBool,
    notify: Notify,
}

impl Halt {
    /// Running turns end after the job they are at.
    pub(super) fn halt(&self) {
        self.halted.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_halted(&self) -> bool {
        self.halted.load(Ordering::Relaxed)
    }

    /// Running attempts end now, if they can be dropped.
    pub(super) fn cancel(&self) {
        self.halt();
        self.cancelled.store(true, Ordering::SeqCst);
        self.notify.notify_waiters();
    }

    pub(super) async fn cancelled(&self) {
        let notified = self.notify.notified();
        tokio::pin!(notified);
        // Listening before looking: a cancel in between is not missed.
        notified.as_mut().enable();
        if !self.cancelled.load(Ordering::SeqCst) {
            notified.await;
        }
    }
}
