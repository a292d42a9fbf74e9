//! Metrics of this server, and the middleware that collects them.

use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use tracing::{debug, error};

use super::App;
use crate::build_info::BUILD;

/// The registry and what the HTTP server itself counts.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    durations: Family<RouteLabels, Histogram, fn() -> Histogram>,
    pub(crate) connections: Connections,
}

/// The route, not the path: a client can make up any number of paths, but no routes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: String,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    route: String,
}

impl Metrics {
    /// With the metrics that `register` adds.
    pub(crate) fn new(register: impl FnOnce(&mut Registry)) -> Self {
        let mut registry = Registry::default();
        let own = registry.sub_registry_with_prefix("laneway");
        let requests = Family::default();
        let durations = Family::new_with_constructor(duration_buckets as fn() -> Histogram);
        let connections = Connections::default();
        own.register(
            "build",
            "What this server is",
            Info::new(vec![
                ("version", BUILD.version),
                ("target", BUILD.target),
                ("profile", BUILD.profile),
                ("rustc", BUILD.rustc),
            ]),
        );
        own.register("http_requests", "Requests answered", requests.clone());
        own.register_with_unit(
            "http_request_duration",
            "From the end of the request head to the answer",
            Unit::Seconds,
            durations.clone(),
        );
        connections.register(own);
        register(&mut registry);
        Self {
            registry,
            requests,
            durations,
            connections,
        }
    }
}

/// From 0.1 ms to about 1.6 s.
fn duration_buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.000_1, 4.0, 8))
}

/// What the accept loop counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connections {
    open: Gauge,
    accepted: Counter,
    timed_out: Counter,
}

impl Connections {
    fn register(&self, registry: &mut Registry) {
        registry.register(
            "http_connections",
            "Connections that are open now",
            self.open.clone(),
        );
        registry.register(
            "http_connections_accepted",
            "Connections taken since the start",
            self.accepted.clone(),
        );
        registry.register(
            "http_connections_timed_out",
            "Connections closed because no request head came, or no answer was taken, in time",
            self.timed_out.clone(),
        );
    }

    /// Counts a connection as open until what is returned is dropped.
    pub(super) fn opened(&self) -> OpenConnection {
        self.accepted.inc();
        self.open.inc();
        OpenConnection(self.clone())
    }
}

/// A connection that is open.
pub(super) struct OpenConnection(Connections);

impl OpenConnection {
    pub(super) fn timed_out(&self) {
        self.0.timed_out.inc();
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.open.dec();
    }
}

/// Counts every request, and logs it at the level debug: `--log-filter laneway::http=debug` shows these lines and
/// no others.
pub(super) async fn count(State(app): State<App>, request: Request, next: Next) -> Response {
    let start = Instant::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let route = match request.extensions().get::<MatchedPath>() {
        Some(route) => route.as_str().to_owned(),
        None => "none".to_owned(),
    };

    let response = next.run(request).await;

    let (status, took) = (response.status().as_u16(), start.elapsed());
    let took_ms = took.as_secs_f64() * 1e3;
    debug!(%method, path, status, took_ms, "request");
    let labels = RouteLabels {
        route: route.clone(),
    };
    let duration = app.metrics.durations.get_or_create(&labels);
    duration.observe(took.as_secs_f64());
    let labels = RequestLabels { route, status };
    app.metrics.requests.get_or_create(&labels).inc();
    response
}

/// `GET /metrics`, in the text format that Prometheus reads.
pub(super) async fn scrape(State(app): State<App>) -> Response {
    let mut body = String::new();
    match text::encode(&mut body, &app.metrics.registry) {
        Ok(()) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], body).into_response()
        }
        Err(error) => {
            error!(%error, "cannot write the metrics");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
