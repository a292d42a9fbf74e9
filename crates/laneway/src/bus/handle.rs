//! The handle to a subscription, and how it ends.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use super::Shared;
use super::assigned_partitions;
use super::domain::Stats;
use super::pump::{self, Ending, Flow};
use super::state::State;
use crate::broker::Member;
use crate::broker::subscriptions::SubscriptionGuard;
use crate::lanes::{CloseReport, Drain, LeftBehind, after};
use crate::topic::{Kind, TopicName};

/// When a subscription stops by itself, the handlers that run get this long to finish.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// A subscription that has no partition for so long says why.
const IDLE_AFTER: Duration = Duration::from_secs(3);

/// Committing, giving partitions away and leaving the group may take what is left of the deadline, and at
/// least this long: handlers may have needed all of it. A member that does not say good-bye is missed
/// after a while, too.
pub(super) const GOODBYE_WITHIN: Duration = Duration::from_secs(1);

/// A subscription. It goes on when the handle is dropped; [`close`](Self::close) ends it.
///
/// ```
/// use laneway::Bus;
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let bus = Bus::open("memory:").await?;
/// let subscription = bus.subscribe("pings", |_ping| async { Ok(()) }).await?;
/// assert_eq!(subscription.stats().handled, 0);
/// let report = subscription.close(Duration::from_secs(1)).await;
/// assert!(report.is_clean());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Subscription {
    pub(super) inner: Arc<Inner>,
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("topic", &self.inner.flow.topic)
            .field("group", &self.inner.flow.group)
            .finish_non_exhaustive()
    }
}

impl Subscription {
    /// The topic.
    #[must_use]
    pub fn topic(&self) -> &TopicName {
        &self.inner.flow.topic
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.inner.flow.group
    }

    /// How it is doing.
    #[must_use]
    pub fn state(&self) -> State {
        self.inner.flow.condition.state()
    }

    /// Resolves when it has stopped by itself, with the reason, or was closed.
    pub async fn stopped(&self) -> String {
        let mut watch = self.inner.flow.condition.watch();
        match watch.wait_for(State::is_over).await.as_deref() {
            Ok(State::Stopped(reason)) => reason.clone(),
            _ => "closed".to_owned(),
        }
    }

    /// The partitions that this member of the group holds, with the epoch of each, now and as that changes. A partition
    /// is gone as soon as the group revokes it or it is lost, or the subscription closes: handlers of it may still run.
    /// One that the broker has given to another member while this process was cut off is there until that is known.
    ///
    /// ```
    /// use laneway::Bus;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let bus = Bus::open("memory:").await?;
    /// let subscription = bus.subscribe_envelope("orders", |_event| async { Ok(()) }).await?;
    /// let assigned = subscription.assigned();
    /// assert!(assigned.borrow().contains_key(&0));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn assigned(&self) -> watch::Receiver<BTreeMap<u32, u64>> {
        self.inner.flow.assigned.epochs()
    }

    /// What it has done so far.
    #[must_use]
    pub fn stats(&self) -> SubscriptionStats {
        self.inner.stats()
    }

    /// Stops reading, finishes what runs (for plain messages: all that was taken) within the
    /// deadline, commits, and lets the group go. What is left is reported. A caller that gives up
    /// does not stop it. `Duration::MAX` is no deadline.
    ///
    /// Telling the broker has what is left of the deadline, and at least a second. If the broker is away
    /// for that long, what was settled last comes again, and other members wait until this one is missed.
    pub async fn close(&self, deadline: Duration) -> CloseReport {
        self.inner.close(deadline).await
    }
}

/// What a subscription has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SubscriptionStats {
    /// Deliveries that were handled.
    pub handled: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Events that went to the dead letters.
    pub dead_lettered: u64,
    /// Events that were parked.
    pub parked: u64,
    /// Events that were skipped because their id was known.
    pub deduplicated: u64,
}

pub(super) struct Inner {
    bus: Weak<Shared>,
    pub(super) flow: Arc<Flow>,
    stats: Arc<Stats>,
    /// Until it is closed. Locked throughout the closing: a second one waits for the first.
    open: tokio::sync::Mutex<Option<Open>>,
}

/// What a subscription has while it is open.
pub(super) struct Open {
    pub(super) keeper: JoinHandle<Box<dyn Member>>,
    pub(super) committer: JoinHandle<()>,
    pub(super) guard: SubscriptionGuard,
}

impl Inner {
    pub(super) fn new(bus: &Arc<Shared>, flow: Arc<Flow>, stats: Arc<Stats>, open: Open) -> Self {
        Self {
            bus: Arc::downgrade(bus),
            flow,
            stats,
            open: tokio::sync::Mutex::new(Some(open)),
        }
    }

    /// In a task of its own, so that a caller that gives up does not leave it half closed.
    pub(super) async fn close(self: &Arc<Self>, deadline: Duration) -> CloseReport {
        let this = self.clone();
        let closing = tokio::spawn(async move { this.close_here(deadline).await });
        // An error means that the runtime goes down, and everything with it.
        closing.await.unwrap_or_default()
    }

