//! Messages as bytes.
//!
//! ```text
//! zero:u32le print:u64le version due attempts failures state accepted id topic content_type target retry
//! metadata history payload                    numbers are varints, texts are behind their length
//! ```
//!
//! What a scan needs is before what can be long.

use bytes::Bytes;
use laneway_disk::varint::{Broken, Reader, put, put_bytes};

use crate::store::{DueKey, Route};
use crate::{
    BusTarget, Callback, DeathCause, Event, HistoryEvent, Message, MessageId, Method, Record,
    Schedule, State, StateName, Target, Timestamp, Version,
};

/// A message, and what was submitted as a number.
pub(super) fn encode(message: &Message, fingerprint: u64) -> Vec<u8> {
    let mut into = Vec::with_capacity(192 + message.payload.len());
    put_message(&mut into, message, fingerprint);
    into
}

/// The same behind a checksum, in one piece.
pub(super) fn sealed(key: &[u8], message: &Message, fingerprint: u64, identity: u64) -> Vec<u8> {
    let mut into = Vec::with_capacity(192 + message.payload.len());
    laneway_disk::seal(&mut into, key, identity, |into| {
        put_message(into, message, fingerprint);
    });
    into
}

/// A key with a row that says no more than that it is there.
pub(super) fn marked(key: Vec<u8>, identity: u64) -> (Vec<u8>, Vec<u8>) {
    let row = laneway_disk::sealed(&key, &[], identity);
    (key, row)
}

fn put_message(into: &mut Vec<u8>, message: &Message, fingerprint: u64) {
    // Its route stood here. Routes have other numbers in each process now.
    into.extend_from_slice(&[0; 4]);
    into.extend_from_slice(&fingerprint.to_le_bytes());
    let record = &message.record;
    put(into, record.version().as_u64());
    put(into, record.due().as_millis());
    put(into, u64::from(record.attempts()));
    put(into, u64::from(record.failures()));
    put_state(into, record.state(), record.is_in_doubt());
    put(into, message.accepted.as_millis());
    put_bytes(into, message.id.as_str().as_bytes());
    put_bytes(into, message.topic.as_bytes());
    put_option(into, message.content_type.as_deref());
    put_target(into, &message.target);
    match &message.retry {
        None => into.push(0),
        Some(schedule) => {
            into.push(1);
            put(into, schedule.waits().len() as u64);
            for wait in schedule.waits() {
                put(into, wait.as_secs());
                put(into, u64::from(wait.subsec_nanos()));
            }
        }
    }
    put(into, message.metadata.len() as u64);
    for (name, value) in &message.metadata {
        put_bytes(into, name.as_bytes());
        put_bytes(into, value.as_bytes());
    }
    put(into, message.history.len() as u64);
    for event in &message.history {
        put_event(into, event);
    }
    put_bytes(into, &message.payload);
}

fn put_option(into: &mut Vec<u8>, text: Option<&str>) {
    match text {
        None => into.push(0),
        Some(text) => {
            into.push(1);
            put_bytes(into, text.as_bytes());
        }
    }
}

fn put_state(into: &mut Vec<u8>, state: State, in_doubt: bool) {
    let (tag, at) = match state {
        State::Scheduled { at } if in_doubt => (b'u', at),
        State::Scheduled { at } => (b's', at),
        State::Firing { since } => (b'f', since),
        State::Delivered { at } => (b'd', at),
        State::Withdrawn { at } if in_doubt => (b'W', at),
        State::Withdrawn { at } => (b'w', at),
        State::Dead { at, cause } => {
            let tag = match cause {
                DeathCause::Exhausted => b'x',
                DeathCause::Rejected => b'r',
            };
            let tag = if in_doubt {
                tag.to_ascii_uppercase()
            } else {
                tag
            };
            (tag, at)
        }
    };
    into.push(tag);
    put(into, at.as_millis());
}

fn put_target(into: &mut Vec<u8>, target: &Target) {
    match target {
        Target::Callback(callback) => {
            into.push(b'c');
            put_bytes(into, callback.url.as_bytes());
            put_bytes(into, callback.method.name().as_bytes());
            put(into, callback.headers.len() as u64);
            for (name, value) in &callback.headers {
                put_bytes(into, name.as_bytes());
                put_bytes(into, value.as_bytes());
            }
            // In milliseconds; 0 is none.
            let timeout = callback.timeout.unwrap_or_default().as_millis();
            put(into, u64::try_from(timeout).unwrap_or(u64::MAX));
        }
        Target::Bus(bus) => {
            into.push(b'b');
            put_bytes(into, bus.topic.as_bytes());
            put_bytes(into, bus.aggregate_id.as_bytes());
            put_bytes(into, bus.event_type.as_bytes());
        }
    }
}

