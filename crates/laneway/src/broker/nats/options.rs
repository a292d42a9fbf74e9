//! How a bus on NATS is set up.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::names::Names;

/// Why options for NATS cannot be meant. Never says a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NatsOptionsError {
    /// A server is not an address.
    #[error("server {0:?} is not HOST or HOST:PORT")]
    Server(String),
    /// No server is named.
    #[error("no server is named: give nats://HOST:PORT")]
    NoServer,
    /// The address has a key that means nothing.
    #[error("{key:?} is not a setting of a nats address: known are {}", known.join(", "))]
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
    /// Two ways of saying who we are.
    #[error("{0} and {1} are both given: a server knows us by one of them")]
    TwoIdentities(&'static str, &'static str),
    /// A certificate without its key, or a key without its certificate.
    #[error("cert and key are given only together")]
    HalfCertificate,
    /// Two ways of reaching the API.
    #[error("domain and prefix are both given: a domain is a prefix already")]
    DomainAndPrefix,
}

/// Who we are to the server.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) enum Identity {
    #[default]
    Nobody,
    User {
        name: String,
        password: String,
    },
    Token(String),
    /// A file with the seed of an nkey.
    Nkey(PathBuf),
    /// A file with a token and a seed, as `nsc` makes it.
    Credentials(PathBuf),
}

impl Identity {
    /// The setting that says it.
    pub(super) fn setting(&self) -> Option<&'static str> {
        match self {
            Self::Nobody => None,
            Self::User { .. } => Some("user"),
            Self::Token(_) => Some("token"),
            Self::Nkey(_) => Some("nkey"),
            Self::Credentials(_) => Some("creds"),
        }
    }
}

/// What happens to the connection. See [`NatsOptions::on_connection`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NatsConnection {
    /// There is a connection, the first one or again.
    Connected,
    /// It is gone. It is tried again, at all servers in turn, until there is one.
    Disconnected,
    /// The server, or the connection to it, has something to say.
    Trouble(String),
}

type Callback = Arc<dyn Fn(NatsConnection) + Send + Sync>;

/// How a bus on NATS is set up. Everything but what is done when the connection comes and goes can be
/// said in the [address](NatsOptions::parse), too.
///
/// ```
/// use laneway::NatsOptions;
/// use std::time::Duration;
///
/// let options = NatsOptions::parse("nats://localhost:4222?namespace=shop")?
///     .replicas(3)
///     .lease(Duration::from_secs(3))
///     .on_connection(|event| eprintln!("{event:?}"));
/// # Ok::<(), laneway::NatsOptionsError>(())
/// ```
#[derive(Clone)]
#[must_use = "give it to Bus::builder().open_nats()"]
pub struct NatsOptions {
    /// `host:port`, each.
    pub(super) servers: Vec<String>,
    pub(super) identity: Identity,
    pub(super) tls: bool,
    pub(super) ca: Option<PathBuf>,
    pub(super) certificate: Option<(PathBuf, PathBuf)>,
    pub(super) domain: Option<String>,
    pub(super) prefix: Option<String>,
    pub(super) namespace: String,
    pub(super) replicas: u8,
    pub(super) lease: Duration,
    pub(super) duplicate_window: Duration,
    pub(super) on_connection: Option<Callback>,
}

/// So long a member may be silent before others take over what it has.
const LEASE: Duration = Duration::from_secs(3);
/// For so long the server knows the ids of events it has.
const DUPLICATE_WINDOW: Duration = Duration::from_mins(2);

impl NatsOptions {
    /// Options for these servers; the first that answers is used.
    pub fn new<S: Into<String>>(servers: impl IntoIterator<Item = S>) -> Self {
        Self {
            servers: servers.into_iter().map(Into::into).collect(),
            identity: Identity::default(),
            tls: false,
            ca: None,
            certificate: None,
            domain: None,
            prefix: None,
            namespace: "laneway".to_owned(),
            replicas: 1,
            lease: LEASE,
            duplicate_window: DUPLICATE_WINDOW,
            on_connection: None,
        }
    }

