//! What images are made of, as bytes.

use std::collections::BTreeMap;

use bytes::Bytes;
use laneway_delay::{MessageId, Timestamp};

use super::codec::{Found, Inside};
use super::wire::{Broken, Read, Reader, put, put_bytes};
use super::{
    Answer, Answered, Cause, Command, Doubt, Event, HistoryEvent, Image, Instance, Key, Next,
    Refusal, RequestDigest, State, Verb,
};

/// An image without its body, which the digest of its request stands for.
pub(crate) fn put_image(into: &mut Vec<u8>, image: &Image) {
    put_state(into, &image.state);
    put_time(into, image.due);
    put_time(into, image.next);
    put_time(into, image.accepted);
    into.extend_from_slice(&image.digest.0);
    put_bytes(into, image.topic.as_bytes());
    put(into, u64::from(image.attempts));
    put(into, u64::from(image.failures));
    put(into, image.doubts.len() as u64);
    for (attempt, doubt) in &image.doubts {
        put(into, u64::from(*attempt));
        into.extend_from_slice(&doubt.worker.0);
        put(into, doubt.epoch);
    }
    into.push(u8::from(image.doubt_stays));
    put(into, image.answers.len() as u64);
    for (key, answered) in &image.answers {
        into.extend_from_slice(&key.0);
        into.push(verb_tag(answered.verb));
        into.extend_from_slice(&answered.digest.0);
        put_answer(into, &answered.answer);
        put_time(into, answered.at);
    }
    put(into, image.history.len() as u64);
    for event in &image.history {
        put_time(into, event.at);
        put_event(into, &event.what);
    }
}

pub(crate) fn image(from: &mut Reader<'_>) -> Found<Image> {
    let state = state(from)?;
    let due = time(from)?;
    let next = time(from)?;
    let accepted = time(from)?;
    let digest = RequestDigest(from.array()?);
    let topic = from.text()?.to_owned();
    let (attempts, failures) = (from.small()?, from.small()?);
    let mut doubts = BTreeMap::new();
    for _ in 0..from.count()? {
        let attempt = from.small()?;
        let worker = Instance(from.array()?);
        let epoch = from.number()?;
        doubts.insert(attempt, Doubt { worker, epoch });
    }
    let doubt_stays = from.flag()?;
    let mut answers = BTreeMap::new();
    for _ in 0..from.count()? {
        let key = Key(from.array()?);
        let answered = Answered {
            verb: verb(from)?,
            digest: RequestDigest(from.array()?),
            answer: answer(from)?,
            at: time(from)?,
        };
        answers.insert(key, answered);
    }
    let mut history = Vec::new();
    for _ in 0..from.count()? {
        history.push(Event {
            at: time(from)?,
            what: event(from)?,
        });
    }
    Ok(Image {
        state,
        next,
        attempts,
        failures,
        doubts,
        doubt_stays,
        answers,
        history,
        ..Image::accepted(due, accepted, digest, topic, Bytes::new())
    })
}

pub(super) fn put_state(into: &mut Vec<u8>, state: &State) {
    match state {
        State::Absent => into.push(b'-'),
        State::Scheduled => into.push(b's'),
        State::Delivered { at } => put_tagged(into, b'd', *at),
        State::Dead { at, cause } => {
            put_tagged(into, b'x', *at);
            into.push(cause_tag(*cause));
        }
        State::Withdrawn { at } => put_tagged(into, b'w', *at),
        State::Stopped { at } => put_tagged(into, b't', *at),
        State::Replayed { at, to } => {
            put_tagged(into, b'p', *at);
            put_id(into, to);
        }
        State::Purged { at } => put_tagged(into, b'm', *at),
    }
}

pub(super) fn state(from: &mut Reader<'_>) -> Found<State> {
    Ok(match from.byte()? {
        b'-' => State::Absent,
        b's' => State::Scheduled,
        b'd' => State::Delivered { at: time(from)? },
        b'x' => State::Dead {
            at: time(from)?,
            cause: cause(from)?,
        },
        b'w' => State::Withdrawn { at: time(from)? },
        b't' => State::Stopped { at: time(from)? },
        b'p' => State::Replayed {
            at: time(from)?,
            to: id(from)?,
        },
        b'm' => State::Purged { at: time(from)? },
        kind => return Err(Inside::Kind(kind)),
    })
}

pub(super) fn put_event(into: &mut Vec<u8>, what: &HistoryEvent) {
    match what {
        HistoryEvent::Extended(due) => put_tagged(into, b'e', *due),
        HistoryEvent::Failed(attempt, reason) => {
            into.push(b'f');
            put(into, u64::from(*attempt));
            put_bytes(into, reason.as_bytes());
        }
        HistoryEvent::Delivered(attempt) => {
            into.push(b's');
            put(into, u64::from(*attempt));
        }
        HistoryEvent::Died => into.push(b'd'),
        HistoryEvent::Withdrawn => into.push(b'w'),
        HistoryEvent::Stopped => into.push(b't'),
        HistoryEvent::Replayed(of) => {
            into.push(b'p');
            put_id(into, of);
        }
    }
}

