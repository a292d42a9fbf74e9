//! What a server does with the delayed events of a bus that others share, whatever that bus is on.

#![allow(dead_code, reason = "each program uses some of it")]

#[path = "../binary/harness.rs"]
pub(crate) mod harness;
pub(crate) mod proxy;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use laneway::{Bus, Envelope};
use serde_json::json;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::timeout;
use waiting::wait_for_blocking;

use harness::{PATIENCE, Server, documented_metrics};

/// An address that nobody else uses.
pub(crate) fn fresh(address: &str) -> String {
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("after 1970");
    format!("{address}?namespace=serve{}", now.as_nanos())
}

async fn subscribed(bus: &Bus) -> UnboundedReceiver<Envelope> {
    let (sender, events) = mpsc::unbounded_channel();
    bus.subscribe_envelope("orders", move |event| {
        let _ = sender.send(event.envelope().clone());
        async { Ok(()) }
    })
    .await
    .expect("subscribed");
    events
}

async fn next(events: &mut UnboundedReceiver<Envelope>) -> Envelope {
    let event = timeout(PATIENCE, events.recv()).await;
    event.expect("in time").expect("the bus is open")
}

pub(crate) async fn events_come_back_when_they_are_due(url: &str) {
    let bus = Bus::open(url).await.expect("a bus");
    let mut events = subscribed(&bus).await;
    let mut directory = Arc::new(harness::empty_directory());
    // A server takes it, dies at once, and another one delivers it. One that is too slow to take it before it is due gets
    // another one with more time.
    for seconds in [3, 12, 48] {
        let event = Envelope::builder("order-1", "OrderExpired")
            .json(&seconds)
            .expect("an event");
        let delay = Duration::from_secs(seconds);
        let delayed = bus.publish_after("orders", &event, delay).await;
        let delayed = delayed.expect("sent");
        let due = delayed.due().expect("known");
        let server = Server::start_in(directory, &["--bus", url]);
        let said = server.announcement.join("\n");
        assert!(said.contains(&format!("the bus is {url}")), "{said}");
        wait_for_blocking!(server.state(delayed.id()) != "gone", "it was taken in");
        let was_early = server.state(delayed.id()) == "scheduled";
        let server = Server::start_in(server.kill(), &["--bus", url]);
        while next(&mut events).await != event {}
        assert!(SystemTime::now() >= due, "early");
        if was_early {
            bus.close(PATIENCE).await.expect("closed");
            return;
        }
        directory = server.stop();
    }
    panic!("it was always due before a server had taken it");
}

pub(crate) async fn the_bus_is_served_over_http(url: &str) {
    let bus = Bus::open(url).await.expect("a bus");
    let mut events = subscribed(&bus).await;
    let server = Server::start(&["--bus", url]);
    let event = Envelope::builder("order-1", "OrderExpired")
        .json(&42)
        .expect("an event");
    let later = bus
        .publish_after("orders", &event, Duration::from_hours(1))
        .await
        .expect("sent");
    server.wait_for_state(later.id(), "scheduled");
    let withdrawn = server.request("DELETE", &format!("/v1/messages/{}", later.id()));
    assert_eq!(withdrawn.status, 200, "{withdrawn:?}");

    let id = server.submit(&json!({
        "topic": "t", "delay": 0, "payload": { "total": 7 },
        "target": { "bus": { "topic": "orders", "aggregate_id": "order-2", "event_type": "Due" } },
    }));
    let event = next(&mut events).await;
    assert_eq!(
        (event.event_id(), event.aggregate_id().as_str()),
        (id.as_str(), "order-2")
    );
    bus.close(PATIENCE).await.expect("closed");
}

/// Everything in the table of metrics is served on this bus.
pub(crate) fn all_metrics_are_served(url: &str) {
    let server = Server::start(&["--bus", url]);
    server.get("/healthz");
    // Told once the broker was asked.
    let is_asked = || server.metric_names().contains("laneway_bus_broker_up");
    wait_for_blocking!(is_asked(), "the broker is asked");
    assert_eq!(server.metric_names(), documented_metrics(|_| true));
}
