//! What is committed together: rows, catalog rows, and what they change in memory once they are
//! safe.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use laneway_disk::{Disk, QueuePermit, planted};

use super::catalog::{self, Key};
use super::engine::{Engine, Writes, row_key};
use super::request::{Ack, Append, Save, Trim};
use super::row::{self, Chunk, Head, Run};
use super::state::{LogState, Mark, Span};
use crate::broker::BrokerError;
use crate::settle::Position;

/// A commit in the making.
pub(super) struct Batch<'a> {
    identity: u64,
    number: u64,
    writes: Writes<'a>,
    catalog: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    pending: Pending,
    /// Where a log is among those that grow, by topic and partition.
    places: HashMap<(u32, u32), usize>,
    buffer: Vec<u8>,
    bytes: usize,
    must_sync: bool,
}

/// What a commit adds to a log.
struct Growth {
    log: Arc<LogState>,
    /// Where the open row begins.
    row: Mark,
    open: Chunk,
    segment: Option<u32>,
    spans: Vec<Span>,
    runs: Vec<Run>,
    answers: Vec<Answer>,
}

/// What a publisher waits for.
pub(super) struct Answer {
    offset: u64,
    ack: Ack<u64>,
    permit: QueuePermit,
}

impl Answer {
    pub(super) fn give(self) {
        // Room first: a caller that hears the answer may want it.
        drop(self.permit);
        let _ = self.ack.send(Ok(self.offset));
    }
}

impl Growth {
    fn end(&self) -> Mark {
        Mark {
            offset: self.row.offset + u64::from(self.open.count),
            size: self.row.size + self.open.size,
        }
    }
}

/// What a commit changes in memory, and who is to be told.
#[derive(Default)]
pub(super) struct Pending {
    logs: Vec<Growth>,
    positions: Vec<(Arc<LogState>, String, Position)>,
    /// With whether nothing is left.
    starts: Vec<(Arc<LogState>, Mark, bool)>,
    /// Those who need not wait for a sync.
    quick: Vec<(Ack<()>, Option<QueuePermit>)>,
    patient: Vec<Ack<()>>,
}

impl<'a> Batch<'a> {
    /// The commit of this number. Only commits that are synced have one of their own.
    pub(super) fn new(engine: &'a Engine, identity: u64, number: u64) -> Self {
        Self {
            identity,
            number,
            writes: engine.writes(),
            catalog: BTreeMap::new(),
            pending: Pending::default(),
            places: HashMap::new(),
            buffer: Vec::new(),
            bytes: 0,
            must_sync: false,
        }
    }

    /// What it comes to in the journal, about.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether anything of it must be durable before it is told.
    pub(super) fn must_sync(&self) -> bool {
        self.must_sync
    }

    pub(super) fn sync(&mut self) {
        self.must_sync = true;
    }

    /// Answers when it is durable.
    pub(super) fn tell_when_durable(&mut self, ack: Ack<()>) {
        self.sync();
        self.pending.patient.push(ack);
    }

    pub(super) fn append(&mut self, append: Append) {
        let Append {
            log,
            chunks,
            ack,
            permit,
        } = append;
        self.must_sync = true;
        let index = *self
            .places
            .entry((log.topic.id, log.partition))
            .or_insert_with(|| {
                let contents = log.lock();
                // A log that this commit empties has no span any more, and gets a new one.
                let is_emptied = self.pending.is_emptied(&log);
                let span = contents.spans.back().filter(|_| !is_emptied);
                self.pending.logs.push(Growth {
                    row: contents.end,
                    open: Chunk::default(),
                    segment: span.map(|span| span.segment),
                    spans: Vec::new(),
                    runs: Vec::new(),
                    answers: Vec::new(),
                    log: log.clone(),
                });
                self.pending.logs.len() - 1
            });
        let first = self.pending.logs[index].end().offset;
        for chunk in chunks.iter() {
            if !self.pending.logs[index].open.has_room_for(chunk) {
                self.close_row(index);
            }
            self.bytes += chunk.bytes.len();
            self.pending.logs[index].open.append(chunk);
        }
        let growth = &mut self.pending.logs[index];
        growth.answers.push(Answer {
            offset: first,
            ack,
            permit,
        });
    }

    /// Puts the open row of a log into its segment.
    fn close_row(&mut self, index: usize) {
        let growth = &mut self.pending.logs[index];
        if growth.open.count == 0 {
            return;
        }
        let (topic, partition) = (&growth.log.topic, growth.log.partition);
        let segment = topic.segments.lock().place(growth.open.size);
        let head = Head {
            topic: topic.id,
            partition,
            first: growth.row.offset,
            count: growth.open.count,
            commit: self.number,
            size_before: growth.row.size,
            size: growth.open.size,
        };
        if growth.segment != Some(segment) {
            growth.segment = Some(segment);
            let span = Span {
                first: growth.row,
                segment,
            };
            growth.spans.push(span);
            put_span(&mut self.catalog, topic.id, partition, span);
        }
        self.buffer.clear();
        row::put(&mut self.buffer, &head, &growth.open.bytes, self.identity);
        let key = row_key(segment, partition, head.end() - 1);
        self.writes.put_row(topic.id, key, &self.buffer);
        growth.row = growth.end();
        growth.runs.push(Run::take(&mut growth.open, head.first));
    }

    /// Sets a row of the catalog; the last value of a key counts.
    pub(super) fn put(&mut self, key: &Key, value: Vec<u8>) {
        self.bytes += value.len();
        self.catalog.insert(key.encode(), Some(value));
    }

