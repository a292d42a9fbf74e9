//! From assigned to owning, and back.
//!
//! A center that has the assignment reads to the end of the log, compares the record where its view ends, and announces itself.
//! It owns when its announcement is read back and counts. The same comparison is made before the log is followed, after every
//! loss of it, and when a record was written on another basis.

use std::time::Duration;

use laneway_cluster::owner::Standing;
use laneway_cluster::record::Reign;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::copy::Copied;
use super::event::{Assigned, Checked, Inner};
use super::{Ending, Task, WAITS};
use crate::log::{LogError, ShardLog};
use crate::stats::count;

/// How long to wait for the follower to get to the end.
const CATCH_UP: Duration = Duration::from_millis(5);

/// Batches of records that wait to be applied.
const BATCHES: usize = 8;

/// How far a center is on its way to ownership.
#[derive(Debug)]
pub(super) struct Announcing {
    pub(super) is_assigned: bool,
    /// The log is being asked.
    is_checking: bool,
    /// Not before.
    after: Option<Instant>,
    wait: Duration,
    /// The view is to be compared, whatever else.
    must_verify: bool,
    /// The move into the shard that was told of.
    fence_told: Option<[u8; 6]>,
    /// When the shard is given up although it is not drained.
    release_at: Option<Instant>,
}

impl Default for Announcing {
    fn default() -> Self {
        Self {
            is_assigned: false,
            is_checking: false,
            after: None,
            wait: WAITS.0,
            must_verify: false,
            fence_told: None,
            release_at: None,
        }
    }
}

impl Announcing {
    pub(super) fn next(&self) -> Option<Instant> {
        [self.after, self.release_at].into_iter().flatten().min()
    }

    /// Announces again, after a while that grows.
    pub(super) fn again(&mut self) {
        let jitter = self.wait.mul_f64(rand::random::<f64>() / 2.0);
        self.after = Some(Instant::now() + self.wait / 2 + jitter);
        self.wait = (self.wait * 2).min(WAITS.1);
    }

    pub(super) fn verify(&mut self) {
        self.must_verify = true;
    }
}

impl Task {
    pub(super) fn hear_assignment(&mut self, assigned: &mut Assigned) {
        let is_assigned = assigned.borrow_and_update().contains_key(&self.number);
        if is_assigned == self.announcing.is_assigned {
            return;
        }
        self.announcing.is_assigned = is_assigned;
        if is_assigned {
            tracing::debug!(shard = self.number, "a shard was assigned");
            self.owner.assign();
            self.announcing.release_at = None;
            self.announcing.after = None;
        } else {
            tracing::debug!(shard = self.number, "a shard was revoked");
            self.owner.revoke();
            self.announcing.release_at = Some(Instant::now() + self.shared.settings.drain);
            self.refuse_early_intake();
        }
    }

    /// Gives the shard up, when nothing is under way any more, or after the drain time.
    pub(super) fn release_if_drained(&mut self) {
        let Some(at) = self.announcing.release_at else {
            return;
        };
        if !self.owner.is_drained() && at > Instant::now() {
            return;
        }
        self.announcing.release_at = None;
        let was_owning = self.is_owning();
        let decisions = self.owner.release();
        self.to_append.clear();
        self.decide(decisions);
        if was_owning {
            self.stepped_down();
        }
    }

    /// Asks the log, if there is a reason to.
    pub(super) fn bring_up(&mut self) {
        let announcing = &self.announcing;
        let is_early = announcing.after.is_some_and(|at| at > Instant::now());
        let may_announce = announcing.is_assigned
            && self.is_following
            && !is_early
            && self.owner.standing() == Standing::Following;
        let is_early = self.follow_after.is_some_and(|at| at > Instant::now());
        let must_follow = !self.is_following && !is_early;
        if announcing.is_checking || !(may_announce || must_follow || announcing.must_verify) {
            return;
        }
        self.announcing.after = None;
        self.announcing.is_checking = true;
        let (shared, number, inner) = (self.shared.clone(), self.number, self.inner.clone());
        let next = self.shard.head().next;
        self.background.spawn(async move {
            let look = look(&*shared.log, number, next);
            let found = timeout(shared.settings.ask_within, look).await;
            let found = found.unwrap_or_else(|_| Err(LogError("no answer in time".to_owned())));
            let _ = inner.send(Inner::Checked(Checked { next, found }));
        });
    }

