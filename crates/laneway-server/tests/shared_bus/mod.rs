//! What a server does with the delayed events of a bus that others share, whatever that bus is on.

#[path = "../binary/harness.rs"]
#[expect(dead_code, reason = "shared with the tests of the binary")]
mod harness;

use std::time::{Duration, SystemTime};

use laneway::{Bus, Envelope};
use serde_json::json;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::timeout;

use harness::{PATIENCE, Server};

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
    let event = Envelope::builder("order-1", "OrderExpired")
        .json(&42)
        .expect("an event");
    let delay = Duration::from_secs(3);
    let delayed = bus
        .publish_after("orders", &event, delay)
        .await
        .expect("sent");
    let due = delayed.due().expect("known");

    // A server takes it, dies at once, and another one delivers it.
    let server = Server::start(&["--bus", url]);
    let said = server.announcement.join("\n");
    assert!(said.contains(&format!("the bus is {url}")), "{said}");
    server.wait_for_state(delayed.id(), "scheduled");
    let _server = Server::start_in(server.kill(), &["--bus", url]);
    assert_eq!(next(&mut events).await, event);
    assert!(SystemTime::now() >= due, "early");
    bus.close(PATIENCE).await.expect("closed");
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
