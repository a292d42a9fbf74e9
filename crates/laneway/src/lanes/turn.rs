//! A turn: one worker runs a few jobs of one lane, in order, and gives the lane back.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::attempt::{Ended, Limit, attempt, message_of};
use super::clock::after;
use super::close::{Abandoned, Closing};
use super::crew::{RunEnd, Runner};
use super::events::Event;
use super::intake::{Freed, Queue};
use super::job::{
    Admission, Disposition, Failure, FailureKind, Handler, Job, Jobs, Outcome, Queued, Trouble,
};
use super::options::LaneBy;
use super::ready::{Next, TopicId};
use super::seat::Seat;
use super::shards::{LaneId, Left, Then};
use super::stats::TopicStats;

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
        seat: &'a Seat,
        lane: LaneId,
    ) -> Pin<Box<dyn Future<Output = RunEnd> + Send + 'a>> {
        Box::pin(self.run_turns(seat, lane))
    }

    fn unpark(&self, lane: LaneId) {
        let mut key = None;
        if self.queue.shards.unpark(lane, |first| {
            key = first.job.key().map(str::to_owned);
        }) {
            self.queue.counters.parked.fetch_sub(1, Ordering::Relaxed);
            self.queue.crew.teller.tell(|| Event::LaneReleased {
                topic: self.queue.name.clone(),
                key,
            });
            self.queue.crew.push(self.queue.id, lane);
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
        let parked = self.queue.shards.drain(|queued| self.abandon_one(queued));
        self.queue
            .counters
            .parked
            .fetch_sub(parked as u64, Ordering::Relaxed);
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
    async fn run_turns(&self, seat: &Seat, mut lane: LaneId) -> RunEnd {
        seat.works_on_topic(&self.queue.name);
        let most = TURN.max(self.handler.batch().get());
        let mut jobs = VecDeque::with_capacity(most);
        loop {
            let mut turn = Turn::begin(self, seat, lane, &mut jobs, most);
            let took_long = turn.run().await;
            let again = turn.give_back();
            let Turn {
                panicked,
                has_woken,
                ..
            } = turn;
            drop(turn);
            let crew = &self.queue.crew;
            if panicked {
                crew.empty_stash(seat);
                crew.turn_ended(self.queue.id, again);
                self.leave_if_closed();
                return RunEnd::Panicked;
            }
            if took_long {
                crew.empty_stash(seat);
            }
            if let Some(next) = seat.stash.next_after(again) {
                lane = next;
            } else {
                let next = crew.next_after(seat, self.queue.id);
                self.leave_if_closed();
                match next {
                    Next::Run {
                        topic,
                        lane: next,
                        wake,
                    } if topic == self.queue.id => {
                        crew.wake(wake);
                        lane = next;
                    }
                    other => return RunEnd::Next(other),
                }
            }
            if has_woken {
                // The runtime keeps what was woken last for this thread, and the next handler may
                // block it.
                tokio::task::yield_now().await;
            } else {
                // Handlers that never wait must not keep a thread for themselves.
                tokio::task::coop::consume_budget().await;
            }
        }
    }

    /// A closed topic goes with its last turn. Whoever closed it may have looked too early, or may
    /// have given up on a handler that has only now returned.
    fn leave_if_closed(&self) {
        if self.queue.halt.is_halted() {
            self.queue.crew.sweep();
        }
    }

    /// Hands a job back that will not run, and gives its room back.
    fn abandon_one(&self, queued: Queued<J>) {
        let mut freed = Freed::default();
        freed.add(&queued);
        self.queue.note_abandoned(queued.job.key());
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
    seat: &'a Seat,
    lane: LaneId,
    jobs: &'a mut VecDeque<Queued<J>>,
    /// Finished jobs that the lane has not heard of yet, and their room.
    done: usize,
    freed: Freed,
    /// Set when the lane has to wait.
    parked_for: Option<Duration>,
    /// Set when the handler panicked, in an attempt or after it.
    panicked: bool,
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
        seat: &'a Seat,
        lane: LaneId,
        jobs: &'a mut VecDeque<Queued<J>>,
        most: usize,
    ) -> Self {
        let owned = topic.queue.shards.take(lane, most, jobs);
        if let Some(key) = jobs.front().and_then(|first| first.job.key())
            && seat.samples(SAMPLE_ONE_IN)
        {
            topic.queue.counters.sample_key(key, jobs.len() as u64);
        }
        Self {
            topic,
            seat,
            lane,
            jobs,
            done: 0,
            freed: Freed::default(),
            parked_for: None,
            panicked: false,
            has_woken: false,
            processed: 0,
            failed: 0,
            queue_nanos: 0,
            run_nanos: 0,
            // A lane that was drained between the queue and here is nobody's.
            ended: !owned,
        }
    }

    /// Runs the jobs until they are all finished, one has to wait, the handler panicked, or the turn
    /// has been long enough. Answers whether it took long.
    async fn run(&mut self) -> bool {
        let queue = &self.topic.queue;
        let crew = &queue.crew;
        let mut now = crew.clock.now();
        let turn_began = now;
        let mut named = false;
        while !self.jobs.is_empty() && !queue.halt.is_halted() {
            match self.topic.handler.admits(&self.jobs[0].job) {
                Admission::Now => {}
                Admission::Later(wait) => {
                    self.parked_for = Some(wait);
                    break;
                }
                Admission::Never => {
                    self.finish(1, Outcome::Abandoned);
                    continue;
                }
            }
            // All jobs of a keyed lane have the same key; those of a hashed lane may not.
            if !named || queue.options.lane_by != LaneBy::Key {
                self.seat.works_on_key(self.jobs[0].job.key());
                named = true;
            }
            self.seat.begins(now);
            let count = self.next_batch();
            let began = now;
            let (result, waited) = if self.hands_over() {
                self.hand_over().await
            } else {
                self.handle(count, began).await
            };
            now = crew.clock.now();
            self.took(now - began);
            match result {
                Ok(()) => {}
                Err(Ended::Cancelled) => break,
                Err(Ended::Failed(failure)) => self.failed(failure),
            }
            if self.panicked || self.parked_for.is_some() {
                break;
            }
            if waited && now - turn_began > nanos(TURN_TIME) && crew.ready_lanes() > 0 {
                break;
            }
        }
        now - turn_began > nanos(LONG_TURN)
    }

    /// How many jobs go into the next attempt: the handler's batch, all of one key. A job that
    /// failed before goes alone, so that nobody else pays for it.
    fn next_batch(&self) -> usize {
        let most = self.topic.handler.batch().get();
        if most == 1 || self.jobs[0].trouble.is_some() {
            return 1;
        }
        let key = self.jobs[0].job.key();
        self.jobs
            .iter()
            .take(most)
            .take_while(|queued| queued.job.key() == key && queued.trouble.is_none())
            .take_while(|queued| self.topic.handler.admits(&queued.job) == Admission::Now)
            .count()
            .max(1)
    }

    fn hands_over(&self) -> bool {
        self.jobs[0]
            .trouble
            .as_ref()
            .is_some_and(|trouble| trouble.exhausted.is_some())
    }

    async fn handle(&mut self, count: usize, now: u64) -> (Result<(), Ended>, bool) {
        let stripe = self.topic.queue.counters.of_worker(self.seat.id.0);
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
            worker: self.seat.id.0,
        };
        let mut waited = false;
        // Called within the attempt: a handler can panic before it has made its future.
        let handler = &self.topic.handler;
        let work = async move { handler.handle(jobs).await };
        let result = attempt(work, self.limit(), || {
            waited = true;
            report(
                self.topic,
                self.seat,
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
        let Some(trouble) = &first.trouble else {
            return (Ok(()), false);
        };
        let mut waited = false;
        let handler = &self.topic.handler;
        let work = async move {
            handler
                .exhausted(&first.job, &trouble.last, trouble.failed_attempts)
                .await
        };
        let handed = attempt(work, self.limit(), || {
            waited = true;
            report(
                self.topic,
                self.seat,
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
            queue.crew.teller.tell(|| Event::DeadLettered {
                topic: queue.name.clone(),
                key: first.job.key().map(str::to_owned),
                attempts: trouble.failed_attempts,
                reason: trouble.last.message().to_owned(),
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
        for queued in self.jobs.drain(..count) {
            self.freed.add(&queued);
            self.done += 1;
            self.panicked |= !self.topic.hand_back(queued.job, outcome);
        }
        if outcome == Outcome::Done {
            self.processed += count as u64;
        }
    }

    fn took(&mut self, nanos: u64) {
        let stripe = self.topic.queue.counters.of_worker(self.seat.id.0);
        stripe.run_time.record(nanos);
        self.run_nanos += nanos;
    }

    /// Notes a failure of the first job and decides what follows: another attempt after a while, or
    /// handing it over.
    fn failed(&mut self, failure: Failure) {
        let queue = &self.topic.queue;
        let retry = &queue.options.retry;
        self.failed += 1;
        let stripe = queue.counters.of_worker(self.seat.id.0);
        match failure.kind() {
            FailureKind::Panicked => {
                self.panicked = true;
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
        let trouble = first.trouble.get_or_insert_with(|| {
            Box::new(Trouble {
                failed_attempts: 0,
                last: failure.clone(),
                exhausted: None,
            })
        });
        if let Some(handovers) = &mut trouble.exhausted {
            *handovers += 1;
            tracing::warn!(
                topic = %queue.name, key = first.job.key(), reason = %failure,
                "an exhausted job could not be handed over; its lane waits"
            );
            self.parked_for = Some(retry.unending_delay(*handovers));
        } else {
            trouble.failed_attempts += 1;
            let fatal = failure.kind() == FailureKind::Fatal;
            trouble.last = failure;
            match retry.delay(trouble.failed_attempts) {
                Some(delay) if !fatal => self.parked_for = Some(delay),
                _ => {
                    trouble.exhausted = Some(0);
                    queue.counters.exhausted.fetch_add(1, Ordering::Relaxed);
                    return;
                }
            }
        }
        if let (Some(retry_in), Some(trouble)) = (self.parked_for, &first.trouble) {
            queue.crew.teller.tell(|| Event::LaneParked {
                topic: queue.name.clone(),
                key: first.job.key().map(str::to_owned),
                failed_attempts: trouble.failed_attempts,
                reason: trouble.last.message().to_owned(),
                retry_in,
            });
        }
    }

    /// Gives the lane back; answers it if it has to go on the ready queue.
    fn give_back(&mut self) -> Option<LaneId> {
        if std::mem::replace(&mut self.ended, true) {
            return None;
        }
        self.seat.rests();
        self.seat.count(self.processed, self.failed);
        let queue = &self.topic.queue;
        let stripe = queue.counters.of_worker(self.seat.id.0);
        stripe
            .processed
            .fetch_add(self.processed, Ordering::Relaxed);
        stripe.failed.fetch_add(self.failed, Ordering::Relaxed);
        stripe.queue_time.add_to_sum(self.queue_nanos);
        stripe.run_time.add_to_sum(self.run_nanos);

        let then = if self.parked_for.is_some() {
            // Counted before the timer can undo it.
            queue.counters.parked.fetch_add(1, Ordering::Relaxed);
            Then::Park
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
            Left::Parked => {
                self.has_woken = true;
                let delay = self.parked_for.unwrap_or_default();
                queue.crew.parking.park(after(delay), queue.id, self.lane);
                None
            }
            Left::MakeReady => Some(self.lane),
            Left::Gone => None,
            Left::Closed => {
                if then == Then::Park {
                    queue.counters.parked.fetch_sub(1, Ordering::Relaxed);
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
            let again = self.give_back();
            self.topic.queue.crew.turn_ended(self.topic.queue.id, again);
            self.topic.leave_if_closed();
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A handler waits, in the middle of a turn. What is finished so far is told to the lane and the
/// gates, because others may wait for the room; and other lanes must not wait for this one.
fn report<J: Job, H: Handler<J>>(
    topic: &TopicLanes<J, H>,
    seat: &Seat,
    lane: LaneId,
    done: &mut usize,
    freed: &mut Freed,
) {
    topic.queue.crew.empty_stash(seat);
    if *done > 0 {
        topic.queue.shards.finished(lane, std::mem::take(done));
        topic.queue.give_back_room(&std::mem::take(freed));
        topic.queue.room.announce();
    }
}
