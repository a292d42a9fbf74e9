//! The handle to a subscription, and how it ends.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::Shared;
use super::domain::Figures;
use super::holdings;
use super::pump::{self, Ending, Flow};
use super::state::State;
use crate::broker::Member;
use crate::lanes::{CloseReport, Drain, LeftBehind};
use crate::topic::{Kind, TopicName};

/// When a subscription stops by itself, the handlers that run get this long to finish.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// Saying good-bye to the group. One that does not is missed after a while, too.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// A subscription. It goes on when the handle is dropped; [`close`](Self::close) ends it.
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

    /// What it has done so far.
    #[must_use]
    pub fn figures(&self) -> SubscriptionFigures {
        self.inner.figures()
    }

    /// Stops reading, finishes what runs (for plain messages: all that was taken) within the
    /// deadline, commits, and lets the group go. What is left is reported. A caller that gives up
    /// does not stop it.
    pub async fn close(&self, deadline: Duration) -> CloseReport {
        self.inner.close(deadline).await
    }
}

/// What a subscription has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SubscriptionFigures {
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
    figures: Arc<Figures>,
    /// Until it is closed. Locked throughout the closing: a second one waits for the first.
    open: tokio::sync::Mutex<Option<Open>>,
}

/// What a subscription has while it is open.
pub(super) struct Open {
    pub(super) keeper: JoinHandle<Box<dyn Member>>,
    pub(super) committer: JoinHandle<()>,
    pub(super) place: Place,
}

impl Inner {
    pub(super) fn new(
        bus: &Arc<Shared>,
        flow: Arc<Flow>,
        figures: Arc<Figures>,
        open: Open,
    ) -> Self {
        Self {
            bus: Arc::downgrade(bus),
            flow,
            figures,
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
            place,
        }) = open.take()
        else {
            // One that stopped by itself is shown until somebody closes it.
            self.forget();
            return CloseReport::default();
        };
        let flow = &self.flow;
        let deadline_at = Instant::now() + deadline;
        flow.condition.closing();
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
            None => keeper.await.ok(),
        };
        let left = deadline_at.saturating_duration_since(Instant::now());
        let mut report = flow.intake.close(drain, left).await;
        self.add_untold(&mut report);
        committer.abort();
        let _ = committer.await;
        pump::commit_each(flow).await;
        for partition in flow.holdings.take() {
            partition.end();
            holdings::release(flow, &partition).await;
        }
        if let Some(member) = member {
            let _ = timeout(LEAVE_WITHIN, member.leave()).await;
        }
        flow.condition.closed();
        if !matches!(flow.condition.state(), State::Stopped(_)) {
            self.forget();
        }
        drop(place);
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
            None => report.left.push(LeftBehind {
                topic: self.flow.intake.topic().into(),
                abandoned: untold,
                keys: Vec::new(),
                stuck: 0,
                stuck_keys: Vec::new(),
            }),
        }
    }

    fn forget(&self) {
        if let Some(bus) = self.bus.upgrade() {
            bus.forget_subscription(self);
        }
    }

    /// Plain messages that were taken and are not over.
    pub(super) fn open_messages(&self) -> usize {
        let partitions = self.flow.holdings.all();
        partitions.iter().map(|part| part.open()).sum()
    }

    pub(super) fn figures(&self) -> SubscriptionFigures {
        let figures = &self.figures;
        SubscriptionFigures {
            handled: figures.handled.load(Relaxed),
            failed: figures.failed.load(Relaxed),
            dead_lettered: figures.dead.load(Relaxed),
            parked: figures.parked.load(Relaxed),
            deduplicated: figures.deduplicated.load(Relaxed),
        }
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

/// Keeps a group from subscribing to a topic twice, until it is dropped.
pub(super) struct Place {
    bus: Weak<Shared>,
    key: (TopicName, String),
}

impl Place {
    pub(super) fn new(bus: &Arc<Shared>, key: (TopicName, String)) -> Self {
        Self {
            bus: Arc::downgrade(bus),
            key,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(bus) = self.bus.upgrade() {
            bus.give_up_place(&self.key);
        }
    }
}
