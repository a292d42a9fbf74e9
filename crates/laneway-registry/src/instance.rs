//! What is registered.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// What an instance does in the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Takes submits, changes and look-ups over HTTP.
    Receive,
    /// Serves the management API.
    Admin,
    /// Owns shards and decides.
    Center,
    /// Delivers what is due.
    Worker,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 4] = [Self::Receive, Self::Admin, Self::Center, Self::Worker];

    /// The role as it is written in paths, settings and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Receive => "receive",
            Self::Admin => "admin",
            Self::Center => "center",
            Self::Worker => "worker",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which start of which process it is. Drawn anew at every start, so that a worker that comes back is not taken for
/// the one that died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InstanceId(Uuid);

impl InstanceId {
    /// A new one.
    #[must_use]
    pub fn draw() -> Self {
        Self(Uuid::now_v7())
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for InstanceId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, uuid::Error> {
        Uuid::parse_str(text).map(Self)
    }
}

/// How loaded an instance is, as it says itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Load {
    /// Messages that it holds.
    pub held: u64,
    /// The share of its processors that is used, from 0 to 1.
    pub cpu: f64,
    /// The share of its memory that is used, from 0 to 1.
    pub memory: f64,
}

/// An instance of the service. Fields that a later version adds are passed over by this one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Instance {
    /// Which start of which process.
    pub id: InstanceId,
    /// What it does.
    pub role: Role,
    /// For people; need not be unique.
    pub name: String,
    /// Where it is reached.
    pub address: String,
    /// The version of the program.
    pub version: String,
    /// How much of the work it should get, compared with others.
    pub weight: u32,
    /// How loaded it is.
    #[serde(default)]
    pub load: Load,
}

impl Instance {
    /// An instance with a new id, the version of this build and a weight of 1.
    #[must_use]
    pub fn new(role: Role, name: impl Into<String>, address: impl Into<String>) -> Self {
        Self {
            id: InstanceId::draw(),
            role,
            name: name.into(),
            address: address.into(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            weight: 1,
            load: Load::default(),
        }
    }

    /// The same with a weight.
    #[must_use]
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The instance in an entry, if it is one of this role and id. Anything can be written into a registry by other programs.
    pub(crate) fn decode(role: Role, id: InstanceId, bytes: &[u8]) -> Option<Self> {
        match serde_json::from_slice::<Self>(bytes) {
            Ok(instance) if (instance.role, instance.id) == (role, id) => Some(instance),
            Ok(_) => {
                tracing::warn!(%role, %id, "skipping a registry entry about another instance");
                None
            }
            Err(error) => {
                tracing::warn!(%role, %id, %error, "skipping an unreadable registry entry");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_reads_back_and_later_fields_are_passed_over() {
        let instance = Instance::new(Role::Worker, "a", "127.0.0.1:1").weight(3);
        let bytes = instance.encode();
        let read = Instance::decode(Role::Worker, instance.id, &bytes);
        assert_eq!(read.as_ref(), Some(&instance));
        let later = String::from_utf8(bytes)
            .unwrap()
            .replacen('{', "{\"zone\":\"b\",", 1);
        let read = Instance::decode(Role::Worker, instance.id, later.as_bytes());
        assert_eq!(read, Some(instance));
    }

    #[test]
    fn entries_that_are_none_are_passed_over() {
        let instance = Instance::new(Role::Worker, "a", "127.0.0.1:1");
        for bytes in [&b""[..], b"null", b"{}", b"\xff\xfe", b"[1,2]"] {
            assert_eq!(Instance::decode(Role::Worker, instance.id, bytes), None);
        }
        let bytes = instance.encode();
        assert_eq!(Instance::decode(Role::Center, instance.id, &bytes), None);
        assert_eq!(
            Instance::decode(Role::Worker, InstanceId::draw(), &bytes),
            None
        );
    }
}
