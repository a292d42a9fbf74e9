//! The engine on a store in memory, by a clock that is moved by hand.

mod rig;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use laneway_delay::clock::{Clock, ManualClock};
use laneway_delay::message::Reason;
use laneway_delay::store::{DiskStore, MemoryStore, Store};
use laneway_delay::{
    Delays, Error, Extend, Failure, MessageId, Options, Query, Schedule, State, StateName,
    Undelivered, When,
};
use rig::{Witness, at, manual, to_bus, to_host};
use waiting::wait_for;

fn start(clock: &ManualClock, witness: &Witness, options: Options) -> Delays {
    let store = Arc::new(MemoryStore::new());
    let clock = Arc::new(clock.clone());
    Delays::start(store, clock, witness.sinks(), options).unwrap()
}

fn id(text: &str) -> MessageId {
    MessageId::new(text).unwrap()
}

async fn state(delays: &Delays, text: &str) -> StateName {
    let message = delays.get(&id(text)).await.unwrap();
    message.record.state().into()
}

/// Waits until a message is in a state.
async fn becomes(delays: &Delays, text: &str, expected: StateName) {
    wait_for!(
        state(delays, text).await == expected,
        "{text} is {expected:?}"
    );
}

#[tokio::test]
async fn what_is_due_is_delivered_and_nothing_else() {
    let clock = manual();
    let witness = Witness::new();
    let delays = start(&clock, &witness, Options::default());
    let due = clock.now() + Duration::from_secs(5);
    for (name, due) in [("a", due), ("b", due + Duration::from_millis(1))] {
        let accepted = delays.submit_one(to_host("h", due).id(id(name))).await;
        assert_eq!(accepted.unwrap().due, due);
    }
    clock.set(due);
    witness.wait_for(1).await;
    becomes(&delays, "a", StateName::Delivered).await;
    assert_eq!(witness.ids(), ["a"]);
    assert_eq!(state(&delays, "b").await, StateName::Scheduled);
    assert_eq!(delays.counts()["t"].delivered, 1);
    clock.advance(Duration::from_millis(1));
    witness.wait_for(2).await;
    assert_eq!(witness.ids(), ["a", "b"]);
}

#[tokio::test]
async fn a_withdrawn_message_does_not_fire_and_a_fired_one_is_not_withdrawn() {
    let clock = manual();
    let witness = Witness::new();
    let delays = start(&clock, &witness, Options::default());
    let due = clock.now() + Duration::from_secs(1);
    delays
        .submit_one(to_host("h", due).id(id("a")))
        .await
        .unwrap();
    delays
        .submit_one(to_host("h", due).id(id("b")))
        .await
        .unwrap();
    delays.withdraw(&id("a")).await.unwrap();
    clock.set(due);
    becomes(&delays, "b", StateName::Delivered).await;
    assert_eq!(witness.ids(), ["b"]);
    let error = delays.withdraw(&id("b")).await.unwrap_err();
    assert!(
        matches!(error, Error::Refused(refusal) if matches!(refusal.state, State::Delivered { .. }))
    );
    let error = delays
        .extend(&id("a"), Extend::By(Duration::from_secs(9)))
        .await;
    assert!(
        matches!(error, Err(Error::Refused(_))),
        "extending never revives"
    );
}

#[tokio::test]
async fn an_extended_message_fires_at_its_new_time() {
    let clock = manual();
    let witness = Witness::new();
    let delays = start(&clock, &witness, Options::default());
    let due = clock.now() + Duration::from_secs(1);
    delays
        .submit_one(to_bus("k", due).id(id("a")))
        .await
        .unwrap();
    // Beyond the horizon, and back is not possible.
    let message = delays
        .extend(&id("a"), Extend::By(Duration::from_mins(10)))
        .await
        .unwrap();
    assert_eq!(message.record.due(), due + Duration::from_mins(10));
    clock.set(due);
    delays
        .submit_one(to_bus("k", due).id(id("b")))
        .await
        .unwrap();
    becomes(&delays, "b", StateName::Delivered).await;
    assert_eq!(witness.ids(), ["b"]);
    clock.set(due + Duration::from_mins(10));
    witness.wait_for(2).await;
    assert_eq!(witness.seen()[1].at, due + Duration::from_mins(10));
}

