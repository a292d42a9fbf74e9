//! `laneway serve --bus kafka://…`: delayed events of a bus that others share.

mod shared_bus;

/// An address that nobody else uses. Nobody waits long for a server that was killed.
fn fresh(servers: &str) -> String {
    let url = shared_bus::fresh(&format!("kafka://{servers}"));
    format!("{url}&session_ms=2000")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_that_others_publish_later_come_back_when_they_are_due() {
    let url = fresh(&needs::service!("kafka"));
    shared_bus::events_come_back_when_they_are_due(&url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_over_http_go_to_the_shared_bus_and_its_events_can_be_withdrawn_over_http() {
    let url = fresh(&needs::service!("kafka"));
    shared_bus::the_bus_is_served_over_http(&url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_metrics_of_kafka_in_the_manual_are_those_that_are_served() {
    let url = fresh(&needs::service!("kafka"));
    shared_bus::all_metrics_are_served(&url);
}
