//! Errors as problem details (RFC 9457).

use axum::Json;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// An error answer that says what went wrong, to programs and to people.
///
/// The type is always `about:blank`: the status says it all, and `detail` says it again in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    status: StatusCode,
    detail: String,
    instance: String,
}

/// The members on the wire, in the order of the RFC.
#[derive(Serialize)]
struct Members<'a> {
    r#type: &'a str,
    title: &'a str,
    status: u16,
    detail: &'a str,
    instance: &'a str,
}

impl Problem {
    pub(crate) fn not_found(path: &str) -> Self {
        let path = shorten(path);
        Self {
            status: StatusCode::NOT_FOUND,
            detail: format!("there is nothing at {path}; GET / lists what there is"),
            instance: path,
        }
    }

    pub(crate) fn method_not_allowed(method: &Method, path: &str) -> Self {
        let path = shorten(path);
        let method = shorten(method.as_str());
        Self {
            status: StatusCode::METHOD_NOT_ALLOWED,
            detail: format!("{path} does not take {method}; the Allow header says what it takes"),
            instance: path,
        }
    }
}

/// A path can be as long as a request head. Nobody needs all of that back.
fn shorten(text: &str) -> String {
    const LONGEST: usize = 200;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let members = Members {
            r#type: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            detail: &self.detail,
            instance: &self.instance,
        };
        let kind = [(header::CONTENT_TYPE, "application/problem+json")];
        (self.status, kind, Json(members)).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_is_shortened() {
        let problem = Problem::not_found(&format!("/{}", "é".repeat(1_000)));
        assert_eq!(problem.instance.chars().count(), 201);
        assert!(problem.instance.ends_with('…'));
    }

    #[test]
    fn the_content_type_is_that_of_problem_details() {
        let response = Problem::not_found("/x").into_response();
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
        let kind = &response.headers()[header::CONTENT_TYPE];
        assert_eq!(kind, "application/problem+json");
    }
}
