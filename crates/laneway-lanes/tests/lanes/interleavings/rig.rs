//! A small engine around the scheduling core: submitters, workers and a timer are threads of shuttle.
//!
//! It does what `intake`, `worker`, `turn` and `backoff` do with the core, in the same order, and
//! nothing else. Everything that must hold is asserted where it could break. A wake-up that gets
//! lost shows as a deadlock, which shuttle reports.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, PoisonError};

use shuttle::sync::{Condvar, Mutex as Shut};
use shuttle::thread;

use crate::capacity::{Bound, Gate};
use crate::ready::{Next, Ready, TopicId, WorkerId};
use crate::shards::{LaneId, Left, Pushed, Refused, Shards, Then};
use crate::stash::Stash;
use crate::sync::{Mutex, lock};

/// A job: its lane, and its place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Token {
    pub(crate) lane: u64,
    pub(crate) seq: u64,
}

/// What a worker does with a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Does {
    Finish,
    /// Fails once; the lane is backing off in between.
    FailOnce,
}

/// What the tests look at, behind the scheduler's back: none of this is a point where others run.
#[derive(Default)]
struct Ledger {
    on_queue: HashMap<TopicId, HashMap<u64, usize>>,
    owned: HashSet<(TopicId, u64)>,
    running: HashMap<TopicId, usize>,
    inside: HashMap<(TopicId, u64), usize>,
    finished: Vec<(TopicId, Token)>,
    handed_back: Vec<(TopicId, Token)>,
    failed: HashSet<(TopicId, Token)>,
}

pub(crate) struct Rig {
    workers: usize,
    lane_bound: usize,
    turn: usize,
    does: Does,
    places_change: bool,
    ready: Mutex<Ready>,
    gate: Gate,
    topics: Shut<HashMap<TopicId, Arc<Shards<Token>>>>,
    slots: Vec<Permit>,
    stashes: Vec<Stash>,
    looks: usize,
    backing_off: Shut<VecDeque<(TopicId, LaneId)>>,
    timer: Permit,
    ledger: std::sync::Mutex<Ledger>,
    over: Shut<usize>,
    all_over: Condvar,
    stopping: std::sync::atomic::AtomicBool,
}

/// One sleeper, and at most one wake-up in store: what `tokio::sync::Notify` is to a worker.
struct Permit {
    stored: Shut<bool>,
    changed: Condvar,
}

impl Permit {
    fn new() -> Self {
        Self {
            stored: Shut::new(false),
            changed: Condvar::new(),
        }
    }

    fn give(&self) {
        *open(&self.stored) = true;
        self.changed.notify_one();
    }

