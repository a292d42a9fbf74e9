//! Delayed events on NATS: one process publishes them, another one keeps them until they are due.

mod nats;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use laneway::{BusSink, Error};
use laneway_delay::{
    BoxFuture, Delays, Firing, MessageId, Options, Publish, Sinks, Submission, Target, Undelivered,
    When,
};

use nats::server::NatsServer;
use nats::{SOON, Starts, declare, event, fresh, open, publish};
use waiting::wait_for;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_comes_back_when_it_is_due_and_not_before() {
    let server = NatsServer::start(&needs::service!("nats_bin"), |_| String::new());
    let url = fresh(&server.address(), "");
    let (publisher, keeper) = (open(&url).await, open(&url).await);
    declare(&publisher, "orders", 2).await;
    let starts = Starts::default();
    let seen = starts.clone();
    publisher
        .subscribe_envelope("orders", move |event| {
            seen.note("one", &event);
            async { Ok(()) }
        })
        .await
        .expect("subscribed");

    // Nobody keeps them yet: they wait on the bus.
    let delay = Duration::from_millis(1500);
    let begun = Instant::now();
    for number in 0..20 {
        let before = SystemTime::now();
        let delayed = publisher
            .publish_after("orders", &event("key", number), delay)
            .await;
        let delayed = delayed.expect("sent");
        // To the millisecond.
        let least = before + delay - Duration::from_millis(1);
        assert!(delayed.due().expect("known") >= least);
        let error = delayed.withdraw().await.expect_err("a server keeps it");
        assert!(matches!(error, Error::DelayedElsewhere { .. }), "{error}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let sinks = Sinks {
        bus: Some(Arc::new(BusSink::new(keeper.clone()))),
        callbacks: None,
    };
    let delays = Delays::open(folder.path(), sinks, Options::default()).await;
    let delays = delays.expect("open");
    keeper
        .keep_delayed(delays.clone())
        .await
        .expect("subscribed");
    wait_for!(starts.len() == 20, "they came back");
    assert!(begun.elapsed() >= delay);
    wait_for!(
        { delays.counts()["orders"].delivered == 20 },
        "all are delivered"
    );
    delays.close(SOON).await.expect("closed");
}

/// A core that publishes on a bus whose calls have this deadline.
async fn keeper(url: &str, deadline: Duration) -> (laneway::Bus, Delays) {
    let began = Instant::now();
    let bus = loop {
        let bus = laneway::Bus::builder().deadline(deadline);
        match bus.open(url).await {
            Ok(bus) => break bus,
            // The server may be too busy for a short one.
            Err(error) => assert!(began.elapsed() < 2 * SOON, "{error}"),
        }
    };
    let sinks = Sinks {
        bus: Some(Arc::new(BusSink::new(bus.clone()))),
        callbacks: None,
    };
    let delays = Delays::in_memory(sinks, Options::default()).expect("started");
    (bus, delays)
}

fn due_soon(number: u32, wait: u64) -> Submission {
    let target = Target::bus("orders", format!("k{number}"), "Due");
    let when = When::After(Duration::from_millis(wait));
    Submission::new("t", when, target).id(MessageId::new(format!("m{number}")).expect("an id"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_withdraw_while_the_server_is_frozen_is_refused_or_holds() {
    let server = NatsServer::start(&needs::service!("nats_bin"), |_| String::new());
    let url = fresh(&server.address(), "");
    let reader = open(&url).await;
    declare(&reader, "orders", 2).await;
    let published = Arc::new(Mutex::new(HashSet::new()));
    let seen = published.clone();
    reader
        .subscribe_envelope("orders", move |event| {
            let key = event.aggregate_id().as_str().to_owned();
            seen.lock().expect("no panic in here").insert(key);
            async { Ok(()) }
        })
        .await
        .expect("subscribed");
    // It gives up on calls soon.
    let (bus, delays) = keeper(&url, Duration::from_secs(1)).await;
    // The topic is known, so that only publishing is left to do.
    publish(&bus, "orders", &event("first", 0)).await;
    server.signal("STOP");
    for number in 1..=20 {
        let accepted = delays.submit_one(due_soon(number, 500)).await;
        accepted.expect("taken");
    }
    let id = |number: u32| MessageId::new(format!("m{number}")).expect("an id");
    wait_for!(
        {
            let message = delays.get(&id(1)).await.expect("there");
            message.record.is_in_doubt()
        },
        "an attempt has gone unanswered"
    );
    let message = delays.get(&id(1)).await.expect("there");
    assert!(message.record.attempts() >= 1 && !message.history.is_empty());
    let in_doubt = delays.withdraw(&id(1)).await;
    assert!(in_doubt.is_err(), "the server may have had it");
    // Those of its batch are refused, too. Others may not have been sent, and then a yes has to hold.
    let mut withdrawn = 0;
    for number in 2..=20 {
        withdrawn += usize::from(delays.withdraw(&id(number)).await.is_ok());
    }
    server.signal("CONT");
    wait_for!(
        { delays.counts()["t"].delivered == 20 - withdrawn as u64 },
        "all others are delivered"
    );
    wait_for!(
        { published.lock().expect("no panic in here").len() == 21 - withdrawn },
        "all of them are there"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_is_too_large_is_refused_and_one_that_came_anyway_dies_alone() {
    let server = NatsServer::start(&needs::service!("nats_bin"), |_| {
        "max_payload: 65536".to_owned()
    });
    let url = fresh(&server.address(), "");
    let (bus, delays) = keeper(&url, SOON).await;
    declare(&bus, "orders", 2).await;
    let refused = delays
        .submit_one(due_soon(0, 300).payload(vec![0; 60_000]))
        .await
        .expect_err("as base64 it is too large");
    assert!(refused.to_string().starts_with("payload: "), "{refused}");
    // It fits by what is known when it is submitted, and does not with the headers of the server.
    for number in 1..=300 {
        let submission = due_soon(number, 300);
        let accepted = delays.submit_one(submission).await;
        accepted.expect("taken");
    }
    let blind = Blind(BusSink::new(bus.clone()));
    let sinks = Sinks {
        bus: Some(Arc::new(blind)),
        callbacks: None,
    };
    let unaware = Delays::in_memory(sinks, Options::default()).expect("started");
    for number in 301..=600 {
        let submission = due_soon(number, 300);
        let submission = match number {
            450 => submission.payload(vec![0; 60_000]),
            _ => submission,
        };
        let accepted = unaware.submit_one(submission).await;
        accepted.expect("taken");
    }
    wait_for!(
        { delays.counts()["t"].delivered == 300 },
        "all are delivered"
    );
    wait_for!(
        {
            let counts = unaware.counts()["t"];
            (counts.delivered, counts.dead) == (299, 1)
        },
        "all but one are delivered, and that one is dead"
    );
}

/// A sink that does not look before a message is due.
struct Blind(BusSink);

impl Publish for Blind {
    fn publish(&self, batch: Vec<Firing>) -> BoxFuture<'_, Vec<Result<(), Undelivered>>> {
        Publish::publish(&self.0, batch)
    }
}
