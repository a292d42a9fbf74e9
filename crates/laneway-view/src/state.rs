//! What a view and its readers share, and how it is read: the overlay first, then the disk.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use laneway_cluster::apply::Kept;
use laneway_delay::{Counts, MessageId, Timestamp, TopicCounts};
use parking_lot::{Mutex, RwLock};

use crate::engine::Engine;
use crate::error::Error;
use crate::keys::{self, List};
use crate::overlay::{Entered, Overlay};
use crate::query::{ListQuery, Page};
use crate::row::Bare;

/// The most bytes of rows that are read at a time, but for one row.
pub(crate) const PAGE_BYTES: u64 = 8 << 20;

pub(crate) struct Shared {
    /// The shard's task writes, for as long as one row or one commit takes. Others read, for as long as one page takes.
    pub(crate) state: RwLock<State>,
    failure: Mutex<Option<Arc<Error>>>,
}

pub(crate) struct State {
    /// `None`: it is closed.
    pub(crate) engine: Option<Engine>,
    pub(crate) overlay: Overlay,
    /// With what is not committed yet.
    pub(crate) counts: Counts,
    pub(crate) bytes: u64,
    floors: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
}

impl Shared {
    pub(crate) fn new(state: State) -> Self {
        Self {
            state: RwLock::new(state),
            failure: Mutex::new(None),
        }
    }

    pub(crate) fn failure(&self) -> Option<Arc<Error>> {
        self.failure.lock().clone()
    }

    /// Remembers the first error: what is read from now on is not believed.
    pub(crate) fn fail(&self, error: Error) -> Error {
        if matches!(error, Error::Closed | Error::Failed(_)) {
            return error;
        }
        let told = error.to_string();
        tracing::error!(error = %told, "the view of a shard has failed");
        self.failure.lock().get_or_insert(Arc::new(error));
        Error::Failed(told)
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        match &*self.failure.lock() {
            Some(error) => Err(Error::Failed(error.to_string())),
            None => Ok(()),
        }
    }

    pub(crate) fn read<T>(
        &self,
        work: impl FnOnce(&State) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.check()?;
        let state = self.state.read();
        let done = state.engine().and_then(|_| work(&state));
        drop(state);
        done.map_err(|error| self.fail(error))
    }

    pub(crate) fn write<T>(
        &self,
        work: impl FnOnce(&mut State) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.check()?;
        let mut state = self.state.write();
        let is_open = state.engine().map(drop);
        let done = is_open.and_then(|()| work(&mut state));
        drop(state);
        done.map_err(|error| self.fail(error))
    }
}

impl State {
    pub(crate) fn new(engine: Engine, counts: Counts, bytes: u64) -> Self {
        Self {
            engine: Some(engine),
            overlay: Overlay::default(),
            counts,
            bytes,
            floors: Mutex::default(),
        }
    }

    pub(crate) fn engine(&self) -> Result<&Engine, Error> {
        self.engine.as_ref().ok_or(Error::Closed)
    }

    /// A row without its body.
    pub(crate) fn bare(&self, id: &MessageId) -> Result<Option<Bare>, Error> {
        match self.overlay.rows.get(id) {
            Some(pending) => Ok(pending.row.clone()),
            None => self.engine()?.row(id),
        }
    }

    /// The body of a row that is there.
    fn body(&self, id: &MessageId, bare: &Bare) -> Result<Bytes, Error> {
        let Some(body) = bare.body else {
            return Ok(Bytes::new());
        };
        match self.overlay.rows.get(id) {
            Some(pending) if pending.is_body_new() => Ok(pending.body.clone()),
            _ => self.engine()?.body(id, body.bytes),
        }
    }

    pub(crate) fn get(&self, id: &MessageId) -> Result<Option<Arc<Kept>>, Error> {
        let Some(bare) = self.bare(id)? else {
            return Ok(None);
        };
        Ok(Some(bare.with(self.body(id, &bare)?)))
    }

