//! What clients count of themselves, for the metrics of the bus.

use std::collections::BTreeMap;
#[cfg(feature = "metrics")]
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::Deserialize;

#[cfg(feature = "metrics")]
use crate::exposition::{Labels, Page};

/// What one client said last.
#[derive(Clone, Debug, Default, PartialEq)]
struct ClientStats {
    /// Records that wait to be sent, or to be acknowledged.
    waiting_records: u64,
    /// And their bytes.
    waiting_bytes: u64,
    sent_requests: u64,
    sent_bytes: u64,
    received_responses: u64,
    received_bytes: u64,
    /// Brokers that it has a connection to.
    connected_brokers: u64,
    /// How often a connection was made.
    connects: u64,
    /// The longest time that a broker takes to answer, at the 99th percentile, in seconds.
    answer_p99: f64,
}

#[cfg(feature = "metrics")]
type Named = (&'static str, &'static str, fn(&ClientStats) -> u64);

#[cfg(feature = "metrics")]
const GAUGES: [Named; 3] = [
    (
        "laneway_bus_kafka_waiting_records",
        "Records that a client has not sent yet",
        |f| f.waiting_records,
    ),
    (
        "laneway_bus_kafka_waiting_bytes",
        "Bytes that a client has not sent yet",
        |f| f.waiting_bytes,
    ),
    (
        "laneway_bus_kafka_connected_brokers",
        "Brokers that a client has a connection to",
        |f| f.connected_brokers,
    ),
];

#[cfg(feature = "metrics")]
const COUNTERS: [Named; 5] = [
    (
        "laneway_bus_kafka_sent_requests",
        "Requests that were sent",
        |f| f.sent_requests,
    ),
    (
        "laneway_bus_kafka_sent_bytes",
        "Bytes that were sent",
        |f| f.sent_bytes,
    ),
    (
        "laneway_bus_kafka_received_responses",
        "Responses that were received",
        |f| f.received_responses,
    ),
    (
        "laneway_bus_kafka_received_bytes",
        "Bytes that were received",
        |f| f.received_bytes,
    ),
    (
        "laneway_bus_kafka_connects",
        "How often a client connected",
        |f| f.connects,
    ),
];

/// The parts of the library's statistics that are of use.
#[derive(Deserialize)]
struct Statistics {
    msg_cnt: u64,
    msg_size: u64,
    tx: u64,
    tx_bytes: u64,
    rx: u64,
    rx_bytes: u64,
    brokers: BTreeMap<String, Broker>,
    #[serde(default)]
    topics: BTreeMap<String, Topic>,
}

#[derive(Deserialize)]
struct Topic {
    partitions: BTreeMap<String, Partition>,
}

#[derive(Deserialize)]
struct Partition {
    #[serde(rename = "partition")]
    number: i64,
    /// What is fetched and not taken yet.
    fetchq_cnt: i64,
    /// Where it fetches next.
    next_offset: i64,
}

/// Up to where a client has fetched partitions of a topic, of those that it has handed out all of.
pub(super) fn handed_out(json: &[u8], topic: &str) -> BTreeMap<u32, u64> {
    let Ok(mut said) = serde_json::from_slice::<Statistics>(json) else {
        return BTreeMap::new();
    };
    let partitions = said.topics.remove(topic).into_iter();
    let partitions = partitions.flat_map(|topic| topic.partitions.into_values());
    let handed_out = partitions.filter(|part| part.fetchq_cnt == 0);
    handed_out
        .filter_map(|part| {
            let number = u32::try_from(part.number).ok()?;
            Some((number, u64::try_from(part.next_offset).ok()?))
        })
        .collect()
}

#[derive(Deserialize)]
struct Broker {
    nodeid: i32,
    state: String,
    connects: Option<u64>,
    rtt: Option<Window>,
}

#[derive(Deserialize)]
struct Window {
    /// In microseconds.
    p99: u64,
}

/// The last figures of all clients of a bus.
#[derive(Clone, Default)]
pub(super) struct Gauges {
    clients: Arc<Mutex<BTreeMap<String, ClientStats>>>,
    tombstones: Arc<AtomicU64>,
}

