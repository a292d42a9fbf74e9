//! The server goes away and comes back: nothing is lost, order holds, and it goes on by itself.

mod nats;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use laneway::{Bus, NatsConnection, NatsOptions};
use tokio::time::sleep;

use nats::server::NatsServer;
use nats::{SOON, Starts, declare, event, eventually, fresh, open, publish, settled};

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
        eventually("it is at it", async || starts.len() > before + 50).await;
        server.kill();
        sleep(Duration::from_millis(300)).await;
        server.resume();
        let resumed = Instant::now();
        let before = starts.len();
        eventually("it goes on", async || starts.len() > before + 50).await;
        let took = resumed.elapsed();
        assert!(took < Duration::from_secs(5), "it took {took:?} to go on");
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
    eventually("it is noticed", async || !bus.health().await.is_well()).await;
    // What is published now gets there when the server is back.
    let waiting = bus.clone();
    let waiting = tokio::spawn(async move {
        let published = waiting.publish_envelope("orders", &event("a", 0)).await;
        published.expect("published in the end");
    });
    sleep(Duration::from_millis(200)).await;
    assert!(!waiting.is_finished());
    server.resume();
    waiting.await.expect("no panic");
    eventually("it is well again", async || bus.health().await.is_well()).await;
    let lags = bus.backlog("orders", "default").await.expect("an answer");
    assert_eq!(lags[0].records, 1, "once");
    let seen = events.lock().expect("no panic").clone();
    let connected = seen
        .iter()
        .filter(|event| **event == NatsConnection::Connected);
    assert_eq!(connected.count(), 2, "{seen:?}");
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
    eventually("they are handled", async || {
        seen.lock().expect("no panic").len() == 20
    })
    .await;
    server.kill();
    server.resume();
    // Fewer than before: what was settled then must not count for these.
    let mut sent = 0;
    let deadline = Instant::now() + SOON;
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
        after.into_iter().cloned().collect::<Vec<_>>()
    };
    eventually("they are handled", async || after().await.len() >= 3).await;
    assert_eq!(after().await, ["after-0", "after-1", "after-2"]);
    bus.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_server_that_answers_is_used() {
    let server = server(&needs::service!("nats_bin"));
    // Nobody listens there.
    let dead = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = dead.local_addr().expect("an address").port();
    drop(dead);
    let both = format!("nats://127.0.0.1:{port},127.0.0.1:{}", server.port());
    let bus = open(&fresh(&both, "")).await;
    declare(&bus, "orders", 1).await;
    bus.close(SOON).await.expect("closed");
    let nobody = Bus::open(&format!("nats://127.0.0.1:{port}")).await;
    let error = nobody.expect_err("nobody is there").to_string();
    assert!(error.contains("connecting at 127.0.0.1"), "{error}");
}
