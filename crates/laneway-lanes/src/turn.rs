//! A turn: one worker runs a few jobs of one lane, in order, and gives the lane back.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::coop;
use tokio::time::Instant;

use super::attempt::{Ended, Limit, attempt, message_of};
use super::clock::after;
use super::close::{Abandoned, Closing};
use super::events::Event;
use super::intake::{Freed, Queue};
use super::job::{
    Admission, Disposition, Failure, FailureKind, Handler, Job, Jobs, Outcome, PastFailures, Queued,
};
use super::options::LaneBy;
use super::ready::{Next, TopicId};
use super::shards::{LaneId, Left, Then};
use super::stats::TopicStats;
use super::worker_pool::{RunEnd, Runner};
use super::worker_slot::WorkerSlot;

/// The most jobs of one lane that a worker runs before it looks at the next lane.
const TURN: usize = 16;

/// A turn of slow jobs also ends after this long if other lanes wait for a worker.
const TURN_TIME: Duration = Duration::from_millis(5);

/// After a turn of this length a worker puts back what it has taken ahead.
const LONG_TURN: Duration = Duration::from_millis(1);

/// One in so many turns counts for the hottest keys.
const SAMPLE_ONE_IN: u64 = 32;

/// A topic: its queue and its handler.
pub(super) struct TopicLanes<J: Job, H> {
    pub(super) queue: Arc<Queue<J>>,
    pub(super) handler: H,
}

impl<J: Job, H: Handler<J>> Runner for TopicLanes<J, H> {
    fn run<'a>(
        &'a self,
        slot: &'a WorkerSlot,
        lane: LaneId,
    ) -> Pin<Box<dyn Future<Output = RunEnd> + Send + 'a>> {
        Box::pin(self.run_turns(slot, lane))
    }

    fn resume(&self, lane: LaneId) {
        let mut key = None;
        if self.queue.shards.resume(lane, |first| {
            key = key_of(&first.job);
        }) {
            self.queue
                .counters
                .backing_off
                .fetch_sub(1, Ordering::Relaxed);
            self.queue.pool.teller.tell(|| Event::LaneReleased {
                topic: self.queue.name.clone(),
                key,
            });
            self.queue.pool.push(self.queue.id, lane);
        }
    }

    fn stats(&self) -> TopicStats {
        let queue = &self.queue;
        queue
            .counters
            .read(queue.name.clone(), queue.depth(), queue.shards.live())
    }

    fn closing(&self) -> &dyn Closing {
        self
    }
}

impl<J: Job, H: Handler<J>> Closing for TopicLanes<J, H> {
    fn id(&self) -> TopicId {
        self.queue.id
    }

    fn name(&self) -> &Arc<str> {
        &self.queue.name
    }

    fn depth(&self) -> usize {
        self.queue.depth().messages
    }

    fn refuse(&self) {
        self.queue.refuse();
    }

    fn quiet(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.queue.quiet())
    }

    fn halt(&self) {
        self.queue.halt.halt();
        let backing_off = self.queue.shards.drain(|queued| self.abandon_one(queued));
        self.queue
            .counters
            .backing_off
            .fetch_sub(backing_off as u64, Ordering::Relaxed);
        self.queue.room.announce();
    }

    fn cancel(&self) {
        self.queue.halt.cancel();
    }

    fn is_closed(&self) -> bool {
        self.queue.halt.is_halted()
    }

    fn take_abandoned(&self) -> Abandoned {
        self.queue.take_abandoned()
    }
}