pub(super) fn event(from: &mut Reader<'_>) -> Found<HistoryEvent> {
    Ok(match from.byte()? {
        b'e' => HistoryEvent::Extended(time(from)?),
        b'f' => HistoryEvent::Failed(from.small()?, from.text()?.to_owned()),
        b's' => HistoryEvent::Delivered(from.small()?),
        b'd' => HistoryEvent::Died,
        b'w' => HistoryEvent::Withdrawn,
        b't' => HistoryEvent::Stopped,
        b'p' => HistoryEvent::Replayed(id(from)?),
        kind => return Err(Inside::Kind(kind)),
    })
}

pub(super) fn put_next(into: &mut Vec<u8>, next: Next) {
    match next {
        Next::Again(at) => put_tagged(into, b'a', at),
        Next::Dead(cause) => into.extend_from_slice(&[b'd', cause_tag(cause)]),
    }
}

pub(super) fn next(from: &mut Reader<'_>) -> Found<Next> {
    Ok(match from.byte()? {
        b'a' => Next::Again(time(from)?),
        b'd' => Next::Dead(cause(from)?),
        kind => return Err(Inside::Kind(kind)),
    })
}

pub(super) fn put_command(into: &mut Vec<u8>, command: Option<&Command>) {
    let Some(command) = command else {
        into.push(b'-');
        return;
    };
    into.push(verb_tag(command.verb));
    into.extend_from_slice(&command.key.0);
    into.extend_from_slice(&command.digest.0);
}

pub(super) fn command(from: &mut Reader<'_>) -> Found<Option<Command>> {
    let verb = match from.byte()? {
        b'-' => return Ok(None),
        tag => verb_of(tag)?,
    };
    Ok(Some(Command {
        verb,
        key: Key(from.array()?),
        digest: RequestDigest(from.array()?),
    }))
}

pub(super) const fn verb_tag(verb: Verb) -> u8 {
    match verb {
        Verb::Extend => b'e',
        Verb::Withdraw => b'w',
        Verb::Stop => b't',
        Verb::Replay => b'p',
        Verb::Purge => b'm',
    }
}

pub(super) fn verb(from: &mut Reader<'_>) -> Found<Verb> {
    verb_of(from.byte()?)
}

pub(super) fn verb_of(tag: u8) -> Found<Verb> {
    Ok(match tag {
        b'e' => Verb::Extend,
        b'w' => Verb::Withdraw,
        b't' => Verb::Stop,
        b'p' => Verb::Replay,
        b'm' => Verb::Purge,
        kind => return Err(Inside::Kind(kind)),
    })
}

pub(super) fn put_answer(into: &mut Vec<u8>, answer: &Answer) {
    match answer {
        Answer::Done { due } => put_tagged(into, b'y', *due),
        Answer::Refused(refusal) => into.push(match refusal {
            Refusal::Unknown => b'u',
            Refusal::WrongState => b's',
            Refusal::MayHaveBeenDelivered => b'd',
            Refusal::NotLater => b'l',
            Refusal::OtherCommand => b'o',
            Refusal::TooManyCommands => b'm',
        }),
    }
}

pub(super) fn answer(from: &mut Reader<'_>) -> Found<Answer> {
    Ok(Answer::Refused(match from.byte()? {
        b'y' => return Ok(Answer::Done { due: time(from)? }),
        b'u' => Refusal::Unknown,
        b's' => Refusal::WrongState,
        b'd' => Refusal::MayHaveBeenDelivered,
        b'l' => Refusal::NotLater,
        b'o' => Refusal::OtherCommand,
        b'm' => Refusal::TooManyCommands,
        kind => return Err(Inside::Kind(kind)),
    }))
}

pub(super) const fn cause_tag(cause: Cause) -> u8 {
    match cause {
        Cause::Rejected => b'r',
        Cause::Exhausted => b'x',
    }
}

pub(super) fn cause(from: &mut Reader<'_>) -> Found<Cause> {
    Ok(match from.byte()? {
        b'x' => Cause::Exhausted,
        b'r' => Cause::Rejected,
        kind => return Err(Inside::Kind(kind)),
    })
}

pub(crate) fn put_id(into: &mut Vec<u8>, id: &MessageId) {
    put_bytes(into, id.as_str().as_bytes());
}

pub(crate) fn id(from: &mut Reader<'_>) -> Read<MessageId> {
    MessageId::new(from.text()?).map_err(|_| Broken("an id is none"))
}

pub(super) fn put_tagged(into: &mut Vec<u8>, tag: u8, at: Timestamp) {
    into.push(tag);
    put_time(into, at);
}

pub(super) fn put_time(into: &mut Vec<u8>, at: Timestamp) {
    put(into, at.as_millis());
}

pub(super) fn time(from: &mut Reader<'_>) -> Read<Timestamp> {
    from.number().map(Timestamp::from_millis)
}
