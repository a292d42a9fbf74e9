//! The lanes of one topic: a FIFO per lane, in memory only while it has work.
//!
//! Lanes are spread over shards, each behind its own lock. A shard keeps the jobs of all its lanes
//! in one slab, chained by index, so that a lane costs a map entry and a job costs a slab slot:
//! keys come and go without an allocation of their own.
//!
//! A lane is in the map exactly while it has work, and then in exactly one of three states. The call that
//! moves it to [`State::Ready`] must put it on the ready queue, once; the worker that takes it from there
//! owns it until [`Shards::give_back`].

use std::collections::VecDeque;
use std::hash::{BuildHasherDefault, Hasher};

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use super::cache_padded::CachePadded;
use super::sync::{Mutex, lock};

/// Which lane: the hash of a key, the number of a fixed lane, or a number of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct LaneId(pub(super) u64);

/// Where a lane stands. A lane without work has no state: it does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// On the ready queue.
    Ready,
    /// With a worker.
    Running,
    /// Waiting for a retry to be due; the timer will make it ready.
    BackingOff,
}

#[derive(Debug)]
struct Lane {
    head: u32,
    tail: u32,
    queued: usize,
    /// Jobs that a worker has taken and not yet finished. They count against the lane's bound.
    taken: usize,
    state: State,
}

/// What [`Shards::push`] did.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    /// The lane was empty: it must go on the ready queue.
    MakeReady,
    /// Another worker will get to it.
    Queued,
}

/// Why [`Shards::push`] refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused<E> {
    /// The lane is at its bound.
    LaneFull,
    /// There is no room elsewhere.
    NoRoom(E),
    /// The shards have been drained for good.
    Closed,
}

/// What becomes of a lane that a worker gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// Go on if there is more.
    Continue,
    /// Wait for the timer.
    BackOff,
}

/// What a lane is after [`Shards::give_back`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// No more work: the lane is gone.
    Gone,
    /// More work: it must go on the ready queue.
    MakeReady,
    /// It waits for the timer.
    BackingOff,
    /// The shards were drained meanwhile: what was left stays with the caller.
    Closed,
}

/// The lanes of one topic, holding items of type `T`.
#[derive(Debug)]
pub(super) struct Shards<T> {
    all: Box<[CachePadded<Mutex<Shard<T>>>]>,
    mask: u64,
    lane_bound: usize,
}

#[derive(Debug)]
struct Shard<T> {
    lanes: HashMap<LaneId, Lane, BuildHasherDefault<Mix>>,
    nodes: Vec<Node<T>>,
    free: u32,
    closed: bool,
}

#[derive(Debug)]
struct Node<T> {
    item: Option<T>,
    next: u32,
}

const NIL: u32 = u32::MAX;

/// Below this many slots an empty shard keeps its memory for the next jobs.
const KEEP_SLOTS: usize = 256;

impl<T> Shards<T> {
    /// `shards` is rounded up to a power of two.
    pub(super) fn new(shards: usize, lane_bound: usize) -> Self {
        let count = shards.max(1).next_power_of_two();
        Self {
            all: (0..count)
                .map(|_| CachePadded(Mutex::new(Shard::new())))
                .collect(),
            mask: count as u64 - 1,
            lane_bound,
        }
    }

    /// Puts an item at the end of its lane, if the lane and then `room` have a place for it. `room`
    /// is asked under the lane's lock: a lane that is full must not take room away from the others,
    /// not even for a moment.
    pub(super) fn push<E>(
        &self,
        id: LaneId,
        mut item: T,
        room: impl FnOnce(&mut T) -> Result<(), E>,
    ) -> Result<Pushed, (T, Refused<E>)> {
        let mut shard = self.shard(id);
        let shard = &mut *shard;
        if shard.closed {
            return Err((item, Refused::Closed));
        }
        match shard.lanes.entry(id) {
            Entry::Occupied(mut lane) => {
                let lane = lane.get_mut();
                if lane.queued + lane.taken >= self.lane_bound {
                    return Err((item, Refused::LaneFull));
                }
                if let Err(error) = room(&mut item) {
                    return Err((item, Refused::NoRoom(error)));
                }
                let node = store(&mut shard.nodes, &mut shard.free, item);
                lane.append(node, &mut shard.nodes);
                Ok(Pushed::Queued)
            }
            Entry::Vacant(vacant) => {
                if let Err(error) = room(&mut item) {
                    return Err((item, Refused::NoRoom(error)));
                }
                let node = store(&mut shard.nodes, &mut shard.free, item);
                vacant.insert(Lane {
                    head: node,
                    tail: node,
                    queued: 1,
                    taken: 0,
                    state: State::Ready,
                });
                Ok(Pushed::MakeReady)
            }
        }
    }

