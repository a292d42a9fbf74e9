//! A store in memory: gone with the process.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};

use super::change;
use super::{
    Change, Claim, Draft, DueIndex, DueKey, Operation, Outcome, Scheduled, Settlement, Store,
};
use crate::{
    Accepted, BoxFuture, Counts, Cursor, Error, Message, MessageId, Page, Query, StateName,
    Timestamp, TopicCounts,
};

/// How many ended messages and keys are forgotten at a time.
const FORGET_AT_ONCE: usize = 1000;

/// How many bytes of payloads a page has, but for one message.
const PAGE_BYTES: usize = 8 << 20;

/// Messages in memory.
#[derive(Default)]
pub struct MemoryStore {
    contents: Mutex<Contents>,
    due_index: OnceLock<Arc<dyn DueIndex>>,
}

#[derive(Default)]
struct Contents {
    next_serial: u64,
    messages: HashMap<u64, Kept>,
    ids: HashMap<MessageId, u64>,
    /// By state and the moment that orders it: when it fires, or when it ended.
    order: BTreeSet<(StateName, DueKey)>,
    keys: HashMap<String, KeyUse>,
    keys_by_age: BTreeSet<(Timestamp, String)>,
    counts: Counts,
}

struct Kept {
    message: Message,
    /// What was submitted, as a number.
    fingerprint: u64,
    /// The claim, while it is firing: the message above stays as it was before.
    firing: Option<Arc<Message>>,
}

struct KeyUse {
    accepted: Accepted,
    fingerprint: u64,
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}

impl Kept {
    /// The message as it stands.
    fn current(&self) -> &Message {
        self.firing.as_deref().unwrap_or(&self.message)
    }
}

impl Contents {
    fn submit(&mut self, draft: Draft) -> Result<(Accepted, Option<Scheduled>), Error> {
        let fingerprint = draft.submission.fingerprint();
        let key = draft.submission.idempotency_key.clone();
        if let Some(key) = &key
            && let Some(used) = self.keys.get(key)
        {
            if used.fingerprint != fingerprint {
                return Err(Error::KeyReused {
                    key: key.clone(),
                    id: used.accepted.id.clone(),
                });
            }
            let mut accepted = used.accepted.clone();
            let serial = self.ids.get(&accepted.id);
            accepted.state = serial.map(|serial| self.state(*serial));
            return Ok((accepted, None));
        }
        if let Some(id) = &draft.submission.id
            && let Some(&serial) = self.ids.get(id)
        {
            let kept = &self.messages[&serial];
            if draft.submission.replace {
                change::expect_replaceable(kept.current())?;
                self.remove(serial);
            } else {
                change::same_or_taken(kept.fingerprint == fingerprint, id)?;
                let accepted = Accepted {
                    id: id.clone(),
                    due: kept.current().record.due(),
                    is_new: false,
                    state: Some(self.state(serial)),
                };
                return Ok((accepted, None));
            }
        }
        let (due, now) = (draft.due, draft.now);
        let id = draft.submission.id.clone();
        let id = id.unwrap_or_else(MessageId::unique);
        let message = change::accepted(draft, id.clone());
        let waiting = self.add(message, fingerprint);
        if let Some(key) = key {
            let accepted = Accepted {
                id: id.clone(),
                due,
                is_new: false,
                state: None,
            };
            self.keys_by_age.insert((now, key.clone()));
            self.keys.insert(
                key,
                KeyUse {
                    accepted,
                    fingerprint,
                },
            );
        }
        let accepted = Accepted {
            id,
            due,
            is_new: true,
            state: Some(StateName::Scheduled),
        };
        Ok((accepted, waiting))
    }

    fn state(&self, serial: u64) -> StateName {
        self.messages[&serial].current().record.state().into()
    }

    fn add(&mut self, message: Message, fingerprint: u64) -> Option<Scheduled> {
        let serial = self.next_serial;
        self.next_serial += 1;
        self.ids.insert(message.id.clone(), serial);
        let kept = Kept {
            message,
            fingerprint,
            firing: None,
        };
        self.enter(serial, &kept);
        let waiting = change::waiting(&kept.message, serial);
        self.messages.insert(serial, kept);
        waiting
    }

