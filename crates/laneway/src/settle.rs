//! Which deliveries are done: a low-water mark, and the done ones above it.
//!
//! Handlers of one partition finish out of order. What may be told to the broker at any time is a
//! [`Position`]: everything below `low` is done, and of what is above it some ranges are done too.
//! A reader that starts from a position reads from `low` on and skips those ranges, so nothing is
//! lost and nothing that is known to be done runs again.
//!
//! `low` is the lowest unfinished of the offsets that were *delivered*. Offsets that never come
//! (compacted away, or taken by a transaction marker) are not waited for.
//!
//! # Why a position never splits a key
//!
//! A key's events finish in order, and [`Tracker::position`] is one look at one tracker. So if a
//! position says that an event is done, it says so of all earlier ones of its key, and a reader that
//! starts from it never runs an event again after skipping a later one of the same key.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

/// What is done in one partition. See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Position {
    low: u64,
    done: Vec<RangeInclusive<u64>>,
}

/// Bytes that are not a [`Position`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PositionError {
    /// Written by something else, or by a later version.
    #[error("not a position of this version (first byte {0:?})")]
    Version(Option<u8>),
    /// Cut off, or not what was written.
    #[error("the position is damaged at byte {0}")]
    Damaged(usize),
}

/// The done ones as ranges.
const RANGES: u8 = 1;
/// The done ones as bits, from `low` on: smaller where short stretches take turns.
const BITS: u8 = 2;

/// A position that reaches further is not written as bits.
const MOST_BITS: u64 = 1 << 20;

impl Position {
    /// Everything below `low` is done, and nothing else.
    #[must_use]
    pub fn at(low: u64) -> Self {
        Self {
            low,
            done: Vec::new(),
        }
    }

    /// Where a reader starts.
    #[must_use]
    pub fn low(&self) -> u64 {
        self.low
    }

    /// The done ranges above [`low`](Self::low), in order, none touching another.
    #[must_use]
    pub fn done_above(&self) -> &[RangeInclusive<u64>] {
        &self.done
    }

    /// Whether the event at `offset` is done.
    #[must_use]
    pub fn is_done(&self, offset: u64) -> bool {
        if offset < self.low {
            return true;
        }
        let after = self.done.partition_point(|range| *range.start() <= offset);
        after > 0 && self.done[after - 1].contains(&offset)
    }

    /// Whether this was taken before `other`, of the same reader. Positions only grow: `low`, and for
    /// the same `low` what is done above it.
    #[must_use]
    pub fn is_behind(&self, other: &Self) -> bool {
        let progress = |position: &Self| {
            let count = |range: &RangeInclusive<u64>| range.end() - range.start();
            let done = position.done.iter().fold(0_u64, |sum, range| {
                // What was read from outside may claim anything.
                sum.saturating_add(count(range)).saturating_add(1)
            });
            (position.low, done)
        };
        progress(self) < progress(other)
    }

    /// What is done by either.
    #[must_use]
    pub fn merge(&self, other: &Self) -> Self {
        let low = self.low.max(other.low);
        let mut ranges: Vec<_> = self.done.iter().chain(&other.done).cloned().collect();
        ranges.sort_unstable_by_key(|range| *range.start());
        let mut merged = Self::at(low);
        for range in ranges {
            let (start, end) = (*range.start(), *range.end());
            if end < merged.low {
                continue;
            }
            if start <= merged.low {
                merged.low = end.saturating_add(1);
                continue;
            }
            match merged.done.last_mut() {
                Some(last) if start <= last.end().saturating_add(1) => {
                    *last = *last.start()..=end.max(*last.end());
                }
                _ => merged.done.push(start..=end),
            }
        }
        merged
    }

    /// What is done of the offsets up to `last`: for a log that ends there, and will use the ones
    /// after it for something else.
    #[must_use]
    pub fn up_to(mut self, last: u64) -> Self {
        let end = last.saturating_add(1);
        self.low = self.low.min(end);
        self.done.retain(|range| *range.start() < end);
        if let Some(range) = self.done.last_mut() {
            *range = *range.start()..=*range.end().min(&last);
        }
        self
    }

