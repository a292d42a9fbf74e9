//! Request bodies: how large, how slow, and what is wrong with them.

use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tokio::time::timeout;

use super::Problem;

/// How long a client may take to send its body.
const PATIENCE: Duration = Duration::from_secs(30);

/// Reads a JSON body as bytes, within bounds.
pub(super) async fn read_json(
    headers: &HeaderMap,
    body: Body,
    most: usize,
) -> Result<Bytes, Problem> {
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    // A page of another site can send other types without asking first, but not this one.
    if !kind.eq_ignore_ascii_case("application/json") {
        return Err(Problem::not_json());
    }
    read(body, most).await
}

/// Reads a body of any type, within bounds.
pub(super) async fn read(body: Body, most: usize) -> Result<Bytes, Problem> {
    match timeout(PATIENCE, to_bytes(body, most)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) => {
            let cut = std::error::Error::source(&error)
                .is_some_and(|source| source.to_string().contains("length limit"));
            if cut {
                Err(Problem::too_large(most))
            } else {
                let detail = format!("the body broke off: {error}");
                Err(Problem::malformed(None, detail))
            }
        }
        Err(_) => Err(Problem::too_slow()),
    }
}

/// Parses JSON. What goes wrong names the field; that costs a second parse, and only then.
pub(super) fn parse<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, Problem> {
    serde_json::from_slice(json).map_err(|_| complaint::<T>(json))
}

fn complaint<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Problem {
    let mut parser = serde_json::Deserializer::from_slice(json);
    let result = serde_path_to_error::deserialize::<_, T>(&mut parser);
    match result {
        Err(error) => {
            let detail = error.inner().to_string();
            let within = error.path().to_string();
            let within = Some(within).filter(|path| path != ".");
            // Where a field is missing there is no path to it, only to what it is missing in.
            let field = match (within, missing(&detail)) {
                (Some(within), Some(name)) => Some(format!("{within}.{name}")),
                (None, Some(name)) => Some(name.to_owned()),
                (within, None) => within,
            };
            Problem::malformed(field, detail)
        }
        Ok(_) => Problem::malformed(None, "something follows the JSON value: send one value"),
    }
}

/// The field that is missing, from what serde says.
fn missing(detail: &str) -> Option<&str> {
    let (name, _) = detail.strip_prefix("missing field `")?.split_once('`')?;
    Some(name)
}

/// Refuses what a page of another site sends through somebody's browser. Programs do not send this
/// header, and browsers do not let pages change it.
pub(super) async fn refuse_cross_site(request: Request, next: Next) -> Response {
    let site = request.headers().get("sec-fetch-site");
    let harmless = site.is_none_or(|site| site == "same-origin" || site == "none");
    if harmless || request.method().is_safe() {
        next.run(request).await
    } else {
        Problem::cross_site().into_response()
    }
}
