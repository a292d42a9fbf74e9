//! One call: what is sent, how long it may take, what the answer means.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use http_body_util::Full;
use hyper_util::client::legacy;
use tokio::time::timeout;

use super::body::Body;
use super::connection::{Connector, Http};
use super::error::{CallError, HostHealth};
use super::guard::{Checked, Destination, Guard, Refused, Resolve, System};
use super::headers::check_header;
use super::hosts::HostCircuits;
use super::keep_alive::KeepAlive;
use super::limits::Limits;
use super::response;
use super::signature::{self, Secrets};

use crate::{Method, Timestamp};

const USER_AGENT: &str = concat!("laneway/", env!("CARGO_PKG_VERSION"));

/// How long the rest of an answer may take once its head is there.
const BODY_TIMEOUT: Duration = Duration::from_secs(1);

/// Calls receivers. Cheap to clone; all clones share connections and circuits.
///
/// It is what [`Sinks`](crate::Sinks) need for callbacks, and can be called by itself:
///
/// ```
/// use std::sync::Arc;
/// use laneway_delay::callback::{Call, Client, Guard, Limits};
/// use laneway_delay::{Delays, Method, Options, Sinks, Timestamp};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // Public addresses, and nothing else.
/// let guard = Guard::new("".parse()?);
/// let client = Client::new(guard, Limits::default(), Vec::new())?;
/// let call = Call {
///     id: "reminder-17",
///     topic: "reminders",
///     due: Timestamp::from_millis(1_700_000_000_000),
///     attempt: 1,
///     url: "http://127.0.0.1/hook",
///     method: Method::Post,
///     headers: &[],
///     content_type: "application/json",
///     body: r#"{"cart":17}"#.into(),
///     timeout: None,
/// };
/// let refused = client.call(&call).await.unwrap_err();
/// println!("{refused}");
///
/// let sinks = Sinks { callbacks: Some(Arc::new(client)), ..Sinks::default() };
/// let delays = Delays::in_memory(sinks, Options::default())?;
/// # drop(delays);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
    pub(super) body: Body,
}

struct Inner {
    /// Keeps connections for the next call.
    http: Http,
    /// Does not.
    http_once: Http,
    keep_alive: KeepAlive,
    guard: Guard,
    hosts: HostCircuits,
    limits: Limits,
    secrets: Secrets,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner")
            .field("guard", &self.guard)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// One request to a receiver.
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
    /// The URL of the receiver. The guard checks it.
    pub url: &'a str,
    /// The method of the request.
    pub method: Method,
    /// Headers that the sender adds.
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
}

impl Client {
    /// A client that resolves names as the operating system does.
    ///
    /// # Errors
    ///
    /// Fails if TLS cannot be set up.
    pub fn new(
        guard: Guard,
        limits: Limits,
        secrets: impl Into<Secrets>,
    ) -> Result<Self, BuildError> {
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
        secrets: impl Into<Secrets>,
        resolver: impl Resolve,
    ) -> Result<Self, BuildError> {
        let resolver = Checked::new(guard.clone(), resolver);
        // No connection is a known outcome: it has to be told from an answer that does not come.
        let connector = Connector::new(resolver, tls()?, limits.timeout / 2);
        Ok(Self {
            inner: Arc::new(Inner {
                http: connector.clone().client(limits.idle),
                http_once: connector.client(0),
                keep_alive: KeepAlive::new(limits.idle),
                guard,
                hosts: HostCircuits::new(limits),
                limits,
                secrets: secrets.into(),
            }),
            body: Body::default(),
        })
    }

    /// The same client, with this as the body of what it [delivers](crate::Deliver).
    #[must_use]
    pub fn with_body(self, body: Body) -> Self {
        Self { body, ..self }
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

    /// How many hosts, or topics at hosts, nothing is sent to at the moment, because that failed too often.
    #[must_use]
    pub fn open_circuits(&self) -> usize {
        self.inner.hosts.open_circuits()
    }

    /// Calls the receiver, once.
    ///
    /// # Errors
    ///
    /// Says why the message was not delivered; [`CallError::failure`] says what follows.
    pub async fn call(&self, call: &Call<'_>) -> Result<Delivered, CallError> {
        let destination = self.inner.guard.check(call.url)?;
        let host = destination.host_and_port().into_owned();
        let permitted = self.inner.hosts.permit(&host, call.topic);
        let permit = permitted.map_err(|error| self.inner.give_up_if_late(call, error))?;
        let kept = self.inner.keep_alive.enter(&host);
        let http = if kept.is_some() {
            &self.inner.http
        } else {
            &self.inner.http_once
        };
        let result = self.inner.send(http, call, destination, &host).await;
        permit.finish(match &result {
            Ok(_) => HostHealth::Works,
            Err(error) => error.host_health(self.inner.limits.fair()),
        });
        result
    }
}

impl Inner {
    /// A message that is far past its due time is put off no more: the attempt fails.
    fn give_up_if_late(&self, call: &Call<'_>, error: CallError) -> CallError {
        let late = Timestamp::from(SystemTime::now()).since(call.due);
        match error {
            CallError::CircuitOpen { host, topic, .. } if late > self.limits.max_postponed => {
                CallError::CircuitOpen {
                    host,
                    topic,
                    wait: None,
                }
            }
            other => other,
        }
    }

