//! Tasks of ours that panic: told by state, event and log, and started again after a pause.
//!
//! A panic is a bug, of ours or of a client library, and what one record brought about it brings about
//! again. So the pause grows, and the rest of the subscription goes on meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::pump::Flow;
use super::state::Part;
use crate::lanes::Event;
pub(super) use crate::supervise::message_of;

/// Before the first restart; twice as long before the next one, and so on.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// One that went well for so long begins anew.
const WELL_AFTER: Duration = Duration::from_mins(2);

/// What was started again, and how often lately.
#[derive(Debug, Default)]
pub(super) struct Restarts(Mutex<BTreeMap<Part, Recent>>);

#[derive(Debug)]
struct Recent {
    pause: Duration,
    until: Instant,
}

impl Restarts {
    /// How long to wait before it is started again.
    fn pause(&self, part: Part) -> Duration {
        let now = Instant::now();
        let mut recent = self.0.lock();
        recent.retain(|_, recent| now.saturating_duration_since(recent.until) < WELL_AFTER);
        let pause = recent
            .get(&part)
            .map_or(FIRST_PAUSE, |recent| LONGEST_PAUSE.min(2 * recent.pause));
        let until = now + pause;
        recent.insert(part, Recent { pause, until });
        pause
    }
}

/// Tells that a task broke. Answers how long to wait before it is started again.
pub(super) fn broke(flow: &Flow, part: Part, task: &str, reason: &str) -> Duration {
    let pause = flow.restarts.pause(part);
    tracing::error!(topic = %flow.topic, group = %flow.group, task, reason, ?pause,
        "a task ended unexpectedly, restarting it");
    flow.condition
        .failing(part, format!("{task} ended unexpectedly: {reason}"));
    flow.intake.tell(|| Event::TaskRestarted {
        topic: flow.intake.topic().into(),
        task: task.to_owned(),
        reason: reason.to_owned(),
        pause,
    });
    pause
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_until_it_goes_well() {
        let restarts = Restarts::default();
        let part = Part::Restarting(1);
        let pauses: Vec<_> = (0..9).map(|_| restarts.pause(part).as_millis()).collect();
        assert_eq!(
            pauses,
            [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000]
        );
        assert_eq!(restarts.pause(Part::Restarting(2)), FIRST_PAUSE);
        tokio::time::sleep(LONGEST_PAUSE + WELL_AFTER).await;
        assert_eq!(restarts.pause(part), FIRST_PAUSE);
    }
}
