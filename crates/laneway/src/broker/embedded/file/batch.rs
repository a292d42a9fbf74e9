//! What is committed together: rows, catalog rows, and what they change in memory once they are
//! safe.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tokio::sync::oneshot;

use super::catalog::{self, Key};
use super::engine::{CommitError, Engine, Writes, row_key};
use super::queue::Place;
use super::row::{self, Chunk, Head};
use super::state::{LogState, Mark, Span, lock};
use crate::broker::BrokerError;
use crate::record::Record;

/// Where an answer goes.
pub(super) type Ack<T> = oneshot::Sender<Result<T, BrokerError>>;

/// Records for one log.
pub(super) struct Append {
    pub(super) log: Arc<LogState>,
    pub(super) records: Vec<Arc<Record>>,
    pub(super) chunks: Vec<Chunk>,
    pub(super) ack: Ack<u64>,
    pub(super) place: Place,
}

/// A commit in the making.
pub(super) struct Batch<'a> {
    identity: u64,
    number: u64,
    writes: Writes<'a>,
    catalog: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    logs: Vec<Growth>,
    /// Where a log is in `logs`, by topic and partition.
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
    records: Vec<Arc<Record>>,
    acks: Vec<(u64, Ack<u64>, Place)>,
}

impl Growth {
    fn end(&self) -> Mark {
        Mark {
            offset: self.row.offset + u64::from(self.open.count),
            size: self.row.size + self.open.size,
        }
    }
}

/// What is to be told once a commit is durable.
pub(super) struct Pending(Vec<Growth>);

impl<'a> Batch<'a> {
    /// The commit of this number. Only commits that are synced have one of their own.
    pub(super) fn new(engine: &'a Engine, identity: u64, number: u64) -> Self {
        Self {
            identity,
            number,
            writes: engine.writes(),
            catalog: BTreeMap::new(),
            logs: Vec::new(),
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

    pub(super) fn append(&mut self, append: Append) {
        let Append {
            log,
            records,
            chunks,
            ack,
            place,
        } = append;
        self.must_sync = true;
        let index = *self
            .places
            .entry((log.topic.id, log.partition))
            .or_insert_with(|| {
                let contents = log.lock();
                self.logs.push(Growth {
                    row: contents.end,
                    open: Chunk::default(),
                    segment: contents.spans.back().map(|span| span.segment),
                    spans: Vec::new(),
                    records: Vec::new(),
                    acks: Vec::new(),
                    log: log.clone(),
                });
                self.logs.len() - 1
            });
        let first = self.logs[index].end().offset;
        for chunk in &chunks {
            if !self.logs[index].open.has_room_for(chunk) {
                self.close_row(index);
            }
            self.bytes += chunk.bytes.len();
            self.logs[index].open.append(chunk);
        }
        let growth = &mut self.logs[index];
        growth.records.extend(records);
        growth.acks.push((first, ack, place));
    }

    /// Puts the open row of a log into its segment.
    fn close_row(&mut self, index: usize) {
        let growth = &mut self.logs[index];
        if growth.open.count == 0 {
            return;
        }
        let (topic, partition) = (&growth.log.topic, growth.log.partition);
        let segment = lock(&topic.segments).place(growth.open.size);
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
        growth.open.clear();
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

    /// Begins a log at a mark; the rest of what was before it may go.
    pub(super) fn trim(&mut self, log: &LogState, start: Mark) {
        let (topic, partition) = (log.topic.id, log.partition);
        let value = catalog::numbers([start.offset, start.size]);
        self.put(&Key::Start(topic, partition), value);
        for span in log.lock().spans_before(start.offset) {
            self.remove(&Key::Span(topic, partition, span.first.offset));
        }
    }

    /// Hands it to the system. What it answers must be told only when it has been synced.
    pub(super) fn commit(mut self) -> (Pending, Result<(), CommitError>) {
        for index in 0..self.logs.len() {
            self.close_row(index);
        }
        if self.must_sync {
            self.put(&Key::Commit, catalog::numbers([self.number]));
        }
        for (key, value) in self.catalog {
            let value = value.map(|value| catalog::sealed(&key, &value, self.identity));
            self.writes.put_catalog(key, value);
        }
        (Pending(self.logs), self.writes.commit())
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
    /// How many wait for an answer.
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|growth| growth.acks.len()).sum()
    }

    /// It is durable: readers may see it, and publishers are told. `cached` hears what is in memory
    /// now.
    pub(super) fn tell(self, mut cached: impl FnMut(&Arc<LogState>, usize, u64)) {
        for growth in self.0 {
            let end = growth.end();
            let count = growth.records.len();
            let mut contents = growth.log.lock();
            let size = end.size - contents.end.size;
            contents.extend(growth.spans, growth.records, end);
            drop(contents);
            cached(&growth.log, count, size);
            for (offset, ack, place) in growth.acks {
                // Room first: whoever hears the answer may want it.
                drop(place);
                let _ = ack.send(Ok(offset));
            }
        }
    }

    pub(super) fn refuse(self, error: impl Fn() -> BrokerError) {
        for growth in self.0 {
            for (_, ack, _) in growth.acks {
                let _ = ack.send(Err(error()));
            }
        }
    }
}
