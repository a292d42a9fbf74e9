//! For how long a partition is ours.
//!
//! On a broker that several processes share, a partition is given to one of them at a time, and may
//! be given to another: because it is asked for, or because the owner was silent for too long. An
//! owner that was frozen, or cut off, cannot know which; so it is *sure* only until a point in time
//! by which nobody else can have been given the partition, and starts no handler after it until the
//! broker has confirmed that it still is the owner.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// What a broker says about a partition that it gave us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Standing {
    /// It is ours.
    Ours,
    /// Another member shall have it: finish what runs, commit, and release it.
    Wanted,
    /// It is ours no more, and another one may have it.
    Lost,
}

/// No other process can ever have it.
const LASTING: u64 = u64::MAX;

/// For how long a partition is ours. The broker writes it, the bus reads it.
#[derive(Debug)]
pub(crate) struct Tenure {
    standing: AtomicU8,
    /// Nanoseconds after `began`.
    sure_until: AtomicU64,
    began: Instant,
    changed: Notify,
}

#[cfg_attr(
    not(any(test, feature = "kafka", feature = "nats")),
    expect(dead_code, reason = "the embedded brokers give partitions for good")
)]
impl Tenure {
    /// Ours for as long as the process lives.
    pub(crate) fn lasting() -> Self {
        Self {
            standing: AtomicU8::new(Standing::Ours as u8),
            sure_until: AtomicU64::new(LASTING),
            began: Instant::now(),
            changed: Notify::new(),
        }
    }

    /// Ours for sure until then, unless it is [extended](Self::extend).
    pub(crate) fn until(sure_until: Instant) -> Self {
        let tenure = Self {
            sure_until: AtomicU64::new(0),
            ..Self::lasting()
        };
        tenure.extend(sure_until);
        tenure
    }

    /// The broker has confirmed it.
    pub(crate) fn extend(&self, sure_until: Instant) {
        let nanos = sure_until.saturating_duration_since(self.began).as_nanos();
        let nanos = u64::try_from(nanos).unwrap_or(LASTING - 1);
        self.sure_until.fetch_max(nanos, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    /// Another member shall have it.
    pub(crate) fn want(&self) {
        self.change(Standing::Wanted);
    }

    /// It is ours no more.
    pub(crate) fn lose(&self) {
        self.change(Standing::Lost);
    }

    /// Only ever forward: what is lost stays lost.
    fn change(&self, to: Standing) {
        self.standing.fetch_max(to as u8, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    pub(crate) fn standing(&self) -> Standing {
        match self.standing.load(Ordering::SeqCst) {
            standing if standing == Standing::Ours as u8 => Standing::Ours,
            standing if standing == Standing::Wanted as u8 => Standing::Wanted,
            _ => Standing::Lost,
        }
    }

    /// Whether nobody else can ever have it.
    pub(crate) fn is_lasting(&self) -> bool {
        self.sure_until.load(Ordering::Relaxed) == LASTING
    }

    /// Whether nobody else can have it now.
    pub(crate) fn is_sure(&self) -> bool {
        let until = self.sure_until.load(Ordering::SeqCst);
        until == LASTING
            || self.standing() != Standing::Lost
                && self.began.elapsed() < Duration::from_nanos(until)
    }

    /// Waits until it is no more simply ours.
    pub(crate) async fn called(&self) -> Standing {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Listens from here on, so that nothing is missed between looking and waiting.
            changed.as_mut().enable();
            let standing = self.standing();
            if standing != Standing::Ours {
                return standing;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_sure_until_its_time_is_over() {
        let tenure = Tenure::until(Instant::now() + Duration::from_mins(1));
        assert!(tenure.is_sure() && !tenure.is_lasting());
        let over = Tenure::until(Instant::now());
        assert!(!over.is_sure());
        over.extend(Instant::now() + Duration::from_mins(1));
        assert!(over.is_sure(), "it was confirmed");
        over.extend(Instant::now());
        assert!(over.is_sure(), "a late confirmation takes nothing back");
        over.lose();
        assert!(!over.is_sure());
    }

    #[test]
    fn what_lasts_is_always_sure() {
        let tenure = Tenure::lasting();
        tenure.extend(Instant::now());
        assert!(tenure.is_sure() && tenure.is_lasting());
    }

    #[tokio::test]
    async fn what_is_lost_stays_lost() {
        let tenure = Tenure::lasting();
        assert_eq!(tenure.standing(), Standing::Ours);
        tenure.want();
        assert_eq!(tenure.called().await, Standing::Wanted);
        tenure.lose();
        tenure.want();
        assert_eq!(tenure.called().await, Standing::Lost);
    }
}
