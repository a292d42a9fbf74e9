//! Where the topics are that were looked up already.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use crate::topic::TopicName;

/// What a server is known to have.
pub(super) struct Places<P>(RwLock<HashMap<TopicName, Arc<P>>>);

impl<P> Default for Places<P> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<P> Places<P> {
    pub(super) fn get(&self, topic: &TopicName) -> Option<Arc<P>> {
        let places = self.0.read().unwrap_or_else(PoisonError::into_inner);
        places.get(topic).cloned()
    }

    /// Notes where a topic is, or that it is nowhere.
    pub(super) fn note(&self, topic: &TopicName, place: Option<&Arc<P>>) {
        let mut places = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match place {
            Some(place) => places.insert(topic.clone(), place.clone()),
            None => places.remove(topic),
        };
    }
}
