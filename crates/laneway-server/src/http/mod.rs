//! The HTTP server: what it answers, and how it takes connections.
//!
//! Further services (the delay service is the first) add their routes to [`router`] and share the
//! limits of [`accept`], the metrics registry and the problem details.

pub(crate) mod accept;
mod health;
mod home;
mod metrics;
mod problem;
mod stall;

use std::sync::Arc;

use axum::Router;
use axum::http::{Method, Uri};
use axum::middleware;
use axum::routing::get;

pub(crate) use health::Readiness;
pub(crate) use metrics::{Connections, Metrics};
use problem::Problem;

/// What the routes share.
#[derive(Clone, Debug)]
pub(crate) struct App {
    pub(crate) readiness: Readiness,
    pub(crate) metrics: Arc<Metrics>,
}

/// Every route there is, and an answer for everything else.
pub(crate) fn router(app: App) -> Router {
    Router::new()
        .route("/", get(home::page))
        .route("/healthz", get(health::live))
        .route("/readyz", get(health::ready))
        .route("/version", get(health::version))
        .route("/metrics", get(metrics::scrape))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn_with_state(app.clone(), metrics::count))
        .with_state(app)
}

async fn not_found(uri: Uri) -> Problem {
    Problem::not_found(uri.path())
}

async fn method_not_allowed(method: Method, uri: Uri) -> Problem {
    Problem::method_not_allowed(&method, uri.path())
}
