//! Batches whose connection breaks, and batches that are published again after that.

mod nats;

use laneway::{Bus, Envelope};
use waiting::wait_for;

use nats::proxy::Proxy;
use nats::{SOON, Starts, declare, event, fresh, open, settled};

async fn noting(bus: &Bus, starts: &Starts) {
    let seen = starts.clone();
    let subscribing = bus.subscribe_envelope("orders", move |event| {
        seen.note("one", &event);
        async { Ok(()) }
    });
    subscribing.await.expect("subscribed");
}

fn events(numbers: std::ops::Range<u64>) -> Vec<Envelope> {
    numbers.map(|number| event("a", number)).collect()
}

/// How many are in the topic.
async fn published(bus: &Bus) -> u64 {
    let lags = bus.backlog("orders", "nobody").await.expect("an answer");
    lags.iter().map(|lag| lag.records).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_more_of_a_batch_is_sent_when_its_connection_breaks() {
    /// More than the client takes while there is no connection.
    const BATCH: u64 = 20_000;
    let address = fresh(&needs::service!("nats"), "");
    let (proxy, through) = Proxy::to(&address);
    let (bus, direct) = (open(&through).await, open(&address).await);
    declare(&bus, "orders", 1).await;
    let batch = events(0..BATCH);
    proxy.break_after(200_000);
    let result = bus.publish_envelope_batch("orders", &batch).await;
    let error = result.expect_err("some of it is missing").to_string();
    assert!(error.contains("publishing"), "{error}");
    // What was sent before it broke is there, and what the client had taken by then may be.
    wait_for!(published(&direct).await > 0, "some is there");
    let there = published(&direct).await;
    assert!(there < BATCH / 2, "{there} of {BATCH} were sent");
    // The client goes on, and so does the bus.
    wait_for!(bus.health().await.is_well(), "it is well again");
    let published = bus.publish_envelope("orders", &event("b", 0)).await;
    published.expect("published");
    for bus in [bus, direct] {
        bus.close(SOON).await.expect("closed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_of_which_some_are_there_is_published_again_unless_that_inverts_it() {
    let bus = open(&fresh(&needs::service!("nats"), "")).await;
    declare(&bus, "orders", 1).await;
    let starts = Starts::default();
    noting(&bus, &starts).await;
    // An earlier try has left the first two there: the rest follows.
    let batch = events(0..6);
    let earlier = bus.publish_envelope_batch("orders", &batch[..2]).await;
    let earlier = earlier.expect("published");
    let again = bus.publish_envelope_batch("orders", &batch).await;
    let again = again.expect("in order");
    assert_eq!(again[..2], earlier[..], "they are not there twice");
    settled(&bus, "orders").await;
    starts.assert_in_order();
    assert_eq!(starts.len(), 6);

    // An earlier try has left the last one there, without those before it.
    let batch = events(6..9);
    let alone = bus.publish_envelope("orders", &batch[2]).await;
    alone.expect("published");
    let again = bus.publish_envelope_batch("orders", &batch).await;
    let error = again.expect_err("they are inverted").to_string();
    assert!(error.contains("behind their successors"), "{error}");
    settled(&bus, "orders").await;
    let numbers: Vec<_> = starts.all().iter().map(|start| start.number).collect();
    assert_eq!(numbers[6..], [8, 6, 7], "all are there, each once");
    bus.close(SOON).await.expect("closed");
}
