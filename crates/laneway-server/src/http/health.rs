//! Is it alive, does it want requests, which one is it?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use super::App;
use crate::build_info::{BUILD, BuildInfo};

/// Whether new requests are welcome. Not any more, once the server is told to stop.
#[derive(Clone, Debug, Default)]
pub(crate) struct Readiness {
    draining: Arc<AtomicBool>,
}

impl Readiness {
    pub(crate) fn start_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }
}

/// That it answers is the answer.
pub(super) async fn live() -> &'static str {
    "ok\n"
}

pub(super) async fn ready(State(app): State<App>) -> (StatusCode, String) {
    if app.readiness.draining.load(Ordering::Relaxed) {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n".to_owned());
    }
    match app.delays.health() {
        Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}

pub(super) async fn version() -> Json<BuildInfo> {
    Json(BUILD)
}
