//! One request, one answer, one connection: what a client does that has no pool.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// What came back.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Value,
}

/// Asks a server on this machine. An error: nothing is known about what it did.
pub(super) async fn ask(port: u16, request: &Request<'_>, limit: Duration) -> Result<Answer> {
    timeout(limit, exchange(port, request))
        .await
        .context("no answer in time")?
}

/// A request.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Request<'a> {
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    /// Whole lines.
    pub(super) headers: &'a str,
    pub(super) body: &'a str,
}

async fn exchange(port: u16, request: &Request<'_>) -> Result<Answer> {
    let Request {
        method,
        path,
        headers,
        body,
    } = request;
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let length = body.len();
    let text = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         {headers}content-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(text.as_bytes()).await?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await?;
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").context("no answer")?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Ok(Answer {
        status: status.context("no status")?,
        body: serde_json::from_str(body).unwrap_or_default(),
    })
}