    /// Says who we are by a user and a password.
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        self.identity = Identity::User {
            name: name.into(),
            password: password.into(),
        };
        self
    }

    /// Says who we are by a token.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.identity = Identity::Token(token.into());
        self
    }

    /// Says who we are by an nkey; the file has its seed.
    pub fn nkey(mut self, seed_file: impl Into<PathBuf>) -> Self {
        self.identity = Identity::Nkey(seed_file.into());
        self
    }

    /// Says who we are by a credentials file.
    pub fn credentials(mut self, file: impl Into<PathBuf>) -> Self {
        self.identity = Identity::Credentials(file.into());
        self
    }

    /// Whether only an encrypted connection will do. One to a server that asks for it always is.
    pub fn tls(mut self, required: bool) -> Self {
        self.tls = required;
        self
    }

    /// Trusts the certificates in this file, and no others. Requires TLS.
    pub fn certificate_authority(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca = Some(file.into());
        self.tls = true;
        self
    }

    /// Says who we are by a certificate and its key. Requires TLS.
    pub fn client_certificate(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.certificate = Some((certificate.into(), key.into()));
        self.tls = true;
        self
    }

    /// The `JetStream` domain.
    pub fn domain(mut self, domain: impl Into<String>) -> Self {
        self.domain = Some(domain.into());
        self
    }

    /// What subjects of the `JetStream` API begin with, where an account imports it.
    pub fn api_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// What everything of this bus is called by on the server: buses with different ones know nothing
    /// of each other (`laneway` unless changed). 1 to 32 of `a-z`, `0-9` and `_`.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// How many servers keep a copy of topics that do not say so themselves, and of what groups have
    /// settled (1 unless changed).
    pub fn replicas(mut self, replicas: u8) -> Self {
        self.replicas = replicas;
        self
    }

    /// How long a member of a group may be silent before others take over its partitions (3 s unless
    /// changed). All members must say the same.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// For how long an event that is published again is recognised by its id and kept once (2 minutes
    /// unless changed; zero: never). It counts for topics that are created from now on.
    pub fn duplicate_window(mut self, window: Duration) -> Self {
        self.duplicate_window = window;
        self
    }

    /// Calls this when the connection comes or goes.
    pub fn on_connection(mut self, call: impl Fn(NatsConnection) + Send + Sync + 'static) -> Self {
        self.on_connection = Some(Arc::new(call));
        self
    }

    /// Checks what cannot be wrong in one setting alone.
    pub(super) fn check(&self) -> Result<(), NatsOptionsError> {
        let value = |key, value: String, expected| {
            Err(NatsOptionsError::Value {
                key,
                value,
                expected,
            })
        };
        if self.servers.is_empty() {
            return Err(NatsOptionsError::NoServer);
        }
        if !Names::is_namespace(&self.namespace) {
            let expected = "1 to 32 of a-z, 0-9 and _";
            return value("namespace", self.namespace.clone(), expected);
        }
        if !(1..=5).contains(&self.replicas) {
            return value("replicas", self.replicas.to_string(), "1 to 5");
        }
        if !(SHORTEST_LEASE..=LONGEST_LEASE).contains(&self.lease) {
            let lease = self.lease.as_millis().to_string();
            return value("lease_ms", lease, "100 to 600000");
        }
        if self.domain.is_some() && self.prefix.is_some() {
            return Err(NatsOptionsError::DomainAndPrefix);
        }
        Ok(())
    }

    /// The servers, for errors and logs.
    pub(super) fn server_list(&self) -> String {
        self.servers.join(",")
    }
}

/// A shorter lease would be lost to ordinary delays.
const SHORTEST_LEASE: Duration = Duration::from_millis(100);
const LONGEST_LEASE: Duration = Duration::from_mins(10);

impl fmt::Debug for NatsOptions {
    /// Without secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsOptions")
            .field("servers", &self.servers)
            .field("identity", &self.identity.setting())
            .field("tls", &self.tls)
            .field("namespace", &self.namespace)
            .field("replicas", &self.replicas)
            .field("lease", &self.lease)
            .field("duplicate_window", &self.duplicate_window)
            .finish_non_exhaustive()
    }
}
