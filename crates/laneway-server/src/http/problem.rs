//! Errors as problem details (RFC 9457).

use axum::Json;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use laneway_delay::Error;
use laneway_delay::message::Reason;
use serde::Serialize;

use super::time::date;
use crate::messages;

/// An error answer that says what went wrong, to programs and to people.
///
/// The type is always `about:blank`: the status and `code` say it all to programs, and `detail`
/// says it in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    /// The path, where that is what is wrong.
    instance: Option<String>,
    /// The part of the request that is wrong.
    field: Option<String>,
    /// The state of the message that stands in the way.
    state: Option<&'static str>,
}

/// The members on the wire, in the order of the RFC, and then our own.
#[derive(Serialize)]
pub(crate) struct Members<'a> {
    r#type: &'a str,
    title: &'a str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<&'a str>,
    code: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'a str>,
}

impl Problem {
    fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            status,
            code,
            detail: detail.into(),
            instance: None,
            field: None,
            state: None,
        }
    }

    pub(crate) fn not_found(path: &str) -> Self {
        let path = shorten(path);
        let detail = format!("there is nothing at {path}; GET / lists what there is");
        Self {
            instance: Some(path),
            ..Self::new(StatusCode::NOT_FOUND, "no_such_path", detail)
        }
    }

    pub(crate) fn method_not_allowed(method: &Method, path: &str) -> Self {
        let path = shorten(path);
        let method = shorten(method.as_str());
        let detail = format!("{path} does not take {method}; the Allow header says what it takes");
        Self {
            instance: Some(path),
            ..Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail)
        }
    }

    /// The body is not JSON, or not of the form that is asked for.
    pub(crate) fn malformed(field: Option<String>, detail: impl Into<String>) -> Self {
        Self {
            field: field.filter(|field| !field.is_empty()),
            ..Self::new(StatusCode::BAD_REQUEST, "malformed", detail)
        }
    }

    /// A part of the request has the right form and a value that cannot be taken.
    pub(crate) fn invalid(field: &str, detail: impl Into<String>) -> Self {
        Self {
            field: Some(field.to_owned()),
            ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail)
        }
    }

    pub(crate) fn not_json() -> Self {
        let detail = "the content type is not application/json: send JSON, and say so \
                      (curl: --json, or -H 'content-type: application/json')";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not_json", detail)
    }

    pub(crate) fn too_large(most: usize) -> Self {
        let detail = format!("the body has more than {most} bytes: send less at a time");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail)
    }

    pub(crate) fn too_slow() -> Self {
        let detail = "the body did not come in time: send it again";
        Self::new(StatusCode::REQUEST_TIMEOUT, "too_slow", detail)
    }

    pub(crate) fn busy() -> Self {
        let detail = "too many large requests came at once: send it again in a moment";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail)
    }

    pub(crate) fn not_dead(state: &'static str) -> Self {
        let detail = format!("the message is {state}, not dead: withdraw it if it is scheduled");
        Self {
            state: Some(state),
            ..Self::new(StatusCode::CONFLICT, "state", detail)
        }
    }

    pub(crate) fn cross_site() -> Self {
        let detail = "this came from a page of another site, which may not do that";
        Self::new(StatusCode::FORBIDDEN, "cross_site", detail)
    }

    pub(crate) fn no_bus() -> Self {
        let detail = "this server has no bus: start it with --bus nats://HOST:PORT or --bus kafka://HOST:PORT, or \
                      use a callback";
        Self::invalid("target.bus", detail)
    }

    /// 421: a request for another server, as DNS rebinding makes it.
    pub(crate) fn unknown_host(host: &str) -> Self {
        let host = shorten(host);
        let detail = format!(
            "this server does not go by the name {host:?}: use its address or localhost, or add the name to \
             serve.hosts (--hosts)"
        );
        Self::new(StatusCode::MISDIRECTED_REQUEST, "unknown_host", detail)
    }

    /// What can only go wrong in a cluster.
    #[cfg(feature = "cluster")]
    fn of_cluster(error: &messages::Error) -> Self {
        use messages::Error;
        let detail = error.to_string();
        match error {
            Error::IdAndKey => Self::malformed(Some("idempotency_key".to_owned()), detail),
            Error::Intake { is_safe: false, .. } => {
                Self::new(StatusCode::GATEWAY_TIMEOUT, "outcome_unknown", detail)
            }
            Error::OtherCommand => Self::invalid("key", detail),
            Error::TooManyCommands(_) => Self {
                field: Some("by".to_owned()),
                ..Self::new(StatusCode::CONFLICT, "too_many_extends", detail)
            },
            Error::Intake { .. } => Self::new(StatusCode::SERVICE_UNAVAILABLE, "log_away", detail),
            Error::Undecided { .. } => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "undecided", detail)
            }
            Error::NoOwner(_) | Error::Delay(_) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "no_owner", detail)
            }
        }
    }

    /// Nothing, or nothing known, was set in the catalog of the cluster.
    #[cfg(feature = "cluster")]
    pub(crate) fn not_set<E: std::fmt::Display>(error: &crate::cluster::NotSet<E>) -> Self {
        let (status, code) = match error {
            crate::cluster::NotSet::Full { .. } => {
                (StatusCode::INSUFFICIENT_STORAGE, "catalog_full")
            }
            _ => (StatusCode::SERVICE_UNAVAILABLE, "log_away"),
        };
        Self::new(status, code, error.to_string())
    }

    /// Which instance of the cluster is meant cannot be said.
    #[cfg(feature = "cluster")]
    pub(crate) fn unclear(error: &crate::cluster::Unclear) -> Self {
        let (status, code) = match error {
            crate::cluster::Unclear::Unknown(_) => (StatusCode::NOT_FOUND, "no_such_instance"),
            crate::cluster::Unclear::Ambiguous { .. } => (StatusCode::CONFLICT, "ambiguous"),
        };
        Self::new(status, code, error.to_string())
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    pub(crate) fn field(&self) -> Option<&str> {
        self.field.as_deref()
    }

    pub(crate) fn members(&self) -> Members<'_> {
        Members {
            r#type: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            detail: &self.detail,
            instance: self.instance.as_deref(),
            code: self.code,
            field: self.field.as_deref(),
            state: self.state,
        }
    }
}

