//! Who is due and goes where, pure: a queue for every destination, and turns among them.
//!
//! | file | what it is |
//! |---|---|
//! | `queue` | what waits for one destination |
//! | `ready` | whose turn it is |
//! | `cut` | queues that do not fit into memory |
//! | `due_keys` | the first place of all that are known |
//! | `budget` | how many bytes of payloads attempts hold |
//! | `take` | what a turn takes of a queue, by bytes |
//!
//! A topic of the bus is served by one batch at a time, so that its order is kept. A host is served by
//! several attempts at a time, up to a cap. No cost here grows with the number of destinations but by its
//! logarithm: a hundred thousand of them may be due at one moment.
//!
//! # Who holds what
//!
//! An attempt counts against [`Bounds::callbacks`] while it is *short*. When it has waited for its receiver
//! for a while it becomes *long* and counts against [`Bounds::waiting`], which is much larger, since all that
//! it costs is a connection. So hosts that hang take nothing from those that answer. As the room for long
//! attempts gets scarce the cap of each host shrinks, down to one attempt. What is left of
//! [`Bounds::callbacks`] at its end is for hosts that answered quickly a short while ago, and a host takes at
//! most half of what is free.
//!
//! Batches for the bus have a bound of their own, which shrinks batches as it gets scarce.
//!
//! What an attempt costs in memory is its payload, from its turn until it is [given back](Routes::give_back).
//! That has a bound of its own, too: see [`ByteBudget`].

mod budget;
mod cut;
mod due_keys;
mod queue;
mod ready;
mod take;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::time::Duration;

use foldhash::{HashMap, HashMapExt};

use self::budget::ByteBudget;
use self::cut::Reading;
use self::due_keys::DueKeys;
use self::queue::{DueRange, Queue};
use self::ready::{Quick, Ready};
use crate::Timestamp;
use crate::store::{DueKey, Route, Scheduled};

/// How long a destination rests that could not be served, at first and at most.
const FIRST_HOLD: Duration = Duration::from_millis(100);
const LONGEST_HOLD: Duration = Duration::from_secs(10);

/// How many results of a host that took nothing are awaited one at a time.
const PROBATION: u8 = 3;

/// The fewest messages of a batch for the bus while many others are on their way.
const SMALL_BATCH: usize = 16;

/// How many messages of a host are looked at for some whose payloads fit.
const LOOKED_AT: usize = 64;

/// How much may run at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Messages in one batch for the bus.
    pub(super) batch: usize,
    /// Messages in all batches for the bus, about.
    pub(super) publishing: usize,
    /// Attempts at one host.
    pub(super) per_host: usize,
    /// Attempts at all hosts that began a moment ago.
    pub(super) callbacks: usize,
    /// Attempts at all hosts that wait for an answer for longer.
    pub(super) waiting: usize,
    /// Messages that wait in all queues.
    pub(super) queued: usize,
    /// Bytes of payloads in one batch for the bus, but for one message.
    pub(super) batch_bytes: usize,
    /// Bytes of payloads in all batches for the bus.
    pub(super) bus_bytes: usize,
    /// Bytes of payloads in all attempts at hosts.
    pub(super) callback_bytes: usize,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Routes {
    bounds: Bounds,
    queues: HashMap<Route, Queue>,
    /// Routes to the bus that have something to do, each once.
    ready_topics: VecDeque<Route>,
    /// Hosts that have something to do and answered quickly a short while ago, and the others.
    quick_hosts: Ready,
    other_hosts: Ready,
    quick: Quick,
    picks: usize,
    /// Who may go on when. Entries of queues that are held no more, or till another moment, mean nothing.
    held: BinaryHeap<Reverse<(Timestamp, Route)>>,
    /// Queues by how many wait in them; of those that are equally long the one that waits the longest is last.
    by_length: BTreeSet<(usize, Reverse<u64>, Route)>,
    /// How often a queue began to have something in it.
    begun: u64,
    /// Queues that are not whole, by where the first one stands that is not in them.
    cut: BTreeSet<(DueKey, Route)>,
    /// Those of them that have nothing else to do.
    hungry: BTreeSet<(DueKey, Route)>,
    reading: Option<Reading>,
    /// Of all that are queued or on their way.
    due_keys: DueKeys,
    /// Attempts at hosts that began a moment ago, and those that wait for longer.
    short: usize,
    long: usize,
    /// Messages on their way to the bus.
    publishing: usize,
    /// Messages in all queues.
    queued: usize,
    /// Of payloads on their way to the bus, and to hosts.
    bus_bytes: ByteBudget,
    callback_bytes: ByteBudget,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Claim and deliver these.
    Deliver(Route, Vec<Scheduled>),
    /// Read the due index from there on, for queues that were cut.
    Read(DueKey),
}

