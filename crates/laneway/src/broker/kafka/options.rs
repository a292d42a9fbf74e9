//! The settings that only Kafka has.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::broker::address::Parameters;
use crate::broker::options::{
    BrokerOptions, BrokerOptionsError, BrokerSettings, User, check_copies, in_range,
};
use crate::topic::Compression;

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

/// How a bus on Kafka is set up. Everything can be said in the [address](BrokerOptions::parse), too:
/// `kafka://user:password@one:9092,two:9092?namespace=shop&replicas=3`. Besides what [`BrokerOptions`] has, it may
/// have `min_in_sync`, `protocol` (`classic` or `consumer`), `instance`, `compression` (`none`, `lz4` or `zstd`),
/// `linger_ms`, `max_message` and `sasl` (`plain`, `scram-sha-256` or `scram-sha-512`).
///
/// ```
/// use laneway::{KafkaOptions, KafkaProtocol};
///
/// let options = KafkaOptions::parse("kafka://one:9092,two:9092?namespace=shop")?
///     .replicas(3)
///     .min_in_sync(2)
///     .protocol(KafkaProtocol::Consumer);
/// # Ok::<(), laneway::BrokerOptionsError>(())
/// ```
pub type KafkaOptions = BrokerOptions<KafkaSettings>;

/// What only [`KafkaOptions`] have.
#[derive(Clone, Debug)]
pub struct KafkaSettings {
    pub(super) user: Option<User>,
    pub(super) sasl: KafkaSasl,
    pub(super) min_in_sync: Option<u8>,
    pub(super) protocol: KafkaProtocol,
    pub(super) instance: Option<String>,
    pub(super) compression: Compression,
    pub(super) linger: Duration,
    pub(super) max_message: u32,
}

/// So long a record waits for others to be sent together with.
const LINGER: Duration = Duration::from_millis(1);
/// The largest record.
const MAX_MESSAGE: u32 = 8 << 20;

pub(super) const LONGEST_LINGER: Duration = Duration::from_secs(1);

impl Default for KafkaSettings {
    fn default() -> Self {
        Self {
            user: None,
            sasl: KafkaSasl::default(),
            min_in_sync: None,
            protocol: KafkaProtocol::default(),
            instance: None,
            compression: Compression::Lz4,
            linger: LINGER,
            max_message: MAX_MESSAGE,
        }
    }
}

impl KafkaOptions {
    /// Says who we are by a user and a password.
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        self.broker.user = Some(User {
            name: name.into(),
            password: password.into(),
        });
        self
    }

    /// How the user proves it (SCRAM-SHA-512 unless changed).
    pub fn sasl(mut self, sasl: KafkaSasl) -> Self {
        self.broker.sasl = sasl;
        self
    }

    /// How many copies of a new topic must have a record before it is published (the default of the
    /// cluster unless set).
    pub fn min_in_sync(mut self, copies: u8) -> Self {
        self.broker.min_in_sync = Some(copies);
        self
    }

    /// How members of a group agree on who has what.
    pub fn protocol(mut self, protocol: KafkaProtocol) -> Self {
        self.broker.protocol = protocol;
        self
    }

    /// The name of this process in its groups, each process its own: one that restarts within the
    /// session time-out gets back what it had, without a rebalance.
    pub fn instance(mut self, instance: impl Into<String>) -> Self {
        self.broker.instance = Some(instance.into());
        self
    }

    /// How records are compressed on their way (LZ4 unless changed).
    pub fn compression(mut self, compression: Compression) -> Self {
        self.broker.compression = compression;
        self
    }

    /// How long a record waits for others to be sent together with (1 ms unless changed).
    pub fn linger(mut self, linger: Duration) -> Self {
        self.broker.linger = linger;
        self
    }

    /// The largest record in bytes, here and of topics that are created from now on (8 MiB unless
    /// changed).
    pub fn max_message(mut self, bytes: u32) -> Self {
        self.broker.max_message = bytes;
        self
    }
}

