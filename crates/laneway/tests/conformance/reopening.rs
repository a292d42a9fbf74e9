//! What is closed, or crashes, goes on where it was when it is opened again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use laneway::testing::{Faults, Witness};
use laneway::topic::Topic;
use laneway::{Bus, Envelope, Exhausted, Failure, Start, Subscription};
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::runtime::Runtime;
use waiting::wait_for;

use super::Fixture;
use super::soak::Books;
use super::support::{
    Gate, Log, SOON, attempts, declare, fail_if, left, number, publish, publish_watched, settled,
};

/// Works with a bus in a runtime of its own, and takes that away as a crash would: all tasks are
/// dropped where they are, nothing is closed, nothing is committed any more.
fn until_a_crash<F: Fixture>(at: &F, work: impl AsyncFnOnce(Bus)) {
    tokio::task::block_in_place(|| {
        let runtime = Runtime::new().expect("a runtime");
        runtime.block_on(async { work(open_again(at).await).await });
        runtime.shutdown_timeout(SOON);
    });
}

/// After a crash it may take a moment until the broker lets somebody else in.
async fn open_again<F: Fixture>(at: &F) -> Bus {
    let deadline = tokio::time::Instant::now() + 2 * SOON;
    loop {
        match at.open(Bus::builder()).await {
            Ok(bus) => return bus,
            Err(error) => assert!(tokio::time::Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn noting(bus: &Bus, log: &Log) -> Subscription {
    let seen = log.clone();
    bus.subscribe_envelope("orders", move |event| {
        seen.note(&event);
        async { Ok(()) }
    })
    .await
    .expect("subscribed")
}

pub(crate) async fn a_reopened_bus_goes_on_where_it_was<F: Fixture>(at: &F) {
    const ATTEMPTS: u32 = 8;
    let witness = Witness::of_attempts(ATTEMPTS);
    for round in 0..5_u64 {
        let bus = at.bus().await;
        if round == 0 {
            declare(&bus, "orders", at.partitions(4)).await;
        }
        let faults = Faults::seeded(round).failing(0.1);
        let handler = faults.delaying(Duration::from_millis(1));
        let handler = witness.watching(handler.around(async |_| Ok(())));
        bus.subscription("orders")
            .retry(attempts(ATTEMPTS))
            .envelope_handler(handler)
            .await
            .expect("subscribed");
        publish_watched(&witness, &bus, 10, 20).await;
        if round == 4 {
            settled(&bus).await;
        }
        // In the middle of it, and gracefully.
        bus.close(SOON).await.expect("closed");
    }
    let verdict = witness.verdict();
    verdict.assert_ok();
    assert_eq!(verdict.totals().messages, 1000);
    assert_eq!(verdict.totals().forgiven_duplicates, 0);
}

pub(crate) async fn what_was_done_above_the_lowest_unfinished_does_not_run_again<F: Fixture>(
    at: &F,
) {
    let (log, gate) = (Log::default(), Gate::closed());
    let subscribe = async |bus: &Bus| {
        let (seen, held) = (log.clone(), gate.clone());
        let orders = bus.subscribe_envelope("orders", move |event| {
            let (log, gate) = (seen.clone(), held.clone());
            async move {
                if event.aggregate_id().as_str() == "slow" {
                    gate.pass().await;
                }
                log.note(&event);
                Ok(())
            }
        });
        orders.await.expect("subscribed")
    };
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(1)).await;
    publish(&bus, "orders", "slow", [0]).await;
    for number in 0..50 {
        publish(&bus, "orders", &format!("key-{number}"), [number]).await;
    }
    let orders = subscribe(&bus).await;
    wait_for!(log.len() == 50, "the others are done");
    // Closing gives the broker a second to take what was settled, and it may need longer.
    left(&bus, "default", 1).await;
    orders.close(Duration::from_millis(20)).await;
    bus.close(SOON).await.expect("closed");
    let bus = at.bus().await;
    gate.open();
    subscribe(&bus).await;
    settled(&bus).await;
    assert_eq!(log.len(), 51);
    assert_eq!(log.of("slow"), [0]);
}

pub(crate) async fn a_crash_loses_nothing_and_keeps_the_order<F: Fixture>(at: &F) {
    let witness = Witness::new();
    for round in 0..5_u64 {
        until_a_crash(at, async |bus| {
            if round == 0 {
                declare(&bus, "orders", at.partitions(4)).await;
            }
            let dawdling = Faults::seeded(round).delaying(Duration::from_millis(2));
            let orders = bus
                .subscription("orders")
                .envelope_handler(witness.watching(dawdling.around(async |_| Ok(()))))
                .await
                .expect("subscribed");
            publish_watched(&witness, &bus, 10, 10).await;
            let some = async || orders.stats().handled >= 30;
            wait_for!(some().await, "some are handled");
        });
        witness.crashed();
    }
    let bus = open_again(at).await;
    bus.subscription("orders")
        .envelope_handler(witness.watching(async |_| Ok(())))
        .await
        .expect("subscribed");
    settled(&bus).await;
    let verdict = witness.verdict();
    verdict.assert_ok();
    assert_eq!(verdict.totals().messages, 500);
    assert_eq!(verdict.totals().crashes, 5);
}

pub(crate) async fn topics_are_as_they_were_declared<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    let long = "x".repeat(255);
    for topic in [
        Topic::domain("orders").partitions(7).short_lived(),
        Topic::plain("news").partitions(3),
        Topic::domain("a/b.*@%2e").partitions(1),
        Topic::domain(&long).partitions(2),
    ] {
        let topic = topic.build().expect("a valid topic");
        bus.declare(&topic).await.expect("declared");
    }
    publish(&bus, &long, "a", [1]).await;
    let before = bus.topics().await.expect("a list");
    assert_eq!(before.len(), 4);
    bus.close(SOON).await.expect("closed");
    let bus = at.bus().await;
    assert_eq!(bus.topics().await.expect("a list"), before);
    let refused = bus.publish("orders", "hello").await;
    assert!(refused.is_err(), "it is a domain topic");
    bus.delete(&long).await.expect("deleted");
    bus.close(SOON).await.expect("closed");
    let bus = at.bus().await;
    assert_eq!(bus.topics().await.expect("a list").len(), 3, "for good");
}

pub(crate) async fn dead_letters_survive<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(16)).await;
    let failing = async |bus: &Bus| {
        let orders = bus.subscription("orders").retry(attempts(2));
        let orders = orders.envelope(async |_| Err(Failure::new("no")));
        orders.await.expect("subscribed");
    };
    failing(&bus).await;
    publish(&bus, "orders", "a", 0..6).await;
    settled(&bus).await;
    let dead = bus.dead_letters("orders").await.expect("there");
    let letters = dead.list(10).await.expect("a list");
    dead.discard(&[letters[1].id]).await.expect("dropped");
    bus.close(SOON).await.expect("closed");

    let bus = at.bus().await;
    let dead = bus.dead_letters("orders").await.expect("there");
    let kept = dead.list(10).await.expect("a list");
    let ids = |letters: &[laneway::Letter]| letters.iter().map(|l| l.id).collect::<Vec<_>>();
    let mut expected = ids(&letters);
    expected.remove(1);
    assert_eq!(ids(&kept), expected);
    assert_eq!(kept[0].reason, "no");
    assert_eq!(kept[0].record, letters[0].record);
    assert_eq!(dead.replay(&kept[..2]).await.expect("replayed"), 2);
    bus.close(SOON).await.expect("closed");

    let bus = at.bus().await;
    let dead = bus.dead_letters("orders").await.expect("there");
    assert_eq!(dead.replay_all().await.expect("replayed"), 3, "the rest");
    let log = Log::default();
    noting(&bus, &log).await;
    settled(&bus).await;
    assert_eq!(log.of("a"), [0, 2, 3, 4, 5]);
}

