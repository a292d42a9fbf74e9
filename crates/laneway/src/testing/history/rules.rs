//! What is promised.

use std::fmt;
use std::sync::Arc;

use super::check;
use super::event::Record;
use super::verdict::Verdict;

/// The promises that a history is held to. Begin with one of the three guarantees, then add bounds.
///
/// | | [`exactly_once`](Self::exactly_once) | [`at_least_once`](Self::at_least_once) | [`at_most_once`](Self::at_most_once) |
/// |---|---|---|---|
/// | for | the engine in memory | domain topics, across crashes | plain topics |
/// | what was submitted | runs, unless refused | may run | may run |
/// | what was acked | finishes | finishes | may be lost |
/// | order within a key, one at a time | yes | yes | no |
/// | again after a failure | yes | yes | no |
/// | again after it was finished | no | if its owner crashed before it was settled | no |
#[derive(Clone)]
pub struct Rules {
    pub(super) once: Once,
    pub(super) drained: bool,
    pub(super) lane_of: Option<LaneOf>,
    pub(super) max_running: Option<usize>,
    pub(super) max_outstanding: Option<usize>,
    pub(super) max_outstanding_per_key: Option<usize>,
}

type LaneOf = Arc<dyn Fn(&str) -> u64 + Send + Sync>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Once {
    Exactly,
    AtLeast,
    AtMost,
}

impl Rules {
    fn new(once: Once) -> Self {
        Self {
            once,
            drained: true,
            lane_of: None,
            max_running: None,
            max_outstanding: None,
            max_outstanding_per_key: None,
        }
    }

    /// Everything submitted runs to its end once, in order per key, failures retried in place.
    #[must_use]
    pub fn exactly_once() -> Self {
        Self::new(Once::Exactly)
    }

    /// Everything acked runs to its end, in order per key; a crash lets the unsettled run again,
    /// in order and before anything later of their key.
    #[must_use]
    pub fn at_least_once() -> Self {
        Self::new(Once::AtLeast)
    }

    /// Nothing runs twice, whatever happens. Anything may be lost.
    #[must_use]
    pub fn at_most_once() -> Self {
        Self::new(Once::AtMost)
    }

    /// The history was taken in the middle, or after a close that left work behind: what has not
    /// been finished yet is not lost. What was overtaken still is.
    #[must_use]
    pub fn undrained(mut self) -> Self {
        self.drained = false;
        self
    }

    /// Keys share lanes: at most one message of a lane runs at a time.
    #[must_use]
    pub fn lanes(mut self, lane_of: impl Fn(&str) -> u64 + Send + Sync + 'static) -> Self {
        self.lane_of = Some(Arc::new(lane_of));
        self
    }

    /// At most so many handlers run at a time.
    #[must_use]
    pub fn max_running(mut self, bound: usize) -> Self {
        self.max_running = Some(bound);
        self
    }

    /// At most so many messages are acked and not finished at a time. Where the place in a queue is
    /// free again as soon as the handler starts, add the number of workers.
    #[must_use]
    pub fn max_outstanding(mut self, bound: usize) -> Self {
        self.max_outstanding = Some(bound);
        self
    }

    /// As [`max_outstanding`](Self::max_outstanding), for each key apart.
    #[must_use]
    pub fn max_outstanding_per_key(mut self, bound: usize) -> Self {
        self.max_outstanding_per_key = Some(bound);
        self
    }

    /// Judges the records of one or several histories. Their order doesn't matter; their stamps do.
    pub fn check(&self, records: impl IntoIterator<Item = Record>) -> Verdict {
        let mut records: Vec<_> = records.into_iter().collect();
        // Stable: records of equal stamps (of different processes) stay as they were given.
        records.sort_by_key(|record| record.at);
        check::judge(self, &records)
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules")
            .field("once", &self.once)
            .field("drained", &self.drained)
            .field("shared_lanes", &self.lane_of.is_some())
            .field("max_running", &self.max_running)
            .field("max_outstanding", &self.max_outstanding)
            .field("max_outstanding_per_key", &self.max_outstanding_per_key)
            .finish()
    }
}
