//! How a bus on Kafka is set up.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::names::Names;
use crate::topic::Compression;

/// Why options for Kafka cannot be meant. Never says a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KafkaOptionsError {
    /// A server is not an address.
    #[error("server {0:?} is not HOST or HOST:PORT")]
    Server(String),
    /// No server is named.
    #[error("no server is named: give kafka://HOST:PORT")]
    NoServer,
    /// The address has a key that means nothing.
    #[error("{key:?} is not a setting of a kafka address: known are {}", known.join(", "))]
    UnknownKey {
        /// What was given.
        key: String,
        /// What could have been.
        known: &'static [&'static str],
    },
    /// A value cannot be meant.
    #[error("{key} is {value:?}: give {expected}")]
    Value {
        /// The setting.
        key: &'static str,
        /// What was given.
        value: String,
        /// What is expected.
        expected: &'static str,
    },
    /// A setting is there twice.
    #[error("{0} is given twice: give it once")]
    Twice(&'static str),
    /// A user without a password.
    #[error("a user is given without a password: give kafka://USER:PASSWORD@HOST")]
    NoPassword,
    /// A way to say who we are, and nobody that we are.
    #[error("sasl is given without a user: give kafka://USER:PASSWORD@HOST")]
    NoUser,
    /// A certificate without its key, or a key without its certificate.
    #[error("cert and key are given only together")]
    HalfCertificate,
    /// The client was built without OpenSSL.
    #[error("{0} is given, and this build has no OpenSSL: build with the feature kafka-tls")]
    NoOpenSsl(&'static str),
    /// The group says how long a member may be silent.
    #[error(
        "session_ms is given with protocol=consumer: with it the broker decides, by group.consumer.session.timeout.ms"
    )]
    SessionOfBroker,
}

/// How a user proves who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum KafkaSasl {
    /// By the password itself: only over TLS.
    Plain,
    /// By SCRAM-SHA-256.
    ScramSha256,
    /// By SCRAM-SHA-512.
    #[default]
    ScramSha512,
}

impl KafkaSasl {
    pub(super) fn mechanism(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

/// How the members of a group agree on who has what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum KafkaProtocol {
    /// Among themselves, cooperatively: what stays with its owner goes on while the rest is moved.
    #[default]
    Classic,
    /// The broker decides (KIP-848, Kafka 4.0 and later).
    Consumer,
}

/// Who we are to the brokers.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) password: String,
}

/// How a bus on Kafka is set up. Everything can be said in the [address](KafkaOptions::parse), too.
///
/// ```
/// use laneway::{KafkaOptions, KafkaProtocol};
/// use std::time::Duration;
///
/// let options = KafkaOptions::parse("kafka://one:9092,two:9092?namespace=shop")?
///     .replication(3)
///     .min_in_sync(2)
///     .protocol(KafkaProtocol::Consumer);
/// # Ok::<(), laneway::KafkaOptionsError>(())
/// ```
#[derive(Clone)]
#[must_use = "give it to Bus::builder().open_kafka()"]
pub struct KafkaOptions {
    /// `host:port`, each.
    pub(super) servers: Vec<String>,
    pub(super) user: Option<User>,
    pub(super) sasl: KafkaSasl,
    pub(super) tls: bool,
    pub(super) ca: Option<PathBuf>,
    pub(super) certificate: Option<(PathBuf, PathBuf)>,
    pub(super) namespace: Option<String>,
    pub(super) replication: Option<u8>,
    pub(super) min_in_sync: Option<u8>,
    pub(super) protocol: KafkaProtocol,
    pub(super) session: Option<Duration>,
    pub(super) instance: Option<String>,
    pub(super) compression: Compression,
    pub(super) linger: Duration,
    pub(super) max_message: u32,
}

/// So long a member may be silent before others take over what it has.
const SESSION: Duration = Duration::from_secs(10);
/// So long a record waits for others to be sent together with.
const LINGER: Duration = Duration::from_millis(1);
/// The largest record.
const MAX_MESSAGE: u32 = 8 << 20;

const SHORTEST_SESSION: Duration = Duration::from_secs(1);
const LONGEST_SESSION: Duration = Duration::from_mins(30);
const LONGEST_LINGER: Duration = Duration::from_secs(1);

impl KafkaOptions {
    /// Options for these brokers; the others of the cluster are found through them.
    pub fn new<S: Into<String>>(servers: impl IntoIterator<Item = S>) -> Self {
        Self {
            servers: servers.into_iter().map(Into::into).collect(),
            user: None,
            sasl: KafkaSasl::default(),
            tls: false,
            ca: None,
            certificate: None,
            namespace: None,
            replication: None,
            min_in_sync: None,
            protocol: KafkaProtocol::default(),
            session: None,
            instance: None,
            compression: Compression::Lz4,
            linger: LINGER,
            max_message: MAX_MESSAGE,
        }
    }

