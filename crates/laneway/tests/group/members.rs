//! Members of a group that come and go, on whatever broker.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use laneway::testing::{Faults, Witness};
use laneway::{Bus, Subscription};
use tokio::time::sleep;
use waiting::wait_for;

use super::{SOON, Starts, declare, event, open, publish, settled};

pub(crate) const PARTITIONS: u32 = 8;
pub(crate) const KEYS: u64 = 40;

/// How often others come and go, at least, and how long that may take on a slow machine.
const TURNS: u64 = 3;
const LONGEST: Duration = Duration::from_mins(4);

/// How many starts so many rounds are.
pub(crate) fn all_of(rounds: u64) -> usize {
    usize::try_from(KEYS * rounds).expect("small")
}

pub(crate) async fn noting(bus: &Bus, member: &'static str, starts: &Starts) -> Subscription {
    let seen = starts.clone();
    bus.subscribe_envelope("orders", move |event| {
        seen.note(member, &event);
        async { Ok(()) }
    })
    .await
    .expect("subscribed")
}

/// One event of each key.
pub(crate) async fn publish_round(bus: &Bus, number: u64) {
    let round = (0..KEYS).map(|key| async move {
        publish(bus, "orders", &event(&format!("key-{key}"), number)).await;
    });
    futures_util::future::join_all(round).await;
}

/// Publishes rounds until these members share evenly; answers the number of the next round.
pub(crate) async fn until_shared(
    bus: &Bus,
    starts: &Starts,
    mut round: u64,
    members: &[&str],
) -> u64 {
    let deadline = Instant::now() + Duration::from_mins(2);
    let least = PARTITIONS as usize / members.len();
    loop {
        publish_round(bus, round).await;
        round += 1;
        settled(bus, "orders").await;
        let shares = starts.shares();
        let has_share = |member| {
            shares
                .get(member)
                .is_some_and(|share| (least..=least + 1).contains(share))
        };
        if shares.len() == members.len() && members.iter().all(has_share) {
            return round;
        }
        assert!(Instant::now() < deadline, "{shares:?} of {members:?}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Three come and two go again, and whoever is there has its share.
pub(crate) async fn share_evenly_as_they_come_and_go(address: &str) {
    let starts = Starts::default();
    let one = open(address).await;
    declare(&one, "orders", PARTITIONS).await;
    noting(&one, "one", &starts).await;
    let mut round = until_shared(&one, &starts, 0, &["one"]).await;
    let two = open(address).await;
    noting(&two, "two", &starts).await;
    round = until_shared(&one, &starts, round, &["one", "two"]).await;
    let three = open(address).await;
    let third = noting(&three, "three", &starts).await;
    round = until_shared(&one, &starts, round, &["one", "two", "three"]).await;
    third.close(SOON).await;
    round = until_shared(&one, &starts, round, &["one", "two"]).await;
    two.close(SOON).await.expect("closed");
    round = until_shared(&one, &starts, round, &["one"]).await;
    starts.assert_in_order();
    assert_eq!(
        starts.len(),
        all_of(round),
        "nobody crashed, so nothing came twice"
    );
    assert_eq!(starts.distinct(), all_of(round));
    one.close(SOON).await.expect("closed");
    three.close(SOON).await.expect("closed");
}

/// One stays, and others stay until each of them has handled so many events, again and again, while so many events of
/// each key are published, and more until the others came and went some times. Answers how many events were handled
/// twice.
pub(crate) async fn keep_the_order_while_they_come_and_go(
    address: &str,
    count: u64,
    stay_for: u64,
) -> u64 {
    let stay = open(address).await;
    declare(&stay, "orders", PARTITIONS).await;
    let witness = Witness::new();
    let subscribe = async |bus: &Bus| {
        let dawdling = Faults::seeded(1).delaying(Duration::from_millis(2));
        bus.subscription("orders")
            .envelope_handler(witness.watching(dawdling.around(async |_| Ok(()))))
            .await
            .expect("subscribed")
    };
    subscribe(&stay).await;
    let turns = AtomicU64::new(0);
    let deadline = Instant::now() + LONGEST;
    let publishing = (0..KEYS).map(|key| {
        let (witness, stay, turns) = (&witness, &stay, &turns);
        async move {
            let mut number = 0;
            while number < count || turns.load(Ordering::SeqCst) < TURNS {
                assert!(Instant::now() < deadline, "{turns:?} turns of {TURNS}");
                let event = event(&format!("key-{key}"), number);
                let published = witness.publish(stay, "orders", &event).await;
                published.expect("published");
                number += 1;
                sleep(Duration::from_millis(100)).await;
            }
            number
        }
    });
    let published = AtomicBool::new(false);
    let coming_and_going = async {
        while !published.load(Ordering::SeqCst) {
            let (two, three) = (open(address).await, open(address).await);
            let (second, third) = (subscribe(&two).await, subscribe(&three).await);
            // When everything is published they leave without.
            let has_handled = async |member: &Subscription, events| {
                wait_for!(
                    { member.stats().handled >= events || published.load(Ordering::SeqCst) },
                    "a member has its share"
                );
            };
            has_handled(&second, stay_for).await;
            has_handled(&third, stay_for).await;
            two.close(SOON).await.expect("closed");
            has_handled(&third, third.stats().handled + 1).await;
            three.close(SOON).await.expect("closed");
            turns.fetch_add(1, Ordering::SeqCst);
        }
    };
    let publishing = async {
        let counts = futures_util::future::join_all(publishing).await;
        published.store(true, Ordering::SeqCst);
        counts.iter().sum::<u64>()
    };
    let (count, ()) = tokio::join!(publishing, coming_and_going);
    settled(&stay, "orders").await;
    let verdict = witness.verdict();
    verdict.assert_ok();
    assert_eq!(verdict.totals().messages, count);
    stay.close(SOON).await.expect("closed");
    verdict.totals().forgiven_duplicates
}
