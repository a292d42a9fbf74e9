//! What messages cost while they wait, and what can be done with them.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use laneway_delay::{Delays, Extend, MessageId};
use tokio::task::JoinSet;

use super::rig::{Rig, TOPIC, after, message, next_week};
use super::{EXTENDED, RESTART, WITHDRAWN};
use crate::frame::Sample;
use crate::machine::resident;

/// How many are withdrawn and extended.
const CHANGES: usize = 100_000;
const CHANGES_AT_ONCE: usize = 1000;
const CLIENTS: usize = 4;

pub(super) async fn waiting(count: u64) -> Result<Sample> {
    let mut rig = Rig::new().await?;
    let before = resident()?;
    let due = next_week();
    // Only some ids are kept: they are not what is measured.
    let step = count / CHANGES as u64;
    let mut ids = Vec::with_capacity(CHANGES);
    let parts = 100;
    for _ in 0..parts {
        let some = rig
            .submit_all(count / parts, 4, move |number| {
                due + Duration::from_millis(number)
            })
            .await?;
        ids.extend(some.into_iter().step_by(usize::try_from(step)?));
    }
    ensure!(
        rig.delays.counts()[TOPIC].scheduled == count,
        "some are missing"
    );
    let grown = resident()?.saturating_sub(before);

    let restarted = restart(&mut rig).await?;
    let (first, second) = ids.split_at(ids.len() / 2);
    let withdrawing = change(&rig.delays, first, None).await?;
    let extending = change(&rig.delays, second, Some(Duration::from_mins(1))).await?;
    rig.close().await?;
    let rate = |elapsed: Duration| (ids.len() / 2) as f64 / elapsed.as_secs_f64();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "rates"
    )]
    let rates = [withdrawing, extending].map(|elapsed| rate(elapsed) as u64);
    Ok(Sample::bytes(grown as f64 / count as f64)
        .count(RESTART, u64::try_from(restarted.as_millis())?)
        .count(WITHDRAWN, rates[0])
        .count(EXTENDED, rates[1]))
}

/// Extends messages, or takes them back; answers how long that took.
async fn change(
    delays: &Delays,
    ids: &[MessageId],
    extend_by: Option<Duration>,
) -> Result<Duration> {
    let started = Instant::now();
    let mut clients = JoinSet::new();
    for ids in ids.chunks(ids.len() / CLIENTS) {
        let (delays, ids) = (delays.clone(), ids.to_vec());
        clients.spawn(async move {
            for some in ids.chunks(CHANGES_AT_ONCE) {
                let answers = match extend_by {
                    None => delays.withdraw_all(some.to_vec()).await,
                    Some(by) => {
                        let some = some.iter().map(|id| (id.clone(), Extend::By(by)));
                        delays.extend_all(some.collect()).await
                    }
                };
                for answer in answers {
                    answer?;
                }
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = clients.join_next().await {
        done.context("a client failed")??;
    }
    Ok(started.elapsed())
}

/// How long it takes from opening until something that is due has been delivered.
async fn restart(rig: &mut Rig) -> Result<Duration> {
    let (sent, mut received) = tokio::sync::mpsc::unbounded_channel();
    rig.bus
        .subscribe_envelope(TOPIC, move |_| {
            sent.send(()).ok();
            std::future::ready(Ok(()))
        })
        .await?;
    // Due while nothing runs.
    let due = after(Duration::from_millis(200));
    rig.delays.submit_one(message(0, due)).await?;
    rig.delays.close(Duration::from_secs(30)).await?;
    let started = Instant::now();
    rig.open_again().await?;
    let first = tokio::time::timeout(Duration::from_mins(1), received.recv());
    first.await.context("nothing was delivered")?;
    Ok(started.elapsed())
}
