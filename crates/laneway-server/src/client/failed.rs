//! How a command failed, for people and for scripts.

use std::fmt;
use std::process::ExitCode;

use reqwest::StatusCode;
use serde_json::{Value, json};

/// A failure with an exit code of its own.
///
/// | code | when |
/// |---|---|
/// | 1 | anything else |
/// | 2 | the command line is wrong |
/// | 3 | there is no such message |
/// | 4 | the message is in a state that does not allow it, or the id or key is taken |
/// | 5 | the server cannot be reached |
/// | 6 | the server cannot take it now: it stops, or its disk is full |
/// | 7 | the request was sent, and it is not known whether it happened |
#[derive(Debug)]
pub(crate) struct Failed {
    code: u8,
    detail: String,
    /// One line, for `--json`.
    json: Option<String>,
}

impl Failed {
    pub(super) fn refused(status: StatusCode, text: String, problem: &Value) -> Self {
        let code = match status.as_u16() {
            404 => 3,
            409 => 4,
            504 => 7,
            500..=599 => 6,
            _ => 1,
        };
        Self {
            code,
            detail: refusal(status, problem),
            json: Some(text),
        }
    }

    /// The command line is wrong.
    pub(crate) fn usage(text: &str) -> Self {
        let detail = text.trim().trim_start_matches("error: ").to_owned();
        Self {
            code: 2,
            json: Some(json!({ "code": "usage", "detail": detail }).to_string()),
            detail,
        }
    }

    pub(super) fn unreachable(detail: String) -> Self {
        Self::without_answer(5, "unreachable", detail)
    }

    pub(super) fn outcome_unknown(detail: String) -> Self {
        Self::without_answer(7, "outcome_unknown", detail)
    }

    /// A failure of a command that asks no server.
    #[cfg(feature = "cluster")]
    pub(crate) fn of(code: u8, name: &str, detail: String) -> Self {
        Self::without_answer(code, name, detail)
    }

    fn without_answer(code: u8, name: &str, detail: String) -> Self {
        let first = detail.lines().next().unwrap_or_default();
        Self {
            code,
            json: Some(json!({ "code": name, "detail": first }).to_string()),
            detail,
        }
    }

    /// Whether the message is gone, or not in a state any more that allows it.
    pub(super) fn is_about_state(&self) -> bool {
        matches!(self.code, 3 | 4)
    }

    /// The same, with what had been done before.
    pub(super) fn after(mut self, done: &str, count: usize) -> Self {
        self.detail = format!("{}\n  {done} before that: {count}", self.detail);
        let json = self.json.as_deref().map(serde_json::from_str::<Value>);
        if let Some(Ok(Value::Object(mut members))) = json {
            members.insert(done.to_owned(), count.into());
            self.json = Some(Value::Object(members).to_string());
        }
        self
    }

    /// Any failure, as one of these.
    pub(crate) fn from_any(error: anyhow::Error, as_json: bool) -> Self {
        let mut failed = error.downcast::<Self>().unwrap_or_else(|error| {
            let detail = format!("{error:#}");
            Self {
                code: 1,
                json: Some(json!({ "code": "failed", "detail": detail }).to_string()),
                detail,
            }
        });
        if !as_json {
            failed.json = None;
        }
        failed
    }

    /// Tells on standard error, and answers how the process ends.
    pub(crate) fn tell(&self) -> ExitCode {
        let line = match &self.json {
            Some(json) => format!("{}\n", json.trim_end()),
            None => format!("laneway: {}\n", self.detail),
        };
        let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl std::error::Error for Failed {}

/// What a problem says, in one line.
fn refusal(status: StatusCode, problem: &Value) -> String {
    let member = |name: &str| problem.get(name).and_then(Value::as_str);
    let detail = member("detail").unwrap_or("it does not say why");
    let field = member("field").map(|field| format!("{field}: "));
    format!(
        "{}{detail} ({})",
        field.unwrap_or_default(),
        status.as_u16()
    )
}
