//! `/v1/messages`: submit, extend, withdraw, look.

mod batch;
mod request;
mod view;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use laneway_delay::{MessageId, Page, Query, StateName, Submission};
use serde::Serialize;

pub(super) use batch::{
    extend as extend_batch, submit as submit_batch, withdraw as withdraw_batch,
};
pub(super) use request::check_url;
pub(crate) use view::{AcceptedView, MessageView};

use super::{App, Problem, body, query};
use request::{ExtendRequest, SubmitRequest};

/// The largest body of anything but a batch: the largest payload in base64, and room beside it.
const MAX_SINGLE: usize = 2 << 20;

/// `POST /v1/messages`
pub(super) async fn submit(
    State(app): State<App>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let json = body::read_json(&headers, body, MAX_SINGLE.min(app.max_body)).await?;
    let mut submission = submission(&app, &json)?;
    if let Some(key) = idempotency_key(&headers)? {
        if submission
            .idempotency_key
            .as_ref()
            .is_some_and(|other| *other != key)
        {
            let detail = "the header and the body have different keys: send one of them";
            return Err(Problem::invalid("idempotency_key", detail));
        }
        submission.idempotency_key = Some(key);
    }
    let accepted = app.delays.submit_one(submission).await;
    app.figures.submitted(&accepted);
    let accepted = accepted?;
    let location = format!("/v1/messages/{}", accepted.id);
    let view = AcceptedView::from(&accepted);
    Ok((
        StatusCode::ACCEPTED,
        [(header::LOCATION, location)],
        Json(view),
    )
        .into_response())
}

fn submission(app: &App, json: &[u8]) -> Result<Submission, Problem> {
    let request: SubmitRequest<'_> = body::parse(json)?;
    let submission = request.into_submission(app.delays.now(), app.client.guard());
    submission.inspect_err(|_| app.figures.refused())
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get("idempotency-key") else {
        return Ok(None);
    };
    let key = value.to_str().map(str::trim).map_err(|_| {
        Problem::invalid(
            "Idempotency-Key",
            "it has characters that are not visible ASCII: use others",
        )
    })?;
    // With quotes it is the same key: the draft of the header wants them, and hardly anybody sends them.
    let unquoted = key.strip_prefix('"').and_then(|key| key.strip_suffix('"'));
    Ok(Some(unquoted.unwrap_or(key).to_owned()))
}

/// `POST /v1/messages/{id}/extend`
pub(super) async fn extend(
    State(app): State<App>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let id = MessageId::new(id)?;
    let json = body::read_json(&headers, body, MAX_SINGLE.min(app.max_body)).await?;
    let request: ExtendRequest = body::parse(&json)?;
    let message = app.delays.extend(&id, request.into_extend()?).await?;
    Ok(Json(MessageView::brief(&message)).into_response())
}

/// `DELETE /v1/messages/{id}`
pub(super) async fn withdraw(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let message = app.delays.withdraw(&MessageId::new(id)?).await?;
    Ok(Json(MessageView::brief(&message)).into_response())
}

/// `GET /v1/messages/{id}`
pub(super) async fn get(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let message = app.delays.get(&MessageId::new(id)?).await?;
    Ok(Json(MessageView::whole(&message)).into_response())
}

/// `GET /v1/messages`
pub(super) async fn list(
    State(app): State<App>,
    RawQuery(text): RawQuery,
) -> Result<Response, Problem> {
    let asked = query::parse(
        text.as_deref(),
        &["topic", "state", "from", "until", "after", "limit"],
    )?;
    let state = match asked.get("state") {
        Some(name) => name.parse()?,
        None => StateName::Scheduled,
    };
    let page = app.delays.list(&asked.into_query(state)?).await?;
    Ok(page_of(&page))
}

#[derive(Serialize)]
struct PageView<'a> {
    messages: Vec<MessageView<'a>>,
    /// What to send as `after` for the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

pub(super) fn page_of(page: &Page) -> Response {
    let view = PageView {
        messages: page.messages.iter().map(MessageView::brief).collect(),
        next: page.next.map(|next| next.to_string()),
    };
    Json(view).into_response()
}

impl query::Asked {
    /// The query for a list in this state.
    pub(super) fn into_query(self, state: StateName) -> Result<Query, Problem> {
        let mut query = Query::new(state);
        query.topic = self.get("topic").map(str::to_owned);
        query.from = self.moment("from")?;
        query.until = self.moment("until")?;
        query.after = self.get("after").map(str::parse).transpose()?;
        if let Some(limit) = self.get("limit") {
            let usable = limit
                .parse()
                .ok()
                .filter(|limit| (1..=Query::MAX_LIMIT).contains(limit));
            query.limit = usable.ok_or_else(|| {
                let detail = format!("`{limit}` is not a number from 1 to {}", Query::MAX_LIMIT);
                Problem::invalid("limit", detail)
            })?;
        }
        Ok(query)
    }
}
