//! What can go wrong with a log, and whether something was written then.

use crate::broker::BrokerError;
use crate::broker::log::Fault;
use crate::bus;
use crate::topic::{self, TopicName};

/// Why a log could not do something. Nothing of it happened, unless it is [`Unknown`](Error::Unknown).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An append failed or took too long, after records may have been sent. Any number of them, from the first on, is
    /// in the log, or will be, or is not.
    #[error("whether the records were appended is not known: {0}")]
    Unknown(#[source] bus::Error),
    /// A record is larger than the log takes. No record of the append was written.
    #[error(
        "record {index} of an append has {size} bytes, and the log takes {most}: make it smaller"
    )]
    TooLarge {
        /// Which one of the append, from 0 on.
        index: usize,
        /// How large it is.
        size: usize,
        /// The most that the log takes.
        most: usize,
    },
    /// There is no such partition.
    #[error(
        "log {topic} has {partitions} partitions, numbered from 0 on, and no partition {partition}"
    )]
    NoPartition {
        /// The topic.
        topic: TopicName,
        /// What was asked for.
        partition: u32,
        /// How many there are.
        partitions: u32,
    },
    /// The log is not what it is taken for: it was trimmed, has lost its end, or is another one.
    #[error(transparent)]
    Fault(Fault),
    /// The bus could not do it.
    #[error(transparent)]
    Bus(bus::Error),
}

impl Error {
    /// Whether records of an append may have been written, or may be yet.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown(_))
    }

    /// What an append of so many records that the broker was given has come to.
    pub(super) fn of_append(error: bus::Error, count: usize) -> Self {
        match error {
            bus::Error::Broker(BrokerError::TooLarge { size, most }) if count == 1 => {
                Self::TooLarge {
                    index: 0,
                    size,
                    most,
                }
            }
            error => Self::Unknown(error),
        }
    }
}

impl From<bus::Error> for Error {
    fn from(error: bus::Error) -> Self {
        match error {
            bus::Error::Broker(BrokerError::Log(fault)) => Self::Fault(fault),
            error => Self::Bus(error),
        }
    }
}

impl From<BrokerError> for Error {
    fn from(error: BrokerError) -> Self {
        bus::Error::Broker(error).into()
    }
}

impl From<topic::Error> for Error {
    fn from(error: topic::Error) -> Self {
        Self::Bus(error.into())
    }
}
