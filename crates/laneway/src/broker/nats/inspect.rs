//! What can be seen of a server, for the doctor.

use std::time::{Duration, Instant};

use async_nats::jetstream::Context;
use async_nats::jetstream::stream::{Config, Info, StorageType};
use futures_util::TryStreamExt;
use uuid::Uuid;

use super::connect::{self, Connection, Purpose};
use super::error::NatsError;
use super::names::{self, Names};
use super::options::NatsOptions;
use super::topics::{self, TopicHandle};
use crate::broker::BrokerError;
use crate::time::now_ms;
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
    /// Topics whose name is a subject of a foreign stream: topic and stream.
    pub(crate) clashes: Vec<(String, String)>,
    pub(crate) round_trip: Duration,
    /// How far the server's clock is ahead of ours, at least: it may have told its time at any moment of the call.
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
pub(crate) async fn inspect(options: NatsOptions) -> Result<Seen, BrokerError> {
    options.check()?;
    let at = options.server_list();
    let Connection {
        client, context, ..
    } = connect::connect(&options, Purpose::Everything)
        .await
        .map_err(|error| error.at(&at))?;
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
        replicas: usize::from(options.replicas_or_default()),
        topics: Vec::new(),
        clashes: Vec::new(),
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
    let failed = |error: &dyn std::fmt::Display| NatsError::new("listing streams", error).at(&at);
    let streams: Vec<Info> = context
        .streams()
        .try_collect()
        .await
        .map_err(|error| failed(&error))?;
    let names = Names::new(options.namespace_or_default());
    seen.topics = streams
        .iter()
        .filter_map(|info| {
            let topic = TopicHandle::of_ours(info, &names)?.topic;
            Some(SeenTopic {
                name: topic.name().to_string(),
                kind: topic.kind(),
                storage: topic.storage(),
                replicas: info.config.num_replicas,
            })
        })
        .collect();
    let theirs = || {
        let others = streams
            .iter()
            .filter(|info| !names.has_stream(&info.config.name));
        others.flat_map(|info| {
            let subjects = info.config.subjects.iter();
            subjects.map(|subject| (&info.config.name, subject))
        })
    };
    seen.clashes = seen
        .topics
        .iter()
        .filter_map(|topic| {
            let (stream, _) =
                theirs().find(|(_, subject)| names::is_named_by(&topic.name, subject))?;
            Some((topic.name.clone(), stream.clone()))
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
        skew_of(theirs, before, after)
    });
    // If this fails it is in the list of streams, under a name that says what it was.
    let _ = context.delete_stream(&name).await;
    skew
}

/// How far a clock is ahead of ours, at least, that said this between two moments of ours. A server that took its time
/// to answer has no wrong clock.
fn skew_of(theirs: i64, before: i64, after: i64) -> i64 {
    theirs - theirs.clamp(before, after.max(before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_answer_is_no_wrong_clock() {
        assert_eq!(skew_of(1_000, 1_000, 9_000), 0);
        assert_eq!(skew_of(9_000, 1_000, 9_000), 0);
        assert_eq!(skew_of(9_007, 1_000, 9_000), 7, "ahead");
        assert_eq!(skew_of(995, 1_000, 9_000), -5, "behind");
        assert_eq!(skew_of(995, 1_000, 990), -5, "ours was set back");
    }
}
