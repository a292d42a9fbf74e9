//! The client as the sink of an engine: from a submission to the wire.

use std::sync::Arc;
use std::time::{Duration, Instant};

use laneway_delay::callback::Limits;
use laneway_delay::{
    Delays, Error, Method, Options, Query, Sinks, StateName, Submission, Target, When,
};
use waiting::wait_for;

use crate::receiver::{Behaviour, Receiver};
use crate::{PATIENCE, client, limits};

fn delays(options: Options) -> Delays {
    delays_within(options, Limits::default())
}

fn delays_within(options: Options, limits: Limits) -> Delays {
    let sinks = Sinks {
        callbacks: Some(Arc::new(client(limits))),
        ..Sinks::default()
    };
    Delays::in_memory(sinks, options).expect("an engine")
}

fn now(target: Target) -> Submission {
    Submission::new("reminders", When::After(Duration::ZERO), target).payload("{\"cart\":17}")
}

#[tokio::test]
async fn a_due_message_is_called_out_and_delivered() {
    let mut receiver = Receiver::start(Behaviour::status("200 OK")).await;
    let delays = delays(Options::default());
    let submission = now(Target::callback(receiver.url())).content_type("application/json");
    let accepted = delays.submit_one(submission).await.expect("accepted");
    let request = receiver.request().await;
    assert_eq!(request.header("laneway-id"), Some(accepted.id.as_str()));
    assert_eq!(request.header("laneway-topic"), Some("reminders"));
    assert_eq!(request.header("content-type"), Some("application/json"));
    let delivered = Query::new(StateName::Delivered);
    wait_for!({
        let page = delays.list(&delivered).await.expect("a page");
        !page.messages.is_empty()
    });
    delays.close(PATIENCE).await.expect("closed");
}

#[tokio::test]
async fn what_the_guard_refuses_is_refused_when_it_is_submitted() {
    let delays = delays(Options::default());
    for url in ["http://10.0.0.1/", "http://user:pw@example.com/"] {
        let refused = delays.submit_one(now(Target::callback(url))).await;
        let Err(Error::Invalid { field, .. }) = refused else {
            panic!("{url}: {refused:?}");
        };
        assert_eq!(field, "target.url");
    }
    let mut target = laneway_delay::Callback {
        url: "http://127.0.0.1/".to_owned(),
        method: Method::Post,
        headers: vec![("Host".to_owned(), "example.com".to_owned())],
        timeout: None,
    };
    let refused = delays
        .submit_one(now(Target::Callback(target.clone())))
        .await;
    assert!(
        matches!(&refused, Err(Error::Invalid { field, .. }) if *field == "target.headers"),
        "{refused:?}"
    );
    target.headers.clear();
    delays
        .submit_one(now(Target::Callback(target)))
        .await
        .expect("accepted");
    delays.close(PATIENCE).await.expect("closed");
}

/// However an address is written, it is one host, with the slots of one.
#[tokio::test]
async fn a_url_is_stored_in_the_form_in_which_it_is_sent() {
    let delays = delays(Options::default());
    for (written, sent) in [
        ("http://127.1:9999/a b", "http://127.0.0.1:9999/a%20b"),
        ("http://0x7f.1:9999", "http://127.0.0.1:9999/"),
        ("http://EXAMPLE.com:80/x", "http://example.com/x"),
    ] {
        let later = When::After(Duration::from_hours(1));
        let submission = Submission::new("reminders", later, Target::callback(written));
        let accepted = delays.submit_one(submission).await.expect("accepted");
        let message = delays.get(&accepted.id).await.expect("read");
        assert_eq!(message.target, Target::callback(sent));
    }
    delays.close(PATIENCE).await.expect("closed");
}

/// Nine hosts answer at once, the tenth never. It has far more messages than slots.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_stuck_host_of_ten_delays_no_other() {
    let options = Options::default();
    let slots = options.per_host;
    let patient = limits(|limits| limits.timeout = limits.max_timeout);
    let delays = delays_within(options, patient);
    let stuck = Receiver::start(Behaviour::Never).await;
    let to_stuck = (0..500).map(|_| now(Target::callback(stuck.url())));
    for answer in delays.submit(to_stuck.collect()).await {
        answer.expect("accepted");
    }
    wait_for!(stuck.connections() == slots);

    let mut receivers = Vec::new();
    for _ in 0..9 {
        receivers.push(Receiver::start(Behaviour::status("200 OK")).await);
    }
    for _ in 0..50 {
        let all = receivers
            .iter()
            .map(|receiver| now(Target::callback(receiver.url())));
        let start = Instant::now();
        for answer in delays.submit(all.collect()).await {
            answer.expect("accepted");
        }
        for receiver in &mut receivers {
            receiver.request().await;
        }
        // A few milliseconds on a machine that has nothing else to do, which this one may not be. The stuck
        // host would have cost five minutes.
        assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    }
    assert_eq!(stuck.connections(), slots, "a host has so many slots");
    let _ = delays.close(Duration::from_millis(10)).await;
}