    fn change(&mut self, change: Change) -> Result<(Message, Option<Scheduled>), Error> {
        let Change { id, now, what } = change;
        let serial = *self.ids.get(&id).ok_or(Error::NotFound(id))?;
        let kept = &self.messages[&serial];
        let message = kept.current().clone();
        let fingerprint = kept.fingerprint;
        match what {
            Operation::Extend(extend) => {
                let message = change::extended(message, now, extend)?;
                Ok((message.clone(), self.replace(serial, message)))
            }
            Operation::ExtendUntil(extend, most) => {
                let message = change::extended_until(message, now, extend, most)?;
                Ok((message.clone(), self.replace(serial, message)))
            }
            Operation::Withdraw => {
                let message = change::withdrawn(message, now)?;
                Ok((message.clone(), self.replace(serial, message)))
            }
            Operation::Stop => {
                // The claim of an attempt that runs ends with it: what it answers counts no more.
                let message = change::stopped(message, now)?;
                Ok((message.clone(), self.replace(serial, message)))
            }
            Operation::Replay => {
                let message = change::replayed(message, now)?;
                self.remove(serial);
                let waiting = self.add(message.clone(), fingerprint);
                Ok((message, waiting))
            }
            Operation::Purge => {
                change::expect_purgeable(&message)?;
                self.remove(serial);
                Ok((message, None))
            }
        }
    }

    fn claim(&mut self, waiting: &Scheduled, now: Timestamp) -> Option<Claim> {
        let serial = waiting.due_key.serial;
        let kept = self.messages.get(&serial)?;
        let claim = change::claimed(kept.current().clone(), waiting, now)?;
        self.leave(serial);
        let kept = self.messages.get_mut(&serial)?;
        kept.firing = Some(claim.message.clone());
        self.enter_again(serial);
        Some(claim)
    }

    fn settle(&mut self, settlement: Settlement) -> Result<Option<Scheduled>, Error> {
        let Settlement {
            claim,
            now,
            outcome,
        } = settlement;
        let serial = claim.due_key.serial;
        let version = claim.message.record.version();
        let firing = self
            .messages
            .get(&serial)
            .and_then(|kept| kept.firing.as_ref());
        if firing.is_none_or(|firing| firing.record.version() != version) {
            return Ok(None);
        }
        let is_unknown = matches!(outcome, Outcome::Unknown(_));
        let message = change::settled((*claim.message).clone(), claim.due_key, now, outcome)?;
        if let Some(message) = message {
            let waiting = self.replace(serial, message);
            return Ok(waiting.filter(|_| !is_unknown));
        }
        self.leave(serial);
        if let Some(kept) = self.messages.get_mut(&serial) {
            kept.firing = None;
        }
        self.enter_again(serial);
        Ok(None)
    }

    fn replace(&mut self, serial: u64, message: Message) -> Option<Scheduled> {
        self.leave(serial);
        let waiting = change::waiting(&message, serial);
        let kept = self.messages.get_mut(&serial)?;
        kept.message = message;
        kept.firing = None;
        self.enter_again(serial);
        waiting
    }

    fn remove(&mut self, serial: u64) {
        self.leave(serial);
        if let Some(kept) = self.messages.remove(&serial) {
            self.ids.remove(&kept.message.id);
        }
    }

    fn leave(&mut self, serial: u64) {
        if let Some(kept) = self.messages.get(&serial) {
            let (state, due_key) = position(kept, serial);
            self.order.remove(&(state, due_key));
            if let Some(counts) = self.counts.get_mut(&kept.message.topic) {
                *counts.of(state) -= 1;
                if counts.is_empty() {
                    self.counts.remove(&kept.message.topic);
                }
            }
        }
    }

    fn enter_again(&mut self, serial: u64) {
        if let Some(kept) = self.messages.remove(&serial) {
            self.enter(serial, &kept);
            self.messages.insert(serial, kept);
        }
    }

    fn enter(&mut self, serial: u64, kept: &Kept) {
        let (state, due_key) = position(kept, serial);
        self.order.insert((state, due_key));
        let topic = &kept.message.topic;
        if !self.counts.contains_key(topic) {
            self.counts.insert(topic.clone(), TopicCounts::default());
        }
        if let Some(counts) = self.counts.get_mut(topic) {
            *counts.of(state) += 1;
        }
    }

    fn list(&self, query: &Query) -> Page {
        let at = |at: Option<Timestamp>, else_at| DueKey::at(at.unwrap_or(else_at));
        let from = at(query.from, Timestamp::from_millis(0));
        let until = at(query.until, Timestamp::MAX);
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
            return Page::default();
        }
        let limit = query.limit.clamp(1, Query::MAX_LIMIT);
        let range = (query.state, from)..(query.state, until);
        let (mut page, mut bytes) = (Page::default(), 0);
        for (_, due_key) in self.order.range(range) {
            let message = self.messages[&due_key.serial].current();
            if query
                .topic
                .as_ref()
                .is_some_and(|topic| *topic != message.topic)
            {
                continue;
            }
            bytes += message.payload.len();
            page.messages.push(message.clone());
            if page.messages.len() == limit || bytes >= PAGE_BYTES {
                page.next = Some(Cursor {
                    at: due_key.at.as_millis(),
                    serial: due_key.serial,
                });
                break;
            }
        }
        page
    }

    fn forget(&mut self, keys_before: Timestamp, ended_before: Timestamp) -> bool {
        let mut forgotten = 0;
        while forgotten < FORGET_AT_ONCE
            && let Some((at, _)) = self.keys_by_age.first()
            && *at < keys_before
            && let Some((_, key)) = self.keys_by_age.pop_first()
        {
            self.keys.remove(&key);
            forgotten += 1;
        }
        for state in [StateName::Delivered, StateName::Withdrawn] {
            while forgotten < FORGET_AT_ONCE
                && let Some(&(_, due_key)) = self
                    .order
                    .range((state, DueKey::FIRST)..(state, DueKey::at(ended_before)))
                    .next()
            {
                self.remove(due_key.serial);
                forgotten += 1;
            }
        }
        forgotten == FORGET_AT_ONCE
    }
}

