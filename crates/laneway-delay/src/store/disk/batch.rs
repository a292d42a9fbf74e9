//! What changes make of the tables: a commit in the making.
//!
//! Rows are gathered here first. A later change of the same batch finds what an earlier one made, and
//! each key is written once. Two kinds of rows go straight into the batch, since nobody in it can ask for
//! them: those of a new message that nobody else can name yet, and those of settlements, which come last.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fjall::OwnedWriteBatch;
use foldhash::{HashMap, HashMapExt};
use laneway_disk::{numbers, sealed};

use super::ahead::{Ahead, Recent};
use super::claims::Note;
use super::codec::{self, KeyUse, Location};
use super::request::Entry;
use super::tables::{Table, Tables, damaged, failed};
use super::{Shared, keys};
use crate::store::{Asked, Change, Place, Settlement, Waiting, change};
use crate::{Accepted, Counts, Error, Message, MessageId, StateName, Timestamp, TopicCounts};

/// How many old things are forgotten at a time.
const FORGET_AT_ONCE: usize = 2000;

pub(super) struct Batch<'a> {
    shared: &'a Shared,
    tables: &'a Tables,
    recent: &'a mut Recent,
    rows: HashMap<(Table, Vec<u8>), Option<Vec<u8>>>,
    /// Rows on their way.
    writes: OwnedWriteBatch,
    pub(super) bytes: usize,
    pub(super) floor: Place,
    /// The first place that is taken.
    pub(super) lowest: Place,
    counts: HashMap<String, TopicCounts>,
    /// Who takes a place once this is durable, and once it is written.
    pub(super) places: Vec<Waiting>,
    pub(super) quick_places: Vec<Waiting>,
    /// Who is being changed.
    changing: Vec<Place>,
    /// Whose claims end.
    ending: Vec<Place>,
    pub(super) must_sync: bool,
}

