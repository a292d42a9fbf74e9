//! Who is due and goes where, pure: a queue for every destination, and turns among them.
//!
//! A topic of the bus is served by one batch at a time, so that its order is kept. A host is served by
//! several attempts at a time, up to a cap, so that a slow one holds up nobody else. All callbacks
//! together have a bound, and every host that can go on gets its turn.
//!
//! All queues together have a bound. If it is reached, the longest one loses half of what is in it: that is
//! forgotten here, with a note where it stood, and when the queue is empty the store is asked again. So a
//! destination that is stuck cannot take the memory of others.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::Timestamp;
use crate::store::{Place, Route, Waiting};

/// How long a destination rests that could not be served, at first and at most.
const FIRST_HOLD: Duration = Duration::from_millis(100);
const LONGEST_HOLD: Duration = Duration::from_secs(10);

/// How much may run at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Messages in one batch for the bus.
    pub(super) batch: usize,
    /// Attempts at one host.
    pub(super) per_host: usize,
    /// Attempts at all hosts.
    pub(super) callbacks: usize,
    /// Messages that wait in all queues.
    pub(super) queued: usize,
}

#[derive(Debug)]
pub(super) struct Routes {
    bounds: Bounds,
    queues: HashMap<Route, Queue>,
    /// Routes to the bus that may have something to do, each once.
    ready_topics: VecDeque<Route>,
    /// The same of hosts.
    ready_hosts: VecDeque<Route>,
    callbacks: usize,
    /// Messages in all queues.
    queued: usize,
}

#[derive(Debug, Default)]
struct Queue {
    due: VecDeque<Waiting>,
    running: usize,
    is_ready: bool,
    /// How often in a row it could not be served.
    setbacks: u32,
    /// Nothing goes before this moment.
    held_until: Option<Timestamp>,
    /// Here there are some in the store that are not in the queue.
    forgotten: Option<Stretch>,
    /// What is being read from the store for this queue.
    reading: Option<Stretch>,
}

/// A part of the line, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) first: Place,
    pub(super) last: Place,
}

impl Stretch {
    fn of(place: Place) -> Self {
        Self {
            first: place,
            last: place,
        }
    }
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Claim and deliver these.
    Deliver(Route, Vec<Waiting>),
    /// Look in the store for those of the route that stand there.
    Read(Route, Stretch),
}

