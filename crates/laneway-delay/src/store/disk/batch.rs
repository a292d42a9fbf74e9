//! What changes make of the tables: a commit in the making.
//!
//! Rows are gathered here first. A later change of the same batch finds what an earlier one made, and
//! each key is written once. Two kinds of rows go straight into the batch, since no other request of it can ask for
//! them: those of a new message whose id no caller knows yet, and those of settlements, which come last.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fjall::OwnedWriteBatch;
use foldhash::{HashMap, HashMapExt, HashSet};
use laneway_disk::{numbers, sealed};

use super::ahead::{Ahead, Recent};
use super::claims::{Note, READ_WITHIN};
use super::codec::{self, KeyUse, Location};
use super::doubt::Doubt;
use super::request::Entry;
use super::tables::{Table, Tables, damaged, failed};
use super::walk::is_damage;
use super::{Shared, keys};
use crate::store::{Change, DueKey, Operation, Outcome, Scheduled, Settlement, change};
use crate::{
    Accepted, Counts, Error, Message, MessageId, StateName, Timestamp, TopicCounts, Version,
};

pub(super) struct Batch<'a> {
    shared: &'a Shared,
    tables: &'a Tables,
    recent: &'a mut Recent,
    rows: HashMap<(Table, Vec<u8>), Option<Vec<u8>>>,
    /// Rows on their way.
    writes: OwnedWriteBatch,
    pub(super) bytes: usize,
    pub(super) floor: DueKey,
    /// The first place that is taken.
    pub(super) lowest: DueKey,
    counts: HashMap<String, TopicCounts>,
    /// Who takes a place once this is durable, and once it is written.
    pub(super) due_keys: Vec<Scheduled>,
    pub(super) quick_places: Vec<Scheduled>,
    /// How the messages wait that are being changed, if they are not changed after all.
    pub(super) turned_away: Vec<Scheduled>,
    /// Who is being changed.
    changing: Vec<DueKey>,
    /// Whose claims end.
    ending: Vec<DueKey>,
    /// Whose claims end because the message was stopped while its attempt runs.
    stopped: HashSet<DueKey>,
    pub(super) must_sync: bool,
    /// Before which moment messages may be claimed once this is durable, in milliseconds.
    covered: u64,
}

/// What a batch has changed, once it is written.
pub(super) struct Written {
    pub(super) floor: DueKey,
    pub(super) counts: HashMap<String, TopicCounts>,
    pub(super) changing: Vec<DueKey>,
    pub(super) ending: Vec<DueKey>,
    /// Whose claims end too, if this is written: else their attempts end them.
    pub(super) stopped: HashSet<DueKey>,
    pub(super) due_keys: Vec<Scheduled>,
    pub(super) quick_places: Vec<Scheduled>,
    /// How the messages wait that are being changed, if they are not changed after all.
    pub(super) turned_away: Vec<Scheduled>,
    /// Before which moment messages may be claimed now, in milliseconds.
    pub(super) covered: u64,
}

