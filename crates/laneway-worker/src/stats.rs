use std::collections::BTreeMap;

use laneway_cluster::owner::Outcome;

/// The most topics that are counted one by one.
const MOST_TOPICS: usize = 4_096;

/// What a worker does, and has done since it was started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Attempts that wait for their moment, or for a slot.
    pub held: usize,
    /// Attempts that run.
    pub running: usize,
    /// Outcomes that no owner has logged.
    pub unlogged: usize,
    /// Bytes of payloads that wait or are on their way.
    pub held_bytes: usize,
    /// Messages that centers mean to give to this worker.
    pub hints: usize,
    /// Connections to centers.
    pub connections: usize,
    /// Whether it takes no more.
    pub is_draining: bool,
    /// Attempts that were started.
    pub started: u64,
    /// Gos that were refused.
    pub refused: u64,
    /// Attempts that ended without anything sent.
    pub handed_back: u64,
    /// The same by topic of the message, of the first few thousand topics.
    pub topics: BTreeMap<String, TopicStats>,
}

/// What became of the attempts of one topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicStats {
    /// Attempts that were taken.
    pub taken: u64,
    /// Attempts that were started.
    pub started: u64,
    /// Attempts that delivered.
    pub delivered: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Attempts without an answer.
    pub unknown: u64,
    /// Attempts that ended without anything sent.
    pub handed_back: u64,
}

/// What is counted.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) refused: u64,
    started: u64,
    handed_back: u64,
    topics: BTreeMap<String, TopicStats>,
}

impl Totals {
    pub(crate) fn held(&mut self, topic: &str) {
        if let Some(counts) = self.topics.get_mut(topic) {
            counts.taken += 1;
        } else if self.topics.len() < MOST_TOPICS {
            let counts = TopicStats {
                taken: 1,
                ..TopicStats::default()
            };
            self.topics.insert(topic.to_owned(), counts);
        }
    }

    pub(crate) fn started(&mut self, topic: &str) {
        self.started += 1;
        if let Some(counts) = self.topics.get_mut(topic) {
            counts.started += 1;
        }
    }

    pub(crate) fn ended(&mut self, topic: &str, outcome: &Outcome) {
        if let Outcome::HandedBack { .. } = outcome {
            self.handed_back += 1;
        }
        let Some(counts) = self.topics.get_mut(topic) else {
            return;
        };
        match outcome {
            Outcome::Delivered => counts.delivered += 1,
            Outcome::Failed { .. } => counts.failed += 1,
            Outcome::HandedBack { .. } => counts.handed_back += 1,
            _ => counts.unknown += 1,
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            started: self.started,
            refused: self.refused,
            handed_back: self.handed_back,
            topics: self.topics.clone(),
            ..Stats::default()
        }
    }
}
