//! How records lie in the engine: rows of consecutive records of one partition.
//!
//! A row tells where it belongs and which commit wrote it, and its checksum covers all of that, so
//! a row that is damaged, or that turns up in a wrong place, is never taken for a good one. The
//! checksum starts from the identity of the store: a copy of another store's row, carried as a
//! payload, is not one of ours.
//!
//! ```text
//! "LWR" version:u8 crc32c:u32le length:u32le     the checksum covers everything after itself
//! topic partition first count commit size_before size   numbers of variable length
//! count × { length record }
//! record: key_length+1 or 0, key, timestamp, headers, { name, value }, payload
//! ```

use std::ops::Range;

use bytes::Bytes;
use smol_str::SmolStr;

pub(super) use laneway_disk::checksum;

use super::varint::{self, Broken, Reader};
use crate::headers::Headers;
use crate::record::Record;

/// What a row begins with; the last byte is the version.
pub(super) const MAGIC: [u8; 4] = *b"LWR\x01";

/// Magic, checksum, length.
const PREFIX: usize = 12;

/// A row that gets longer than this is closed: a reader decodes whole rows.
const ROW_BYTES: usize = 64 << 10;

/// The most records of a row.
const ROW_RECORDS: u32 = 512;

/// Why bytes are not a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(super) enum RowError {
    #[error("it is not a row of this version (it begins with {0:02x?})")]
    Version([u8; 4]),
    #[error("it is cut off")]
    Short,
    #[error("its checksum does not match")]
    Checksum,
    #[error("it makes no sense at byte {0}")]
    Malformed(usize),
}

impl From<Broken> for RowError {
    fn from(broken: Broken) -> Self {
        Self::Malformed(broken.at)
    }
}

/// Where a row belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) topic: u32,
    pub(super) partition: u32,
    /// The offset of its first record.
    pub(super) first: u64,
    pub(super) count: u32,
    /// The commit that wrote it.
    pub(super) commit: u64,
    /// What all records before it in the partition count for, by [`Record::size`].
    pub(super) size_before: u64,
    /// What its own records count for.
    pub(super) size: u64,
}

impl Head {
    /// The offset after its last record.
    pub(super) fn end(&self) -> u64 {
        self.first.saturating_add(u64::from(self.count))
    }
}

/// Encoded records, not yet at a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) bytes: Vec<u8>,
    pub(super) count: u32,
    /// What they count for, by [`Record::size`].
    pub(super) size: u64,
}

impl Chunk {
    /// Whether more would make too long a row.
    pub(super) fn has_room_for(&self, other: &Self) -> bool {
        self.count == 0
            || (self.bytes.len() + other.bytes.len() <= ROW_BYTES
                && self.count + other.count <= ROW_RECORDS)
    }

    pub(super) fn append(&mut self, other: &Self) {
        self.bytes.extend_from_slice(&other.bytes);
        self.count += other.count;
        self.size += other.size;
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.count = 0;
        self.size = 0;
    }

    fn push(&mut self, record: &Record, length: usize) {
        self.bytes.reserve(varint::LONGEST + length);
        varint::put(&mut self.bytes, length as u64);
        put_record(&mut self.bytes, record);
        self.count += 1;
        self.size += record.size() as u64;
    }
}

/// Encoded records, in chunks that fit into a row each. Nearly always it is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chunks {
    first: Chunk,
    rest: Vec<Chunk>,
}