    pub(super) fn remove(&mut self, key: &Key) {
        self.catalog.insert(key.encode(), None);
    }

    /// Moves a row of a log into another segment.
    pub(super) fn put_row(&mut self, topic: u32, key: [u8; 16], row: &[u8]) {
        self.bytes += row.len();
        self.writes.put_row(topic, key, row);
    }

    /// Says where records of a log lie.
    pub(super) fn put_span(&mut self, topic: u32, partition: u32, span: Span) {
        put_span(&mut self.catalog, topic, partition, span);
    }

    pub(super) fn save(&mut self, save: Save) {
        let (topic, partition) = (save.log.topic.id, save.log.partition);
        if !save.log.topic.is_removed() {
            let key = Key::Position(topic, partition, save.group.clone());
            self.put(&key, save.position.encode());
            let saved = (save.log, save.group, save.position);
            self.pending.positions.push(saved);
        }
        if save.is_synced {
            drop(save.permit);
            self.tell_when_durable(save.ack);
        } else {
            self.pending.quick.push((save.ack, Some(save.permit)));
        }
    }

    pub(super) fn trim(&mut self, trim: Trim) {
        let Trim { log, start, ack } = trim;
        self.pending.quick.push((ack, None));
        let contents = log.lock();
        if log.topic.is_removed() || start <= self.pending.start_of(&log).unwrap_or(contents.start)
        {
            return;
        }
        let (topic, partition) = (log.topic.id, log.partition);
        // What this very commit adds lies behind the last span.
        let is_growing = self.places.contains_key(&(topic, partition));
        let is_emptied = start >= contents.end && !is_growing && !planted("A1");
        let value = catalog::numbers([start.offset, start.size]);
        self.put(&Key::Start(topic, partition), value);
        for span in contents.spans_until(start, is_emptied) {
            self.remove(&Key::Span(topic, partition, span.first.offset));
        }
        drop(contents);
        self.pending.starts.push((log, start, is_emptied));
    }

    /// Whether there is nothing to write.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.logs.is_empty() && self.catalog.is_empty()
    }

    /// Hands it to the system.
    pub(super) fn commit(mut self, disk: &dyn Disk) -> (Pending, fjall::Result<()>) {
        for index in 0..self.pending.logs.len() {
            self.close_row(index);
        }
        if self.must_sync {
            self.put(&Key::Commit, catalog::numbers([self.number]));
        }
        for (key, value) in self.catalog {
            let value = value.map(|value| catalog::sealed(&key, &value, self.identity));
            self.writes.put_catalog(key, value);
        }
        (self.pending, self.writes.commit(disk))
    }
}

fn put_span(
    catalog: &mut BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    topic: u32,
    partition: u32,
    span: Span,
) {
    let key = Key::Span(topic, partition, span.first.offset).encode();
    let value = catalog::numbers([u64::from(span.segment), span.first.size]);
    catalog.insert(key, Some(value));
}

impl Pending {
    /// Where a log begins with this commit, if that changes.
    fn start_of(&self, log: &Arc<LogState>) -> Option<Mark> {
        let mut starts = self.starts.iter().rev();
        let found = starts.find(|(trimmed, ..)| Arc::ptr_eq(trimmed, log));
        found.map(|(_, start, _)| *start)
    }

    /// Whether this commit takes all that a log has.
    fn is_emptied(&self, log: &Arc<LogState>) -> bool {
        let mut starts = self.starts.iter();
        starts.any(|(trimmed, _, is_emptied)| *is_emptied && Arc::ptr_eq(trimmed, log))
    }

    /// How many publishers wait for an answer.
    pub(super) fn publishers(&self) -> usize {
        self.logs.iter().map(|growth| growth.answers.len()).sum()
    }

    /// It is written, not yet synced.
    pub(super) fn written(&mut self) {
        for (log, group, position) in self.positions.drain(..) {
            log.lock().positions.insert(group, position);
        }
        for (log, start, is_emptied) in self.starts.drain(..) {
            log.lock().trim(start, is_emptied);
        }
        for (ack, permit) in self.quick.drain(..) {
            drop(permit);
            let _ = ack.send(Ok(()));
        }
    }

    /// It is durable: readers may see it. `cached` hears what is in memory now. What it returns is to
    /// be told to the publishers.
    pub(super) fn durable(self, mut cached: impl FnMut(&Arc<LogState>, usize, u64)) -> Vec<Answer> {
        let mut answers = Vec::with_capacity(self.publishers());
        for growth in self.logs {
            let end = growth.end();
            let count = growth.runs.len();
            let mut contents = growth.log.lock();
            let size = end.size - contents.end.size;
            contents.extend(growth.spans, growth.runs, end);
            drop(contents);
            cached(&growth.log, count, size);
            answers.extend(growth.answers);
        }
        for ack in self.patient {
            let _ = ack.send(Ok(()));
        }
        answers
    }

    /// It failed.
    pub(super) fn refuse(self, error: impl Fn() -> BrokerError) {
        for (log, group, position) in &self.positions {
            log.lock().not_saved(group, position);
        }
        for answer in self.logs.into_iter().flat_map(|growth| growth.answers) {
            let _ = answer.ack.send(Err(error()));
        }
        let quick = self.quick.into_iter().map(|(ack, _)| ack);
        for ack in quick.chain(self.patient) {
            let _ = ack.send(Err(error()));
        }
    }
}
