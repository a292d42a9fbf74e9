//! Topics and logs as they are known in memory. Readers and the writer share them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use laneway_disk::planted;
use parking_lot::{Mutex, MutexGuard};

use super::row::Run;
use crate::settle::Position;
use crate::topic::TopicName;

/// A topic that has logs.
#[derive(Debug)]
pub(super) struct TopicState {
    pub(super) id: u32,
    pub(super) name: TopicName,
    removed: AtomicBool,
    pub(super) segments: Mutex<Segments>,
}

/// Where new records of a topic go.
#[derive(Debug)]
pub(super) struct Segments {
    current: u32,
    size: u64,
    /// Written to one segment, by [`Record::size`], before the next one begins.
    limit: u64,
    /// Ranges of segments that were dropped, so that it is not tried again and again.
    pub(super) dropped: Vec<(u32, u32)>,
}

impl Segments {
    /// Goes on in the highest segment that there is.
    pub(super) fn resume(current: u32, size: u64, limit: u64) -> Self {
        Self {
            current,
            size,
            limit,
            dropped: Vec::new(),
        }
    }

    /// The segment for records of this size.
    pub(super) fn place(&mut self, size: u64) -> u32 {
        if self.size >= self.limit {
            self.current += 1;
            self.size = 0;
        }
        self.size += size;
        self.current
    }

    /// A segment of its own for records that are moved together.
    pub(super) fn aside(&mut self) -> u32 {
        self.current += 2;
        self.size = 0;
        self.current - 1
    }

    pub(super) fn current(&self) -> u32 {
        self.current
    }
}

impl TopicState {
    /// `segment` bytes are written to a segment of it, about.
    pub(super) fn new(id: u32, name: TopicName, segment: u64) -> Self {
        Self {
            id,
            name,
            removed: AtomicBool::new(false),
            segments: Mutex::new(Segments::resume(0, 0, segment)),
        }
    }

    pub(super) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    pub(super) fn remove(&self) {
        self.removed.store(true, Ordering::Release);
    }
}

/// A place in a log, and what all records before it count for by [`Record::size`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mark {
    pub(super) offset: u64,
    pub(super) size: u64,
}

/// From here to the next span, the records of a log are in this segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) first: Mark,
    pub(super) segment: u32,
}

/// The log of a partition.
#[derive(Debug)]
pub(super) struct LogState {
    pub(super) topic: Arc<TopicState>,
    pub(super) partition: u32,
    contents: Mutex<Contents>,
}

/// What is in a log. Only durable records count.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) start: Mark,
    pub(super) end: Mark,
    /// In order. None is left when nothing is left: the log ends where it starts then.
    pub(super) spans: VecDeque<Span>,
    pub(super) positions: HashMap<String, Position>,
    /// Positions on their way to the disk, or there.
    pub(super) asked_for: HashMap<String, Position>,
    /// The latest records, up to the end.
    tail: VecDeque<Arc<Run>>,
}

impl LogState {
    pub(super) fn new(topic: Arc<TopicState>, partition: u32, contents: Contents) -> Self {
        Self {
            topic,
            partition,
            contents: Mutex::new(contents),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock()
    }
}

impl Contents {
    /// The span that holds the record at `offset`, and the offset at which it ends.
    pub(super) fn span_of(&self, offset: u64) -> Option<(Span, u64)> {
        let after = self
            .spans
            .partition_point(|span| span.first.offset <= offset);
        let next = self.spans.get(after).map(|span| span.first);
        let span = self.spans.get(after.checked_sub(1)?)?;
        Some((*span, next.unwrap_or(self.end).offset))
    }

    /// All spans in which anything is left, with how much that is by [`Record::size`].
    pub(super) fn live_spans(&self) -> impl Iterator<Item = (Span, u64)> {
        let ends = self.spans.iter().skip(1).map(|span| span.first);
        self.spans
            .iter()
            .zip(ends.chain([self.end]))
            .filter(|(span, end)| {
                let is_live = end.offset > span.first.offset.max(self.start.offset);
                is_live || planted("A1")
            })
            .map(|(span, end)| {
                let from = span.first.size.max(self.start.size);
                (*span, end.size.saturating_sub(from))
            })
    }

    /// Says that a span is in another segment.
    pub(super) fn move_span(&mut self, offset: u64, segment: u32) {
        let moved = self
            .spans
            .iter_mut()
            .find(|span| span.first.offset == offset);
        if let Some(span) = moved {
            span.segment = segment;
        }
    }

    /// The spans that end at or before `offset`: all of them may go.
    fn spans_before(&self, offset: u64) -> impl Iterator<Item = Span> {
        let nexts = self.spans.iter().skip(1);
        self.spans
            .iter()
            .zip(nexts)
            .take_while(move |(_, next)| next.first.offset <= offset)
            .map(|(span, _)| *span)
    }

    /// Takes in records that became durable.
    pub(super) fn extend(&mut self, spans: Vec<Span>, runs: Vec<Run>, end: Mark) {
        let first = runs.first().map_or(end.offset, |run| run.first);
        if self.end.offset != first {
            self.tail.clear();
        }
        self.spans.extend(spans);
        self.tail.extend(runs.into_iter().map(Arc::new));
        self.end = end;
    }

    /// The spans that go when the log begins at `start`: those before it, and if nothing is left the last one,
    /// too. It would keep a segment from being dropped, and have no row in it to tell where the log ends.
    pub(super) fn spans_until(&self, start: Mark, is_emptied: bool) -> Vec<Span> {
        if is_emptied {
            return self.spans.iter().copied().collect();
        }
        self.spans_before(start.offset).collect()
    }

