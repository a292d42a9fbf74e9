use serde::{Deserialize, Serialize};

/// A server that tests talk to (or, for Chromium and kcat, a program that they drive).
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Service {
    /// Apache Kafka, one broker or three.
    Kafka,
    /// nats-server with `JetStream`, one node or three.
    Nats,
    /// Redis that fsyncs every write.
    Redis,
    /// One `ZooKeeper` server.
    Zookeeper,
    /// nginx with a page of its own; tests start more of them from the same binary.
    Nginx,
    /// A browser for the page tests. Large, so it is fetched only when named.
    Chromium,
    /// A plain client of Kafka for the command line. Fetched only when named.
    Kcat,
}

impl Service {
    /// Everything this module can provide.
    pub(crate) const ALL: [Self; 7] = [
        Self::Kafka,
        Self::Nats,
        Self::Redis,
        Self::Zookeeper,
        Self::Nginx,
        Self::Chromium,
        Self::Kcat,
    ];

    /// The five servers that come up when nothing in particular is asked for.
    pub(crate) const SERVERS: [Self; 5] = [
        Self::Kafka,
        Self::Nats,
        Self::Redis,
        Self::Zookeeper,
        Self::Nginx,
    ];

    /// The name on the command line, in tables and in the state file.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Kafka => "kafka",
            Self::Nats => "nats",
            Self::Redis => "redis",
            Self::Zookeeper => "zookeeper",
            Self::Nginx => "nginx",
            Self::Chromium => "chromium",
            Self::Kcat => "kcat",
        }
    }

    /// The variable that carries the address to the tests, and from the user to us.
    pub(crate) const fn env_var(self) -> &'static str {
        match self {
            Self::Kafka => "LANEWAY_TEST_KAFKA",
            Self::Nats => "LANEWAY_TEST_NATS",
            Self::Redis => "LANEWAY_TEST_REDIS",
            Self::Zookeeper => "LANEWAY_TEST_ZOOKEEPER",
            Self::Nginx => "LANEWAY_TEST_NGINX",
            Self::Chromium => "LANEWAY_TEST_CHROMIUM",
            Self::Kcat => "LANEWAY_TEST_KCAT",
        }
    }

    /// The variable with the path of the program, for those of which tests start (and kill)
    /// instances of their own.
    pub(crate) const fn binary_env_var(self) -> Option<&'static str> {
        match self {
            Self::Kafka => Some("LANEWAY_TEST_KAFKA_BIN"),
            Self::Nats => Some("LANEWAY_TEST_NATS_BIN"),
            Self::Redis => Some("LANEWAY_TEST_REDIS_BIN"),
            Self::Nginx => Some("LANEWAY_TEST_NGINX_BIN"),
            Self::Zookeeper => Some("LANEWAY_TEST_ZOOKEEPER_BIN"),
            Self::Chromium | Self::Kcat => None,
        }
    }
}

impl std::fmt::Display for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