impl BrokerSettings for KafkaSettings {
    const SCHEME: &'static str = "kafka";
    const PORT: u16 = 9092;
    const KEYS: &'static [&'static str] = &[
        "compression",
        "instance",
        "linger_ms",
        "max_message",
        "min_in_sync",
        "protocol",
        "sasl",
    ];
    const REPLICAS: RangeInclusive<u8> = 1..=u8::MAX;
    const SESSION: Duration = Duration::from_secs(10);
    const SESSIONS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_mins(30);
    const NAMESPACE_PUNCTUATION: char = '-';

    fn take(
        &mut self,
        user: Option<&str>,
        parameters: &mut Parameters,
    ) -> Result<(), BrokerOptionsError> {
        let read = |user| User::read(user).ok_or(BrokerOptionsError::NoPassword);
        self.user = user.map(read).transpose()?;
        let mechanisms = [
            ("plain", KafkaSasl::Plain),
            ("scram-sha-256", KafkaSasl::ScramSha256),
            ("scram-sha-512", KafkaSasl::ScramSha512),
        ];
        let expected = "plain, scram-sha-256 or scram-sha-512";
        if let Some(sasl) = parameters.take_word("sasl", &mechanisms, expected)? {
            if self.user.is_none() {
                return Err(BrokerOptionsError::NoUser);
            }
            self.sasl = sasl;
        }
        let protocols = [
            ("classic", KafkaProtocol::Classic),
            ("consumer", KafkaProtocol::Consumer),
        ];
        let protocol = parameters.take_word("protocol", &protocols, "classic or consumer")?;
        self.protocol = protocol.unwrap_or(self.protocol);
        let compressions = [
            ("none", Compression::None),
            ("lz4", Compression::Lz4),
            ("zstd", Compression::Zstd),
        ];
        let compression = parameters.take_word("compression", &compressions, COMPRESSIONS)?;
        self.compression = compression.unwrap_or(self.compression);
        self.instance = parameters.take("instance");
        self.min_in_sync = parameters.take_parsed("min_in_sync", &in_range(Self::REPLICAS))?;
        let linger = parameters.take_millis("linger_ms")?;
        self.linger = linger.unwrap_or(self.linger);
        let bytes = parameters.take_parsed("max_message", "a number of bytes")?;
        self.max_message = bytes.unwrap_or(self.max_message);
        Ok(())
    }

    fn check(options: &KafkaOptions) -> Result<(), BrokerOptionsError> {
        let kafka = &options.broker;
        if let Some(copies) = kafka.min_in_sync {
            check_copies("min_in_sync", copies, Self::REPLICAS)?;
        }
        if options.session.is_some() && kafka.protocol == KafkaProtocol::Consumer {
            return Err(BrokerOptionsError::SessionOfBroker);
        }
        if !cfg!(feature = "kafka-tls") {
            if options.tls.required {
                return Err(BrokerOptionsError::NoOpenSsl("tls"));
            }
            if kafka.user.is_some() && kafka.sasl != KafkaSasl::Plain {
                return Err(BrokerOptionsError::NoOpenSsl("a user for SCRAM"));
            }
        }
        if kafka.linger > LONGEST_LINGER {
            let linger = kafka.linger.as_millis();
            return Err(BrokerOptionsError::value("linger_ms", &linger, "0 to 1000"));
        }
        if !(1024..=1_000_000_000).contains(&kafka.max_message) {
            let bytes = kafka.max_message;
            return Err(BrokerOptionsError::value(
                "max_message",
                &bytes,
                "1024 to 1000000000",
            ));
        }
        if kafka.compression == Compression::S2 {
            return Err(BrokerOptionsError::value("compression", "s2", COMPRESSIONS));
        }
        Ok(())
    }
}