/// Where a message is in the order of its state.
fn position(kept: &Kept, serial: u64) -> (StateName, DueKey) {
    let message = kept.current();
    let state = StateName::from(message.record.state());
    // A firing message is listed by its due time.
    let at = change::waiting(message, serial).map(|waiting| waiting.due_key.at);
    let at = at.or_else(|| change::ended(message));
    let at = at.unwrap_or_else(|| message.record.due());
    (state, DueKey { at, serial })
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock()
    }

    fn admit(&self, waiting: &[Scheduled]) {
        if !waiting.is_empty()
            && let Some(due_index) = self.due_index.get()
        {
            due_index.admit(waiting);
        }
    }

    /// Does something for each, and admits those that take a place.
    fn each<T, U>(
        &self,
        items: Vec<T>,
        mut work: impl FnMut(&mut Contents, T) -> Result<(U, Option<Scheduled>), Error>,
    ) -> Vec<Result<U, Error>> {
        let mut waiting = Vec::new();
        let mut contents = self.contents();
        let answers = items.into_iter().map(|item| {
            let (answer, due_key) = work(&mut contents, item)?;
            waiting.extend(due_key);
            Ok(answer)
        });
        let answers = answers.collect();
        drop(contents);
        self.admit(&waiting);
        answers
    }
}

impl Store for MemoryStore {
    fn attach(&self, due_index: Arc<dyn DueIndex>) {
        // A second one would be a mistake of ours; the first one stays.
        let _ = self.due_index.set(due_index);
    }

    fn submit(&self, drafts: Vec<Draft>) -> BoxFuture<'_, Vec<Result<Accepted, Error>>> {
        let answers = self.each(drafts, Contents::submit);
        Box::pin(std::future::ready(answers))
    }

    fn change(&self, changes: Vec<Change>) -> BoxFuture<'_, Vec<Result<Message, Error>>> {
        let answers = self.each(changes, Contents::change);
        Box::pin(std::future::ready(answers))
    }

    fn claim(
        &self,
        waiting: Vec<Scheduled>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<Claim>, Error>> {
        let mut contents = self.contents();
        let claims = waiting
            .iter()
            .filter_map(|waiting| contents.claim(waiting, now));
        let claims = claims.collect();
        Box::pin(std::future::ready(Ok(claims)))
    }

    fn settle(&self, settlements: Vec<Settlement>) -> BoxFuture<'_, Result<(), Error>> {
        let settled = self.each(settlements, |contents, settlement| {
            Ok(((), contents.settle(settlement)?))
        });
        Box::pin(std::future::ready(settled.into_iter().collect()))
    }

    fn scan(
        &self,
        from: DueKey,
        until: DueKey,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Scheduled>, Error>> {
        let contents = self.contents();
        let state = StateName::Scheduled;
        let range = (
            Bound::Included((state, from)),
            Bound::Excluded((state, until.max(from))),
        );
        let found = contents.order.range(range).take(limit);
        let found = found.filter_map(|(_, due_key)| {
            change::waiting(contents.messages[&due_key.serial].current(), due_key.serial)
        });
        let found = found.collect();
        Box::pin(std::future::ready(Ok(found)))
    }

    fn floor(&self) -> DueKey {
        DueKey::FIRST
    }

    fn get<'a>(&'a self, id: &'a MessageId) -> BoxFuture<'a, Result<Option<Message>, Error>> {
        let contents = self.contents();
        let serial = contents.ids.get(id);
        let message = serial.map(|serial| contents.messages[serial].current().clone());
        Box::pin(std::future::ready(Ok(message)))
    }

    fn list<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Page, Error>> {
        let page = self.contents().list(query);
        Box::pin(std::future::ready(Ok(page)))
    }

    fn counts(&self) -> Counts {
        self.contents().counts.clone()
    }

    fn forget(
        &self,
        keys_before: Timestamp,
        ended_before: Timestamp,
    ) -> BoxFuture<'_, Result<bool, Error>> {
        let more = self.contents().forget(keys_before, ended_before);
        Box::pin(std::future::ready(Ok(more)))
    }

    fn health(&self) -> Result<(), Error> {
        Ok(())
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
