//! One call: what is sent, how long it may take, what the answer means.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use reqwest::redirect;
use tokio::time::timeout;

use super::answer;
use super::guard::{Checked, Destination, Guard, Refused, Resolve, System};
use super::headers::check_header;
use super::hosts::{Hosts, Limits};
use super::signature::{self, Secret};
use super::trouble::Trouble;
use crate::{Method, Timestamp};

/// How long the rest of an answer may take once its head is there.
const BODY_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a connection is kept for the next call to the same host.
const IDLE: Duration = Duration::from_secs(30);

/// Calls receivers. Cheap to clone; all clones share connections, slots and circuits.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    http: reqwest::Client,
    guard: Guard,
    hosts: Hosts,
    limits: Limits,
    secrets: Vec<Secret>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner")
            .field("guard", &self.guard)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// What is called, and what is said.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// The id of the message: the same for every attempt, so that a receiver knows repetitions.
    pub id: &'a str,
    /// The topic of the message.
    pub topic: &'a str,
    /// When the message was due.
    pub due: Timestamp,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// Where to.
    pub url: &'a str,
    /// How.
    pub method: Method,
    /// What the sender wants to have said beside.
    pub headers: &'a [(String, String)],
    /// What the body is, unless a header says it.
    pub content_type: &'a str,
    /// The body. It is sent with every method, and not at all if it is empty.
    pub body: Bytes,
    /// How long the receiver may take to answer; [`Limits::timeout`] if it does not say.
    pub timeout: Option<Duration>,
}

/// The receiver took the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// What it answered, a 2xx.
    pub status: u16,
    /// From sending to the head of the answer.
    pub took: Duration,
}

/// The client cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// TLS cannot be set up.
    #[error("cannot set up TLS for callbacks: {0}")]
    Tls(#[from] rustls::Error),
    /// The HTTP client cannot be set up.
    #[error("cannot set up the HTTP client for callbacks: {0}")]
    Http(#[from] reqwest::Error),
}

impl Client {
    /// A client that resolves names as the operating system does.
    ///
    /// # Errors
    ///
    /// Fails if TLS cannot be set up.
    pub fn new(guard: Guard, limits: Limits, secrets: Vec<Secret>) -> Result<Self, BuildError> {
        Self::with_resolver(guard, limits, secrets, System::default())
    }

    /// A client with a resolver of its own.
    ///
    /// # Errors
    ///
    /// Fails if TLS cannot be set up.
    pub fn with_resolver(
        guard: Guard,
        limits: Limits,
        secrets: Vec<Secret>,
        resolver: impl Resolve,
    ) -> Result<Self, BuildError> {
        let resolver = Arc::new(Checked {
            guard: guard.clone(),
            resolver: Arc::new(resolver),
        });
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls()?)
            .dns_resolver(resolver)
            // Both would lead around the guard.
            .redirect(redirect::Policy::none())
            .no_proxy()
            .referer(false)
            // The schedule of the message decides about retries.
            .retry(reqwest::retry::never())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(limits.per_host)
            .user_agent(concat!("laneway/", env!("CARGO_PKG_VERSION")))
            .build()?;
        Ok(Self {
            inner: Arc::new(Inner {
                http,
                guard,
                hosts: Hosts::new(limits),
                limits,
                secrets,
            }),
        })
    }

    /// The guard that this client asks, to check a URL before a message is taken.
    #[must_use]
    pub fn guard(&self) -> &Guard {
        &self.inner.guard
    }

    /// The limits of this client.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// How many hosts nothing is sent to at the moment, because they failed too often.
    #[must_use]
    pub fn open_circuits(&self) -> usize {
        self.inner.hosts.open_circuits()
    }

    /// Calls the receiver, once.
    ///
    /// # Errors
    ///
    /// Says why the message was not delivered; [`Trouble::next`] says what follows.
    pub async fn call(&self, call: &Call<'_>) -> Result<Delivered, Trouble> {
        let destination = self.inner.guard.check(call.url)?;
        let host = destination.host_and_port();
        let entered = self.inner.hosts.enter(&host).await;
        let pass = entered.map_err(|trouble| self.inner.give_up_if_late(call, trouble))?;
        let result = self.inner.send(call, destination).await;
        pass.finish(!result.as_ref().is_err_and(Trouble::is_of_the_host));
        result
    }
}