impl<J: Job, H: Handler<J>> TopicLanes<J, H> {
    /// Runs turn after turn for as long as this topic is next, so that what a worker keeps between
    /// turns is kept, and its future is made only when the topic changes.
    async fn run_turns(&self, slot: &WorkerSlot, mut lane: LaneId) -> RunEnd {
        slot.works_on_topic(&self.queue.name);
        let most = TURN.max(self.handler.batch().get());
        let mut jobs = VecDeque::with_capacity(most);
        loop {
            let mut turn = Turn::begin(self, slot, lane, &mut jobs, most);
            let took_long = turn.run().await;
            let again = turn.give_back();
            let Turn {
                panicked,
                has_woken,
                ..
            } = turn;
            drop(turn);
            let pool = &self.queue.pool;
            if panicked {
                pool.empty_stash(slot);
                pool.turn_ended(self.queue.id, again);
                self.leave_if_closed();
                return RunEnd::Panicked;
            }
            // Handlers that never wait must not keep a thread for themselves. And the runtime keeps
            // the task that was woken last for this thread, which the next handler may block.
            if has_woken || !coop::has_budget_remaining() {
                // IMPORTANT: before the worker yields. While it waits for its thread, which another
                // task may be blocking, no lane may wait with it.
                pool.empty_stash(slot);
                pool.turn_ended(self.queue.id, again);
                self.leave_if_closed();
                return RunEnd::Yields;
            }
            coop::consume_budget().await;
            if took_long {
                pool.empty_stash(slot);
            }
            let ahead = slot.stash.lanes().after_turn(self.queue.id, again);
            if let Some(next) = ahead {
                lane = next;
                continue;
            }
            let next = pool.next_after(slot, self.queue.id);
            self.leave_if_closed();
            match next {
                Next::Run {
                    topic,
                    lane: next,
                    wake,
                } if topic == self.queue.id => {
                    pool.wake(wake);
                    lane = next;
                }
                other => return RunEnd::Next(other),
            }
        }
    }

    /// A job of `lane` was admitted, or never will be. Lanes that were [held](Admission::Held) until it
    /// was go on.
    fn release_group(&self, lane: LaneId) {
        for other in self.queue.pool.backoff.answered(self.queue.id, lane) {
            self.resume(other);
        }
    }

    /// A closed topic goes with its last turn. `close` may have looked too early, or may
    /// have given up on a handler that has only now returned.
    fn leave_if_closed(&self) {
        if self.queue.halt.is_halted() {
            self.queue.pool.sweep();
        }
    }

    /// Hands a job back that will not run, and gives its room back.
    fn abandon_one(&self, queued: Queued<J>) {
        let mut freed = Freed::default();
        freed.add(&queued);
        self.queue.note_abandoned(key_of(&queued.job).as_deref());
        self.hand_back(queued.job, Outcome::Abandoned);
        self.queue.give_back_room(&freed);
    }

    /// The one place where a job ends. Answers false if the handler panicked over it: others of the
    /// same batch must end all the same.
    fn hand_back(&self, job: J, outcome: Outcome) -> bool {
        let finished = AssertUnwindSafe(|| self.handler.finished(job, outcome));
        if let Err(panic) = catch_unwind(finished) {
            tracing::error!(
                topic = %self.queue.name,
                reason = message_of(panic.as_ref()),
                "a handler panicked in finished()"
            );
            return false;
        }
        true
    }
}

/// The jobs of a turn, and what the lane has to hear about them. Dropped in the middle (the engine
/// closes, or code outside of a handler panics), it still gives the lane back whole.
struct Turn<'a, J: Job, H: Handler<J>> {
    topic: &'a TopicLanes<J, H>,
    slot: &'a WorkerSlot,
    lane: LaneId,
    jobs: &'a mut VecDeque<Queued<J>>,
    /// Finished jobs that the lane has not heard of yet, and their room.
    done: usize,
    freed: Freed,
    /// Set when the lane has to wait.
    back_off_for: Option<Duration>,
    /// Set when the handler panicked, in an attempt or after it.
    panicked: bool,
    /// How long the lane has to wait for that.
    pause: Option<Duration>,
    /// The lanes that it waits with, if it has to wait for its handler to admit one of them.
    group: Option<u64>,
    /// Set when giving the lane back has woken a task that is not a worker.
    has_woken: bool,
    processed: u64,
    failed: u64,
    queue_nanos: u64,
    run_nanos: u64,
    ended: bool,
}

