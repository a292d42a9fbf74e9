//! Streams that somebody else made.

mod nats;

use async_nats::jetstream::{self, stream};
use laneway::topic::{Kind, Storage, Topic};
use laneway::{BrokerError, Bus, Error, headers};
use serde_json::json;

use nats::logs::Log;
use nats::{SOON, Starts, event, fresh, open, settled};
use waiting::wait_for;

/// What others use.
async fn context(address: &str) -> jetstream::Context {
    let client = async_nats::connect(address).await.expect("it is there");
    jetstream::new(client)
}

/// A subject that nobody else has.
fn unique(name: &str) -> String {
    format!("{name}{}", std::process::id())
}

fn body(id: Option<&str>, number: u64) -> bytes::Bytes {
    let mut body = json!({
        "event_id": format!("e-{number}"), "event_type": "Happened", "event_version": 1,
        "timestamp": "2026-01-01T00:00:00Z", "payload": number,
    });
    if let Some(id) = id {
        body["aggregate_id"] = id.into();
    }
    body.to_string().into()
}

async fn noting(bus: &Bus, topic: &str, starts: &Starts) {
    let seen = starts.clone();
    bus.subscribe_envelope(topic, move |event| {
        seen.note("one", &event);
        async { Ok(()) }
    })
    .await
    .expect("subscribed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_somebody_else_is_one_partition() {
    let address = needs::service!("nats");
    let theirs = context(&address).await;
    let topic = unique("attached");
    let config = stream::Config {
        name: topic.clone(),
        subjects: vec![format!("{topic}.>")],
        ..stream::Config::default()
    };
    let stream = theirs.create_stream(config).await.expect("created");
    let orders = format!("{topic}.orders");
    for number in 0..5 {
        let sent = theirs
            .publish(orders.clone(), body(Some("a"), number))
            .await;
        sent.expect("sent").await.expect("published");
        // Another subject of the same stream is none of our business.
        let sent = theirs
            .publish(format!("{topic}.other"), "noise".into())
            .await;
        sent.expect("sent").await.expect("published");
    }
    let sent = theirs.publish(orders.clone(), "noise".into()).await;
    sent.expect("sent").await.expect("published");

    let bus = open(&fresh(&address, "")).await;
    let described = bus.describe(&orders).await.expect("an answer");
    let described = described.expect("it is there");
    assert_eq!(
        (described.kind(), described.storage()),
        (Kind::Domain, Storage::File)
    );
    assert_eq!(described.partitions().get(), 1);
    let starts = Starts::default();
    noting(&bus, &orders, &starts).await;
    let published = bus.publish_envelope(&orders, &event("a", 5)).await;
    published.expect("published");
    settled(&bus, &orders).await;
    let numbers: Vec<_> = starts.all().iter().map(|start| start.number).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5]);
    let dead = bus.dead_letters(&orders).await.expect("there");
    let letters = dead.list(10).await.expect("a list");
    assert_eq!(letters.len(), 1, "the one that is no event");
    // And ours is there for them, with what they can read unopened.
    let last = stream
        .get_last_raw_message_by_subject(&orders)
        .await
        .expect("ours");
    let header = |name: &str| {
        last.headers
            .get(name)
            .map(|value| value.as_str().to_owned())
    };
    assert_eq!(header(headers::AGGREGATE_ID).as_deref(), Some("a"));
    assert_eq!(header(headers::EVENT_TYPE).as_deref(), Some("Happened"));
    assert_eq!(header(headers::NATS_MSG_ID), header(headers::EVENT_ID));

    let refused = bus.delete(&orders).await;
    let foreign = matches!(refused, Err(Error::Broker(BrokerError::Foreign { .. })));
    assert!(foreign, "{refused:?}");
    let declared = Topic::domain(&orders).build().expect("valid");
    let refused = bus
        .declare(&declared)
        .await
        .expect_err("it has one partition");
    assert!(
        refused.to_string().contains("16 and exists as 1"),
        "{refused}"
    );
    bus.close(SOON).await.expect("closed");
    theirs.delete_stream(&topic).await.expect("deleted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_token_of_a_subject_is_a_key_at_last() {
    let address = needs::service!("nats");
    let theirs = context(&address).await;
    let topic = unique("keyed");
    let pattern = format!("{topic}.*");
    let config = stream::Config {
        name: topic.clone(),
        subjects: vec![pattern.clone()],
        ..stream::Config::default()
    };
    theirs.create_stream(config).await.expect("created");
    for (subject, id) in [("by-subject", None), ("by-subject", Some("by-envelope"))] {
        let sent = theirs
            .publish(format!("{topic}.{subject}"), body(id, 0))
            .await;
        sent.expect("sent").await.expect("published");
    }
    let bus = open(&fresh(&address, "")).await;
    let starts = Starts::default();
    noting(&bus, &pattern, &starts).await;
    let published = bus.publish_envelope(&pattern, &event("ours", 0)).await;
    published.expect("published");
    settled(&bus, &pattern).await;
    let mut keys: Vec<_> = starts.all().into_iter().map(|start| start.key).collect();
    keys.sort();
    assert_eq!(keys, ["by-envelope", "by-subject", "ours"]);
    let refused = bus.publish_envelope(&pattern, &event("a.b", 0)).await;
    let refused = refused.expect_err("two tokens").to_string();
    assert!(refused.contains("\"a.b\""), "{refused}");
    bus.close(SOON).await.expect("closed");
    theirs.delete_stream(&topic).await.expect("deleted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_in_memory_is_a_plain_topic() {
    let address = needs::service!("nats");
    let theirs = context(&address).await;
    let topic = unique("memory");
    let config = stream::Config {
        name: topic.clone(),
        subjects: vec![topic.clone()],
        storage: stream::StorageType::Memory,
        ..stream::Config::default()
    };
    theirs.create_stream(config).await.expect("created");
    let bus = open(&fresh(&address, "")).await;
    let described = bus.describe(&topic).await.expect("an answer");
    assert_eq!(described.expect("it is there").kind(), Kind::Plain);
    let seen = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let noted = seen.clone();
    bus.subscribe(&topic, move |_| {
        noted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        async { Ok(()) }
    })
    .await
    .expect("subscribed");
    let sent = theirs.publish(topic.clone(), "theirs".into()).await;
    sent.expect("sent").await.expect("published");
    bus.publish(&topic, "ours").await.expect("published");
    wait_for!(
        { seen.load(std::sync::atomic::Ordering::SeqCst) == 2 },
        "both are handled"
    );
    bus.close(SOON).await.expect("closed");
    theirs.delete_stream(&topic).await.expect("deleted");
}

/// On one thread, whose log is read.
#[tokio::test]
async fn streams_of_others_that_a_topic_is_or_has_for_a_subject_are_told_of_once() {
    let address = needs::service!("nats");
    let theirs = context(&address).await;
    let (foreign, taken) = (unique("told-foreign"), unique("told-taken"));
    let make = async |name: &str, subject: &str| {
        let config = stream::Config {
            name: name.to_owned(),
            subjects: vec![subject.to_owned()],
            ..stream::Config::default()
        };
        theirs.create_stream(config).await.expect("created");
    };
    make(&foreign, &foreign).await;
    let (log, _logging) = Log::begin();
    let bus = open(&fresh(&address, "")).await;
    // A topic that is a stream of others, because that was there first.
    for _ in 0..3 {
        let described = bus.describe(&foreign).await.expect("an answer");
        assert!(described.is_some());
    }
    let told = log.with(&["WARN", &foreign, "the topic is a foreign stream"]);
    assert_eq!(told.len(), 1, "{told:?}");
    // A topic of ours, which others make a stream for afterwards: a process that comes later says so.
    let topic = Topic::domain(&taken).partitions(1).build();
    let topic = topic.expect("a valid topic");
    let address = fresh(&address, "");
    let first = open(&address).await;
    first.declare(&topic).await.expect("declared");
    let clash = "a foreign stream has the name of the topic for a subject";
    assert!(log.with(&[&taken, clash]).is_empty(), "there is none yet");
    make(&taken, &taken).await;
    let later = open(&address).await;
    for _ in 0..3 {
        let described = later.describe(&taken).await.expect("an answer");
        assert!(described.is_some());
    }
    let told = log.with(&["WARN", &taken, clash]);
    assert_eq!(told.len(), 1, "{told:?}");
    for name in [&foreign, &taken] {
        theirs.delete_stream(name).await.expect("deleted");
    }
    for bus in [bus, first, later] {
        bus.close(SOON).await.expect("closed");
    }
}
