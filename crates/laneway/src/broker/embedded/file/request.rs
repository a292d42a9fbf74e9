//! What the writer is asked to do.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::queue::Place;
use super::retire::Moved;
use super::row::Chunks;
use super::state::{LogState, Mark, TopicState};
use crate::broker::BrokerError;
use crate::settle::Position;
use crate::topic::{Topic, TopicName};

/// Where an answer goes.
pub(super) type Ack<T> = oneshot::Sender<Result<T, BrokerError>>;

pub(super) enum Request {
    Together(Together),
    Alone(Alone),
}

/// What is committed with whatever else there is.
pub(super) enum Together {
    Append(Append),
    Save(Save),
    Trim(Trim),
    /// All that was written before must be durable.
    Sync(Ack<()>),
}

/// Records for one log.
pub(super) struct Append {
    pub(super) log: Arc<LogState>,
    pub(super) chunks: Chunks,
    pub(super) ack: Ack<u64>,
    pub(super) place: Place,
}

/// What a group has settled; it need not be synced.
pub(super) struct Save {
    pub(super) log: Arc<LogState>,
    pub(super) group: String,
    pub(super) position: Position,
    pub(super) ack: Ack<()>,
    pub(super) place: Place,
}

/// A log begins later now; it need not be synced.
pub(super) struct Trim {
    pub(super) log: Arc<LogState>,
    pub(super) start: Mark,
    pub(super) ack: Ack<()>,
}

/// What is done after all that came before it, and before all that comes after.
pub(super) enum Alone {
    Put(Topic, Ack<()>),
    Remove(TopicName, Ack<()>),
    Move(Arc<TopicState>, Vec<Moved>, Ack<()>),
    Close(Ack<()>),
}

impl Request {
    pub(super) fn refuse(self, error: BrokerError) {
        match self {
            Self::Together(Together::Append(append)) => drop(append.ack.send(Err(error))),
            Self::Together(
                Together::Save(Save { ack, .. })
                | Together::Trim(Trim { ack, .. })
                | Together::Sync(ack),
            )
            | Self::Alone(
                Alone::Put(_, ack)
                | Alone::Remove(_, ack)
                | Alone::Move(_, _, ack)
                | Alone::Close(ack),
            ) => drop(ack.send(Err(error))),
        }
    }
}