/// What a batch has changed, once it is written.
pub(super) struct Written {
    pub(super) floor: Place,
    pub(super) counts: HashMap<String, TopicCounts>,
    pub(super) changing: Vec<Place>,
    pub(super) ending: Vec<Place>,
    pub(super) places: Vec<Waiting>,
    pub(super) quick_places: Vec<Waiting>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(
        shared: &'a Shared,
        tables: &'a Tables,
        recent: &'a mut Recent,
        floor: Place,
    ) -> Self {
        recent.begin(shared.batches.load(Ordering::Acquire));
        Self {
            shared,
            tables,
            recent,
            rows: HashMap::new(),
            writes: tables.database.batch(),
            bytes: 0,
            floor,
            lowest: Place::at(Timestamp::MAX),
            counts: HashMap::new(),
            places: Vec::new(),
            quick_places: Vec::new(),
            changing: Vec::new(),
            ending: Vec::new(),
            must_sync: false,
        }
    }

    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        match self.rows.get(&(table, key.to_vec())) {
            Some(row) => Ok(row.clone()),
            None => self.tables.get(table, key, self.shared.identity),
        }
    }

    fn put(&mut self, table: Table, key: &[u8], row: Option<Vec<u8>>) {
        self.bytes += key.len() + row.as_ref().map_or(0, Vec::len);
        self.rows.insert((table, key.to_vec()), row);
    }

    fn count(&mut self, topic: &str, state: StateName, by: i64) {
        if !self.counts.contains_key(topic) {
            let counts = self.shared.contents().counts.get(topic).copied();
            self.counts
                .insert(topic.to_owned(), counts.unwrap_or_default());
        }
        if let Some(counts) = self.counts.get_mut(topic) {
            let count = counts.of(state);
            *count = count.saturating_add_signed(by);
        }
    }

    pub(super) fn submit(&mut self, entry: Entry) -> Result<Accepted, Error> {
        if let Some(key) = &entry.key
            && let Some(row) = self.get(Table::Keys, &keys::used(&key.key))?
        {
            let used =
                KeyUse::decode(&row).map_err(|_| damaged(Table::Keys, key.key.as_bytes()))?;
            if used.print != entry.print {
                let (key, id) = (key.key.clone(), used.id);
                return Err(Error::KeyReused { key, id });
            }
            return Ok(Accepted {
                id: used.id,
                due: used.due,
                is_new: false,
            });
        }
        let id_key = entry.id.as_str().as_bytes();
        if entry.is_own_id
            && let Some(location) = self.location(&entry.id)?
        {
            change::same_or_taken(location.print == entry.print, &entry.id)?;
            let message = self.message(&entry.id, location)?;
            return Ok(Accepted {
                id: entry.id,
                due: message.record.due(),
                is_new: false,
            });
        }
        self.must_sync = true;
        if entry.is_own_id || entry.key.is_some() {
            // Somebody else may ask for it in this batch.
            self.put_sealed(Table::Ids, id_key, &entry.location);
            self.put_sealed(Table::Line, &keys::place(entry.waiting.place), &entry.row);
            self.put_sealed(Table::Topics, &entry.of_topic.0, &entry.of_topic.1);
        } else {
            let (topic_key, topic_row) = entry.of_topic;
            self.bytes += id_key.len() + entry.location.len() + entry.row.len() + 16;
            self.bytes += topic_key.len() + topic_row.len();
            let place = keys::place(entry.waiting.place);
            self.writes.insert(&self.tables.line, &place[..], entry.row);
            self.writes.insert(&self.tables.ids, id_key, entry.location);
            self.writes
                .insert(&self.tables.topics, topic_key, topic_row);
        }
        if let Some(key) = entry.key {
            self.put(Table::Keys, &keys::used(&key.key), Some(key.used.encode()));
            let age = keys::used_at(key.now, &key.key);
            self.put(Table::Keys, &age, Some(Vec::new()));
        }
        self.take_place(entry.waiting, true);
        self.count(&entry.topic, StateName::Scheduled, 1);
        Ok(Accepted {
            id: entry.id,
            due: entry.due,
            is_new: true,
        })
    }

    /// Puts a row that has its checksum already.
    fn put_sealed(&mut self, table: Table, key: &[u8], row: &[u8]) {
        // The checksum is made again when the batch is written; it is the same.
        self.put(table, key, row.get(4..).map(<[u8]>::to_vec));
    }

    fn take_place(&mut self, waiting: Waiting, when_durable: bool) {
        self.floor = self.floor.min(waiting.place);
        self.lowest = self.lowest.min(waiting.place);
        if when_durable {
            self.places.push(waiting);
        } else {
            self.quick_places.push(waiting);
        }
    }

    fn location(&self, id: &MessageId) -> Result<Option<Location>, Error> {
        let key = id.as_str().as_bytes();
        let Some(row) = self.get(Table::Ids, key)? else {
            return Ok(None);
        };
        let location = Location::decode(&row).ok_or_else(|| damaged(Table::Ids, key))?;
        Ok(Some(location))
    }

    fn message(&self, id: &MessageId, location: Location) -> Result<Message, Error> {
        let (table, key) = row_of(location);
        let row = self.get(table, &key)?;
        let missing = || Error::Damaged {
            what: format!("message {id}"),
            detail: "its row is not where it should be".to_owned(),
        };
        codec::decode(&row.ok_or_else(missing)?).map_err(|_| damaged(table, &key))
    }

    /// Changes a message, with what was found of it before.
    pub(super) fn change(
        &mut self,
        change: Change,
        ahead: Option<Ahead>,
    ) -> Result<Message, Error> {
        let Change { id, now, what } = change;
        let is_so = |ahead: &Ahead| self.recent.is_unchanged(&id, ahead.batches);
        let (location, message) = if let Some(ahead) = ahead.filter(is_so) {
            (ahead.location, ahead.message)
        } else {
            let location = self.location(&id)?;
            let location = location.ok_or_else(|| Error::NotFound(id.clone()))?;
            (location, self.message(&id, location)?)
        };
        if location.state == StateName::Scheduled {
            match self.shared.claims.begin_change(location.place) {
                Note::Changing => self.changing.push(location.place),
                Note::Firing(firing) => {
                    return change_firing(Arc::unwrap_or_clone(firing), now, what);
                }
            }
        }
        let result = self.change_free(message, location, now, what);
        if result.is_err() && location.state == StateName::Scheduled {
            // A claim may have been turned away: it stands in line again.
            let message = self.message(&id, location)?;
            self.quick_places
                .extend(change::waiting(&message, location.place.serial));
        }
        result
    }

    fn change_free(
        &mut self,
        message: Message,
        location: Location,
        now: Timestamp,
        what: Asked,
    ) -> Result<Message, Error> {
        match what {
            Asked::Extend(extend) => {
                let message = change::extended(message, now, extend)?;
                self.move_to(&message, location);
                Ok(message)
            }
            Asked::Withdraw => {
                let message = change::withdrawn(message, now)?;
                self.move_to(&message, location);
                Ok(message)
            }
            Asked::Replay => {
                let dead = message.id.clone();
                let message = change::replayed(message, now)?;
                self.remove(&dead, &message.topic, location);
                let next = &self.shared.next_serial;
                let serial = next.fetch_add(1, Ordering::Relaxed);
                let new = Location {
                    state: StateName::Scheduled,
                    place: Place { at: now, serial },
                    print: location.print,
                };
                self.enter(&message, new);
                Ok(message)
            }
            Asked::Purge => {
                change::expect_purgeable(&message)?;
                self.must_sync = true;
                self.remove(&message.id, &message.topic, location);
                Ok(message)
            }
        }
    }

    /// Puts a message that has changed where it belongs now.
    fn move_to(&mut self, message: &Message, from: Location) {
        self.leave(&message.topic, from);
        let to = moved(message, from.place.serial, from.print);
        self.enter(message, to);
    }

    fn enter(&mut self, message: &Message, to: Location) {
        self.must_sync = true;
        self.recent.note(&message.id);
        let (table, key) = row_of(to);
        self.put(table, &key, Some(codec::encode(message, to.print)));
        self.put(
            Table::Ids,
            message.id.as_str().as_bytes(),
            Some(to.encode()),
        );
        let of_topic = keys::of_topic(&message.topic, to.state, to.place);
        self.put(Table::Topics, &of_topic, Some(Vec::new()));
        self.count(&message.topic, to.state, 1);
        if let Some(waiting) = change::waiting(message, to.place.serial) {
            self.take_place(waiting, true);
        }
    }

    fn remove(&mut self, id: &MessageId, topic: &str, location: Location) {
        self.recent.note(id);
        self.leave(topic, location);
        self.put(Table::Ids, id.as_str().as_bytes(), None);
    }

    /// Takes a message away from where it is.
    fn leave(&mut self, topic: &str, from: Location) {
        let (table, key) = row_of(from);
        self.put(table, &key, None);
        let of_topic = keys::of_topic(topic, from.state, from.place);
        self.put(Table::Topics, &of_topic, None);
        self.count(topic, from.state, -1);
    }

    /// Ends a claim. Only after everything else: nobody in this batch may ask for the message then.
    pub(super) fn settle(&mut self, settlement: Settlement) -> Result<(), Error> {
        let Settlement {
            claim,
            now,
            outcome,
        } = settlement;
        let from = claim.place;
        let version = claim.message.record.version();
        let held = self.shared.claims.firing(from);
        let Some(held) = held.filter(|held| held.message.record.version() == version) else {
            return Ok(());
        };
        let print = held.print;
        drop(held);
        self.ending.push(from);
        let message = Arc::unwrap_or_clone(claim.message);
        let Some(message) = change::settled(message, now, outcome)? else {
            return Ok(());
        };
        self.recent.note(&message.id);
        self.writes
            .remove(&self.tables.line, &keys::place(from)[..]);
        let of_topic = keys::of_topic(&message.topic, StateName::Scheduled, from);
        self.writes.remove(&self.tables.topics, of_topic);
        self.count(&message.topic, StateName::Scheduled, -1);
        let to = moved(&message, from.serial, print);
        let identity = self.shared.identity;
        let (tables, writes) = (self.tables, &mut self.writes);
        let mut put = |table: &fjall::Keyspace, key: &[u8]| {
            let row = codec::sealed(key, &message, print, identity);
            self.bytes += row.len();
            writes.insert(table, key, row);
        };
        match to.state {
            StateName::Scheduled | StateName::Firing => put(&tables.line, &keys::place(to.place)),
            state => put(&tables.ended, &keys::ended(state, to.place)),
        }
        let id = message.id.as_str().as_bytes();
        writes.insert(&tables.ids, id, to.sealed(id, identity));
        let of_topic = keys::of_topic(&message.topic, to.state, to.place);
        let (key, row) = codec::marked(of_topic, identity);
        writes.insert(&tables.topics, key, row);
        self.count(&message.topic, to.state, 1);
        if let Some(waiting) = change::waiting(&message, from.serial) {
            self.take_place(waiting, false);
        }
        Ok(())
    }

    /// Forgets some old keys and ended messages; answers whether there may be more.
    pub(super) fn forget(
        &mut self,
        keys_before: Timestamp,
        ended_before: Timestamp,
    ) -> Result<bool, Error> {
        let more_keys = self.forget_keys(keys_before)?;
        let mut more = more_keys;
        for state in [StateName::Delivered, StateName::Withdrawn] {
            more |= self.forget_ended(state, ended_before)?;
        }
        Ok(more)
    }

    /// Where forgetting goes on: where it ended the last time, so that what was removed is not walked
    /// over again. If that is later than what is old now, the clock was set back, and there may soon be
    /// something old before it: then it begins anew.
    fn forgets_from(
        &mut self,
        cursor: &[u8],
        first: Vec<u8>,
        until: &[u8],
    ) -> Result<Option<Vec<u8>>, Error> {
        match self.get(Table::Meta, cursor)? {
            None => Ok(Some(first)),
            Some(from) if *from < *until => Ok(Some(from)),
            Some(from) => {
                if *from > *until {
                    self.put(Table::Meta, cursor, None);
                }
                Ok(None)
            }
        }
    }

    fn forget_keys(&mut self, before: Timestamp) -> Result<bool, Error> {
        let first = keys::used_from(Timestamp::from_millis(0));
        let until = keys::used_from(before);
        let Some(begun) = self.forgets_from(keys::KEYS_FORGOTTEN, first, &until)? else {
            return Ok(false);
        };
        let mut end = begun.clone();
        let mut count = 0;
        let tables = self.tables;
        for row in tables.keys.range(begun.clone()..until) {
            let key = row.key().map_err(|error| failed(Table::Keys, error))?;
            let (_, used) = keys::read_used_at(&key).ok_or_else(|| damaged(Table::Keys, &key))?;
            self.put(Table::Keys, &keys::used(used), None);
            self.put(Table::Keys, &key, None);
            end = key.to_vec();
            count += 1;
            if count == FORGET_AT_ONCE {
                break;
            }
        }
        if end != begun {
            self.put(Table::Meta, keys::KEYS_FORGOTTEN, Some(end));
        }
        Ok(count == FORGET_AT_ONCE)
    }

    fn forget_ended(&mut self, state: StateName, before: Timestamp) -> Result<bool, Error> {
        let cursor = keys::forgotten(state);
        let first = keys::ended(state, Place::FIRST).to_vec();
        let until = keys::ended(state, Place::at(before)).to_vec();
        let Some(begun) = self.forgets_from(&cursor, first, &until)? else {
            return Ok(false);
        };
        let mut end = begun.clone();
        let mut count = 0;
        let tables = self.tables;
        for row in tables.ended.range(begun.clone()..until) {
            let (key, row) = row
                .into_inner()
                .map_err(|error| failed(Table::Ended, error))?;
            let row = super::tables::opened(Table::Ended, &key, &row, self.shared.identity)?;
            let message = codec::decode(row).map_err(|_| damaged(Table::Ended, &key))?;
            let place = keys::read_ended(&key).ok_or_else(|| damaged(Table::Ended, &key))?;
            let location = Location {
                state,
                place,
                print: 0,
            };
            self.remove(&message.id, &message.topic, location);
            end = key.to_vec();
            count += 1;
            if count == FORGET_AT_ONCE {
                break;
            }
        }
        if end != begun {
            self.put(Table::Meta, &cursor, Some(end));
        }
        Ok(count == FORGET_AT_ONCE)
    }

    /// Whether there is anything to write.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.writes.is_empty()
    }

    /// Hands it to the system, as a whole or not at all. `commit`: its number, if it is to be synced.
    pub(super) fn write(
        mut self,
        commit: Option<u64>,
        known_floor: Place,
    ) -> (Written, fjall::Result<()>) {
        if let Some(commit) = commit {
            self.put(Table::Meta, keys::COMMIT, Some(numbers([commit, 0])));
            let next = self.shared.next_serial.load(Ordering::Relaxed);
            self.put(Table::Meta, keys::NEXT_SERIAL, Some(numbers([next, 0])));
        }
        if self.floor != known_floor {
            let floor = numbers([self.floor.at.as_millis(), self.floor.serial]);
            self.put(Table::Meta, keys::FLOOR, Some(floor));
        }
        for (topic, counts) in &self.counts {
            let row = (!counts.is_empty()).then(|| {
                let counts = [
                    counts.scheduled,
                    counts.delivered,
                    counts.dead,
                    counts.withdrawn,
                ];
                numbers(counts)
            });
            self.rows.insert((Table::Meta, keys::topic(topic)), row);
        }
        let identity = self.shared.identity;
        for ((table, key), row) in self.rows {
            let keyspace = self.tables.table(table);
            match row {
                Some(row) => {
                    let row = sealed(&key, &row, identity);
                    self.writes.insert(keyspace, key, row);
                }
                None => self.writes.remove(keyspace, key),
            }
        }
        let result = commit_all(self.tables, self.writes);
        let written = Written {
            floor: self.floor,
            counts: self.counts,
            changing: self.changing,
            ending: self.ending,
            places: self.places,
            quick_places: self.quick_places,
        };
        (written, result)
    }
}

