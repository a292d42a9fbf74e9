//! What happens to a host that fails.

use std::time::{Duration, Instant};

use laneway_delay::callback::{CallError, Limits};
use laneway_delay::{Failure, Timestamp};
use waiting::wait_for;

use crate::receiver::{Behaviour, Receiver};
use crate::{call, client, limits, silent};

/// Circuits open after so many failures, and stay so as long as a test takes.
fn opening_after(failures: u32) -> Limits {
    let hour = Duration::from_hours(1);
    limits(|limits| {
        limits.failures_to_open = failures;
        (limits.open_for, limits.open_for_at_most) = (hour, hour);
    })
}

#[tokio::test]
async fn a_host_that_keeps_failing_is_left_alone() {
    let client = client(opening_after(3));
    let receiver = Receiver::start(Behaviour::status("500 Oops")).await;
    let url = receiver.url();
    for _ in 0..3 {
        let error = client.call(&call(&url)).await.expect_err("500");
        assert_eq!(error.failure(), Failure::Retry);
    }
    assert_eq!((receiver.unseen(), client.open_circuits()), (3, 1));

    // Nothing is sent, and nothing is counted against the message.
    for _ in 0..10 {
        let error = client.call(&call(&url)).await.expect_err("open");
        assert!(
            matches!(error.failure(), Failure::Postponed(_)),
            "{error:?}"
        );
    }
    assert_eq!(receiver.unseen(), 3);

    // Another host is not concerned.
    let healthy = Receiver::start(Behaviour::status("200 OK")).await;
    client.call(&call(&healthy.url())).await.expect("200");
}

#[tokio::test]
async fn a_host_that_was_left_alone_is_tried_again() {
    let pause = Duration::from_millis(500);
    let client = client(limits(|limits| {
        limits.failures_to_open = 1;
        limits.open_for = pause;
    }));
    let receiver = Receiver::start(Behaviour::status("500 Oops")).await;
    let url = receiver.url();
    let opened = Instant::now();
    client.call(&call(&url)).await.expect_err("500");
    receiver.behave(Behaviour::status("200 OK"));
    wait_for!(client.call(&call(&url)).await.is_ok());
    assert!(opened.elapsed() >= pause, "tried too soon");
    client.call(&call(&url)).await.expect("closed again");
    assert_eq!(client.open_circuits(), 0);
}

#[tokio::test]
async fn a_message_is_not_put_off_for_ever() {
    let client = client(opening_after(1));
    let receiver = Receiver::start(Behaviour::status("500 Oops")).await;
    let url = receiver.url();
    client.call(&call(&url)).await.expect_err("500");

    let mut late = call(&url);
    let two_hours = 2 * 60 * 60 * 1_000;
    late.due = Timestamp::from_millis(late.due.as_millis() - two_hours);
    let error = client.call(&late).await.expect_err("open");
    assert!(
        matches!(error, CallError::CircuitOpen { wait: None, .. }),
        "{error:?}"
    );
    assert_eq!(error.failure(), Failure::Retry);
    assert_eq!(receiver.unseen(), 1);
}

#[tokio::test]
async fn a_host_that_answers_404_is_alive() {
    let client = client(limits(|limits| limits.failures_to_open = 2));
    let receiver = Receiver::start(Behaviour::status("404 Not Found")).await;
    for _ in 0..10 {
        client.call(&call(&receiver.url())).await.expect_err("404");
    }
    assert_eq!(receiver.unseen(), 10);
}

/// A sender that gives a host a few milliseconds says nothing about the host.
#[tokio::test]
async fn short_time_outs_of_one_sender_do_not_stop_the_messages_of_others() {
    let client = client(limits(|limits| limits.failures_to_open = 3));
    let receiver = Receiver::start(Behaviour::Slow(Duration::from_millis(300))).await;
    let url = receiver.url();
    for _ in 0..10 {
        let mut hasty = call(&url);
        hasty.timeout = Some(Duration::from_millis(1));
        let error = client.call(&hasty).await.expect_err("too short");
        assert!(matches!(error, CallError::TimedOut(_)), "{error:?}");
    }
    assert_eq!(client.open_circuits(), 0);
    client.call(&call(&url)).await.expect("it answers");
}

/// One bad path behind a host that others use as well.
#[tokio::test]
async fn a_topic_that_a_host_fails_does_not_stop_the_other_topics_there() {
    let client = client(opening_after(3));
    let receiver = Receiver::start(Behaviour::status("500 Oops")).await;
    let url = receiver.url();
    for _ in 0..3 {
        client.call(&call(&url)).await.expect_err("500");
    }
    let error = client.call(&call(&url)).await.expect_err("open");
    assert!(
        matches!(error.failure(), Failure::Postponed(_)),
        "{error:?}"
    );
    receiver.behave(Behaviour::status("200 OK"));
    let mut other = call(&url);
    other.topic = "invoices";
    client.call(&other).await.expect("another topic");
}

/// Nobody listens there: all topics rest.
#[tokio::test]
async fn a_host_that_does_not_answer_rests_as_a_whole() {
    let client = client(opening_after(3));
    let (_bound, url) = silent();
    for _ in 0..3 {
        let error = client.call(&call(&url)).await.expect_err("nobody");
        assert!(matches!(error, CallError::Connect(_)), "{error:?}");
    }
    let mut other = call(&url);
    other.topic = "invoices";
    let error = client.call(&other).await.expect_err("open");
    assert!(
        matches!(error.failure(), Failure::Unavailable(_)),
        "{error:?}"
    );
}

#[tokio::test]
async fn connections_that_are_kept_have_a_bound_over_all_hosts() {
    let client = client(limits(|limits| limits.idle = 2));
    let mut connections = Vec::new();
    for _ in 0..5 {
        let receiver = Receiver::start(Behaviour::status("200 OK")).await;
        for _ in 0..3 {
            client.call(&call(&receiver.url())).await.expect("200");
        }
        connections.push(receiver.connections());
    }
    assert_eq!(connections, [1, 1, 3, 3, 3]);
}
