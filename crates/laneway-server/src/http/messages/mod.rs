//! `/v1/messages`: submit, extend, withdraw, look.

mod batch;
mod request;
mod view;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use laneway::trace::TraceParent;
use laneway_delay::{MessageId, Query, StateName, Submission, Target, Withdraw};
use serde::Serialize;

pub(super) use batch::{
    extend as extend_batch, submit as submit_batch, withdraw as withdraw_batch,
};
pub(crate) use view::{AcceptedView, MessageView};

use super::{App, Problem, body, query};
use crate::messages::{List, Listed};
use request::{ExtendRequest, SubmitRequest};

/// The largest body of anything but a batch: the largest payload in base64, and room beside it.
const MAX_SINGLE: usize = 2 << 20;

/// A proxy that sends a request to the next server sets it, so that no message is taken twice.
const REQUEST_ID: &str = "laneway-request-id";

/// `POST /v1/messages`
pub(super) async fn submit(
    State(app): State<App>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let json = read(&app, &headers, body).await?;
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
    trace(&mut submission, &headers);
    let accepted = app
        .delays
        .submit_one(submission, request_id(&headers)?)
        .await;
    app.delay_metrics.submitted(&accepted);
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

/// Reads the body of anything but a batch.
async fn read<'a>(
    app: &'a App,
    headers: &HeaderMap,
    body: Body,
) -> Result<body::Received<'a>, Problem> {
    body::read_json(headers, body, MAX_SINGLE.min(app.max_body), &app.room).await
}

fn submission(app: &App, json: &[u8]) -> Result<Submission, Problem> {
    let request: SubmitRequest<'_> = body::parse(json)?;
    let submission = request.into_submission(app.delays.now());
    let submission = submission.and_then(|submission| match submission.target {
        // The store has an embedded bus beside it, which no other process can read.
        Target::Bus(_) if !app.has_bus => Err(Problem::no_bus()),
        _ => Ok(submission),
    });
    submission.inspect_err(|_| app.delay_metrics.refused())
}

/// Hands the trace of the request on to the callback, unless the message has one of its own. What is not a trace is
/// left out: the message is accepted all the same.
fn trace(submission: &mut Submission, headers: &HeaderMap) {
    let Target::Callback(callback) = &mut submission.target else {
        return;
    };
    let has = |name: &str| {
        let mut own = callback.headers.iter();
        own.any(|(own, _)| own.eq_ignore_ascii_case(name))
    };
    let said = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let Some(parent) = said("traceparent").filter(|parent| TraceParent::parse(parent).is_ok())
    else {
        return;
    };
    if has("traceparent") || has("tracestate") {
        return;
    }
    let state = said("tracestate").filter(|state| state.len() <= 512);
    callback
        .headers
        .push(("traceparent".to_owned(), parent.to_owned()));
    callback
        .headers
        .extend(state.map(|state| ("tracestate".to_owned(), state.to_owned())));
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
    // With quotes it is the same key: the draft of the header wants them, and few clients send them.
    let unquoted = key.strip_prefix('"').and_then(|key| key.strip_suffix('"'));
    Ok(Some(unquoted.unwrap_or(key).to_owned()))
}

/// What a proxy calls this request, the same for all of its tries.
pub(super) fn request_id(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let Some(value) = headers.get(REQUEST_ID) else {
        return Ok(None);
    };
    let id = value.to_str().ok();
    let id = id.filter(|id| !id.is_empty() && id.len() <= MessageId::MAX_BYTES);
    let detail = "it is not 1 to 128 visible characters of ASCII: set it to `$request_id` in nginx";
    let id = id.ok_or_else(|| Problem::invalid("Laneway-Request-Id", detail))?;
    Ok(Some(id))
}

/// `POST /v1/messages/{id}/extend`
pub(super) async fn extend(
    State(app): State<App>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let id = MessageId::new(id)?;
    let json = read(&app, &headers, body).await?;
    let request: ExtendRequest = body::parse(&json)?;
    let (extend, request_id) = (request.into_extend()?, request_id(&headers)?);
    let message = app.delays.extend_one(id, extend, request_id).await?;
    Ok(Json(MessageView::brief(&message)).into_response())
}

/// `DELETE /v1/messages/{id}`
pub(super) async fn withdraw(
    State(app): State<App>,
    Path(id): Path<String>,
    RawQuery(text): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let asked = query::parse(text.as_deref(), &["stop"])?;
    let how = how(asked.flag("stop")?);
    let id = MessageId::new(id)?;
    let request_id = request_id(&headers)?;
    let message = app.delays.withdraw_one(id, how, request_id).await?;
    Ok(Json(MessageView::brief(&message)).into_response())
}

/// How a message is taken back.
fn how(stop: bool) -> Withdraw {
    if stop {
        Withdraw::Stop
    } else {
        Withdraw::Unsent
    }
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
    let page = app.delays.list(&asked.into_list(state)?).await?;
    Ok(page_of(&page))
}

#[derive(Serialize)]
struct PageView<'a> {
    messages: Vec<MessageView<'a>>,
    /// What to send as `after` for the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<&'a str>,
    /// Shards whose messages are missing, since no center has them now.
    #[serde(skip_serializing_if = "<[u32]>::is_empty")]
    incomplete: &'a [u32],
}

pub(super) fn page_of(page: &Listed) -> Response {
    let view = PageView {
        messages: page.messages.iter().map(MessageView::brief).collect(),
        next: page.next.as_deref(),
        incomplete: &page.incomplete,
    };
    Json(view).into_response()
}

impl query::QueryParams {
    /// The list of those in this state.
    pub(super) fn into_list(self, state: StateName) -> Result<List, Problem> {
        let mut query = Query::new(state);
        query.topic = self.get("topic").map(str::to_owned);
        query.from = self.moment("from")?;
        query.until = self.moment("until")?;
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
        let after = self.get("after").map(str::to_owned);
        Ok(List { query, after })
    }
}
