//! Where two mechanisms meet: with tiny sizes, so that each of them acts hundreds of times. Time is virtual, except that
//! of a lease.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use waiting::wait_for;

use super::*;
use crate::broker::lease::Lease;
use crate::{BrokerError, Event, Letter};

/// As many events of a key wait in its lane.
const LANE: usize = 2;
const LONG: Duration = Duration::from_hours(1);

/// Versions of the events of a key that were handled, in order.
type Handled = Arc<Mutex<HashMap<String, Vec<u64>>>>;

/// What a handler does with an event.
enum Does {
    Handles,
    HandlesIn(Duration),
    Fails,
}

/// A process with tiny sizes, whose handler does what it is told.
struct Tiny {
    bus: Bus,
    orders: Subscription,
    handled: Handled,
}

impl Tiny {
    async fn start(
        broker: &Troubled,
        retry: RetryPolicy,
        exhausted: Exhausted,
        does: impl Fn(&str, u64) -> Does + Send + Sync + 'static,
    ) -> Self {
        let bus = Bus::builder()
            .deadline(DEADLINE)
            .bus_limits(BusLimits::tiny());
        let bus = bus.over(Arc::new(broker.clone())).unwrap();
        one_partition(&bus).await;
        let handled = Handled::default();
        let seen = handled.clone();
        let subscription = bus.subscription("orders").lane_bound(LANE).retry(retry);
        let orders = subscription
            .on_exhausted(exhausted)
            .envelope(move |event: Event| {
                let seen = seen.clone();
                let key = event.aggregate_id().as_str().to_owned();
                let version = event.event_version();
                let does = does(&key, version);
                async move {
                    match does {
                        Does::Fails => return Err(Failure::new("no")),
                        Does::HandlesIn(time) => sleep(time).await,
                        Does::Handles => {}
                    }
                    seen.lock().unwrap().entry(key).or_default().push(version);
                    Ok(())
                }
            });
        Self {
            orders: orders.await.unwrap(),
            bus,
            handled,
        }
    }

    /// Publishes versions of some keys, one key after the other, again and again.
    async fn publish(&self, keys: &[&str], versions: std::ops::Range<u64>) {
        let events = versions.flat_map(|version| {
            keys.iter().map(move |key| {
                let event = Envelope::builder(*key, "Happened").event_version(version);
                event.json(&json!(1)).unwrap()
            })
        });
        let events: Vec<_> = events.collect();
        for some in events.chunks(50) {
            let published = self.bus.publish_envelope_batch("orders", some).await;
            published.unwrap();
        }
    }

    async fn settled(&self) {
        let within = Duration::from_hours(1);
        testing::settled_within(&self.bus, within).await.unwrap();
    }

    fn handled(&self, key: &str) -> Vec<u64> {
        let handled = self.handled.lock().unwrap();
        handled.get(key).cloned().unwrap_or_default()
    }

    async fn dead(&self) -> Vec<Letter> {
        let dead = self.bus.dead_letters("orders").await.unwrap();
        dead.list(usize::MAX).await.unwrap()
    }

    async fn parked(&self) -> Vec<Letter> {
        let parked = self.bus.parked("orders").await.unwrap();
        parked.list(usize::MAX).await.unwrap()
    }
}

fn version_of(letter: &Letter) -> u64 {
    let envelope = Envelope::decode(letter.record.payload.clone()).unwrap();
    envelope.event_version()
}

fn all(versions: std::ops::Range<u64>) -> Vec<u64> {
    versions.collect()
}

