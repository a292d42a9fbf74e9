use anyhow::{Context, bail};
use serde::Deserialize;
use serde_json::json;

use super::{Connection, Endpoint};
use crate::services::deadline::Deadline;

/// What a server says first.
#[derive(Debug, Deserialize)]
struct Info {
    version: String,
    #[serde(default)]
    jetstream: bool,
    #[serde(default)]
    tls_required: bool,
}

/// The server must have `JetStream`, and `JetStream` must answer: in a cluster it does so only once
/// a leader is elected.
pub(super) fn probe(address: &str, deadline: Deadline) -> anyhow::Result<Option<String>> {
    const INBOX: &str = "_INBOX.laneway.probe";
    let endpoint = Endpoint::parse(address, 4222)?;
    let mut connection = Connection::open(&endpoint, deadline)?;
    let info = greeting(&connection.line()?)?;
    if !info.jetstream {
        bail!("nats-server {} runs without JetStream", info.version);
    }
    if info.tls_required || endpoint.scheme.as_deref() == Some("tls") {
        // It listens; the handshake of TLS is left to the tests.
        return Ok(Some(info.version));
    }

    let connect = json!({
        "verbose": false,
        "pedantic": false,
        "name": "laneway health check",
        "lang": "rust",
        "version": env!("CARGO_PKG_VERSION"),
        // A single word before the @ is a token.
        "auth_token": endpoint.password.is_none().then_some(&endpoint.user),
        "user": endpoint.password.is_some().then_some(&endpoint.user),
        "pass": &endpoint.password,
    });
    let ask = format!("CONNECT {connect}\r\nSUB {INBOX} 1\r\nPUB $JS.API.INFO {INBOX} 0\r\n\r\n");
    connection.send(ask.as_bytes())?;
    loop {
        let line = connection.line()?;
        if line == "PING" {
            connection.send(b"PONG\r\n")?;
        } else if let Some(error) = line.strip_prefix("-ERR") {
            bail!("the server refused: {}", error.trim());
        } else if line.starts_with("MSG ") {
            let length = line.rsplit(' ').next().unwrap_or_default();
            let answer = connection.exactly(length.parse().context("the length of MSG")?)?;
            check_jetstream(&answer)?;
            return Ok(Some(info.version));
        }
    }
}

fn greeting(line: &str) -> anyhow::Result<Info> {
    let json = line
        .strip_prefix("INFO ")
        .with_context(|| format!("greeted with {line:?}"))?;
    serde_json::from_str(json).context("INFO is not what nats-server sends")
}

fn check_jetstream(answer: &[u8]) -> anyhow::Result<()> {
    let answer: serde_json::Value = serde_json::from_slice(answer).context("JetStream")?;
    match answer.pointer("/error/description") {
        Some(error) => bail!("JetStream answered {error}"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greeting_tells_version_and_jetstream() {
        let info =
            greeting(r#"INFO {"version":"2.12.1","jetstream":true,"max_payload":1}"#).unwrap();
        assert_eq!((info.version.as_str(), info.jetstream), ("2.12.1", true));
        assert!(!greeting(r#"INFO {"version":"2.12.1"}"#).unwrap().jetstream);
        assert!(greeting("+PONG").is_err());
    }

    #[test]
    fn an_error_of_jetstream_is_not_healthy() {
        let error =
            br#"{"error":{"code":503,"description":"JetStream system temporarily unavailable"}}"#;
        assert!(check_jetstream(error).is_err());
        assert!(check_jetstream(br#"{"memory":0,"streams":0}"#).is_ok());
    }
}
