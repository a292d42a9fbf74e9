//! Going on after the engine gave up on a table that it could not read.
//!
//! Reading goes [past](super::walk) a damaged block; merging the table that has it does not, and then the engine writes nothing
//! any more. So the table is written anew ([`laneway_disk::salvage`]), with what other tables know of the rows that
//! cannot be read. Those of messages stay as rows without a checksum: they cannot be read, as before, and are told of; and no older
//! version of them is ever seen again. Places, marks of topics and what `meta` has are found out in full.

use fjall::Keyspace;
use foldhash::{HashMap, HashMapExt};
use laneway_disk::commit::OpenError;
use laneway_disk::salvage::{DamagedTable, GapRows, damaged_tables};
use laneway_disk::{Directory, numbers, sealed};
use std::path::Path;
use std::sync::atomic::Ordering;

use super::batch::row_of;
use super::codec::{self, Location};
use super::tables::{Marks, Table, Tables, damaged, opened};
use super::{Shared, keys};
use crate::store::DueKey;
use crate::{Error, StateName};

/// In this order: what is mended helps to mend the next.
const ORDER: [Table; 6] = [
    Table::Due,
    Table::Ended,
    Table::Topics,
    Table::Ids,
    Table::Keys,
    Table::Meta,
];

/// Where damaged files are kept, beside the engine's.
const ASIDE: &str = "damaged";

/// Of which topic messages that cannot be read are.
type Topics = HashMap<Vec<u8>, String>;

impl Shared {
    /// Writes all damaged tables anew. The engine is closed. Answers whether there were any.
    pub(super) fn mend(&self, directory: &mut Directory) -> Result<bool, OpenError> {
        let began = std::time::Instant::now();
        let mut mended = 0;
        for table in ORDER {
            mended += self
                .mend_table(directory, table)
                .map_err(|error| match error {
                    Error::Damaged { .. } | Error::Format { .. } | Error::Failed(_) => {
                        OpenError::Stays(error.to_string())
                    }
                    error => OpenError::Passes(error.to_string()),
                })?;
        }
        let directory = directory.path().display();
        tracing::info!(%directory, mended, elapsed = ?began.elapsed(), "all tables were read");
        Ok(mended > 0)
    }

    fn mend_table(&self, directory: &mut Directory, table: Table) -> Result<usize, Error> {
        directory.prepare(&Marks {
            identity: self.identity,
        })?;
        let tables = Tables::open_idle(&directory.log(), self.sizes)
            .map_err(|error| laneway_disk::Error::opening(directory.path(), error))?;
        let commit = directory.seal.commit;
        let aside = directory.path().join(ASIDE);
        // One at a time: each is a file of many megabytes, and there is hardly ever more than one.
        let mut salvaged = Vec::new();
        for (number, damaged) in damaged_tables(tables.table(table))?.iter().enumerate() {
            let folder = aside.join(format!("new-{number}"));
            salvaged.push((
                self.mend_one(&tables, table, damaged, commit, &folder)?,
                folder,
            ));
        }
        drop(tables);
        let count = salvaged.len();
        for (salvaged, folder) in salvaged {
            let kept = salvaged.put_in_place(&aside)?;
            tracing::error!(
                table = ?table,
                damaged = %kept.display(),
                "a table was damaged; it was written anew with all that can be read, and the damaged file is kept"
            );
            // It is empty; and the next one makes it again.
            let _ = std::fs::remove_dir(folder);
        }
        Ok(count)
    }

    fn mend_one(
        &self,
        tables: &Tables,
        table: Table,
        hidden: &DamagedTable,
        commit: u64,
        folder: &Path,
    ) -> Result<laneway_disk::salvage::Salvaged, Error> {
        let mut topics = Topics::new();
        let known = match table {
            Table::Due | Table::Ended => messages(tables, table, hidden, &mut topics),
            Table::Ids | Table::Topics => self.pointers(tables, table, hidden),
            Table::Keys => used_keys(tables, hidden),
            Table::Meta => self.meta(hidden, commit),
        };
        let (salvaged, missing) = hidden.rewrite(&known, folder)?;
        if table == Table::Due {
            for key in missing {
                // Of others it is known that they are not there any more.
                if let (Some(due_key), Some(topic)) = (keys::read_due_key(&key), topics.get(&key)) {
                    let error = damaged(table, &key);
                    self.damage.set_aside(due_key, Some(topic), &error);
                }
            }
        }
        Ok(salvaged)
    }