impl<'a, J: Job, H: Handler<J>> Turn<'a, J, H> {
    fn begin(
        topic: &'a TopicLanes<J, H>,
        slot: &'a WorkerSlot,
        lane: LaneId,
        jobs: &'a mut VecDeque<Queued<J>>,
        most: usize,
    ) -> Self {
        let owned = topic.queue.shards.take(lane, most, jobs);
        let turn = Self {
            topic,
            slot,
            lane,
            jobs,
            done: 0,
            freed: Freed::default(),
            back_off_for: None,
            panicked: false,
            pause: None,
            group: None,
            has_woken: false,
            processed: 0,
            failed: 0,
            queue_nanos: 0,
            run_nanos: 0,
            // A lane that was drained between the queue and here has no owner.
            ended: !owned,
        };
        // `Job::key` is a user's code and may panic: the turn exists by now, and gives the lane back.
        if let Some(key) = turn.jobs.front().and_then(|first| first.job.key())
            && slot.samples(SAMPLE_ONE_IN)
        {
            topic.queue.counters.sample_key(key, turn.jobs.len() as u64);
        }
        turn
    }

    /// Runs the jobs until they are all finished, one has to wait, the handler panicked, or the turn
    /// has been long enough. Answers whether it took long.
    async fn run(&mut self) -> bool {
        let queue = &self.topic.queue;
        let pool = &queue.pool;
        let mut now = pool.clock.now();
        let turn_began = now;
        let mut named = false;
        while !self.jobs.is_empty() && !queue.halt.is_halted() {
            match self.topic.handler.admits(&self.jobs[0].job) {
                Admission::Now => self.topic.release_group(self.lane),
                Admission::Later(wait) => {
                    self.topic.release_group(self.lane);
                    self.back_off_for = Some(wait);
                    break;
                }
                Admission::Held { group, every } => {
                    self.back_off_for = Some(every);
                    self.group = Some(group);
                    break;
                }
                Admission::Never => {
                    self.topic.release_group(self.lane);
                    self.finish(1, Outcome::Abandoned);
                    continue;
                }
            }
            // All jobs of a keyed lane have the same key; those of a hashed lane may not.
            if !named || queue.options.lane_by != LaneBy::Key {
                self.slot.works_on_key(self.jobs[0].job.key());
                named = true;
            }
            self.slot.begins(now);
            let count = self.next_batch();
            let began = now;
            let (result, waited) = if self.hands_over() {
                self.hand_over().await
            } else {
                self.handle(count, began).await
            };
            now = pool.clock.now();
            self.took(now - began);
            match result {
                Ok(()) => {}
                Err(Ended::Cancelled) => break,
                Err(Ended::Failed(failure)) => self.failed(failure),
            }
            if self.panicked || self.back_off_for.is_some() {
                break;
            }
            if waited && now - turn_began > nanos(TURN_TIME) && pool.ready_lanes() > 0 {
                break;
            }
        }
        now - turn_began > nanos(LONG_TURN)
    }

    /// How many jobs go into the next attempt: the handler's batch, all of one key. A job that
    /// failed before goes alone, so that no other job pays for it.
    fn next_batch(&self) -> usize {
        let most = self.topic.handler.batch().get();
        if most == 1 || self.jobs[0].failures.is_some() {
            return 1;
        }
        let first = &self.jobs[0].job;
        let key = first.key();
        self.jobs
            .iter()
            .take(most)
            .take_while(|queued| queued.job.key() == key && queued.failures.is_none())
            .take_while(|queued| self.topic.handler.joins(first, &queued.job))
            .take_while(|queued| self.topic.handler.admits(&queued.job) == Admission::Now)
            .count()
            .max(1)
    }

    fn hands_over(&self) -> bool {
        self.jobs[0]
            .failures
            .as_ref()
            .is_some_and(|failures| failures.exhausted.is_some())
    }

    async fn handle(&mut self, count: usize, now: u64) -> (Result<(), Ended>, bool) {
        let stripe = self.topic.queue.counters.of_worker(self.slot.id.0);
        for queued in self.jobs.iter().take(count) {
            let waited = now.saturating_sub(queued.submitted);
            self.queue_nanos += waited;
            stripe.queue_time.record(waited);
        }
        let jobs = Jobs {
            queued: self.jobs,
            count,
            attempt: self.jobs[0].failed_attempts() + 1,
            time_limit: self.topic.queue.options.time_limit,
            worker: self.slot.id.0,
        };
        let mut waited = false;
        // Called within the attempt: a handler can panic before it has made its future.
        let handler = &self.topic.handler;
        let work = async move { handler.handle(jobs).await };
        let result = attempt(work, self.limit(), || {
            waited = true;
            report(
                self.topic,
                self.slot,
                self.lane,
                &mut self.done,
                &mut self.freed,
            );
        })
        .await;
        match &result {
            Ok(()) => self.finish(count, Outcome::Done),
            // A batch that says how far it got; the one that failed is now the first.
            Err(Ended::Failed(failure)) => {
                self.finish(failure.done().min(count - 1), Outcome::Done);
            }
            Err(Ended::Cancelled) => {}
        }
        (result, waited)
    }

