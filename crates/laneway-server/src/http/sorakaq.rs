//! The routes of `SorakaQ`, for its users who move: `/sorakaq/msg/submit`, `cancel` and `addTime`.
//!
//! Requests and answers look as they did there: the status is always 200, and `ec` says how it went.
//! What is different is what was wrong: callbacks are retried and guarded, a submit is durable when it
//! is answered, and cancelling and adding time answer finally.

use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use laneway_delay::{Callback, Extend, MessageId, Method, Submission, Target, When, Withdraw};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::messages::request_id;
use super::{App, Problem, body, gate};
use crate::messages::Error;

const SUCCESS: u16 = 200;
const INVALID: u16 = 401;
const FAILED: u16 = 500;
const TOO_LATE: u16 = 501;

/// What it took where a message did not say.
const DEFAULT_TTR: u64 = 1_000;
const MAX_BODY: usize = 2 << 20;

/// Every request had the same form. What a route does not need is ignored, as it was there.
#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Request {
    topic_name: String,
    delay_time: u64,
    ttr: u64,
    callback: CallbackRequest,
    msg_id: String,
    add_time: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CallbackRequest {
    request_type: String,
    url: String,
    params: String,
}

/// The envelope of every answer.
#[derive(Serialize)]
struct Answer {
    ec: u16,
    em: String,
    result: Value,
}

impl Answer {
    fn success(result: impl Into<Value>) -> Response {
        let answer = Self {
            ec: SUCCESS,
            em: "success".to_owned(),
            result: result.into(),
        };
        Json(answer).into_response()
    }

    fn failure(ec: u16, em: impl Into<String>) -> Self {
        Self {
            ec,
            em: em.into(),
            result: Value::Bool(false),
        }
    }

    fn invalid(field: &str, problem: &str) -> Self {
        Self::failure(INVALID, format!("invalid params: {field}: {problem}"))
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        Json(self).into_response()
    }
}

impl From<Problem> for Answer {
    fn from(problem: Problem) -> Self {
        let field = problem.field().unwrap_or("body");
        if problem.status().is_client_error() {
            Self::invalid(field, problem.detail())
        } else {
            Self::failure(FAILED, format!("system error: {}", problem.detail()))
        }
    }
}

impl From<laneway_delay::Error> for Answer {
    fn from(error: laneway_delay::Error) -> Self {
        Error::from(error).into()
    }
}

impl From<Error> for Answer {
    #[cfg_attr(
        not(feature = "cluster"),
        expect(
            clippy::match_wildcard_for_single_variants,
            reason = "the others are of clusters"
        )
    )]
    fn from(error: Error) -> Self {
        match error {
            Error::Delay(laneway_delay::Error::Invalid {
                field: "due",
                problem,
            }) => Self::failure(TOO_LATE, problem),
            Error::Delay(laneway_delay::Error::Invalid {
                field: "target.url",
                problem,
            }) => Self::invalid("callback.url", &problem),
            other => Problem::from(other).into(),
        }
    }
}

/// The name of a field, and whether it is there.
type Needed = (&'static str, fn(&Request) -> bool);

/// Reads a request and insists on the fields that the route needs.
async fn read(
    app: &App,
    headers: &HeaderMap,
    body: Body,
    needed: &[Needed],
) -> Result<Request, Answer> {
    // Clients of SorakaQ send any type, or none. Browsers have to send JSON, which takes a page of another site
    // a question first.
    gate::simple_request(headers)?;
    let json = body::read(body, MAX_BODY.min(app.max_body), &app.room).await?;
    let request: Request = body::parse(&json)?;
    match needed.iter().find(|(_, there)| !there(&request)) {
        None => Ok(request),
        Some((field, _)) => Err(Answer::invalid(field, "it is missing")),
    }
}

/// `POST /sorakaq/msg/submit`
pub(super) async fn submit(
    State(app): State<App>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Response> {
    submit_checked(&app, &headers, body)
        .await
        .map_err(Answer::into_response)
}

async fn submit_checked(app: &App, headers: &HeaderMap, body: Body) -> Result<Response, Answer> {
    let request = read(
        app,
        headers,
        body,
        &[
            ("topic_name", |request| !request.topic_name.is_empty()),
            ("callback.request_type", |request| {
                !request.callback.request_type.is_empty()
            }),
            ("callback.url", |request| !request.callback.url.is_empty()),
        ],
    )
    .await?;
    let method = match request.callback.request_type.as_str() {
        "GET" => Method::Get,
        "POST" => Method::Post,
        _ => return Err(Answer::invalid("callback.request_type", "take GET or POST")),
    };
    let ttr = if request.ttr == 0 {
        DEFAULT_TTR
    } else {
        request.ttr
    };
    let target = Target::Callback(Callback {
        url: request.callback.url,
        method,
        headers: Vec::new(),
        timeout: Some(Duration::from_millis(ttr)),
    });
    let when = When::After(Duration::from_millis(request.delay_time));
    let submission = Submission::new(request.topic_name, when, target)
        .payload(Bytes::from(request.callback.params))
        .content_type("application/json");
    let accepted = app
        .delays
        .submit_one(submission, request_id(headers)?)
        .await;
    app.delay_metrics.submitted(&accepted);
    Ok(Answer::success(json!({ "msgId": accepted?.id.as_str() })))
}

/// `POST /sorakaq/msg/cancel`
pub(super) async fn cancel(
    State(app): State<App>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Response> {
    cancel_checked(&app, &headers, body)
        .await
        .map_err(Answer::into_response)
}

async fn cancel_checked(app: &App, headers: &HeaderMap, body: Body) -> Result<Response, Answer> {
    let request = read(
        app,
        headers,
        body,
        &[
            ("topic_name", |request| !request.topic_name.is_empty()),
            ("msg_id", |request| !request.msg_id.is_empty()),
        ],
    )
    .await?;
    let id = MessageId::new(request.msg_id)?;
    let withdrawn = app
        .delays
        .withdraw_one(id, Withdraw::Unsent, request_id(headers)?)
        .await;
    Ok(Answer::success(yes_or_no(withdrawn)?))
}

/// `POST /sorakaq/msg/addTime`
pub(super) async fn add_time(
    State(app): State<App>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Response> {
    add_time_checked(&app, &headers, body)
        .await
        .map_err(Answer::into_response)
}

async fn add_time_checked(app: &App, headers: &HeaderMap, body: Body) -> Result<Response, Answer> {
    let request = read(
        app,
        headers,
        body,
        &[
            ("topic_name", |request| !request.topic_name.is_empty()),
            ("msg_id", |request| !request.msg_id.is_empty()),
            ("add_time", |request| request.add_time != 0),
        ],
    )
    .await?;
    let extend = Extend::By(Duration::from_millis(request.add_time));
    let id = MessageId::new(request.msg_id)?;
    let extended = app
        .delays
        .extend_one(id, extend, request_id(headers)?)
        .await;
    Ok(Answer::success(yes_or_no(extended)?))
}

/// There, a message that is gone or cannot be changed any more is no error, but a no.
fn yes_or_no<T>(result: Result<T, Error>) -> Result<bool, Error> {
    match result {
        Ok(_) => Ok(true),
        Err(error) if error.is_no() => Ok(false),
        Err(error) => Err(error),
    }
}
