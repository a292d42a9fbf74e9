//! What large messages cost in memory when they are listed, changed and delivered.

use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::time::sleep;

use super::server::{Connection, Server};
use super::{PATIENCE, TO_BUS};
use crate::frame::Sample;

const BYTES: usize = 1_000_000;
/// Requests have a limit.
const AT_ONCE: u64 = 10;

/// The most memory that the server has while it lists, extends, delivers and withdraws so many messages of 1 MB.
pub(in crate::delay) async fn large(count: u64) -> Result<Sample> {
    let server = Server::start().await?;
    let mut connection = server.connect().await?;
    submit(&mut connection, "far", count, "7d").await?;
    submit(&mut connection, "near", count, "20s").await?;
    // What it took to submit them is not what is measured.
    sleep(Duration::from_secs(1)).await;
    server.forget_peak()?;
    ok(
        &mut connection,
        "GET",
        &format!("/v1/messages?limit={count}"),
        "",
    )
    .await?;
    let far = |number| format!(r#"{{"id":"far-{number}","by":"1d"}}"#);
    let far: Vec<_> = (0..count).map(far).collect();
    let extend = format!(r#"{{"messages":[{}]}}"#, far.join(","));
    ok(&mut connection, "POST", "/v1/messages:extend", &extend).await?;
    let started = tokio::time::Instant::now();
    loop {
        let last = format!("/v1/messages/near-{}", count - 1);
        let found = connection.get(&last).await?;
        if found.contains(r#""state":"delivered""#) {
            break;
        }
        ensure!(started.elapsed() < 2 * PATIENCE, "not delivered: {found}");
        sleep(Duration::from_millis(100)).await;
    }
    let ids: Vec<_> = (0..count)
        .map(|number| format!(r#""far-{number}""#))
        .collect();
    let withdraw = format!(r#"{{"ids":[{}]}}"#, ids.join(","));
    ok(&mut connection, "POST", "/v1/messages:withdraw", &withdraw).await?;
    Ok(Sample::bytes(server.peak()? as f64))
}

async fn submit(connection: &mut Connection, name: &str, count: u64, delay: &str) -> Result<()> {
    let payload = "x".repeat(BYTES);
    for first in (0..count).step_by(usize::try_from(AT_ONCE)?) {
        let messages: Vec<_> = (first..(first + AT_ONCE).min(count))
            .map(|number| {
                format!(
                    r#"{{"id":"{name}-{number}","topic":"bench","delay":"{delay}","payload":"{payload}","target":{TO_BUS}}}"#
                )
            })
            .collect();
        let body = format!(r#"{{"messages":[{}]}}"#, messages.join(","));
        connection.post("/v1/messages:batch", &body).await?;
    }
    Ok(())
}

async fn ok(connection: &mut Connection, method: &str, path: &str, body: &str) -> Result<()> {
    let head = connection.ask(method, path, body).await?;
    ensure!(
        head.starts_with("HTTP/1.1 200 "),
        "{path} was answered {head}"
    );
    Ok(())
}