/// Parks aggregate `bad` while told to.
async fn parking(bus: &Bus, log: &Log, parks: &Arc<AtomicBool>) -> Subscription {
    let (seen, parks) = (log.clone(), parks.clone());
    bus.subscription("orders")
        .retry(attempts(2))
        .on_exhausted(Exhausted::ParkKey)
        .envelope(move |event| {
            let fails = parks.load(Ordering::SeqCst) && event.aggregate_id().as_str() == "bad";
            if !fails {
                seen.note(&event);
            }
            async move { fail_if(fails, "frozen") }
        })
        .await
        .expect("subscribed")
}

pub(crate) async fn parked_keys_stay_parked<F: Fixture>(at: &F) {
    let (log, parks) = (Log::default(), Arc::new(AtomicBool::new(true)));
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(16)).await;
    parking(&bus, &log, &parks).await;
    publish(&bus, "orders", "bad", 0..3).await;
    settled(&bus).await;
    bus.close(SOON).await.expect("closed");

    parks.store(false, Ordering::SeqCst);
    let bus = at.bus().await;
    parking(&bus, &log, &parks).await;
    publish(&bus, "orders", "bad", 3..5).await;
    publish(&bus, "orders", "good", 0..5).await;
    settled(&bus).await;
    assert_eq!(log.of("bad"), [] as [u64; 0]);
    assert_eq!(log.of("good"), (0..5).collect::<Vec<_>>());
    // Asked for while nobody is there to do it.
    let parked = bus.parked("orders").await.expect("there");
    let closing = bus.health().await;
    assert!(closing.is_well());
    parked.release("default", "bad").await.expect("asked for");
    bus.close(SOON).await.expect("closed");

    let bus = at.bus().await;
    parking(&bus, &log, &parks).await;
    publish(&bus, "orders", "bad", [5]).await;
    settled(&bus).await;
    assert_eq!(log.of("bad"), (0..6).collect::<Vec<_>>());
}

