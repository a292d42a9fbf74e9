//! Letters on a cluster that takes records of a certain size.

mod kafka;

use laneway::Exhausted;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;

use kafka::letters::{park_and_make_the_topic_anew, put_aside_the_largest_and_handle_it_later};
use kafka::{SOON, client, declare, fresh, open, unique};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_largest_event_can_be_a_dead_letter_and_be_replayed() {
    let address = fresh(&needs::service!("kafka"), "&max_message=20000");
    put_aside_the_largest_and_handle_it_later(&address, 20_000, Exhausted::DeadLetter).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_largest_event_can_be_parked_and_released() {
    let address = fresh(&needs::service!("kafka"), "&max_message=20000");
    put_aside_the_largest_and_handle_it_later(&address, 20_000, Exhausted::ParkKey).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_key_loses_nothing_when_other_tools_make_its_topic_anew() {
    let servers = needs::service!("kafka");
    let bus = open(&format!("kafka://{servers}")).await;
    let topic = unique("parked-anew");
    declare(&bus, &topic, 1).await;
    park_and_make_the_topic_anew(&bus, &topic, async || {
        let admin: AdminClient<DefaultClientContext> = client(&servers).create().expect("a client");
        let deleted = admin.delete_topics(&[&topic], &AdminOptions::new()).await;
        deleted.expect("an answer")[0].clone().expect("deleted");
    })
    .await;
    bus.close(SOON).await.expect("closed");
}
