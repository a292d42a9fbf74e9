//! Handles of topics that were looked up already, so that not every publish asks the server.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::topic::TopicName;

/// Handles by topic name.
pub(super) struct TopicCache<P>(RwLock<HashMap<TopicName, Arc<P>>>);

impl<P> Default for TopicCache<P> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<P> TopicCache<P> {
    pub(super) fn get(&self, topic: &TopicName) -> Option<Arc<P>> {
        let handles = self.0.read();
        handles.get(topic).cloned()
    }

    /// All of them.
    #[cfg(feature = "kafka")]
    pub(super) fn all(&self) -> Vec<Arc<P>> {
        let handles = self.0.read();
        handles.values().cloned().collect()
    }

    /// Remembers the handle of a topic, or that the topic does not exist.
    pub(super) fn note(&self, topic: &TopicName, handle: Option<&Arc<P>>) {
        let mut handles = self.0.write();
        match handle {
            Some(handle) => handles.insert(topic.clone(), handle.clone()),
            None => handles.remove(topic),
        };
    }
}
