//! beanstalkd, by its own protocol. It knows delays of whole seconds only.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep_until, timeout};

use super::process::Server;
use super::{A_WEEK, AT_ONCE, CLIENTS, PATIENCE, Steady, Sync, taken};
use crate::delay::arrivals::Arrivals;
use crate::delay::rig::{now_micros, number_of, payload};
use crate::frame::Sample;

/// Jobs that a client asks for before it has any.
const ASKED_FOR: usize = 32;

/// For how long a job is given away: longer than any benchmark.
const HELD_S: u64 = 3600;

async fn start(sync: Sync) -> Result<Server> {
    let sync = match sync {
        Sync::Each => "0",
        Sync::Usual => "50",
    };
    Server::start("beanstalkd", |port, folder| {
        let port = port.to_string();
        let mut arguments = ["-l", "127.0.0.1", "-p", &port, "-f", sync, "-b"]
            .map(Into::into)
            .to_vec();
        arguments.push(folder.into());
        Ok(arguments)
    })
    .await
}

pub(super) async fn ingest(sync: Sync, time: Duration) -> Result<Sample> {
    let server = start(sync).await?;
    let mut clients = JoinSet::new();
    let started = Instant::now();
    for _ in 0..CLIENTS {
        let mut client = Client::of(&server).await?;
        clients.spawn(async move {
            let mut count = 0;
            while started.elapsed() < time {
                client.put(0..AT_ONCE as u64, A_WEEK).await?;
                count += AT_ONCE;
            }
            anyhow::Ok(count)
        });
    }
    taken(clients, started).await
}

pub(super) async fn late(steady: Steady) -> Result<Sample> {
    const STEP: Duration = Duration::from_millis(10);
    let server = start(Sync::Usual).await?;
    let arrivals = Arrivals::of(steady.count());
    let _workers = Workers::start(&server, &arrivals).await?;
    // All are taken before the first is due, as with the others.
    let delay = Duration::from_secs(steady.seconds + 2);
    let mut client = Client::of(&server).await?;
    let per_step = steady.per_second * u64::try_from(STEP.as_millis())? / 1000;
    let mut due = Vec::new();
    let mut next = tokio::time::Instant::now();
    for first in (0..steady.count()).step_by(usize::try_from(per_step)?) {
        sleep_until(next).await;
        next += STEP;
        due.push(now_micros() + u64::try_from(delay.as_micros())?);
        client.put(first..first + per_step, delay).await?;
    }
    arrivals.all(PATIENCE + delay).await?;
    arrivals.late(|number| {
        let step = usize::try_from(number / per_step).unwrap_or(usize::MAX);
        due.get(step).copied().unwrap_or_default()
    })
}

/// Each is due at the end of the second that it was meant for. The time starts with the first that comes.
pub(super) async fn burst(count: u64) -> Result<Sample> {
    const LEAD: Duration = Duration::from_secs(8);
    let server = start(Sync::Usual).await?;
    let arrivals = Arrivals::of(count);
    let _workers = Workers::start(&server, &arrivals).await?;
    let due = Instant::now() + LEAD;
    let mut client = Client::of(&server).await?;
    for first in (0..count).step_by(AT_ONCE) {
        let left = due.saturating_duration_since(Instant::now()).as_secs() + 1;
        let numbers = first..(first + AT_ONCE as u64).min(count);
        client.put(numbers, Duration::from_secs(left)).await?;
    }
    ensure!(
        arrivals.count() == 0,
        "they were not taken before the first was due"
    );
    arrivals.all(PATIENCE).await?;
    Ok(arrivals.burst(arrivals.first()))
}

/// One that submits.
struct Client {
    stream: BufReader<TcpStream>,
    requests: Vec<u8>,
}

impl Client {
    async fn of(server: &Server) -> Result<Self> {
        Ok(Self {
            stream: BufReader::new(server.connect().await?),
            requests: Vec::new(),
        })
    }

    /// Puts jobs all at once, and waits until all are taken.
    async fn put(&mut self, numbers: std::ops::Range<u64>, delay: Duration) -> Result<()> {
        self.requests.clear();
        let count = numbers.end - numbers.start;
        for number in numbers {
            let payload = payload(number);
            let (seconds, length) = (delay.as_secs(), payload.len());
            let job = format!("put 0 {seconds} {HELD_S} {length}\r\n{payload}\r\n");
            self.requests.extend_from_slice(job.as_bytes());
        }
        self.stream.write_all(&self.requests).await?;
        let mut line = String::new();
        for _ in 0..count {
            line.clear();
            timeout(PATIENCE, self.stream.read_line(&mut line)).await??;
            ensure!(line.starts_with("INSERTED "), "beanstalkd said {line:?}");
        }
        Ok(())
    }
}

/// Those who take what is due. They stop when this is dropped.
struct Workers(Vec<AbortHandle>);

impl Workers {
    async fn start(server: &Server, arrivals: &Arc<Arrivals>) -> Result<Self> {
        let mut workers = Vec::new();
        for _ in 0..CLIENTS {
            let stream = server.connect().await?;
            let worker = tokio::spawn(work(stream, arrivals.clone()));
            workers.push(worker.abort_handle());
        }
        Ok(Self(workers))
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for worker in &self.0 {
            worker.abort();
        }
    }
}

async fn work(stream: TcpStream, arrivals: Arc<Arrivals>) -> Result<()> {
    let mut stream = BufReader::with_capacity(64 << 10, stream);
    stream
        .write_all("reserve\r\n".repeat(ASKED_FOR).as_bytes())
        .await?;
    let (mut line, mut requests) = (String::new(), String::new());
    loop {
        line.clear();
        stream.read_line(&mut line).await?;
        if let Some(job) = line.strip_prefix("RESERVED ") {
            let (id, length) = job.trim_end().split_once(' ').context("no length")?;
            let mut body = vec![0; length.parse::<usize>()? + 2];
            stream.read_exact(&mut body).await?;
            arrivals.note(number_of(&Bytes::from(body)));
            requests.push_str("delete ");
            requests.push_str(id);
            requests.push_str("\r\nreserve\r\n");
        } else {
            ensure!(line == "DELETED\r\n", "beanstalkd said {line:?}");
        }
        if stream.buffer().is_empty() && !requests.is_empty() {
            stream.write_all(requests.as_bytes()).await?;
            requests.clear();
        }
    }
}
