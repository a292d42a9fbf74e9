//! What things are called on the cluster.
//!
//! A topic is called what it is called, so that others find it. Names that Kafka does not take (it knows
//! letters, digits, `.`, `_` and `-`, 249 of them) become a readable beginning and a hash; the catalog
//! says what they stand for.

use xxhash_rust::xxh3::xxh3_128;

use crate::topic::TopicName;

/// The longest name of a topic.
const LONGEST: usize = 249;

/// What is kept of a name that Kafka does not take, before its hash.
const KEPT: usize = 100;

/// The names of one namespace.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// The namespace and a dot, or nothing.
    prefix: String,
}

impl Names {
    pub(super) fn new(namespace: Option<&str>) -> Self {
        Self {
            prefix: namespace.map_or_else(String::new, |name| format!("{name}.")),
        }
    }

    /// What everything of the namespace begins with.
    #[cfg(feature = "doctor")]
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The topic that the bus keeps its books in.
    pub(super) fn catalog(&self) -> String {
        format!("{}laneway.catalog", self.prefix)
    }

    /// What a topic is called on the cluster.
    pub(super) fn topic(&self, topic: &TopicName) -> String {
        let name = topic.as_str();
        let is_taken = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let fits = self.prefix.len() + name.len() <= LONGEST;
        if fits && name.bytes().all(is_taken) && ![".", ".."].contains(&name) {
            return format!("{}{name}", self.prefix);
        }
        let kept: String = name
            .chars()
            .take(KEPT)
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .collect();
        let hash = xxh3_128(name.as_bytes());
        format!("{}laneway-topic-{kept}-{hash:032x}", self.prefix)
    }

    /// What a group that reads a topic is called on the cluster. One for each topic: so a rebalance at
    /// one of them does not touch the others.
    pub(super) fn group(&self, topic: &str, group: &str) -> String {
        let topic = topic.strip_prefix(&self.prefix).unwrap_or(topic);
        format!("{}{group}@{topic}", self.prefix)
    }

    /// The group in the name that [`group`](Self::group) made for a topic.
    pub(super) fn group_of<'a>(&self, name: &'a str, topic: &str) -> Option<&'a str> {
        let topic = topic.strip_prefix(&self.prefix).unwrap_or(topic);
        let rest = name.strip_prefix(&self.prefix)?.strip_suffix(topic)?;
        let group = rest.strip_suffix('@')?;
        (!group.contains('@')).then_some(group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(name: &str) -> TopicName {
        TopicName::new(name).expect("a name")
    }

    #[test]
    fn topics_are_called_what_they_are_called() {
        let names = Names::new(None);
        for name in ["orders", "shop.orders_v2", "orders.dead", "A-b"] {
            assert_eq!(names.topic(&topic(name)), name);
        }
        let shop = Names::new(Some("shop"));
        assert_eq!(shop.topic(&topic("orders")), "shop.orders");
        assert_eq!(shop.catalog(), "shop.laneway.catalog");
    }

    #[test]
    fn names_that_kafka_does_not_take_differ_all_the_same() {
        let names = Names::new(Some("shop"));
        let long = "x".repeat(255);
        let all = ["a/b", "a*b", "a=b", &long, &long[1..], ".."];
        let mut found: Vec<_> = all.iter().map(|name| names.topic(&topic(name))).collect();
        for name in &found {
            assert!(name.len() <= LONGEST && name.starts_with("shop.laneway-topic-"));
        }
        found.dedup();
        assert_eq!(found.len(), all.len());
    }

    #[test]
    fn a_group_is_found_again() {
        for names in [Names::new(None), Names::new(Some("shop"))] {
            let orders = names.topic(&topic("orders"));
            let name = names.group(&orders, "bill.ing");
            assert_eq!(names.group_of(&name, &orders), Some("bill.ing"));
            let other = names.topic(&topic("rders"));
            assert_eq!(names.group_of(&name, &other), None);
        }
        assert_eq!(Names::new(None).group("orders", "g"), "g@orders");
    }
}