impl Routes {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            queues: HashMap::new(),
            ready_topics: VecDeque::new(),
            ready_hosts: VecDeque::new(),
            callbacks: 0,
            queued: 0,
        }
    }

    /// A message is due.
    pub(super) fn push(&mut self, waiting: Waiting) {
        let queue = self.queues.entry(waiting.route).or_default();
        // Once something is forgotten, all that come after it have to wait for it.
        if queue.forgotten.is_some() || queue.reading.is_some() {
            queue.forget(Stretch::of(waiting.place));
        } else {
            queue.due.push_back(waiting);
            self.queued += 1;
        }
        self.make_ready(waiting.route);
        if self.queued > self.bounds.queued {
            self.cut_longest();
        }
    }

    /// Forgets half of the longest queue.
    fn cut_longest(&mut self) {
        let longest = self.queues.values_mut().max_by_key(|queue| queue.due.len());
        if let Some(queue) = longest {
            let cut = queue.due.split_off(queue.due.len() / 2);
            self.queued -= cut.len();
            for waiting in cut {
                queue.forget(Stretch::of(waiting.place));
            }
        }
    }

    fn make_ready(&mut self, route: Route) {
        if let Some(queue) = self.queues.get_mut(&route)
            && !queue.is_ready
        {
            queue.is_ready = true;
            self.ready(route).push_back(route);
        }
    }

    fn ready(&mut self, route: Route) -> &mut VecDeque<Route> {
        if route.is_bus() {
            &mut self.ready_topics
        } else {
            &mut self.ready_hosts
        }
    }

    /// The next thing to do. `None`: nothing now.
    pub(super) fn next(&mut self, now: Timestamp) -> Option<Turn> {
        for _ in 0..self.ready_topics.len() {
            let route = self.ready_topics.pop_front()?;
            if let Some(turn) = self.turn(route, now) {
                return Some(turn);
            }
        }
        for _ in 0..self.ready_hosts.len() {
            // All hosts together are at their bound: whoever is first stays first.
            if self.callbacks >= self.bounds.callbacks {
                return None;
            }
            let route = self.ready_hosts.pop_front()?;
            if let Some(turn) = self.turn(route, now) {
                return Some(turn);
            }
        }
        None
    }

    fn turn(&mut self, route: Route, now: Timestamp) -> Option<Turn> {
        let queue = self.queues.get_mut(&route)?;
        if queue.held_until.is_some_and(|until| now < until) {
            self.ready(route).push_back(route);
            return None;
        }
        queue.held_until = None;
        if queue.due.is_empty() {
            queue.is_ready = false;
            let reading = queue.begin_reading();
            if reading.is_none() && queue.is_idle() {
                self.queues.remove(&route);
            }
            return reading.map(|stretch| Turn::Read(route, stretch));
        }
        let room = if route.is_bus() {
            // One batch at a time: the order is kept.
            self.bounds.batch * usize::from(queue.running == 0)
        } else {
            let of_host = self.bounds.per_host.saturating_sub(queue.running);
            of_host.min(self.bounds.callbacks - self.callbacks)
        };
        if room == 0 {
            // It is made ready again when something of it ends.
            queue.is_ready = false;
            return None;
        }
        let batch: Vec<_> = queue.due.drain(..room.min(queue.due.len())).collect();
        self.queued -= batch.len();
        if route.is_bus() {
            queue.running += 1;
        } else {
            queue.running += batch.len();
            self.callbacks += batch.len();
        }
        self.ready(route).push_back(route);
        Some(Turn::Deliver(route, batch))
    }

    /// Attempts have ended, or one batch for the bus.
    pub(super) fn done(&mut self, route: Route, count: usize) {
        if !route.is_bus() {
            self.callbacks -= count;
        }
        if let Some(queue) = self.queues.get_mut(&route) {
            queue.running -= if route.is_bus() { 1 } else { count };
        }
        self.make_ready(route);
    }

    /// The bus could not take these: they go back to the front, and nothing goes for a while.
    pub(super) fn put_back(&mut self, waiting: &[Waiting], now: Timestamp) {
        let Some(first) = waiting.first() else { return };
        let queue = self.queues.entry(first.route).or_default();
        for waiting in waiting.iter().rev() {
            queue.due.push_front(*waiting);
        }
        self.queued += waiting.len();
        let wait = FIRST_HOLD.saturating_mul(1 << queue.setbacks.min(10));
        queue.held_until = Some(now + wait.min(LONGEST_HOLD));
        queue.setbacks = queue.setbacks.saturating_add(1);
        self.make_ready(first.route);
    }

    /// The store was read for a route. `rest`: what is still to be read.
    pub(super) fn found(&mut self, route: Route, found: Vec<Waiting>, rest: Option<Stretch>) {
        let queue = self.queues.entry(route).or_default();
        queue.reading = None;
        self.queued += found.len();
        queue.due.extend(found);
        if let Some(rest) = rest {
            queue.forget(rest);
        }
        self.make_ready(route);
    }

    /// It can be served.
    pub(super) fn went_well(&mut self, route: Route) {
        if let Some(queue) = self.queues.get_mut(&route) {
            queue.setbacks = 0;
        }
    }

    /// When something that is held may go on.
    pub(super) fn next_wake(&self) -> Option<Timestamp> {
        let ready = self.ready_topics.iter().chain(&self.ready_hosts);
        ready
            .filter_map(|route| self.queues.get(route)?.held_until)
            .min()
    }

    /// Nobody that is known here stands before this.
    pub(super) fn floor(&self) -> Option<Place> {
        let places = self.queues.values().flat_map(|queue| {
            // A retry may stand behind others that are due earlier.
            let first = queue.due.iter().map(|waiting| waiting.place).min();
            let stretches = [queue.forgotten, queue.reading];
            let stretches = stretches.map(|stretch| stretch.map(|stretch| stretch.first));
            [first, stretches[0], stretches[1]]
        });
        places.flatten().min()
    }
}

impl Queue {
    fn forget(&mut self, stretch: Stretch) {
        let known = self.forgotten.unwrap_or(stretch);
        self.forgotten = Some(Stretch {
            first: known.first.min(stretch.first),
            last: known.last.max(stretch.last),
        });
    }

    fn begin_reading(&mut self) -> Option<Stretch> {
        if self.reading.is_some() {
            return None;
        }
        self.reading = self.forgotten.take();
        self.reading
    }

