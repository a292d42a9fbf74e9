//! Looking something up.

use std::sync::Arc;

use fjall::Readable;

use super::batch::row_of;
use super::claims::Firing;
use super::codec::{self, Location};
use super::tables::{Table, Tables, damaged, failed, opened};
use super::{Shared, keys};
use crate::store::{Claim, Place, Waiting, change};
use crate::{Cursor, Error, Message, MessageId, Page, Query, StateName, Timestamp};

/// Fewer than these are looked up one by one; of more it is worth to read what lies between them.
const SCAN_FROM: usize = 32;

/// A message, with what was submitted as a number; `None` if it is not there.
type Row = Option<(Message, u64)>;

impl Shared {
    pub(super) fn claim(&self, waiting: &[Waiting], now: Timestamp) -> Result<Vec<Claim>, Error> {
        let places = waiting.iter().map(|waiting| waiting.place);
        let noted = self.claims.begin(places);
        let noted: Vec<Waiting> = waiting
            .iter()
            .zip(noted)
            .filter_map(|(waiting, is_noted)| is_noted.then_some(*waiting))
            .collect();
        // IMPORTANT: the rows are read after the claims are noted.
        let rows = self.with_tables(|tables| self.rows(tables, &noted));
        let release = || {
            self.claims.end(noted.iter().map(|waiting| waiting.place));
        };
        let rows = rows.inspect_err(|_| release())?;
        let claim = |(waiting, row): (&Waiting, Row)| {
            let (message, print) = row?;
            Some((change::claimed(message, waiting, now)?, print))
        };
        let claims: Vec<_> = noted.iter().zip(rows).map(claim).collect();
        let stale = noted
            .iter()
            .zip(&claims)
            .filter(|(_, claim)| claim.is_none())
            .map(|(waiting, _)| waiting.place);
        self.claims.end(stale);
        let firing = claims.iter().flatten().map(|(claim, print)| {
            let (message, print) = (claim.message.clone(), *print);
            (claim.place, Firing { message, print })
        });
        self.claims.fire(firing);
        Ok(claims
            .into_iter()
            .flatten()
            .map(|(claim, _)| claim)
            .collect())
    }

    /// The messages that stand at these places, if they do.
    fn rows(&self, tables: &Tables, waiting: &[Waiting]) -> Result<Vec<Row>, Error> {
        if waiting.len() >= SCAN_FROM
            && waiting.is_sorted_by_key(|waiting| waiting.place)
            && let Some(rows) = self.rows_between(tables, waiting)?
        {
            return Ok(rows);
        }
        let row = |waiting: &Waiting| {
            let key = keys::place(waiting.place);
            let row = tables.get(Table::Line, &key, self.identity)?;
            row.map(|row| codec::decode_with_print(&row).map_err(|_| damaged(Table::Line, &key)))
                .transpose()
        };
        waiting.iter().map(row).collect()
    }

