//! How a bus on servers is set up: what NATS and Kafka have in common.
//!
//! [`BrokerOptions`] has the settings that every broker on servers has, reads them from an address and checks them;
//! what only one of them has is its [`BrokerSettings`].

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::address::{Address, Parameters, decoded};

/// Why options for a broker cannot be meant. Never says a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerOptionsError {
    /// A server is not an address.
    #[error("server {0:?} is not HOST or HOST:PORT")]
    Server(String),
    /// The address has the name of the scheme, and no `//` after it.
    #[error("the address begins with {scheme}: and not with {scheme}://: give {scheme}://{}", without_secret(.rest))]
    Scheme {
        /// The scheme.
        scheme: &'static str,
        /// What stands after it.
        rest: String,
    },
    /// No server is named.
    #[error("no server is named: give {0}://HOST:PORT")]
    NoServer(&'static str),
    /// The address has a key that means nothing.
    #[error("{key:?} is not a setting of a {scheme} address: known are {}", known.join(", "))]
    UnknownKey {
        /// The scheme.
        scheme: &'static str,
        /// What was given.
        key: String,
        /// What could have been.
        known: Vec<&'static str>,
    },
    /// The setting has another name.
    #[error("{old} is called {new}: give {new}")]
    Renamed {
        /// What was given.
        old: &'static str,
        /// What it is called.
        new: &'static str,
    },
    /// A value cannot be meant.
    #[error("{key} is {value:?}: give {expected}")]
    Value {
        /// The setting.
        key: &'static str,
        /// What was given.
        value: String,
        /// What is expected.
        expected: String,
    },
    /// A setting is there twice.
    #[error("{0} is given twice: give it once")]
    Twice(&'static str),
    /// A certificate without its key, or a key without its certificate.
    #[error("cert and key are given only together")]
    HalfCertificate,
    /// NATS: two ways of saying who we are.
    #[error("{0} and {1} are both given: a server knows us by one of them")]
    TwoIdentities(&'static str, &'static str),
    /// NATS: two ways of reaching the API.
    #[error("domain and prefix are both given: a domain is a prefix already")]
    DomainAndPrefix,
    /// Kafka: a user without a password.
    #[error("a user is given without a password: give kafka://USER:PASSWORD@HOST")]
    NoPassword,
    /// Kafka: a SASL mechanism without a user.
    #[error("sasl is given without a user: give kafka://USER:PASSWORD@HOST")]
    NoUser,
    /// Kafka: the client was built without OpenSSL.
    #[error("{0} is given, and this build has no OpenSSL: build with the feature kafka-tls")]
    NoOpenSsl(&'static str),
    /// Kafka: the group says how long a member may be silent.
    #[error(
        "session_ms is given with protocol=consumer: with it the broker decides, by group.consumer.session.timeout.ms"
    )]
    SessionOfBroker,
}

/// What stands after the scheme, unless it has a password.
fn without_secret(rest: &str) -> &str {
    if rest.contains('@') {
        "HOST:PORT"
    } else {
        rest.trim_start_matches('/')
    }
}

impl BrokerOptionsError {
    pub(super) fn value(
        key: &'static str,
        value: &(impl ToString + ?Sized),
        expected: impl Into<String>,
    ) -> Self {
        Self::Value {
            key,
            value: value.to_string(),
            expected: expected.into(),
        }
    }
}

/// How connections to a broker are encrypted.
///
/// ```
/// use laneway::{NatsOptions, Tls};
///
/// let tls = Tls::required()
///     .certificate_authority("ca.pem")
///     .client_certificate("client.pem", "client.key");
/// let options = NatsOptions::new(["localhost:4222"]).tls(tls);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "give it to the options of a broker"]
pub struct Tls {
    pub(super) required: bool,
    pub(super) ca: Option<PathBuf>,
    /// The certificate, and its key.
    pub(super) certificate: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// Only an encrypted connection will do.
    pub fn required() -> Self {
        Self {
            required: true,
            ..Self::default()
        }
    }

    /// Trusts the certificates in this file, and no others.
    pub fn certificate_authority(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca = Some(file.into());
        self
    }

    /// Says who we are by a certificate and its key.
    pub fn client_certificate(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.certificate = Some((certificate.into(), key.into()));
        self
    }

    /// A file for TLS asks for TLS, unless `tls` says otherwise.
    fn take(parameters: &mut Parameters) -> Result<Self, BrokerOptionsError> {
        let ca = parameters.take("ca").map(PathBuf::from);
        let certificate = match (parameters.take("cert"), parameters.take("key")) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
            _ => return Err(BrokerOptionsError::HalfCertificate),
        };
        let has_files = ca.is_some() || certificate.is_some();
        let required = parameters.take_parsed("tls", "true or false")?;
        Ok(Self {
            required: required.unwrap_or(has_files),
            ca,
            certificate,
        })
    }
}