#[tokio::test]
async fn a_failure_is_tried_again_by_schedule_and_ends_as_a_dead_letter() {
    let clock = manual();
    let witness = Witness::answering(|_| Err(Undelivered::retry("status 500")));
    let options = Options {
        retry_jitter: 0.0,
        ..Options::default()
    };
    let delays = start(&clock, &witness, options);
    let due = clock.now() + Duration::from_secs(1);
    let schedule = Schedule::new([1, 10].map(Duration::from_secs));
    let submission = to_host("h", due)
        .id(id("a"))
        .retry(schedule)
        .payload("body");
    delays.submit_one(submission).await.unwrap();
    for (wait, attempt) in [(1, 1), (1, 2), (10, 3)] {
        clock.advance(Duration::from_secs(wait));
        let seen = witness.wait_for(attempt).await;
        assert_eq!(seen[attempt - 1].attempt as usize, attempt);
        wait_for!(delays.counts()["t"].firing == 0);
    }
    becomes(&delays, "a", StateName::Dead).await;
    let dead = delays.list(&Query::new(StateName::Dead)).await.unwrap();
    assert_eq!(dead.messages.len(), 1);
    assert_eq!(dead.messages[0].payload, "body");
    assert_eq!(dead.messages[0].history.len(), 4);

    let replayed = delays.replay(&id("a")).await.unwrap();
    assert!(matches!(
        delays.get(&id("a")).await,
        Err(Error::NotFound(_))
    ));
    let seen = witness.wait_for(4).await;
    assert_eq!(seen[3].id, replayed.id.to_string());
    assert_eq!(seen[3].attempt, 1);
}

#[tokio::test]
async fn a_rejected_message_is_dead_at_once_and_can_be_purged() {
    let clock = manual();
    let witness = Witness::answering(|_| Err(Undelivered::permanent("410")));
    let delays = start(&clock, &witness, Options::default());
    for name in ["a", "b"] {
        let submission = to_host("h", clock.now()).id(id(name));
        delays.submit_one(submission).await.unwrap();
    }
    becomes(&delays, "a", StateName::Dead).await;
    becomes(&delays, "b", StateName::Dead).await;
    delays.purge(&id("a")).await.unwrap();
    assert_eq!(delays.purge_dead(Some("other")).await, Ok(0));
    assert_eq!(delays.purge_dead(Some("t")).await, Ok(1));
    assert!(delays.counts().is_empty());
}

#[tokio::test]
async fn a_bus_that_is_away_gets_everything_in_order_when_it_is_back() {
    let clock = manual();
    let is_up = Arc::new(AtomicBool::new(false));
    let up = is_up.clone();
    let witness = Witness::answering(move |_| {
        if up.load(Ordering::SeqCst) {
            Ok(())
        } else {
            Err(Undelivered::retry("no connection"))
        }
    });
    let options = Options {
        batch: 7,
        ..Options::default()
    };
    let delays = start(&clock, &witness, options);
    let start = clock.now();
    for number in 0..100 {
        let due = start + Duration::from_millis(number / 3);
        let submission = to_bus("k", due).id(id(&number.to_string()));
        delays.submit_one(submission).await.unwrap();
    }
    clock.advance(Duration::from_secs(1));
    witness.wait_for(7).await;
    wait_for!(delays.counts()["t"].firing == 0);
    is_up.store(true, Ordering::SeqCst);
    let before = witness.seen().len();
    clock.advance(Duration::from_mins(1));
    witness.wait_for(before + 100).await;
    let expected: Vec<_> = (0..100).map(|number| number.to_string()).collect();
    assert_eq!(witness.ids()[before..], expected);
    // Scheduled for the bus is no attempt.
    assert!(witness.seen().iter().all(|seen| seen.attempt == 1));
}

#[tokio::test]
async fn of_a_batch_that_went_through_in_part_only_the_rest_comes_again_and_in_order() {
    let clock = manual();
    // The bus has taken every third one, says nothing of every other third, and has not sent the rest.
    let witness = Witness::answering(|firing| {
        let number: u32 = firing.message.id.as_str().parse().unwrap();
        let is_again = matches!(firing.message.record.state(), State::Firing { since } if since > firing.due() + Duration::from_secs(5));
        match number % 3 {
            0 => Ok(()),
            _ if is_again => Ok(()),
            1 => Err(Undelivered::unknown("no answer")),
            _ => Err(Undelivered::retry("not sent")),
        }
    });
    let delays = start(&clock, &witness, Options::default());
    let due = clock.now() + Duration::from_secs(1);
    let submissions = (0..30).map(|number| to_bus("k", due).id(id(&number.to_string())));
    let answers = delays.submit(submissions.collect()).await;
    assert!(answers.iter().all(Result::is_ok));
    clock.set(due);
    witness.wait_for(30).await;
    wait_for!(delays.counts()["t"].delivered == 10 && delays.counts()["t"].firing == 0);
    for number in 0..30 {
        let message = delays.get(&id(&number.to_string())).await.unwrap();
        assert_eq!(message.record.is_in_doubt(), number % 3 == 1, "{number}");
    }
    clock.advance(Duration::from_secs(20));
    wait_for!(delays.counts()["t"].delivered == 30);
    let again = &witness.ids()[30..];
    let rest = (0..30).filter(|number| number % 3 != 0);
    let rest: Vec<_> = rest.map(|number| number.to_string()).collect();
    assert_eq!(again, rest);
}

