//! Where things are in Redis.

use laneway_cluster::apply::Identity;
use laneway_cluster::record::Instance;

/// The keys of a shard. All of them have the number of the shard as their hash tag, so that a Redis Cluster has them in one slot.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
}

impl Keys {
    pub(crate) fn new(cluster: &str, shard: u32) -> Self {
        let prefix = format!("{}:{{{shard}}}:", escaped(cluster));
        Self { prefix }
    }

    pub(crate) fn of(identity: &Identity) -> Self {
        Self::new(&identity.cluster, identity.shard)
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// How far the copy is, and of what.
    pub(crate) fn meta(&self) -> String {
        format!("{}meta", self.prefix)
    }

    /// Ids with their rows.
    pub(crate) fn row(&self) -> String {
        format!("{}row", self.prefix)
    }

    /// Scheduled ids by the time of the next attempt.
    pub(crate) fn due(&self) -> String {
        format!("{}due", self.prefix)
    }

    /// Ids with the worker that was handed them.
    pub(crate) fn with(&self) -> String {
        format!("{}with", self.prefix)
    }

    /// The workers that were handed something.
    pub(crate) fn workers(&self) -> String {
        format!("{}workers", self.prefix)
    }

    /// What a worker was handed, by due time.
    pub(crate) fn at(&self, worker: Instance) -> String {
        format!("{}at:{}", self.prefix, hexadecimal(&worker.0))
    }
}

/// A brace in the name of a cluster would be taken for a hash tag.
fn escaped(cluster: &str) -> String {
    let mut escaped = String::with_capacity(cluster.len());
    for letter in cluster.chars() {
        match letter {
            '{' => escaped.push_str("%7B"),
            '}' => escaped.push_str("%7D"),
            ':' => escaped.push_str("%3A"),
            '%' => escaped.push_str("%25"),
            letter => escaped.push(letter),
        }
    }
    escaped
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut digits = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a text does not fail.
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

/// A worker by its digits.
pub(crate) fn instance(digits: &str) -> Option<Instance> {
    let mut bytes = [0; 16];
    if digits.len() != 32 || !digits.is_ascii() {
        return None;
    }
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[index * 2..index * 2 + 2], 16).ok()?;
    }
    Some(Instance(bytes))
}

/// Which log it is, as one text.
pub(crate) fn identity(identity: &Identity) -> String {
    let Identity {
        cluster,
        topic,
        shard,
        shards,
    } = identity;
    format!("{shard}/{shards} {topic} {cluster}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_cluster_is_no_hash_tag() {
        assert_eq!(Keys::new("a{}b:c", 3).meta(), "a%7B%7Db%3Ac:{3}:meta");
    }

    #[test]
    fn a_worker_is_read_as_it_was_written() {
        let worker = Instance([
            0, 1, 15, 16, 17, 127, 128, 129, 254, 255, 7, 8, 9, 10, 11, 12,
        ]);
        assert_eq!(instance(&hexadecimal(&worker.0)), Some(worker));
        assert_eq!(instance("é"), None);
        assert_eq!(instance(&"x".repeat(32)), None);
    }
}
