//! Keys whose lanes are full. Their events wait in the broker, and those of others go past them.
//!
//! A key that is slow, or that waits for its retry, fills its lane sooner or later. From then on it is
//! *behind*: the reader does not wait for it, not even for a moment, but notes where its events are and goes
//! on. They are read again from the broker and given to the lane as it empties.
//!
//! - A few are *loaded*: read, and next for the lane. Those with which a key falls behind are as well, so a
//!   lane that is full for a moment costs no second look. The rest costs a number each.
//! - They are read in ranges, many at a time, one range after the other. A range is read for the key that
//!   has nothing loaded; whatever it holds of other keys that are behind is taken along.
//! - Every key is fed by itself: one that is slow holds up no other one.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use smol_str::SmolStr;
use tokio::time::sleep;

use super::delivery::Delivery;
use super::limits::BusLimits;
use super::partition_state::PartitionState;
use super::pump::{Ended, Flow, TRY_AGAIN, TURN, submit};
use super::state::Part;
use crate::broker::BoxFuture;
use crate::lanes::{Job, yield_to_others};
use crate::record::Delivered;

/// The bytes that are read at once, by the average of the events that wait.
const CHUNK_BYTES: u64 = 4 << 20;

/// After a range could not be read, so many events are read one by one: one of the range may be what
/// cannot be read.
const ONE_BY_ONE: usize = 64;

/// The keys of a partition that are behind.
pub(super) struct Overflow {
    flow: Arc<Flow>,
    partition: Arc<PartitionState>,
    keys: HashMap<SmolStr, Waiting>,
    /// Of each key that has events in the broker, where the first of them is.
    fronts: BTreeMap<u64, SmolStr>,
    /// Keys that need events from the broker, each once.
    hungry: VecDeque<SmolStr>,
    /// One for each key that is behind; resolves when its lane has taken what was loaded.
    feeding: FuturesUnordered<BoxFuture<'static, Result<Fed, Ended>>>,
    reading: Option<BoxFuture<'static, Read>>,
    /// What was read, as far as it was not looked through.
    read: Option<Read>,
    one_by_one: usize,
    /// Bytes that are loaded or being fed.
    loaded_bytes: usize,
    /// Of all that were ever noted: how many, and how many bytes.
    noted: (u64, u64),
}

/// What waits of a key.
#[derive(Default)]
struct Waiting {
    /// Next for the lane, after what is being fed.
    loaded: VecDeque<Delivery>,
    /// Where those after them are.
    offsets: VecDeque<u64>,
    is_fed: bool,
    is_hungry: bool,
}

/// A lane has taken what it was fed.
struct Fed {
    key: SmolStr,
    bytes: usize,
}

/// What was read, in order, with nothing left out before the first one or between two.
struct Read {
    /// For whom, and the first that it needed.
    key: SmolStr,
    needed: u64,
    /// What is not looked through begins here.
    from: u64,
    records: VecDeque<Delivered>,
    /// Whether the one that the key needs is not there if it is not among them.
    is_last_word: bool,
    /// Whether it did not work at first.
    was_troubled: bool,
}

impl Overflow {
    pub(super) fn new(flow: Arc<Flow>, partition: Arc<PartitionState>) -> Self {
        Self {
            flow,
            partition,
            keys: HashMap::new(),
            fronts: BTreeMap::new(),
            hungry: VecDeque::new(),
            feeding: FuturesUnordered::new(),
            reading: None,
            read: None,
            one_by_one: 0,
            loaded_bytes: 0,
            noted: (0, 0),
        }
    }

    /// Takes an event if its key is behind: it must not overtake.
    pub(super) fn follows(&mut self, delivery: Delivery) -> Option<Delivery> {
        if self.keys.is_empty() {
            return Some(delivery);
        }
        let key = delivery.key().unwrap_or_default();
        match self.keys.get_key_value(key).map(|(key, _)| key.clone()) {
            None => Some(delivery),
            Some(key) => {
                self.note(key, delivery);
                None
            }
        }
    }

    /// A key falls behind with this event.
    pub(super) fn add(&mut self, delivery: Delivery) {
        let key = SmolStr::new(delivery.key().unwrap_or_default());
        self.note(key.clone(), delivery);
        self.feed(&key);
    }

    fn note(&mut self, key: SmolStr, delivery: Delivery) {
        self.noted.0 += 1;
        self.noted.1 += delivery.bytes as u64;
        let limits = self.flow.limits;
        let waiting = self.keys.entry(key.clone()).or_default();
        if waiting.offsets.is_empty() && waiting.has_room(&limits, self.loaded_bytes, &delivery) {
            self.loaded_bytes += delivery.bytes;
            waiting.loaded.push_back(delivery);
            return;
        }
        if waiting.offsets.is_empty() {
            self.fronts.insert(delivery.offset, key);
        }
        waiting.offsets.push_back(delivery.offset);
    }

