//! Bodies that look like events, compress like events and can be checked.

use std::io::Write;

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Fills `into` with the body of the record: JSON with its stream and offset, and text from a small
/// alphabet that follows from them.
pub(crate) fn fill(into: &mut Vec<u8>, stream: u16, offset: u64, size: usize) {
    into.clear();
    let _ = write!(into, r#"{{"stream":{stream},"offset":{offset},"text":""#);
    let mut seed = u64::from(stream) << 48 ^ offset;
    while into.len() < size {
        seed = xxh3_64_with_seed(&seed.to_le_bytes(), 7);
        let _ = write!(into, "{seed:x}");
    }
    into.truncate(size);
}