    pub(super) fn checked(&mut self, checked: Checked) -> Result<(), Ending> {
        self.announcing.is_checking = false;
        let (bounds, record) = match checked.found {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(shard = self.number, %error, "the log of a shard does not answer, retrying");
                self.announcing.again();
                if !self.is_following {
                    self.follow_after = Some(Instant::now() + self.follow_wait);
                    self.follow_wait = (self.follow_wait * 2).min(WAITS.1);
                }
                return Ok(());
            }
        };
        let next = self.shard.head().next;
        if checked.next != next {
            // More was read meanwhile: that is compared.
            self.announcing.after = Some(Instant::now() + CATCH_UP);
            return Ok(());
        }
        let Ok(verified) = self.shard.verify(record.as_ref()) else {
            return Err(Ending::OtherLog);
        };
        // A view that never read anything follows a log from its beginning, or is built from what is left of it.
        if next == 0 && !bounds.is_empty() && !self.is_following {
            return Err(Ending::OtherLog);
        }
        self.announcing.must_verify = false;
        if !self.is_following {
            self.follow(next.max(bounds.start));
        }
        let is_at_end = bounds.is_empty() || next >= bounds.end;
        if !self.announcing.is_assigned || self.owner.standing() != Standing::Following {
            return Ok(());
        }
        if !is_at_end {
            self.announcing.after = Some(Instant::now() + CATCH_UP);
            return Ok(());
        }
        let reign = Reign(rand::random());
        let decisions = self.owner.announce(&self.shard, verified, reign);
        if decisions.is_empty() {
            self.tell_of_fence();
            self.announcing.again();
        }
        self.decide(decisions);
        Ok(())
    }

    /// Says once why no center owns the shard.
    fn tell_of_fence(&mut self) {
        let mover = self.shard.head().reign.mover();
        if mover.is_some() && mover != self.announcing.fence_told {
            tracing::warn!(
                shard = self.number,
                "messages are being moved into this shard: it has no owner until `laneway move` is done"
            );
        }
        self.announcing.fence_told = mover;
    }

    /// Follows the log from here on.
    fn follow(&mut self, from: u64) {
        let (sender, batches) = mpsc::channel(BATCHES);
        let mut follower = self.shared.log.follow(self.number, from);
        self.background.spawn(async move {
            loop {
                let records = follower.next().await;
                let is_over = records.is_err();
                if sender.send(records).await.is_err() || is_over {
                    return;
                }
            }
        });
        self.followed = Some(batches);
        self.is_following = true;
        self.follow_after = None;
    }

    pub(super) fn lose_follower(&mut self) {
        self.followed = None;
        self.is_following = false;
        self.follow_after = Some(Instant::now() + self.follow_wait);
        self.follow_wait = (self.follow_wait * 2).min(WAITS.1);
    }

    pub(super) fn follow_again(&mut self) {
        if self.follow_after.is_some_and(|at| at <= Instant::now()) {
            self.follow_after = None;
        }
    }

    /// Its announcement counts.
    pub(super) fn became_owner(&mut self) {
        let epoch = self.shard.head().epoch;
        tracing::info!(shard = self.number, epoch, "this center owns the shard");
        count(&self.shared.counters.takeovers);
        self.announcing.wait = WAITS.0;
        self.begin_copy();
        self.forget_attempts();
        self.upkeep.scan_soon();
        self.take_early_intake();
    }

    /// It owns the shard no more.
    pub(super) fn stepped_down(&mut self) {
        let epoch = self.shard.head().epoch;
        tracing::info!(
            shard = self.number,
            epoch,
            "this center owns the shard no more"
        );
        count(&self.shared.counters.step_downs);
        self.copied = Copied::default();
        self.forget_attempts();
        self.upkeep.stop_trimming();
        if !self.announcing.is_assigned {
            self.refuse_early_intake();
        }
    }
}

async fn look(
    log: &dyn ShardLog,
    number: u32,
    next: u64,
) -> Result<(std::ops::Range<u64>, Option<bytes::Bytes>), LogError> {
    let record = match next.checked_sub(1) {
        Some(last) => log.read(number, last).await?,
        None => None,
    };
    // Behind the record: what was appended before it was asked for is within.
    let bounds = log.bounds(number).await?;
    Ok((bounds, record))
}
