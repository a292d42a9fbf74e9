//! Several processes share a group: each has its share, and order holds whoever comes and goes.

mod nats;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use laneway::testing::{self, Witness};
use laneway::topic::Topic;
use laneway::{Bus, Outgoing, Subscription};
use tokio::runtime::Runtime;
use tokio::time::sleep;

use nats::{LEASE, SOON, Starts, declare, event, eventually, fresh, open, publish, settled};

const PARTITIONS: u32 = 8;
const KEYS: u64 = 40;

async fn noting(bus: &Bus, member: &'static str, starts: &Starts) -> Subscription {
    let seen = starts.clone();
    bus.subscribe_envelope("orders", move |event| {
        seen.note(member, &event);
        async { Ok(()) }
    })
    .await
    .expect("subscribed")
}

/// One event of each key.
async fn publish_round(bus: &Bus, number: u64) {
    let round = (0..KEYS).map(|key| async move {
        publish(bus, "orders", &event(&format!("key-{key}"), number)).await;
    });
    futures_util::future::join_all(round).await;
}

/// Publishes rounds until the members have these shares; answers the number of the next round.
async fn until_shared(bus: &Bus, starts: &Starts, mut round: u64, shares: &[(&str, usize)]) -> u64 {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let before = starts.distinct();
        publish_round(bus, round).await;
        round += 1;
        let all = before + usize::try_from(KEYS).expect("small");
        eventually("the round is handled", async || starts.distinct() >= all).await;
        let found = starts.shares();
        if found.len() == shares.len()
            && shares
                .iter()
                .all(|(member, share)| found.get(member) == Some(share))
        {
            return round;
        }
        assert!(Instant::now() < deadline, "{found:?} and not {shares:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_share_evenly_as_they_come_and_go() {
    let address = fresh(&needs::service!("nats"), "");
    let starts = Starts::default();
    let one = open(&address).await;
    declare(&one, "orders", PARTITIONS).await;
    noting(&one, "one", &starts).await;
    let mut round = until_shared(&one, &starts, 0, &[("one", 8)]).await;
    let two = open(&address).await;
    noting(&two, "two", &starts).await;
    round = until_shared(&one, &starts, round, &[("one", 4), ("two", 4)]).await;
    let three = open(&address).await;
    let third = noting(&three, "three", &starts).await;
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        publish_round(&one, round).await;
        round += 1;
        settled(&one, "orders").await;
        let mut shares: Vec<_> = starts.shares().into_values().collect();
        shares.sort_unstable();
        if shares == [2, 3, 3] {
            break;
        }
        assert!(Instant::now() < deadline, "{shares:?}");
    }
    third.close(SOON).await;
    round = until_shared(&one, &starts, round, &[("one", 4), ("two", 4)]).await;
    two.close(SOON).await.expect("closed");
    round = until_shared(&one, &starts, round, &[("one", 8)]).await;
    settled(&one, "orders").await;
    starts.assert_in_order();
    let all = usize::try_from(KEYS * round).expect("small");
    assert_eq!(starts.len(), all, "nobody crashed, so nothing came twice");
    assert_eq!(starts.distinct(), all);
    one.close(SOON).await.expect("closed");
    three.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_member_had_that_died_is_taken_over() {
    let address = fresh(&needs::service!("nats"), "");
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
        round = until_shared(&one, &starts, round, &[("one", 4), (victim, 4)]).await;
        // Some are under way when it dies.
        publish_round(&one, round).await;
        let died = Instant::now();
        runtime.shutdown_background();
        publish_round(&one, round + 1).await;
        round += 2;
        settled(&one, "orders").await;
        let took = died.elapsed();
        assert!(
            took < LEASE + Duration::from_secs(4),
            "it took {took:?} until others had its partitions"
        );
        round = until_shared(&one, &starts, round, &[("one", 8)]).await;
    }
    starts.assert_in_order();
    let all = usize::try_from(KEYS * round).expect("small");
    assert_eq!(starts.distinct(), all);
    one.close(SOON).await.expect("closed");
}

/// A member on a thread of its own, which can be frozen: nothing of it runs then, as under SIGSTOP.
struct Frozen {
    thread: std::thread::JoinHandle<()>,
    freeze: Arc<AtomicBool>,
    end: Arc<AtomicBool>,
}

