//! Whatever a foreign producer can write is handled, becomes a dead letter with a reason, or is passed over
//! and counted. Nothing of it stops, loops or panics.

mod kafka;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use laneway::topic::Topic;
use laneway::{Bus, Letter, State, Subscription};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};

use kafka::raw::{RawRecord, produce, size};
use kafka::{SOON, client, declare, event, fresh, group_of, make, open, publish, settled, unique};
use waiting::wait_for;

type Handled = Arc<Mutex<Vec<(String, u64)>>>;

async fn noting(bus: &Bus, topic: &str) -> (Subscription, Handled) {
    let handled = Handled::default();
    let noted = handled.clone();
    let subscribing = bus.subscribe_envelope(topic, move |event| {
        let key = event.aggregate_id().to_string();
        let number = event.json().expect("a number");
        noted.lock().expect("no panic").push((key, number));
        async { Ok(()) }
    });
    (subscribing.await.expect("subscribed"), handled)
}

/// An event as any producer writes it.
fn raw(key: &str, number: u64) -> RawRecord {
    RawRecord {
        key: Some(key.as_bytes().to_vec()),
        value: Some(event(key, number).encode().to_vec()),
        headers: Vec::new(),
    }
}

fn with_header(record: RawRecord, name: &[u8], value: Option<&[u8]>) -> RawRecord {
    let mut record = record;
    let value = value.map(<[u8]>::to_vec);
    record.headers.push((name.to_vec(), value));
    record
}