    fn is_idle(&self) -> bool {
        self.running == 0 && self.forgotten.is_none() && self.reading.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Version;

    const BUS: Route = Route::from_u32(0);
    const BOUNDS: Bounds = Bounds {
        batch: 4,
        per_host: 2,
        callbacks: 5,
        queued: 20,
    };

    fn host(number: u32) -> Route {
        Route::from_u32(number << 1 | 1)
    }

    fn waiting(route: Route, serial: u64) -> Waiting {
        Waiting {
            place: Place { at: now(), serial },
            version: Version::FIRST,
            route,
        }
    }

    fn now() -> Timestamp {
        Timestamp::from_millis(1000)
    }

    fn serials(turn: Option<Turn>) -> Vec<u64> {
        match turn {
            Some(Turn::Deliver(_, batch)) => batch.iter().map(|one| one.place.serial).collect(),
            other => panic!("nothing to deliver: {other:?}"),
        }
    }

    #[test]
    fn a_topic_has_one_batch_at_a_time() {
        let mut routes = Routes::new(BOUNDS);
        for serial in 0..6 {
            routes.push(waiting(BUS, serial));
        }
        assert_eq!(serials(routes.next(now())), [0, 1, 2, 3]);
        assert_eq!(routes.next(now()), None);
        routes.done(BUS, 4);
        assert_eq!(serials(routes.next(now())), [4, 5]);
    }

    #[test]
    fn a_stuck_host_leaves_room_for_others() {
        let mut routes = Routes::new(BOUNDS);
        for serial in 0..6 {
            routes.push(waiting(host(1), serial));
        }
        routes.push(waiting(host(2), 10));
        assert_eq!(serials(routes.next(now())), [0, 1]);
        assert_eq!(serials(routes.next(now())), [10]);
        assert_eq!(routes.next(now()), None);
        routes.done(host(1), 1);
        assert_eq!(serials(routes.next(now())), [2]);
    }

    #[test]
    fn all_hosts_together_have_a_bound_and_take_turns() {
        let mut routes = Routes::new(BOUNDS);
        for number in 1..=3 {
            for serial in 0..3 {
                routes.push(waiting(host(number), u64::from(number) * 10 + serial));
            }
        }
        assert_eq!(serials(routes.next(now())), [10, 11]);
        assert_eq!(serials(routes.next(now())), [20, 21]);
        assert_eq!(serials(routes.next(now())), [30]);
        assert_eq!(routes.next(now()), None);
        routes.done(host(1), 1);
        let next = serials(routes.next(now()));
        assert_eq!(next.len(), 1);
        // A topic of the bus is not held up by any of it.
        routes.push(waiting(BUS, 99));
        assert_eq!(serials(routes.next(now())), [99]);
    }

    #[test]
    fn what_does_not_fit_is_read_again_when_the_queue_is_empty() {
        let mut routes = Routes::new(BOUNDS);
        for serial in 0..30 {
            routes.push(waiting(BUS, serial));
        }
        // At the 21st it lost all but ten.
        assert_eq!(routes.queued, 10);
        assert_eq!(routes.floor(), Some(waiting(BUS, 0).place));
        for expected in [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9]] {
            let count = expected.len();
            assert_eq!(serials(routes.next(now())), expected);
            routes.done(BUS, count);
        }
        let stretch = |first, last| Stretch {
            first: waiting(BUS, first).place,
            last: waiting(BUS, last).place,
        };
        assert_eq!(routes.next(now()), Some(Turn::Read(BUS, stretch(10, 29))));
        assert_eq!(routes.floor(), Some(waiting(BUS, 10).place));
        // One that comes meanwhile waits for those that are read.
        routes.push(waiting(BUS, 30));
        let found = (10..16).map(|serial| waiting(BUS, serial)).collect();
        routes.found(BUS, found, Some(stretch(16, 29)));
        assert_eq!(serials(routes.next(now())), [10, 11, 12, 13]);
        assert_eq!(routes.floor(), Some(waiting(BUS, 14).place));
    }

    #[test]
    fn a_stuck_destination_does_not_take_the_memory_of_others() {
        let mut routes = Routes::new(BOUNDS);
        for serial in 0..100 {
            routes.push(waiting(host(1), serial));
        }
        for serial in 100..106 {
            routes.push(waiting(host(2), serial));
        }
        assert!(routes.queued <= BOUNDS.queued);
        assert_eq!(routes.queues[&host(2)].due.len(), 6);
        assert_eq!(routes.queues[&host(2)].forgotten, None);
    }

    #[test]
    fn a_bus_that_cannot_take_them_gets_them_again_in_order() {
        let mut routes = Routes::new(BOUNDS);
        for serial in 0..5 {
            routes.push(waiting(BUS, serial));
        }
        let batch: Vec<_> = (0..4).map(|serial| waiting(BUS, serial)).collect();
        assert_eq!(serials(routes.next(now())), [0, 1, 2, 3]);
        let later = now() + FIRST_HOLD;
        routes.put_back(&batch, now());
        routes.done(BUS, 4);
        assert_eq!(routes.next(now()), None);
        assert_eq!(routes.next_wake(), Some(later));
        assert_eq!(serials(routes.next(later)), [0, 1, 2, 3]);
    }

    #[test]
    fn nothing_is_kept_of_a_destination_that_is_done() {
        let mut routes = Routes::new(BOUNDS);
        routes.push(waiting(host(7), 1));
        assert_eq!(serials(routes.next(now())), [1]);
        routes.done(host(7), 1);
        assert_eq!(routes.next(now()), None);
        assert!(routes.queues.is_empty());
        assert!(routes.ready_hosts.is_empty());
    }
}
