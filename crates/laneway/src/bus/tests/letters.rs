//! Letters: whose they are, where they go, how large they may be.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use waiting::wait_for;

use super::*;
use crate::broker::Broker;
use crate::broker::lease::Lease;
use crate::bus::dead_letters::fencing::Fence;
use crate::topic::{Growth, Partitions, Strategy, TopicName, partition_of};
use crate::{Event, Letter};

/// One that nobody renews.
const LONG: Duration = Duration::from_hours(1);

pub(super) fn long() -> Arc<Lease> {
    Arc::new(Lease::until(Instant::now() + LONG))
}

/// A process of a group, with what its handler has handled.
pub(super) struct Process {
    pub(super) bus: Bus,
    pub(super) orders: Subscription,
    handled: Arc<Mutex<Vec<u64>>>,
    pub(super) fails: Arc<AtomicBool>,
}

impl Process {
    pub(super) async fn start(broker: &Troubled, fails: bool, exhausted: Exhausted) -> Self {
        let bus = Bus::builder().deadline(DEADLINE);
        let bus = bus.over(Arc::new(broker.clone())).unwrap();
        one_partition(&bus).await;
        let handled = Arc::<Mutex<Vec<u64>>>::default();
        let fails = Arc::new(AtomicBool::new(fails));
        let (seen, failing) = (handled.clone(), fails.clone());
        let orders = bus
            .subscription("orders")
            .retry(RetryPolicy::none())
            .on_exhausted(exhausted)
            .envelope(move |event: Event| {
                let failed = failing.load(Ordering::SeqCst);
                if !failed {
                    seen.lock().unwrap().push(event.context().offset());
                }
                async move {
                    if failed {
                        Err(Failure::new("no\nstock ".repeat(20)))
                    } else {
                        Ok(())
                    }
                }
            })
            .await
            .unwrap();
        Self {
            bus,
            orders,
            handled,
            fails,
        }
    }

    pub(super) fn handled(&self) -> Vec<u64> {
        self.handled.lock().unwrap().clone()
    }

    pub(super) async fn parked(&self) -> Vec<Letter> {
        let parked = self.bus.parked("orders").await.unwrap();
        parked.list(usize::MAX).await.unwrap()
    }

    pub(super) async fn dead(&self) -> Vec<Letter> {
        let dead = self.bus.dead_letters("orders").await.unwrap();
        dead.list(usize::MAX).await.unwrap()
    }

    pub(super) async fn settled(&self) {
        let within = Duration::from_mins(1);
        testing::settled_within(&self.bus, within).await.unwrap();
    }

    pub(super) async fn stop(self) {
        self.orders.close(Duration::ZERO).await;
    }
}

