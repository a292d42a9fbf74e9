use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::Clock;
use crate::{BoxFuture, Timestamp};

/// A clock that stands still until it is set. For tests. Clones are the same clock.
///
/// ```
/// use std::time::Duration;
/// use laneway_delay::{Timestamp, clock::{Clock, ManualClock}};
///
/// let clock = ManualClock::new(Timestamp::from_millis(0));
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(clock.now().as_millis(), 1000);
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock {
    now: Arc<watch::Sender<Timestamp>>,
}

impl ManualClock {
    /// Stands at this moment.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        Self {
            now: Arc::new(watch::Sender::new(now)),
        }
    }

    /// Sets it, ahead or back.
    pub fn set(&self, now: Timestamp) {
        self.now.send_replace(now);
    }

    /// Moves it ahead.
    pub fn advance(&self, by: Duration) {
        self.now.send_modify(|now| *now = *now + by);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.now.borrow()
    }

    fn sleep_until(&self, at: Timestamp) -> BoxFuture<'_, ()> {
        let mut now = self.now.subscribe();
        Box::pin(async move {
            // The sender is in `self`, so it cannot be gone.
            let _ = now.wait_for(|now| *now >= at).await;
        })
    }
}
