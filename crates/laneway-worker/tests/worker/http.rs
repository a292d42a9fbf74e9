//! With the client for callbacks.

use std::sync::Arc;
use std::time::SystemTime;

use laneway_cluster::record::Instance;
use laneway_delay::callback::{Allow, Client, Guard, Limits, Secret, signature};
use laneway_delay::{Sinks, Timestamp};
use laneway_rpc::proto;
use laneway_worker::{Options, Worker};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::rig::{Center, PATIENCE, go_to, was_delivered};

/// Takes one request and says yes: its head and its body.
async fn receive(listener: TcpListener) -> (String, Vec<u8>) {
    let (mut stream, _) = listener.accept().await.expect("a connection");
    let mut read = Vec::new();
    loop {
        let end = read.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        if let Some(end) = end
            && read.ends_with(b"{\"cart\":17}")
        {
            let answer = b"HTTP/1.1 204 No Content\r\n\r\n";
            stream.write_all(answer).await.expect("it listens");
            let head = String::from_utf8_lossy(&read[..end]).into_owned();
            return (head, read[end + 4..].to_vec());
        }
        let count = stream.read_buf(&mut read).await.expect("bytes");
        assert!(count > 0, "the client hung up");
    }
}

#[tokio::test]
async fn a_receiver_sees_the_message_and_attempt_of_the_log() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = listener.local_addr().expect("bound");
    let receiving = tokio::spawn(receive(listener));

    let secret: Secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
        .parse()
        .expect("a secret");
    let guard = Guard::new(Allow::loopback());
    let client = Client::new(guard, Limits::default(), vec![secret.clone()]).expect("a client");
    let sinks = Sinks {
        callbacks: Some(Arc::new(client)),
        ..Sinks::default()
    };
    let mut options = Options::new("test", Instance([9; 16]), "worker-1", sinks);
    // However busy the machine is.
    options.start_within = PATIENCE;
    let worker = Worker::start(options).expect("it starts");
    let mut center = Center::connect(&worker, "test");

    let due = Timestamp::from(SystemTime::now()).as_millis() + 20;
    let callback = proto::Callback {
        url: format!("http://{address}/hook"),
        method: "PUT".to_owned(),
        headers: vec![proto::Header {
            name: "x-cart".to_owned(),
            value: "17".to_owned(),
        }],
        ..proto::Callback::default()
    };
    let mut go = go_to("order-4711", proto::content::Target::Callback(callback));
    go.attempt = 3;
    go.failures = 2;
    go.due_ms = due - 60_000;
    go.not_before_ms = due;
    if let Some(content) = &mut go.content {
        content.payload = "{\"cart\":17}".into();
        content.content_type = Some("application/json".to_owned());
    }
    center.go(go);
    let outcome = center.outcome().await;
    assert!(was_delivered(&outcome), "{outcome:?}");
    assert_eq!((outcome.id.as_str(), outcome.attempt), ("order-4711", 3));
    center.log(&outcome);

    let received = timeout(PATIENCE, receiving).await.expect("in time");
    let (head, body) = received.expect("a request");
    assert!(Timestamp::from(SystemTime::now()).as_millis() >= due);
    assert!(head.starts_with("PUT /hook "), "{head}");
    let header = |name: &str| {
        let lines = head.lines().filter_map(|line| line.split_once(": "));
        let mut found = lines.filter(|(header, _)| header.eq_ignore_ascii_case(name));
        found
            .next()
            .map(|(_, value)| value.to_owned())
            .expect("a header")
    };
    assert_eq!(header("laneway-id"), "order-4711");
    assert_eq!(header("webhook-id"), "order-4711");
    assert_eq!(header("laneway-attempt"), "3");
    assert_eq!(header("laneway-topic"), "reminders");
    assert_eq!(header("laneway-due"), (due - 60_000).to_string());
    assert_eq!(header("content-type"), "application/json");
    assert_eq!(header("x-cart"), "17");
    let timestamp = header("webhook-timestamp").parse().expect("seconds");
    let signed = header("webhook-signature");
    assert!(signature::verify(
        &[secret],
        "order-4711",
        timestamp,
        &body,
        &signed
    ));
    assert!(worker.drain(PATIENCE).await.is_clean());
}