fn put_event(into: &mut Vec<u8>, event: &Event) {
    put(into, event.at.as_millis());
    match &event.what {
        HistoryEvent::Extended { due } => {
            into.push(b'e');
            put(into, due.as_millis());
        }
        HistoryEvent::Failed { attempt, reason } => {
            into.push(b'f');
            put(into, u64::from(*attempt));
            put_bytes(into, reason.as_bytes());
        }
        HistoryEvent::Postponed { reason } => {
            into.push(b'p');
            put_bytes(into, reason.as_bytes());
        }
        HistoryEvent::Delivered { attempt } => {
            into.push(b'd');
            put(into, u64::from(*attempt));
        }
        HistoryEvent::Died => into.push(b'x'),
        HistoryEvent::Withdrawn => into.push(b'w'),
        HistoryEvent::Stopped => into.push(b's'),
        HistoryEvent::Replayed { of } => {
            into.push(b'r');
            put_bytes(into, of.as_str().as_bytes());
        }
    }
}

/// All that a scan needs of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) route: Route,
    pub(super) version: Version,
    pub(super) payload_bytes: u32,
}

/// Reads what a scan needs of a message, and nothing into memory.
pub(super) fn decode_head(bytes: &[u8]) -> Result<Head, Broken> {
    let mut reader = Reader::new(bytes);
    let from = &mut reader;
    from.take(12)?;
    let version = Version::from_u64(from.number()?);
    // Due, attempts, failures, state, accepted.
    for _ in 0..3 {
        from.number()?;
    }
    state(from)?;
    from.number()?;
    // Id, topic, content type.
    from.bytes()?;
    from.bytes()?;
    if tag(from)? != 0 {
        from.bytes()?;
    }
    let broken = broken(from);
    let kind = tag(from)?;
    let name = std::str::from_utf8(from.bytes()?).map_err(|_| broken)?;
    let mut held = 0;
    let route = match kind {
        b'c' => {
            // Method, headers, time limit.
            from.bytes()?;
            held += skip_pairs(from)?;
            from.number()?;
            Route::to_host(name)
        }
        b'b' => {
            // Aggregate id, event type.
            from.bytes()?;
            from.bytes()?;
            Route::to_topic(name)
        }
        _ => return Err(broken),
    };
    retry(from)?;
    held += skip_pairs(from)?;
    for _ in 0..from.number()? {
        event(from)?;
    }
    held += from.bytes()?.len();
    Ok(Head {
        route,
        version,
        payload_bytes: u32::try_from(held).unwrap_or(u32::MAX),
    })
}

/// Answers how long the texts are.
fn skip_pairs(from: &mut Reader<'_>) -> Result<usize, Broken> {
    let mut bytes = 0;
    for _ in 0..from.number()? {
        bytes += from.bytes()?.len() + from.bytes()?.len();
    }
    Ok(bytes)
}

pub(super) fn decode(bytes: &[u8]) -> Result<Message, Broken> {
    decode_with_fingerprint(bytes).map(|(message, _)| message)
}

/// A message, and what was submitted as a number.
pub(super) fn decode_with_fingerprint(bytes: &[u8]) -> Result<(Message, u64), Broken> {
    let mut reader = Reader::new(bytes);
    let from = &mut reader;
    from.take(4)?;
    let fingerprint = u64::from_le_bytes(from.array()?);
    let version = Version::from_u64(from.number()?);
    let due = moment(from)?;
    let (attempts, failures) = (from.number_as()?, from.number_as()?);
    let (state, in_doubt) = state(from)?;
    let message = Message {
        record: Record::restore(version, due, attempts, failures, state).in_doubt(in_doubt),
        accepted: moment(from)?,
        id: id(from)?,
        topic: text(from)?,
        content_type: option(from)?,
        target: target(from)?,
        retry: retry(from)?,
        metadata: list(from, |from| Ok((text(from)?, text(from)?)))?
            .into_iter()
            .collect(),
        history: list(from, event)?,
        payload: Bytes::copy_from_slice(from.bytes()?),
    };
    reader.finish()?;
    Ok((message, fingerprint))
}

fn broken(reader: &Reader<'_>) -> Broken {
    Broken {
        at: reader.position(),
    }
}

fn tag(from: &mut Reader<'_>) -> Result<u8, Broken> {
    from.array().map(|[tag]| tag)
}

fn moment(from: &mut Reader<'_>) -> Result<Timestamp, Broken> {
    from.number().map(Timestamp::from_millis)
}

fn text(from: &mut Reader<'_>) -> Result<String, Broken> {
    let broken = broken(from);
    let text = std::str::from_utf8(from.bytes()?).map_err(|_| broken)?;
    Ok(text.to_owned())
}

fn id(from: &mut Reader<'_>) -> Result<MessageId, Broken> {
    let broken = broken(from);
    MessageId::new(text(from)?).map_err(|_| broken)
}

fn option(from: &mut Reader<'_>) -> Result<Option<String>, Broken> {
    let broken = broken(from);
    match tag(from)? {
        0 => Ok(None),
        1 => text(from).map(Some),
        _ => Err(broken),
    }
}