/// A member whose letter for the event at offset 0 is on its way when it loses the partition.
async fn cut_off(broker: &Troubled, lease: &Lease) {
    let process = Process::start(broker, true, Exhausted::ParkKey).await;
    broker.begin(Trouble::LateLetters);
    publish(&process.bus, "a").await;
    wait_for!(broker.late() > 0, "a letter is on its way");
    lease.lose();
    process.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_letter_that_comes_after_the_next_owner_counts_for_nothing() {
    let lease = long();
    let broker = Troubled::held(&lease).await;
    cut_off(&broker, &lease).await;
    let next = broker.seen_by_another(&long());
    let process = Process::start(&next, false, Exhausted::ParkKey).await;
    publish(&process.bus, "a").await;
    process.settled().await;
    assert_eq!(process.handled(), [0, 1], "the next owner handles it");
    broker.send_late().await;
    assert!(process.parked().await.is_empty(), "it is not parked");
    process.stop().await;

    let last = broker.seen_by_another(&long());
    let process = Process::start(&last, false, Exhausted::ParkKey).await;
    publish(&process.bus, "a").await;
    process.settled().await;
    assert_eq!(process.handled(), [2], "the key is not parked");
    let released = process.bus.parked("orders").await.unwrap();
    let released = released.release("default", "a").await;
    assert!(matches!(released, Err(Error::NotParked { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_letter_that_comes_before_the_next_owner_counts() {
    let lease = long();
    let broker = Troubled::held(&lease).await;
    cut_off(&broker, &lease).await;
    broker.send_late().await;
    let next = broker.seen_by_another(&long());
    let process = Process::start(&next, false, Exhausted::ParkKey).await;
    publish(&process.bus, "a").await;
    process.settled().await;
    assert_eq!(process.handled(), [] as [u64; 0]);
    let origins: Vec<_> = process.parked().await.iter().map(|l| l.origin).collect();
    assert_eq!(origins, [(0, 0), (0, 1)], "each once, in order");
    let parked = process.bus.parked("orders").await.unwrap();
    parked.release("default", "a").await.unwrap();
    process.settled().await;
    assert_eq!(process.handled(), [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn letters_count_when_epochs_have_begun_anew() {
    let broker = Troubled::held(&long()).await;
    let process = Process::start(&broker, true, Exhausted::ParkKey).await;
    // From a time before the topic was made again.
    let fence = Fence {
        group: "default".into(),
        partition: 0,
        epoch: 1_000,
        anew: false,
    };
    let parked = TopicName::new("orders").unwrap().parked();
    process.stop().await;
    let record = vec![fence.record()];
    broker.publish(&parked, 0, record).await.unwrap();
    for expected in 1..=2 {
        let broker = broker.seen_by_another(&long());
        let process = Process::start(&broker, true, Exhausted::ParkKey).await;
        publish(&process.bus, "a").await;
        process.settled().await;
        assert_eq!(process.parked().await.len(), expected);
        process.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn fences_of_earlier_owners_do_not_pile_up() {
    let broker = Troubled::held(&long()).await;
    for _ in 0..20 {
        let broker = broker.seen_by_another(&long());
        let process = Process::start(&broker, false, Exhausted::ParkKey).await;
        process.stop().await;
    }
    let parked = TopicName::new("orders").unwrap().parked();
    let position = broker
        .position(&parked, 0, "laneway-letters")
        .await
        .unwrap();
    let last = broker.peek(&parked, 0, 0, 1000).await.unwrap().len() as u64 - 1;
    assert_eq!(position.unwrap().low(), last, "all but the last are gone");
}

/// Two processes that settle letters by turns: neither reads again what the other has settled.
#[tokio::test(start_paused = true)]
async fn letters_are_read_once_however_many_processes_settle_them() {
    const LETTERS: usize = 200;
    let broker = Troubled::new().await;
    let process = Process::start(&broker, true, Exhausted::DeadLetter).await;
    for _ in 0..LETTERS {
        publish(&process.bus, "a").await;
    }
    process.settled().await;
    let ids: Vec<_> = process
        .dead()
        .await
        .iter()
        .map(|letter| letter.id)
        .collect();
    assert_eq!(ids.len(), LETTERS);
    let others = [0, 1].map(|_| {
        let broker = broker.seen_by_another(&long());
        let bus = Bus::builder()
            .deadline(DEADLINE)
            .over(Arc::new(broker.clone()));
        (broker, bus.unwrap())
    });
    for (at, id) in ids.iter().enumerate() {
        let (_, bus) = &others[at % 2];
        let dead = bus.dead_letters("orders").await.unwrap();
        dead.discard(&[*id]).await.unwrap();
    }
    assert!(process.dead().await.is_empty());
    for (broker, _) in &others {
        let read = broker.letters_read();
        assert!(read <= LETTERS, "{read} were read for {LETTERS} letters");
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_is_not_sure_puts_nothing_aside() {
    let lease = Arc::new(Lease::until(Instant::now() + LONG));
    let broker = Troubled::held(&lease).await;
    let (begun, gate) = (
        Arc::new(tokio::sync::Notify::new()),
        Arc::new(tokio::sync::Notify::new()),
    );
    let bus = Bus::builder().deadline(DEADLINE);
    let bus = bus.over(Arc::new(broker.clone())).unwrap();
    one_partition(&bus).await;
    let (begins, waits) = (begun.clone(), gate.clone());
    let orders = bus
        .subscription("orders")
        .retry(RetryPolicy::none())
        .on_exhausted(Exhausted::ParkKey)
        .envelope(move |_| {
            let (begins, waits) = (begins.clone(), waits.clone());
            async move {
                begins.notify_one();
                waits.notified().await;
                Err(Failure::new("the database cannot be reached"))
            }
        });
    let orders = orders.await.unwrap();
    publish(&bus, "a").await;
    begun.notified().await;
    lease.expire();
    let before = broker.published("orders.parked").len();
    gate.notify_one();
    wait_for!(orders.stats().failed == 1, "it has failed");
    sleep(Duration::from_mins(1)).await;
    assert_eq!(broker.published("orders.parked").len(), before);
    lease.extend(Instant::now() + LONG);
    wait_for!(orders.stats().parked == 1, "it is parked");
}

/// The dead letter of a member that is cut off comes when the next owner has handled the event.
#[tokio::test(start_paused = true)]
async fn a_dead_letter_that_comes_after_the_next_owner_counts_for_nothing() {
    for has_letters in [false, true] {
        let lease = long();
        let broker = Troubled::held(&lease).await;
        let process = Process::start(&broker, true, Exhausted::DeadLetter).await;
        if has_letters {
            publish(&process.bus, "b").await;
            process.settled().await;
        }
        let before = usize::from(has_letters);
        broker.begin(Trouble::LateLetters);
        publish(&process.bus, "a").await;
        wait_for!(broker.late() > 0, "a letter is on its way");
        lease.lose();
        process.stop().await;

        let next = broker.seen_by_another(&long());
        let process = Process::start(&next, false, Exhausted::DeadLetter).await;
        publish(&process.bus, "a").await;
        process.settled().await;
        assert_eq!(process.handled().len(), 2, "the next owner handles it");
        broker.send_late().await;
        assert_eq!(process.dead().await.len(), before, "it counts for nothing");
        let dead = process.bus.dead_letters("orders").await.unwrap();
        assert_eq!(dead.replay_all().await.unwrap(), before);
        process.settled().await;
        assert_eq!(process.handled().len(), 2 + before);
    }
}

/// The first letter of all makes its topic. A member whose lease is not valid by then could be late, and the
/// next owner had no topic to write its fence to.
#[tokio::test(start_paused = true)]
async fn a_member_that_is_not_sure_writes_no_letter_into_the_topic_that_it_has_made() {
    let lease = long();
    let broker = Troubled::held(&lease).await;
    let process = Process::start(&broker, true, Exhausted::DeadLetter).await;
    broker.begin(Trouble::LeaseEndsWithDeclare);
    publish(&process.bus, "a").await;
    let dead = TopicName::new("orders").unwrap().dead();
    let is_made = async || broker.describe(&dead).await.unwrap().is_some();
    wait_for!(is_made().await, "the topic is made");
    sleep(Duration::from_secs(10)).await;
    assert!(process.dead().await.is_empty(), "it may be too late");
    broker.end(Trouble::LeaseEndsWithDeclare);
    lease.extend(Instant::now() + LONG);
    wait_for!(process.dead().await.len() == 1, "put aside");
}

/// Epochs of an owner from before the topic was made again stand among the dead letters.
#[tokio::test(start_paused = true)]
async fn dead_letters_count_when_epochs_have_begun_anew() {
    let broker = Troubled::held(&long()).await;
    let process = Process::start(&broker, true, Exhausted::DeadLetter).await;
    publish(&process.bus, "a").await;
    process.settled().await;
    process.stop().await;
    let fence = Fence {
        group: "default".into(),
        partition: 0,
        epoch: 1_000,
        anew: false,
    };
    let dead = TopicName::new("orders").unwrap().dead();
    let record = vec![fence.record()];
    broker.publish(&dead, 0, record).await.unwrap();
    for expected in 2..=3 {
        let broker = broker.seen_by_another(&long());
        let process = Process::start(&broker, true, Exhausted::DeadLetter).await;
        publish(&process.bus, "a").await;
        process.settled().await;
        assert_eq!(process.dead().await.len(), expected);
        process.stop().await;
    }
}

/// Two processes replay the same letters. One of them is slow, and finds that the other one has replayed the rest.
#[tokio::test(start_paused = true)]
async fn what_another_process_has_replayed_meanwhile_is_passed_over() {
    const LETTERS: usize = 10;
    let broker = Troubled::held(&long()).await;
    let process = Process::start(&broker, true, Exhausted::DeadLetter).await;
    for _ in 0..LETTERS {
        publish(&process.bus, "a").await;
    }
    process.settled().await;
    process.fails.store(false, Ordering::SeqCst);
    let slow = broker.seen_by_another(&long());
    slow.begin(Trouble::SlowLetterSettles);
    let slow = Bus::builder().deadline(DEADLINE).over(Arc::new(slow));
    let slow = slow.unwrap().dead_letters("orders").await.unwrap();
    let fast = process.bus.dead_letters("orders").await.unwrap();
    let (slow, fast) = tokio::join!(slow.replay_all(), async {
        // The slow one has published the first letter, and settles it.
        sleep(Duration::from_secs(1)).await;
        fast.replay_all().await
    });
    assert_eq!((slow.unwrap(), fast.unwrap()), (1, LETTERS));
    process.settled().await;
    assert_eq!(process.handled().len(), LETTERS + 1);
    assert!(process.dead().await.is_empty());
}

/// An event that is nearly as large as the broker takes.
fn large(key: &str) -> Envelope {
    let text = "x".repeat(4_000);
    Envelope::builder(key, "Happened").json(&text).unwrap()
}

/// Nothing but the large event itself goes through.
async fn nearly_full(broker: &Troubled, bus: &Bus) {
    let receipt = bus.publish_envelope("orders", &large("a")).await.unwrap();
    let orders = TopicName::new("orders").unwrap();
    let records = broker.peek(&orders, 0, receipt.offset, 1).await.unwrap();
    broker.takes_up_to(records[0].record.size());
}

#[tokio::test(start_paused = true)]
async fn an_event_as_large_as_the_broker_takes_is_put_aside_and_replayed() {
    let broker = Troubled::new().await;
    let process = Process::start(&broker, true, Exhausted::DeadLetter).await;
    nearly_full(&broker, &process.bus).await;
    publish(&process.bus, "a").await;
    process.settled().await;
    let letters = process.dead().await;
    assert_eq!(letters.len(), 2, "the next one of its key followed");
    assert_eq!(letters[0].origin, (0, 0));
    assert_eq!(letters[0].missing, None);
    assert_eq!(letters[0].key.as_deref(), Some("a"));
    assert!(
        letters[0].reason.starts_with("no"),
        "{:?}",
        letters[0].reason
    );
    let event = Envelope::decode(letters[0].record.payload.clone()).unwrap();
    assert_eq!(event.json::<String>().unwrap().len(), 4_000, "all of it");

    // It fails again, and is put aside again.
    let dead = process.bus.dead_letters("orders").await.unwrap();
    assert_eq!(dead.replay(&letters[..1]).await.unwrap(), 1);
    process.settled().await;
    let letters = process.dead().await;
    assert_eq!(letters.len(), 2);
    let event = Envelope::decode(letters[1].record.payload.clone()).unwrap();
    assert_eq!(event.json::<String>().unwrap().len(), 4_000);

    process.fails.store(false, Ordering::SeqCst);
    assert_eq!(dead.replay_all().await.unwrap(), 2);
    process.settled().await;
    assert!(process.handled().contains(&0), "as what it was");
    assert!(process.dead().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_event_as_large_as_the_broker_takes_is_parked_and_released() {
    let broker = Troubled::held(&long()).await;
    let process = Process::start(&broker, true, Exhausted::ParkKey).await;
    nearly_full(&broker, &process.bus).await;
    publish(&process.bus, "a").await;
    process.settled().await;
    assert_eq!(process.parked().await.len(), 2);
    process.fails.store(false, Ordering::SeqCst);
    let parked = process.bus.parked("orders").await.unwrap();
    parked.release("default", "a").await.unwrap();
    process.settled().await;
    assert_eq!(process.handled(), [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_letter_whose_record_is_gone_says_so() {
    let broker = Troubled::new().await;
    let process = Process::start(&broker, true, Exhausted::DeadLetter).await;
    nearly_full(&broker, &process.bus).await;
    publish(&process.bus, "b").await;
    process.settled().await;
    broker.begin(Trouble::Trimmed);
    let letters = process.dead().await;
    let missing = letters[0].missing.as_deref().unwrap();
    assert!(missing.contains("retention has taken it"), "{missing}");
    let dead = process.bus.dead_letters("orders").await.unwrap();
    let replayed = dead.replay_all().await;
    assert!(matches!(replayed, Err(Error::LetterMissing { .. })));
    let left = process.dead().await;
    assert_eq!(left.len(), 1, "the other one was replayed");
    dead.discard(&[left[0].id]).await.unwrap();
    assert!(process.dead().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_put_aside_at_all_is_told() {
    let broker = Troubled::new().await;
    let process = Process::start(&broker, true, Exhausted::DeadLetter).await;
    publish(&process.bus, "a").await;
    process.settled().await;
    broker.takes_up_to(300);
    let orders = TopicName::new("orders").unwrap();
    let at = testing::publish_foreign(
        &process.bus,
        "orders",
        crate::record::Record {
            payload: "noise".into(),
            ..crate::record::Record::default()
        },
    );
    at.await.unwrap();
    broker.takes_up_to(100);
    let failing = async || matches!(process.orders.state(), State::Failing(_));
    wait_for!(failing().await, "it is told");
    let State::Failing(reason) = process.orders.state() else {
        panic!("it is well again");
    };
    assert!(reason.contains("could not be put aside"), "{reason}");
    assert!(!process.bus.health().await.is_well());
    broker.takes_up_to(usize::MAX);
    process.settled().await;
    assert!(process.bus.health().await.is_well());
    assert!(broker.peek(&orders, 0, 0, 10).await.unwrap().len() == 2);
}

#[tokio::test(start_paused = true)]
async fn releases_and_replays_go_to_the_partition_of_origin() {
    let two = Partitions::new(2).unwrap();
    let moves = (0..).map(|n| format!("key-{n}"));
    let mut moves = moves.filter(|key| partition_of(key.as_bytes(), two) == 1);
    let (parks, dies) = (moves.next().unwrap(), moves.next().unwrap());
    let broker = Troubled::new().await;
    let process = Process::start(&broker, true, Exhausted::ParkKey).await;
    publish(&process.bus, &parks).await;
    process.settled().await;
    process.stop().await;
    let process = Process::start(&broker, true, Exhausted::DeadLetter).await;
    publish(&process.bus, &dies).await;
    process.settled().await;
    process.orders.close(Duration::from_secs(1)).await;

    let grown = Topic::domain("orders").partitions(2).build().unwrap();
    let bus = &process.bus;
    let growing = bus.declare_with(&grown, Strategy::CreateOrUpdate, Growth::Forced);
    growing.await.unwrap();
    let before = broker.published("orders").len();
    let parked = bus.parked("orders").await.unwrap();
    parked.release("default", &parks).await.unwrap();
    let dead = bus.dead_letters("orders").await.unwrap();
    assert_eq!(dead.replay_all().await.unwrap(), 1);
    assert_eq!(broker.published("orders")[before..], [0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_finds_nothing_says_so() {
    let broker = Troubled::new().await;
    let process = Process::start(&broker, false, Exhausted::ParkKey).await;
    let parked = process.bus.parked("orders").await.unwrap();
    let error = parked.release("default", "nobody").await.unwrap_err();
    let text = "group default has no parked event of key \"nobody\" in topic orders";
    assert!(error.to_string().starts_with(text), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_key_goes_on_when_its_last_parked_event_is_dropped() {
    let broker = Troubled::new().await;
    let process = Process::start(&broker, true, Exhausted::ParkKey).await;
    publish(&process.bus, "a").await;
    publish(&process.bus, "a").await;
    process.settled().await;
    process.fails.store(false, Ordering::SeqCst);
    let ids: Vec<_> = process.parked().await.iter().map(|l| l.id).collect();
    let parked = process.bus.parked("orders").await.unwrap();
    parked.discard(&ids[..1]).await.unwrap();
    publish(&process.bus, "a").await;
    process.settled().await;
    assert_eq!(process.handled(), [] as [u64; 0], "one is left");
    let ids: Vec<_> = process.parked().await.iter().map(|l| l.id).collect();
    parked.discard(&ids).await.unwrap();
    publish(&process.bus, "a").await;
    process.settled().await;
    assert_eq!(process.handled().len(), 1);
}
