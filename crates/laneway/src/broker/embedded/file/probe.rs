//! Everything that reads bytes from the disk, for the fuzz targets and the property tests: whatever
//! the bytes are, nothing panics, and what was accepted is written and read back the same.

use super::catalog::{self, Key};
use super::journals::Marks;
use super::row::{self, Row};

const IDENTITY: u64 = 7;

/// Feeds bytes to every reader. Checksums keep most bytes from getting far, so they are also put
/// behind good ones.
#[cfg_attr(test, expect(unreachable_pub, reason = "reached by the fuzz targets"))]
pub fn probe(bytes: &[u8]) {
    probe_row(bytes);
    probe_row(&with_checksum(bytes));
    probe_catalog(bytes);
    laneway_disk::journals::read(bytes, &Marks { identity: IDENTITY });
}

fn probe_row(bytes: &[u8]) {
    if let Ok(row) = Row::decode(bytes, IDENTITY) {
        let records = row.records(0);
        // A row may claim any number of records; the first that is not there ends it.
        assert!(records.count() <= bytes.len() + 1);
    }
}

/// A row of these bytes, with the right length and checksum.
fn with_checksum(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let mut row = row::MAGIC.to_vec();
    row.extend_from_slice(&[0; 4]);
    row.extend_from_slice(&length.to_le_bytes());
    row.extend_from_slice(bytes);
    let checksum = row::checksum(IDENTITY, &row[8..]);
    row[4..8].copy_from_slice(&checksum.to_le_bytes());
    row
}

fn probe_catalog(bytes: &[u8]) {
    if let Ok(key) = Key::decode(bytes) {
        assert_eq!(key.encode(), bytes);
    }
    if let Ok(numbers) = catalog::read_numbers::<2>(bytes) {
        let again = catalog::read_numbers(&catalog::numbers(numbers));
        assert_eq!(again, Ok(numbers));
    }
    let _ = catalog::unsealed(b"key", bytes, IDENTITY);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_can_be_read(bytes: Vec<u8>) {
            probe(&bytes);
        }

        /// Bytes that are more often what a reader expects: small numbers, tags, magic words.
        #[test]
        fn likely_bytes_can_be_read(parts in prop::collection::vec(
            prop_oneof![
                4 => (0..6_u8).prop_map(|byte| vec![byte]),
                2 => any::<u8>().prop_map(|byte| vec![byte]),
                1 => Just(vec![0; 7]),
                1 => Just(b"FJL\x03\x01".to_vec()),
                1 => Just(row::MAGIC.to_vec()),
                1 => "[cntasp]".prop_map(String::into_bytes),
            ],
            0..80,
        )) {
            probe(&parts.concat());
        }
    }
}
