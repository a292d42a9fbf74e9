//! Many records in one row.
//!
//! The records of a stream in a batch are packed into rows of at most a cap, under the offset of
//! the last record in the row: the first row from a cursor on is the one that holds it. A record
//! that is larger than the cap is split over several rows of the same offset and growing part.

use super::Record;

/// Says that the row is the first part of a split record; its full length follows.
const SPLIT: u32 = u32::MAX;

/// A row to store.
pub(super) struct Row {
    pub(super) last: u64,
    pub(super) part: u16,
    pub(super) value: Vec<u8>,
}

impl Row {
    /// Offset, then part, so that rows sort as their records do.
    pub(super) fn key(&self) -> [u8; 10] {
        key(self.last, self.part)
    }
}

pub(super) fn key(last: u64, part: u16) -> [u8; 10] {
    let mut key = [0; 10];
    key[..8].copy_from_slice(&last.to_be_bytes());
    key[8..].copy_from_slice(&part.to_be_bytes());
    key
}

pub(super) fn last_of(key: &[u8]) -> Option<u64> {
    key.first_chunk().map(|last| u64::from_be_bytes(*last))
}

fn length(body: &[u8]) -> [u8; 4] {
    u32::try_from(body.len()).unwrap_or(SPLIT - 1).to_le_bytes()
}

/// The rows for the records of one stream in a batch.
pub(super) fn rows(batch: &[Record<'_>], stream: u16, cap: usize) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let mut open = false;
    for record in batch.iter().filter(|record| record.stream == stream) {
        let needed = 4 + record.body.len();
        if needed > cap {
            open = false;
            let head = [&SPLIT.to_le_bytes()[..], &length(record.body), record.body].concat();
            rows.extend(head.chunks(cap).zip(0..).map(|(part, number)| Row {
                last: record.offset,
                part: number,
                value: part.to_vec(),
            }));
            continue;
        }
        if !open || rows.last().is_none_or(|row| row.value.len() + needed > cap) {
            rows.push(Row {
                last: record.offset,
                part: 0,
                value: Vec::with_capacity(needed),
            });
            open = true;
        }
        if let Some(row) = rows.last_mut() {
            row.last = record.offset;
            row.value.extend_from_slice(&length(record.body));
            row.value.extend_from_slice(record.body);
        }
    }
    rows
}

/// Turns rows, in their order, back into records.
#[derive(Default)]
pub(super) struct Unpacker {
    /// The split record that is being put together, and its full length.
    split: Option<(Vec<u8>, usize)>,
}

impl Unpacker {
    /// Hands the records of a row to `each`, with their offsets.
    pub(super) fn row(&mut self, last: u64, mut value: &[u8], each: &mut dyn FnMut(u64, &[u8])) {
        if let Some((body, full)) = &mut self.split {
            body.extend_from_slice(value);
            if body.len() == *full {
                each(last, body);
                self.split = None;
            }
            return;
        }
        let mut bodies = Vec::new();
        while let Some((length, rest)) = value.split_first_chunk::<4>() {
            let length = u32::from_le_bytes(*length);
            if length == SPLIT {
                if let Some((full, first)) = rest.split_first_chunk::<4>() {
                    let full = u32::from_le_bytes(*full) as usize;
                    self.split = Some((first.to_vec(), full));
                }
                return;
            }
            let (body, rest) = rest.split_at(length as usize);
            bodies.push(body);
            value = rest;
        }
        let first = last + 1 - bodies.len() as u64;
        for (offset, body) in (first..).zip(bodies) {
            each(offset, body);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_give_back_their_records() {
        let bodies: Vec<_> = [5, 0, 90, 4000, 91, 92, 93, 1, 100, 101]
            .map(|length: usize| (0..=u8::MAX).cycle().take(length).collect::<Vec<_>>())
            .to_vec();
        let batch: Vec<_> = (10..)
            .zip(&bodies)
            .map(|(offset, body)| Record {
                stream: 1,
                offset,
                body,
            })
            .collect();
        for cap in [50, 100, 104, 105, 1000, usize::MAX] {
            let mut found = Vec::new();
            let mut unpacker = Unpacker::default();
            for row in rows(&batch, 1, cap) {
                assert!(row.value.len() <= cap);
                unpacker.row(row.last, &row.value, &mut |offset, body| {
                    found.push((offset, body.to_vec()));
                });
            }
            assert_eq!(
                found,
                (10..).zip(bodies.clone()).collect::<Vec<_>>(),
                "cap {cap}"
            );
        }
        assert!(rows(&batch, 2, 100).is_empty());
    }
}
