use std::collections::{BTreeMap, BTreeSet};

use laneway_delay::MessageId;

use super::told::{Counted, Told};
use super::{History, Said, Start, Violation, What};
use crate::record::{Answer, Change, State, Verb};

pub(super) fn check(history: &History, told: &Told, violations: &mut Vec<Violation>) {
    let mut of: BTreeMap<&MessageId, Vec<&Start>> = BTreeMap::new();
    for start in &history.starts {
        of.entry(&start.id).or_default().push(start);
    }
    let mut reigns = BTreeMap::new();
    for (id, starts) in &of {
        for start in starts {
            let Some(begun) = begun(told, start) else {
                let (id, attempt) = (start.id.clone(), start.attempt);
                violations.push(Violation::StartWithoutBegun { id, attempt });
                continue;
            };
            if *reigns.entry(begun.epoch).or_insert(begun.reign) != begun.reign {
                let epoch = begun.epoch;
                violations.push(Violation::DoubleOwner { epoch });
            }
            check_early(history, begun, start, violations);
        }
        check_order(history, starts, violations);
        check_withdrawn(history, told, id, starts, violations);
    }
    check_settled(history, told, &of, violations);
}

/// The row that began what a receiver saw.
fn begun<'a>(told: &'a Told, start: &Start) -> Option<&'a Counted> {
    told.of(&start.id).iter().find(|row| {
        matches!(row.change, Change::Begun { attempt, .. } if attempt == start.attempt)
            && row.epoch == start.epoch
    })
}

fn check_early(history: &History, begun: &Counted, start: &Start, violations: &mut Vec<Violation>) {
    let Some(before) = &begun.before else { return };
    let due = before.image.due;
    let by = due.since(start.at + history.allowed.early);
    if !by.is_zero() {
        let id = start.id.clone();
        violations.push(Violation::Early { id, by });
    }
}

/// Receivers see the starts of one message in the order of time.
fn check_order(history: &History, starts: &[&Start], violations: &mut Vec<Violation>) {
    let mut is_delivered = false;
    let mut newest = 0;
    for start in starts {
        if start.epoch < newest {
            let epoch = start.epoch;
            violations.push(Violation::DoubleOwner { epoch });
        }
        newest = newest.max(start.epoch);
        if is_delivered && history.healed.is_none() {
            let id = start.id.clone();
            violations.push(Violation::Duplicate { id });
        }
        is_delivered |= start.is_good;
    }
}

/// A yes to withdraw means that nothing has started, and nothing will, but for what is known to have failed.
fn check_withdrawn(
    history: &History,
    told: &Told,
    id: &MessageId,
    starts: &[&Start],
    violations: &mut Vec<Violation>,
) {
    let is_yes = |said: &&Said| {
        said.id == *id
            && matches!(
                said.what,
                What::Command {
                    verb: Verb::Withdraw,
                    told: Some(Answer::Done { .. }),
                    ..
                }
            )
    };
    let Some(yes) = history.said.iter().find(is_yes) else {
        return;
    };
    let failed: BTreeSet<u32> = told
        .of(id)
        .iter()
        .filter_map(|row| match row.change {
            Change::Failed { attempt, .. } => Some(attempt),
            _ => None,
        })
        .collect();
    let is_known = |start: &Start| failed.contains(&start.attempt) && !start.is_good;
    if starts
        .iter()
        .any(|start| start.at > yes.answered || !is_known(start))
    {
        violations.push(Violation::StartAfterYes { id: id.clone() });
    }
}

/// What was due long ago has been dealt with.
fn check_settled(
    history: &History,
    told: &Told,
    starts: &BTreeMap<&MessageId, Vec<&Start>>,
    violations: &mut Vec<Violation>,
) {
    for (id, kept) in told.shard.table().iter() {
        let image = &kept.image;
        let since = history.healed.map_or(image.next, |at| at.max(image.next));
        let is_overdue = since + history.allowed.settle < history.ended;
        let lost = |why| Violation::Lost {
            id: id.clone(),
            why,
        };
        match &image.state {
            State::Scheduled if is_overdue => {
                violations.push(lost("it was due long ago, and is still scheduled"));
            }
            State::Delivered { .. } if !starts.contains_key(id) => {
                violations.push(lost("it is delivered, and no receiver has seen it"));
            }
            State::Replayed { to, .. } if told.of(to).is_empty() && !told.replayed.contains(to) => {
                violations.push(lost("it was replayed, and the new one is not there"));
            }
            _ => {}
        }
    }
}