    /// Moves up to `most` items from the front of a ready lane to `into`. The caller owns the lane
    /// until it gives it back.
    ///
    /// A lane that is not ready yields nothing and is not owned. It can have been drained meanwhile;
    /// and a submitter that was slower than the close of its topic puts a lane on the queue that by
    /// then may belong to the next topic in the same place.
    pub(super) fn take(&self, id: LaneId, most: usize, into: &mut VecDeque<T>) -> bool {
        let mut shard = self.shard(id);
        let shard = &mut *shard;
        let Some(lane) = shard
            .lanes
            .get_mut(&id)
            .filter(|lane| lane.state == State::Ready)
        else {
            return false;
        };
        lane.state = State::Running;
        let count = lane.queued.min(most);
        for _ in 0..count {
            into.extend(lane.pop_front(&mut shard.nodes, &mut shard.free));
        }
        lane.taken = count;
        true
    }

    /// Says in the middle of a turn that `done` of the taken items are finished; answers how many
    /// the lane still holds.
    pub(super) fn finished(&self, id: LaneId, done: usize) -> usize {
        let mut shard = self.shard(id);
        shard.lanes.get_mut(&id).map_or(0, |lane| {
            lane.taken -= done;
            lane.queued + lane.taken
        })
    }

    /// Ends a turn: `done` items are finished, what is left in `rest` goes back to the front in the
    /// order it has there. Also answers how many items the lane holds now. After a
    /// [`drain`](Self::drain) nothing goes back: `rest` stays with the caller.
    pub(super) fn give_back(
        &self,
        id: LaneId,
        done: usize,
        rest: &mut VecDeque<T>,
        then: Then,
    ) -> (Left, usize) {
        let mut shard = self.shard(id);
        let shard = &mut *shard;
        let Entry::Occupied(mut entry) = shard.lanes.entry(id) else {
            debug_assert!(false, "a lane that is out with a worker stays in the map");
            return (Left::Gone, 0);
        };
        let lane = entry.get_mut();
        debug_assert_eq!(lane.state, State::Running, "only its owner gives it back");
        debug_assert_eq!(lane.taken, done + rest.len(), "every taken item comes back");
        if shard.closed {
            entry.remove();
            return (Left::Closed, 0);
        }
        while let Some(item) = rest.pop_back() {
            let node = store(&mut shard.nodes, &mut shard.free, item);
            lane.prepend(node, &mut shard.nodes);
        }
        lane.taken = 0;
        let held = lane.queued;
        if held == 0 {
            entry.remove();
            shard.shrink_if_empty();
            return (Left::Gone, 0);
        }
        match then {
            Then::Continue => {
                lane.state = State::Ready;
                (Left::MakeReady, held)
            }
            Then::BackOff => {
                lane.state = State::BackingOff;
                (Left::BackingOff, held)
            }
        }
    }

    /// Makes a lane that backs off ready and shows `look` its first item; false if the lane does not back off
    /// (any more).
    pub(super) fn resume(&self, id: LaneId, look: impl FnOnce(&T)) -> bool {
        let mut shard = self.shard(id);
        let shard = &mut *shard;
        match shard.lanes.get_mut(&id) {
            Some(lane) if lane.state == State::BackingOff => {
                lane.state = State::Ready;
                if let Some(first) = &shard.nodes[lane.head as usize].item {
                    look(first);
                }
                true
            }
            _ => false,
        }
    }

    /// Closes the shards and hands every queued item to `each`, lane by lane, in order. What a worker
    /// has taken stays with it. Answers how many of the lanes were backing off.
    pub(super) fn drain(&self, mut each: impl FnMut(T)) -> usize {
        let mut backing_off = 0;
        for line in &self.all {
            let mut shard = lock(&line.0);
            shard.closed = true;
            let mut items = Vec::new();
            {
                let shard = &mut *shard;
                for lane in shard.lanes.values_mut() {
                    backing_off += usize::from(lane.state == State::BackingOff);
                    while let Some(item) = lane.pop_front(&mut shard.nodes, &mut shard.free) {
                        items.push(item);
                    }
                }
                shard.lanes.retain(|_, lane| lane.taken > 0);
                shard.shrink_if_empty();
            }
            // The callback is a user's code: never under the lock.
            drop(shard);
            items.into_iter().for_each(&mut each);
        }
        backing_off
    }