    /// The same by one scan. `None` if there is too much between them.
    fn rows_between(
        &self,
        tables: &Tables,
        waiting: &[Waiting],
    ) -> Result<Option<Vec<Row>>, Error> {
        let (Some(first), Some(last)) = (waiting.first(), waiting.last()) else {
            return Ok(None);
        };
        let mut found = vec![None; waiting.len()];
        let (mut at, mut passed) = (0, 0);
        for row in tables
            .line
            .range(keys::place(first.place)..=keys::place(last.place))
        {
            let (key, row) = row
                .into_inner()
                .map_err(|error| failed(Table::Line, error))?;
            let place = keys::read_place(&key).ok_or_else(|| damaged(Table::Line, &key))?;
            while at < waiting.len() && waiting[at].place < place {
                at += 1;
            }
            if waiting
                .get(at)
                .is_some_and(|waiting| waiting.place == place)
            {
                let row = opened(Table::Line, &key, &row, self.identity)?;
                let message =
                    codec::decode_with_print(row).map_err(|_| damaged(Table::Line, &key))?;
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
        from: Place,
        until: Place,
        limit: usize,
    ) -> Result<Vec<Waiting>, Error> {
        if from >= until {
            return Ok(Vec::new());
        }
        self.with_tables(|tables| {
            let rows = tables
                .line
                .range(keys::place(from)..keys::place(until))
                .take(limit);
            let mut found = Vec::new();
            for row in rows {
                let (key, row) = row
                    .into_inner()
                    .map_err(|error| failed(Table::Line, error))?;
                let place = keys::read_place(&key).ok_or_else(|| damaged(Table::Line, &key))?;
                let row = opened(Table::Line, &key, &row, self.identity)?;
                let (route, version) =
                    codec::decode_head(row).map_err(|_| damaged(Table::Line, &key))?;
                found.push(Waiting {
                    place,
                    version,
                    route,
                });
            }
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
                && let Some(firing) = self.claims.message(location.place)
            {
                return Ok(Some(Arc::unwrap_or_clone(firing)));
            }
            let (table, key) = row_of(location);
            let row = snapshot
                .get(tables.table(table), &key)
                .map_err(|error| failed(table, error))?;
            let row = row.ok_or_else(|| damaged(table, &key))?;
            let row = opened(table, &key, &row, self.identity)?;
            codec::decode(row)
                .map(Some)
                .map_err(|_| damaged(table, &key))
        })
    }

    pub(super) fn list(&self, query: &Query) -> Result<Page, Error> {
        let from = Place::at(query.from.unwrap_or(Timestamp::from_millis(0)));
        let until = Place::at(query.until.unwrap_or(Timestamp::MAX));
        let from = match query.after {
            Some(after) => from.max(
                Place {
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
            // Nobody waits before the floor. Ended ones have none: a clock that was set back ends messages before
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

    fn list_firing(&self, query: &Query, from: Place, until: Place) -> Page {
        let firing = self.claims.all().into_iter().map(|(place, message)| {
            let at = message.record.due();
            (Place { at, ..place }, message)
        });
        let mut firing: Vec<_> = firing
            .filter(|(place, _)| (from..until).contains(place))
            .filter(|(_, message)| is_of(query, message))
            .collect();
        firing.sort_unstable_by_key(|(place, _)| *place);
        let mut page = Page::default();
        let limit = limit(query);
        if let Some((place, _)) = firing.get(limit - 1) {
            page.next = Some(cursor(*place));
        }
        firing.truncate(limit);
        page.messages = firing
            .into_iter()
            .map(|(_, message)| Arc::unwrap_or_clone(message))
            .collect();
        page
    }

    /// Messages in the order of their places.
    fn list_all(
        &self,
        tables: &Tables,
        query: &Query,
        from: Place,
        until: Place,
    ) -> Result<Page, Error> {
        let place = |place| Location {
            state: query.state,
            place,
            print: 0,
        };
        let (table, from) = row_of(place(from));
        let (_, until) = row_of(place(until));
        let mut page = Listing::new(self, query);
        for row in tables.table(table).range(from..until) {
            let (key, row) = row.into_inner().map_err(|error| failed(table, error))?;
            let place = match table {
                Table::Line => keys::read_place(&key),
                _ => keys::read_ended(&key),
            };
            let place = place.ok_or_else(|| damaged(table, &key))?;
            if page.add(place, table, &key, &row)? {
                break;
            }
        }
        Ok(page.page)
    }

    /// The same of one topic.
    fn list_topic(
        &self,
        tables: &Tables,
        query: &Query,
        topic: &str,
        from: Place,
        until: Place,
    ) -> Result<Page, Error> {
        let state = query.state;
        let key = |place| keys::of_topic(topic, state, place);
        let mut page = Listing::new(self, query);
        // Both rows as they were at one moment.
        let snapshot = tables.database.snapshot();
        for row in snapshot.range(&tables.topics, key(from)..key(until)) {
            let (key, row) = row
                .into_inner()
                .map_err(|error| failed(Table::Topics, error))?;
            opened(Table::Topics, &key, &row, self.identity)?;
            let place = keys::read_of_topic(&key).ok_or_else(|| damaged(Table::Topics, &key))?;
            let (table, key) = row_of(Location {
                state,
                place,
                print: 0,
            });
            let row = snapshot
                .get(tables.table(table), &key)
                .map_err(|error| failed(table, error))?;
            let row = row.ok_or_else(|| damaged(table, &key))?;
            if page.add(place, table, &key, &row)? {
                break;
            }
        }
        Ok(page.page)
    }
}

/// A page in the making.
struct Listing<'a> {
    shared: &'a Shared,
    limit: usize,
    page: Page,
}

impl<'a> Listing<'a> {
    fn new(shared: &'a Shared, query: &Query) -> Self {
        Self {
            shared,
            limit: limit(query),
            page: Page::default(),
        }
    }

    /// Adds a row, unless its message is firing; answers whether the page is full.
    fn add(&mut self, place: Place, table: Table, key: &[u8], row: &[u8]) -> Result<bool, Error> {
        if table == Table::Line && self.shared.claims.is_firing(place) {
            return Ok(false);
        }
        let row = opened(table, key, row, self.shared.identity)?;
        let message = codec::decode(row).map_err(|_| damaged(table, key))?;
        self.page.messages.push(message);
        let is_full = self.page.messages.len() == self.limit;
        if is_full {
            self.page.next = Some(cursor(place));
        }
        Ok(is_full)
    }
}

fn limit(query: &Query) -> usize {
    query.limit.clamp(1, Query::MAX_LIMIT)
}

fn is_of(query: &Query, message: &Message) -> bool {
    let topic = query.topic.as_ref();
    topic.is_none_or(|topic| *topic == message.topic)
}

fn cursor(place: Place) -> Cursor {
    Cursor {
        at: place.at.as_millis(),
        serial: place.serial,
    }
}