    /// Waits until there was something to do, and does some of it; for ever if no key is behind. May be
    /// dropped and called again.
    pub(super) async fn advance(&mut self) -> Result<(), Ended> {
        self.look_through_all().await;
        if self.keys.is_empty() {
            return std::future::pending().await;
        }
        self.begin_reading();
        tokio::select! {
            Some(fed) = self.feeding.next() => {
                let Fed { key, bytes } = fed?;
                self.loaded_bytes -= bytes;
                if let Some(waiting) = self.keys.get_mut(&key) {
                    waiting.is_fed = false;
                }
                self.feed(&key);
            }
            read = what_is_read(&mut self.reading) => {
                self.reading = None;
                self.read = Some(read);
            }
        }
        Ok(())
    }

    /// Does what can be done at once: a reader that always has more to read lets those that are behind have
    /// their share.
    pub(super) async fn work_off(&mut self) -> Result<(), Ended> {
        while let Some(advanced) = self.advance().now_or_never() {
            advanced?;
            if self.read.is_some() {
                self.look_through_all().await;
                break;
            }
        }
        Ok(())
    }

    async fn look_through_all(&mut self) {
        while self.read.is_some() {
            // Like a reader: others that were woken meanwhile are on time.
            yield_to_others().await;
            self.look_through();
        }
    }

    /// Gives what is loaded of a key to its lane, unless that is under way. Forgets a key that has caught up.
    fn feed(&mut self, key: &SmolStr) {
        let Some(waiting) = self.keys.get_mut(key) else {
            return;
        };
        if !waiting.is_fed && waiting.loaded.is_empty() && waiting.offsets.is_empty() {
            self.keys.remove(key);
            return;
        }
        if !waiting.is_fed && !waiting.loaded.is_empty() {
            waiting.is_fed = true;
            let loaded = std::mem::take(&mut waiting.loaded);
            let feeding = feed(self.flow.clone(), key.clone(), loaded);
            self.feeding.push(Box::pin(feeding));
        }
        // While it is fed, more is read only if there is room for it; afterwards in any case.
        let has_room = !waiting.is_fed || self.loaded_bytes < self.flow.limits.loaded_bytes / 2;
        let needs_more = waiting.loaded.is_empty() && !waiting.offsets.is_empty();
        if needs_more && has_room && !waiting.is_hungry {
            waiting.is_hungry = true;
            self.hungry.push_back(key.clone());
        }
    }

    /// Reads for the next key that needs events, unless something is being read.
    fn begin_reading(&mut self) {
        while self.reading.is_none()
            && let Some(key) = self.hungry.pop_front()
        {
            let Some(waiting) = self.keys.get_mut(&key) else {
                continue;
            };
            waiting.is_hungry = false;
            // Another one's range may have had some.
            let Some(from) = waiting.offsets.front().copied() else {
                continue;
            };
            if !waiting.loaded.is_empty() {
                continue;
            }
            let range = from..waiting.end_of_range(&self.flow.limits) + 1;
            let most = match self.one_by_one {
                0 => self
                    .at_once()
                    .min(usize::try_from(range.end - from).unwrap_or(usize::MAX)),
                _ => 1,
            };
            self.one_by_one = self.one_by_one.saturating_sub(1);
            let (flow, partition) = (self.flow.clone(), self.partition.number);
            let reading = read_again(flow, partition, key, range, most);
            self.reading = Some(Box::pin(reading));
        }
    }

    /// How many records to read, so that large ones do not fill the memory.
    fn at_once(&self) -> usize {
        let (count, bytes) = self.noted;
        let average = bytes.checked_div(count).unwrap_or(0).max(1);
        let most = usize::try_from(CHUNK_BYTES / average).unwrap_or(usize::MAX);
        // No more than one key can have loaded.
        most.min(self.flow.limits.loaded).max(2)
    }

    /// Takes what keys need from what was read, a few records at a time.
    fn look_through(&mut self) {
        let Some(read) = &mut self.read else {
            return;
        };
        let some: Vec<_> = read.records.drain(..TURN.min(read.records.len())).collect();
        let mut from = read.from;
        if let Some(last) = some.last() {
            read.from = last.offset + 1;
        }
        for delivered in some {
            let offset = delivered.offset;
            // Those between the last one and this one are not there any more.
            self.take_gone(from..offset);
            if let Some(key) = self.fronts.get(&offset).cloned() {
                let delivery = Delivery::of_domain(delivered, self.partition.clone());
                self.load(&key, delivery);
            }
            from = offset + 1;
        }
        if let Some(read) = self.read.take_if(|read| read.records.is_empty()) {
            self.looked_through(&read);
        }
    }

