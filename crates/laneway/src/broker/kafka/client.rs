//! Clients of the cluster: how they are set up, and what they tell.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::options::{KafkaOptions, KafkaProtocol, LONGEST_LINGER};
use super::statistics::Gauges;
use crate::broker::log_limiter::LogLimiter;
use crate::topic::Compression;

/// A call to the cluster, with which nothing else can go on, gives up after this long; its caller
/// tries again.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Members that are there say so this often, or a third of the session if that is less.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// Read ahead of the bus, for each partition.
const AHEAD_BYTES: u32 = 8 << 20;
const AHEAD_RECORDS: u32 = 20_000;
/// And for all partitions of a topic together.
const ALL_AHEAD_BYTES: u32 = 64 << 20;
/// A broker sends no more of one partition in one answer, unless a single record is larger.
const ANSWER_BYTES: u32 = 1 << 20;

/// How far a partition is read ahead, as one of so many: all of them may be ours.
fn ahead_bytes(partitions: u32) -> u32 {
    (ALL_AHEAD_BYTES / partitions.max(1)).min(AHEAD_BYTES)
}

/// A partition that was read far enough ahead is looked at again after this long.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// How long the parts of publishing may take, so that the client has given a record up by the time that its
/// publisher is told of an error: a record that is sent minutes later would come after newer ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PublishWithin {
    /// A record waits no longer for room in the queue of the client.
    pub(super) room: Duration,
    /// A record that was put there is acknowledged, or given up.
    pub(super) delivery: Duration,
}

/// The longest time that the client can be told.
const LONGEST_DELIVERY: Duration = Duration::from_millis(i32::MAX as u64);

impl PublishWithin {
    /// Within a deadline, less something for the client, which looks at its clock once a second.
    pub(super) fn of(deadline: Duration) -> Self {
        let deadline = deadline.min(LONGEST_DELIVERY);
        let least = LONGEST_LINGER + Duration::from_millis(1);
        Self {
            room: deadline / 4,
            delivery: (deadline / 3 * 2).max(least),
        }
    }
}

/// What clients tell of themselves goes to the log and to the gauges.
#[derive(Clone)]
pub(super) struct Telling {
    pub(super) gauges: Gauges,
    /// What the client is for.
    pub(super) who: Arc<str>,
    /// The last error of a client, for when no broker answers.
    pub(super) trouble: Arc<Mutex<Option<String>>>,
    /// For all clients together: each of them logs a broker that is down, every second.
    pub(super) limiter: LogLimiter,
}

impl Telling {
    /// For a client of its own.
    pub(super) fn of(&self, who: &str) -> Self {
        Self {
            gauges: self.gauges.clone(),
            who: who.into(),
            trouble: self.trouble.clone(),
            limiter: self.limiter.clone(),
        }
    }
}

impl ClientContext for Telling {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        match level {
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error
            | RDKafkaLogLevel::Warning => {
                if let Some(suppressed) = self.limiter.allow(facility) {
                    tracing::warn!(facility, suppressed, "{message}");
                } else {
                    tracing::debug!(facility, "{message}");
                }
            }
            RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
                tracing::info!(facility, "{message}");
            }
            RDKafkaLogLevel::Debug => tracing::debug!(facility, "{message}"),
        }
    }

    fn stats_raw(&self, statistics: &[u8]) {
        self.gauges.note(&self.who, statistics);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // The client retries by itself; a call that fails for it has its own error.
        if error.rdkafka_error_code() != Some(RDKafkaErrorCode::AllBrokersDown) {
            *self.trouble.lock() = Some(reason.to_owned());
        }
        tracing::debug!(%error, reason, "Kafka client error");
    }
}

/// Those that read without being a member have nothing to say about groups.
impl ConsumerContext for Telling {}

fn millis(duration: Duration) -> String {
    duration.as_millis().to_string()
}

/// What all clients have in common.
pub(super) fn common(options: &KafkaOptions) -> ClientConfig {
    let kafka = &options.broker;
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", options.server_list())
        .set("client.id", "laneway")
        .set("allow.auto.create.topics", "false")
        // IMPORTANT: a client that pushes metrics stays connected for up to a second after its group was closed, to push
        // the last ones. The answer to a SyncGroup that comes meanwhile makes librdkafka 2.12 leave the group once more,
        // through a coordinator that it has forgotten: it crashes the process (rd_kafka_cgrp_handle_LeaveGroup).
        .set("enable.metrics.push", "false")
        .set("socket.keepalive.enable", "true")
        .set("reconnect.backoff.ms", "50")
        .set("reconnect.backoff.max.ms", "1000")
        .set("message.max.bytes", kafka.max_message.to_string());
    let protocol = match (kafka.user.is_some(), options.tls.required) {
        (false, false) => "plaintext",
        (false, true) => "ssl",
        (true, false) => "sasl_plaintext",
        (true, true) => "sasl_ssl",
    };
    config.set("security.protocol", protocol);
    if let Some(user) = &kafka.user {
        config
            .set("sasl.mechanism", kafka.sasl.mechanism())
            .set("sasl.username", &user.name)
            .set("sasl.password", &user.password);
    }
    let path = |path: &std::path::Path| path.to_string_lossy().into_owned();
    if let Some(ca) = &options.tls.ca {
        config.set("ssl.ca.location", path(ca));
    }
    if let Some((certificate, key)) = &options.tls.certificate {
        config
            .set("ssl.certificate.location", path(certificate))
            .set("ssl.key.location", path(key));
    }
    config
}