/// A user and its password, which is not shown.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) password: String,
}

impl User {
    /// Reads `USER:PASSWORD` as it stands in an address.
    pub(super) fn read(text: &str) -> Option<Self> {
        let (name, password) = text.split_once(':')?;
        Some(Self {
            name: decoded(name),
            password: decoded(password),
        })
    }
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

/// The settings that addresses of all brokers have.
const SHARED_KEYS: [&str; 7] = [
    "ca",
    "cert",
    "key",
    "namespace",
    "replicas",
    "session_ms",
    "tls",
];

/// What settings were called before brokers had one name for one thing.
const RENAMED: [(&str, &str); 3] = [
    ("lease_ms", "session_ms"),
    ("lease_before_ms", "session_before_ms"),
    ("replication", "replicas"),
];

/// What one kind of broker says about its options, and the settings that only it has.
pub trait BrokerSettings: Clone + Default + fmt::Debug + Sized {
    /// What its addresses begin with.
    const SCHEME: &'static str;
    /// The port of a server that is named without one.
    const PORT: u16;
    /// The settings that only its addresses have.
    const KEYS: &'static [&'static str];
    /// How many copies there may be.
    const REPLICAS: RangeInclusive<u8>;
    /// How long a member may be silent, unless it is said.
    const SESSION: Duration;
    /// What may be said.
    const SESSIONS: RangeInclusive<Duration>;
    /// What stands in a namespace besides `a-z` and `0-9`.
    const NAMESPACE_PUNCTUATION: char;

    /// Takes who we are from what stands before an `@`, and what it knows from the parameters.
    ///
    /// # Errors
    /// Naming the setting, and what it could be.
    fn take(
        &mut self,
        user: Option<&str>,
        parameters: &mut Parameters,
    ) -> Result<(), BrokerOptionsError>;

    /// Checks what cannot be wrong in one setting alone.
    ///
    /// # Errors
    /// Naming the setting, and what it could be.
    fn check(options: &BrokerOptions<Self>) -> Result<(), BrokerOptionsError>;
}

/// How a bus on servers is set up: [`NatsOptions`](crate::NatsOptions) and [`KafkaOptions`](crate::KafkaOptions).
/// What the two have in common has the same name in both, and in their addresses.
#[derive(Clone)]
#[must_use = "give it to Bus::builder().open_nats() or open_kafka()"]
pub struct BrokerOptions<B> {
    /// `host:port`, each.
    pub(super) servers: Vec<String>,
    pub(super) tls: Tls,
    pub(super) namespace: Option<String>,
    pub(super) replicas: Option<u8>,
    pub(super) session: Option<Duration>,
    /// What only this kind of broker has.
    pub(super) broker: B,
}

impl<B: BrokerSettings> BrokerOptions<B> {
    /// Options for these servers; the others of a cluster are found through them.
    pub fn new<S: Into<String>>(servers: impl IntoIterator<Item = S>) -> Self {
        Self {
            servers: servers.into_iter().map(Into::into).collect(),
            tls: Tls::default(),
            namespace: None,
            replicas: None,
            session: None,
            broker: B::default(),
        }
    }

    /// Reads an address: `nats://HOST:PORT` or `kafka://HOST:PORT`, more servers after commas, a user and a password
    /// before an `@`, and settings after `?`.
    ///
    /// Settings of both are `namespace`, `replicas`, `session_ms`, `tls` (`true` or `false`), and the files `ca`,
    /// `cert` and `key`. The guides have those that only one of them knows. What is special in an address (`@`, `&`,
    /// `%` and the like) is written as `%` and two hexadecimal digits.
    ///
    /// # Errors
    /// Naming the setting, and what it could be.
    pub fn parse(url: &str) -> Result<Self, BrokerOptionsError> {
        let address = Address::read(url, B::SCHEME, B::PORT)?;
        let mut parameters = Parameters::read(address.query, |key| Self::known_key(key))?;
        let mut options = Self::new(address.servers);
        options.broker.take(address.user, &mut parameters)?;
        options.tls = Tls::take(&mut parameters)?;
        options.namespace = parameters.take("namespace");
        options.replicas = parameters.take_parsed("replicas", &in_range(B::REPLICAS))?;
        options.session = parameters.take_millis("session_ms")?;
        options.check()?;
        Ok(options)
    }

