//! Several processes share a group on Kafka: each has its share, and order holds whoever comes and goes.

mod kafka;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use laneway::retry::RetryPolicy;
use laneway::topic::{Partitions, partition_of};
use laneway::{Bus, Envelope, Failure};
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

/// What becomes of events whose aggregate ids begin with `bad`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bad {
    /// They never come to an end.
    Stuck,
    /// They fail, and wait long for their next attempt.
    Failing,
    /// They are not bad any more.
    Fine,
}

/// Counts what is handled.
async fn counting(bus: &Bus, runs: Arc<AtomicU64>, bad: Bad) {
    let long = Duration::from_mins(5);
    let retry = RetryPolicy::exponential(5, long, long).expect("a valid policy");
    let orders = bus.subscription("orders").retry(retry);
    let orders = orders.envelope(move |event| {
        let is_bad = event.aggregate_id().as_str().starts_with("bad");
        let bad = if is_bad { bad } else { Bad::Fine };
        let runs = runs.clone();
        async move {
            match bad {
                Bad::Stuck => std::future::pending().await,
                Bad::Failing => return Err(Failure::new("not now")),
                Bad::Fine => {}
            }
            runs.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    });
    orders.await.expect("subscribed");
}

/// Counts, in a runtime that can be taken away as a crash would.
async fn counting_until_a_crash(address: &str, runs: &Arc<AtomicU64>, bad: Bad) -> Runtime {
    let runtime = Runtime::new().expect("a runtime");
    let (address, runs) = (address.to_owned(), runs.clone());
    let joining = runtime.handle().spawn(async move {
        counting(&open(&address).await, runs, bad).await;
    });
    joining.await.expect("it joins");
    runtime
}

async fn publish_all(bus: &Bus, events: impl Iterator<Item = Envelope>) {
    let events: Vec<_> = events.collect();
    for some in events.chunks(1000) {
        let published = bus.publish_envelope_batch("orders", some).await;
        published.expect("published");
    }
}

/// What is unsettled in each partition.
async fn left(bus: &Bus) -> Vec<u64> {
    let lags = bus.backlog("orders", "default").await.expect("an answer");
    lags.iter().map(|lag| lag.records).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_done_behind_a_stuck_event_does_not_run_again_after_a_crash() {
    const BEHIND: u64 = 3000;
    let address = fresh(&needs::service!("kafka"), "");
    let bus = open(&address).await;
    declare(&bus, "orders", 1).await;
    publish(&bus, "orders", &event("bad", 0)).await;
    let others = (0..BEHIND).map(|number| event(&format!("key-{}", number % 50), number / 50));
    publish_all(&bus, others).await;
    let runs = Arc::new(AtomicU64::new(0));
    let runtime = counting_until_a_crash(&address, &runs, Bad::Stuck).await;
    eventually("only the stuck one is left", async || {
        left(&bus).await == [1]
    })
    .await;
    runtime.shutdown_background();
    assert_eq!(runs.load(Ordering::SeqCst), BEHIND);
    counting(&bus, runs.clone(), Bad::Fine).await;
    settled(&bus, "orders").await;
    assert_eq!(runs.load(Ordering::SeqCst), BEHIND + 1, "and nothing twice");
    bus.close(SOON).await.expect("closed");
}

/// Keys that begin so and are all in one partition of two.
fn keys_in(partition: u32, beginning: &str) -> impl Iterator<Item = String> {
    let partitions = Partitions::new(2).expect("a valid number");
    let keys = (0..).map(move |number| format!("{beginning}-{number}"));
    keys.filter(move |key| partition_of(key, partitions) == partition)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_whose_position_is_full_is_read_no_further_and_the_others_go_on() {
    /// One in eight waits for its next attempt; the others are done around it.
    const FULL: usize = 30_000;
    const OTHERS: usize = 2_000;
    let address = fresh(&needs::service!("kafka"), "&session_ms=2000");
    let bus = open(&address).await;
    declare(&bus, "orders", 2).await;
    let good: Vec<_> = keys_in(0, "good").take(50).collect();
    let bad = keys_in(0, "bad").take(FULL / 8);
    let around = bad.enumerate().flat_map(|(index, bad)| {
        let others = (1..8).map(move |place| (8 * index + place) % 50);
        let others: Vec<_> = others.map(|key| event(&good[key], 0)).collect();
        std::iter::once(event(&bad, 0)).chain(others)
    });
    publish_all(&bus, around.collect::<Vec<_>>().into_iter()).await;
    let others = keys_in(1, "good").take(OTHERS);
    publish_all(&bus, others.map(|key| event(&key, 0))).await;

    let runs = Arc::new(AtomicU64::new(0));
    let runtime = counting_until_a_crash(&address, &runs, Bad::Failing).await;
    let at_rest = Mutex::new(Vec::new());
    eventually("it comes to rest", async || {
        let now = left(&bus).await;
        let before = std::mem::replace(&mut *at_rest.lock().expect("no panic"), now.clone());
        sleep(Duration::from_millis(500)).await;
        now == before && now[1] == 0
    })
    .await;
    let handled = runs.load(Ordering::SeqCst);
    let total = (FULL + OTHERS) as u64;
    assert_eq!(
        left(&bus).await,
        [total - handled, 0],
        "all of it is committed"
    );
    // Bits take the least room: about 24,000 of them fit. Had it been read to its end, 26,250 would be done.
    let done = handled - OTHERS as u64;
    assert!((20_000..22_000).contains(&done), "{done} are done");
    runtime.shutdown_background();
    counting(&bus, runs.clone(), Bad::Fine).await;
    settled(&bus, "orders").await;
    assert_eq!(runs.load(Ordering::SeqCst), total, "and nothing twice");
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
