//! The slots: where an entry lies, and which slot comes next.

use super::slab::{Home, NIL, Slab};

/// A level has 64 slots, so that one word says which of them hold entries.
const BITS: u32 = 6;
const SLOTS: usize = 1 << BITS;
/// Eleven times six bits are more than the 64 bits of a due time.
const LEVELS: usize = 11;

/// One slot of one level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    level: u8,
    /// The position on its level: six bits of the due times of its entries.
    position: u8,
}

impl Slot {
    /// Where an entry lies: the level is that of the highest digit (of six bits) in which its due
    /// time differs from the time that has passed.
    pub(super) fn of(due: u64, elapsed: u64) -> Self {
        debug_assert!(due >= elapsed, "late entries have no slot");
        // The lowest digit counts as different, so that equal times are on the lowest level.
        let different = (due ^ elapsed) | (SLOTS as u64 - 1);
        let level = different.ilog2() / BITS;
        let position = (due >> (level * BITS)) & (SLOTS as u64 - 1);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a level is below 11, a position below 64"
        )]
        Self {
            level: level as u8,
            position: position as u8,
        }
    }

    /// The first millisecond of this slot, in the turn that `elapsed` is in.
    pub(super) fn start(self, elapsed: u64) -> u64 {
        let shift = u32::from(self.level) * BITS;
        // On the highest level there are no digits above.
        let above = u64::MAX.checked_shl(shift + BITS).unwrap_or(0);
        (elapsed & above) | (u64::from(self.position) << shift)
    }

    /// Whether the slot is one millisecond wide: its entries are due when it starts.
    pub(super) fn is_exact(self) -> bool {
        self.level == 0
    }

    fn bit(self) -> u64 {
        1 << self.position
    }
}

/// A doubly linked list of nodes, by their index.
#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

const EMPTY: List = List {
    head: NIL,
    tail: NIL,
};

/// All slots of all levels.
///
/// Every entry in here is due at or after the time that has passed. So on each level the occupied
/// slots lie ahead, in this turn, and everything on a level is due before everything on the
/// levels above.
#[derive(Debug)]
pub(super) struct Levels {
    lists: Box<[[List; SLOTS]; LEVELS]>,
    /// One bit for each slot that holds entries.
    occupied: [u64; LEVELS],
}

impl Levels {
    pub(super) fn new() -> Self {
        Self {
            lists: Box::new([[EMPTY; SLOTS]; LEVELS]),
            occupied: [0; LEVELS],
        }
    }

    /// The slot that comes first, of those that hold entries.
    pub(super) fn first(&self) -> Option<Slot> {
        let (level, occupied) = (0..).zip(self.occupied).find(|(_, bits)| *bits != 0)?;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the word has a bit set, so the position is below 64"
        )]
        let position = occupied.trailing_zeros() as u8;
        Some(Slot { level, position })
    }

    /// The entry of this slot that was put in first.
    pub(super) fn front(&mut self, slot: Slot) -> u32 {
        self.list(slot).head
    }

    pub(super) fn push_back<T>(&mut self, slot: Slot, index: u32, nodes: &mut Slab<T>) {
        let list = self.list(slot);
        let previous = std::mem::replace(&mut list.tail, index);
        if previous == NIL {
            list.head = index;
        } else {
            nodes[previous].next = index;
        }
        let node = &mut nodes[index];
        node.home = Home::Slot(slot);
        node.previous = previous;
        node.next = NIL;
        self.occupied[usize::from(slot.level)] |= slot.bit();
    }

    pub(super) fn unlink<T>(&mut self, slot: Slot, index: u32, nodes: &mut Slab<T>) {
        let (previous, next) = (nodes[index].previous, nodes[index].next);
        let list = self.list(slot);
        if previous == NIL {
            list.head = next;
        } else {
            nodes[previous].next = next;
        }
        if next == NIL {
            list.tail = previous;
        } else {
            nodes[next].previous = previous;
        }
        if list.head == NIL {
            self.occupied[usize::from(slot.level)] &= !slot.bit();
        }
    }

    /// Moves the entries of a slot down, once time has reached its start. Their order stays.
    pub(super) fn cascade<T>(&mut self, slot: Slot, start: u64, nodes: &mut Slab<T>) {
        let list = std::mem::replace(self.list(slot), EMPTY);
        self.occupied[usize::from(slot.level)] &= !slot.bit();
        let mut index = list.head;
        while index != NIL {
            let node = &nodes[index];
            let (next, lower) = (node.next, Slot::of(node.due, start));
            self.push_back(lower, index, nodes);
            index = next;
        }
    }

    fn list(&mut self, slot: Slot) -> &mut List {
        &mut self.lists[usize::from(slot.level)][usize::from(slot.position)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(level: u8, position: u8) -> Slot {
        Slot { level, position }
    }

    #[test]
    fn near_entries_lie_on_the_lowest_level() {
        assert_eq!(Slot::of(0, 0), slot(0, 0));
        assert_eq!(Slot::of(63, 0), slot(0, 63));
        assert_eq!(Slot::of(64, 63), slot(1, 1));
        assert_eq!(Slot::of(64 * 64, 0), slot(2, 1));
    }

    #[test]
    fn the_end_of_time_has_a_slot() {
        assert_eq!(Slot::of(u64::MAX, 0), slot(10, 15));
        assert_eq!(slot(10, 15).start(0), 15 << 60);
        assert_eq!(Slot::of(u64::MAX, u64::MAX), slot(0, 63));
        assert_eq!(slot(0, 63).start(u64::MAX), u64::MAX);
    }

    #[test]
    fn a_slot_starts_at_or_before_what_lies_in_it_and_not_before_now() {
        let elapsed = 1_763_200_000_123;
        for shift in 0..40 {
            let due = elapsed + (1 << shift);
            let start = Slot::of(due, elapsed).start(elapsed);
            assert!(
                elapsed <= start && start <= due,
                "due {due}: starts at {start}"
            );
        }
    }
}
