//! Records as their bytes: whatever a producer can write, also where the client library would refuse to.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A record. None is a null, which is not the same as nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct RawRecord {
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

/// The version of the request: the last one without tagged fields.
const PRODUCE: [i16; 2] = [0, 8];

/// Appends records to a partition that the broker at this address leads.
pub(crate) fn produce(address: &str, topic: &str, partition: i32, records: &[RawRecord]) {
    let batch = batch(records);
    let mut request = Vec::new();
    for number in PRODUCE {
        request.extend(number.to_be_bytes());
    }
    request.extend(1_i32.to_be_bytes());
    text(&mut request, "raw");
    // No transaction, all copies, half a minute.
    request.extend((-1_i16).to_be_bytes());
    request.extend((-1_i16).to_be_bytes());
    request.extend(30_000_i32.to_be_bytes());
    request.extend(1_i32.to_be_bytes());
    text(&mut request, topic);
    request.extend(1_i32.to_be_bytes());
    request.extend(partition.to_be_bytes());
    request.extend(length(&batch).to_be_bytes());
    request.extend(batch);

    let mut stream = TcpStream::connect(address).expect("a broker");
    let limit = Some(Duration::from_mins(1));
    stream.set_read_timeout(limit).expect("a limit");
    stream
        .write_all(&length(&request).to_be_bytes())
        .expect("sent");
    stream.write_all(&request).expect("sent");
    let mut size = [0; 4];
    stream.read_exact(&mut size).expect("an answer");
    let mut answer = vec![0; usize::try_from(i32::from_be_bytes(size)).expect("a size")];
    stream.read_exact(&mut answer).expect("an answer");
    // The correlation, one topic by its name, one partition by its number, and then the error.
    let at = 4 + 4 + 2 + topic.len() + 4 + 4;
    let code = i16::from_be_bytes([answer[at], answer[at + 1]]);
    assert_eq!(code, 0, "the error that the broker answers");
}

/// What a record takes in the log by itself, which is what the limit of a topic is about.
pub(crate) fn size(record: &RawRecord) -> usize {
    batch(std::slice::from_ref(record)).len()
}

fn length(bytes: &[u8]) -> i32 {
    i32::try_from(bytes.len()).expect("short enough")
}

fn text(request: &mut Vec<u8>, text: &str) {
    request.extend(i16::try_from(text.len()).expect("short").to_be_bytes());
    request.extend(text.as_bytes());
}

/// A batch of records, as it is in the log.
fn batch(records: &[RawRecord]) -> Vec<u8> {
    let count = i32::try_from(records.len()).expect("few");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = i64::try_from(now.expect("after 1970").as_millis()).expect("not yet");
    // What the checksum is of.
    let mut rest = Vec::new();
    rest.extend(0_i16.to_be_bytes());
    rest.extend((count - 1).to_be_bytes());
    rest.extend(now.to_be_bytes());
    rest.extend(now.to_be_bytes());
    rest.extend((-1_i64).to_be_bytes());
    rest.extend((-1_i16).to_be_bytes());
    rest.extend((-1_i32).to_be_bytes());
    rest.extend(count.to_be_bytes());
    for (number, record) in (0..).zip(records) {
        let mut body = vec![0];
        varint(&mut body, 0);
        varint(&mut body, number);
        bytes(&mut body, record.key.as_deref());
        bytes(&mut body, record.value.as_deref());
        varint(&mut body, i64::try_from(record.headers.len()).expect("few"));
        for (name, value) in &record.headers {
            bytes(&mut body, Some(name));
            bytes(&mut body, value.as_deref());
        }
        varint(&mut rest, i64::from(length(&body)));
        rest.extend(body);
    }
    let mut batch = Vec::new();
    batch.extend(0_i64.to_be_bytes());
    batch.extend((length(&rest) + 4 + 1 + 4).to_be_bytes());
    batch.extend((-1_i32).to_be_bytes());
    batch.push(2);
    batch.extend(crc32c(&rest).to_be_bytes());
    batch.extend(rest);
    batch
}

fn bytes(body: &mut Vec<u8>, bytes: Option<&[u8]>) {
    varint(body, bytes.map_or(-1, |bytes| i64::from(length(bytes))));
    body.extend(bytes.unwrap_or_default());
}

/// Small numbers of either sign are short.
fn varint(body: &mut Vec<u8>, number: i64) {
    let mut rest = ((number << 1) ^ (number >> 63)).cast_unsigned();
    while rest >= 0x80 {
        body.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    body.push((rest & 0x7f) as u8);
}

fn crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            let carry = crc & 1;
            crc >>= 1;
            if carry == 1 {
                crc ^= POLYNOMIAL;
            }
        }
    }
    !crc
}
