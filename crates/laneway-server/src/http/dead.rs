//! `/v1/dead`: messages that were given up.

use axum::Json;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use laneway_delay::{MessageId, StateName};
use serde_json::json;

use super::messages::{AcceptedView, page_of};
use super::{App, Problem, gate, query};

/// `GET /v1/dead`
pub(super) async fn list(
    State(app): State<App>,
    RawQuery(text): RawQuery,
) -> Result<Response, Problem> {
    let asked = query::parse(
        text.as_deref(),
        &["topic", "from", "until", "after", "limit"],
    )?;
    let page = app.delays.list(&asked.into_list(StateName::Dead)?).await?;
    Ok(page_of(&page))
}

/// `POST /v1/dead/{id}/replay`
pub(super) async fn replay(
    State(app): State<App>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    gate::simple_request(&headers)?;
    let accepted = app.delays.replay(&MessageId::new(id)?).await?;
    Ok((StatusCode::ACCEPTED, Json(AcceptedView::from(&accepted))).into_response())
}

/// `DELETE /v1/dead/{id}`
pub(super) async fn purge(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let id = MessageId::new(id)?;
    let message = app.delays.get(&id).await?;
    if StateName::from(message.record.state()) != StateName::Dead {
        return Err(Problem::not_dead(message.record.state().name()));
    }
    app.delays.purge(&id).await?;
    Ok(Json(json!({ "purged": 1 })).into_response())
}

/// `DELETE /v1/dead?topic=…` or `?all=true`: a parameter that is left out must not purge all of them.
pub(super) async fn purge_all(
    State(app): State<App>,
    RawQuery(text): RawQuery,
) -> Result<Response, Problem> {
    let asked = query::parse(text.as_deref(), &["topic", "all"])?;
    let purged = match (asked.get("topic"), asked.get("all")) {
        (Some(topic), None) => app.delays.purge_dead(Some(topic)).await?,
        (None, Some("true")) => app.delays.purge_dead(None).await?,
        _ => {
            let detail = "say which ones: ?topic=NAME, or ?all=true for all of them";
            return Err(Problem::invalid("topic", detail));
        }
    };
    Ok(Json(json!({ "purged": purged })).into_response())
}