/// So many of something. A count that is not true ends where the bytes end.
fn list<T>(
    from: &mut Reader<'_>,
    mut one: impl FnMut(&mut Reader<'_>) -> Result<T, Broken>,
) -> Result<Vec<T>, Broken> {
    let count = from.number()?;
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(one(from)?);
    }
    Ok(all)
}

/// The state, and whether it is in doubt.
fn state(from: &mut Reader<'_>) -> Result<(State, bool), Broken> {
    let broken = broken(from);
    let (tag, at) = (tag(from)?, moment(from)?);
    let state = match tag {
        b's' | b'u' => State::Scheduled { at },
        b'f' => State::Firing { since: at },
        b'd' => State::Delivered { at },
        b'w' | b'W' => State::Withdrawn { at },
        b'x' | b'X' => State::Dead {
            at,
            cause: DeathCause::Exhausted,
        },
        b'r' | b'R' => State::Dead {
            at,
            cause: DeathCause::Rejected,
        },
        _ => return Err(broken),
    };
    Ok((state, tag == b'u' || tag.is_ascii_uppercase()))
}

fn target(from: &mut Reader<'_>) -> Result<Target, Broken> {
    let broken = broken(from);
    match tag(from)? {
        b'c' => {
            let url = text(from)?;
            let method: Method = text(from)?.parse().map_err(|_| broken)?;
            let headers = list(from, |from| Ok((text(from)?, text(from)?)))?;
            let timeout = match from.number()? {
                0 => None,
                millis => Some(std::time::Duration::from_millis(millis)),
            };
            Ok(Target::Callback(Callback {
                url,
                method,
                headers,
                timeout,
            }))
        }
        b'b' => Ok(Target::Bus(BusTarget {
            topic: text(from)?,
            aggregate_id: text(from)?,
            event_type: text(from)?,
        })),
        _ => Err(broken),
    }
}

fn retry(from: &mut Reader<'_>) -> Result<Option<Schedule>, Broken> {
    let broken = broken(from);
    match tag(from)? {
        0 => Ok(None),
        1 => {
            let waits = list(from, |from| {
                let (seconds, nanos) = (from.number()?, from.number_as::<u32>()?);
                if nanos >= 1_000_000_000 {
                    return Err(broken);
                }
                Ok(std::time::Duration::new(seconds, nanos))
            })?;
            Ok(Some(Schedule::new(waits)))
        }
        _ => Err(broken),
    }
}

fn event(from: &mut Reader<'_>) -> Result<Event, Broken> {
    let at = moment(from)?;
    let broken = broken(from);
    let what = match tag(from)? {
        b'e' => HistoryEvent::Extended { due: moment(from)? },
        b'f' => HistoryEvent::Failed {
            attempt: from.number_as()?,
            reason: text(from)?,
        },
        b'p' => HistoryEvent::Postponed {
            reason: text(from)?,
        },
        b'd' => HistoryEvent::Delivered {
            attempt: from.number_as()?,
        },
        b'x' => HistoryEvent::Died,
        b'w' => HistoryEvent::Withdrawn,
        b's' => HistoryEvent::Stopped,
        b'r' => HistoryEvent::Replayed { of: id(from)? },
        _ => return Err(broken),
    };
    Ok(Event { at, what })
}

/// Where a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) state: StateName,
    pub(super) due_key: DueKey,
    /// What was submitted, as a number.
    pub(super) fingerprint: u64,
}

impl Location {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut into = Vec::with_capacity(25);
        self.put(&mut into);
        into
    }

    /// The same behind a checksum.
    pub(super) fn sealed(&self, key: &[u8], identity: u64) -> Vec<u8> {
        let mut into = Vec::with_capacity(29);
        laneway_disk::seal(&mut into, key, identity, |into| self.put(into));
        into
    }

    fn put(&self, into: &mut Vec<u8>) {
        into.push(super::keys::tag(self.state));
        into.extend_from_slice(&super::keys::due_key(self.due_key));
        into.extend_from_slice(&self.fingerprint.to_le_bytes());
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (tag, rest) = bytes.split_first()?;
        let (due_key, fingerprint) = rest.split_first_chunk::<16>()?;
        Some(Self {
            state: super::keys::state(*tag)?,
            due_key: super::keys::read_due_key(due_key)?,
            fingerprint: u64::from_le_bytes(fingerprint.try_into().ok()?),
        })
    }
}

/// What an idempotency key was used for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyUse {
    pub(super) id: MessageId,
    pub(super) due: Timestamp,
    pub(super) fingerprint: u64,
}

impl KeyUse {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut into = Vec::new();
        put_bytes(&mut into, self.id.as_str().as_bytes());
        put(&mut into, self.due.as_millis());
        into.extend_from_slice(&self.fingerprint.to_le_bytes());
        into
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Broken> {
        let mut reader = Reader::new(bytes);
        let used = Self {
            id: id(&mut reader)?,
            due: moment(&mut reader)?,
            fingerprint: u64::from_le_bytes(reader.array()?),
        };
        reader.finish()?;
        Ok(used)
    }
}
