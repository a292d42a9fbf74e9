use std::time::Duration;

use bytes::Bytes;
use laneway_delay::{MessageId, Timestamp};

use super::{Reply, Ticket};
use crate::record::{Instance, Reign};

/// The times of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// How long before it is due an attempt may be begun: the worker waits for the moment.
    pub begin_ahead: Duration,
    /// How long ended messages, keys and answers are kept. What waits in the intake for more than half of it is not accepted.
    pub keep: Duration,
    /// How many records must be behind the last change of what is forgotten.
    pub keep_offsets: u64,
    /// How many facts may be under way.
    pub in_flight: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            begin_ahead: Duration::from_millis(50),
            keep: Duration::from_hours(24),
            keep_offsets: 1_000,
            in_flight: 8,
        }
    }
}

/// What the shell around an owner has to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Decision {
    /// Append these bytes to the log, behind all that were appended before. Of an append without an answer
    /// [`ShardOwner::append_unknown`](super::ShardOwner::append_unknown) has to hear.
    Append(Bytes),
    /// Give an attempt to a worker, with the payload.
    Go(Go),
    /// Answer a caller.
    Reply {
        /// The ticket of the caller that waits.
        ticket: Ticket,
        /// The answer to it.
        reply: Reply,
    },
    /// A record of the intake is dealt with: its position may be committed.
    IntakeDone {
        /// Its offset there.
        offset: u64,
    },
    /// A record of the intake has to become a dead letter, and is dealt with when that is durable.
    IntakeDead {
        /// Its offset there.
        offset: u64,
    },
    /// A worker may forget the outcome of an attempt.
    Logged {
        /// The worker that reported it.
        worker: Instance,
        /// Of which message.
        id: MessageId,
        /// The number of the attempt, from 1.
        attempt: u32,
    },
    /// Everything before this offset of the log may be removed.
    Trim {
        /// The offset of the `open`.
        before: u64,
    },
    /// A record was written on another basis: its writer is wrong, or this view is. [`Shard::verify`](crate::apply::Shard::verify) this one.
    Verify,
    /// Another owner counts, or this one's announcement does not, and the assignment is still here: check the view, read to
    /// the end, announce again.
    AnnounceAgain,
}

/// An attempt that a worker may start.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Go {
    /// The worker that may start it.
    pub worker: Instance,
    /// The epoch of the owner.
    pub epoch: u64,
    /// The message to deliver.
    pub id: MessageId,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// Not before this moment.
    pub not_before: Timestamp,
}

/// What a center is to a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// It reads along.
    Following,
    /// It has appended an `Owner` and not read it back.
    Announced {
        /// The epoch that it wants.
        epoch: u64,
        /// Its reign then.
        reign: Reign,
    },
    /// It owns the shard, as far as it has read.
    Owning {
        /// Its epoch.
        epoch: u64,
        /// Its reign.
        reign: Reign,
    },
}
