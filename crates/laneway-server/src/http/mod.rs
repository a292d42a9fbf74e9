//! The HTTP server: what it answers, and how it takes connections.
//!
//! | file | what it is |
//! |---|---|
//! | `accept`, `stall` | connections: how many, how slow, how they end |
//! | `messages`, `dead` | delayed messages |
//! | `sorakaq` | the same for clients of SorakaQ |
//! | `body`, `query`, `time` | how requests are read |
//! | `problem` | errors |
//! | `health`, `home`, `metrics` | about the server itself |

pub(crate) mod accept;
mod body;
mod dead;
mod health;
mod home;
mod messages;
mod metrics;
mod problem;
mod query;
mod sorakaq;
mod stall;
pub(crate) mod time;

use std::ops::Deref;
use std::sync::Arc;

use axum::Router;
use axum::http::{Method, Uri};
use axum::middleware;
use axum::routing::{delete, get, post};
use laneway_delay::Delays;
use laneway_delay::callback::Client;
use tokio::sync::Semaphore;

pub(crate) use health::Readiness;
pub(crate) use metrics::{Connections, Metrics};
use problem::Problem;

use crate::delay::Figures;

/// Batches that are read at the same time.
pub(crate) const BATCHES: usize = 16;

/// What the routes share. A clone is one count: there is one for every request and layer.
#[derive(Clone, Debug)]
pub(crate) struct App(Arc<Shared>);

impl App {
    pub(crate) fn new(shared: Shared) -> Self {
        Self(Arc::new(shared))
    }
}

impl Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) readiness: Readiness,
    pub(crate) metrics: Metrics,
    pub(crate) delays: Delays,
    /// Asked which URLs may be called, when a message comes in.
    pub(crate) client: Client,
    pub(crate) figures: Figures,
    pub(crate) max_body: usize,
    pub(crate) batches: Semaphore,
    pub(crate) sorakaq: bool,
}

/// Every route there is, and an answer for everything else.
pub(crate) fn router(app: App) -> Router {
    let mut router = Router::new()
        .route("/v1/messages", post(messages::submit).get(messages::list))
        .route("/v1/messages:batch", post(messages::submit_batch))
        .route("/v1/messages:extend", post(messages::extend_batch))
        .route("/v1/messages:withdraw", post(messages::withdraw_batch))
        .route(
            "/v1/messages/{id}",
            get(messages::get).delete(messages::withdraw),
        )
        .route("/v1/messages/{id}/extend", post(messages::extend))
        .route("/v1/dead", get(dead::list).delete(dead::purge_all))
        .route("/v1/dead/{id}", delete(dead::purge))
        .route("/v1/dead/{id}/replay", post(dead::replay));
    if app.sorakaq {
        router = router
            .route("/sorakaq/msg/submit", post(sorakaq::submit))
            .route("/sorakaq/msg/cancel", post(sorakaq::cancel))
            .route("/sorakaq/msg/addTime", post(sorakaq::add_time));
    }
    router
        .layer(middleware::from_fn(body::refuse_cross_site))
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