impl Chunks {
    /// Encodes records.
    pub(super) fn of(records: &[Record]) -> Self {
        let mut chunks = Self::default();
        let mut last = &mut chunks.first;
        for record in records {
            let length = length_of(record);
            let is_full = last.count == ROW_RECORDS || last.bytes.len() + length > ROW_BYTES;
            if last.count > 0 && is_full {
                last = chunks.rest.push_mut(Chunk::default());
            }
            last.push(record, length);
        }
        chunks
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Chunk> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// How many bytes they are.
    pub(super) fn len(&self) -> usize {
        self.iter().map(|chunk| chunk.bytes.len()).sum()
    }
}

/// How many bytes [`put_record`] appends.
fn length_of(record: &Record) -> usize {
    let text = |bytes: &[u8]| varint::length(bytes.len() as u64) + bytes.len();
    let key = match &record.key {
        None => 1,
        Some(key) => varint::length(key.len() as u64 + 1) + key.len(),
    };
    let headers = record.headers.iter();
    let headers: usize = headers
        .map(|(name, value)| text(name.as_bytes()) + text(value))
        .sum();
    key + varint::length_signed(record.timestamp_ms)
        + varint::length(record.headers.len() as u64)
        + headers
        + text(&record.payload)
}

fn put_record(into: &mut Vec<u8>, record: &Record) {
    match &record.key {
        None => varint::put(into, 0),
        Some(key) => {
            varint::put(into, key.len() as u64 + 1);
            into.extend_from_slice(key.as_bytes());
        }
    }
    varint::put_signed(into, record.timestamp_ms);
    varint::put(into, record.headers.len() as u64);
    for (name, value) in record.headers.iter() {
        varint::put_bytes(into, name.as_bytes());
        varint::put_bytes(into, value);
    }
    varint::put_bytes(into, &record.payload);
}

/// Appends a row. `records` are those of a [`Chunk`].
pub(super) fn put(into: &mut Vec<u8>, head: &Head, records: &[u8], identity: u64) {
    let start = into.len();
    into.extend_from_slice(&MAGIC);
    into.extend_from_slice(&[0; PREFIX - MAGIC.len()]);
    varint::put(into, u64::from(head.topic));
    varint::put(into, u64::from(head.partition));
    varint::put(into, head.first);
    varint::put(into, u64::from(head.count));
    varint::put(into, head.commit);
    varint::put(into, head.size_before);
    varint::put(into, head.size);
    into.extend_from_slice(records);
    // Bounded by what one publish may carry, far below 4 GiB.
    let length = u32::try_from(into.len() - start - PREFIX).unwrap_or(u32::MAX);
    into[start + 8..start + PREFIX].copy_from_slice(&length.to_le_bytes());
    let crc = checksum(identity, &into[start + 8..]);
    into[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
}

/// A row whose checksum matches.
#[derive(Clone, Debug)]
pub(super) struct Row<'a> {
    pub(super) head: Head,
    records: Reader<'a>,
}

impl<'a> Row<'a> {
    /// Reads a row that is nothing but a row.
    pub(super) fn decode(bytes: &'a [u8], identity: u64) -> Result<Self, RowError> {
        let (row, length) = Self::decode_front(bytes, identity)?;
        if length == bytes.len() {
            Ok(row)
        } else {
            Err(RowError::Malformed(length))
        }
    }

    /// Reads a row that other bytes may follow; answers its length, too.
    pub(super) fn decode_front(bytes: &'a [u8], identity: u64) -> Result<(Self, usize), RowError> {
        let prefix = bytes.first_chunk::<PREFIX>().ok_or(RowError::Short)?;
        let [m0, m1, m2, m3, c0, c1, c2, c3, l0, l1, l2, l3] = *prefix;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(RowError::Version([m0, m1, m2, m3]));
        }
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let end = PREFIX.checked_add(length).ok_or(RowError::Short)?;
        let covered = bytes.get(8..end).ok_or(RowError::Short)?;
        if checksum(identity, covered) != u32::from_le_bytes([c0, c1, c2, c3]) {
            return Err(RowError::Checksum);
        }
        let mut reader = Reader::new(&bytes[PREFIX..end]);
        let head = Head {
            topic: reader.number_as()?,
            partition: reader.number_as()?,
            first: reader.number()?,
            count: reader.number_as()?,
            commit: reader.number()?,
            size_before: reader.number()?,
            size: reader.number()?,
        };
        let row = Self {
            head,
            records: reader,
        };
        Ok((row, end))
    }

    /// Its records from `from` on, with their offsets.
    pub(super) fn records(
        &self,
        from: u64,
    ) -> impl Iterator<Item = Result<(u64, Record), RowError>> + use<'a> {
        records(self.records.clone(), self.head.first..self.head.end(), from)
    }
}

