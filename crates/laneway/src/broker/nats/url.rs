//! Addresses such as `nats://user:password@one:4222,two:4222?namespace=shop&replicas=3`.

use std::path::PathBuf;
use std::time::Duration;

use super::options::{Identity, NatsOptions, NatsOptionsError};
use crate::broker::address::{Address, AddressError, Settings, decoded};

const SCHEME: &str = "nats://";
const PORT: u16 = 4222;

/// The settings that an address may have.
const KEYS: &[&str] = &[
    "ca",
    "cert",
    "creds",
    "domain",
    "duplicates_ms",
    "key",
    "lease_ms",
    "namespace",
    "nkey",
    "prefix",
    "replicas",
    "tls",
    "token",
];

impl NatsOptions {
    /// Reads an address: `nats://HOST:PORT`, more of them after commas, and settings after `?`.
    ///
    /// Before an `@` stands a user and a password, or a token. Settings are `namespace`, `replicas`,
    /// `lease_ms`, `duplicates_ms`, `domain`, `prefix`, `tls` (`true` or `false`), and the files `ca`,
    /// `cert` and `key`, `nkey` and `creds`; `token` is the token itself. What is special in an address
    /// (`@`, `&`, `%` and the like) is written as `%` and two hexadecimal digits.
    ///
    /// # Errors
    /// Naming the setting, and what it could be.
    pub fn parse(url: &str) -> Result<Self, NatsOptionsError> {
        let mut address = Address::read(url, SCHEME, PORT, KEYS)?;
        let mut options = Self::new(address.servers);
        options.identity = address.user.map_or(Identity::Nobody, identity);
        apply(&mut address.settings, &mut options)?;
        options.check()?;
        Ok(options)
    }
}

fn identity(user: &str) -> Identity {
    match user.split_once(':') {
        Some((name, password)) => Identity::User {
            name: decoded(name),
            password: decoded(password),
        },
        None => Identity::Token(decoded(user)),
    }
}

impl From<AddressError> for NatsOptionsError {
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

fn apply(settings: &mut Settings, options: &mut NatsOptions) -> Result<(), NatsOptionsError> {
    for (key, make) in [
        ("token", Identity::Token as fn(String) -> Identity),
        ("nkey", |file| Identity::Nkey(file.into())),
        ("creds", |file| Identity::Credentials(file.into())),
    ] {
        if let Some(value) = settings.take(key) {
            if let Some(other) = options.identity.setting() {
                return Err(NatsOptionsError::TwoIdentities(other, key));
            }
            options.identity = make(value);
        }
    }
    options.ca = settings.take("ca").map(PathBuf::from);
    options.certificate = match (settings.take("cert"), settings.take("key")) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
        _ => return Err(NatsOptionsError::HalfCertificate),
    };
    let needs_tls = options.ca.is_some() || options.certificate.is_some();
    let tls = settings.take_parsed("tls", "true or false")?;
    options.tls = tls.unwrap_or(needs_tls);
    options.domain = settings.take("domain");
    options.prefix = settings.take("prefix");
    if let Some(namespace) = settings.take("namespace") {
        options.namespace = namespace;
    }
    if let Some(replicas) = settings.take_parsed("replicas", "1 to 5")? {
        options.replicas = replicas;
    }
    let millis = "a number of milliseconds";
    if let Some(lease) = settings.take_parsed("lease_ms", millis)? {
        options.lease = Duration::from_millis(lease);
    }
    if let Some(window) = settings.take_parsed("duplicates_ms", millis)? {
        options.duplicate_window = Duration::from_millis(window);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> NatsOptions {
        NatsOptions::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    #[test]
    fn servers_are_read() {
        let list = |url| parse(url).servers.join(" ");
        assert_eq!(list("nats://localhost"), "localhost:4222");
        assert_eq!(list("nats://a:1,b:2/"), "a:1 b:2");
        assert_eq!(list("nats://a:1,nats://b"), "a:1 b:4222");
        assert_eq!(list("nats://[::1]:99,[::2]"), "[::1]:99 [::2]:4222");
    }

    #[test]
    fn settings_are_read() {
        let options = parse(
            "nats://a?namespace=t_1&replicas=3&lease_ms=500&duplicates_ms=0&domain=hub&tls=true",
        );
        assert_eq!(options.namespace, "t_1");
        assert_eq!(options.replicas, 3);
        assert_eq!(options.lease, Duration::from_millis(500));
        assert_eq!(options.duplicate_window, Duration::ZERO);
        assert_eq!(options.domain.as_deref(), Some("hub"));
        assert!(options.tls);
        let options = parse("nats://a?prefix=JS.acme&ca=x.pem&cert=c.pem&key=k.pem");
        assert_eq!(options.prefix.as_deref(), Some("JS.acme"));
        assert_eq!(options.ca, Some("x.pem".into()));
        assert_eq!(options.certificate, Some(("c.pem".into(), "k.pem".into())));
        assert!(options.tls, "a certificate is of use only then");
    }

    #[test]
    fn identities_are_read_and_not_shown() {
        for (url, expected) in [
            ("nats://u%40x:p%3A%26@a", "user"),
            ("nats://s3cret@a", "token"),
            ("nats://a?token=s3cret", "token"),
            ("nats://a?nkey=s3cret", "nkey"),
            ("nats://a?creds=s3cret", "creds"),
        ] {
            let options = parse(url);
            assert_eq!(options.identity.setting(), Some(expected), "{url}");
            let shown = format!("{options:?}");
            assert!(
                !shown.contains("s3cret") && !shown.contains("p:&"),
                "{shown}"
            );
        }
        let user = Identity::User {
            name: "u@x".into(),
            password: "p:&".into(),
        };
        assert!(parse("nats://u%40x:p%3A%26@a").identity == user);
    }

    #[test]
    fn what_cannot_be_meant_is_named() {
        for (url, expected) in [
            ("nats://", "no server is named"),
            ("nats://a:x", "server \"a:x\" is not HOST"),
            ("nats://a/b", "server \"a/b\" is not HOST"),
            ("nats://a:1:2", "is not HOST"),
            ("nats://a?lease=1", "\"lease\" is not a setting"),
            ("nats://a?lease=1", "lease_ms"),
            ("nats://a?lease_ms=x", "lease_ms is \"x\": give a number"),
            ("nats://a?lease_ms=1", "lease_ms is \"1\": give 100 to"),
            ("nats://a?replicas=0", "replicas is \"0\": give 1 to 5"),
            (
                "nats://a?replicas=many",
                "replicas is \"many\": give 1 to 5",
            ),
            ("nats://a?tls=yes", "tls is \"yes\": give true or false"),
            ("nats://a?namespace=A.b", "namespace is \"A.b\""),
            ("nats://a?ca=1&ca=2", "ca is given twice"),
            ("nats://a?cert=1", "cert and key"),
            ("nats://a?domain=1&prefix=2", "domain and prefix"),
            ("nats://u:p@a?token=t", "user and token are both given"),
            ("nats://a?nkey=n&creds=c", "nkey and creds are both given"),
        ] {
            let error = NatsOptions::parse(url).expect_err(url).to_string();
            assert!(error.contains(expected), "{url}: {error}");
        }
    }

    #[test]
    fn an_error_never_says_a_secret() {
        for url in [
            "nats://u:s3cret@a?nkey=f",
            "nats://s3cret@a:x",
            "nats://u:s3cret@a?x=1",
        ] {
            let error = NatsOptions::parse(url).expect_err(url);
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }
}
