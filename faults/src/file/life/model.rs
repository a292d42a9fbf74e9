//! What must be there: everything that was acknowledged, and nothing that was not.

use std::collections::{BTreeMap, BTreeSet};

use super::words::{Found, FoundTopic, Item, Keep, Nature, Word};
use crate::file::mount::Cut;

/// So long after the power is gone a sync that was on its way may still answer.
const AFTERGLOW_NS: u64 = 500_000_000;

/// Whether a topic is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Being {
    There,
    /// It was being made or deleted when something broke.
    Unknown,
}

#[derive(Debug)]
pub(super) struct TopicModel {
    pub(super) nature: Nature,
    pub(super) being: Being,
    /// Whether it ever got more partitions: order held until then.
    pub(super) has_grown: bool,
    /// Keys by the number of what was submitted.
    keys: BTreeMap<u64, String>,
    /// Numbers by place.
    acked: BTreeMap<(u32, u64), u64>,
    places: BTreeMap<u64, (u32, u64)>,
    done: BTreeSet<u64>,
    /// Places of what was ever put aside.
    aside: BTreeSet<(u64, u64)>,
}

/// What must hold.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) topics: BTreeMap<String, TopicModel>,
    pub(super) violations: Vec<String>,
    pub(super) acked: u64,
    pub(super) handled: u64,
    next: u64,
}

impl TopicModel {
    fn new(nature: Nature) -> Self {
        Self {
            nature,
            being: Being::Unknown,
            has_grown: false,
            keys: BTreeMap::new(),
            acked: BTreeMap::new(),
            places: BTreeMap::new(),
            done: BTreeSet::new(),
            aside: BTreeSet::new(),
        }
    }

    fn keeps_all(&self) -> bool {
        self.nature.keep == Keep::All
    }
}

impl Model {
    /// A number for the next event.
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn broken(&mut self, what: String) {
        self.violations.push(what);
    }

    /// A topic is asked for: a new one, or another number of partitions.
    pub(super) fn declare(&mut self, name: &str, nature: Nature) {
        let topic = self.topics.entry(name.to_owned());
        let topic = topic.or_insert_with(|| TopicModel::new(nature));
        topic.has_grown |= topic.nature.partitions != nature.partitions;
        topic.nature = nature;
    }

    pub(super) fn submit(&mut self, topic: &str, items: &[Item]) {
        if let Some(topic) = self.topics.get_mut(topic) {
            let items = items.iter().map(|item| (item.seq, item.key.clone()));
            topic.keys.extend(items);
        }
    }

    /// A topic was deleted: the next one of its name is another one.
    pub(super) fn gone(&mut self, name: &str) {
        self.topics.remove(name);
    }

    /// Takes in what was said. What a machine says whose power is gone does not count.
    pub(super) fn hear(&mut self, word: &Word, cut: Option<Cut>) {
        match word {
            Word::Acked {
                topic,
                seq,
                at,
                time,
            } => {
                if let Some(cut) = cut.filter(|cut| *time >= cut.began) {
                    if *time > cut.done + AFTERGLOW_NS {
                        self.broken(format!("{topic}: {seq} was acknowledged without power"));
                    }
                    return;
                }
                self.acked += 1;
                let Some(model) = self.topics.get_mut(topic) else {
                    return;
                };
                model.places.insert(*seq, *at);
                let before = model.acked.insert(*at, *seq);
                if before.is_some_and(|before| before != *seq) {
                    self.broken(format!("{topic}: {seq} got the place {at:?} of {before:?}"));
                }
            }
            Word::Ran {
                topic,
                seq,
                is_done: true,
                time,
            } => {
                if cut.is_some_and(|cut| *time >= cut.began) {
                    return;
                }
                self.ran(topic, *seq);
            }
            _ => {}
        }
    }

