//! What a handler gets.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::envelope::Envelope;
use crate::headers::Headers;
use crate::record::Record;
use crate::topic::TopicName;
use crate::trace::TraceParent;

/// Where a delivery comes from, and how it is being handled.
#[derive(Clone, Debug)]
pub struct Context {
    pub(super) topic: TopicName,
    pub(super) partition: u32,
    pub(super) offset: u64,
    pub(super) epoch: u64,
    pub(super) attempt: u32,
    pub(super) deadline: Option<Instant>,
    pub(super) trace: Option<TraceParent>,
    pub(super) record: Arc<Record>,
}

impl Context {
    /// The topic.
    #[must_use]
    pub fn topic(&self) -> &TopicName {
        &self.topic
    }

    /// The partition of the topic.
    #[must_use]
    pub fn partition(&self) -> u32 {
        self.partition
    }

    /// The place in the partition.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Counts the owners of the partition. A handler that writes to a database can refuse writes of
    /// an earlier owner by it.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Which attempt this is, counted from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// When the attempt will be cancelled.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// How long until then.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        self.deadline
            .map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// The headers it was published with.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        &self.record.headers
    }

    /// The record as it is in the broker: its bytes, key and headers, and the time at which it was published.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The publisher's trace context, if it sent one.
    #[must_use]
    pub fn trace(&self) -> Option<&TraceParent> {
        self.trace.as_ref()
    }
}

/// A domain event, as its handler gets it: the [`Envelope`], and where it comes from. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Event {
    pub(super) envelope: Arc<Envelope>,
    pub(super) context: Context,
}

impl Event {
    /// Where it comes from, and how it is being handled.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The envelope.
    #[must_use]
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }
}

impl Deref for Event {
    type Target = Envelope;

    fn deref(&self) -> &Envelope {
        &self.envelope
    }
}

/// A plain message, as its handler gets it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Message {
    pub(super) context: Context,
}

impl Message {
    /// The bytes that were published.
    #[must_use]
    pub fn payload(&self) -> &Bytes {
        &self.context.record.payload
    }

    /// The headers that were published.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        self.context.headers()
    }

    /// Where it comes from, and how it is being handled.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }
}

/// A plain message to be published: bytes, and perhaps headers.
///
/// ```
/// use laneway::Outgoing;
///
/// let message = Outgoing::new("hello").header("lang", "en")?;
/// # Ok::<(), laneway::headers::HeaderError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Outgoing {
    pub(super) payload: Bytes,
    pub(super) headers: Headers,
}

impl Outgoing {
    /// A message of these bytes.
    pub fn new(payload: impl Into<Bytes>) -> Self {
        Self {
            payload: payload.into(),
            headers: Headers::new(),
        }
    }

    /// With a header more.
    ///
    /// # Errors
    /// When the header cannot travel.
    pub fn header(
        mut self,
        name: &str,
        value: impl Into<Bytes>,
    ) -> Result<Self, crate::headers::HeaderError> {
        self.headers.insert(name, value)?;
        Ok(self)
    }
}

impl<B: Into<Bytes>> From<B> for Outgoing {
    fn from(payload: B) -> Self {
        Self::new(payload)
    }
}
