//! Messages as bytes.
//!
//! ```text
//! route:u32le print:u64le version due attempts failures state accepted id topic content_type target retry
//! metadata history payload                    numbers are varints, texts are behind their length
//! ```
//!
//! What a scan needs comes first.

use bytes::Bytes;
use laneway_disk::varint::{Broken, Reader, put, put_bytes};

use crate::store::{Place, Route};
use crate::{
    BusTarget, Callback, DeathCause, Event, Happening, Message, MessageId, Method, Record,
    Schedule, State, StateName, Target, Timestamp, Version,
};

/// A message, and what was submitted as a number.
pub(super) fn encode(message: &Message, print: u64) -> Vec<u8> {
    let mut into = Vec::with_capacity(192 + message.payload.len());
    put_message(&mut into, message, print);
    into
}

/// The same behind a checksum, in one piece.
pub(super) fn sealed(key: &[u8], message: &Message, print: u64, identity: u64) -> Vec<u8> {
    let mut into = Vec::with_capacity(192 + message.payload.len());
    laneway_disk::seal(&mut into, key, identity, |into| {
        put_message(into, message, print);
    });
    into
}

/// A key with a row that says no more than that it is there.
pub(super) fn marked(key: Vec<u8>, identity: u64) -> (Vec<u8>, Vec<u8>) {
    let row = laneway_disk::sealed(&key, &[], identity);
    (key, row)
}

fn put_message(into: &mut Vec<u8>, message: &Message, print: u64) {
    into.extend_from_slice(&Route::of(&message.target).as_u32().to_le_bytes());
    into.extend_from_slice(&print.to_le_bytes());
    let record = &message.record;
    put(into, record.version().as_u64());
    put(into, record.due().as_millis());
    put(into, u64::from(record.attempts()));
    put(into, u64::from(record.failures()));
    put_state(into, record.state());
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

fn put_state(into: &mut Vec<u8>, state: State) {
    let (tag, at) = match state {
        State::Scheduled { at } => (b's', at),
        State::Firing { since } => (b'f', since),
        State::Delivered { at } => (b'd', at),
        State::Withdrawn { at } => (b'w', at),
        State::Dead {
            at,
            cause: DeathCause::Exhausted,
        } => (b'x', at),
        State::Dead {
            at,
            cause: DeathCause::Rejected,
        } => (b'r', at),
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
        Happening::Extended { due } => {
            into.push(b'e');
            put(into, due.as_millis());
        }
        Happening::Failed { attempt, reason } => {
            into.push(b'f');
            put(into, u64::from(*attempt));
            put_bytes(into, reason.as_bytes());
        }
        Happening::Postponed { reason } => {
            into.push(b'p');
            put_bytes(into, reason.as_bytes());
        }
        Happening::Delivered { attempt } => {
            into.push(b'd');
            put(into, u64::from(*attempt));
        }
        Happening::Died => into.push(b'x'),
        Happening::Withdrawn => into.push(b'w'),
        Happening::Replayed { of } => {
            into.push(b'r');
            put_bytes(into, of.as_str().as_bytes());
        }
    }
}

/// Where a message goes, and its version: all that a scan needs.
pub(super) fn decode_head(bytes: &[u8]) -> Result<(Route, Version), Broken> {
    let mut reader = Reader::new(bytes);
    let route = Route::from_u32(u32::from_le_bytes(reader.array()?));
    let _print: [u8; 8] = reader.array()?;
    let version = Version::from_u64(reader.number()?);
    Ok((route, version))
}

pub(super) fn decode(bytes: &[u8]) -> Result<Message, Broken> {
    decode_with_print(bytes).map(|(message, _)| message)
}

/// A message, and what was submitted as a number.
pub(super) fn decode_with_print(bytes: &[u8]) -> Result<(Message, u64), Broken> {
    let mut reader = Reader::new(bytes);
    let from = &mut reader;
    from.take(4)?;
    let print = u64::from_le_bytes(from.array()?);
    let version = Version::from_u64(from.number()?);
    let due = moment(from)?;
    let (attempts, failures) = (from.number_as()?, from.number_as()?);
    let state = state(from)?;
    let message = Message {
        record: Record::restore(version, due, attempts, failures, state),
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
    Ok((message, print))
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

fn state(from: &mut Reader<'_>) -> Result<State, Broken> {
    let broken = broken(from);
    let (tag, at) = (tag(from)?, moment(from)?);
    Ok(match tag {
        b's' => State::Scheduled { at },
        b'f' => State::Firing { since: at },
        b'd' => State::Delivered { at },
        b'w' => State::Withdrawn { at },
        b'x' => State::Dead {
            at,
            cause: DeathCause::Exhausted,
        },
        b'r' => State::Dead {
            at,
            cause: DeathCause::Rejected,
        },
        _ => return Err(broken),
    })
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
        b'e' => Happening::Extended { due: moment(from)? },
        b'f' => Happening::Failed {
            attempt: from.number_as()?,
            reason: text(from)?,
        },
        b'p' => Happening::Postponed {
            reason: text(from)?,
        },
        b'd' => Happening::Delivered {
            attempt: from.number_as()?,
        },
        b'x' => Happening::Died,
        b'w' => Happening::Withdrawn,
        b'r' => Happening::Replayed { of: id(from)? },
        _ => return Err(broken),
    };
    Ok(Event { at, what })
}

/// Where a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) state: StateName,
    pub(super) place: Place,
    /// What was submitted, as a number.
    pub(super) print: u64,
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
        into.extend_from_slice(&super::keys::place(self.place));
        into.extend_from_slice(&self.print.to_le_bytes());
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (tag, rest) = bytes.split_first()?;
        let (place, print) = rest.split_first_chunk::<16>()?;
        Some(Self {
            state: super::keys::state(*tag)?,
            place: super::keys::read_place(place)?,
            print: u64::from_le_bytes(print.try_into().ok()?),
        })
    }
}

/// What an idempotency key was used for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyUse {
    pub(super) id: MessageId,
    pub(super) due: Timestamp,
    pub(super) print: u64,
}

impl KeyUse {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut into = Vec::new();
        put_bytes(&mut into, self.id.as_str().as_bytes());
        put(&mut into, self.due.as_millis());
        into.extend_from_slice(&self.print.to_le_bytes());
        into
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Broken> {
        let mut reader = Reader::new(bytes);
        let used = Self {
            id: id(&mut reader)?,
            due: moment(&mut reader)?,
            print: u64::from_le_bytes(reader.array()?),
        };
        reader.finish()?;
        Ok(used)
    }
}
