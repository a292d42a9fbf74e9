//! Kafka is up: it says what it can do, and which brokers there are.

mod wire;

use std::io::{BufReader, Read};
use std::net::TcpStream;

const METADATA: i16 = 3;
const API_VERSIONS: i16 = 18;
const CORRELATION: i32 = 7;

/// Sends one request, and returns the body of its answer.
fn ask(kafka: &mut BufReader<TcpStream>, api: i16, version: i16, body: &[u8]) -> Fields {
    let mut request = Vec::new();
    request.extend(api.to_be_bytes());
    request.extend(version.to_be_bytes());
    request.extend(CORRELATION.to_be_bytes());
    request.extend((-1_i16).to_be_bytes()); // no client id
    request.extend(body);
    let length = i32::try_from(request.len()).expect("a short request");
    wire::send(kafka, &[&length.to_be_bytes(), request.as_slice()].concat());

    let mut length = [0; 4];
    kafka.read_exact(&mut length).expect("Kafka answers");
    let length = usize::try_from(i32::from_be_bytes(length)).expect("a length");
    let mut answer = vec![0; length];
    kafka
        .read_exact(&mut answer)
        .expect("the answer follows its length");
    let mut fields = Fields(answer.into_iter());
    assert_eq!(fields.int32(), CORRELATION);
    fields
}

/// What is left of an answer, field by field.
struct Fields(std::vec::IntoIter<u8>);

impl Fields {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.0.next().expect("the answer is long enough"))
    }

    fn int16(&mut self) -> i16 {
        i16::from_be_bytes(self.bytes())
    }

    fn int32(&mut self) -> i32 {
        i32::from_be_bytes(self.bytes())
    }

    /// A string; empty where it is null.
    fn string(&mut self) -> String {
        let length = usize::try_from(self.int16()).unwrap_or(0);
        let bytes = self.0.by_ref().take(length).collect();
        String::from_utf8(bytes).expect("a name")
    }
}

#[test]
fn it_says_which_requests_it_takes() {
    let mut kafka = wire::connect(&needs::service!("kafka"));
    let mut answer = ask(&mut kafka, API_VERSIONS, 0, &[]);
    assert_eq!(answer.int16(), 0, "no error");
    let apis: Vec<i16> = (0..answer.int32())
        .map(|_| {
            let [api, _min, _max] = std::array::from_fn(|_| answer.int16());
            api
        })
        .collect();
    assert!(
        apis.contains(&METADATA) && apis.contains(&API_VERSIONS),
        "{apis:?}"
    );
}

#[test]
fn it_names_its_brokers() {
    let mut kafka = wire::connect(&needs::service!("kafka"));
    let no_topics = 0_i32.to_be_bytes();
    let mut answer = ask(&mut kafka, METADATA, 1, &no_topics);
    let brokers = answer.int32();
    assert!(brokers >= 1, "{brokers} brokers");
    for _ in 0..brokers {
        let _node = answer.int32();
        let host = answer.string();
        let port = answer.int32();
        let _rack = answer.string();
        // Clients follow these: an address that leads nowhere would fail every test after this one.
        wire::connect(&format!("{host}:{port}"));
    }
}