#[tokio::test]
async fn more_than_fits_into_memory_is_delivered_once_each_and_in_order() {
    let clock = manual();
    let witness = Witness::new();
    let options = Options {
        near: 64,
        batch: 10,
        ..Options::default()
    };
    let delays = start(&clock, &witness, options);
    let due = clock.now() + Duration::from_secs(30);
    let mut submissions = Vec::new();
    for number in 0..5000 {
        let due = due + Duration::from_millis(number / 100);
        submissions.push(to_bus("k", due).id(id(&number.to_string())));
    }
    let answers = delays.submit(submissions).await;
    assert!(answers.iter().all(Result::is_ok));
    clock.set(due + Duration::from_secs(1));
    witness.wait_for(5000).await;
    wait_for!(delays.counts()["t"].delivered == 5000);
    let expected: Vec<_> = (0..5000).map(|number| number.to_string()).collect();
    assert_eq!(witness.ids(), expected);
}

#[tokio::test]
async fn the_same_submission_is_the_same_message() {
    let clock = manual();
    let witness = Witness::new();
    let delays = start(&clock, &witness, Options::default());
    let due = clock.now() + Duration::from_secs(9);
    let submission = to_host("h", due).idempotency_key("k");
    let first = delays.submit_one(submission.clone()).await.unwrap();
    let again = delays.submit_one(submission.clone()).await.unwrap();
    assert!(first.is_new && !again.is_new);
    assert_eq!((first.id, first.due), (again.id, again.due));
    let other = submission.payload("other");
    let error = delays.submit_one(other).await.unwrap_err();
    assert!(matches!(error, Error::KeyReused { .. }), "{error}");
    let own = to_host("h", due).id(id("own"));
    assert!(delays.submit_one(own.clone()).await.unwrap().is_new);
    assert!(!delays.submit_one(own.clone()).await.unwrap().is_new);
    let error = delays.submit_one(own.payload("x")).await.unwrap_err();
    assert!(matches!(error, Error::IdTaken(_)), "{error}");
}

#[tokio::test]
async fn a_clock_that_goes_back_makes_nothing_early() {
    let clock = manual();
    let witness = Witness::new();
    let delays = start(&clock, &witness, Options::default());
    let start = clock.now();
    let due = start + Duration::from_secs(10);
    for name in ["a", "b"] {
        delays
            .submit_one(to_host("h", due).id(id(name)))
            .await
            .unwrap();
    }
    clock.set(at(start.as_millis() - 3_600_000));
    let soon = clock.now() + Duration::from_secs(1);
    delays
        .submit_one(to_bus("k", soon).id(id("c")))
        .await
        .unwrap();
    clock.set(soon);
    becomes(&delays, "c", StateName::Delivered).await;
    clock.set(due);
    witness.wait_for(3).await;
    assert!(witness.seen().iter().all(|seen| seen.at >= seen.due));
}

#[tokio::test]
async fn a_long_delay_is_refused_only_if_there_is_a_limit() {
    let clock = manual();
    let witness = Witness::new();
    let options = Options {
        max_delay: Some(Duration::from_mins(1)),
        ..Options::default()
    };
    let delays = start(&clock, &witness, options);
    let mut submission = to_host("h", clock.now());
    submission.when = When::After(Duration::from_secs(61));
    let error = delays.submit_one(submission.clone()).await.unwrap_err();
    assert!(error.to_string().starts_with("due: "), "{error}");
    submission.when = When::After(Duration::from_mins(1));
    let accepted = delays.submit_one(submission.clone()).await.unwrap();
    let by = |seconds| Extend::By(Duration::from_secs(seconds));
    let error = delays.extend(&accepted.id, by(1)).await.unwrap_err();
    assert!(error.to_string().starts_with("due: "), "{error}");
    clock.advance(Duration::from_secs(1));
    delays.extend(&accepted.id, by(1)).await.unwrap();
    // What can only be a mistake is refused whatever the limit.
    clock.set(at(1_800_000_000_000));
    for due in [at(u64::MAX), at(1_900_000_000)] {
        submission.when = When::At(due);
        let error = delays.submit_one(submission.clone()).await.unwrap_err();
        assert!(error.to_string().starts_with("due: "), "{error}");
    }
}

