//! What must hold.

use std::collections::{BTreeMap, BTreeSet};

use laneway_delay::{Error, Message, Query, StateName};

use super::world::{Kept, Life, World};
use crate::verdict::Verdict;

/// Whether a message is as the model has it, or as a power cut may have left it.
pub(super) fn agrees(kept: &Kept, message: Option<&Message>, seen: &BTreeSet<u64>) -> bool {
    let state = message.map(|message| StateName::from(message.record.state()));
    match (kept.life, state) {
        (Life::Waiting, Some(StateName::Scheduled)) => message.is_some_and(|message| {
            let record = message.record;
            record.due() == kept.due && (record.is_in_doubt() || !kept.in_doubt)
        }),
        (Life::Waiting | Life::Ended, Some(StateName::Delivered | StateName::Dead)) => {
            seen.contains(&kept.tag)
        }
        // It is on its way, or the note that it ended was lost with the power and it fires again.
        (Life::Waiting, Some(StateName::Firing))
        | (Life::Ended, Some(StateName::Scheduled | StateName::Firing))
        | (Life::Withdrawn, Some(StateName::Withdrawn))
        | (Life::Gone, None) => true,
        _ => false,
    }
}

impl World {
    /// Whether a delivery that was started since the last look should not have been.
    pub(super) fn judge_deliveries(&mut self) {
        let new = self.witness.since(self.judged);
        let by_tag: BTreeMap<u64, (&String, &super::world::Kept)> = self
            .model
            .iter()
            .map(|(id, kept)| (kept.tag, (id, kept)))
            .collect();
        let mut wrong = Vec::new();
        for (number, seen) in (self.judged..).zip(&new) {
            if seen.since < seen.due {
                wrong.push(format!(
                    "{} fired at {}, due {}",
                    seen.id, seen.since, seen.due
                ));
            }
            let Some((id, kept)) = by_tag.get(&seen.tag) else {
                // Replaced since, or nobody knows.
                continue;
            };
            if **id != seen.id || number < kept.firm_from {
                continue;
            }
            if matches!(kept.life, Life::Withdrawn | Life::Gone) && kept.firm_from > 0 {
                wrong.push(format!("{id} fired after it was withdrawn"));
            } else if kept.due != seen.due {
                wrong.push(format!(
                    "{id} fired for {}, and is due {}",
                    seen.due, kept.due
                ));
            }
        }
        self.judged += new.len();
        for [first, second] in self.witness.disorder() {
            // One that was refused and is there all the same stands in line when the disk is back, and not before.
            if !self.unsure.contains(&second) {
                wrong.push(format!("{second} is due before {first}, and came after it"));
            }
        }
        self.wrong.extend(wrong);
    }

    /// Whether the store has what the model has, however it is asked.
    pub(super) async fn judge_store(&mut self) {
        let seen = self.seen_tags();
        let mut states: BTreeMap<StateName, BTreeSet<String>> = BTreeMap::new();
        for (id, kept) in self.model.clone() {
            let message = match self.delays.get(&Self::id(&id)).await {
                Ok(message) => Some(message),
                Err(Error::NotFound(_)) => None,
                Err(error) => {
                    self.fail(format!("{id} cannot be read: {error}"));
                    continue;
                }
            };
            let state = message
                .as_ref()
                .map(|message| StateName::from(message.record.state()));
            if let Some(state) = state {
                states.entry(state).or_default().insert(id.clone());
            }
            if !agrees(&kept, message.as_ref(), &seen) {
                let (life, tag) = (kept.life, kept.tag);
                let history = message.map(|message| message.history);
                self.fail(format!(
                    "{id} of {tag} is {life:?} by the model, and {state:?} by the store: {history:?}"
                ));
            }
        }
        self.judge_lists(&states).await;
    }

    /// Lists have what single messages say. What moves meanwhile does not count.
    async fn judge_lists(&mut self, states: &BTreeMap<StateName, BTreeSet<String>>) {
        for state in [StateName::Withdrawn, StateName::Dead, StateName::Scheduled] {
            let expected = states.get(&state).cloned().unwrap_or_default();
            let mut listed = BTreeSet::new();
            let mut by_topic = BTreeSet::new();
            for topic in [None, Some("t0"), Some("t1"), Some("t2")] {
                let mut query = Query {
                    topic: topic.map(str::to_owned),
                    limit: 7,
                    ..Query::new(state)
                };
                loop {
                    let page = match self.delays.list(&query).await {
                        Ok(page) => page,
                        Err(error) => {
                            self.fail(format!("{state:?} cannot be listed: {error}"));
                            return;
                        }
                    };
                    let ids = page.messages.iter().map(|message| message.id.to_string());
                    if topic.is_some() {
                        by_topic.extend(ids);
                    } else {
                        listed.extend(ids);
                    }
                    match page.next {
                        Some(next) => query.after = Some(next),
                        None => break,
                    }
                }
            }
            if listed
                .difference(&by_topic)
                .any(|id| !self.unsure.contains(id))
            {
                self.fail(format!(
                    "{state:?}: the list of all and those of topics differ"
                ));
            }
            let mut missing = Vec::new();
            for id in expected.difference(&listed) {
                // Some were due, and fired between the two.
                let now = self.delays.get(&Self::id(id)).await;
                let is_still =
                    now.is_ok_and(|message| StateName::from(message.record.state()) == state);
                if is_still {
                    missing.push(id);
                }
            }
            if !missing.is_empty() {
                self.fail(format!("{missing:?} are {state:?}, and not in the list"));
            }
            let counts = self.delays.counts();
            let counted = counts.values().map(|counts| match state {
                StateName::Withdrawn => counts.withdrawn,
                StateName::Dead => counts.dead,
                _ => counts.scheduled,
            });
            let counted: u64 = counted.sum();
            // Those without an answer may be on their way.
            let apart = counted.abs_diff(listed.len() as u64);
            if apart > self.unsure.len() as u64 {
                let listed = listed.len();
                self.fail(format!(
                    "{counted} are counted as {state:?}, and {listed} listed"
                ));
            }
        }
    }

    /// All submissions that were ever seen by the receiver.
    pub(super) fn seen_tags(&self) -> BTreeSet<u64> {
        self.witness.since(0).iter().map(|seen| seen.tag).collect()
    }

    pub(super) fn verdict(&self) -> Verdict {
        let mut verdict = Verdict::new()
            .count("steps", self.steps)
            .count("reopened", self.lives)
            .count("power cuts", self.cuts)
            .count("submitted", self.submitted)
            .count("withdrawn", self.withdrawn)
            .count("stopped", self.stopped)
            .count("forgotten", self.forgotten)
            .count("flipped bits", self.flipped)
            .count("deliveries", self.witness.len() as u64)
            .count("without an answer", self.unsure.len() as u64)
            .must_be("promises broken", self.wrong.len() as u64, 0);
        for wrong in self.wrong.iter().take(20) {
            verdict = verdict.detail(wrong.clone());
        }
        verdict
    }
}
