//! The side that connects.

use std::sync::Arc;
use std::time::Duration;

use laneway_delay::BoxFuture;
use tokio::sync::mpsc;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};

use crate::connection::{Connection, WorkerConnection};
use crate::error::{of_status, of_transport};
use crate::handshake::{self, Frame as _};
use crate::proto::center_client::CenterClient as Stub;
use crate::proto::worker_client::WorkerClient;
use crate::proto::{Reply, Request, ToWorker};
use crate::settings::{HELLO_TIMEOUT, PING_INTERVAL, PING_TIMEOUT};
use crate::stream::{incoming, outgoing};
use crate::{CallError, CenterCalls, Error, Settings};

/// The header by which a caller names its cluster.
pub(crate) const CLUSTER: &str = "laneway-cluster-bin";

/// Connects to a worker at `host:port`. The hellos have been exchanged when it resolves.
///
/// # Errors
/// [`Error::Call`], if there is no worker of this cluster that trusts this process; [`Error::Invalid`], if the address or the
/// certificates cannot be used.
pub async fn connect_worker(address: &str, settings: &Settings) -> Result<WorkerConnection, Error> {
    let endpoint = endpoint(address, settings)?;
    let connected = tokio::time::timeout(settings.connect_timeout, endpoint.connect()).await;
    let channel = connected.map_err(|_| {
        let text = format!("{address} did not answer in time");
        CallError::Unreachable(text)
    })?;
    let channel = channel.map_err(|error| of_transport(&error))?;
    let greeted = tokio::time::timeout(HELLO_TIMEOUT, greet(channel, settings)).await;
    Ok(greeted.map_err(|_| CallError::Deadline)??)
}

async fn greet(channel: Channel, settings: &Settings) -> Result<WorkerConnection, CallError> {
    let mut client = WorkerClient::new(channel)
        .max_decoding_message_size(settings.max_message)
        .max_encoding_message_size(settings.max_message);
    let hello = ToWorker::of_hello(settings.hello.clone());
    let (sender, frames, stop) = outgoing(hello, settings.frames);
    let response = client.work(frames).await;
    let mut from = response.map_err(|status| of_status(&status))?.into_inner();
    let first = from.message().await;
    let first = first.map_err(|status| of_status(&status))?;
    let peer = handshake::check(first, &settings.hello).map_err(|status| of_status(&status))?;
    let (into, receiver) = mpsc::channel(settings.frames.max(1));
    tokio::spawn(incoming(from, into, stop));
    Ok(Connection {
        peer,
        sender,
        receiver,
    })
}

/// Calls a center that runs elsewhere. Clones share one connection, which is made when it is needed, and anew after it broke.
#[derive(Clone, Debug)]
pub struct CenterClient {
    stub: Stub<Channel>,
    cluster: Arc<str>,
    deadline: Duration,
}

impl CenterClient {
    /// A client of the center at `host:port`. There need not be one now.
    ///
    /// # Errors
    /// [`Error::Invalid`], if the address or the certificates cannot be used.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn new(address: &str, settings: &Settings) -> Result<Self, Error> {
        let channel = endpoint(address, settings)?.connect_lazy();
        let stub = Stub::new(channel)
            .max_decoding_message_size(settings.max_message)
            .max_encoding_message_size(settings.max_message);
        Ok(Self {
            stub,
            cluster: settings.hello.cluster.as_str().into(),
            deadline: settings.call_timeout,
        })
    }

    /// The same with another deadline for calls.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }
}

impl CenterCalls for CenterClient {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Reply, CallError>> {
        let mut stub = self.stub.clone();
        let mut request = tonic::Request::new(request);
        let cluster = MetadataValue::from_bytes(self.cluster.as_bytes());
        request.metadata_mut().insert_bin(CLUSTER, cluster);
        // The center stops, too, when the deadline has passed.
        request.set_timeout(self.deadline);
        let deadline = self.deadline;
        Box::pin(async move {
            let called = tokio::time::timeout(deadline, stub.call(request)).await;
            match called {
                Err(_) => Err(CallError::Deadline),
                Ok(Ok(reply)) => Ok(reply.into_inner()),
                Ok(Err(status)) => Err(of_status(&status)),
            }
        })
    }
}

fn endpoint(address: &str, settings: &Settings) -> Result<Endpoint, Error> {
    let scheme = if settings.tls.is_some() {
        "https"
    } else {
        "http"
    };
    let wrong = |problem: &dyn std::fmt::Display| {
        let problem = format!("{problem}; write host:port");
        Error::invalid(format!("address {address:?}"), &problem)
    };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"));
    let endpoint = endpoint.map_err(|error| wrong(&error))?;
    let uri = endpoint.uri().clone();
    let is_plain = matches!(uri.path(), "" | "/") && uri.query().is_none();
    let Some(host) = uri.host().filter(|_| is_plain && uri.port().is_some()) else {
        return Err(wrong(
            &"there is no host or no port in it, or more than these",
        ));
    };
    let endpoint = endpoint
        .connect_timeout(settings.connect_timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true);
    let Some(tls) = &settings.tls else {
        return Ok(endpoint);
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let endpoint = endpoint.tls_config(tls.client(host));
    endpoint.map_err(|error| Error::invalid("the certificates", &of_transport(&error)))
}