    async fn close_here(&self, deadline: Duration) -> CloseReport {
        let mut open = self.open.lock().await;
        let Some(Open {
            mut keeper,
            committer,
            guard,
        }) = open.take()
        else {
            // One that stopped by itself is shown until somebody closes it.
            self.forget();
            return CloseReport::default();
        };
        let flow = &self.flow;
        let deadline_at = after(deadline);
        let or_a_while = || deadline_at.max(after(GOODBYE_WITHIN));
        flow.condition.closing();
        flow.assigned.revoke_all();
        let (drain, ended) = match flow.kind {
            // They are safe in the log.
            Kind::Domain => (Drain::Running, None),
            // They are settled already: what was taken has to get to the lanes.
            Kind::Plain => {
                flow.ending.send_replace(Ending::Soon);
                let ended = timeout_at(deadline_at, &mut keeper).await;
                (Drain::Queued, ended.ok())
            }
        };
        flow.ending.send_replace(Ending::Now);
        let member = match ended {
            Some(ended) => ended.ok(),
            None => {
                if let Ok(ended) = timeout_at(or_a_while(), &mut keeper).await {
                    ended.ok()
                } else {
                    // It releases a partition, and the broker is away.
                    keeper.abort();
                    None
                }
            }
        };
        let left = deadline_at.saturating_duration_since(Instant::now());
        let mut report = tokio::select! {
            report = flow.intake.close(drain, left) => report,
            never = assigned_partitions::end_what_is_lost(flow) => match never {},
        };
        self.add_untold(&mut report);
        committer.abort();
        let _ = committer.await;
        let goodbye = or_a_while();
        let is_committed = timeout_at(goodbye, pump::commit_each(flow)).await;
        let partitions = flow.assigned.take();
        let releasing = partitions.iter().map(|partition| {
            partition.release();
            assigned_partitions::release(flow, partition)
        });
        // All at once: a broker that is away is away for all of them.
        let is_released = timeout_at(goodbye, join_all(releasing)).await;
        let has_left = match member {
            Some(member) => timeout_at(goodbye, member.leave()).await.is_ok(),
            None => false,
        };
        if is_committed.is_err() || is_released.is_err() || !has_left {
            tracing::warn!(topic = %flow.topic, group = %flow.group,
                "the broker did not answer while a subscription closed: other members wait until this one is missed");
        }
        // IMPORTANT: before it is told that it is closed. Who hears of that may subscribe again at once.
        drop(partitions);
        drop(guard);
        flow.condition.closed();
        if !matches!(flow.condition.state(), State::Stopped(_)) {
            self.forget();
        }
        flow.progress.made();
        report
    }

    /// Plain messages that were taken and never got to the lanes.
    fn add_untold(&self, report: &mut CloseReport) {
        let stuck: usize = report.left.iter().map(|left| left.stuck).sum();
        let untold = self.open_messages().saturating_sub(stuck);
        if untold == 0 {
            return;
        }
        match report.left.first_mut() {
            Some(left) => left.abandoned += untold,
            None => report.left.push(LeftBehind::abandoned(
                self.flow.intake.topic().into(),
                untold,
            )),
        }
    }

    fn forget(&self) {
        if let Some(bus) = self.bus.upgrade() {
            bus.forget_subscription(self);
        }
    }

    /// Plain messages that were taken and are not over.
    pub(super) fn open_messages(&self) -> usize {
        let partitions = self.flow.assigned.all();
        partitions.iter().map(|part| part.open()).sum()
    }

    pub(super) fn stats(&self) -> SubscriptionStats {
        let stats = &self.stats;
        SubscriptionStats {
            handled: stats.handled.load(Relaxed),
            failed: stats.failed.load(Relaxed),
            dead_lettered: stats.dead.load(Relaxed),
            parked: stats.parked.load(Relaxed),
            deduplicated: stats.deduplicated.load(Relaxed),
        }
    }
}

/// Tells of a member that waits for its partitions: a member that ended without a word still counts.
pub(super) async fn hint_if_idle(subscription: Weak<Inner>) {
    tokio::time::sleep(IDLE_AFTER).await;
    let Some(subscription) = subscription.upgrade() else {
        return;
    };
    let flow = &subscription.flow;
    if flow.assigned.all().is_empty() && !flow.condition.state().is_over() {
        tracing::info!(topic = %flow.topic, group = %flow.group,
            "no partition of the topic is ours yet: other members of the group have them, or one that ended \
             without a word, which is waited for until it is missed");
    }
}

/// A subscription that stops itself cannot wait for its own handler.
pub(super) async fn stop_when_asked(subscription: Weak<Inner>) {
    let Some(mut state) = subscription
        .upgrade()
        .map(|subscription| subscription.flow.condition.watch())
    else {
        return;
    };
    let stopped = matches!(
        state.wait_for(State::is_over).await.as_deref(),
        Ok(State::Stopped(_))
    );
    if stopped && let Some(subscription) = subscription.upgrade() {
        subscription.close(STOP_WITHIN).await;
    }
}
