//! What a NATS server tells at its monitoring address.

use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// More than any server has to say.
const LONGEST_ANSWER: u64 = 1 << 20;

/// What is of interest to us.
#[derive(Debug, Deserialize)]
pub(super) struct Told {
    #[serde(default)]
    pub(super) jetstream: JetStream,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct JetStream {
    pub(super) config: Option<Config>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Config {
    #[serde(default)]
    pub(super) sync_always: bool,
    /// In nanoseconds.
    pub(super) sync_interval: Option<u64>,
}

/// Asks a monitoring address such as `http://localhost:8222`.
pub(super) async fn ask(address: &str) -> Result<Told, String> {
    let host = address.strip_prefix("http://").unwrap_or(address);
    let host = host.trim_end_matches('/');
    match timeout(ANSWER_WITHIN, get(host)).await {
        Ok(answer) => answer.map_err(|error| format!("{address}: {error}")),
        Err(_) => Err(format!("{address}: no answer within {ANSWER_WITHIN:?}")),
    }
}

async fn get(host: &str) -> Result<Told, String> {
    let told = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect(host).await.map_err(told)?;
    // Version 1.0: the answer comes in one piece, and ends with the connection.
    let request = format!("GET /varz HTTP/1.0\r\nHost: {host}\r\nAccept: application/json\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(told)?;
    let mut answer = String::new();
    let mut limited = stream.take(LONGEST_ANSWER);
    limited.read_to_string(&mut answer).await.map_err(told)?;
    let (_, body) = answer
        .split_once("\r\n\r\n")
        .ok_or("this is not a monitoring address")?;
    serde_json::from_str(body)
        .map_err(|error| format!("this is not a monitoring address ({error})"))
}
