use anyhow::{Context, bail, ensure};

use super::{Connection, Endpoint};
use crate::services::deadline::Deadline;

/// The kinds of request used here, each in a version from before the compact encodings, which every
/// broker of the last years and of the next still takes.
const API_VERSIONS: (i16, i16) = (18, 0);
const METADATA: (i16, i16) = (3, 4);

/// The broker must say which requests it takes, and know as many brokers as there are to be. It does
/// not say its version.
pub(super) fn probe(
    address: &str,
    brokers: usize,
    deadline: Deadline,
) -> anyhow::Result<Option<String>> {
    let endpoint = Endpoint::parse(address, 9092)?;
    let mut connection = Connection::open(&endpoint, deadline)?;

    let answer = call(&mut connection, API_VERSIONS, &[])?;
    let mut reader = Reader(&answer);
    let error = reader.i16().context("ApiVersions")?;
    ensure!(error == 0, "ApiVersions answered error {error}");

    // No topics, and none to be created.
    let answer = call(&mut connection, METADATA, &[0, 0, 0, 0, 0])?;
    let known = brokers_in(&answer).context("Metadata")?;
    ensure!(known >= brokers, "{known} of {brokers} brokers have joined");
    Ok(None)
}

fn call(
    connection: &mut Connection,
    (kind, version): (i16, i16),
    body: &[u8],
) -> anyhow::Result<Vec<u8>> {
    const CORRELATION: i32 = 7;
    const CLIENT: &str = "laneway";
    let mut request = Vec::new();
    request.extend(kind.to_be_bytes());
    request.extend(version.to_be_bytes());
    request.extend(CORRELATION.to_be_bytes());
    request.extend(u16::try_from(CLIENT.len())?.to_be_bytes());
    request.extend(CLIENT.as_bytes());
    request.extend(body);
    let mut frame = u32::try_from(request.len())?.to_be_bytes().to_vec();
    frame.extend(request);
    connection.send(&frame)?;

    let length = u32::from_be_bytes(connection.bytes()?);
    let answer = connection.exactly(usize::try_from(length)?)?;
    let mut reader = Reader(&answer);
    ensure!(reader.i32()? == CORRELATION, "this is not a Kafka broker");
    Ok(reader.0.to_vec())
}

/// How many brokers an answer to Metadata names, once one of them is the controller.
fn brokers_in(answer: &[u8]) -> anyhow::Result<usize> {
    let mut reader = Reader(answer);
    let _throttled = reader.i32()?;
    let count = reader.i32()?;
    for _ in 0..count {
        let _id = reader.i32()?;
        let _host = reader.text()?;
        let _port = reader.i32()?;
        let _rack = reader.text()?;
    }
    let _cluster = reader.text()?;
    ensure!(reader.i32()? >= 0, "no controller is elected");
    Ok(usize::try_from(count).unwrap_or(0))
}

/// What is left to read of an answer.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn i16(&mut self) -> anyhow::Result<i16> {
        self.take().map(i16::from_be_bytes)
    }

    fn i32(&mut self) -> anyhow::Result<i32> {
        self.take().map(i32::from_be_bytes)
    }

    fn take<const N: usize>(&mut self) -> anyhow::Result<[u8; N]> {
        let (taken, rest) = self
            .0
            .split_first_chunk()
            .context("the answer is too short")?;
        self.0 = rest;
        Ok(*taken)
    }

    /// A string with its length before it, -1 for none.
    fn text(&mut self) -> anyhow::Result<&[u8]> {
        let length = usize::try_from(self.i16()?).unwrap_or(0);
        let Some((text, rest)) = self.0.split_at_checked(length) else {
            bail!("the answer is too short");
        };
        self.0 = rest;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(brokers: i32, controller: i32) -> Vec<u8> {
        let mut answer = vec![0; 4];
        answer.extend(brokers.to_be_bytes());
        for id in 1..=brokers {
            answer.extend(id.to_be_bytes());
            answer.extend([0, 4]);
            answer.extend(b"host");
            answer.extend(9092_i32.to_be_bytes());
            answer.extend((-1_i16).to_be_bytes());
        }
        answer.extend([0, 2]);
        answer.extend(b"id");
        answer.extend(controller.to_be_bytes());
        answer
    }

    #[test]
    fn brokers_are_counted() {
        assert_eq!(brokers_in(&metadata(3, 1)).unwrap(), 3);
    }

    #[test]
    fn without_a_controller_nothing_is_healthy() {
        assert!(brokers_in(&metadata(3, -1)).is_err());
    }

    #[test]
    fn a_torn_answer_is_an_error() {
        let whole = metadata(2, 1);
        for length in 0..whole.len() {
            assert!(brokers_in(&whole[..length]).is_err(), "{length} bytes");
        }
    }
}
