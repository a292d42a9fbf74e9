//! Takes callbacks and notes how late they are.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use super::server::{header, read, read_all};
use crate::delay::rig::now_micros;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// In microseconds; below zero is early.
type Late = Arc<Mutex<Vec<i64>>>;

pub(super) struct Receiver {
    hosts: Vec<SocketAddr>,
    late: Late,
}

impl Receiver {
    /// Takes callbacks as so many hosts.
    pub(super) async fn start(hosts: usize) -> Result<Self> {
        let mut receiver = Self {
            hosts: Vec::new(),
            late: Late::default(),
        };
        for _ in 0..hosts {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            receiver.hosts.push(listener.local_addr()?);
            let noted = Arc::clone(&receiver.late);
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(serve(stream, Arc::clone(&noted)));
                }
            });
        }
        Ok(receiver)
    }

    /// Takes callbacks as all hosts of 127.0.0.0/8, on one port.
    pub(super) async fn start_everywhere() -> Result<Self> {
        let late = Late::default();
        let listener = TcpListener::bind("0.0.0.0:0").await?;
        let hosts = vec![listener.local_addr()?];
        let noted = Arc::clone(&late);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&noted)));
            }
        });
        Ok(Self { hosts, late })
    }

    pub(super) fn hosts(&self) -> &[SocketAddr] {
        &self.hosts
    }

    /// How late each one was, sorted, once that many are there or the time is up.
    pub(super) async fn wait_for(&self, count: u64, patience: Duration) -> Vec<i64> {
        let all = || self.late.lock().unwrap_or_else(PoisonError::into_inner);
        let arriving = async {
            while (all().len() as u64) < count {
                sleep(Duration::from_millis(20)).await;
            }
        };
        // Those that did not come count as lost.
        let _ = timeout(patience, arriving).await;
        let mut late = all().clone();
        late.sort_unstable();
        late
    }
}

/// A host that takes every connection and never answers.
pub(super) async fn stuck_host() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            held.push(stream);
        }
    });
    Ok(address)
}

/// Takes callbacks, hands their bodies on, and answers after as long as it is told. Ends when the caller hangs up.
pub(in crate::delay) async fn serve_and_note(
    mut stream: TcpStream,
    note: impl Fn(&Bytes) -> Duration,
) {
    let _ = stream.set_nodelay(true);
    let mut buffer = Vec::with_capacity(4096);
    while let Ok((_, body)) = read_all(&mut stream, &mut buffer).await {
        let pause = note(&body.into());
        if !pause.is_zero() {
            sleep(pause).await;
        }
        if stream.write_all(ANSWER).await.is_err() {
            return;
        }
    }
}

/// Ends when the caller hangs up.
async fn serve(mut stream: TcpStream, late: Late) {
    let _ = stream.set_nodelay(true);
    let mut buffer = Vec::with_capacity(4096);
    while let Ok(head) = read(&mut stream, &mut buffer).await {
        let now = i64::try_from(now_micros()).unwrap_or(i64::MAX);
        let due: Option<i64> = header(&head, "laneway-due").and_then(|due| due.parse().ok());
        late.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(now - due.unwrap_or_default() * 1_000);
        if stream.write_all(ANSWER).await.is_err() {
            return;
        }
    }
}
