//! A record on its way through the lanes.

use std::sync::Arc;

use crate::envelope::{Carrier, Envelope};
use crate::lanes::Job;
use crate::record::{Delivered, Record};

use super::dead_letters::headers as letter_headers;
use super::partition_state::PartitionState;

/// One record of a partition, decoded.
#[derive(Clone, Debug)]
pub(super) struct Delivery {
    pub(super) record: Arc<Record>,
    pub(super) offset: u64,
    pub(super) content: Content,
    pub(super) partition: Arc<PartitionState>,
    /// What it takes of the room in the lanes.
    pub(super) bytes: usize,
}

#[derive(Clone, Debug)]
pub(super) enum Content {
    /// A domain event.
    Event(Arc<Envelope>),
    /// A record of a domain topic that is no event: it goes to the dead letters with this reason.
    Undecodable(String),
    /// It stands for an event of the same partition, at this offset, that is too large to be published
    /// again: a dead letter that was put aside by reference is replayed that way.
    Reference(u64),
    /// A request to release a parked key. It is a record of the partition, so that it is in order with the events
    /// of its key.
    Release,
    /// A plain message.
    Message,
    /// A domain record that retention took while it waited.
    Gone,
}

impl Content {
    /// What a record of a domain topic is.
    pub(super) fn of(record: &Record) -> Self {
        if let Some(reason) = record.unreadable() {
            return Self::Undecodable(reason);
        }
        if letter_headers::is_release(&record.headers) {
            return Self::Release;
        }
        if let Some(offset) = letter_headers::reference(&record.headers) {
            return Self::Reference(offset);
        }
        let carrier = Carrier {
            headers: Some(&record.headers),
            key: record.key.as_ref().map(|key| key.as_bytes()),
            subject: None,
        };
        match Envelope::decode_from(record.payload.clone(), &carrier) {
            Ok(envelope) => Self::Event(Arc::new(envelope)),
            Err(error) => Self::Undecodable(error.to_string()),
        }
    }
}

impl Delivery {
    pub(super) fn of_domain(delivered: Delivered, partition: Arc<PartitionState>) -> Self {
        let content = Content::of(&delivered.record);
        Self::new(delivered, content, partition)
    }

    /// What an event was read again for, and is not there any more: retention took it. It goes through the
    /// lane of its key like the event, so that it is done in its turn.
    pub(super) fn of_gone(key: &str, offset: u64, partition: Arc<PartitionState>) -> Self {
        let record = Arc::new(Record {
            key: Some(key.into()),
            ..Record::default()
        });
        Self::new(Delivered { offset, record }, Content::Gone, partition)
    }

    pub(super) fn of_plain(delivered: Delivered, partition: Arc<PartitionState>) -> Self {
        Self::new(delivered, Content::Message, partition)
    }

    fn new(delivered: Delivered, content: Content, partition: Arc<PartitionState>) -> Self {
        let Delivered { offset, record } = delivered;
        Self {
            bytes: record.size(),
            record,
            offset,
            content,
            partition,
        }
    }
}

impl Job for Delivery {
    fn key(&self) -> Option<&str> {
        match &self.content {
            Content::Event(envelope) => Some(envelope.aggregate_id().as_str()),
            Content::Undecodable(_) | Content::Reference(_) | Content::Release | Content::Gone => {
                self.record.key.as_deref()
            }
            Content::Message => None,
        }
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}