impl Gauges {
    /// Notes what a client said.
    pub(super) fn note(&self, who: &str, json: &[u8]) {
        let Ok(said) = serde_json::from_slice::<Statistics>(json) else {
            return;
        };
        let brokers = || said.brokers.values().filter(|broker| broker.nodeid >= 0);
        let p99 = brokers().filter_map(|broker| broker.rtt.as_ref().map(|rtt| rtt.p99));
        let figures = ClientStats {
            waiting_records: said.msg_cnt,
            waiting_bytes: said.msg_size,
            sent_requests: said.tx,
            sent_bytes: said.tx_bytes,
            received_responses: said.rx,
            received_bytes: said.rx_bytes,
            connected_brokers: brokers().filter(|broker| broker.state == "UP").count() as u64,
            connects: brokers().filter_map(|broker| broker.connects).sum(),
            answer_p99: p99.max().unwrap_or(0) as f64 / 1e6,
        };
        let mut clients = self.clients.lock();
        clients.insert(who.to_owned(), figures);
    }

    /// Records without a value were passed over.
    pub(super) fn passed_over(&self, tombstones: u64) {
        self.tombstones.fetch_add(tombstones, Ordering::Relaxed);
    }

    /// A client is gone.
    pub(super) fn forget(&self, who: &str) {
        let mut clients = self.clients.lock();
        clients.remove(who);
    }

    /// Writes what all of them said last, by what they are for.
    #[cfg(feature = "metrics")]
    pub(super) fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        let clients = {
            let clients = self.clients.lock();
            clients.clone()
        };
        let labelled = || {
            clients
                .iter()
                .map(|(who, figures)| (Labels([("client", Some(who.as_str()))]), figures))
        };
        for (name, help, value) in GAUGES {
            page.gauges(name, help, labelled().map(|(who, f)| (who, value(f))))?;
        }
        for (name, help, value) in COUNTERS {
            page.counters(name, help, labelled().map(|(who, f)| (who, value(f))))?;
        }
        let tombstones = self.tombstones.load(Ordering::Relaxed);
        page.counters(
            "laneway_bus_kafka_tombstones",
            "Records without a value that were passed over",
            [(Labels::<0>([]), tombstones)].into_iter(),
        )?;
        page.gauges(
            "laneway_bus_kafka_answer_p99_seconds",
            "How long the slowest broker takes to answer",
            labelled().map(|(who, figures)| (who, figures.answer_p99)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_counts_as_handed_out_when_nothing_of_it_waits() {
        let said =
            br#"{"msg_cnt":0,"msg_size":0,"tx":0,"tx_bytes":0,"rx":0,"rx_bytes":0,"brokers":{},
            "topics":{"orders":{"topic":"orders","partitions":{
            "0":{"partition":0,"fetchq_cnt":0,"next_offset":7},
            "1":{"partition":1,"fetchq_cnt":2,"next_offset":9},
            "2":{"partition":2,"fetchq_cnt":0,"next_offset":-1001},
            "-1":{"partition":-1,"fetchq_cnt":0,"next_offset":0}}}}}"#;
        assert_eq!(handed_out(said, "orders"), BTreeMap::from([(0, 7)]));
        assert!(handed_out(said, "others").is_empty());
        assert!(handed_out(b"nothing", "orders").is_empty());
    }

    #[test]
    fn what_clients_say_is_read() {
        let gauges = Gauges::default();
        gauges.note("producer", b"no statistics");
        gauges.note(
            "producer",
            br#"{"type":"producer","ts":5,"msg_cnt":3,"msg_size":90,
                "tx":7,"tx_bytes":700,"rx":6,"rx_bytes":600,"brokers":{
                "a:1/1":{"nodeid":1,"state":"UP","connects":2,"rtt":{"p99":1500}},
                "b:1/2":{"nodeid":2,"state":"DOWN","connects":1,"rtt":{"p99":500}},
                "a:1/bootstrap":{"nodeid":-1,"state":"UP","connects":1}}}"#,
        );
        let all = gauges.clients.lock().clone();
        let figures = all.get("producer").expect("noted");
        assert_eq!((figures.waiting_records, figures.sent_bytes), (3, 700));
        assert_eq!((figures.connected_brokers, figures.connects), (1, 3));
        assert!((figures.answer_p99 - 0.0015).abs() < 1e-9);
        gauges.forget("producer");
        assert!(gauges.clients.lock().is_empty());
    }
}
