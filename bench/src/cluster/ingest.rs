//! How fast messages are accepted, and how fast centers take them then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::task::JoinSet;

use super::TAKEN;
use super::client::{BATCH, Client, NEXT_WEEK, batch, message, millis};
use super::rig::Rig;
use crate::frame::Sample;

/// Due in a week: it is never called.
const NOWHERE: &str = "http://127.0.0.1:60009/";

/// What is accepted is in the log some time later.
const TAKEN_WITHIN: Duration = Duration::from_mins(10);

/// In batches.
pub(super) async fn batches(rig: &mut Rig, time: Duration) -> Result<Sample> {
    let before = rig.taken().await?;
    let body: Arc<str> = batch((0..BATCH).map(|_| message(NEXT_WEEK, NOWHERE))).into();
    let started = Instant::now();
    let count = submit(rig, 4, started, time, move |mut client| {
        let body = body.clone();
        async move {
            client.submit_all(&body).await?;
            Ok((client, BATCH))
        }
    })
    .await?;
    let accepted = started.elapsed();
    rig.wait_taken(before + count, TAKEN_WITHIN).await?;
    let taken = count * 1_000 / millis(started.elapsed()).max(1);
    Ok(Sample::rate(usize::try_from(count)?, accepted).count(TAKEN, taken))
}

/// Each in a request of its own.
pub(super) async fn singles(rig: &mut Rig, time: Duration) -> Result<Sample> {
    let before = rig.taken().await?;
    let body: Arc<str> = message(NEXT_WEEK, NOWHERE).into();
    let started = Instant::now();
    let count = submit(rig, 64, started, time, move |mut client| {
        let body = body.clone();
        async move {
            client.submit(&body).await?;
            Ok((client, 1))
        }
    })
    .await?;
    let accepted = started.elapsed();
    rig.wait_taken(before + count, TAKEN_WITHIN).await?;
    Ok(Sample::rate(usize::try_from(count)?, accepted))
}

/// Submits until the time is over; answers how many.
async fn submit<F>(
    rig: &Rig,
    connections: usize,
    started: Instant,
    time: Duration,
    request: impl Fn(Client) -> F + Clone + Send + 'static,
) -> Result<u64>
where
    F: Future<Output = Result<(Client, u64)>> + Send + 'static,
{
    let mut clients = JoinSet::new();
    for number in 0..connections {
        let (mut client, request) = (rig.client(number).await?, request.clone());
        clients.spawn(async move {
            let mut count = 0;
            while started.elapsed() < time {
                let (same, more) = request(client).await?;
                (client, count) = (same, count + more);
            }
            anyhow::Ok(count)
        });
    }
    let mut count = 0;
    while let Some(client) = clients.join_next().await {
        count += client.context("a client failed")??;
    }
    Ok(count)
}

/// Submits so many that are due in a week, and waits until the centers have them.
pub(super) async fn fill(rig: &mut Rig, count: u64) -> Result<()> {
    let before = rig.taken().await?;
    let body: Arc<str> = batch((0..BATCH).map(|_| message(NEXT_WEEK, NOWHERE))).into();
    let mut clients = JoinSet::new();
    for number in 0..4 {
        let (mut client, body) = (rig.client(number).await?, body.clone());
        clients.spawn(async move {
            for _ in 0..count / BATCH / 4 {
                client.submit_all(&body).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(client) = clients.join_next().await {
        client.context("a client failed")??;
    }
    rig.wait_taken(before + count / BATCH / 4 * 4 * BATCH, TAKEN_WITHIN)
        .await
}
