//! `laneway listen`: a receiver of callbacks that prints what comes.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use clap::Args;
use laneway_delay::callback::{Secret, signature};
use tokio::net::TcpListener;

use crate::http::Connections;
use crate::http::accept::{self, Limits};

/// The largest payload in base64, in an envelope.
const MAX_BODY: usize = 4 << 20;
/// How long a connection may be idle. Senders keep theirs for the next message.
const IDLE_TIMEOUT: Duration = Duration::from_mins(2);
/// How old a callback may be, as Standard Webhooks has it.
const MAX_AGE: Duration = Duration::from_mins(5);

/// Which port, and what it answers.
#[derive(Debug, Args)]
pub(crate) struct Listen {
    /// The port on 127.0.0.1. 0 takes any free one.
    #[arg(default_value_t = 8000)]
    port: u16,

    /// The status that every callback is answered with: 500 shows how it is tried again.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u16).range(200..=599))]
    status: u16,

    /// A file with the secrets that callbacks are signed with; their signatures are checked then.
    #[arg(long, value_name = "FILE")]
    secrets_file: Option<PathBuf>,
}

struct Receiver {
    status: StatusCode,
    secrets: Option<Vec<Secret>>,
}

/// Prints callbacks until it is stopped.
pub(crate) fn listen(options: &Listen) -> anyhow::Result<()> {
    let secrets = match &options.secrets_file {
        Some(file) => Some(crate::delay::secrets(file, "--secrets-file")?),
        None => None,
    };
    let receiver = Receiver {
        status: StatusCode::from_u16(options.status).context("--status")?,
        secrets,
    };
    super::block_on(async {
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), options.port);
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!(
                "cannot listen on {address}: choose another port, such as `laneway listen 8001`"
            )
        })?;
        let address = listener.local_addr().context("cannot find out the port")?;
        crate::print(&format!("waiting for callbacks on http://{address}\n"))?;
        let router = Router::new()
            .fallback(take)
            .layer(DefaultBodyLimit::max(MAX_BODY))
            .with_state(Arc::new(receiver));
        let limits = Limits {
            max_connections: 1_024,
            header_timeout: IDLE_TIMEOUT,
            write_timeout: IDLE_TIMEOUT,
            shutdown_timeout: Duration::ZERO,
        };
        // Until a signal ends the process: there is nothing to finish.
        let stop = std::future::pending();
        accept::run(listener, router, limits, Connections::default(), stop).await;
        Ok(())
    })
}

async fn take(
    State(receiver): State<Arc<Receiver>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    let now = SystemTime::now();
    let verdict = receiver
        .secrets
        .as_deref()
        .map(|secrets| verdict(secrets, &headers, &body, now));
    let text = describe(&method, &uri, &headers, &body, now, verdict);
    // Without a standard output nothing is printed, and the sender is answered all the same.
    let _ = crate::print(&text);
    match verdict {
        Some(Err(_)) => StatusCode::UNAUTHORIZED,
        _ => receiver.status,
    }
}

/// Whether a callback is genuine; why not.
fn verdict(
    secrets: &[Secret],
    headers: &HeaderMap,
    body: &[u8],
    now: SystemTime,
) -> Result<(), &'static str> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let signed = header(signature::SIGNATURE).ok_or("it is not signed")?;
    let id = header(signature::ID).ok_or("there is no webhook-id")?;
    let sent: u64 = header(signature::TIMESTAMP)
        .and_then(|text| text.parse().ok())
        .ok_or("there is no webhook-timestamp")?;
    let now = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |time| time.as_secs());
    if now.abs_diff(sent) > MAX_AGE.as_secs() {
        return Err("it is more than five minutes old, or ahead");
    }
    if signature::verify(secrets, id, sent, body, signed) {
        Ok(())
    } else {
        Err("the signature is wrong")
    }
}

fn describe(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    body: &[u8],
    now: SystemTime,
    verdict: Option<Result<(), &'static str>>,
) -> String {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let mut line = format!("{method} {uri}");
    if let Some(id) = header("laneway-id") {
        let _ = write!(line, "  id {id}");
    }
    if let Some(attempt) = header("laneway-attempt") {
        let _ = write!(line, "  attempt {attempt}");
    }
    let due = header("laneway-due").and_then(|text| text.parse().ok());
    if let Some(due) = due.map(|millis| SystemTime::UNIX_EPOCH + Duration::from_millis(millis)) {
        let late = now.duration_since(due).unwrap_or_default();
        let _ = write!(line, "  {} ms after it was due", late.as_millis());
    }
    match verdict {
        Some(Ok(())) => line.push_str("  signature is good"),
        Some(Err(why)) => {
            let _ = write!(line, "  REFUSED: {why}");
        }
        None => {}
    }
    line.push('\n');
    if !body.is_empty() {
        match std::str::from_utf8(body) {
            // What a sender wrote must not steer the terminal.
            Ok(text)
                if !text
                    .chars()
                    .any(|c| c.is_control() && !matches!(c, '\n' | '\t' | '\r')) =>
            {
                let _ = writeln!(line, "  {}", text.replace('\n', "\n  "));
            }
            _ => {
                let _ = writeln!(line, "  {} bytes that are not text", body.len());
            }
        }
    }
    line
}
