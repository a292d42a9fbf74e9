//! What the task of a shard hears.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use laneway_cluster::owner::{Order, Submit, Verdict};
use laneway_cluster::record::{Instance, Key, RequestDigest};
use laneway_delay::{MessageId, Timestamp};
use laneway_rpc::proto;
use tokio::sync::{mpsc, oneshot, watch};

use crate::log::LogError;

/// Where events for a shard go.
pub(crate) type Mailbox = mpsc::Sender<Event>;

/// Which partitions of the intake this center has, by its group.
pub(crate) type Assigned = watch::Receiver<BTreeMap<u32, u64>>;

/// What comes from outside.
#[derive(Debug)]
pub(crate) enum Event {
    /// A record of the intake.
    Intake {
        submit: Submit,
        done: oneshot::Sender<Result<(), IntakeError>>,
    },
    /// A command of a client.
    Command {
        id: MessageId,
        order: Order,
        key: Option<(Key, RequestDigest)>,
        reply: oneshot::Sender<proto::Reply>,
    },
    /// A client looks a message up.
    LookUp {
        id: MessageId,
        reply: oneshot::Sender<proto::Reply>,
    },
    /// A receive waits for what becomes of a submit.
    Verdict {
        id: MessageId,
        digest: RequestDigest,
        submitted: Timestamp,
        reply: oneshot::Sender<Verdict>,
    },
    /// A worker says how an attempt ended.
    Outcome {
        worker: Instance,
        outcome: proto::Outcome,
    },
    /// A worker answers what became of an attempt.
    Status {
        worker: Instance,
        status: proto::Status,
    },
    /// A worker did not take a go.
    Refused {
        worker: Instance,
        refused: proto::Refused,
    },
    /// A stream to a worker is there: what was sent over an earlier one may be lost.
    WorkerBack(Instance),
    /// A worker is dead.
    WorkerGone(Instance),
}

/// Why a record of the intake is not settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum IntakeError {
    /// Nothing was decided.
    #[error("this center does not own the shard now; the record comes again, here or elsewhere")]
    NotOwner,
    /// It must not be accepted any more.
    #[error(
        "it waited in the intake for longer than ended messages are remembered, so it may have been delivered already; \
         check that, and submit it again under another id"
    )]
    TooOld,
}

/// What comes from tasks of the shard itself.
#[derive(Debug)]
pub(super) enum Inner {
    Appended(Result<(), LogError>),
    Checked(Checked),
    Trimmed,
}

/// The log, next to the view.
#[derive(Debug)]
pub(super) struct Checked {
    /// How far the view was.
    pub(super) next: u64,
    /// The bounds of the log, and the record where the view ends.
    pub(super) found: Result<(Range<u64>, Option<Bytes>), LogError>,
}