    /// Forgets the records before a mark; `is_emptied` if those are all, and no others are on their way.
    pub(super) fn trim(&mut self, start: Mark, is_emptied: bool) {
        let gone = self.spans_until(start, is_emptied).len();
        self.spans.drain(..gone);
        self.start = start;
        self.forget(self.tail.partition_point(|run| run.end <= start.offset));
    }

    /// A position was not written. The next one must not be taken for known because of it.
    pub(super) fn not_saved(&mut self, group: &str, position: &Position) {
        if self.asked_for.get(group) == Some(position) {
            self.asked_for.remove(group);
        }
    }

    /// Takes over what was found on disk.
    pub(super) fn replace(&mut self, found: Self) {
        let asked_for = std::mem::take(&mut self.asked_for);
        *self = Self { asked_for, ..found };
    }

    /// The first offset that is in memory.
    fn cached_from(&self) -> u64 {
        self.tail.front().map_or(self.end.offset, |run| run.first)
    }

    /// Forgets the oldest runs that are in memory.
    pub(super) fn forget(&mut self, runs: usize) {
        self.tail.drain(..runs.min(self.tail.len()));
        // A burst must not keep its memory.
        if self.tail.capacity() > 1024 && self.tail.capacity() > 4 * self.tail.len() {
            self.tail.shrink_to_fit();
        }
    }

    /// Up to `most` records from memory and a few more around them, or `None` if the first of them is
    /// only on disk. Answers from where on they count, too.
    pub(super) fn cached(&self, from: u64, most: usize) -> Option<(u64, Vec<Arc<Run>>)> {
        let from = from.max(self.start.offset);
        if from < self.cached_from() {
            return None;
        }
        let until = from.saturating_add(most as u64);
        let skip = self.tail.partition_point(|run| run.end <= from);
        let runs = self.tail.range(skip..);
        let runs = runs.take_while(|run| run.first < until).cloned();
        Some((from, runs.collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::embedded::file::row::Chunks;
    use crate::record::Record;

    fn mark(offset: u64) -> Mark {
        Mark {
            offset,
            size: offset * 10,
        }
    }

    fn span(first: u64, segment: u32) -> Span {
        Span {
            first: mark(first),
            segment,
        }
    }

    /// Runs of three records each.
    fn runs(first: u64, count: u64) -> Vec<Run> {
        let firsts = (first..first + 3 * count).step_by(3);
        let chunk = || {
            Chunks::of(&vec![Record::default(); 3])
                .iter()
                .next()
                .cloned()
        };
        firsts
            .map(|first| Run::take(&mut chunk().unwrap(), first))
            .collect()
    }

    fn cached(contents: &Contents, from: u64, most: usize) -> Option<Vec<u64>> {
        let (from, runs) = contents.cached(from, most)?;
        let records = runs.iter().flat_map(|run| run.records(from));
        Some(records.map(|record| record.unwrap().0).collect())
    }

    #[test]
    fn a_record_is_in_the_span_that_begins_at_or_before_it() {
        let mut contents = Contents::default();
        assert_eq!(contents.span_of(0), None);
        contents.extend(vec![span(0, 1), span(5, 4)], runs(0, 3), mark(9));
        assert_eq!(contents.span_of(4), Some((span(0, 1), 5)));
        assert_eq!(contents.span_of(5), Some((span(5, 4), 9)));
        contents.move_span(0, 7);
        assert_eq!(contents.span_of(4), Some((span(0, 7), 5)));
    }

    #[test]
    fn what_is_left_of_a_span_begins_at_the_start_of_the_log() {
        let mut contents = Contents::default();
        contents.extend(vec![span(0, 1), span(5, 4)], runs(0, 3), mark(9));
        contents.trim(mark(2), false);
        let left: Vec<_> = contents.live_spans().collect();
        assert_eq!(left, [(span(0, 1), 30), (span(5, 4), 40)]);
    }

    #[test]
    fn trimming_keeps_the_last_span_until_nothing_is_left() {
        let mut contents = Contents::default();
        let spans = vec![span(0, 0), span(3, 1), span(6, 2)];
        contents.extend(spans, runs(0, 3), mark(9));
        contents.trim(mark(5), false);
        assert_eq!(contents.spans, [span(3, 1), span(6, 2)]);
        assert_eq!(cached(&contents, 0, 9), Some(vec![5, 6, 7, 8]));
        contents.trim(mark(9), false);
        assert_eq!(contents.spans, [span(6, 2)], "more is on its way there");
        assert_eq!(contents.live_spans().count(), 0);
        contents.trim(mark(9), true);
        assert_eq!(contents.spans, []);
        assert_eq!(cached(&contents, 0, 9), Some(Vec::new()));
    }

    #[test]
    fn what_is_only_on_disk_is_not_read_from_memory() {
        let mut contents = Contents::default();
        contents.extend(vec![span(0, 0)], runs(0, 3), mark(9));
        contents.forget(1);
        assert_eq!(cached(&contents, 2, 2), None);
        assert_eq!(cached(&contents, 4, 1), Some(vec![4, 5]));
        assert_eq!(cached(&contents, 5, 2), Some(vec![5, 6, 7, 8]));
        assert_eq!(cached(&contents, 9, 2), Some(Vec::new()));
        // Records that are not next to those in memory.
        contents.extend(Vec::new(), runs(17, 1), mark(20));
        assert_eq!(cached(&contents, 16, 2), None);
        assert_eq!(cached(&contents, 18, 9), Some(vec![18, 19]));
    }

    #[test]
    fn a_segment_is_left_when_it_is_full() {
        let mut segments = Segments::resume(3, 0, 100);
        assert_eq!(segments.place(100), 3);
        assert_eq!(segments.place(1), 4);
        assert_eq!(segments.aside(), 5);
        assert_eq!(segments.place(1), 6);
    }
}
