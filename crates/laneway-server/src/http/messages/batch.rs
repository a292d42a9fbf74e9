//! Many messages in one request, each on its own: one that is refused holds up none of the others.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use laneway_delay::{Extend, Message, MessageId};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::request::ExtendRequest;
use super::view::{AcceptedView, ChangedView};
use crate::http::body::Received;
use crate::http::problem::Members;
use crate::http::time::{Moment, Span};
use crate::http::{App, Problem, body};
use crate::messages::Error;

/// The most messages in one batch.
const MAX_BATCH: usize = 10_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Messages<'a> {
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WithdrawRequest {
    ids: Vec<String>,
    /// Whether those are ended, too, that may have been delivered.
    #[serde(default)]
    stop: bool,
}

/// One message to extend, and by how much.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExtendOne {
    id: String,
    by: Option<Span>,
    to: Option<Moment>,
}

/// What became of a batch of new messages.
#[derive(Serialize)]
struct AcceptedBatch<'a> {
    accepted: usize,
    refused: usize,
    results: Vec<View<'a, AcceptedView>>,
}

/// What became of a batch of changes.
#[derive(Serialize)]
struct ChangedBatch<'a> {
    changed: usize,
    refused: usize,
    results: Vec<View<'a, ChangedView<'a>>>,
}

/// What became of one message of a batch. They are in the order of the request.
#[derive(Serialize)]
#[serde(untagged)]
enum View<'a, V> {
    Good(V),
    Refused(Members<'a>),
}

/// `POST /v1/messages:batch`
pub(in crate::http) async fn submit(
    State(app): State<App>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let (json, _turn) = read(&app, &headers, body).await?;
    let messages = messages(&json)?;
    let request_id = super::request_id(&headers)?;
    let parsed = messages.iter();
    let parsed = parsed.map(|message| super::submission(&app, message.get().as_bytes()));
    let results = each(parsed, async |submissions| {
        let answers = app.delays.submit(submissions, request_id).await;
        for answer in &answers {
            app.delay_metrics.submitted(answer);
        }
        answers
    });
    let results = results.await;
    let accepted = good(&results);
    let view = AcceptedBatch {
        accepted,
        refused: results.len() - accepted,
        results: views(&results),
    };
    Ok((StatusCode::ACCEPTED, Json(view)).into_response())
}

/// `POST /v1/messages:extend`
pub(in crate::http) async fn extend(
    State(app): State<App>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let (json, _turn) = read(&app, &headers, body).await?;
    let messages = messages(&json)?;
    let parsed = messages.iter();
    let parsed = parsed.map(|one| -> Result<(MessageId, Extend), Problem> {
        let ExtendOne { id, by, to } = body::parse(one.get().as_bytes())?;
        let extend = ExtendRequest { by, to }.into_extend()?;
        Ok((MessageId::new(id)?, extend))
    });
    let request_id = super::request_id(&headers)?;
    let results = each(parsed, async |extends| {
        app.delays.extend(extends, request_id).await
    });
    Ok(changed(&results.await))
}

/// `POST /v1/messages:withdraw`
pub(in crate::http) async fn withdraw(
    State(app): State<App>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let (json, _turn) = read(&app, &headers, body).await?;
    let request: WithdrawRequest = body::parse(&json)?;
    check_count("ids", request.ids.len())?;
    let parsed = request.ids.into_iter();
    let parsed = parsed.map(|id| MessageId::new(id).map_err(Problem::from));
    let how = super::how(request.stop);
    let request_id = super::request_id(&headers)?;
    let results = each(parsed, async |ids| {
        app.delays.withdraw(ids, how, request_id).await
    });
    Ok(changed(&results.await))
}

/// Reads a body, and then waits for its turn to be worked on, so that batches cannot fill the memory all at once. A
/// client that sends slowly has no turn meanwhile.
async fn read<'a>(
    app: &'a App,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Received<'a>, impl Sized + use<'a>), Problem> {
    let json = body::read_json(headers, body, app.max_body, &app.room).await?;
    let turn = body::in_turn(app.batches.acquire()).await?;
    Ok((json, turn))
}

fn messages(json: &[u8]) -> Result<Vec<&RawValue>, Problem> {
    let Messages { messages } = body::parse(json)?;
    check_count("messages", messages.len())?;
    Ok(messages)
}

fn check_count(field: &str, count: usize) -> Result<(), Problem> {
    if count <= MAX_BATCH {
        return Ok(());
    }
    let detail = format!("there are {count}, and {MAX_BATCH} are the most: send several batches");
    Err(Problem::invalid(field, detail))
}

/// Does with those that can be read what is asked for, and puts the answers where they belong.
async fn each<T, A>(
    parsed: impl Iterator<Item = Result<T, Problem>>,
    work: impl AsyncFnOnce(Vec<T>) -> Vec<Result<A, Error>>,
) -> Vec<Result<A, Problem>> {
    let mut good = Vec::with_capacity(parsed.size_hint().0);
    let sort = |one: Result<T, Problem>| one.map(|one| good.push(one));
    let refusals: Vec<Result<(), Problem>> = parsed.map(sort).collect();
    let mut answers = work(good).await.into_iter();
    let answer = |refusal: Result<(), Problem>| {
        refusal?;
        let answer = answers.next().unwrap_or(Err(Error::CLOSED));
        answer.map_err(Problem::from)
    };
    refusals.into_iter().map(answer).collect()
}

fn changed(results: &[Result<Message, Problem>]) -> Response {
    let changed = good(results);
    let view = ChangedBatch {
        changed,
        refused: results.len() - changed,
        results: views(results),
    };
    Json(view).into_response()
}

fn good<T>(results: &[Result<T, Problem>]) -> usize {
    results.iter().filter(|result| result.is_ok()).count()
}

fn views<'a, T, V: From<&'a T>>(results: &'a [Result<T, Problem>]) -> Vec<View<'a, V>> {
    let view = |result: &'a Result<T, Problem>| match result {
        Ok(good) => View::Good(V::from(good)),
        Err(problem) => View::Refused(problem.members()),
    };
    results.iter().map(view).collect()
}