#[tokio::test(start_paused = true)]
async fn keys_that_overflow_and_die_now_and_then_lose_nothing_and_keep_their_order() {
    let broker = Troubled::new().await;
    let does = |key: &str, version| match key {
        "slow" if version % 7 == 0 => Does::Fails,
        "slow" => Does::HandlesIn(Duration::from_millis(3)),
        "slower" if version % 5 == 0 => Does::Fails,
        "slower" => Does::HandlesIn(Duration::from_millis(11)),
        _ => Does::Handles,
    };
    let process = Tiny::start(&broker, RetryPolicy::none(), Exhausted::DeadLetter, does).await;
    process.publish(&["slow", "slower", "quick"], 1..300).await;
    process.settled().await;
    let without = |every: u64| (1..300).filter(|n| n % every != 0).collect::<Vec<_>>();
    assert_eq!(process.handled("quick"), all(1..300));
    assert_eq!(process.handled("slow"), without(7));
    assert_eq!(process.handled("slower"), without(5));
    let letters = process.dead().await;
    for (key, every) in [("slow", 7), ("slower", 5)] {
        let of_key = letters.iter().filter(|l| l.key.as_deref() == Some(key));
        let versions: Vec<_> = of_key.map(version_of).collect();
        let dead: Vec<_> = (1..300).filter(|n| n % every == 0).collect();
        assert_eq!(versions, dead, "{key}");
    }
    assert!(broker.reread_count() > 50, "{}", broker.reread_count());
}

