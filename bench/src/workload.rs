//! Keys and events that contenders are fed with, and what they do for each event.

use std::time::Duration;

/// One event: which key it belongs to, and its place among the events of that key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The number of its key in [`Workload::keys`].
    pub key: u32,
    /// 0, 1, 2, … within its key.
    pub sequence: u32,
}

/// Events in the order in which they are published.
#[derive(Debug)]
pub struct Workload {
    /// Keys as they travel: text, to be hashed for every event.
    pub keys: Vec<String>,
    /// All events.
    pub events: Vec<Event>,
}

impl Workload {
    /// The first event of every key, then the second of every key, and so on.
    #[must_use]
    pub fn interleaved(keys: u32, events_per_key: u32) -> Self {
        Self {
            keys: (0..keys).map(|key| format!("order-{key:06}")).collect(),
            events: (0..events_per_key)
                .flat_map(|sequence| (0..keys).map(move |key| Event { key, sequence }))
                .collect(),
        }
    }

    /// The key of an event, as text.
    #[must_use]
    pub fn key(&self, event: Event) -> &str {
        &self.keys[event.key as usize]
    }
}

/// What a handler does with an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Nothing: what remains is the cost of getting it there.
    Nothing,
    /// Waits, as for an answer from elsewhere.
    Wait(Duration),
}

impl Work {
    /// Does it.
    pub async fn run(self) {
        match self {
            Work::Nothing => {}
            Work::Wait(time) => tokio::time::sleep(time).await,
        }
    }
}

/// The lane of a key among a fixed number of lanes: FNV-1a, 32 bits, modulo the number of lanes.
#[must_use]
pub fn lane_of(key: &str, lanes: usize) -> usize {
    let hash = key.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    hash as usize % lanes
}

#[cfg(test)]
mod tests {
    use super::{Event, Workload, lane_of};

    #[test]
    fn the_hash_is_fnv_1a() {
        assert_eq!(lane_of("foobar", usize::MAX), 0xbf9c_f968);
        assert_eq!(lane_of("foobar", 256), 0x68);
    }

    #[test]
    fn interleaved_keys_come_round_in_order() {
        let workload = Workload::interleaved(2, 2);
        let event = |key, sequence| Event { key, sequence };
        assert_eq!(
            workload.events,
            [event(0, 0), event(1, 0), event(0, 1), event(1, 1)]
        );
        assert_eq!(workload.key(event(1, 0)), "order-000001");
    }
}