impl From<messages::Error> for Problem {
    fn from(error: messages::Error) -> Self {
        match error {
            messages::Error::Delay(error) => error.into(),
            #[cfg(feature = "cluster")]
            other => Self::of_cluster(&other),
        }
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let detail = error.to_string();
        // The field has a member of its own.
        let own = |field: &str| {
            let bare = detail
                .strip_prefix(field)
                .and_then(|rest| rest.strip_prefix(": "));
            bare.unwrap_or(&detail).to_owned()
        };
        match error {
            Error::Invalid { field, problem } => Self::invalid(on_the_wire(field), problem),
            Error::NotFound(_) => Self::new(StatusCode::NOT_FOUND, "no_such_message", detail),
            Error::Refused(refusal) => match refusal.reason {
                Reason::NotLater { due, after } => {
                    let (due, after) = (date(due), date(after));
                    let detail = format!("{due} is not later than {after}: choose a later moment");
                    Self::invalid("to", detail)
                }
                _ => Self {
                    state: Some(refusal.state.name()),
                    ..Self::new(StatusCode::CONFLICT, "state", detail)
                },
            },
            Error::IdTaken(_) => Self {
                field: Some("id".to_owned()),
                ..Self::new(StatusCode::CONFLICT, "id_taken", own("id"))
            },
            Error::KeyReused { .. } => Self {
                field: Some("idempotency_key".to_owned()),
                ..Self::new(StatusCode::CONFLICT, "key_reused", own("idempotency_key"))
            },
            Error::DiskFull { .. } => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, "disk_full", detail)
            }
            Error::Unanswered(_) | Error::Unconfirmed(_) => {
                Self::new(StatusCode::GATEWAY_TIMEOUT, "outcome_unknown", detail)
            }
            Error::Closed => {
                let detail = "the server is stopping: send it again in a moment";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", detail)
            }
            _ => Self::new(StatusCode::SERVICE_UNAVAILABLE, "store", detail),
        }
    }
}

/// The core knows the parts of a submission, and not how they are nested in JSON.
fn on_the_wire(field: &str) -> &str {
    match field {
        "due" => "delay",
        "target.url" => "target.callback.url",
        "target.method" => "target.callback.method",
        "target.headers" => "target.callback.headers",
        "target.timeout" => "target.callback.timeout",
        "target.topic" => "target.bus.topic",
        "target.aggregate_id" => "target.bus.aggregate_id",
        "target.event_type" => "target.bus.event_type",
        other => other,
    }
}

/// A path can be as long as a request head. It is cut in an answer.
fn shorten(text: &str) -> String {
    const LONGEST: usize = 200;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.members())).into_response();
        let headers = response.headers_mut();
        let kind = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, kind);
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_is_shortened() {
        let problem = Problem::not_found(&format!("/{}", "é".repeat(1_000)));
        let instance = problem.instance.expect("a path");
        assert_eq!(instance.chars().count(), 201);
        assert!(instance.ends_with('…'));
    }

    #[test]
    fn the_content_type_is_that_of_problem_details() {
        let response = Problem::not_found("/x").into_response();
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
        let kind = &response.headers()[header::CONTENT_TYPE];
        assert_eq!(kind, "application/problem+json");
    }
}
