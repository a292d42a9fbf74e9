//! The same over HTTP, with the server in a process of its own.
//!
//! - `server`: starts it, and talks to it
//! - `receiver`: takes callbacks and notes how late they are
//! - `large`: what large messages cost in memory

mod large;
mod receiver;
mod server;

pub(super) use self::large::large;
pub(super) use self::receiver::serve_and_note;
pub(crate) use self::server::{Connection, header, read};

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::task::JoinSet;

use self::receiver::{Receiver, stuck_host};
use self::server::Server;
use super::rig::now_micros;
use super::{EARLY, LOST, P50, Steady};
use crate::frame::Sample;

/// How long anything may take before the benchmark gives up.
const PATIENCE: Duration = Duration::from_mins(1);

const BATCH: u64 = 500;
const NEXT_WEEK: &str = r#""delay":"7d""#;
const TO_BUS: &str = r#"{"bus":{"topic":"due","aggregate_id":"key-1","event_type":"Due"}}"#;

/// Messages that each have a request of their own.
pub(super) async fn singles(connections: usize, time: Duration) -> Result<Sample> {
    let body = message(NEXT_WEEK, TO_BUS);
    load(connections, time, "/v1/messages", body, 1).await
}

/// Messages in batches.
pub(super) async fn batches(connections: usize, time: Duration) -> Result<Sample> {
    let messages = (0..BATCH).map(|_| message(NEXT_WEEK, TO_BUS));
    load(
        connections,
        time,
        "/v1/messages:batch",
        batch(messages),
        BATCH,
    )
    .await
}

async fn load(
    connections: usize,
    time: Duration,
    path: &'static str,
    body: String,
    messages: u64,
) -> Result<Sample> {
    let server = Server::start().await?;
    let body: Arc<str> = body.into();
    let mut clients = JoinSet::new();
    let started = Instant::now();
    for _ in 0..connections {
        let (mut connection, body) = (server.connect().await?, Arc::clone(&body));
        clients.spawn(async move {
            let mut count = 0;
            while started.elapsed() < time {
                connection.post(path, &body).await?;
                count += messages;
            }
            anyhow::Ok(count)
        });
    }
    let mut count = 0;
    while let Some(client) = clients.join_next().await {
        count += client.context("a client failed")??;
    }
    Ok(Sample::rate(usize::try_from(count)?, started.elapsed()))
}

/// How late callbacks to one host are.
pub(super) async fn callbacks(steady: Steady) -> Result<Sample> {
    let receiver = Receiver::start(1).await?;
    let hosts = receiver.hosts().to_vec();
    late(steady, &receiver, &hosts).await
}

/// How late callbacks to nine hosts are while a tenth one takes them and never answers.
pub(super) async fn beside_a_stuck_host(steady: Steady) -> Result<Sample> {
    let receiver = Receiver::start(9).await?;
    let mut hosts = receiver.hosts().to_vec();
    hosts.push(stuck_host().await?);
    late(steady, &receiver, &hosts).await
}

/// How late callbacks to ten hosts are while a hundred others, each with as many messages as two of them can
/// have at once, take them and never answer.
pub(super) async fn beside_hanging_hosts(steady: Steady, hanging: usize) -> Result<Sample> {
    let receiver = Receiver::start(10).await?;
    let server = Server::start().await?;
    let mut connection = server.connect().await?;
    for _ in 0..hanging {
        let host = stuck_host().await?;
        let target = format!(r#"{{"callback":{{"url":"http://{host}/"}}}}"#);
        let messages = (0..128).map(|_| message(r#""delay":0"#, &target));
        connection
            .post("/v1/messages:batch", &batch(messages))
            .await?;
    }
    late_at(steady, &receiver, receiver.hosts(), &server).await
}

/// How fast callbacks to so many hosts are made that are all due at one moment.
pub(super) async fn distinct_hosts(count: u64) -> Result<Sample> {
    let receiver = Receiver::start_everywhere().await?;
    let port = receiver.hosts()[0].port();
    let server = Server::start().await?;
    let mut connection = server.connect().await?;
    let due = now_micros() / 1_000 + 3_000 + count / 10;
    let when = format!(r#""deliver_at":{due}"#);
    for first in (0..count).step_by(usize::try_from(BATCH)?) {
        let messages = (first..(first + BATCH).min(count)).map(|number| {
            let (a, b, c) = (number / 62_500 + 1, number / 250 % 250, number % 250 + 1);
            let target = format!(r#"{{"callback":{{"url":"http://127.{a}.{b}.{c}:{port}/"}}}}"#);
            message(&when, &target)
        });
        connection
            .post("/v1/messages:batch", &batch(messages))
            .await?;
    }
    ensure!(now_micros() / 1_000 < due, "they were taken too slowly");
    let late = receiver.wait_for(count, 2 * PATIENCE).await;
    let last = late.last().copied().unwrap_or_default();
    let last = Duration::from_micros(u64::try_from(last).unwrap_or(0));
    Ok(Sample::rate(late.len(), last)
        .count(EARLY, late.iter().filter(|late| **late < 0).count() as u64)
        .count(LOST, count.saturating_sub(late.len() as u64)))
}

/// Has callbacks be due at these hosts in turn; waits for those that the receiver gets.
async fn late(steady: Steady, receiver: &Receiver, hosts: &[SocketAddr]) -> Result<Sample> {
    let server = Server::start().await?;
    late_at(steady, receiver, hosts, &server).await
}

async fn late_at(
    steady: Steady,
    receiver: &Receiver,
    hosts: &[SocketAddr],
    server: &Server,
) -> Result<Sample> {
    let count = steady.count();
    let targets: Vec<String> = hosts
        .iter()
        .map(|host| format!(r#"{{"callback":{{"url":"http://{host}/"}}}}"#))
        .collect();
    // Time to take them all, before the first is due.
    let start = now_micros() / 1_000 + 3_000 + count / 20;
    let mut connection = server.connect().await?;
    for first in (0..count).step_by(usize::try_from(BATCH)?) {
        let messages = (first..(first + BATCH).min(count)).zip(targets.iter().cycle());
        let messages = messages.map(|(number, target)| {
            let due = u128::from(start) + steady.after(number).as_millis();
            message(&format!(r#""deliver_at":{due}"#), target)
        });
        connection
            .post("/v1/messages:batch", &batch(messages))
            .await?;
    }
    ensure!(
        now_micros() / 1_000 < start,
        "they were not taken before the first was due"
    );
    let expected = count * receiver.hosts().len() as u64 / hosts.len() as u64;
    let patience = PATIENCE + Duration::from_secs(steady.seconds);
    let late = receiver.wait_for(expected, patience).await;
    let percentile = |percent: usize| late.get(late.len() * percent / 100).copied();
    let micros = |late: Option<i64>| u64::try_from(late.unwrap_or_default()).unwrap_or(0);
    let early = late.iter().filter(|late| **late < 0).count();
    Ok(Sample::time(Duration::from_micros(micros(percentile(99))))
        .count(P50, micros(percentile(50)))
        .count(EARLY, early as u64)
        .count(LOST, expected.saturating_sub(late.len() as u64)))
}

/// A message of 128 bytes.
fn message(when: &str, target: &str) -> String {
    let payload = "x".repeat(126);
    format!(r#"{{"topic":"bench",{when},"payload":"{payload}","target":{target}}}"#)
}

fn batch(messages: impl Iterator<Item = String>) -> String {
    let messages: Vec<String> = messages.collect();
    format!(r#"{{"messages":[{}]}}"#, messages.join(","))
}
