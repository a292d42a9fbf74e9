//! What is listed.

use laneway_delay::{Message, Query};

/// Which messages to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct List {
    /// All of it but the place where the page before this one ended.
    pub(crate) query: Query,
    /// That place, as [`Listed::next`] named it.
    pub(crate) after: Option<String>,
}

/// A page of messages, in the order in which they fire or ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) messages: Vec<Message>,
    /// Where to go on. `None`: that was all.
    pub(crate) next: Option<String>,
    /// Shards whose messages are missing.
    pub(crate) incomplete: Vec<u32>,
}