impl<'a> Batch<'a> {
    pub(super) fn new(
        shared: &'a Shared,
        tables: &'a Tables,
        recent: &'a mut Recent,
        floor: DueKey,
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
            lowest: DueKey::at(Timestamp::MAX),
            counts: HashMap::new(),
            due_keys: Vec::new(),
            quick_places: Vec::new(),
            turned_away: Vec::new(),
            changing: Vec::new(),
            ending: Vec::new(),
            stopped: HashSet::default(),
            must_sync: false,
            covered: 0,
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
            if used.fingerprint != entry.fingerprint {
                let (key, id) = (key.key.clone(), used.id);
                return Err(Error::KeyReused { key, id });
            }
            let state = self
                .location(&used.id)?
                .map(|location| self.state(location));
            return Ok(Accepted {
                id: used.id,
                due: used.due,
                is_new: false,
                state,
            });
        }
        let id_key = entry.id.as_str().as_bytes();
        if entry.is_own_id
            && let Some(location) = self.location(&entry.id)?
        {
            if entry.replace {
                self.make_way(&entry.id, location)?;
            } else {
                change::same_or_taken(location.fingerprint == entry.fingerprint, &entry.id)?;
                let message = self.message(&entry.id, location)?;
                return Ok(Accepted {
                    id: entry.id,
                    due: message.record.due(),
                    is_new: false,
                    state: Some(self.state(location)),
                });
            }
        }
        self.must_sync = true;
        if entry.is_own_id || entry.key.is_some() {
            // A later request of this batch may ask for it.
            self.put_sealed(Table::Ids, id_key, &entry.location);
            self.put_sealed(
                Table::Due,
                &keys::due_key(entry.waiting.due_key),
                &entry.row,
            );
            self.put_sealed(Table::Topics, &entry.of_topic.0, &entry.of_topic.1);
        } else {
            let (topic_key, topic_row) = entry.of_topic;
            self.bytes += id_key.len() + entry.location.len() + entry.row.len() + 16;
            self.bytes += topic_key.len() + topic_row.len();
            let due_key = keys::due_key(entry.waiting.due_key);
            self.writes
                .insert(&self.tables.due, &due_key[..], entry.row);
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
            state: Some(StateName::Scheduled),
        })
    }

    /// Takes a message away whose id another one gets.
    fn make_way(&mut self, id: &MessageId, location: Location) -> Result<(), Error> {
        let message = self.message(id, location)?;
        if location.state == StateName::Scheduled {
            match self.shared.claims.begin_change(location.due_key) {
                Note::Changing => self.begin_changing(&message, location),
                Note::Reading => return Err(Error::Unanswered(READ_WITHIN)),
                Note::Firing(firing) => return Ok(change::expect_replaceable(&firing)?),
            }
        }
        if let Err(refusal) = change::expect_replaceable(&message) {
            // A claim may have been turned away: the due index is told of it again.
            self.quick_places
                .extend(change::waiting(&message, location.due_key.serial));
            return Err(refusal.into());
        }
        self.remove(id, &message.topic, location);
        Ok(())
    }

    /// From here on claims of the message are turned away, and the engine takes it for stale. If the batch is not
    /// written after all, it waits where it waited before.
    fn begin_changing(&mut self, message: &Message, location: Location) {
        self.changing.push(location.due_key);
        self.turned_away
            .extend(change::waiting(message, location.due_key.serial));
    }

    /// The state of a message: what fires is stored as scheduled.
    fn state(&self, location: Location) -> StateName {
        match location.state {
            StateName::Scheduled if self.shared.claims.is_firing(location.due_key) => {
                StateName::Firing
            }
            state => state,
        }
    }

    /// Puts a row that has its checksum already.
    fn put_sealed(&mut self, table: Table, key: &[u8], row: &[u8]) {
        // The checksum is made again when the batch is written; it is the same.
        self.put(table, key, row.get(4..).map(<[u8]>::to_vec));
    }

    fn take_place(&mut self, waiting: Scheduled, when_durable: bool) {
        self.floor = self.floor.min(waiting.due_key);
        self.lowest = self.lowest.min(waiting.due_key);
        if when_durable {
            self.due_keys.push(waiting);
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
        let message = codec::decode(&row.ok_or_else(missing)?);
        let message = message.map_err(|_| damaged(table, &key))?;
        Ok(match table {
            Table::Due => self.shared.doubted(location.due_key, message),
            _ => message,
        })
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
            match self.shared.claims.begin_change(location.due_key) {
                Note::Changing => self.begin_changing(&message, location),
                Note::Reading => return Err(Error::Unanswered(READ_WITHIN)),
                Note::Firing(firing) if matches!(what, Operation::Stop) => {
                    return self.stop_firing(Arc::unwrap_or_clone(firing), location, now);
                }
                Note::Firing(firing) => {
                    return change_firing(Arc::unwrap_or_clone(firing), now, what);
                }
            }
        }
        let result = self.change_free(message, location, now, what);
        if result.is_err() && location.state == StateName::Scheduled {
            // A claim may have been turned away: the due index is told of it again.
            let message = self.message(&id, location)?;
            self.quick_places
                .extend(change::waiting(&message, location.due_key.serial));
        }
        result
    }

    /// Ends a message whose attempt runs. What that attempt comes to counts no more.
    fn stop_firing(
        &mut self,
        firing: Message,
        location: Location,
        now: Timestamp,
    ) -> Result<Message, Error> {
        let message = change::stopped(firing, now)?;
        self.stopped.insert(location.due_key);
        self.move_to(&message, location);
        Ok(message)
    }

    fn change_free(
        &mut self,
        message: Message,
        location: Location,
        now: Timestamp,
        what: Operation,
    ) -> Result<Message, Error> {
        match what {
            Operation::Extend(extend) => {
                let message = change::extended(message, now, extend)?;
                self.move_to(&message, location);
                Ok(message)
            }
            Operation::ExtendUntil(extend, most) => {
                let message = change::extended_until(message, now, extend, most)?;
                self.move_to(&message, location);
                Ok(message)
            }
            Operation::Withdraw => {
                let message = change::withdrawn(message, now)?;
                self.move_to(&message, location);
                Ok(message)
            }
            Operation::Stop => {
                let message = change::stopped(message, now)?;
                self.move_to(&message, location);
                Ok(message)
            }
            Operation::Replay => {
                let dead = message.id.clone();
                let message = change::replayed(message, now)?;
                self.remove(&dead, &message.topic, location);
                let next = &self.shared.next_serial;
                let serial = next.fetch_add(1, Ordering::Relaxed);
                let new = Location {
                    state: StateName::Scheduled,
                    due_key: DueKey { at: now, serial },
                    fingerprint: location.fingerprint,
                };
                self.enter(&message, new);
                Ok(message)
            }
            Operation::Purge => {
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
        let to = moved(message, from.due_key.serial, from.fingerprint);
        self.enter(message, to);
    }

    fn enter(&mut self, message: &Message, to: Location) {
        self.must_sync = true;
        self.recent.note(&message.id);
        let (table, key) = row_of(to);
        self.put(table, &key, Some(codec::encode(message, to.fingerprint)));
        self.put(
            Table::Ids,
            message.id.as_str().as_bytes(),
            Some(to.encode()),
        );
        let of_topic = keys::of_topic(&message.topic, to.state, to.due_key);
        self.put(Table::Topics, &of_topic, Some(Vec::new()));
        self.count(&message.topic, to.state, 1);
        if let Some(waiting) = change::waiting(message, to.due_key.serial) {
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
        let of_topic = keys::of_topic(topic, from.state, from.due_key);
        self.put(Table::Topics, &of_topic, None);
        self.count(topic, from.state, -1);
    }

    /// Ends a claim. Only after everything else: no request of this batch may ask for the message then. `is_again`: a batch
    /// that was refused had it, and may be there nevertheless.
    pub(super) fn settle(&mut self, settlement: &Settlement, is_again: bool) -> Result<(), Error> {
        let Settlement {
            claim,
            now,
            outcome,
        } = settlement;
        let (now, outcome) = (*now, outcome.clone());
        let from = claim.due_key;
        let version = claim.message.record.version();
        let held = self.shared.claims.firing(from);
        let Some(held) = held.filter(|held| held.message.record.version() == version) else {
            return Ok(());
        };
        if self.stopped.contains(&from) {
            return Ok(());
        }
        let fingerprint = held.fingerprint;
        drop(held);
        self.ending.push(from);
        let message = Message::clone(&claim.message);
        let keeps_place = matches!(outcome, Outcome::Unknown(_));
        let leaves_doubt = outcome.leaves_doubt();
        let Some(message) = change::settled(message, from, now, outcome)? else {
            return Ok(());
        };
        if is_again && !self.stands(from, claim.before) {
            // Its rows and counts are what they should be. Only the due index does not know of it.
            if let Some(waiting) = change::waiting(&message, from.serial) {
                self.take_place(waiting, false);
            }
            return Ok(());
        }
        self.recent.note(&message.id);
        let to = moved(&message, from.serial, fingerprint);
        let stays = to.state == StateName::Scheduled && to.due_key == from;
        if !stays {
            // IMPORTANT: a key is written once in a batch; which of two writes counts is not defined.
            self.writes
                .remove(&self.tables.due, &keys::due_key(from)[..]);
            let of_topic = keys::of_topic(&message.topic, StateName::Scheduled, from);
            self.writes.remove(&self.tables.topics, of_topic);
        }
        // After a crash it must not look as if it had never been tried.
        self.must_sync |= leaves_doubt;
        self.count(&message.topic, StateName::Scheduled, -1);
        let identity = self.shared.identity;
        let (tables, writes) = (self.tables, &mut self.writes);
        let mut put = |table: &fjall::Keyspace, key: &[u8]| {
            let row = codec::sealed(key, &message, fingerprint, identity);
            self.bytes += row.len();
            writes.insert(table, key, row);
        };
        match to.state {
            StateName::Scheduled | StateName::Firing => {
                put(&tables.due, &keys::due_key(to.due_key));
            }
            state => put(&tables.ended, &keys::ended(state, to.due_key)),
        }
        let id = message.id.as_str().as_bytes();
        writes.insert(&tables.ids, id, to.sealed(id, identity));
        let of_topic = keys::of_topic(&message.topic, to.state, to.due_key);
        let (key, row) = codec::marked(of_topic, identity);
        writes.insert(&tables.topics, key, row);
        self.count(&message.topic, to.state, 1);
        if !keeps_place && let Some(waiting) = change::waiting(&message, from.serial) {
            self.take_place(waiting, false);
        }
        Ok(())
    }

    /// Notes that messages may be claimed that stand before this moment. It only ever rises.
    pub(super) fn cover(&mut self, before: Timestamp) {
        let known = self.shared.covered.load(Ordering::Acquire);
        self.covered = before.as_millis().max(known).max(self.covered);
        let row = numbers([self.covered, 0]);
        self.put(Table::Meta, keys::CLAIMED, Some(row));
        self.must_sync = true;
    }

    /// Whether a message waits here in this version. One whose row cannot be read does, as far as is known.
    fn stands(&self, due_key: DueKey, version: Version) -> bool {
        match self.get(Table::Due, &keys::due_key(due_key)) {
            Ok(Some(row)) => codec::decode_head(&row).map_or(true, |head| head.version == version),
            Ok(None) => false,
            Err(_) => true,
        }
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
        for row in tables.keys.range(begun.clone()..until.clone()) {
            let key = match row.key().map_err(|error| failed(Table::Keys, error)) {
                Ok(key) => key,
                Err(error) if is_damage(&error) => {
                    // What cannot be read is passed over, and with it what is as old.
                    self.shared.damage.tell(&error);
                    end.clone_from(&until);
                    break;
                }
                Err(error) => return Err(error),
            };
            match keys::read_used_at(&key) {
                Some((_, used)) => self.put(Table::Keys, &keys::used(used), None),
                None => self.shared.damage.tell(&damaged(Table::Keys, &key)),
            }
            self.put(Table::Keys, &key, None);
            end = key.to_vec();
            count += 1;
            if count == self.shared.sizes.forget {
                break;
            }
        }
        if end != begun {
            self.put(Table::Meta, keys::KEYS_FORGOTTEN, Some(end));
        }
        Ok(count == self.shared.sizes.forget)
    }

    fn forget_ended(&mut self, state: StateName, before: Timestamp) -> Result<bool, Error> {
        let cursor = keys::forgotten(state);
        let first = keys::ended(state, DueKey::FIRST).to_vec();
        let until = keys::ended(state, DueKey::at(before)).to_vec();
        let Some(begun) = self.forgets_from(&cursor, first, &until)? else {
            return Ok(false);
        };
        let mut end = begun.clone();
        let mut count = 0;
        let (tables, shared) = (self.tables, self.shared);
        let from = keys::read_ended(&begun).unwrap_or(DueKey::FIRST);
        shared.walk(tables, state, from, DueKey::at(before), |due_key, row| {
            // One that cannot be read stays, and is passed over.
            let message = row.and_then(|row| {
                let broken = |_| damaged(Table::Ended, &keys::ended(state, due_key));
                codec::decode(row).map_err(broken)
            });
            match message {
                Ok(message) => {
                    let location = Location {
                        state,
                        due_key,
                        fingerprint: 0,
                    };
                    self.remove(&message.id, &message.topic, location);
                }
                Err(error) => shared.damage.tell(&error),
            }
            end = keys::ended(state, due_key).to_vec();
            count += 1;
            if count < shared.sizes.forget {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        if end != begun {
            self.put(Table::Meta, &cursor, Some(end));
        }
        Ok(count == self.shared.sizes.forget)
    }

    /// Whether there is anything to write.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.writes.is_empty()
    }

    /// Hands it to the system, as a whole or not at all. `commit`: its number, if it is to be synced.
    pub(super) fn write(
        mut self,
        commit: Option<u64>,
        known_floor: DueKey,
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
        let result = commit_all(self.shared, self.tables, self.writes);
        let written = Written {
            floor: self.floor,
            counts: self.counts,
            changing: self.changing,
            ending: self.ending,
            stopped: self.stopped,
            due_keys: self.due_keys,
            quick_places: self.quick_places,
            turned_away: self.turned_away,
            covered: self.covered,
        };
        (written, result)
    }

    /// Lets go of one in which there is nothing to write.
    pub(super) fn discard(self) -> Written {
        Written {
            floor: self.floor,
            counts: self.counts,
            changing: self.changing,
            ending: self.ending,
            stopped: self.stopped,
            due_keys: self.due_keys,
            quick_places: self.quick_places,
            turned_away: self.turned_away,
            covered: self.covered,
        }
    }
}

/// A commit that has nothing but its number.
pub(super) fn mark(shared: &Shared, tables: &Tables, commit: u64) -> fjall::Result<()> {
    commit_all(shared, tables, marked(shared, tables, commit))
}

/// The last commit of all. If nothing is claimed it says so, and what earlier processes have left in doubt.
pub(super) fn mark_last(shared: &Shared, tables: &Tables, commit: u64) -> fjall::Result<()> {
    let mut writes = marked(shared, tables, commit);
    if shared.claims.close() {
        writes.remove(&tables.meta, keys::CLAIMED);
        match shared.doubt.from(shared.contents().floor) {
            Some(Doubt { before, below }) => {
                let row = numbers([before, below]);
                let row = sealed(keys::DOUBT, &row, shared.identity);
                writes.insert(&tables.meta, keys::DOUBT, row);
            }
            None => writes.remove(&tables.meta, keys::DOUBT),
        }
    }
    commit_all(shared, tables, writes)
}

fn marked(shared: &Shared, tables: &Tables, commit: u64) -> OwnedWriteBatch {
    let next = shared.next_serial.load(Ordering::Relaxed);
    let mut writes = tables.database.batch();
    for (key, number) in [(keys::COMMIT, commit), (keys::NEXT_SERIAL, next)] {
        let row = sealed(key, &numbers([number, 0]), shared.identity);
        writes.insert(&tables.meta, key, row);
    }
    writes
}

fn commit_all(shared: &Shared, tables: &Tables, writes: OwnedWriteBatch) -> fjall::Result<()> {
    for table in Table::ALL {
        tables.database.throttle(tables.table(table))?;
    }
    tables.database.write(shared.commits.disk(), writes)
}

/// Where a message belongs now.
fn moved(message: &Message, serial: u64, fingerprint: u64) -> Location {
    let waiting = change::waiting(message, serial).map(|waiting| waiting.due_key);
    let ended = || change::ended(message).map(|at| DueKey { at, serial });
    // What fires stands where it is due; it is never stored.
    let at = message.record.due();
    let due_key = waiting.or_else(ended).unwrap_or(DueKey { at, serial });
    Location {
        state: message.record.state().into(),
        due_key,
        fingerprint,
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
            (Table::Due, keys::due_key(location.due_key).to_vec())
        }
        state => (Table::Ended, keys::ended(state, location.due_key).to_vec()),
    }
}

/// It is firing, so the answer is no; how it is put is up to the state machine.
fn change_firing(firing: Message, now: Timestamp, what: Operation) -> Result<Message, Error> {
    let message = match what {
        Operation::Extend(extend) | Operation::ExtendUntil(extend, _) => {
            change::extended(firing, now, extend)?
        }
        Operation::Withdraw => change::withdrawn(firing, now)?,
        Operation::Stop => change::stopped(firing, now)?,
        Operation::Replay => change::replayed(firing, now)?,
        Operation::Purge => {
            change::expect_purgeable(&firing)?;
            firing
        }
    };
    let id = message.id;
    Err(Error::Failed(format!(
        "message {id} was changed while it fires"
    )))
}
