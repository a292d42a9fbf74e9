//! Any bytes: decoding never panics, and what it accepts can be used, written and read back the same.
#![no_main]

use laneway::settle::{Position, Tracker};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(position) = Position::decode(data) else {
        return;
    };
    let again = Position::decode(&position.encode()).expect("what we write, we read");
    assert_eq!(again, position);
    assert!(!position.is_behind(&again));
    for range in position.done_above() {
        assert!(position.is_done(*range.start()) && position.is_done(*range.end()));
    }
    let _ = Tracker::resume(position).position();
});
