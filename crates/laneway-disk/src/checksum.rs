//! Rows behind checksums.

use crate::varint::{self, Broken, Reader};

/// A checksum of bytes that belong to the store of this identity.
#[must_use]
pub fn checksum(identity: u64, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&identity.to_le_bytes()), bytes)
}

/// Puts a value behind its checksum, which covers its key, too.
#[must_use]
pub fn sealed(key: &[u8], value: &[u8], identity: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + value.len());
    bytes.extend_from_slice(&of_row(key, value, identity).to_le_bytes());
    bytes.extend_from_slice(value);
    bytes
}

/// The same for a value that is written in place: `put` appends it.
pub fn seal(into: &mut Vec<u8>, key: &[u8], identity: u64, put: impl FnOnce(&mut Vec<u8>)) {
    let at = into.len();
    into.extend_from_slice(&[0; 4]);
    put(into);
    let checksum = of_row(key, &into[at + 4..], identity);
    into[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
}

/// The value behind its checksum, if that matches.
#[must_use]
pub fn unsealed<'a>(key: &[u8], bytes: &'a [u8], identity: u64) -> Option<&'a [u8]> {
    let (written, value) = bytes.split_first_chunk()?;
    (of_row(key, value, identity) == u32::from_le_bytes(*written)).then_some(value)
}

fn of_row(key: &[u8], value: &[u8], identity: u64) -> u32 {
    crc32c::crc32c_append(checksum(identity, key), value)
}

/// Numbers as a value.
#[must_use]
pub fn numbers<const N: usize>(numbers: [u64; N]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in numbers {
        varint::put(&mut bytes, number);
    }
    bytes
}

/// Reads numbers that are all of a value.
///
/// # Errors
/// When there are fewer or more.
pub fn read_numbers<const N: usize>(bytes: &[u8]) -> Result<[u64; N], Broken> {
    let mut reader = Reader::new(bytes);
    let mut numbers = [0; N];
    for number in &mut numbers {
        *number = reader.number()?;
    }
    reader.finish()?;
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>) {
            let _ = read_numbers::<2>(&bytes);
            let _ = unsealed(b"key", &bytes, 7);
        }

        #[test]
        fn a_value_is_bound_to_its_key(key: Vec<u8>, value: Vec<u8>, other: Vec<u8>, identity: u64) {
            let bytes = sealed(&key, &value, identity);
            prop_assert_eq!(unsealed(&key, &bytes, identity), Some(&value[..]));
            let mut in_place = Vec::new();
            seal(&mut in_place, &key, identity, |into| into.extend_from_slice(&value));
            prop_assert_eq!(&in_place, &bytes);
            if other != key {
                prop_assert_eq!(unsealed(&other, &bytes, identity), None);
            }
        }
    }
}
