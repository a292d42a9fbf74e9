//! All topics and logs of a store.

use std::collections::HashMap;
use std::sync::Arc;

use super::limits::FileLimits;
use super::recover::Recovered;
use super::state::{Contents, LogState, TopicState};
use crate::topic::{Topic, TopicName};

pub(super) struct Topics {
    /// Written to a segment of a topic, about.
    segment: u64,
    /// The number that the next new topic gets.
    next: u32,
    by_name: HashMap<TopicName, (Arc<TopicState>, Topic)>,
    /// By topic and partition.
    logs: HashMap<(u32, u32), Arc<LogState>>,
}

impl Topics {
    pub(super) fn new(limits: &FileLimits) -> Self {
        Self {
            segment: limits.segment,
            next: 0,
            by_name: HashMap::new(),
            logs: HashMap::new(),
        }
    }

    pub(super) fn declarations(&self) -> Vec<Topic> {
        let all = self.by_name.values().map(|(_, topic)| topic.clone());
        all.collect()
    }

    pub(super) fn state(&self, name: &TopicName) -> Option<Arc<TopicState>> {
        self.by_name.get(name).map(|(state, _)| state.clone())
    }

    /// The log of a partition; made if it is not there.
    pub(super) fn log(&mut self, topic: &Arc<TopicState>, partition: u32) -> Arc<LogState> {
        self.logs
            .entry((topic.id, partition))
            .or_insert_with(|| {
                let log = LogState::new(topic.clone(), partition, Contents::default());
                Arc::new(log)
            })
            .clone()
    }

    pub(super) fn logs_of(&self, topic: u32) -> Vec<Arc<LogState>> {
        let of_topic = self.logs.values().filter(|log| log.topic.id == topic);
        of_topic.cloned().collect()
    }

    /// The number of a topic, and the one that the next new topic gets then.
    pub(super) fn number_of(&self, name: &TopicName) -> (u32, u32) {
        match self.by_name.get(name) {
            Some((state, _)) => (state.id, self.next),
            None => (self.next, self.next + 1),
        }
    }

    /// Takes in a topic, new or changed.
    pub(super) fn put(&mut self, id: u32, next: u32, topic: Topic) {
        self.next = next;
        let name = topic.name().clone();
        let state = self.state(&name);
        let new = || Arc::new(TopicState::new(id, name.clone(), self.segment));
        let state = state.unwrap_or_else(new);
        self.by_name.insert(name, (state, topic));
    }

    /// Lets go of a topic. A holder of its logs will find them removed.
    pub(super) fn remove(&mut self, topic: &TopicState) {
        topic.remove();
        self.by_name.remove(&topic.name);
        self.logs.retain(|(id, _), _| *id != topic.id);
    }

    /// Takes over what was found on disk.
    pub(super) fn adopt(&mut self, mut found: Recovered) {
        let is_gone = |state: &TopicState| !found.topics.contains_key(&state.id);
        let states = self.by_name.values().map(|(state, _)| state.clone());
        let gone: Vec<_> = states.filter(|state| is_gone(state)).collect();
        for topic in gone {
            self.remove(&topic);
        }
        let mut states = HashMap::new();
        for (id, topic) in std::mem::take(&mut found.topics) {
            let name = topic.name().clone();
            self.put(id, found.next_topic, topic);
            if let Some(state) = self.state(&name) {
                if let Some(segments) = found.segments.remove(&id) {
                    *state.segments.lock() = segments;
                }
                states.insert(id, state);
            }
        }
        self.next = found.next_topic;
        for ((id, partition), contents) in found.logs {
            if let Some(state) = states.get(&id) {
                self.log(state, partition).lock().replace(contents);
            }
        }
    }
}
