//! Publishes in bytes what no client library would.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Result, ensure};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Headers that are none, and some that are.
const HEADERS: [&[u8]; 7] = [
    b"NATS/1.0\r\nX-Name: M\xfcller\r\n\r\n",
    b"NATS/1.0\r\nno colon here\r\n\r\n",
    b"NATS/1.0\r\ntwo words: x\r\n\r\n",
    b"NATS/1.0\r\nX-Name: a\rb\r\n\r\n",
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0\r\nX-Aggregate-ID: \r\n:\r\n\r\n",
    b"NATS/1.0\r\nLaneway-Headers: ?\r\nLaneway-Key: ?\r\n\r\n",
];

/// Publishes each of them to some partition; answers how many there are.
pub(super) fn publish(port: u16, topic: &str, partitions: u32, seed: u64) -> Result<u64> {
    let mut dice = StdRng::seed_from_u64(seed);
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream.write_all(b"CONNECT {\"verbose\":false,\"headers\":true}\r\nSUB stranger 1\r\n")?;
    for headers in HEADERS {
        let partition = dice.random_range(0..partitions);
        let body = vec![b'?'; dice.random_range(0..64)];
        let total = headers.len() + body.len();
        let length = headers.len();
        let subject = format!("laneway.{topic}.{partitions}.{partition}");
        write!(stream, "HPUB {subject} stranger {length} {total}\r\n")?;
        stream.write_all(headers)?;
        stream.write_all(&body)?;
        stream.write_all(b"\r\n")?;
    }
    let mut stored = 0;
    for line in BufReader::new(stream).lines() {
        let line = line?;
        ensure!(!line.starts_with("-ERR"), "the server says {line}");
        stored += u64::from(line.contains("\"seq\""));
        if stored == HEADERS.len() as u64 {
            break;
        }
    }
    Ok(stored)
}
