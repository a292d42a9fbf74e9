//! Letters on a server that can be out of reach, and that takes records of a certain size.

mod nats;

use std::sync::Arc;
use std::time::{Duration, Instant};

use laneway::topic::{Growth, Partitions, Storage, Strategy, Topic, partition_of};
use laneway::{Bus, Exhausted, Failure, NatsConnection, NatsOptions};
use tokio::sync::Notify;

use nats::letters::{park_and_make_the_topic_anew, put_aside_the_largest_and_handle_it_later};
use nats::proxy::Proxy;
use nats::server::NatsServer;
use nats::{
    LONG_LEASE, SOON, Starts, declare, event, fresh, fresh_with_lease, open, publish, settled,
};
use waiting::wait_for;

/// What a server takes that was not set up otherwise.
const MAX_PAYLOAD: usize = 1 << 20;

/// A server with all defaults.
fn server(program: &str) -> NatsServer {
    NatsServer::start(program, |_| String::new())
}

async fn noting(bus: &Bus, name: &'static str, starts: &Starts) {
    let starts = starts.clone();
    bus.subscription("orders")
        .on_exhausted(Exhausted::ParkKey)
        .envelope(move |event| {
            starts.note(name, &event);
            async { Ok(()) }
        })
        .await
        .expect("subscribed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_member_parks_that_was_cut_off_does_not_count() {
    // Long enough for a letter to be on its way before the member is not sure any more.
    let lease = Duration::from_secs(5);
    let address = fresh_with_lease(&needs::service!("nats"), lease, "");
    let (proxy, through) = Proxy::to(&address);
    let gone = Arc::new(Notify::new());
    let is_gone = gone.clone();
    let options = NatsOptions::parse(&through).expect("an address");
    let options = options.on_connection(move |event| {
        if event == NatsConnection::Disconnected {
            is_gone.notify_one();
        }
    });
    let cut_off = Bus::builder().open_nats(options).await.expect("connected");
    declare(&cut_off, "orders", 1).await;
    let (begun, fails) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begins, waits) = (begun.clone(), fails.clone());
    let orders = cut_off
        .subscription("orders")
        .on_exhausted(Exhausted::ParkKey)
        .envelope(move |_| {
            let (begins, waits) = (begins.clone(), waits.clone());
            async move {
                begins.notify_one();
                waits.notified().await;
                Err(Failure::fatal("the database cannot be reached"))
            }
        })
        .await
        .expect("subscribed");
    publish(&cut_off, "orders", &event("customer", 0)).await;
    begun.notified().await;
    proxy.cut();
    // What is sent from now on waits in the client.
    gone.notified().await;
    fails.notify_one();
    wait_for!(orders.stats().failed == 1, "it has failed");

    let starts = Starts::default();
    let next = open(&address).await;
    noting(&next, "next", &starts).await;
    publish(&next, "orders", &event("customer", 1)).await;
    wait_for!(starts.len() == 2, "another member handles both");
    proxy.mend();
    // What waited in the client goes out before what is asked for now.
    wait_for!(cut_off.topics().await.is_ok(), "it is back");
    cut_off.close(SOON).await.expect("closed");
    next.close(SOON).await.expect("closed");

    let last = open(&address).await;
    noting(&last, "last", &starts).await;
    publish(&last, "orders", &event("customer", 2)).await;
    wait_for!(starts.len() == 3, "the key is not parked");
    settled(&last, "orders").await;
    let parked = last.parked("orders").await.expect("there");
    assert!(parked.list(10).await.expect("a list").is_empty());
    starts.assert_in_order();
    last.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_largest_event_can_be_a_dead_letter_and_be_replayed() {
    let server = server(&needs::service!("nats_bin"));
    let address = fresh(&server.address(), "");
    put_aside_the_largest_and_handle_it_later(&address, MAX_PAYLOAD, Exhausted::DeadLetter).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_largest_event_can_be_parked_and_released() {
    let server = server(&needs::service!("nats_bin"));
    let address = fresh(&server.address(), "");
    put_aside_the_largest_and_handle_it_later(&address, MAX_PAYLOAD, Exhausted::ParkKey).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_key_loses_nothing_when_a_restart_takes_its_stream_in_memory() {
    let mut server = server(&needs::service!("nats_bin"));
    let bus = open(&fresh(&server.address(), "")).await;
    let topic = Topic::domain("orders")
        .partitions(1)
        .storage(Storage::Memory);
    let topic = topic.build().expect("valid");
    bus.declare(&topic).await.expect("declared");
    park_and_make_the_topic_anew(&bus, "orders", async || {
        server.kill();
        server.resume();
    })
    .await;
    bus.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_released_where_it_was_parked_before_the_topic_grew() {
    let address = fresh_with_lease(&needs::service!("nats"), LONG_LEASE, "");
    let two = Partitions::new(2).expect("valid");
    let mut keys = (0..).map(|number| format!("key-{number}"));
    let key = keys.find(|key| partition_of(key.as_bytes(), two) == 1);
    let key = key.expect("one that moves");
    let first = open(&address).await;
    declare(&first, "orders", 1).await;
    let parking = first
        .subscription("orders")
        .on_exhausted(Exhausted::ParkKey)
        .envelope(|_| async { Err(Failure::fatal("no")) })
        .await
        .expect("subscribed");
    publish(&first, "orders", &event(&key, 0)).await;
    wait_for!(parking.stats().parked == 1, "parked");
    settled(&first, "orders").await;
    parking.close(SOON).await;
    let grown = Topic::domain("orders")
        .partitions(2)
        .build()
        .expect("valid");
    wait_for!(
        {
            let growing = first.declare_with(&grown, Strategy::CreateOrUpdate, Growth::Forced);
            growing.await.is_ok()
        },
        "it has grown"
    );
    first.close(SOON).await.expect("closed");

    // Each has one of the partitions, and only one knows of the key.
    let starts = Starts::default();
    let (one, two) = (open(&address).await, open(&address).await);
    noting(&one, "one", &starts).await;
    noting(&two, "two", &starts).await;
    wait_for!(
        {
            let mut shares = Vec::new();
            for bus in [&one, &two] {
                let health = bus.health().await;
                shares.extend(health.subscriptions.iter().map(|s| s.partitions));
            }
            shares == [1, 1]
        },
        "each has its share"
    );
    let parked = one.parked("orders").await.expect("there");
    parked.release("default", &key).await.expect("asked for");
    wait_for!(starts.len() == 1, "it is handled");
    wait_for!(
        { parked.keys().await.is_ok_and(|keys| keys.is_empty()) },
        "it is not parked any more"
    );
    for bus in [one, two] {
        bus.close(SOON).await.expect("closed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_keeps_its_deadline_while_the_server_is_out_of_reach() {
    let address = fresh(&needs::service!("nats"), "");
    let (proxy, through) = Proxy::to(&address);
    let bus = open(&through).await;
    declare(&bus, "orders", 8).await;
    let orders = bus.subscribe_envelope("orders", async |_| Ok(())).await;
    let orders = orders.expect("subscribed");
    publish(&bus, "orders", &event("a", 0)).await;
    wait_for!(orders.stats().handled == 1, "handled");
    proxy.cut();
    let began = Instant::now();
    let _ = bus.close(Duration::from_secs(2)).await;
    // One partition after the other, with the deadline of a call each, would be minutes.
    let took = began.elapsed();
    assert!(took < Duration::from_secs(40), "{took:?}");
}
