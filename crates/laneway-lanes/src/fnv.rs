//! FNV-1a, 32 bit: the one hash that decides where a key belongs.
//!
//! Partitions and hashed lanes must agree between processes, machines and releases, so the hash is
//! written down here and never taken from a library whose output may change.

/// The value every hash starts from.
const OFFSET_BASIS: u32 = 0x811c_9dc5;
/// The value the hash is multiplied with after every byte.
const PRIME: u32 = 0x0100_0193;

/// The FNV-1a hash of `bytes`, 32 bits wide.
#[must_use]
pub fn fnv1a_32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(OFFSET_BASIS, |hash, &byte| {
        (hash ^ u32::from(byte)).wrapping_mul(PRIME)
    })
}

#[cfg(test)]
mod tests {
    use super::fnv1a_32;

    /// From the authors' test suite (`test_fnv.c`, `fnv1a_32_vector`).
    const PUBLISHED: &[(&[u8], u32)] = &[
        (b"", 0x811c_9dc5),
        (b"a", 0xe40c_292c),
        (b"b", 0xe70c_2de5),
        (b"c", 0xe60c_2c52),
        (b"d", 0xe10c_2473),
        (b"e", 0xe00c_22e0),
        (b"f", 0xe30c_2799),
        (b"fo", 0x6222_e842),
        (b"foo", 0xa9f3_7ed7),
        (b"foob", 0x3f50_76ef),
        (b"fooba", 0x39aa_a18a),
        (b"foobar", 0xbf9c_f968),
        (b"\0", 0x050c_5d1f),
        (b"a\0", 0x2b24_d044),
        (b"chongo was here!\n", 0xd499_30d5),
    ];

    #[test]
    fn agrees_with_the_published_vectors() {
        for &(input, expected) in PUBLISHED {
            assert_eq!(fnv1a_32(input), expected, "{input:?}");
        }
    }
}
