//! What is sent, and what answers mean.

use std::time::{Duration, Instant, SystemTime};

use laneway_delay::Failure;
use laneway_delay::callback::{Allow, CallError, Client, Guard, Limits, Secret, signature};

use crate::receiver::{Behaviour, Receiver};
use crate::{PATIENCE, call, client, limits, silent};

#[tokio::test]
async fn a_callback_says_what_it_is_and_is_signed() {
    let mut receiver = Receiver::start(Behaviour::status("200 OK")).await;
    let secrets: Vec<Secret> = [
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
    ]
    .map(|secret| secret.parse().expect(secret))
    .to_vec();
    let guard = Guard::new(Allow::loopback());
    let client = Client::new(guard, Limits::default(), secrets.clone()).expect("a client");

    let url = receiver.url();
    let headers = [("X-Cart".to_owned(), "17".to_owned())];
    let mut message = call(&url);
    message.headers = &headers;
    message.attempt = 3;
    let delivered = client.call(&message).await.expect("200");
    assert_eq!(delivered.status, 200);

    let request = receiver.request().await;
    assert!(
        request.head.starts_with("POST /hook HTTP/1.1\r\n"),
        "{}",
        request.head
    );
    assert_eq!(request.body, b"{\"cart\":17}");
    for (name, value) in [
        ("content-type", "application/json"),
        ("x-cart", "17"),
        ("laneway-topic", "reminders"),
        ("laneway-attempt", "3"),
        ("laneway-due", &message.due.as_millis().to_string()),
        ("webhook-id", "message-1"),
    ] {
        assert_eq!(request.header(name), Some(value), "{name}");
    }
    let sent: u64 = request
        .header("webhook-timestamp")
        .and_then(|text| text.parse().ok())
        .expect("a time");
    let now = SystemTime::UNIX_EPOCH
        .elapsed()
        .expect("after 1970")
        .as_secs();
    assert!(now - sent <= PATIENCE.as_secs(), "{sent} {now}");
    let expected = signature::sign(&secrets, "message-1", sent, &request.body);
    assert_eq!(request.header("webhook-signature"), Some(expected.as_str()));
    assert_eq!(expected.split(' ').count(), 2);
}

#[tokio::test]
async fn without_a_secret_nothing_claims_to_be_signed() {
    let mut receiver = Receiver::start(Behaviour::status("204 No Content")).await;
    client(Limits::default())
        .call(&call(&receiver.url()))
        .await
        .expect("204");
    assert_eq!(receiver.request().await.header("webhook-signature"), None);
}

#[tokio::test]
async fn connections_are_used_again() {
    let receiver = Receiver::start(Behaviour::Answer("200 OK", String::new(), 10_000)).await;
    let client = client(Limits::default());
    for _ in 0..20 {
        client.call(&call(&receiver.url())).await.expect("200");
    }
    assert_eq!(receiver.connections(), 1);
}

#[tokio::test]
async fn every_answer_has_its_meaning() {
    let after = |text: &str| format!("Retry-After: {text}");
    let second = Duration::from_secs(1);
    let in_a_minute = httpdate::fmt_http_date(SystemTime::now() + 60 * second);
    let retry = Failure::Retry;
    let cases = [
        (Behaviour::status("500 Oops"), retry),
        (Behaviour::status("404 Not Found"), retry),
        (Behaviour::status("400 Bad Request"), retry),
        (Behaviour::status("304 Not Modified"), retry),
        (
            Behaviour::with_header("302 Found", "location: http://127.0.0.1:1/"),
            retry,
        ),
        (Behaviour::status("429 Slow Down"), retry),
        (
            Behaviour::with_header("429 Slow Down", after("7")),
            Failure::RetryAfter(7 * second),
        ),
        (
            Behaviour::with_header("503 Not Now", after("7")),
            Failure::RetryAfter(7 * second),
        ),
        (
            Behaviour::with_header("503 Not Now", after("999999")),
            Failure::RetryAfter(3_600 * second),
        ),
        (Behaviour::with_header("503 Not Now", after("soon")), retry),
        (Behaviour::with_header("500 Oops", after("7")), retry),
        (Behaviour::status("410 Gone"), Failure::Permanent),
        (Behaviour::Reset, Failure::Unknown),
    ];
    let client = client(Limits::default());
    let receiver = Receiver::start(Behaviour::Never).await;
    for (behaviour, failure) in cases {
        receiver.behave(behaviour.clone());
        let error = client
            .call(&call(&receiver.url()))
            .await
            .expect_err("no 2xx");
        assert_eq!(error.failure(), failure, "{behaviour:?}: {error}");
    }

    receiver.behave(Behaviour::with_header("503 Not Now", after(&in_a_minute)));
    let error = client.call(&call(&receiver.url())).await.expect_err("503");
    let Failure::RetryAfter(wait) = error.failure() else {
        panic!("{error:?}");
    };
    assert!(wait > 30 * second && wait <= 60 * second, "{wait:?}");
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Receiver::start(Behaviour::status("200 OK")).await;
    for status in [
        "301 Moved",
        "302 Found",
        "303 See Other",
        "307 Temporary",
        "308 Permanent",
    ] {
        let location = format!("location: {}", elsewhere.url());
        let receiver = Receiver::start(Behaviour::with_header(status, location)).await;
        let error = client(Limits::default()).call(&call(&receiver.url())).await;
        assert_eq!(error.expect_err("no 2xx").kind(), "redirect");
    }
    assert_eq!(elsewhere.connections(), 0);
}