    /// Says who we are by a user and a password.
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        self.user = Some(User {
            name: name.into(),
            password: password.into(),
        });
        self
    }

    /// How the user proves it (SCRAM-SHA-512 unless changed).
    pub fn sasl(mut self, sasl: KafkaSasl) -> Self {
        self.sasl = sasl;
        self
    }

    /// Whether connections are encrypted.
    pub fn tls(mut self, tls: bool) -> Self {
        self.tls = tls;
        self
    }

    /// Trusts the certificates in this file, and no others. Turns TLS on.
    pub fn certificate_authority(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca = Some(file.into());
        self.tls = true;
        self
    }

    /// Says who we are by a certificate and its key. Turns TLS on.
    pub fn client_certificate(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.certificate = Some((certificate.into(), key.into()));
        self.tls = true;
        self
    }

    /// What the topics and groups of this bus begin with on the cluster, and a dot: buses with
    /// different ones know nothing of each other. Without one, topics are called what they are called.
    /// 1 to 32 of `a-z`, `0-9` and `-`.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// How many brokers keep a copy of topics that do not say so themselves, and of what the bus keeps
    /// about them (the default of the cluster unless set).
    pub fn replication(mut self, copies: u8) -> Self {
        self.replication = Some(copies);
        self
    }

    /// How many copies of a new topic must have a record before it is published (the default of the
    /// cluster unless set).
    pub fn min_in_sync(mut self, copies: u8) -> Self {
        self.min_in_sync = Some(copies);
        self
    }

    /// How members of a group agree on who has what.
    pub fn protocol(mut self, protocol: KafkaProtocol) -> Self {
        self.protocol = protocol;
        self
    }

    /// How long a member of a group may be silent before others take over its partitions (10 s unless
    /// changed). With [`KafkaProtocol::Consumer`] the broker says so.
    pub fn session(mut self, session: Duration) -> Self {
        self.session = Some(session);
        self
    }

    /// The name of this process in its groups, each process its own: one that restarts within the
    /// session time-out gets back what it had, and nobody else is disturbed.
    pub fn instance(mut self, instance: impl Into<String>) -> Self {
        self.instance = Some(instance.into());
        self
    }

    /// How records are compressed on their way (LZ4 unless changed).
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// How long a record waits for others to be sent together with (1 ms unless changed).
    pub fn linger(mut self, linger: Duration) -> Self {
        self.linger = linger;
        self
    }

    /// The largest record in bytes, here and of topics that are created from now on (8 MiB unless
    /// changed).
    pub fn max_message(mut self, bytes: u32) -> Self {
        self.max_message = bytes;
        self
    }

    /// Checks what cannot be wrong in one setting alone.
    pub(super) fn check(&self) -> Result<(), KafkaOptionsError> {
        let value = |key, value: String, expected| {
            Err(KafkaOptionsError::Value {
                key,
                value,
                expected,
            })
        };
        if self.servers.is_empty() {
            return Err(KafkaOptionsError::NoServer);
        }
        if let Some(namespace) = &self.namespace
            && !Names::is_namespace(namespace)
        {
            let expected = "1 to 32 of a-z, 0-9 and -";
            return value("namespace", namespace.clone(), expected);
        }
        for (key, copies) in [
            ("replication", self.replication),
            ("min_in_sync", self.min_in_sync),
        ] {
            if copies == Some(0) {
                return value(key, "0".to_owned(), "1 or more");
            }
        }
        if let Some(session) = self.session {
            if self.protocol == KafkaProtocol::Consumer {
                return Err(KafkaOptionsError::SessionOfBroker);
            }
            if !(SHORTEST_SESSION..=LONGEST_SESSION).contains(&session) {
                let session = session.as_millis().to_string();
                return value("session_ms", session, "1000 to 1800000");
            }
        }
        if !cfg!(feature = "kafka-tls") {
            if self.tls {
                return Err(KafkaOptionsError::NoOpenSsl("tls"));
            }
            if self.user.is_some() && self.sasl != KafkaSasl::Plain {
                return Err(KafkaOptionsError::NoOpenSsl("a user for SCRAM"));
            }
        }
        if self.linger > LONGEST_LINGER {
            let linger = self.linger.as_millis().to_string();
            return value("linger_ms", linger, "0 to 1000");
        }
        if !(1024..=1_000_000_000).contains(&self.max_message) {
            let bytes = self.max_message.to_string();
            return value("max_message", bytes, "1024 to 1000000000");
        }
        if self.compression == Compression::S2 {
            let expected = "none, lz4 or zstd";
            return value("compression", "s2".to_owned(), expected);
        }
        Ok(())
    }

    /// How long a member may be silent, where we decide it.
    pub(super) fn session_or_default(&self) -> Duration {
        self.session.unwrap_or(SESSION)
    }

    /// The servers, for errors and logs.
    pub(super) fn server_list(&self) -> String {
        self.servers.join(",")
    }
}

impl fmt::Debug for KafkaOptions {
    /// Without secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaOptions")
            .field("servers", &self.servers)
            .field("user", &self.user.as_ref().map(|user| &user.name))
            .field("tls", &self.tls)
            .field("namespace", &self.namespace)
            .field("replication", &self.replication)
            .field("protocol", &self.protocol)
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}
