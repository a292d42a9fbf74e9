//! Where callbacks go: notes which ones came, and when.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use crate::delay::http::{header, read};
use crate::delay::now_micros;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// An attempt that came here.
#[derive(Clone, Debug)]
pub(super) struct Arrival {
    pub(super) id: String,
    pub(super) attempt: u32,
    /// In microseconds since 1970, as `due`.
    pub(super) at: u64,
    pub(super) due: u64,
}

/// Takes callbacks until its runtime ends.
#[derive(Clone, Debug)]
pub(super) struct Receiver {
    port: u16,
    arrivals: Arc<Mutex<Vec<Arrival>>>,
}

/// How late messages were.
#[derive(Debug)]
pub(super) struct Lateness {
    /// Of each message that came, sorted.
    late: Vec<Duration>,
    pub(super) early: u64,
    pub(super) lost: u64,
}

impl Lateness {
    /// What so many of a hundred are late by at most.
    pub(super) fn percentile(&self, percent: usize) -> Duration {
        let at = self.late.len() * percent / 100;
        let late = self.late.get(at).or(self.late.last());
        late.copied().unwrap_or_default()
    }

    pub(super) fn latest(&self) -> Duration {
        self.late.last().copied().unwrap_or_default()
    }
}

impl Receiver {
    /// Each callback is answered after this long.
    pub(super) async fn start(takes: Duration) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let receiver = Self {
            port: listener.local_addr()?.port(),
            arrivals: Arc::default(),
        };
        let noted = receiver.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let noted = noted.clone();
                tokio::spawn(async move { noted.serve(stream, takes).await });
            }
        });
        Ok(receiver)
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    fn arrivals(&self) -> MutexGuard<'_, Vec<Arrival>> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that came, in the order of time.
    pub(super) fn so_far(&self) -> Vec<Arrival> {
        self.arrivals().clone()
    }

    /// How late they were, once so many messages have come or the time is up.
    pub(super) async fn wait_for(&self, count: u64, patience: Duration) -> Lateness {
        let arriving = async {
            // One that came twice is one message.
            while (self.arrivals().len() as u64) < count || self.distinct() < count {
                sleep(Duration::from_millis(50)).await;
            }
        };
        let _ = timeout(patience, arriving).await;
        let mut first: BTreeMap<String, Arrival> = BTreeMap::new();
        for arrival in self.so_far() {
            first.entry(arrival.id.clone()).or_insert(arrival);
        }
        let is_early = |arrival: &&Arrival| arrival.at < arrival.due;
        let early = first.values().filter(is_early).count() as u64;
        let late = first.values().map(|it| it.at.saturating_sub(it.due));
        let mut late: Vec<Duration> = late.map(Duration::from_micros).collect();
        late.sort_unstable();
        Lateness {
            early,
            lost: count.saturating_sub(late.len() as u64),
            late,
        }
    }

    fn distinct(&self) -> u64 {
        let arrivals = self.arrivals();
        let ids: std::collections::HashSet<&str> =
            arrivals.iter().map(|arrival| arrival.id.as_str()).collect();
        ids.len() as u64
    }

    /// Ends when the caller hangs up.
    async fn serve(&self, mut stream: TcpStream, takes: Duration) {
        let _ = stream.set_nodelay(true);
        let mut buffer = Vec::with_capacity(4096);
        while let Ok(head) = read(&mut stream, &mut buffer).await {
            let at = now_micros();
            let number = |name: &str| header(&head, name).and_then(|text| text.parse::<u64>().ok());
            let attempt = number("laneway-attempt").and_then(|number| number.try_into().ok());
            self.arrivals().push(Arrival {
                id: header(&head, "laneway-id").unwrap_or_default().to_owned(),
                attempt: attempt.unwrap_or_default(),
                at,
                due: number("laneway-due").unwrap_or_default() * 1_000,
            });
            if !takes.is_zero() {
                sleep(takes).await;
            }
            if stream.write_all(ANSWER).await.is_err() {
                return;
            }
        }
    }
}