    fn ran(&mut self, name: &str, seq: u64) {
        self.handled += 1;
        let Some(topic) = self.topics.get_mut(name) else {
            return;
        };
        let is_first = topic.done.insert(seq);
        let mut broken = None;
        if topic.nature.is_plain {
            if !is_first {
                broken = Some(format!("{name}: the plain message {seq} ran twice"));
            }
        } else if is_first && topic.nature.parks && topic.keeps_all() && !topic.has_grown {
            let key = topic.keys.get(&seq);
            let place = topic.places.get(&seq).copied();
            let before = place.map(|place| topic.acked.range((place.0, 0)..place));
            let earlier = before.into_iter().flatten().find(|(_, earlier)| {
                topic.keys.get(earlier) == key && !topic.done.contains(earlier)
            });
            if let (Some((_, earlier)), Some(key)) = (earlier, key) {
                broken = Some(format!("{name}: {seq} of {key} overtook {earlier}"));
            }
        }
        self.violations.extend(broken);
    }

    /// Compares with what was found.
    pub(super) fn verify(&mut self, found: &Found) {
        let mut broken = Vec::new();
        let there: BTreeMap<_, _> = found
            .topics
            .iter()
            .map(|topic| (&*topic.name, topic))
            .collect();
        let mut gone = Vec::new();
        for (name, model) in &mut self.topics {
            match (model.being, there.get(&**name)) {
                (Being::There, None) => broken.push(format!("{name}: the topic is not there")),
                (Being::Unknown, None) => gone.push(name.clone()),
                (_, Some(found)) => {
                    model.being = Being::There;
                    model.verify(found, &mut broken);
                }
            }
        }
        for name in there.keys() {
            if !self.topics.contains_key(*name) {
                broken.push(format!("{name}: a topic is back that was deleted"));
            }
        }
        for name in gone {
            self.topics.remove(&name);
        }
        self.violations.extend(broken);
    }

    /// Everything was handled that can be: whatever was acknowledged is done, or was dropped.
    pub(super) fn verify_drained(&mut self) {
        let mut broken = Vec::new();
        for (name, topic) in &self.topics {
            if topic.nature.is_plain || !topic.keeps_all() {
                continue;
            }
            for ((partition, offset), seq) in &topic.acked {
                let place = (u64::from(*partition), *offset);
                if !topic.done.contains(seq) && !topic.aside.contains(&place) {
                    broken.push(format!("{name}: {seq} at {place:?} was never handled"));
                }
            }
        }
        self.violations.extend(broken);
    }
}

impl TopicModel {
    fn verify(&mut self, found: &FoundTopic, broken: &mut Vec<String>) {
        let name = &found.name;
        let events: BTreeMap<_, _> = found
            .events
            .iter()
            .map(|(partition, offset, seq)| ((*partition, *offset), *seq))
            .collect();
        for (place, seq) in &self.acked {
            match events.get(place) {
                Some(found) if found == seq => {}
                Some(found) => {
                    broken.push(format!("{name}: {found} is at {place:?} instead of {seq}"));
                }
                None => {
                    // Retention takes the oldest of a partition, and never what comes after one that is there.
                    let older = events.range((place.0, 0)..*place).next();
                    if self.keeps_all() || older.is_some() {
                        broken.push(format!(
                            "{name}: {seq} at {place:?} was acknowledged and is gone"
                        ));
                    }
                }
            }
        }
        for (place, seq) in &events {
            if *seq > 0 && !self.keys.contains_key(seq) {
                broken.push(format!("{name}: {seq} at {place:?} was never published"));
            }
        }
        let mut places = events.keys().copied().peekable();
        while let Some((partition, offset)) = places.next() {
            let next = places.peek().filter(|next| next.0 == partition);
            if next.is_some_and(|next| next.1 != offset + 1) {
                broken.push(format!(
                    "{name}: something is missing after {partition}/{offset}"
                ));
            }
        }
        self.aside.extend(found.aside.iter().copied());
        if self.nature.is_plain {
            return;
        }
        // What is settled was handled, or put aside.
        for (partition, low, above) in &found.settled {
            for ((_, offset), seq) in self.acked.range((*partition, 0)..=(*partition, u64::MAX)) {
                let is_above = |(start, end): &(u64, u64)| (*start..=*end).contains(offset);
                let is_settled = offset < low || above.iter().any(is_above);
                let is_aside = self.aside.contains(&(u64::from(*partition), *offset));
                if is_settled && self.keeps_all() && !self.done.contains(seq) && !is_aside {
                    broken.push(format!(
                        "{name}: {seq} at {partition}/{offset} is settled and was not handled"
                    ));
                }
            }
        }
    }
}
