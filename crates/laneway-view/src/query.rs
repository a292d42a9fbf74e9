use std::sync::Arc;

use laneway_cluster::apply::Kept;
use laneway_delay::{MessageId, StateName, Timestamp};

/// Which rows a list has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListQuery {
    /// In this state. A view does not know which attempts are under way: rows in doubt are listed as scheduled, and none
    /// as firing. What was stopped is listed as withdrawn.
    pub state: StateName,
    /// Of this topic.
    pub topic: Option<String>,
    /// Due at or after this moment. Ended messages: ended at or after it.
    pub from: Option<Timestamp>,
    /// Due before this moment. Ended messages: ended before it.
    pub until: Option<Timestamp>,
    /// Behind this place: [`Page::next`] of the page before.
    pub after: Option<(Timestamp, MessageId)>,
    /// How many at most, and at least one.
    pub limit: usize,
    /// Without, the bodies of all rows are empty, and are not read.
    pub with_bodies: bool,
}

impl ListQuery {
    /// Everything in a state, a hundred at a time, with bodies.
    #[must_use]
    pub const fn new(state: StateName) -> Self {
        Self {
            state,
            topic: None,
            from: None,
            until: None,
            after: None,
            limit: 100,
            with_bodies: true,
        }
    }
}

/// Rows by their sort time: when the next attempt may begin, or when they ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The rows. A page has no more than 8 MiB of them, but for the last row.
    pub rows: Vec<(Timestamp, MessageId, Arc<Kept>)>,
    /// Behind which place the next page begins; `None` if this is the last one.
    pub next: Option<(Timestamp, MessageId)>,
}