    /// Puts a row in the place of what the id has, with all that is kept about it; `None` takes it away.
    pub(crate) fn put(&mut self, id: &MessageId, row: Option<&Kept>) -> Result<(), Error> {
        let before = self.bare(id)?;
        let on_disk = match self.overlay.rows.get(id) {
            Some(pending) => pending.on_disk,
            None => before.as_ref().and_then(|before| before.body),
        };
        if let Some(before) = &before {
            self.bytes = self.bytes.wrapping_sub(weight(id, before));
            self.count(&before.kept, u64::wrapping_sub);
            for key in keys::entries(id, &before.kept.image) {
                self.overlay.strike(key);
            }
        }
        let bare = row.map(Bare::of);
        if let Some(bare) = &bare {
            self.bytes = self.bytes.wrapping_add(weight(id, bare));
            self.count(&bare.kept, u64::wrapping_add);
            for key in keys::entries(id, &bare.kept.image) {
                self.lower_floors(&key);
                self.overlay.enter(key);
            }
        }
        let body = row.map_or_else(Bytes::new, |row| row.image.body.clone());
        self.overlay.put(id, on_disk, bare, &body);
        Ok(())
    }

    fn count(&mut self, row: &Kept, change: fn(u64, u64) -> u64) {
        let Some((list, _)) = keys::listed(&row.image) else {
            return;
        };
        let topic = &row.image.topic;
        let counts = self.counts.entry(topic.clone()).or_default();
        let count = list.count(counts);
        *count = change(*count, 1);
        if *counts == TopicCounts::default() {
            self.counts.remove(topic);
        }
        self.overlay.topics.insert(topic.clone());
    }

    fn lower_floors(&mut self, key: &[u8]) {
        for (prefix, floor) in self.floors.get_mut() {
            if key.starts_with(prefix) && key < &floor[..] {
                *floor = key.to_vec();
            }
        }
    }

    /// Keys without a value from one to before another, with the overlay, in order.
    fn keys(
        &self,
        from: &[u8],
        to: &[u8],
    ) -> Result<impl Iterator<Item = Result<Vec<u8>, Error>>, Error> {
        let range = (Bound::Included(from), Bound::Excluded(to));
        // A range that ends before it begins is a panic of the map.
        let range = if from < to {
            range
        } else {
            (Bound::Included(to), Bound::Excluded(to))
        };
        let added = self.overlay.index.range::<[u8], _>(range);
        let added = added.filter(|(_, entered)| **entered == Entered::Added);
        let added = added.map(|(key, _)| key.clone());
        let overlay = &self.overlay.index;
        let on_disk = self.engine()?.keys(from, to);
        let on_disk = on_disk.filter(|key| {
            let struck = |key: &Vec<u8>| overlay.get(key) == Some(&Entered::Removed);
            !key.as_ref().is_ok_and(struck)
        });
        Ok(merged(on_disk, added))
    }

