//! Plain clients get on with the topics of a bus: here the one for the command line, `kcat`.

mod kafka;

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use laneway::topic::Topic;
use laneway::{Bus, Envelope, Outgoing};
use serde_json::json;

use kafka::{SOON, declare, event, fresh, open, settled};
use waiting::wait_for;

/// It has what it reads within milliseconds; a broker that is busy may take longer.
const WITHIN: &str = "60";

/// Runs `kcat` at these brokers, with something to read; answers what it printed.
async fn kcat(program: &str, servers: &str, arguments: &[&str], input: &str) -> String {
    let mut command = Command::new("timeout");
    command
        .args([WITHIN, program, "-b", servers])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let input = input.to_owned();
    let running = tokio::task::spawn_blocking(move || {
        let mut process = command.spawn()?;
        if let Some(mut stdin) = process.stdin.take() {
            stdin.write_all(input.as_bytes())?;
        }
        process.wait_with_output()
    });
    let output = running.await.expect("no panic").expect("it can be run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    String::from_utf8(output.stdout).expect("text")
}

/// What the topics of a bus begin with on the cluster.
fn namespace(address: &str) -> &str {
    address.split_once("namespace=").expect("it has one").1
}

/// The events and messages that a bus handled.
type Seen<T> = Arc<Mutex<Vec<T>>>;

fn taken<T>(seen: &Seen<T>) -> Vec<T> {
    std::mem::take(&mut *seen.lock().expect("no panic"))
}

async fn events_of(bus: &Bus) -> Seen<Envelope> {
    let seen: Seen<Envelope> = Arc::default();
    let noted = seen.clone();
    bus.subscribe_envelope("orders", move |event| {
        noted
            .lock()
            .expect("no panic")
            .push(event.envelope().clone());
        async { Ok(()) }
    })
    .await
    .expect("subscribed");
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_reads_what_the_bus_publishes() {
    let (servers, program) = (needs::service!("kafka"), needs::service!("kcat"));
    let address = fresh(&servers, "");
    let bus = open(&address).await;
    declare(&bus, "orders", 4).await;
    let news = Topic::plain("news").partitions(1).build();
    let declared = bus.declare(&news.expect("a valid topic")).await;
    declared.expect("declared");
    let sent: Vec<_> = (0..3).map(|number| event("order-1", number)).collect();
    for event in &sent {
        let published = bus.publish_envelope("orders", event).await;
        published.expect("published");
    }
    let message = Outgoing::new("rain").header("Region", "north");
    let message = message.expect("a valid header");
    bus.publish("news", message).await.expect("published");

    let orders = format!("{}.orders", namespace(&address));
    let all = ["-C", "-q", "-e", "-o", "beginning", "-t", &orders];
    let printed = kcat(
        &program,
        &servers,
        &[&all[..], &["-f", "%k|%h|%s\n"]].concat(),
        "",
    )
    .await;
    let lines: Vec<_> = printed.lines().collect();
    assert_eq!(lines.len(), sent.len(), "{printed}");
    for (line, event) in lines.iter().zip(&sent) {
        let [key, headers, value] = line.splitn(3, '|').collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        assert_eq!(key, "order-1");
        let id = format!("X-Event-ID={}", event.event_id());
        for header in [&*id, "X-Aggregate-ID=order-1", "X-Event-Type=Happened"] {
            assert!(headers.split(',').any(|part| part == header), "{headers}");
        }
        let read = Envelope::decode(value.as_bytes().to_vec());
        assert_eq!(read.expect("an envelope"), *event);
    }

    let news = format!("{}.news", namespace(&address));
    let all = ["-C", "-q", "-e", "-o", "beginning", "-t", &news];
    let printed = kcat(
        &program,
        &servers,
        &[&all[..], &["-f", "%h|%s\n"]].concat(),
        "",
    )
    .await;
    let [headers, value] = printed.trim_end().split('|').collect::<Vec<_>>()[..] else {
        panic!("{printed}");
    };
    assert!(headers.contains("Region=north"), "{headers}");
    assert_eq!(value, "rain");
    bus.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_publishes_what_the_bus_handles() {
    let (servers, program) = (needs::service!("kafka"), needs::service!("kcat"));
    let address = fresh(&servers, "");
    let bus = open(&address).await;
    declare(&bus, "orders", 4).await;
    let seen = events_of(&bus).await;
    let orders = format!("{}.orders", namespace(&address));
    let produce = ["-P", "-t", &orders];

    // Envelopes, a line each: all of one key, in order.
    let sent: Vec<_> = (0..20).map(|number| event("order-1", number)).collect();
    let lines = sent.iter().map(|event| {
        let json = String::from_utf8(event.encode().to_vec());
        json.expect("JSON is text") + "\n"
    });
    let lines: String = lines.collect();
    kcat(
        &program,
        &servers,
        &[&produce[..], &["-k", "order-1"]].concat(),
        &lines,
    )
    .await;
    settled(&bus, "orders").await;
    assert_eq!(taken(&seen), sent);

    // One that does not say what it is about: the header does, and else the key.
    let mut bare = json!({
        "event_type": "Happened", "event_version": 1, "timestamp": "2026-01-02T03:04:05Z", "payload": 7,
    });
    for (arguments, id) in [
        (&["-k", "by-key"][..], "by-key"),
        (
            &["-k", "by-key", "-H", "X-Aggregate-ID=by-header"],
            "by-header",
        ),
    ] {
        bare["event_id"] = json!(id);
        let line = format!("{bare}\n");
        kcat(
            &program,
            &servers,
            &[&produce[..], arguments].concat(),
            &line,
        )
        .await;
        settled(&bus, "orders").await;
        let events = taken(&seen);
        assert_eq!(events.len(), 1, "{id}");
        assert_eq!(events[0].aggregate_id().as_str(), id);
        assert_eq!(events[0].json::<u64>().expect("a number"), 7);
    }

    // What is no envelope is a dead letter, with its key, and is in nobody's way.
    kcat(
        &program,
        &servers,
        &[&produce[..], &["-k", "order-1"]].concat(),
        "hello\n",
    )
    .await;
    settled(&bus, "orders").await;
    assert_eq!(taken(&seen), []);
    let dead = bus.dead_letters("orders").await.expect("there");
    let letters = dead.list(10).await.expect("a list");
    assert_eq!(letters.len(), 1);
    assert_eq!(&letters[0].record.payload[..], b"hello");
    bus.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_messages_of_others_have_their_headers() {
    let (servers, program) = (needs::service!("kafka"), needs::service!("kcat"));
    let address = fresh(&servers, "");
    let bus = open(&address).await;
    let news = Topic::plain("news").partitions(2).build();
    let declared = bus.declare(&news.expect("a valid topic")).await;
    declared.expect("declared");
    let seen: Seen<laneway::Message> = Arc::default();
    let noted = seen.clone();
    bus.subscribe("news", move |message| {
        noted.lock().expect("no panic").push(message);
        async { Ok(()) }
    })
    .await
    .expect("subscribed");
    let news = format!("{}.news", namespace(&address));
    let arguments = ["-P", "-t", &news, "-k", "anything", "-H", "Region=north"];
    kcat(&program, &servers, &arguments, "rain\nsnow\n").await;
    settled(&bus, "news").await;
    wait_for!(
        { seen.lock().expect("no panic").len() == 2 },
        "both are handled"
    );
    let mut texts = Vec::new();
    for message in taken(&seen) {
        assert_eq!(message.headers().get_str("region"), Some("north"));
        texts.push(String::from_utf8_lossy(message.payload()).into_owned());
    }
    texts.sort();
    assert_eq!(texts, ["rain", "snow"]);
    bus.close(SOON).await.expect("closed");
}
