//! Message schedules of `JetStream`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, anyhow, ensure};
use async_nats::HeaderMap;
use async_nats::header::{NATS_SCHEDULE, NATS_SCHEDULE_TARGET};
use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::context::{ContextBuilder, PublishAckFuture};
use async_nats::jetstream::stream::{Config, StorageType};
use futures_util::StreamExt;
use jiff::Timestamp;
use tokio::task::{AbortHandle, JoinSet};

use super::process::Server;
use super::{A_WEEK, AT_ONCE, CLIENTS, PATIENCE, Steady, Sync, taken};
use crate::delay::arrivals::Arrivals;
use crate::delay::rig::{number_of, payload};
use crate::frame::Sample;

const STREAM: &str = "delayed";
const DUE: &str = "due";

/// Time to take so many, before the first is due.
fn lead(count: u64) -> Duration {
    Duration::from_secs(3 + count / 15_000)
}

struct Peer {
    context: Context,
    _server: Server,
}

impl Peer {
    async fn start(sync: Sync) -> Result<Self> {
        let server = Server::start("nats-server", |port, folder| {
            let sync = match sync {
                Sync::Each => "sync_interval: always",
                Sync::Usual => "",
            };
            let store = folder.join("store").display().to_string();
            let config = format!(
                "listen: 127.0.0.1:{port}\njetstream {{ store_dir: {store:?}\n{sync}\n}}\n"
            );
            let file = folder.join("nats.conf");
            std::fs::write(&file, config)?;
            Ok(vec!["--config".into(), file.into()])
        })
        .await?;
        let client = async_nats::connect(server.address.to_string()).await?;
        let context = ContextBuilder::new()
            .max_ack_inflight(CLIENTS * AT_ONCE)
            .build(client);
        let config = Config {
            name: STREAM.to_owned(),
            subjects: vec!["schedules.*".to_owned(), DUE.to_owned()],
            storage: StorageType::File,
            allow_message_schedules: true,
            ..Config::default()
        };
        let made = context.create_stream(config).await;
        made.context("nats-server 2.12 or later is needed")?;
        Ok(Self {
            context,
            _server: server,
        })
    }

    /// Notes what is due, until the answer is dropped.
    async fn consume(&self, arrivals: &Arc<Arrivals>) -> Result<Consumer> {
        let consumer = self
            .context
            .create_consumer_on_stream(
                pull::Config {
                    filter_subject: DUE.to_owned(),
                    ack_policy: AckPolicy::None,
                    ..pull::Config::default()
                },
                STREAM,
            )
            .await?;
        let mut messages = consumer
            .stream()
            .max_messages_per_batch(5_000)
            .messages()
            .await?;
        let arrivals = arrivals.clone();
        let consuming = tokio::spawn(async move {
            while let Some(Ok(message)) = messages.next().await {
                arrivals.note(number_of(&message.payload));
            }
        });
        Ok(Consumer(consuming.abort_handle()))
    }

    /// Submits all of them; answers when all are taken.
    async fn submit(
        &self,
        count: u64,
        due: impl Fn(u64) -> SystemTime + Copy + Send + 'static,
    ) -> Result<()> {
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            let mut publisher = Publisher::of(&self.context);
            clients.spawn(async move {
                for number in (client as u64..count).step_by(CLIENTS) {
                    publisher.publish(number, due(number)).await?;
                }
                publisher.finish().await
            });
        }
        while let Some(client) = clients.join_next().await {
            client.context("a client failed")??;
        }
        Ok(())
    }
}

struct Consumer(AbortHandle);

impl Drop for Consumer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// One that submits, with many not yet acknowledged.
struct Publisher {
    context: Context,
    unanswered: VecDeque<PublishAckFuture>,
}

impl Publisher {
    fn of(context: &Context) -> Self {
        Self {
            context: context.clone(),
            unanswered: VecDeque::with_capacity(AT_ONCE),
        }
    }

    async fn publish(&mut self, number: u64, due: SystemTime) -> Result<()> {
        if self.unanswered.len() == AT_ONCE {
            self.acknowledged().await?;
        }
        let mut headers = HeaderMap::new();
        let at = Timestamp::try_from(due)?;
        headers.insert(NATS_SCHEDULE, format!("@at {at:.3}"));
        headers.insert(NATS_SCHEDULE_TARGET, DUE);
        let subject = format!("schedules.{number}");
        let published = self
            .context
            .publish_with_headers(subject, headers, payload(number).into());
        self.unanswered.push_back(published.await?);
        Ok(())
    }

    async fn acknowledged(&mut self) -> Result<()> {
        if let Some(first) = self.unanswered.pop_front() {
            let answer = tokio::time::timeout(PATIENCE, first.into_future()).await;
            answer
                .context("no answer")?
                .map_err(|error| anyhow!(error))?;
        }
        Ok(())
    }

    async fn finish(mut self) -> Result<()> {
        while !self.unanswered.is_empty() {
            self.acknowledged().await?;
        }
        Ok(())
    }
}

pub(super) async fn ingest(sync: Sync, time: Duration) -> Result<Sample> {
    let peer = Peer::start(sync).await?;
    let due = SystemTime::now() + A_WEEK;
    let started = Instant::now();
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let mut publisher = Publisher::of(&peer.context);
        clients.spawn(async move {
            let mut number = client as u64;
            let mut count = 0;
            while started.elapsed() < time {
                publisher.publish(number, due).await?;
                number += CLIENTS as u64;
                count += 1;
            }
            publisher.finish().await?;
            anyhow::Ok(count)
        });
    }
    taken(clients, started).await
}

pub(super) async fn late(steady: Steady) -> Result<Sample> {
    let due = move |start: SystemTime, number| start + steady.after(number);
    measure(steady.count(), due)
        .await
        .and_then(|(arrivals, start)| arrivals.late(|number| micros(due(start, number))))
}

pub(super) async fn burst(count: u64) -> Result<Sample> {
    let (arrivals, start) = measure(count, |start, _| start).await?;
    Ok(arrivals.burst(micros(start)))
}

/// Has so many be due from a moment on; answers when they came, and that moment.
async fn measure(
    count: u64,
    due: impl Fn(SystemTime, u64) -> SystemTime + Copy + Send + 'static,
) -> Result<(Arc<Arrivals>, SystemTime)> {
    let peer = Peer::start(Sync::Usual).await?;
    let arrivals = Arrivals::of(count);
    let _consumer = peer.consume(&arrivals).await?;
    // To the millisecond, as it is written.
    let start = SystemTime::UNIX_EPOCH
        + Duration::from_millis(u64::try_from(
            (SystemTime::now() + lead(count))
                .duration_since(SystemTime::UNIX_EPOCH)?
                .as_millis(),
        )?);
    peer.submit(count, move |number| due(start, number)).await?;
    ensure!(
        SystemTime::now() < start,
        "they were not taken before the first was due"
    );
    arrivals.all(PATIENCE + lead(count)).await?;
    Ok((arrivals, start))
}

fn micros(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    })
}
