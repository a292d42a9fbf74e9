//! Looking something up.

use std::ops::ControlFlow;
use std::sync::Arc;

use fjall::Readable;

use super::batch::row_of;
use super::claims::Firing;
use super::codec::{self, Location};
use super::tables::{Table, Tables, damaged, failed, opened};
use super::walk::{Found, is_damage};
use super::{Shared, keys};
use crate::store::{Claim, DueKey, Scheduled, change};
use crate::{Cursor, Error, Message, MessageId, Page, Query, StateName, Timestamp};

/// A message, with what was submitted as a number; `None` if it is not there.
type Row = Option<(Message, u64)>;

impl Shared {
    pub(super) fn claim(&self, waiting: &[Scheduled], now: Timestamp) -> Result<Vec<Claim>, Error> {
        // What cannot be noted is not delivered.
        if let Some(failure) = self.failure()
            && !laneway_disk::planted("delay-claim")
        {
            return Err(failure);
        }
        let due_keys = waiting.iter().map(|waiting| waiting.due_key);
        let noted = self.claims.begin(due_keys);
        let noted: Vec<Scheduled> = waiting
            .iter()
            .zip(noted)
            .filter_map(|(waiting, is_noted)| is_noted.then_some(*waiting))
            .collect();
        // A panic of the engine must not leave them noted for ever.
        let mut reading = Reading {
            shared: self,
            noted: &noted,
            is_done: false,
        };
        // IMPORTANT: the rows are read after the claims are noted.
        let rows = self.with_tables(|tables| self.rows(tables, &noted))?;
        let claim = |(waiting, row): (&Scheduled, Row)| {
            let (message, fingerprint) = row?;
            let message = self.doubted(waiting.due_key, message);
            Some((change::claimed(message, waiting, now)?, fingerprint))
        };
        let claims: Vec<_> = noted.iter().zip(rows).map(claim).collect();
        let stale = noted
            .iter()
            .zip(&claims)
            .filter(|(_, claim)| claim.is_none())
            .map(|(waiting, _)| waiting.due_key);
        self.claims.end(stale);
        let firing = claims.iter().flatten().map(|(claim, fingerprint)| {
            let (message, fingerprint) = (claim.message.clone(), *fingerprint);
            (
                claim.due_key,
                Firing {
                    message,
                    fingerprint,
                },
            )
        });
        self.claims.fire(firing);
        reading.is_done = true;
        Ok(claims
            .into_iter()
            .flatten()
            .map(|(claim, _)| claim)
            .collect())
    }