impl Frozen {
    /// Freezes for so long in its first handler after it was told to.
    fn start(address: String, starts: Starts, length: Duration) -> Self {
        let freeze = Arc::new(AtomicBool::new(false));
        let end = Arc::new(AtomicBool::new(false));
        let (freezes, ends) = (freeze.clone(), end.clone());
        let thread = std::thread::spawn(move || {
            let body = async {
                let bus = open(&address).await;
                let subscription = bus.subscribe_envelope("orders", move |event| {
                    starts.note("frozen", &event);
                    if freezes.swap(false, Ordering::SeqCst) {
                        // On purpose: the runtime has no other thread.
                        std::thread::sleep(length);
                    }
                    async { Ok(()) }
                });
                subscription.await.expect("subscribed");
                eventually("it may end", async || ends.load(Ordering::SeqCst)).await;
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
            end,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_wakes_up_starts_nothing_and_settles_nothing() {
    let address = fresh(&needs::service!("nats"), "");
    let starts = Starts::default();
    let one = open(&address).await;
    declare(&one, "orders", PARTITIONS).await;
    noting(&one, "one", &starts).await;
    let asleep = LEASE * 6;
    let other = Frozen::start(address, starts.clone(), asleep);
    let mut round = until_shared(&one, &starts, 0, &[("one", 4), ("frozen", 4)]).await;
    for _ in 0..2 {
        let frozen = Instant::now();
        other.freeze.store(true, Ordering::SeqCst);
        for _ in 0..5 {
            publish_round(&one, round).await;
            round += 1;
        }
        settled(&one, "orders").await;
        assert!(
            frozen.elapsed() < asleep,
            "the other one has done its work while it slept"
        );
        // It wakes up, finds that it has lost everything, and becomes a member again.
        round = until_shared(&one, &starts, round, &[("one", 4), ("frozen", 4)]).await;
    }
    starts.assert_in_order();
    let all = usize::try_from(KEYS * round).expect("small");
    assert_eq!(starts.distinct(), all);
    other.end.store(true, Ordering::SeqCst);
    one.close(SOON).await.expect("closed");
    let thread = other.thread;
    tokio::task::spawn_blocking(move || thread.join().expect("no panic"))
        .await
        .expect("it ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_come_and_go_all_the_time_keep_the_order() {
    const COUNT: u64 = 40;
    let address = fresh(&needs::service!("nats"), "");
    let stay = open(&address).await;
    declare(&stay, "orders", PARTITIONS).await;
    let witness = Witness::new();
    let subscribe = async |bus: &Bus| {
        let dawdling = testing::Faults::seeded(1).delaying(Duration::from_millis(2));
        bus.subscription("orders")
            .envelope_handler(witness.watching(dawdling.around(async |_| Ok(()))))
            .await
            .expect("subscribed");
    };
    subscribe(&stay).await;
    let publishing = (0..KEYS).map(|key| {
        let (witness, stay) = (&witness, &stay);
        async move {
            for number in 0..COUNT {
                let event = event(&format!("key-{key}"), number);
                let published = witness.publish(stay, "orders", &event).await;
                published.expect("published");
                sleep(Duration::from_millis(100)).await;
            }
        }
    });
    let published = AtomicBool::new(false);
    let coming_and_going = async {
        let mut turns = 0;
        while !published.load(Ordering::SeqCst) {
            let (two, three) = (open(&address).await, open(&address).await);
            subscribe(&two).await;
            subscribe(&three).await;
            sleep(Duration::from_millis(200)).await;
            two.close(SOON).await.expect("closed");
            sleep(Duration::from_millis(50)).await;
            three.close(SOON).await.expect("closed");
            turns += 1;
        }
        assert!(turns > 2, "they came and went {turns} times");
    };
    let publishing = async {
        futures_util::future::join_all(publishing).await;
        published.store(true, Ordering::SeqCst);
    };
    tokio::join!(publishing, coming_and_going);
    settled(&stay, "orders").await;
    let verdict = witness.verdict();
    verdict.assert_ok();
    assert_eq!(verdict.totals().messages, KEYS * COUNT);
    stay.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_messages_are_shared_and_handled_once() {
    let address = fresh(&needs::service!("nats"), "");
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
    let deadline = Instant::now() + SOON;
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
    let mut numbers: Vec<_> = seen
        .lock()
        .expect("no panic")
        .iter()
        .map(|(_, n)| *n)
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..sent).collect::<Vec<_>>());
    one.close(SOON).await.expect("closed");
    two.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_another_process_reads_is_not_deleted() {
    let address = fresh(&needs::service!("nats"), "");
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