pub(crate) async fn a_crash_parks_nothing_twice<F: Fixture>(at: &F) {
    let (log, parks) = (Log::default(), Arc::new(AtomicBool::new(true)));
    let parked = async |bus: &Bus| {
        let parked = bus.parked("orders").await.expect("there");
        let letters = parked.list(usize::MAX).await.expect("a list");
        let numbers = letters.iter().map(|letter| {
            let event = Envelope::decode(letter.record.payload.clone());
            event.expect("an event").json().expect("a number")
        });
        numbers.collect::<Vec<u64>>()
    };
    for round in 0..5_u64 {
        until_a_crash(at, async |bus| {
            if round == 0 {
                declare(&bus, "orders", at.partitions(1)).await;
            }
            parking(&bus, &log, &parks).await;
            publish(&bus, "orders", "bad", 10 * round..10 * (round + 1)).await;
            // Some are parked, and perhaps not yet committed.
            let least = usize::try_from(10 * round).expect("small") + 5;
            let some = async || parked(&bus).await.len() >= least;
            wait_for!(some().await, "some are parked");
        });
    }
    let bus = open_again(at).await;
    parking(&bus, &log, &parks).await;
    settled(&bus).await;
    assert_eq!(parked(&bus).await, (0..50).collect::<Vec<_>>(), "in order");
    parks.store(false, Ordering::SeqCst);
    let all = bus.parked("orders").await.expect("there");
    all.release("default", "bad").await.expect("asked for");
    settled(&bus).await;
    assert_eq!(log.of("bad"), (0..50).collect::<Vec<_>>());
}

pub(crate) async fn whatever_happens_and_crashes_no_key_skips_an_event<F: Fixture>(at: &F) {
    let books = Books::default();
    let mut dice = StdRng::seed_from_u64(5);
    for _ in 0..5 {
        until_a_crash(at, async |bus| {
            declare(&bus, "transfers", at.partitions(2)).await;
            books.live(&bus, &mut dice, 60).await;
        });
    }
    let bus = open_again(at).await;
    books.subscribe(&bus).await;
    for (booked, count) in books.close(&bus).await {
        // What was not settled came again, from there on in order; nothing was passed over.
        let mut next = 0;
        for number in booked.iter().copied() {
            assert!(number <= next, "{number} came before {next} in {booked:?}");
            next = next.max(number + 1);
        }
        assert_eq!(next, count);
    }
}

pub(crate) async fn from_now_on_means_the_same_afterwards<F: Fixture>(at: &F) {
    let log = Log::default();
    let subscribe = async |bus: &Bus| {
        let seen = log.clone();
        let orders = bus.subscription("orders").start(Start::Latest);
        let orders = orders.envelope(move |event| {
            seen.push(event.aggregate_id().as_str(), number(&event));
            async { Ok(()) }
        });
        orders.await.expect("subscribed");
    };
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(16)).await;
    publish(&bus, "orders", "a", 0..3).await;
    subscribe(&bus).await;
    bus.close(SOON).await.expect("closed");
    let bus = at.bus().await;
    // From when it first said so, not from now.
    publish(&bus, "orders", "a", 3..5).await;
    subscribe(&bus).await;
    settled(&bus).await;
    assert_eq!(log.of("a"), [3, 4]);
}

pub(crate) async fn epochs_go_on<F: Fixture>(at: &F) {
    let epochs = Log::default();
    for number in 0..3 {
        let bus = at.bus().await;
        declare(&bus, "orders", at.partitions(16)).await;
        let noted = epochs.clone();
        bus.subscribe_envelope("orders", move |event| {
            noted.push("epoch", event.context().epoch());
            async { Ok(()) }
        })
        .await
        .expect("subscribed");
        publish(&bus, "orders", "a", [number]).await;
        settled(&bus).await;
        bus.close(SOON).await.expect("closed");
    }
    let epochs = epochs.of("epoch");
    assert!(epochs.is_sorted_by(|one, next| one < next), "{epochs:?}");
    assert_eq!(epochs.len(), 3);
}
