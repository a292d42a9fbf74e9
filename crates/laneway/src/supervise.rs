//! Tasks in the background that belong to no subscription: one that panics is told of and started again.
//!
//! Readers, members and committers have their own way, which gives back what they had in hand: see
//! `bus::restart`.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;

/// How long a task that panicked waits before it is started again, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// One that went well for so long begins anew.
const WELL_AFTER: Duration = Duration::from_mins(2);

/// How many panics there were in this process. Brokers start their tasks before there is a bus that could count.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// How often a task of this kind panicked since the process was started.
#[cfg(any(test, feature = "metrics"))]
pub(crate) fn panics() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

/// Runs a task until it ends by itself. If it panics, that is logged and counted, and it is started again after a
/// pause that gets longer while it goes on panicking.
pub(crate) async fn supervise<F: Future<Output = ()>>(
    task: &'static str,
    mut start: impl FnMut() -> F,
) {
    let mut pause = FIRST_PAUSE;
    loop {
        let began = Instant::now();
        let running = AssertUnwindSafe(async { start().await }).catch_unwind();
        let Err(panic) = running.await else {
            return;
        };
        PANICS.fetch_add(1, Ordering::Relaxed);
        if began.elapsed() >= WELL_AFTER {
            pause = FIRST_PAUSE;
        }
        let reason = message_of(&*panic);
        tracing::error!(task, reason, ?pause, "a task panicked, restarting it");
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

/// What a panic says.
pub(crate) fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("it panicked: {}", text.unwrap_or("(not a text)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_is_counted_and_started_again_until_it_ends() {
        let before = panics();
        let (mut starts, began) = (0, Instant::now());
        supervise("the test", || {
            starts += 1;
            let number = starts;
            async move {
                tokio::task::yield_now().await;
                assert!(number > 3, "number {number}");
            }
        })
        .await;
        assert_eq!(starts, 4);
        assert!(panics() >= before + 3);
        assert_eq!(began.elapsed(), 7 * FIRST_PAUSE, "each pause is longer");
    }
}