    /// Rows that follow from those of messages: where each is, and that it is one of its topic.
    fn pointers(&self, tables: &Tables, table: Table, hidden: &DamagedTable) -> GapRows {
        let mut rows = GapRows::new();
        for source in [Table::Due, Table::Ended] {
            each(tables.table(source), |key, row| {
                let location = match source {
                    Table::Due => keys::read_due_key(key).zip(Some(StateName::Scheduled)),
                    _ => keys::read_ended(key).zip(key.first().and_then(|tag| keys::state(*tag))),
                };
                let row = opened(source, key, row, self.identity).ok();
                let message = row.and_then(|row| codec::decode_with_fingerprint(row).ok());
                let (Some((due_key, state)), Some((message, fingerprint))) = (location, message)
                else {
                    return;
                };
                let (key, row) = if table == Table::Ids {
                    let key = message.id.as_str().as_bytes().to_vec();
                    let location = Location {
                        state,
                        due_key,
                        fingerprint,
                    };
                    let row = location.sealed(&key, self.identity);
                    (key, row)
                } else {
                    let key = keys::of_topic(&message.topic, state, due_key);
                    codec::marked(key, self.identity)
                };
                if hidden.hides(&key) {
                    rows.insert(key, Some(row));
                }
            });
        }
        rows
    }

    /// What is known in memory, too. Nothing is claimed to be done that may not be.
    fn meta(&self, hidden: &DamagedTable, commit: u64) -> GapRows {
        let number = |number: u64| Some(numbers([number, 0]));
        let (covered, doubt) = (self.covered.load(Ordering::Acquire), self.doubt);
        let next = self.next_serial.load(Ordering::Acquire);
        let mut known = vec![
            (keys::COMMIT.to_vec(), number(commit)),
            (keys::NEXT_SERIAL.to_vec(), number(next)),
            // From the beginning: it rises again.
            (keys::FLOOR.to_vec(), Some(numbers([0, 0]))),
            (
                keys::CLAIMED.to_vec(),
                (covered > 0).then(|| numbers([covered, 0])),
            ),
            (
                keys::DOUBT.to_vec(),
                Some(numbers([doubt.before, doubt.below])),
            ),
        ];
        for (topic, counts) in &self.contents().counts {
            let counts = [
                counts.scheduled,
                counts.delivered,
                counts.dead,
                counts.withdrawn,
            ];
            known.push((keys::topic(topic), Some(numbers(counts))));
        }
        let known = known.into_iter().filter(|(key, _)| hidden.hides(key));
        known
            .map(|(key, row)| {
                let row = row.map(|row| sealed(&key, &row, self.identity));
                (key, row)
            })
            .collect()
    }
}

/// Messages that are there, and cannot be read: rows that no checksum matches.
fn messages(tables: &Tables, table: Table, hidden: &DamagedTable, topics: &mut Topics) -> GapRows {
    let mut rows = GapRows::new();
    each(&tables.topics, |key, _| {
        let Some((topic, state, due_key)) = of_topic(key) else {
            return;
        };
        let (found, key) = row_of(Location {
            state,
            due_key,
            fingerprint: 0,
        });
        if found == table && hidden.hides(&key) {
            topics.insert(key.clone(), topic);
            rows.insert(key, Some(Vec::new()));
        }
    });
    rows
}

fn of_topic(key: &[u8]) -> Option<(String, StateName, DueKey)> {
    let due_key = keys::read_of_topic(key)?;
    let rest = key.get(2..key.len().checked_sub(16)?)?;
    let (tag, topic) = rest.split_last()?;
    let topic = String::from_utf8(topic.to_vec()).ok()?;
    Some((topic, keys::state(*tag)?, due_key))
}

/// Keys of which it is known that they were used, and not what for: they are refused until they are forgotten.
fn used_keys(tables: &Tables, hidden: &DamagedTable) -> GapRows {
    let mut rows = GapRows::new();
    each(&tables.keys, |key, _| {
        if let Some((_, used)) = keys::read_used_at(key) {
            let key = keys::used(used);
            if hidden.hides(&key) {
                rows.insert(key, Some(Vec::new()));
            }
        }
    });
    rows
}

/// Visits the rows of a table; where it is damaged, from both ends.
fn each(keyspace: &Keyspace, mut visit: impl FnMut(&[u8], &[u8])) {
    for row in keyspace.iter().map(fjall::Guard::into_inner) {
        if let Ok((key, row)) = row {
            visit(&key, &row);
            continue;
        }
        let behind = keyspace.iter().rev().map(fjall::Guard::into_inner);
        for (key, row) in behind.map_while(Result::ok) {
            visit(&key, &row);
        }
        return;
    }
}
