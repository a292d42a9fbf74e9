//! Domain topics and plain topics.

use laneway::envelope::Envelope;
use laneway::topic::Topic;
use laneway::{Error, Outgoing};

use super::Fixture;
use super::support::{event, publish};

pub(crate) async fn kinds_never_mix<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    publish(&bus, "orders", "a", [0]).await;
    bus.publish("news", "hello").await.expect("published");

    let says_both = |error: &Error| {
        assert!(matches!(error, Error::WrongKind { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("domain") && text.contains("plain"), "{text}");
    };
    let refused = bus.publish("orders", "hello").await;
    says_both(&refused.expect_err("a domain topic"));
    let batch = [Outgoing::new("hello")];
    let refused = bus.publish_batch("orders", batch).await;
    says_both(&refused.expect_err("a domain topic"));
    let refused = bus.subscribe("orders", async |_| Ok(())).await;
    says_both(&refused.expect_err("a domain topic"));

    let refused = bus.publish_envelope("news", &event("a", 0)).await;
    says_both(&refused.expect_err("a plain topic"));
    let refused = bus.publish_envelope_batch("news", &[event("a", 0)]).await;
    says_both(&refused.expect_err("a plain topic"));
    let refused = bus.subscribe_envelope("news", async |_| Ok(())).await;
    says_both(&refused.expect_err("a plain topic"));
    let refused = bus
        .subscription("news")
        .envelopes(10, async |_| Ok(()))
        .await;
    says_both(&refused.expect_err("a plain topic"));

    let declared = Topic::plain("orders").build().expect("valid");
    let refused = bus.declare(&declared).await;
    let text = refused.expect_err("a domain topic").to_string();
    assert!(text.contains("domain") && text.contains("plain"), "{text}");
}

pub(crate) async fn what_cannot_be_sent_is_refused_before_anything_is<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    for (id, kind) in [("", "Placed"), ("a b", "Placed"), ("a", "")] {
        let refused = Envelope::builder(id, kind).json(&1);
        assert!(
            refused.is_err(),
            "{id:?} {kind:?}: there is no such envelope"
        );
    }
    let refused = Outgoing::new("hello").header("not a name", "x");
    assert!(refused.is_err());
    let refused = bus.publish_envelope("no good", &event("a", 0)).await;
    assert!(matches!(refused, Err(Error::Topic(_))));
    assert_eq!(bus.topics().await.expect("a list"), []);
}

pub(crate) async fn reserved_topics_are_refused<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    let subscribing = bus
        .subscription("orders")
        .envelope(async |_| Err(laneway::Failure::fatal("no")))
        .await;
    subscribing.expect("subscribed");
    publish(&bus, "orders", "a", [0]).await;
    super::support::settled(&bus).await;
    // It is there, and it belongs to orders.
    assert!(
        bus.describe("orders.dead")
            .await
            .expect("an answer")
            .is_some()
    );
    let reserved = |error: Error| {
        assert!(matches!(error, Error::Reserved(_)), "{error}");
        assert!(error.to_string().contains("belongs to orders"), "{error}");
    };
    let refused = bus.publish_envelope("orders.dead", &event("a", 0)).await;
    reserved(refused.expect_err("reserved"));
    let refused = bus.publish("orders.parked", "hello").await;
    reserved(refused.expect_err("reserved"));
    let refused = bus
        .subscribe_envelope("orders.dead", async |_| Ok(()))
        .await;
    reserved(refused.expect_err("reserved"));
    reserved(bus.delete("orders.dead").await.expect_err("reserved"));
}