fn commit_all(tables: &Tables, writes: OwnedWriteBatch) -> fjall::Result<()> {
    for table in Table::ALL {
        tables.database.throttle(tables.table(table))?;
    }
    writes.commit()
}

/// Where a message belongs now.
fn moved(message: &Message, serial: u64, print: u64) -> Location {
    let waiting = change::waiting(message, serial).map(|waiting| waiting.place);
    let ended = || change::ended(message).map(|at| Place { at, serial });
    // What fires stands where it is due; it is never stored.
    let at = message.record.due();
    let place = waiting.or_else(ended).unwrap_or(Place { at, serial });
    Location {
        state: message.record.state().into(),
        place,
        print,
    }
}

/// The counts after a batch.
pub(super) fn merge(counts: &mut Counts, changed: HashMap<String, TopicCounts>) {
    for (topic, changed) in changed {
        if changed.is_empty() {
            counts.remove(&topic);
        } else {
            counts.insert(topic, changed);
        }
    }
}

/// Where the row of a message is.
pub(super) fn row_of(location: Location) -> (Table, Vec<u8>) {
    match location.state {
        StateName::Scheduled | StateName::Firing => {
            (Table::Line, keys::place(location.place).to_vec())
        }
        state => (Table::Ended, keys::ended(state, location.place).to_vec()),
    }
}

/// It is firing, so the answer is no; how it is put is up to the state machine.
fn change_firing(firing: Message, now: Timestamp, what: Asked) -> Result<Message, Error> {
    let message = match what {
        Asked::Extend(extend) => change::extended(firing, now, extend)?,
        Asked::Withdraw => change::withdrawn(firing, now)?,
        Asked::Replay => change::replayed(firing, now)?,
        Asked::Purge => {
            change::expect_purgeable(&firing)?;
            firing
        }
    };
    let id = message.id;
    Err(Error::Failed(format!(
        "message {id} was changed while it fires"
    )))
}
