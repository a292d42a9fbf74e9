//! Going over messages in the order of their places, past what cannot be read.
//!
//! The engine reads blocks of rows, and one that is damaged hides all rows in it and, to a plain scan, all that
//! come after it. The table `topics` has the same places in another order: where the scan
//! breaks off, the next places are taken from there and their rows are read one by one, and behind them the scan is tried again.

use std::ops::ControlFlow;

use super::batch::row_of;
use super::codec::Location;
use super::tables::{Table, Tables, failed, opened};
use super::{Shared, keys};
use crate::store::DueKey;
use crate::{Error, StateName};

/// How many rows are read one by one before a scan is tried again.
const ONE_BY_ONE: usize = 256;

/// A row, or why there is none.
pub(super) type Found<'a> = Result<&'a [u8], Error>;

/// Whether what an error says stays so, however often it is tried.
pub(super) fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Damaged { .. })
}

impl Shared {
    /// Visits the messages of a state from one place to before another, behind their checksums, until it is
    /// told to stop. What cannot be read is visited, too, as far as it is known that it is there.
    ///
    /// # Errors
    /// What the system says, if it may say something else the next time.
    pub(super) fn walk(
        &self,
        tables: &Tables,
        state: StateName,
        mut from: DueKey,
        until: DueKey,
        mut visit: impl FnMut(DueKey, Found<'_>) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let key = |due_key| {
            let fingerprint = 0;
            row_of(Location {
                state,
                due_key,
                fingerprint,
            })
        };
        while from < until {
            let (table, first) = key(from);
            let (_, last) = key(until);
            let mut broken = None;
            for row in tables.table(table).range(first..last) {
                let (key, row) = match row.into_inner() {
                    Ok(row) => row,
                    Err(error) => {
                        broken = Some(failed(table, error));
                        break;
                    }
                };
                let due_key = match table {
                    Table::Due => keys::read_due_key(&key),
                    _ => keys::read_ended(&key),
                };
                let Some(due_key) = due_key else {
                    self.damage.tell(&super::tables::damaged(table, &key));
                    continue;
                };
                from = due_key.next();
                if visit(due_key, opened(table, &key, &row, self.identity)).is_break() {
                    return Ok(());
                }
            }
            let Some(error) = broken else { return Ok(()) };
            if !is_damage(&error) || laneway_disk::planted("delay-scan") {
                return Err(error);
            }
            self.damage.tell(&error);
            let (due_keys, is_all) = self.due_keys(tables, state, from, until)?;
            for (due_key, topic) in due_keys {
                from = due_key.next();
                let (table, key) = key(due_key);
                let row = tables.get(table, &key, self.identity);
                let found = match &row {
                    Ok(Some(row)) => Ok(&row[..]),
                    // It has moved since.
                    Ok(None) => continue,
                    Err(error) if is_damage(error) => {
                        if table == Table::Due {
                            self.damage.set_aside(due_key, Some(&topic), error);
                        }
                        Err(error.clone())
                    }
                    Err(error) => return Err(error.clone()),
                };
                if visit(due_key, found).is_break() {
                    return Ok(());
                }
            }
            if is_all {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Where the next messages of a state are, by their topics; and whether those are all.
    fn due_keys(
        &self,
        tables: &Tables,
        state: StateName,
        from: DueKey,
        until: DueKey,
    ) -> Result<(Vec<(DueKey, String)>, bool), Error> {
        let topics: Vec<String> = self.contents().counts.keys().cloned().collect();
        let mut due_keys = Vec::new();
        let mut is_all = true;
        for topic in topics {
            let range = keys::of_topic(&topic, state, from)..keys::of_topic(&topic, state, until);
            let before = due_keys.len();
            for row in tables.topics.range(range).take(ONE_BY_ONE) {
                match row.key() {
                    Ok(key) => {
                        due_keys.extend(
                            keys::read_of_topic(&key).map(|due_key| (due_key, topic.clone())),
                        );
                    }
                    Err(error) => {
                        let error = failed(Table::Topics, error);
                        if !is_damage(&error) {
                            return Err(error);
                        }
                        self.damage.tell(&error);
                        break;
                    }
                }
            }
            is_all &= due_keys.len() - before < ONE_BY_ONE;
        }
        due_keys.sort_unstable();
        is_all &= due_keys.len() <= ONE_BY_ONE;
        due_keys.truncate(ONE_BY_ONE);
        Ok((due_keys, is_all))
    }
}