#[tokio::test]
async fn after_closing_nothing_is_taken_and_nothing_fires() {
    let clock = manual();
    let witness = Witness::new();
    let delays = start(&clock, &witness, Options::default());
    let due = clock.now() + Duration::from_secs(1);
    delays.submit_one(to_host("h", due)).await.unwrap();
    delays.close(Duration::from_secs(5)).await.unwrap();
    clock.advance(Duration::from_secs(5));
    let error = delays.submit_one(to_host("h", due)).await;
    assert_eq!(error.unwrap_err(), Error::Closed);
    assert_eq!(delays.health(), Err(Error::Closed));
    assert!(witness.seen().is_empty());
}

#[tokio::test]
async fn retry_after_is_respected() {
    let clock = manual();
    let witness = Witness::answering(|firing| match firing.attempt() {
        1 => Err(Undelivered::new(
            Failure::RetryAfter(Duration::from_mins(2)),
            "status 429",
        )),
        _ => Ok(()),
    });
    let delays = start(&clock, &witness, Options::default());
    let due = clock.now();
    delays
        .submit_one(to_host("h", due).id(id("a")))
        .await
        .unwrap();
    witness.wait_for(1).await;
    becomes(&delays, "a", StateName::Scheduled).await;
    clock.set(due + Duration::from_millis(119_999));
    assert_eq!(state(&delays, "a").await, StateName::Scheduled);
    // Up to a tenth later.
    clock.set(due + Duration::from_secs(132));
    let seen = witness.wait_for(2).await;
    assert!(seen[1].at >= due + Duration::from_mins(2));
}

#[tokio::test]
async fn an_attempt_on_the_bus_without_an_answer_keeps_the_order_and_cannot_be_taken_back() {
    let clock = manual();
    let answers = Arc::new(AtomicBool::new(false));
    let answering = answers.clone();
    let witness = Witness::answering(move |firing| {
        if answering.load(Ordering::SeqCst) {
            Ok(())
        } else if firing.message.id.as_str() == "c" {
            Err(Undelivered::retry("not sent"))
        } else {
            Err(Undelivered::unknown("no answer"))
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let on_disk = DiskStore::open(folder.path()).await.unwrap();
    let stores: [Arc<dyn Store>; 2] = [Arc::new(MemoryStore::new()), Arc::new(on_disk)];
    for store in stores {
        answers.store(false, Ordering::SeqCst);
        let before = witness.seen().len();
        let clock_here = Arc::new(clock.clone());
        let delays = Delays::start(store, clock_here, witness.sinks(), Options::default()).unwrap();
        let due = clock.now() + Duration::from_secs(5);
        for name in ["a", "b", "c"] {
            let submission = to_bus("k", due).id(id(name));
            delays.submit_one(submission).await.unwrap();
        }
        clock.set(due);
        witness.wait_for(before + 3).await;
        // The bus rests, by this clock, until it is moved.
        becomes(&delays, "b", StateName::Scheduled).await;
        for name in ["a", "b"] {
            let message = delays.get(&id(name)).await.unwrap();
            assert!(message.record.is_in_doubt());
            assert_eq!((message.record.attempts(), message.history.len()), (1, 1));
            for refused in [
                delays.withdraw(&id(name)).await,
                delays
                    .extend(&id(name), Extend::By(Duration::from_secs(1)))
                    .await,
            ] {
                assert!(
                    matches!(refused, Err(Error::Refused(refusal)) if refusal.reason == Reason::InDoubt),
                );
            }
        }
        becomes(&delays, "c", StateName::Scheduled).await;
        delays.withdraw(&id("c")).await.unwrap();
        answers.store(true, Ordering::SeqCst);
        clock.advance(Duration::from_secs(20));
        becomes(&delays, "b", StateName::Delivered).await;
        becomes(&delays, "a", StateName::Delivered).await;
        let again = &witness.ids()[before + 3..];
        assert_eq!(again, ["a", "b"]);
        assert_eq!(delays.get(&id("a")).await.unwrap().record.attempts(), 2);
        let counts = delays.counts()["t"];
        assert_eq!(
            (counts.delivered, counts.withdrawn, counts.scheduled),
            (2, 1, 0)
        );
        delays.close(Duration::from_secs(5)).await.unwrap();
    }
}