    async fn hand_over(&mut self) -> (Result<(), Ended>, bool) {
        let first = &self.jobs[0];
        let Some(failures) = &first.failures else {
            return (Ok(()), false);
        };
        let mut waited = false;
        let handler = &self.topic.handler;
        let work = async move {
            handler
                .exhausted(&first.job, &failures.last, failures.failed_attempts)
                .await
        };
        let handed = attempt(work, self.limit(), || {
            waited = true;
            report(
                self.topic,
                self.slot,
                self.lane,
                &mut self.done,
                &mut self.freed,
            );
        })
        .await;
        let disposition = match handed {
            Ok(disposition) => disposition,
            Err(ended) => return (Err(ended), waited),
        };
        if disposition == Disposition::DeadLettered {
            let queue = &self.topic.queue;
            queue.pool.teller.tell(|| Event::DeadLettered {
                topic: queue.name.clone(),
                key: first.job.key().map(str::to_owned),
                attempts: failures.failed_attempts,
                reason: failures.last.message().to_owned(),
            });
        }
        self.finish(1, Outcome::Exhausted(disposition));
        (Ok(()), waited)
    }

    fn limit(&self) -> Limit<'a> {
        Limit {
            time: self.topic.queue.options.time_limit,
            cancellable: self.topic.handler.cancellable(),
            halt: &self.topic.queue.halt,
        }
    }

    /// The first `count` jobs ran, and are over.
    fn finish(&mut self, count: usize, outcome: Outcome) {
        let mut panicked = false;
        for queued in self.jobs.drain(..count) {
            self.freed.add(&queued);
            self.done += 1;
            if !self.topic.hand_back(queued.job, outcome) {
                panicked = true;
            }
        }
        if panicked {
            self.panicked();
        }
        if outcome == Outcome::Done {
            self.processed += count as u64;
        }
    }

    /// A handler panicked: the worker restarts. If it does so too often, the lane waits.
    fn panicked(&mut self) {
        if !std::mem::replace(&mut self.panicked, true) {
            self.pause = self.slot.note_panic_of_turn(Instant::now());
        }
    }

    fn took(&mut self, nanos: u64) {
        let stripe = self.topic.queue.counters.of_worker(self.slot.id.0);
        stripe.run_time.record(nanos);
        self.run_nanos += nanos;
    }

    /// Notes a failure of the first job and decides what follows: another attempt after a while, or
    /// handing it over.
    fn failed(&mut self, failure: Failure) {
        let queue = &self.topic.queue;
        let retry = &queue.options.retry;
        self.failed += 1;
        let stripe = queue.counters.of_worker(self.slot.id.0);
        match failure.kind() {
            FailureKind::Panicked => {
                self.panicked();
                stripe.panicked.fetch_add(1, Ordering::Relaxed);
            }
            FailureKind::TimedOut => {
                stripe.timed_out.fetch_add(1, Ordering::Relaxed);
            }
            FailureKind::Failed | FailureKind::Fatal => {}
        }
        let Some(first) = self.jobs.front_mut() else {
            return;
        };
        let failures = first.failures.get_or_insert_with(|| {
            Box::new(PastFailures {
                failed_attempts: 0,
                last: failure.clone(),
                exhausted: None,
            })
        });
        if let Some(handovers) = &mut failures.exhausted {
            *handovers += 1;
            tracing::warn!(
                topic = %queue.name, key = first.job.key(), reason = %failure,
                "an exhausted job could not be handed over; its lane waits"
            );
            self.back_off_for = Some(retry.unending_delay(*handovers));
        } else {
            failures.failed_attempts += 1;
            let fatal = failure.kind() == FailureKind::Fatal;
            failures.last = failure;
            match retry.delay(failures.failed_attempts) {
                Some(delay) if !fatal => self.back_off_for = Some(delay),
                _ => {
                    failures.exhausted = Some(0);
                    queue.counters.exhausted.fetch_add(1, Ordering::Relaxed);
                    return;
                }
            }
        }
        // `max`: `None` is below every wait.
        self.back_off_for = self.back_off_for.max(self.pause);
        if let (Some(retry_in), Some(failures)) = (self.back_off_for, &first.failures) {
            queue.pool.teller.tell(|| Event::LaneBackingOff {
                topic: queue.name.clone(),
                key: first.job.key().map(str::to_owned),
                failed_attempts: failures.failed_attempts,
                reason: failures.last.message().to_owned(),
                retry_in,
            });
        }
    }

    /// Gives the lane back; answers it if it has to go on the ready queue.
    fn give_back(&mut self) -> Option<LaneId> {
        if std::mem::replace(&mut self.ended, true) {
            return None;
        }
        self.slot.rests();
        self.slot.count(self.processed, self.failed);
        let queue = &self.topic.queue;
        let stripe = queue.counters.of_worker(self.slot.id.0);
        stripe
            .processed
            .fetch_add(self.processed, Ordering::Relaxed);
        stripe.failed.fetch_add(self.failed, Ordering::Relaxed);
        stripe.queue_time.add_to_sum(self.queue_nanos);
        stripe.run_time.add_to_sum(self.run_nanos);

        self.back_off_for = self.back_off_for.max(self.pause);
        let then = if self.back_off_for.is_some() {
            // Counted before the timer can undo it.
            queue.counters.backing_off.fetch_add(1, Ordering::Relaxed);
            Then::BackOff
        } else {
            Then::Continue
        };
        let (left, held) = queue
            .shards
            .give_back(self.lane, self.done, self.jobs, then);
        self.has_woken = queue.give_back_room(&std::mem::take(&mut self.freed));
        // A submitter that waits at a full lane is told when a quarter of it is free, or when the
        // lane stops: one notice for many jobs. The room of the topic counts in any case.
        if left != Left::MakeReady || held <= queue.options.lane_bound / 4 * 3 {
            self.has_woken |= queue.room.announce();
        }
        match left {
            Left::BackingOff => {
                self.has_woken = true;
                let delay = self.back_off_for.unwrap_or_default();
                let backoff = &queue.pool.backoff;
                match self.group {
                    Some(group) => backoff.hold(queue.id, group, self.lane, delay),
                    None => backoff.back_off(after(delay), queue.id, self.lane),
                }
                None
            }
            Left::MakeReady => Some(self.lane),
            Left::Gone => None,
            Left::Closed => {
                if then == Then::BackOff {
                    queue.counters.backing_off.fetch_sub(1, Ordering::Relaxed);
                }
                while let Some(queued) = self.jobs.pop_front() {
                    self.topic.abandon_one(queued);
                }
                queue.room.announce();
                None
            }
        }
    }
}

