use std::collections::BTreeMap;

use laneway_delay::MessageId;

use super::told::Told;
use super::{History, Said, SubmitTold, Violation, What};
use crate::record::{Answer, Change, Key, Refusal, RequestDigest, Verb};

pub(super) fn check(history: &History, told: &Told, violations: &mut Vec<Violation>) {
    for said in &history.said {
        match &said.what {
            What::Submit {
                digest,
                told: answer,
            } => {
                check_submit(history, told, said, *digest, *answer, violations);
            }
            What::Command {
                verb,
                key,
                told: Some(answer),
            } => check_command(history, told, said, *verb, *key, answer, violations),
            What::LookUp { found: Some(false) } => check_missing(history, told, said, violations),
            What::Command { told: None, .. } | What::LookUp { .. } => {}
        }
    }
    check_keys(history, violations);
    check_repeated(history, told, violations);
}

fn contradiction(id: &MessageId, why: &'static str) -> Violation {
    let id = id.clone();
    Violation::Contradiction { id, why }
}

fn check_submit(
    history: &History,
    told: &Told,
    said: &Said,
    digest: RequestDigest,
    answer: SubmitTold,
    violations: &mut Vec<Violation>,
) {
    let found = told.of(&said.id).iter().find_map(|row| match &row.change {
        Change::Accepted { digest, .. } => Some(*digest),
        _ => None,
    });
    match (answer, found) {
        (SubmitTold::Accepted, None) => {
            // The intake may still have it, or has said aloud what became of it.
            let is_dead = history.dead_letters.contains(&said.id);
            if !is_dead && said.answered + history.allowed.settle < history.ended {
                let (id, why) = (
                    said.id.clone(),
                    "it was accepted, and the log has nothing of it",
                );
                violations.push(Violation::Lost { id, why });
            }
        }
        (SubmitTold::Accepted, Some(found)) if found != digest => {
            violations.push(contradiction(
                &said.id,
                "accepted, but the log has another message",
            ));
        }
        (SubmitTold::Conflict, Some(found)) if found == digest => {
            violations.push(contradiction(
                &said.id,
                "the same request was refused as another one",
            ));
        }
        (SubmitTold::Conflict, None) => {
            violations.push(contradiction(
                &said.id,
                "refused for a message that is not there",
            ));
        }
        _ => {}
    }
    let accepted = told.of(&said.id).iter();
    let accepted = accepted.filter(|row| matches!(row.change, Change::Accepted { .. }));
    if accepted.count() > 1 {
        violations.push(contradiction(&said.id, "it was accepted twice: revived"));
    }
}

fn check_command(
    history: &History,
    told: &Told,
    said: &Said,
    verb: Verb,
    key: Option<(Key, RequestDigest)>,
    answer: &Answer,
    violations: &mut Vec<Violation>,
) {
    match answer {
        Answer::Done { due } => {
            let key = key.map(|(key, _)| key);
            let grants = |change: &Change| {
                let is_verb = match (verb, change) {
                    (Verb::Extend, Change::Extended { due: granted, .. }) => granted == due,
                    (Verb::Withdraw, Change::Withdrawn { .. })
                    | (Verb::Stop, Change::Stopped { .. })
                    | (Verb::Replay, Change::Replayed { .. })
                    | (Verb::Purge, Change::Purged { .. }) => true,
                    _ => false,
                };
                is_verb && change.command().map(|command| command.key) == key
            };
            if !told.of(&said.id).iter().any(|row| grants(&row.change)) {
                violations.push(contradiction(&said.id, "a yes that is not in the log"));
            }
        }
        Answer::Refused(Refusal::Unknown) => {
            // With a key the refusal may be an older one: then the log has it.
            let is_noted = key.is_some_and(|(key, _)| {
                told.of(&said.id).iter().any(|row| {
                    matches!(&row.change, Change::Answered { command, .. } if command.key == key)
                })
            });
            if !is_noted {
                check_missing(history, told, said, violations);
            }
        }
        Answer::Refused(_) => {}
    }
}

/// "Not found" is wrong if the log had the message before the question, and had not forgotten it before the answer.
fn check_missing(history: &History, told: &Told, said: &Said, violations: &mut Vec<Violation>) {
    let skew = history.allowed.skew;
    let was_there = told
        .accepted(&said.id)
        .is_some_and(|accepted| accepted + skew < said.sent);
    let was_forgotten = told
        .forgotten
        .get(&said.id)
        .is_some_and(|forgotten| *forgotten < said.answered + skew);
    if was_there && !was_forgotten {
        violations.push(contradiction(
            &said.id,
            "not found, although the log had it",
        ));
    }
}

/// A key has one command, and one answer.
fn check_keys(history: &History, violations: &mut Vec<Violation>) {
    let mut known: BTreeMap<(&MessageId, Key), (RequestDigest, &Answer)> = BTreeMap::new();
    for said in &history.said {
        let What::Command {
            key: Some((key, digest)),
            told: Some(answer),
            ..
        } = &said.what
        else {
            continue;
        };
        if *answer == Answer::Refused(Refusal::OtherCommand)
            || *answer == Answer::Refused(Refusal::TooManyCommands)
        {
            continue;
        }
        let (first, before) = *known.entry((&said.id, *key)).or_insert((*digest, answer));
        if first != *digest || before != answer {
            violations.push(contradiction(&said.id, "two answers to one key"));
        }
    }
}

/// Nothing is extended more often than clients have asked for it.
fn check_repeated(history: &History, told: &Told, violations: &mut Vec<Violation>) {
    let mut asked: BTreeMap<&MessageId, usize> = BTreeMap::new();
    for said in &history.said {
        if let What::Command {
            verb: Verb::Extend, ..
        } = said.what
        {
            *asked.entry(&said.id).or_default() += 1;
        }
    }
    for (id, rows) in &told.rows {
        let is_extended = |change: &Change| matches!(change, Change::Extended { .. });
        let extended = rows.iter().filter(|row| is_extended(&row.change)).count();
        if extended > asked.get(id).copied().unwrap_or(0) {
            violations.push(contradiction(
                id,
                "extended more often than it was asked for",
            ));
        }
        let mut keys: BTreeMap<Key, usize> = BTreeMap::new();
        for row in rows {
            if let Some(command) = row.change.command() {
                *keys.entry(command.key).or_default() += 1;
            }
        }
        if keys.values().any(|times| *times > 1) {
            violations.push(contradiction(id, "two rows for one key"));
        }
    }
}
