//! Several processes share a group: each has its share, and order holds whoever comes and goes.

mod nats;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use laneway::Outgoing;
use laneway::topic::Topic;
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::time::sleep;

use nats::members::{
    PARTITIONS, all_of, keep_the_order_while_they_come_and_go, noting, publish_round,
    share_evenly_as_they_come_and_go, until_shared,
};
use nats::{LONG_LEASE, SOON, Starts, declare, fresh, fresh_with_lease, open, settled};
use waiting::wait_for;

/// Where others wait until a member is taken for dead, while one that is alive is not.
const LEASE: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_share_evenly_as_they_come_and_go() {
    let address = fresh_with_lease(&needs::service!("nats"), LONG_LEASE, "");
    share_evenly_as_they_come_and_go(&address).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_come_and_go_all_the_time_keep_the_order() {
    let address = fresh_with_lease(&needs::service!("nats"), LONG_LEASE, "");
    keep_the_order_while_they_come_and_go(&address, 40, 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_member_had_that_died_is_taken_over() {
    let address = fresh_with_lease(&needs::service!("nats"), LEASE, "");
    let starts = Starts::default();
    let one = open(&address).await;
    declare(&one, "orders", PARTITIONS).await;
    noting(&one, "one", &starts).await;
    let mut round = 0;
    for victim in ["two", "three"] {
        let runtime = Runtime::new().expect("a runtime");
        let dying = runtime.handle().clone();
        let (dying_address, seen) = (address.clone(), starts.clone());
        dying
            .spawn(async move {
                let bus = open(&dying_address).await;
                noting(&bus, victim, &seen).await;
            })
            .await
            .expect("it joins");
        round = until_shared(&one, &starts, round, &["one", victim]).await;
        // Some are under way when it dies.
        publish_round(&one, round).await;
        runtime.shutdown_background();
        publish_round(&one, round + 1).await;
        round += 2;
        // Others have its partitions when its lease is over.
        settled(&one, "orders").await;
        round = until_shared(&one, &starts, round, &["one"]).await;
    }
    starts.assert_in_order();
    assert_eq!(starts.distinct(), all_of(round));
    one.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gives_up_subscribing_can_subscribe_again_at_once() {
    let address = fresh(&needs::service!("nats"), "");
    let bus = open(&address).await;
    declare(&bus, "orders", PARTITIONS).await;
    for round in 0..60 {
        let subscribing = bus.subscribe_envelope("orders", |_| async { Ok(()) });
        // Somewhere on the way, from before the first step to after the last one.
        let patience = Duration::from_micros(400 * round);
        if let Ok(subscribed) = tokio::time::timeout(patience, subscribing).await {
            let subscription = subscribed.unwrap_or_else(|error| panic!("{round}: {error}"));
            subscription.close(SOON).await;
        }
    }
    let last = bus.subscribe_envelope("orders", |_| async { Ok(()) }).await;
    last.expect("subscribed");
    bus.close(SOON).await.expect("closed");
}

/// A member on a thread of its own, which can be frozen: nothing of it runs then, as under SIGSTOP.
struct Frozen {
    thread: std::thread::JoinHandle<()>,
    /// Whether it is to freeze in its next handler, and to stay so.
    freeze: Arc<AtomicBool>,
    is_held: Arc<AtomicBool>,
    end: Arc<Notify>,
}

impl Frozen {
    fn start(address: String, starts: Starts) -> Self {
        let freeze = Arc::new(AtomicBool::new(false));
        let is_held = Arc::new(AtomicBool::new(false));
        let end = Arc::new(Notify::new());
        let (freezes, frozen, ends) = (freeze.clone(), is_held.clone(), end.clone());
        let thread = std::thread::spawn(move || {
            let body = async {
                let bus = open(&address).await;
                let subscription = bus.subscribe_envelope("orders", move |event| {
                    starts.note("frozen", &event);
                    // On purpose: the runtime has no other thread.
                    while freezes.load(Ordering::SeqCst) {
                        frozen.store(true, Ordering::SeqCst);
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    frozen.store(false, Ordering::SeqCst);
                    async { Ok(()) }
                });
                subscription.await.expect("subscribed");
                ends.notified().await;
                bus.close(SOON).await.expect("closed");
            };
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(body);
        });
        Self {
            thread,
            freeze,
            is_held,
            end,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_wakes_up_starts_nothing_and_settles_nothing() {
    let address = fresh_with_lease(&needs::service!("nats"), LEASE, "");
    let starts = Starts::default();
    let one = open(&address).await;
    declare(&one, "orders", PARTITIONS).await;
    noting(&one, "one", &starts).await;
    let other = Frozen::start(address, starts.clone());
    let mut round = until_shared(&one, &starts, 0, &["one", "frozen"]).await;
    for _ in 0..2 {
        other.freeze.store(true, Ordering::SeqCst);
        wait_for!(
            {
                publish_round(&one, round).await;
                round += 1;
                other.is_held.load(Ordering::SeqCst)
            },
            "it freezes in a handler"
        );
        for _ in 0..5 {
            publish_round(&one, round).await;
            round += 1;
        }
        // What the other one had is done by this one, while it sleeps.
        settled(&one, "orders").await;
        assert!(other.is_held.load(Ordering::SeqCst));
        other.freeze.store(false, Ordering::SeqCst);
        // It wakes up, finds that it has lost everything, and becomes a member again.
        round = until_shared(&one, &starts, round, &["one", "frozen"]).await;
    }
    starts.assert_in_order();
    assert_eq!(starts.distinct(), all_of(round));
    other.end.notify_one();
    one.close(SOON).await.expect("closed");
    let thread = other.thread;
    tokio::task::spawn_blocking(move || thread.join().expect("no panic"))
        .await
        .expect("it ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_messages_are_shared_and_handled_once() {
    let address = fresh_with_lease(&needs::service!("nats"), LONG_LEASE, "");
    let (one, two) = (open(&address).await, open(&address).await);
    let news = Topic::plain("news").partitions(4).build();
    one.declare(&news.expect("a valid topic"))
        .await
        .expect("declared");
    let seen: Arc<std::sync::Mutex<Vec<(usize, u64)>>> = Arc::default();
    let mut subscriptions = Vec::new();
    for (member, bus) in [(1, &one), (2, &two)] {
        let noted = seen.clone();
        let subscribing = bus.subscribe("news", move |message| {
            let text = std::str::from_utf8(message.payload())
                .expect("text")
                .to_owned();
            let number = text.parse().expect("a number");
            noted.lock().expect("no panic").push((member, number));
            async { Ok(()) }
        });
        subscriptions.push(subscribing.await.expect("subscribed"));
    }
    let mut sent = 0;
    let both = |seen: &[(usize, u64)]| [1, 2].map(|m| seen.iter().any(|(by, _)| *by == m));
    let deadline = Instant::now() + Duration::from_mins(2);
    while both(&seen.lock().expect("no panic")) != [true, true] {
        let batch = (sent..sent + 40).map(|number: u64| Outgoing::new(number.to_string()));
        one.publish_batch("news", batch).await.expect("published");
        sent += 40;
        assert!(Instant::now() < deadline, "one of them has everything");
        sleep(Duration::from_millis(20)).await;
    }
    subscriptions[1].close(SOON).await;
    let batch = (sent..sent + 40).map(|number: u64| Outgoing::new(number.to_string()));
    two.publish_batch("news", batch).await.expect("published");
    sent += 40;
    settled(&one, "news").await;
    // They are settled before they are handled.
    wait_for!(
        seen.lock().expect("no panic").len() as u64 >= sent,
        "all are handled"
    );
    one.close(SOON).await.expect("closed");
    two.close(SOON).await.expect("closed");
    let mut numbers: Vec<_> = seen
        .lock()
        .expect("no panic")
        .iter()
        .map(|(_, n)| *n)
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..sent).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_another_process_reads_is_not_deleted() {
    // It is waited for a lease whether there is a sign of the other one.
    let lease = Duration::from_secs(5);
    let address = fresh_with_lease(&needs::service!("nats"), lease, "");
    let (one, two) = (open(&address).await, open(&address).await);
    let starts = Starts::default();
    declare(&one, "orders", 2).await;
    let orders = noting(&two, "two", &starts).await;
    let refused = one
        .delete("orders")
        .await
        .expect_err("it is read")
        .to_string();
    assert!(refused.contains("default reads orders"), "{refused}");
    orders.close(SOON).await;
    one.delete("orders").await.expect("deleted");
    // One that crashed is not waited for any longer than need be.
    declare(&one, "orders", 2).await;
    let runtime = Runtime::new().expect("a runtime");
    let crashed = address.clone();
    runtime
        .spawn(async move { noting(&open(&crashed).await, "gone", &Starts::default()).await })
        .await
        .expect("it joins");
    runtime.shutdown_background();
    one.delete("orders").await.expect("deleted");
    assert_eq!(one.topics().await.expect("a list"), []);
    one.close(SOON).await.expect("closed");
    two.close(SOON).await.expect("closed");
}
