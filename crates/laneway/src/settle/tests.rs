use std::collections::BTreeSet;

use proptest::prelude::*;

use super::position::{BITS, RANGES, put};
use super::{Position, PositionError, Tracker};

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

/// What Kafka leaves for a position.
const ROOM: usize = 3055;

#[test]
fn a_hundred_thousand_offsets_fit_with_a_hot_key_in_front() {
    let mut tracker = Tracker::resume(Position::at(1 << 40));
    let hot = (1 << 40)..(1 << 40) + 50_000;
    for offset in hot.clone() {
        assert!(tracker.most_bytes_with(offset) <= ROOM, "at {offset}");
        assert!(tracker.deliver_after(offset, offset > hot.start));
    }
    // A thousand others are at work at a time, and each may leave a stretch of its own.
    let mut at_work = std::collections::VecDeque::new();
    for offset in hot.end..hot.start + 100_000 {
        if at_work.len() == 1000 {
            // Every second one, so that they lie apart for as long as can be.
            let index = if offset % 2 == 0 { 0 } else { 999 };
            tracker.done(at_work.remove(index).unwrap());
        }
        assert!(tracker.most_bytes_with(offset) <= ROOM, "at {offset}");
        assert!(tracker.deliver_after(offset, false));
        at_work.push_back(offset);
    }
    assert_eq!(tracker.span(), 100_000);
    assert!(tracker.position().encode().len() <= ROOM);
}

#[test]
fn what_is_done_before_the_one_that_it_follows_waits_for_it() {
    let mut tracker = Tracker::resume(Position::at(0));
    tracker.deliver(0);
    for offset in 1..5 {
        tracker.deliver_after(offset, offset > 1);
    }
    tracker.done(3);
    tracker.done(2);
    assert_eq!(tracker.position(), Position::at(0));
    tracker.done(1);
    assert_eq!(tracker.position().done_above(), [1..=3]);
    assert!(tracker.done(0));
    assert_eq!(tracker.position(), Position::at(4));
    assert!(tracker.done(4));
    assert_eq!(tracker.position(), Position::at(5));
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

    /// Two readers that settle by turns, and learn from each other, know in the end what one would.
    #[test]
    fn what_others_settle_is_learned_without_reading_it_again(
        gaps in prop::collection::vec(1u64..4, 1..40),
        order in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), 0usize..5), 0..60),
    ) {
        let offsets: Vec<_> = gaps.iter().scan(0, |at, gap| { *at += gap; Some(*at) }).collect();
        let mut known = Position::at(0);
        let mut readers = [0, 1].map(|_| (Tracker::resume(Position::at(0)), 0));
        let mut done = BTreeSet::new();
        for (index, which, ahead) in order {
            let (tracker, read) = &mut readers[usize::from(which)];
            tracker.learn(&known);
            let offset = *index.get(&offsets);
            let until = offsets.iter().position(|at| *at == offset).unwrap_or(0) + ahead;
            for at in offsets.iter().take(until + 1).skip(*read) {
                tracker.deliver(*at);
            }
            *read = (*read).max(until + 1);
            tracker.done(offset);
            done.insert(offset);
            let position = tracker.position();
            for at in &offsets {
                prop_assert_eq!(position.is_done(*at), done.contains(at), "{}", at);
            }
            known = known.merge(&position);
            prop_assert_eq!(position.merge(&known), known.clone());
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

    /// The same with keys, of which one has most of the events: the bound counts its blocks, and holds in
    /// whatever order the events are said to be done.
    #[test]
    fn what_fits_goes_on_fitting_when_keys_have_many_waiting(
        before in positions(),
        events in prop::collection::vec((1u64..200, 0usize..12), 1..300),
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..300),
    ) {
        let mut at = before.low();
        let mut tracker = Tracker::resume(before);
        let mut delivered: Vec<(u64, usize)> = Vec::new();
        let (mut most, mut last) = (0, None);
        for (gap, key) in events {
            // Most of them are of key 0.
            let key = key.saturating_sub(8);
            most = tracker.most_bytes_with(at);
            if tracker.deliver_after(at, last == Some(key)) {
                delivered.push((at, key));
            }
            last = Some(key);
            at += gap;
        }
        let mut told = BTreeSet::new();
        for index in order {
            if delivered.is_empty() {
                break;
            }
            let (offset, _) = *index.get(&delivered);
            tracker.done(offset);
            told.insert(offset);
            let position = tracker.position();
            let bytes = position.encode();
            prop_assert!(bytes.len() <= most, "{} > {}", bytes.len(), most);
            prop_assert_eq!(Position::decode(&bytes), Ok(position.clone()));
            for (offset, _) in &delivered {
                let is_done = position.is_done(*offset);
                prop_assert!(!is_done || told.contains(offset), "{} is not done", offset);
            }
        }
        for (offset, _) in &delivered {
            tracker.done(*offset);
        }
        prop_assert!(delivered.iter().all(|(offset, _)| tracker.position().is_done(*offset)));
    }

    /// In the order of lanes nothing waits for anything: what is said to be done, is.
    #[test]
    fn what_is_done_in_order_of_its_key_is_done_at_once(
        keys in prop::collection::vec(0usize..4, 1..100),
        order in prop::collection::vec(0usize..4, 0..200),
    ) {
        let mut tracker = Tracker::resume(Position::at(0));
        let mut waiting = [const { Vec::new() }; 4];
        let mut last = None;
        for (offset, key) in (0u64..).zip(&keys) {
            tracker.deliver_after(offset, last == Some(*key));
            waiting[*key].insert(0, offset);
            last = Some(*key);
        }
        for key in order {
            if let Some(offset) = waiting[key].pop() {
                tracker.done(offset);
                prop_assert!(tracker.position().is_done(offset));
            }
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
