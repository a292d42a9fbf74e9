//! Delayed events on NATS: one process publishes them, another one keeps them until they are due.

mod nats;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use laneway::{BusSink, Error};
use laneway_delay::{Delays, Options, Sinks};

use nats::server::NatsServer;
use nats::{Starts, declare, event, eventually, fresh, open};

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
        let delayed = publisher
            .publish_after("orders", &event("key", number), delay)
            .await;
        let delayed = delayed.expect("sent");
        assert!(delayed.due().expect("known") > SystemTime::now());
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
    eventually("they came back", async || starts.len() == 20).await;
    assert!(begun.elapsed() >= delay);
    eventually("all are delivered", async || {
        delays.counts()["orders"].delivered == 20
    })
    .await;
    delays.close(Duration::from_secs(5)).await.expect("closed");
}