    fn wait(&self) {
        let mut stored = open(&self.stored);
        while !std::mem::take(&mut *stored) {
            stored = self
                .changed
                .wait(stored)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn open<T>(mutex: &Shut<T>) -> shuttle::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct Setup {
    pub(crate) workers: usize,
    pub(crate) lane_bound: usize,
    pub(crate) room: usize,
    pub(crate) turn: usize,
    pub(crate) does: Does,
    /// A topic may take the place of another: then a submit that was late leaves a lane of the old
    /// one on the queue of the new one, which must do no harm.
    pub(crate) places_change: bool,
    /// How often the watchdog comes by and puts back what workers have taken ahead.
    pub(crate) looks: usize,
}

impl Rig {
    pub(crate) fn new(setup: &Setup) -> Arc<Self> {
        Arc::new(Self {
            workers: setup.workers,
            lane_bound: setup.lane_bound,
            turn: setup.turn,
            does: setup.does,
            places_change: setup.places_change,
            ready: Mutex::new(Ready::new(setup.workers)),
            gate: Gate::new(Bound::new(setup.room, 1000)),
            topics: Shut::new(HashMap::new()),
            slots: (0..setup.workers).map(|_| Permit::new()).collect(),
            stashes: (0..setup.workers).map(|_| Stash::new()).collect(),
            looks: setup.looks,
            backing_off: Shut::new(VecDeque::new()),
            timer: Permit::new(),
            ledger: std::sync::Mutex::default(),
            over: Shut::new(0),
            all_over: Condvar::new(),
            stopping: std::sync::atomic::AtomicBool::new(false),
        })
    }

    pub(crate) fn add_topic(&self) -> TopicId {
        let mut topics = open(&self.topics);
        let id = lock(&self.ready).add_topic();
        topics.insert(id, Arc::new(Shards::new(2, self.lane_bound)));
        id
    }

    /// As `WorkerPool::sweep`: forgets the topic if no turn of it runs.
    pub(crate) fn remove_topic(&self, id: TopicId) -> bool {
        let mut topics = open(&self.topics);
        let mut ready = lock(&self.ready);
        if ready.running(id) > 0 {
            return false;
        }
        let wake = ready.remove_topic(id);
        topics.remove(&id);
        self.see(|ledger| ledger.on_queue.remove(&id));
        drop(ready);
        drop(topics);
        self.wake(wake);
        true
    }

    pub(crate) fn shards(&self, id: TopicId) -> Option<Arc<Shards<Token>>> {
        open(&self.topics).get(&id).cloned()
    }

    /// Starts the workers and the timer.
    pub(crate) fn start(self: &Arc<Self>) -> Vec<thread::JoinHandle<()>> {
        let mut threads: Vec<_> = (0..self.workers)
            .map(|id| {
                let rig = Arc::clone(self);
                thread::spawn(move || rig.work(WorkerId(id)))
            })
            .collect();
        let rig = Arc::clone(self);
        threads.push(thread::spawn(move || rig.attend()));
        let rig = Arc::clone(self);
        threads.push(thread::spawn(move || rig.watch()));
        threads
    }

    /// Waits until `jobs` are over, then sends everybody home.
    pub(crate) fn finish(&self, jobs: usize, threads: Vec<thread::JoinHandle<()>>) {
        let mut over = open(&self.over);
        while *over < jobs {
            over = self
                .all_over
                .wait(over)
                .unwrap_or_else(PoisonError::into_inner);
        }
        assert_eq!(*over, jobs, "nothing is over twice");
        drop(over);
        self.stopping
            .store(true, std::sync::atomic::Ordering::SeqCst);
        self.slots.iter().for_each(Permit::give);
        self.timer.give();
        for thread in threads {
            thread.join().expect("no thread panicked");
        }
        assert_eq!(self.gate.in_use(), Bound::new(0, 0), "all room is back");
    }

    fn see<R>(&self, look: impl FnOnce(&mut Ledger) -> R) -> R {
        look(&mut self.ledger.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn finished(&self) -> Vec<(TopicId, Token)> {
        self.see(|ledger| ledger.finished.clone())
    }

    pub(crate) fn handed_back(&self) -> Vec<(TopicId, Token)> {
        self.see(|ledger| ledger.handed_back.clone())
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(std::sync::atomic::Ordering::SeqCst)
    }

    fn wake(&self, worker: Option<WorkerId>) {
        if let Some(worker) = worker {
            self.slots[worker.0].give();
        }
    }

    fn count_over(&self, jobs: usize) {
        *open(&self.over) += jobs;
        self.all_over.notify_all();
    }

    /// As `Queue::try_submit`, again and again while there is no room. False: closed.
    pub(crate) fn submit(&self, topic: TopicId, shards: &Shards<Token>, token: Token) -> bool {
        loop {
            match self.enqueue(topic, shards, token) {
                Ok(Pushed::MakeReady) => {
                    self.make_ready(topic, LaneId(token.lane));
                    return true;
                }
                Ok(Pushed::Queued) => return true,
                Err(Refused::Closed) => return false,
                Err(Refused::LaneFull | Refused::NoRoom(())) => thread::yield_now(),
            }
        }
    }

    /// The first half of a submit.
    pub(crate) fn enqueue(
        &self,
        topic: TopicId,
        shards: &Shards<Token>,
        token: Token,
    ) -> Result<Pushed, Refused<()>> {
        let room = |_: &mut Token| {
            if !self.gate.try_take(10) {
                return Err(());
            }
            // Counted under the lane's lock, as the engine's own figures are.
            self.enters(topic, token.lane);
            Ok(())
        };
        shards
            .push(LaneId(token.lane), token, room)
            .map_err(|(same, refused)| {
                assert_eq!(same, token, "what is refused comes back");
                refused
            })
    }

    fn enters(&self, topic: TopicId, lane: u64) {
        let bound = self.lane_bound;
        self.see(|ledger| {
            let inside = ledger.inside.entry((topic, lane)).or_default();
            *inside += 1;
            assert!(*inside <= bound, "the lane has {inside} of {bound}");
            let all: usize = ledger.inside.values().sum();
            assert!(all <= self.gate.bound().messages, "{all} are under way");
        });
    }

    /// Room is given back: counted before it is, so that the count is never too high.
    fn leaves(&self, topic: TopicId, lane: u64, jobs: usize) {
        self.see(|ledger| {
            let inside = ledger.inside.entry((topic, lane)).or_default();
            *inside -= jobs;
        });
        self.gate.give_back(Bound::new(jobs, 10 * jobs));
    }

    /// The second half of a submit, as `WorkerPool::push`. The ledger is written while the queue is locked,
    /// so that it is exact.
    pub(crate) fn make_ready(&self, topic: TopicId, lane: LaneId) {
        let mut ready = lock(&self.ready);
        self.is_queued(topic, lane);
        let wake = ready.push(topic, lane);
        drop(ready);
        self.wake(wake);
    }

    fn is_queued(&self, topic: TopicId, lane: LaneId) {
        self.see(|ledger| {
            let lanes = ledger.on_queue.entry(topic).or_default();
            let times = lanes.entry(lane.0).or_default();
            *times += 1;
            assert!(
                *times == 1 || self.places_change,
                "lane {} is on the ready queue twice",
                lane.0
            );
        });
    }

    fn is_handed_out(&self, next: &Next) {
        let Next::Run { topic, lane, .. } = next else {
            return;
        };
        self.is_taken(*topic, *lane);
        self.see(|ledger| {
            let running = ledger.running.entry(*topic).or_default();
            *running += 1;
            assert!(*running <= self.workers, "more turns than workers");
        });
    }

    fn is_taken(&self, topic: TopicId, lane: LaneId) {
        self.see(|ledger| {
            let lanes = ledger.on_queue.entry(topic).or_default();
            let times = lanes.entry(lane.0).or_default();
            assert!(*times > 0, "it was on the queue");
            *times -= 1;
        });
    }

    /// As `worker::work`.
    fn work(&self, me: WorkerId) {
        let mut next = {
            let mut ready = lock(&self.ready);
            let next = ready.next(me, false);
            self.is_handed_out(&next);
            next
        };
        loop {
            match next {
                Next::Sleep => {
                    if self.is_stopping() {
                        return;
                    }
                    self.slots[me.0].wait();
                    let mut ready = lock(&self.ready);
                    next = ready.next(me, true);
                    self.is_handed_out(&next);
                }
                Next::Run { topic, lane, wake } => {
                    self.wake(wake);
                    next = self.turns(me, topic, lane);
                }
            }
        }
    }

    /// As `TopicLanes::run_turns`, of one topic.
    fn turns(&self, me: WorkerId, topic: TopicId, first: LaneId) -> Next {
        let mut lane = first;
        loop {
            let shards = self.shards(topic);
            let has_more = shards.is_some_and(|shards| self.turn(topic, lane, &shards));
            // IMPORTANT: the lock is let go before the queue is asked, as the engine does it.
            let ahead = self.stashes[me.0]
                .lanes()
                .after_turn(topic, has_more.then_some(lane));
            match ahead {
                Some(next) => lane = next,
                None => return self.next_after(me, topic),
            }
        }
    }

    /// As `WorkerPool::next_after`.
    fn next_after(&self, me: WorkerId, topic: TopicId) -> Next {
        let mut lanes = self.stashes[me.0].lanes();
        let mut ready = lock(&self.ready);
        self.see(|ledger| *ledger.running.entry(topic).or_default() -= 1);
        for lane in &lanes.again {
            self.is_queued(topic, *lane);
        }
        let (next, wake) = lanes.refill(&mut ready, me, topic);
        self.is_handed_out(&next);
        for lane in &lanes.ahead {
            self.is_taken(topic, *lane);
        }
        drop(ready);
        drop(lanes);
        self.wake(wake);
        next
    }

    /// As the watchdog, which believes of every worker that it blocks its thread.
    fn watch(&self) {
        for _ in 0..self.looks {
            for stash in &self.stashes {
                thread::yield_now();
                let mut lanes = stash.lanes();
                if lanes.is_empty() {
                    continue;
                }
                let mut ready = lock(&self.ready);
                let topic = lanes
                    .topic
                    .expect("there are lanes, so their topic is known");
                for lane in lanes.ahead.iter().chain(&lanes.again) {
                    self.is_queued(topic, *lane);
                }
                let wake = lanes.put_back(&mut ready);
                drop(ready);
                drop(lanes);
                self.wake(wake);
            }
        }
    }

    /// As `Turn`. Answers whether the lane has more.
    fn turn(&self, topic: TopicId, lane: LaneId, shards: &Shards<Token>) -> bool {
        let mut jobs = VecDeque::new();
        if !shards.take(lane, self.turn, &mut jobs) {
            return false;
        }
        self.see(|ledger| {
            let alone = ledger.owned.insert((topic, lane.0));
            assert!(alone, "lane {} has two owners", lane.0);
        });
        let (mut done, mut then) = (0, Then::Continue);
        while let Some(token) = jobs.front().copied() {
            thread::yield_now();
            if self.does == Does::FailOnce && self.see(|l| l.failed.insert((topic, token))) {
                then = Then::BackOff;
                break;
            }
            self.see(|ledger| ledger.finished.push((topic, token)));
            jobs.pop_front();
            done += 1;
            if jobs.len() == 1 {
                // In the middle of a turn others hear how far it has come.
                let told = std::mem::take(&mut done);
                self.see(|ledger| *ledger.inside.entry((topic, lane.0)).or_default() -= told);
                shards.finished(lane, told);
                self.gate.give_back(Bound::new(told, 10 * told));
                self.count_over(told);
            }
        }
        self.end_turn(topic, lane, shards, (done, jobs, then))
    }

    fn end_turn(
        &self,
        topic: TopicId,
        lane: LaneId,
        shards: &Shards<Token>,
        (done, mut jobs, then): (usize, VecDeque<Token>, Then),
    ) -> bool {
        self.see(|ledger| {
            assert!(ledger.owned.remove(&(topic, lane.0)));
            *ledger.inside.entry((topic, lane.0)).or_default() -= done;
        });
        let (left, _held) = shards.give_back(lane, done, &mut jobs, then);
        self.gate.give_back(Bound::new(done, 10 * done));
        self.count_over(done);
        match left {
            Left::Gone => false,
            Left::MakeReady => true,
            Left::BackingOff => {
                open(&self.backing_off).push_back((topic, lane));
                self.timer.give();
                false
            }
            Left::Closed => {
                self.hand_back(topic, jobs.into_iter());
                false
            }
        }
    }

    fn hand_back(&self, topic: TopicId, jobs: impl Iterator<Item = Token>) {
        for token in jobs {
            self.see(|ledger| ledger.handed_back.push((topic, token)));
            self.leaves(topic, token.lane, 1);
            self.count_over(1);
        }
    }

    /// As `Closing::halt`.
    pub(crate) fn close(&self, topic: TopicId, shards: &Shards<Token>) {
        shards.drain(|token| self.hand_back(topic, std::iter::once(token)));
    }

    /// As `Backoff::attend`: releases what is backing off, without waiting.
    fn attend(&self) {
        while !self.is_stopping() {
            let due = open(&self.backing_off).pop_front();
            match due {
                Some((topic, lane)) => {
                    if self
                        .shards(topic)
                        .is_some_and(|shards| shards.resume(lane, |_| ()))
                    {
                        self.make_ready(topic, lane);
                    }
                }
                None => self.timer.wait(),
            }
        }
    }
}