    /// The messages that stand at these places, if they do.
    fn rows(&self, tables: &Tables, waiting: &[Scheduled]) -> Result<Vec<Row>, Error> {
        #[cfg(test)]
        assert!(!self.claims.panics(), "as asked for");
        if waiting.len() >= self.sizes.scan_from
            && waiting.is_sorted_by_key(|waiting| waiting.due_key)
        {
            match self.rows_between(tables, waiting) {
                Ok(Some(rows)) => return Ok(rows),
                Ok(None) => {}
                // One by one it is found out which.
                Err(error) if is_damage(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let row = |waiting: &Scheduled| {
            let key = keys::due_key(waiting.due_key);
            let row = tables.get(Table::Due, &key, self.identity)?;
            row.map(|row| {
                codec::decode_with_fingerprint(&row).map_err(|_| damaged(Table::Due, &key))
            })
            .transpose()
        };
        let row = |waiting: &Scheduled| match row(waiting) {
            // It is set aside, and holds up no other claim.
            Err(error) if is_damage(&error) => {
                self.damage.set_aside(waiting.due_key, None, &error);
                Ok(None)
            }
            row => row,
        };
        waiting.iter().map(row).collect()
    }

    /// The same by one scan. `None` if there is too much between them.
    fn rows_between(
        &self,
        tables: &Tables,
        waiting: &[Scheduled],
    ) -> Result<Option<Vec<Row>>, Error> {
        let (Some(first), Some(last)) = (waiting.first(), waiting.last()) else {
            return Ok(None);
        };
        let mut found = vec![None; waiting.len()];
        let (mut at, mut passed) = (0, 0);
        for row in tables
            .due
            .range(keys::due_key(first.due_key)..=keys::due_key(last.due_key))
        {
            let (key, row) = row
                .into_inner()
                .map_err(|error| failed(Table::Due, error))?;
            let due_key = keys::read_due_key(&key).ok_or_else(|| damaged(Table::Due, &key))?;
            while at < waiting.len() && waiting[at].due_key < due_key {
                at += 1;
            }
            if waiting
                .get(at)
                .is_some_and(|waiting| waiting.due_key == due_key)
            {
                let row = opened(Table::Due, &key, &row, self.identity)?;
                let message =
                    codec::decode_with_fingerprint(row).map_err(|_| damaged(Table::Due, &key))?;
                found[at] = Some(message);
                at += 1;
            } else {
                passed += 1;
                if passed > 4 * waiting.len() {
                    return Ok(None);
                }
            }
        }
        Ok(Some(found))
    }

    pub(super) fn scan(
        &self,
        from: DueKey,
        until: DueKey,
        limit: usize,
    ) -> Result<Vec<Scheduled>, Error> {
        if from >= until {
            return Ok(Vec::new());
        }
        self.with_tables(|tables| {
            let mut found = Vec::new();
            self.walk(tables, StateName::Scheduled, from, until, |due_key, row| {
                let head = row.and_then(|row| {
                    let broken = |_| damaged(Table::Due, &keys::due_key(due_key));
                    codec::decode_head(row).map_err(broken)
                });
                match head {
                    Ok(head) => found.push(Scheduled {
                        due_key,
                        version: head.version,
                        route: head.route,
                        payload_bytes: head.payload_bytes,
                    }),
                    Err(error) => self.damage.set_aside(due_key, None, &error),
                }
                if found.len() < limit {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })?;
            Ok(found)
        })
    }

    pub(super) fn get(&self, id: &MessageId) -> Result<Option<Message>, Error> {
        self.with_tables(|tables| {
            // Both rows as they were at one moment.
            let snapshot = tables.database.snapshot();
            let key = id.as_str().as_bytes();
            let row = snapshot
                .get(&tables.ids, key)
                .map_err(|error| failed(Table::Ids, error))?;
            let Some(row) = row else { return Ok(None) };
            let location = Location::decode(opened(Table::Ids, key, &row, self.identity)?);
            let location = location.ok_or_else(|| damaged(Table::Ids, key))?;
            if location.state == StateName::Scheduled
                && let Some(firing) = self.claims.message(location.due_key)
            {
                return Ok(Some(Arc::unwrap_or_clone(firing)));
            }
            let (table, key) = row_of(location);
            let row = snapshot
                .get(tables.table(table), &key)
                .map_err(|error| failed(table, error))?;
            let row = row.ok_or_else(|| damaged(table, &key))?;
            let row = opened(table, &key, &row, self.identity)?;
            let message = codec::decode(row).map_err(|_| damaged(table, &key))?;
            Ok(Some(match table {
                Table::Due => self.doubted(location.due_key, message),
                _ => message,
            }))
        })
    }

    pub(super) fn list(&self, query: &Query) -> Result<Page, Error> {
        let from = DueKey::at(query.from.unwrap_or(Timestamp::from_millis(0)));
        let until = DueKey::at(query.until.unwrap_or(Timestamp::MAX));
        let from = match query.after {
            Some(after) => from.max(
                DueKey {
                    at: Timestamp::from_millis(after.at),
                    serial: after.serial,
                }
                .next(),
            ),
            None => from,
        };
        if from >= until {
            return Ok(Page::default());
        }
        if query.state == StateName::Firing {
            return Ok(self.list_firing(query, from, until));
        }
        self.with_tables(|tables| {
            // No message waits before the floor. Ended ones have none: a clock that was set back ends messages before
            // those that are forgotten already.
            let is_scheduled = query.state == StateName::Scheduled;
            let from = if is_scheduled {
                from.max(self.contents().floor)
            } else {
                from
            };
            if from >= until {
                return Ok(Page::default());
            }
            match &query.topic {
                Some(topic) => self.list_topic(tables, query, topic, from, until),
                None => self.list_all(tables, query, from, until),
            }
        })
    }

    fn list_firing(&self, query: &Query, from: DueKey, until: DueKey) -> Page {
        let firing = self.claims.all().into_iter().map(|(due_key, message)| {
            let at = message.record.due();
            (DueKey { at, ..due_key }, message)
        });
        let mut firing: Vec<_> = firing
            .filter(|(due_key, _)| (from..until).contains(due_key))
            .filter(|(_, message)| is_of(query, message))
            .collect();
        firing.sort_unstable_by_key(|(due_key, _)| *due_key);
        let (mut page, mut bytes) = (Page::default(), 0);
        for (due_key, message) in firing {
            bytes += change::held_bytes(&message);
            page.messages.push(Arc::unwrap_or_clone(message));
            if page.messages.len() == limit(query) || bytes >= self.sizes.page_bytes {
                page.next = Some(cursor(due_key));
                break;
            }
        }
        page
    }

    /// Messages in the order of their places.
    fn list_all(
        &self,
        tables: &Tables,
        query: &Query,
        from: DueKey,
        until: DueKey,
    ) -> Result<Page, Error> {
        let mut page = Listing::new(self, query);
        self.walk(tables, query.state, from, until, |due_key, row| {
            page.add(due_key, row)
        })?;
        Ok(page.page)
    }

    /// The same of one topic.
    fn list_topic(
        &self,
        tables: &Tables,
        query: &Query,
        topic: &str,
        from: DueKey,
        until: DueKey,
    ) -> Result<Page, Error> {
        let state = query.state;
        let key = |due_key| keys::of_topic(topic, state, due_key);
        let mut page = Listing::new(self, query);
        // Both rows as they were at one moment.
        let snapshot = tables.database.snapshot();
        for row in snapshot.range(&tables.topics, key(from)..key(until)) {
            let (key, row) = row
                .into_inner()
                .map_err(|error| failed(Table::Topics, error))?;
            opened(Table::Topics, &key, &row, self.identity)?;
            let due_key = keys::read_of_topic(&key).ok_or_else(|| damaged(Table::Topics, &key))?;
            let (table, key) = row_of(Location {
                state,
                due_key,
                fingerprint: 0,
            });
            let row = snapshot
                .get(tables.table(table), &key)
                .map_err(|error| failed(table, error));
            let row = row.and_then(|row| row.ok_or_else(|| damaged(table, &key)));
            let row = match &row {
                Ok(row) => opened(table, &key, row, self.identity),
                Err(error) if is_damage(error) => Err(error.clone()),
                Err(error) => return Err(error.clone()),
            };
            if page.add(due_key, row).is_break() {
                break;
            }
        }
        Ok(page.page)
    }
}

/// A page in the making.
struct Listing<'a> {
    shared: &'a Shared,
    state: StateName,
    limit: usize,
    /// How many of payloads, metadata and headers are on it.
    bytes: usize,
    page: Page,
}

impl<'a> Listing<'a> {
    fn new(shared: &'a Shared, query: &Query) -> Self {
        Self {
            shared,
            state: query.state,
            limit: limit(query),
            bytes: 0,
            page: Page::default(),
        }
    }

    /// Adds a row, unless its message is firing or cannot be read; tells to stop when the page is full.
    fn add(&mut self, due_key: DueKey, row: Found<'_>) -> ControlFlow<()> {
        let is_waiting = self.state == StateName::Scheduled;
        if is_waiting && self.shared.claims.is_firing(due_key) {
            return ControlFlow::Continue(());
        }
        let message = row.and_then(|row| {
            let broken = |_| damaged(Table::Due, &keys::due_key(due_key));
            codec::decode(row).map_err(broken)
        });
        match message {
            Ok(mut message) => {
                if is_waiting {
                    message = self.shared.doubted(due_key, message);
                }
                self.bytes += change::held_bytes(&message);
                self.page.messages.push(message);
            }
            Err(error) if is_waiting => self.shared.damage.set_aside(due_key, None, &error),
            Err(error) => self.shared.damage.tell(&error),
        }
        if self.page.messages.len() < self.limit && self.bytes < self.shared.sizes.page_bytes {
            return ControlFlow::Continue(());
        }
        self.page.next = Some(cursor(due_key));
        ControlFlow::Break(())
    }
}

/// Claims whose rows are being read. Dropped before that is done, they end.
struct Reading<'a> {
    shared: &'a Shared,
    noted: &'a [Scheduled],
    is_done: bool,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            let due_keys = self.noted.iter().map(|waiting| waiting.due_key);
            self.shared.claims.end(due_keys);
        }
    }
}

fn limit(query: &Query) -> usize {
    query.limit.clamp(1, Query::MAX_LIMIT)
}

fn is_of(query: &Query, message: &Message) -> bool {
    let topic = query.topic.as_ref();
    topic.is_none_or(|topic| *topic == message.topic)
}

fn cursor(due_key: DueKey) -> Cursor {
    Cursor {
        at: due_key.at.as_millis(),
        serial: due_key.serial,
    }
}
