//! One attempt: a future that may return, panic, or take too long.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Sleep, sleep};

use super::halt::Halt;
use super::job::{Failure, FailureKind};

/// What can end an attempt early, and whether it can be ended at all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit<'a> {
    pub(super) time: Option<Duration>,
    pub(super) cancellable: bool,
    pub(super) halt: &'a Halt,
}

/// Why an attempt did not succeed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Failed(Failure),
    /// The topic is closed and its deadline is over: nobody is to blame.
    Cancelled,
}

/// Runs an attempt to its end. `on_wait` is called once, if the attempt does not end at once: only
/// then is a timer needed at all, and only then is it worth the while to tell others how far the
/// turn has come.
pub(super) async fn attempt<T>(
    work: impl Future<Output = Result<T, Failure>>,
    limit: Limit<'_>,
    on_wait: impl FnOnce(),
) -> Result<T, Ended> {
    let mut work = pin!(Some(work));
    let mut timer = pin!(None::<Sleep>);
    let mut cancelled = pin!(None);
    let mut on_wait = Some(on_wait);
    let mut too_late = false;
    let result = std::future::poll_fn(|cx| {
        let poll = AssertUnwindSafe(|| match work.as_mut().as_pin_mut() {
            Some(work) => work.poll(cx),
            None => Poll::Pending,
        });
        match catch_unwind(poll) {
            Ok(Poll::Ready(_)) if too_late => return Poll::Ready(Err(timed_out(limit.time))),
            Ok(Poll::Ready(result)) => return Poll::Ready(result.map_err(Ended::Failed)),
            Ok(Poll::Pending) => {}
            Err(panic) => return Poll::Ready(Err(panicked(panic.as_ref()))),
        }
        if let Some(on_wait) = on_wait.take() {
            on_wait();
            timer.set(limit.time.map(sleep));
            cancelled.set(limit.cancellable.then(|| limit.halt.cancelled()));
        }
        if let Some(cancelled) = cancelled.as_mut().as_pin_mut()
            && cancelled.poll(cx).is_ready()
        {
            return Poll::Ready(Err(Ended::Cancelled));
        }
        let expired = timer
            .as_mut()
            .as_pin_mut()
            .is_some_and(|timer| timer.poll(cx).is_ready());
        if expired {
            if limit.cancellable {
                return Poll::Ready(Err(timed_out(limit.time)));
            }
            // It cannot be stopped, and nothing else of its lane may start before it has ended.
            too_late = true;
            timer.set(None);
        }
        Poll::Pending
    })
    .await;
    // What is left of the attempt is dropped here, because that can panic as well.
    match catch_unwind(AssertUnwindSafe(|| work.set(None))) {
        Ok(()) => result,
        Err(panic) => Err(panicked(panic.as_ref())),
    }
}

fn panicked(panic: &(dyn Any + Send)) -> Ended {
    Ended::Failed(Failure::of(FailureKind::Panicked, message_of(panic)))
}

fn timed_out(limit: Option<Duration>) -> Ended {
    Ended::Failed(Failure::of(
        FailureKind::TimedOut,
        format_args!("over its time limit of {:?}", limit.unwrap_or_default()),
    ))
}

pub(super) fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", text.unwrap_or("(not a text)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(halt: &Halt) -> Limit<'_> {
        Limit {
            time: Some(Duration::from_secs(1)),
            cancellable: true,
            halt,
        }
    }

    fn failure<T: std::fmt::Debug>(result: Result<T, Ended>) -> Failure {
        match result {
            Err(Ended::Failed(failure)) => failure,
            other => panic!("expected a failure, got {other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn ready_work_never_waits() {
        let halt = Halt::default();
        let result = attempt(async { Ok(7) }, limit(&halt), || panic!("it does not wait")).await;
        assert_eq!(result, Ok(7));
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_is_a_failure_with_its_message() {
        let halt = Halt::default();
        let result = attempt::<()>(async { panic!("no {}", "way") }, limit(&halt), || ()).await;
        let failure = failure(result);
        assert_eq!(failure.kind(), FailureKind::Panicked);
        assert_eq!(failure.message(), "panicked: no way");
    }

    #[tokio::test(start_paused = true)]
    async fn work_over_its_limit_is_dropped() {
        let halt = Halt::default();
        let started = tokio::time::Instant::now();
        let result = attempt::<()>(std::future::pending(), limit(&halt), || ()).await;
        assert_eq!(failure(result).kind(), FailureKind::TimedOut);
        assert_eq!(started.elapsed().as_secs(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_cannot_be_dropped_is_awaited_and_has_failed() {
        let halt = Halt::default();
        let started = tokio::time::Instant::now();
        let work = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            Ok(())
        };
        let limit = Limit {
            cancellable: false,
            ..limit(&halt)
        };
        assert_eq!(
            failure(attempt(work, limit, || ()).await).kind(),
            FailureKind::TimedOut
        );
        assert_eq!(started.elapsed().as_secs(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_attempt_is_nobodys_fault() {
        let halt = Halt::default();
        halt.cancel();
        let result = attempt::<()>(std::future::pending(), limit(&halt), || ()).await;
        assert_eq!(result, Err(Ended::Cancelled));
    }
}
