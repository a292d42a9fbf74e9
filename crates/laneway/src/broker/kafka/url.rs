//! Addresses such as `kafka://user:password@one:9092,two:9092?namespace=shop&replication=3`.

use std::path::PathBuf;
use std::time::Duration;

use super::options::{KafkaOptions, KafkaOptionsError, KafkaProtocol, KafkaSasl, User};
use crate::broker::address::{Address, AddressError, Settings, decoded};
use crate::topic::Compression;

const SCHEME: &str = "kafka://";
const PORT: u16 = 9092;

/// The settings that an address may have.
const KEYS: &[&str] = &[
    "ca",
    "cert",
    "compression",
    "instance",
    "key",
    "linger_ms",
    "max_message",
    "min_in_sync",
    "namespace",
    "protocol",
    "replication",
    "sasl",
    "session_ms",
    "tls",
];

impl KafkaOptions {
    /// Reads an address: `kafka://HOST:PORT`, more of them after commas, and settings after `?`.
    ///
    /// Before an `@` stands a user and a password. Settings are `namespace`, `replication`,
    /// `min_in_sync`, `protocol` (`classic` or `consumer`), `session_ms`, `instance`, `compression`
    /// (`none`, `lz4` or `zstd`), `linger_ms`, `max_message`, `sasl` (`plain`, `scram-sha-256` or
    /// `scram-sha-512`), `tls` (`true` or `false`), and the files `ca`, `cert` and `key`. What is
    /// special in an address (`@`, `&`, `%` and the like) is written as `%` and two hexadecimal digits.
    ///
    /// # Errors
    /// Naming the setting, and what it could be.
    pub fn parse(url: &str) -> Result<Self, KafkaOptionsError> {
        let mut address = Address::read(url, SCHEME, PORT, KEYS)?;
        let mut options = Self::new(address.servers);
        options.user = address.user.map(user).transpose()?;
        apply(&mut address.settings, &mut options)?;
        options.check()?;
        Ok(options)
    }
}

impl From<AddressError> for KafkaOptionsError {
    fn from(error: AddressError) -> Self {
        match error {
            AddressError::Server(server) => Self::Server(server),
            AddressError::UnknownKey(key) => Self::UnknownKey { key, known: KEYS },
            AddressError::Value {
                key,
                value,
                expected,
            } => Self::Value {
                key,
                value,
                expected,
            },
            AddressError::Twice(key) => Self::Twice(key),
        }
    }
}

fn user(text: &str) -> Result<User, KafkaOptionsError> {
    let (name, password) = text.split_once(':').ok_or(KafkaOptionsError::NoPassword)?;
    Ok(User {
        name: decoded(name),
        password: decoded(password),
    })
}

/// Takes a setting that is one of a few words.
fn take_word<T: Copy>(
    settings: &mut Settings,
    key: &'static str,
    words: &[(&str, T)],
    expected: &'static str,
) -> Result<Option<T>, KafkaOptionsError> {
    let Some(value) = settings.take(key) else {
        return Ok(None);
    };
    match words.iter().find(|(word, _)| *word == value) {
        Some((_, meant)) => Ok(Some(*meant)),
        None => Err(KafkaOptionsError::Value {
            key,
            value,
            expected,
        }),
    }
}

fn apply(settings: &mut Settings, options: &mut KafkaOptions) -> Result<(), KafkaOptionsError> {
    let mechanisms = [
        ("plain", KafkaSasl::Plain),
        ("scram-sha-256", KafkaSasl::ScramSha256),
        ("scram-sha-512", KafkaSasl::ScramSha512),
    ];
    let expected = "plain, scram-sha-256 or scram-sha-512";
    if let Some(sasl) = take_word(settings, "sasl", &mechanisms, expected)? {
        if options.user.is_none() {
            return Err(KafkaOptionsError::NoUser);
        }
        options.sasl = sasl;
    }
    let protocols = [
        ("classic", KafkaProtocol::Classic),
        ("consumer", KafkaProtocol::Consumer),
    ];
    if let Some(protocol) = take_word(settings, "protocol", &protocols, "classic or consumer")? {
        options.protocol = protocol;
    }
    let compressions = [
        ("none", Compression::None),
        ("lz4", Compression::Lz4),
        ("zstd", Compression::Zstd),
    ];
    let compression = take_word(settings, "compression", &compressions, "none, lz4 or zstd")?;
    options.compression = compression.unwrap_or(options.compression);
    options.ca = settings.take("ca").map(PathBuf::from);
    options.certificate = match (settings.take("cert"), settings.take("key")) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
        _ => return Err(KafkaOptionsError::HalfCertificate),
    };
    let needs_tls = options.ca.is_some() || options.certificate.is_some();
    let tls = settings.take_parsed("tls", "true or false")?;
    options.tls = tls.unwrap_or(needs_tls);
    options.namespace = settings.take("namespace");
    options.instance = settings.take("instance");
    options.replication = settings.take_parsed("replication", "1 or more")?;
    options.min_in_sync = settings.take_parsed("min_in_sync", "1 or more")?;
    let millis = "a number of milliseconds";
    let session = settings.take_parsed("session_ms", millis)?;
    options.session = session.map(Duration::from_millis);
    if let Some(linger) = settings.take_parsed("linger_ms", millis)? {
        options.linger = Duration::from_millis(linger);
    }
    if let Some(bytes) = settings.take_parsed("max_message", "a number of bytes")? {
        options.max_message = bytes;
    }
    Ok(())
}

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
            "kafka://a?namespace=t-1&replication=3&min_in_sync=2&session_ms=6000&instance=i\
             &compression=zstd&linger_ms=0&max_message=2000&tls=false",
        );
        assert_eq!(options.namespace.as_deref(), Some("t-1"));
        assert_eq!(
            (options.replication, options.min_in_sync),
            (Some(3), Some(2))
        );
        assert_eq!(options.session_or_default(), Duration::from_secs(6));
        assert_eq!(options.instance.as_deref(), Some("i"));
        assert_eq!(options.compression, Compression::Zstd);
        assert_eq!(
            (options.linger, options.max_message),
            (Duration::ZERO, 2000)
        );
        assert!(!options.tls);
        let options = parse("kafka://u%40x:p%3A%26@a?sasl=plain&protocol=consumer");
        let user = options.user.as_ref().expect("a user");
        assert_eq!((user.name.as_str(), user.password.as_str()), ("u@x", "p:&"));
        assert_eq!(options.sasl, KafkaSasl::Plain);
        assert_eq!(options.protocol, KafkaProtocol::Consumer);
        assert!(!format!("{options:?}").contains("p:&"));
    }

    #[test]
    #[cfg(feature = "kafka-tls")]
    fn a_certificate_is_of_use_only_with_tls() {
        let options = parse("kafka://a?ca=x.pem&cert=c.pem&key=k.pem");
        assert!(options.tls);
        assert_eq!(options.ca, Some("x.pem".into()));
        assert_eq!(options.certificate, Some(("c.pem".into(), "k.pem".into())));
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
            ("kafka://a?replication=0", "replication is \"0\": give 1"),
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