    /// How many lanes have work now.
    pub(super) fn live(&self) -> usize {
        self.all.iter().map(|s| lock(&s.0).lanes.len()).sum()
    }

    fn shard(&self, id: LaneId) -> super::sync::MutexGuard<'_, Shard<T>> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "masked to the number of shards"
        )]
        let index = (id.0 & self.mask) as usize;
        lock(&self.all[index].0)
    }
}

impl<T> Shard<T> {
    fn new() -> Self {
        Self {
            lanes: HashMap::default(),
            nodes: Vec::new(),
            free: NIL,
            closed: false,
        }
    }

    /// A burst of keys must not keep its memory for ever.
    fn shrink_if_empty(&mut self) {
        if self.lanes.is_empty() && self.nodes.len() > KEEP_SLOTS {
            self.nodes = Vec::new();
            self.free = NIL;
            self.lanes = HashMap::default();
        }
    }
}

impl Lane {
    fn append<T>(&mut self, node: u32, nodes: &mut [Node<T>]) {
        if self.queued == 0 {
            self.head = node;
        } else {
            nodes[self.tail as usize].next = node;
        }
        self.tail = node;
        self.queued += 1;
    }

    fn prepend<T>(&mut self, node: u32, nodes: &mut [Node<T>]) {
        if self.queued == 0 {
            self.tail = node;
        } else {
            nodes[node as usize].next = self.head;
        }
        self.head = node;
        self.queued += 1;
    }

    fn pop_front<T>(&mut self, nodes: &mut [Node<T>], free: &mut u32) -> Option<T> {
        if self.queued == 0 {
            return None;
        }
        let index = self.head;
        let node = &mut nodes[index as usize];
        self.head = node.next;
        self.queued -= 1;
        node.next = *free;
        *free = index;
        node.item.take()
    }
}

fn store<T>(nodes: &mut Vec<Node<T>>, free: &mut u32, item: T) -> u32 {
    if *free == NIL {
        let index = u32::try_from(nodes.len()).unwrap_or(NIL);
        // The engine's bound (16 million messages) keeps the index far below the end of u32.
        assert_ne!(index, NIL, "a shard holds fewer than 2^32 jobs");
        nodes.push(Node {
            item: Some(item),
            next: NIL,
        });
        index
    } else {
        let index = *free;
        let node = &mut nodes[index as usize];
        *free = node.next;
        node.item = Some(item);
        node.next = NIL;
        index
    }
}

