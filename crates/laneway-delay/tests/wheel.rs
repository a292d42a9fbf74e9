//! The wheel against a model that is too simple to be wrong: an ordered map.

use std::collections::BTreeMap;

mod bits;

use bits::Bits;
use laneway_delay::{Due, Handle, Timestamp, Wheel};
use proptest::prelude::*;

const START: u64 = 1_763_200_000_000;

#[derive(Clone, Copy, Debug)]
enum Op {
    /// Insert, so far after the present.
    Insert(u64),
    /// Insert, so far before the present.
    InsertPast(u64),
    /// Insert at a fixed moment, near an end of time.
    InsertAt(u64),
    /// Cancel one of all handles ever given out, stale ones included.
    Cancel(u64),
    /// Let time pass and take everything that is due.
    Drain(u64),
    /// Take a few of what is due, after time has passed.
    Take(u64, u64),
    /// Let the clock go back, and take everything that is due.
    Back(u64),
    /// Go to the next wake, and take everything that is due.
    Wake,
}

/// A span of any size, with a liking for the edges of slots.
fn span(bits: &mut Bits) -> u64 {
    match bits.below(9) {
        0..4 => bits.below(200),
        4..6 => bits.below(100_000),
        6..8 => ((1 << bits.below(48)) + bits.below(5)).saturating_sub(2),
        _ => bits.below(1 << 45),
    }
}

impl Op {
    fn decode(mut bits: Bits) -> Self {
        match bits.below(43) {
            0..20 => Self::Insert(span(&mut bits)),
            20..22 => Self::InsertPast(span(&mut bits)),
            22 => Self::InsertAt(match bits.below(2) {
                0 => bits.below(100),
                _ => u64::MAX - bits.below(100),
            }),
            23..31 => Self::Cancel(bits.below(1 << 20)),
            31..34 => Self::Drain(bits.below(300)),
            34..36 => Self::Drain(span(&mut bits)),
            36..39 => Self::Take(1 + bits.below(3), span(&mut bits)),
            39 => Self::Back(span(&mut bits)),
            _ => Self::Wake,
        }
    }
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(any::<u64>(), 1..2_000)
        .prop_map(|words| words.into_iter().map(Bits).map(Op::decode).collect())
}

fn spans() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(any::<u64>(), 1..100).prop_map(|words| {
        words
            .into_iter()
            .map(|word| span(&mut Bits(word)))
            .collect()
    })
}

/// The wheel, the model, and every handle ever given out.
struct Pair {
    now: u64,
    wheel: Wheel<u64>,
    /// By due time and insertion: the order in which entries have to come out.
    model: BTreeMap<(u64, u64), Handle>,
    handles: Vec<(u64, Handle)>,
}

impl Pair {
    fn new() -> Self {
        Self {
            now: START,
            wheel: Wheel::new(Timestamp::from_millis(START)),
            model: BTreeMap::new(),
            handles: Vec::new(),
        }
    }

    fn apply(&mut self, op: Op) -> Result<(), TestCaseError> {
        match op {
            Op::Insert(span) => self.insert(self.now.saturating_add(span)),
            Op::InsertPast(span) => self.insert(self.now.saturating_sub(span)),
            Op::InsertAt(due) => self.insert(due),
            Op::Cancel(pick) => self.cancel(pick)?,
            Op::Drain(span) => self.pass(self.now.saturating_add(span), u64::MAX)?,
            Op::Take(few, span) => self.pass(self.now.saturating_add(span), few)?,
            Op::Back(span) => self.pass(self.now.saturating_sub(span), u64::MAX)?,
            Op::Wake => {
                if let Some(wake) = self.wheel.next_wake() {
                    self.pass(wake.as_millis(), u64::MAX)?;
                }
            }
        }
        self.check()
    }

    fn insert(&mut self, due: u64) {
        let id = self.handles.len() as u64;
        let handle = self.wheel.insert(Timestamp::from_millis(due), id);
        self.model.insert((due, id), handle);
        self.handles.push((due, handle));
    }

    fn cancel(&mut self, pick: u64) -> Result<(), TestCaseError> {
        let Some(id) = pick.checked_rem(self.handles.len() as u64) else {
            return Ok(());
        };
        let (due, handle) = self.handles[usize::try_from(id).expect("an index")];
        let expected = self.model.remove(&(due, id)).map(|_| id);
        prop_assert_eq!(self.wheel.cancel(handle), expected);
        Ok(())
    }

