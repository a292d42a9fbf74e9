//! Several processes share a group on Kafka: each has its share, and order holds whoever comes and goes.

mod kafka;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use laneway::retry::RetryPolicy;
use laneway::topic::{Partitions, partition_of};
use laneway::{Bus, Envelope, Failure, State};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::time::Instant;

use kafka::logs::Log;
use kafka::members::{
    KEYS, PARTITIONS, all_of, keep_the_order_while_they_come_and_go, noting, publish_round,
    share_evenly_as_they_come_and_go, until_shared,
};
use kafka::{
    SOON, Starts, client, declare, event, fresh, group_of, is_stable, members_of, open, publish,
    settled,
};
use waiting::wait_for;

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
    let twice = keep_the_order_while_they_come_and_go(&address, 60, 30).await;
    assert_eq!(twice, 0, "nobody crashed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_runs_when_a_partition_is_wanted_finishes_first() {
    let address = fresh(&needs::service!("kafka"), "");
    let (one, two) = (open(&address).await, open(&address).await);
    declare(&one, "orders", PARTITIONS).await;
    let starts = Starts::default();
    let finished = Arc::new(AtomicU64::new(0));
    let gate = watch::Sender::new(false);
    let mut assigned = Vec::new();
    for (member, bus) in [("one", &one), ("two", &two)] {
        let (seen, done) = (starts.clone(), finished.clone());
        let gate = gate.subscribe();
        let subscribing = bus.subscribe_envelope("orders", move |event| {
            seen.note(member, &event);
            let (done, mut gate) = (done.clone(), gate.clone());
            async move {
                let _ = gate.wait_for(|is_open| *is_open).await;
                done.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
        });
        assigned.push(subscribing.await.expect("subscribed").assigned());
        if member == "one" {
            publish_round(&one, 0).await;
            wait_for!(starts.len() == all_of(1), "all run");
        }
    }
    // What runs has five seconds from when the first one is told: that is asked for here, and not of the group.
    wait_for!(
        assigned[0].borrow().len() < PARTITIONS as usize,
        "the first is told what to let go"
    );
    gate.send_replace(true);
    settled(&one, "orders").await;
    assert_eq!(finished.load(Ordering::SeqCst), KEYS, "none was cancelled");
    let rounds = until_shared(&one, &starts, 1, &["one", "two"]).await;
    assert_eq!(starts.len(), all_of(rounds));
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
    wait_for!({ left(&bus).await == [1] }, "only the stuck one is left");
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
    // A member that is alive is not taken for dead; the one that crashes is waited for so long.
    let address = fresh(&needs::service!("kafka"), "&session_ms=6000");
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
    // Bits take the least room: about 24,000 of them fit. Had it been read to its end, 26,250 would be done.
    let is_full = async || runs.load(Ordering::SeqCst) >= (20_000 + OTHERS) as u64;
    wait_for!(is_full().await, "the position is full");
    // The others have all that comes after that, and with it whatever of the first one was on its way.
    let more = keys_in(1, "good").skip(OTHERS).take(OTHERS);
    publish_all(&bus, more.map(|key| event(&key, 0))).await;
    let total = (FULL + 2 * OTHERS) as u64;
    let handled = || runs.load(Ordering::SeqCst);
    wait_for!(
        { left(&bus).await == [total - handled(), 0] },
        "what is handled is committed"
    );
    let handled = handled();
    assert_eq!(
        left(&bus).await,
        [total - handled, 0],
        "all of it is committed"
    );
    let done = handled - 2 * OTHERS as u64;
    assert!((20_000..22_000).contains(&done), "{done} are done");
    runtime.shutdown_background();
    counting(&bus, runs.clone(), Bad::Fine).await;
    settled(&bus, "orders").await;
    assert_eq!(runs.load(Ordering::SeqCst), total, "and nothing twice");
    bus.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_with_a_name_gets_back_what_it_had() {
    // It is back before its session is over, on any machine.
    let address = fresh(&needs::service!("kafka"), "&session_ms=60000");
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_processes_with_one_name_only_the_last_goes_on() {
    const SESSION: Duration = Duration::from_secs(6);
    let settings = "&instance=one&session_ms=6000";
    let address = fresh(&needs::service!("kafka"), settings);
    let starts = Starts::default();
    let first = open(&address).await;
    declare(&first, "orders", 1).await;
    let begun = noting(&first, "first", &starts).await;
    publish(&first, "orders", &event("a", 0)).await;
    settled(&first, "orders").await;

    // It gets the partition at once, while the first may be sure of it: frozen, say, with a handler to start.
    let taken = Instant::now();
    let second = open(&address).await;
    let after = noting(&second, "second", &starts).await;
    wait_for!(
        matches!(begun.state(), State::Failing(why) if why.contains("instance \"one\"")),
        "the first says why it goes on no more"
    );
    publish(&second, "orders", &event("a", 1)).await;
    settled(&second, "orders").await;
    let last = starts.all().pop().expect("some");
    assert_eq!((last.member, last.number), ("second", 1));
    assert!(taken.elapsed() >= SESSION, "it waited for the first");
    // Were the first to join again, the second would be thrown out, and so on. For a session and more, each event is
    // handled by the second.
    let mut number = 2;
    while taken.elapsed() < 2 * SESSION + SESSION / 2 {
        publish(&second, "orders", &event("a", number)).await;
        settled(&second, "orders").await;
        number += 1;
    }
    assert_eq!(after.state(), State::Running);
    assert!(matches!(begun.state(), State::Failing(_)));
    assert_eq!(starts.len(), starts.distinct());
    starts.assert_in_order();
    first.close(SOON).await.expect("closed");
    second.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_processes_with_one_name_one_that_lets_go_is_not_waited_for() {
    /// Longer than anything takes on a busy machine.
    const SESSION: Duration = Duration::from_secs(50);
    let settings = "&instance=one&session_ms=50000";
    let address = fresh(&needs::service!("kafka"), settings);
    let starts = Starts::default();
    let first = open(&address).await;
    declare(&first, "orders", 1).await;
    noting(&first, "first", &starts).await;
    publish(&first, "orders", &event("a", 0)).await;
    settled(&first, "orders").await;
    first.close(SOON).await.expect("closed");

    let joined = Instant::now();
    let second = open(&format!("{address}&linger_ms=0")).await;
    noting(&second, "second", &starts).await;
    publish(&second, "orders", &event("a", 1)).await;
    settled(&second, "orders").await;
    assert!(joined.elapsed() < SESSION, "{:?}", joined.elapsed());
    assert_eq!(starts.len(), 2);
    assert_eq!(starts.all().pop().expect("some").member, "second");
    starts.assert_in_order();
    second.close(SOON).await.expect("closed");
}

/// A member that was killed counts until its session is over. So does one that is not heard of any more while the group
/// waits for it, for as long as it may be silent: here that is a client that joins and does nothing else. On one thread,
/// whose log is read.
#[tokio::test]
async fn a_member_that_waits_for_one_that_was_killed_says_so() {
    let servers = needs::service!("kafka");
    let address = fresh(&servers, "");
    let bus = open(&address).await;
    declare(&bus, "orders", 2).await;
    let name = group_of(&address, "orders");
    let described = bus.describe("orders").await.expect("an answer");
    assert!(described.is_some());
    let dead: BaseConsumer = client(&servers)
        .set("group.id", &name)
        .set("partition.assignment.strategy", "cooperative-sticky")
        .set("session.timeout.ms", "60000")
        .set("max.poll.interval.ms", "300000")
        .create()
        .expect("a client");
    let topic = name.replace("default@", "");
    dead.subscribe(&[&topic]).expect("it joins");
    // The thread of the client joins. It is never polled, so it does not take what it is assigned, and cannot join again when the
    // bus does: had a poll taken the assignment, it would join again by itself, and the group would not wait.
    wait_for!(
        members_of(&servers, &name) == 1 && is_stable(&servers, &name),
        "it is a member"
    );
    let (log, _logging) = Log::begin();
    let orders = bus.subscribe_envelope("orders", async |_| Ok(())).await;
    let orders = orders.expect("subscribed");
    let hint = "no partitions assigned yet: the group waits for members that do not answer";
    wait_for!(
        {
            let told = log.with(&["WARN", &name, hint]);
            assert!(told.len() <= 1, "once a minute: {told:?}");
            told.len() == 1
        },
        "it says what it waits for"
    );
    let idle = log.with(&["INFO", "no partition of the topic is ours yet"]);
    assert_eq!(idle.len(), 1, "{idle:?}");
    publish(&bus, "orders", &event("a", 0)).await;
    assert_eq!(orders.stats().handled, 0, "it has nothing yet");
    // Leaves the group.
    drop(dead);
    wait_for!(orders.stats().handled == 1, "handled");
    bus.close(SOON).await.expect("closed");
}
