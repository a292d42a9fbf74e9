//! Messages on disk, across restarts of the engine.

mod rig;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use laneway_delay::clock::{Clock, ManualClock};
use laneway_delay::store::DiskStore;
use laneway_delay::{Delays, Error, MessageId, Options, StateName, Undelivered};
use rig::{Witness, manual, to_bus, to_host};
use waiting::wait_for;

async fn open(path: &Path, clock: &ManualClock, witness: &Witness, near: usize) -> Delays {
    // Whoever dropped it may still be about to let go.
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    let store = loop {
        match DiskStore::open(path).await {
            Err(Error::InUse { .. }) if std::time::Instant::now() < deadline => {}
            opened => break opened.unwrap(),
        }
    };
    let options = Options {
        near,
        ..Options::default()
    };
    let clock = Arc::new(clock.clone());
    Delays::start(Arc::new(store), clock, witness.sinks(), options).unwrap()
}

fn id(number: u64) -> MessageId {
    MessageId::new(number.to_string()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_horizon_is_there_again_and_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let clock = manual();
    let witness = Witness::new();
    let start = clock.now();
    let delays = open(folder.path(), &clock, &witness, 100).await;
    // Far more than fits, some of it beyond the horizon.
    let due = |number: u64| start + Duration::from_millis(1000 + number * 20);
    let submissions = (0..5000).map(|number| to_bus("k", due(number)).id(id(number)));
    let answers = delays.submit(submissions.collect()).await;
    assert!(answers.iter().all(Result::is_ok));
    clock.set(due(999));
    witness.wait_for(1000).await;
    wait_for!(delays.counts()["t"].delivered == 1000);
    delays.close(Duration::from_secs(5)).await.unwrap();

    let again = Witness::new();
    let delays = open(folder.path(), &clock, &again, 100).await;
    clock.set(due(5000));
    again.wait_for(4000).await;
    wait_for!(delays.counts()["t"].delivered == 5000);
    let expected: Vec<_> = (1000..5000).map(|number: u64| number.to_string()).collect();
    assert_eq!(again.ids(), expected);
    assert!(again.seen().iter().all(|seen| seen.at >= seen.due));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_failed_is_tried_again_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let clock = manual();
    let witness = Witness::answering(|_| Err(Undelivered::retry("500")));
    let delays = open(folder.path(), &clock, &witness, 1000).await;
    let due = clock.now();
    delays
        .submit_one(to_host("h", due).id(id(1)))
        .await
        .unwrap();
    witness.wait_for(1).await;
    wait_for!(delays.counts()["t"].firing == 0);
    delays.close(Duration::from_secs(5)).await.unwrap();

    let again = Witness::new();
    let delays = open(folder.path(), &clock, &again, 1000).await;
    // After a second, and up to a tenth of it.
    clock.set(due + Duration::from_millis(1100));
    let seen = again.wait_for(1).await;
    assert_eq!(seen[0].attempt, 2);
    assert!(seen[0].at >= due + Duration::from_secs(1));
    wait_for!(delays.counts()["t"].delivered == 1);
    let message = delays.get(&id(1)).await.unwrap();
    assert_eq!(
        StateName::from(message.record.state()),
        StateName::Delivered
    );
    assert_eq!(message.history.len(), 2);
}

/// The clock is set ahead and back by an hour, again and again, while messages are due all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_early_or_lost_when_the_clock_is_set() {
    let folder = tempfile::tempdir().unwrap();
    let clock = manual();
    let witness = Witness::new();
    let start = clock.now();
    let delays = open(folder.path(), &clock, &witness, 100).await;
    let hour = Duration::from_hours(1);
    let mut expected = HashSet::new();
    for round in 0..20_u64 {
        let now = clock.now();
        let submissions = (0..50).map(|number| {
            let number = round * 50 + number;
            expected.insert(number.to_string());
            let due = now + Duration::from_millis(number * 7 % 5000);
            let to = if number % 2 == 0 {
                to_bus("k", due)
            } else {
                to_host("h", due)
            };
            to.id(id(number))
        });
        let answers = delays.submit(submissions.collect()).await;
        assert!(answers.iter().all(Result::is_ok));
        match round % 3 {
            0 => clock.set(now + hour),
            1 => clock.set(laneway_delay::Timestamp::from_millis(
                now.as_millis() - 3_600_000,
            )),
            _ => clock.set(now + Duration::from_secs(1)),
        }
    }
    clock.set(start + 2 * hour + Duration::from_mins(5));
    witness.wait_for(expected.len()).await;
    wait_for!(delays.counts()["t"].delivered == expected.len() as u64);
    let seen = witness.seen();
    assert!(seen.iter().all(|seen| seen.at >= seen.due));
    assert_eq!(seen.len(), expected.len());
    let ids: HashSet<_> = seen.into_iter().map(|seen| seen.id).collect();
    assert_eq!(ids, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_engine_leaves_everything_to_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let clock = manual();
    let witness = Witness::new();
    let delays = open(folder.path(), &clock, &witness, 1000).await;
    let due = clock.now() + Duration::from_secs(5);
    delays
        .submit_one(to_host("h", due).id(id(1)))
        .await
        .unwrap();
    delays.close(Duration::from_secs(5)).await.unwrap();
    clock.set(due);
    let again = Witness::new();
    let _delays = open(folder.path(), &clock, &again, 1000).await;
    again.wait_for(1).await;
    assert!(witness.seen().is_empty());
}
