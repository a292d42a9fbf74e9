//! What may be told to the broker, and as which bytes.

use std::ops::RangeInclusive;

/// What is done in one partition. See the [module](super).
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
pub(super) const RANGES: u8 = 1;
/// The done ones as bits, from `low` on: smaller where short stretches take turns.
pub(super) const BITS: u8 = 2;

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
    pub(super) fn push(&mut self, range: RangeInclusive<u64>) {
        match self.done.last_mut() {
            Some(last) if last.end().saturating_add(1) == *range.start() => {
                *last = *last.start()..=*range.end();
            }
            _ => self.done.push(range),
        }
    }

    /// The most bytes that [`encode`](Self::encode) makes of a position with so many ranges, the last
    /// of which ends so far after `low`.
    pub(super) fn most_bytes(ranges: usize, span: u64) -> usize {
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

pub(super) fn put(bytes: &mut Vec<u8>, mut number: u64) {
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
