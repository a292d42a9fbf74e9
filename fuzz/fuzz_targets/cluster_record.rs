//! Any bytes: decoding a record of the cluster's log never panics, what it accepts is written and read back the same, and
//! applying it never panics. The check of a record is made to fit, or nothing behind it would ever be reached.
#![no_main]

use bytes::Bytes;
use laneway_cluster::apply::{Identity, Memory, Shard};
use laneway_cluster::record::Record;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = Record::decode(&Bytes::copy_from_slice(data));
    let mut sealed = data.to_vec();
    let check = blake3::hash(data);
    sealed.extend_from_slice(&check.as_bytes()[..8]);
    let sealed = Bytes::from(sealed);
    if let Ok(record) = Record::decode(&sealed) {
        assert_eq!(Record::decode(&record.encode()), Ok(record));
    }
    let identity = Identity {
        cluster: "c".to_owned(),
        topic: "t".to_owned(),
        shard: 0,
        shards: 1,
    };
    let mut shard = Shard::new(identity, Memory::default());
    let _ = shard.begin_at(0, &sealed);
    let _ = shard.apply(1, &sealed);
});