#[tokio::test(start_paused = true)]
async fn keys_that_overflow_are_parked_and_released_in_order_while_more_of_them_comes() {
    let broker = Troubled::new().await;
    let fails = Arc::new(AtomicBool::new(true));
    let failing = fails.clone();
    let does = move |key: &str, version| match key {
        "hot" if version >= 20 && failing.load(Ordering::SeqCst) => Does::Fails,
        "hot" => Does::HandlesIn(Duration::from_millis(2)),
        _ => Does::HandlesIn(Duration::from_millis(5)),
    };
    let process = Tiny::start(&broker, RetryPolicy::none(), Exhausted::ParkKey, does).await;
    process.publish(&["hot", "other"], 1..200).await;
    process.settled().await;
    assert_eq!(process.handled("hot"), all(1..20));
    assert_eq!(process.handled("other"), all(1..200));
    let parked: Vec<_> = process.parked().await.iter().map(version_of).collect();
    assert_eq!(parked, all(20..200), "it and all after it, in order");
    fails.store(false, Ordering::SeqCst);
    let release = process.bus.parked("orders").await.unwrap();
    release.release("default", "hot").await.unwrap();
    // They come while it is released, three at a time, and must not overtake.
    process.publish(&["hot", "other"], 200..300).await;
    process.settled().await;
    assert_eq!(process.handled("hot"), all(1..300));
    assert_eq!(process.handled("other"), all(1..300));
    assert!(process.parked().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_window_that_a_retry_fills_is_read_on_when_it_succeeds() {
    let broker = Troubled::new().await;
    let attempts = Arc::<AtomicU64>::default();
    let tried = attempts.clone();
    let does = move |key: &str, version| {
        let fails = || tried.fetch_add(1, Ordering::SeqCst) % 3 != 2;
        match key {
            // Every one of them fills the window twice.
            "bad" if version % 100 == 1 && fails() => Does::Fails,
            _ => Does::Handles,
        }
    };
    let wait = Duration::from_secs(5);
    let retry = RetryPolicy::exponential(10, wait, wait).unwrap();
    let process = Tiny::start(&broker, retry, Exhausted::Stop, does).await;
    let handled = process.handled.clone();
    process.publish(&["bad", "good"], 1..501).await;
    let window = BusLimits::tiny().window;
    wait_for!(
        { attempts.load(Ordering::SeqCst) == 2 },
        "the window is full"
    );
    let past = handled.lock().unwrap().get("good").map_or(0, Vec::len);
    assert!(past <= window, "{past} of {window} went past it");
    assert!(past >= window / 4, "{past} of {window} went past it");
    process.settled().await;
    assert_eq!(process.handled("bad"), all(1..501));
    assert_eq!(process.handled("good"), all(1..501));
    assert_eq!(attempts.load(Ordering::SeqCst), 15);
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_partition_is_lost_on_the_way_is_finished_by_the_next_owner_in_order() {
    for handled_before in [0, 1, 3, 4, 10] {
        let lease = Arc::new(Lease::until(std::time::Instant::now() + LONG));
        let broker = Troubled::held(&lease).await;
        let no_retry = RetryPolicy::none;
        let fails = |_: &str, _| Does::Fails;
        let process = Tiny::start(&broker, no_retry(), Exhausted::ParkKey, fails).await;
        process.publish(&["a"], 1..20).await;
        process.settled().await;
        process.orders.close(Duration::ZERO).await;

        let first = Arc::new(Lease::until(std::time::Instant::now() + LONG));
        let seen = broker.seen_by_another(&first);
        let slowly = |_: &str, _| Does::HandlesIn(Duration::from_millis(50));
        let process = Tiny::start(&seen, no_retry(), Exhausted::ParkKey, slowly).await;
        let parked = process.bus.parked("orders").await.unwrap();
        parked.release("default", "a").await.unwrap();
        process.publish(&["a"], 20..25).await;
        let count = async || process.handled("a").len() >= handled_before;
        wait_for!(count().await, "some are released");
        first.lose();
        process.orders.close(Duration::from_secs(1)).await;
        let before = process.handled("a");

        let next = Arc::new(Lease::until(std::time::Instant::now() + LONG));
        let seen = broker.seen_by_another(&next);
        let handles = |_: &str, _| Does::Handles;
        let process = Tiny::start(&seen, no_retry(), Exhausted::ParkKey, handles).await;
        process.settled().await;
        let after = process.handled("a");
        assert_eq!(before, all(1..before.len() as u64 + 1), "{handled_before}");
        // The one that ran, or was handled and not yet settled among the letters, comes again.
        let again = after.first().copied().unwrap_or(25);
        let first = before.len() as u64;
        assert!(again >= first, "{before:?} {after:?}");
        assert!(again <= first + 1, "{before:?} {after:?}");
        assert_eq!(after, all(again..25), "{handled_before}");
        assert!(process.parked().await.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn letters_that_are_read_in_pieces_are_replayed_once_while_others_are_written() {
    let broker = Troubled::new().await;
    let fails = Arc::new(AtomicBool::new(true));
    let failing = fails.clone();
    let does = move |key: &str, _| match key {
        "bad" if failing.load(Ordering::SeqCst) => Does::Fails,
        "worse" => Does::Fails,
        _ => Does::Handles,
    };
    let process = Tiny::start(&broker, RetryPolicy::none(), Exhausted::DeadLetter, does).await;
    process.publish(&["bad"], 1..101).await;
    process.settled().await;
    fails.store(false, Ordering::SeqCst);
    let dead = process.bus.dead_letters("orders").await.unwrap();
    let (replayed, ()) = tokio::join!(dead.replay_all(), process.publish(&["worse"], 1..101));
    assert!(replayed.unwrap() >= 100);
    process.settled().await;
    assert_eq!(process.handled("bad"), all(1..101), "each once, in order");
    let letters = process.dead().await;
    let mut left: Vec<_> = letters.iter().map(version_of).collect();
    left.sort_unstable();
    assert_eq!(left, all(1..101), "those of the other key, each once");
    assert!(letters.iter().all(|l| l.key.as_deref() == Some("worse")));
}

#[tokio::test(start_paused = true)]
async fn what_is_published_while_a_bus_closes_is_there_or_refused() {
    for millis in 0..20 {
        let broker = Troubled::new().await;
        let slowly = |_: &str, _| Does::HandlesIn(Duration::from_millis(3));
        let retry = RetryPolicy::none;
        let process = Tiny::start(&broker, retry(), Exhausted::DeadLetter, slowly).await;
        let bus = process.bus.clone();
        let publishing = tokio::spawn(async move {
            let mut taken = 0;
            loop {
                match bus.publish_envelope("orders", &event("a")).await {
                    Ok(_) => taken += 1,
                    Err(Error::Closed | Error::Broker(BrokerError::Closed)) => return taken,
                    Err(error) => panic!("{error}"),
                }
                sleep(Duration::from_millis(1)).await;
            }
        });
        sleep(Duration::from_millis(millis)).await;
        process.orders.close(Duration::from_millis(5)).await;
        let handled = process.handled("a").len();
        let lag = process.bus.backlog("orders", "default").await.unwrap();
        let left = || usize::try_from(lag[0].records).unwrap();
        let stored = broker.published("orders").len();
        assert!(handled + left() <= stored, "nothing is handled twice");
        process.bus.close(Duration::from_millis(5)).await.unwrap();
        let taken = publishing.await.unwrap();
        assert_eq!(broker.published("orders").len(), taken, "after {millis} ms");
    }
}
