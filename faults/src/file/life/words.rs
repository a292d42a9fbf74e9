//! What the one that breaks and the one that lives tell each other: a line of JSON each.

use serde::{Deserialize, Serialize};

/// An event: its key, its number, and how large it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Item {
    pub(super) key: String,
    pub(super) seq: u64,
    pub(super) size: usize,
}

/// What retention leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Keep {
    All,
    /// Milliseconds.
    Age(u64),
    Bytes(u64),
    Count(u64),
}

/// What a topic is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Nature {
    pub(super) partitions: u32,
    pub(super) is_plain: bool,
    /// Whether a key that fails is parked; else its event becomes a dead letter.
    pub(super) parks: bool,
    pub(super) keep: Keep,
}

/// What the one that lives is asked to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Wish {
    Declare(String, Nature),
    Publish {
        topic: String,
        is_plain: bool,
        items: Vec<Item>,
        is_batch: bool,
    },
    /// Handles what there is, for so long at most. Of so many keys one fails; 0: none does.
    Handle {
        topic: String,
        nature: Nature,
        one_fails_in: u64,
        millis: u64,
    },
    /// Releases all keys, and replays all dead letters, or drops every other one of those.
    Letters {
        topic: String,
        drops: bool,
    },
    /// Writes so many bytes of positions.
    Positions {
        topic: String,
        bytes: u64,
    },
    Delete(String),
    /// Begins to delete, and gives up.
    HalfDelete(String),
    /// Leaves no free descriptor for so many milliseconds.
    Starve(u64),
    Idle(u64),
    Check,
    Reopen,
    Close,
}

/// What the one that lives says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Word {
    /// The bus is open.
    Opened,
    /// It does not open, and why.
    Refused(String),
    Acked {
        topic: String,
        seq: u64,
        at: (u32, u64),
        time: u64,
    },
    /// A handler runs; it is done, if `is_done`.
    Ran {
        topic: String,
        seq: u64,
        is_done: bool,
        time: u64,
    },
    /// The wish of this number is done.
    Done(u64),
    Failed(u64, String),
    Found(u64, Found),
}

/// All that is there.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Found {
    pub(super) topics: Vec<FoundTopic>,
}

/// From one offset to another one, which is not among them.
pub(super) type Ranges = Vec<(u64, u64)>;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct FoundTopic {
    pub(super) name: String,
    /// Partition, offset and number of all events.
    pub(super) events: Vec<(u32, u64, u64)>,
    /// What is settled: the partition, the first offset that is not, and ranges above it.
    pub(super) settled: Vec<(u32, u64, Ranges)>,
    /// Where events were that are put aside.
    pub(super) aside: Vec<(u64, u64)>,
}
