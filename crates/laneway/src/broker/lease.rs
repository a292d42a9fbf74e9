//! For how long a partition is ours.
//!
//! On a broker that several processes share, a partition belongs to one of them at a time and may go to another:
//! because a rebalance revokes it, or because its owner was silent for too long. An owner that was frozen or cut off
//! cannot know whether that has happened. So a [`Lease`] is *valid* only until a point in time before which the broker
//! gives the partition to no other member; after it the bus starts no handler until the broker has confirmed the
//! ownership and the lease is extended.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::ownership::{Ownership, OwnershipCell};

/// The `valid_until` of a lease that never ends.
const LASTING: u64 = u64::MAX;

/// For how long a partition is ours. The broker writes it, the bus reads it.
#[derive(Debug)]
pub(crate) struct Lease {
    ownership: OwnershipCell,
    /// Nanoseconds after `began`.
    valid_until: AtomicU64,
    began: Instant,
}

#[cfg_attr(
    not(any(test, feature = "kafka", feature = "nats")),
    expect(dead_code, reason = "the embedded brokers give partitions for good")
)]
impl Lease {
    /// Valid for as long as the process lives.
    pub(crate) fn lasting() -> Self {
        Self {
            ownership: OwnershipCell::held(),
            valid_until: AtomicU64::new(LASTING),
            began: Instant::now(),
        }
    }

    /// Valid until then, unless it is [extended](Self::extend).
    pub(crate) fn until(valid_until: Instant) -> Self {
        let lease = Self {
            valid_until: AtomicU64::new(0),
            ..Self::lasting()
        };
        lease.extend(valid_until);
        lease
    }

    /// The broker has confirmed the ownership. A confirmation that comes late shortens nothing.
    pub(crate) fn extend(&self, valid_until: Instant) {
        let nanos = valid_until.saturating_duration_since(self.began).as_nanos();
        let nanos = u64::try_from(nanos).unwrap_or(LASTING - 1);
        self.valid_until.fetch_max(nanos, Ordering::SeqCst);
    }

    /// Ends its time, as if the broker had confirmed nothing for long.
    #[cfg(test)]
    pub(crate) fn expire(&self) {
        self.valid_until.store(0, Ordering::SeqCst);
    }

    /// A rebalance gives the partition to another member: the bus is to drain it.
    pub(crate) fn revoke(&self) {
        self.ownership.advance(Ownership::Draining);
    }

    /// The bus has done with the partition. The lease stays valid: until the broker has let it go, no other member
    /// is given it.
    pub(crate) fn release(&self) {
        self.ownership.advance(Ownership::Released);
    }

    /// The partition is not ours any more. Answers whether it was until now.
    pub(crate) fn lose(&self) -> bool {
        self.ownership.advance(Ownership::Lost) != Ownership::Lost
    }

    pub(crate) fn ownership(&self) -> Ownership {
        self.ownership.get()
    }

    /// Whether the broker never gives the partition to another process.
    pub(crate) fn is_lasting(&self) -> bool {
        self.valid_until.load(Ordering::Relaxed) == LASTING
    }

    /// Whether no other process can own the partition now.
    pub(crate) fn is_valid(&self) -> bool {
        let until = self.valid_until.load(Ordering::SeqCst);
        until == LASTING
            || self.ownership() != Ownership::Lost
                && self.began.elapsed() < Duration::from_nanos(until)
    }

    /// Resolves when the lease is being revoked, or is lost.
    pub(crate) async fn revoked(&self) -> Ownership {
        self.ownership
            .wait_for(|state| state != Ownership::Held)
            .await
    }

    /// Resolves when the lease is lost.
    pub(crate) async fn lost(&self) {
        let is_lost = |state| state == Ownership::Lost;
        self.ownership.wait_for(is_lost).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_valid_until_its_time_is_over() {
        let lease = Lease::until(Instant::now() + Duration::from_mins(1));
        assert!(lease.is_valid() && !lease.is_lasting());
        let over = Lease::until(Instant::now());
        assert!(!over.is_valid());
        over.extend(Instant::now() + Duration::from_mins(1));
        assert!(over.is_valid(), "it was confirmed");
        over.extend(Instant::now());
        assert!(over.is_valid(), "a late confirmation takes nothing back");
        over.release();
        assert!(over.is_valid(), "the broker has not let it go");
        over.lose();
        assert!(!over.is_valid());
    }

    #[test]
    fn a_lasting_lease_is_always_valid() {
        let lease = Lease::lasting();
        lease.extend(Instant::now());
        assert!(lease.is_valid() && lease.is_lasting());
    }

    #[tokio::test]
    async fn a_lost_lease_stays_lost() {
        let lease = Lease::lasting();
        assert_eq!(lease.ownership(), Ownership::Held);
        lease.revoke();
        assert_eq!(lease.revoked().await, Ownership::Draining);
        assert!(lease.lose());
        lease.revoke();
        assert!(!lease.lose());
        assert_eq!(lease.revoked().await, Ownership::Lost);
    }
}
