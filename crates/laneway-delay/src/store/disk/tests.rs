//! What only this store has: crashes, damage, disks that fail.

use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>) {
        let _ = codec::decode(&bytes);
        let _ = codec::decode_head(&bytes);
        let _ = codec::Location::decode(&bytes);
        let _ = codec::KeyUse::decode(&bytes);
        let _ = keys::read_used_at(&bytes);
    }
}
