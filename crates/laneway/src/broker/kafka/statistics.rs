//! What clients count of themselves, for the metrics of the bus.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;

use crate::exposition::{Labels, Page};

/// What one client said last.
#[derive(Clone, Debug, Default, PartialEq)]
struct Figures {
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

type Named = (&'static str, &'static str, fn(&Figures) -> u64);

const GAUGES: [Named; 3] = [
    (
        "bus_kafka_waiting_records",
        "Records that a client has not sent yet",
        |f| f.waiting_records,
    ),
    (
        "bus_kafka_waiting_bytes",
        "Bytes that a client has not sent yet",
        |f| f.waiting_bytes,
    ),
    (
        "bus_kafka_connected_brokers",
        "Brokers that a client has a connection to",
        |f| f.connected_brokers,
    ),
];

const COUNTERS: [Named; 5] = [
    ("bus_kafka_sent_requests", "Requests that were sent", |f| {
        f.sent_requests
    }),
    ("bus_kafka_sent_bytes", "Bytes that were sent", |f| {
        f.sent_bytes
    }),
    (
        "bus_kafka_received_responses",
        "Responses that were received",
        |f| f.received_responses,
    ),
    (
        "bus_kafka_received_bytes",
        "Bytes that were received",
        |f| f.received_bytes,
    ),
    ("bus_kafka_connects", "How often a client connected", |f| {
        f.connects
    }),
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
pub(super) struct Gauges(Arc<Mutex<BTreeMap<String, Figures>>>);

impl Gauges {
    /// Notes what a client said.
    pub(super) fn note(&self, who: &str, json: &[u8]) {
        let Ok(said) = serde_json::from_slice::<Statistics>(json) else {
            return;
        };
        let brokers = || said.brokers.values().filter(|broker| broker.nodeid >= 0);
        let p99 = brokers().filter_map(|broker| broker.rtt.as_ref().map(|rtt| rtt.p99));
        let figures = Figures {
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
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        clients.insert(who.to_owned(), figures);
    }

    /// A client is gone.
    pub(super) fn forget(&self, who: &str) {
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        clients.remove(who);
    }

    /// Writes what all of them said last, by what they are for.
    pub(super) fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        let clients = {
            let clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
        page.gauges(
            "bus_kafka_answer_p99_seconds",
            "How long the slowest broker takes to answer",
            labelled().map(|(who, figures)| (who, figures.answer_p99)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let all = gauges.0.lock().expect("no panic in here").clone();
        let figures = all.get("producer").expect("noted");
        assert_eq!((figures.waiting_records, figures.sent_bytes), (3, 700));
        assert_eq!((figures.connected_brokers, figures.connects), (1, 3));
        assert!((figures.answer_p99 - 0.0015).abs() < 1e-9);
        gauges.forget("producer");
        assert!(gauges.0.lock().expect("no panic in here").is_empty());
    }
}
