//! Where callbacks go: it writes down what came and when.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use rand::RngExt;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::ledger::{Millis, now};

/// One attempt that came here.
#[derive(Debug, Clone)]
pub(super) struct Start {
    /// What the payload says.
    pub(super) tag: usize,
    pub(super) id: String,
    pub(super) attempt: u32,
    pub(super) at: Millis,
    pub(super) is_good: bool,
}

/// All that came, in the order of time.
#[derive(Debug, Clone, Default)]
pub(super) struct Starts(Arc<Mutex<Vec<Start>>>);

impl Starts {
    fn note(&self, start: Start) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(start);
    }

    /// All so far.
    pub(super) fn so_far(&self) -> Vec<Start> {
        let starts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        starts.clone()
    }
}

/// Takes callbacks until it is dropped with its runtime; answers its port.
pub(super) async fn start(starts: Starts) -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        loop {
            // Without descriptors for a while there are no callbacks for a while.
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            };
            let starts = starts.clone();
            tokio::spawn(async move { serve(stream, &starts).await });
        }
    });
    Ok(port)
}

/// Ends when the caller hangs up.
async fn serve(stream: TcpStream, starts: &Starts) -> Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut id, mut attempt, mut length) = (String::new(), 0, 0);
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        loop {
            line.clear();
            if stream.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            let Some((name, value)) = line.trim_end().split_once(": ") else {
                break;
            };
            match name.to_ascii_lowercase().as_str() {
                "laneway-id" => value.clone_into(&mut id),
                "laneway-attempt" => attempt = value.parse()?,
                "content-length" => length = value.parse()?,
                _ => {}
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let at = now();
        let body: serde_json::Value = serde_json::from_slice(&body)?;
        let tag = body["tag"].as_u64().context("a tag")?;
        // Some take so long that they are under way whatever happens, and some fail.
        let (wait, is_good) = {
            let mut dice = rand::rng();
            let wait = match dice.random_range(0..100) {
                0..5 => dice.random_range(100..600),
                5..30 => dice.random_range(0..30),
                _ => 0,
            };
            (wait, dice.random_bool(0.95))
        };
        starts.note(Start {
            tag: usize::try_from(tag)?,
            id,
            attempt,
            at,
            is_good,
        });
        tokio::time::sleep(Duration::from_millis(wait)).await;
        let status = if is_good {
            "200 OK"
        } else {
            "500 Internal Server Error"
        };
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        stream.get_mut().write_all(answer.as_bytes()).await?;
    }
}
