//! What can be seen of a server, for the doctor.

use std::time::{Duration, Instant};

use async_nats::jetstream::Context;
use async_nats::jetstream::stream::{Config, Info, StorageType};
use futures_util::TryStreamExt;
use uuid::Uuid;

use super::connect;
use super::error::Trouble;
use super::names::Names;
use super::options::NatsOptions;
use super::topics::{self, Place};
use crate::broker::BrokerError;
use crate::broker::embedded::now_ms;
use crate::topic::{Kind, Storage};

/// What was seen of a server.
pub(crate) struct Seen {
    pub(crate) version: String,
    /// Servers that the one we talk to knows of.
    pub(crate) cluster_size: usize,
    /// Whether `JetStream` answers, and why not.
    pub(crate) jetstream: Result<(), String>,
    pub(crate) streams: usize,
    /// Used, and the limit if there is one.
    pub(crate) memory: (u64, Option<u64>),
    pub(crate) storage: (u64, Option<u64>),
    /// How many new topics would have.
    pub(crate) replicas: usize,
    pub(crate) topics: Vec<SeenTopic>,
    pub(crate) round_trip: Duration,
    /// How far the server's clock is ahead of ours.
    pub(crate) skew_ms: Option<i64>,
}

/// A topic of ours.
pub(crate) struct SeenTopic {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) storage: Storage,
    pub(crate) replicas: usize,
}

/// Looks at the server that options lead to.
pub(crate) async fn look(options: NatsOptions) -> Result<Seen, BrokerError> {
    options.check()?;
    let at = options.server_list();
    let (client, context, _link) = connect::connect(&options)
        .await
        .map_err(|trouble| trouble.at(&at))?;
    let server = client.server_info();
    let began = Instant::now();
    let account = context.query_account().await;
    let round_trip = began.elapsed();
    let mut seen = Seen {
        version: server.version,
        cluster_size: server.connect_urls.len(),
        jetstream: Ok(()),
        streams: 0,
        memory: (0, None),
        storage: (0, None),
        replicas: usize::from(options.replicas),
        topics: Vec::new(),
        round_trip,
        skew_ms: None,
    };
    let account = match account {
        Ok(account) => account,
        Err(error) => {
            seen.jetstream = Err(error.to_string());
            return Ok(seen);
        }
    };
    seen.streams = account.streams;
    seen.memory = (account.memory, bounded(account.limits.max_memory));
    seen.storage = (account.storage, bounded(account.limits.max_storage));
    let failed = |error: &dyn std::fmt::Display| Trouble::new("listing streams", error).at(&at);
    let streams: Vec<Info> = context
        .streams()
        .try_collect()
        .await
        .map_err(|error| failed(&error))?;
    let names = Names::new(&options.namespace);
    seen.topics = streams
        .iter()
        .filter_map(|info| {
            let topic = Place::of_ours(info, &names)?.topic;
            Some(SeenTopic {
                name: topic.name().to_string(),
                kind: topic.kind(),
                storage: topic.storage(),
                replicas: info.config.num_replicas,
            })
        })
        .collect();
    seen.skew_ms = skew(&context).await;
    Ok(seen)
}

/// A limit below zero is none.
fn bounded(limit: Option<i64>) -> Option<u64> {
    limit.and_then(|limit| u64::try_from(limit).ok())
}

/// Servers tell their time only with what they make. So one makes a stream for us, which goes again.
async fn skew(context: &Context) -> Option<i64> {
    let name = format!("laneway_doctor_{}", Uuid::now_v7().simple());
    let config = Config {
        subjects: vec![name.clone()],
        name: name.clone(),
        storage: StorageType::Memory,
        max_messages: 1,
        ..Config::default()
    };
    let before = now_ms();
    let made = context.create_stream(config).await.ok();
    let after = now_ms();
    let skew = made.map(|stream| {
        let theirs = topics::born(stream.cached_info()) / 1_000_000;
        theirs - i64::midpoint(before, after)
    });
    // If this fails it is in the list of streams, under a name that says what it was.
    let _ = context.delete_stream(&name).await;
    skew
}
