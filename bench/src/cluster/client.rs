//! Submits messages over HTTP, and asks.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::delay::http::Connection;

/// Messages of one request.
pub(super) const BATCH: u64 = 500;

/// Due when no benchmark is there any more.
pub(super) const NEXT_WEEK: &str = r#""delay":"7d""#;

/// A connection to a process of the cluster.
pub(super) struct Client(Connection);

impl Client {
    pub(super) async fn connect(port: u16) -> Result<Self> {
        Ok(Self(Connection::to(([127, 0, 0, 1], port).into()).await?))
    }

    pub(super) async fn get(&mut self, path: &str) -> Result<String> {
        self.0.get(path).await
    }

    /// Submits one message; it has to be accepted.
    pub(super) async fn submit(&mut self, message: &str) -> Result<()> {
        self.0.post("/v1/messages", message).await
    }

    /// Submits messages together; all of them have to be accepted.
    pub(super) async fn submit_all(&mut self, batch: &str) -> Result<()> {
        let answer = self.0.answer("POST", "/v1/messages:batch", batch).await?;
        let answer: Value = serde_json::from_str(&answer)?;
        let refused = &answer["refused"];
        let first = &answer["results"][0];
        ensure!(
            refused == 0,
            "{refused} were refused, the first one of all: {first}"
        );
        Ok(())
    }
}

/// A message of 128 bytes.
pub(super) fn message(when: &str, url: &str) -> String {
    let payload = "x".repeat(126);
    format!(
        r#"{{"topic":"bench",{when},"payload":"{payload}","target":{{"callback":{{"url":"{url}"}}}}}}"#
    )
}

/// A request with many.
pub(super) fn batch(messages: impl Iterator<Item = String>) -> String {
    let messages: Vec<String> = messages.collect();
    format!(r#"{{"messages":[{}]}}"#, messages.join(","))
}

/// Due at a moment in milliseconds.
pub(super) fn at(moment: u64) -> String {
    format!(r#""deliver_at":{moment}"#)
}

/// As milliseconds.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
