//! What things are called on the server.
//!
//! A topic name may hold any visible character, dots and wildcards among them. On the server it is
//! one token that holds none: letters, digits, `-` and `_` stand for themselves, everything else is
//! `=` and two hexadecimal digits. So no two topics share a subject, whatever they are called.

use std::fmt::Write;

use xxhash_rust::xxh3::xxh3_128;

use crate::topic::TopicName;

/// Names of streams are names of directories, which are at most 255 bytes long. This leaves room for
/// the namespace.
const LONGEST_TOKEN: usize = 200;

/// What is kept of a token that is too long, before the hash of all of it.
const KEPT: usize = 160;

/// The names of one namespace: several buses can live on one server and know nothing of each other.
#[derive(Clone, Debug)]
pub(super) struct Names {
    namespace: String,
}

impl Names {
    pub(super) fn new(namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
        }
    }

    /// The stream of a topic.
    pub(super) fn stream(&self, topic: &TopicName) -> String {
        format!("{}-{}", self.namespace, token(topic.as_str()))
    }

    /// Whether a stream of this name belongs to the namespace.
    pub(super) fn has_stream(&self, stream: &str) -> bool {
        stream
            .strip_prefix(&self.namespace)
            .is_some_and(|rest| rest.starts_with('-'))
    }

    /// What the subjects of a topic begin with; how many partitions it has, and which one, follow.
    pub(super) fn subject_prefix(&self, topic: &TopicName) -> String {
        format!("{}.{}.", self.namespace, token(topic.as_str()))
    }

    /// The bucket with what groups have settled.
    pub(super) fn groups_bucket(&self) -> String {
        format!("{}-groups", self.namespace)
    }

    /// The bucket in which members of groups say that they are there.
    pub(super) fn members_bucket(&self) -> String {
        format!("{}-members", self.namespace)
    }
}

/// The key of a topic that the server forgets when it restarts.
pub(super) fn topic_key(topic: &TopicName) -> String {
    token(topic.as_str())
}

/// The key of what a group has settled in a partition.
pub(super) fn position_key(topic: &TopicName, group: &str, partition: u32) -> String {
    format!("{}.{}.{partition}", token(topic.as_str()), token(group))
}

/// The key of where a group starts that has no position.
pub(super) fn start_key(topic: &TopicName, group: &str) -> String {
    format!("{}.{}.start", token(topic.as_str()), token(group))
}

/// The key of what was trimmed of a partition. No group is called so: in its token `=` is followed by two digits.
#[cfg(feature = "log")]
pub(super) fn trim_key(topic: &TopicName, partition: u32) -> String {
    format!("{}.=trimmed.{partition}", token(topic.as_str()))
}

/// The key of a member of a group.
pub(super) fn member_key(topic: &TopicName, group: &str, member: &str) -> String {
    format!("{}.{}.{member}", token(topic.as_str()), token(group))
}

/// All members of a group, as a pattern.
pub(super) fn members_of_group(topic: &TopicName, group: &str) -> String {
    member_key(topic, group, "*")
}

/// Everything in a bucket that belongs to a topic, as a pattern.
pub(super) fn all_of_topic(topic: &TopicName) -> String {
    format!("{}.>", token(topic.as_str()))
}

/// A name as one token of a subject, of a key and of the name of a stream.
fn token(name: &str) -> String {
    let mut token = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' {
            token.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(token, "={byte:02X}");
        }
    }
    if token.len() > LONGEST_TOKEN {
        // No shorter token is of this form: in them `=` is followed by two digits.
        token.truncate(KEPT);
        let _ = write!(token, "=={:032x}", xxh3_128(name.as_bytes()));
    }
    token
}

/// Whether a text is a subject that messages can be published to.
pub(super) fn is_subject(text: &str) -> bool {
    text.split('.')
        .all(|token| !token.is_empty() && !token.contains(['*', '>', ' ', '\t', '\r', '\n']))
        && !text.starts_with('$')
}

/// Whether a subject is among those that a pattern names.
#[cfg(feature = "doctor")]
pub(super) fn is_named_by(subject: &str, pattern: &str) -> bool {
    let mut tokens = subject.split('.');
    for wanted in pattern.split('.') {
        match (wanted, tokens.next()) {
            (">", Some(_)) => return true,
            (wanted, Some(token)) if wanted == "*" || wanted == token => {}
            _ => return false,
        }
    }
    tokens.next().is_none()
}

/// Whether a topic can be a foreign stream: it is a subject, or one but for its last
/// token, which is a wildcard.
pub(super) fn may_be_foreign(topic: &str) -> bool {
    let before = topic
        .strip_suffix(".*")
        .or_else(|| topic.strip_suffix(".>"));
    is_subject(before.unwrap_or(topic))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn topic(name: &str) -> TopicName {
        TopicName::new(name).expect("a name")
    }

    #[test]
    fn plain_names_are_readable() {
        let names = Names::new("laneway");
        let orders = topic("shop.orders");
        assert_eq!(names.stream(&orders), "laneway-shop=2Eorders");
        assert_eq!(names.subject_prefix(&orders), "laneway.shop=2Eorders.");
        assert_eq!(
            position_key(&orders, "billing", 7),
            "shop=2Eorders.billing.7"
        );
        assert!(names.has_stream("laneway-x") && !names.has_stream("laneway2-x"));
    }

    #[test]
    fn patterns_name_subjects() {
        for (pattern, subject) in [
            ("*", "a"),
            (">", "a.b"),
            ("a.>", "a.b.c"),
            ("a.*.c", "a.b.c"),
        ] {
            assert!(is_named_by(subject, pattern), "{pattern} {subject}");
        }
        for (pattern, subject) in [
            ("*", "a.b"),
            ("a.>", "a"),
            ("a.*", "b.a"),
            ("a", "a.b"),
            ("a.b", "a"),
        ] {
            assert!(!is_named_by(subject, pattern), "{pattern} {subject}");
        }
    }

    #[test]
    fn only_plain_subjects_can_be_published_to() {
        assert!(is_subject("orders") && is_subject("shop.orders"));
        for name in ["a.*", ">", "a..b", ".a", "$JS.API", "a*b", "a b", ""] {
            assert!(!is_subject(name), "{name}");
        }
        for name in ["orders", "shop.orders", "orders.*", "shop.>"] {
            assert!(may_be_foreign(name), "{name}");
        }
        for name in [">", "*", "a.*.>", "*.a", "$KV.x.>"] {
            assert!(!may_be_foreign(name), "{name}");
        }
    }

    proptest! {
        #[test]
        fn tokens_are_safe_short_and_tell_names_apart(
            names in prop::collection::hash_set("[!-~]{1,255}", 2..20)
        ) {
            let mut seen = HashMap::new();
            for name in names {
                let token = token(&name);
                prop_assert!(token.len() <= LONGEST_TOKEN);
                let safe = |c: char| c.is_ascii_alphanumeric() || "-_=".contains(c);
                prop_assert!(token.chars().all(safe), "{}", token);
                let before = seen.insert(token, name.clone());
                prop_assert_eq!(before, None, "as {}", name);
            }
        }
    }
}
