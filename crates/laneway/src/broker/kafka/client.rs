//! Clients of the cluster: how they are set up, and what they tell.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::cluster::lock;
use super::options::{KafkaOptions, KafkaProtocol};
use super::statistics::Gauges;
use crate::topic::Compression;

/// A call to the cluster, with which nothing else can go on, gives up after this long; whoever asked
/// tries again.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Members that are there say so this often, or a third of the session if that is less.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// Read ahead of the bus, for each partition.
const AHEAD_BYTES: u32 = 8 << 20;
const AHEAD_RECORDS: u32 = 20_000;

/// A partition that was read far enough ahead is looked at again after this long.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// What clients tell of themselves goes to the log and to the gauges.
#[derive(Clone)]
pub(super) struct Telling {
    pub(super) gauges: Gauges,
    /// What the client is for.
    pub(super) who: Arc<str>,
    /// What clients had to complain about last: why nobody answers.
    pub(super) trouble: Arc<Mutex<Option<String>>>,
}

impl Telling {
    /// For a client of its own.
    pub(super) fn of(&self, who: &str) -> Self {
        Self {
            gauges: self.gauges.clone(),
            who: who.into(),
            trouble: self.trouble.clone(),
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
            | RDKafkaLogLevel::Warning => tracing::warn!(facility, "{message}"),
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
        // It goes on by itself; what it could not do is told to whoever asked for it.
        if error.rdkafka_error_code() != Some(RDKafkaErrorCode::AllBrokersDown) {
            *lock(&self.trouble) = Some(reason.to_owned());
        }
        tracing::debug!(%error, reason, "a client of the cluster has trouble");
    }
}

/// Those that read without being a member have nothing to say about groups.
impl ConsumerContext for Telling {}

fn millis(duration: Duration) -> String {
    duration.as_millis().to_string()
}

/// What all clients have in common.
pub(super) fn common(options: &KafkaOptions) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", options.server_list())
        .set("client.id", "laneway")
        .set("allow.auto.create.topics", "false")
        .set("socket.keepalive.enable", "true")
        .set("reconnect.backoff.ms", "50")
        .set("reconnect.backoff.max.ms", "1000")
        .set("message.max.bytes", options.max_message.to_string());
    let protocol = match (options.user.is_some(), options.tls) {
        (false, false) => "plaintext",
        (false, true) => "ssl",
        (true, false) => "sasl_plaintext",
        (true, true) => "sasl_ssl",
    };
    config.set("security.protocol", protocol);
    if let Some(user) = &options.user {
        config
            .set("sasl.mechanism", options.sasl.mechanism())
            .set("sasl.username", &user.name)
            .set("sasl.password", &user.password);
    }
    let path = |path: &std::path::Path| path.to_string_lossy().into_owned();
    if let Some(ca) = &options.ca {
        config.set("ssl.ca.location", path(ca));
    }
    if let Some((certificate, key)) = &options.certificate {
        config
            .set("ssl.certificate.location", path(certificate))
            .set("ssl.key.location", path(key));
    }
    config
}

/// Of the one client that publishes. What it was given is there in order and once, or not at all.
pub(super) fn producer(options: &KafkaOptions) -> ClientConfig {
    let mut config = common(options);
    config
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("linger.ms", millis(options.linger))
        .set("compression.type", compression(options.compression))
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
        .set("isolation.level", "read_committed");
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

/// Of a member of a group.
pub(super) fn member(options: &KafkaOptions, group: &str) -> ClientConfig {
    let mut config = observer(options, group);
    config
        // A group without a position starts at the oldest; where it starts at the newest instead, that
        // is committed before it reads.
        .set("auto.offset.reset", "earliest")
        .set("queued.min.messages", AHEAD_RECORDS.to_string())
        .set(
            "queued.max.messages.kbytes",
            (AHEAD_BYTES / 1024).to_string(),
        )
        .set("fetch.queue.backoff.ms", millis(LOOK_AGAIN))
        .set("fetch.error.backoff.ms", "50")
        .set("statistics.interval.ms", "5000");
    match options.protocol {
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
    if let Some(instance) = &options.instance {
        config.set("group.instance.id", instance);
    }
    config
}