    /// The position in a few bytes: a version, `low`, and what is done above it. Either as ranges, each
    /// by its distance from the end of the one before and its length, as variable-length numbers; or
    /// as bits. Whatever is smaller.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![RANGES];
        put(&mut bytes, self.low);
        let head = bytes.len();
        let mut end = self.low;
        for range in &self.done {
            put(&mut bytes, range.start() - end);
            put(&mut bytes, range.end() - range.start());
            end = *range.end();
        }
        let span = end - self.low;
        if span < MOST_BITS && (span / 8) as usize + 1 < bytes.len() - head {
            bytes[0] = BITS;
            bytes.truncate(head);
            bytes.resize(head + (span / 8) as usize + 1, 0);
            for offset in self.done.iter().cloned().flatten() {
                let bit = offset - self.low;
                bytes[head + (bit / 8) as usize] |= 1 << (bit % 8);
            }
        }
        bytes
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// When the bytes are something else.
    pub fn decode(bytes: &[u8]) -> Result<Self, PositionError> {
        let mut at = 1;
        match bytes.first() {
            Some(&RANGES) => {
                let position = Self::at(get(bytes, &mut at)?);
                position.with_ranges(bytes, at)
            }
            Some(&BITS) => {
                let position = Self::at(get(bytes, &mut at)?);
                position.with_bits(&bytes[at..], at)
            }
            other => Err(PositionError::Version(other.copied())),
        }
    }

    fn with_ranges(mut self, bytes: &[u8], mut at: usize) -> Result<Self, PositionError> {
        let mut end = self.low;
        while at < bytes.len() {
            let began = at;
            let start = end.checked_add(get(bytes, &mut at)?);
            let last = start.and_then(|start| Some((start, get(bytes, &mut at).ok()?)));
            let Some((start, Some(last))) =
                last.map(|(start, length)| (start, start.checked_add(length)))
            else {
                return Err(PositionError::Damaged(began));
            };
            self.done.push(start..=last);
            end = last;
        }
        Ok(self)
    }

    fn with_bits(mut self, bits: &[u8], at: usize) -> Result<Self, PositionError> {
        let most = bits.len() as u64 * 8;
        if most > MOST_BITS || self.low.checked_add(most).is_none() {
            return Err(PositionError::Damaged(at));
        }
        for (offset, bit) in (self.low..).zip(0..bits.len() * 8) {
            if bits[bit / 8] & (1 << (bit % 8)) != 0 {
                self.push(offset..=offset);
            }
        }
        Ok(self)
    }

    /// Adds a range that starts after all others.
    fn push(&mut self, range: RangeInclusive<u64>) {
        match self.done.last_mut() {
            Some(last) if last.end().saturating_add(1) == *range.start() => {
                *last = *last.start()..=*range.end();
            }
            _ => self.done.push(range),
        }
    }

    /// The most bytes that [`encode`](Self::encode) makes of a position with so many ranges, the last
    /// of which ends so far after `low`.
    fn most_bytes(ranges: usize, span: u64) -> usize {
        const HEAD: u64 = 11;
        let numbers = 2 * ranges as u64;
        // A number takes another byte for each power of 128 that it reaches, and all of them together
        // are no more than the span.
        let mut each = 1;
        let mut together = numbers;
        let mut power = span >> 7;
        while power > 0 {
            each += 1;
            together = together.saturating_add(power);
            power >>= 7;
        }
        let as_ranges = together.min(numbers.saturating_mul(each));
        let as_bits = if span < MOST_BITS {
            span / 8 + 1
        } else {
            u64::MAX - HEAD
        };
        usize::try_from(HEAD + as_ranges.min(as_bits)).unwrap_or(usize::MAX)
    }
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push((number & 0x7f) as u8);
}

fn get(bytes: &[u8], at: &mut usize) -> Result<u64, PositionError> {
    let began = *at;
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at).ok_or(PositionError::Damaged(began))?;
        *at += 1;
        let part = u64::from(byte & 0x7f);
        if shift == 63 && part > 1 {
            break;
        }
        number |= part << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(PositionError::Damaged(began))
}

/// Follows the deliveries of one partition. Pure: it neither reads nor commits.
#[derive(Debug)]
pub struct Tracker {
    /// Delivered and not yet below the low-water mark, in order of their offsets.
    window: VecDeque<Delivery>,
    /// One past the last delivered offset.
    next: u64,
    /// How many separate stretches of done ones the window holds.
    runs: usize,
    /// How many of the window are not done.
    unfinished: usize,
    /// What was known to be done at the start.
    known: Position,
}

#[derive(Debug)]
struct Delivery {
    offset: u64,
    done: bool,
}

impl Tracker {
    /// Goes on from a position.
    #[must_use]
    pub fn resume(position: Position) -> Self {
        Self {
            window: VecDeque::new(),
            next: position.low,
            runs: 0,
            unfinished: 0,
            known: position,
        }
    }