impl<J: Job, H: Handler<J>> Drop for Turn<'_, J, H> {
    fn drop(&mut self) {
        if !self.ended {
            if std::thread::panicking() {
                // Outside of an attempt: in `Job::key`, or in code of ours.
                self.panicked();
            }
            let again = self.give_back();
            self.topic.queue.pool.turn_ended(self.topic.queue.id, again);
            self.topic.leave_if_closed();
        }
    }
}

/// The key of a job, where a panic of [`Job::key`] would take more with it than a turn: the task that
/// resumes the lanes of all topics that back off, or the rest of what is handed back.
fn key_of<J: Job>(job: &J) -> Option<String> {
    catch_unwind(AssertUnwindSafe(|| job.key().map(str::to_owned))).unwrap_or_default()
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A handler waits, in the middle of a turn. What is finished so far is told to the lane and the
/// gates, because others may wait for the room; and other lanes must not wait for this one.
fn report<J: Job, H: Handler<J>>(
    topic: &TopicLanes<J, H>,
    slot: &WorkerSlot,
    lane: LaneId,
    done: &mut usize,
    freed: &mut Freed,
) {
    topic.queue.pool.empty_stash(slot);
    if *done > 0 {
        topic.queue.shards.finished(lane, std::mem::take(done));
        topic.queue.give_back_room(&std::mem::take(freed));
        topic.queue.room.announce();
    }
}