/// Of the one client that publishes. What it was given is there in order and once, or not at all.
pub(super) fn producer(options: &KafkaOptions, within: PublishWithin) -> ClientConfig {
    let mut config = common(options);
    config
        .set("message.timeout.ms", millis(within.delivery))
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("linger.ms", millis(options.broker.linger))
        .set("compression.type", compression(options.broker.compression))
        .set("statistics.interval.ms", "5000");
    config
}

pub(super) fn compression(compression: Compression) -> &'static str {
    match compression {
        Compression::Lz4 => "lz4",
        Compression::Zstd => "zstd",
        Compression::None | Compression::S2 => "none",
    }
}

/// Of a client that only asks for metadata and offsets.
pub(super) fn asker(options: &KafkaOptions) -> ClientConfig {
    let mut config = common(options);
    config.set("isolation.level", "read_committed");
    config
}

/// Of clients that read without being a member of a group.
pub(super) fn looker(options: &KafkaOptions) -> ClientConfig {
    let mut config = common(options);
    config
        // Asked for by the library; nothing is ever committed for it.
        .set("group.id", "laneway-nobody")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "earliest")
        .set("enable.partition.eof", "true")
        .set("fetch.wait.max.ms", "10")
        .set("fetch.error.backoff.ms", "50")
        .set("queued.max.messages.kbytes", "2048")
        // A queue that was full is filled again at once: keys that are behind are read in one go.
        .set("fetch.queue.backoff.ms", "1")
        .set("isolation.level", "read_committed");
    config
}

/// Of clients that follow logs. They wait for what is appended, and begin nowhere but where they were sent.
#[cfg(feature = "log")]
pub(super) fn follower(options: &KafkaOptions) -> ClientConfig {
    let mut config = looker(options);
    config
        .set("auto.offset.reset", "error")
        .set("enable.partition.eof", "false")
        // Answered as soon as there is anything. A partition that is added meanwhile waits for this long.
        .set("fetch.wait.max.ms", "50");
    config
}

/// Of a client that knows what a group has committed, and is no member.
pub(super) fn observer(options: &KafkaOptions, group: &str) -> ClientConfig {
    let mut config = common(options);
    config
        .set("group.id", group)
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("isolation.level", "read_committed");
    config
}

/// Of a member of a group that reads a topic with so many partitions.
pub(super) fn member(options: &KafkaOptions, group: &str, partitions: u32) -> ClientConfig {
    let mut config = observer(options, group);
    let ahead = ahead_bytes(partitions);
    config
        // A group without a position starts at the oldest; where it starts at the newest instead, that
        // is committed before it reads.
        .set("auto.offset.reset", "earliest")
        .set("queued.min.messages", AHEAD_RECORDS.to_string())
        .set("queued.max.messages.kbytes", (ahead / 1024).to_string())
        .set(
            "max.partition.fetch.bytes",
            ahead.min(ANSWER_BYTES).to_string(),
        )
        .set("fetch.queue.backoff.ms", millis(LOOK_AGAIN))
        .set("fetch.error.backoff.ms", "50")
        .set("statistics.interval.ms", "5000");
    match options.broker.protocol {
        KafkaProtocol::Classic => {
            let session = options.session_or_default();
            config
                .set("partition.assignment.strategy", "cooperative-sticky")
                .set("session.timeout.ms", millis(session))
                .set("heartbeat.interval.ms", millis(HEARTBEAT.min(session / 3)));
        }
        KafkaProtocol::Consumer => {
            config.set("group.protocol", "consumer");
        }
    }
    if let Some(instance) = &options.broker.instance {
        config.set("group.instance.id", instance);
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_ahead_is_bounded_over_all_partitions() {
        for partitions in [1, 8, 16, 100, 1024] {
            let all = u64::from(partitions) * u64::from(ahead_bytes(partitions));
            assert!(all <= u64::from(ALL_AHEAD_BYTES), "{partitions}");
            assert!(ahead_bytes(partitions) >= 64 << 10, "{partitions}");
        }
        assert_eq!(ahead_bytes(4), AHEAD_BYTES);
    }

    #[test]
    fn the_client_gives_up_before_its_caller_does() {
        for deadline in [2, 12, 30, 600] {
            let deadline = Duration::from_secs(deadline);
            let PublishWithin { room, delivery } = PublishWithin::of(deadline);
            assert!(room + delivery < deadline, "{deadline:?}");
        }
        let PublishWithin { delivery, .. } = PublishWithin::of(Duration::MAX);
        assert!(
            i32::try_from(delivery.as_millis()).is_ok(),
            "the client takes no more"
        );
        let PublishWithin { delivery, .. } = PublishWithin::of(Duration::ZERO);
        assert!(delivery > LONGEST_LINGER, "the client takes no less");
    }
}