    /// An event was read. Answers whether it has to be handled: not if it is known to be done, nor
    /// if it was delivered before.
    pub fn deliver(&mut self, offset: u64) -> bool {
        if offset < self.next {
            return false;
        }
        self.next = offset + 1;
        let done = self.known.is_done(offset);
        if done && self.window.is_empty() {
            return false;
        }
        if done && !self.window.back().is_some_and(|last| last.done) {
            self.runs += 1;
        }
        self.unfinished += usize::from(!done);
        self.window.push_back(Delivery { offset, done });
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
        if self.window[index].done {
            return false;
        }
        self.window[index].done = true;
        self.unfinished -= 1;
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
        if index > 0 {
            return false;
        }
        while self.window.front().is_some_and(|first| first.done) {
            self.window.pop_front();
        }
        self.runs -= 1;
        true
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
            } else {
                position.done.extend(open.take());
            }
        }
        position.done.extend(open);
        // What was known above and has not been read again yet is still known.
        for range in &self.known.done {
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
    /// Every stretch of done ones above the low-water mark comes after one that is not done, so there
    /// are never more of them; what is known and not read again yet is as it is.
    #[must_use]
    pub fn most_bytes_with(&self, offset: u64) -> usize {
        let low = self.window.front().map_or(offset, |first| first.offset);
        let ahead = |range: &RangeInclusive<u64>| *range.end() > offset;
        let known = match self.known.done.last() {
            Some(last) if ahead(last) => {
                let read = self.known.done.partition_point(|range| !ahead(range));
                self.known.done.len() - read
            }
            _ => 0,
        };
        let end = self.known.done.last().map_or(0, |range| *range.end());
        let span = end.max(offset).saturating_sub(low);
        Position::most_bytes(self.unfinished + 1 + known, span)
    }

    /// How many done ranges a position would have now.
    #[must_use]
    pub fn ranges(&self) -> usize {
        self.runs
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_mark_waits_for_the_lowest_unfinished() {
        let mut tracker = Tracker::resume(Position::at(10));
        for offset in 10..15 {
            assert!(tracker.deliver(offset));
        }
        assert!(!tracker.done(12));
        assert!(!tracker.done(13));
        assert_eq!(tracker.position().done_above(), [12..=13]);
        assert!(tracker.done(10));
        assert_eq!(tracker.low(), 11);
        assert!(tracker.done(11), "and what was done above it");
        assert_eq!(tracker.position(), Position::at(14));
    }

    #[test]
    fn offsets_that_never_come_are_not_waited_for() {
        let mut tracker = Tracker::resume(Position::at(0));
        for offset in [0, 5, 9] {
            tracker.deliver(offset);
        }
        tracker.done(0);
        assert_eq!(tracker.low(), 5);
        tracker.done(5);
        tracker.done(9);
        assert_eq!(tracker.position(), Position::at(10));
    }

    #[test]
    fn what_was_done_before_is_skipped_and_remembered() {
        let mut before = Tracker::resume(Position::at(0));
        for offset in 0..6 {
            before.deliver(offset);
        }
        before.done(2);
        before.done(4);
        let position = Position::decode(&before.position().encode()).unwrap();
        let mut after = Tracker::resume(position.clone());
        assert_eq!(after.position(), position, "before anything is read");
        let handled: Vec<_> = (0..6).filter(|offset| after.deliver(*offset)).collect();
        assert_eq!(handled, [0, 1, 3, 5]);
        after.done(0);
        after.done(1);
        assert_eq!(after.low(), 3);
    }

    #[test]
    fn a_second_delivery_or_a_second_done_changes_nothing() {
        let mut tracker = Tracker::resume(Position::at(0));
        assert!(tracker.deliver(0));
        assert!(!tracker.deliver(0));
        tracker.deliver(1);
        tracker.done(1);
        assert!(!tracker.done(1));
        assert!(!tracker.done(77));
        assert_eq!(tracker.ranges(), 1);
    }

    #[test]
    fn damage_is_told() {
        assert_eq!(Position::decode(&[]), Err(PositionError::Version(None)));
        assert_eq!(
            Position::decode(&[9, 1]),
            Err(PositionError::Version(Some(9)))
        );
        assert_eq!(Position::decode(&[1, 0x80]), Err(PositionError::Damaged(1)));
        assert!(Position::decode(&[1, 0, 0xff, 0xff]).is_err());
    }

    fn positions() -> impl Strategy<Value = Position> {
        let done = prop::collection::vec(any::<bool>(), 0..60);
        (0u64..20, done).prop_map(|(low, done)| {
            let mut tracker = Tracker::resume(Position::at(low));
            for (offset, _) in (low..).zip(&done) {
                tracker.deliver(offset);
            }
            for (offset, _) in (low..).zip(&done).filter(|(_, done)| **done) {
                tracker.done(offset);
            }
            tracker.position()
        })
    }

    proptest! {
        /// Against the obvious model: a set of delivered and a set of done offsets.
        #[test]
        fn agrees_with_a_model(
            gaps in prop::collection::vec(1u64..4, 1..60),
            order in prop::collection::vec(any::<prop::sample::Index>(), 0..80),
        ) {
            let mut tracker = Tracker::resume(Position::at(0));
            let mut delivered = Vec::new();
            let mut at = 0;
            for gap in gaps {
                at += gap;
                tracker.deliver(at);
                delivered.push(at);
            }
            let mut done = BTreeSet::new();
            let mut last = tracker.position();
            for index in order {
                let offset = *index.get(&delivered);
                tracker.done(offset);
                done.insert(offset);
                let lowest = delivered.iter().find(|offset| !done.contains(offset));
                prop_assert_eq!(tracker.low(), lowest.copied().unwrap_or(at + 1));
                let position = tracker.position();
                prop_assert!(!position.is_behind(&last));
                prop_assert_eq!(last.is_behind(&position), last != position);
                last = position.clone();
                prop_assert_eq!(position.done_above().len(), tracker.ranges());
                for offset in &delivered {
                    prop_assert_eq!(position.is_done(*offset), done.contains(offset));
                }
                let read_back = Position::decode(&position.encode());
                prop_assert_eq!(read_back, Ok(position));
            }
        }

        /// Whatever happens after a delivery, positions take no more than was said before it.
        #[test]
        fn what_fits_goes_on_fitting(
            before in positions(),
            gaps in prop::collection::vec(1u64..400, 1..200),
            order in prop::collection::vec(any::<prop::sample::Index>(), 0..300),
        ) {
            let mut at = before.low();
            let mut tracker = Tracker::resume(before);
            let mut delivered = Vec::new();
            let mut most = 0;
            for gap in gaps {
                most = tracker.most_bytes_with(at);
                tracker.deliver(at);
                delivered.push(at);
                at += gap;
            }
            for index in order {
                tracker.done(*index.get(&delivered));
                let position = tracker.position();
                let bytes = position.encode();
                prop_assert!(bytes.len() <= most, "{} > {}", bytes.len(), most);
                prop_assert_eq!(Position::decode(&bytes), Ok(position));
            }
        }

        #[test]
        fn merging_adds_up(one in positions(), other in positions()) {
            let merged = one.merge(&other);
            for offset in 0..80 {
                let done = one.is_done(offset) || other.is_done(offset);
                prop_assert_eq!(merged.is_done(offset), done, "{}", offset);
            }
            prop_assert_eq!(&merged, &other.merge(&one));
            prop_assert_eq!(&merged, &merged.merge(&one));
            prop_assert_eq!(Position::decode(&merged.encode()), Ok(merged.clone()));
            let lowest = (0..100).find(|offset| !merged.is_done(*offset));
            prop_assert_eq!(Some(merged.low()), lowest);
        }

        #[test]
        fn what_is_beyond_the_end_is_not_done(position in positions(), last in 0u64..80) {
            let cut = position.clone().up_to(last);
            for offset in 0..80 {
                let done = offset <= last && position.is_done(offset);
                prop_assert_eq!(cut.is_done(offset), done, "{}", offset);
            }
            prop_assert_eq!(Position::decode(&cut.encode()), Ok(cut));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(
            version in RANGES..=BITS,
            bytes in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let bytes = [&[version], &bytes[..]].concat();
            if let Ok(position) = Position::decode(&bytes) {
                prop_assert!(!position.is_behind(&position));
                let _ = Tracker::resume(position).position();
            }
        }
    }

    #[test]
    fn what_takes_turns_is_written_as_bits() {
        let mut tracker = Tracker::resume(Position::at(7));
        for offset in 7..1007 {
            tracker.deliver(offset);
        }
        for offset in (8..1007).step_by(2) {
            tracker.done(offset);
        }
        let position = tracker.position();
        let bytes = position.encode();
        assert!(bytes.len() < 130, "{}", bytes.len());
        assert_eq!(Position::decode(&bytes), Ok(position));
    }

    #[test]
    fn a_position_that_claims_everything_is_read() {
        let mut bytes = vec![RANGES];
        for number in [0, 0, u64::MAX] {
            put(&mut bytes, number);
        }
        let position = Position::decode(&bytes).unwrap();
        assert_eq!(position.done_above(), [0..=u64::MAX]);
        assert!(Position::at(0).is_behind(&position));
    }
}
