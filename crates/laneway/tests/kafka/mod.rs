//! What tests on Kafka share.

#![allow(dead_code, reason = "each test program uses a part of it")]

#[path = "../group/mod.rs"]
mod group;
pub(crate) mod raw;
pub(crate) mod server;

use std::sync::atomic::{AtomicU32, Ordering};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::groups::GroupList;

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

/// What a group that reads a topic of such a bus is called on the cluster.
pub(crate) fn group_of(address: &str, topic: &str) -> String {
    let settings = address.split(['?', '&']);
    let mut namespaces = settings.filter_map(|setting| setting.strip_prefix("namespace="));
    match namespaces.next() {
        Some(namespace) => format!("{namespace}.default@{topic}"),
        None => format!("default@{topic}"),
    }
}

/// How many members the group of that name has.
pub(crate) fn members_of(servers: &str, group: &str) -> usize {
    let list = list(servers, group);
    let groups = list.groups().iter();
    groups.map(|group| group.members().len()).sum()
}

/// Whether its members have agreed on who has what.
pub(crate) fn is_stable(servers: &str, group: &str) -> bool {
    let list = list(servers, group);
    list.groups().iter().all(|group| group.state() == "Stable")
}

fn list(servers: &str, group: &str) -> GroupList {
    let asker: BaseConsumer = client(servers).create().expect("a client");
    let list = asker.fetch_group_list(Some(group), SOON);
    list.expect("an answer")
}

/// Does what Kafka does to groups that nobody was a member of for a week.
pub(crate) async fn forget(servers: &str, group: &str) {
    let admin: AdminClient<DefaultClientContext> = client(servers).create().expect("a client");
    let deleted = admin.delete_groups(&[group], &AdminOptions::new()).await;
    for result in deleted.expect("an answer") {
        result.expect("deleted");
    }
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
