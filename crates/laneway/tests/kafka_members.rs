//! Several processes share a group on Kafka: each has its share, and order holds whoever comes and goes.

mod kafka;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use laneway::Bus;
use tokio::runtime::Runtime;
use tokio::time::sleep;

use kafka::members::{
    KEYS, PARTITIONS, all_of, keep_the_order_while_they_come_and_go, noting, publish_round,
    share_evenly_as_they_come_and_go, until_shared,
};
use kafka::{SOON, Starts, declare, event, eventually, fresh, open, publish, settled};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_share_evenly_as_they_come_and_go() {
    let address = fresh(&needs::service!("kafka"), "");
    share_evenly_as_they_come_and_go(&address).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_share_evenly_where_the_broker_decides() {
    let address = fresh(&needs::service!("kafka"), "&protocol=consumer");
    share_evenly_as_they_come_and_go(&address).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_come_and_go_all_the_time_keep_the_order() {
    let address = fresh(&needs::service!("kafka"), "");
    let length = Duration::from_millis(700);
    let twice = keep_the_order_while_they_come_and_go(&address, 60, length).await;
    assert_eq!(twice, 0, "nobody crashed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_runs_when_a_partition_is_wanted_finishes_first() {
    let address = fresh(&needs::service!("kafka"), "");
    let (one, two) = (open(&address).await, open(&address).await);
    declare(&one, "orders", PARTITIONS).await;
    let starts = Starts::default();
    let finished = Arc::new(AtomicU64::new(0));
    for (member, bus) in [("one", &one), ("two", &two)] {
        let (seen, done) = (starts.clone(), finished.clone());
        let subscribing = bus.subscribe_envelope("orders", move |event| {
            seen.note(member, &event);
            let done = done.clone();
            async move {
                // Far longer than it takes to agree on who has what.
                sleep(Duration::from_secs(3)).await;
                done.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
        });
        subscribing.await.expect("subscribed");
        if member == "one" {
            publish_round(&one, 0).await;
            eventually("all run", async || starts.len() == all_of(1)).await;
        }
    }
    settled(&one, "orders").await;
    assert_eq!(finished.load(Ordering::SeqCst), KEYS, "none was cancelled");
    publish_round(&one, 1).await;
    settled(&one, "orders").await;
    assert_eq!(starts.shares().len(), 2, "both have some by then");
    assert_eq!(starts.len(), all_of(2));
    starts.assert_in_order();
    one.close(SOON).await.expect("closed");
    two.close(SOON).await.expect("closed");
}

/// Counts what is handled. Aggregate `stuck` is not, if told so.
async fn counting(bus: &Bus, runs: Arc<AtomicU64>, is_stuck: bool) {
    let orders = bus.subscribe_envelope("orders", move |event| {
        let stays = is_stuck && event.aggregate_id().as_str() == "stuck";
        let runs = runs.clone();
        async move {
            if stays {
                std::future::pending::<()>().await;
            }
            runs.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    });
    orders.await.expect("subscribed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_done_behind_a_stuck_event_does_not_run_again_after_a_crash() {
    const BEHIND: u64 = 3000;
    let address = fresh(&needs::service!("kafka"), "");
    let bus = open(&address).await;
    declare(&bus, "orders", 1).await;
    publish(&bus, "orders", &event("stuck", 0)).await;
    let others = (0..BEHIND).map(|number| event(&format!("key-{}", number % 50), number / 50));
    let others: Vec<_> = others.collect();
    for some in others.chunks(500) {
        let published = bus.publish_envelope_batch("orders", some).await;
        published.expect("published");
    }
    let runs = Arc::new(AtomicU64::new(0));
    let runtime = Runtime::new().expect("a runtime");
    let (crashing, counted) = (address.clone(), runs.clone());
    let joining = runtime.handle().spawn(async move {
        let bus = open(&crashing).await;
        counting(&bus, counted, true).await;
    });
    joining.await.expect("it joins");
    eventually("only the stuck one is left", async || {
        let lags = bus.backlog("orders", "default").await.expect("an answer");
        lags.iter().map(|lag| lag.records).sum::<u64>() == 1
    })
    .await;
    runtime.shutdown_background();
    assert_eq!(runs.load(Ordering::SeqCst), BEHIND);
    counting(&bus, runs.clone(), false).await;
    settled(&bus, "orders").await;
    assert_eq!(runs.load(Ordering::SeqCst), BEHIND + 1, "and nothing twice");
    bus.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_with_a_name_gets_back_what_it_had() {
    let address = fresh(&needs::service!("kafka"), "");
    let starts = Starts::default();
    let one = open(&format!("{address}&instance=one")).await;
    declare(&one, "orders", PARTITIONS).await;
    noting(&one, "one", &starts).await;
    let two = open(&format!("{address}&instance=two")).await;
    noting(&two, "two", &starts).await;
    let round = until_shared(&one, &starts, 0, &["one", "two"]).await;
    let had = |member: &str| {
        let of_last = starts.all().into_iter().rev();
        let mut partitions: Vec<_> = of_last
            .take(all_of(1))
            .filter(|start| start.member == member)
            .map(|start| start.partition)
            .collect();
        partitions.sort_unstable();
        partitions.dedup();
        partitions
    };
    let before = had("two");
    two.close(SOON).await.expect("closed");
    let two = open(&format!("{address}&instance=two")).await;
    noting(&two, "two", &starts).await;
    publish_round(&one, round).await;
    settled(&one, "orders").await;
    assert_eq!(had("two"), before);
    starts.assert_in_order();
    one.close(SOON).await.expect("closed");
    two.close(SOON).await.expect("closed");
}