#[tokio::test]
async fn what_a_receiver_says_about_its_failure_is_kept_and_bounded() {
    let receiver = Receiver::start(Behaviour::Answer("500 Oops", String::new(), 60_000)).await;
    let error = client(Limits::default())
        .call(&call(&receiver.url()))
        .await
        .expect_err("500");
    let said = error.to_string();
    assert!(said.starts_with("the receiver answered 500: xxx"), "{said}");
    assert!(said.len() < 400, "{}", said.len());
}

#[tokio::test]
async fn a_body_without_end_is_cut() {
    let client = client(limits(|limits| limits.timeout = limits.max_timeout));
    for (head, delivered) in [("200 OK", true), ("500 Oops", false)] {
        let receiver = Receiver::start(Behaviour::Endless(head)).await;
        let start = Instant::now();
        let result = client.call(&call(&receiver.url())).await;
        assert_eq!(result.is_ok(), delivered, "{result:?}");
        assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
    }
}

/// Every call may hold a head, so heads are bounded.
#[tokio::test]
async fn an_answer_whose_head_is_too_large_is_not_read_to_its_end() {
    let client = client(limits(|_| ()));
    let usual = format!("x-trace: {}", "a".repeat(8 << 10));
    let receiver = Receiver::start(Behaviour::with_header("200 OK", usual)).await;
    client.call(&call(&receiver.url())).await.expect("a head");
    let large = format!("x-trace: {}", "a".repeat(100 << 10));
    let receiver = Receiver::start(Behaviour::with_header("200 OK", large)).await;
    let error = client.call(&call(&receiver.url())).await;
    assert!(matches!(error, Err(CallError::Broken(_))), "{error:?}");
}

#[tokio::test]
async fn who_does_not_answer_in_time_has_failed() {
    let brief = Duration::from_millis(100);
    let client = client(limits(|limits| limits.timeout = brief));
    for behaviour in [
        Behaviour::Never,
        Behaviour::Trickle,
        Behaviour::Slow(PATIENCE),
    ] {
        let receiver = Receiver::start(behaviour.clone()).await;
        let start = Instant::now();
        let error = client
            .call(&call(&receiver.url()))
            .await
            .expect_err("no answer");
        assert_eq!(error, CallError::TimedOut(brief), "{behaviour:?}");
        assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
    }
}

#[tokio::test]
async fn a_message_can_ask_for_less_time_but_not_for_any() {
    let receiver = Receiver::start(Behaviour::Never).await;
    let url = receiver.url();
    let brief = Duration::from_millis(50);
    let client = client(limits(|limits| limits.max_timeout = 2 * brief));
    for (asked, granted) in [(brief, brief), (PATIENCE, 2 * brief)] {
        let mut message = call(&url);
        message.timeout = Some(asked);
        let error = client.call(&message).await.expect_err("no answer");
        assert_eq!(error, CallError::TimedOut(granted));
    }
}

#[tokio::test]
async fn nobody_there_is_a_failure_that_says_so() {
    let (_bound, url) = silent();
    let error = client(Limits::default())
        .call(&call(&url))
        .await
        .expect_err("nobody");
    assert!(matches!(error, CallError::Connect(_)), "{error:?}");
    assert_eq!(error.failure(), Failure::Retry);
}

#[tokio::test]
async fn a_header_that_the_server_sets_cannot_be_overridden() {
    let receiver = Receiver::start(Behaviour::status("200 OK")).await;
    let url = receiver.url();
    let headers = [("Host".to_owned(), "other.example".to_owned())];
    let mut message = call(&url);
    message.headers = &headers;
    let error = client(Limits::default())
        .call(&message)
        .await
        .expect_err("refused");
    assert_eq!(error.failure(), Failure::Permanent);
    assert_eq!(receiver.connections(), 0);
}