/// What has ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ended {
    /// An attempt at a host.
    Short,
    /// An attempt at a host that had [become long](Routes::take_long).
    Long,
    /// A batch for the bus, of so many messages.
    Batch(usize),
}

impl Routes {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            queues: HashMap::new(),
            ready_topics: VecDeque::new(),
            quick_hosts: Ready::default(),
            other_hosts: Ready::default(),
            quick: Quick::new(),
            picks: 0,
            held: BinaryHeap::new(),
            by_length: BTreeSet::new(),
            begun: 0,
            cut: BTreeSet::new(),
            hungry: BTreeSet::new(),
            reading: None,
            due_keys: DueKeys::default(),
            short: 0,
            long: 0,
            publishing: 0,
            queued: 0,
            bus_bytes: ByteBudget::new(bounds.bus_bytes),
            callback_bytes: ByteBudget::new(bounds.callback_bytes),
        }
    }

    /// A message is due.
    pub(super) fn push(&mut self, waiting: Scheduled) {
        self.due_keys.add(waiting.due_key);
        self.push_again(waiting);
    }

    /// A message that was on its way waits again, behind the others. It has not [finished](Self::finish).
    pub(super) fn push_again(&mut self, waiting: Scheduled) {
        let route = waiting.route;
        let queue = self.queues.entry(route).or_default();
        // Once something is forgotten, all that come after it have to wait for it.
        if queue.forgotten.is_some() {
            self.due_keys.remove(waiting.due_key);
            self.forget(route, DueRange::of(waiting.due_key));
            return;
        }
        queue.due.push_back(waiting);
        let length = queue.due.len();
        self.resized(route, length - 1, length);
        self.make_ready(route, true);
        if self.queued > self.bounds.queued {
            self.cut_longest();
        }
    }

    /// Messages that were on their way go back to the front. They have not [finished](Self::finish).
    pub(super) fn put_back(&mut self, waiting: &[Scheduled]) {
        let Some(first) = waiting.first() else { return };
        let route = first.route;
        let queue = self.queues.entry(route).or_default();
        let before = queue.due.len();
        for waiting in waiting.iter().rev() {
            queue.due.push_front(*waiting);
        }
        self.resized(route, before, before + waiting.len());
        self.make_ready(route, false);
    }

    /// A message is known once more, and will [finish](Self::finish) once more.
    pub(super) fn count(&mut self, due_key: DueKey) {
        self.due_keys.add(due_key);
    }

    /// A message that was on its way is done with: it is not in its place any more.
    pub(super) fn finish(&mut self, due_key: DueKey) {
        self.due_keys.remove(due_key);
    }

    /// A queue has another length.
    fn resized(&mut self, route: Route, before: usize, after: usize) {
        let Some(queue) = self.queues.get_mut(&route) else {
            return;
        };
        if before > 0 {
            let key = (before, Reverse(queue.since), route);
            self.by_length.remove(&key);
        } else {
            self.begun += 1;
            queue.since = self.begun;
        }
        if after > 0 {
            let key = (after, Reverse(queue.since), route);
            self.by_length.insert(key);
        }
        self.queued = self.queued + after - before;
    }

    /// How many wait in the longest queue, and which one that is.
    fn longest(&self) -> (usize, Option<Route>) {
        let longest = self.by_length.last();
        longest.map_or((0, None), |(length, _, route)| (*length, Some(*route)))
    }

    fn make_ready(&mut self, route: Route, is_fresh: bool) {
        let Some(queue) = self.queues.get_mut(&route) else {
            return;
        };
        if queue.is_ready || queue.held_until.is_some() {
            return;
        }
        queue.is_ready = true;
        if route.is_bus() {
            self.ready_topics.push_back(route);
            return;
        }
        let hosts = if self.quick.contains(route) {
            &mut self.quick_hosts
        } else {
            &mut self.other_hosts
        };
        if is_fresh {
            hosts.push_fresh(route);
        } else {
            hosts.push_served(route);
        }
    }

    /// The next thing to do. `None`: nothing now.
    pub(super) fn next(&mut self, now: Timestamp) -> Option<Turn> {
        self.release(now);
        loop {
            if let Some(turn) = self.next_ready() {
                return Some(turn);
            }
            if !self.wake_one() {
                return None;
            }
        }
    }

    fn next_ready(&mut self) -> Option<Turn> {
        while self.publishing < 2 * self.bounds.publishing
            && let Some(route) = self.ready_topics.pop_front()
        {
            if let Some(turn) = self.turn(route) {
                return Some(turn);
            }
        }
        if let Some(from) = self.begin_reading() {
            return Some(Turn::Read(from));
        }
        while let Some(route) = self.pick() {
            if let Some(turn) = self.turn(route) {
                return Some(turn);
            }
        }
        None
    }

    /// Those that were held until now may go on.
    fn release(&mut self, now: Timestamp) {
        while let Some(Reverse((until, route))) = self.held.peek().copied()
            && until <= now
        {
            self.held.pop();
            if let Some(queue) = self.queues.get_mut(&route)
                && queue.held_until == Some(until)
            {
                queue.held_until = None;
                self.make_ready(route, false);
            }
        }
    }

    /// A host whose turn it is.
    fn pick(&mut self) -> Option<Route> {
        let free = self.free();
        if free == 0 {
            return None;
        }
        if free <= self.reserve() {
            return self.quick_hosts.pop();
        }
        self.picks = self.picks.wrapping_add(1);
        if self.picks.is_multiple_of(2) {
            self.quick_hosts.pop().or_else(|| self.other_hosts.pop())
        } else {
            self.other_hosts.pop().or_else(|| self.quick_hosts.pop())
        }
    }

    /// Whether hosts wait for attempts of others to end.
    pub(super) fn is_saturated(&self) -> bool {
        let is_idle = self.quick_hosts.is_empty() && self.other_hosts.is_empty();
        self.free() <= self.reserve() && !is_idle
    }

    /// How many attempts can begin.
    fn free(&self) -> usize {
        let without_room = self.long.saturating_sub(self.bounds.waiting);
        let taken = self.short + without_room;
        self.bounds.callbacks.saturating_sub(taken)
    }

    /// How many of them are kept for hosts that are known to be quick.
    fn reserve(&self) -> usize {
        self.bounds.callbacks / 8
    }

    /// How many attempts a host may have at once.
    fn share(&self) -> usize {
        let Bounds {
            per_host, waiting, ..
        } = self.bounds;
        let (half, quarter) = (waiting / 2, waiting / 4);
        if quarter == 0 {
            return per_host;
        }
        // The second half is given out one by one, so that it is enough for many.
        let left = waiting.saturating_sub(self.long).saturating_sub(half);
        (per_host * left / quarter).clamp(1, per_host)
    }

    fn turn(&mut self, route: Route) -> Option<Turn> {
        let (free, reserve, share) = (self.free(), self.reserve(), self.share());
        let is_quick = self.quick.contains(route);
        let queue = self.queues.get_mut(&route)?;
        queue.is_ready = false;
        if queue.held_until.is_some() {
            return None;
        }
        let room = if route.is_bus() {
            // One batch at a time: the order is kept.
            let left = self.bounds.publishing.saturating_sub(self.publishing);
            let small = SMALL_BATCH.min(self.bounds.batch);
            (left / 8).clamp(small, self.bounds.batch) * usize::from(queue.running == 0)
        } else {
            let most = if queue.probation > 0 { 1 } else { share };
            let free = if is_quick {
                free
            } else {
                free.saturating_sub(reserve)
            };
            most.saturating_sub(queue.running).min((free / 2).max(1))
        };
        if room == 0 {
            // It is made ready again when something of it ends.
            return None;
        }
        if queue.due.is_empty() {
            if let Some(forgotten) = queue.forgotten {
                self.hungry.insert((forgotten.first, route));
            } else if queue.running == 0 {
                self.queues.remove(&route);
            }
            return None;
        }
        let before = queue.due.len();
        let batch = if route.is_bus() {
            self.take_in_order(route, room, is_quick)
        } else {
            self.take_what_fits(route, room, is_quick)
        };
        if batch.is_empty() {
            return None;
        }
        let queue = self.queues.get_mut(&route)?;
        let left = queue.due.len();
        if route.is_bus() {
            queue.running += 1;
            self.publishing += batch.len();
        } else {
            queue.running += batch.len();
            self.short += batch.len();
        }
        self.resized(route, before, left);
        if left > 0 && !route.is_bus() {
            self.make_ready(route, false);
        }
        Some(Turn::Deliver(route, batch))
    }

    /// An attempt waits for its receiver for long.
    pub(super) fn take_long(&mut self) {
        self.short -= 1;
        self.long += 1;
    }

    /// An attempt has ended, or a batch for the bus.
    pub(super) fn done(&mut self, route: Route, ended: Ended) {
        match ended {
            Ended::Short => self.short -= 1,
            Ended::Long => self.long -= 1,
            Ended::Batch(count) => self.publishing -= count,
        }
        let Some(queue) = self.queues.get_mut(&route) else {
            return;
        };
        queue.running -= 1;
        if !queue.due.is_empty() || queue.forgotten.is_some() {
            self.make_ready(route, false);
        } else if queue.running == 0 && !queue.is_ready {
            self.queues.remove(&route);
        }
    }

    /// It could not be served: nothing goes there for a while, each time for longer.
    pub(super) fn set_back(&mut self, route: Route, now: Timestamp) {
        if let Some(queue) = self.queues.get_mut(&route) {
            let wait = FIRST_HOLD.saturating_mul(1 << queue.setbacks.min(10));
            queue.setbacks = queue.setbacks.saturating_add(1);
            self.hold(route, now + wait.min(LONGEST_HOLD));
        }
    }

    /// A host takes nothing: nothing goes there until then, and then one attempt at a time.
    pub(super) fn rest(&mut self, route: Route, until: Timestamp) {
        if let Some(queue) = self.queues.get_mut(&route) {
            queue.probation = PROBATION;
            self.hold(route, until);
        }
    }

    /// One that is held already is not held for longer.
    fn hold(&mut self, route: Route, until: Timestamp) {
        if let Some(queue) = self.queues.get_mut(&route)
            && queue.held_until.is_none()
        {
            queue.held_until = Some(until);
            self.held.push(Reverse((until, route)));
        }
    }

    /// It can be served.
    pub(super) fn went_well(&mut self, route: Route) {
        if let Some(queue) = self.queues.get_mut(&route) {
            queue.setbacks = 0;
            queue.probation = 0;
        }
    }

    /// A host took a message quickly.
    pub(super) fn went_quickly(&mut self, route: Route, now: Timestamp) {
        self.quick.note(route, now);
    }

    /// An attempt failed, though it was made.
    pub(super) fn went_wrong(&mut self, route: Route) {
        if let Some(queue) = self.queues.get_mut(&route) {
            queue.probation = queue.probation.saturating_sub(1);
        }
    }

    /// When something that is held may go on.
    pub(super) fn next_wake(&self) -> Option<Timestamp> {
        self.held.peek().map(|Reverse((until, _))| *until)
    }

    /// No message that the routes know waits before this.
    pub(super) fn floor(&self) -> Option<DueKey> {
        let cut = self.cut.first().map(|(first, _)| *first);
        [self.due_keys.first(), cut].into_iter().flatten().min()
    }
}
