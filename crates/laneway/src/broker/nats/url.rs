//! Addresses such as `nats://user:password@one:4222,two:4222?namespace=shop&replicas=3`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::options::{Identity, NatsOptions, NatsOptionsError};

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
        let rest = url.strip_prefix(SCHEME).unwrap_or(url);
        let (authority, query) = rest.split_once('?').unwrap_or((rest, ""));
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let (identity, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (identity(user), hosts),
            None => (Identity::Nobody, authority),
        };
        let hosts = hosts.split(',').filter(|host| !host.is_empty());
        let servers: Result<Vec<_>, _> = hosts.map(server).collect();
        let mut options = Self::new(servers?);
        options.identity = identity;
        let mut settings = Settings::read(query)?;
        settings.apply(&mut options)?;
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

/// A server as `host:port`. Lists in which each has its own `nats://` are common.
fn server(text: &str) -> Result<String, NatsOptionsError> {
    let host = text.strip_prefix(SCHEME).unwrap_or(text);
    let wrong = || NatsOptionsError::Server(text.to_owned());
    let (name, port) = match host.rsplit_once(':') {
        // A colon within brackets belongs to the address.
        Some((name, port)) if !port.contains(']') => (name, port.parse().map_err(|_| wrong())?),
        _ => (host, PORT),
    };
    let special = |c: char| c.is_whitespace() || "/@?#".contains(c);
    let is_name = !name.is_empty() && !name.contains(special);
    let is_address = name.starts_with('[') && name.ends_with(']');
    if is_name && (is_address || !name.contains(':')) {
        Ok(format!("{name}:{port}"))
    } else {
        Err(wrong())
    }
}

/// The settings of an address, each once.
struct Settings(Vec<(&'static str, String)>);

impl Settings {
    fn read(query: &str) -> Result<Self, NatsOptionsError> {
        let mut settings: Vec<(&'static str, String)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let Some(key) = KEYS.iter().find(|known| **known == key) else {
                return Err(NatsOptionsError::UnknownKey {
                    key: key.to_owned(),
                    known: KEYS,
                });
            };
            if settings.iter().any(|(known, _)| known == key) {
                return Err(NatsOptionsError::Twice(key));
            }
            settings.push((key, decoded(value)));
        }
        Ok(Self(settings))
    }

    fn take(&mut self, key: &'static str) -> Option<String> {
        let at = self.0.iter().position(|(known, _)| *known == key)?;
        Some(self.0.swap_remove(at).1)
    }

    fn take_parsed<T: FromStr>(
        &mut self,
        key: &'static str,
        expected: &'static str,
    ) -> Result<Option<T>, NatsOptionsError> {
        let Some(value) = self.take(key) else {
            return Ok(None);
        };
        let parsed = value.parse().map_err(|_| NatsOptionsError::Value {
            key,
            value,
            expected,
        });
        parsed.map(Some)
    }

    fn apply(&mut self, options: &mut NatsOptions) -> Result<(), NatsOptionsError> {
        for (key, make) in [
            ("token", Identity::Token as fn(String) -> Identity),
            ("nkey", |file| Identity::Nkey(file.into())),
            ("creds", |file| Identity::Credentials(file.into())),
        ] {
            if let Some(value) = self.take(key) {
                if let Some(other) = options.identity.setting() {
                    return Err(NatsOptionsError::TwoIdentities(other, key));
                }
                options.identity = make(value);
            }
        }
        options.ca = self.take("ca").map(PathBuf::from);
        options.certificate = match (self.take("cert"), self.take("key")) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
            _ => return Err(NatsOptionsError::HalfCertificate),
        };
        let needs_tls = options.ca.is_some() || options.certificate.is_some();
        let tls = self.take_parsed("tls", "true or false")?;
        options.tls = tls.unwrap_or(needs_tls);
        options.domain = self.take("domain");
        options.prefix = self.take("prefix");
        if let Some(namespace) = self.take("namespace") {
            options.namespace = namespace;
        }
        if let Some(replicas) = self.take_parsed("replicas", "1 to 5")? {
            options.replicas = replicas;
        }
        let millis = "a number of milliseconds";
        if let Some(lease) = self.take_parsed("lease_ms", millis)? {
            options.lease = Duration::from_millis(lease);
        }
        if let Some(window) = self.take_parsed("duplicates_ms", millis)? {
            options.duplicate_window = Duration::from_millis(window);
        }
        Ok(())
    }
}

/// Text with `%40` and the like read. What is no such thing stands for itself.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let code = digits.and_then(|two| u8::from_str_radix(two, 16).ok());
        match code {
            Some(code) if byte == b'%' => {
                bytes.push(code);
                rest = &after[2..];
            }
            _ => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
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
