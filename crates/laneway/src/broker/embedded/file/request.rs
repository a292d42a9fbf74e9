//! What the writer is asked to do.

use std::sync::Arc;

use laneway_disk::QueuePermit;
use tokio::sync::oneshot;

use super::alone;
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
    pub(super) permit: QueuePermit,
}

/// What a group has settled.
pub(super) struct Save {
    pub(super) log: Arc<LogState>,
    pub(super) group: String,
    pub(super) position: Position,
    /// Whether it must be durable before it is told.
    pub(super) is_synced: bool,
    pub(super) ack: Ack<()>,
    pub(super) permit: QueuePermit,
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
    /// Gives back the room of a topic that was removed; follows that.
    Free(Arc<TopicState>, Ack<()>),
}

impl Request {
    pub(super) fn refuse(self, error: BrokerError) {
        match self {
            Self::Together(Together::Append(append)) => drop(append.ack.send(Err(error))),
            Self::Together(Together::Save(save)) => {
                save.log.lock().not_saved(&save.group, &save.position);
                drop(save.ack.send(Err(error)));
            }
            Self::Together(Together::Trim(Trim { ack, .. }) | Together::Sync(ack))
            | Self::Alone(Alone::Put(_, ack) | Alone::Remove(_, ack) | Alone::Move(_, _, ack)) => {
                drop(ack.send(Err(error)));
            }
            Self::Alone(Alone::Free(topic, ack)) => alone::not_freed(&topic.name, &error, ack),
        }
    }
}
