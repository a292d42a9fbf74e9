//! What a handler learns about what it handles.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use laneway::trace::{self, TraceParent};
use laneway::{Bus, Context, Event, Message, Outgoing};

use super::Fixture;
use super::support::{SOON, attempts, declare, event, publish, settled};

type Contexts = Arc<Mutex<Vec<Context>>>;

fn contexts(contexts: &Contexts) -> Vec<Context> {
    contexts.lock().expect("no panic").clone()
}

pub(crate) async fn the_context_says_where_an_event_comes_from<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(8)).await;
    let seen = Contexts::default();
    let noted = seen.clone();
    bus.subscription("orders")
        .retry(attempts(3))
        .time_limit(Duration::from_secs(7))
        .envelope(move |event: Event| {
            let context = event.context().clone();
            let fails = context.attempt() < 3;
            noted.lock().expect("no panic").push(context);
            async move { super::support::fail_if(fails, "again") }
        })
        .await
        .expect("subscribed");
    publish(&bus, "orders", "a", 0..3).await;
    let receipt = bus.publish_envelope("orders", &event("a", 3)).await;
    let receipt = receipt.expect("published");
    settled(&bus).await;
    let last = contexts(&seen).split_off(9);
    let attempts: Vec<_> = last.iter().map(Context::attempt).collect();
    assert_eq!(attempts, [1, 2, 3]);
    for context in last {
        assert_eq!(context.topic().as_str(), "orders");
        assert_eq!(context.partition(), receipt.partition);
        assert_eq!(context.offset(), receipt.offset);
        let left = context.time_left().expect("there is a limit");
        assert!(left <= Duration::from_secs(7), "{left:?}");
        assert!(context.deadline().is_some());
        assert!(context.trace().is_none());
    }
}

pub(crate) async fn headers_travel_with_a_message<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    let seen: Arc<Mutex<Vec<Message>>> = Arc::default();
    let noted = seen.clone();
    bus.subscribe("news", move |message| {
        noted.lock().expect("no panic").push(message);
        async { Ok(()) }
    })
    .await
    .expect("subscribed");
    let message = Outgoing::new(&b"\x00\xffbytes"[..])
        .header("lang", "en")
        .and_then(|message| message.header("Raw", &b"\xff\x00"[..]))
        .expect("valid headers");
    bus.publish("news", message).await.expect("published");
    settled(&bus).await;
    let seen = seen.lock().expect("no panic");
    assert_eq!(seen[0].payload().as_ref(), b"\x00\xffbytes");
    assert_eq!(seen[0].headers().get_str("LANG"), Some("en"));
    let raw = seen[0].headers().get("raw").map(AsRef::as_ref);
    assert_eq!(raw, Some(&b"\xff\x00"[..]));
    assert_eq!(seen[0].headers().len(), 2, "and nothing else");
}

async fn forward(bus: &Bus, to: &str, event: &Event) {
    let published = bus.publish_envelope(to, event.envelope()).await;
    published.expect("published");
}

pub(crate) async fn a_trace_goes_from_publisher_to_handler_and_on<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    let seen = Contexts::default();
    let (noted, onward) = (seen.clone(), bus.clone());
    bus.subscribe_envelope("first", move |event| {
        noted
            .lock()
            .expect("no panic")
            .push(event.context().clone());
        let bus = onward.clone();
        async move {
            forward(&bus, "second", &event).await;
            Ok(())
        }
    })
    .await
    .expect("subscribed");
    let (noted, onward) = (seen.clone(), bus.clone());
    bus.subscribe_envelope("second", move |event| {
        noted
            .lock()
            .expect("no panic")
            .push(event.context().clone());
        let bus = onward.clone();
        async move {
            bus.publish("third", "a plain message").await?;
            Ok(())
        }
    })
    .await
    .expect("subscribed");
    let noted = seen.clone();
    bus.subscribe("third", move |message| {
        noted
            .lock()
            .expect("no panic")
            .push(message.context().clone());
        assert_eq!(trace::current(), message.context().trace().copied());
        async { Ok(()) }
    })
    .await
    .expect("subscribed");

    let root = TraceParent::root(true);
    trace::scope(root, publish(&bus, "first", "a", [0])).await;
    settled(&bus).await;
    let seen = contexts(&seen);
    let mut last = root;
    for (context, topic) in seen.iter().zip(["first", "second", "third"]) {
        assert_eq!(context.topic().as_str(), topic);
        let trace = *context.trace().expect("it belongs to the trace");
        assert_eq!(trace.trace_id(), root.trace_id());
        assert!(trace.is_sampled());
        assert_ne!(trace.span_id(), last.span_id(), "a span of its own");
        last = trace;
    }
    assert_eq!(seen.len(), 3);
}

pub(crate) async fn every_owner_has_a_higher_epoch<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    let seen = Contexts::default();
    for number in 0..3 {
        let noted = seen.clone();
        let orders = bus
            .subscribe_envelope("orders", move |event| {
                noted
                    .lock()
                    .expect("no panic")
                    .push(event.context().clone());
                async { Ok(()) }
            })
            .await
            .expect("subscribed");
        publish(&bus, "orders", "a", [number]).await;
        settled(&bus).await;
        orders.close(SOON).await;
    }
    let epochs: Vec<_> = contexts(&seen).iter().map(Context::epoch).collect();
    assert!(epochs.is_sorted_by(|one, next| one < next), "{epochs:?}");
    assert_eq!(epochs.len(), 3);
}
