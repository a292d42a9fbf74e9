//! The routes of the role admin: `/v1/cluster`, and `/v1/topics` with the workers of topics.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Extension, Json, Router};
use serde_json::json;

use super::{App, Problem, body, gate};
use crate::cluster::{Admin, NotSet, PlacementChange, Unclear, Unfit};

/// The largest body of a request here.
const LARGEST: usize = 1 << 20;

type Of = Extension<Arc<Admin>>;

/// The routes of the role admin.
pub(super) fn routes(admin: &Arc<Admin>) -> Router<App> {
    Router::new()
        .route("/v1/cluster", get(look))
        .route("/v1/cluster/instances/{which}", delete(remove))
        .route("/v1/cluster/instances/{which}/drain", post(drain))
        .route("/v1/topics", get(topics))
        .route(
            "/v1/topics/{topic}/placement",
            get(placement).put(place).delete(unplace),
        )
        .layer(Extension(admin.clone()))
}

/// `GET /v1/cluster`
async fn look(Extension(admin): Of) -> Response {
    Json(admin.overview.look().await).into_response()
}

/// `POST /v1/cluster/instances/{which}/drain`
async fn drain(
    Extension(admin): Of,
    Path(which): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    gate::simple_request(&headers)?;
    let told = admin.instances.drain(&which).await.map_err(unclear)?;
    Ok(Json(json!({ "drained": told })).into_response())
}

/// `DELETE /v1/cluster/instances/{which}`
async fn remove(Extension(admin): Of, Path(which): Path<String>) -> Result<Response, Problem> {
    let told = admin.instances.remove(&which).await.map_err(unclear)?;
    Ok(Json(json!({ "removed": told })).into_response())
}

/// `GET /v1/topics`
async fn topics(Extension(admin): Of) -> Response {
    Json(json!({ "topics": admin.placements.list() })).into_response()
}

/// `GET /v1/topics/{topic}/placement`
async fn placement(Extension(admin): Of, Path(topic): Path<String>) -> Result<Response, Problem> {
    let view = admin.placements.get(&topic).map_err(unfit)?;
    Ok(Json(view).into_response())
}

/// `PUT /v1/topics/{topic}/placement`
async fn place(
    State(app): State<App>,
    Extension(admin): Of,
    Path(topic): Path<String>,
    headers: HeaderMap,
    sent: Body,
) -> Result<Response, Problem> {
    let json = body::read_json(&headers, sent, LARGEST, &app.room).await?;
    let change: PlacementChange = body::parse(&json)?;
    let placed = admin.placements.put(&topic, &change).await;
    Ok(Json(placed.map_err(not_placed)?).into_response())
}

/// `DELETE /v1/topics/{topic}/placement`
async fn unplace(Extension(admin): Of, Path(topic): Path<String>) -> Result<Response, Problem> {
    let placed = admin.placements.delete(&topic).await;
    Ok(Json(placed.map_err(not_placed)?).into_response())
}

fn unfit(unfit: Unfit) -> Problem {
    Problem::invalid(unfit.field, unfit.problem)
}

fn not_placed(error: NotSet<Unfit>) -> Problem {
    match error {
        NotSet::Refused(refused) => unfit(refused),
        other => Problem::not_set(&other),
    }
}

fn unclear(error: NotSet<Unclear>) -> Problem {
    match error {
        NotSet::Refused(refused) => Problem::unclear(&refused),
        other => Problem::not_set(&other),
    }
}
