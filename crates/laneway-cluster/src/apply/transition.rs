//! What a change makes of a message, pure. Owners decide by it, and every reader judges by it.

use bytes::Bytes;

use crate::record::{
    Answer, Answered, Change, Doubt, Forgotten, HistoryEvent, Image, MAX_ANSWERS, MAX_DOUBTS, Next,
    State,
};
use crate::rules::{Rule, Rules};

/// The message after a change, or `None` if the change is not possible in its state. `epoch` is that of the fact with the change.
///
/// `Carried` and `Forgotten(Message)` change which rows there are, and are no affair of this function.
pub(crate) fn transition(
    rules: Rules,
    before: &Image,
    change: &Change,
    epoch: u64,
) -> Option<Image> {
    if let Some(command) = change.command()
        && !before.answers.contains_key(&command.key)
        && before.answers.len() >= MAX_ANSWERS
    {
        return None;
    }
    let mut image = match change {
        Change::Begun { .. }
        | Change::Unstarted { .. }
        | Change::Delivered { .. }
        | Change::Failed { .. }
        | Change::Rescheduled { .. } => attempted(rules, before, change, epoch)?,
        _ => changed(rules, before, change)?,
    };
    note_answer(&mut image, change);
    Some(image)
}

/// What attempts make of it.
fn attempted(rules: Rules, before: &Image, change: &Change, epoch: u64) -> Option<Image> {
    let mut image = before.clone();
    let is_scheduled = before.state == State::Scheduled;
    match change {
        Change::Begun {
            attempt, worker, ..
        } => {
            if !is_scheduled || *attempt != before.attempts.checked_add(1)? {
                return None;
            }
            image.attempts = *attempt;
            let worker = *worker;
            image.doubts.insert(*attempt, Doubt { worker, epoch });
            if image.doubts.len() > MAX_DOUBTS {
                image.doubts.pop_first();
                image.doubt_stays = true;
            }
        }
        Change::Unstarted { attempt, again, .. } => {
            image.doubts.remove(attempt)?;
            if is_scheduled && *attempt == before.attempts {
                image.next = (*again).max(before.due);
            }
        }
        Change::Delivered { attempt, at } => {
            let was_open = image.doubts.remove(attempt).is_some();
            if *attempt == 0 || *attempt > before.attempts || !(is_scheduled || was_open) {
                return None;
            }
            image.note(rules, *at, HistoryEvent::Delivered(*attempt));
            if is_scheduled {
                image.state = State::Delivered { at: *at };
                image.body = Bytes::new();
            }
        }
        Change::Failed {
            attempt,
            next,
            reason,
            at,
        } => {
            image.doubts.remove(attempt)?;
            image.note(rules, *at, HistoryEvent::Failed(*attempt, reason.clone()));
            // A late failure says something about its own attempt only: a newer one decides.
            if is_scheduled && *attempt == before.attempts {
                image.failures = before.failures.saturating_add(1);
                match *next {
                    Next::Again(again) => image.next = again.max(before.due),
                    Next::Dead(cause) => {
                        image.state = State::Dead { at: *at, cause };
                        image.note(rules, *at, HistoryEvent::Died);
                    }
                }
            }
        }
        Change::Rescheduled { again, .. } if is_scheduled => {
            image.next = (*again).max(before.due);
        }
        _ => return None,
    }
    Some(image)
}

/// What everything else makes of it.
fn changed(rules: Rules, before: &Image, change: &Change) -> Option<Image> {
    let mut image = before.clone();
    let is_scheduled = before.state == State::Scheduled;
    let is_certain = !before.is_in_doubt() || !rules.holds(Rule::RefuseInDoubt);
    match change {
        Change::Accepted {
            due,
            at,
            digest,
            topic,
            body,
        } if before.state == State::Absent => {
            image = Image::accepted(*due, *at, *digest, topic.clone(), body.clone());
            image.answers.clone_from(&before.answers);
        }
        Change::Extended { due, at, .. } if is_scheduled && is_certain && *due > before.next => {
            image.due = *due;
            image.next = *due;
            image.note(rules, *at, HistoryEvent::Extended(*due));
        }
        Change::Withdrawn { at, .. } if is_scheduled && is_certain => {
            image.state = State::Withdrawn { at: *at };
            image.body = Bytes::new();
            image.note(rules, *at, HistoryEvent::Withdrawn);
        }
        Change::Stopped { at, .. } if is_scheduled => {
            image.state = State::Stopped { at: *at };
            image.body = Bytes::new();
            image.note(rules, *at, HistoryEvent::Stopped);
        }
        Change::Dead { cause, at } if is_scheduled => {
            let (at, cause) = (*at, *cause);
            image.state = State::Dead { at, cause };
            image.note(rules, at, HistoryEvent::Died);
        }
        Change::Replayed { to, at, .. } if matches!(before.state, State::Dead { .. }) => {
            let (at, to) = (*at, to.clone());
            image.state = State::Replayed { at, to };
            image.body = Bytes::new();
        }
        Change::Purged { at, .. } if before.state.ended().is_some() => {
            image.state = State::Purged { at: *at };
            image.body = Bytes::new();
            image.doubts.clear();
            image.history.clear();
        }
        Change::Answered { .. } => {}
        Change::Forgotten(Forgotten::Keys(keys)) => {
            image.answers.retain(|key, _| !keys.contains(key));
        }
        _ => return None,
    }
    Some(image)
}

/// Whether nothing of a message is needed any more, once it is old enough.
pub(crate) fn is_forgettable(image: &Image) -> bool {
    image.state == State::Absent || image.state.ended().is_some()
}

fn note_answer(image: &mut Image, change: &Change) {
    let Some(command) = change.command() else {
        return;
    };
    let done = Answer::Done { due: image.due };
    let (answer, at) = match change {
        Change::Answered { answer, at, .. } => (answer.clone(), *at),
        Change::Extended { at, .. }
        | Change::Withdrawn { at, .. }
        | Change::Stopped { at, .. }
        | Change::Replayed { at, .. }
        | Change::Purged { at, .. } => (done, *at),
        _ => return,
    };
    let answered = Answered {
        verb: command.verb,
        digest: command.digest,
        answer,
        at,
    };
    image.answers.insert(command.key, answered);
}
