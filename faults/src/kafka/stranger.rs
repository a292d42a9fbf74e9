//! What strangers do to Kafka: they publish what is no event, and remove groups.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};

use super::raw::{self, Record};
use crate::group::Server;

const SENT_WITHIN: Duration = Duration::from_secs(30);

/// Bodies that are no envelopes.
const BODIES: [&[u8]; 4] = [b"", b"?", b"{}", b"\xff\xfe"];

/// A header whose name is not UTF-8.
const NAMELESS: Record<'_> = Record {
    value: b"?",
    header: (b"M\xfcller", b"?"),
};

/// Publishes each of them, one without a body at all, and one with a header whose name is none, to some partition;
/// answers how many there are.
pub(super) fn publish(servers: &[Server], topic: &str, partitions: u32, seed: u64) -> Result<u64> {
    let mut dice = StdRng::seed_from_u64(seed);
    let producer: FutureProducer = ClientConfig::new()
        .set("bootstrap.servers", servers[0].address())
        .create()?;
    let mut sent = Vec::new();
    for body in BODIES.map(Some).into_iter().chain([None]) {
        let partition = i32::try_from(dice.random_range(0..partitions))?;
        let mut record: FutureRecord<'_, [u8], [u8]> = FutureRecord::to(topic)
            .partition(partition)
            .key(&b"\xff"[..])
            .headers(OwnedHeaders::new().insert(Header {
                key: "X-Name",
                value: Some(b"M\xfcller"),
            }));
        record.payload = body;
        let sending = producer.send_result(record);
        sent.push(sending.map_err(|(error, _)| error)?);
    }
    producer.flush(SENT_WITHIN)?;
    let count = sent.len() as u64;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    for answer in sent {
        let answer = runtime.block_on(answer).context("no answer")?;
        answer.map_err(|(error, _)| error)?;
    }
    nameless(
        servers,
        topic,
        i32::try_from(dice.random_range(0..partitions))?,
    )?;
    Ok(count + 1)
}

/// Which server leads the partition is found by trying.
fn nameless(servers: &[Server], topic: &str, partition: i32) -> Result<()> {
    let deadline = Instant::now() + SENT_WITHIN;
    loop {
        for server in servers {
            if let Ok(0) = raw::produce(&server.address(), topic, partition, &NAMELESS) {
                return Ok(());
            }
        }
        ensure!(
            Instant::now() < deadline,
            "nobody leads partition {partition}"
        );
        thread::sleep(Duration::from_millis(200));
    }
}

/// Removes the group that reads a topic, and its offsets with it, as the broker does when they expire.
pub(super) fn forget(server: &str, topic: &str) -> Result<()> {
    let admin: AdminClient<DefaultClientContext> = ClientConfig::new()
        .set("bootstrap.servers", server)
        .create()?;
    let group = format!("default@{topic}");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let deadline = Instant::now() + SENT_WITHIN;
    loop {
        let options = AdminOptions::new();
        let removing = admin.delete_groups(&[group.as_str()], &options);
        let removed = runtime.block_on(removing)?.remove(0);
        match removed {
            Ok(_) => return Ok(()),
            // Members that left a moment ago, or were killed.
            Err((_, error)) if Instant::now() > deadline => {
                return Err(error).context("the group is not removed");
            }
            Err(_) => thread::sleep(Duration::from_millis(200)),
        }
    }
}