    /// Takes up to `limit` entries at `now`, and compares them with the model.
    fn pass(&mut self, now: u64, limit: u64) -> Result<(), TestCaseError> {
        self.now = now;
        for _ in 0..limit {
            let expected = self.model.first_key_value().map(|(key, _)| *key);
            let expected = expected.filter(|(due, _)| *due <= now);
            let popped = self.wheel.pop_due(Timestamp::from_millis(now));
            prop_assert_eq!(
                popped,
                expected.map(|(due, value)| Due {
                    due: Timestamp::from_millis(due),
                    value
                })
            );
            match expected {
                Some(key) => self.model.remove(&key),
                None => break,
            };
        }
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.wheel.len(), self.model.len());
        let wake = self.wheel.next_wake().map(Timestamp::as_millis);
        let first = self.model.first_key_value().map(|(key, _)| key.0);
        prop_assert_eq!(wake.is_some(), first.is_some());
        prop_assert!(wake <= first, "woken at {:?}, due at {:?}", wake, first);
        Ok(())
    }
}

proptest! {
    // 1000 runs of up to 2000 operations: a million of them on average.
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn the_wheel_does_what_an_ordered_map_does(ops in ops()) {
        let mut pair = Pair::new();
        for op in ops {
            pair.apply(op)?;
        }
        pair.pass(u64::MAX, u64::MAX)?;
        prop_assert!(pair.wheel.is_empty(), "entries were lost");
    }

    #[test]
    fn sleeping_from_wake_to_wake_is_on_time_to_the_millisecond(spans in spans()) {
        let mut wheel = Wheel::new(Timestamp::from_millis(START));
        for span in &spans {
            let due = Timestamp::from_millis(START + span);
            wheel.insert(due, due);
        }
        let mut wakes = 0;
        while let Some(now) = wheel.next_wake() {
            wakes += 1;
            while let Some(entry) = wheel.pop_due(now) {
                prop_assert_eq!(entry.due, now);
            }
        }
        prop_assert!(wakes <= 11 * spans.len(), "{} wakes for {} entries", wakes, spans.len());
    }
}

/// What the property test does with small numbers, once with many entries: all of a day, taken in
/// steps, with every third one cancelled.
#[test]
fn half_a_million_entries_come_out_once_in_order_and_on_time() {
    const ENTRIES: u64 = 500_000;
    const DAY: u64 = 86_400_000;
    let mut wheel = Wheel::new(Timestamp::from_millis(START));
    let mut cancelled = 0;
    for id in 0..ENTRIES {
        // A multiplier that is coprime to the day spreads the entries without a generator.
        let due = START + id.wrapping_mul(48_271) % DAY;
        let handle = wheel.insert(Timestamp::from_millis(due), id);
        if id % 3 == 0 {
            assert_eq!(wheel.cancel(handle), Some(id));
            cancelled += 1;
        }
    }

    let mut taken = 0;
    let mut last = Timestamp::from_millis(0);
    let mut seen = vec![false; usize::try_from(ENTRIES).expect("fits")];
    for now in (START..=START + DAY).step_by(977) {
        let now = Timestamp::from_millis(now);
        while let Some(entry) = wheel.pop_due(now) {
            assert!(entry.due <= now, "early");
            assert!(entry.due >= last, "out of order");
            last = entry.due;
            let id = usize::try_from(entry.value).expect("fits");
            assert!(entry.value % 3 != 0, "cancelled, but fired");
            assert!(!std::mem::replace(&mut seen[id], true), "twice");
            taken += 1;
        }
    }
    while wheel.pop_due(Timestamp::from_millis(START + DAY)).is_some() {
        taken += 1;
    }
    assert_eq!(taken + cancelled, ENTRIES);
    assert!(wheel.is_empty());
}

#[test]
fn a_stale_handle_never_names_a_later_entry() {
    let now = Timestamp::from_millis(START);
    let mut wheel = Wheel::new(now);
    let first = wheel.insert(now, "first");
    assert!(wheel.pop_due(now).is_some());
    // The second entry gets the memory of the first.
    let second = wheel.insert(now, "second");
    assert_eq!(wheel.cancel(first), None);
    assert_eq!(wheel.cancel(second), Some("second"));
}

#[test]
fn a_clock_that_jumped_ahead_and_back_makes_nothing_late() {
    let at = |millis| Timestamp::from_millis(START + millis);
    let hour = 3_600_000;
    let mut wheel = Wheel::new(at(0));
    // The clock is an hour ahead for a moment.
    assert_eq!(wheel.pop_due(at(hour)), None);
    // It is right again, and an entry for the next second comes.
    wheel.insert(at(1_000), "soon");
    assert_eq!(wheel.next_wake(), Some(at(1_000)));
    assert_eq!(wheel.pop_due(at(999)), None);
    assert_eq!(
        wheel.pop_due(at(1_000)).map(|entry| entry.value),
        Some("soon")
    );
}