impl Inner {
    /// Nobody is put off for ever.
    fn give_up_if_late(&self, call: &Call<'_>, trouble: Trouble) -> Trouble {
        let late = Timestamp::from(SystemTime::now()).since(call.due);
        match trouble {
            Trouble::CircuitOpen { host, .. } if late > self.limits.max_postponed => {
                Trouble::CircuitOpen { host, wait: None }
            }
            other => other,
        }
    }

    async fn send(&self, call: &Call<'_>, destination: Destination) -> Result<Delivered, Trouble> {
        let request = self.request(call, destination)?;
        let limit = call.timeout.unwrap_or(self.limits.timeout);
        let limit = limit.min(self.limits.max_timeout);
        let started = Instant::now();
        let response = match timeout(limit, self.http.execute(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(explain(&error)),
            Err(_) => return Err(Trouble::TimedOut(limit)),
        };
        let took = started.elapsed();
        let status = response.status();
        let now = SystemTime::now();
        let retry_after =
            answer::retry_after(status, response.headers(), now, self.limits.max_retry_after);
        // The status has decided. The body is read for the sake of the connection, and not for long.
        let rest = BODY_TIMEOUT.min(limit.saturating_sub(took));
        let body = timeout(rest, answer::beginning(response)).await;
        if status.is_success() {
            let status = status.as_u16();
            return Ok(Delivered { status, took });
        }
        Err(Trouble::Status {
            status: status.as_u16(),
            retry_after,
            body: body.unwrap_or_default(),
        })
    }

    fn request(
        &self,
        call: &Call<'_>,
        destination: Destination,
    ) -> Result<reqwest::Request, Trouble> {
        let mut request = reqwest::Request::new(verb(call.method), destination.into_url());
        *request.headers_mut() = self.headers(call)?;
        if !call.body.is_empty() {
            *request.body_mut() = Some(call.body.clone().into());
        }
        Ok(request)
    }

    fn headers(&self, call: &Call<'_>) -> Result<HeaderMap, Trouble> {
        let mut headers = HeaderMap::with_capacity(call.headers.len() + 8);
        for (name, value) in call.headers {
            let checked = check_header(name, value);
            let (name, value) = checked.map_err(|error| Trouble::Invalid(error.to_string()))?;
            headers.append(name, value);
        }
        if !call.body.is_empty() && !headers.contains_key(header::CONTENT_TYPE) {
            set(&mut headers, "content-type", call.content_type)?;
        }
        let now = Timestamp::from(SystemTime::now()).as_millis() / 1_000;
        set(&mut headers, "laneway-topic", call.topic)?;
        set(
            &mut headers,
            "laneway-due",
            &call.due.as_millis().to_string(),
        )?;
        set(&mut headers, "laneway-attempt", &call.attempt.to_string())?;
        set(&mut headers, signature::ID, call.id)?;
        set(&mut headers, signature::TIMESTAMP, &now.to_string())?;
        if !self.secrets.is_empty() {
            let signature = signature::sign(&self.secrets, call.id, now, &call.body);
            set(&mut headers, signature::SIGNATURE, &signature)?;
        }
        Ok(headers)
    }
}

fn set(headers: &mut HeaderMap, name: &'static str, value: &str) -> Result<(), Trouble> {
    let value = HeaderValue::from_str(value)
        .map_err(|_| Trouble::Invalid(format!("{name} cannot be {value:?}")))?;
    headers.insert(HeaderName::from_static(name), value);
    Ok(())
}

/// The provider is named here, so that it does not matter which one, if any, the process has
/// chosen for everything else.
fn tls() -> Result<rustls::ClientConfig, rustls::Error> {
    let mut roots = rustls::RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "cannot read some of the certificates of this machine");
    }
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        tracing::warn!("this machine has no certificates: callbacks to https will fail");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Finds out what went wrong from the chain of causes.
fn explain(error: &reqwest::Error) -> Trouble {
    let mut cause: &dyn Error = error;
    loop {
        if let Some(refused) = cause.downcast_ref::<Refused>() {
            return Trouble::Refused(refused.clone());
        }
        match cause.source() {
            Some(deeper) => cause = deeper,
            None => break,
        }
    }
    let deepest = cause.to_string();
    if error.is_connect() {
        Trouble::Connect(deepest)
    } else {
        Trouble::Broken(deepest)
    }
}

fn verb(method: Method) -> http::Method {
    match method {
        Method::Get => http::Method::GET,
        Method::Post => http::Method::POST,
        Method::Put => http::Method::PUT,
        Method::Patch => http::Method::PATCH,
        Method::Delete => http::Method::DELETE,
    }
}
