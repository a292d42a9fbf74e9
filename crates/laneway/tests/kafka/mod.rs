//! What tests on Kafka share.

#![allow(dead_code, reason = "each test program uses a part of it")]

#[path = "../group/mod.rs"]
mod group;
pub(crate) mod server;

use std::sync::atomic::{AtomicU32, Ordering};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;

#[allow(unused_imports, reason = "each test program uses a part of it")]
pub(crate) use group::*;

/// A name that nobody else has.
pub(crate) fn unique(name: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    format!("{name}{process}-{count}")
}

/// An address with a namespace that nobody else has.
pub(crate) fn fresh(servers: &str, settings: &str) -> String {
    format!("kafka://{servers}?namespace={}{settings}", unique("t"))
}

/// A plain client.
pub(crate) fn client(servers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", servers);
    config
}

/// Makes a topic with the tools of Kafka.
pub(crate) async fn make(servers: &str, topic: &str, partitions: i32, config: &[(&str, &str)]) {
    let admin: AdminClient<DefaultClientContext> = client(servers).create().expect("a client");
    let mut new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
    for (key, value) in config {
        new = new.set(key, value);
    }
    let made = admin.create_topics(&[new], &AdminOptions::new()).await;
    for result in made.expect("an answer") {
        result.expect("made");
    }
}
