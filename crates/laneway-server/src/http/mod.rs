//! The HTTP server: what it answers, and how it takes connections.
//!
//! | file | what it is |
//! |---|---|
//! | `accept`, `stall` | connections: how many, how slow, how they end |
//! | `gate` | nothing for pages of other sites |
//! | `messages`, `dead` | delayed messages |
//! | `cluster` | the cluster: instances, shards, topics (feature `cluster`) |
//! | `sorakaq` | the same for clients of SorakaQ |
//! | `body`, `query`, `time` | how requests are read |
//! | `problem` | errors |
//! | `health`, `condition`, `home`, `metrics` | about the server itself |

pub(crate) mod accept;
mod body;
#[cfg(feature = "cluster")]
mod cluster;
mod condition;
mod dead;
mod gate;
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
use tokio::sync::Semaphore;

pub(crate) use condition::Condition;
pub(crate) use health::{Readiness, watch};
pub(crate) use metrics::{Connections, Metrics};
use problem::Problem;

use crate::config::{HostNames, Roles};
use crate::delay;
use crate::messages::Messages;

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
    pub(crate) delays: Arc<dyn Messages>,
    pub(crate) delay_metrics: delay::Metrics,
    pub(crate) max_body: usize,
    pub(crate) batches: Semaphore,
    /// What this process does: routes of messages are those of the role receive.
    pub(crate) roles: Roles,
    /// What the role admin shows and sets, in a cluster.
    #[cfg(feature = "cluster")]
    pub(crate) admin: Option<Arc<crate::cluster::Admin>>,
    pub(crate) sorakaq: bool,
    /// Whether there is a bus that messages can be published to.
    pub(crate) has_bus: bool,
    /// Bytes of large bodies that may be in memory while they come in and are worked on.
    pub(crate) room: Semaphore,
    /// The names that this server goes by, beside addresses and `localhost`.
    pub(crate) hosts: HostNames,
}

/// Every route there is, and an answer for everything else.
pub(crate) fn router(app: App) -> Router {
    let mut router = Router::new();
    if app.roles.receive {
        router = router.merge(of_messages(app.sorakaq));
    }
    #[cfg(feature = "cluster")]
    if let Some(admin) = app.admin.clone() {
        router = router.merge(cluster::routes(&admin));
    }
    router
        .route("/", get(home::page))
        .route("/healthz", get(health::live))
        .route("/readyz", get(health::ready))
        .route("/version", get(health::version))
        .route("/metrics", get(metrics::scrape))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn_with_state(app.clone(), gate::guard))
        .layer(middleware::from_fn_with_state(app.clone(), metrics::count))
        .with_state(app)
}

/// The routes of the role receive.
fn of_messages(sorakaq: bool) -> Router<App> {
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
    if sorakaq {
        router = router
            .route("/sorakaq/msg/submit", post(sorakaq::submit))
            .route("/sorakaq/msg/cancel", post(sorakaq::cancel))
            .route("/sorakaq/msg/addTime", post(sorakaq::add_time));
    }
    router
}

async fn not_found(uri: Uri) -> Problem {
    Problem::not_found(uri.path())
}

async fn method_not_allowed(method: Method, uri: Uri) -> Problem {
    Problem::method_not_allowed(&method, uri.path())
}