/// What is odd, each with the key that is handled, or the reason of its dead letter, or neither.
fn oddities() -> Vec<(RawRecord, Option<&'static str>, Option<&'static str>)> {
    let bytes = |body: &[u8]| Some(body.to_vec());
    let garbage = |key: &[u8], body: &[u8]| RawRecord {
        key: bytes(key),
        value: bytes(body),
        headers: Vec::new(),
    };
    let not_text = "header name that is not UTF-8";
    let with_name = with_header(raw("b", 0), b"M\xfcller", Some(b"x"));
    let among_others = with_header(raw("c", 0), b"X-Team", Some(b"shop"));
    let among_others = with_header(among_others, b"\xff\xfe", None);
    vec![
        (with_name, None, Some(not_text)),
        (among_others, None, Some(not_text)),
        // Values are bytes.
        (
            with_header(raw("d", 0), b"X-Name", Some(b"M\xfcller")),
            Some("d"),
            None,
        ),
        (with_header(raw("e", 0), b"X-Name", None), Some("e"), None),
        (with_header(raw("f", 0), b"", Some(b"")), Some("f"), None),
        (
            with_header(raw("g", 0), b"a\0b", Some(b"\0")),
            Some("g"),
            None,
        ),
        (
            with_header(raw("h", 0), b"traceparent", Some(b"\xff")),
            Some("h"),
            None,
        ),
        // The aggregate is in the envelope.
        (
            RawRecord {
                key: None,
                ..raw("i", 0)
            },
            Some("i"),
            None,
        ),
        (
            RawRecord {
                key: bytes(b""),
                ..raw("j", 0)
            },
            Some("j"),
            None,
        ),
        (
            RawRecord {
                key: bytes(b"\xff\xfe"),
                ..raw("k", 0)
            },
            Some("k"),
            None,
        ),
        (
            RawRecord {
                key: Some(vec![b'l'; 200_000]),
                ..raw("l", 0)
            },
            Some("l"),
            None,
        ),
        // No value: there is nothing more of a key.
        (
            RawRecord {
                value: None,
                ..raw("m", 0)
            },
            None,
            None,
        ),
        (RawRecord::default(), None, None),
        (
            with_header(
                RawRecord {
                    value: None,
                    ..raw("n", 0)
                },
                b"\xff",
                None,
            ),
            None,
            None,
        ),
        // Not events.
        (garbage(b"o", b""), None, Some("EOF")),
        (garbage(b"p", b"{"), None, Some("EOF")),
        (garbage(b"", b"\xff\xff"), None, Some("")),
        (garbage(&[b'q'; 200_000], b"null"), None, Some("")),
        (garbage(b"r", &vec![b'7'; 700_000]), None, Some("")),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_foreign_producer_writes_stops_nothing() {
    let servers = needs::service!("kafka");
    let topic = unique("foreign");
    make(&servers, &topic, 1, &[("max.message.bytes", "8388608")]).await;
    let bus = open(&format!("kafka://{servers}")).await;
    let mut registry = Registry::default();
    bus.register_metrics(&mut registry);
    let (subscription, handled) = noting(&bus, &topic).await;
    let oddities = oddities();
    let records: Vec<_> = std::iter::once(raw("a", 0))
        .chain(oddities.iter().map(|(record, ..)| record.clone()))
        .chain([raw("a", 1)])
        .collect();
    produce(&servers, &topic, 0, &records);
    // One by one, too, and while it reads.
    for record in &records {
        produce(&servers, &topic, 0, std::slice::from_ref(record));
    }
    let is_last = |handled: &Handled| {
        let handled = handled.lock().expect("no panic");
        handled
            .iter()
            .filter(|(key, number)| key == "a" && *number == 1)
            .count()
            == 2
    };
    wait_for!({ is_last(&handled) }, "what comes after them is handled");
    settled(&bus, &topic).await;

    let mut keys: Vec<_> = handled.lock().expect("no panic").clone();
    keys.retain(|(key, _)| key != "a");
    keys.sort_unstable();
    let expected = oddities.iter().filter_map(|(_, key, _)| *key);
    let expected = expected.flat_map(|key| [(key.to_owned(), 0), (key.to_owned(), 0)]);
    assert_eq!(keys, expected.collect::<Vec<_>>());
    let reasons: Vec<_> = oddities
        .iter()
        .filter_map(|(_, _, reason)| *reason)
        .collect();
    let dead = bus.dead_letters(&topic).await.expect("letters");
    let mut letters = dead.list(100).await.expect("a list");
    letters.sort_by_key(|letter| letter.origin);
    assert_eq!(letters.len(), 2 * reasons.len());
    for (letter, reason) in letters.iter().zip(reasons.iter().cycle()) {
        assert!(letter.reason.contains(reason), "{} {reason}", letter.reason);
        assert!(!letter.reason.is_empty());
    }
    let (with_name, _, _) = &oddities[0];
    let body = with_name.value.as_ref().map(Vec::len);
    assert_eq!(body_of(&letters[0], "b"), body, "it keeps its body");
    let team = letters[1].record.headers.get_str("X-Team");
    assert_eq!(team, Some("shop"), "and the headers that have names");
    let mut page = String::new();
    encode(&mut page, &registry).expect("a page");
    assert!(
        page.contains("laneway_bus_kafka_tombstones_total{} 6"),
        "{page}"
    );
    assert_eq!(subscription.state(), State::Running);

    // A replayed one has no more of the name, and can be read.
    dead.replay(&letters[..1]).await.expect("replayed");
    wait_for!(
        {
            let handled = handled.lock().expect("no panic");
            handled.iter().any(|(key, _)| key == "b")
        },
        "the letter is handled"
    );
    settled(&bus, &topic).await;
    subscription.close(SOON).await;
    let count = handled.lock().expect("no panic").len();
    // Whoever reads it next has no trouble with it, either.
    let (subscription, again) = noting(&bus, &topic).await;
    publish(&bus, &topic, &event("a", 2)).await;
    settled(&bus, &topic).await;
    let again = again.lock().expect("no panic").clone();
    assert_eq!(again, [("a".to_owned(), 2)], "{count} before");
    subscription.close(SOON).await;
    bus.close(SOON).await.expect("closed");
}

/// How long the body is, if the letter has the aggregate in it.
fn body_of(letter: &Letter, key: &str) -> Option<usize> {
    let value: serde_json::Value = serde_json::from_slice(&letter.record.payload).ok()?;
    (value["aggregate_id"] == key).then_some(letter.record.payload.len())
}

/// An event that takes exactly so many bytes in the log.
fn event_of(key: &str, bytes: usize) -> RawRecord {
    let mut record = raw(key, 0);
    // The lengths that stand before it take more room for a longer one.
    for _ in 0..3 {
        let other = size(&record) - record.value.as_ref().map_or(0, Vec::len);
        let value = record.value.as_mut().expect("a body");
        value.resize(bytes - other, b' ');
    }
    assert_eq!(size(&record), bytes);
    record
}

/// The topics are of others, with limits that are not ours: one takes more than we would ever publish, and one so little
/// that nothing can be added to what is in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_above_our_own_limit_and_at_that_of_the_topic_are_handled_or_put_aside_and_replayed()
 {
    const OURS: usize = 200_000;
    let servers = needs::service!("kafka");
    let bus = open(&format!("kafka://{servers}?max_message={OURS}")).await;
    for most in [20_000, OURS, 4_000_000] {
        let topic = unique("sized");
        let limit = most.to_string();
        make(&servers, &topic, 1, &[("max.message.bytes", &limit)]).await;
        let is_well = Arc::new(AtomicBool::new(false));
        let handled = Arc::<Mutex<Vec<String>>>::default();
        let subscribing = bus.subscription(&topic).envelope({
            let (is_well, handled) = (is_well.clone(), handled.clone());
            move |event| {
                let key = event.aggregate_id().to_string();
                let fails = key == "fails" && !is_well.load(Ordering::SeqCst);
                if !fails {
                    handled.lock().expect("no panic").push(key);
                }
                async move {
                    if fails {
                        return Err(laneway::Failure::fatal("not now"));
                    }
                    Ok(())
                }
            }
        });
        let subscription = subscribing.await.expect("subscribed");
        let mut noise = event_of("noise", most);
        noise.value.as_mut().expect("a body")[0] = b'x';
        let mut unknown: serde_json::Value =
            serde_json::from_slice(&event("unknown", 0).encode()).expect("JSON");
        unknown["later"] = serde_json::json!([{"version": 2}, null]);
        let body = unknown.to_string().into_bytes();
        let records = [
            event_of("full", most),
            event_of("fails", most),
            noise,
            RawRecord {
                value: Some(body),
                ..raw("unknown", 0)
            },
            RawRecord {
                value: None,
                ..raw("full", 0)
            },
            RawRecord {
                key: Some(vec![b'k'; most / 2]),
                ..raw("huge-key", 0)
            },
            RawRecord {
                key: Some(Vec::new()),
                ..raw("empty-key", 0)
            },
        ];
        for record in &records {
            produce(&servers, &topic, 0, std::slice::from_ref(record));
        }
        settled(&bus, &topic).await;
        let seen = || {
            let mut keys = handled.lock().expect("no panic").clone();
            keys.sort_unstable();
            keys
        };
        assert_eq!(
            seen(),
            ["empty-key", "full", "huge-key", "unknown"],
            "{most}"
        );
        let dead = bus.dead_letters(&topic).await.expect("letters");
        let mut letters = dead.list(10).await.expect("a list");
        letters.sort_by_key(|letter| letter.origin);
        let [fails, noise] = &letters[..] else {
            panic!("two letters, not {}", letters.len());
        };
        assert_eq!(fails.reason, "not now");
        assert!(
            noise.reason.contains("not one JSON object"),
            "{}",
            noise.reason
        );
        for (letter, record) in [(fails, &records[1]), (noise, &records[2])] {
            assert_eq!(letter.missing, None, "{most}");
            let body = record.value.as_deref().expect("a body");
            assert!(letter.record.payload == body, "{most}: not whole");
        }
        is_well.store(true, Ordering::SeqCst);
        assert_eq!(dead.replay_all().await.expect("replayed"), 2, "{most}");
        settled(&bus, &topic).await;
        assert!(seen().contains(&"fails".to_owned()), "{most}");
        let left = dead.list(10).await.expect("a list");
        assert_eq!(left.len(), 1, "{most}: what is no event is a letter again");
        let body = records[2].value.as_deref().expect("a body");
        assert!(left[0].record.payload == body, "{most}: not whole");
        assert_eq!(subscription.state(), State::Running);
        subscription.close(SOON).await;
    }
    bus.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_messages_that_are_odd_stop_nothing() {
    let address = fresh(&needs::service!("kafka"), "");
    let servers = needs::service!("kafka");
    let bus = open(&address).await;
    let plain = Topic::plain("news").partitions(1).build().expect("valid");
    bus.declare(&plain).await.expect("declared");
    let bodies = Arc::new(Mutex::new(Vec::new()));
    let noted = bodies.clone();
    let subscribing = bus.subscribe("news", move |message| {
        noted
            .lock()
            .expect("no panic")
            .push(message.payload().to_vec());
        async { Ok(()) }
    });
    let subscription = subscribing.await.expect("subscribed");
    let group = group_of(&address, "news");
    let name = group.replace("default@", "");
    let odd: Vec<_> = oddities().into_iter().map(|(record, ..)| record).collect();
    produce(&servers, &name, 0, &odd);
    produce(
        &servers,
        &name,
        0,
        &[RawRecord {
            value: Some(b"end".to_vec()),
            ..RawRecord::default()
        }],
    );
    wait_for!(
        {
            bodies
                .lock()
                .expect("no panic")
                .iter()
                .any(|body| body == b"end")
        },
        "what comes after them is handled"
    );
    assert_eq!(subscription.state(), State::Running);
    bus.close(SOON).await.expect("closed");
}

/// What Kafka itself says that a group has committed, and where the partition ends.
fn committed(servers: &str, group: &str, topic: &str) -> (Option<i64>, i64) {
    let mut config = client(servers);
    let asker: BaseConsumer = config.set("group.id", group).create().expect("a client");
    let mut list = rdkafka::TopicPartitionList::new();
    list.add_partition(topic, 0);
    let limit = SOON;
    let list = asker.committed_offsets(list, limit).expect("an answer");
    let offset = list.elements()[0].offset().to_raw();
    let (_, end) = asker.fetch_watermarks(topic, 0, limit).expect("an answer");
    (offset, end)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_is_at_the_end_shows_no_lag_whatever_is_there() {
    let servers = needs::service!("kafka");
    let topics = [unique("aborted"), unique("tombstones")];
    let mut groups = BTreeMap::new();
    for topic in &topics {
        make(&servers, topic, 1, &[]).await;
        groups.insert(topic.clone(), format!("default@{topic}"));
    }
    let producer: FutureProducer = client(&servers)
        .set("transactional.id", unique("txn"))
        .create()
        .expect("a producer");
    producer.init_transactions(SOON).expect("ready");
    for commits in [true, false] {
        producer.begin_transaction().expect("begun");
        for number in 0..5 {
            let payload = event("a", number).encode();
            let record = FutureRecord::to(&topics[0]).key("a").payload(&payload[..]);
            producer.send(record, SOON).await.expect("sent");
        }
        if commits {
            producer.commit_transaction(SOON).expect("committed");
        } else {
            producer.abort_transaction(SOON).expect("aborted");
        }
    }
    let tombstone = RawRecord {
        value: None,
        ..raw("a", 0)
    };
    produce(
        &servers,
        &topics[1],
        0,
        &[raw("a", 0), tombstone.clone(), tombstone],
    );
    let bus = open(&format!("kafka://{servers}?session_ms=3000")).await;
    for topic in &topics {
        noting(&bus, topic).await;
    }
    for topic in &topics {
        settled(&bus, topic).await;
        wait_for!(
            {
                let (committed, end) = committed(&servers, &groups[topic], topic);
                committed == Some(end)
            },
            "Kafka shows no lag"
        );
        // What comes next is not passed over.
        publish(&bus, topic, &event("a", 9)).await;
        settled(&bus, topic).await;
    }
    bus.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_publishes_nothing_by_an_old_number_of_partitions() {
    use laneway::topic::{Growth, Partitions, Strategy, partition_of};
    let address = fresh(&needs::service!("kafka"), "");
    let (one, two) = (open(&address).await, open(&address).await);
    let keys: Vec<_> = (0..20).map(|number| format!("key-{number}")).collect();
    let all = Partitions::new(8).expect("a number");
    let mut old = Vec::new();
    // A process that does not come to read the catalog for three seconds goes by what it knows: a busy machine may do that to one.
    for number in 0..5 {
        let topic = format!("orders-{number}");
        declare(&one, &topic, 2).await;
        let place = async |key: &String| {
            let published = one.publish_envelope(&topic, &event(key, 0)).await;
            published.expect("published").partition
        };
        for key in &keys {
            assert!(place(key).await < 2);
        }
        let more = Topic::domain(&topic).partitions(8).build().expect("valid");
        let growing = two.declare_with(&more, Strategy::CreateOrUpdate, Growth::Forced);
        growing.await.expect("grown");
        // From the first one on: no event is published by the old number after one was by the new one.
        old.clear();
        for key in &keys {
            if place(key).await != partition_of(key, all) {
                old.push(key.clone());
            }
        }
        if old.is_empty() {
            break;
        }
    }
    assert!(old.is_empty(), "by the old number, each time: {old:?}");
    one.close(SOON).await.expect("closed");
    two.close(SOON).await.expect("closed");
}
