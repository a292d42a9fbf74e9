//! Events for the bus.

use laneway_rpc::proto::ending::How;

use crate::rig::{event, how, rig, was_delivered};

#[tokio::test]
async fn events_of_a_topic_are_published_in_the_order_in_which_they_are_due() {
    let rig = rig();
    let mut center = rig.center();
    let ids: Vec<String> = (0..300).map(|number| format!("e-{number}")).collect();
    for id in &ids {
        center.go(event(id, "orders", "Placed"));
    }
    for outcome in center.outcomes(ids.len()).await {
        assert!(was_delivered(&outcome));
    }
    assert_eq!(rig.sink.sent(), ids);
}

#[tokio::test]
async fn what_the_bus_has_not_taken_is_handed_back_and_what_it_may_have_taken_is_unknown() {
    let rig = rig();
    let mut center = rig.center();
    for (event_type, ending) in [
        ("fails", How::HandedBackMs(1_000)),
        ("later", How::HandedBackMs(9_000)),
        ("closed", How::HandedBackMs(7_000)),
        ("silent", How::Unknown("no answer".to_owned())),
    ] {
        // The topic is held for a moment after each of these.
        center.go(event(
            event_type,
            &format!("orders-{event_type}"),
            event_type,
        ));
        assert_eq!(how(&center.outcome().await), ending, "{event_type}");
    }
    center.go(event("never", "orders", "never"));
    let ending = how(&center.outcome().await);
    assert!(matches!(ending, How::Failed(failure) if failure.is_final));
    assert_eq!(rig.sink.sent().len(), 5);
}

#[tokio::test]
async fn a_bus_that_hangs_delays_neither_hosts_nor_other_topics() {
    let rig = rig();
    let mut center = rig.center();
    center.go(event("hangs", "stuck", "hangs"));
    center.go(event("behind", "stuck", "Placed"));
    center.go(event("other", "orders", "Placed"));
    center.go(crate::rig::go("callback", "a"));
    let mut ids: Vec<String> = Vec::new();
    for outcome in center.outcomes(2).await {
        ids.push(outcome.id);
    }
    ids.sort();
    assert_eq!(ids, ["callback", "other"]);
    rig.sink.gate.add_permits(1);
    for outcome in center.outcomes(2).await {
        assert!(was_delivered(&outcome));
    }
}