    /// The first places behind `after` and not behind `until`. Places before all rows are not walked over again: the engine keeps
    /// what was removed for a while, and a walk that begins at the first key goes over all of it.
    pub(crate) fn places(
        &self,
        prefix: &[u8],
        after: Option<&(Timestamp, MessageId)>,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<(Timestamp, MessageId)>, Error> {
        let to = match until.as_millis().checked_add(1) {
            Some(behind) => keys::place(prefix, Timestamp::from_millis(behind), None),
            None => keys::behind(prefix),
        };
        let floor = self.floors.lock().get(prefix).cloned();
        let from = match after {
            Some((at, id)) => next_key(keys::place(prefix, *at, Some(id))),
            None => floor.unwrap_or_else(|| prefix.to_vec()),
        };
        let mut found = Vec::new();
        let mut first = None;
        if from < to {
            for key in self.keys(&from, &to)?.take(limit) {
                let key = key?;
                let place = keys::read_place(prefix, &key);
                found.push(place.ok_or_else(|| Error::damaged("an index", "a key is none"))?);
                first.get_or_insert(key);
            }
            if after.is_none() && limit > 0 {
                let floor = first.unwrap_or(to);
                self.floors.lock().insert(prefix.to_vec(), floor);
            }
        }
        Ok(found)
    }

    pub(crate) fn list(&self, query: &ListQuery) -> Result<Page, Error> {
        let mut page = Page::default();
        let Some(list) = List::of(query.state) else {
            return Ok(page);
        };
        let prefix = keys::prefix(query.topic.as_deref(), list);
        let from = query.from.unwrap_or(Timestamp::from_millis(0));
        let mut from = keys::place(&prefix, from, None);
        if let Some((at, id)) = &query.after {
            from = from.max(next_key(keys::place(&prefix, *at, Some(id))));
        }
        let to = match query.until {
            Some(until) => keys::place(&prefix, until, None),
            None => keys::behind(&prefix),
        };
        let mut bytes = 0;
        for key in self.keys(&from, &to)? {
            let key = key?;
            if page.rows.len() >= query.limit.max(1) || bytes >= PAGE_BYTES {
                page.next = page.rows.last().map(|(at, id, _)| (*at, id.clone()));
                break;
            }
            let missing = || Error::damaged("an index", "it names a row that is not there");
            let (at, id) = keys::read_place(&prefix, &key).ok_or_else(missing)?;
            let bare = self.bare(&id)?.ok_or_else(missing)?;
            if keys::listed(&bare.kept.image) != Some((list, at)) {
                return Err(Error::damaged(
                    "an index",
                    "it names a row of another place",
                ));
            }
            let body = if query.with_bodies {
                self.body(&id, &bare)?
            } else {
                Bytes::new()
            };
            bytes += bare.encoded.len() as u64 + body.len() as u64;
            page.rows.push((at, id, bare.with(body)));
        }
        Ok(page)
    }

    /// Rows behind an id, in the order of ids.
    pub(crate) fn page(
        &self,
        after: Option<&MessageId>,
        limit: usize,
    ) -> Result<Vec<(MessageId, Arc<Kept>)>, Error> {
        let from = after.map_or(vec![keys::ROW], |id| next_key(keys::of_id(keys::ROW, id)));
        let on_disk = self.engine()?.bare_rows(&from, &[keys::ROW + 1]);
        let changed = (
            after.map_or(Bound::Unbounded, Bound::Excluded),
            Bound::Unbounded,
        );
        let changed = self.overlay.rows.range::<MessageId, _>(changed);
        let changed = changed.filter_map(|(id, pending)| Some((id.clone(), pending.row.clone()?)));
        let on_disk = on_disk.filter(|row| {
            let is_changed = |(id, _): &(MessageId, Bare)| self.overlay.rows.contains_key(id);
            !row.as_ref().is_ok_and(is_changed)
        });
        let rows = merged(on_disk.map(|row| row.map(ById)), changed.map(ById));
        let mut page = Vec::new();
        let mut bytes = 0;
        for row in rows.take(limit) {
            let ById((id, bare)) = row?;
            let body = self.body(&id, &bare)?;
            bytes += bare.bytes();
            page.push((id, bare.with(body)));
            if bytes >= PAGE_BYTES {
                break;
            }
        }
        Ok(page)
    }
}

/// A row that is compared by its id.
struct ById((MessageId, Bare));

impl PartialEq for ById {
    fn eq(&self, other: &Self) -> bool {
        self.0.0 == other.0.0
    }
}

impl PartialOrd for ById {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        self.0.0.partial_cmp(&other.0.0)
    }
}

/// What is on disk and what is not, in one order.
fn merged<T: PartialOrd>(
    on_disk: impl Iterator<Item = Result<T, Error>>,
    added: impl Iterator<Item = T>,
) -> impl Iterator<Item = Result<T, Error>> {
    let mut on_disk: Peekable<_> = on_disk.peekable();
    let mut added: Peekable<_> = added.peekable();
    std::iter::from_fn(move || {
        let is_added_first = match (on_disk.peek(), added.peek()) {
            (Some(Ok(on_disk)), Some(added)) => added < on_disk,
            (Some(_), _) => false,
            (None, _) => true,
        };
        if is_added_first {
            added.next().map(Ok)
        } else {
            on_disk.next()
        }
    })
}

/// The first key behind this one.
fn next_key(mut key: Vec<u8>) -> Vec<u8> {
    key.push(0);
    key
}

fn weight(id: &MessageId, bare: &Bare) -> u64 {
    id.as_str().len() as u64 + bare.bytes()
}
