//! A history with its names turned into numbers, so that judging a million records takes a moment.

use foldhash::HashMap;

use super::event::{Event, Record};

/// What the whole history says about a message.
#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own, and all combine"
)]
pub(super) struct Facts {
    pub(super) key: usize,
    pub(super) seq: u64,
    pub(super) submitted: bool,
    pub(super) acked: bool,
    pub(super) refused: bool,
    pub(super) starts: bool,
    /// Has an end that was meant to be the last.
    pub(super) finishes: bool,
    /// Where to look for it last.
    pub(super) last_record: usize,
}

#[derive(Debug, Default)]
pub(super) struct Index {
    /// For each record its message, if it has one.
    pub(super) message_of: Vec<Option<usize>>,
    pub(super) messages: Vec<Facts>,
    pub(super) keys: usize,
}

impl Index {
    pub(super) fn new(records: &[Record]) -> Self {
        let mut index = Self::default();
        let mut keys: HashMap<&str, usize> = HashMap::default();
        let mut ids: HashMap<(usize, u64), usize> = HashMap::default();
        for (at, record) in records.iter().enumerate() {
            let id = record.event.message().map(|message| {
                let fresh_key = keys.len();
                let key = *keys.entry(&message.key).or_insert(fresh_key);
                let id = *ids
                    .entry((key, message.seq))
                    .or_insert(index.messages.len());
                if id == index.messages.len() {
                    index.messages.push(Facts {
                        key,
                        seq: message.seq,
                        ..Facts::default()
                    });
                }
                let facts = &mut index.messages[id];
                facts.last_record = at;
                match record.event {
                    Event::Submitted(_) => facts.submitted = true,
                    Event::Acked(_) => facts.acked = true,
                    Event::Refused(_) => facts.refused = true,
                    Event::Started(..) => facts.starts = true,
                    Event::Finished { outcome, .. } => facts.finishes |= outcome.is_final(),
                    Event::Settled(_) | Event::Crashed { .. } => {}
                }
                id
            });
            index.message_of.push(id);
        }
        index.keys = keys.len();
        index
    }

    /// For each key its messages that are wanted, by sequence.
    pub(super) fn by_key(&self, wanted: impl Fn(&Facts) -> bool) -> Vec<Vec<usize>> {
        let mut by_key = vec![Vec::new(); self.keys];
        for (id, facts) in self.messages.iter().enumerate() {
            if wanted(facts) {
                by_key[facts.key].push(id);
            }
        }
        for ids in &mut by_key {
            ids.sort_unstable_by_key(|id| self.messages[*id].seq);
        }
        by_key
    }
}
