//! Any bytes as a topic name and as a declaration: what is accepted is written and read back the same.
#![no_main]

use laneway::topic::{Topic, TopicName};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(name) = TopicName::new(text)
    {
        assert_eq!(TopicName::new(name.dead()), Ok(name.dead()));
        assert_eq!(name.dead().base(), name.base());
    }
    if let Ok(topic) = serde_json::from_slice::<Topic>(data) {
        let json = serde_json::to_vec(&topic).expect("a topic is JSON");
        let again: Topic = serde_json::from_slice(&json).expect("what we write, we read");
        assert_eq!(again, topic);
    }
});