    async fn send(
        &self,
        http: &Http,
        call: &Call<'_>,
        destination: Destination,
        host: &str,
    ) -> Result<Delivered, CallError> {
        let request = self.request(call, destination, host)?;
        let limit = call.timeout.unwrap_or(self.limits.timeout);
        let limit = limit.min(self.limits.max_timeout);
        let started = Instant::now();
        let response = match timeout(limit, http.request(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(explain(&error)),
            Err(_) => return Err(CallError::TimedOut(limit)),
        };
        let took = started.elapsed();
        let status = response.status();
        let now = SystemTime::now();
        let retry_after =
            response::retry_after(status, response.headers(), now, self.limits.max_retry_after);
        // The status has decided. The body is read for the sake of the connection, and not for long.
        let rest = BODY_TIMEOUT.min(limit.saturating_sub(took));
        let body = timeout(rest, response::beginning(response)).await;
        if status.is_success() {
            let status = status.as_u16();
            return Ok(Delivered { status, took });
        }
        Err(CallError::Status {
            status: status.as_u16(),
            retry_after,
            body: body.unwrap_or_default(),
        })
    }

    fn request(
        &self,
        call: &Call<'_>,
        destination: Destination,
        host: &str,
    ) -> Result<http::Request<Full<Bytes>>, CallError> {
        let url = destination.into_url();
        let uri = Uri::try_from(url.as_str());
        let uri =
            uri.map_err(|error| CallError::Invalid(format!("{url} cannot be called: {error}")))?;
        let mut request = http::Request::new(Full::new(call.body.clone()));
        *request.method_mut() = verb(call.method);
        *request.uri_mut() = uri;
        *request.headers_mut() = self.headers(call, host)?;
        Ok(request)
    }

    fn headers(&self, call: &Call<'_>, host_and_port: &str) -> Result<HeaderMap, CallError> {
        let mut headers = HeaderMap::with_capacity(call.headers.len() + 8);
        for (name, value) in call.headers {
            let checked = check_header(name, value);
            let (name, value) = checked.map_err(|error| CallError::Invalid(error.to_string()))?;
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
        set(&mut headers, "laneway-id", call.id)?;
        let id = signature::signed_id(call.id);
        set(&mut headers, signature::ID, &id)?;
        set(&mut headers, signature::TIMESTAMP, &now.to_string())?;
        for (name, value) in [(header::USER_AGENT, USER_AGENT), (header::ACCEPT, "*/*")] {
            let value = HeaderValue::from_static(value);
            headers.entry(name).or_insert(value);
        }
        let secrets = self.secrets.of(host_and_port);
        if !secrets.is_empty() {
            let signature = signature::sign(secrets, &id, now, &call.body);
            set(&mut headers, signature::SIGNATURE, &signature)?;
        }
        Ok(headers)
    }
}

fn set(headers: &mut HeaderMap, name: &'static str, value: &str) -> Result<(), CallError> {
    let value = HeaderValue::from_str(value)
        .map_err(|_| CallError::Invalid(format!("{name} cannot be {value:?}")))?;
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
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}

/// Finds out what went wrong from the chain of causes.
fn explain(error: &legacy::Error) -> CallError {
    let mut cause: &dyn Error = error;
    loop {
        if let Some(refused) = cause.downcast_ref::<Refused>() {
            return CallError::Refused(refused.clone());
        }
        match cause.source() {
            Some(deeper) => cause = deeper,
            None => break,
        }
    }
    let deepest = cause.to_string();
    if error.is_connect() {
        CallError::Connect(deepest)
    } else {
        CallError::Broken(deepest)
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