/// The records of a row, without its head: what is kept in memory of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) first: u64,
    /// The offset after its last record.
    pub(super) end: u64,
    bytes: Box<[u8]>,
}

impl Run {
    /// Takes the records of a chunk, which begin at `first`.
    pub(super) fn take(chunk: &mut Chunk, first: u64) -> Self {
        let end = first + u64::from(chunk.count);
        let bytes = std::mem::take(&mut chunk.bytes).into();
        chunk.clear();
        Self { first, end, bytes }
    }

    /// Its records from `from` on, with their offsets.
    pub(super) fn records(
        &self,
        from: u64,
    ) -> impl Iterator<Item = Result<(u64, Record), RowError>> {
        records(Reader::new(&self.bytes), self.first..self.end, from)
    }
}

/// The records of these offsets from `from` on.
fn records(
    mut reader: Reader<'_>,
    offsets: Range<u64>,
    from: u64,
) -> impl Iterator<Item = Result<(u64, Record), RowError>> {
    let Range {
        start: mut offset,
        end,
    } = offsets;
    let mut step = move || -> Result<Option<(u64, Record)>, RowError> {
        while offset < end {
            let at = offset;
            offset += 1;
            let bytes = reader.bytes()?;
            if at >= from {
                return Ok(Some((at, record(bytes)?)));
            }
        }
        reader.finish()?;
        Ok(None)
    };
    let mut failed = false;
    std::iter::from_fn(move || {
        if failed {
            return None;
        }
        let result = step().transpose();
        failed = matches!(result, Some(Err(_)));
        result
    })
}

/// Decodes one record. Its parts share one copy of its bytes.
fn record(bytes: &[u8]) -> Result<Record, RowError> {
    let whole = Bytes::copy_from_slice(bytes);
    let mut reader = Reader::new(&whole);
    let key = match reader.number_as::<usize>()? {
        0 => None,
        length => Some(text(&mut reader, length - 1)?),
    };
    let timestamp_ms = reader.signed()?;
    let mut headers = Headers::new();
    for _ in 0..reader.number()? {
        let length = reader.number_as()?;
        let name = text(&mut reader, length)?;
        headers.push_unlimited(&name, whole.slice_ref(reader.bytes()?));
    }
    let payload = whole.slice_ref(reader.bytes()?);
    reader.finish()?;
    Ok(Record {
        key,
        headers,
        payload,
        timestamp_ms,
    })
}

