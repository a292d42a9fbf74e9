//! A worker and its supervisor.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::attempt::message_of;
use super::crew::{Crew, RunEnd};
use super::events::Event;
use super::options::RestartLimit;
use super::ready::{Next, WorkerId};
use super::seat::Seat;

/// Keeps a seat of the crew taken: starts a worker, and another one whenever it panicked, until the
/// crew stops.
pub(super) async fn supervise(crew: Arc<Crew>, id: WorkerId, limit: RestartLimit) {
    let seat = &crew.seats[id.0];
    let mut restarts = Restarts::new(limit);
    while let Exit::Panicked = work_caught(&crew, seat).await {
        let pause = restarts.record(Instant::now());
        let count = seat.restarted(pause.is_some());
        crew.teller.tell(|| Event::WorkerRestarted {
            worker: id.0,
            restarts: count,
            pause,
        });
        if let Some(pause) = pause {
            tracing::warn!(
                worker = id.0,
                restarts = count,
                ?pause,
                "a worker is degraded"
            );
            tokio::time::sleep(pause).await;
            seat.recovered();
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Exit {
    Stopped,
    Panicked,
}

/// Panics of handlers are caught where they are called and end the worker in an orderly way. This
/// catches what is left: a panic in `key`, or in our own code. The lane was given back when the turn
/// was dropped.
async fn work_caught(crew: &Crew, seat: &Seat) -> Exit {
    let mut work = Box::pin(work(crew, seat));
    std::future::poll_fn(|cx| {
        match std::panic::catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
            Ok(poll) => poll,
            Err(panic) => {
                tracing::error!(
                    worker = seat.id.0,
                    reason = message_of(panic.as_ref()),
                    "a worker panicked outside of an attempt"
                );
                std::task::Poll::Ready(Exit::Panicked)
            }
        }
    })
    .await
}

async fn work(crew: &Crew, seat: &Seat) -> Exit {
    // What a worker that panicked had taken ahead.
    crew.empty_stash(seat);
    let mut next = crew.next(seat.id, false);
    loop {
        match next {
            Next::Sleep => {
                if crew.is_stopping() {
                    return Exit::Stopped;
                }
                seat.wake.notified().await;
                next = crew.next(seat.id, true);
            }
            Next::Run { topic, lane, wake } => {
                crew.wake(wake);
                // A topic is forgotten only after its last turn, so a lane of it was drained.
                let Some(runner) = crew.runner(topic) else {
                    next = crew.next_after(seat, topic);
                    continue;
                };
                match runner.run(seat, lane).await {
                    RunEnd::Next(following) => next = following,
                    RunEnd::Panicked => return Exit::Panicked,
                }
            }
        }
        // Many topics with little work each must not keep the thread either.
        tokio::task::coop::consume_budget().await;
    }
}

/// When a worker restarted, and how long it must rest. Pure: time is an argument.
#[derive(Debug)]
struct Restarts {
    limit: RestartLimit,
    recent: VecDeque<Instant>,
    pauses: u32,
}

const MINUTE: Duration = Duration::from_mins(1);

impl Restarts {
    fn new(limit: RestartLimit) -> Self {
        Self {
            limit,
            recent: VecDeque::new(),
            pauses: 0,
        }
    }

    /// Notes a restart; answers the pause before the worker goes on, if it restarts too often.
    fn record(&mut self, now: Instant) -> Option<Duration> {
        while self
            .recent
            .front()
            .is_some_and(|then| now.duration_since(*then) > MINUTE)
        {
            self.recent.pop_front();
        }
        self.recent.push_back(now);
        if self.recent.len() <= self.limit.per_minute {
            self.pauses = 0;
            return None;
        }
        // More are not needed to know that it is too often.
        self.recent.pop_front();
        let pause = self
            .limit
            .first_pause
            .saturating_mul(1 << self.pauses.min(16))
            .min(self.limit.longest_pause);
        self.pauses += 1;
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restarts() -> Restarts {
        Restarts::new(RestartLimit {
            per_minute: 3,
            first_pause: Duration::from_millis(10),
            longest_pause: Duration::from_millis(35),
        })
    }

    #[test]
    fn the_fourth_restart_in_a_minute_rests_and_rests_grow_to_the_longest() {
        let mut restarts = restarts();
        let now = Instant::now();
        let pauses: Vec<_> = (0..7)
            .map(|_| restarts.record(now).map(|p| p.as_millis()))
            .collect();
        assert_eq!(
            pauses,
            [None, None, None, Some(10), Some(20), Some(35), Some(35)]
        );
    }

    #[test]
    fn a_quiet_minute_forgives() {
        let mut restarts = restarts();
        let now = Instant::now();
        for _ in 0..5 {
            restarts.record(now);
        }
        assert_eq!(restarts.record(now + MINUTE * 2), None);
    }
}