const COMPRESSIONS: &str = "none, lz4 or zstd";

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> KafkaOptions {
        KafkaOptions::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    #[test]
    fn servers_are_read() {
        let list = |url| parse(url).servers.join(" ");
        assert_eq!(list("kafka://localhost"), "localhost:9092");
        assert_eq!(list("kafka://a:1,b:2/"), "a:1 b:2");
        assert_eq!(list("kafka://[::1]:99,[::2]"), "[::1]:99 [::2]:9092");
    }

    #[test]
    fn settings_are_read() {
        let options = parse(
            "kafka://a?namespace=t-1&replicas=3&min_in_sync=2&session_ms=6000&instance=i\
             &compression=zstd&linger_ms=0&max_message=2000&tls=false",
        );
        assert_eq!(options.namespace.as_deref(), Some("t-1"));
        assert_eq!(
            (options.replicas, options.broker.min_in_sync),
            (Some(3), Some(2))
        );
        assert_eq!(options.session_or_default(), Duration::from_secs(6));
        assert_eq!(options.broker.instance.as_deref(), Some("i"));
        assert_eq!(options.broker.compression, Compression::Zstd);
        assert_eq!(
            (options.broker.linger, options.broker.max_message),
            (Duration::ZERO, 2000)
        );
        assert!(!options.tls.required);
        let options = parse("kafka://u%40x:p%3A%26@a?sasl=plain&protocol=consumer");
        let user = options.broker.user.as_ref().expect("a user");
        assert_eq!((user.name.as_str(), user.password.as_str()), ("u@x", "p:&"));
        assert_eq!(options.broker.sasl, KafkaSasl::Plain);
        assert_eq!(options.broker.protocol, KafkaProtocol::Consumer);
        assert!(!format!("{options:?}").contains("p:&"));
    }

    #[test]
    #[cfg(feature = "kafka-tls")]
    fn a_certificate_is_of_use_only_with_tls() {
        let options = parse("kafka://a?ca=x.pem&cert=c.pem&key=k.pem");
        assert!(options.tls.required);
        assert_eq!(options.tls.ca, Some("x.pem".into()));
        assert_eq!(
            options.tls.certificate,
            Some(("c.pem".into(), "k.pem".into()))
        );
    }

    #[test]
    #[cfg(not(feature = "kafka-tls"))]
    fn what_this_build_cannot_do_is_told() {
        for url in ["kafka://a?tls=true", "kafka://a?ca=x", "kafka://u:p@a"] {
            let error = KafkaOptions::parse(url).expect_err(url).to_string();
            assert!(error.contains("feature kafka-tls"), "{error}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_named() {
        for (url, expected) in [
            ("kafka://", "no server is named"),
            ("kafka:localhost:9092", "give kafka://localhost:9092"),
            ("kafka:u:s3cret@a", "give kafka://HOST:PORT"),
            ("kafka://a:x", "server \"a:x\" is not HOST"),
            ("kafka://u@a", "without a password"),
            ("kafka://a?sasl=plain", "without a user"),
            ("kafka://u:p@a?sasl=md5", "sasl is \"md5\": give plain"),
            ("kafka://a?session=1", "\"session\" is not a setting"),
            ("kafka://a?session=1", "session_ms"),
            (
                "kafka://a?session_ms=x",
                "session_ms is \"x\": give a number",
            ),
            (
                "kafka://a?session_ms=1",
                "session_ms is \"1\": give 1000 to",
            ),
            (
                "kafka://a?session_ms=6000&protocol=consumer",
                "broker decides",
            ),
            ("kafka://a?replicas=0", "replicas is \"0\": give 1"),
            ("kafka://a?replication=3", "replication is called replicas"),
            ("kafka://a?lease_ms=3000", "lease_ms is called session_ms"),
            ("kafka://a?lease_before_ms=1", "is not a setting of a kafka"),
            (
                "kafka://a?protocol=raft",
                "protocol is \"raft\": give classic",
            ),
            (
                "kafka://a?compression=s2",
                "compression is \"s2\": give none",
            ),
            ("kafka://a?linger_ms=2000", "linger_ms is \"2000\": give 0"),
            ("kafka://a?max_message=1", "max_message is \"1\": give 1024"),
            ("kafka://a?namespace=A.b", "namespace is \"A.b\""),
            ("kafka://a?tls=yes", "tls is \"yes\": give true or false"),
            ("kafka://a?ca=1&ca=2", "ca is given twice"),
            ("kafka://a?cert=1", "cert and key"),
        ] {
            let error = KafkaOptions::parse(url).expect_err(url).to_string();
            assert!(error.contains(expected), "{url}: {error}");
        }
    }
}
