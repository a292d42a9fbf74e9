//! What was delivered, and what of it is done.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use super::Position;

/// Follows the deliveries of one partition. Pure: it neither reads nor commits.
#[derive(Debug)]
pub struct Tracker {
    /// Delivered and not yet below the low-water mark, in order of their offsets.
    window: VecDeque<Delivery>,
    /// One past the last delivered offset.
    next: u64,
    /// How many separate stretches of done ones the window holds.
    runs: usize,
    /// How many blocks of the window are not done. See [`most_bytes_with`](Self::most_bytes_with).
    open_blocks: usize,
    /// What was known to be done at the start.
    known: Position,
}

#[derive(Debug)]
struct Delivery {
    offset: u64,
    done: bool,
    /// Whether its key is that of the delivery before it: both are in one block.
    follows: bool,
    /// It is done, and counts as such when the one before it in its block is.
    is_told: bool,
}

impl Tracker {
    /// Goes on from a position.
    #[must_use]
    pub fn resume(position: Position) -> Self {
        Self {
            window: VecDeque::new(),
            next: position.low(),
            runs: 0,
            open_blocks: 0,
            known: position,
        }
    }

    /// An event was read. Answers whether it has to be handled: not if it is known to be done, nor
    /// if it was delivered before.
    pub fn deliver(&mut self, offset: u64) -> bool {
        self.deliver_after(offset, false)
    }

    /// The same for an event of which is known whether it `follows`: whether the delivery before it
    /// has the same key. Events of one key are done in order; one that is said to be done before the one
    /// that it follows counts as done together with that one.
    pub fn deliver_after(&mut self, offset: u64, follows: bool) -> bool {
        if offset < self.next {
            return false;
        }
        self.next = offset + 1;
        let done = self.known.is_done(offset);
        if done && self.window.is_empty() {
            return false;
        }
        let last_done = self.window.back().map(|last| last.done);
        if done && last_done != Some(true) {
            self.runs += 1;
        }
        let follows = follows && !done && last_done.is_some();
        // One that joins a block which is not done leaves it as it is.
        if !(done || follows && last_done == Some(false)) {
            self.open_blocks += 1;
        }
        self.window.push_back(Delivery {
            offset,
            done,
            follows,
            is_told: done,
        });
        !done
    }

    /// An event is done. Answers whether that moved the low-water mark.
    pub fn done(&mut self, offset: u64) -> bool {
        let Ok(index) = self
            .window
            .binary_search_by_key(&offset, |delivery| delivery.offset)
        else {
            return false;
        };
        if self.window[index].is_told {
            return false;
        }
        self.window[index].is_told = true;
        let waits = self.window[index].follows && index > 0 && !self.window[index - 1].done;
        if waits {
            return false;
        }
        let mut next = index;
        loop {
            self.mark_done(next);
            next += 1;
            match self.window.get(next) {
                Some(delivery) if delivery.follows && delivery.is_told => {}
                Some(delivery) if delivery.follows => break,
                _ => {
                    self.open_blocks -= 1;
                    break;
                }
            }
        }
        if index > 0 {
            return false;
        }
        while self.window.front().is_some_and(|first| first.done) {
            self.window.pop_front();
        }
        self.runs -= 1;
        true
    }

    /// Learns what others have settled since, without reading it again: deliveries that `position` has are done, and what
    /// it has of offsets that were not delivered yet is known.
    pub fn learn(&mut self, position: &Position) {
        let is_news = |delivery: &&Delivery| !delivery.done && position.is_done(delivery.offset);
        let news: Vec<_> = self
            .window
            .iter()
            .filter(is_news)
            .map(|it| it.offset)
            .collect();
        for offset in news {
            self.done(offset);
        }
        self.known = self.known.merge(position);
        // An empty window has its low-water mark where the next delivery will be.
        if self.window.is_empty() {
            self.next = self.next.max(position.low());
        }
    }

    fn mark_done(&mut self, index: usize) {
        self.window[index].done = true;
        let neighbour = |index: Option<usize>| {
            index
                .and_then(|index| self.window.get(index))
                .is_some_and(|delivery| delivery.done)
        };
        match (neighbour(index.checked_sub(1)), neighbour(Some(index + 1))) {
            (true, true) => self.runs -= 1,
            (false, false) => self.runs += 1,
            _ => {}
        }
    }

    /// What may be committed now.
    #[must_use]
    pub fn position(&self) -> Position {
        let mut position = Position::at(self.low());
        let mut open: Option<RangeInclusive<u64>> = None;
        for delivery in &self.window {
            if delivery.done {
                let start = open
                    .as_ref()
                    .map_or(delivery.offset, |range| *range.start());
                open = Some(start..=delivery.offset);
            } else if let Some(range) = open.take() {
                position.push(range);
            }
        }
        if let Some(range) = open {
            position.push(range);
        }
        // What was known above and has not been read again yet is still known.
        for range in self.known.done_above() {
            if *range.end() >= self.next {
                position.push((*range.start()).max(self.next)..=*range.end());
            }
        }
        position
    }

    /// The lowest unfinished delivered offset, or where the next delivery will be.
    #[must_use]
    pub fn low(&self) -> u64 {
        self.window
            .front()
            .map_or(self.next, |delivery| delivery.offset)
    }

    /// How many deliveries are at or above the low-water mark: what the memory of the tracker and
    /// the size of a position follow.
    #[must_use]
    pub fn span(&self) -> usize {
        self.window.len()
    }

    /// The most bytes that a position can take from now on, in whatever order things are done, if the
    /// event at this offset is delivered and none after it.
    ///
    /// Every stretch of done ones above the low-water mark comes right after one that is not done, so there
    /// are never more of them than stretches of deliveries that are not done. Of those there are never more
    /// than *blocks* that are not done, a block being deliveries of one key with none of another between
    /// them: what is not done of a block is its end (`done` sees to that), so no more than one stretch
    /// begins in it. A block is over when its last one is done, and is never open again unless another
    /// one joins it; so the number only falls until something is delivered, which makes it one more at
    /// most. What is known and not read again yet is as it is.
    ///
    /// So a key that has very many events waiting, one after the other, takes no more room than one event.
    #[must_use]
    pub fn most_bytes_with(&self, offset: u64) -> usize {
        let low = self.window.front().map_or(offset, |first| first.offset);
        let ahead = |range: &RangeInclusive<u64>| *range.end() > offset;
        let known = match self.known.done_above().last() {
            Some(last) if ahead(last) => {
                let read = self
                    .known
                    .done_above()
                    .partition_point(|range| !ahead(range));
                self.known.done_above().len() - read
            }
            _ => 0,
        };
        let end = self
            .known
            .done_above()
            .last()
            .map_or(0, |range| *range.end());
        let span = end.max(offset).saturating_sub(low);
        Position::most_bytes(self.open_blocks + 1 + known, span)
    }

    /// How many done ranges a position would have now.
    #[must_use]
    pub fn ranges(&self) -> usize {
        self.runs
    }
}
