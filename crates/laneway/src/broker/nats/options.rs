//! The settings that only NATS has.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::broker::address::{Parameters, decoded};
use crate::broker::options::{
    BrokerOptions, BrokerOptionsError, BrokerSettings, User, check_session,
};

/// Who we are to the server.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) enum Identity {
    #[default]
    Anonymous,
    User(User),
    Token(String),
    /// A file with the seed of an nkey.
    Nkey(PathBuf),
    /// A file with a token and a seed, as `nsc` makes it.
    Credentials(PathBuf),
}

impl Identity {
    /// Reads what stands before an `@` in an address.
    fn read(user: &str) -> Self {
        User::read(user).map_or_else(|| Self::Token(decoded(user)), Self::User)
    }

    /// The setting that says it.
    pub(super) fn setting(&self) -> Option<&'static str> {
        match self {
            Self::Anonymous => None,
            Self::User(_) => Some("user"),
            Self::Token(_) => Some("token"),
            Self::Nkey(_) => Some("nkey"),
            Self::Credentials(_) => Some("creds"),
        }
    }
}

/// What happens to the connection. See [`NatsOptions`]'s `on_connection`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NatsConnection {
    /// There is a connection, the first one or again.
    Connected,
    /// It is gone. It is tried again, at all servers in turn, until there is one.
    Disconnected,
    /// The server, or the connection to it, has something to say.
    Error(String),
}

type Callback = Arc<dyn Fn(NatsConnection) + Send + Sync>;

/// How a bus on NATS is set up. Everything but what is done when the connection comes and goes can be said in the
/// [address](BrokerOptions::parse), too: `nats://user:password@one:4222,two:4222?namespace=shop&replicas=3`. Before
/// an `@` may also stand a token. Besides what [`BrokerOptions`] has, it may have `session_before_ms`,
/// `duplicates_ms`, `domain`, `prefix`, the files `nkey` and `creds`, and `token`, which is the token itself.
///
/// ```
/// use laneway::NatsOptions;
/// use std::time::Duration;
///
/// let options = NatsOptions::parse("nats://localhost:4222?namespace=shop")?
///     .replicas(3)
///     .session(Duration::from_secs(3))
///     .on_connection(|event| eprintln!("{event:?}"));
/// # Ok::<(), laneway::BrokerOptionsError>(())
/// ```
pub type NatsOptions = BrokerOptions<NatsSettings>;

/// What only [`NatsOptions`] have.
#[derive(Clone)]
pub struct NatsSettings {
    pub(super) identity: Identity,
    pub(super) domain: Option<String>,
    pub(super) prefix: Option<String>,
    pub(super) session_before: Option<Duration>,
    pub(super) duplicate_window: Duration,
    pub(super) on_connection: Option<Callback>,
}

/// For so long the server knows the ids of events it has.
const DUPLICATE_WINDOW: Duration = Duration::from_mins(2);

impl Default for NatsSettings {
    fn default() -> Self {
        Self {
            identity: Identity::default(),
            domain: None,
            prefix: None,
            session_before: None,
            duplicate_window: DUPLICATE_WINDOW,
            on_connection: None,
        }
    }
}

impl NatsOptions {
    /// Says who we are by a user and a password.
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        self.broker.identity = Identity::User(User {
            name: name.into(),
            password: password.into(),
        });
        self
    }

    /// Says who we are by a token.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.broker.identity = Identity::Token(token.into());
        self
    }

    /// Says who we are by an nkey; the file has its seed.
    pub fn nkey(mut self, seed_file: impl Into<PathBuf>) -> Self {
        self.broker.identity = Identity::Nkey(seed_file.into());
        self
    }

    /// Says who we are by a credentials file.
    pub fn credentials(mut self, file: impl Into<PathBuf>) -> Self {
        self.broker.identity = Identity::Credentials(file.into());
        self
    }

    /// The `JetStream` domain.
    pub fn domain(mut self, domain: impl Into<String>) -> Self {
        self.broker.domain = Some(domain.into());
        self
    }

    /// What subjects of the `JetStream` API begin with, where an account imports it.
    pub fn api_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.broker.prefix = Some(prefix.into());
        self
    }

    /// The session that members may still have while it is being changed, process by process (none unless
    /// given). Take it away when all of them have the new one.
    pub fn session_before(mut self, session: Duration) -> Self {
        self.broker.session_before = Some(session);
        self
    }

    /// For how long an event that is published again is recognised by its id and kept once (2 minutes
    /// unless changed; zero: never). It counts for topics that are created from now on.
    pub fn duplicate_window(mut self, window: Duration) -> Self {
        self.broker.duplicate_window = window;
        self
    }

    /// Calls this when the connection comes or goes.
    pub fn on_connection(mut self, call: impl Fn(NatsConnection) + Send + Sync + 'static) -> Self {
        self.broker.on_connection = Some(Arc::new(call));
        self
    }

    /// The namespace in which everything on the server is kept, `laneway` if none was given.
    #[must_use]
    pub fn namespace_or_default(&self) -> &str {
        self.namespace.as_deref().unwrap_or("laneway")
    }

    pub(super) fn replicas_or_default(&self) -> u8 {
        self.replicas.unwrap_or(1)
    }
}

