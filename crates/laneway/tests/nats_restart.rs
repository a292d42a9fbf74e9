//! The server goes away and comes back: nothing is lost, order holds, and it goes on by itself.

mod nats;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::{FutureExt, StreamExt};
use laneway::{Bus, NatsConnection, NatsOptions};
use tokio::time::{sleep, timeout};

use nats::server::NatsServer;
use nats::{SOON, Starts, declare, event, fresh, open, publish, settled};
use waiting::wait_for;

fn server(program: &str) -> NatsServer {
    NatsServer::start(program, |_| String::new())
}

async fn noting(bus: &Bus, starts: &Starts) {
    let seen = starts.clone();
    bus.subscribe_envelope("orders", move |event| {
        seen.note("one", &event);
        async { Ok(()) }
    })
    .await
    .expect("subscribed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_loses_nothing_and_keeps_the_order() {
    const KEYS: u64 = 20;
    let mut server = server(&needs::service!("nats_bin"));
    let bus = open(&fresh(&server.address(), "")).await;
    declare(&bus, "orders", 4).await;
    let starts = Starts::default();
    noting(&bus, &starts).await;
    let over = Arc::new(AtomicBool::new(false));
    let mut publishing = Vec::new();
    for key in 0..KEYS {
        let (bus, over) = (bus.clone(), over.clone());
        publishing.push(tokio::spawn(async move {
            let mut number = 0;
            while !over.load(Ordering::SeqCst) {
                // Again with the same id if it is not known whether it is there.
                publish(&bus, "orders", &event(&format!("key-{key}"), number)).await;
                number += 1;
                sleep(Duration::from_millis(5)).await;
            }
            number
        }));
    }
    for _ in 0..3 {
        let before = starts.len();
        wait_for!(starts.len() > before + 50, "it is at it");
        server.kill();
        wait_for!(!bus.health().await.is_well(), "it is noticed");
        server.resume();
        let before = starts.len();
        wait_for!(starts.len() > before + 50, "it goes on");
    }
    over.store(true, Ordering::SeqCst);
    let mut count = 0;
    for published in publishing {
        count += published.await.expect("no panic");
    }
    settled(&bus, "orders").await;
    starts.assert_in_order();
    assert_eq!(starts.distinct(), usize::try_from(count).expect("small"));
    let epochs = starts.all().into_iter().map(|start| start.epoch).max();
    assert_eq!(epochs, Some(1), "nobody else had it, so it stayed ours");
    bus.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_connection_is_told_of_and_health_says_how_it_is() {
    let mut server = server(&needs::service!("nats_bin"));
    let events: Arc<Mutex<Vec<NatsConnection>>> = Arc::default();
    let noted = events.clone();
    let options = NatsOptions::parse(&fresh(&server.address(), "")).expect("an address");
    let options = options.on_connection(move |event| {
        noted.lock().expect("no panic").push(event);
    });
    let bus = Bus::builder()
        .open_nats(options)
        .await
        .expect("it is there");
    declare(&bus, "orders", 1).await;
    assert!(bus.health().await.is_well());
    server.kill();
    wait_for!(!bus.health().await.is_well(), "it is noticed");
    // What is published now gets there when the server is back.
    let event = event("a", 0);
    let mut publishing = std::pin::pin!(bus.publish_envelope("orders", &event));
    tokio::select! {
        biased;
        published = &mut publishing => panic!("there is no server: {published:?}"),
        // Asked later, and answered.
        health = bus.health() => assert!(!health.is_well()),
    }
    server.resume();
    publishing.await.expect("published in the end");
    wait_for!(bus.health().await.is_well(), "it is well again");
    let lags = bus.backlog("orders", "default").await.expect("an answer");
    assert_eq!(lags[0].records, 1, "once");
    // It is told by a task of its own.
    let connected = |seen: &[NatsConnection]| {
        let connected = seen.iter();
        connected
            .filter(|event| **event == NatsConnection::Connected)
            .count()
    };
    wait_for!(
        connected(&events.lock().expect("no panic")) >= 2,
        "it is told"
    );
    let seen = events.lock().expect("no panic").clone();
    assert_eq!(connected(&seen), 2, "{seen:?}");
    assert!(seen.contains(&NatsConnection::Disconnected), "{seen:?}");
    bus.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_in_memory_begin_anew() {
    let mut server = server(&needs::service!("nats_bin"));
    let bus = open(&fresh(&server.address(), "")).await;
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = seen.clone();
    bus.subscribe("news", move |message| {
        let text = std::str::from_utf8(message.payload()).expect("text");
        noted.lock().expect("no panic").push(text.to_owned());
        async { Ok(()) }
    })
    .await
    .expect("subscribed");
    for number in 0..20 {
        let published = bus.publish("news", format!("before-{number}")).await;
        published.expect("published");
    }
    wait_for!(
        { seen.lock().expect("no panic").len() == 20 },
        "they are handled"
    );
    server.kill();
    server.resume();
    // Fewer than before: what was settled then must not count for these.
    let mut sent = 0;
    let deadline = Instant::now() + Duration::from_mins(2);
    while sent < 3 {
        match bus.publish("news", format!("after-{sent}")).await {
            Ok(_) => sent += 1,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        sleep(Duration::from_millis(10)).await;
    }
    let after = async || {
        let seen = seen.lock().expect("no panic");
        let mut after: Vec<_> = seen
            .iter()
            .filter(|text| text.starts_with("after"))
            .collect();
        after.sort();
        // One that was published again because no answer came may be there twice.
        after.dedup();
        after.into_iter().cloned().collect::<Vec<_>>()
    };
    wait_for!(after().await.len() >= 3, "they are handled");
    assert_eq!(after().await, ["after-0", "after-1", "after-2"]);
    bus.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_server_that_answers_is_used() {
    let server = server(&needs::service!("nats_bin"));
    // Nothing listens there, and no other test is given it.
    let port = 1;
    let both = format!("nats://127.0.0.1:{port},127.0.0.1:{}", server.port());
    let bus = open(&fresh(&both, "")).await;
    declare(&bus, "orders", 1).await;
    bus.close(SOON).await.expect("closed");
    let nobody = Bus::open(&format!("nats://127.0.0.1:{port}")).await;
    let error = nobody.expect_err("nobody is there").to_string();
    assert!(error.contains("connecting at 127.0.0.1"), "{error}");
}

/// Readers have a connection of their own, which the first of them makes; the client tells of it a little later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_connection_is_not_taken_for_a_second_one() {
    const PARTITIONS: u32 = 16;
    let server = server(&needs::service!("nats_bin"));
    let client = async_nats::connect(server.address()).await;
    let client = client.expect("it is there");
    let advisories = "$JS.EVENT.ADVISORY.CONSUMER.CREATED.*.*";
    let mut made = client.subscribe(advisories).await.expect("subscribed");
    client.flush().await.expect("the server knows of it");
    // Which of the two comes first is chance.
    for _ in 0..5 {
        let bus = open(&fresh(&server.address(), "")).await;
        declare(&bus, "orders", PARTITIONS).await;
        let starts = Starts::default();
        noting(&bus, &starts).await;
        let events: Vec<_> = (0..200).map(|key| event(&format!("k{key}"), 0)).collect();
        let published = bus.publish_envelope_batch("orders", &events).await;
        published.expect("published");
        let partitions = || -> HashSet<u32> {
            let starts = starts.all();
            starts.iter().map(|start| start.partition).collect()
        };
        wait_for!(
            partitions().len() == PARTITIONS as usize,
            "all partitions are read"
        );
        let mut consumers = 0;
        let reads_a_topic = |advisory: &async_nats::Message| advisory.subject.contains("-orders.");
        while consumers < PARTITIONS {
            let next = timeout(SOON, made.next()).await.expect("the server tells");
            consumers += u32::from(next.is_some_and(|advisory| reads_a_topic(&advisory)));
        }
        client.flush().await.expect("the server answers");
        while let Some(Some(advisory)) = made.next().now_or_never() {
            assert!(!reads_a_topic(&advisory), "a consumer was made anew");
        }
        bus.close(SOON).await.expect("closed");
    }
}
