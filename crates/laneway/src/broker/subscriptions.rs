//! One subscription per topic and group in this process.
//!
//! The bus has a [`Subscriptions`] for its own error (`AlreadySubscribed`, said before the broker is asked), and
//! every broker has one, so that two buses over one broker, or a member that is still leaving, cannot both read
//! for a group.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::topic::TopicName;

type Key = (TopicName, String);

/// The topics and groups that are read now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Subscriptions(Arc<Mutex<HashSet<Key>>>);

/// Keeps others from subscribing to the same topic in the same group, until it is dropped.
#[derive(Debug)]
pub(crate) struct SubscriptionGuard {
    subscriptions: Subscriptions,
    key: Key,
}

impl Subscriptions {
    /// A guard for the topic and the group; `None` if there is one already.
    pub(crate) fn acquire(&self, topic: &TopicName, group: &str) -> Option<SubscriptionGuard> {
        let key = (topic.clone(), group.to_owned());
        let is_new = self.0.lock().insert(key.clone());
        is_new.then(|| SubscriptionGuard {
            subscriptions: self.clone(),
            key,
        })
    }

    /// A group that reads the topic.
    pub(crate) fn group_reading(&self, topic: &TopicName) -> Option<String> {
        let keys = self.0.lock();
        let (_, group) = keys.iter().find(|(read, _)| read == topic)?;
        Some(group.clone())
    }
}

impl Drop for SubscriptionGuard {
    fn drop(&mut self) {
        self.subscriptions.0.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_reads_a_topic_once_until_its_guard_is_dropped() {
        let subscriptions = Subscriptions::default();
        let orders = TopicName::new("orders").expect("a name");
        let guard = subscriptions.acquire(&orders, "a");
        assert!(guard.is_some() && subscriptions.acquire(&orders, "a").is_none());
        assert!(
            subscriptions.acquire(&orders, "b").is_some(),
            "another group"
        );
        assert_eq!(subscriptions.group_reading(&orders).as_deref(), Some("a"));
        drop(guard);
        assert_eq!(subscriptions.group_reading(&orders), None);
        assert!(subscriptions.acquire(&orders, "a").is_some());
    }
}
