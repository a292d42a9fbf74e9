//! NATS is up: a message goes round, and `JetStream` is on.

mod wire;

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;

/// Greets the server, and returns with the greeting done on both sides.
fn greet(address: &str) -> BufReader<TcpStream> {
    let mut nats = wire::connect(address);
    assert!(
        line(&mut nats).starts_with("INFO "),
        "a NATS server introduces itself"
    );
    wire::send(&mut nats, b"CONNECT {\"verbose\":false}\r\nPING\r\n");
    assert_eq!(line(&mut nats), "PONG");
    nats
}

fn line(nats: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    nats.read_line(&mut line).expect("NATS answers");
    line.trim_end().to_owned()
}

/// The payload of the next message.
fn message(nats: &mut BufReader<TcpStream>) -> String {
    let head = line(nats);
    assert!(head.starts_with("MSG "), "{head}");
    let length = head
        .rsplit(' ')
        .next()
        .and_then(|length| length.parse().ok());
    let mut payload = vec![0; length.expect("the length comes last")];
    nats.read_exact(&mut payload).expect("the payload follows");
    assert_eq!(line(nats), "", "the payload ends its line");
    String::from_utf8(payload).expect("text")
}

#[test]
fn a_message_goes_round() {
    let mut nats = greet(&needs::service!("nats"));
    let subject = format!("laneway.smoke.{}", std::process::id());
    let round = format!("SUB {subject} 1\r\nPUB {subject} 5\r\nround\r\n");
    wire::send(&mut nats, round.as_bytes());
    assert_eq!(message(&mut nats), "round");
}

#[test]
fn jetstream_is_on() {
    let mut nats = greet(&needs::service!("nats"));
    let inbox = format!("_INBOX.laneway.smoke.{}", std::process::id());
    let ask = format!("SUB {inbox} 1\r\nPUB $JS.API.INFO {inbox} 0\r\n\r\n");
    wire::send(&mut nats, ask.as_bytes());
    let answer = message(&mut nats);
    assert!(answer.contains("account_info_response"), "{answer}");
    assert!(!answer.contains("\"error\""), "{answer}");
}
