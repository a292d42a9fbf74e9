//! Records as their bytes: whatever a producer can write, also where the client library would refuse to.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result};

const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// The number of the request, and the last version of it without tagged fields.
const PRODUCE: [i16; 2] = [0, 8];

/// A record with a header.
pub(super) struct Record<'a> {
    pub(super) value: &'a [u8],
    pub(super) header: (&'a [u8], &'a [u8]),
}

/// Appends a record to a partition, if the broker at this address leads it: the error that it answers, 0 for none.
pub(super) fn produce(
    address: &str,
    topic: &str,
    partition: i32,
    record: &Record<'_>,
) -> Result<i16> {
    let batch = batch(record)?;
    let mut request = Vec::new();
    for number in PRODUCE {
        request.extend(number.to_be_bytes());
    }
    request.extend(1_i32.to_be_bytes());
    text(&mut request, "stranger")?;
    // No transaction, all copies, ten seconds.
    request.extend((-1_i16).to_be_bytes());
    request.extend((-1_i16).to_be_bytes());
    request.extend(10_000_i32.to_be_bytes());
    request.extend(1_i32.to_be_bytes());
    text(&mut request, topic)?;
    request.extend(1_i32.to_be_bytes());
    request.extend(partition.to_be_bytes());
    request.extend(length(&batch)?.to_be_bytes());
    request.extend(batch);

    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream.write_all(&length(&request)?.to_be_bytes())?;
    stream.write_all(&request)?;
    let mut size = [0; 4];
    stream.read_exact(&mut size)?;
    let mut answer = vec![0; usize::try_from(i32::from_be_bytes(size))?];
    stream.read_exact(&mut answer)?;
    // The correlation, one topic by its name, one partition by its number, and then the error.
    let at = 4 + 4 + 2 + topic.len() + 4 + 4;
    let code = answer.get(at..at + 2).context("the answer is too short")?;
    Ok(i16::from_be_bytes([code[0], code[1]]))
}

fn length(bytes: &[u8]) -> Result<i32> {
    Ok(i32::try_from(bytes.len())?)
}

fn text(request: &mut Vec<u8>, text: &str) -> Result<()> {
    request.extend(i16::try_from(text.len())?.to_be_bytes());
    request.extend(text.as_bytes());
    Ok(())
}

/// A batch of one record, as it is in the log.
fn batch(record: &Record<'_>) -> Result<Vec<u8>> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let now = i64::try_from(now.as_millis())?;
    // What the checksum is of.
    let mut rest = Vec::new();
    rest.extend(0_i16.to_be_bytes());
    rest.extend(0_i32.to_be_bytes());
    rest.extend(now.to_be_bytes());
    rest.extend(now.to_be_bytes());
    rest.extend((-1_i64).to_be_bytes());
    rest.extend((-1_i16).to_be_bytes());
    rest.extend((-1_i32).to_be_bytes());
    rest.extend(1_i32.to_be_bytes());
    let mut body = vec![0];
    varint(&mut body, 0);
    varint(&mut body, 0);
    // Without a key.
    varint(&mut body, -1);
    bytes(&mut body, record.value)?;
    varint(&mut body, 1);
    bytes(&mut body, record.header.0)?;
    bytes(&mut body, record.header.1)?;
    varint(&mut rest, i64::from(length(&body)?));
    rest.extend(body);
    let mut batch = Vec::new();
    batch.extend(0_i64.to_be_bytes());
    batch.extend((length(&rest)? + 4 + 1 + 4).to_be_bytes());
    batch.extend((-1_i32).to_be_bytes());
    batch.push(2);
    batch.extend(crc32c(&rest).to_be_bytes());
    batch.extend(rest);
    Ok(batch)
}

fn bytes(body: &mut Vec<u8>, bytes: &[u8]) -> Result<()> {
    varint(body, i64::from(length(bytes)?));
    body.extend(bytes);
    Ok(())
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