fn text(reader: &mut Reader<'_>, length: usize) -> Result<SmolStr, RowError> {
    let at = reader.position();
    let bytes = reader.take(length)?;
    std::str::from_utf8(bytes)
        .map(SmolStr::new)
        .map_err(|_| RowError::Malformed(at))
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(in super::super) fn any_record() -> impl Strategy<Value = Record> {
        let headers = prop::collection::vec(("[!-9;-~]{1,12}", any::<Vec<u8>>()), 0..4);
        (
            prop::option::of(".{0,30}"),
            headers,
            any::<Vec<u8>>(),
            any::<i64>(),
        )
            .prop_map(|(key, pairs, payload, timestamp_ms)| {
                let mut headers = Headers::new();
                for (name, value) in pairs {
                    headers.append(name, value).expect("a header");
                }
                Record {
                    key: key.map(SmolStr::new),
                    headers,
                    payload: payload.into(),
                    timestamp_ms,
                }
            })
    }

    fn any_row() -> impl Strategy<Value = (Head, Vec<Record>, u64)> {
        let records = prop::collection::vec(any_record(), 1..20);
        (any::<(u32, u32, u32, u64, u64)>(), records, any::<u64>()).prop_map(
            |((topic, partition, first, commit, size_before), records, identity)| {
                let head = Head {
                    topic,
                    partition,
                    first: u64::from(first),
                    count: u32::try_from(records.len()).expect("a few"),
                    commit,
                    size_before,
                    size: commit / 2,
                };
                (head, records, identity)
            },
        )
    }

    fn encode(head: &Head, records: &[Record], identity: u64) -> Vec<u8> {
        let chunks = Chunks::of(records);
        assert!(chunks.rest.is_empty(), "small enough for one row");
        let mut bytes = Vec::new();
        put(&mut bytes, head, &chunks.first.bytes, identity);
        bytes
    }

    proptest! {
        #[test]
        fn rows_read_back((head, records, identity) in any_row(), skip in 0_u64..25) {
            let mut bytes = encode(&head, &records, identity);
            let row = Row::decode(&bytes, identity).expect("a row");
            prop_assert_eq!(row.head, head);
            let from = head.first + skip;
            let read: Vec<_> = row.records(from).collect::<Result<_, _>>().expect("records");
            let expected: Vec<_> = (head.first..)
                .zip(records.clone())
                .filter(|(offset, _)| *offset >= from)
                .collect();
            prop_assert_eq!(&read, &expected);

            let run = Run::take(&mut Chunks::of(&records).first, head.first);
            prop_assert_eq!(run.end, head.end());
            let read: Vec<_> = run.records(from).collect::<Result<_, _>>().expect("records");
            prop_assert_eq!(read, expected);

            bytes.extend_from_slice(b"whatever follows");
            let (_, length) = Row::decode_front(&bytes, identity).expect("still there");
            prop_assert_eq!(length, bytes.len() - 16);
            prop_assert!(Row::decode(&bytes, identity).is_err());
        }

        #[test]
        fn a_flipped_bit_anywhere_is_noticed(
            (head, records, identity) in any_row(),
            at: prop::sample::Index,
            bit in 0..8_u8,
        ) {
            let mut bytes = encode(&head, &records, identity);
            let at = at.index(bytes.len());
            bytes[at] ^= 1_u8 << bit;
            prop_assert!(Row::decode(&bytes, identity).is_err());
        }

        #[test]
        fn a_row_cut_anywhere_is_noticed(
            (head, records, identity) in any_row(),
            at: prop::sample::Index,
        ) {
            let bytes = encode(&head, &records, identity);
            let cut = &bytes[..at.index(bytes.len())];
            prop_assert!(Row::decode_front(cut, identity).is_err());
        }

        #[test]
        fn any_bytes_are_told_apart_from_a_row(bytes: Vec<u8>, identity: u64) {
            prop_assert!(Row::decode(&bytes, identity).is_err());
            // And past the checksum nothing panics either.
            let mut body = MAGIC.to_vec();
            let length = u32::try_from(bytes.len()).expect("short");
            body.extend_from_slice(&[0; 4]);
            body.extend_from_slice(&length.to_le_bytes());
            body.extend_from_slice(&bytes);
            let crc = checksum(identity, &body[8..]);
            body[4..8].copy_from_slice(&crc.to_le_bytes());
            if let Ok(row) = Row::decode(&body, identity) {
                let _ = row.records(0).count();
            }
        }
    }

    #[test]
    fn the_row_of_another_store_is_not_ours() {
        let records = [Record::default()];
        let head = Head {
            topic: 1,
            partition: 2,
            first: 3,
            count: 1,
            commit: 4,
            size_before: 5,
            size: 6,
        };
        let bytes = encode(&head, &records, 1);
        assert_eq!(Row::decode(&bytes, 2).err(), Some(RowError::Checksum));
    }

    #[test]
    fn many_or_long_records_go_to_several_chunks() {
        let small = vec![Record::default(); 1025];
        let counts: Vec<_> = Chunks::of(&small).iter().map(|chunk| chunk.count).collect();
        assert_eq!(counts, [512, 512, 1]);
        let long = Record {
            payload: vec![7; 40 << 10].into(),
            ..Record::default()
        };
        let chunks = Chunks::of(&[long.clone(), long.clone(), long.clone()]);
        assert_eq!(chunks.rest.len(), 2);
        assert_eq!(chunks.first.size, long.size() as u64);
        assert!(!chunks.first.has_room_for(&chunks.rest[0]));
    }
}