    fn known_key(key: &str) -> Result<&'static str, BrokerOptionsError> {
        let mut known = [&SHARED_KEYS[..], B::KEYS].concat();
        if let Some(known) = known.iter().find(|known| **known == key) {
            return Ok(known);
        }
        let renamed = RENAMED.into_iter().find(|(old, _)| *old == key);
        if let Some((old, new)) = renamed.filter(|(_, new)| known.contains(new)) {
            return Err(BrokerOptionsError::Renamed { old, new });
        }
        known.sort_unstable();
        Err(BrokerOptionsError::UnknownKey {
            scheme: B::SCHEME,
            key: key.to_owned(),
            known,
        })
    }

    /// How connections are encrypted (NATS: only if the server asks for it; Kafka: not at all; unless changed).
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = tls;
        self
    }

    /// What everything of this bus is called by on the servers: buses with different ones know nothing of each other
    /// (NATS: `laneway`; Kafka: none, so that topics are called what they are called; unless changed). 1 to 32 of
    /// `a-z`, `0-9`, and `_` (NATS) or `-` (Kafka).
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// How many servers keep a copy of topics that do not say so themselves, and of what the bus keeps about them
    /// (NATS: 1; Kafka: the default of the cluster; unless changed).
    pub fn replicas(mut self, replicas: u8) -> Self {
        self.replicas = Some(replicas);
        self
    }

    /// How long a member of a group may be silent before others take over its partitions (NATS: 3 s; Kafka: 10 s;
    /// unless changed).
    ///
    /// On NATS all members must say the same: one that says something else is refused when it subscribes. On Kafka
    /// with [`KafkaProtocol::Consumer`](crate::KafkaProtocol::Consumer) the broker says so.
    pub fn session(mut self, session: Duration) -> Self {
        self.session = Some(session);
        self
    }

    /// Checks what cannot be wrong in one setting alone.
    pub(super) fn check(&self) -> Result<(), BrokerOptionsError> {
        if self.servers.is_empty() {
            return Err(BrokerOptionsError::NoServer(B::SCHEME));
        }
        if let Some(namespace) = self.namespace.as_deref()
            && !is_namespace(namespace, B::NAMESPACE_PUNCTUATION)
        {
            let expected = format!("1 to 32 of a-z, 0-9 and {}", B::NAMESPACE_PUNCTUATION);
            return Err(BrokerOptionsError::value("namespace", namespace, expected));
        }
        if let Some(replicas) = self.replicas {
            check_copies("replicas", replicas, B::REPLICAS)?;
        }
        check_session::<B>("session_ms", self.session_or_default())?;
        B::check(self)
    }

    /// How long a member may be silent.
    pub(super) fn session_or_default(&self) -> Duration {
        self.session.unwrap_or(B::SESSION)
    }

    /// The servers, for errors and logs.
    pub(super) fn server_list(&self) -> String {
        self.servers.join(",")
    }
}

/// Checks a number of copies.
pub(super) fn check_copies(
    key: &'static str,
    copies: u8,
    range: RangeInclusive<u8>,
) -> Result<(), BrokerOptionsError> {
    if range.contains(&copies) {
        return Ok(());
    }
    Err(BrokerOptionsError::value(key, &copies, in_range(range)))
}

/// Checks how long a member may be silent.
pub(super) fn check_session<B: BrokerSettings>(
    key: &'static str,
    session: Duration,
) -> Result<(), BrokerOptionsError> {
    if B::SESSIONS.contains(&session) {
        return Ok(());
    }
    let (least, most) = (
        B::SESSIONS.start().as_millis(),
        B::SESSIONS.end().as_millis(),
    );
    let expected = format!("{least} to {most}");
    Err(BrokerOptionsError::value(
        key,
        &session.as_millis(),
        expected,
    ))
}

/// What a number may be.
pub(super) fn in_range(range: RangeInclusive<u8>) -> String {
    match range.into_inner() {
        (least, u8::MAX) => format!("{least} or more"),
        (least, most) => format!("{least} to {most}"),
    }
}

fn is_namespace(name: &str, punctuation: char) -> bool {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == punctuation;
    (1..=32).contains(&name.len()) && name.chars().all(is_part)
}

impl<B: fmt::Debug> fmt::Debug for BrokerOptions<B> {
    /// Without secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrokerOptions")
            .field("servers", &self.servers)
            .field("tls", &self.tls)
            .field("namespace", &self.namespace)
            .field("replicas", &self.replicas)
            .field("session", &self.session)
            .field("broker", &self.broker)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_are_short_and_plain() {
        for good in ["a", "shop_1", &"x".repeat(32)] {
            assert!(is_namespace(good, '_'), "{good}");
        }
        for bad in ["", "a-b", "a.b", "KV_x", "ü", &"x".repeat(33)] {
            assert!(!is_namespace(bad, '_'), "{bad}");
        }
        assert!(is_namespace("a-b", '-') && !is_namespace("a_b", '-'));
    }
}
