//! Several processes share a group on Kafka: each has its share, and order holds whoever comes and goes.

mod kafka;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use laneway::testing::{self, Witness};
use laneway::{Bus, Subscription};
use tokio::runtime::Runtime;
use tokio::time::sleep;

use kafka::{SOON, Starts, declare, event, eventually, fresh, open, publish, settled};

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

/// Publishes rounds until so many members share evenly; answers the number of the next round.
async fn until_shared(bus: &Bus, starts: &Starts, mut round: u64, members: usize) -> u64 {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        publish_round(bus, round).await;
        round += 1;
        settled(bus, "orders").await;
        let mut found: Vec<_> = starts.shares().into_values().collect();
        found.sort_unstable();
        let share = PARTITIONS as usize / members;
        if found.len() == members
            && found
                .iter()
                .all(|count| (share..=share + 1).contains(count))
        {
            return round;
        }
        assert!(Instant::now() < deadline, "{found:?} of {members}");
        sleep(Duration::from_millis(50)).await;
    }
}

async fn members_share(settings: &str) {
    let servers = needs::service!("kafka");
    let address = fresh(&servers, settings);
    let starts = Starts::default();
    let one = open(&address).await;
    declare(&one, "orders", PARTITIONS).await;
    noting(&one, "one", &starts).await;
    let mut round = until_shared(&one, &starts, 0, 1).await;
    let two = open(&address).await;
    noting(&two, "two", &starts).await;
    round = until_shared(&one, &starts, round, 2).await;
    let three = open(&address).await;
    let third = noting(&three, "three", &starts).await;
    round = until_shared(&one, &starts, round, 3).await;
    third.close(SOON).await;
    round = until_shared(&one, &starts, round, 2).await;
    two.close(SOON).await.expect("closed");
    round = until_shared(&one, &starts, round, 1).await;
    starts.assert_in_order();
    let all = usize::try_from(KEYS * round).expect("small");
    assert_eq!(starts.len(), all, "nobody crashed, so nothing came twice");
    assert_eq!(starts.distinct(), all);
    one.close(SOON).await.expect("closed");
    three.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_share_evenly_as_they_come_and_go() {
    members_share("").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_share_evenly_where_the_broker_decides() {
    members_share("&protocol=consumer").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_come_and_go_all_the_time_keep_the_order() {
    const COUNT: u64 = 60;
    let address = fresh(&needs::service!("kafka"), "");
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
            sleep(Duration::from_millis(700)).await;
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
    assert_eq!(verdict.totals().forgiven_duplicates, 0, "nobody crashed");
    stay.close(SOON).await.expect("closed");
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
            let keys = usize::try_from(KEYS).expect("small");
            eventually("all run", async || starts.len() == keys).await;
        }
    }
    settled(&one, "orders").await;
    assert_eq!(finished.load(Ordering::SeqCst), KEYS, "none was cancelled");
    publish_round(&one, 1).await;
    settled(&one, "orders").await;
    assert_eq!(starts.shares().len(), 2, "both have some by then");
    assert_eq!(starts.len(), 2 * usize::try_from(KEYS).expect("small"));
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
    let round = until_shared(&one, &starts, 0, 2).await;
    let had = |member: &str| {
        let of_last = starts.all().into_iter().rev();
        let mut partitions: Vec<_> = of_last
            .take(usize::try_from(KEYS).expect("small"))
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
