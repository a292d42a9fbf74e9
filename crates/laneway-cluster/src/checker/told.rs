use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use laneway_delay::{MessageId, Timestamp};

use super::History;
use crate::apply::{Applied, Kept, Memory, Shard, Stop, Table};
use crate::record::{Change, Record, Reign, Row};

/// A row that counted.
pub(super) struct Counted {
    /// When the broker took its record.
    pub(super) at: Timestamp,
    pub(super) epoch: u64,
    pub(super) reign: Reign,
    pub(super) change: Change,
    /// The message before it.
    pub(super) before: Option<Arc<Kept>>,
}

/// What the log tells, message by message.
pub(super) struct Told {
    pub(super) rows: BTreeMap<MessageId, Vec<Counted>>,
    /// All as it is at the end.
    pub(super) shard: Shard<Memory>,
    /// Messages that were forgotten, and when.
    pub(super) forgotten: BTreeMap<MessageId, Timestamp>,
    /// Messages that were made by a replay.
    pub(super) replayed: BTreeSet<MessageId>,
}

impl Told {
    pub(super) fn read(history: &History) -> Result<Self, Stop> {
        let mut told = Self {
            rows: BTreeMap::new(),
            shard: Shard::new(history.identity.clone(), Memory::default()),
            forgotten: BTreeMap::new(),
            replayed: BTreeSet::new(),
        };
        if history.log.first().is_some_and(|first| first.offset > 1) {
            return Err(Stop::NoBeginning);
        }
        for entry in &history.log {
            let before = told.shard.table().clone();
            let applied = told.shard.apply(entry.offset, &entry.bytes)?;
            if let (Ok(Record::Fact(fact)), Applied::Fact { counted }) =
                (Record::decode(&entry.bytes), applied)
            {
                let (epoch, reign, at) = (fact.epoch, fact.reign, entry.at);
                for (row, counts) in fact.rows.into_iter().zip(counted) {
                    let Row::Message(row) = row else { continue };
                    if !counts {
                        continue;
                    }
                    if let Change::Replayed { to, .. } = &row.change {
                        told.replayed.insert(to.clone());
                    }
                    if matches!(row.change, Change::Forgotten(_)) {
                        told.forgotten.insert(row.id.clone(), at);
                    }
                    let before = before.get(&row.id);
                    told.rows.entry(row.id).or_default().push(Counted {
                        at,
                        epoch,
                        reign,
                        change: row.change,
                        before,
                    });
                }
            }
        }
        Ok(told)
    }

    /// The rows of a message that counted, in order.
    pub(super) fn of(&self, id: &MessageId) -> &[Counted] {
        self.rows.get(id).map_or(&[], Vec::as_slice)
    }

    /// When the message was accepted.
    pub(super) fn accepted(&self, id: &MessageId) -> Option<Timestamp> {
        self.of(id)
            .iter()
            .find(|row| matches!(row.change, Change::Accepted { .. }))
            .map(|row| row.at)
    }
}