    fn looked_through(&mut self, read: &Read) {
        if read.was_troubled {
            self.one_by_one = ONE_BY_ONE;
        }
        let Some(front) = self.front_of(&read.key) else {
            return;
        };
        if read.needed != front {
            return self.feed(&read.key);
        }
        // It was not there, or there is no room for it now: then it is read again when its key was fed.
        let is_there = read.from > front;
        if !is_there && read.is_last_word {
            self.take_gone(front..front + 1);
        } else if !is_there {
            // The copy that answered may lack it.
            self.one_by_one = self.one_by_one.max(1);
        }
        if self
            .keys
            .get(&read.key)
            .is_some_and(|waiting| !waiting.is_fed)
        {
            self.feed(&read.key);
        }
    }

    fn front_of(&self, key: &SmolStr) -> Option<u64> {
        self.keys.get(key)?.offsets.front().copied()
    }

    /// Events in this range that keys need next are gone.
    fn take_gone(&mut self, range: Range<u64>) {
        let mut from = range.start;
        while let Some((&offset, key)) = self.fronts.range(from..range.end.max(from)).next() {
            let key = key.clone();
            let gone = Delivery::of_gone(&key, offset, self.partition.clone());
            self.load(&key, gone);
            // What follows of its key may be in the range as well; if it had no room, it is still there.
            from = if self.fronts.contains_key(&offset) {
                offset + 1
            } else {
                from
            };
        }
    }

    /// Loads the event that a key needs next, unless it has enough.
    fn load(&mut self, key: &SmolStr, delivery: Delivery) {
        let limits = self.flow.limits;
        let Some(waiting) = self.keys.get_mut(key) else {
            return;
        };
        if waiting.offsets.front() != Some(&delivery.offset)
            || !waiting.has_room(&limits, self.loaded_bytes, &delivery)
        {
            return;
        }
        waiting.offsets.pop_front();
        self.fronts.remove(&delivery.offset);
        if let Some(front) = waiting.offsets.front() {
            self.fronts.insert(*front, key.clone());
        }
        self.loaded_bytes += delivery.bytes;
        waiting.loaded.push_back(delivery);
        self.feed(key);
    }
}

impl Waiting {
    fn has_room(&self, limits: &BusLimits, loaded_bytes: usize, delivery: &Delivery) -> bool {
        self.loaded.is_empty() && !self.is_fed
            || self.loaded.len() < limits.loaded
                && loaded_bytes + delivery.bytes <= limits.loaded_bytes
    }

    /// The last of the events that are worth reading together.
    fn end_of_range(&self, limits: &BusLimits) -> u64 {
        let mut last = self.offsets.front().copied().unwrap_or_default();
        for offset in self.offsets.iter().take(limits.loaded) {
            if offset - last > limits.near {
                break;
            }
            last = *offset;
        }
        last
    }
}

async fn what_is_read(reading: &mut Option<BoxFuture<'static, Read>>) -> Read {
    match reading {
        Some(reading) => reading.await,
        None => std::future::pending().await,
    }
}

/// Gives events to their lane, one after the other, as it has room.
async fn feed(flow: Arc<Flow>, key: SmolStr, loaded: VecDeque<Delivery>) -> Result<Fed, Ended> {
    let bytes = loaded.iter().map(|delivery| delivery.bytes).sum();
    for (number, delivery) in loaded.into_iter().enumerate() {
        if number % TURN == TURN - 1 {
            yield_to_others().await;
        }
        submit(&flow, delivery).await?;
    }
    Ok(Fed { key, bytes })
}

/// Reads events again, until it works: the range, or its first one if that is all that is asked for.
async fn read_again(
    flow: Arc<Flow>,
    partition: u32,
    key: SmolStr,
    range: Range<u64>,
    most: usize,
) -> Read {
    let part = Part::ReadingAgain(partition);
    let from = range.start;
    let (mut is_single, mut was_troubled) = (most == 1, false);
    loop {
        let reading = if is_single {
            flow.broker.peek(&flow.topic, partition, from, 1)
        } else {
            let range = range.clone();
            flow.broker.reread(&flow.topic, partition, range, most)
        };
        match flow
            .call_timeout
            .with("reading events again", reading)
            .await
        {
            Ok(records) => {
                flow.condition.fine(part);
                return Read {
                    key,
                    needed: from,
                    from,
                    records: records.into(),
                    is_last_word: is_single,
                    was_troubled,
                };
            }
            Err(error) => {
                tracing::error!(topic = %flow.topic, partition, %error,
                    "reading overflowed events failed, retrying");
                flow.condition.failing(part, error.to_string());
                (is_single, was_troubled) = (true, true);
                sleep(TRY_AGAIN).await;
            }
        }
    }
}