/// Lane ids are hashes or small numbers already. One multiplication spreads them over the map; the
/// rotation matters because all ids of one shard share their low bits, which the map indexes by.
#[derive(Default)]
pub(super) struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = (self.0 ^ id)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(26);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LANE: LaneId = LaneId(7);

    fn push(shards: &Shards<u32>, id: LaneId, item: u32) -> Result<Pushed, Refused<()>> {
        shards
            .push(id, item, |_| Ok(()))
            .map_err(|(returned, refused)| {
                assert_eq!(returned, item);
                refused
            })
    }

    fn taken(shards: &Shards<u32>, most: usize) -> VecDeque<u32> {
        let mut into = VecDeque::new();
        assert!(shards.take(LANE, most, &mut into));
        into
    }

    #[test]
    fn a_lane_is_made_ready_once_and_gone_when_empty() {
        let shards = Shards::new(4, 10);
        assert_eq!(push(&shards, LANE, 1), Ok(Pushed::MakeReady));
        assert_eq!(push(&shards, LANE, 2), Ok(Pushed::Queued));
        assert_eq!(shards.live(), 1);
        let mut jobs = taken(&shards, 16);
        assert_eq!(jobs, [1, 2]);
        assert_eq!(push(&shards, LANE, 3), Ok(Pushed::Queued), "while it runs");
        jobs.clear();
        assert_eq!(
            shards.give_back(LANE, 2, &mut jobs, Then::Continue),
            (Left::MakeReady, 1)
        );
        let mut jobs = taken(&shards, 16);
        jobs.clear();
        assert_eq!(
            shards.give_back(LANE, 1, &mut jobs, Then::Continue),
            (Left::Gone, 0)
        );
        assert_eq!(shards.live(), 0);
    }

    #[test]
    fn what_comes_back_is_ahead_of_what_came_meanwhile() {
        let shards = Shards::new(1, 10);
        for item in 1..=3 {
            let _ = push(&shards, LANE, item);
        }
        let mut jobs = taken(&shards, 2);
        let _ = push(&shards, LANE, 4);
        assert_eq!(jobs.pop_front(), Some(1));
        assert_eq!(
            shards.give_back(LANE, 1, &mut jobs, Then::BackOff),
            (Left::BackingOff, 3)
        );
        assert!(shards.resume(LANE, |first| assert_eq!(*first, 2)));
        assert!(!shards.resume(LANE, |_| ()), "once");
        assert_eq!(taken(&shards, 16), [2, 3, 4]);
    }

    #[test]
    fn taken_items_count_against_the_bound_until_they_are_finished() {
        let shards = Shards::new(1, 2);
        let _ = push(&shards, LANE, 1);
        let _ = push(&shards, LANE, 2);
        let _jobs = taken(&shards, 16);
        assert_eq!(push(&shards, LANE, 3), Err(Refused::LaneFull));
        assert_eq!(shards.finished(LANE, 1), 1);
        assert_eq!(push(&shards, LANE, 3), Ok(Pushed::Queued));
    }

    #[test]
    fn a_lane_has_one_owner_even_if_it_is_on_the_queue_twice() {
        let shards = Shards::new(1, 10);
        let _ = push(&shards, LANE, 1);
        let mut first = taken(&shards, 16);
        let mut second = VecDeque::new();
        assert!(!shards.take(LANE, 16, &mut second));
        assert_eq!(
            shards.give_back(LANE, 0, &mut first, Then::BackOff),
            (Left::BackingOff, 1)
        );
        assert!(
            !shards.take(LANE, 16, &mut second),
            "it waits for its timer"
        );
        assert!(second.is_empty());
    }

    #[test]
    fn room_is_not_asked_for_when_the_lane_is_full() {
        let shards = Shards::new(1, 1);
        assert_eq!(
            shards.push(LANE, 1, |_| Err("none")),
            Err((1, Refused::NoRoom("none")))
        );
        assert_eq!(shards.live(), 0);
        let _ = push(&shards, LANE, 1);
        assert_eq!(
            shards.push(LANE, 2, |_| -> Result<(), ()> { panic!("asked") }),
            Err((2, Refused::LaneFull))
        );
    }

    #[test]
    fn draining_closes_and_keeps_the_order_of_a_lane() {
        let shards = Shards::new(2, 10);
        for item in 0..5 {
            let _ = push(&shards, LANE, item);
        }
        let mut left = Vec::new();
        assert_eq!(shards.drain(|item| left.push(item)), 0);
        assert_eq!(left, [0, 1, 2, 3, 4]);
        assert_eq!(push(&shards, LANE, 9), Err(Refused::Closed));
        assert_eq!(shards.live(), 0);
    }

    #[test]
    fn what_is_given_back_after_the_drain_stays_with_its_owner() {
        let shards = Shards::new(1, 10);
        let _ = push(&shards, LANE, 1);
        let mut jobs = taken(&shards, 16);
        shards.drain(|_| panic!("it is out with a worker"));
        assert_eq!(
            shards.give_back(LANE, 0, &mut jobs, Then::Continue),
            (Left::Closed, 0)
        );
        assert_eq!(jobs, [1]);
    }

    #[test]
    fn an_emptied_shard_returns_its_memory() {
        let shards = Shards::new(1, 10);
        for id in 0..10_000 {
            let _ = push(&shards, LaneId(id), 0);
        }
        let mut jobs = VecDeque::new();
        for id in 0..10_000 {
            assert!(shards.take(LaneId(id), 16, &mut jobs));
            jobs.clear();
            shards.give_back(LaneId(id), 1, &mut jobs, Then::Continue);
        }
        let shard = lock(&shards.all[0].0);
        assert!(shard.nodes.capacity() <= KEEP_SLOTS);
        assert!(shard.lanes.capacity() <= 2 * KEEP_SLOTS);
    }
}