impl BrokerSettings for NatsSettings {
    const SCHEME: &'static str = "nats";
    const PORT: u16 = 4222;
    const KEYS: &'static [&'static str] = &[
        "creds",
        "domain",
        "duplicates_ms",
        "nkey",
        "prefix",
        "session_before_ms",
        "token",
    ];
    const REPLICAS: RangeInclusive<u8> = 1..=5;
    const SESSION: Duration = Duration::from_secs(3);
    /// A shorter one would be lost to ordinary delays.
    const SESSIONS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_mins(10);
    /// Nothing in a namespace can be taken for what comes after it, nor for the streams that the server itself names.
    const NAMESPACE_PUNCTUATION: char = '_';

    fn take(
        &mut self,
        user: Option<&str>,
        parameters: &mut Parameters,
    ) -> Result<(), BrokerOptionsError> {
        self.identity = user.map_or(Identity::Anonymous, Identity::read);
        for (key, make) in [
            ("token", Identity::Token as fn(String) -> Identity),
            ("nkey", |file| Identity::Nkey(file.into())),
            ("creds", |file| Identity::Credentials(file.into())),
        ] {
            if let Some(value) = parameters.take(key) {
                if let Some(other) = self.identity.setting() {
                    return Err(BrokerOptionsError::TwoIdentities(other, key));
                }
                self.identity = make(value);
            }
        }
        self.domain = parameters.take("domain");
        self.prefix = parameters.take("prefix");
        self.session_before = parameters.take_millis("session_before_ms")?;
        let window = parameters.take_millis("duplicates_ms")?;
        self.duplicate_window = window.unwrap_or(self.duplicate_window);
        Ok(())
    }

    fn check(options: &NatsOptions) -> Result<(), BrokerOptionsError> {
        let nats = &options.broker;
        if let Some(before) = nats.session_before {
            check_session::<Self>("session_before_ms", before)?;
        }
        if nats.domain.is_some() && nats.prefix.is_some() {
            return Err(BrokerOptionsError::DomainAndPrefix);
        }
        Ok(())
    }
}

impl fmt::Debug for NatsSettings {
    /// Without secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsSettings")
            .field("identity", &self.identity.setting())
            .field("domain", &self.domain)
            .field("prefix", &self.prefix)
            .field("session_before", &self.session_before)
            .field("duplicate_window", &self.duplicate_window)
            .finish_non_exhaustive()
    }
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
            "nats://a?namespace=t_1&replicas=3&session_ms=500&duplicates_ms=0&domain=hub&tls=true",
        );
        assert_eq!(options.namespace_or_default(), "t_1");
        assert_eq!(options.replicas_or_default(), 3);
        assert_eq!(options.session_or_default(), Duration::from_millis(500));
        assert_eq!(options.broker.duplicate_window, Duration::ZERO);
        assert_eq!(options.broker.domain.as_deref(), Some("hub"));
        assert!(options.tls.required);
        let options = parse("nats://a?prefix=JS.acme&ca=x.pem&cert=c.pem&key=k.pem");
        assert_eq!(options.broker.prefix.as_deref(), Some("JS.acme"));
        assert_eq!(options.tls.ca, Some("x.pem".into()));
        assert_eq!(
            options.tls.certificate,
            Some(("c.pem".into(), "k.pem".into()))
        );
        assert!(options.tls.required, "a certificate is of use only then");
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
            assert_eq!(options.broker.identity.setting(), Some(expected), "{url}");
            let shown = format!("{options:?}");
            assert!(
                !shown.contains("s3cret") && !shown.contains("p:&"),
                "{shown}"
            );
        }
        let user = Identity::User(User {
            name: "u@x".into(),
            password: "p:&".into(),
        });
        assert!(parse("nats://u%40x:p%3A%26@a").broker.identity == user);
    }

    #[test]
    fn what_cannot_be_meant_is_named() {
        for (url, expected) in [
            ("nats://", "no server is named"),
            ("nats://a:x", "server \"a:x\" is not HOST"),
            ("nats://a/b", "server \"a/b\" is not HOST"),
            ("nats://a:1:2", "is not HOST"),
            ("nats://a?session=1", "\"session\" is not a setting"),
            ("nats://a?session=1", "session_ms"),
            (
                "nats://a?session_ms=x",
                "session_ms is \"x\": give a number",
            ),
            ("nats://a?session_ms=1", "session_ms is \"1\": give 100 to"),
            ("nats://a?replicas=0", "replicas is \"0\": give 1 to 5"),
            (
                "nats://a?replicas=many",
                "replicas is \"many\": give 1 to 5",
            ),
            ("nats://a?lease_ms=600", "lease_ms is called session_ms"),
            (
                "nats://a?lease_before_ms=600",
                "lease_before_ms is called session_before_ms",
            ),
            ("nats://a?replication=3", "replication is called replicas"),
            ("nats:localhost:4222", "give nats://localhost:4222"),
            (
                "nats://a?session_before_ms=1",
                "session_before_ms is \"1\": give 100",
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
